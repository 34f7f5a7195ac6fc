"""How instants move between engine time and what a store holds.

Every instant that a store writes has the base added, every one it reads has it taken off. This is
the one place that knows which fields of rows are instants.
"""

from __future__ import annotations

from msgspec.structs import replace

from cronoq_server.engine.model import Duration, Instant, PastAttempt, TaskSpec
from cronoq_server.engine.mutations import (
    StatusChanged,
    StoredSchedule,
    StoredTask,
    TaskInserted,
)


def _moved(at: Instant | None, by: Duration) -> Instant | None:
    return None if at is None else at + by


def shift_spec(spec: TaskSpec, by: int) -> TaskSpec:
    """A spec whose wall instants are moved by `by` nanoseconds."""
    if spec.deadline_at is None and spec.start_at is None and spec.not_before is None:
        return spec
    return replace(
        spec,
        deadline_at=_moved(spec.deadline_at, by),
        start_at=_moved(spec.start_at, by),
        not_before=_moved(spec.not_before, by),
    )


def shift_inserted(row: TaskInserted, by: int) -> TaskInserted:
    """A new task moved by `by` nanoseconds."""
    return TaskInserted(row.task_id, row.created_at + by, shift_spec(row.spec, by))


def _shift_attempt(attempt: PastAttempt, by: int) -> PastAttempt:
    return replace(attempt, started_at=attempt.started_at + by, ended_at=attempt.ended_at + by)


def shift_change(row: StatusChanged, by: int) -> StatusChanged:
    """A change moved by `by` nanoseconds."""
    return replace(
        row,
        at=row.at + by,
        started_at=_moved(row.started_at, by),
        retry_at=_moved(row.retry_at, by),
        history=tuple(_shift_attempt(attempt, by) for attempt in row.history),
    )


def shift_task(task: StoredTask, by: int) -> StoredTask:
    """A stored task moved by `by` nanoseconds."""
    return replace(
        task,
        created_at=task.created_at + by,
        spec=shift_spec(task.spec, by),
        change=None if task.change is None else shift_change(task.change, by),
    )


def shift_schedule(schedule: StoredSchedule, by: int) -> StoredSchedule:
    """A schedule moved by `by` nanoseconds; its template has no absolute times."""
    return replace(
        schedule,
        put_at=schedule.put_at + by,
        processed_at=schedule.processed_at + by,
        next_at=_moved(schedule.next_at, by),
    )
