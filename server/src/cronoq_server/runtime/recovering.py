"""What a new leader reads before it serves, and what it goes on reading while it does.

What lives, what it depends on and what was set must be there first. Of what has ended within
retention a store that answers look-ups need only give the newest first: the rest is read while
the leader serves, piece by piece, each entering the engine as an event between two steps. Until
then, and if that reading fails, look-ups find it.

Rules a change must keep:

1. Pieces go into the engine as they come and are not kept here.
2. Nothing is read on after the leadership ended.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable

from cronoq_server.engine.engine import Engine
from cronoq_server.engine.events import EndsRead
from cronoq_server.engine.model import Instant
from cronoq_server.engine.mutations import RecoveredChunk
from cronoq_server.stores.base import Leadership, Store, Unavailable

log = logging.getLogger(__name__)

ENDED_FIRST = 2000
"""Ended tasks that are waited for before serving, from a store that answers look-ups."""


class Recovering:
    """The pieces of one recovery.

    Attributes:
        live: Live tasks taken over.
        ended: Ended ones, those included that were read later.
        schedules: Schedules taken over.
    """

    def __init__(self, engine: Engine, store: Store, leadership: Leadership) -> None:
        self.live = 0
        self.ended = 0
        self.schedules = 0
        self._engine = engine
        self._store = store
        self._leadership = leadership
        self._rest: AsyncIterator[RecoveredChunk] | None = None
        self._reading: asyncio.Task[RecoveredChunk | None] | None = None
        self._ring: Callable[[], None] = lambda: None

    async def load(self, horizon: Instant) -> None:
        """Has the engine take over what must be there before it serves.

        Args:
            horizon: Wall instant; ended tasks from then on are of interest.

        Raises:
            Unavailable: The store can't be read.
            Fenced: Another leadership has begun.
        """
        self._rest = self._store.recover(self._leadership, horizon)
        may_wait = self._store.capabilities.remembers
        async for chunk in self._rest:
            self._engine.load(chunk)
            self.live += len(chunk.live)
            self.schedules += len(chunk.schedules)
            self.ended += len(chunk.parents) + len(chunk.finished)
            if may_wait and chunk.finished and self.ended >= ENDED_FIRST:
                return
        self._rest = None

    def go_on(self, ring: Callable[[], None]) -> None:
        """Begins to read what was left for later; `ring` is called when there is something."""
        self._ring = ring
        self._read()

    def _read(self) -> None:
        if self._rest is not None:
            self._reading = asyncio.create_task(_next(self._rest), name="reading ends")
            self._reading.add_done_callback(lambda _: self._ring())

    def take(self) -> EndsRead | None:
        """Takes the piece that has come, if one has, and reads on.

        Raises:
            Fenced: Another leadership has begun.
        """
        if self._reading is None or not self._reading.done():
            return None
        reading, self._reading = self._reading, None
        try:
            chunk = reading.result()
        except Unavailable as error:
            log.warning(
                "older ended tasks could not be read, look-ups find them: %s",
                str(error),
                extra={"action": "ends_read", "tasks": self.ended},
            )
            self._rest = None
            return None
        if chunk is None or not self._engine.remembers_more:
            self._rest = None
            log.info(
                "all that ended lately was read, %d tasks",
                self.ended,
                extra={"action": "ends_read", "tasks": self.ended},
            )
            return None
        self.ended += len(chunk.finished)
        self._read()
        return EndsRead(chunk.finished)

    async def abandon(self) -> None:
        """Stops reading."""
        reading, self._reading = self._reading, None
        rest, self._rest = self._rest, None
        if reading is not None:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
        if isinstance(rest, AsyncGenerator):
            await rest.aclose()


async def _next(pieces: AsyncIterator[RecoveredChunk]) -> RecoveredChunk | None:
    return await anext(pieces, None)
