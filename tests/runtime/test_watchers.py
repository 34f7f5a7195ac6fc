"""Watchers: what is published, from where a watch resumes, and what becomes of a slow one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from cronoq_server.engine.effects import Page, Publish, StatusEvent, TaskView, Watching
from cronoq_server.engine.events import Event, ListTasks, Unwatch, Watch
from cronoq_server.engine.model import ErrorReason, Status, TaskRef
from cronoq_server.engine.mutations import TasksPruned
from cronoq_server.runtime import (
    NOT_LEADER,
    Inbox,
    Refused,
    WatchBatch,
    Watchers,
    WatchFilter,
    WatchStream,
    cursors,
)
from cronoq_server.runtime import ring as ring_module
from cronoq_server.runtime.loading import Loader
from cronoq_server.runtime.watch_stream import BOOKMARK_EVERY
from cronoq_server.runtime.watchers import LINGER
from cronoq_server.stores.base import HISTORY_BITS, FinishedPage, FinishedQuery, Leadership
from cronoq_server.stores.memory import MemoryDisk, MemoryStore
from cronoq_server.testing.builders import batch, changed, inserted, task
from cronoq_server.testing.faults import ManualClock, settle
from cronoq_server.testing.store_suite import lead
from tests.runtime.rig import done

ALL = WatchFilter(all_transitions=True)
ENDS = WatchFilter()


def event(task_id: int, status: Status = Status.SUCCEEDED, **given: Any) -> StatusEvent:
    """A transition of a task in pool `default`."""
    values = {"pool": "default", "key": "", "attempt": 1, "at": task_id}
    return StatusEvent(**{"task_id": task_id, "status": status, **values, **given})


def ids(*batches: WatchBatch) -> list[int]:
    """The tasks that these batches are about."""
    return [event.task_id for batch in batches for event, _ in batch.events]


class Post:
    """Watchers of a leader, with an engine that answers as told."""

    def __init__(self, *, buffer_max: int = 100, disk: MemoryDisk | None = None) -> None:
        self.clock = ManualClock()
        self.disk = disk or MemoryDisk()
        self.store = MemoryStore(self.disk)
        self.inbox = Inbox(self.clock, Loader(self.store))
        self.buffer_max = buffer_max
        self.watchers: Watchers
        self.term: Leadership
        self.seen: list[Event] = []
        self.ended: dict[int, StatusEvent] = {}
        self.live: tuple[TaskView, ...] = ()
        self.answering: asyncio.Task[None]

    async def begin(self) -> None:
        """Leads, and answers what is asked."""
        self.term = await lead(self.store)
        self.watchers = Watchers(
            self.inbox,
            self.clock,
            epoch=self.term.epoch,
            position=self.term.position,
            buffer_max=self.buffer_max,
        )
        self.answering = asyncio.create_task(self._answer())

    async def _answer(self) -> None:
        while True:
            await self.inbox.bell.wait()
            self.inbox.bell.clear()
            for event in self.inbox.drain(1000):
                self.seen.append(event)
                if isinstance(event, Watch):
                    told = tuple(self.ended[i] for i in event.ids if i in self.ended)
                    names: tuple[TaskRef, ...] = (*event.ids, *event.keys)
                    rest = tuple(name for name in names if name not in self.ended)
                    self.watchers.begin(Watching(event.call, told, rest))
                elif isinstance(event, ListTasks):
                    self.inbox.resolve(event.call, Page(self.live, 0))

    async def commit(self, *events: StatusEvent, stored: bool = True) -> None:
        """A batch becomes durable and its transitions are published."""
        position = self.watchers.ring.position + 1
        if stored:
            rows: list[Any] = []
            for e in events:
                if not await self.store.load_tasks([e.task_id]):
                    rows.append(inserted(e.task_id, pool=e.pool, key=e.key))
                if e.status >= Status.SUCCEEDED:
                    rows.append(changed(e.task_id, Status(e.status), at=e.at))
            await self.store.commit(self.term, batch(position, *rows))
        self.watchers.advance(position)
        if events:
            self.watchers.publish(Publish(list(events)))

    def unwatched(self) -> int:
        """How many watches less the engine was told of."""
        return sum(isinstance(event, Unwatch) for event in self.seen)


@asynccontextmanager
async def leader(**given: Any) -> AsyncIterator[Post]:
    """A leader's watchers."""
    post = Post(**given)
    await post.begin()
    yield post
    post.answering.cancel()
    await asyncio.gather(post.answering, return_exceptions=True)


async def read(stream: WatchStream) -> WatchBatch:
    """What a watcher is told next, which must be there."""
    return await done(anext(stream))


async def nothing(stream: WatchStream) -> asyncio.Task[WatchBatch]:
    """A watcher that has to wait; returns the waiting."""
    waiting = asyncio.create_task(_next(stream))
    await settle()
    assert not waiting.done()
    return waiting


async def _next(stream: WatchStream) -> WatchBatch:
    return await anext(stream)


async def refused(stream: WatchStream) -> ErrorReason:
    """Why a watch ended."""
    with pytest.raises(Refused) as caught:
        await read(stream)
    return caught.value.refusal.reason


class TestFilter:
    """Which events a watcher is told."""

    @pytest.mark.parametrize(
        ("wanted", "expected"),
        [
            (WatchFilter(), [2, 3]),
            (WatchFilter(all_transitions=True), [1, 2, 3]),
            (WatchFilter(pools=("p",)), [3]),
            (WatchFilter(ids=(2,)), [2]),
            (WatchFilter(keys=("a",)), [2]),
            (WatchFilter(ids=(3,), keys=("a",)), [2, 3]),
            (WatchFilter(ids=(2,), keys=("a",)), [2]),
            (WatchFilter(pools=("p",), ids=(2,)), []),
            (WatchFilter(ids=(1,)), []),
            (WatchFilter(ids=(1,), all_transitions=True), [1]),
        ],
    )
    @pytest.mark.parametrize("live", [True, False])
    async def test_by_pool_id_key_and_end(
        self, wanted: WatchFilter, expected: list[int], live: bool
    ) -> None:
        """The same whether it listens live or catches up from the ring."""
        async with leader() as post:
            stream = await done(post.watchers.open(wanted))
            waiting = await nothing(stream) if live else None
            await post.commit(event(1, Status.RUNNING), event(2, key="a"), event(3, pool="p"))
            if waiting is None:
                waiting = asyncio.create_task(_next(stream))
            await settle()
            if expected:
                assert ids(await done(waiting)) == expected
            else:
                assert not waiting.done()
                waiting.cancel()

    async def test_only_pools_of_the_caller(self) -> None:
        """Whatever was asked for."""
        async with leader() as post:
            scope = frozenset({"p"})
            broad = await done(post.watchers.open(ENDS, scope=scope))
            named = await done(post.watchers.open(WatchFilter(pools=("default", "p")), scope=scope))
            await post.commit(event(1), event(2, pool="p"))
            assert ids(await read(broad), await read(named)) == [2, 2]

    async def test_named_tasks_that_have_ended_are_told_at_once(self) -> None:
        """Whether the engine or only the store still knows them; the rest is said to be unknown."""
        async with leader() as post:
            await post.commit(event(1), event(2, key="a"), event(3, pool="secret"))
            post.ended[1] = event(1)
            wanted = WatchFilter(ids=(1, 3, 4), keys=("a",))
            stream = await done(post.watchers.open(wanted, scope=frozenset({"default"})))
            assert ids(await read(stream)) == [1, 2]
            assert [(target, why.reason) for target, why in stream.refusals] == [
                (3, ErrorReason.TASK_UNKNOWN),
                (4, ErrorReason.TASK_UNKNOWN),
            ]


class TestOrder:
    """Events come in order, with cursors between them."""

    async def test_what_comes_together_is_told_together(self) -> None:
        """Several batches that a watcher has not read yet are one."""
        async with leader() as post:
            stream = await done(post.watchers.open(ENDS))
            (await nothing(stream)).cancel()
            stream = await done(post.watchers.open(ENDS))
            await post.commit(event(1), event(2))
            await post.commit(event(3))
            assert ids(await read(stream)) == [1, 2, 3]

    async def test_every_event_has_its_cursor_and_they_rise(self) -> None:
        """A watcher may stop after any of them."""
        async with leader() as post:
            stream = await done(post.watchers.open(ENDS))
            await post.commit(event(1), event(2))
            await post.commit(event(3))
            told = await read(stream)
            places = [cursors.decode(cursor) for _, cursor in told.events]
            assert [(c.position, c.index) for c in places if c is not None] == [
                (1, 1),
                (1, 2),
                (2, 1),
            ]
            assert told.cursor == told.events[-1][1]

    async def test_a_step_that_wrote_nothing_goes_on_counting(self) -> None:
        """Its events belong to the position before."""
        async with leader() as post:
            stream = await done(post.watchers.open(ALL))
            await post.commit(event(1))
            post.watchers.publish(Publish([event(2, Status.READY)]))
            told = await read(stream)
            places = [cursors.decode(cursor) for _, cursor in told.events]
            assert [(c.position, c.index) for c in places if c is not None] == [(1, 1), (1, 2)]


class TestResume:
    """A watcher goes on where it was."""

    @pytest.mark.parametrize("after", [0, 1, 2, 3, 4])
    async def test_exactly_from_the_ring(self, after: int) -> None:
        """After any event: everything behind it, nothing twice, then live."""
        async with leader() as post:
            first = await done(post.watchers.open(ENDS, bookmarks=True))
            cursor = (await read(first)).cursor
            await post.commit(event(1), event(2))
            await post.commit(event(3), event(4))
            told = await read(first)
            if after:
                cursor = told.events[after - 1][1]
            await first.aclose()
            await post.commit(event(5))
            second = await done(post.watchers.open(ENDS, after_cursor=cursor))
            assert ids(await read(second)) == list(range(after + 1, 6))
            waiting = await nothing(second)
            await post.commit(event(6))
            assert ids(await done(waiting)) == [6]

    @pytest.mark.parametrize("resumes", [False, True])
    async def test_the_first_cursor_lies_before_all_that_comes(self, resumes: bool) -> None:
        """Whoever is cut off right behind it, and resumes there, misses nothing."""
        async with leader() as post:
            begun = await done(post.watchers.open(ENDS, bookmarks=True))
            cursor = (await read(begun)).cursor
            after = cursor if resumes else None
            if resumes:
                await post.commit(event(1), event(2))
            stream = await done(post.watchers.open(ENDS, after_cursor=after, bookmarks=True))
            if not resumes:
                await post.commit(event(1), event(2))
            first = await read(stream)
            assert first.events == []
            await stream.aclose()
            again = await done(post.watchers.open(ENDS, after_cursor=first.cursor))
            assert ids(await read(again)) == [1, 2]

    async def test_from_the_store_when_the_ring_no_longer_reaches_back(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Every end, in order of positions; those of the cursor's own may come twice."""
        monkeypatch.setattr(ring_module, "RING_MAX", 2)
        async with leader() as post:
            first = await done(post.watchers.open(ENDS))
            await post.commit(event(1))
            cursor = (await read(first)).cursor
            for task_id in range(2, 10):
                await post.commit(event(task_id))
            second = await done(post.watchers.open(ENDS, after_cursor=cursor))
            assert ids(await read(second)) == list(range(1, 10))
            waiting = await nothing(second)
            await post.commit(event(10))
            assert ids(await done(waiting)) == [10]

    async def test_from_the_store_across_a_failover(self) -> None:
        """No end between two leaders is missed."""
        disk = MemoryDisk()
        async with leader(disk=disk) as post:
            stream = await done(post.watchers.open(ENDS))
            await post.commit(event(1))
            cursor = (await read(stream)).cursor
            await post.commit(event(2))
            await post.store.release_leadership(post.term)
        async with leader(disk=disk) as post:
            await post.commit(event(3))
            stream = await done(post.watchers.open(ENDS, after_cursor=cursor))
            assert ids(await read(stream)) == [1, 2, 3]
            await post.commit(event(4))
            assert ids(await read(stream)) == [4]

    async def test_a_cursor_of_an_event_from_the_store_works_again(self) -> None:
        """However often the watcher is cut off."""
        disk = MemoryDisk()
        async with leader(disk=disk) as post:
            stream = await done(post.watchers.open(ENDS, bookmarks=True))
            cursor = (await read(stream)).cursor
            for task_id in (1, 2, 3):
                await post.commit(event(task_id))
            await post.store.release_leadership(post.term)
        async with leader(disk=disk) as post:
            stream = await done(post.watchers.open(ENDS, after_cursor=cursor))
            told = await read(stream)
            assert ids(told) == [1, 2, 3]
            again = await done(post.watchers.open(ENDS, after_cursor=told.events[1][1]))
            assert ids(await read(again)) == [2, 3]

    async def test_live_tasks_are_told_as_they_stand_if_all_transitions_are_wanted(self) -> None:
        """One event each, after the ends."""
        disk = MemoryDisk()
        async with leader(disk=disk) as post:
            stream = await done(post.watchers.open(ALL, bookmarks=True))
            cursor = (await read(stream)).cursor
            await post.commit(event(1))
            await post.store.release_leadership(post.term)
        async with leader(disk=disk) as post:
            view = TaskView(7, task(), Status.RUNNING, 1, 3, 5, 6, None, "", False)
            post.live = (view,)
            stream = await done(post.watchers.open(ALL, after_cursor=cursor))
            first, second = await read(stream), await read(stream)
            assert ids(first, second) == [1, 7]
            assert second.events[0][0].status == Status.RUNNING
            ends = await done(post.watchers.open(ENDS, after_cursor=cursor))
            assert ids(await read(ends)) == [1]
            (await nothing(ends)).cancel()

    async def test_events_that_went_by_unpublished_are_no_hole(self) -> None:
        """With nobody watching for long the ring begins anew, and the store is asked."""
        async with leader() as post:
            first = await done(post.watchers.open(ENDS))
            await post.commit(event(1))
            cursor = (await read(first)).cursor
            await first.aclose()
            await post.clock.advance(LINGER + 1)
            position = post.watchers.ring.position + 1
            await post.store.commit(post.term, batch(position, inserted(2), changed(2)))
            post.watchers.advance(position)
            second = await done(post.watchers.open(ENDS, after_cursor=cursor))
            assert ids(await read(second)) == [1, 2]

    async def test_a_cursor_of_how_tasks_stand_works_before_anything_else_happens(self) -> None:
        """Again and again: a stream that breaks at once has moved nothing."""
        async with leader() as post:
            post.live = (TaskView(7, task(), Status.RUNNING, 1, 3, 5, 6, None, "", False),)
            await post.commit(event(1))
            cursor = post.watchers.present()
            await post.store.release_leadership(post.term)
        async with leader(disk=post.disk) as post:
            post.live = (TaskView(7, task(), Status.RUNNING, 1, 3, 5, 6, None, "", False),)
            for _ in range(3):
                stream = await done(post.watchers.open(ALL, after_cursor=cursor))
                batch = await read(stream)
                assert ids(batch) == [7]
                cursor = batch.cursor
                await stream.aclose()

    async def test_a_cursor_from_elsewhere_is_unknown(self) -> None:
        """Garbage, one ahead of the store, one of a later leader, one ahead within the position."""
        async with leader() as post:
            stream = await done(post.watchers.open(ENDS))
            await post.commit(event(1))
            await read(stream)
            epoch = post.term.epoch
            for cursor in (
                b"garbage",
                bytes(len(cursors.encode(1, 1, 1))),
                cursors.encode(epoch, 2, 0),
                cursors.encode(epoch + 1, 1, 0),
                cursors.encode(epoch, 1, 2),
            ):
                with pytest.raises(Refused) as caught:
                    await done(post.watchers.open(ENDS, after_cursor=cursor))
                assert caught.value.refusal.reason is ErrorReason.CURSOR_UNKNOWN

    async def test_a_cursor_of_the_time_before_a_restore_is_unknown(self) -> None:
        """Also when the log has grown past it: what it has seen may have been undone."""
        disk = MemoryDisk()
        async with leader(disk=disk) as post:
            await post.commit(event(1))
            old = post.watchers.present()
            await post.store.release_leadership(post.term)
        disk.position = 1 << HISTORY_BITS
        async with leader(disk=disk) as post:
            await post.commit(event(2))
            with pytest.raises(Refused) as caught:
                await done(post.watchers.open(ENDS, after_cursor=old))
            assert caught.value.refusal.reason is ErrorReason.CURSOR_UNKNOWN
            stream = await done(post.watchers.open(ENDS, after_cursor=post.watchers.present()))
            assert not stream.refusals

    async def test_a_cursor_from_before_the_retained_ends_is_unknown(self) -> None:
        """Ends after it are gone: the watcher must know that it missed some."""
        disk = MemoryDisk()
        async with leader(disk=disk) as post:
            stream = await done(post.watchers.open(ENDS, bookmarks=True))
            cursor = (await read(stream)).cursor
            await post.commit(event(1))
            await post.store.commit(post.term, batch(2, TasksPruned(1000, 10)))
            await post.store.release_leadership(post.term)
        async with leader(disk=disk) as post:
            stream = await done(post.watchers.open(ENDS, after_cursor=cursor))
            assert await refused(stream) is ErrorReason.CURSOR_UNKNOWN

    async def test_a_bookmark_is_good_when_all_before_it_is_pruned(self) -> None:
        """It had seen everything of its position: nothing was missed."""
        disk = MemoryDisk()
        async with leader(disk=disk) as post:
            await post.commit(event(1))
            stream = await done(post.watchers.open(ENDS, bookmarks=True))
            cursor = (await read(stream)).cursor
            await post.store.commit(post.term, batch(2, TasksPruned(1000, 10)))
            await post.store.release_leadership(post.term)
        async with leader(disk=disk) as post:
            await post.commit(event(2))
            stream = await done(post.watchers.open(ENDS, after_cursor=cursor))
            assert ids(await read(stream)) == [2]


class TestBounds:
    """A watcher that does not keep up costs nobody anything."""

    async def test_one_that_does_not_read_is_ended(self) -> None:
        """Its buffer is bounded; others are not touched."""
        async with leader(buffer_max=3) as post:
            slow = await done(post.watchers.open(ENDS))
            quick = await done(post.watchers.open(ENDS))
            for stream in (slow, quick):
                (await nothing(stream)).cancel()
            slow, quick = [await done(post.watchers.open(ENDS)) for _ in range(2)]
            await post.commit(event(1))
            for stream in (slow, quick):
                await read(stream)
            for task_id in (2, 3, 4, 5):
                await post.commit(event(task_id))
                assert ids(await read(quick)) == [task_id]
            assert await refused(slow) is ErrorReason.WATCH_TOO_SLOW

    @pytest.mark.regression("R28")
    async def test_one_that_catches_up_too_slowly_is_ended(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The ring has moved on past it."""
        monkeypatch.setattr(ring_module, "RING_MAX", 2)
        async with leader() as post:
            stream = await done(post.watchers.open(ENDS))
            for task_id in range(1, 10):
                await post.commit(event(task_id))
            assert await refused(stream) is ErrorReason.WATCH_TOO_SLOW

    async def test_the_ring_keeps_so_many_events_and_no_more_than_twice(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Memory stays flat, however much is published."""
        monkeypatch.setattr(ring_module, "RING_MAX", 10)
        ring = ring_module.Ring(0)
        for position in range(1, 100):
            ring.advance(position)
            ring.add([event(position), event(position)])
            assert 2 * min(position, 5) <= ring.end - ring.start <= 20


class TestBookmarks:
    """Cursors without events."""

    async def test_the_first_message_is_one(self) -> None:
        """So that a watcher can resume before anything has happened."""
        async with leader() as post:
            stream = await done(post.watchers.open(ENDS, bookmarks=True))
            first = await read(stream)
            assert first.events == []
            await post.commit(event(1))
            await stream.aclose()
            again = await done(post.watchers.open(ENDS, after_cursor=first.cursor))
            assert ids(await read(again)) == [1]

    async def test_when_nothing_happens_one_comes_every_ten_seconds(self) -> None:
        """With the present position, though its own tasks are quiet."""
        async with leader() as post:
            stream = await done(post.watchers.open(WatchFilter(pools=("quiet",)), bookmarks=True))
            await read(stream)
            for position in (1, 2):
                waiting = await nothing(stream)
                await post.commit(event(position))
                await post.clock.advance(BOOKMARK_EVERY - 1)
                assert not waiting.done()
                await post.clock.advance(1)
                bookmark = await done(waiting)
                place = cursors.decode(bookmark.cursor)
                assert bookmark.events == []
                assert place is not None
                assert place.position == position

    async def test_nobody_gets_one_who_did_not_ask(self) -> None:
        """An older client would not know what to make of it."""
        async with leader() as post:
            stream = await done(post.watchers.open(ENDS))
            waiting = await nothing(stream)
            await post.clock.advance(10 * BOOKMARK_EVERY)
            assert not waiting.done()
            waiting.cancel()


class TestEngineIsTold:
    """The engine publishes only while somebody watches."""

    async def test_every_watch_ends_with_one_unwatch(self) -> None:
        """The last one a while later, so that a broken connection leaves no hole."""
        async with leader() as post:
            first = await done(post.watchers.open(ENDS))
            second = await done(post.watchers.open(ENDS))
            await first.aclose()
            await settle()
            assert post.unwatched() == 1
            await second.aclose()
            await second.aclose()
            await post.clock.advance(LINGER - 1)
            assert post.unwatched() == 1
            await post.clock.advance(1)
            assert post.unwatched() == 2

    async def test_a_new_watch_takes_the_place_of_the_one_that_lingers(self) -> None:
        """The engine counts right at any time."""
        async with leader() as post:
            first = await done(post.watchers.open(ENDS))
            await first.aclose()
            second = await done(post.watchers.open(ENDS))
            await settle()
            assert post.unwatched() == 1
            await post.clock.advance(2 * LINGER)
            assert post.unwatched() == 1
            await second.aclose()
            await post.clock.advance(LINGER)
            assert post.unwatched() == 2

    async def test_a_watcher_that_leaves_before_its_answer_is_counted_out(self) -> None:
        """Its watch began in the engine, and ends there."""
        async with leader() as post:
            opening = asyncio.create_task(post.watchers.open(ENDS))
            await asyncio.sleep(0)
            event_seen = post.inbox.drain(10)
            opening.cancel()
            await settle()
            for e in event_seen:
                assert isinstance(e, Watch)
                post.watchers.begin(Watching(e.call))
            await post.clock.advance(LINGER)
            assert post.unwatched() == 1

    async def test_a_refused_watch_was_none(self) -> None:
        """The refusal is raised."""
        async with leader() as post:
            post.inbox.refuse_new(NOT_LEADER)
            with pytest.raises(Refused) as caught:
                await done(post.watchers.open(ENDS))
            assert caught.value.refusal == NOT_LEADER
            await post.clock.advance(LINGER)
            assert post.unwatched() == 0


async def test_at_the_end_every_watch_ends() -> None:
    """Waiting or not, with the reason."""
    async with leader() as post:
        reading = await done(post.watchers.open(ENDS))
        idle = await done(post.watchers.open(ENDS))
        waiting = await nothing(reading)
        post.watchers.close(NOT_LEADER)
        await settle()
        assert isinstance(waiting.exception(), Refused)
        assert await refused(idle) is ErrorReason.NOT_LEADER


async def test_a_watch_that_is_opened_while_the_leadership_ends_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The store still looked for a task that it names; nothing would ever come to such a watch."""
    found, find = asyncio.Event(), MemoryStore.find_finished

    async def slow(store: MemoryStore, query: FinishedQuery) -> FinishedPage:
        await found.wait()
        return await find(store, query)

    async with leader() as post:
        await post.commit(event(1))
        monkeypatch.setattr(MemoryStore, "find_finished", slow)
        opening = asyncio.create_task(post.watchers.open(WatchFilter(ids=(1,))))
        await settle()
        post.watchers.close(NOT_LEADER)
        found.set()
        with pytest.raises(Refused) as caught:
            await done(opening)
        assert caught.value.refusal == NOT_LEADER
