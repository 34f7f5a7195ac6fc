"""Decides what a caller can say about a task.

Values only: how they travel is `_convert`'s business, whether they are allowed the server's. An
absent value means the server's or the pool's default, never a zero.
"""

from __future__ import annotations

import enum
import uuid
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Protocol

import msgspec

from .options import Seconds


class Priority(enum.IntEnum):
    """The class of a task; higher classes go first."""

    CRITICAL = 1
    HIGH = 2
    NORMAL = 3
    LOW = 4


class TaskStatus(enum.IntEnum):
    """Where a task stands. Terminal ones are left only by a retry from outside."""

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

    @property
    def is_terminal(self) -> bool:
        """True when the task has ended."""
        return self >= TaskStatus.SUCCEEDED


class EdgeCond(enum.IntEnum):
    """How a parent must end before its child may run."""

    ON_SUCCESS = 1
    ON_COMPLETE = 2
    ON_FAILURE = 3


class MissPolicy(enum.IntEnum):
    """What becomes of a task that did not start in time."""

    RUN_LATE = 1
    SKIP = 2
    FAIL = 3


class BulkAction(enum.IntEnum):
    """What `Client.bulk` does to the tasks it finds."""

    CANCEL = 1
    RETRY = 2


class Overlap(enum.IntEnum):
    """What becomes of an occurrence while the one before it is alive."""

    SKIP = 1
    ALLOW = 2
    QUEUE = 3
    QUEUE_ON_SUCCESS = 4


class Gap(enum.IntEnum):
    """When an occurrence runs whose local time does not exist that day."""

    RUN_AFTER = 1
    SKIP = 2


class Fold(enum.IntEnum):
    """When an occurrence runs whose local time comes twice that day."""

    FIRST = 1
    LAST = 2
    BOTH = 3


class CatchUp(enum.IntEnum):
    """What becomes of occurrences that could not be created in time."""

    LATEST = 1
    NONE = 2
    ALL = 3


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """When a failed attempt is followed by another. Zero takes the pool's value.

    Attributes:
        max_attempts: Attempts in total.
        initial_backoff: Backoff after the first, seconds or timedelta.
        multiplier: Growth per attempt.
        max_backoff: Upper bound, seconds or timedelta.
        jitter: Whether the delay is drawn from [0, backoff].
    """

    max_attempts: int = 0
    initial_backoff: Seconds = 0.0
    multiplier: float = 0.0
    max_backoff: Seconds = 0.0
    jitter: bool = True


class HasId(Protocol):
    """Whatever tells the id of a task: handles, results, descriptions."""

    @property
    def id(self) -> int:
        """The task's id."""


class Dep(msgspec.Struct, frozen=True):
    """A task that must end first, by id or key."""

    target: int | str
    cond: EdgeCond = EdgeCond.ON_SUCCESS


class _Nothing(enum.Enum):
    NO_PAYLOAD = "no payload"


NO_PAYLOAD: Final = _Nothing.NO_PAYLOAD
"""Stands for a task without payload; None is a payload (JSON `null`)."""


class TaskSpec(msgspec.Struct, frozen=True):
    """One task as the caller wants it. Durations are seconds or timedeltas, instants aware.

    Attributes:
        kind: Name of the handler; empty is `default`.
        payload: Value for the handler, encoded by the client's codec; bytes stay bytes.
        content_type: Overrides the codec's, for payloads that are bytes already.
        pool: Pool to run in; empty is the server's default.
        priority: Class; None is normal.
        key: Idempotency key: submitting it again returns the same task.
        deadline_in: Time within which the task should be done; raises urgency, ends nothing.
        deadline_at: The same as an instant.
        start_in: Fixed start, from now.
        start_at: Fixed start as an instant.
        tolerance: How late a fixed start may be.
        on_miss: What happens when it is later.
        duration_hint: Expected run time.
        timeout: Longest time for one attempt.
        retry: Retry policy; None is the pool's.
        deps: Tasks that must end first: handles, ids, keys or `Dep`.
        resources: Amounts of named resources, held while an attempt runs.
        tags: Free pairs, for listings and filters.
        labels: Labels that the worker must have.
        tenant: Whom the task belongs to.
        trace_context: W3C trace context of the submitter.
        delay: Not to run before this time has passed.
        not_before: Not to run before this instant.
        expires_in: Ends as missed when not started by then.
    """

    kind: str = ""
    payload: Any = NO_PAYLOAD
    content_type: str = ""
    pool: str = ""
    priority: Priority | None = None
    key: str = ""
    deadline_in: Seconds | None = None
    deadline_at: datetime | None = None
    start_in: Seconds | None = None
    start_at: datetime | None = None
    tolerance: Seconds | None = None
    on_miss: MissPolicy | None = None
    duration_hint: Seconds | None = None
    timeout: Seconds | None = None
    retry: RetryPolicy | None = None
    deps: Sequence[Dep | HasId | int | str] = ()
    resources: Mapping[str, int] | None = None
    tags: Mapping[str, str] | None = None
    labels: Mapping[str, str] | None = None
    tenant: str = ""
    trace_context: Mapping[str, str] | None = None
    delay: Seconds | None = None
    not_before: datetime | None = None
    expires_in: Seconds | None = None


class TaskFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which tasks a listing or bulk call means: all conditions must hold, empty ones hold for all.

    Attributes:
        pools: Any of these pools.
        statuses: Any of these statuses.
        kinds: Any of these kinds.
        keys: Any of these keys.
        tags: All of these pairs.
        tenants: Any of these tenants.
        schedule: Made by this schedule.
    """

    pools: Sequence[str] = ()
    statuses: Sequence[TaskStatus] = ()
    kinds: Sequence[str] = ()
    keys: Sequence[str] = ()
    tags: Mapping[str, str] | None = None
    tenants: Sequence[str] = ()
    schedule: str = ""


class ScheduleSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule as the caller wants it; putting it again under the same name replaces it.

    Attributes:
        name: Unique within a shard.
        cron: Five fields, or six with leading seconds, or `@hourly` and the like.
        template: The task of each occurrence; without dependencies and fixed times.
        tz: IANA time zone.
        overlap: What happens while the occurrence before is alive; None is `SKIP`.
        gap: Local times that do not exist; None is `RUN_AFTER`.
        fold: Local times that come twice; None is `FIRST`.
        catch_up: Occurrences that were missed; None is `LATEST`.
        paused: Whether it rests.
    """

    name: str
    cron: str
    template: TaskSpec
    tz: str = "UTC"
    overlap: Overlap | None = None
    gap: Gap | None = None
    fold: Fold | None = None
    catch_up: CatchUp | None = None
    paused: bool = False


def new_key() -> str:
    """Returns a key that nobody else has, for a submission that shall be safe to repeat."""
    return uuid.uuid4().hex
