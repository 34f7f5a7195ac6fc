"""The web console: pages without a build step, and the little that they need beyond `/v1`.

Rules a change must keep:

1. The pages hold nothing secret and are served to everybody; what they show comes from calls that
   carry the visitor's own credential.
2. What all visitors look at is computed once a second for all of them, never once for each.
3. The pages run under a policy that allows scripts and styles from this server alone. What users
   wrote is shown as text.
"""
