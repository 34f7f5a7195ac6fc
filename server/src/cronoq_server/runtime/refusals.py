"""What the runtime itself refuses, and how a refusal travels to a caller.

The engine refuses with values; a caller of the runtime gets the same value as an exception.
"""

from __future__ import annotations

from cronoq_server.engine.model import ErrorReason, Refusal, TaskRef


class Refused(Exception):
    """A call was refused.

    Attributes:
        refusal: Why, as a value.
    """

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


CURSOR_UNKNOWN = Refusal(
    ErrorReason.CURSOR_UNKNOWN, "this cursor is not from here, or lies too far back"
)
NOT_LEADER = Refusal(ErrorReason.NOT_LEADER, "this server does not lead; nothing was executed")
STOPPING = Refusal(ErrorReason.STOPPING, "the server stops; nothing was executed")
STORE_LATE = Refusal(ErrorReason.STORE_UNAVAILABLE, "the store does not answer in time")
TOO_MANY = Refusal(ErrorReason.TOO_MANY_REQUESTS, "the server has too many calls waiting")
UNKNOWN_OUTCOME = Refusal(
    ErrorReason.STORE_UNAVAILABLE,
    "the store did not confirm this call; its outcome is unknown",
)
WATCH_TOO_SLOW = Refusal(ErrorReason.WATCH_TOO_SLOW, "events came faster than this watch read them")


def unreachable(error: Exception) -> Refused:
    """What a caller is told when a read finds the store out of reach."""
    return Refused(Refusal(ErrorReason.STORE_UNAVAILABLE, f"the store can't be reached: {error}"))


def task_unknown(target: TaskRef) -> Refusal:
    """What a caller is told of a task that is not there, or not for it to see."""
    # Word for word what the engine says: nobody can tell where a task was not found.
    named = f"key {target!r}" if isinstance(target, str) else f"id {target}"
    return Refusal(ErrorReason.TASK_UNKNOWN, f"no task with {named}")
