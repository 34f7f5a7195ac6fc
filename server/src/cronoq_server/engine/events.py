"""What can happen to the engine: everything it learns arrives as one of these values.

An event is either a caller's intent (`Submit`, `Cancel`, `Wait` …), which carries a `call`
number that the answer will name, or a fact (`WorkerJoined`, `AttemptsReported`, `Released` …).
Reads are events too, so that no reader can see what a crash could take back.

`scope` on an intent holds the pools its caller may use (None = all): a task outside of them is
answered as if it did not exist. `Submit.found` holds what the driver looked up in the store before
the event entered, for keys and parents that the engine no longer holds (`Engine.wants` names
them). Reads of tasks that only the store holds are completed after the step, by the outbox.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TypeAlias

import msgspec

from cronoq_server.engine.cron import Calendar
from cronoq_server.engine.model import (
    BulkAction,
    EngineSettings,
    Instant,
    Pairs,
    Progress,
    ScheduleSpec,
    TaskFilter,
    TaskRef,
    TaskSpec,
)
from cronoq_server.engine.mutations import StoredTask

Scope: TypeAlias = frozenset[str] | None
Found: TypeAlias = dict[TaskRef, StoredTask] | None


class SubmitMode(IntEnum):
    """How the tasks of one submit belong together."""

    ONE = 1
    """A single task; parks when its pool is full and says `wait`."""
    BATCH = 2
    """All or none; parks likewise."""
    MANY = 3
    """Each on its own; never parks."""


class Submit(msgspec.Struct, frozen=True, gc=False):
    """Tasks are handed in.

    Attributes:
        call: Number of the call that waits for the answer.
        specs: Validated specs, in the caller's order.
        mode: How they belong together.
        until: Mono instant up to which the call may be parked.
        scope: Pools the caller may use.
        found: Finished tasks that the store holds under these keys or dependency ids.
        tenant: The tenant that the caller is bound to; a task of another one is in its way, as key
            or as parent, but is never its own. None = bound to none.
    """

    call: int
    specs: list[TaskSpec]
    mode: SubmitMode
    until: Instant
    scope: Scope = None
    found: Found = None
    tenant: str | None = None


class Cancel(msgspec.Struct, frozen=True, gc=False):
    """A task shall end now."""

    call: int
    target: TaskRef
    scope: Scope = None


class Get(msgspec.Struct, frozen=True, gc=False):
    """What is known of a task; with `detail` also its attempts, parents and children."""

    call: int
    target: TaskRef
    detail: bool = False
    scope: Scope = None


class ListTasks(msgspec.Struct, frozen=True, gc=False):
    """One page of live and finished tasks in id order."""

    call: int
    filter: TaskFilter
    after: int
    limit: int
    newest_first: bool = False
    scope: Scope = None


class Redrive(msgspec.Struct, frozen=True, gc=False):
    """A task that ended without success shall run again, with a fresh budget.

    `found` holds the whole stored task, payload included, and those of its parents that have ended.
    """

    call: int
    target: TaskRef
    scope: Scope = None
    found: Found = None


class Delete(msgspec.Struct, frozen=True, gc=False):
    """A finished task shall be removed for good."""

    call: int
    target: TaskRef
    scope: Scope = None
    found: Found = None


class Bulk(msgspec.Struct, frozen=True, gc=False):
    """Something shall be done to every task that a filter lets through, one page at a time.

    Attributes:
        call: Number of the call that waits for the answer.
        filter: Which tasks.
        action: What is done to them.
        limit: Most tasks matched by this page.
        after: The page's cursor; 0 = from the beginning.
        dry_run: Whether only to count.
        scope: Pools the caller may use.
        found: For `RETRY`: the page of finished tasks, whole, in id order.
        found_next: The store's cursor behind them; 0 = there is nothing behind.
        parents: Those of their parents that have ended, by the names that they are called by.
    """

    call: int
    filter: TaskFilter
    action: BulkAction
    limit: int
    after: int = 0
    dry_run: bool = False
    scope: Scope = None
    found: tuple[StoredTask, ...] | None = None
    found_next: int = 0
    parents: Found = None


class PutSchedule(msgspec.Struct, frozen=True):
    """A schedule is put, new or in place of the one with its name.

    `calendar` was parsed at the edge, where zone data may be read.
    """

    call: int
    spec: ScheduleSpec
    calendar: Calendar
    paused: bool = False
    scope: Scope = None


class RemoveSchedule(msgspec.Struct, frozen=True, gc=False):
    """A schedule is removed; what it has created stays."""

    call: int
    name: str
    scope: Scope = None


class GetSchedule(msgspec.Struct, frozen=True, gc=False):
    """How one schedule stands."""

    call: int
    name: str
    scope: Scope = None


class ListSchedules(msgspec.Struct, frozen=True, gc=False):
    """All schedules, by name."""

    call: int
    scope: Scope = None


class PauseSchedule(msgspec.Struct, frozen=True, gc=False):
    """A schedule shall create nothing, or go on."""

    call: int
    name: str
    paused: bool
    scope: Scope = None


class TriggerSchedule(msgspec.Struct, frozen=True, gc=False):
    """One occurrence now, whatever the schedule's times."""

    call: int
    name: str
    scope: Scope = None


class BackfillSchedule(msgspec.Struct, frozen=True, gc=False):
    """The occurrences from `start` to `end` (wall, both included) shall be created."""

    call: int
    name: str
    start: Instant
    end: Instant
    dry_run: bool = False
    scope: Scope = None
    found: Found = None


class SetPoolPaused(msgspec.Struct, frozen=True, gc=False):
    """A pool shall dispatch nothing, or go on."""

    call: int
    pool: str
    paused: bool


class ResizeResource(msgspec.Struct, frozen=True, gc=False):
    """A resource shall have another size; None leaves a figure as it is.

    `rate` is in nano-tokens per second.
    """

    call: int
    name: str
    permits: int | None = None
    rate: int | None = None
    burst: int | None = None


class ListResources(msgspec.Struct, frozen=True, gc=False):
    """All resources and how much of them is out."""

    call: int


class Wait(msgspec.Struct, frozen=True, gc=False):
    """Tell the end of each of these tasks, once; then the call is over.

    `until` is a mono instant, or None for no limit of the engine's own.
    """

    call: int
    ids: tuple[int, ...]
    keys: tuple[str, ...]
    until: Instant | None
    scope: Scope = None


class Watch(msgspec.Struct, frozen=True, gc=False):
    """Publish status events from now on; named tasks that have ended are told at once."""

    call: int
    ids: tuple[int, ...] = ()
    keys: tuple[str, ...] = ()
    scope: Scope = None


class Unwatch(msgspec.Struct, frozen=True, gc=False):
    """One watch less; without any, nothing is published."""


class Forget(msgspec.Struct, frozen=True, gc=False):
    """The caller is gone: its parked submit or its wait is dropped."""

    call: int


class SnapshotQuery(msgspec.Struct, frozen=True, gc=False):
    """Counts and figures of all pools."""

    call: int
    scope: Scope = None


class ListWorkers(msgspec.Struct, frozen=True, gc=False):
    """The sessions that are connected."""

    call: int
    scope: Scope = None


class GetOutput(msgspec.Struct, frozen=True, gc=False):
    """A worker wants the output of a parent of the lease it holds."""

    call: int
    session: int | None
    lease: int
    task_id: int
    scope: Scope = None


class Resume(msgspec.Struct, frozen=True, gc=False):
    """What a worker says of the session it had: its token and the leases without receipt."""

    token: bytes
    leases: tuple[int, ...]


class WorkerJoined(msgspec.Struct, frozen=True):
    """A worker registers a session.

    Attributes:
        session: Number given by the runtime; never used twice in a leadership.
        pool: The pool it serves.
        slots: Slots it asks for.
        name: What it calls itself; identifies nothing.
        labels: Labels it has, as sorted pairs.
        kinds: Kinds it serves; empty = any.
        protocol: Version spoken on this stream, 3 or 4.
        credential: Who it authenticated as; a token adopts only under the same one.
        token: The token of the new session (v4), made by the runtime.
        sdk: What the worker's SDK calls itself.
        resume: The session it continues, if any.
    """

    session: int
    pool: str
    slots: int
    name: str
    labels: Pairs
    kinds: tuple[str, ...]
    protocol: int
    credential: str
    token: bytes
    sdk: str = ""
    resume: Resume | None = None


class WorkerLost(msgspec.Struct, frozen=True, gc=False):
    """A session's stream has ended.

    `clean` is true when the worker closed it in order, or when it can't be resumed: its leases
    fail at once. Otherwise they stay out for a full TTL.
    """

    session: int
    clean: bool


class Completed(msgspec.Struct, frozen=True, gc=False):
    """A handler's result."""

    lease: int
    output: bytes
    content_type: str


class Failed(msgspec.Struct, frozen=True, gc=False):
    """A handler's failure; `retry_after` (nanoseconds) replaces the backoff."""

    lease: int
    message: str
    permanent: bool = False
    retry_after: int | None = None


class Nacked(msgspec.Struct, frozen=True, gc=False):
    """An attempt given back unrun."""

    lease: int
    reason: str


class CancelledByWorker(msgspec.Struct, frozen=True, gc=False):
    """A handler ended as cancelled: by itself, or since it was told to."""

    lease: int


Report: TypeAlias = Completed | Failed | Nacked | CancelledByWorker


class AttemptsReported(msgspec.Struct, frozen=True, gc=False):
    """Reports from one message; `number` rises by one per session (0 for v3)."""

    session: int
    reports: list[Report]
    number: int = 0


class HeartbeatsRead(msgspec.Struct, frozen=True, gc=False):
    """A sign of life.

    Attributes:
        session: Whose.
        leases: Every lease that runs there (v4), or those that beat (v3).
        progress: (lease, progress) pairs.
        number: The beat's number (v4), 0 for v3.
        last_lease: Highest lease id the worker has read (v4), 0 for v3.
    """

    session: int
    leases: list[int]
    progress: tuple[tuple[int, Progress], ...] = ()
    number: int = 0
    last_lease: int = 0


class SlotsSet(msgspec.Struct, frozen=True, gc=False):
    """A worker changes its slots; 0 = it drains."""

    session: int
    slots: int


class Released(msgspec.Struct, frozen=True, gc=False):
    """Effects of all steps up to this number are out: their leases' clocks start now."""

    step: int


class Unsent(msgspec.Struct, frozen=True, gc=False):
    """These leases could not be handed over: the session was gone."""

    session: int
    leases: tuple[int, ...]


class Prune(msgspec.Struct, frozen=True, gc=False):
    """The store may let go of some tasks that ended before this wall instant."""

    call: int
    before: Instant
    limit: int


class ClockSet(msgspec.Struct, frozen=True, gc=False):
    """The wall clock was set back and the new time is taken."""


class DispatchStopped(msgspec.Struct, frozen=True, gc=False):
    """The server shuts down: no attempt starts any more, and schedules stand still."""


class DispatchRested(msgspec.Struct, frozen=True, gc=False):
    """Whether dispatch rests because the store is late."""

    resting: bool


class Reconfigured(msgspec.Struct, frozen=True):
    """The configuration was read again.

    Attributes:
        settings: As for a new engine; only limits and resources are taken from them.
    """

    settings: EngineSettings


class EndsRead(msgspec.Struct, frozen=True):
    """Ended tasks within retention that a recovery left for later, newest first.

    Attributes:
        tasks: Without payloads; older than all that was read before.
    """

    tasks: tuple[StoredTask, ...]


Event: TypeAlias = (
    Submit
    | Cancel
    | Get
    | ListTasks
    | Redrive
    | Delete
    | Bulk
    | PutSchedule
    | RemoveSchedule
    | GetSchedule
    | ListSchedules
    | PauseSchedule
    | TriggerSchedule
    | BackfillSchedule
    | SetPoolPaused
    | ResizeResource
    | ListResources
    | Wait
    | Watch
    | Unwatch
    | Forget
    | SnapshotQuery
    | ListWorkers
    | GetOutput
    | WorkerJoined
    | WorkerLost
    | AttemptsReported
    | HeartbeatsRead
    | SlotsSet
    | Released
    | Unsent
    | Prune
    | ClockSet
    | DispatchStopped
    | DispatchRested
    | Reconfigured
    | EndsRead
)
