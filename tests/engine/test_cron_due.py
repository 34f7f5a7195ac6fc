"""Decides whether a schedule that was away catches up with what it should, and counts the rest."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cronoq_server.engine.cron import Calendar, CatchUp, Due, Gap, decide_due
from cronoq_server.engine.model import SECOND
from tests.engine.cron_cases import CALENDARS, DAY, INSTANTS, at, calendar_of, calls_made, shown
from tests.engine.cron_oracle import unix

EVERY_MINUTE = calendar_of("* * * * *")
NOON = at("2026-06-01T12:00")
MINUTE = 60 * SECOND
WEEK = 7 * DAY * SECOND


def decide(
    catch_up: CatchUp,
    away: int,
    now: int = NOON,
    *,
    calendar: Calendar = EVERY_MINUTE,
    tolerance: int = SECOND,
    most: int = 1000,
    window: int = WEEK,
) -> Due:
    """The decision at `now` of a schedule that last looked `away` nanoseconds before."""
    return decide_due(calendar, now - away, now, tolerance, catch_up, most, window)


def test_an_occurrence_in_time_is_created_once() -> None:
    """At its instant it is due; having been dealt with, it is not due again."""
    due = decide(CatchUp.LATEST, MINUTE)
    assert (shown(list(due.late)), shown(list(due.on_time))) == ([], ["2026-06-01T12:00:00Z"])
    assert due == Due((), (NOON,), 0, NOON, NOON + MINUTE)
    assert decide(CatchUp.LATEST, 0).on_time == ()


@pytest.mark.parametrize(("late_by", "in_time"), [(0, True), (SECOND, True), (SECOND + 1, False)])
def test_tolerance_includes_its_last_nanosecond(late_by: int, in_time: bool) -> None:
    """An occurrence is missed when now is later than its instant plus the tolerance."""
    due = decide(CatchUp.NONE, MINUTE // 2, NOON + late_by)
    assert due.on_time == ((NOON,) if in_time else ())
    assert due.skipped == (0 if in_time else 1)


@pytest.mark.parametrize(
    ("catch_up", "late", "skipped"),
    [
        (CatchUp.LATEST, ["2026-06-01T11:59:00Z"], 8),
        (CatchUp.NONE, [], 9),
        (CatchUp.ALL, [f"2026-06-01T11:5{minute}:00Z" for minute in range(1, 10)], 0),
    ],
)
def test_each_policy_catches_up_in_its_way(
    catch_up: CatchUp, late: list[str], skipped: int
) -> None:
    """After ten minutes away nine are late and one is in time; the policy concerns the late."""
    due = decide(catch_up, 10 * MINUTE)
    assert late == shown(list(due.late))
    assert due.on_time == (NOON,)
    assert (due.skipped, due.processed, due.next_at) == (skipped, NOON, NOON + MINUTE)


def test_all_is_bounded_by_number_and_by_window() -> None:
    """Of too many, the latest are created; the older ones are counted."""
    by_number = decide(CatchUp.ALL, WEEK, most=3)
    assert shown(list(by_number.late)) == [
        "2026-06-01T11:57:00Z",
        "2026-06-01T11:58:00Z",
        "2026-06-01T11:59:00Z",
    ]
    assert by_number.skipped == 7 * 24 * 60 - 1 - 3
    by_window = decide(CatchUp.ALL, WEEK, window=2 * MINUTE)
    assert shown(list(by_window.late)) == ["2026-06-01T11:58:00Z", "2026-06-01T11:59:00Z"]
    assert by_window.skipped == 7 * 24 * 60 - 1 - 2


def test_in_time_occurrences_come_in_bounded_portions() -> None:
    """With a long tolerance one decision takes no more than its most; the next goes on there."""
    first = decide(CatchUp.LATEST, 10 * MINUTE, tolerance=DAY * SECOND, most=6)
    assert len(first.on_time) == 6
    assert first.next_at == first.on_time[-1] + MINUTE
    second = decide_due(EVERY_MINUTE, first.processed, NOON, DAY * SECOND, CatchUp.LATEST, 6, WEEK)
    assert len(second.on_time) == 4
    assert (second.processed, second.skipped) == (NOON, 0)


def test_a_clock_before_the_last_decision_makes_nothing_due() -> None:
    """Nothing is created twice when the wall clock is behind what has been dealt with."""
    due = decide(CatchUp.ALL, -10 * MINUTE)
    assert due == Due((), (), 0, NOON + 10 * MINUTE, NOON + 11 * MINUTE)


def test_a_schedule_that_ends_has_no_next() -> None:
    """A calendar without further instants yields None, not a busy one."""
    calendar = calendar_of("30 2 * 3 SUN#2", "America/New_York", Gap.SKIP)
    assert decide(CatchUp.LATEST, MINUTE, calendar=calendar).next_at is None


@pytest.mark.parametrize("catch_up", CatchUp)
def test_ten_years_away_cost_little_and_are_counted_exactly(catch_up: CatchUp) -> None:
    """The number of missed occurrences, a third of a billion, shows in the count alone."""
    every_second, now = calendar_of("* * * * * *", "Europe/Berlin"), at("2036-06-01")
    away = now - at("2026-06-01")
    decide(catch_up, away, now, calendar=every_second, most=10)
    assert calls_made(lambda: decide(catch_up, away, now, calendar=every_second, most=10)) < 5_000
    due = decide(catch_up, away, now, calendar=every_second, most=10)
    in_time = [now - SECOND, now]
    assert due.on_time == tuple(in_time)
    missed = unix("2036-06-01") - unix("2026-06-01") - len(in_time)
    assert due.skipped + len(due.late) == missed


@given(
    CALENDARS,
    INSTANTS,
    st.integers(0, 3 * DAY * SECOND),
    st.integers(0, 7200 * SECOND),
    st.sampled_from(CatchUp),
    st.integers(1, 20),
    st.integers(0, 2 * DAY * SECOND),
)
def test_decisions_agree_with_a_list_of_all_occurrences(
    calendar: Calendar,
    now: int,
    away: int,
    tolerance: int,
    catch_up: CatchUp,
    most: int,
    window: int,
) -> None:
    """Sorting a full list by hand gives the same decision."""
    occurrences = calendar.between(now - away + 1, now, 10**6)
    missed = [instant for instant in occurrences if instant + tolerance < now]
    in_time = [instant for instant in occurrences if instant + tolerance >= now][:most]
    recent = [instant for instant in missed if instant >= now - window]
    late = {CatchUp.LATEST: missed[-1:], CatchUp.NONE: [], CatchUp.ALL: recent[-most:]}[catch_up]
    due = decide_due(calendar, now - away, now, tolerance, catch_up, most, window)
    processed = in_time[-1] if len(in_time) == most else now
    assert due == Due(
        tuple(late),
        tuple(in_time),
        len(missed) - len(late),
        processed,
        calendar.next_after(processed),
    )
