"""The one database of a world, and each process's unsure way to it.

A `MemoryDisk` behind requests that take time, fail, or succeed without anybody hearing of it. A
request that was sent is with the database: whether the process that sent it lives on decides
nothing any more. A request that a living process gave up has no effect afterwards.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any, TypeVar

from cronoq_server.engine.model import MILLISECOND, SECOND, Duration, Instant
from cronoq_server.engine.mutations import Output, RecoveredChunk, StoredTask
from cronoq_server.stores.base import (
    Batch,
    Capabilities,
    FinishedPage,
    FinishedQuery,
    Leadership,
    StoreError,
    TimeBase,
    Unavailable,
)
from cronoq_server.stores.memory import MemoryDisk, MemoryStore
from tests.sim.clockwork import Machine, Timeline

T = TypeVar("T")


CALM: Duration = 20 * MILLISECOND
"""Longest time that a request takes when all is well."""


class Weather:
    """How the way to the database is at the moment.

    Attributes:
        failing: How many requests of a hundred fail.
        down: Whether none gets through.
        slowest: Longest time that a request takes.
    """

    def __init__(self) -> None:
        self.failing = 0
        self.down = False
        self.slowest: Duration = CALM

    def clear(self) -> None:
        """From now on all is well."""
        self.failing = 0
        self.down = False
        self.slowest = CALM


def at_once(work: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that waits for nothing."""
    try:
        work.send(None)
    except StopIteration as over:
        value: T = over.value
        return value
    raise AssertionError("a memory store waits for nothing")


class _Request:
    """One commit on its way."""

    __slots__ = ("done", "is_void")

    def __init__(self, done: asyncio.Future[None]) -> None:
        self.done = done
        self.is_void = False


class Term:
    """One term, checked over the same unsure way."""

    def __init__(self, store: DistantStore, inner: Leadership) -> None:
        self.epoch = inner.epoch
        self.position = inner.position
        self.high_water = inner.high_water
        self.inner = inner
        self._store = store

    async def check(self) -> None:
        """See `Leadership.check`."""
        await self._store.check(self)


class DistantStore:
    """One process's store.

    Attributes:
        is_cut: Whether its process is gone: nothing reaches the database any more.
    """

    def __init__(
        self,
        disk: MemoryDisk,
        machine: Machine,
        weather: Weather,
        chance: random.Random,
        committed: Callable[[Term, Batch], None],
        remembers: bool,
    ) -> None:
        self.is_cut = False
        self._inner = MemoryStore(disk, remembers=remembers)
        self._disk = disk
        self._machine = machine
        self._timeline: Timeline = machine.timeline
        self._weather = weather
        self._chance = chance
        self._committed = committed

    @property
    def capabilities(self) -> Capabilities:
        """See `Store.capabilities`."""
        return self._inner.capabilities

    async def acquire_leadership(
        self, holder: str, now: Instant, time_base: TimeBase
    ) -> Leadership | None:
        """See `Store.acquire_leadership`."""
        await self._travel()
        term = await self._inner.acquire_leadership(holder, now, time_base)
        return None if term is None else Term(self, term)

    async def commit(self, leadership: Leadership, batch: Batch) -> None:
        """See `Store.commit`."""
        assert isinstance(leadership, Term)
        if self.is_cut:
            raise Unavailable("this process is gone")
        term = leadership
        request = _Request(asyncio.get_running_loop().create_future())
        fate = self._fate()
        self._timeline.after(self._delay(), lambda: self._arrive(request, term, batch, fate))
        try:
            await request.done
        except asyncio.CancelledError:
            request.is_void = self._takes_back()
            raise

    def _takes_back(self) -> bool:
        """A living process takes its request back; a dying one has sent it or has not."""
        return not self.is_cut or self._chance.random() < 0.5

    def _arrive(self, request: _Request, term: Term, batch: Batch, fate: str) -> None:
        if request.is_void:
            return
        error: Exception | None = None
        if fate == "lost":
            error = Unavailable("the request was lost, on purpose")
        else:
            try:
                before = self._disk.position
                at_once(self._inner.commit(term.inner, batch))
                if self._disk.position != before:
                    self._committed(term, batch)
            except StoreError as refused:
                error = refused
        if fate == "unheard" and error is None:
            error = Unavailable("the answer was lost, on purpose")
        self._answer(request.done, error)

    def _answer(self, done: asyncio.Future[None], error: Exception | None) -> None:
        def arrive() -> None:
            if done.done():
                return
            if error is None:
                done.set_result(None)
            else:
                done.set_exception(error)

        thawed = self._machine.frozen_until
        if thawed > self._timeline.now:
            self._timeline.at(thawed, arrive)
        elif self._weather.slowest > SECOND and self._chance.random() < 0.3:
            self._timeline.after(self._delay(), arrive)
        else:
            arrive()

    async def check(self, term: Term) -> None:
        """What `Term.check` does."""
        await self._travel(lambda: at_once(term.inner.check()))

    async def recover(
        self, leadership: Leadership, horizon: Instant
    ) -> AsyncIterator[RecoveredChunk]:
        """See `Store.recover`; the world goes on between its chunks."""
        assert isinstance(leadership, Term)
        await self._travel()
        chunks = [chunk async for chunk in self._inner.recover(leadership.inner, horizon)]
        for chunk in chunks:
            yield chunk
        await self._travel()

    async def release_leadership(self, leadership: Leadership) -> None:
        """See `Store.release_leadership`."""
        assert isinstance(leadership, Term)
        await self._travel()
        await self._inner.release_leadership(leadership.inner)

    async def load_outputs(self, ids: Sequence[int]) -> dict[int, Output]:
        """See `Store.load_outputs`."""
        await self._travel()
        return await self._inner.load_outputs(ids)

    async def find_finished(self, query: FinishedQuery) -> FinishedPage:
        """See `Store.find_finished`."""
        await self._travel()
        page = await self._inner.find_finished(query)
        if self._chance.random() < 0.2:
            await self._travel()
        return page

    async def load_tasks(self, ids: Sequence[int]) -> list[StoredTask]:
        """See `Store.load_tasks`."""
        await self._travel()
        return await self._inner.load_tasks(ids)

    async def close(self) -> None:
        """See `Store.close`."""
        await self._inner.close()

    # --- the way ---------------------------------------------------------------------------------

    def _fate(self) -> str:
        weather = self._weather
        if weather.down:
            return "lost"
        if weather.failing and self._chance.randrange(100) < weather.failing:
            return self._chance.choice(("lost", "unheard"))
        return ""

    def _delay(self) -> Duration:
        thaw = self._machine.frozen_until - self._timeline.now
        return max(0, thaw) + int(self._weather.slowest * self._chance.random())

    async def _travel(self, work: Callable[[], object] | None = None) -> None:
        """A round trip, with something to be done at its far end; fails as the weather says."""
        if self.is_cut:
            raise Unavailable("this process is gone")
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        failure = Unavailable("no way through, on purpose") if self._fate() else None

        def arrive() -> None:
            error: Exception | None = failure
            if error is None and work is not None:
                try:
                    work()
                except StoreError as refused:
                    error = refused
            self._answer(done, error)

        self._timeline.after(self._delay(), arrive)
        await done
        if self.is_cut:
            raise Unavailable("this process is gone")
