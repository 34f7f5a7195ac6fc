"""Words of the JSON for what the engine has as numbers, and how numbers beyond 53 bits look.

JSON readers of many languages keep numbers as doubles. Ids, leases and instants do not fit, so
they are texts of digits. Callers may also send them as whole numbers up to 2**53 - 1: above that
nobody can tell whether the number arrived as it was meant.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import Annotated, Final, Literal, TypeAlias

from msgspec import Meta

from cronoq_server.api import texts
from cronoq_server.engine import (
    BulkAction,
    CatchUp,
    EdgeCondition,
    Fold,
    Gap,
    MissPolicy,
    Overlap,
    Priority,
    Status,
)

SAFE_MAX: Final = (1 << 53) - 1
"""Largest whole number that every reader of JSON keeps."""

StatusName: TypeAlias = Literal[
    "blocked",
    "scheduled",
    "ready",
    "running",
    "retrying",
    "succeeded",
    "failed",
    "dead_lettered",
    "cancelled",
    "skipped",
    "missed",
    "shed",
]
PriorityName: TypeAlias = Literal["critical", "high", "normal", "low"]
ConditionName: TypeAlias = Literal["on_success", "on_complete", "on_failure"]
MissPolicyName: TypeAlias = Literal["run_late", "skip", "fail"]
OverlapName: TypeAlias = Literal["skip", "allow", "queue", "queue_on_success"]
GapName: TypeAlias = Literal["run_after", "skip"]
FoldName: TypeAlias = Literal["first", "last", "both"]
CatchUpName: TypeAlias = Literal["latest", "none", "all"]
ActionName: TypeAlias = Literal["cancel", "retry"]


def _numbers(enum: type[IntEnum]) -> dict[str, int]:
    return {member.name.lower(): int(member) for member in enum}


STATUSES: Final = _numbers(Status)
PRIORITIES: Final = _numbers(Priority)
CONDITIONS: Final = _numbers(EdgeCondition)
MISS_POLICIES: Final = _numbers(MissPolicy)
OVERLAPS: Final = _numbers(Overlap)
GAPS: Final = _numbers(Gap)
FOLDS: Final = _numbers(Fold)
CATCH_UPS: Final = _numbers(CatchUp)
ACTIONS: Final = _numbers(BulkAction)


def _words(numbers: dict[str, int]) -> dict[int, str]:
    return {number: word for word, number in numbers.items()}


STATUS_WORDS: Final = _words(STATUSES)
PRIORITY_WORDS: Final = _words(PRIORITIES)
CONDITION_WORDS: Final = _words(CONDITIONS)
MISS_POLICY_WORDS: Final = _words(MISS_POLICIES)
OVERLAP_WORDS: Final = _words(OVERLAPS)
GAP_WORDS: Final = _words(GAPS)
FOLD_WORDS: Final = _words(FOLDS)
CATCH_UP_WORDS: Final = _words(CATCH_UPS)

Digits: TypeAlias = Annotated[str, Meta(pattern="^[0-9]{1,20}$", examples=["72057594037927937"])]
"""An id or an instant as it is told."""

Whole: TypeAlias = (
    Annotated[str, Meta(pattern="^[0-9]{1,20}$", examples=["72057594037927937"])]
    | Annotated[int, Meta(ge=0, le=SAFE_MAX)]
)
"""An id or an instant as it may be sent."""


def whole(given: Whole, field: str, most: int) -> int:
    """The number that a caller means.

    Raises:
        Refused: It is larger than it can be.
    """
    number = int(given)
    if number > most:
        raise texts.invalid(field, f"must be at most {most}, not {number}", most)
    return number


def identity(given: Whole, field: str) -> int:
    """The id of a task that a caller means.

    Raises:
        Refused: It is 0 or beyond 64 bits.
    """
    number = whole(given, field, texts.ID_MAX)
    if number == 0:
        raise texts.invalid(field, "must be above 0")
    return number


def instant(given: Whole, field: str) -> int:
    """The instant that a caller means; whether it is one is checked where all are.

    Raises:
        Refused: It is beyond 63 bits.
    """
    return whole(given, field, texts.INSTANT_MAX)


def identities(given: Iterable[Whole], field: str) -> list[int]:
    """The ids that a caller names.

    Raises:
        Refused: One of them is none.
    """
    return [identity(one, f"{field}[{index}]") for index, one in enumerate(given)]
