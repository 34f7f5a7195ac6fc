"""The store of a server that need not survive its process, behind the same contract as others.

A `MemoryDisk` is the place, a `MemoryStore` one handle on it; several handles on one disk behave
like replicas that share a database. Nothing here waits: a commit is done when it returns.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence

from cronoq_server.engine.model import Instant
from cronoq_server.engine.mutations import Output, RecoveredChunk, StoredTask
from cronoq_server.stores.base import (
    Batch,
    Capabilities,
    Fenced,
    FinishedPage,
    FinishedQuery,
    Leadership,
    Rejected,
    TimeBase,
    Unavailable,
)
from cronoq_server.stores.memory_disk import MemoryDisk as MemoryDisk

CHUNK = 1000
"""Tasks recovered at once."""


class MemoryLeadership:
    """One term on a memory disk."""

    def __init__(self, disk: MemoryDisk, holder: str, base: int) -> None:
        self.epoch = disk.epoch
        self.position = disk.position
        self.high_water = disk.high_water
        self.holder = holder
        self.base = base
        self._disk = disk

    async def check(self) -> None:
        """See `Leadership.check`."""
        self.assert_holds()

    def assert_holds(self) -> None:
        """Confirms that the term still holds.

        Raises:
            Fenced: It does not.
        """
        disk = self._disk
        if disk.epoch != self.epoch or disk.holder != self.holder:
            raise Fenced(f"epoch {self.epoch} is over, {disk.epoch} is the last one")


class MemoryStore:
    """A handle on a memory disk."""

    def __init__(self, disk: MemoryDisk, *, remembers: bool = False) -> None:
        """Opens a handle.

        Args:
            disk: The place; several handles may share it.
            remembers: Whether look-ups before submits are worth it. They are not for a server:
                the engine remembers as many finished tasks as this store keeps.
        """
        self._disk = disk
        self._remembers = remembers
        self._base = 0
        self._closed = False
        self._term: MemoryLeadership | None = None

    @property
    def capabilities(self) -> Capabilities:
        """See `Store.capabilities`."""
        return Capabilities(survives_restart=False, spans_hosts=False, remembers=self._remembers)

    async def acquire_leadership(
        self, holder: str, now: Instant, time_base: TimeBase
    ) -> Leadership | None:
        """See `Store.acquire_leadership`."""
        disk = self._open_disk()
        if disk.holder is not None and not disk.lapsed:
            return None
        disk.holder, disk.lapsed = holder, False
        disk.epoch += 1
        self._base = time_base.unix_nanos_at_zero
        disk.since = now + self._base
        self._term = MemoryLeadership(disk, holder, self._base)
        return self._term

    async def commit(self, leadership: Leadership, batch: Batch) -> None:
        """See `Store.commit`."""
        disk = self._open_disk()
        term = _term(leadership)
        term.assert_holds()
        if batch.position <= disk.position:
            return
        if batch.position != disk.position + 1:
            raise Rejected(f"batch {batch.position} does not follow {disk.position}", "Batch")
        disk.write(batch, term.base)

    async def recover(
        self, leadership: Leadership, horizon: Instant
    ) -> AsyncIterator[RecoveredChunk]:
        """See `Store.recover`."""
        disk = self._open_disk()
        term = _term(leadership)
        term.assert_holds()
        base = term.base
        yield disk.settings(base)
        for ids in _chunks(disk.live_ids()):
            yield RecoveredChunk(live=tuple(disk.tasks(ids, base)))
            term.assert_holds()
        for ids in _chunks(disk.parent_ids()):
            yield RecoveredChunk(parents=tuple(disk.tasks(ids, base)))
            term.assert_holds()
        for ids in _chunks(disk.ended_since(horizon + base)):
            yield RecoveredChunk(finished=tuple(disk.tasks(ids, base)))
            term.assert_holds()

    async def release_leadership(self, leadership: Leadership) -> None:
        """See `Store.release_leadership`."""
        disk = self._open_disk()
        term = _term(leadership)
        if disk.epoch == term.epoch and disk.holder == term.holder:
            disk.holder = None

    async def load_outputs(self, ids: Sequence[int]) -> dict[int, Output]:
        """See `Store.load_outputs`."""
        disk = self._open_disk()
        return {i: output for i in ids if (output := disk.output(i)) is not None}

    async def find_finished(self, query: FinishedQuery) -> FinishedPage:
        """See `Store.find_finished`."""
        disk = self._open_disk()
        if query.ids or query.keys:
            return FinishedPage(disk.named(query.ids, query.keys, self._base))
        if query.ended_after is not None:
            return disk.page_by_end(query, self._base)
        return disk.page_by_id(query, self._base)

    async def load_tasks(self, ids: Sequence[int]) -> list[StoredTask]:
        """See `Store.load_tasks`."""
        return self._open_disk().tasks(dict.fromkeys(ids), self._base)

    async def close(self) -> None:
        """See `Store.close`; a term that was not released lapses, as a broken lock would."""
        term, disk = self._term, self._disk
        if not self._closed and term is not None and disk.epoch == term.epoch:
            disk.lapsed = True
        self._closed = True

    def _open_disk(self) -> MemoryDisk:
        if self._closed:
            raise Unavailable("this store was closed")
        return self._disk


def _term(leadership: Leadership) -> MemoryLeadership:
    assert isinstance(leadership, MemoryLeadership), leadership
    return leadership


def _chunks(ids: list[int]) -> Iterator[list[int]]:
    for start in range(0, len(ids), CHUNK):
        yield ids[start : start + CHUNK]
