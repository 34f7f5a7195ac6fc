"""Attempts that are cut short: whatever a store makes of it, they are repeated or given up."""

from __future__ import annotations

import asyncio

import pytest

from cronoq_server.engine.model import SECOND
from cronoq_server.runtime.writer import Writer
from cronoq_server.stores.base import Batch, Leadership, TimeBase, Unavailable
from cronoq_server.stores.memory import MemoryDisk, MemoryStore
from cronoq_server.testing.builders import EPOCH_START, batch, inserted
from cronoq_server.testing.faults import ManualClock, settle
from tests.runtime.rig import done

ENDS = ("cancelled", "unavailable", "unavailable", "cancelled")


class Deaf(MemoryStore):
    """Answers no commit until it is cancelled, and then in its own way, one after the other."""

    def __init__(self, disk: MemoryDisk, ends: tuple[str, ...]) -> None:
        super().__init__(disk)
        self.ends = list(ends)

    async def commit(self, leadership: Leadership, batch: Batch) -> None:
        """Waits; commits once all ends were seen."""
        if not self.ends:
            await super().commit(leadership, batch)
            return
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if self.ends.pop(0) == "cancelled":
                raise
            raise Unavailable("the connection was closed") from None


async def writing(ends: tuple[str, ...]) -> tuple[ManualClock, Deaf, Writer]:
    """A writer whose first batch is on its way."""
    clock, store = ManualClock(), Deaf(MemoryDisk(), ends)
    term = await store.acquire_leadership("rig", EPOCH_START, TimeBase())
    assert term is not None
    writer = Writer(store, term, clock, SECOND, asyncio.Event())
    writer.begin(batch(1, inserted(1)), clock.now().mono)
    await settle()
    return clock, store, writer


@pytest.mark.parametrize("ends", [ENDS, ENDS[::-1], ENDS[1:], ENDS[2:]])
async def test_attempts_over_the_timeout_are_tried_again(ends: tuple[str, ...]) -> None:
    """A store may raise what it was cancelled with, or say that it could not do it."""
    clock, store, writer = await writing(ends)
    await clock.advance(30 * SECOND)
    assert store.ends == []
    assert writer.is_decided()
    taken = writer.take()
    assert taken is not None
    assert taken.position == 1


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("end", ["cancelled", "unavailable"])
async def test_batch_that_is_given_up_is_not_tried_again(end: str, late: bool) -> None:
    """Whoever steps down does not wait for a store that never answers."""
    clock, store, writer = await writing(("unavailable", *[end] * 9))
    if late:
        await clock.advance(2 * SECOND)
    left = len(store.ends)
    await done(writer.abandon())
    assert len(store.ends) == left - 1
    assert not writer.busy
