"""What operators call: pools, resources, schedules, and tasks by the page."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from itertools import pairwise
from typing import Any

import grpc
import pytest

from cronoq_server._proto import admin_pb2, task_pb2, tasks_pb2, workers_pb2
from tests.api.conftest import Edge, reason_of

Serve = Callable[[str], Awaitable[Edge]]

DAY_NS = 86_400 * 10**9
RESOURCES = """
[[resources]]
name = "api"
permits = 1
[[resources]]
name = "calls"
kind = "token_bucket"
rate = 2.5
burst = 10
"""


async def reason(call: Awaitable[Any]) -> tuple[str, str]:
    """Reason and message of a call that fails."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return reason_of(caught.value)[0], caught.value.details() or ""


def schedule(**fields: Any) -> admin_pb2.RecurringRequest:
    """A daily schedule named `daily`, unless told otherwise."""
    fields.setdefault("name", "daily")
    fields.setdefault("cron", "30 4 * * *")
    fields.setdefault("template", task_pb2.TaskSpec(kind="report", payload=b"p"))
    return admin_pb2.RecurringRequest(**fields)


async def test_paused_pool_starts_nothing(edge: Edge) -> None:
    """A paused pool keeps its tasks, shows that it is paused, and goes on when resumed."""
    await edge.admin.PausePool(admin_pb2.PausePoolRequest(pool="default"))
    task_id = await edge.submit()
    worker = await edge.worker()
    (pool,) = (await edge.admin.ListPools(task_pb2.Empty())).pools
    assert (pool.name, pool.paused, pool.busy) == ("default", True, 0)
    assert await edge.status(task_id) == task_pb2.TASK_STATUS_READY
    await edge.admin.ResumePool(admin_pb2.ResumePoolRequest(pool="default"))
    assert (await worker.leases(1))[0].task_id == task_id
    await worker.close()
    assert (await reason(edge.admin.PausePool(admin_pb2.PausePoolRequest(pool="x"))))[0] == (
        "POOL_UNKNOWN"
    )


async def test_resources_are_shown_and_resized(serve: Serve) -> None:
    """What is held shows, and a larger size lets the next task start."""
    edge = await serve(RESOURCES)
    for _ in range(2):
        await edge.submit(resources={"api": 1})
    worker = await edge.worker(slots=2)
    await worker.leases(1)
    shown = (await edge.admin.ListResources(task_pb2.Empty())).resources
    by_name = {resource.name: resource for resource in shown}
    assert (by_name["api"].permits, by_name["api"].held) == (1, 1)
    assert (by_name["calls"].kind, by_name["calls"].rate, by_name["calls"].burst) == (
        "token_bucket",
        2.5,
        10,
    )
    resized = await edge.admin.SetResource(admin_pb2.SetResourceRequest(name="api", permits=2))
    assert (resized.permits, resized.overridden) == (2, True)
    await worker.leases(1)
    snapshot = await edge.admin.Snapshot(task_pb2.Empty())
    assert {resource.name for resource in snapshot.resources} == {"api", "calls"}
    await worker.close()


@pytest.mark.parametrize(
    ("request_", "expected", "words"),
    [
        (admin_pb2.SetResourceRequest(name="x", permits=1), "RESOURCE_NOT_FOUND", "'x'"),
        (admin_pb2.SetResourceRequest(name="a b"), "INVALID_FIELD", "name"),
        (admin_pb2.SetResourceRequest(name="api", rate=1.0), "INVALID_FIELD", "semaphore"),
        (admin_pb2.SetResourceRequest(name="calls", rate=0.0), "INVALID_FIELD", "above 0"),
        (admin_pb2.SetResourceRequest(name="calls", burst=0), "INVALID_FIELD", "at least 1"),
    ],
)
async def test_wrong_size_is_refused(
    serve: Serve, request_: admin_pb2.SetResourceRequest, expected: str, words: str
) -> None:
    """A resource that is not there and figures that do not fit are refused precisely."""
    edge = await serve(RESOURCES)
    got, message = await reason(edge.admin.SetResource(request_))
    assert got == expected
    assert words in message


async def test_schedule_lives_from_put_to_removal(edge: Edge) -> None:
    """A schedule is put, shown as it was put, paused, triggered and removed."""
    request = schedule(tz="Europe/Berlin", overlap=admin_pb2.OVERLAP_ALLOW)
    await edge.admin.AddRecurring(request)
    (info,) = (await edge.admin.ListRecurring(task_pb2.Empty())).schedules
    assert (info.name, info.cron, info.tz, info.kind) == (
        "daily",
        "30 4 * * *",
        "Europe/Berlin",
        "report",
    )
    named = admin_pb2.GetRecurringRequest(name="daily")
    detail = await edge.admin.GetRecurring(named)
    assert detail.info == info
    assert detail.spec.template.payload == b"p"
    assert detail.spec.overlap == admin_pb2.OVERLAP_ALLOW
    await edge.admin.PauseRecurring(admin_pb2.PauseRecurringRequest(name="daily", paused=True))
    assert (await edge.admin.GetRecurring(named)).info.paused
    trigger = admin_pb2.TriggerRecurringRequest(name="daily")
    task_id = (await edge.admin.TriggerRecurring(trigger)).task_id
    task = await edge.tasks.Get(tasks_pb2.GetRequest(task=task_pb2.TaskRef(id=task_id)))
    assert (task.kind, task.schedule) == ("report", "daily")
    assert (await edge.admin.GetRecurring(named)).info.last_task_id == task_id
    listed = await edge.tasks.ListTasks(tasks_pb2.ListTasksRequest(schedule="daily"))
    assert [one.id for one in listed.tasks] == [task_id]
    remove = admin_pb2.RemoveRecurringRequest(name="daily")
    assert (await edge.admin.RemoveRecurring(remove)).removed
    assert not (await edge.admin.RemoveRecurring(remove)).removed
    assert (await reason(edge.admin.GetRecurring(named)))[0] == "SCHEDULE_UNKNOWN"


async def test_pool_of_a_schedule_narrows_the_name(edge: Edge) -> None:
    """A call that names another pool does not find the schedule."""
    await edge.admin.AddRecurring(schedule())
    request = admin_pb2.GetRecurringRequest(name="daily", pool="default")
    assert (await edge.admin.GetRecurring(request)).info.pool == "default"
    request = admin_pb2.GetRecurringRequest(name="daily", pool="other")
    assert (await reason(edge.admin.GetRecurring(request)))[0] == "SCHEDULE_UNKNOWN"


@pytest.mark.parametrize(
    ("request_", "expected", "words"),
    [
        (schedule(name=""), "INVALID_FIELD", "name"),
        (schedule(cron="* * *"), "CRON_INVALID", "cron"),
        (schedule(cron="0 0 31 4 *"), "CRON_NEVER_FIRES", "cron"),
        (schedule(tz="Mars/Base"), "ZONE_UNKNOWN", "Mars/Base"),
        (admin_pb2.RecurringRequest(name="a", cron="@daily"), "INVALID_FIELD", "template"),
        (schedule(template=task_pb2.TaskSpec(pool="x")), "POOL_UNKNOWN", "template.pool"),
        (
            schedule(template=task_pb2.TaskSpec(start_unix_ns=1)),
            "INVALID_FIELD",
            "template.start_unix_ns",
        ),
        (
            schedule(
                template=task_pb2.TaskSpec(deps=[task_pb2.Dep(target=task_pb2.TaskRef(id=1))])
            ),
            "INVALID_FIELD",
            "template.deps",
        ),
        (schedule(template=task_pb2.TaskSpec(key="k" * 250)), "INVALID_FIELD", "template.key"),
        (schedule(overlap=9), "INVALID_FIELD", "overlap"),
    ],
)
async def test_wrong_schedule_is_refused(
    edge: Edge, request_: admin_pb2.RecurringRequest, expected: str, words: str
) -> None:
    """Expression, zone and template are checked before anything is stored."""
    got, message = await reason(edge.admin.AddRecurring(request_))
    assert got == expected
    assert words in message
    assert not (await edge.admin.ListRecurring(task_pb2.Empty())).schedules


async def test_preview_shows_the_next_times(edge: Edge) -> None:
    """Of a stored schedule or one that is only considered, as many as are asked for."""
    await edge.admin.AddRecurring(schedule())
    by_name = admin_pb2.PreviewRecurringRequest(name="daily", count=3)
    shown = list((await edge.admin.PreviewRecurring(by_name)).at_unix_ns)
    assert [later - earlier for earlier, later in pairwise(shown)] == [DAY_NS, DAY_NS]
    by_spec = admin_pb2.PreviewRecurringRequest(spec=schedule(name="other"), count=3)
    assert list((await edge.admin.PreviewRecurring(by_spec)).at_unix_ns) == shown
    too_many = admin_pb2.PreviewRecurringRequest(name="daily", count=101)
    got, message = await reason(edge.admin.PreviewRecurring(too_many))
    assert (got, message) == ("INVALID_FIELD", "count: must be at most 100, not 101")


async def test_backfill_makes_a_past_range_once(edge: Edge) -> None:
    """The occurrences of three days, counted first, made once, never of the future."""
    await edge.admin.AddRecurring(schedule(overlap=admin_pb2.OVERLAP_ALLOW))
    start = 20_000 * DAY_NS
    request = admin_pb2.BackfillRecurringRequest(
        name="daily", from_unix_ns=start, to_unix_ns=start + 3 * DAY_NS, dry_run=True
    )
    assert (await edge.admin.BackfillRecurring(request)).created == 3
    request.dry_run = False
    done = await edge.admin.BackfillRecurring(request)
    assert (done.created, done.HasField("next_unix_ns")) == (3, False)
    assert (await edge.admin.BackfillRecurring(request)).created == 0
    key = task_pb2.TaskRef(key="daily@2024-10-04T04:30:00Z")
    assert (await edge.tasks.Get(tasks_pb2.GetRequest(task=key))).kind == "report"
    request.to_unix_ns = 2**62
    assert "future" in (await reason(edge.admin.BackfillRecurring(request)))[1]


async def test_ended_task_is_put_back(edge: Edge) -> None:
    """A failed task runs again under a rising attempt number; a live one can't be put back."""
    task_id = await edge.submit(payload=b"again")
    worker = await edge.worker()
    (lease,) = await worker.leases(1)
    retry = tasks_pb2.RetryRequest(task=task_pb2.TaskRef(id=task_id))
    assert (await reason(edge.tasks.Retry(retry)))[0] == "NOT_TERMINAL"
    reports = workers_pb2.Reports(number=1)
    reports.reports.add().fail.CopyFrom(workers_pb2.Fail(lease=lease.lease, permanent=True))
    await worker.say(reports=reports)
    await worker.receipt(1)
    assert (await edge.tasks.Retry(retry)).retried
    (lease,) = await worker.leases(1)
    assert (lease.task_id, lease.attempt, lease.payload) == (task_id, 2, b"again")
    await worker.complete(2, lease)
    await worker.receipt(2)
    assert not (await edge.tasks.Retry(retry)).retried
    await worker.close()


async def test_finished_task_is_forgotten(edge: Edge) -> None:
    """Only a finished task can be deleted, and then it is gone."""
    task_id = await edge.submit()
    reference = task_pb2.TaskRef(id=task_id)
    delete = tasks_pb2.DeleteRequest(task=reference)
    assert (await reason(edge.tasks.Delete(delete)))[0] == "NOT_TERMINAL"
    await edge.tasks.Cancel(tasks_pb2.CancelRequest(task=reference))
    assert (await edge.tasks.Delete(delete)).deleted
    assert (await reason(edge.tasks.Get(tasks_pb2.GetRequest(task=reference))))[0] == (
        "TASK_UNKNOWN"
    )


async def test_bulk_cancels_what_a_filter_lets_through(edge: Edge) -> None:
    """Counted first, then page by page; other tasks stay."""
    ids = [await edge.submit(kind="odd" if n % 2 else "even") for n in range(6)]
    request = tasks_pb2.BulkRequest(
        filter=tasks_pb2.TaskFilter(kinds=["odd"]),
        action=tasks_pb2.BULK_ACTION_CANCEL,
        dry_run=True,
    )
    counted = await edge.tasks.Bulk(request)
    assert (counted.matched, counted.changed) == (3, 0)
    request.dry_run, request.limit = False, 2
    changed = 0
    while True:
        done = await edge.tasks.Bulk(request)
        changed += done.changed
        request.after = done.next_after
        if not request.after:
            break
    assert changed == 3
    statuses = [await edge.status(task_id) for task_id in ids]
    assert statuses == [task_pb2.TASK_STATUS_READY, task_pb2.TASK_STATUS_CANCELLED] * 3
    assert (await reason(edge.tasks.Bulk(tasks_pb2.BulkRequest())))[0] == "INVALID_FIELD"
