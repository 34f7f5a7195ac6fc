"""Which status follows which, and why: the one table that code, tests and docs read.

`TRANSITIONS` is data: (status, cause) → status. A change that is not in it is a bug and raises.
Every change of a task's status passes `next_status`; `docs/spec/task-lifecycle.md` is generated
from the table, and a test demands that some engine test exercises each row.
"""

from __future__ import annotations

from enum import IntEnum

from cronoq_server.engine.model import Status


class Cause(IntEnum):
    """Why a task changes its status."""

    WAITS_FOR_PARENTS = 0
    """It was admitted, or put back, with parents that have not ended."""
    WAITS_FOR_TIME = 1
    """Its parents allow it, its time has not come."""
    BECAME_READY = 2
    """Nothing but a free slot is missing."""
    STARTED = 3
    """An attempt was dispatched."""
    GIVEN_BACK = 4
    """The attempt never ran: refused by the worker, or lost on its way."""
    COMPLETED = 5
    """The handler returned."""
    WILL_RETRY = 6
    """The attempt failed and attempts are left."""
    ATTEMPTS_USED_UP = 7
    """The attempt failed and was the last one."""
    FAILED_PERMANENTLY = 8
    """The handler, or the miss policy, said that trying again is of no use."""
    CANCELLED = 9
    """A client or the worker cancelled it."""
    PARENT_IMPOSSIBLE = 10
    """A dependency can no longer be satisfied."""
    MISSED = 11
    """It expired, or its fixed start passed unserved."""
    SHED = 12
    """It was pushed out of a full queue."""


class InvariantError(AssertionError):
    """The engine contradicts itself: the leader must stop."""


def _table() -> dict[tuple[Status | None, Cause], Status]:
    pending = (Status.BLOCKED, Status.SCHEDULED, Status.READY, Status.RETRYING)
    table: dict[tuple[Status | None, Cause], Status] = {
        (None, Cause.WAITS_FOR_PARENTS): Status.BLOCKED,
        (None, Cause.WAITS_FOR_TIME): Status.SCHEDULED,
        (None, Cause.BECAME_READY): Status.READY,
        (Status.BLOCKED, Cause.WAITS_FOR_TIME): Status.SCHEDULED,
        (Status.BLOCKED, Cause.BECAME_READY): Status.READY,
        (Status.BLOCKED, Cause.PARENT_IMPOSSIBLE): Status.SKIPPED,
        (Status.SCHEDULED, Cause.BECAME_READY): Status.READY,
        (Status.RETRYING, Cause.BECAME_READY): Status.READY,
        (Status.READY, Cause.STARTED): Status.RUNNING,
        (Status.RUNNING, Cause.GIVEN_BACK): Status.READY,
        (Status.RUNNING, Cause.COMPLETED): Status.SUCCEEDED,
        (Status.RUNNING, Cause.WILL_RETRY): Status.RETRYING,
        (Status.RUNNING, Cause.ATTEMPTS_USED_UP): Status.DEAD_LETTERED,
        (Status.RUNNING, Cause.FAILED_PERMANENTLY): Status.FAILED,
        (Status.RUNNING, Cause.CANCELLED): Status.CANCELLED,
    }
    for status in pending:
        table[status, Cause.CANCELLED] = Status.CANCELLED
        table[status, Cause.SHED] = Status.SHED
    for status in (Status.BLOCKED, Status.SCHEDULED, Status.READY):
        table[status, Cause.MISSED] = Status.MISSED
        table[status, Cause.FAILED_PERMANENTLY] = Status.FAILED
    return table


TRANSITIONS = _table()

_NEXT: tuple[tuple[Status | None, ...], ...] = tuple(
    tuple(TRANSITIONS.get((Status(row) if row else None, cause)) for cause in Cause)
    for row in range(len(Status) + 1)
)


def next_status(status: int, cause: int) -> Status:
    """The status after `cause`; `status` 0 means a task that is just being admitted.

    Raises:
        InvariantError: The table has no such row.
    """
    following = _NEXT[status][cause]
    if following is None:
        raise InvariantError(f"no transition from {status} by {Cause(cause).name}")
    return following
