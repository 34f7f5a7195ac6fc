"""What must be written, and what comes back at recovery: the words engine and stores share.

A step's mutations are written all or none, before any of its effects is seen. A task's row is
written once, at submission; later changes are whole states, so that of several changes of one
task in one batch only the last is written. `blocked`, `scheduled` and `ready` are derived from
the spec and its parents, and never written.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from cronoq_server.engine.model import Instant, PastAttempt, Progress, ScheduleSpec, TaskSpec


class TaskInserted(msgspec.Struct, frozen=True, gc=False):
    """A task was admitted.

    Attributes:
        task_id: Its id; ids rise in submission order.
        created_at: Wall instant of its arrival, the base of its relative times.
        spec: Everything the caller said.
    """

    task_id: int
    created_at: Instant
    spec: TaskSpec


class StatusChanged(msgspec.Struct, frozen=True, gc=False):
    """The state of a task after a change that must survive.

    Attributes:
        task_id: Whose.
        status: `RUNNING`, `RETRYING`, a terminal status, or `READY` after a redrive (it lives
            again; where it stands is derived).
        attempt: Number of the last attempt started.
        attempts_max: Highest attempt number its budget allows.
        at: Wall instant of the change.
        started_at: Wall instant at which its last attempt started, or None.
        retry_at: Wall instant of the next attempt (`RETRYING`), else None.
        message: Why, for people.
        progress: The last progress known.
        history: The last 20 attempts that did not succeed.
        has_output: Whether an output was stored with its success.
        put_back: The task id that was drawn when it was last put back, and that no task has;
            0 = never. Whoever came before, by id or by a number of this kind, has seen its end.
    """

    task_id: int
    status: int
    attempt: int
    attempts_max: int
    at: Instant
    started_at: Instant | None = None
    retry_at: Instant | None = None
    message: str = ""
    progress: Progress | None = None
    history: tuple[PastAttempt, ...] = ()
    has_output: bool = False
    put_back: int = 0


class OutputStored(msgspec.Struct, frozen=True, gc=False):
    """The output of a successful task."""

    task_id: int
    output: bytes
    content_type: str


class TasksPruned(msgspec.Struct, frozen=True, gc=False):
    """Finished tasks that ended before this wall instant may go, at most `limit` of them.

    Attributes:
        before: Ends at or after this instant stay.
        limit: Most that go at once.
        keep: These stay however old they are: live tasks depend on them.
    """

    before: Instant
    limit: int
    keep: tuple[int, ...] = ()


class TaskDeleted(msgspec.Struct, frozen=True, gc=False):
    """A finished task is removed for good, with its output."""

    task_id: int


class StoredSchedule(msgspec.Struct, frozen=True, gc=False):
    """A schedule with everything that must survive.

    Attributes:
        spec: As it was put.
        put_at: Wall instant at which it was put (last).
        paused: Whether it creates nothing.
        processed_at: Wall instant up to which occurrences are dealt with.
        next_at: Its next occurrence; None = it never fires again.
        last_task: The last task it created; 0 = none.
        first_task: The first task created since it was put; 0 = none. Only those count for its
            chain.
        chain_broken: Whether its chain broke (overlap `queue_on_success`).
        skipped: How many occurrences were passed over, ever.
    """

    spec: ScheduleSpec
    put_at: Instant
    paused: bool = False
    processed_at: Instant = 0
    next_at: Instant | None = None
    last_task: int = 0
    first_task: int = 0
    chain_broken: bool = False
    skipped: int = 0


class ScheduleSaved(msgspec.Struct, frozen=True, gc=False):
    """A schedule was put, paused, resumed or advanced: its whole state, by name."""

    schedule: StoredSchedule


class ScheduleRemoved(msgspec.Struct, frozen=True, gc=False):
    """A schedule is no more."""

    name: str


class PoolPaused(msgspec.Struct, frozen=True, gc=False):
    """A pool was paused or resumed."""

    pool: str
    paused: bool


class ResourceResized(msgspec.Struct, frozen=True, gc=False):
    """A resource was resized at run time; holds until its configured size itself changes.

    Attributes:
        name: Which one.
        permits: Permits of a semaphore, else 0.
        rate: Nano-tokens per second of a bucket, else 0.
        burst: Whole tokens of a bucket, else 0.
        configured: What the configuration said then: (permits, rate, burst).
    """

    name: str
    permits: int
    rate: int
    burst: int
    configured: tuple[int, int, int]


Mutation: TypeAlias = (
    TaskInserted
    | StatusChanged
    | OutputStored
    | TasksPruned
    | TaskDeleted
    | ScheduleSaved
    | ScheduleRemoved
    | PoolPaused
    | ResourceResized
)


class StoredTask(msgspec.Struct, frozen=True, gc=False):
    """A task as a store holds it.

    Attributes:
        task_id: Its id.
        created_at: Wall instant of its arrival.
        spec: Its spec; the payload may be left empty where a look-up does not need it.
        change: Its last written change; None = it never ran.
        position: Position of the batch that ended it; 0 = it has not ended.
    """

    task_id: int
    created_at: Instant
    spec: TaskSpec
    change: StatusChanged | None = None
    position: int = 0


class Output(msgspec.Struct, frozen=True, gc=False):
    """A stored output, as it comes back."""

    content: bytes
    content_type: str


class RecoveredChunk(msgspec.Struct, frozen=True, gc=False):
    """One piece of what a store recovers; pieces come in any number.

    Attributes:
        live: Tasks that have not ended, in id order over all chunks.
        parents: Ended tasks that live ones depend on.
        finished: Ended tasks within retention, newest first.
        schedules: Schedules, by name.
        paused_pools: Pools that were paused.
        resized: Resources that were resized.
    """

    live: tuple[StoredTask, ...] = ()
    parents: tuple[StoredTask, ...] = ()
    finished: tuple[StoredTask, ...] = ()
    schedules: tuple[StoredSchedule, ...] = ()
    paused_pools: tuple[str, ...] = ()
    resized: tuple[ResourceResized, ...] = ()
