"""Decides what a caller is told: tasks, results, events, as plain values.

Instants are aware UTC datetimes; None means not there (yet). Ids are ints of 64 bits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

import msgspec

from .spec import Dep, EdgeCond, Priority, TaskSpec, TaskStatus


class Progress(msgspec.Struct, frozen=True):
    """What a running handler said last.

    Attributes:
        data: Bytes of the handler's own, at most 1 KiB.
        fraction: Done part, 0 to 1.
    """

    data: bytes = b""
    fraction: float | None = None


class TaskInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A task as the server sees it."""

    id: int
    status: TaskStatus
    pool: str
    kind: str
    key: str
    attempt: int
    max_attempts: int
    created_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None
    next_run_at: datetime | None
    message: str
    output_available: bool
    tenant: str
    priority: Priority
    tags: Mapping[str, str]
    labels: Mapping[str, str]
    progress: Progress | None
    waiting_for: Sequence[str]
    schedule: str


class TaskResult(msgspec.Struct, frozen=True, gc=False):
    """How a task ended.

    Attributes:
        id: The task.
        status: Terminal status.
        output: Bytes of a successful task's output; None when not asked for or not kept.
        content_type: Of the output; empty when the server does not say.
        message: Why it did not succeed.
        output_available: Whether the server has the output.
    """

    id: int
    status: TaskStatus
    output: bytes | None = None
    content_type: str = ""
    message: str = ""
    output_available: bool = False


class AttemptRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt that did not succeed."""

    number: int
    worker: str
    started_at: datetime
    ended_at: datetime | None
    outcome: str
    message: str


class ParentRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One dependency of a task and where it stands."""

    target: int | str
    cond: EdgeCond
    status: TaskStatus | None


class TaskDetail(msgspec.Struct, frozen=True, kw_only=True):
    """All that the server knows about a task. The payload in `spec` is its bytes."""

    task: TaskInfo
    spec: TaskSpec
    attempts: Sequence[AttemptRecord]
    parents: Sequence[ParentRecord]
    children: Sequence[int]


class StatusEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One change of a task's status.

    Attributes:
        cursor: Where a watch can resume after this event; empty on old servers.
    """

    id: int
    pool: str
    key: str
    status: TaskStatus
    attempt: int
    at: datetime
    message: str
    cursor: bytes
    progress: Progress | None


class BulkOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a bulk call did.

    Attributes:
        matched: Tasks that the filter found.
        changed: Tasks that were changed.
        next_after: Pass it as `after` to go on; 0 when there is no more.
        unavailable_shards: Shards that did not answer.
    """

    matched: int
    changed: int
    next_after: int
    unavailable_shards: Sequence[str]


__all__ = [
    "AttemptRecord",
    "BulkOutcome",
    "Dep",
    "ParentRecord",
    "Progress",
    "StatusEvent",
    "TaskDetail",
    "TaskInfo",
    "TaskResult",
]
