"""What may be done once a step's mutations are durable.

The driver hands effects to the outbox in step order. An effect never carries state that a crash
could undo, because nothing leaves before its commit.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TypeAlias

import msgspec

from cronoq_server.engine.model import (
    Instant,
    Pairs,
    PastAttempt,
    Progress,
    Refusal,
    TaskFilter,
    TaskRef,
    TaskSpec,
)
from cronoq_server.engine.mutations import StoredSchedule
from cronoq_server.engine.quality import Spread


class Admitted(msgspec.Struct, frozen=True, gc=False):
    """Answer to a submit.

    Attributes:
        ids: One id per spec, in order; 0 where `refusals` has an entry.
        duplicates: Indexes of those that existed before, ascending.
        refusals: (index, refusal) of those that were not admitted (mode MANY only).
    """

    ids: list[int]
    duplicates: tuple[int, ...] = ()
    refusals: tuple[tuple[int, Refusal], ...] = ()


class Done(msgspec.Struct, frozen=True, gc=False):
    """Answer to a change: whether the thing is so now."""

    changed: bool


class TaskView(msgspec.Struct, frozen=True, gc=False):
    """What a task looks like from outside (instants are wall, None = not yet)."""

    task_id: int
    spec: TaskSpec
    status: int
    attempt: int
    attempts_max: int
    created_at: Instant
    started_at: Instant | None
    finished_at: Instant | None
    message: str
    has_output: bool
    next_run_at: Instant | None = None
    progress: Progress | None = None
    waiting_for: tuple[str, ...] = ()


class ParentView(msgspec.Struct, frozen=True, gc=False):
    """A dependency and how its parent stands; status 0 = no longer known."""

    target: TaskRef
    condition: int
    status: int


class TaskDetail(msgspec.Struct, frozen=True, gc=False):
    """A task with its past attempts, its parents and its first 100 children."""

    view: TaskView
    attempts: tuple[PastAttempt, ...]
    parents: tuple[ParentView, ...]
    children: tuple[int, ...]


class Page(msgspec.Struct, frozen=True, gc=False):
    """One page of a listing; `next_after` 0 = the last one."""

    tasks: tuple[TaskView, ...]
    next_after: int


class Bulked(msgspec.Struct, frozen=True, gc=False):
    """Answer to a bulk action: one page's counts, and where the next one begins (0 = done)."""

    matched: int
    changed: int
    next_after: int


class ScheduleView(msgspec.Struct, frozen=True, gc=False):
    """How a schedule stands."""

    stored: StoredSchedule


class Triggered(msgspec.Struct, frozen=True, gc=False):
    """Answer to a trigger: the task it created."""

    task_id: int


class Backfilled(msgspec.Struct, frozen=True, gc=False):
    """Answer to a backfill.

    Attributes:
        created: How many occurrences were created (or would be, in a dry run).
        next_at: Where to go on, if the bound cut it; None = the range is done.
    """

    created: int
    next_at: Instant | None


class ResourceView(msgspec.Struct, frozen=True, gc=False):
    """One resource.

    Attributes:
        name: Its name, or `name:value` of a counter made by first use.
        kind: `semaphore` or `token_bucket`.
        permits: Size of a semaphore, else 0.
        rate: Nano-tokens per second of a bucket, else 0.
        burst: Whole tokens a bucket holds, else 0.
        held: Permits that running attempts have.
        tokens: Nano-tokens a bucket has now.
        waiting: Waiting tasks that want some.
        overridden: Whether it was resized at run time.
        per_value: Whether each value has a counter of its own.
    """

    name: str
    kind: str
    permits: int
    rate: int
    burst: int
    held: int
    tokens: int
    waiting: int
    overridden: bool
    per_value: bool


class Wanted(IntEnum):
    """What the outbox makes of a task that only the store holds."""

    VIEW = 1
    """A `TaskView`."""
    DETAIL = 2
    """A `TaskDetail` with the payload (`views.stored_detail`)."""
    CANCELLED = 3
    """`Done(whether it ended as cancelled)`."""
    OUTPUT = 4
    """A `Result` with its output, for a worker that asks for a parent's."""


class FromStore(msgspec.Struct, frozen=True, gc=False):
    """The engine does not hold this task: the outbox asks the store, after the commit.

    Not there, or in a pool outside `scope`: the call is refused with `task_unknown`.
    """

    target: TaskRef
    want: Wanted
    scope: frozenset[str] | None = None


class PartPage(msgspec.Struct, frozen=True, gc=False):
    """The live part of a page; the outbox adds the finished part (`views.merge_page`).

    Attributes:
        live: Live tasks of the page, in its order.
        live_next: Cursor behind what was looked at among live tasks; 0 = all was.
        filter: The page's filter; its pools are already cut down to what the caller may see.
        after: The page's cursor.
        limit: Most tasks of the page.
        newest_first: Its direction.
        finished: Whether the filter lets finished tasks through at all.
    """

    live: tuple[TaskView, ...]
    live_next: int
    filter: TaskFilter
    after: int
    limit: int
    newest_first: bool
    finished: bool


class Result(msgspec.Struct, frozen=True, gc=False):
    """How a task ended.

    `output` is None when the task has none, or when the outbox has to fetch it from the store
    (`fetch`).
    """

    task_id: int
    status: int
    message: str = ""
    output: bytes | None = None
    content_type: str = ""
    fetch: bool = False


class WorkerView(msgspec.Struct, frozen=True, gc=False):
    """One connected session."""

    session: int
    name: str
    pool: str
    labels: Pairs
    kinds: tuple[str, ...]
    slots: int
    busy: int
    connected_at: Instant
    sdk: str


class WorkerGroupView(msgspec.Struct, frozen=True, gc=False):
    """Sessions of one pool that carry the same labels."""

    labels: Pairs
    capacity: int
    busy: int


class PoolView(msgspec.Struct, frozen=True, gc=False):
    """Counts and figures of one pool.

    `pending_by_class` goes from critical to low, `waits` are the median, the 90th and the 99th
    percentile in seconds, `cost` is in slot-seconds, `waited`, `ran`
    and `lagged` count nanoseconds; formulas stand in `quality`.
    """

    name: str
    capacity: int
    busy: int
    stuck: int
    pending_by_class: tuple[int, ...]
    workers_connected: int
    dispatched: int
    succeeded: int
    failed: int
    groups: tuple[WorkerGroupView, ...]
    paused: bool
    oldest_ready_at: Instant | None
    held: int = 0
    desired: int = 0
    reservations: int = 0
    priority_adherence: float = 1.0
    fixed_start_hit_rate: float = 1.0
    utilization: float = 0.0
    schedule_efficiency: float = 1.0
    waits: tuple[float, float, float] = (0.0, 0.0, 0.0)
    cost: float = 0.0
    waited: Spread = Spread()
    ran: Spread = Spread()
    lagged: Spread = Spread()


class TotalsView(msgspec.Struct, frozen=True, gc=False):
    """Counts since this leadership began."""

    submitted: int
    dispatched: int
    succeeded: int
    failed: int
    dead_lettered: int
    cancelled: int
    skipped: int
    missed: int
    shed: int
    retries: int
    timeouts: int
    lease_expiries: int
    stale_completions: int


class SnapshotView(msgspec.Struct, frozen=True, gc=False):
    """Counts of all pools that the caller may see."""

    pools: tuple[PoolView, ...]
    live_tasks: int
    running: int
    pending: int
    totals: TotalsView
    workers_connected: int


Answer: TypeAlias = (
    Admitted
    | Done
    | TaskView
    | TaskDetail
    | Page
    | Result
    | FromStore
    | PartPage
    | Bulked
    | ScheduleView
    | tuple[ScheduleView, ...]
    | Triggered
    | Backfilled
    | tuple[ResourceView, ...]
    | SnapshotView
    | tuple[WorkerView, ...]
    | ResourceView
    | Refusal
)


class Reply(msgspec.Struct, frozen=True, gc=False):
    """The one answer to a call."""

    call: int
    answer: Answer


class Results(msgspec.Struct, frozen=True, gc=False):
    """Ends told to a waiting call.

    Attributes:
        call: The call that waits.
        results: Tasks that have ended.
        refusals: Named tasks that cannot be waited for.
        unknown: Named tasks that the engine does not hold: the outbox asks the store for their
            results, within `scope`; not there = refused with `task_unknown`.
        scope: Pools the caller may use (None = all).
        last: Whether the call is over; `timed_out` says that its time was.
    """

    call: int
    results: list[Result]
    refusals: tuple[tuple[TaskRef, Refusal], ...] = ()
    unknown: tuple[TaskRef, ...] = ()
    scope: frozenset[str] | None = None
    last: bool = False
    timed_out: bool = False


class Lease(msgspec.Struct, frozen=True, gc=False):
    """One attempt handed to a worker; `spec` carries payload, kind, key, tags and so on.

    `waited` says for how long the task had been ready, nanoseconds.
    """

    lease: int
    task_id: int
    attempt: int
    spec: TaskSpec
    ttl: int
    deadline_at: Instant | None = None
    progress: Progress | None = None
    parents: tuple[int, ...] = ()
    waited: int = 0


class Dispatch(msgspec.Struct, frozen=True, gc=False):
    """All leases that one session gets in one step."""

    session: int
    leases: list[Lease]


class CancelAttempt(msgspec.Struct, frozen=True, gc=False):
    """Handlers of one session that shall stop: (lease, reason)."""

    session: int
    aborts: tuple[tuple[int, str], ...]


class Receipt(msgspec.Struct, frozen=True, gc=False):
    """Up to which Reports a session's reports are durable, and which beat was read last."""

    session: int
    reports: int
    heartbeats: int


class Joined(msgspec.Struct, frozen=True, gc=False):
    """A session stands: what its worker is told first."""

    session: int
    slots: int
    lease_ttl: int
    token: bytes
    adopted: tuple[int, ...] = ()
    reports_seen: int = 0


class NotJoined(msgspec.Struct, frozen=True, gc=False):
    """A registration was refused."""

    session: int
    refusal: Refusal


class Dropped(msgspec.Struct, frozen=True, gc=False):
    """A session was replaced by its own resume: its stream must end."""

    session: int


class StatusEvent(msgspec.Struct, frozen=True, gc=False):
    """One transition, as watchers see it."""

    task_id: int
    pool: str
    key: str
    status: int
    attempt: int
    at: Instant
    message: str = ""
    progress: Progress | None = None


class Scaled(msgspec.Struct, frozen=True, gc=False):
    """A pool wants another number of slots than before."""

    pool: str
    desired: int


class Publish(msgspec.Struct, frozen=True, gc=False):
    """Transitions of this step in order, for whoever watches."""

    events: list[StatusEvent]


class Watching(msgspec.Struct, frozen=True, gc=False):
    """A watch stands.

    Attributes:
        call: The call that opened it.
        ended: Events of named tasks that had ended before.
        unknown: Named tasks that the engine does not hold: the store may know their end.
    """

    call: int
    ended: tuple[StatusEvent, ...] = ()
    unknown: tuple[TaskRef, ...] = ()


Effect: TypeAlias = (
    Reply
    | Results
    | Dispatch
    | CancelAttempt
    | Receipt
    | Joined
    | NotJoined
    | Dropped
    | Publish
    | Scaled
    | Watching
)
