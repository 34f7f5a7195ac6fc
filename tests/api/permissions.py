"""The cells of the permission table: which call is made about what, and how it must end.

A cell is a credential, a method and a target pool. Expectations come from the matrix that the
server itself goes by, and from which pool a call is about; nothing is written down per cell. A
transport is a way to make the calls: it gets a method's name, a token and a target, and tells how
the call ended.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from cronoq_server.api.auth import PERMISSIONS, Operation, Role
from cronoq_server.api.rpc import OPERATIONS

MINE, OTHER, NOWHERE = "mine", "other", "nowhere"
TARGETS = (MINE, OTHER, NOWHERE)
"""A pool that limited credentials may use, one that they may not, and one that is not there."""

NAMES_POOL = frozenset(
    {
        *("Submit", "SubmitBatch", "SubmitMany", "ListTasks", "Bulk", "Watch", "WatchBatches"),
        *("Work", "AddRecurring", "PausePool", "ResumePool"),
    }
)
NAMES_TASK = frozenset({"Cancel", "Retry", "Delete", "Get", "Describe", "Wait", "WaitMany"})
NAMES_SCHEDULE = frozenset(
    {
        *("GetRecurring", "RemoveRecurring", "PauseRecurring", "TriggerRecurring"),
        *("BackfillRecurring", "PreviewRecurring"),
    }
)
UNKNOWN_POOL_IS_EMPTY = frozenset({"ListTasks", "Bulk", "Watch", "WatchBatches"})
"""Methods that look for tasks in a pool: in one that is not there, they find none."""


class Credential(NamedTuple):
    """One row of the table."""

    role: Role
    is_limited: bool

    @property
    def token(self) -> str:
        """Its token; the configuration below knows it."""
        return f"token-of-{self.role}-{'limited' if self.is_limited else 'everywhere'}"


CREDENTIALS = tuple(Credential(role, limited) for role in Role for limited in (False, True))
ADMIN = Credential(Role.ADMIN, is_limited=False)

CONFIG = "[[pools]]\nname = 'mine'\n[[pools]]\nname = 'other'\n" + "".join(
    f"[[auth.tokens]]\ntoken = '{one.token}'\nrole = '{one.role}'\n"
    + ("pools = ['mine']\n" if one.is_limited else "")
    for one in CREDENTIALS
)


class Target(NamedTuple):
    """What the calls of one cell are about; in `nowhere` there is nothing.

    Attributes:
        pool: The pool.
        live: Key of a task that lives there.
        done: Key of a task that has been cancelled.
        schedule: Name of a schedule of that pool.
    """

    pool: str
    live: str
    done: str
    schedule: str


class Transport(Protocol):
    """A way to make calls."""

    async def call(self, method: str, token: str | None, target: Target) -> str:
        """Makes a call about a target and returns its reason, or OK."""
        ...


def methods() -> tuple[str, ...]:
    """The methods that the table has, those of the test clock apart."""
    return tuple(name for name in OPERATIONS if OPERATIONS[name] is not Operation.MOVE_CLOCK)


def expected(who: Credential, method: str, pool: str) -> str:
    """How a cell must end."""
    operation = OPERATIONS[method]
    if operation not in PERMISSIONS[who.role]:
        return "ROLE_NOT_ALLOWED"
    if operation is Operation.SET_RESOURCE:
        return "POOL_NOT_ALLOWED" if who.is_limited else "OK"
    hidden = pool == NOWHERE or (who.is_limited and pool == OTHER)
    if method in NAMES_POOL:
        if who.is_limited and pool != MINE:
            return "POOL_NOT_ALLOWED"
        empty = method in UNKNOWN_POOL_IS_EMPTY
        return "POOL_UNKNOWN" if hidden and not empty else "OK"
    if method in NAMES_TASK or method == "GetOutput":
        return "TASK_UNKNOWN" if hidden or method == "GetOutput" else "OK"
    if method == "RemoveRecurring":
        return "OK"  # it says that there was none
    if method in NAMES_SCHEDULE:
        return "SCHEDULE_UNKNOWN" if hidden else "OK"
    return "OK"
