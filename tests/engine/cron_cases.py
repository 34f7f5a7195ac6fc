"""What the tests of schedules share: calendars, instants, and random ones of both."""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import product

from hypothesis import strategies as st

from cronoq_server.engine.cron import Calendar, Fold, Gap, occurrence_key, parse
from cronoq_server.engine.model import SECOND
from cronoq_server.engine.zones import load_zone
from tests.engine.cron_oracle import unix

DAY = 86_400
SPAN = (unix("2024-01-01"), unix("2031-01-01"))
ZONES = (
    "Africa/Casablanca",
    "America/New_York",
    "America/Sao_Paulo",
    "Australia/Lord_Howe",
    "Europe/Berlin",
    "Europe/London",
    "Pacific/Apia",
    "UTC",
)
RULES = tuple(product(Gap, Fold))


def calendar_of(
    expression: str, zone: str = "UTC", gap: Gap = Gap.RUN_AFTER, fold: Fold = Fold.FIRST
) -> Calendar:
    """A calendar that must exist."""
    calendar = parse(expression, zone, gap, fold)
    assert isinstance(calendar, Calendar), calendar
    return calendar


def at(text: str) -> int:
    """The instant of an ISO time in UTC."""
    return unix(text) * SECOND


def shown(instants: list[int]) -> list[str]:
    """Instants as people read them."""
    return [occurrence_key("", instant)[1:] for instant in instants]


def calls_made(act: Callable[[], object]) -> int:
    """How many Python functions `act` calls: a measure of work that no machine's speed changes."""
    count = 0

    def note(_frame: object, event: str, _argument: object) -> None:
        nonlocal count
        count += event == "call"

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        act()
    finally:
        sys.setprofile(before)
    return count


MINUTES = st.sampled_from(["*", "*/5", "0", "30", "0,30", "1-3", "2-50/7", "59"])
HOURS = st.sampled_from(["*", "*/5", "0", "0,23", "1-3", "2", "0-12/4", "1,2,3"])
DAYS = st.sampled_from(["*", "L", "1-7", "*/2", "29", "15,L"])
WEEKDAYS = st.sampled_from(["*", "0", "MON-FRI", "2#2", "L5", "*/3"])
CALENDARS = st.builds(
    lambda minute, hour, day, month, weekday, zone, rules: calendar_of(
        f"{minute} {hour} {day} {month} {weekday}", zone, *rules
    ),
    MINUTES,
    HOURS,
    DAYS,
    st.sampled_from(["*", "*/3", "3,10", "4,11"]),
    WEEKDAYS,
    st.sampled_from(ZONES),
    st.sampled_from(RULES),
)
NEAR_CHANGES = st.builds(
    lambda change, distance: change * SECOND + distance,
    st.sampled_from(
        [
            change.at
            for zone in map(load_zone, ZONES)
            if zone is not None
            for change in zone.changes_between(*SPAN)
        ]
    ),
    st.integers(-DAY * SECOND, DAY * SECOND),
)
INSTANTS = st.integers(SPAN[0] * SECOND, SPAN[1] * SECOND) | NEAR_CHANGES
