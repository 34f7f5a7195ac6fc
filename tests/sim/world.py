"""A world: replicas on machines around one database, and everything that can go wrong with them.

The real engine under the real driver; only time, the database, workers and callers are made up.
One seed decides everything: what happens is what the seed's one source of chance says, drawn in
the order in which the world asks.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import traceback
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from typing import Any

import msgspec

from cronoq_server.engine.engine import Engine, Step
from cronoq_server.engine.events import Event
from cronoq_server.engine.model import MILLISECOND, SECOND, Duration, EngineSettings, Now
from cronoq_server.engine.mutations import RecoveredChunk
from cronoq_server.ha.leadership import TermSettings
from cronoq_server.ha.replica import Replica, ReplicaSettings
from cronoq_server.runtime.driver import Driver, DriverSettings
from cronoq_server.stores.base import Batch, Leadership
from cronoq_server.stores.memory import MemoryDisk
from tests.sim.accounts import Accounts
from tests.sim.clockwork import Machine, ProcessClock, VirtualLoop
from tests.sim.oracle import Broken, Known, Oracle
from tests.sim.shared_disk import DistantStore, Term, Weather

TAIL = 14
"""Steps that are shown when a promise was broken."""

KEEP_EVERY: Duration = 2 * SECOND
"""How often a leader confirms that it still leads."""

STEPS_MAX = 60_000
"""Steps after which a world is taken to spin."""

POLL: Duration = 250 * MILLISECOND
"""Longest pause between two tries of a standby to lead while nobody does."""


class Taken(msgspec.Struct, frozen=True):
    """One step as it was taken."""

    epoch: int
    now: Now
    events: tuple[Event, ...]
    step: Step


class Dice:
    """The engine's chance, from the world's."""

    __slots__ = ("_random",)

    def __init__(self, source: random.Random) -> None:
        self._random = source

    def below(self, bound: int) -> int:
        """The next number."""
        return self._random.randrange(bound)


class WatchedEngine(Engine):
    """The engine as it is; every step is shown to whoever keeps the accounts."""

    def __init__(self, world: World, settings: EngineSettings) -> None:
        super().__init__(settings, Dice(world.chance))
        self._world = world
        self._accounts = Accounts(self, world.oracle.known)

    def restore(self, recovered: Iterable[RecoveredChunk], now: Now) -> Step:
        """See `Engine.restore`."""
        chunks = list(recovered)
        self._world.note_step()
        step = super().restore(chunks, now)
        self._world.tail.append(Taken(self._state.settings.epoch, now, (), step))
        self._accounts.restored(step)
        return step

    def step(self, happened: Sequence[Event], now: Now) -> Step:
        """See `Engine.step`."""
        self._world.note_step()
        step = super().step(happened, now)
        self._world.tail.append(Taken(self._state.settings.epoch, now, tuple(happened), step))
        self._accounts.stepped(step, now)
        return step

    def at_rest(self) -> None:
        """The world has come to rest: nothing may be left in any account."""
        self._accounts.at_rest()


class Process:
    """One server process, a real replica: it acquires, recovers, serves, until it dies or stops.

    Attributes:
        driver: Its driver, while it serves.
        engine: Its engine, while it serves.
        is_dead: Whether it crashed or ended.
        epoch: Epoch of its last term; 0 = it had none.
        links: What is told when the process is gone: connections of workers and callers.
    """

    def __init__(self, world: World, machine: Machine, number: int) -> None:
        self.world = world
        self.machine = machine
        self.number = number
        self.driver: Driver | None = None
        self.engine: WatchedEngine | None = None
        self.is_dead = False
        self.epoch = 0
        self.links: dict[object, Callable[[], None]] = {}
        self.clock = ProcessClock(machine)
        self.store = DistantStore(
            world.disk, machine, world.weather, world.chance, world.committed, world.remembers
        )
        chance = world.chance
        settings = ReplicaSettings(
            world.driver_settings,
            TermSettings(poll=int(POLL * chance.random()), keepalive=KEEP_EVERY),
            grace=int(6 * SECOND * chance.random()),
        )
        self.replica = Replica(self.store, self.clock, self._make_engine, settings, self)
        self.task = world.spawn(self.replica.run())

    def _make_engine(self, term: Leadership) -> WatchedEngine:
        self.epoch = term.epoch
        self.world.look_for_vacancy()
        settings = msgspec.structs.replace(
            self.world.settings, epoch=term.epoch, high_water=term.high_water
        )
        self._next = WatchedEngine(self.world, settings)
        return self._next

    @contextlib.asynccontextmanager
    async def leading(self, driver: Driver) -> AsyncIterator[None]:
        """See `Stage.leading`."""
        world = self.world
        world.terms += 1
        self.driver, self.engine = driver, self._next
        world.serving(self)
        try:
            yield
        finally:
            self.driver = self.engine = None
            self.cut_links()
            self._left_term()

    async def stand_by(self) -> None:
        """See `Stage.stand_by`: nobody asks for a leadership that is taken."""
        self._left_term()
        if not self.is_dead:
            await self.world.vacancy.wait()

    def _left_term(self) -> None:
        world = self.world
        world.look_for_vacancy()
        if self.epoch == world.disk.epoch and world.disk.holder is not None:
            world.lapse_later(self.epoch)

    async def stop(self) -> None:
        """Stops in order and ends."""
        self.replica.stop()
        await asyncio.wait([self.task])
        self.is_dead = True

    def crash(self) -> None:
        """The process is gone between one instruction and the next."""
        self.is_dead = True
        self.store.is_cut = True
        self.driver = None
        self.cut_links()
        self.task.cancel()

    def cut_links(self) -> None:
        """Every connection to it breaks."""
        links, self.links = self.links, {}
        for cut in links.values():
            cut()


class World:
    """Everything there is.

    Attributes:
        chance: The one source of chance.
        leader: The process that serves, as far as callers can tell.
        oracle: Watches over the promises.
        tail: The last steps of all engines.
        is_broken: Set at the first violation.
        evidence: The last steps before the first violation.
        terms: How many leaderships began to serve.
        faults: What went wrong on purpose, by kind.
        lossy: How many of a thousand messages with leases are lost with their stream.
    """

    def __init__(
        self,
        loop: VirtualLoop,
        chance: random.Random,
        settings: EngineSettings,
        driver_settings: DriverSettings,
        remembers: bool,
    ) -> None:
        self.loop = loop
        self.timeline = loop.timeline
        self.chance = chance
        self.settings = settings
        self.driver_settings = driver_settings
        self.remembers = remembers
        self.disk = MemoryDisk()
        self.weather = Weather()
        self.oracle = Oracle(Known(settings, self.timeline))
        self.known = self.oracle.known
        self.tail: deque[Taken] = deque(maxlen=TAIL)
        self.evidence: list[Taken] = []
        self.is_broken = asyncio.Event()
        self.known.first = self._break
        self.terms = 0
        self.faults: dict[str, int] = {}
        self.lossy = 0
        self.machines = [Machine(self.timeline), Machine(self.timeline, -40 * MILLISECOND)]
        self.processes: list[Process | None] = [None, None]
        self.leader: Process | None = None
        self.vacancy = asyncio.Event()
        self.vacancy.set()
        self._served = asyncio.Event()
        self._numbers = 0
        self._steps = 0
        self._tasks: dict[asyncio.Task[Any], None] = {}

    def _break(self) -> None:
        self.evidence = list(self.tail)
        self.is_broken.set()

    # --- tasks and time --------------------------------------------------------------------------

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Runs something in the background; what it raises breaks the world."""
        task = self.loop.create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._over)
        return task

    def _over(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)
        if task.cancelled():
            return
        error = task.exception()
        if error is not None and not isinstance(error, Broken):
            text = "".join(traceback.format_exception(error))
            self.known.broken("nobody contradicts himself", text)

    def note_step(self) -> None:
        """An engine takes a step; a world that takes too many spins.

        Raises:
            Broken: It does.
        """
        self._steps += 1
        if self._steps > STEPS_MAX:
            self.known.broken("time goes on", f"more than {STEPS_MAX} steps")
            raise Broken

    async def sleep(self, duration: Duration) -> None:
        """Returns after so many nanoseconds."""
        awake: asyncio.Future[None] = self.loop.create_future()
        entry = self.timeline.after(
            duration, lambda: None if awake.done() else awake.set_result(None)
        )
        try:
            await awake
        finally:
            entry.cancel()

    def count(self, fault: str) -> None:
        """Notes that something went wrong on purpose."""
        self.faults[fault] = self.faults.get(fault, 0) + 1

    # --- replicas --------------------------------------------------------------------------------

    def start(self, index: int) -> None:
        """Starts a process on a machine."""
        self._numbers += 1
        self.processes[index] = Process(self, self.machines[index], self._numbers)

    def committed(self, term: Term, batch: Batch) -> None:
        """The database has accepted a batch."""
        self.oracle.committed(term.epoch, self.disk.epoch, batch)

    def serving(self, process: Process) -> None:
        """A process has recovered and serves."""
        self.leader = process
        self._served.set()

    def look_for_vacancy(self) -> None:
        """Notes whether somebody may begin a term."""
        if self.disk.holder is None or self.disk.lapsed:
            self.vacancy.set()
        else:
            self.vacancy.clear()
        if self.leader is not None and self.leader.driver is None:
            self.leader = None
            self._served.clear()

    def lapse(self) -> None:
        """The holder of the leadership is believed gone, rightly or not."""
        self.disk.lapsed = True
        self.vacancy.set()

    def lapse_later(self, epoch: int) -> None:
        """In a while it will be noticed that this epoch's holder is gone."""

        def notice() -> None:
            if self.disk.epoch == epoch and self.disk.holder is not None:
                self.lapse()

        self.timeline.after(int(3 * SECOND * self.chance.random()), notice)

    async def leading(self) -> Process:
        """The process that serves, once there is one."""
        while True:
            process = self.leader
            if process is not None and process.driver is not None:
                return process
            self._served.clear()
            await self._served.wait()

    def crash(self, index: int, down: Duration) -> None:
        """A process dies; another one is started on its machine later."""
        process = self.processes[index]
        if process is None:
            return
        self.processes[index] = None
        process.crash()
        self.look_for_vacancy()
        if process.epoch == self.disk.epoch:
            self.lapse_later(process.epoch)
        self.timeline.after(down, lambda: self.start(index))

    async def stop(self, process: Process, down: Duration) -> None:
        """A process is stopped in order; another one is started on its machine later."""
        await process.stop()
        index = self.machines.index(process.machine)
        if self.processes[index] is process:
            self.processes[index] = None
            await self.sleep(down)
            if self.processes[index] is None:
                self.start(index)

    def freeze(self, index: int, duration: Duration) -> None:
        """Nothing on a machine runs for a while; others may believe it gone."""
        machine = self.machines[index]
        machine.frozen_until = max(machine.frozen_until, self.timeline.now + duration)

    def set_wall(self, index: int, by: int) -> None:
        """Somebody sets a machine's wall clock."""
        self.known.set_back = self.known.set_back or by < 0
        machine = self.machines[index]
        machine.set_wall(machine.offset + by)
        # For a new leader on the other machine, what was set back here is set forward there.
        apart = self.machines[0].offset - self.machines[1].offset
        self.known.set_forward = self.known.set_forward or by > 0 or abs(apart) > SECOND

    def set_walls(self, by: int) -> None:
        """Somebody sets the wall clocks of all machines."""
        self.known.set_forward = self.known.set_forward or by > 0
        self.known.set_back = self.known.set_back or by < 0
        for machine in self.machines:
            machine.set_wall(machine.offset + by)

    async def close(self) -> None:
        """Ends everything, without caring how."""
        for process in self.processes:
            if process is not None:
                process.crash()
        while self._tasks:
            for task in list(self._tasks):
                task.cancel()
            for _ in range(10):
                await asyncio.sleep(0)
            # Some clean up over the store, which takes its time to say no.
            await self.sleep(SECOND)
