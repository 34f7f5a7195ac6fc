"""Decides how the SDK's values stand on the wire, in both directions.

Filling a message sets only what the caller said: building protobuf is the dearest part of a submit.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from ._payload import Codec
from ._proto import task_pb2, tasks_pb2
from .errors import InvalidFieldError
from .options import seconds
from .spec import (
    NO_PAYLOAD,
    Dep,
    EdgeCond,
    HasId,
    MissPolicy,
    Priority,
    RetryPolicy,
    TaskFilter,
    TaskSpec,
    TaskStatus,
)
from .views import (
    AttemptRecord,
    ParentRecord,
    Progress,
    StatusEvent,
    TaskDetail,
    TaskInfo,
    TaskResult,
)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
# Statuses by number; a number that a newer server invents is an error that names it.
STATUSES = {int(status): status for status in TaskStatus}


def unix_ns(instant: datetime) -> int:
    """Returns an aware datetime as Unix nanoseconds, exactly.

    Raises:
        InvalidFieldError: The datetime is naive, or further away than the wire can say.
    """
    if instant.tzinfo is None:
        raise InvalidFieldError("instants need a time zone, such as datetime.now(UTC)")
    found = (instant - _EPOCH) // _MICROSECOND * 1000
    if not -(1 << 63) <= found < 1 << 63:
        raise InvalidFieldError(f"the year {instant.year} is beyond what can be said")
    return found


def instant_of(unix_nanoseconds: int) -> datetime:
    """Returns Unix nanoseconds as an aware UTC datetime (to the microsecond)."""
    return _EPOCH + timedelta(microseconds=unix_nanoseconds // 1000)


def fill_ref(ref: task_pb2.TaskRef, target: int | str) -> None:
    """Says which task, by id or key."""
    if isinstance(target, str):
        ref.key = target
    else:
        ref.id = target


def fill_spec(message: task_pb2.TaskSpec, spec: TaskSpec, codec: Codec) -> None:
    """Puts a spec into a message.

    Raises:
        InvalidFieldError: A value has a type or range that the wire does not hold.
        PayloadError: The payload cannot be encoded.
    """
    payload = spec.payload
    if payload is not NO_PAYLOAD:
        message.payload, message.content_type = codec.encode(payload)
    try:
        _fill_often(message, spec)
        _fill_times(message, spec)
        _fill_seldom(message, spec)
    except (TypeError, ValueError) as error:
        raise InvalidFieldError(f"task of kind {spec.kind!r}: {error}") from error


def _fill_often(message: task_pb2.TaskSpec, spec: TaskSpec) -> None:
    message.kind = spec.kind
    if spec.content_type:
        message.content_type = spec.content_type
    if spec.pool:
        message.pool = spec.pool
    if spec.key:
        message.key = spec.key
    if spec.priority is not None:
        message.priority = spec.priority  # type: ignore[assignment]
    if spec.timeout is not None:
        message.timeout_s = seconds(spec.timeout)
    if spec.retry is not None:
        _fill_retry(message.retry, spec.retry)


def _fill_retry(message: task_pb2.RetryPolicy, retry: RetryPolicy) -> None:
    message.max_attempts = retry.max_attempts
    message.initial_backoff_s = seconds(retry.initial_backoff)
    message.multiplier = retry.multiplier
    message.max_backoff_s = seconds(retry.max_backoff)
    message.jitter = retry.jitter


def _fill_times(message: task_pb2.TaskSpec, spec: TaskSpec) -> None:
    if spec.deadline_in is not None:
        message.deadline_in_s = seconds(spec.deadline_in)
    if spec.deadline_at is not None:
        message.deadline_unix_ns = unix_ns(spec.deadline_at)
    if spec.start_in is not None:
        message.start_in_s = seconds(spec.start_in)
    if spec.start_at is not None:
        message.start_unix_ns = unix_ns(spec.start_at)
    if spec.delay is not None:
        message.delay_s = seconds(spec.delay)
    if spec.not_before is not None:
        message.not_before_unix_ns = unix_ns(spec.not_before)
    if spec.expires_in is not None:
        message.expires_in_s = seconds(spec.expires_in)


def _fill_seldom(message: task_pb2.TaskSpec, spec: TaskSpec) -> None:
    if spec.tolerance is not None:
        message.tolerance_s = seconds(spec.tolerance)
    if spec.on_miss is not None:
        message.on_miss = spec.on_miss  # type: ignore[assignment]
    if spec.duration_hint is not None:
        message.duration_hint_s = seconds(spec.duration_hint)
    if spec.deps:
        _fill_deps(message, spec.deps)
    if spec.resources:
        message.resources.update(spec.resources)
    if spec.tags:
        message.tags.update(spec.tags)
    if spec.labels:
        message.labels.update(spec.labels)
    if spec.tenant:
        message.tenant = spec.tenant
    if spec.trace_context:
        message.trace_context.update(spec.trace_context)


def _fill_deps(message: task_pb2.TaskSpec, deps: Sequence[Dep | HasId | int | str]) -> None:
    for dep in deps:
        edge = message.deps.add()
        if isinstance(dep, Dep):
            fill_ref(edge.target, dep.target)
            edge.cond = dep.cond  # type: ignore[assignment]
        else:
            fill_ref(edge.target, dep if isinstance(dep, int | str) else dep.id)


def fill_filter(
    message: tasks_pb2.TaskFilter | tasks_pb2.ListTasksRequest, wanted: TaskFilter
) -> None:
    """Puts a filter into a listing or bulk request, which number its fields alike."""
    message.pools.extend(wanted.pools)
    message.statuses.extend(wanted.statuses)  # type: ignore[arg-type]
    message.kinds.extend(wanted.kinds)
    message.keys.extend(wanted.keys)
    if wanted.tags:
        message.tags.update(wanted.tags)
    message.tenants.extend(wanted.tenants)
    message.schedule = wanted.schedule


def read_status(number: int) -> TaskStatus:
    """Returns the status of a number on the wire."""
    return STATUSES[number]


def read_result(message: task_pb2.TaskResult) -> TaskResult:
    """Returns a result."""
    return TaskResult(
        message.id,
        STATUSES[message.status],
        message.output if message.HasField("output") else None,
        message.content_type,
        message.message,
        message.output_available,
    )


def _maybe(message: task_pb2.TaskInfo, field: str) -> datetime | None:
    return instant_of(getattr(message, field)) if message.HasField(field) else None  # type: ignore[arg-type]


def read_progress(message: task_pb2.Progress) -> Progress:
    """Returns a progress value."""
    fraction = message.fraction if message.HasField("fraction") else None
    return Progress(message.data, fraction)


def read_info(message: task_pb2.TaskInfo) -> TaskInfo:
    """Returns a task's description."""
    return TaskInfo(
        id=message.id,
        status=STATUSES[message.status],
        pool=message.pool,
        kind=message.kind,
        key=message.key,
        attempt=message.attempt,
        max_attempts=message.max_attempts,
        created_at=_maybe(message, "created_unix_ns"),
        started_at=_maybe(message, "started_unix_ns"),
        finished_at=_maybe(message, "finished_unix_ns"),
        next_run_at=_maybe(message, "next_run_unix_ns"),
        message=message.message,
        output_available=message.output_available,
        tenant=message.tenant,
        priority=Priority(message.priority or Priority.NORMAL),
        tags=dict(message.tags),
        labels=dict(message.labels),
        progress=read_progress(message.progress) if message.HasField("progress") else None,
        waiting_for=tuple(message.waiting_for),
        schedule=message.schedule,
    )


def read_event(message: task_pb2.StatusEvent) -> StatusEvent:
    """Returns a status event."""
    return StatusEvent(
        id=message.id,
        pool=message.pool,
        key=message.key,
        status=STATUSES[message.status],
        attempt=message.attempt,
        at=instant_of(message.at_unix_ns),
        message=message.message,
        cursor=message.cursor,
        progress=read_progress(message.progress) if message.HasField("progress") else None,
    )


def _read_target(ref: task_pb2.TaskRef) -> int | str:
    return ref.key if ref.WhichOneof("ref") == "key" else ref.id


def read_spec(message: task_pb2.TaskSpec) -> TaskSpec:
    """Returns a spec as the server keeps it; the payload stays bytes."""

    def duration(field: str) -> float | None:
        return getattr(message, field) if message.HasField(field) else None  # type: ignore[arg-type]

    def instant(field: str) -> datetime | None:
        return instant_of(getattr(message, field)) if message.HasField(field) else None  # type: ignore[arg-type]

    return TaskSpec(
        kind=message.kind,
        payload=message.payload,
        content_type=message.content_type,
        pool=message.pool,
        priority=Priority(message.priority) if message.priority else None,
        key=message.key,
        deadline_in=duration("deadline_in_s"),
        deadline_at=instant("deadline_unix_ns"),
        start_in=duration("start_in_s"),
        start_at=instant("start_unix_ns"),
        tolerance=duration("tolerance_s"),
        on_miss=MissPolicy(message.on_miss) if message.on_miss else None,
        duration_hint=duration("duration_hint_s"),
        timeout=duration("timeout_s"),
        retry=_read_retry(message.retry) if message.HasField("retry") else None,
        deps=[Dep(_read_target(d.target), EdgeCond(d.cond or 1)) for d in message.deps],
        resources=dict(message.resources),
        tags=dict(message.tags),
        labels=dict(message.labels),
        tenant=message.tenant,
        trace_context=dict(message.trace_context),
        delay=duration("delay_s"),
        not_before=instant("not_before_unix_ns"),
        expires_in=duration("expires_in_s"),
    )


def _read_retry(message: task_pb2.RetryPolicy) -> RetryPolicy:
    return RetryPolicy(
        max_attempts=message.max_attempts,
        initial_backoff=message.initial_backoff_s,
        multiplier=message.multiplier,
        max_backoff=message.max_backoff_s,
        jitter=message.jitter,
    )


def read_detail(message: task_pb2.TaskDetail) -> TaskDetail:
    """Returns all that the server told about a task."""
    return TaskDetail(
        task=read_info(message.info),
        spec=read_spec(message.spec),
        attempts=[
            AttemptRecord(
                number=attempt.number,
                worker=attempt.worker,
                started_at=instant_of(attempt.started_unix_ns),
                ended_at=(
                    instant_of(attempt.ended_unix_ns) if attempt.HasField("ended_unix_ns") else None
                ),
                outcome=attempt.outcome,
                message=attempt.message,
            )
            for attempt in message.attempts
        ],
        parents=[
            ParentRecord(
                target=_read_target(parent.task),
                cond=EdgeCond(parent.cond or EdgeCond.ON_SUCCESS),
                status=STATUSES.get(parent.status),
            )
            for parent in message.parents
        ],
        children=tuple(message.children),
    )
