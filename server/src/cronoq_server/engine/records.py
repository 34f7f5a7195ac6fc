"""What the engine keeps of each task, attempt, session, pool and schedule.

Long-lived records (`Task`, `Attempt`, `Finished`) are not tracked by the garbage collector. They
must not stay in a cycle: a task names its lease by number, an attempt its session by number, and
`State.close` cuts the rest.
"""

from __future__ import annotations

from collections import deque
from enum import IntEnum

import msgspec

from cronoq_server.engine.autoscale import Autoscaler
from cronoq_server.engine.bookings import Bookings
from cronoq_server.engine.cron import Calendar
from cronoq_server.engine.index import IdIndex
from cronoq_server.engine.model import (
    DEFAULT_RETRY,
    Instant,
    Pairs,
    PastAttempt,
    PoolSettings,
    Priority,
    Progress,
    Status,
    TaskSpec,
)
from cronoq_server.engine.mutations import StoredSchedule
from cronoq_server.engine.placement import (
    Waiting,
)
from cronoq_server.engine.policies import effective_retry
from cronoq_server.engine.quality import Quality
from cronoq_server.engine.timers import ExpiryList, Node

HISTORY_MAX = 20
"""Past attempts kept with a task."""


class Task(Waiting, gc=False, eq=False, kw_only=True):
    """A live task. Instants named `*_at` are wall time; `since` and `backoff_until` are mono.

    Attributes:
        spec: What was asked for.
        created_at: When it arrived.
        status: What it is doing.
        attempt: Number of the last attempt started; 0 = none.
        attempts_max: Highest number its budget allows.
        due_at: Not before this instant; None = at once.
        miss_at: When its fixed start counts as missed; None = it has none (any more).
        deadline_at: When it should be done.
        expires_at: When it is missed if it has not started.
        started_at: When its last attempt started.
        retry_at: When its next attempt may start, while it is retrying.
        backoff_until: The same as a mono instant.
        message: Why it is as it is.
        lease: The lease it runs under; 0 = none.
        session: The session that holds the lease.
        same_attempt: Its next start goes on with the attempt number it has.
        nacks: How often this attempt was refused.
        refusals: Sessions that are passed over since they refused it, the last one last, each with
            the mono instant up to which it is.
        unmet: Edges that do not hold yet.
        awaiting: How many of them name a key that nobody has submitted yet.
        progress: The last progress a heartbeat brought.
        history: The last attempts that did not succeed.
        expected: Expected duration in nanoseconds, fixed when it becomes ready.
        schedule: The schedule whose occurrence it is; empty = none.
        put_back: The id drawn when it was last put back; 0 = never.
        booked: The stretch of wall time booked for its fixed start, if any.
        held: Whether a slot is asked to be kept free for its fixed start.
    """

    spec: TaskSpec
    created_at: Instant
    status: int = 0
    attempt: int = 0
    attempts_max: int = 0
    due_at: Instant | None = None
    miss_at: Instant | None = None
    deadline_at: Instant | None = None
    expires_at: Instant | None = None
    started_at: Instant | None = None
    retry_at: Instant | None = None
    backoff_until: Instant = 0
    message: str = ""
    lease: int = 0
    session: int = 0
    same_attempt: bool = False
    nacks: int = 0
    refusals: tuple[tuple[int, Instant], ...] = ()
    unmet: int = 0
    awaiting: int = 0
    progress: Progress | None = None
    history: tuple[PastAttempt, ...] = ()
    expected: int = 0
    schedule: str = ""
    put_back: int = 0
    booked: tuple[Instant, Instant] | None = None
    held: bool = False

    def refused(self, session: int, until: Instant) -> None:
        """Notes that a session refused it, and is to be passed over until a mono instant."""
        others = [each for each in self.refusals if each[0] != session]
        self.refusals = (*others, (session, until))

    def avoids(self, mono: Instant) -> tuple[int, ...]:
        """The sessions that are passed over at this mono instant, the last that refused last."""
        if self.refusals:
            self.refusals = tuple(each for each in self.refusals if each[1] > mono)
        return tuple(session for session, _ in self.refusals)


class Attempt(Node, gc=False, eq=False, kw_only=True):
    """One attempt that holds a lease; it is a node of its pool's list of lease deadlines.

    Attributes:
        lease: The lease.
        task: Its task.
        started_at: Wall instant of dispatch.
        began: Mono instant of dispatch.
        released: Whether it has gone out, so that its clocks run.
        timeout: Its place in the list of timeouts, if it has one.
    """

    lease: int
    task: Task
    started_at: Instant
    began: Instant
    released: bool = False
    timeout: Timeout | None = None


class Timeout(Node, gc=False, eq=False, kw_only=True):
    """The timeout of one attempt."""

    attempt: Attempt


class Finished(msgspec.Struct, gc=False, eq=False):
    """What the engine keeps of a task that has ended; payload and spec are the store's."""

    task_id: int
    key: str
    pool: str
    status: int
    attempt: int
    finished_at: Instant
    message: str
    has_output: bool
    kept_from: Instant
    """Mono instant from which its retention counts."""
    tenant: str = ""


class Session:
    """One worker's session.

    Attributes:
        leases: Attempts it holds, by lease, in order of dispatch.
        stuck: Leases that were aborted and whose handlers may still run: each takes a slot.
        asked: Slots its worker asked for.
        granted: Slots it may use.
        connected: Whether its stream stands; without one it has no capacity.
        reports_seen: Number of the last Reports read.
        beat_seen: Number of the last heartbeat read.
    """

    __slots__ = (
        "asked",
        "beat_seen",
        "connected",
        "connected_at",
        "credential",
        "granted",
        "kinds",
        "labels",
        "leases",
        "name",
        "number",
        "pool",
        "protocol",
        "reports_seen",
        "sdk",
        "stuck",
        "token",
    )

    def __init__(
        self,
        number: int,
        pool: str,
        name: str,
        labels: Pairs,
        kinds: tuple[str, ...],
        protocol: int,
        credential: str,
        token: bytes,
        sdk: str,
        connected_at: Instant,
    ) -> None:
        self.number = number
        self.pool = pool
        self.name = name
        self.labels = labels
        self.kinds = kinds
        self.protocol = protocol
        self.credential = credential
        self.token = token
        self.sdk = sdk
        self.connected_at = connected_at
        self.asked = 0
        self.granted = 0
        self.connected = True
        self.reports_seen = 0
        self.beat_seen = 0
        self.leases: dict[int, Attempt] = {}
        self.stuck: dict[int, None] = {}

    @property
    def busy(self) -> int:
        """Slots taken, by attempts and by handlers that have not stopped yet."""
        return len(self.leases) + len(self.stuck)

    @property
    def free(self) -> int:
        """Slots that can take an attempt now."""
        return max(0, self.granted - self.busy) if self.connected else 0


class Pool:
    """One pool's counts and rules.

    Attributes:
        retry: Its retry policy, without zeros.
        arrived: Tasks that have become ready under this leadership.
        autoscaler: The signal of how many slots it wants.
        bookings: Stretches of time booked for fixed starts.
        by_class: Live tasks by priority, kept only where a full queue pushes tasks out.
        pending: Tasks that count against the queue's bound.
        pending_by_class: The same by priority.
        dispatched: Attempts started under this leadership.
        configured: Whether the configuration has it; of a pool that it no longer has, recovered
            tasks are kept and wait.
        counts: Tasks by status; of terminal ones, those that ended under this leadership.
        granted: Slots granted to connected sessions.
        mean: Learned mean run time over all kinds, nanoseconds; None = nothing learned.
        quality: How well it has been doing.
        parked: Calls that wait for room, in order of arrival.
        means: Learned mean run time by kind, nanoseconds.
    """

    __slots__ = (
        "arrived",
        "autoscaler",
        "bookings",
        "by_class",
        "configured",
        "counts",
        "dispatched",
        "granted",
        "leases",
        "mean",
        "means",
        "parked",
        "paused",
        "pending",
        "pending_by_class",
        "quality",
        "retry",
        "settings",
    )

    def __init__(self, settings: PoolSettings, leases: ExpiryList) -> None:
        self.settings = settings
        self.leases = leases
        self.retry = effective_retry(settings.retry, DEFAULT_RETRY)
        self.by_class: tuple[IdIndex, ...] = ()
        self.bookings = Bookings()
        self.quality = Quality()
        self.autoscaler = Autoscaler(settings.autoscale, settings.max, 0)
        self.arrived = 0
        self.mean: int | None = None
        self.pending = 0
        self.pending_by_class = [0] * (len(Priority) + 1)
        self.dispatched = 0
        self.counts = [0] * (len(Status) + 1)
        self.granted = 0
        self.paused = False
        self.configured = True
        self.parked: deque[int] = deque()
        self.means: dict[str, int] = {}


class Schedule:
    """A schedule at work: its stored state, and the calendar made from its expression.

    `calendar` is None when the stored expression or zone can't be read (any more): it is kept,
    shown, and never due.
    """

    __slots__ = ("calendar", "stored")

    def __init__(self, stored: StoredSchedule, calendar: Calendar | None) -> None:
        self.stored = stored
        self.calendar = calendar

    @property
    def due_at(self) -> Instant | None:
        """When it creates its next occurrence; None = not as things are."""
        stored = self.stored
        return None if stored.paused or self.calendar is None else stored.next_at


class WaitState:
    """A call that waits for the ends of tasks."""

    __slots__ = ("left", "tasks")

    def __init__(self, tasks: list[int]) -> None:
        self.tasks = tasks
        self.left = len(tasks)


class Total(IntEnum):
    """Counters that are not per status."""

    SUBMITTED = 0
    DISPATCHED = 1
    RETRIES = 2
    TIMEOUTS = 3
    LEASE_EXPIRIES = 4
    STALE_REPORTS = 5


class TimerKind(IntEnum):
    """What an entry of a timer heap is for."""

    DUE = 1
    MISS = 2
    EXPIRES = 3
    BACKOFF = 4
    AWAIT = 5
    PARK = 6
    WAIT = 7
    FORGIVE = 8
    HOLD = 9
    SCHEDULE = 10
