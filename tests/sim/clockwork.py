"""Virtual time: an event loop that never waits, and the clocks of the machines that live in it.

Rules a change must keep:

1. Time is a whole number of nanoseconds and moves only when nothing is left that could run now.
2. What is due at one instant happens in the order in which it was arranged.
3. Nothing here looks at a real clock, a thread, a socket or a hash.
"""

from __future__ import annotations

import asyncio
import heapq
from asyncio import base_events
from collections.abc import Callable
from typing import Any

from cronoq_server.engine.model import SECOND, Duration, Instant, Now
from cronoq_server.engine.timers import NEVER
from cronoq_server.runtime.clock import Alarm, Clock, SteadyWall
from cronoq_server.testing.builders import EPOCH_START

LOOK_AGAIN: Duration = 1_000_000
"""A wall clock at half speed makes alarms look too early; they look again no sooner than this."""


class Stalled(Exception):
    """Nothing is left that could ever happen, but somebody still waits."""


class Entry:
    """Something arranged for an instant."""

    __slots__ = ("at", "ring")

    def __init__(self, at: Instant, ring: Callable[[], object] | None) -> None:
        self.at = at
        self.ring = ring

    def cancel(self) -> None:
        """Takes it back."""
        self.ring = None


class Timeline:
    """What will happen when.

    Attributes:
        now: Nanoseconds since the world began.
    """

    def __init__(self) -> None:
        self.now: Instant = 0
        self._heap: list[tuple[Instant, int, Entry]] = []
        self._sequence = 0

    def at(self, when: Instant, ring: Callable[[], object]) -> Entry:
        """Arranges a call for an instant, or for the next moment if that is past."""
        self._sequence += 1
        entry = Entry(when if when > self.now else self.now, ring)
        heapq.heappush(self._heap, (entry.at, self._sequence, entry))
        return entry

    def after(self, delay: Duration, ring: Callable[[], object]) -> Entry:
        """Arranges a call for so many nanoseconds from now."""
        return self.at(self.now + delay, ring)

    def turn(self) -> None:
        """Goes on to the next instant at which something happens, and lets it happen.

        Raises:
            Stalled: There is none.
        """
        heap = self._heap
        while heap:
            at, _, entry = heapq.heappop(heap)
            ring = entry.ring
            if ring is not None:
                self.now = at
                entry.ring = None
                ring()
                return
        raise Stalled


class VirtualLoop(base_events.BaseEventLoop):
    """An event loop on a timeline: when all have come to rest, time goes on at once."""

    def __init__(self) -> None:
        super().__init__()
        self.timeline = Timeline()
        self.errors: list[dict[str, Any]] = []
        self.set_exception_handler(lambda _, context: self.errors.append(context))

    def time(self) -> float:
        """Seconds since the world began."""
        return self.timeline.now / SECOND

    def call_at(self, when: float, *_args: Any, **_given: Any) -> asyncio.TimerHandle:  # type: ignore[override]
        """Nobody sleeps but through a clock."""
        raise AssertionError(f"in here time passes only through a clock, not until {when}")

    def _run_once(self) -> None:
        ready: Any = self._ready  # type: ignore[attr-defined]
        if not ready and not self._stopping:  # type: ignore[attr-defined]
            self.timeline.turn()
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle._cancelled:
                handle._run()


class Machine:
    """A machine with a wall clock that people set.

    Attributes:
        offset: What its wall clock shows at the beginning of the world.
        latest: The latest that it was ever set to.
        frozen_until: Until this instant of the timeline nothing on it runs.
        clocks: The clocks of its processes.
    """

    def __init__(self, timeline: Timeline, offset: int = 0) -> None:
        self.timeline = timeline
        self.offset = self.latest = EPOCH_START + offset
        self.frozen_until: Instant = 0
        self.clocks: list[ProcessClock] = []

    def set_wall(self, offset: int) -> None:
        """Somebody sets the wall clock."""
        self.offset = offset
        self.latest = max(self.latest, offset)
        for clock in self.clocks:
            clock.look_all()


class _ClockAlarm:
    """One call that a process's clock will make."""

    __slots__ = ("at", "clock", "entry", "ring")

    def __init__(self, clock: ProcessClock, at: Now, ring: Callable[[], object]) -> None:
        self.clock = clock
        self.at = at
        self.ring = ring
        self.entry: Entry | None = None

    def look(self) -> None:
        clock, machine = self.clock, self.clock.machine
        timeline = machine.timeline
        if machine.frozen_until > timeline.now:
            self.entry = timeline.at(machine.frozen_until, self.look)
            return
        now = clock.now()
        left = min(self.at.mono - now.mono, self.at.wall - now.wall)
        if left <= 0:
            clock.walled.pop(self, None)
            self.ring()
        else:
            self.entry = timeline.after(max(left, LOOK_AGAIN), self.look)

    def cancel(self) -> None:
        """Takes the call back."""
        self.clock.walled.pop(self, None)
        if self.entry is not None:
            self.entry.cancel()


class ProcessClock(Clock):
    """The clocks of one process on one machine."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.walled: dict[_ClockAlarm, None] = {}
        self._born = machine.timeline.now - SECOND
        self._steady = SteadyWall()
        machine.clocks.append(self)

    @property
    def set_backs(self) -> int:
        """See `Clock.set_backs`."""
        return self._steady.set_backs

    def now(self) -> Now:
        """See `Clock.now`."""
        machine = self.machine
        now = machine.timeline.now
        mono = now - self._born
        return Now(self._steady.read(now + machine.offset, mono), mono)

    def call_at(self, at: Now, ring: Callable[[], object]) -> Alarm:
        """See `Clock.call_at`."""
        alarm = _ClockAlarm(self, at, ring)
        timeline = self.machine.timeline
        if at.wall == NEVER:
            alarm.entry = timeline.at(at.mono + self._born, alarm.look)
            return alarm
        self.walled[alarm] = None
        now = self.now()
        alarm.entry = timeline.after(min(at.mono - now.mono, at.wall - now.wall), alarm.look)
        return alarm

    def look_all(self) -> None:
        """The wall clock was set: every alarm that depends on it looks again."""
        for alarm in list(self.walled):
            if alarm.entry is not None:
                alarm.entry.cancel()
            alarm.entry = self.machine.timeline.after(0, alarm.look)
