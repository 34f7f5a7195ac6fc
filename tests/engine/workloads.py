"""Random lives of an engine, decided by one seed: submits, workers, losses, reports, crashes.

A workload only decides what happens; the `World` it drives checks every step. The same seed gives
the same events in every process, whatever its hash seed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import msgspec

from cronoq_server.engine import effects
from cronoq_server.engine.cron import Calendar, parse
from cronoq_server.engine.events import (
    AttemptsReported,
    BackfillSchedule,
    Bulk,
    Cancel,
    CancelledByWorker,
    Completed,
    Delete,
    Event,
    Failed,
    Forget,
    Get,
    GetOutput,
    HeartbeatsRead,
    ListResources,
    ListTasks,
    ListWorkers,
    Nacked,
    PauseSchedule,
    PutSchedule,
    Redrive,
    Released,
    RemoveSchedule,
    Report,
    ResizeResource,
    Resume,
    SetPoolPaused,
    SlotsSet,
    SnapshotQuery,
    Submit,
    SubmitMode,
    TriggerSchedule,
    Unsent,
    Unwatch,
    Wait,
    Watch,
    WorkerLost,
)
from cronoq_server.engine.model import (
    MILLISECOND,
    SECOND,
    BulkAction,
    Dependency,
    EdgeCondition,
    MissPolicy,
    Overflow,
    Overlap,
    PoolSettings,
    Progress,
    ResourceSettings,
    RetryPolicy,
    ScheduleSpec,
    TaskFilter,
    TaskRef,
    TaskSpec,
)
from tests.engine.harness import Dice, World

MINUTE = 60 * SECOND
POOLS = (
    PoolSettings("a", max_pending=12),
    PoolSettings("b", max_pending=8, overflow=Overflow.SHED_LOWEST, max=6),
    PoolSettings(
        "c",
        max_pending=8,
        overflow=Overflow.SHED_OLDEST,
        await_unknown_dependencies=20 * SECOND,
        fair_share=True,
        tenant_weights=(("x", 2.0),),
    ),
    PoolSettings("d", max_pending=5, overflow=Overflow.REJECT, lease_ttl=5 * SECOND),
)
RESOURCES = (
    ResourceSettings("gpu", permits=2),
    ResourceSettings("mail", kind="token_bucket", rate=2.0, burst=3),
)
KEYS = tuple("pqrstu")
KINDS = ("work", "mail", "fax")


class Workload:
    """One life, step by step.

    Attributes:
        world: The engine it happens to.
        crashes: Whether leaders die, and wall clocks are set, now and then.
    """

    def __init__(
        self, seed: int | random.Random, crashes: bool = True, checks: bool = True
    ) -> None:
        self.random = random.Random(seed) if isinstance(seed, int) else seed
        self.world = World(
            *POOLS,
            resources=RESOURCES,
            chance=Dice(self.random.randrange(1 << 32)),
            checks=checks,
            key_retention=30 * SECOND,
            finished_max=25,
            max_pending_total=24,
            store_remembers=self.random.random() < 0.7 or not crashes,
        )
        self.crashes = crashes
        self.watches = 0
        self.numbers: dict[int, int] = {}
        self.calls: list[int] = []
        self.sessions: list[int] = []
        self.broken: list[tuple[int, str]] = []
        self.pool_of: dict[int, str] = {}
        self.protocol_of: dict[int, int] = {}

    def run(self, steps: int) -> Iterator[World]:
        """Lives on for so many steps; yields the world after each."""
        for _ in range(steps):
            if self.crashes and self.random.random() < 0.02:
                self._crash()
            else:
                self._pass_time()
                self.world.step(*self._late_release(), *self._events())
            yield self.world

    # --- what can happen -------------------------------------------------------------------------

    def _events(self) -> list[Event]:
        makers: list[tuple[int, Callable[[], list[Event]]]] = [
            (8, self._submit),
            (3, self._join),
            (8, self._report),
            (4, self._beat),
            (2, self._lose),
            (2, self._resume),
            (2, self._cancel),
            (2, self._ask),
            (1, self._set_slots),
            (1, self._forget),
            (2, self._put_back),
            (1, self._schedule),
            (1, self._capacity),
        ]
        weights = [weight for weight, _ in makers]
        found: list[Event] = []
        for _ in range(self.random.randrange(4)):
            (make,) = self.random.choices([make for _, make in makers], weights)
            found += make()
        return found

    def _late_release(self) -> list[Event]:
        """Now and then the driver is slow to say that effects are out; reports may overtake it."""
        world = self.world
        late = [] if world.releases else [Released(world.taken[-1].step.number)]
        if world.releases or self.random.random() < 0.5:
            world.releases = self.random.random() > 0.1
            return list(late)
        return []

    def _pass_time(self) -> None:
        rng, world = self.random, self.world
        hop = rng.choice((0, 0, 1, MILLISECOND, SECOND // 2, SECOND, 3 * SECOND, 20 * SECOND))
        world.mono += hop
        world.wall += hop
        if self.crashes and rng.random() < 0.02:
            world.wall += rng.choice((-10, -1, 5, 60)) * SECOND

    def _crash(self) -> None:
        self.world.crash(gap=self.random.choice((0, SECOND, 40 * SECOND)))
        for each in (self.sessions, self.broken, self.calls):
            each.clear()
        self.numbers.clear()
        self.watches = 0

    def _target(self) -> TaskRef:
        rng, ledger = self.random, self.world.ledger
        if ledger.rows and rng.random() < 0.6:
            known = list(ledger.rows)
            return known[max(0, len(known) - 1 - int(min(rng.expovariate(0.2), 1000)))]
        return rng.choice(KEYS)

    def _spec(self) -> TaskSpec:
        rng = self.random
        fields: dict[str, object] = {}
        if rng.random() < 0.4:
            fields["key"] = rng.choice(KEYS)
        if rng.random() < 0.35:
            fields["dependencies"] = tuple(
                Dependency(self._target(), rng.choice(list(EdgeCondition)))
                for _ in range(rng.randint(1, 3))
            )
        if rng.random() < 0.2:
            fields["resources"] = ((rng.choice(("gpu", "mail")), rng.randint(1, 2)),)
        if rng.random() < 0.15:
            fields["delay"] = rng.randint(0, 10) * SECOND
        elif rng.random() < 0.15:
            fields["start_in"] = rng.randint(0, 10) * SECOND
            fields["on_miss"] = rng.choice(list(MissPolicy))
            fields["tolerance"] = rng.choice((0, SECOND))
        if rng.random() < 0.15:
            fields["expires_in"] = rng.randint(1, 20) * SECOND
        if rng.random() < 0.2:
            fields["timeout"] = rng.choice((2, 7)) * SECOND
        if rng.random() < 0.2:
            fields["deadline_in"] = rng.randint(1, 30) * SECOND
        if rng.random() < 0.3:
            fields["retry"] = RetryPolicy(rng.randint(1, 3), SECOND, 2.0, 4 * SECOND)
        if rng.random() < 0.3:
            fields["tenant"] = rng.choice("xyz")
        if rng.random() < 0.15:
            fields["labels"] = (("zone", "n"),)
        return TaskSpec(
            pool=rng.choice("abbccd"),
            kind=rng.choice(KINDS),
            priority=rng.randint(1, 4),
            payload=b"p",
            **fields,  # type: ignore[arg-type]
        )

    def _submit(self) -> list[Event]:
        rng = self.random
        specs = [self._spec() for _ in range(rng.choice((1, 1, 1, 2, 4)))]
        mode = SubmitMode.ONE
        if len(specs) > 1:
            mode = rng.choice((SubmitMode.BATCH, SubmitMode.MANY))
        event: Submit = self.world.submission(
            *specs, mode=mode, patience=rng.choice((0, SECOND, 30 * SECOND))
        )
        self.calls.append(event.call)
        return [event]

    def _join(self) -> list[Event]:
        rng = self.random
        pool, protocol = rng.choice("abcd"), rng.choice((3, 4, 4, 4))
        event = self.world.registration(
            rng.randint(0, 4),
            pool,
            kinds=rng.choice(((), (), ("work",), ("mail", "fax"))),
            labels=rng.choice(((), (("zone", "n"),))),
            protocol=protocol,
        )
        self._enlist(event.session, pool, protocol)
        return [event]

    def _enlist(self, session: int, pool: str, protocol: int) -> None:
        self.sessions.append(session)
        self.numbers[session] = 0
        self.pool_of[session] = pool
        self.protocol_of[session] = protocol

    def _report(self) -> list[Event]:
        rng = self.random
        if not self.sessions:
            return []
        session = rng.choice(self.sessions)
        held = self.world.out.get(session, {})
        leases = rng.sample(list(held), min(len(held), rng.randint(1, 3)))
        if rng.random() < 0.2:
            leases.append(rng.choice([*self.world.leases, 5]))
        reports = []
        for lease in leases:
            held.pop(lease, None)
            reports.append(self._word_on(lease))
        number = 0
        if self.protocol_of[session] >= 4:
            number = self.numbers[session] = self.numbers[session] + rng.choice((1, 1, 1, 0))
        return [AttemptsReported(session, reports, number)]

    def _word_on(self, lease: int) -> Report:
        rng = self.random
        draw = rng.random()
        if draw < 0.5:
            return Completed(lease, b"done", "text/plain")
        if draw < 0.75:
            retry_after = rng.choice((None, None, 0, 5 * SECOND))
            return Failed(lease, "broken", rng.random() < 0.2, retry_after)
        return Nacked(lease, "no") if draw < 0.9 else CancelledByWorker(lease)

    def _beat(self) -> list[Event]:
        rng = self.random
        beats: list[Event] = []
        for session in self.sessions:
            if rng.random() < 0.6:
                held = self.world.out.get(session, {})
                named = [lease for lease in held if rng.random() < 0.95]
                last = max(held, default=0) if rng.random() < 0.8 else 0
                progress = tuple((lease, Progress(b"%d" % lease, None)) for lease in named[:1])
                beats.append(HeartbeatsRead(session, named, progress, 1, last))
        return beats

    def _lose(self) -> list[Event]:
        rng = self.random
        if not self.sessions:
            return []
        session = rng.choice(self.sessions)
        self.sessions.remove(session)
        clean = rng.random() < 0.3
        held = list(self.world.out.get(session, {}))
        lost: list[Event] = []
        if held and rng.random() < 0.5:
            lost.append(Unsent(session, tuple(held[-1:])))
        if not clean and self.protocol_of[session] >= 4:
            self.broken.append((session, self.pool_of[session]))
        return [*lost, WorkerLost(session, clean)]

    def _resume(self) -> list[Event]:
        rng = self.random
        candidates = [*self.broken, *((s, self.pool_of[s]) for s in self.sessions[:1])]
        if not candidates:
            return []
        old, pool = rng.choice(candidates)
        if (old, pool) in self.broken:
            self.broken.remove((old, pool))
        else:
            self.sessions.remove(old)
        held = self.world.out.pop(old, {})
        named = {lease: x for lease, x in held.items() if rng.random() < 0.7}
        word = Resume(b"token-%d" % old, (*named, 77))
        event = self.world.registration(rng.randint(0, 4), pool, resume=word)
        self._enlist(event.session, pool, 4)
        self.numbers[event.session] = self.numbers[old]
        self.world.out[event.session] = named
        return [event]

    def _cancel(self) -> list[Event]:
        return [Cancel(self._call(), self._target())]

    def _ask(self) -> list[Event]:
        rng, call = self.random, self._call()
        self.calls.append(call)
        target = self._target()
        draw = rng.randrange(8)
        if draw == 0:
            return [Get(call, target, detail=rng.random() < 0.5)]
        if draw == 1:
            return [ListTasks(call, TaskFilter(pools=("a",)), 0, 5, rng.random() < 0.5)]
        if draw == 2:
            return [SnapshotQuery(call), ListWorkers(self._call())]
        if draw == 3:
            self.watches += 1
            ids, keys = ((), (target,)) if isinstance(target, str) else ((target,), ())
            return [Watch(call, ids, keys)]
        if draw == 4 and self.watches:
            self.watches -= 1
            return [Unwatch()]
        if draw == 5 and self.sessions:
            session = rng.choice(self.sessions)
            lease = next(iter(self.world.out.get(session, {})), 1)
            return [GetOutput(call, session, lease, max(self.world.ledger.rows, default=1))]
        live = [i for i in self.world.ledger.rows if i not in self.world.ledger.ends]
        until = rng.choice((None, self.world.mono, self.world.mono + 5 * SECOND))
        return [Wait(call, tuple(rng.sample(live, min(3, len(live)))), (rng.choice(KEYS),), until)]

    def _set_slots(self) -> list[Event]:
        if not self.sessions:
            return []
        return [SlotsSet(self.random.choice(self.sessions), self.random.randint(0, 4))]

    def _forget(self) -> list[Event]:
        if not self.calls:
            return []
        call = self.random.choice(self.calls)
        self.calls.remove(call)
        return [Forget(call)]

    def _put_back(self) -> list[Event]:
        rng, ledger = self.random, self.world.ledger
        if not ledger.ends:
            return []
        call, target = self._call(), rng.choice(list(ledger.ends))
        draw = rng.random()
        if draw < 0.2 and self.crashes:
            page = tuple(ledger.stored(i) for i in sorted(ledger.ends)[-5:])
            action = rng.choice(list(BulkAction))
            return [Bulk(call, TaskFilter(pools=("a", "c")), action, 5, found=page)]
        event: Redrive | Delete = Redrive(call, target)
        if draw > 0.8:
            event = Delete(call, target)
        ids, keys = self.world.engine.wants(event)
        return [msgspec.structs.replace(event, found=ledger.find(ids, keys))]

    def _has_children(self, target: int) -> bool:
        return target in self.world.engine._state.pinned

    def _schedule(self) -> list[Event]:
        rng, call, name = self.random, self._call(), self.random.choice("mn")
        draw = rng.random()
        if draw < 0.5:
            cron = rng.choice(("*/7 * * * * *", "* * * * *"))
            template = TaskSpec(rng.choice("ad"), "work", timeout=7 * SECOND)
            spec = ScheduleSpec(name, cron, template, overlap=rng.choice(list(Overlap)))
            calendar = parse(cron)
            assert isinstance(calendar, Calendar)
            return [PutSchedule(call, spec, calendar)]
        if draw < 0.65:
            return [RemoveSchedule(call, name)]
        if draw < 0.8:
            return [PauseSchedule(call, name, rng.random() < 0.5)]
        if draw < 0.9:
            start = self.world.wall
            return [BackfillSchedule(call, name, start - MINUTE, start)]
        return [TriggerSchedule(call, name)]

    def _capacity(self) -> list[Event]:
        rng, call = self.random, self._call()
        draw = rng.random()
        if draw < 0.5:
            return [SetPoolPaused(call, rng.choice("ab"), paused=rng.random() < 0.4)]
        if draw < 0.75:
            return [ResizeResource(call, "mail", rate=rng.randint(1, 4) * SECOND)]
        return [ListResources(call)]

    def _call(self) -> int:
        return self.world.call()


def everything_ends(world: World) -> bool:
    """Lets time and willing workers finish what is left; says whether all tasks ended.

    A task that waits for its first attempt, for a parent or for a key must come to an end with
    workers for everything there: nothing may be stuck.
    """
    state = world.engine._state
    if not world.releases:
        world.releases = True
        world.release(world.taken[-1].step.number)
    for name in list(state.schedules):
        world.ask(RemoveSchedule(world.call(), name))
    for pool in state.pools:
        world.ask(SetPoolPaused(world.call(), pool, paused=False))
    for session in list(state.sessions):
        world.lose(session, clean=True)
    sessions = [world.join(20, pool.name, labels=(("zone", "n"),)) for pool in world.settings.pools]
    for _ in range(200):
        for session in sessions:
            joined = world.joined[session]
            assert isinstance(joined, effects.Joined)
            if world.out.get(session):
                world.complete(session)
            else:
                world.beat(session, last=0)
        if not state.tasks:
            return True
        world.leap(SECOND)
    return False
