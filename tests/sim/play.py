"""One seed from its first draw to its last judgement: trouble, then healing, then silence.

Callers, operators and trouble go on for the length that the seed drew. Then the world heals: every
limit is lifted, workers come that serve everything, nothing fails any more. After that every task
must end, every caller must have its answer, and nothing may be left in any account.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import random
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from msgspec.structs import replace

from cronoq_server.engine import events
from cronoq_server.engine.cron import Calendar, Fold, Gap, parse
from cronoq_server.engine.model import (
    MILLISECOND,
    SECOND,
    BulkAction,
    Dependency,
    Duration,
    Status,
    TaskFilter,
    TaskRef,
    TaskSpec,
)
from cronoq_server.runtime.driver import DriverSettings
from tests.sim.callers import Callers, Watcher
from tests.sim.clockwork import Stalled, VirtualLoop
from tests.sim.oracle import Violation
from tests.sim.worker import Temper, Worker
from tests.sim.workload import KINDS, LABELS, Draw
from tests.sim.world import Taken, World

HEALING_MAX: Duration = 3 * 3600 * SECOND
"""Longest time that a healed world may take to come to rest."""

FAULTS_MIN = 5

TASKS_MIN = 300

COLLECT_EVERY = 10
"""What is left of worlds is cleared away after so many."""

LONG_JUMPS = (2 * 3600 * SECOND, -2 * 3600 * SECOND, 26 * 3600 * SECOND)
BOTH = 2

SHORT_JUMPS = (5 * SECOND, 90 * SECOND, 1500 * SECOND, -3 * SECOND, -60 * SECOND, -600 * SECOND)


@dataclass(slots=True)
class Outcome:
    """What became of a seed.

    Attributes:
        seed: Which one.
        violations: Promises that were broken.
        tail: The last steps before the first of them.
        hours: How long its world lived, in hours of its own.
        tasks: How many tasks were inserted.
        terms: How many leaderships served.
        faults: What went wrong on purpose, by kind.
        ends: How tasks ended, by status.
        digest: Of all that was committed, for comparing two runs.
        cpu_s: CPU time that it took.
    """

    seed: int
    violations: list[Violation] = field(default_factory=list)
    tail: list[Taken] = field(default_factory=list)
    hours: float = 0.0
    tasks: int = 0
    terms: int = 0
    faults: dict[str, int] = field(default_factory=dict)
    ends: dict[str, int] = field(default_factory=dict)
    digest: str = ""
    cpu_s: float = 0.0


class Play:
    """One seed's world and everybody in it."""

    def __init__(self, loop: VirtualLoop, seed: int) -> None:
        self.draw = draw = Draw(seed)
        self.chance: random.Random = draw.chance
        self.world = World(
            loop,
            self.chance,
            draw.settings,
            DriverSettings(
                commit_timeout=6 * SECOND,
                retention=max(draw.settings.key_retention, 3600 * SECOND),
                step_tasks_max=self.chance.choice((7, 2000)),
                batch_mutations_max=self.chance.choice((30, 20_000)),
            ),
            draw.remembers,
        )
        self.callers = Callers(self.world)
        self.workers: list[Worker] = []
        self.watcher: Watcher | None = None
        self._names = 0
        self._over = False
        self._busy: dict[asyncio.Task[object], None] = {}

    # --- the whole -------------------------------------------------------------------------------

    async def run(self) -> None:
        """Trouble, healing, judgement; or as far as it gets before a promise is broken."""
        whole = self.world.spawn(self._whole())
        broken = self.world.spawn(self.world.is_broken.wait())
        await asyncio.wait([whole, broken], return_when=asyncio.FIRST_COMPLETED)
        whole.cancel()
        broken.cancel()

    async def _whole(self) -> None:
        world, draw = self.world, self.draw
        world.start(0)
        world.timeline.after(SECOND, lambda: world.start(1))
        self._staff()
        if draw.has["watch"]:
            self.watcher = Watcher(self.callers, self.chance.random() < 0.5)
        self._plan_submits()
        self._plan_reads()
        self._plan_operators()
        self._plan_faults()
        await self._until(draw.length)
        await self._top_up_faults()
        await self._heal()
        await self._top_up_tasks()
        await self._rest()
        self._judge()

    async def _until(self, instant: Duration) -> None:
        """Lets the world go on, unless it is broken."""
        while self.world.timeline.now < instant and not self.world.known.violations:
            await self.world.sleep(min(2 * SECOND, instant - self.world.timeline.now))

    def _later(
        self, work: Callable[[], Coroutine[Any, Any, object]], holds_up: bool = False
    ) -> None:
        """Does something at some instant while trouble lasts.

        Args:
            work: What is done.
            holds_up: Whether the healing waits for it, since it would undo it.
        """
        at = int(self.draw.length * self.chance.random())
        self.world.timeline.at(at, lambda: self._begin(work, holds_up))

    def _begin(self, work: Callable[[], Coroutine[Any, Any, object]], holds_up: bool) -> None:
        if self._over:
            return
        task = self.world.spawn(work())
        if holds_up:
            self._busy[task] = None
            task.add_done_callback(lambda _: self._busy.pop(task, None))

    # --- workers ---------------------------------------------------------------------------------

    def _staff(self) -> None:
        for pool in self.draw.settings.pools:
            for _ in range(self.chance.randrange(1, 4)):
                at = int(self.chance.random() * 20 * SECOND)
                self.world.timeline.at(at, partial(self._hire, pool.name))

    def _hire(self, pool: str) -> None:
        chance, draw = self.chance, self.draw
        if self._over:
            return
        self._names += 1
        labels = tuple(sorted(pair for pair in LABELS if chance.random() < 0.6))
        kinds: tuple[str, ...] = ()
        if draw.has["kinds"] and chance.random() < 0.5 and pool != "fair":
            kinds = tuple(kind for kind in KINDS if chance.random() < 0.7)
        old = draw.has["old workers"] and chance.random() < 0.4
        self.workers.append(
            Worker(
                self.world,
                f"{pool}-{self._names}",
                pool,
                chance.choice((1, 2, 4, 8)),
                tuple(sorted(dict(labels).items())),
                kinds,
                3 if old else 4,
                draw.temper,
            )
        )

    def _some_worker(self) -> Worker | None:
        alive = [worker for worker in self.workers if not worker.is_dead]
        return self.chance.choice(alive) if alive else None

    # --- callers ---------------------------------------------------------------------------------

    def _plan_submits(self) -> None:
        planned = 0
        while planned < self.draw.tasks:
            specs, mode = self.draw.batch()
            planned += len(specs)
            patience = int(self.chance.random() * 20 * SECOND)
            wait = self.chance.random() < 0.2
            leaves = int(self.chance.random() * 4 * SECOND) if self.chance.random() < 0.1 else None
            self._later(partial(self._submit, specs, mode, patience, wait, leaves))

    async def _submit(
        self,
        specs: list[TaskSpec],
        mode: events.SubmitMode,
        patience: Duration,
        wait: bool,
        leaves: Duration | None,
    ) -> None:
        specs = [self._with_ids(spec) for spec in specs]
        work = self.world.spawn(self.callers.submit(specs, mode, patience, wait and not leaves))
        if leaves is not None:
            # The caller goes away, whether it has its answer or not.
            await self.world.sleep(leaves)
            work.cancel()

    def _with_ids(self, spec: TaskSpec) -> TaskSpec:
        """Fills in ids of parents: places among the acknowledged ids, from the end."""
        known = self.callers.acknowledged
        edges: dict[TaskRef, Dependency] = {}
        for edge in spec.dependencies:
            target = edge.target
            if isinstance(target, int):
                if not known:
                    continue
                target = known[max(0, len(known) + target)]
            edges[target] = Dependency(target, edge.condition)
        if not spec.dependencies:
            return spec
        return replace(spec, dependencies=tuple(edges.values()))

    def _target(self) -> TaskRef:
        known = self.callers.acknowledged
        if not known or self.chance.random() < 0.25:
            return self.draw.old_key()
        return known[-1 - int(self.chance.random() ** 2 * len(known))]

    def _plan_reads(self) -> None:
        chance, callers = self.chance, self.callers
        for _ in range(chance.randrange(8, 20)):
            detail = chance.random() < 0.4
            self._later(partial(self._get, detail))
        for _ in range(chance.randrange(2, 6)):
            wanted = TaskFilter(
                pools=chance.choice(((), ("main",))),
                statuses=chance.choice(((), (1, 2, 3, 4, 5), (6, 7, 8))),
            )
            order = chance.random() < 0.5
            self._later(partial(callers.list_all, wanted, order))
        for _ in range(chance.randrange(3, 8)):
            patience = chance.choice((None, int(chance.random() * 20 * SECOND)))
            self._later(partial(self._wait, patience))
        self._later(callers.snapshot)

    async def _get(self, detail: bool) -> None:
        await self.callers.get(self._target(), detail)

    async def _wait(self, patience: Duration | None) -> None:
        targets = tuple(dict.fromkeys((self._target(), self._target())))
        await self.callers.wait(targets, patience)

    # --- operators -------------------------------------------------------------------------------

    def _plan_operators(self) -> None:
        chance, has, callers = self.chance, self.draw.has, self.callers
        for _ in range(chance.randrange(2, 14)):
            self._later(lambda: callers.cancel(self._target()))
        if has["redrives"]:
            for _ in range(chance.randrange(4, 16)):
                self._later(self._redrive)
        if has["deletes"]:
            for _ in range(4):
                self._later(lambda: callers.delete(self._target()))
        if has["bulk"]:
            for _ in range(chance.randrange(1, 4)):
                self._later(self._bulk)
        if has["schedules"]:
            self._plan_schedules()
        if has["operators"]:
            self._plan_capacity()

    async def _redrive(self) -> None:
        """Sometimes two people put back the same task."""
        target = self._target()
        if self.chance.random() < 0.4:
            self.world.spawn(self.callers.redrive(target))
            await self.world.sleep(int(2 * SECOND * self.chance.random()))
        await self.callers.redrive(target)

    async def _bulk(self) -> None:
        chance = self.chance
        wanted = TaskFilter(
            pools=(chance.choice(self.draw.settings.pools).name,),
            kinds=chance.choice(((), ("default",))),
        )
        await self.callers.bulk(wanted, chance.choice(tuple(BulkAction)))

    def _plan_schedules(self) -> None:
        chance = self.chance
        for number in range(chance.randrange(1, 5)):
            for _ in range(chance.choice((1, 1, 2))):
                spec = self.draw.schedule(number)
                self._later(partial(self._put, spec), holds_up=True)
            for _ in range(chance.randrange(0, 4)):
                self._later(partial(self._touch_schedule, spec.name), holds_up=True)

    async def _put(self, spec: Any) -> None:
        calendar = parse(spec.cron, spec.zone, Gap(spec.gap), Fold(spec.fold))
        assert isinstance(calendar, Calendar), calendar
        await self.callers.operate(lambda call: events.PutSchedule(call, spec, calendar))

    async def _touch_schedule(self, name: str) -> None:
        chance, callers = self.chance, self.callers
        what = chance.randrange(6)
        if what == 0:
            await callers.operate(lambda call: events.PauseSchedule(call, name, True))
            await self.world.sleep(int(20 * SECOND * chance.random()))
            await callers.operate(lambda call: events.PauseSchedule(call, name, False))
        elif what == 1:
            await callers.operate(lambda call: events.RemoveSchedule(call, name))
        elif what in (2, 3):
            await callers.operate(lambda call: events.TriggerSchedule(call, name), 1)
        elif what == 4:
            process = await self.callers._reach()
            wall = process.clock.now().wall
            start, end = wall - 600 * SECOND, wall - int(chance.random() * 300 * SECOND)
            dry = chance.random() < 0.3
            self.world.known.backfilled[name] = None
            await callers.operate(
                lambda call: events.BackfillSchedule(call, name, start, end, dry), 1
            )
        else:
            await callers.operate(lambda call: events.ListSchedules(call))

    def _plan_capacity(self) -> None:
        chance = self.chance
        for _ in range(chance.randrange(1, 4)):
            self._later(self._pause_pool, holds_up=True)
        if self.draw.has["resources"]:
            for _ in range(chance.randrange(2, 6)):
                self._later(self._resize, holds_up=True)

    async def _pause_pool(self) -> None:
        pool = self.chance.choice(self.draw.settings.pools).name
        await self.callers.operate(lambda call: events.SetPoolPaused(call, pool, True))
        await self.world.sleep(int(15 * SECOND * self.chance.random()))
        await self.callers.operate(lambda call: events.SetPoolPaused(call, pool, False))

    async def _resize(self) -> None:
        chance = self.chance
        name = chance.choice(("db", "disk", "customer", "api"))
        if name == "api":
            rate, burst = chance.randrange(1, 8) * SECOND, chance.choice((1, 2, 6))
            await self.callers.operate(
                lambda call: events.ResizeResource(call, name, rate=rate, burst=burst)
            )
        else:
            permits = chance.choice((0, 1, 2, 5))
            await self.callers.operate(
                lambda call: events.ResizeResource(call, name, permits=permits)
            )
        await self.callers.operate(lambda call: events.ListResources(call))

    # --- trouble ---------------------------------------------------------------------------------

    def _plan_faults(self) -> None:
        chance = self.chance
        kinds: list[Callable[[], Coroutine[Any, Any, object]]] = [
            self._crash_leader,
            self._crash_leader,
            self._crash_any,
            self._believe_gone,
            self._freeze_leader,
            self._stop_leader,
            self._storm,
            self._outage,
            self._kill_worker,
            self._blip,
            self._blip,
            self._freeze_worker,
            self._worker_leaves,
            self._other_slots,
        ]
        if self.draw.has["jumps"]:
            kinds += [self._jump, self._jump]
        for _ in range(chance.randrange(FAULTS_MIN + 2, 16)):
            self._later(chance.choice(kinds), holds_up=True)
        self.world.lossy = chance.choice((0, 0, 20, 60))

    def _leader_index(self) -> int:
        leader = self.world.leader
        if leader is None:
            return self.chance.randrange(2)
        return self.world.machines.index(leader.machine)

    async def _crash_leader(self) -> None:
        self.world.count("leader crashed")
        self.world.crash(self._leader_index(), int(5 * SECOND * self.chance.random()))

    async def _crash_any(self) -> None:
        self.world.count("process crashed")
        self.world.crash(self.chance.randrange(2), int(20 * SECOND * self.chance.random()))

    async def _believe_gone(self) -> None:
        self.world.count("leader believed gone")
        self.world.lapse()

    async def _freeze_leader(self) -> None:
        self.world.count("leader frozen")
        index = self._leader_index()
        self.world.freeze(index, int(12 * SECOND * self.chance.random()))
        if self.chance.random() < 0.7:
            await self.world.sleep(int(3 * SECOND * self.chance.random()))
            self.world.lapse()

    async def _stop_leader(self) -> None:
        """A clean stop: running attempts may report, then another one leads."""
        leader = self.world.leader
        if leader is None or leader.driver is None:
            await self._crash_leader()
            return
        self.world.count("leader stopped")
        await self.world.stop(leader, int(5 * SECOND * self.chance.random()))

    async def _storm(self) -> None:
        weather = self.world.weather
        self.world.count("store storm")
        weather.failing = self.chance.choice((10, 30, 60))
        weather.slowest = self.chance.choice((5 * MILLISECOND, 400 * MILLISECOND, 3 * SECOND))
        await self.world.sleep(int(15 * SECOND * self.chance.random()))
        weather.clear()

    async def _outage(self) -> None:
        weather = self.world.weather
        self.world.count("store outage")
        weather.down = True
        await self.world.sleep(int(14 * SECOND * self.chance.random()))
        weather.clear()

    async def _kill_worker(self) -> None:
        worker = self._some_worker()
        if worker is not None:
            self.world.count("worker died")
            worker.die()
            await self.world.sleep(int(8 * SECOND * self.chance.random()))
            self._hire(worker.pool)

    async def _worker_leaves(self) -> None:
        worker = self._some_worker()
        if worker is not None:
            self.world.count("worker left")
            worker.leave()
            self._hire(worker.pool)

    async def _blip(self) -> None:
        worker = self._some_worker()
        if worker is not None:
            self.world.count("stream blip")
            worker.break_stream(False)

    async def _freeze_worker(self) -> None:
        worker = self._some_worker()
        if worker is not None:
            self.world.count("worker frozen")
            worker.freeze(int(25 * SECOND * self.chance.random()))

    async def _other_slots(self) -> None:
        worker = self._some_worker()
        if worker is not None:
            self.world.count("slots changed")
            worker.set_slots(self.chance.choice((0, 1, 3)))
            await self.world.sleep(int(10 * SECOND * self.chance.random()))
            worker.set_slots(self.chance.choice((1, 2, 6)))

    async def _jump(self) -> None:
        self.world.count("clock jump")
        jump = self.chance.choice(LONG_JUMPS if self.chance.random() < 0.3 else SHORT_JUMPS)
        which = self.chance.randrange(3)
        if which == BOTH:
            self.world.set_walls(jump)
        else:
            self.world.set_wall(which, jump)

    async def _top_up_faults(self) -> None:
        """A seed whose faults found nobody to hit gets some more."""
        world = self.world
        while sum(world.faults.values()) < FAULTS_MIN and not world.known.violations:
            await self._crash_leader()
            await world.sleep(4 * SECOND)

    # --- healing ---------------------------------------------------------------------------------

    async def _heal(self) -> None:
        """From now on all is well, and everything that waits can go on."""
        world, callers = self.world, self.callers
        if world.known.violations:
            return
        self._over = True
        world.oracle.occurrences.judge_counts()
        world.weather.clear()
        world.lossy = 0
        for index in range(2):
            if world.processes[index] is None:
                world.start(index)
        latest = max(machine.latest for machine in world.machines)
        for machine in world.machines:
            if machine.offset != latest:
                machine.set_wall(latest)
        for worker in self.workers:
            worker.leave()
        while self._busy and not world.known.violations:
            await world.sleep(SECOND)
        # Slots of those who left are free again before others ask for them.
        await world.sleep(SECOND)
        for name in list(world.known.chronicle.schedules):
            await callers.operate(partial(_remove, name), 99)
        for pool in self.draw.settings.pools:
            await callers.operate(partial(_resume, pool.name), 99)
            self._hire_helper(pool.name, pool.max or 12)
        for rules in self.draw.settings.resources:
            await callers.operate(partial(_roomy, rules), 99)

    async def _top_up_tasks(self) -> None:
        """A seed that refused too many gets as many plain tasks more as it lacks."""
        rows = self.world.known.chronicle.rows
        while len(rows) < TASKS_MIN and not self.world.known.violations:
            specs = [TaskSpec("main", "default") for _ in range(min(6, TASKS_MIN - len(rows)))]
            await self.callers.submit(specs, events.SubmitMode.BATCH, 60 * SECOND, False)

    def _hire_helper(self, pool: str, slots: int) -> None:
        calm = Temper(0, 0, 0, 0, 0)
        self._names += 1
        labels = tuple(sorted(LABELS))
        for _ in range(4):
            self.workers.append(
                Worker(self.world, f"{pool}-{self._names}", pool, slots, labels, (), 4, calm)
            )

    async def _rest(self) -> None:
        """Waits until everything has ended, but not for ever."""
        world = self.world
        chronicle, limit = world.known.chronicle, world.timeline.now + HEALING_MAX
        while (chronicle.live or self.callers.waiting) and not world.known.violations:
            if world.timeline.now > limit:
                break
            await world.sleep(2 * SECOND)
        # Watchers linger and retries of reports come to their end.
        await world.sleep(40 * SECOND)

    def _judge(self) -> None:
        world = self.world
        if world.known.violations:
            return
        world.oracle.judge_end(self.callers.waiting)
        leader = world.leader
        if not world.known.violations and leader is not None and leader.engine is not None:
            if self.watcher is not None:
                self.watcher.judge_end()
            leader.engine.at_rest()


def _remove(name: str, call: int) -> events.RemoveSchedule:
    return events.RemoveSchedule(call, name)


def _resume(pool: str, call: int) -> events.SetPoolPaused:
    return events.SetPoolPaused(call, pool, False)


def _roomy(rules: Any, call: int) -> events.ResizeResource:
    if rules.kind == "semaphore":
        return events.ResizeResource(call, rules.name, permits=20)
    return events.ResizeResource(call, rules.name, rate=50 * SECOND, burst=20)


def play(seed: int) -> Outcome:
    """Plays one seed."""
    begun = time.process_time()
    # Looking for garbage in the middle of a world costs more than its garbage.
    gc.disable()
    if seed % COLLECT_EVERY == 0:
        gc.collect()
    loop = VirtualLoop()
    asyncio.set_event_loop(loop)
    outcome = Outcome(seed)
    try:
        game = Play(loop, seed)
        world = game.world
        try:
            loop.run_until_complete(game.run())
        except Stalled:
            world.known.broken("time goes on", "nothing is left that could ever happen")
        outcome.violations = list(world.known.violations)
        outcome.tail = world.evidence
        outcome.hours = world.timeline.now / SECOND / 3600
        chronicle = world.known.chronicle
        outcome.tasks = len(chronicle.rows)
        outcome.terms = world.terms
        outcome.faults = world.faults
        outcome.digest = chronicle.digest()
        for ends in chronicle.ends.values():
            name = Status(ends[-1][1]).name
            outcome.ends[name] = outcome.ends.get(name, 0) + 1
        for context in loop.errors:
            outcome.violations.append(Violation("nobody contradicts himself", repr(context)))
        loop.run_until_complete(world.close())
    finally:
        asyncio.set_event_loop(None)
        loop.close()
        gc.enable()
        outcome.cpu_s = time.process_time() - begun
    return outcome


def quietly(seed: int) -> Outcome:
    """Plays one seed without a word in the log."""
    logging.disable(logging.CRITICAL)
    return play(seed)
