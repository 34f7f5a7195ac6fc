"""A clock that is moved by hand: for tests, and for servers whose time tests of others move.

Rules a change must keep:

1. Time passes only when somebody says so, and the wall obeys the same rules as a real one.
2. Advancing stops at every alarm on the way, and goes on when all that follows has come to rest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from cronoq_server.engine.model import SECOND, Duration, Instant, Now
from cronoq_server.runtime.clock import Alarm, Clock, SteadyWall

MANUAL_START: Final[Instant] = 1_700_000_000_000_000_000
"""The wall instant (Unix nanoseconds) at which a manual clock stands unless told otherwise."""

SETTLE_TURNS = 30
"""Turns of the event loop in which a driver over a store without input or output comes to rest."""


async def settle(turns: int = SETTLE_TURNS) -> None:
    """Lets everything run that can run without time passing."""
    for _ in range(turns):
        await asyncio.sleep(0)


class _ManualAlarm:
    __slots__ = ("_clock", "at", "ring")

    def __init__(self, clock: ManualClock, at: Now, ring: Callable[[], object]) -> None:
        self._clock = clock
        self.at = at
        self.ring = ring

    def cancel(self) -> None:
        self._clock.alarms.pop(self, None)


class ManualClock(Clock):
    """Time that passes only when a test says so; a wall that obeys the same rules as a real one.

    Attributes:
        alarms: What waits for this clock.
    """

    def __init__(self, wall: Instant = MANUAL_START, mono: Instant = SECOND) -> None:
        self.alarms: dict[_ManualAlarm, None] = {}
        self._raw = wall
        self._mono = mono
        self._steady = SteadyWall()

    @property
    def set_backs(self) -> int:
        """See `Clock.set_backs`."""
        return self._steady.set_backs

    def now(self) -> Now:
        """See `Clock.now`."""
        return Now(self._steady.read(self._raw, self._mono), self._mono)

    def call_at(self, at: Now, ring: Callable[[], object]) -> Alarm:
        """See `Clock.call_at`."""
        alarm = _ManualAlarm(self, at, ring)
        self.alarms[alarm] = None
        if self._is_due(alarm):
            asyncio.get_running_loop().call_soon(self._ring_due)
        return alarm

    def set_wall(self, by: int) -> None:
        """Somebody sets the wall clock forward, or back (negative), by so many nanoseconds."""
        self._raw += by
        self._ring_due()

    def stand_still(self, by: Duration) -> None:
        """Time passes at once, as for a process that was stopped: no alarm rings on the way."""
        self._pass(by)
        self._ring_due()

    async def advance(
        self, by: Duration = 0, *, hours: float = 0, minutes: float = 0, seconds: float = 0
    ) -> None:
        """Lets time pass, stopping at each alarm on the way until everything has come to rest.

        Args:
            by: Nanoseconds, to which the rest is added.
            hours: Hours.
            minutes: Minutes.
            seconds: Seconds.
        """
        by += round((hours * 3600 + minutes * 60 + seconds) * SECOND)
        end = self._mono + by
        await settle()
        while True:
            step = min(end - self._mono, self._next_alarm())
            self._pass(step)
            self._ring_due()
            await settle()
            if self._mono >= end:
                return

    def _next_alarm(self) -> Duration:
        """Time until the next alarm; not less than 1 ns. Half speed may make it an early look."""
        now = self.now()
        left = [min(a.at.mono - now.mono, a.at.wall - now.wall) for a in self.alarms]
        return max(1, min(left, default=1 << 62))

    def _pass(self, by: Duration) -> None:
        self._mono += by
        self._raw += by

    def _is_due(self, alarm: _ManualAlarm) -> bool:
        now = self.now()
        return alarm.at.mono <= now.mono or alarm.at.wall <= now.wall

    def _ring_due(self) -> None:
        for alarm in [alarm for alarm in self.alarms if self._is_due(alarm)]:
            if alarm in self.alarms:
                del self.alarms[alarm]
                alarm.ring()
