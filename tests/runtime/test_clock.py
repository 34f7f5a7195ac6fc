"""Clocks: a wall that people set, alarms on either reading, and the manual clock of tests."""

from __future__ import annotations

import asyncio
import time
from itertools import pairwise

import pytest

from cronoq_server.engine.model import Now
from cronoq_server.engine.timers import NEVER
from cronoq_server.runtime import SteadyWall, SystemClock, after, within
from cronoq_server.testing.faults import ManualClock, settle
from tests.runtime.rig import seconds

HOUR = seconds(3600)


class TestSteadyWall:
    """What becomes of a wall clock that somebody sets."""

    def test_it_passes_on_what_goes_forward(self) -> None:
        """A jump of any size is believed at once."""
        wall = SteadyWall()
        assert [wall.read(raw, mono) for raw, mono in ((10, 1), (11, 2), (10 * HOUR, 3))] == [
            10,
            11,
            10 * HOUR,
        ]
        assert wall.set_backs == 0

    def test_set_back_by_less_it_goes_on_at_half_speed(self) -> None:
        """From the last reading on, by the monotonic clock."""
        wall = SteadyWall()
        start = 100 * HOUR
        assert wall.read(start, 0) == start
        for second in range(1, 10):
            now = seconds(second)
            assert wall.read(start - HOUR + now, now) == start + now // 2
        assert wall.set_backs == 0

    def test_it_runs_normally_again_when_the_clock_has_caught_up(self) -> None:
        """Set back by ten minutes, that takes twenty; never does it stop or go back."""
        wall = SteadyWall()
        start = 100 * HOUR
        wall.read(start, 0)
        minutes = range(1, 31)
        readings = [wall.read(start + seconds(60 * (m - 10)), seconds(60 * m)) for m in minutes]
        assert all(a < b for a, b in pairwise(readings))
        assert readings[18] == start + seconds(60 * 19) // 2
        assert readings[19:] == [start + seconds(60 * (m - 10)) for m in minutes][19:]

    def test_set_back_by_more_the_new_time_is_taken(self) -> None:
        """And it is counted, so that the engine can be told."""
        wall = SteadyWall()
        start = 100 * HOUR
        wall.read(start, 0)
        assert wall.read(start - HOUR - 1, 1) == start - HOUR - 1
        assert wall.set_backs == 1

    def test_small_steps_back_add_up(self) -> None:
        """Set back again while it is slow, what counts is how far it is behind altogether."""
        wall = SteadyWall()
        start = 100 * HOUR
        wall.read(start, 0)
        assert wall.read(start - HOUR * 2 // 3, 1) >= start
        assert wall.read(start - HOUR * 4 // 3, 2) == start - HOUR * 4 // 3
        assert wall.set_backs == 1

    def test_half_speed_loses_nothing_to_rounding(self) -> None:
        """However often it is read."""
        wall = SteadyWall()
        wall.read(HOUR, 0)
        for mono in range(1, 1001):
            last = wall.read(mono, mono)
        assert last == HOUR + 500


class TestSystemClock:
    """The machine's own clocks."""

    def test_both_readings_are_the_machines(self) -> None:
        """Wall is Unix time, mono never goes back."""
        clock = SystemClock()
        before = time.time_ns()
        first, second = clock.now(), clock.now()
        assert before <= first.wall <= second.wall <= time.time_ns()
        assert first.mono <= second.mono
        assert clock.set_backs == 0

    @pytest.mark.parametrize("part", ["wall", "mono"])
    async def test_it_sleeps_until_either_part_is_reached(self, part: str) -> None:
        """Whichever comes first."""
        clock = SystemClock()
        now = clock.now()
        soon = seconds(0.002)
        at = Now(now.wall + soon, NEVER) if part == "wall" else Now(NEVER, now.mono + soon)
        await clock.sleep_until(at)
        now = clock.now()
        assert now.wall >= at.wall or now.mono >= at.mono

    async def test_an_instant_that_is_past_rings_at_once(self) -> None:
        """From the event loop, not from within the call."""
        clock = SystemClock()
        rung: list[int] = []
        clock.call_at(Now(0, 0), lambda: rung.append(1))
        assert rung == []
        await settle()
        assert rung == [1]

    async def test_a_cancelled_alarm_does_not_ring(self) -> None:
        """Even if its instant is past."""
        clock = SystemClock()
        rung: list[int] = []
        clock.call_at(Now(0, 0), lambda: rung.append(1)).cancel()
        await settle()
        assert rung == []


class TestManualClock:
    """Time under a test's control."""

    async def test_alarms_ring_in_order_and_at_their_instant(self) -> None:
        """Advancing stops at each of them, also at those that are made on the way."""
        clock = ManualClock()
        start = clock.now().mono
        rung: list[float] = []

        def again() -> None:
            rung.append((clock.now().mono - start) / seconds(1))
            if len(rung) < 4:
                clock.call_at(after(clock.now(), seconds(2)), again)

        clock.call_at(after(clock.now(), seconds(1)), again)
        await clock.advance(seconds(6))
        assert rung == [1, 3, 5]

    async def test_setting_the_wall_moves_no_monotonic_alarm(self) -> None:
        """Only alarms on the wall ring."""
        clock = ManualClock()
        rung: list[str] = []
        now = clock.now()
        clock.call_at(Now(NEVER, now.mono + seconds(10)), lambda: rung.append("mono"))
        clock.call_at(Now(now.wall + seconds(10), NEVER), lambda: rung.append("wall"))
        clock.set_wall(HOUR)
        assert rung == ["wall"]

    async def test_at_half_speed_wall_alarms_come_at_their_wall_instant(self) -> None:
        """That is later by the monotonic clock, and not a nanosecond too early."""
        clock = ManualClock()
        start = clock.now()
        rung: list[Now] = []
        clock.set_wall(-seconds(600))
        clock.call_at(Now(start.wall + seconds(10), NEVER), lambda: rung.append(clock.now()))
        await clock.advance(seconds(60))
        (at,) = rung
        assert at.wall == start.wall + seconds(10)
        assert at.mono == start.mono + seconds(20)


class TestWithin:
    """Work with an end by a clock."""

    async def test_work_that_ends_in_time_is_done(self) -> None:
        """True, and the alarm is gone."""
        clock = ManualClock()
        assert await within(clock, after(clock.now(), 1), asyncio.sleep(0))
        assert not clock.alarms

    async def test_work_that_does_not_is_cancelled(self) -> None:
        """False, and it has ended."""
        clock = ManualClock()
        never = asyncio.Event()
        work = asyncio.create_task(within(clock, after(clock.now(), seconds(1)), never.wait()))
        await clock.advance(seconds(1))
        assert await work is False

    async def test_an_error_is_raised(self) -> None:
        """It is not taken for an end."""
        clock = ManualClock()

        async def broken() -> None:
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await within(clock, after(clock.now(), 1), broken())

    async def test_cancelled_itself_it_cancels_the_work(self) -> None:
        """Nothing runs on alone."""
        clock = ManualClock()
        ended: list[int] = []

        async def work() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                ended.append(1)

        waiting = asyncio.create_task(within(clock, after(clock.now(), seconds(1)), work()))
        await settle()
        waiting.cancel()
        await settle()
        assert waiting.cancelled()
        assert ended == [1]
