"""What a cron expression says: which wall-clock times it matches, in no zone at all.

Rules a change must keep:

1. Times here are wall seconds: what a calendar and a clock on the wall read, counted from
   1970-01-01 00:00:00 as if every day had 86 400 seconds. Zones come in only later.
2. croniter reads the single values, ranges, names, `L` and `#`, one at a time; it is imported
   nowhere else and is never given a zone or a date. Lists, steps and the search are ours:
   croniter's search forgets a day of month beside an `n`th weekday, reads `5-5` as "every", and
   its steps go wrong in ranges that wrap.
3. No search is without end: what can never match is refused, and what can match does so within
   40 years (29 February on a given weekday, across 2100).

The dialect is written down in docs/spec/schedules.md, rules SC-01 to SC-13.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date
from functools import lru_cache
from typing import NamedTuple

from croniter import CroniterError, croniter

from cronoq_server.engine.model import ErrorReason, Refusal

EXPRESSION_MAX = 1024
"""Longest expression, characters."""

LAST_YEAR = 2262
"""The last year in which an instant fits into 64-bit nanoseconds; no search goes further."""

DAY = 86_400

_EPOCH = date(1970, 1, 1).toordinal()
_ALIASES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_LONGEST_MONTH = (0, 31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_LAST = -1
"""Stands for "the last one" where a weekday of a month is counted."""


class _Field(NamedTuple):
    """One field of an expression: its place in croniter's order, its bounds, how to say them."""

    name: str
    place: int
    low: int
    high: int
    allowed: str
    atom: str


_SECOND = _Field("second", 5, 0, 59, "0-59", r"\d+")
_MINUTE = _Field("minute", 0, 0, 59, "0-59", r"\d+")
_HOUR = _Field("hour", 1, 0, 23, "0-23", r"\d+")
_DAY = _Field("day of month", 2, 1, 31, "1-31 or L", r"\d+")
_MONTH = _Field("month", 3, 1, 12, "1-12 or JAN-DEC", r"\d+|[a-z]{3}")
_WEEKDAY = _Field(
    "day of week",
    4,
    0,
    6,
    "0-7 or SUN-SAT (0 and 7 are Sunday), 1#1 to 1#5, L1 or 1L",
    r"\d+|[a-z]{3}",
)
_FIELDS = (_SECOND, _MINUTE, _HOUR, _DAY, _MONTH, _WEEKDAY)
"""In the order of an expression. croniter wants seconds last: `_Field.place` is its order."""

_UNRESTRICTED = frozenset({"*", "?", "*/1"})
"""Ways to leave a field open."""


class _UnreadableError(Exception):
    """An expression does not follow the dialect; the message says which part."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """The wall-clock times that one expression matches.

    Attributes:
        seconds: Matching seconds of a minute, ascending.
        minutes: Matching minutes of an hour, ascending.
        hours: Matching hours of a day, ascending.
        days: Matching days of a month, bit `d` for day `d`.
        last_day: Whether the last day of a month matches too.
        months: Matching months, ascending.
        weekdays: Matching weekdays, bit 0 for Sunday.
        nth_weekdays: Further pairs (weekday, n): the nth of a month, -1 = its last.
        by_day: Whether the day of month is restricted.
        by_weekday: Whether the day of week is restricted; if both are, either may match.
        follows_real_time: Whether the hour or minute field has a step or a `*`.
    """

    seconds: tuple[int, ...]
    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: int
    last_day: bool
    months: tuple[int, ...]
    weekdays: int
    nth_weekdays: tuple[tuple[int, int], ...]
    by_day: bool
    by_weekday: bool
    follows_real_time: bool

    def first_from(self, wall: int) -> int | None:
        """Return the first matching wall second that is not before `wall`.

        None if there is none up to the end of `LAST_YEAR`.
        """
        day, time = divmod(wall, DAY)
        if self._matches_day(day):
            later = self._time_from(time)
            if later is not None:
                return day * DAY + later
        next_day = self._day_from(day + 1)
        return None if next_day is None else next_day * DAY + self._first_time()

    def count(self, start: int, stop: int) -> int:
        """Return how many wall seconds match from `start` up to, without, `stop`.

        The cost grows with the months between them, not with the number of matches.
        """
        if stop <= start:
            return 0
        first_day, start_time = divmod(start, DAY)
        last_day, stop_time = divmod(stop, DAY)
        per_day = len(self.hours) * len(self.minutes) * len(self.seconds)
        total = per_day * self._count_days(first_day, last_day)
        if self._matches_day(first_day):
            total -= self._count_times(start_time)
        if self._matches_day(last_day):
            total += self._count_times(stop_time)
        return total

    def can_match(self) -> bool:
        """Tell whether any date matches at all."""
        # Every month has each weekday four times, and in some year five times; so only a plain day
        # of month can be out of reach.
        if self.last_day or self.by_weekday:
            return True
        return any(self.days & _days_upto(_LONGEST_MONTH[month]) for month in self.months)

    def _matches_day(self, day: int) -> bool:
        on = date.fromordinal(_EPOCH + day)
        return on.month in self.months and bool(self._days_of(on.year, on.month) >> on.day & 1)

    def _day_from(self, day: int) -> int | None:
        """The first matching day from `day` on, in days since 1970-01-01."""
        on = date.fromordinal(_EPOCH + day)
        year, from_month, from_day = on.year, on.month, on.day
        while year <= LAST_YEAR:
            for month in self.months:
                if month < from_month:
                    continue
                days = self._days_of(year, month)
                if month == from_month:
                    days &= -1 << from_day
                if days:
                    lowest = (days & -days).bit_length() - 1
                    return date(year, month, lowest).toordinal() - _EPOCH
            year, from_month, from_day = year + 1, 1, 1
        return None

    def _days_of(self, year: int, month: int) -> int:
        """The matching days of one month, bit `d` for day `d`."""
        first = date(year, month, 1).toordinal() % 7  # the weekday of the 1st, 0 = Sunday
        length = _month_length(year, month)
        by_day = self.days | (self.last_day << length)
        if not self.by_weekday:
            return by_day & _days_upto(length)
        # Seven bits for a week, repeated over the month and moved to where it begins.
        week = self.weekdays * 0b1_0000001_0000001_0000001_0000001_0000001
        by_weekday = week >> first << 1
        for weekday, nth in self.nth_weekdays:
            day = 1 + (weekday - first) % 7
            by_weekday |= 1 << (
                day + 7 * (nth - 1) if nth != _LAST else day + (length - day) // 7 * 7
            )
        days = by_weekday | by_day if self.by_day else by_weekday
        return days & _days_upto(length)

    def _count_days(self, start: int, stop: int) -> int:
        """How many days match from `start` up to, without, `stop`."""
        first, last = date.fromordinal(_EPOCH + start), date.fromordinal(_EPOCH + stop)
        total = 0
        for year in range(first.year, last.year + 1):
            for month in self.months:
                if not (first.year, first.month) <= (year, month) <= (last.year, last.month):
                    continue
                days = self._days_of(year, month)
                if (year, month) == (first.year, first.month):
                    days &= -1 << first.day
                if (year, month) == (last.year, last.month):
                    days &= ~(-1 << last.day)
                total += days.bit_count()
        return total

    def _first_time(self) -> int:
        return self.hours[0] * 3600 + self.minutes[0] * 60 + self.seconds[0]

    def _time_from(self, time: int) -> int | None:
        """The first matching second of a day that is not before `time`."""
        counted = self._count_times(time)
        hour, rest = divmod(counted, len(self.minutes) * len(self.seconds))
        if hour == len(self.hours):
            return None
        minute, second = divmod(rest, len(self.seconds))
        return self.hours[hour] * 3600 + self.minutes[minute] * 60 + self.seconds[second]

    def _count_times(self, time: int) -> int:
        """How many seconds of a matching day before second `time` match."""
        hour, minute, second = time // 3600, time // 60 % 60, time % 60
        hours = bisect_left(self.hours, hour)
        total = hours * len(self.minutes)
        if hours == len(self.hours) or self.hours[hours] != hour:
            return total * len(self.seconds)
        minutes = bisect_left(self.minutes, minute)
        total = (total + minutes) * len(self.seconds)
        if minutes == len(self.minutes) or self.minutes[minutes] != minute:
            return total
        return total + bisect_left(self.seconds, second)


def read_pattern(expression: str) -> Pattern | Refusal:
    """Read a cron expression.

    Returns:
        The pattern; or a refusal, `cron_invalid` if the expression cannot be read and
        `cron_never_fires` if no date matches it, naming the part and what it allows.
    """
    try:
        pattern = _pattern(*_split(expression))
    except _UnreadableError as unreadable:
        return Refusal(ErrorReason.CRON_INVALID, f"cron: {unreadable}", (("field", "cron"),))
    if not pattern.can_match():
        message = f"cron: {expression!r} never fires: no such day in any of its months"
        return Refusal(ErrorReason.CRON_NEVER_FIRES, message, (("field", "cron"),))
    return pattern


def _split(expression: str) -> list[str]:
    """The six fields of an expression, lower case, in the order of `_FIELDS`."""
    if len(expression) > EXPRESSION_MAX:
        raise _UnreadableError(f"at most {EXPRESSION_MAX} characters, not {len(expression)}")
    if not expression.isascii():
        raise _UnreadableError("only ASCII characters are allowed")
    text = expression.strip().lower()
    if text.startswith("@"):
        if text not in _ALIASES:
            raise _UnreadableError(f"unknown form {text!r}; allowed are {', '.join(_ALIASES)}")
        text = _ALIASES[text]
    fields = text.split()
    if len(fields) == 5:
        return ["0", *fields]
    if len(fields) == 6:
        return fields
    raise _UnreadableError(
        "5 fields are needed (minute, hour, day of month, month, day of week), "
        f"or 6 with a leading second, not {len(fields)}"
    )


def _pattern(second: str, minute: str, hour: str, day: str, month: str, weekday: str) -> Pattern:
    days, last_day = _read_days(day)
    weekdays, nth_weekdays = _read_weekdays(weekday)
    return Pattern(
        seconds=_values(_SECOND, second),
        minutes=_values(_MINUTE, minute),
        hours=_values(_HOUR, hour),
        days=days,
        last_day=last_day,
        months=_values(_MONTH, month),
        weekdays=weekdays,
        nth_weekdays=nth_weekdays,
        by_day=day not in _UNRESTRICTED,
        by_weekday=weekday not in _UNRESTRICTED,
        follows_real_time=any(sign in minute + hour for sign in "*/"),
    )


def _values(field: _Field, text: str) -> tuple[int, ...]:
    """All values of a field, ascending."""
    return tuple(sorted({value for item in text.split(",") for value in _item(field, item)}))


def _read_days(text: str) -> tuple[int, bool]:
    """The days of a month as bits, and whether its last day is among them."""
    if text == "?":
        text = "*"
    items = text.split(",")
    plain = [value for item in items if item != "l" for value in _item(_DAY, item)]
    return _bits(plain), "l" in items


def _read_weekdays(text: str) -> tuple[int, tuple[tuple[int, int], ...]]:
    """The weekdays as bits, and the pairs (weekday, n) of the nth ones of a month."""
    if text == "?":
        text = "*"
    plain: list[int] = []
    nth: list[tuple[int, int]] = []
    for item in text.split(","):
        counted = re.fullmatch(r"(\d|[a-z]{3})#([1-5])", item)
        last = re.fullmatch(r"l(\d|[a-z]{3})|(\d|[a-z]{3})l", item)
        if counted:
            nth.append((_value(_WEEKDAY, counted[1], item), int(counted[2])))
        elif last:
            nth.append((_value(_WEEKDAY, last[1] or last[2], item), _LAST))
        else:
            plain += _item(_WEEKDAY, item)
    return _bits(plain), tuple(sorted(set(nth)))


def _item(field: _Field, item: str) -> list[int]:
    """The values of one item of a list: `*`, `a`, `a-b`, each perhaps with `/step`."""
    shape = re.fullmatch(rf"(?:\*|({field.atom})(?:-({field.atom}))?)(?:/(\d+))?", item)
    if shape is None:
        raise _not_allowed(field, item)
    first, last, step = shape[1], shape[2], shape[3]
    if step is not None and int(step) == 0:
        raise _UnreadableError(f"{field.name}: the step of {item!r} must be at least 1")
    if first is None:
        values = list(range(field.low, field.high + 1))
    elif last is None and step is None:
        values = [_value(field, first, item)]
    else:
        values = _range(field, first, last or str(field.high), item)
    return values[:: int(step or 1)]


def _range(field: _Field, first: str, last: str, item: str) -> list[int]:
    """The values of a range in its own order, which may run over the end of the field."""
    low, high = _value(field, first, item), _value(field, last, item)
    if low == high and (first == last or last != "7"):
        return [low]  # and not, as croniter has it, the whole field; but 0-7 is the whole week
    return sorted(_read(field, f"{first}-{last}", item), key=lambda value: (value < low, value))


def _value(field: _Field, atom: str, item: str) -> int:
    (value,) = _read(field, atom, item)
    return value


def _read(field: _Field, text: str, item: str) -> tuple[int, ...]:
    try:
        return _ask_croniter(field, text)
    except CroniterError as error:
        raise _not_allowed(field, item) from error


@lru_cache(maxsize=4096)  # a few hundred forms make up nearly all expressions
def _ask_croniter(field: _Field, text: str) -> tuple[int, ...]:
    """What croniter reads in one value or range; it has seconds last."""
    fields = ["*"] * len(_FIELDS)
    fields[field.place] = text
    values = croniter.expand(" ".join(fields))[0][field.place]
    if values == ["*"]:
        return tuple(range(field.low, field.high + 1))
    return tuple(value for value in values if isinstance(value, int))


def _not_allowed(field: _Field, item: str) -> _UnreadableError:
    return _UnreadableError(
        f"{field.name}: {item!r} is not allowed; allowed are {field.allowed}, "
        "ranges a-b, steps /n, lists a,b and *"
    )


def _bits(values: Iterable[int]) -> int:
    return sum(1 << value for value in set(values))


def _days_upto(length: int) -> int:
    """Bits 1 to `length`."""
    return (2 << length) - 2


def _month_length(year: int, month: int) -> int:
    if month == 2 and (year % 4 != 0 or (year % 100 == 0 and year % 400 != 0)):
        return 28
    return _LONGEST_MONTH[month]
