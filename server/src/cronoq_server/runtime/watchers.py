"""Who watches, from where, and what becomes of a watcher that does not keep up.

Rules a change must keep:

1. Only what is durable is published; a watcher sees events in the order of their steps.
2. The end of a task is never missed: a watcher resumes exactly from the ring, or else from the
   store, where ends may come a second time.
3. Every buffer is bounded. A watcher that falls behind ends with `watch_too_slow`; one whose
   cursor cannot be honoured with `cursor_unknown`.
4. The engine publishes only while somebody watches, and for a while after, so that a watcher whose
   connection broke finds no hole.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import msgspec

from cronoq_server.engine.effects import Page, Publish, StatusEvent, TaskView, Watching
from cronoq_server.engine.events import ListTasks, Scope, Unwatch, Watch
from cronoq_server.engine.model import (
    FIRST_TERMINAL,
    PENDING,
    SECOND,
    Duration,
    Refusal,
    Status,
    TaskFilter,
    TaskRef,
)
from cronoq_server.engine.views import stored_event
from cronoq_server.runtime import cursors
from cronoq_server.runtime.clock import Alarm, Clock, after
from cronoq_server.runtime.cursors import Cursor
from cronoq_server.runtime.inbox import Inbox
from cronoq_server.runtime.refusals import CURSOR_UNKNOWN, WATCH_TOO_SLOW, Refused
from cronoq_server.runtime.ring import Entry, Ring
from cronoq_server.stores.base import FinishedPage, FinishedQuery, Forgotten

BOOKMARK_EVERY: Duration = 10 * SECOND
"""A watcher that asked for bookmarks hears this often that nothing happened."""

LINGER: Duration = 60 * SECOND
"""How long events are still published when the last watcher has gone."""

PAGE = 1000
"""Events read at once from the ring, from the store or from a listing."""

LIVE = (*(int(status) for status in PENDING), int(Status.RUNNING))

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
        resume = self._resume
        if resume is None:
            return self._watchers.present()
        return cursors.encode(resume.epoch, resume.position, resume.index, resume.whole)

    async def _from_store(self, cursor: Cursor) -> AsyncIterator[list[tuple[StatusEvent, bytes]]]:
        """Ends from the cursor's position on, then how live tasks stand."""
        position, last = cursor.position + cursor.whole, 0
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
        if self._all:
            here = cursors.encode(STORE_EPOCH, position, 0)
            async for views in self._watchers.live_tasks(self._pools, self._scope):
                present = [(e, here) for view in views if self.wants(e := _present(view))]
                if present:
                    yield present

    def _from_ring(self) -> WatchBatch | None:
        self._check()
        entries = self._ring.read(self._number, PAGE)
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


class Watchers:
    """All watchers of one leadership.

    Attributes:
        ring: The last events.
        epoch: Epoch of this leadership, part of every cursor.
        buffer_max: Most events that wait for one watcher.
        clock: For bookmarks.
    """

    def __init__(
        self,
        inbox: Inbox,
        clock: Clock,
        *,
        epoch: int,
        position: int,
        buffer_max: int = 10_000,
    ) -> None:
        self.ring = Ring(position)
        self.epoch = epoch
        self.buffer_max = buffer_max
        self.clock = clock
        self._inbox = inbox
        self._loader = inbox.loader
        self._starts: dict[int, int] = {}
        self._streams: dict[WatchStream, None] = {}
        self._broad: dict[WatchStream, None] = {}
        self._by_name: dict[TaskRef, list[WatchStream]] = {}
        self._publishing = False
        self._spare = False
        self._alarm: Alarm | None = None
        self._closed = False

    async def open(
        self,
        wanted: WatchFilter,
        *,
        after_cursor: bytes | None = None,
        bookmarks: bool = False,
        scope: Scope = None,
    ) -> WatchStream:
        """Begins to watch.

        Args:
            wanted: Which events.
            after_cursor: Where an earlier watch ended; None = from now on.
            bookmarks: Whether to send cursors at once and when nothing happens.
            scope: Pools that the caller may see; None = all.

        Raises:
            Refused: The cursor is unknown, or no call is taken now.
        """
        cursor = self._known(after_cursor) if after_cursor else None
        call = 0

        def build(number: int) -> Watch:
            nonlocal call
            call = number
            return Watch(number, wanted.ids, wanted.keys, scope)

        try:
            watching = await self._inbox.ask_raw(build)
        except asyncio.CancelledError:
            if self._starts.pop(call, None) is not None:
                self._left()
            raise
        assert isinstance(watching, Watching), watching
        number = self._starts.pop(call)
        ended = list(watching.ended)
        try:
            more, refusals = await self._loader.events_of(watching.unknown, scope)
        except (asyncio.CancelledError, Refused):
            self._left()
            raise
        ended += more
        if cursor is not None and cursor.epoch == self.epoch:
            resumed = self.ring.number_after(cursor.position, cursor.index)
            if resumed is not None:
                number, cursor = resumed, None
        stream = WatchStream(self, wanted, scope, bookmarks, ended, refusals, number, cursor)
        self._streams[stream] = None
        return stream

    def _known(self, given: bytes) -> Cursor:
        cursor, ring = cursors.decode(given), self.ring
        if cursor is None or cursor.epoch > self.epoch or cursor.position > ring.position:
            raise Refused(CURSOR_UNKNOWN)
        ahead = cursor.position == ring.position and cursor.index > ring.index
        if cursor.epoch == self.epoch and ahead:
            raise Refused(CURSOR_UNKNOWN)
        return cursor

    def begin(self, watching: Watching) -> None:
        """A watch is durable in the engine: from here on, its caller misses nothing."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        if self._spare:
            self._spare = False
            self._inbox.tell(Unwatch())
        elif not self._publishing:
            self.ring.restart()
        self._publishing = True
        self._starts[watching.call] = self.ring.end
        if not self._inbox.resolve(watching.call, watching):
            del self._starts[watching.call]
            self._left()

    def publish(self, publish: Publish) -> None:
        """Tells events that have become durable."""
        entries = self.ring.add(publish.events)
        for stream in list(self._broad):
            for entry in entries:
                stream.offer(entry)
        if self._by_name:
            by_name = self._by_name
            for entry in entries:
                event = entry[2]
                for stream in (*by_name.get(event.task_id, ()), *by_name.get(event.key, ())):
                    stream.offer(entry)

    def advance(self, position: int) -> None:
        """Notes the position that has become durable."""
        self.ring.advance(position)

    def present(self) -> bytes:
        """The cursor behind everything that was published."""
        return cursors.encode(self.epoch, self.ring.position, self.ring.index, whole=True)

    def listen(self, stream: WatchStream) -> None:
        """From now on a stream is offered events as they are published."""
        if not stream.names:
            self._broad[stream] = None
        for name in stream.names:
            self._by_name.setdefault(name, []).append(stream)

    def quiet(self, stream: WatchStream) -> None:
        """A stream is offered nothing any more."""
        self._broad.pop(stream, None)
        for name in stream.names:
            listeners = self._by_name.get(name)
            if listeners is not None and stream in listeners:
                listeners.remove(stream)
                if not listeners:
                    del self._by_name[name]

    def leave(self, stream: WatchStream) -> None:
        """A stream is closed."""
        self.quiet(stream)
        if self._streams.pop(stream, stream) is None:
            self._left()

    def _left(self) -> None:
        """One watch less; the last one is kept in the engine for a while."""
        if self._closed:
            return
        if self._streams or self._starts:
            self._inbox.tell(Unwatch())
            return
        self._spare = True
        self._alarm = self.clock.call_at(after(self.clock.now(), LINGER), self._stop)

    def _stop(self) -> None:
        self._alarm = None
        self._spare = False
        self._publishing = False
        self._inbox.tell(Unwatch())

    def close(self, refusal: Refusal) -> None:
        """Ends every watch."""
        self._closed = True
        if self._alarm is not None:
            self._alarm.cancel()
        for stream in list(self._streams):
            stream.refuse(refusal)

    async def find_ends(
        self, position: int, last: int, pools: frozenset[str] | None
    ) -> FinishedPage:
        """Ends in the store from a position on, behind a task of it.

        Raises:
            Refused: The store can't be reached, or does not go back that far.
        """
        wanted = TaskFilter(pools=() if pools is None else tuple(sorted(pools)))
        query = FinishedQuery(filter=wanted, ended_after=position, after=last, limit=PAGE)
        try:
            return await self._loader.find(query)
        except Forgotten as error:
            raise Refused(CURSOR_UNKNOWN) from error

    async def live_tasks(
        self, pools: frozenset[str] | None, scope: Scope
    ) -> AsyncIterator[tuple[TaskView, ...]]:
        """Pages of tasks that have not ended."""
        wanted = TaskFilter(pools=() if pools is None else tuple(sorted(pools)), statuses=LIVE)
        last = 0
        while True:
            at = last
            page = await self._inbox.ask(
                lambda call, at=at: ListTasks(call, wanted, at, PAGE, scope=scope)  # type: ignore[misc]
            )
            assert isinstance(page, Page), page
            yield page.tasks
            last = page.next_after
            if last == 0:
                return
