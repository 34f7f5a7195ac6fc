"""The HTTP/JSON gateway: the operations of the server for whoever has no SDK at hand.

Rules a change must keep:

1. A route parses, asks `Service` or `AdminService`, and writes an answer. What is allowed is said
   in `specs`, `texts` and `admin_convert`, the same as for gRPC; what exists, by the engine.
2. Callers are identified before their body is read.
3. A caller that goes away ends what it asked for: nothing waits for nobody.
4. The OpenAPI document is drawn from the same table and the same types that serve.
"""
