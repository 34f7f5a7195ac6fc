"""One seed of a world of shards: trouble, healing, silence, as `tests.sim.play` has them for one.

Trouble comes to single servers, to whole shards, to the lines between shards, and to workers.
Callers reach every server all the time.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import random
import time
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final

from cronoq_server.api.auth import Principal, Role
from cronoq_server.api.frames import Registration
from cronoq_server.engine.model import MILLISECOND, SECOND, Duration, ErrorReason, Status
from cronoq_server.runtime.refusals import Refused
from cronoq_server.sharding import OnWork
from tests.sim.clockwork import Stalled
from tests.sim.oracle import Violation
from tests.sim.play import COLLECT_EVERY, Outcome
from tests.sim.shards.callers import Callers
from tests.sim.shards.cluster import Cluster, ShardProcess, ShardWorld
from tests.sim.shards.promises import Promises
from tests.sim.shards.watching import Watcher
from tests.sim.shards.wire import TimedLoop
from tests.sim.worker import Temper, Worker

WORKING: Final = Principal("worker", Role.WORKER)

HEALING_MAX: Final[Duration] = 1800 * SECOND
"""Longest time that a healed world may take to come to rest."""

FAULTS_MIN: Final = 5

JUMPS: Final = (5 * SECOND, 90 * SECOND, 600 * SECOND, -3 * SECOND, -60 * SECOND, -600 * SECOND)


class ShardWorker(Worker):
    """A worker whose endpoint is a balancer in front of all shards: it is told where to go."""

    def __init__(self, cluster: Cluster, world: ShardWorld, name: str, pool: str, slots: int):
        self._cluster = cluster
        self._owner = world
        temper = Temper(fails=6, breaks=2, refuses=2, cancels=1, slow=2)
        super().__init__(world, name, pool, slots, (), (), 4, temper)

    async def _server(self) -> ShardProcess:
        """Asks somebody, and goes where it is sent; asks again if nobody is there."""
        cluster = self._cluster
        while True:
            entry = cluster.chance.choice(cluster.worlds)
            process = entry.balance(knows=True)
            if process is not None and process.driver is not None and self._is_sent_on(process):
                leader = self._owner.balance(knows=True)
                if leader is not None and leader.driver is not None:
                    return leader
            await entry.sleep(int(SECOND * (0.2 + cluster.chance.random())))

    def _is_sent_on(self, process: ShardProcess) -> bool:
        """Whether this server says that the worker's place is with its pool's shard."""
        service = process.front.services.tasks
        broken = self._owner.known.broken
        try:
            if process.world is self._owner:
                service._spread.route(OnWork(self.pool), WORKING)  # type: ignore[attr-defined]
                return True
            session = service.join(
                WORKING, Registration(self.pool, 1, self.name, (), (), 4, "sim", None)
            )
        except Refused as refused:
            refusal = refused.refusal
            sent_to = dict(refusal.details).get("shard")
            if refusal.reason is not ErrorReason.WRONG_SHARD or sent_to != self._owner.name:
                broken("a worker is sent to its pool's shard", f"{self.pool}: {refusal}")
            return process.world is not self._owner
        session.lost(True, ())
        broken("no worker joins a shard that does not own its pool", f"{self.pool}: {process}")
        return False


class ShardPlay:
    """One seed's shards and everybody in them."""

    def __init__(self, loop: TimedLoop, seed: int, count: int) -> None:
        self.chance = chance = random.Random(seed * 1000 + count)
        # In every other world alone, so that those of seeds that once found something are the same.
        self._is_fragile = seed % 2 == 0
        self.length: Duration = chance.randrange(40, 90) * SECOND
        self.cluster = Cluster(loop, chance, count, chance.choice((40, 1_000_000)))
        self.promises = Promises(self.cluster)
        self.callers = Callers(self.cluster, self.promises)
        self.workers: list[ShardWorker] = []
        self.watchers: list[Watcher] = []
        self.keys: list[str] = []
        self.pools = list(self.cluster.owners)
        self.schedules: dict[str, str] = {}
        self._names = 0
        self._over = False
        self._busy: dict[asyncio.Task[object], None] = {}
        self._clock = self.cluster.worlds[0]

    # --- the whole -------------------------------------------------------------------------------

    async def run(self) -> None:
        """Trouble, healing, judgement; or as far as it gets before a promise is broken."""
        whole = self._clock.spawn(self._whole())
        broken = self._clock.spawn(self._clock.is_broken.wait())
        await asyncio.wait([whole, broken], return_when=asyncio.FIRST_COMPLETED)
        whole.cancel()
        broken.cancel()

    def end(self) -> None:
        """Nothing new begins any more."""
        self._over = True

    async def _whole(self) -> None:
        chance, cluster = self.chance, self.cluster
        for world in cluster.worlds:
            world.start(0)
            cluster.timeline.after(SECOND, partial(world.start, 1))
        for pool in self.pools:
            for _ in range(chance.randrange(1, 3)):
                self._hire(pool, chance.choice((2, 4, 8)))
        for _ in range(chance.choice((1, 1, 2))):
            self.watchers.append(Watcher(self.callers, chance.random() < 0.3))
        self._plan_changes()
        self._plan_reads()
        self._plan_faults()
        while cluster.timeline.now < self.length and not cluster.is_broken:
            await self._clock.sleep(SECOND)
        await self._heal()
        await self._rest()
        await self._last_look()
        self._judge()

    def _later(
        self, work: Callable[[], Coroutine[Any, Any, object]], holds_up: bool = False
    ) -> None:
        """Does something at some instant while trouble lasts."""
        at = int(self.length * self.chance.random())
        self.cluster.timeline.at(at, lambda: self._begin(work, holds_up))

    def _begin(self, work: Callable[[], Coroutine[Any, Any, object]], holds_up: bool) -> None:
        if self._over:
            return
        task = self._clock.spawn(work())
        if holds_up:
            self._busy[task] = None
            task.add_done_callback(lambda _: self._busy.pop(task, None))

    def _hire(self, pool: str, slots: int) -> None:
        self._names += 1
        owner = self.cluster.owners[pool]
        worker = ShardWorker(self.cluster, owner, f"{pool}-{self._names}", pool, slots)
        self.workers.append(worker)

    # --- callers ---------------------------------------------------------------------------------

    def _plan_changes(self) -> None:
        chance = self.chance
        for _ in range(chance.randrange(50, 80)):
            self._later(self._submit)
        for _ in range(chance.randrange(6, 12)):
            self._later(self._submit_some)
        for _ in range(chance.randrange(4, 8)):
            self._later(self._submit_same_key)
        for _ in range(chance.randrange(3, 8)):
            self._later(self._cancel)
        for _ in range(chance.randrange(3, 8)):
            self._later(self._cancel_key)
        for number in range(chance.randrange(0, 3)):
            pool = chance.choice(self.pools)
            self.schedules[f"tick-{number}"] = pool
            self._later(partial(self.callers.put_schedule, f"tick-{number}", pool), holds_up=True)

    def _new_key(self) -> str:
        key = f"key-{len(self.keys)}"
        self.keys.append(key)
        return key

    def _fields(self) -> dict[str, Any]:
        chance = self.chance
        fields: dict[str, Any] = {}
        if chance.random() < 0.3:
            fields["delay_s"] = chance.random() * 20
        if chance.random() < 0.2:
            fields["timeout_s"] = chance.choice((2.0, 10.0))
        return fields

    async def _submit(self) -> None:
        chance = self.chance
        pool, who = chance.choice(self.pools), chance.choice(("all", "all", "all", "cert", "ops"))
        if pool in ("main-0", "main-1") and chance.random() < 0.2:
            who = "some"
        key = self._new_key() if chance.random() < 0.6 else ""
        await self.callers.submit(self.callers.spec(pool, key, **self._fields()), who)

    async def _submit_some(self) -> None:
        chance, callers = self.chance, self.callers
        draw = chance.random()
        if draw < 0.15 and self.promises.acknowledged:
            parent, owner = chance.choice(self.promises.acknowledged)
            others = [p for p in self.pools if self.cluster.owners[p] is not owner]
            await callers.submit_across(chance.choice(others), parent)
            return
        one = chance.choice(self.pools)
        is_mixed = draw < 0.3 or draw > 0.6
        specs = [
            callers.spec(chance.choice(self.pools) if is_mixed else one, **self._fields())
            for _ in range(chance.randrange(2, 9))
        ]
        await (callers.submit_many(specs) if draw > 0.6 else callers.submit_batch(specs))

    async def _submit_same_key(self) -> None:
        """Two shards come to have a task of the same key."""
        key = self._new_key()
        for pool in self.chance.sample(self.pools, 2):
            await self.callers.submit(self.callers.spec(pool, key), "all")

    def _acknowledged(self) -> tuple[int, ShardWorld] | None:
        known = self.promises.acknowledged
        return self.chance.choice(known) if known else None

    async def _cancel(self) -> None:
        found = self._acknowledged()
        if found is not None:
            await self.callers.cancel(*found)

    async def _cancel_key(self) -> None:
        if self.keys:
            who = self.chance.choice(("all", "all", "some", "cert"))
            await self.callers.cancel_key(self.chance.choice(self.keys), who)

    def _plan_reads(self) -> None:
        chance, callers = self.chance, self.callers
        for _ in range(chance.randrange(15, 30)):
            self._later(self._get)
        for _ in range(chance.randrange(20, 40)):
            self._later(self._get_key)
        for _ in range(chance.randrange(3, 6)):
            self._later(self._walk)
        for _ in range(chance.randrange(3, 6)):
            self._later(self._wait)
        for _ in range(chance.randrange(5, 10)):
            self._later(callers.snapshot)
            self._later(callers.list_workers)
        for _ in range(3):
            self._later(callers.list_schedules)

    async def _get(self) -> None:
        found = self._acknowledged()
        if found is not None:
            await self.callers.get(*found, self.chance.choice(("all", "all", "some", "cert")))

    async def _get_key(self) -> None:
        key = self.chance.choice(self.keys) if self.keys else "nobody"
        if self.chance.random() < 0.05:
            key = "nobody"
        await self.callers.get_key(key, self.chance.choice(("all", "all", "some", "cert")))

    async def _walk(self) -> None:
        chance = self.chance
        who = chance.choice(("all", "all", "some"))
        await self.callers.walk(who, chance.random() < 0.5, chance.choice((1, 5, 17, 60)))

    async def _wait(self) -> None:
        found = [self._acknowledged() for _ in range(self.chance.randrange(1, 6))]
        targets = [one[0] for one in found if one is not None]
        if targets:
            await self.callers.wait(list(dict.fromkeys(targets)))

    # --- trouble ---------------------------------------------------------------------------------

    def _plan_faults(self) -> None:
        chance = self.chance
        kinds = [
            self._crash,
            self._crash,
            self._lose_shard,
            self._part,
            self._part,
            self._isolate,
            self._believe_gone,
            self._freeze,
            self._stop,
            self._storm,
            self._outage,
            self._jump,
            self._trouble_worker,
        ]
        if self._is_fragile:
            kinds.append(self._break)
        for _ in range(chance.randrange(FAULTS_MIN, 12)):
            self._later(chance.choice(kinds), holds_up=True)

    def _some_world(self, fault: str) -> ShardWorld:
        self.cluster.count(fault)
        return self.chance.choice(self.cluster.worlds)

    def _span(self, longest_s: int) -> Duration:
        return int(longest_s * SECOND * self.chance.random())

    def _leader_index(self, world: ShardWorld) -> int:
        if world.leader is None:
            return self.chance.randrange(2)
        return world.machines.index(world.leader.machine)

    async def _crash(self) -> None:
        world = self._some_world("leader crashed")
        world.crash(self._leader_index(world), self._span(6))

    async def _lose_shard(self) -> None:
        world = self._some_world("shard gone")
        for index in range(2):
            world.crash(index, 4 * SECOND + self._span(16))

    async def _part(self) -> None:
        one, other = self.chance.sample(self.cluster.worlds, 2)
        self.cluster.count("two shards parted")
        self.cluster.wires.cut(one.number, other.number)
        await self._clock.sleep(self._span(20))
        self.cluster.wires.mend(one.number, other.number)

    async def _isolate(self) -> None:
        world = self._some_world("shard parted from all others")
        for other in self.cluster.worlds:
            self.cluster.wires.cut(world.number, other.number)
        await self._clock.sleep(self._span(15))
        for other in self.cluster.worlds:
            self.cluster.wires.mend(world.number, other.number)

    async def _break(self) -> None:
        """Connections between shards break under calls, and the next ones are good at once."""
        wires, until = self.cluster.wires, self.cluster.timeline.now + self._span(20)
        self.cluster.count("connections between shards broken")
        while self.cluster.timeline.now < until:
            under_way = [call for call in wires.calls if call.origin is not None]
            if under_way and self.chance.random() < 0.3:
                call = self.chance.choice(under_way)
                assert call.origin is not None
                wires.cut(call.origin, call.target)
                wires.mend(call.origin, call.target)
            await self._clock.sleep(1 + int(10 * MILLISECOND * self.chance.random()))

    async def _believe_gone(self) -> None:
        self._some_world("leader believed gone").lapse()

    async def _freeze(self) -> None:
        world = self._some_world("leader frozen")
        world.freeze(self._leader_index(world), self._span(10))
        if self.chance.random() < 0.6:
            await world.sleep(self._span(3))
            world.lapse()

    async def _stop(self) -> None:
        world = self._some_world("leader stopped")
        if world.leader is not None and world.leader.driver is not None:
            await world.stop(world.leader, self._span(5))

    async def _storm(self) -> None:
        world = self._some_world("store storm")
        world.weather.failing = self.chance.choice((10, 30))
        world.weather.slowest = self.chance.choice((400 * MILLISECOND, 3 * SECOND))
        await world.sleep(self._span(10))
        world.weather.clear()

    async def _outage(self) -> None:
        world = self._some_world("store outage")
        world.weather.down = True
        await world.sleep(self._span(10))
        world.weather.clear()

    async def _jump(self) -> None:
        self._some_world("clock jump").set_wall(self.chance.randrange(2), self.chance.choice(JUMPS))

    async def _trouble_worker(self) -> None:
        worker = self.chance.choice(self.workers)
        self.cluster.count("worker in trouble")
        draw = self.chance.randrange(3)
        if draw == 0:
            worker.break_stream(False)
        elif draw == 1:
            worker.freeze(self._span(12))
        else:
            worker.die()
            await self._clock.sleep(self._span(5))
            self._hire(worker.pool, 4)

    # --- healing ---------------------------------------------------------------------------------

    async def _heal(self) -> None:
        """From now on all is well."""
        cluster = self.cluster
        self._over = True
        while self._busy and not cluster.is_broken:
            await self._clock.sleep(SECOND)
        for world in cluster.worlds:
            world.weather.clear()
            for other in cluster.worlds:
                cluster.wires.mend(world.number, other.number)
            for index in range(2):
                if world.processes[index] is None:
                    world.start(index)
            latest = max(machine.latest for machine in world.machines)
            for machine in world.machines:
                if machine.offset != latest:
                    machine.set_wall(latest)
        for pool in self.pools:
            self._hire(pool, 12)
        for name, pool in self.schedules.items():
            await self.callers.remove_schedule(name, pool)

    async def _rest(self) -> None:
        """Waits until everything has ended, but not for ever."""
        limit = self.cluster.timeline.now + HEALING_MAX
        while not self.cluster.is_broken and self.cluster.timeline.now < limit:
            live = any(world.known.chronicle.live for world in self.cluster.worlds)
            if not live and not self.callers.waiting:
                break
            await self._clock.sleep(2 * SECOND)
        await self._clock.sleep(20 * SECOND)

    async def _last_look(self) -> None:
        """All is well and at rest: everybody sees everything."""
        callers = self.callers
        for who, newest_first in (("all", False), ("all", True), ("some", False)):
            await callers.walk(who, newest_first, self.chance.choice((7, 50)))
        await callers.snapshot()
        await callers.list_workers()
        for key in self.keys[-5:]:
            await callers.get_key(key, "all")

    def _judge(self) -> None:
        if self.cluster.is_broken:
            return
        self.promises.judge_end(self.callers.waiting)
        for watcher in self.watchers:
            watcher.judge_end()
        for world in self.cluster.worlds:
            if world.leader is not None and world.leader.engine is not None:
                world.leader.engine.at_rest()


def play(seed: int, count: int = 3) -> Outcome:
    """Plays one seed of a world of so many shards."""
    begun = time.process_time()
    # Looking for garbage in the middle of a world costs more than its garbage.
    gc.disable()
    if seed % COLLECT_EVERY == 0:
        gc.collect()
    loop = TimedLoop()
    asyncio.set_event_loop(loop)
    outcome = Outcome(seed)
    try:
        game = ShardPlay(loop, seed, count)
        cluster = game.cluster
        try:
            loop.run_until_complete(game.run())
        except Stalled:
            game.promises.broken("time goes on", "nothing is left that could ever happen")
        _sum_up(outcome, game)
        for context in loop.errors:
            outcome.violations.append(Violation("nobody contradicts himself", repr(context)))
        game.end()
        for world in cluster.worlds:
            loop.run_until_complete(world.close())
    finally:
        asyncio.set_event_loop(None)
        loop.close()
        gc.enable()
        outcome.cpu_s = time.process_time() - begun
    return outcome


def _sum_up(outcome: Outcome, game: ShardPlay) -> None:
    cluster = game.cluster
    outcome.hours = cluster.timeline.now / SECOND / 3600
    outcome.faults = dict(cluster.faults)
    for world in cluster.worlds:
        chronicle = world.known.chronicle
        outcome.violations += world.known.violations
        outcome.tasks += len(chronicle.rows)
        outcome.terms += world.terms
        outcome.digest += chronicle.digest()
        for ends in chronicle.ends.values():
            name = Status(ends[-1][1]).name
            outcome.ends[name] = outcome.ends.get(name, 0) + 1
    if cluster.culprit is not None:
        outcome.tail = cluster.culprit.evidence


def quietly(seed: int, count: int = 3) -> Outcome:
    """Plays one seed without a word in the log."""
    logging.disable(logging.CRITICAL)
    return play(seed, count)
