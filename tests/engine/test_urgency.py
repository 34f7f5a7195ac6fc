"""How urgent a waiting task is, to the unit."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cronoq_server.engine.placement import Waiting
from cronoq_server.engine.placement.gates import SHADOW
from cronoq_server.engine.placement.urgency import FOREVER, POINT, SECOND, piece, rush_of, score

NOW = 1_700_000_000 * SECOND


def waiting(
    priority: int = 3, waited: int = 0, latest: int | None = None, expected: int = 0
) -> Waiting:
    """A task that has waited so long at `NOW`, in nanoseconds."""
    task = Waiting(1, priority, NOW - waited, SHADOW)
    if latest is not None:
        task.p_rush = rush_of(latest, expected)
    return task


@pytest.mark.parametrize(
    ("priority", "waited_s", "points"),
    [(1, 0, 10_000), (2, 0, 1_000), (3, 0, 100), (4, 0, 10), (3, 10, 120), (3, 400, 900),
     (3, 401, 900), (4, 10**6, 810), (3, -5, 100)],
)  # fmt: skip
def test_class_and_age(priority: int, waited_s: int, points: int) -> None:
    """The base of the class, and two points a second up to 800."""
    assert score(waiting(priority, waited_s * SECOND), NOW) == points * POINT


@pytest.mark.parametrize(
    ("left_s", "expected_s", "points"),
    [
        (5, 0, 100),  # the window is five seconds at least
        (2.5, 0, 2_600),
        (0, 0, 5_100),
        (50, 100, 2_600),  # and as long as the task takes
        (1_000, 5_000, 100),  # but no longer than 1000 s
        (500, 5_000, 2_600),
        (-1, 0, 5_150),  # overdue: 50 points a second
        (-40, 0, 7_100),  # up to 2000 points
        (-4_000, 0, 7_100),
        (6, 0, 100),
    ],
)
def test_urgency_of_a_deadline(left_s: float, expected_s: int, points: int) -> None:
    """Urgency rises over the window before the latest start, then with lateness."""
    task = waiting(latest=NOW + int(left_s * SECOND), expected=expected_s * SECOND)
    assert score(task, NOW) == points * POINT


@given(
    waited=st.integers(-10 * SECOND, 500 * SECOND),
    left=st.none() | st.integers(-100 * SECOND, 1100 * SECOND),
    expected=st.integers(0, 2000 * SECOND),
    share=st.fractions(0, 1),
)
def test_pieces_are_the_score(
    waited: int, left: int | None, expected: int, share: Fraction
) -> None:
    """Each straight piece has the score's value from its first to its last instant."""
    task = waiting(3, waited, None if left is None else NOW + left, expected)
    at = NOW
    for _ in range(6):
        value, slope, until = piece(task, at)
        last = until if until < FOREVER else at + 10**6 * SECOND
        assert at < until
        for instant in (at, at + int((last - at) * share), last):
            assert value + slope * instant == score(task, instant)
        if until == FOREVER:
            return
        at = until
    raise AssertionError("a score has at most five pieces")
