"""When a recurring schedule is due: from a cron expression and a zone to instants.

Rules a change must keep:

1. Pure: a `Calendar` is a value, the time is always an argument. Zone data is read in `parse`.
2. The instants of a calendar rise strictly, whatever its zone's clocks do.
3. Asking costs no more after a long absence than after a short one: the work may grow with the
   months gone by, never with the occurrences in them.
4. Every range of instants includes both ends.

Rules by number are in docs/spec/schedules.md: clock changes SC-20 to SC-28, catching up SC-40 on.
This module does not know what an occurrence creates, nor what may overlap.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import IntEnum
from itertools import pairwise

from cronoq_server.engine.cron_pattern import DAY, Pattern, read_pattern
from cronoq_server.engine.model import SECOND, Duration, ErrorReason, Instant, Refusal
from cronoq_server.engine.zones import Change, Zone, load_zone

LAST_INSTANT = 2**63 - 1
"""The last instant that the wire and the stores can hold; nothing is due after it."""

_REACH = 2 * DAY
"""Seconds around an instant in which a clock change can matter to it: the largest known moves the
clocks by one day."""

_NEAREST_LOOK = 3600
"""Seconds that a search for the latest occurrences looks back at first."""


class Gap(IntEnum):
    """What becomes of wall times that a clock change skips."""

    RUN_AFTER = 1
    """They are due once, at the first instant after the change."""
    SKIP = 2
    """They are not due that day."""


class Fold(IntEnum):
    """Which readings of a wall time count that occurs twice."""

    FIRST = 1
    LAST = 2
    BOTH = 3


class CatchUp(IntEnum):
    """What becomes of occurrences that could not be created in time."""

    LATEST = 1
    """The latest is created."""
    NONE = 2
    """None is created."""
    ALL = 3
    """The latest within a window and up to a number are created."""


@dataclass(frozen=True, slots=True)
class Calendar:
    """The instants at which one expression is due in one zone.

    Attributes:
        expression: As it was given.
        pattern: The wall times it matches.
        zone: Where the wall is.
        gap: What becomes of wall times that do not exist.
        fold: What becomes of wall times that exist twice.
    """

    expression: str
    pattern: Pattern
    zone: Zone
    gap: Gap
    fold: Fold

    def next_after(self, instant: Instant) -> Instant | None:
        """Return the first due instant strictly after this one; None = never again."""
        second = self._first_from(instant // SECOND + 1)
        return None if second is None else second * SECOND

    def upcoming(self, after: Instant, count: int) -> list[Instant]:
        """Return the first `count` due instants strictly after this one; fewer if it ends."""
        return self.between(after + 1, LAST_INSTANT, count)

    def between(self, start: Instant, end: Instant, limit: int) -> list[Instant]:
        """Return the due instants from `start` to `end`, the first `limit` of them."""
        found: list[Instant] = []
        instant = self.next_after(start - 1)
        while instant is not None and instant <= end and len(found) < limit:
            found.append(instant)
            instant = self.next_after(instant)
        return found

    def latest_at_or_before(self, instant: Instant, not_before: Instant) -> Instant | None:
        """Return the last due instant from `not_before` to `instant`, or None."""
        latest = self.latest(not_before, instant, 1)
        return latest[0] if latest else None

    def latest(self, start: Instant, end: Instant, limit: int) -> list[Instant]:
        """Return the due instants from `start` to `end`, the last `limit` of them, in order.

        Looks back from `end`, twice as far each time, until enough are in sight; then narrows the
        view by halves until it holds no more than twice as many.
        """
        if limit < 1 or start > end:
            return []
        look = _NEAREST_LOOK * SECOND
        while end - look > start and self.count(end - look, end) < limit:
            look *= 2
        begin, too_late = max(start, end - look), end
        while self.count(begin, end) > 2 * limit:
            middle = (begin + too_late) // 2
            if self.count(middle, end) < limit:
                too_late = middle
            else:
                begin = middle
        return self.between(begin, end, 2 * limit)[-limit:]

    def count(self, start: Instant, end: Instant) -> int:
        """Return how many due instants there are from `start` to `end`, exactly.

        Counted by arithmetic, one stretch between two clock changes at a time.
        """
        first, stop = -(-start // SECOND), end // SECOND + 1
        if first >= stop:
            return 0
        changes = [None, *self.zone.changes_between(first - _REACH, stop + _REACH), None]
        offset = self.zone.offset_at(first - _REACH - 1)
        total = 0
        for change, following in pairwise(changes):
            if change is not None:
                offset = change.after
                if first <= change.at < stop and self._adds_instant(change):
                    total += 1
            begin, cease = self._counting_stretch(change, following, first, stop)
            total += self.pattern.count(begin + offset, cease + offset)
        return total

    def _first_from(self, second: int) -> int | None:
        """The first due Unix second that is not before `second`.

        Each round looks at the stretch of constant offset around `second`: it finds the answer in
        it, or goes on at the clock change that ends it, or, when there is neither, right before
        the next matching wall time. In what is jumped over, no wall time matches.
        """
        while second * SECOND <= LAST_INSTANT:
            change, following = self._changes_around(second)
            if change is not None and change.at == second and self._runs_after(change):
                return second
            offset = self.zone.offset_at(second)
            horizon = second + _REACH
            begin, stop = self._counting_stretch(change, following, second, horizon)
            wall = self.pattern.first_from(begin + offset)
            if wall is None:
                return None
            due = wall - offset
            if due < stop:
                return due if due * SECOND <= LAST_INSTANT else None
            if following is not None and stop < horizon:
                second = following.at
            else:
                second = max(horizon, due - _REACH)
        return None

    def _changes_around(self, second: int) -> tuple[Change | None, Change | None]:
        """The change at or before this second and the one after it, if they are in reach.

        Ahead it looks a day further: a change matters from when the wall times begin that it
        repeats.
        """
        change = following = None
        for near in self.zone.changes_between(second - _REACH, second + _REACH + DAY):
            if near.at <= second:
                change = near
            elif following is None:
                following = near
        return change, following

    def _counting_stretch(
        self, change: Change | None, following: Change | None, first: int, stop: int
    ) -> tuple[int, int]:
        """The seconds from `first` up to `stop`, between two changes, whose wall times count.

        Where a wall time occurs twice, one of the two readings does not count, by `fold`.
        """
        once = not self.pattern.follows_real_time
        if change is not None:
            repeat = change.repeated if once and self.fold is Fold.FIRST else 0
            first = max(first, change.at + repeat)
        if following is not None:
            repeat = following.repeated if once and self.fold is Fold.LAST else 0
            stop = min(stop, following.at - repeat)
        return first, stop

    def _runs_after(self, change: Change) -> bool:
        """Whether wall times that this change skipped are due at its instant."""
        if self.gap is not Gap.RUN_AFTER or self.pattern.follows_real_time or not change.skipped:
            return False
        wall = self.pattern.first_from(change.at + change.before)
        return wall is not None and wall < change.at + change.after

    def _adds_instant(self, change: Change) -> bool:
        """Whether they are, and the wall time at that instant does not match in its own right."""
        wall = change.at + change.after
        return self._runs_after(change) and self.pattern.count(wall, wall + 1) == 0


def parse(
    expression: str, zone: str = "UTC", gap: Gap = Gap.RUN_AFTER, fold: Fold = Fold.FIRST
) -> Calendar | Refusal:
    """Make the calendar of a schedule. Reads zone data: call it when a schedule is put or loaded.

    Args:
        expression: Five fields, six with leading seconds, or a form like `@hourly`.
        zone: An IANA name; empty = UTC.
        gap: What becomes of wall times that do not exist.
        fold: What becomes of wall times that exist twice.

    Returns:
        The calendar; or a refusal: `cron_invalid`, `cron_never_fires` or `zone_unknown`. An
        expression that the clock changes of its zone alone keep from ever being due again is not
        refused here: its `next_after` is None.
    """
    pattern = read_pattern(expression)
    if isinstance(pattern, Refusal):
        return pattern
    place = load_zone(zone or "UTC")
    if place is None:
        message = f"tz: {zone!r} is not the name of a time zone in the IANA database"
        return Refusal(ErrorReason.ZONE_UNKNOWN, message, (("field", "tz"),))
    return Calendar(expression, pattern, place, gap, fold)


@dataclass(frozen=True, slots=True)
class Due:
    """What a schedule has to do now.

    Attributes:
        late: Instants to create that are too late to be in time, in order.
        on_time: Instants to create in time, in order; all after the late ones.
        skipped: How many occurrences are passed over, exactly.
        processed: The instant up to which all is done with this; the next decision's base.
        next_at: The next due instant, None = never. Not after now if `on_time` was cut.
    """

    late: tuple[Instant, ...]
    on_time: tuple[Instant, ...]
    skipped: int
    processed: Instant
    next_at: Instant | None


def decide_due(
    calendar: Calendar,
    processed: Instant,
    now: Instant,
    tolerance: Duration,
    catch_up: CatchUp,
    most: int,
    window: Duration,
) -> Due:
    """Decide which occurrences since the last decision are created.

    Args:
        calendar: The schedule's calendar.
        processed: Wall instant up to which occurrences are dealt with.
        now: Wall instant; before `processed`, nothing is due.
        tolerance: How long after its instant an occurrence is still in time, nanoseconds.
        catch_up: What becomes of those that are not.
        most: Most late ones under `ALL`, and most in-time ones of one decision; at least 1.
        window: How old late ones may be under `ALL`, nanoseconds.
    """
    start = processed + 1
    in_time = max(start, now - tolerance)  # SC-40: missed once now is past instant + tolerance
    missed = calendar.count(start, in_time - 1)
    late: list[Instant] = []
    if missed and catch_up is CatchUp.LATEST:
        late = calendar.latest(start, in_time - 1, 1)
    elif missed and catch_up is CatchUp.ALL:
        late = calendar.latest(max(start, now - window), in_time - 1, most)
    on_time = calendar.between(in_time, now, most)
    done = on_time[-1] if len(on_time) == most else max(processed, now)
    return Due(tuple(late), tuple(on_time), missed - len(late), done, calendar.next_after(done))


def occurrence_key(base: str, instant: Instant) -> str:
    """Return the key of the occurrence at a whole second: `base@2026-03-29T01:00:00Z`."""
    assert instant % SECOND == 0, "occurrences fall on whole seconds"
    return f"{base}@{_utc(instant)}Z"


def trigger_key(base: str, now: Instant) -> str:
    """Return the key of a start by hand: `base@2026-03-29T01:00:00.000000001Z`.

    It always has nine digits of a second, so it is never the key of an occurrence.
    """
    return f"{base}@{_utc(now)}.{now % SECOND:09d}Z"


def _utc(instant: Instant) -> str:
    return (datetime(1970, 1, 1) + timedelta(seconds=instant // SECOND)).isoformat()
