"""Decides whether expressions are read as the dialect says, and refused where it says so."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from croniter import croniter

from cronoq_server.engine.cron import Calendar, parse
from cronoq_server.engine.cron_pattern import DAY, LAST_YEAR, Pattern, read_pattern
from cronoq_server.engine.model import SECOND, ErrorReason, Refusal
from tests.engine.cron_oracle import Expression, unix

FIFTH_MONDAYS_OF_FEBRUARY = "0 0 * 2 1#5"


def pattern_of(expression: str) -> Pattern:
    """A pattern that must be readable."""
    pattern = read_pattern(expression)
    assert isinstance(pattern, Pattern), pattern
    return pattern


def refusal_of(expression: str) -> Refusal:
    """The refusal of an expression that must be refused."""
    refusal = read_pattern(expression)
    assert isinstance(refusal, Refusal), refusal
    return refusal


def walls(expression: str, start: str, count: int) -> list[str]:
    """The next wall times from an ISO date on."""
    pattern, wall, found = pattern_of(expression), unix(start), []
    for _ in range(count):
        first = pattern.first_from(wall)
        if first is None:
            break
        found.append(datetime.fromtimestamp(first, UTC).strftime("%Y-%m-%d %H:%M:%S"))
        wall = first + 1
    return found


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("5 4 * * *", ["2026-01-01 04:05:00", "2026-01-02 04:05:00"]),
        ("15 5 4 * * *", ["2026-01-01 04:05:15", "2026-01-02 04:05:15"]),
        ("*/30 * * * * *", ["2026-01-01 00:00:00", "2026-01-01 00:00:30"]),
        ("0 0 1 JAN,jul *", ["2026-01-01 00:00:00", "2026-07-01 00:00:00"]),
        ("0 12 * * MON-WED", ["2026-01-05 12:00:00", "2026-01-06 12:00:00"]),
        ("0 12 * * 7", ["2026-01-04 12:00:00", "2026-01-11 12:00:00"]),
        ("0 0 * * FRI-MON", ["2026-01-02 00:00:00", "2026-01-03 00:00:00"]),
        ("0 22-2/3 * * *", ["2026-01-01 01:00:00", "2026-01-01 22:00:00"]),
        ("0 0 5-5 * *", ["2026-01-05 00:00:00", "2026-02-05 00:00:00"]),
        ("0 0 L 2 *", ["2026-02-28 00:00:00", "2027-02-28 00:00:00"]),
        ("0 0 29 2 *", ["2028-02-29 00:00:00", "2032-02-29 00:00:00"]),
        ("0 0 * * 2#1", ["2026-01-06 00:00:00", "2026-02-03 00:00:00"]),
        ("0 0 * * FRI#5", ["2026-01-30 00:00:00", "2026-05-29 00:00:00"]),
        ("0 0 * * L5", ["2026-01-30 00:00:00", "2026-02-27 00:00:00"]),
        ("0 0 * * 5L", ["2026-01-30 00:00:00", "2026-02-27 00:00:00"]),
        ("0 0 * * FRIL", ["2026-01-30 00:00:00", "2026-02-27 00:00:00"]),
        ("0 0 13 * FRI", ["2026-01-02 00:00:00", "2026-01-09 00:00:00", "2026-01-13 00:00:00"]),
        ("0 0 L * 1#1", ["2026-01-05 00:00:00", "2026-01-31 00:00:00"]),
        ("0 0 ? * 1", ["2026-01-05 00:00:00", "2026-01-12 00:00:00"]),
        ("0 0 */1 * 1", ["2026-01-05 00:00:00", "2026-01-12 00:00:00"]),
        ("0 0 1-31 * 1", ["2026-01-01 00:00:00", "2026-01-02 00:00:00"]),
        ("59/15 * * * *", ["2026-01-01 00:59:00", "2026-01-01 01:59:00"]),
        ("0 0 29 2 1", ["2026-02-02 00:00:00", "2026-02-09 00:00:00"]),
        (FIFTH_MONDAYS_OF_FEBRUARY, ["2044-02-29 00:00:00", "2072-02-29 00:00:00"]),
        ("@hourly", ["2026-01-01 00:00:00", "2026-01-01 01:00:00"]),
        ("@midnight", ["2026-01-01 00:00:00", "2026-01-02 00:00:00"]),
        ("@weekly", ["2026-01-04 00:00:00", "2026-01-11 00:00:00"]),
        ("@MONTHLY", ["2026-01-01 00:00:00", "2026-02-01 00:00:00"]),
        (" @yearly ", ["2026-01-01 00:00:00", "2027-01-01 00:00:00"]),
    ],
)
def test_expression_is_read(expression: str, expected: list[str]) -> None:
    """Each form of the dialect matches the wall times it should."""
    assert expected == walls(expression, "2026-01-01", len(expected))


@pytest.mark.parametrize(
    ("expression", "part", "allowed"),
    [
        ("60 * * * *", "minute: '60'", "0-59"),
        ("60 0 0 * * *", "second: '60'", "0-59"),
        ("0 24 * * *", "hour: '24'", "0-23"),
        ("0 0 0 * *", "day of month: '0'", "1-31"),
        ("0 0 1,32 * *", "day of month: '32'", "1-31"),
        ("0 0 15W * *", "day of month: '15w'", "1-31"),
        ("0 0 L-3 * *", "day of month: 'l-3'", "1-31 or L"),
        ("0 0 * 13 *", "month: '13'", "1-12 or JAN-DEC"),
        ("0 0 * FOO *", "month: 'foo'", "JAN-DEC"),
        ("0 0 * * 8", "day of week: '8'", "0-7 or SUN-SAT"),
        ("0 0 * * 1#6", "day of week: '1#6'", "1#1 to 1#5"),
        ("0 0 * * L", "day of week: 'l'", "L1 or 1L"),
        ("0 0 * * FOOL", "day of week: 'fool'", "SUN-SAT"),
        ("MON * * * *", "minute: 'mon'", "0-59"),
        ("-5 * * * *", "minute: '-5'", "0-59"),
        ("H * * * *", "minute: 'h'", "0-59"),
        ("? * * * *", "minute: '?'", "0-59"),
        ("1,,2 * * * *", "minute: ''", "0-59"),
        ("1-2-3 * * * *", "minute: '1-2-3'", "0-59"),
        ("*/0 * * * *", "minute", "at least 1"),
        ("0 0 * *", "5 fields", "not 4"),
        ("0 0 0 1 1 * 2026", "5 fields", "not 7"),
        ("", "5 fields", "not 0"),
        ("@reboot", "'@reboot'", "@hourly"),
        ("0 0 1 *\u00a0*", "ASCII", "ASCII"),
        ("0," * 600 + "0 * * * *", "characters", "1024"),
    ],
)
def test_unreadable_expression_is_refused_with_the_part_and_its_range(
    expression: str, part: str, allowed: str
) -> None:
    """A refusal says which part is wrong and what that part allows."""
    refusal = refusal_of(expression)
    assert refusal.reason is ErrorReason.CRON_INVALID
    assert part in refusal.message
    assert allowed in refusal.message


@pytest.mark.regression("R25")
@pytest.mark.parametrize(
    "expression", ["0 0 31 4 *", "0 0 30 2 *", "0 0 30,31 FEB *", "0 0 31 2,4,6,9,11 ?"]
)
def test_expression_without_any_date_is_refused(expression: str) -> None:
    """A day that none of its months has is refused at once, by its own reason."""
    assert refusal_of(expression).reason is ErrorReason.CRON_NEVER_FIRES


@pytest.mark.parametrize("expression", ["0 0 31 4 1", "0 0 L 2 *", "0 0 31 4,5 *", "0 0 * 2 1#5"])
def test_expression_with_a_rare_date_is_kept(expression: str) -> None:
    """A weekday, a last day or another month makes an odd day of month possible."""
    assert pattern_of(expression).first_from(unix("2026-01-01")) is not None


def test_the_rarest_date_is_forty_years_away() -> None:
    """29 February on a given weekday comes after 28 years, across a common century after 40."""
    dates = walls(FIFTH_MONDAYS_OF_FEBRUARY, "1872-01-01", 100)
    years = [int(wall[:4]) for wall in dates]
    assert {12, 28, 40} == {later - year for year, later in pairwise(years)}


def test_search_ends_with_the_last_year() -> None:
    """After the last year of 64-bit nanoseconds nothing is found any more."""
    pattern = pattern_of("0 0 1 1 *")
    assert pattern.first_from(unix(f"{LAST_YEAR}-01-01")) == unix(f"{LAST_YEAR}-01-01")
    assert pattern.first_from(unix(f"{LAST_YEAR}-01-02")) is None


def random_expression(chance: random.Random) -> str:
    """An expression of any shape the dialect has; it may be one that never fires."""

    def part(low: int, high: int) -> str:
        first, last = chance.randint(low, high), chance.randint(low, high)
        return chance.choice(
            ["*", f"{first}", f"{first}-{last}", f"*/{last + 1}", f"{first},{last}", f"{first}/3"]
        )

    day = chance.choice([part(1, 31), part(28, 31), "*", "*", "L", "15,L"])
    nth = f"{chance.randint(0, 7)}#{chance.randint(1, 5)}"
    weekday = chance.choice([part(0, 6), "*", "*", nth, f"L{chance.randint(0, 7)}", f"{nth},3"])
    fields = [part(0, 59), part(0, 23), day, part(1, 12), weekday]
    return " ".join([part(0, 59), *fields] if chance.random() < 0.2 else fields)


@pytest.mark.regression("R25")
def test_ten_thousand_random_expressions_end() -> None:
    """Each is refused as one that never fires, or has a time within 40 years."""
    chance = random.Random(26)
    start = unix("2026-01-01")
    for _ in range(10_000):
        expression = random_expression(chance)
        calendar = parse(expression)
        if isinstance(calendar, Calendar):
            first = calendar.next_after(start * SECOND)
            assert first is not None, expression
            assert first < (start + 41 * 366 * DAY) * SECOND, expression
        else:
            assert calendar.reason is ErrorReason.CRON_NEVER_FIRES, expression
            dates = Expression(expression)
            assert not any(
                dates.matches_date(datetime(2028, 1, 1) + timedelta(days=day)) for day in range(366)
            ), expression


def test_random_expressions_match_what_brute_force_matches() -> None:
    """Over two months, the times of day found are those of a field-by-field comparison."""
    chance = random.Random(8)
    begin = datetime(2028, 1, 20)
    for _ in range(200):
        text = random_expression(chance)
        pattern = read_pattern(text)
        if isinstance(pattern, Refusal):
            continue
        expression = Expression(text)
        times = sorted(
            hour * 3600 + minute * 60 + second
            for hour in expression.hours
            for minute in expression.minutes
            for second in expression.seconds
        )
        wall = unix(begin.isoformat())
        for day in range(60):
            on = begin + timedelta(days=day)
            matches = expression.matches_date(on.date())
            assert (len(times) if matches else 0) == pattern.count(wall, wall + DAY), text
            if matches:
                for expected in (times[0], times[-1], chance.choice(times)):
                    assert wall + expected == pattern.first_from(wall + expected), text
            wall += DAY


@pytest.mark.parametrize(
    "expression",
    [
        "*/7 3-9 * * *",
        "0 12 1,15 * *",
        "0 12 1,15 * MON",
        "30 6 L * *",
        "0 0 29 2 *",
        "5 5 * * 3#2",
        "5 5 * * L3",
        "0 0 31 * *",
        "15 10 * FEB-APR SAT-SUN",
    ],
)
def test_wall_times_are_those_of_croniter(expression: str) -> None:
    """Where croniter's own search has no known fault, it finds the same wall times."""
    start = datetime(2026, 1, 1)
    witness = croniter(expression, start - timedelta(seconds=1))
    expected = [witness.get_next(datetime).strftime("%Y-%m-%d %H:%M:%S") for _ in range(50)]
    assert expected == walls(expression, start.isoformat(), 50)
