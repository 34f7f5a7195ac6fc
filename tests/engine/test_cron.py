"""Decides whether schedules are due when they should be, above all where clocks change.

`CRONOQ_WHOLE_SPAN=1` walks all of 2024 to 2030 in every zone and not only the days around the
changes. That takes some minutes: add `-o faulthandler_timeout=0` for quiet.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from itertools import pairwise, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cronoq_server.engine.cron import (
    LAST_INSTANT,
    Calendar,
    Fold,
    Gap,
    occurrence_key,
    trigger_key,
)
from cronoq_server.engine.model import SECOND
from tests.engine.cron_cases import (
    CALENDARS,
    DAY,
    INSTANTS,
    RULES,
    SPAN,
    ZONES,
    at,
    calendar_of,
    calls_made,
    shown,
)
from tests.engine.cron_oracle import Expression, due, match, offset_changes, unix, walk

HISTORY = {
    "America/Sao_Paulo": (unix("2015-06-01"), unix("2019-06-01")),
    "Pacific/Apia": (unix("2010-06-01"), unix("2013-01-01")),
}
EXPRESSIONS = (
    "30 2 * * *",
    "30 1 * * *",
    "*/15 * * * *",
    "0 * * * *",
    "@hourly",
    "@daily",
    "0 2 * * *",
    "0 3 * * *",
    "59 1 * * *",
    "0 0-23 * * *",
    "15,45 1-2 * * *",
    "5,25,50 0,1,2,3,23 * * MON-FRI",
    "30 2 L * *",
    "30 2 * 3,4 SUN#2",
    "30 1 1-7 * L0",
    "0 0 30,31 12 *",
    "30 */2 * * *",
    "*/20 2 * * *",
    "5 1-3/2 * * SUN",
    "* 1 * * *",
)


def windows(zone: str) -> Iterator[tuple[int, int]]:
    """Stretches of real time to walk: around each change, or everything in pieces."""
    spans = [SPAN, *([HISTORY[zone]] if zone in HISTORY else [])]
    if os.environ.get("CRONOQ_WHOLE_SPAN") == "1":
        for start, stop in spans:
            yield from (
                (piece, min(piece + 100 * DAY, stop)) for piece in range(start, stop, 100 * DAY)
            )
        return
    changes = [change for span in spans for change in offset_changes(zone, *span)]
    yield from ((change - DAY, change + DAY) for change in changes)
    yield unix("2028-02-27"), unix("2028-03-02")


@pytest.mark.regression("R24")
@pytest.mark.parametrize("zone", ZONES)
def test_due_instants_are_those_of_a_walk_through_real_time(zone: str) -> None:
    """Every expression under every rule is due at the minutes that brute force finds."""
    margin = DAY + 7200  # no known change moves the clocks by more than a day
    for start, stop in windows(zone):
        walked = walk(zone, start - margin, stop + margin)
        for text in EXPRESSIONS:
            matches = match(Expression(text), walked)
            for gap, fold in RULES:
                instants = due(matches, gap.name.lower(), fold.name.lower())
                expected = [second for second in instants if start <= second < stop]
                calendar = calendar_of(text, zone, gap, fold)
                begin, end = start * SECOND, stop * SECOND - 1
                found = calendar.between(begin, end, 10**6)
                where = f"{text} in {zone}, {gap.name}, {fold.name}, from {start}"
                assert expected == [instant // SECOND for instant in found], where
                assert len(expected) == calendar.count(begin, end), where
                assert found[-3:] == calendar.latest(begin, end, 3), where


@pytest.mark.parametrize(
    "text", ["*/20 30 2 * * *", "0,30 59 1 * * *", "*/7 */30 * * * *", "15 0 0 * * *"]
)
@pytest.mark.parametrize("zone", ["Australia/Lord_Howe", "Europe/Berlin"])
def test_leading_seconds_follow_the_same_rules(zone: str, text: str) -> None:
    """Walking second by second through one gap and one repeat finds the same instants."""
    for change in offset_changes(zone, unix("2026-01-01"), unix("2027-01-01")):
        start, stop = change - 3 * 3600, change + 4 * 3600
        walked = walk(zone, start - 3600, stop + 3600, step=1)
        matches = match(Expression(text), walked)
        for gap, fold in RULES:
            instants = due(matches, gap.name.lower(), fold.name.lower())
            found = calendar_of(text, zone, gap, fold).between(
                start * SECOND, stop * SECOND - 1, 10**6
            )
            assert [second for second in instants if start <= second < stop] == [
                instant // SECOND for instant in found
            ]


@pytest.mark.regression("R24")
@pytest.mark.parametrize(
    ("text", "zone", "gap", "fold", "after", "expected"),
    [
        pytest.param(
            "30 2 * * *",
            "America/New_York",
            Gap.RUN_AFTER,
            Fold.FIRST,
            "2026-03-07T12:00",
            ["2026-03-08T07:00:00Z", "2026-03-09T06:30:00Z"],
            id="a skipped time is due when the gap ends",
        ),
        pytest.param(
            "30 2 * * *",
            "America/New_York",
            Gap.SKIP,
            Fold.FIRST,
            "2026-03-07T12:00",
            ["2026-03-09T06:30:00Z", "2026-03-10T06:30:00Z"],
            id="a skipped time is left out",
        ),
        pytest.param(
            "0,15,30,45 2,3 * * *",
            "America/New_York",
            Gap.RUN_AFTER,
            Fold.FIRST,
            "2026-03-08T06:00",
            ["2026-03-08T07:00:00Z", "2026-03-08T07:15:00Z"],
            id="many skipped times and the one after them are due once",
        ),
        pytest.param(
            "30 1 * * *",
            "America/New_York",
            Gap.RUN_AFTER,
            Fold.FIRST,
            "2026-10-31T12:00",
            ["2026-11-01T05:30:00Z", "2026-11-02T06:30:00Z"],
            id="a repeated time is due at its first reading",
        ),
        pytest.param(
            "30 1 * * *",
            "America/New_York",
            Gap.RUN_AFTER,
            Fold.LAST,
            "2026-10-31T12:00",
            ["2026-11-01T06:30:00Z", "2026-11-02T06:30:00Z"],
            id="a repeated time is due at its last reading",
        ),
        pytest.param(
            "30 1 * * *",
            "America/New_York",
            Gap.RUN_AFTER,
            Fold.BOTH,
            "2026-10-31T12:00",
            ["2026-11-01T05:30:00Z", "2026-11-01T06:30:00Z"],
            id="a repeated time is due at both readings",
        ),
        pytest.param(
            "*/15 * * * *",
            "Europe/Berlin",
            Gap.SKIP,
            Fold.FIRST,
            "2026-10-25T00:30",
            ["2026-10-25T00:45:00Z", "2026-10-25T01:00:00Z", "2026-10-25T01:15:00Z"],
            id="steps follow real time through a repeat",
        ),
        pytest.param(
            "0 * * * *",
            "Europe/Berlin",
            Gap.RUN_AFTER,
            Fold.FIRST,
            "2026-03-28T23:30",
            ["2026-03-29T00:00:00Z", "2026-03-29T01:00:00Z", "2026-03-29T02:00:00Z"],
            id="every hour follows real time through a gap",
        ),
        pytest.param(
            "0 9 30 12 *",
            "Pacific/Apia",
            Gap.RUN_AFTER,
            Fold.FIRST,
            "2011-01-01T00:00",
            ["2011-12-30T10:00:00Z", "2012-12-29T19:00:00Z"],
            id="a day that a zone never had is made up for at its end",
        ),
        pytest.param(
            "0 0 15 10 *",
            "America/Sao_Paulo",
            Gap.RUN_AFTER,
            Fold.FIRST,
            "2017-01-01T00:00",
            ["2017-10-15T03:00:00Z", "2018-10-15T03:00:00Z"],
            id="midnight may not exist",
        ),
    ],
)
def test_clock_changes_by_example(
    text: str, zone: str, gap: Gap, fold: Fold, after: str, expected: list[str]
) -> None:
    """The rules on clock changes, one known case each."""
    calendar = calendar_of(text, zone, gap, fold)
    assert expected == shown(calendar.upcoming(at(after), len(expected)))


@pytest.mark.regression("R24")
def test_going_on_inside_the_repeated_hour_repeats_nothing() -> None:
    """Asked anew at any second of the repeated hour, a calendar answers as it did before."""
    begin, end = at("2026-10-24T23:00"), at("2026-10-25T03:00")
    for fold in Fold:
        calendar = calendar_of("10,30 2 * * *", "Europe/Berlin", fold=fold)
        instants = calendar.between(begin, end, 100)
        for restart in range(begin, end, 60 * SECOND):
            later = [instant for instant in instants if instant > restart]
            assert later == calendar.between(restart + 1, end, 100)


@pytest.mark.regression("R24")
@pytest.mark.parametrize("zone", ZONES)
def test_a_change_is_seen_from_however_far_it_is_asked(zone: str) -> None:
    """What is due on the day of a change is the same from any distance: an hour, or three days."""
    for change in offset_changes(zone, unix("2026-01-01"), unix("2027-01-01")):
        first = change - 4 * DAY
        walked = walk(zone, first - DAY - 7200, change + 2 * DAY)
        for text in ("30 2 * * SUN", "30 1 * * SUN", "15,45 1-3 * * SUN", "@daily"):
            matches = match(Expression(text), walked)
            for gap, fold in RULES:
                calendar = calendar_of(text, zone, gap, fold)
                instants = due(matches, gap.name.lower(), fold.name.lower())
                for start in range(first, change, 1_207):
                    expected = next((second for second in instants if second > start), None)
                    if expected is not None and expected < change + DAY:
                        found = calendar.next_after(start * SECOND)
                        where = f"{text} in {zone}, {gap.name}, {fold.name}, from {start}"
                        assert found == expected * SECOND, where


def test_a_calendar_ends_with_the_last_instant_of_64_bits() -> None:
    """Nothing is due that the wire could not carry, and asking for it ends."""
    calendar = calendar_of("0 0 1 1 *")
    assert shown(calendar.upcoming(at("2261-06-01"), 100)) == ["2262-01-01T00:00:00Z"]
    assert calendar.next_after(LAST_INSTANT) is None
    assert calendar_of("0 0 1 5 *").next_after(at("2262-04-01")) is None
    assert calendar_of("* * * * * *").next_after(LAST_INSTANT - SECOND) is not None


def test_a_time_that_every_change_skips_is_never_due() -> None:
    """With `skip`, a time that exists in no year to come has no next instant."""
    text, zone = "30 2 * 3 SUN#2", "America/New_York"
    assert calendar_of(text, zone, Gap.SKIP).next_after(at("2026-01-01")) is None
    assert calendar_of(text, zone, Gap.RUN_AFTER).next_after(at("2026-01-01")) is not None


@pytest.mark.regression("R25")
def test_work_is_bounded_and_does_not_grow_with_what_was_missed() -> None:
    """Previews, counts and look-backs need few calls, however dense or rare the instants are."""
    now = at("2026-06-01")
    for text, zone in product(
        ("* * * * * *", "*/15 * * * *", "30 2 * * *", "0 0 29 2 1", "0 0 29 2 *", "0 0 * 2 1#5"),
        ("UTC", "America/New_York"),
    ):
        calendar = calendar_of(text, zone)
        calendar.upcoming(now, 100)
        assert calls_made(partial(calendar.upcoming, now, 100)) < 10_000
        assert calls_made(partial(calendar.latest, at("2020-01-01"), now, 1)) < 10_000
    dense, rare, span = (
        calendar_of("* * * * * *"),
        calendar_of("0 0 * * *"),
        (at("2016-01-01"), now),
    )
    assert dense.count(*span) == (now // SECOND - unix("2016-01-01")) + 1
    assert rare.count(*span) == dense.count(*span) // DAY + 1
    assert calls_made(lambda: dense.count(*span)) <= calls_made(lambda: rare.count(*span)) < 10_000


def test_keys_name_the_instant_in_utc() -> None:
    """An occurrence is named to the second, a start by hand to the nanosecond."""
    assert occurrence_key("backup", at("2026-03-29T01:00")) == "backup@2026-03-29T01:00:00Z"
    assert trigger_key("backup", at("2026-03-29T01:00")) == "backup@2026-03-29T01:00:00.000000000Z"
    assert trigger_key("b", at("2026-03-29") + 1_000_020) == "b@2026-03-29T00:00:00.001000020Z"


@pytest.mark.regression("R24")
@given(CALENDARS, INSTANTS)
def test_instants_rise_strictly_and_miss_nothing(calendar: Calendar, after: int) -> None:
    """Each instant is later than the one before, and asking from between finds the same one."""
    instants = calendar.upcoming(after, 20)
    assert instants == sorted(set(instants))
    assert after < instants[0]
    assert instants == calendar.between(after + 1, instants[-1], 20)
    for previous, instant in pairwise(instants):
        assert instant == calendar.next_after(previous)
        assert instant == calendar.next_after(instant - 1)
        assert instant == calendar.next_after((previous + instant) // 2)


@given(CALENDARS, INSTANTS, st.integers(0, 30 * DAY * SECOND), st.integers(1, 5))
def test_counts_and_look_backs_agree_with_a_list(
    calendar: Calendar, start: int, length: int, limit: int
) -> None:
    """What arithmetic says about a range is what listing the range says."""
    end = start + length
    instants = calendar.between(start, end, 10**6)
    assert len(instants) == calendar.count(start, end)
    assert instants[-limit:] == calendar.latest(start, end, limit)
    latest = instants[-1] if instants else None
    assert latest == calendar.latest_at_or_before(end, start)


@settings(max_examples=50)
@given(CALENDARS, INSTANTS)
def test_looking_back_finds_where_looking_ahead_came_from(calendar: Calendar, after: int) -> None:
    """The latest instant before the next is the latest before now."""
    ahead = calendar.next_after(after)
    assert ahead is not None
    assert ahead == calendar.latest_at_or_before(ahead, 0)
    assert calendar.latest_at_or_before(ahead - 1, 0) == calendar.latest_at_or_before(after, 0)
