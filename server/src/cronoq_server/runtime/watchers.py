"""Who watches, what they are told, and how long the engine goes on publishing for them.

Rules a change must keep:

1. Only what is durable is published; a watcher sees events in the order of their steps.
2. The end of a task is never missed: a watcher resumes exactly from the ring, or else from the
   store, where ends may come a second time.
3. A cursor that is told lies before all that its watcher has not been told yet, the first one too.
4. Every buffer is bounded. A watcher that falls behind ends with `watch_too_slow`; one whose
   cursor cannot be honoured with `cursor_unknown`.
5. The engine publishes only while somebody watches, and for a while after, so that a watcher whose
   connection broke finds no hole.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from cronoq_server.engine.effects import Page, Publish, StatusEvent, TaskView, Watching
from cronoq_server.engine.events import ListTasks, Scope, Unwatch, Watch
from cronoq_server.engine.model import (
    PENDING,
    SECOND,
    Duration,
    Refusal,
    Status,
    TaskFilter,
    TaskRef,
)
from cronoq_server.runtime import cursors
from cronoq_server.runtime.clock import Alarm, Clock, after
from cronoq_server.runtime.cursors import Cursor
from cronoq_server.runtime.inbox import Inbox
from cronoq_server.runtime.refusals import CURSOR_UNKNOWN, Refused
from cronoq_server.runtime.ring import Ring
from cronoq_server.runtime.watch_stream import WatchBatch as WatchBatch
from cronoq_server.runtime.watch_stream import WatchFilter as WatchFilter
from cronoq_server.runtime.watch_stream import WatchStream as WatchStream
from cronoq_server.stores.base import FinishedPage, FinishedQuery, Forgotten, history_of

LINGER: Duration = 60 * SECOND
"""How long events are still published when the last watcher has gone."""

PAGE = 1000
"""Events read at once from the store or from a listing."""

LIVE = (*(int(status) for status in PENDING), int(Status.RUNNING))


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
        self._closed: Refusal | None = None

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
        cursor = await self._known(after_cursor, scope) if after_cursor else None
        watching = await self._ask(wanted.ids, wanted.keys, scope)
        try:
            ended, refusals = await self._ended(watching, scope)
            if refusals:
                # Nobody knows them; or they were put back after the engine had left them to the
                # store.
                ids = tuple(target for target, _ in refusals if isinstance(target, int))
                keys = tuple(target for target, _ in refusals if isinstance(target, str))
                again = await self._ask(ids, keys, scope)
                try:
                    more, refusals = await self._ended(again, scope)
                finally:
                    self._give_up(again.call)
                ended += more
        except (asyncio.CancelledError, Refused):
            self._give_up(watching.call)
            raise
        number = self._starts.pop(watching.call)
        if self._closed is not None:  # while the store was asked: nobody would ever end this watch
            raise Refused(self._closed)
        if cursor is not None and cursor.epoch == self.epoch:
            resumed = self.ring.number_after(cursor.position, cursor.index)
            if resumed is not None:
                number, cursor = resumed, None
        given = after_cursor or None
        stream = WatchStream(self, wanted, scope, bookmarks, ended, refusals, number, cursor, given)
        self._streams[stream] = None
        return stream

    async def _ask(self, ids: tuple[int, ...], keys: tuple[str, ...], scope: Scope) -> Watching:
        """Has the engine publish; where the watch starts is kept under its call."""
        call = 0

        def build(number: int) -> Watch:
            nonlocal call
            call = number
            return Watch(number, ids, keys, scope)

        try:
            watching = await self._inbox.ask_raw(build)
        except asyncio.CancelledError:
            if call in self._starts:
                self._give_up(call)
            raise
        assert isinstance(watching, Watching), watching
        return watching

    async def _ended(
        self, watching: Watching, scope: Scope
    ) -> tuple[list[StatusEvent], list[tuple[TaskRef, Refusal]]]:
        """Named tasks that have ended, and those that nobody knows."""
        more, refusals = await self._loader.events_of(watching.unknown, scope)
        return [*watching.ended, *more], refusals

    def _give_up(self, call: int) -> None:
        """A watch that was asked for and does not become a stream."""
        del self._starts[call]
        self._left()

    async def _known(self, given: bytes, scope: Scope) -> Cursor:
        cursor = cursors.decode(given)
        if cursor is not None and self._is_known(cursor):
            return cursor
        if cursor is not None:
            # Its successor may have told what a leader that is none any more does not know: only
            # one that leads may say that nobody knows it, and what it is asked is answered then.
            proof = await self._ask((), (), scope)
            self._give_up(proof.call)
            if self._is_known(cursor):
                return cursor
        raise Refused(CURSOR_UNKNOWN)

    def _is_known(self, cursor: Cursor) -> bool:
        ring = self.ring
        if cursor.epoch > self.epoch or cursor.position > ring.position:
            return False
        if history_of(cursor.position) != history_of(ring.position):
            return False  # given before the store was restored from a back-up
        ahead = cursor.position == ring.position and cursor.index > ring.index
        return not (cursor.epoch == self.epoch and ahead)

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
        if self._closed is not None:
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
        self._closed = refusal
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
