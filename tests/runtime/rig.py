"""A driver on a manual clock over a store that fails on purpose, for tests to start and look into.

`Rig` runs the real engine or a `ScriptedEngine`, which does what a test tells it and remembers
what it was told.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from cronoq_server.engine.effects import Admitted, Dispatch, Done, Effect, Lease, Reply
from cronoq_server.engine.engine import Engine, Step
from cronoq_server.engine.events import Cancel, Event, Get, Submit
from cronoq_server.engine.model import SECOND, Now, TaskSpec
from cronoq_server.engine.mutations import Mutation, RecoveredChunk
from cronoq_server.engine.timers import NEVER
from cronoq_server.runtime import Driver, DriverSettings, Ending, Session
from cronoq_server.stores.base import TimeBase
from cronoq_server.stores.memory import MemoryDisk, MemoryStore
from cronoq_server.testing.builders import engine_settings, inserted, submit, task, worker
from cronoq_server.testing.faults import Fault, FaultyStore, ManualClock, settle

T = TypeVar("T")


class NoChance:
    """Chance that always says the middle."""

    def below(self, bound: int) -> int:
        """Half of the bound."""
        return bound // 2


class ScriptedEngine(Engine):
    """Writes one new task per submit and answers; reads are answered without writing.

    Attributes:
        steps: The events of every step so far.
        nows: The instants of recovery and of every step so far.
        extra: Further effects of the next step.
        wake_at: What every step returns as such.
        parked: Whether submits are left without an answer.
        closed: Whether `close` was called.
        wanted: What is to be looked up, by call of `wants`; after that nothing.
    """

    def __init__(self) -> None:
        self.steps: list[list[Event]] = []
        self.nows: list[Now] = []
        self.extra: list[Effect] = []
        self.wake_at = Now(NEVER, NEVER)
        self.parked = False
        self.closed = False
        self.error: Exception | None = None
        self.wanted: list[list[str]] = []
        self._last_id = 0

    def load(self, chunk: RecoveredChunk) -> None:
        """Nothing is taken over."""
        assert chunk == RecoveredChunk()

    def restore(self, recovered: Iterable[RecoveredChunk], now: Now) -> Step:
        """Nothing is taken over."""
        assert all(chunk == RecoveredChunk() for chunk in recovered)
        self.nows.append(now)
        return Step(0, (), (), self.wake_at)

    def step(self, happened: Sequence[Event], now: Now) -> Step:
        """Submits write, reads do not."""
        if self.error is not None:
            raise self.error
        self.steps.append(list(happened))
        self.nows.append(now)
        mutations: list[Mutation] = []
        effects: list[Effect] = []
        for event in happened:
            if isinstance(event, Submit):
                ids = [self._last_id + n for n, _ in enumerate(event.specs, 1)]
                self._last_id = ids[-1]
                mutations += [
                    inserted(i, payload=s.payload) for i, s in zip(ids, event.specs, strict=True)
                ]
                if not self.parked:
                    effects.append(Reply(event.call, Admitted(ids)))
            elif isinstance(event, Get | Cancel):
                effects.append(Reply(event.call, Done(False)))
        effects += self.extra
        self.extra = []
        return Step(len(self.steps), tuple(mutations), tuple(effects), self.wake_at)

    def wants(self, _event: Event, /) -> tuple[list[int], list[str]]:
        """What the test says."""
        return [], self.wanted.pop(0) if self.wanted else []

    def close(self) -> None:
        """Remembers it."""
        self.closed = True

    @property
    def happened(self) -> list[Event]:
        """All events so far."""
        return [event for events in self.steps for event in events]

    def seen(self, kind: type[T]) -> list[T]:
        """All events of one type so far."""
        return [event for event in self.happened if isinstance(event, kind)]


class Rig:
    """One driver and everything around it.

    Attributes:
        clock: Moves when the test says so.
        disk: Where its store persists to.
        driver: What is tested.
        engine: What it drives.
        store: Fails when the test says so.
        running: The driver's `run`.
        may_break: Whether the test expects `run` to raise.
    """

    def __init__(self, clock: ManualClock, disk: MemoryDisk, store: FaultyStore) -> None:
        self.clock = clock
        self.disk = disk
        self.store = store
        self.may_break = False
        self.engine: Engine
        self.driver: Driver
        self.running: asyncio.Task[Ending]

    async def lead(
        self,
        make_engine: Callable[[int, int], Engine] | None = None,
        **settings: Any,
    ) -> None:
        """Takes leadership, recovers and runs."""
        term = await self.store.acquire_leadership("rig", self.clock.now().wall, TimeBase())
        assert term is not None
        make = make_engine or real_engine
        self.engine = make(term.epoch, term.high_water)
        self.driver = Driver(self.engine, self.store, term, self.clock, DriverSettings(**settings))
        await self.driver.recover()
        self.running = asyncio.create_task(self.driver.run())
        await settle()

    @property
    def scripted(self) -> ScriptedEngine:
        """The engine, where it is a scripted one."""
        assert isinstance(self.engine, ScriptedEngine)
        return self.engine

    def ask(self, build: Callable[[int], Event]) -> asyncio.Task[Any]:
        """Asks in the background."""
        return asyncio.create_task(self.driver.inbox.ask(build))

    def submit(self, *specs: TaskSpec) -> asyncio.Task[Any]:
        """Submits in the background."""
        return self.ask(lambda call: submit(call, *specs))

    def read(self) -> asyncio.Task[Any]:
        """Reads in the background."""
        return self.ask(lambda call: Get(call, 1))

    def join(self, **given: Any) -> Session:
        """A worker registers."""
        return self.driver.sessions.open(lambda number, token: worker(number, token, **given))

    async def stop(self) -> None:
        """Ends the driver, however it stands; an error that nobody expected is raised."""
        self.store.let_go()
        self.running.cancel()
        (ending,) = await asyncio.gather(self.running, return_exceptions=True)
        if isinstance(ending, Exception) and not self.may_break:
            raise ending


def real_engine(epoch: int, high_water: int, **given: Any) -> Engine:
    """The engine as it is."""
    return Engine(engine_settings(epoch=epoch, high_water=high_water, **given), NoChance())


@asynccontextmanager
async def scripted(script: Iterable[Fault] = (), **settings: Any) -> AsyncIterator[Rig]:
    """A running driver with a scripted engine."""
    disk = MemoryDisk()
    rig = Rig(ManualClock(), disk, FaultyStore(MemoryStore(disk), script=script))
    await rig.lead(lambda _epoch, _high_water: ScriptedEngine(), **settings)
    try:
        yield rig
    finally:
        await rig.stop()


@asynccontextmanager
async def real(
    *, seed: int | None = None, remembers: bool = False, engine: Any = None, **settings: Any
) -> AsyncIterator[Rig]:
    """A running driver with the real engine."""
    disk = MemoryDisk()
    store = FaultyStore(MemoryStore(disk, remembers=remembers), seed=seed)
    rig = Rig(ManualClock(), disk, store)
    given = engine or {}
    await rig.lead(lambda epoch, high: real_engine(epoch, high, **given), **settings)
    try:
        yield rig
    finally:
        await rig.stop()


async def done(work: Awaitable[T]) -> T:
    """What this returns, if that needs no time to pass."""
    future = asyncio.ensure_future(work)
    await settle()
    assert future.done(), "this should be over by now"
    return future.result()


async def leases(session: Session) -> list[Lease]:
    """The leases that a session is sent next."""
    return [
        lease
        for effect in await done(session.outbound())
        if isinstance(effect, Dispatch)
        for lease in effect.leases
    ]


def seconds(count: float) -> int:
    """So many seconds in nanoseconds."""
    return int(count * SECOND)


__all__ = [
    "NoChance",
    "Rig",
    "ScriptedEngine",
    "done",
    "leases",
    "real",
    "real_engine",
    "scripted",
    "seconds",
    "settle",
    "task",
]
