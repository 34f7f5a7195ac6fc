"""How many slots a pool wants: the signal alone, and what the engine says of it."""

from __future__ import annotations

import pytest

from cronoq_server.engine.autoscale import Autoscaler
from cronoq_server.engine.model import SECOND, AutoscaleSettings, PoolSettings
from cronoq_server.engine.timers import NEVER
from tests.engine.harness import World, spec

PLAIN = AutoscaleSettings()


class Load:
    """A pool's load, sampled once a second."""

    def __init__(self, settings: AutoscaleSettings = PLAIN, most: int | None = None) -> None:
        self.signal = Autoscaler(settings, most, 0)
        self.now = 0
        self.arrived = 0

    def run(
        self,
        seconds: int,
        rate: int = 0,
        backlog: int = 0,
        service: int = SECOND,
        reserved: int = 0,
    ) -> list[int]:
        """The same load for some seconds; returns what was wanted after each."""
        wanted = []
        for _ in range(seconds):
            self.now += SECOND
            self.arrived += rate
            before = self.signal.desired
            changed = self.signal.sample(self.arrived, backlog, service, reserved, self.now)
            assert changed == (self.signal.desired != before)
            wanted.append(self.signal.desired)
        return wanted


def test_steady_arrivals_want_their_share_of_slots() -> None:
    """EN-150: rate × service time ÷ target utilization, rounded up."""
    assert Load().run(120, rate=9)[-1] == 12
    assert Load().run(120, rate=9, service=SECOND // 9)[-1] in (1, 2)


def test_backlog_wants_to_be_gone_within_the_drain_time() -> None:
    """EN-150: what has piled up counts, if it is more than what arrives."""
    assert Load().run(60, backlog=300)[-1] == 10
    assert Load().run(5, backlog=1, service=1)[-1] == 1


def test_reserved_starts_want_a_slot_each() -> None:
    """EN-150: whatever else there is."""
    assert Load().run(60, reserved=7)[-1] == 7


def test_signal_stays_between_min_and_max() -> None:
    """EN-151: also at rest, and under any load."""
    settings = AutoscaleSettings(min=2)
    assert Load(settings, 5).run(60, backlog=100_000)[-1] == 5
    assert Load(settings, 5).run(60)[-1] == 2


def test_signal_rises_by_a_step_per_sample() -> None:
    """EN-151: four slots at a time, unless told otherwise."""
    assert Load().run(4, backlog=3000) == [4, 8, 12, 16]


def test_signal_falls_late_and_slowly() -> None:
    """EN-151: not within the cooldown, not below the highest want of the window."""
    load = Load(AutoscaleSettings(max_step_up=100))
    assert load.run(1, backlog=300) == [10]
    wanted = load.run(100, backlog=30)
    assert set(wanted[:59]) == {10}
    assert wanted[60:70] == [9, 8, 7, 6, 5, 4, 3, 2, 1, 1]


def test_no_demand_at_all_is_not_held_up() -> None:
    """EN-151: an empty pool goes down at once, a step at a time, and then rests."""
    load = Load(AutoscaleSettings(max_step_up=100, max_step_down=4))
    assert load.run(1, backlog=300) == [10]
    assert not load.signal.is_quiet
    assert load.run(3) == [6, 2, 0]
    assert load.signal.is_quiet


def test_rate_of_a_pool_at_rest_reaches_zero() -> None:
    """EN-150: no remainder keeps a slot alive for ever."""
    load = Load()
    load.run(60, rate=50)
    load.run(400)
    assert load.signal.desired == 0
    assert load.signal.is_quiet


@pytest.mark.parametrize("hours", [1, 24])
def test_long_pause_between_samples_counts_as_its_length(hours: int) -> None:
    """EN-150: a burst spread over hours is no burst."""
    load = Load()
    load.now = hours * 3600 * SECOND
    load.signal.sample(3600 * hours, 0, SECOND, 0, load.now)
    assert load.signal.desired == 2


def test_engine_tells_when_the_wanted_slots_change() -> None:
    """EN-152: once per change, for pools with work; an idle engine is not woken for it."""
    world = World(PoolSettings("default"), PoolSettings("idle"))
    assert world.wake_at.mono == NEVER
    tasks = [world.add(spec()) for _ in range(3)]
    world.advance(5 * SECOND)
    assert world.scaled == {"default": 1}
    assert world.snapshot().pools[0].desired == 1
    for task in tasks:
        world.cancel(task)
    world.advance(600 * SECOND)
    assert world.scaled == {"default": 0}
    assert world.wake_at.mono == NEVER


def test_booked_starts_are_wanted_before_they_are_due() -> None:
    """EN-152: within the drain time, so that somebody can be there."""
    world = World(PoolSettings("default", max=8))
    world.add(spec(start_in=120 * SECOND))
    world.advance(80 * SECOND)
    assert world.scaled.get("default", 0) == 0
    world.advance(30 * SECOND)
    assert world.scaled == {"default": 1}
