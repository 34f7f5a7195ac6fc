"""The last events that were published, in order, for watchers that begin behind the present.

The ring is complete from its floor on. It has no hole: when publishing stops for want of watchers
and begins again, the ring begins anew.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TypeAlias

from cronoq_server.engine.effects import StatusEvent

RING_MAX = 65_536
"""Events kept."""

Entry: TypeAlias = tuple[int, int, StatusEvent]
"""(position, index after this event, event)."""


class Ring:
    """Events by running number; numbers are never used twice.

    Attributes:
        position: Position of the last batch that is durable.
        index: How many events were published at it.
    """

    __slots__ = ("_entries", "_first", "_floor", "index", "position")

    def __init__(self, position: int) -> None:
        self.position = position
        self.index = 0
        self._entries: list[Entry] = []
        self._first = 0
        self._floor = (position, 0)

    @property
    def end(self) -> int:
        """The number that the next event will get."""
        return self._first + len(self._entries)

    @property
    def start(self) -> int:
        """The number of the oldest event kept."""
        return self._first

    def advance(self, position: int) -> None:
        """Notes that a batch is durable, whether or not it publishes anything."""
        if position != self.position:
            self.position = position
            self.index = 0

    def add(self, events: list[StatusEvent]) -> list[Entry]:
        """Adds events of the present position, and returns their entries."""
        position, index = self.position, self.index
        added = [(position, index + i, event) for i, event in enumerate(events, 1)]
        self.index += len(added)
        self._entries += added
        if len(self._entries) > 2 * RING_MAX:
            self._drop(len(self._entries) - RING_MAX)
        return added

    def restart(self) -> None:
        """Begins anew after events went by unpublished; cursors from before no longer fit."""
        self._first = self.end
        self._entries.clear()
        self.index += 1
        self._floor = (self.position, self.index)

    def number_after(self, position: int, index: int) -> int | None:
        """The number of the first event after a cursor; None if the ring does not reach back."""
        if (position, index) < self._floor:
            return None
        return self._first + bisect_left(self._entries, (position, index + 1))

    def read(self, number: int, count: int) -> list[Entry] | None:
        """Up to `count` events from a number on; None if they are gone."""
        if number < self._first:
            return None
        start = number - self._first
        return self._entries[start : start + count]

    def _drop(self, count: int) -> None:
        position, index, _ = self._entries[count - 1]
        self._floor = (position, index)
        del self._entries[:count]
        self._first += count
