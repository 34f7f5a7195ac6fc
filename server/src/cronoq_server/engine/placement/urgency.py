"""Decides how urgent a waiting task is: its score, an exact whole number.

A point is 10**15 units. Score = class base + 2 points per second waited (at most 800) + the
urgency of a deadline: from 0 to 5000 points over a window before the latest start, then 50 points
per second overdue, at most 2000 more. In time, a score is a chain of straight lines with whole
slopes, so that two scores cross at an instant that can be computed exactly.

Equal scores are ranked by the instant of becoming ready, then by id.
"""

from __future__ import annotations

from cronoq_server.engine.placement.waiting import Rush, Waiting

POINT = 10**15
SECOND = 1_000_000_000
BASES = (0, 10_000 * POINT, 1_000 * POINT, 100 * POINT, 10 * POINT)  # by priority 1..4
AGE_SLOPE = 2 * POINT // SECOND
AGE_MAX = 800 * POINT
AGE_FULL = AGE_MAX // AGE_SLOPE  # ns of waiting after which age counts no more
URGENCY_MAX = 5000 * POINT
WINDOW_MIN = 5 * SECOND
WINDOW_MAX = 1000 * SECOND
OVERDUE_SLOPE = 50 * POINT // SECOND
OVERDUE_MAX = 2000 * POINT
OVERDUE_FULL = OVERDUE_MAX // OVERDUE_SLOPE
FOREVER = 1 << 100  # later than any instant


def rush_of(latest_start: int, expected_ns: int) -> Rush:
    """Returns the rise of urgency before a latest start, in nanoseconds of the wall clock."""
    window = min(max(WINDOW_MIN, expected_ns), WINDOW_MAX)
    return Rush(latest_start - window, latest_start, URGENCY_MAX // window)


def score(task: Waiting, now: int) -> int:
    """Returns the score of a waiting task at an instant."""
    waited = now - task.since
    total = BASES[task.priority]
    if waited > 0:
        total += AGE_MAX if waited >= AGE_FULL else AGE_SLOPE * waited
    rush = task.p_rush
    if rush is not None and now > rush.opens:
        if now <= rush.latest:
            return total + rush.slope * (now - rush.opens)
        total += rush.slope * (rush.latest - rush.opens)
        overdue = now - rush.latest
        total += OVERDUE_MAX if overdue >= OVERDUE_FULL else OVERDUE_SLOPE * overdue
    return total


def piece(task: Waiting, now: int) -> tuple[int, int, int]:
    """Returns the straight line a score follows from `now` on: (value at 0, slope, valid until)."""
    value = BASES[task.priority]
    slope = 0
    until = FOREVER
    waited = now - task.since
    if waited < 0:
        until = task.since
    elif waited < AGE_FULL:
        value -= AGE_SLOPE * task.since
        slope = AGE_SLOPE
        until = task.since + AGE_FULL
    else:
        value += AGE_MAX
    rush = task.p_rush
    if rush is None:
        return value, slope, until
    if now < rush.opens:
        return value, slope, min(until, rush.opens)
    if now < rush.latest:
        return value - rush.slope * rush.opens, slope + rush.slope, min(until, rush.latest)
    value += rush.slope * (rush.latest - rush.opens)
    if now < rush.latest + OVERDUE_FULL:
        until = min(until, rush.latest + OVERDUE_FULL)
        return value - OVERDUE_SLOPE * rush.latest, slope + OVERDUE_SLOPE, until
    return value + OVERDUE_MAX, slope, until
