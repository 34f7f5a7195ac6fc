"""Which finished tasks a new leader is given beside those that live, and how pieces are read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from cronoq_server.engine.model import SECOND, Instant
from cronoq_server.engine.mutations import StoredTask
from cronoq_server.stores.base import FinishedQuery

T = TypeVar("T")
P = TypeVar("P")

_NAMES = 1000
"""Parents looked up at once."""

_OUT_OF_ORDER = 3600 * SECOND
"""How far the instants of ends may be out of the order of their positions: clocks of hosts differ,
and a leader's clock may be set back."""


class Parents:
    """The tasks that live ones depend on, gathered while the live ones pass by."""

    def __init__(self) -> None:
        self._ids: set[int] = set()
        self._keys: set[str] = set()

    def note(self, live: Iterable[StoredTask]) -> None:
        """Notes whom these depend on."""
        for task in live:
            for edge in task.spec.dependencies:
                if isinstance(edge.target, int):
                    self._ids.add(edge.target)
                else:
                    self._keys.add(edge.target)

    def queries(self) -> Iterator[FinishedQuery]:
        """Look-ups that find those of them that have ended."""
        ids, keys = sorted(self._ids), sorted(self._keys)
        for start in range(0, len(ids), _NAMES):
            yield FinishedQuery(ids=tuple(ids[start : start + _NAMES]))
        for start in range(0, len(keys), _NAMES):
            yield FinishedQuery(keys=tuple(keys[start : start + _NAMES]))


def ended_within(
    newest_first: Sequence[StoredTask], horizon: Instant
) -> tuple[tuple[StoredTask, ...], bool]:
    """Those that ended at or after the horizon, and whether older ends may hold more of them."""
    found = tuple(t for t in newest_first if t.change is not None and t.change.at >= horizon)
    if found or not newest_first:
        return found, True
    latest = max(t.change.at for t in newest_first if t.change is not None)
    return found, latest >= horizon - _OUT_OF_ORDER


async def read_ahead(
    read: Callable[[P], Awaitable[tuple[T, P | None]]], place: P | None
) -> AsyncIterator[T]:
    """Pieces one after the other; each is on its way while the one before is worked on.

    Args:
        read: Reads the piece at a place; returns it, and the place of the next, None = the end.
        place: Of the first piece; None = there is none.
    """
    reading = None if place is None else asyncio.ensure_future(read(place))
    try:
        while reading is not None:
            found, place = await reading
            reading = None if place is None else asyncio.ensure_future(read(place))
            if reading is not None:
                await asyncio.sleep(
                    0
                )  # whoever takes this piece may not let others run for a while
            yield found
    finally:
        if reading is not None:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
