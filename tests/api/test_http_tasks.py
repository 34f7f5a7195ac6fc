"""What submitters get over HTTP: each route's answer and its refusals."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest

from cronoq_server._proto import task_pb2
from tests.api.conftest import Edge
from tests.api.web import Line, browsing, refused, submission, until

Serve = Callable[[str], Awaitable[Edge]]

SMALL_QUEUE = "[[pools]]\nname = 'default'\nmax_pending = 1\noverflow = '{overflow}'\n"
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


async def submit(web: httpx.AsyncClient, **fields: Any) -> str:
    """Submits a task and returns its id."""
    answer = await web.post("/v1/tasks", json=fields)
    assert answer.status_code == 201, answer.text
    task_id = answer.json()["id"]
    assert isinstance(task_id, str)
    return task_id


async def finish(
    edge: Edge, output: bytes = b"", content_type: str = "", *, count: int = 1
) -> None:
    """Runs tasks to their end."""
    worker = await edge.worker(slots=count)
    for number, lease in enumerate(await worker.leases(count), 1):
        await worker.say(
            reports={
                "number": number,
                "reports": [
                    {
                        "complete": {
                            "lease": lease.lease,
                            "output": output,
                            "content_type": content_type,
                        }
                    }
                ],
            }
        )
    await worker.receipt(count)
    await worker.close()


async def test_submitted_task_is_there(web: httpx.AsyncClient) -> None:
    """A submit answers with the id as text and where the task is found; get shows it."""
    answer = await web.post("/v1/tasks", json={"kind": "greet", "payload": {"to": "world"}})
    assert answer.status_code == 201
    told = answer.json()
    assert told == {"id": told["id"], "duplicate": False}
    assert answer.headers["location"] == f"/v1/tasks/{told['id']}"
    shown = (await web.get(answer.headers["location"])).json()
    assert (shown["id"], shown["status"], shown["kind"]) == (told["id"], "ready", "greet")
    assert shown["created_unix_ns"].isdecimal()


async def test_key_makes_a_repeat_harmless(web: httpx.AsyncClient) -> None:
    """A second submit with the key, in the body or the header, gets the first one's task."""
    first = await web.post("/v1/tasks", json={"key": "k"})
    second = await web.post("/v1/tasks", json={}, headers={"Idempotency-Key": "k"})
    assert (first.status_code, second.status_code) == (201, 200)
    assert second.json() == {"id": first.json()["id"], "duplicate": True}
    both = await web.post("/v1/tasks", json={"key": "k"}, headers={"Idempotency-Key": "k"})
    assert both.json()["duplicate"]
    other = await web.post("/v1/tasks", json={"key": "k"}, headers={"Idempotency-Key": "j"})
    assert refused(other) == (400, "field_conflict", "key")


async def test_key_in_the_header_may_be_any_text(web: httpx.AsyncClient) -> None:
    """A header's key is UTF-8, as in the body."""
    await submit(web, key="schlüssel-鍵")
    again = await web.post(
        "/v1/tasks", json={}, headers={b"Idempotency-Key": "schlüssel-鍵".encode()}
    )
    assert again.json()["duplicate"]


@pytest.mark.parametrize(
    ("sent", "kept", "content_type", "told"),
    [
        ({"payload": {"a": [1, "ü"]}}, None, "application/json", {"payload": {"a": [1, "ü"]}}),
        ({"payload": None}, b"null", "application/json", {"payload": None}),
        (
            {"payload": 1, "content_type": "application/x+json"},
            b"1",
            "application/x+json",
            {"payload": 1},
        ),
        (
            {"payload_text": "häßlich\u0000"},
            "häßlich\0".encode(),
            "text/plain; charset=utf-8",
            {"payload_text": "häßlich\u0000"},
        ),
        ({"payload_base64": "/w=="}, b"\xff", "", {"payload_base64": "/w=="}),
        (
            {"payload_base64": "/w==", "content_type": "application/json"},
            b"\xff",
            "application/json",
            {"payload_base64": "/w=="},
        ),
        ({}, b"", "", {}),
        ({"payload_text": "", "content_type": "text/csv"}, b"", "text/csv", {}),
    ],
)
async def test_payload_comes_back_in_the_form_of_its_type(
    edge: Edge,
    web: httpx.AsyncClient,
    sent: dict[str, Any],
    kept: bytes | None,
    content_type: str,
    told: dict[str, Any],
) -> None:
    """JSON, text and bytes are kept byte for byte and told as what their type says they are."""
    raw = json.dumps({"kind": "k", **sent}, ensure_ascii=False).encode()
    answer = await web.post(
        "/v1/tasks", content=raw, headers={"content-type": "application/json; charset=utf-8"}
    )
    task_id = answer.json()["id"]
    spec = (await web.get(f"/v1/tasks/{task_id}/detail")).json()["spec"]
    assert {name: spec[name] for name in spec if name.startswith("payload")} == told
    assert spec.get("content_type", "") == content_type
    lease = (await (await edge.worker()).leases(1))[0]
    if kept is None:
        kept = json.dumps(sent["payload"], ensure_ascii=False).encode()
    assert (lease.payload, lease.content_type) == (kept, content_type)


@pytest.mark.parametrize(
    ("task", "reason", "field"),
    [
        ({"kind": "k" * 257}, "invalid_field", "kind"),
        ({"kin": "k"}, "invalid_field", "kin"),
        ({"priority": "urgent"}, "invalid_field", "priority"),
        ({"timeout_s": -1}, "invalid_field", "timeout_s"),
        ({"timeout_s": "1"}, "invalid_field", "timeout_s"),
        ({"payload": 1, "payload_text": "x"}, "field_conflict", "payload"),
        ({"payload": 1, "content_type": "text/plain"}, "field_conflict", "payload"),
        ({"payload_base64": "?"}, "invalid_field", "payload_base64"),
        ({"deadline_in_s": 1, "deadline_unix_ns": "1"}, "field_conflict", "deadline_in_s"),
        ({"start_unix_ns": str(2**63)}, "invalid_field", "start_unix_ns"),
        ({"start_unix_ns": 2**53}, "invalid_field", "start_unix_ns"),
        ({"deps": [{"id": "1", "key": "k"}]}, "invalid_field", "deps[0]"),
        ({"deps": [{"key": ""}]}, "invalid_field", "deps[0].key"),
        ({"deps": [{"id": "0"}]}, "invalid_field", "deps[0].id"),
        ({"retry": {"max_attempts": 2**32}}, "invalid_field", "retry.max_attempts"),
        ({"retry": {"multiplier": 1e9}}, "invalid_field", "retry.multiplier"),
        ({"tags": {"a": 1}}, "invalid_field", "tags"),
        ({"resources": {"cpu": 0}}, "invalid_field", "resources['cpu']"),
        ({"key": "k" * 257}, "invalid_field", "key"),
        ({"pool": "no such"}, "invalid_field", "pool"),
    ],
)
async def test_wrong_field_is_named(
    web: httpx.AsyncClient, task: dict[str, Any], reason: str, field: str
) -> None:
    """Whatever is wrong with a task, the refusal names the field as the body has it."""
    answer = await web.post("/v1/tasks", json=task)
    assert refused(answer) == (400, reason, field)
    assert "$" not in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"null", b'{"kind": NaN}', b'{"payload": "\xff"}', b"[" * 100_000],
)
async def test_body_that_is_no_task_is_refused(web: httpx.AsyncClient, content: bytes) -> None:
    """What is no JSON, or no object, is refused as such."""
    answer = await web.post(
        "/v1/tasks", content=content, headers={"content-type": "application/json"}
    )
    assert refused(answer) == (400, "invalid_field", "body")


async def test_unknown_things_are_not_found(web: httpx.AsyncClient) -> None:
    """What a task names and is not there has the status of its reason."""
    assert refused(await web.post("/v1/tasks", json={"pool": "x"}))[:2] == (404, "pool_unknown")
    answer = await web.post("/v1/tasks", json={"deps": [{"key": "x"}]})
    assert refused(answer)[:2] == (404, "dependency_unknown")
    answer = await web.post("/v1/tasks", json={"resources": {"x": 1}})
    assert refused(answer)[:2] == (400, "resource_unknown")


async def test_trace_of_the_request_is_the_task_s(edge: Edge, web: httpx.AsyncClient) -> None:
    """The request's trace context goes with the task; one that is none is left out."""
    for trace in (TRACE, "nonsense"):
        await web.post("/v1/tasks", json={}, headers={"traceparent": trace})
    worker = await edge.worker(slots=2)
    first, second = await worker.leases(2)
    assert dict(first.trace_context) == {"traceparent": TRACE}
    assert dict(second.trace_context) == {}


async def test_submit_may_wait_for_the_end(edge: Edge, web: httpx.AsyncClient) -> None:
    """With `wait` the answer has the result; without an end in time, it has none."""
    waiting = asyncio.create_task(web.post("/v1/tasks?wait=true", json={}))
    await finish(edge, b'{"n": 1}', "application/json")
    told = (await waiting).json()
    assert told["result"]["status"] == "succeeded"
    assert told["result"]["output"] == {"n": 1}
    late = await web.post("/v1/tasks?wait=true&wait_timeout_s=0", json={})
    assert (late.status_code, "result" in late.json()) == (201, False)


async def test_atomic_batch_is_all_or_nothing(web: httpx.AsyncClient) -> None:
    """Members come back in order; one that is wrong names its index and admits none."""
    tasks = [{"key": "b", "deps": [{"key": "a"}]}, {"key": "a"}, {"key": "c"}]
    answer = await web.post("/v1/batches", json={"tasks": tasks})
    assert answer.status_code == 200
    told = answer.json()["tasks"]
    assert [member["duplicate"] for member in told] == [False] * 3
    ids = [int(member["id"]) for member in told]
    assert ids == sorted(ids)
    tasks = [{"key": "d"}, {"key": "e", "priority": "low", "timeout_s": -1}]
    answer = await web.post("/v1/batches", json={"tasks": tasks})
    assert refused(answer) == (400, "invalid_field", "tasks[1].timeout_s")
    assert answer.json()["error"]["details"]["index"] == "1"
    assert (await web.get("/v1/task-by-key?key=d")).status_code == 404


async def test_members_of_a_loose_batch_stand_on_their_own(web: httpx.AsyncClient) -> None:
    """Each member has an id or an error of its own, in the order of the body."""
    tasks = [{"key": "a"}, {"timeout_s": -1}, {"pool": "x"}, {"key": "a"}]
    answer = await web.post("/v1/batches", json={"tasks": tasks, "atomic": False})
    first, wrong, unknown, again = answer.json()["tasks"]
    assert answer.status_code == 200
    assert again == {"id": first["id"], "duplicate": True}
    assert wrong["error"]["field"] == "tasks[1].timeout_s"
    assert (unknown["error"]["code"], unknown["error"]["reason"]) == (404, "pool_unknown")


@pytest.mark.parametrize("extra", [0, 1])
async def test_batch_has_a_largest_size(serve: Serve, extra: int) -> None:
    """A batch of the limit passes, one more is refused; none at all, too."""
    edge = await serve("[limits]\nmax_tasks_per_batch = 3\n")
    async with browsing(edge) as web:
        answer = await web.post("/v1/batches", json={"tasks": [{}] * (3 + extra)})
        if extra:
            assert refused(answer)[:2] == (400, "batch_too_large")
        else:
            assert len(answer.json()["tasks"]) == 3
        assert refused(await web.post("/v1/batches", json={"tasks": []}))[0] == 400


async def test_full_queue_parks_until_there_is_room(serve: Serve) -> None:
    """A submit for a full queue is answered once there is room."""
    edge = await serve(SMALL_QUEUE.format(overflow="wait"))
    async with browsing(edge) as web:
        first = await submit(web)
        parked = asyncio.create_task(web.post("/v1/tasks", json={"key": "parked"}))
        late = await web.post("/v1/tasks?timeout_s=0.05", json={})
        assert refused(late)[:2] == (429, "queue_full")
        assert late.headers["retry-after"] == "1"
        assert not parked.done()
        await web.post(f"/v1/tasks/{first}/cancel")
        assert (await parked).status_code == 201


async def test_parked_submit_of_a_caller_who_left_is_withdrawn(serve: Serve) -> None:
    """Whoever goes away while parked leaves nothing behind in the queue."""
    edge = await serve(SMALL_QUEUE.format(overflow="wait"))
    async with browsing(edge) as web:
        first = await submit(web)
        line = await Line.open(edge.server.http_address)
        line.send("POST", "/v1/tasks", submission(key="gone"))
        behind = asyncio.create_task(web.post("/v1/tasks", json={"key": "behind"}))
        gate = edge.server.service.gate
        await until(lambda: gate.inside("requests") + gate.inside("waiters") == 2)
        line.close()
        await until(lambda: gate.inside("requests") + gate.inside("waiters") == 1)
        await web.post(f"/v1/tasks/{first}/cancel")
        assert (await behind).status_code == 201
        assert (await web.get("/v1/task-by-key?key=gone")).status_code == 404


async def test_waiting_ends_with_the_task(edge: Edge, web: httpx.AsyncClient) -> None:
    """Wait answers with the result, by id and by key; in time, or not at all."""
    task_id = await submit(web, key="a b&c")
    late = await web.get(f"/v1/tasks/{task_id}/wait?timeout_s=0")
    assert refused(late)[:2] == (504, "wait_timeout")
    waits = [
        asyncio.create_task(web.get(f"/v1/tasks/{task_id}/wait")),
        asyncio.create_task(web.get("/v1/task-by-key/wait", params={"key": "a b&c"})),
    ]
    await finish(edge, b"done", "text/plain")
    for waiting in waits:
        assert (await waiting).json() == {
            "id": task_id,
            "status": "succeeded",
            "output_available": True,
            "content_type": "text/plain",
            "output_text": "done",
        }


async def test_wait_of_a_caller_who_left_is_forgotten(edge: Edge, web: httpx.AsyncClient) -> None:
    """A broken connection ends the wait at once: no waiter is left behind."""
    task_id = await submit(web)
    gate = edge.server.service.gate
    line = await Line.open(edge.server.http_address)
    line.send("GET", f"/v1/tasks/{task_id}/wait?timeout_s=60")
    await until(lambda: gate.inside("waiters") == 1)
    line.close()
    await until(lambda: gate.inside("waiters") == 0)
    assert (await web.get(f"/v1/tasks/{task_id}")).json()["status"] == "ready"


@pytest.mark.parametrize(
    ("output", "content_type", "sent_as", "disposition"),
    [
        (b'{"a": 1}', "application/json", "application/json", None),
        (b"x,y", "text/csv; charset=utf-8", "text/csv; charset=utf-8", "attachment"),
        (b"<script>", "text/html", "text/html", "attachment"),
        (b"\x00\xff", "", "application/octet-stream", "attachment"),
        (b"z", "not a type", "application/octet-stream", "attachment"),
        (b"z", "text/plain\u00fc", "application/octet-stream", "attachment"),
    ],
)
async def test_output_comes_as_it_is(
    edge: Edge,
    web: httpx.AsyncClient,
    output: bytes,
    content_type: str,
    sent_as: str,
    disposition: str | None,
) -> None:
    """The bytes come with their type, and no browser takes them for a page of the server."""
    task_id = await submit(web, key="k")
    assert refused(await web.get(f"/v1/tasks/{task_id}/output"))[:2] == (409, "not_terminal")
    await finish(edge, output, content_type)
    for path in (f"/v1/tasks/{task_id}/output", "/v1/task-by-key/output?key=k"):
        answer = await web.get(path)
        assert (answer.status_code, answer.content) == (200, output)
        assert answer.headers["content-type"] == sent_as
        assert answer.headers.get("content-disposition") == disposition
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cronoq-status"] == "succeeded"


async def test_task_without_output_has_no_content(web: httpx.AsyncClient) -> None:
    """A cancelled task has ended and has nothing to fetch."""
    task_id = await submit(web)
    assert (await web.post(f"/v1/tasks/{task_id}/cancel")).json() == {"cancelled": True}
    answer = await web.get(f"/v1/tasks/{task_id}/output")
    assert (answer.status_code, answer.content) == (204, b"")
    assert answer.headers["cronoq-status"] == "cancelled"


async def test_task_is_cancelled_put_back_and_forgotten(web: httpx.AsyncClient) -> None:
    """The changes of one task, by id and by key, and what they are refused for."""
    task_id = await submit(web, key="k")
    assert refused(await web.post(f"/v1/tasks/{task_id}/retry"))[:2] == (409, "not_terminal")
    assert refused(await web.delete(f"/v1/tasks/{task_id}"))[:2] == (409, "not_terminal")
    assert (await web.post("/v1/task-by-key/cancel?key=k")).json() == {"cancelled": True}
    assert (await web.post("/v1/task-by-key/retry?key=k")).json() == {"retried": True}
    assert (await web.get(f"/v1/tasks/{task_id}")).json()["status"] == "ready"
    await web.post(f"/v1/tasks/{task_id}/cancel")
    assert (await web.delete("/v1/task-by-key?key=k")).json() == {"deleted": True}
    assert (await web.get(f"/v1/tasks/{task_id}")).status_code == 404


@pytest.mark.parametrize("verb", ["", "/wait", "/output", "/detail", "/cancel", "/retry"])
async def test_tasks_that_are_not_there_are_not_found(web: httpx.AsyncClient, verb: str) -> None:
    """No id, and no key, tells anything else than that nothing is there."""
    method = "POST" if verb in ("/cancel", "/retry") else "GET"
    for path in (f"/v1/tasks/1{verb}", f"/v1/task-by-key{verb}?key=x"):
        assert refused(await web.request(method, path))[:2] == (404, "task_unknown")
    for wrong in ("0", "-1", "x", "1.0", "٣", "9" * 21, str(2**64)):
        assert refused(await web.request(method, f"/v1/tasks/{wrong}{verb}")) == (
            400,
            "invalid_field",
            "id",
        )
    assert refused(await web.request(method, f"/v1/task-by-key{verb}"))[2] == "key"
    assert refused(await web.request(method, f"/v1/task-by-key{verb}?key="))[2] == "key"


async def test_pages_lead_to_the_end(web: httpx.AsyncClient) -> None:
    """Following the link of each page shows every task once, and the last page has none."""
    ids = [await submit(web, kind="k", tags={"a": "b=c"}, key=f"key-{n}") for n in range(5)]
    await submit(web, kind="other")
    path: str | None = "/v1/tasks?kind=k&limit=2&tag=a=b%3Dc"
    seen: list[str] = []
    while path is not None:
        answer = await web.get(path)
        page = answer.json()
        assert page["unavailable_shards"] == []
        seen += [task["id"] for task in page["tasks"]]
        following = answer.links.get("next")
        assert (following is None) == (page["next_after"] is None)
        path = following["url"] if following else None
    assert seen == ids
    newest = (await web.get("/v1/tasks?newest_first=true&limit=1&kind=k")).json()
    assert [task["id"] for task in newest["tasks"]] == ids[-1:]


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("status=ready", 2),
        ("status=ready&status=scheduled", 3),
        ("kind=a&kind=b", 2),
        ("key=x", 1),
        ("tenant=t", 1),
        ("tag=c=1&tag=d=2", 1),
        ("tag=c=1", 2),
        ("pool=default", 3),
        ("schedule=s", 0),
        ("after=18446744073709551615", 0),
    ],
)
async def test_filters_narrow_a_listing(web: httpx.AsyncClient, query: str, found: int) -> None:
    """Each filter lets through what it says: any of its values, and all of the tags."""
    await submit(web, kind="a", tags={"c": "1"}, key="x")
    await submit(web, kind="b", tags={"c": "1", "d": "2"}, tenant="t")
    await submit(web, delay_s=60)
    page = (await web.get(f"/v1/tasks?{query}")).json()
    assert len(page["tasks"]) == found


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("status=done", "status[0]"),
        ("limit=x", "limit"),
        ("limit=-1", "limit"),
        ("limit=1&limit=2", "limit"),
        ("after=x", "after"),
        ("after=18446744073709551616", "after"),
        ("tag=x", "tag"),
        ("tag=x=1&tag=x=2", "tag"),
        ("pool=a%20b", "pools"),
        ("colour=red", "colour"),
        ("&".join(["kind=k"] * 1001), "kinds"),
    ],
)
async def test_wrong_filter_is_named(web: httpx.AsyncClient, query: str, field: str) -> None:
    """A filter that has no sense is refused, an unknown one too."""
    assert refused(await web.get(f"/v1/tasks?{query}")) == (400, "invalid_field", field)


async def test_page_is_cut_where_it_would_grow_too_large(serve: Serve) -> None:
    """A page holds no more than a message may; what is left comes with the next."""
    edge = await serve("[limits]\nmax_message_bytes = 262144\n")
    async with browsing(edge) as web:
        tags = {f"{n:02}": "x" * 250 for n in range(30)}
        for _ in range(40):
            await submit(web, tags=tags)
        page = (await web.get("/v1/tasks")).json()
        assert 20 < len(page["tasks"]) < 40
        rest = (await web.get(f"/v1/tasks?after={page['next_after']}")).json()
        assert len(page["tasks"]) + len(rest["tasks"]) == 40


async def test_bulk_goes_page_by_page(web: httpx.AsyncClient) -> None:
    """A dry run counts, a run changes, and `next_after` leads on to the end."""
    for _ in range(3):
        await submit(web, kind="k")
    await submit(web)
    order: dict[str, Any] = {"action": "cancel", "filter": {"kinds": ["k"]}}
    told = (await web.post("/v1/bulk", json={**order, "dry_run": True})).json()
    assert (told["matched"], told["changed"], told["next_after"]) == (3, 0, None)
    first = (await web.post("/v1/bulk", json={**order, "limit": 2})).json()
    assert (first["matched"], first["changed"]) == (2, 2)
    rest = (await web.post("/v1/bulk", json={**order, "after": first["next_after"]})).json()
    assert (rest["changed"], rest["next_after"], rest["unavailable_shards"]) == (1, None, [])
    wrong = await web.post("/v1/bulk", json={"action": "cancel", "filter": {"kinds": [""]}})
    assert refused(wrong) == (400, "invalid_field", "filter.kinds")
    assert refused(await web.post("/v1/bulk", json={"action": "x"}))[2] == "action"
    assert refused(await web.post("/v1/bulk", json={}))[2] == "action"


async def test_detail_tells_everything(edge: Edge, web: httpx.AsyncClient) -> None:
    """Spec, attempts and edges of a task, with what was asked for in the words of the body."""
    parent = await submit(web, key="p")
    spec: dict[str, Any] = {
        "kind": "k",
        "pool": "default",
        "priority": "high",
        "key": "c",
        "deadline_in_s": 60.0,
        "start_unix_ns": "4102444800000000000",
        "tolerance_s": 2.5,
        "on_miss": "skip",
        "duration_hint_s": 1.5,
        "timeout_s": 30.0,
        "retry": {
            "max_attempts": 5,
            "initial_backoff_s": 1.0,
            "multiplier": 2.0,
            "max_backoff_s": 60.0,
            "jitter": False,
        },
        "deps": [
            {"id": parent, "cond": "on_complete"},
            {"key": "p", "cond": "on_success"},
        ],
        "tags": {"a": "ü"},
        "labels": {"gpu": "yes"},
        "tenant": "t",
        "trace_context": {"traceparent": TRACE},
        "expires_in_s": 1e6,
    }
    child = await submit(web, **spec)
    told = (await web.get(f"/v1/tasks/{child}/detail")).json()
    assert told["spec"] == spec
    assert told["task"]["status"] == "blocked"
    assert told["parents"] == [
        {"id": parent, "cond": "on_complete", "status": "ready"},
        {"key": "p", "cond": "on_success", "status": "ready"},
    ]
    assert (await web.get("/v1/task-by-key/detail?key=p")).json()["children"] == [child]
    worker = await edge.worker()
    lease = (await worker.leases(1))[0]
    failure = {"fail": {"lease": lease.lease, "message": "no\0"}}
    await worker.say(reports={"number": 1, "reports": [failure]})
    await worker.receipt(1)
    (attempt,) = (await web.get(f"/v1/tasks/{parent}/detail")).json()["attempts"]
    assert (attempt["number"], attempt["outcome"], attempt["message"]) == (1, "failed", "no\ufffd")
    await worker.close()


async def test_progress_is_shown_as_what_it_is(edge: Edge, web: httpx.AsyncClient) -> None:
    """A handler's progress is told as JSON, text or bytes, whichever it is first."""
    task_id = await submit(web)
    worker = await edge.worker()
    (lease,) = await worker.leases(1)
    told = []
    for number, data in enumerate((b'{"done": 3}', b"half", b"\xff"), 1):
        progress = task_pb2.Progress(data=data, fraction=0.5)
        beat = {"lease": lease.lease, "progress": progress}
        await worker.say(
            heartbeats={
                "leases": [lease.lease],
                "progress": [beat],
                "number": number,
                "last_lease": lease.lease,
            }
        )
        while (await worker.hear("receipt")).heartbeats < number:
            pass
        told.append((await web.get(f"/v1/tasks/{task_id}")).json()["progress"])
    assert told == [
        {"fraction": 0.5, "data": {"done": 3}},
        {"fraction": 0.5, "data_text": "half"},
        {"fraction": 0.5, "data_base64": base64.b64encode(b"\xff").decode()},
    ]
    await worker.close()


@pytest.mark.parametrize(
    ("path", "body", "field", "limit"),
    [
        ("/v1/tasks", {"deps": [{"key": "a"}] * 10_001}, "deps", "10000"),
        ("/v1/tasks", {"tags": {f"name-{n}": "" for n in range(10_001)}}, "tags", "10000"),
        ("/v1/waits", {"ids": ["1"] * 100_001}, "ids", "100000"),
        (
            "/v1/bulk",
            {"action": "cancel", "filter": {"keys": ["keys"] * 10_001}},
            "filter.keys",
            "10000",
        ),
    ],
)
async def test_what_is_far_too_long_is_counted_but_not_read(
    web: httpx.AsyncClient, path: str, body: Any, field: str, limit: str
) -> None:
    """The field and its limit are named; a payload may be as long as it likes."""
    answer = await web.post(path, json=body)
    assert refused(answer) == (400, "invalid_field", field)
    assert answer.json()["error"]["details"]["limit"] == limit
    task = {"payload": [1] * 200_000, "payload_text": None}
    assert (await web.post("/v1/tasks", json=task)).status_code == 201


async def test_a_batch_of_far_too_many_is_counted_but_not_read(web: httpx.AsyncClient) -> None:
    """Even where none of its members is a task, their number is what is wrong with it."""
    answer = await web.post("/v1/batches", json={"tasks": [7] * 100_000})
    assert refused(answer) == (400, "batch_too_large", "tasks")
    answer = await web.post("/v1/batches", json={"tasks": [{}, {"kind": 7}]})
    assert refused(answer) == (400, "invalid_field", "tasks[1].kind")
    answer = await web.post("/v1/batches", json={"tasks": [{}, 7]})
    assert refused(answer) == (400, "invalid_field", "tasks[1]")


async def test_a_long_name_of_a_field_is_not_told_back_in_full(web: httpx.AsyncClient) -> None:
    """Its beginning and its end are."""
    answer = await web.post("/v1/tasks", json={"a" * 100_000 + "z": 1})
    code, reason, field = refused(answer)
    assert (code, reason) == (400, "invalid_field")
    assert field.startswith("aaa")
    assert field.endswith("az")
    assert len(answer.content) < 1500
