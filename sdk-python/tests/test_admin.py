"""Holds the operators' calls to what they send and tell."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import grpc
import pytest
from scripted_server import PATIENCE_S, Refusal, ScriptedServer

from cronoq import (
    Backoff,
    CatchUp,
    Client,
    Fold,
    Gap,
    Overlap,
    ScheduleSpec,
    TaskSpec,
)
from cronoq._proto import admin_pb2, task_pb2
from cronoq.errors import UnavailableError

INSTANT = datetime(2030, 1, 1, tzinfo=UTC)
NS = 1_893_456_000_000_000_000
SPEC = ScheduleSpec(
    name="s",
    cron="@hourly",
    template=TaskSpec("kind", 1, timeout=2.0),
    tz="Europe/Berlin",
    overlap=Overlap.QUEUE,
    gap=Gap.SKIP,
    fold=Fold.BOTH,
    catch_up=CatchUp.ALL,
    paused=True,
)
REQUEST = admin_pb2.RecurringRequest(
    name="s",
    cron="@hourly",
    template=task_pb2.TaskSpec(
        kind="kind", payload=b"1", content_type="application/json", timeout_s=2.0
    ),
    tz="Europe/Berlin",
    overlap=admin_pb2.OVERLAP_QUEUE,
    gap=admin_pb2.GAP_SKIP,
    fold=admin_pb2.FOLD_BOTH,
    catch_up=admin_pb2.CATCH_UP_ALL,
    paused=True,
)


@pytest.fixture
async def client(server: ScriptedServer) -> AsyncIterator[Client]:
    """A client of the scripted server."""
    quick = Backoff(initial=0.001, maximum=0.01)
    async with Client(server.endpoint, backoff=quick, deadline=PATIENCE_S) as made:
        yield made


def _answer(server: ScriptedServer, method: str, answer: Any) -> None:
    async def give(_request: Any) -> Any:
        return answer

    server.on_admin(method, give)


async def test_a_snapshot_tells_everything(server: ScriptedServer, client: Client) -> None:
    """Pools with their groups, totals, resources, and what is missing."""
    group = admin_pb2.WorkerGroup(labels={"gpu": "1"}, capacity=4, busy=1)
    pool = admin_pb2.PoolSnapshot(
        name="p", capacity=8, pending_by_class=[1, 2, 3, 4], utilization=0.5, groups=[group]
    )
    answer = admin_pb2.SnapshotResponse(
        pools=[pool],
        live_tasks=9,
        totals=admin_pb2.Totals(submitted=2**40, stale_completions=1),
        unavailable_shards=["gpu"],
        resources=[admin_pb2.Resource(name="api", kind="semaphore", permits=3)],
    )
    _answer(server, "Snapshot", answer)
    told = await client.snapshot()
    assert (told.live_tasks, told.totals.submitted) == (9, 2**40)
    assert (told.pools[0].capacity, list(told.pools[0].pending_by_class)) == (8, [1, 2, 3, 4])
    assert told.pools[0].groups[0].labels == {"gpu": "1"}
    assert (told.resources[0].name, told.resources[0].permits) == ("api", 3)
    assert list(told.unavailable_shards) == ["gpu"]
    _answer(server, "ListPools", admin_pb2.ListPoolsResponse(pools=[pool]))
    assert list(await client.pools()) == list(told.pools)


async def test_workers_are_listed_with_missing_shards(
    server: ScriptedServer, client: Client
) -> None:
    """Instants and labels as values."""
    worker = admin_pb2.WorkerInfo(
        id=7, name="w", pool="p", labels={"a": "b"}, slots=2, connected_unix_ns=NS, kinds=["k"]
    )
    answer = admin_pb2.ListWorkersResponse(workers=[worker], unavailable_shards=["gpu"])
    _answer(server, "ListWorkers", answer)
    told = await client.workers()
    assert told.unavailable_shards == ("gpu",)
    assert (told[0].id, told[0].connected_at, told[0].labels) == (7, INSTANT, {"a": "b"})


async def test_a_schedule_travels_whole_in_both_directions(
    server: ScriptedServer, client: Client
) -> None:
    """Field by field; what it tells can be put again."""
    info = admin_pb2.RecurringInfo(
        name="s", cron="@hourly", tz="UTC", pool="p", next_unix_ns=NS, last_task_id=5
    )
    detail = admin_pb2.RecurringDetail(info=info, spec=REQUEST, skipped=3, chain_broken=True)
    _answer(server, "AddRecurring", task_pb2.Empty())
    _answer(server, "GetRecurring", detail)
    _answer(server, "ListRecurring", admin_pb2.ListRecurringResponse(schedules=[info]))
    await client.put_schedule(SPEC)
    assert server.requests("AddRecurring") == [REQUEST]
    told = await client.schedule("s", pool="p")
    assert (told.skipped, told.chain_broken, told.spec.catch_up) == (3, True, CatchUp.ALL)
    assert (told.spec.template.kind, told.spec.template.payload) == ("kind", b"1")
    assert (told.schedule.next_at, told.schedule.overlap) == (INSTANT, Overlap.SKIP)
    assert list(await client.schedules()) == [told.schedule]
    assert server.requests("GetRecurring") == [admin_pb2.GetRecurringRequest(name="s", pool="p")]


async def test_what_a_schedule_does_not_say_is_not_on_the_wire(
    server: ScriptedServer, client: Client
) -> None:
    """The server's defaults stay the server's."""
    _answer(server, "AddRecurring", task_pb2.Empty())
    await client.put_schedule(ScheduleSpec(name="s", cron="@daily", template=TaskSpec("k")))
    (request,) = server.requests("AddRecurring")
    assert (request.overlap, request.gap, request.fold, request.catch_up) == (0, 0, 0, 0)


async def test_schedules_are_run_by_hand(server: ScriptedServer, client: Client) -> None:
    """Paused, resumed, triggered, backfilled, previewed, removed."""
    _answer(server, "PauseRecurring", task_pb2.Empty())
    _answer(server, "TriggerRecurring", admin_pb2.TriggerRecurringResponse(task_id=8))
    backfilled = admin_pb2.BackfillRecurringResponse(created=2, next_unix_ns=NS)
    _answer(server, "BackfillRecurring", backfilled)
    _answer(server, "PreviewRecurring", admin_pb2.PreviewRecurringResponse(at_unix_ns=[NS]))
    _answer(server, "RemoveRecurring", admin_pb2.RemoveRecurringResponse(removed=True))
    await client.pause_schedule("s")
    await client.resume_schedule("s")
    assert [r.paused for r in server.requests("PauseRecurring")] == [True, False]
    assert await client.trigger_schedule("s") == 8
    told = await client.backfill_schedule("s", INSTANT, INSTANT, dry_run=True)
    assert (told.created, told.next_at) == (2, INSTANT)
    assert list(await client.preview_schedule("s", count=1)) == [INSTANT]
    assert list(await client.preview_schedule(SPEC)) == [INSTANT]
    by_name, by_spec = server.requests("PreviewRecurring")
    assert (by_name.name, by_name.count) == ("s", 1)
    assert (by_spec.spec, by_spec.count) == (REQUEST, 10)
    assert await client.remove_schedule("s")
    assert not server.requests("RemoveRecurring")[0].HasField("pool")


async def test_pools_and_resources_are_changed(server: ScriptedServer, client: Client) -> None:
    """Only what is said is sent."""
    _answer(server, "PausePool", task_pb2.Empty())
    _answer(server, "ResumePool", task_pb2.Empty())
    resource = admin_pb2.Resource(name="api", kind="token_bucket", rate=0.5, overridden=True)
    _answer(server, "SetResource", resource)
    _answer(server, "ListResources", admin_pb2.ListResourcesResponse(resources=[resource]))
    await client.pause_pool("p")
    await client.resume_pool("p")
    assert (await client.set_resource("api", rate=0.5)).overridden
    assert (await client.resources())[0].rate == 0.5
    expected = admin_pb2.SetResourceRequest(name="api", rate=0.5)
    assert server.requests("SetResource") == [expected]


async def test_acts_that_count_twice_are_not_repeated(
    server: ScriptedServer, client: Client
) -> None:
    """A trigger whose answer was lost may have happened."""

    async def lost(_request: Any) -> Any:
        raise Refusal(grpc.StatusCode.UNAVAILABLE, "reset")

    server.on_admin("TriggerRecurring", lost)
    server.on_admin("BackfillRecurring", lost)
    with pytest.raises(UnavailableError):
        await client.trigger_schedule("s")
    with pytest.raises(UnavailableError):
        await client.backfill_schedule("s", INSTANT, INSTANT)
    assert len(server.calls) == 2
