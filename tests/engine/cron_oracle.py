"""Decides by brute force when a schedule is due; shares no code with what it is held against.

It walks real time in steps of a minute (or a second), writes down what the wall clock reads at
each, and then looks at the whole list: which readings match, which wall times were never read,
which were read twice. Fields are matched by asking of each possible value whether an item of the
text allows it.
"""

from __future__ import annotations

import calendar
import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import cache
from importlib import resources
from itertools import pairwise
from zoneinfo import ZoneInfo

NAMES = {
    name: number
    for names, first in (
        ("sun mon tue wed thu fri sat", 0),
        ("jan feb mar apr may jun jul aug sep oct nov dec", 1),
    )
    for number, name in enumerate(names.split(), first)
}
HOURLY = 3600


@cache
def zone_info(name: str) -> ZoneInfo:
    """The zone of the bundled data: the machine may have other data, or none."""
    path = resources.files("tzdata").joinpath("zoneinfo", *name.split("/"))
    with path.open("rb") as compiled:
        return ZoneInfo.from_file(compiled, name)


def offset_changes(zone: str, start: int, stop: int) -> list[int]:
    """Unix seconds, to the hour, at which the zone's offset is found changed."""
    info = zone_info(zone)
    offsets = [
        (at, datetime.fromtimestamp(at, info).utcoffset()) for at in range(start, stop, HOURLY)
    ]
    return [at for (_, old), (at, new) in pairwise(offsets) if old != new]


@dataclass(frozen=True)
class Walk:
    """What a wall clock read at each step of real time, and what it never read.

    Attributes:
        readings: Unix seconds and the wall time read there.
        gaps: Unix seconds after a jump forward, and the wall times left out before.
    """

    readings: list[tuple[int, datetime]]
    gaps: list[tuple[int, list[datetime]]]


def walk(zone: str, start: int, stop: int, step: int = 60) -> Walk:
    """Walk from `start` up to `stop`, Unix seconds; wall times come without a zone."""
    info = zone_info(zone)
    readings = [
        (at, datetime.fromtimestamp(at, info).replace(tzinfo=None, fold=0))
        for at in range(start, stop, step)
    ]
    gaps = []
    for (_, before), (at, wall) in pairwise(readings):
        left_out = []
        while (before := before + timedelta(seconds=step)) < wall:
            left_out.append(before)
        if left_out:
            gaps.append((at, left_out))
    return Walk(readings, gaps)


class Expression:
    """An expression, read in the oracle's own way."""

    def __init__(self, text: str) -> None:
        hourly, daily = "0 * * * *", "0 0 * * *"
        text = {"@hourly": hourly, "@daily": daily}.get(text, text).lower()
        fields = text.split()
        second, minute, hour, self.day, month, self.weekday = ["0"] * (6 - len(fields)) + fields
        self.seconds = {value for value in range(60) if _allows(second, value, 0, 59)}
        self.minutes = {value for value in range(60) if _allows(minute, value, 0, 59)}
        self.hours = {value for value in range(24) if _allows(hour, value, 0, 23)}
        self.months = {value for value in range(1, 13) if _allows(month, value, 1, 12)}
        self.real_time = bool(set(minute + hour) & set("*/"))
        self._dates: dict[date, bool] = {}

    def matches(self, wall: datetime) -> bool:
        """Whether a wall time matches."""
        return (
            wall.minute in self.minutes
            and wall.hour in self.hours
            and wall.second in self.seconds
            and self.matches_date(wall.date())
        )

    def matches_date(self, on: date) -> bool:
        """Whether a date matches."""
        if on not in self._dates:
            self._dates[on] = on.month in self.months and self._matches_day(on)
        return self._dates[on]

    def _matches_day(self, on: date) -> bool:
        by_day = any(_is_day(item, on) for item in self.day.split(","))
        by_weekday = any(_is_weekday(item, on) for item in self.weekday.split(","))
        if self.day in ("*", "?", "*/1") or self.weekday in ("*", "?", "*/1"):
            return by_day and by_weekday
        return by_day or by_weekday


@dataclass(frozen=True)
class Matches:
    """What of a walk matches an expression.

    Attributes:
        real_time: Whether each reading counts on its own.
        readings: Unix seconds by the matching wall time that was read there, in order.
        after_gaps: Unix seconds after jumps that left out a matching wall time.
    """

    real_time: bool
    readings: dict[datetime, list[int]]
    after_gaps: list[int]


def match(expression: Expression, walked: Walk) -> Matches:
    """Hold an expression against each reading of a walk; what lies outside is not known."""
    readings: dict[datetime, list[int]] = {}
    for at, wall in walked.readings:
        if expression.matches(wall):
            readings.setdefault(wall, []).append(at)
    after_gaps = [at for at, left_out in walked.gaps if any(map(expression.matches, left_out))]
    return Matches(expression.real_time, readings, after_gaps)


def due(matches: Matches, gap: str, fold: str) -> list[int]:
    """The Unix seconds at which a schedule is due.

    Args:
        matches: What of a walk matches its expression.
        gap: `run_after` or `skip`.
        fold: `first`, `last` or `both`.
    """
    if matches.real_time:
        return sorted(at for instants in matches.readings.values() for at in instants)
    found: set[int] = set()
    for instants in matches.readings.values():
        found.update({"first": instants[:1], "last": instants[-1:], "both": instants}[fold])
    if gap == "run_after":
        found.update(matches.after_gaps)
    return sorted(found)


def _number(text: str) -> int:
    return NAMES[text] if text in NAMES else int(text)


def _allows(text: str, value: int, low: int, high: int) -> bool:
    return any(_item_allows(item, value, low, high) for item in text.split(","))


def _item_allows(item: str, value: int, low: int, high: int) -> bool:
    """Walk from the first value of the item to its last, every `step`th, around the end."""
    span, _, step = item.partition("/")
    if span == "*":
        first, last = low, high
    elif "-" in span:
        first, last = (_number(end) for end in span.split("-"))
    else:
        first = _number(span)
        last = high if step else first
    size = high - low + 1
    length = last - first if last >= first else last - first + size
    distance = (value - first) % size
    return distance <= length and distance % int(step or 1) == 0


def _is_day(item: str, on: date) -> bool:
    if item == "l":
        return on.day == calendar.monthrange(on.year, on.month)[1]
    return _item_allows("*" if item == "?" else item, on.day, 1, 31)


def _is_weekday(item: str, on: date) -> bool:
    weekday = on.isoweekday() % 7
    if item == "?":
        return True
    if "#" in item:
        wanted, _, nth = item.partition("#")
        return weekday == _number(wanted) % 7 and (on.day + 6) // 7 == int(nth)
    if re.fullmatch(r"l.+|.+l", item):
        wanted = item.removeprefix("l").removesuffix("l")
        return weekday == _number(wanted) % 7 and (on + timedelta(days=7)).month != on.month
    return _item_allows(item, weekday, 0, 6) or (
        weekday == 0 and "7" in item and _item_allows(item, 7, 0, 7)
    )


def unix(text: str) -> int:
    """Unix seconds of an ISO date or time in UTC."""
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp())
