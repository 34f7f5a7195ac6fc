"""Who may do what over HTTP: every cell of the matrix, and what is hidden looks as if not there."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any, NamedTuple

import httpx
import pytest

from cronoq_server._proto import task_pb2, tasks_pb2
from cronoq_server.api.auth import Role
from tests.api.conftest import Edge
from tests.api.permissions import ADMIN, CREDENTIALS, TARGETS, Credential, Target, expected, methods
from tests.api.test_permissions import bearer, furnish, guarded
from tests.api.web import browsing

OFFERED = tuple(method for method in methods() if method not in ("Work", "GetOutput"))
"""Workers have no route."""

LIMITED = {role: Credential(role, is_limited=True).token for role in Role}
SECRET = Target("other", "secret", "secret-done", "secret-schedule")
_numbers = itertools.count()


class Request(NamedTuple):
    """What a method is over HTTP."""

    method: str
    path: str
    body: Any = None


def requests(target: Target) -> dict[str, Request]:
    """What every method is asked about a target."""
    by_key, schedule = "/v1/task-by-key", f"/v1/schedules/{target.schedule}"
    spec = {"pool": target.pool}
    live, done = f"key={target.live}", f"key={target.done}"
    past = {"from_unix_ns": "1", "to_unix_ns": "2"}
    bulk = {"action": "cancel", "filter": {"pools": [target.pool]}, "dry_run": True}
    template = {"cron": "0 0 1 1 *", "template": spec}
    watch = Request("GET", f"/v1/watch?pool={target.pool}")
    return {
        "Submit": Request("POST", "/v1/tasks", spec),
        "SubmitBatch": Request("POST", "/v1/batches", {"tasks": [spec]}),
        "SubmitMany": Request("POST", "/v1/batches", {"tasks": [spec], "atomic": False}),
        "Cancel": Request("POST", f"{by_key}/cancel?{live}"),
        "Retry": Request("POST", f"{by_key}/retry?{done}"),
        "Delete": Request("DELETE", f"{by_key}?{done}"),
        "Bulk": Request("POST", "/v1/bulk", bulk),
        "Get": Request("GET", f"{by_key}?{live}"),
        "Describe": Request("GET", f"{by_key}/detail?{live}"),
        "ListTasks": Request("GET", f"/v1/tasks?pool={target.pool}"),
        "Wait": Request("GET", f"{by_key}/wait?{done}"),
        "WaitMany": Request("POST", "/v1/waits", {"keys": [target.done]}),
        "Watch": watch,
        "WatchBatches": watch,
        "Snapshot": Request("GET", "/v1/snapshot"),
        "ListWorkers": Request("GET", "/v1/workers"),
        "ListPools": Request("GET", "/v1/pools"),
        "ListResources": Request("GET", "/v1/resources"),
        "ListRecurring": Request("GET", "/v1/schedules"),
        "AddRecurring": Request("PUT", f"/v1/schedules/new-{next(_numbers)}", template),
        "RemoveRecurring": Request("DELETE", schedule),
        "GetRecurring": Request("GET", schedule),
        "PauseRecurring": Request("POST", f"{schedule}/pause"),
        "TriggerRecurring": Request("POST", f"{schedule}/trigger"),
        "BackfillRecurring": Request("POST", f"{schedule}/backfill", past),
        "PreviewRecurring": Request("GET", f"{schedule}/next"),
        "PausePool": Request("POST", f"/v1/pools/{target.pool}/pause"),
        "ResumePool": Request("POST", f"/v1/pools/{target.pool}/resume"),
        "SetResource": Request("PUT", "/v1/resources/gpu", {"permits": 2}),
    }


class Answer(NamedTuple):
    """All that a caller gets to see."""

    status: int
    headers: tuple[tuple[str, str], ...]
    content: bytes


async def ask(web: httpx.AsyncClient, request: Request, token: str | None) -> Answer:
    """Makes a call; of a stream that goes on only its beginning is read."""
    headers = {} if token is None else {"authorization": f"Bearer {token}".strip()}
    method, path, body = request
    async with web.stream(method, path, json=body, headers=headers) as answer:
        if answer.headers.get("content-type") == "text/event-stream":
            content = b""
        else:
            content = await answer.aread()
    shown = tuple(sorted((k, v) for k, v in answer.headers.items() if k != "date"))
    return Answer(answer.status_code, shown, content)


def reason(answer: Answer) -> str:
    """How a call ended: its reason, or OK; of several outcomes the first."""
    if answer.status == 204 or not answer.content:
        return "OK"
    told = httpx.Response(200, content=answer.content.splitlines()[0])
    body = told.json() if dict(answer.headers)["content-type"] != "text/plain" else {}
    body = body["tasks"][0] if isinstance(body.get("tasks"), list) and body["tasks"] else body
    error = body.get("error") or {}
    return str(error.get("reason", "ok")).upper()


@pytest.fixture
async def way() -> AsyncIterator[tuple[Edge, httpx.AsyncClient]]:
    """A server with a credential for every row of the table, and a client."""
    async with guarded() as edge, browsing(edge) as web:
        yield edge, web


@pytest.mark.parametrize("method", OFFERED)
async def test_every_cell_over_http(method: str, way: tuple[Edge, httpx.AsyncClient]) -> None:
    """A call ends as the matrix says, for every role, limited or not, about every pool."""
    edge, web = way
    for who, pool in itertools.product(CREDENTIALS, TARGETS):
        target = await furnish(edge, pool)
        answer = await ask(web, requests(target)[method], who.token)
        assert reason(answer) == expected(who, method, pool), (who, pool, answer)


def test_every_method_is_called() -> None:
    """No method of clients and operators is left out above."""
    assert set(requests(SECRET)) == set(OFFERED)


@pytest.fixture
async def servers() -> AsyncIterator[tuple[httpx.AsyncClient, httpx.AsyncClient, Edge]]:
    """One that has a secret, one that does not, and the first one's other side."""
    async with AsyncExitStack() as stack:
        full = await stack.enter_async_context(guarded())
        empty = await stack.enter_async_context(guarded())
        webs = [await stack.enter_async_context(browsing(edge)) for edge in (full, empty)]
        for key in (SECRET.live, SECRET.done):
            task = {"pool": "other", "key": key}
            await ask(webs[0], Request("POST", "/v1/tasks", task), ADMIN.token)
        path = f"/v1/task-by-key/cancel?key={SECRET.done}"
        await ask(webs[0], Request("POST", path), ADMIN.token)
        template = {"cron": "0 0 1 1 *", "template": {"pool": "other"}}
        path = f"/v1/schedules/{SECRET.schedule}"
        assert (await ask(webs[0], Request("PUT", path, template), ADMIN.token)).status == 204
        yield webs[0], webs[1], full


@pytest.mark.parametrize("role", list(Role))
async def test_limited_caller_can_not_tell_what_is_there_over_http(
    servers: tuple[httpx.AsyncClient, httpx.AsyncClient, Edge], role: Role
) -> None:
    """Status, headers and body are the same with and without the secret, whatever is asked."""
    full, empty, edge = servers
    for method, request in requests(SECRET).items():
        if method == "Snapshot":
            continue  # it shows instants
        there = await ask(full, request, LIMITED[role])
        assert there == await ask(empty, request, LIMITED[role]), method
    get = tasks_pb2.GetRequest(task=task_pb2.TaskRef(key=SECRET.live))
    task_id = (await edge.tasks.Get(get, metadata=bearer(ADMIN.token))).id
    for verb in ("", "/wait", "/output", "/detail"):
        request = Request("GET", f"/v1/tasks/{task_id}{verb}")
        there = await ask(full, request, LIMITED[role])
        assert there == await ask(empty, request, LIMITED[role]), verb


@pytest.mark.parametrize("token", [None, "x" * 32, "", ADMIN.token[:-1]])
async def test_strangers_can_not_tell_anything_over_http(
    servers: tuple[httpx.AsyncClient, httpx.AsyncClient, Edge], token: str | None
) -> None:
    """All routes, and paths that are none: one answer for whoever has no credential."""
    full, empty, _ = servers
    told = set()
    for web in (full, empty):
        for pool in ("other", "nowhere"):
            for request in requests(SECRET._replace(pool=pool)).values():
                told.add(await ask(web, request, token))
        for path in ("/nowhere", "/v1/tasks/x", "/v1/tasks?limit=x", "/openapi.json", "/metrics"):
            told.add(await ask(web, Request("GET", path), token))
    (answer,) = told
    assert (answer.status, reason(answer)) == (401, "UNAUTHENTICATED")
