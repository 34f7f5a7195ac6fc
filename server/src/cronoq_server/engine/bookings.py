"""Which stretches of time are booked for fixed starts, and how many overlap.

A step function of time: `_times[i]` begins a stretch in which `_counts[i]` bookings overlap. Adding
and removing touch the stretches between the two ends; looking for the highest count likewise.
Neighbours with equal counts are merged, so that what is removed leaves nothing behind.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from cronoq_server.engine.model import Instant


class Bookings:
    """The bookings of one pool, by wall time. A stretch includes its start, not its end."""

    __slots__ = ("_counts", "_times", "total")

    def __init__(self) -> None:
        self._times: list[Instant] = []
        self._counts: list[int] = []
        self.total = 0

    def most(self, start: Instant, end: Instant) -> int:
        """The highest number of bookings that overlap anywhere from `start` to `end`."""
        first = max(0, bisect_right(self._times, start) - 1)
        return max(self._counts[first : bisect_left(self._times, end)], default=0)

    def add(self, start: Instant, end: Instant) -> None:
        """Books a stretch."""
        self.total += 1
        self._change(start, end, 1)

    def remove(self, start: Instant, end: Instant) -> None:
        """Gives back a stretch that was booked with the same ends."""
        self.total -= 1
        self._change(start, end, -1)

    def _change(self, start: Instant, end: Instant, change: int) -> None:
        assert start < end
        first, last = self._cut(start), self._cut(end)
        # The cut at the end may have moved nothing before it, so `first` is still right.
        counts = self._counts
        for index in range(first, last):
            counts[index] += change
            assert counts[index] >= 0
        self._merge(last)
        self._merge(first)

    def _cut(self, at: Instant) -> int:
        """Makes a stretch begin at this instant; returns its place."""
        place = bisect_left(self._times, at)
        if place == len(self._times) or self._times[place] != at:
            before = self._counts[place - 1] if place else 0
            self._times.insert(place, at)
            self._counts.insert(place, before)
        return place

    def _merge(self, place: int) -> None:
        """Drops a cut that no longer divides anything."""
        before = self._counts[place - 1] if place else 0
        if self._counts[place] == before:
            del self._times[place]
            del self._counts[place]
