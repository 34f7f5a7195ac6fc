"""The values the engine thinks in: task specs, statuses, sessions' words, refusals.

Rules a change must keep:

1. Values made per task are `msgspec.Struct(frozen, gc=False)`: a tenth of the price of a frozen
   dataclass, and invisible to the garbage collector. They hold no cycles.
2. Enum numbers are the wire's numbers, so that crossing the edge costs nothing.
3. Instants and durations are whole nanoseconds, never floats.

This module knows nothing of protobuf, SQL or of how the engine works.
"""

from __future__ import annotations

from enum import IntEnum, StrEnum
from typing import TypeAlias

import msgspec

Instant: TypeAlias = int
"""Nanoseconds. A `wall` instant is Unix time; a `mono` instant belongs to this process."""

Duration: TypeAlias = int
"""Nanoseconds, not negative."""

TaskRef: TypeAlias = int | str
"""A task named by its id (int) or by its key (str)."""

Pairs: TypeAlias = tuple[tuple[str, str], ...]
"""A small string map as sorted pairs: hashable, ordered, cheap."""

SECOND = 1_000_000_000
MILLISECOND = 1_000_000
YEAR = 366 * 86_400 * SECOND


class Now(msgspec.Struct, frozen=True, gc=False):
    """The two readings of one instant.

    Attributes:
        wall: Unix nanoseconds; the only time that is stored, sent or compared with starts,
            deadlines and cron.
        mono: Nanoseconds of a clock of this process that never goes back; drives leases,
            timeouts, backoff, aging. Never stored.
    """

    wall: Instant
    mono: Instant


class Status(IntEnum):
    """What a task is doing; the numbers are those of `cronoq.v1.TaskStatus`."""

    BLOCKED = 1
    SCHEDULED = 2
    READY = 3
    RUNNING = 4
    RETRYING = 5
    SUCCEEDED = 6
    FAILED = 7
    DEAD_LETTERED = 8
    CANCELLED = 9
    SKIPPED = 10
    MISSED = 11
    SHED = 12


FIRST_TERMINAL = 6
"""Statuses from this number on are terminal: only a redrive leaves them."""

PENDING = (Status.BLOCKED, Status.SCHEDULED, Status.READY, Status.RETRYING)
"""Statuses that count against a queue's bound."""


class Priority(IntEnum):
    """The class of a task; a lower number goes first."""

    CRITICAL = 1
    HIGH = 2
    NORMAL = 3
    LOW = 4


class EdgeCondition(IntEnum):
    """What a parent's end must be for the child to go on."""

    ON_SUCCESS = 1
    ON_COMPLETE = 2
    ON_FAILURE = 3


class MissPolicy(IntEnum):
    """What becomes of a task whose fixed start passed unserved."""

    RUN_LATE = 1
    SKIP = 2
    FAIL = 3


class Overlap(IntEnum):
    """What an occurrence does while an earlier one of its schedule is alive."""

    SKIP = 1
    """It is not created."""
    ALLOW = 2
    """It runs side by side."""
    QUEUE = 3
    """It waits for the one before, whatever that one's outcome."""
    QUEUE_ON_SUCCESS = 4
    """It waits for the one before to succeed; any other end breaks the chain."""


class BulkAction(IntEnum):
    """What is done to every task that a filter lets through."""

    CANCEL = 1
    RETRY = 2


class Overflow(StrEnum):
    """What a full queue does with a newcomer."""

    WAIT = "wait"
    REJECT = "reject"
    SHED_LOWEST = "shed_lowest"
    SHED_OLDEST = "shed_oldest"


class ErrorReason(StrEnum):
    """Why something was refused; one list for the engine, the wire and all SDKs."""

    INVALID_FIELD = "invalid_field"
    FIELD_CONFLICT = "field_conflict"
    TOO_LARGE = "too_large"
    CYCLE = "cycle"
    DUPLICATE_KEY_IN_BATCH = "duplicate_key_in_batch"
    BATCH_TOO_LARGE = "batch_too_large"
    RESOURCE_UNKNOWN = "resource_unknown"
    RESOURCE_EXCEEDS_CAPACITY = "resource_exceeds_capacity"
    CROSS_SHARD_DEPENDENCY = "cross_shard_dependency"
    CROSS_SHARD_BATCH = "cross_shard_batch"
    CROSS_SHARD_RESOURCE = "cross_shard_resource"
    CRON_INVALID = "cron_invalid"
    CRON_NEVER_FIRES = "cron_never_fires"
    ZONE_UNKNOWN = "zone_unknown"
    UNAUTHENTICATED = "unauthenticated"
    ROLE_NOT_ALLOWED = "role_not_allowed"
    POOL_NOT_ALLOWED = "pool_not_allowed"
    LABEL_NOT_ALLOWED = "label_not_allowed"
    TENANT_NOT_ALLOWED = "tenant_not_allowed"
    KEY_IN_USE = "key_in_use"
    TASK_UNKNOWN = "task_unknown"
    POOL_UNKNOWN = "pool_unknown"
    DEPENDENCY_UNKNOWN = "dependency_unknown"
    SCHEDULE_UNKNOWN = "schedule_unknown"
    RESOURCE_NOT_FOUND = "resource_not_found"
    RESERVATION_CONFLICT = "reservation_conflict"
    WRONG_SHARD = "wrong_shard"
    KEY_AMBIGUOUS = "key_ambiguous"
    DEPENDENCY_IMPOSSIBLE = "dependency_impossible"
    NOT_TERMINAL = "not_terminal"
    QUEUE_FULL = "queue_full"
    SHED_NONE = "shed_none"
    TOO_MANY_REQUESTS = "too_many_requests"
    TOO_MANY_STREAMS = "too_many_streams"
    RATE_LIMITED = "rate_limited"
    NOT_LEADER = "not_leader"
    STOPPING = "stopping"
    STORE_UNAVAILABLE = "store_unavailable"
    SHARD_UNAVAILABLE = "shard_unavailable"
    WAIT_TIMEOUT = "wait_timeout"
    WATCH_TOO_SLOW = "watch_too_slow"
    CURSOR_UNKNOWN = "cursor_unknown"
    UNSUPPORTED = "unsupported"
    IDS_EXHAUSTED = "ids_exhausted"
    INTERNAL = "internal"


class Refusal(msgspec.Struct, frozen=True):
    """A refused request, as a value: the engine never raises for bad input.

    Attributes:
        reason: The machine-readable reason.
        message: For people; names the field and the limit.
        details: Further machine-readable facts, for example the index within a batch.
    """

    reason: ErrorReason
    message: str
    details: Pairs = ()


class RetryPolicy(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """Whether and when a failed attempt is tried again. Zero means: the pool's, then the default.

    Attributes:
        max_attempts: Attempts in total, the first included.
        initial_backoff: Wait before the second attempt, nanoseconds.
        multiplier: Growth of the wait from attempt to attempt.
        max_backoff: Upper bound of the wait, nanoseconds.
        jitter: Whether the wait is drawn uniformly from zero to its value.
    """

    max_attempts: int = 0
    initial_backoff: Duration = 0
    multiplier: float = 0.0
    max_backoff: Duration = 0
    jitter: bool = True


DEFAULT_RETRY = RetryPolicy(
    max_attempts=3, initial_backoff=SECOND, multiplier=2.0, max_backoff=60 * SECOND, jitter=True
)


class Dependency(msgspec.Struct, frozen=True, gc=False):
    """An edge to a parent, by id or by key."""

    target: TaskRef
    condition: EdgeCondition = EdgeCondition.ON_SUCCESS


class TaskSpec(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """What a caller asks for, as it was said: relative times stay relative to the arrival.

    Durations are nanoseconds, `*_at` are wall instants; None means not given. Maps are sorted
    pairs.
    """

    pool: str
    kind: str
    payload: bytes = b""
    content_type: str = ""
    priority: int = 3
    key: str = ""
    deadline_in: Duration | None = None
    deadline_at: Instant | None = None
    start_in: Duration | None = None
    start_at: Instant | None = None
    tolerance: Duration | None = None
    on_miss: int = 1
    duration_hint: Duration | None = None
    timeout: Duration | None = None
    retry: RetryPolicy | None = None
    dependencies: tuple[Dependency, ...] = ()
    resources: tuple[tuple[str, int], ...] = ()
    tags: Pairs = ()
    labels: Pairs = ()
    tenant: str = ""
    trace_context: Pairs = ()
    delay: Duration | None = None
    not_before: Instant | None = None
    expires_in: Duration | None = None


class Progress(msgspec.Struct, frozen=True, gc=False):
    """How far a handler says it is: up to 1 KiB of its own bytes, and a fraction from 0 to 1."""

    content: bytes = b""
    fraction: float | None = None


class PastAttempt(msgspec.Struct, frozen=True, gc=False):
    """One ended attempt that did not succeed, kept with its task (the last 20).

    Attributes:
        number: The attempt's number, from 1.
        worker: The name the worker gave itself.
        started_at: Wall instant of dispatch.
        ended_at: Wall instant of its end.
        outcome: A word of `Outcome`.
        message: What was said about it.
    """

    number: int
    worker: str
    started_at: Instant
    ended_at: Instant
    outcome: str
    message: str


class Outcome(StrEnum):
    """How an attempt that did not succeed ended."""

    FAILED = "failed"
    FAILED_PERMANENTLY = "failed_permanently"
    CANCELLED_BY_WORKER = "cancelled_by_worker"
    CANCELLED_BY_CLIENT = "cancelled_by_client"
    TIMED_OUT = "timed_out"
    LEASE_EXPIRED = "lease_expired"
    WORKER_LOST = "worker_lost"
    REFUSED_TOO_OFTEN = "refused_too_often"
    LEADER_LOST = "leader_lost"


class TaskFilter(msgspec.Struct, frozen=True):
    """Which tasks a listing, a bulk action or a look-up concerns; an empty part allows all."""

    pools: tuple[str, ...] = ()
    statuses: tuple[int, ...] = ()
    kinds: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    tags: Pairs = ()
    tenants: tuple[str, ...] = ()
    schedule: str = ""


class ScheduleSpec(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A recurring schedule, as it was put.

    Attributes:
        name: Its name, unique within a shard.
        cron: The expression.
        zone: IANA zone in which the expression is read.
        template: What each occurrence asks for; no dependencies, no absolute times.
        overlap: A number of `Overlap`.
        gap: A number of `cron.Gap`.
        fold: A number of `cron.Fold`.
        catch_up: A number of `cron.CatchUp`.
    """

    name: str
    cron: str
    template: TaskSpec
    zone: str = "UTC"
    overlap: int = 1
    gap: int = 1
    fold: int = 1
    catch_up: int = 1


class AutoscaleSettings(msgspec.Struct, frozen=True):
    """How a pool's wanted number of slots follows its load; durations in nanoseconds."""

    min: int = 0
    target_utilization: float = 0.75
    drain_time: Duration = 30 * SECOND
    interval: Duration = SECOND
    stabilization_window: Duration = 60 * SECOND
    cooldown: Duration = 30 * SECOND
    max_step_up: int = 4
    max_step_down: int = 1


class PoolSettings(msgspec.Struct, frozen=True):
    """One pool's rules; defaults as in the configuration reference.

    Attributes:
        name: The pool's name.
        max: Most slots granted at a time; None = no bound.
        max_pending: Most pending tasks.
        overflow: What a full queue does.
        lease_ttl: How long a lease lives without a heartbeat, nanoseconds.
        retry: Retry policy of tasks that name none, or leave numbers at zero.
        default_duration: Expected duration of a kind not yet seen, nanoseconds.
        max_slots_per_worker: Most slots one session is granted; None = the server's limit.
        fair_share: Whether tenants share a class by weight.
        tenant_weights: Weight per tenant; others weigh 1.
        await_unknown_dependencies: How long a task waits for a key nobody has submitted; 0 = not.
        reservable_fraction: Share of `max` that fixed starts may book at any instant.
        max_hold: How long before a fixed start a slot is kept free for it, nanoseconds.
        autoscale: How its wanted number of slots is computed.
    """

    name: str
    max: int | None = None
    max_pending: int = 1_000_000
    overflow: Overflow = Overflow.WAIT
    lease_ttl: Duration = 30 * SECOND
    retry: RetryPolicy = DEFAULT_RETRY
    default_duration: Duration = SECOND
    max_slots_per_worker: int | None = None
    fair_share: bool = False
    tenant_weights: tuple[tuple[str, float], ...] = ()
    await_unknown_dependencies: Duration = 0
    reservable_fraction: float = 0.5
    max_hold: Duration = 10 * SECOND
    autoscale: AutoscaleSettings = AutoscaleSettings()


class ResourceSettings(msgspec.Struct, frozen=True):
    """One resource's rules: a `semaphore` has permits, a `token_bucket` rate and burst."""

    name: str
    kind: str = "semaphore"
    permits: int = 0
    rate: float = 0.0
    burst: int = 0
    per_value: bool = False


class EngineSettings(msgspec.Struct, frozen=True):
    """What the engine is told once, at its start.

    Attributes:
        pools: The pools it runs.
        resources: The resources it keeps account of.
        shard: The shard's number, or None when unsharded.
        epoch: The full epoch of this leadership.
        high_water: The highest id in any committed batch, or 0.
        max_pending_total: Bound on pending tasks over all pools.
        max_slots_per_worker: Bound on one session's slots.
        key_retention: How long a finished task answers for its key, nanoseconds.
        finished_max: How many finished tasks are remembered at most.
        max_list: Longest page of a listing.
        store_remembers: Whether the store knows finished tasks that the engine forgot.
        catch_up_max: Most missed occurrences that one schedule creates after a pause.
        catch_up_window: How old a missed occurrence may be to be created, nanoseconds.
        backfill_max: Most occurrences that one backfill creates.
    """

    pools: tuple[PoolSettings, ...]
    resources: tuple[ResourceSettings, ...] = ()
    shard: int | None = None
    epoch: int = 1
    high_water: int = 0
    max_pending_total: int = 10_000_000
    max_slots_per_worker: int = 10_000
    key_retention: Duration = 3600 * SECOND
    finished_max: int = 1_000_000
    max_list: int = 1000
    store_remembers: bool = True
    catch_up_max: int = 1000
    catch_up_window: Duration = 604_800 * SECOND
    backfill_max: int = 1000
