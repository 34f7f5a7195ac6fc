"""One watcher: what it wants, where it stands, and how it gets from there to the present.

A stream begins with what has ended already, goes on with ends from the store if its cursor lies
behind the ring, catches up from the ring, and then listens. Between these stages nothing is lost:
the ring is complete from the moment at which the watch began.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import msgspec

from cronoq_server.engine.effects import StatusEvent, TaskView
from cronoq_server.engine.events import Scope
from cronoq_server.engine.model import FIRST_TERMINAL, SECOND, Duration, Refusal, TaskRef
from cronoq_server.engine.views import stored_event
from cronoq_server.runtime import cursors
from cronoq_server.runtime.clock import Alarm, after
from cronoq_server.runtime.cursors import Cursor
from cronoq_server.runtime.refusals import WATCH_TOO_SLOW, Refused
from cronoq_server.runtime.ring import Entry

if TYPE_CHECKING:
    from cronoq_server.runtime.watchers import Watchers

BOOKMARK_EVERY: Duration = 10 * SECOND
"""A watcher that asked for bookmarks hears this often that nothing happened."""

CATCH_UP = 1000
"""Events read at once from the ring."""

STORE_EPOCH = 0
"""Stands in cursors of events read from the store: no leader's ring ever fits them."""


class WatchFilter(msgspec.Struct, frozen=True):
    """Which events a watcher wants; an empty part allows all.

    Attributes:
        pools: Pools.
        ids: Tasks by id; with `keys`, either names a task.
        keys: Tasks by key.
        all_transitions: Every transition, or ends only.
    """

    pools: tuple[str, ...] = ()
    ids: tuple[int, ...] = ()
    keys: tuple[str, ...] = ()
    all_transitions: bool = False


class WatchBatch(msgspec.Struct, frozen=True):
    """What a watcher is told at once.

    Attributes:
        events: Events, each with the cursor behind it; none = a bookmark.
        cursor: Where the watcher stands after them.
    """

    events: list[tuple[StatusEvent, bytes]]
    cursor: bytes


class WatchStream:
    """The events of one watcher; iterate it, then close it.

    Attributes:
        refusals: Named tasks that cannot be watched.
    """

    def __init__(
        self,
        watchers: Watchers,
        wanted: WatchFilter,
        scope: Scope,
        bookmarks: bool,
        ended: list[StatusEvent],
        refusals: list[tuple[TaskRef, Refusal]],
        number: int,
        cursor: Cursor | None,
        given: bytes | None = None,
    ) -> None:
        self.refusals = refusals
        self._watchers = watchers
        self._ring = watchers.ring
        self._pools = _allowed(wanted.pools, scope)
        self._names: frozenset[TaskRef] = frozenset((*wanted.ids, *wanted.keys))
        self._all = wanted.all_transitions
        self._bookmarks = bookmarks
        self._ended = ended
        self._scope = scope
        self._number = number
        self._resume = cursor
        self._given = given
        self._begun = False
        self._live = False
        self._over = False
        self._buffer: list[Entry] = []
        self._refusal: Refusal | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._source = self._all_batches()

    @property
    def names(self) -> frozenset[TaskRef]:
        """Ids and keys that were named; empty = whole pools are watched."""
        return self._names

    def wants(self, event: StatusEvent) -> bool:
        """Whether the filter lets an event through."""
        if not self._all and event.status < FIRST_TERMINAL:
            return False
        if self._pools is not None and event.pool not in self._pools:
            return False
        names = self._names
        return not names or event.task_id in names or (event.key != "" and event.key in names)

    def offer(self, entry: Entry) -> None:
        """Takes a live event, if it is wanted."""
        if not self.wants(entry[2]):
            return
        buffer = self._buffer
        if buffer and buffer[-1] is entry:
            return
        if len(buffer) >= self._watchers.buffer_max:
            self.refuse(WATCH_TOO_SLOW)
            return
        buffer.append(entry)
        self._wake()

    def refuse(self, refusal: Refusal) -> None:
        """Ends the stream with this refusal."""
        self._refusal = refusal
        self._buffer.clear()
        self._watchers.quiet(self)
        self._wake()

    def __aiter__(self) -> WatchStream:
        return self

    async def __anext__(self) -> WatchBatch:
        """The next events, or a bookmark; cancelled, the stream is over.

        Raises:
            Refused: The watcher was too slow, its cursor is unknown, or this leadership ended.
        """
        return await anext(self._source)

    async def aclose(self) -> None:
        """Watches no more."""
        if not self._over:
            self._over = True
            self._watchers.leave(self)
        await self._source.aclose()  # type: ignore[attr-defined]

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _all_batches(self) -> AsyncIterator[WatchBatch]:
        start = self._start_cursor()
        if self._bookmarks:
            yield WatchBatch([], start)
        if self._ended:
            yield WatchBatch([(event, start) for event in self._ended], start)
            self._ended.clear()
        if self._resume is not None:
            async for events in self._from_store(self._resume):
                yield WatchBatch(events, events[-1][1])
        while True:
            batch = self._from_ring() if not self._live else self._from_buffer()
            if batch is not None:
                yield batch
            elif self._live:
                bookmark = await self._pause()
                if bookmark is not None:
                    yield bookmark

    def _start_cursor(self) -> bytes:
        """Where the stream begins: before everything that it has still to tell."""
        watchers, ring = self._watchers, self._ring
        if self._resume is None and self._number >= ring.end:
            return watchers.present()
        if self._given is not None:
            return self._given
        entries = ring.read(self._number, 1)
        if not entries:
            raise Refused(WATCH_TOO_SLOW)
        position, index, _ = entries[0]
        return cursors.encode(watchers.epoch, position, index - 1)

    async def _from_store(self, cursor: Cursor) -> AsyncIterator[list[tuple[StatusEvent, bytes]]]:
        """Ends from the cursor's position on, then how live tasks stand."""
        position, last = cursor.position + cursor.whole, 0
        # Where nothing is found this is no further than the cursor was: it names no position that
        # has not been yet.
        here = cursors.encode(STORE_EPOCH, cursor.position, 0, cursor.whole)
        while True:
            self._check()
            page = await self._watchers.find_ends(position, last, self._pools)
            events = [
                (event, cursors.encode(STORE_EPOCH, task.position, 0))
                for task in page.tasks
                if self.wants(event := stored_event(task))
            ]
            if events:
                yield events
            if not page.next_after:
                break
            position, last = page.next_position, page.next_after
            here = cursors.encode(STORE_EPOCH, position, 0)
        if self._all:
            async for views in self._watchers.live_tasks(self._pools, self._scope):
                present = [(e, here) for view in views if self.wants(e := _present(view))]
                if present:
                    yield present

    def _from_ring(self) -> WatchBatch | None:
        self._check()
        entries = self._ring.read(self._number, CATCH_UP)
        if entries is None:
            raise Refused(WATCH_TOO_SLOW)
        self._number += len(entries)
        if self._number == self._ring.end:
            self._live = True
            self._watchers.listen(self)
        return self._batch([entry for entry in entries if self.wants(entry[2])])

    def _from_buffer(self) -> WatchBatch | None:
        self._check()
        entries, self._buffer = self._buffer, []
        return self._batch(entries)

    def _batch(self, entries: list[Entry]) -> WatchBatch | None:
        if not entries:
            return None
        epoch = self._watchers.epoch
        events = [
            (event, cursors.encode(epoch, position, index)) for position, index, event in entries
        ]
        return WatchBatch(events, events[-1][1])

    async def _pause(self) -> WatchBatch | None:
        """Waits for an event, or for the time of a bookmark."""
        self._waiter = waiter = asyncio.get_running_loop().create_future()
        alarm: Alarm | None = None
        clock = self._watchers.clock
        if self._bookmarks:
            alarm = clock.call_at(after(clock.now(), BOOKMARK_EVERY), self._wake)
        try:
            await waiter
        finally:
            if alarm is not None:
                alarm.cancel()
        if self._buffer or self._refusal is not None:
            return None
        return WatchBatch([], self._watchers.present())

    def _check(self) -> None:
        if self._refusal is not None:
            raise Refused(self._refusal)


def _allowed(pools: tuple[str, ...], scope: Scope) -> frozenset[str] | None:
    if scope is None:
        return frozenset(pools) if pools else None
    return scope.intersection(pools) if pools else scope


def _present(view: TaskView) -> StatusEvent:
    return StatusEvent(
        view.task_id,
        view.spec.pool,
        view.spec.key,
        view.status,
        view.attempt,
        view.created_at if view.started_at is None else view.started_at,
        view.message,
        view.progress,
    )
