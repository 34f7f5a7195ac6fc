"""The document of the gateway: it is whole, it is true, and nothing that it allows breaks it."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, get_args

import httpx
import msgspec
import pytest

from cronoq_server._proto import admin_pb2, task_pb2, tasks_pb2
from cronoq_server.api.admin_service import AdminService
from cronoq_server.api.errors import STATUSES
from cronoq_server.api.http import names, openapi, reading, requests
from cronoq_server.api.http.routes import Route
from cronoq_server.api.http.table import all_routes
from cronoq_server.api.http.writing import error_body
from cronoq_server.api.rpc import OPERATIONS
from cronoq_server.api.service import Service
from cronoq_server.engine import ErrorReason, Refusal
from tests.api.conftest import Edge
from tests.campaigns._http_cases import attack_bytes, attack_routes

Serve = Callable[[str], Awaitable[Edge]]

LITTLE_PATIENCE = "[limits]\nmax_wait_s = 0.02\n[[pools]]\nname = 'default'\noverflow = 'reject'\n"


@pytest.fixture
def routes(edge: Edge) -> list[Route]:
    """All routes."""
    service: Service = edge.server.service
    return all_routes(service, AdminService(service), edge.server.reader)


def references(value: Any) -> Iterator[str]:
    """Every reference in a document."""
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        for part in value.values():
            yield from references(part)
    elif isinstance(value, list):
        for part in value:
            yield from references(part)


async def test_document_is_whole(web: httpx.AsyncClient, routes: list[Route]) -> None:
    """Every route is in it, with an answer and the refusals of all; every reference leads on."""
    document = (await web.get("/openapi.json")).json()
    told = {
        (method.upper(), path)
        for path, methods in document["paths"].items()
        for method in methods
        if path.startswith("/v1/")
    }
    assert told == {(route.method, route.path) for route in routes}
    operations = [one for methods in document["paths"].values() for one in methods.values()]
    assert len({one["operationId"] for one in operations}) == len(operations)
    for reference in references(document):
        place = document
        for part in reference.removeprefix("#/").split("/"):
            place = place[part]
        assert place
    assert {"/healthz", "/readyz", "/metrics", "/openapi.json"} <= document["paths"].keys()


def test_every_method_of_the_contract_has_a_route(routes: list[Route]) -> None:
    """Whatever a client or operator can call over gRPC can be called over HTTP."""
    methods = {
        method.name
        for file, name in ((tasks_pb2.DESCRIPTOR, "Tasks"), (admin_pb2.DESCRIPTOR, "Admin"))
        for method in file.services_by_name[name].methods
    }
    offered = {mirror for route in routes for mirror in route.mirrors}
    assert offered == methods
    for route in routes:
        assert len({OPERATIONS[mirror] for mirror in route.mirrors}) == 1, route.path


def test_examples_are_what_their_schemas_say(routes: list[Route]) -> None:
    """Every example of a body is read, every example of an answer has its shape."""
    for route in routes:
        if route.body is not None and route.example is not None:
            reading.body(json.dumps(route.example).encode(), route.body)
        for answer in route.answers.values():
            if answer.shape is not None and answer.example is not None:
                msgspec.json.decode(json.dumps(answer.example).encode(), type=answer.shape)


def test_examples_of_refusals_are_of_their_status() -> None:
    """The document's refusals bear reasons that have that status, or that only HTTP has."""
    only_http = {408, 413, 415, 431}
    for code, error in openapi.ERRORS.items():
        reason = ErrorReason(error["reason"])
        assert STATUSES[reason].http == code or code in only_http
    assert openapi.ERRORS.keys() == openapi.WORDS.keys()


@pytest.mark.parametrize("reason", list(ErrorReason))
def test_every_reason_has_its_status_in_json(reason: ErrorReason) -> None:
    """A refusal's code is that of the one table, its field stands apart from other facts."""
    refusal = Refusal(reason, "f: no", (("field", "f"), ("limit", "1")))
    body = error_body(refusal)
    assert (body.code, body.reason) == (STATUSES[reason].http, reason.value)
    assert (body.field, body.details) == ("f", {"limit": "1"})


@pytest.mark.parametrize(
    ("words", "numbers"),
    [
        (names.StatusName, names.STATUSES),
        (names.PriorityName, names.PRIORITIES),
        (names.ConditionName, names.CONDITIONS),
        (names.MissPolicyName, names.MISS_POLICIES),
        (names.OverlapName, names.OVERLAPS),
        (names.GapName, names.GAPS),
        (names.FoldName, names.FOLDS),
        (names.CatchUpName, names.CATCH_UPS),
        (names.ActionName, names.ACTIONS),
    ],
)
def test_words_are_those_of_the_engine(words: Any, numbers: dict[str, int]) -> None:
    """Each enumeration has all of its words, and they lead to its numbers and back."""
    assert list(get_args(words)) == list(numbers)


@pytest.mark.regression("R23")
def test_body_of_a_task_knows_every_field_of_the_contract() -> None:
    """What a task may say over gRPC it may say over HTTP, under the same name."""
    fields = {field.name for field in task_pb2.TaskSpec.DESCRIPTOR.fields}
    known = set(requests.NewTask.__struct_fields__)
    assert known - fields == {"payload_text", "payload_base64"}
    assert fields <= known


async def test_nothing_that_the_document_says_breaks_the_server(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    """Calls that it allows or forbids end in an answer that it tells of, and never in a defect."""
    edge = await serve(LITTLE_PATIENCE)
    address = str(edge.server.http_address)
    findings = await asyncio.to_thread(attack_routes, address, 400, 1)
    assert findings.faults == []
    assert {"200", "201", "400", "404"} <= findings.ends.keys()
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


async def test_broken_bytes_are_answered_or_hung_up_on(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    """Requests that were damaged on the way get a refusal, an answer, or a closed connection."""
    edge = await serve(LITTLE_PATIENCE)
    findings = await asyncio.to_thread(attack_bytes, str(edge.server.http_address), 300, 1)
    assert findings.faults == []
    assert "400" in findings.ends
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


async def test_operation_ids_are_names(routes: list[Route]) -> None:
    """Generators of clients make functions of them."""
    for route in routes:
        assert re.fullmatch("[a-z][a-z_]*[a-z]", openapi.operation_id(route))
