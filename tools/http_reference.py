"""Decides what the reference of the HTTP API says: it is drawn from the server's OpenAPI document.

What holds for all routes stands here; everything else comes from the document.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from cronoq_server.api.admin_service import AdminService
from cronoq_server.api.gate import Gate
from cronoq_server.api.http.openapi import document
from cronoq_server.api.http.table import all_routes
from cronoq_server.api.service import Service
from cronoq_server.api.specs import SpecReader
from cronoq_server.config import LimitsConfig
from cronoq_server.runtime.driver import Driver

INTRODUCTION = """\
Served at `server.http_addr`, 127.0.0.1:7071 unless configured. `GET /openapi.json` is the whole of
it for programs; this page is drawn from the same document.

**Credentials.** `Authorization: Bearer TOKEN`, or a client certificate;
[security](../guide/security.md) says who may do what. `/healthz` and `/readyz` need none. Without
any credential configured, a server that listens on loopback answers only requests whose `Host`
names this machine, and takes no changes from pages of other origins.

**Numbers.** Ids and instants are texts of digits: they have 64 bits, and many JSON readers keep 53.
Callers may send whole numbers up to 2**53 - 1 as well. Instants (`…_unix_ns`) are Unix nanoseconds,
durations (`…_s`) seconds.

**Payloads and outputs** have one of three forms. Who sends chooses by the field; who reads gets the
form that the content type calls for, and base64 if the bytes are not what it says.

| field | content | type if none is given | read back for |
| --- | --- | --- | --- |
| `payload`, `output` | any JSON value, byte for byte | `application/json` | JSON types |
| `payload_text`, `output_text` | a text | `text/plain; charset=utf-8` | `text/…` in UTF-8 |
| `payload_base64`, `output_base64` | any bytes | none | everything else |

`GET …/output` gives an output as it is, without any of this.

**Bodies** are JSON with `Content-Type: application/json`, at most `limits.max_http_body_bytes`, and
may be compressed (`Content-Encoding: gzip`; the limit holds for what comes out, too). A field or a
part of a query that is not known is refused. Answers are compressed for whoever accepts gzip.

**Errors** have one form; the [reference of errors](errors.md) has the reasons. What only HTTP can
refuse: a path that is not there (404) or a method (405), reason `unsupported`; a body that is too
slow (408), too large (413) or of another type (415); headers that are too large (431). With 429 and
503 comes `Retry-After`.

<!-- output -->
```json
{
  "error": {
    "code": 400,
    "reason": "invalid_field",
    "message": "kind: has 300 characters, the limit is 256",
    "field": "kind",
    "details": {"limit": "256"}
  }
}
```

**Again, safely.** A submit with a key, in the body or the header `Idempotency-Key`, can be
repeated: the first answer is 201, those after it 200 with `"duplicate": true`.

**Pages.** A listing says `next_after`; pass it as `after`, or follow the header `Link` with
`rel="next"`. A page may be short or empty and still not be the last: only `null` is the end.

**Waiting.** A wait is answered when the task has ended, or with 504 after `timeout_s`, which is cut
to `limits.max_wait_s`. A submit for a full queue waits for room (in pools with `overflow = "wait"`)
as long as its `timeout_s` says, then comes 429. Whoever goes away is forgotten at once.

**Watching.** `GET /v1/watch` sends an event `status` for every end (or change), a `bookmark` when
nothing happens, each with a cursor as its id, and `error` as the last one. Send the id of the last
event that was read as `Last-Event-ID`, and no end is missed; some may come twice.

**Standby.** A server that does not lead answers 503 `not_leader`, with which nothing was executed,
and closes the connection."""

TESTED = "<!-- tested: tests/api/test_http_openapi.py -->"


def page(mark: str) -> str:
    """Return the page; `mark` says that it is generated."""
    told = described()
    parts = ["# HTTP API", "", mark, "", INTRODUCTION, ""]
    for group in _groups(told):
        parts += [f"## {group}", "", *_table(told, group), ""]
        for path, method, operation in _operations(told, group):
            parts += _operation(path, method, operation)
    parts += ["## Shapes", ""]
    for name, schema in sorted(told["components"]["schemas"].items()):
        parts += _shape(name, schema)
    return "\n".join(parts).rstrip() + "\n"


def described() -> dict[str, Any]:
    """Return the document of a server with the default configuration."""

    def nobody() -> Driver:
        raise AssertionError("a document is drawn without asking anybody")

    limits = LimitsConfig()
    service = Service(limits, Gate(limits), nobody)
    reader = SpecReader(limits, ["default"])
    return document("", all_routes(service, AdminService(service), reader))


def _operations(told: dict[str, Any], group: str) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in told["paths"].items():
        for method, operation in methods.items():
            if operation["tags"] == [group]:
                yield path, method.upper(), operation


def _groups(told: dict[str, Any]) -> list[str]:
    tags = (one["tags"][0] for methods in told["paths"].values() for one in methods.values())
    return list(dict.fromkeys(tags))


def _table(told: dict[str, Any], group: str) -> list[str]:
    rows = [
        f"| `{method} {path}` | {operation['summary']} |"
        for path, method, operation in _operations(told, group)
    ]
    return ["| route | what it does |", "| --- | --- |", *rows]


def _operation(path: str, method: str, operation: dict[str, Any]) -> list[str]:
    parts = [f"### {method} {path}", "", f"{operation['summary']}."]
    parameters = [one for one in operation.get("parameters", ()) if one["in"] != "path"]
    if parameters:
        parts += ["", "| parameter | type | meaning |", "| --- | --- | --- |"]
        parts += [_parameter(one) for one in parameters]
    body = operation.get("requestBody")
    if body is not None:
        content = body["content"]["application/json"]
        parts += ["", f"Body: {_type(content['schema'])}.", *_example(content.get("example"))]
    for code, answer in operation["responses"].items():
        if "$ref" not in answer:
            parts += ["", *_answer(code, answer)]
    refusals = [code for code, answer in operation["responses"].items() if "$ref" in answer]
    if refusals:
        parts += ["", f"Refusals: {', '.join(refusals)}."]
    return [*parts, ""]


def _parameter(told: dict[str, Any]) -> str:
    name = told["name"] if told["in"] == "query" else f"header {told['name']}"
    needed = " (required)" if told.get("required") else ""
    return f"| `{name}`{needed} | {_type(told['schema'])} | {told.get('description', '')} |"


def _answer(code: str, answer: dict[str, Any]) -> list[str]:
    parts = [f"{code}: {answer['description']}"]
    for media, content in answer.get("content", {}).items():
        if media != "application/json":
            parts[0] += f" (`{media}`)"
        elif "schema" in content:
            parts[0] = f"{code}: {_type(content['schema'])}. {answer['description']}"
        parts += _example(content.get("example"))
    return parts


def _example(example: Any) -> list[str]:
    if example is None:
        return []
    return ["", TESTED, "```json", json.dumps(example, ensure_ascii=False), "```"]


def _shape(name: str, schema: dict[str, Any]) -> list[str]:
    parts = [f"### {name}", "", schema.get("description", "").strip(), ""]
    parts += ["| field | type | meaning |", "| --- | --- | --- |"]
    required = schema.get("required", ())
    for field, told in schema["properties"].items():
        needed = " (always)" if field in required else ""
        parts.append(f"| `{field}`{needed} | {_type(told)} | {told.get('description', '')} |")
    return [*parts, ""]


def _type(schema: dict[str, Any]) -> str:
    """Return a schema in words."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "enum" in schema:
        return " / ".join(f"`{word}`" for word in schema["enum"])
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_type(one) for one in schema["anyOf"]))
    match schema.get("type"):
        case "array":
            return f"list of {_type(schema['items'])}"
        case "object":
            return f"map of text to {_type(schema.get('additionalProperties', {}))}"
        case "string":
            return "digits" if "pattern" in schema else "text"
        case "integer":
            return "whole number"
        case "number" | "boolean" | "null" as kind:
            return {"number": "number", "boolean": "true or false", "null": "null"}[kind]
        case _:
            return "any JSON"
