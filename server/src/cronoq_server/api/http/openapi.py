"""What the OpenAPI document says: drawn from the table of routes and the types that it names."""

from __future__ import annotations

import re
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any, Final

import msgspec

from cronoq_server.api.http import responses
from cronoq_server.api.http.routes import Answers, Route

REFERENCE: Final = "#/components/schemas/{name}"
EVERYWHERE: Final = (400, 401, 403, 408, 413, 429, 431, 500, 503)
"""Refusals that any route may answer with."""

WITH_BODY: Final = (415,)
WORDS: Final = {
    400: "A field is wrong; the message names it.",
    401: "No valid credential.",
    403: "The credential does not allow this.",
    404: "There is no such thing, or not for this caller.",
    408: "The request did not arrive in time.",
    409: "Not as things stand.",
    413: "The body is too large.",
    415: "The body is of a type that is not read.",
    429: "Too much at this moment; `Retry-After` says when to come again.",
    431: "The headers are too large.",
    500: "A defect of the server.",
    503: "This server can't answer now; `not_leader` and `stopping`: nothing was executed.",
    504: "The task has not ended in time.",
}
ERRORS: Final[dict[int, dict[str, str]]] = {
    400: {"reason": "invalid_field", "message": "kind: has 300 characters, the limit is 256"},
    401: {"reason": "unauthenticated", "message": "no valid credential"},
    403: {"reason": "pool_not_allowed", "message": "pool: this credential may not use it"},
    404: {"reason": "task_unknown", "message": "no task with id 72057594037927937"},
    408: {"reason": "invalid_field", "message": "the body did not arrive within 30 s"},
    409: {"reason": "not_terminal", "message": "the task has not ended yet"},
    413: {"reason": "too_large", "message": "body: 5000000 bytes exceed the limit of 4194304"},
    415: {"reason": "invalid_field", "message": "content-type: must be application/json"},
    429: {"reason": "queue_full", "message": "the queue is full"},
    431: {"reason": "too_large", "message": "the headers exceed the limit of 32768 bytes"},
    500: {"reason": "internal", "message": "the server failed; its log has the cause"},
    503: {"reason": "not_leader", "message": "this server does not lead; nothing was executed"},
    504: {"reason": "wait_timeout", "message": "the task has not ended yet"},
}
DESCRIPTION: Final = (
    "Ids, leases and instants are texts of digits, since they do not fit into the numbers of many "
    "languages; whole numbers up to 2**53 - 1 are taken as well. Instants are Unix nanoseconds, "
    "durations are seconds."
)
_VARIABLE: Final = re.compile(r"\{(\w+)\}")


def document(version: str, routes: Sequence[Route]) -> dict[str, Any]:
    """The whole document."""
    shapes: dict[type, None] = {responses.Error: None}
    for route in routes:
        shapes.update(dict.fromkeys(_shapes(route)))
    _, schemas = msgspec.json.schema_components(list(shapes), ref_template=REFERENCE)
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    paths |= _plain_paths()
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "cronoq",
            "version": version,
            "description": DESCRIPTION,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "schemas": schemas,
            "responses": {str(code): _refusal(code) for code in WORDS},
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer"},
                "certificate": {"type": "mutualTLS"},
            },
        },
        "security": [{"token": []}, {"certificate": []}, {}],
    }


def _shapes(route: Route) -> list[type]:
    bodies = [route.body] if route.body is not None else []
    return [*bodies, *(a.shape for a in route.answers.values() if a.shape is not None)]


def _operation(route: Route) -> dict[str, Any]:
    told: dict[str, Any] = {
        "operationId": operation_id(route),
        "summary": route.summary,
        "tags": [route.group],
        "parameters": _parameters(route),
        "responses": {
            **{str(code): _answer(answer) for code, answer in route.answers.items()},
            **{str(code): {"$ref": f"#/components/responses/{code}"} for code in refusals(route)},
        },
    }
    if route.body is not None:
        content: dict[str, Any] = {"schema": _schema(route.body)}
        if route.example is not None:
            content["example"] = route.example
        told["requestBody"] = {"required": True, "content": {"application/json": content}}
    return told


def operation_id(route: Route) -> str:
    """A name of its own for each route."""
    words = _VARIABLE.sub(r"by_\1", route.path.removeprefix("/v1/"))
    return f"{route.method.lower()}_{re.sub('[^a-z]+', '_', words)}"


def refusals(route: Route) -> list[int]:
    """Statuses with which a route may refuse, ascending."""
    found = {*EVERYWHERE, *route.refusals}
    if route.body is not None:
        found.update(WITH_BODY)
    return sorted(found)


def _answer(answer: Answers) -> dict[str, Any]:
    told: dict[str, Any] = {"description": answer.text}
    if answer.shape is not None:
        schema = _schema(answer.shape) if answer.media == "application/json" else {"type": "string"}
        content: dict[str, Any] = {"schema": schema}
        if answer.example is not None and answer.media == "application/json":
            content["example"] = answer.example
        told["content"] = {answer.media: content}
    elif answer.media != "application/json":
        told["content"] = {answer.media: {}}
    return told


def _refusal(code: int) -> dict[str, Any]:
    example = {"error": {"code": code, **ERRORS[code], "details": {}}}
    return {
        "description": WORDS[code],
        "content": {"application/json": {"schema": _schema(responses.Error), "example": example}},
    }


def _schema(shape: type) -> dict[str, Any]:
    return {"$ref": REFERENCE.format(name=shape.__name__)}


def _parameters(route: Route) -> list[dict[str, Any]]:
    told = [_variable(name) for name in _VARIABLE.findall(route.path)]
    told += query_parameters(route.query)
    told += [
        {"name": name, "in": "header", "description": text, "schema": {"type": "string"}}
        for name, text in route.headers.items()
    ]
    return told


def _variable(name: str) -> dict[str, Any]:
    schema = (
        {"type": "string", "pattern": "^[0-9]{1,20}$", "example": "72057594037927937"}
        if name == "id"
        else {"type": "string", "pattern": "^[A-Za-z0-9_.:-]{1,64}$"}
    )
    words = "Id of the task." if name == "id" else "Its name."
    return {"name": name, "in": "path", "required": True, "description": words, "schema": schema}


def query_parameters(shape: type) -> list[dict[str, Any]]:
    """What a query may say."""
    (_,), schemas = msgspec.json.schema_components([shape], ref_template=REFERENCE)
    schema = schemas[shape.__name__]
    told = []
    for name, given in schema["properties"].items():
        part = dict(given)
        parameter: dict[str, Any] = {"name": name, "in": "query"}
        if name in schema.get("required", ()):
            parameter["required"] = True
        if "description" in part:
            parameter["description"] = part.pop("description")
        part.pop("default", None)
        if "anyOf" in part:  # absence is said by leaving it out, not by null
            kinds = [kind for kind in part["anyOf"] if kind != {"type": "null"}]
            part = kinds[0] if len(kinds) == 1 else part | {"anyOf": kinds}
        told.append(parameter | {"schema": part})
    return told


def _plain_paths() -> dict[str, Any]:
    """Paths that are answered before any route, or with something else than JSON."""
    text = {"text/plain": {"schema": {"type": "string"}}}

    def get(summary: str, answers: dict[str, Any], *, is_public: bool) -> dict[str, Any]:
        told: dict[str, Any] = {
            "operationId": f"get_{summary.split()[-1]}",
            "summary": summary,
            "tags": ["Operations"],
            "responses": answers,
        }
        if is_public:
            told["security"] = []
        else:
            told["responses"] |= {
                str(code): {"$ref": f"#/components/responses/{code}"} for code in EVERYWHERE
            }
        return {"get": told}

    ok = {"200": {"description": HTTPStatus.OK.phrase, "content": text}}
    not_ready = {"503": {"description": "It does not lead, or the store is late.", "content": text}}
    return {
        "/healthz": get("Whether the process lives: health", dict(ok), is_public=True),
        "/readyz": get("Whether calls are served here: readiness", ok | not_ready, is_public=True),
        "/metrics": get("Figures for Prometheus: metrics", dict(ok), is_public=False),
        "/openapi.json": get(
            "This document: openapi",
            {"200": {"description": "OK", "content": {"application/json": {}}}},
            is_public=False,
        ),
    }
