"""What goes on for a while over HTTP: events, results of many, and how they end."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest

from cronoq_server.api.http import streams
from cronoq_server.config import parse
from cronoq_server.runtime import watch_stream
from tests.api.conftest import ANY_PORT, Edge
from tests.api.web import Line, browsing, refused, until, watching

Serve = Callable[[str], Awaitable[Edge]]


async def submit(web: httpx.AsyncClient, **fields: Any) -> str:
    """Submits a task and returns its id."""
    task_id = (await web.post("/v1/tasks", json=fields)).json()["id"]
    assert isinstance(task_id, str)
    return task_id


async def cancel(web: httpx.AsyncClient, task_id: str) -> None:
    """Ends a task."""
    assert (await web.post(f"/v1/tasks/{task_id}/cancel")).json() == {"cancelled": True}


async def test_watch_tells_ends_with_cursors(web: httpx.AsyncClient) -> None:
    """A first bookmark says from where; every end comes with the cursor behind it."""
    async with watching(web) as watch:
        first = await watch.next()
        assert (first.kind, first.told) == ("bookmark", {})
        assert first.cursor
        task_id = await submit(web, key="k")
        await cancel(web, task_id)
        event = await watch.status()
        assert event.kind == "status"
        assert event.cursor != first.cursor
        told = event.told
        assert (told["id"], told["key"], told["status"]) == (task_id, "k", "cancelled")
        assert told["at_unix_ns"].isdecimal()


async def test_watch_tells_all_transitions_if_asked(web: httpx.AsyncClient) -> None:
    """Every change of the tasks that are named is told, and of no other."""
    wanted, other = await submit(web), await submit(web)
    async with watching(web, f"all_transitions=true&id={wanted}") as watch:
        await watch.next()
        await cancel(web, other)
        await cancel(web, wanted)
        told = [(await watch.status()).told]
        while told[-1]["status"] != "cancelled":
            told.append((await watch.status()).told)
        assert {one["id"] for one in told} == {wanted}


async def test_watch_goes_on_behind_the_last_event(edge: Edge, web: httpx.AsyncClient) -> None:
    """After a dropped connection the header resumes: no end is missed and none comes twice."""
    async with watching(web, "pool=default") as watch:
        await watch.next()
        ids = [await submit(web) for _ in range(4)]
        await cancel(web, ids[0])
        last = await watch.status()
    await until(lambda: edge.server.service.gate.inside("streams") == 0)
    for task_id in ids[1:3]:
        await cancel(web, task_id)
    async with watching(web, "pool=default", last.cursor) as watch:
        assert [(await watch.status()).told["id"] for _ in range(2)] == ids[1:3]
        await cancel(web, ids[3])
        assert (await watch.status()).told["id"] == ids[3]
    async with watching(web, f"pool=default&after_cursor={last.cursor}") as watch:
        assert [(await watch.status()).told["id"] for _ in range(3)] == ids[1:]


async def test_ended_task_is_told_at_once(web: httpx.AsyncClient) -> None:
    """Whoever watches a task by key that has ended hears so."""
    await cancel(web, await submit(web, key="k"))
    async with watching(web, "key=k") as watch:
        assert (await watch.status()).told["status"] == "cancelled"


async def test_watch_without_events_has_bookmarks(
    web: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Silence is told from a dead connection by bookmarks."""
    monkeypatch.setattr(watch_stream, "BOOKMARK_EVERY", 10**7)
    async with watching(web) as watch:
        assert [(await watch.next()).kind for _ in range(3)] == ["bookmark"] * 3


@pytest.mark.parametrize(
    ("query", "status", "reason", "field"),
    [
        ("after_cursor=x", 400, "invalid_field", "after_cursor"),
        ("after_cursor=" + "x" * 513, 400, "invalid_field", "after_cursor"),
        ("id=0", 400, "invalid_field", "id[0]"),
        ("pool=a%20b", 400, "invalid_field", "pool"),
        ("all_transitions=perhaps", 400, "invalid_field", "all_transitions"),
        ("key=unknown", 404, "task_unknown", ""),
    ],
)
async def test_watch_of_nothing_is_refused(
    web: httpx.AsyncClient, query: str, status: int, reason: str, field: str
) -> None:
    """What can't be watched is refused before the stream begins."""
    answer = await web.get(f"/v1/watch?{query}")
    assert refused(answer) == (status, reason, field)


async def test_unknown_cursor_ends_the_stream(web: httpx.AsyncClient) -> None:
    """A cursor that is of no use is told as an event, and then the stream is over."""
    async with watching(web, cursor="AAAA") as watch:
        event = await watch.next()
        assert event.kind == "error"
        error = event.told["error"]
        assert (error["code"], error["reason"]) == (410, "cursor_unknown")
        assert await watch.ended()


async def test_shutdown_ends_the_stream_with_its_reason(edge: Edge, web: httpx.AsyncClient) -> None:
    """A watcher hears that the server goes, so that it can resume elsewhere."""
    async with watching(web) as watch:
        await watch.next()
        edge.server.stop()
        event = await watch.status()
        assert event.kind == "error"
        assert event.told["error"]["reason"] in ("stopping", "not_leader")
        assert await watch.ended()


async def test_watcher_who_leaves_is_forgotten(edge: Edge, web: httpx.AsyncClient) -> None:
    """A broken connection frees the stream's place without an event having to come."""
    del web
    gate = edge.server.service.gate
    line = await Line.open(edge.server.http_address)
    line.send("GET", "/v1/watch")
    await until(lambda: gate.inside("streams") == 1)
    line.close()
    await until(lambda: gate.inside("streams") == 0)


@pytest.mark.parametrize("extra", [0, 1])
async def test_streams_have_a_bound(serve: Serve, extra: int) -> None:
    """As many watchers as the limit says are let in, one more is told to come later."""
    edge = await serve("[limits]\nmax_concurrent_streams = 2\n")
    async with browsing(edge) as web, watching(web) as watch:
        await watch.next()
        if extra:
            edge.server.service.gate.enter("streams")
            answer = await web.get("/v1/watch")
            assert refused(answer)[:2] == (429, "too_many_streams")
            assert answer.headers["retry-after"] == "1"
            edge.server.service.gate.leave("streams")
        async with watching(web) as second:
            assert (await second.next()).kind == "bookmark"


async def test_results_of_many_come_as_they_come(web: httpx.AsyncClient) -> None:
    """Each end is a line; what has not ended in time, or is unknown, is a line with an error."""
    done, open_ = await submit(web), await submit(web, key="open")
    await cancel(web, done)
    order = {"ids": [done, "1"], "keys": ["open", "none"], "timeout_s": 0.05}
    answer = await web.post("/v1/waits", json=order)
    assert answer.headers["content-type"] == "application/x-ndjson"
    lines = [json.loads(line) for line in answer.text.splitlines()]
    results = [line["result"] for line in lines if "result" in line]
    assert [(one["id"], one["status"]) for one in results] == [(done, "cancelled")]
    errors = {
        (line.get("id"), line.get("key")): line["error"]["reason"]
        for line in lines[:]
        if "error" in line
    }
    assert errors == {
        ("1", None): "task_unknown",
        (None, "none"): "task_unknown",
        (None, "open"): "wait_timeout",
    }
    assert open_


async def test_line_breaks_of_others_break_no_line(edge: Edge, web: httpx.AsyncClient) -> None:
    """JSON with line breaks between its tokens stays within its event, and within its line."""
    task_id = await submit(web)
    worker = await edge.worker()
    (lease,) = await worker.leases(1)
    pretty = b'{\r\n"a":\n\n1.50}'
    progress = {"lease": lease.lease, "progress": {"data": pretty}}
    beat = {"leases": [lease.lease], "progress": [progress], "number": 1}
    await worker.say(heartbeats={**beat, "last_lease": lease.lease})
    async with watching(web, f"id={task_id}") as watch:
        complete = {"lease": lease.lease, "output": pretty, "content_type": "application/json"}
        await worker.say(reports={"number": 1, "reports": [{"complete": complete}]})
        event = await watch.status()
        assert (event.kind, event.told["status"]) == ("status", "succeeded")
        assert event.told["progress"]["data"] == {"a": 1.5}
    (line,) = (await web.post("/v1/waits", json={"ids": [task_id]})).text.splitlines()
    assert json.loads(line)["result"]["output"] == {"a": 1.5}
    shown = await web.get(f"/v1/tasks/{task_id}/wait")
    assert pretty in shown.content
    await worker.close()


async def test_wait_for_many_is_refused_for_what_it_says(web: httpx.AsyncClient) -> None:
    """Ids that are none are refused before anything is waited for; nothing to wait for is done."""
    assert refused(await web.post("/v1/waits", json={"ids": ["1", "0"]}))[2] == "ids[1]"
    assert refused(await web.post("/v1/waits", json={"keys": [""]}))[2] == "keys"
    assert refused(await web.post("/v1/waits", json={"timeout_s": -1}))[2] == "timeout_s"
    assert (await web.post("/v1/waits", json={})).content == b""


async def test_revoked_credential_ends_its_watch(serve: Serve) -> None:
    """After a reload the watch of a token that is gone ends, and says why."""
    token = "[[auth.tokens]]\ntoken = '{}'\nrole = 'client'\n"
    gone, kept = "token-that-will-go", "token-that-stays"
    edge = await serve(token.format(gone) + token.format(kept))
    async with browsing(edge, authorization=f"Bearer {gone}") as web, watching(web) as watch:
        assert (await watch.next()).kind == "bookmark"
        edge.server.reload(parse(ANY_PORT + token.format(kept)))
        while (event := await watch.next()).kind == "bookmark":
            pass
        assert (event.kind, event.told["error"]["reason"]) == ("error", "unauthenticated")
        assert await watch.ended()
        refusal = await web.get("/v1/watch")
        assert refusal.status_code == 401


def test_pieces_are_few_and_not_long() -> None:
    """Small parts travel together, large ones alone; nothing is lost or moved."""
    parts = [b"a" * 10, b"b" * streams.PIECE_BYTES, b"c", b"d" * (streams.PIECE_BYTES - 1), b"e"]
    made = list(streams.pieces(parts))
    assert b"".join(made) == b"".join(parts)
    assert [len(piece) for piece in made] == [
        10 + streams.PIECE_BYTES,
        streams.PIECE_BYTES,
        1,
    ]
    assert list(streams.pieces([])) == []
