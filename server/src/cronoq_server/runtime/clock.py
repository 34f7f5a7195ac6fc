"""What time it is: two readings, and what becomes of a wall clock that somebody sets back.

Rules a change must keep:

1. `mono` never goes back; `wall` goes back only when it was set back by more than `SET_BACK_MAX`,
   and then `set_backs` rises, so that the driver can tell the engine.
2. Set back by less, `wall` goes on at half speed until the clock has caught up: nothing that was
   due fires twice, nothing that is due later stops.
3. A wall clock that jumps forward passes through: instants become due and nothing else happens.
4. Nothing in the runtime sleeps but through a clock, so that a manual clock can drive it all.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from cronoq_server.engine.model import SECOND, Duration, Instant, Now
from cronoq_server.engine.timers import NEVER

log = logging.getLogger(__name__)

SET_BACK_MAX: Duration = 3600 * SECOND
"""A wall clock set back by more than this is believed."""

LOOK_AGAIN: Duration = SECOND
"""How long a wait for a wall instant lasts before the clock, which may be set, is read again."""

SLEEP_MAX: Duration = 3600 * SECOND
"""Longest single timer of the event loop."""


class Alarm(Protocol):
    """A call that a clock will make."""

    def cancel(self) -> None:
        """Takes the call back; does nothing once it was made."""


class Clock(Protocol):
    """Where time comes from, and the only way to wait for it."""

    @property
    def set_backs(self) -> int:
        """How often the wall clock was set back so far that the new time was taken."""

    def now(self) -> Now:
        """The two readings of this instant."""

    def call_at(self, at: Now, ring: Callable[[], object]) -> Alarm:
        """Calls `ring` once, from the event loop, as soon as either part of `at` is reached."""

    async def sleep_until(self, at: Now) -> None:
        """Returns once either part of `at` is reached."""
        awake: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        alarm = self.call_at(at, lambda: None if awake.done() else awake.set_result(None))
        try:
            await awake
        finally:
            alarm.cancel()


def after(now: Now, delay: Duration) -> Now:
    """The instant `delay` nanoseconds from now, by the monotonic clock alone."""
    return Now(NEVER, now.mono + delay)


async def within(clock: Clock, at: Now, work: Coroutine[Any, Any, object]) -> bool:
    """Runs `work` until `at` is reached and cancels it then; whether it came to its end."""
    task = asyncio.ensure_future(work)
    alarm = clock.call_at(at, task.cancel)
    try:
        await asyncio.wait({task})
    except asyncio.CancelledError:
        task.cancel()
        await asyncio.wait({task})
        raise
    finally:
        alarm.cancel()
    if task.cancelled():
        return False
    task.result()
    return True


class SteadyWall:
    """Makes of the readings of a wall clock, which people set, a wall to reckon with.

    Attributes:
        set_backs: How often the clock was set back so far that the new time was taken.
    """

    __slots__ = ("_mono", "_slow_from", "_wall", "set_backs")

    def __init__(self) -> None:
        self._wall: Instant = 0
        self._mono: Instant = 0
        self._slow_from: tuple[Instant, Instant] | None = None
        self.set_backs = 0

    def read(self, raw: Instant, mono: Instant) -> Instant:
        """Turns a raw reading, taken together with `mono`, into the wall instant that counts."""
        expected = self._wall if self._slow_from is None else self._at_half_speed(mono)
        behind = expected - raw
        if behind <= 0:
            self._slow_from = None
            self._wall = raw
        elif behind > SET_BACK_MAX:
            self._take(raw, behind)
        else:
            self._go_slow(mono, behind)
        self._mono = mono
        return self._wall

    def _take(self, raw: Instant, behind: Duration) -> None:
        self._slow_from = None
        self._wall = raw
        self.set_backs += 1
        log.warning(
            "the wall clock was set back by %d s: the new time is taken",
            behind // SECOND,
            extra={"action": "clock_set_back"},
        )

    def _go_slow(self, mono: Instant, behind: Duration) -> None:
        if self._slow_from is None:
            self._slow_from = (self._wall, self._mono)
            log.warning(
                "the wall clock was set back by %d ms: going on at half speed until it catches up",
                behind // 1_000_000,
                extra={"action": "clock_set_back"},
            )
        self._wall = self._at_half_speed(mono)

    def _at_half_speed(self, mono: Instant) -> Instant:
        assert self._slow_from is not None
        wall, since = self._slow_from
        return wall + (mono - since) // 2


class SystemClock(Clock):
    """The clocks of this machine."""

    __slots__ = ("_steady",)

    def __init__(self) -> None:
        self._steady = SteadyWall()

    @property
    def set_backs(self) -> int:
        """See `Clock.set_backs`."""
        return self._steady.set_backs

    def now(self) -> Now:
        """See `Clock.now`."""
        mono = time.monotonic_ns()
        return Now(self._steady.read(time.time_ns(), mono), mono)

    def call_at(self, at: Now, ring: Callable[[], object]) -> Alarm:
        """See `Clock.call_at`."""
        return _SystemAlarm(self, at, ring)


class _SystemAlarm:
    """Sleeps in pieces, since the wall clock may be set meanwhile."""

    __slots__ = ("_at", "_clock", "_handle", "_loop", "_ring")

    def __init__(self, clock: SystemClock, at: Now, ring: Callable[[], object]) -> None:
        self._clock = clock
        self._at = at
        self._ring = ring
        self._loop = asyncio.get_running_loop()
        self._handle: asyncio.Handle = self._loop.call_soon(self._look)

    def _look(self) -> None:
        at, now = self._at, self._clock.now()
        left = min(at.mono - now.mono, at.wall - now.wall)
        if left <= 0:
            self._ring()
            return
        piece = min(left, SLEEP_MAX if at.wall == NEVER else LOOK_AGAIN)
        self._handle = self._loop.call_later(piece / SECOND, self._look)

    def cancel(self) -> None:
        self._handle.cancel()
