"""Reads cover every shard, and name the ones that they could not ask."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest

from cronoq_server._proto import admin_pb2, task_pb2, tasks_pb2
from cronoq_server.engine.ids import shard_of
from tests.sharding.conftest import POOLS, SHARDS, Cluster, by_id, by_key, get
from tests.sharding.test_forwarding import finish_one, refused

EMPTY = task_pb2.Empty()


async def pages(edge: Any, limit: int, **fields: Any) -> list[list[int]]:
    """All pages of a listing, as ids."""
    found, after = [], 0
    while True:
        request = tasks_pb2.ListTasksRequest(limit=limit, after=after, **fields)
        page = await edge.tasks.ListTasks(request)
        assert not page.unavailable_shards
        found.append([info.id for info in page.tasks])
        after = page.next_after
        if not after:
            return found


@pytest.mark.parametrize("server", SHARDS)
@pytest.mark.parametrize("limit", [1, 3, 7, 100])
async def test_a_listing_goes_through_the_shards_in_the_order_of_ids(
    cluster: Cluster, server: str, limit: int
) -> None:
    """Every task once, forwards and backwards, in pages of any size."""
    ids = sorted([await cluster.edges["web"].submit(pool=pool) for pool in POOLS * 3])
    edge = cluster.edges[server]
    assert [i for page in await pages(edge, limit) for i in page] == ids
    assert [i for page in await pages(edge, limit, newest_first=True) for i in page] == ids[::-1]
    some = await pages(edge, limit, pools=["llm", "site"])
    assert [i for page in some for i in page] == [i for i in ids if shard_of(i) != 1]


async def test_bulk_works_shard_by_shard(cluster: Cluster) -> None:
    """The cursor leads through all of them; a dry run changes nothing."""
    for pool in POOLS:
        await cluster.edges["cpu"].submit(pool=pool, kind="old")
    edge = cluster.edges["gpu"]
    for dry_run, expected in ((True, 0), (False, len(POOLS))):
        matched = changed = after = 0
        while True:
            done = await edge.tasks.Bulk(
                tasks_pb2.BulkRequest(
                    filter=tasks_pb2.TaskFilter(kinds=["old"]),
                    action=tasks_pb2.BulkAction.BULK_ACTION_CANCEL,
                    after=after,
                    dry_run=dry_run,
                )
            )
            matched, changed = matched + done.matched, changed + done.changed
            after = done.next_after
            if not after:
                break
        assert matched == len(POOLS)
        assert changed == expected


async def test_snapshots_add_up(cluster: Cluster) -> None:
    """Pools of all shards, totals over all shards, workers of all shards."""
    for pool in POOLS:
        await cluster.edges["cpu"].submit(pool=pool)
    await finish_one(cluster, "llm", b"")
    worker = await cluster.edges["web"].worker(pool="site", worker_name="w")
    for edge in cluster.edges.values():
        view = await edge.admin.Snapshot(EMPTY)
        assert [pool.name for pool in view.pools] == POOLS
        assert (view.totals.submitted, view.totals.succeeded) == (len(POOLS), 1)
        assert (view.workers_connected, view.running) == (1, 1)
        workers = await edge.admin.ListWorkers(EMPTY)
        assert [(one.name, one.pool) for one in workers.workers] == [("w", "site")]
    await worker.close()


async def test_one_watch_tells_of_all_shards_and_resumes(cluster: Cluster) -> None:
    """Ends come from everywhere, and what happened in between is told after a reconnect."""
    edge = cluster.edges["cpu"]
    first = {await edge.submit(pool=pool) for pool in ("default", "llm")}
    watch = edge.tasks.WatchBatches(tasks_pb2.WatchRequest(bookmarks=True))
    told: dict[int, int] = {}
    message = await watch.read()  # the bookmark that says that all shards are watched
    cursor = message.cursor
    for pool in ("default", "llm"):
        await finish_one(cluster, pool, b"")
    while set(told) < first:
        message = await watch.read()
        cursor = message.cursor or cursor
        told |= {event.id: event.status for event in message.events}
    watch.cancel()
    second = {await edge.submit(pool=pool) for pool in ("site", "llm")}
    for pool in ("site", "llm"):
        await finish_one(cluster, pool, b"")
    again = edge.tasks.WatchBatches(tasks_pb2.WatchRequest(bookmarks=True, after_cursor=cursor))
    seen: set[int] = set()
    while not second <= seen:
        seen |= {event.id for event in (await again.read()).events}
    again.cancel()
    assert seen <= second | first


async def test_a_watch_ends_with_any_of_its_streams(cluster: Cluster) -> None:
    """A part is never taken for the whole."""
    watch = cluster.edges["cpu"].tasks.WatchBatches(tasks_pb2.WatchRequest(bookmarks=True))
    await watch.read()
    await cluster.stop("gpu")

    async def hear_on() -> None:
        while await watch.read() is not grpc.aio.EOF:
            pass

    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await hear_on()
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_watch_that_began_without_a_shard_ends_when_it_is_back(cluster: Cluster) -> None:
    """So that whoever watches hears of all shards again, from the cursor that it has."""
    edge = cluster.edges["cpu"]
    await cluster.stop("gpu")
    await cluster.agree("gpu")
    stream = edge.tasks.WatchBatches(tasks_pb2.WatchRequest(bookmarks=True))
    begun = await stream.read()
    metadata = dict(await stream.initial_metadata())
    assert metadata["cronoq-unavailable-shards"] == "gpu"
    await cluster.start("gpu")
    await cluster.agree()
    code, reason, _ = await refused(_to_its_end(stream))
    assert (code, reason) == (grpc.StatusCode.UNAVAILABLE, "SHARD_UNAVAILABLE")
    again = edge.tasks.WatchBatches(
        tasks_pb2.WatchRequest(after_cursor=begun.cursor, bookmarks=True)
    )
    await again.read()
    assert "cronoq-unavailable-shards" not in dict(await again.initial_metadata())
    again.cancel()


@pytest.mark.parametrize("number", [1, 2, 77])
@pytest.mark.parametrize("bookmarks", [False, True])
async def test_a_watch_of_a_task_that_nobody_has_is_refused(
    cluster: Cluster, number: int, bookmarks: bool
) -> None:
    """Whichever shard it would be in: the server's own, another one, one that there is not."""
    request = tasks_pb2.WatchRequest(ids=[number << 56 | 1 << 40 | 9999], bookmarks=bookmarks)
    stream = cluster.edges["cpu"].tasks.WatchBatches(request)
    code, reason, _ = await refused(_to_its_end(stream))
    assert (code, reason) == (grpc.StatusCode.NOT_FOUND, "TASK_UNKNOWN")


async def _to_its_end(stream: Any) -> None:
    while await stream.read() is not grpc.aio.EOF:
        pass


async def test_one_wait_for_tasks_of_all_shards(cluster: Cluster) -> None:
    """By id and by key, as they end; what does not exist is said at once."""
    edge = cluster.edges["web"]
    ids = {pool: await edge.submit(pool=pool, key=f"key-{pool}") for pool in POOLS}
    request = tasks_pb2.WaitManyRequest(
        ids=[ids["default"], ids["llm"], 5], keys=["key-site", "key-mail", "nobody"]
    )
    waiting = edge.tasks.WaitMany(request)
    ends: dict[int, bytes] = {}
    errors = 0

    async def hear() -> None:
        nonlocal errors
        async for message in waiting:
            ends.update({result.id: result.output for result in message.results})
            errors += len(message.errors)

    hearing = asyncio.create_task(hear())
    for pool in POOLS:
        await finish_one(cluster, pool, pool.encode())
    await hearing
    assert ends == {ids[pool]: pool.encode() for pool in POOLS}
    assert errors == 2


async def test_reads_name_the_shard_that_does_not_answer(cluster: Cluster) -> None:
    """Exactly while it does not; calls for the others go on."""
    edge = cluster.edges["cpu"]
    kept = await edge.submit(pool="site", key="kept")
    await edge.submit(pool="llm", key="lost")
    await cluster.stop("gpu")
    await cluster.agree("gpu")
    assert list((await edge.tasks.ListTasks(tasks_pb2.ListTasksRequest())).unavailable_shards) == [
        "gpu"
    ]
    for call in (edge.admin.Snapshot, edge.admin.ListWorkers, edge.admin.ListRecurring,
                 edge.admin.ListPools, edge.admin.ListResources):  # fmt: skip
        assert list((await call(EMPTY)).unavailable_shards) == ["gpu"]
    asking = edge.tasks.Get(get(by_key("kept")))
    assert (await asking).id == kept
    assert dict(await asking.trailing_metadata())["cronoq-unavailable-shards"] == "gpu"
    for pool in ("default", "site"):
        await edge.submit(pool=pool)
    _, scrape = await cluster.servers["cpu"].metrics.render()
    assert b'cronoq_shard_unavailable{peer="gpu"} 1.0' in scrape
    assert b'cronoq_shard_unavailable{peer="web"} 0.0' in scrape
    await cluster.start("gpu")
    await cluster.agree()
    page = await edge.tasks.ListTasks(tasks_pb2.ListTasksRequest())
    assert not page.unavailable_shards


async def test_changes_that_need_a_missing_shard_are_refused(cluster: Cluster) -> None:
    """By key it might be the missing one's task; by id and pool it is known whose it is."""
    edge = cluster.edges["cpu"]
    mine = await edge.submit(pool="default", key="mine")
    theirs = await edge.submit(pool="llm")
    await cluster.stop("gpu")
    await cluster.agree("gpu")
    unavailable = (grpc.StatusCode.UNAVAILABLE, "SHARD_UNAVAILABLE")
    by_name = tasks_pb2.CancelRequest(task=by_key("mine"))
    assert (await refused(edge.tasks.Cancel(by_name)))[:2] == unavailable
    nobody = edge.tasks.Get(get(by_key("nobody")))
    assert (await refused(nobody))[:2] == unavailable
    assert (await refused(edge.tasks.Get(get(by_id(theirs)))))[:2] == unavailable
    pause = admin_pb2.PauseRecurringRequest(name="any", paused=True)
    assert (await refused(edge.admin.PauseRecurring(pause)))[:2] == unavailable
    submit = tasks_pb2.SubmitRequest(task=task_pb2.TaskSpec(pool="llm"))
    assert (await refused(edge.tasks.Submit(submit)))[:2] == unavailable
    by_number = tasks_pb2.CancelRequest(task=by_id(mine))
    assert (await edge.tasks.Cancel(by_number)).cancelled
