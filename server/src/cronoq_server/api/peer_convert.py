"""What another shard's answers mean: the way back of `convert` and `admin_convert`.

What travels is less than what the engine knows, but it is all that callers are shown: a view that
comes from here looks to them as if it had been made by the engine of this server.
"""

from __future__ import annotations

from collections.abc import Mapping

from cronoq_server._proto import admin_pb2, task_pb2, tasks_pb2
from cronoq_server.api.admin_convert import NANO
from cronoq_server.api.specs import SpecReader
from cronoq_server.engine import (
    SECOND,
    Bulked,
    Instant,
    Page,
    Pairs,
    ParentView,
    PastAttempt,
    PoolView,
    Progress,
    ResourceView,
    Result,
    ScheduleSpec,
    SnapshotView,
    StatusEvent,
    StoredSchedule,
    TaskDetail,
    TaskRef,
    TaskSpec,
    TaskView,
    TotalsView,
    WorkerGroupView,
    WorkerView,
)


def pairs(source: Mapping[str, str]) -> Pairs:
    """A map field as the engine writes it."""
    return tuple(sorted(source.items()))


def reference(message: task_pb2.TaskRef) -> TaskRef:
    """A task by key or id."""
    return message.key if message.WhichOneof("ref") == "key" else message.id


def progress(message: task_pb2.Progress) -> Progress:
    """How far an attempt is."""
    return Progress(message.data, message.fraction if message.HasField("fraction") else None)


def task_view(info: task_pb2.TaskInfo) -> TaskView:
    """What a task looks like."""
    spec = TaskSpec(
        kind=info.kind,
        pool=info.pool,
        priority=info.priority,
        key=info.key,
        tenant=info.tenant,
        tags=pairs(info.tags),
        labels=pairs(info.labels),
    )
    return _view(info, spec)


def _view(info: task_pb2.TaskInfo, spec: TaskSpec) -> TaskView:
    started = info.started_unix_ns if info.HasField("started_unix_ns") else None
    finished = info.finished_unix_ns if info.HasField("finished_unix_ns") else None
    following = info.next_run_unix_ns if info.HasField("next_run_unix_ns") else None
    return TaskView(
        info.id,
        spec,
        info.status,
        info.attempt,
        info.max_attempts,
        info.created_unix_ns,
        started,
        finished,
        info.message,
        info.output_available,
        following,
        progress(info.progress) if info.HasField("progress") else None,
        tuple(info.waiting_for),
    )


def task_detail(message: task_pb2.TaskDetail, reader: SpecReader) -> TaskDetail:
    """Everything that is told of a task."""
    return TaskDetail(
        _view(message.info, reader.read(message.spec)),
        tuple(_attempt(attempt) for attempt in message.attempts),
        tuple(ParentView(reference(p.task), p.cond, p.status) for p in message.parents),
        tuple(message.children),
    )


def _attempt(message: task_pb2.Attempt) -> PastAttempt:
    return PastAttempt(
        message.number,
        message.worker,
        message.started_unix_ns,
        message.ended_unix_ns,
        message.outcome,
        message.message,
    )


def page(message: tasks_pb2.ListTasksResponse) -> Page:
    """One page of a listing."""
    return Page(tuple(task_view(info) for info in message.tasks), message.next_after)


def bulked(message: tasks_pb2.BulkResponse) -> Bulked:
    """What became of one page of tasks."""
    return Bulked(message.matched, message.changed, message.next_after)


def result(message: task_pb2.TaskResult) -> Result:
    """How a task ended; an output that did not come along can't be fetched here."""
    has_output = message.HasField("output")
    return Result(
        message.id,
        message.status,
        message.message,
        message.output if has_output else None,
        message.content_type,
        fetch=message.output_available and not has_output,
    )


def event(message: task_pb2.StatusEvent) -> StatusEvent:
    """A transition."""
    return StatusEvent(
        message.id,
        message.pool,
        message.key,
        message.status,
        message.attempt,
        message.at_unix_ns,
        message.message,
        progress(message.progress) if message.HasField("progress") else None,
    )


# Operators' answers


def schedule(message: admin_pb2.RecurringInfo) -> StoredSchedule:
    """How a schedule stands; its template is known by pool and kind alone."""
    template = TaskSpec(kind=message.kind, pool=message.pool)
    return _schedule(message, template)


def schedule_detail(message: admin_pb2.RecurringDetail, reader: SpecReader) -> StoredSchedule:
    """A schedule in full."""
    template = reader.read(message.spec.template)
    return _schedule(message.info, template, message.skipped, message.chain_broken)


def _schedule(
    info: admin_pb2.RecurringInfo,
    template: TaskSpec,
    skipped: int = 0,
    chain_broken: bool = False,
) -> StoredSchedule:
    spec = ScheduleSpec(
        name=info.name,
        cron=info.cron,
        template=template,
        zone=info.tz,
        overlap=info.overlap,
        gap=info.gap,
        fold=info.fold,
        catch_up=info.catch_up,
    )
    return StoredSchedule(
        spec,
        put_at=0,
        paused=info.paused,
        next_at=info.next_unix_ns if info.HasField("next_unix_ns") else None,
        last_task=info.last_task_id,
        skipped=skipped,
        chain_broken=chain_broken,
    )


def resource(message: admin_pb2.Resource) -> ResourceView:
    """A resource."""
    return ResourceView(
        message.name,
        message.kind,
        message.permits,
        round(message.rate * NANO),
        message.burst,
        message.held,
        round(message.tokens * NANO),
        message.waiting,
        message.overridden,
        message.per_value,
    )


def snapshot(message: admin_pb2.SnapshotResponse, now: Instant) -> SnapshotView:
    """Counts of a shard's pools; `now` is a wall instant of this server."""
    totals = {field.name: getattr(message.totals, field.name) for field in _TOTALS}
    return SnapshotView(
        tuple(_pool(pool, now) for pool in message.pools),
        message.live_tasks,
        message.running,
        message.pending,
        TotalsView(**totals),
        message.workers_connected,
    )


_TOTALS = admin_pb2.Totals.DESCRIPTOR.fields


def _pool(message: admin_pb2.PoolSnapshot, now: Instant) -> PoolView:
    age = message.oldest_ready_s
    return PoolView(
        name=message.name,
        capacity=message.capacity,
        busy=message.busy,
        stuck=0,
        pending_by_class=tuple(message.pending_by_class),
        workers_connected=message.workers_connected,
        dispatched=message.dispatched,
        succeeded=message.succeeded,
        failed=message.failed,
        groups=tuple(WorkerGroupView(pairs(g.labels), g.capacity, g.busy) for g in message.groups),
        paused=message.paused,
        oldest_ready_at=now - round(age * SECOND) if age else None,
        held=message.held,
        desired=message.desired,
        reservations=message.reservations,
        priority_adherence=message.priority_adherence,
        fixed_start_hit_rate=message.fixed_start_hit_rate,
        utilization=message.utilization,
        schedule_efficiency=message.schedule_efficiency,
        waits=(message.wait_p50_s, message.wait_p90_s, message.wait_p99_s),
        cost=message.cost,
    )


def worker(message: admin_pb2.WorkerInfo) -> WorkerView:
    """A connected session."""
    return WorkerView(
        message.id,
        message.name,
        message.pool,
        pairs(message.labels),
        tuple(message.kinds),
        message.slots,
        message.busy,
        message.connected_unix_ns,
        message.sdk,
    )
