"""A random world that tells the placement and its definition the same things and compares them.

One seed decides everything: pools, resources, profiles, tasks, clocks, losses. After every event
both run; the tasks started, their order and the versatility of the workers must be the same, and
the accounts must add up.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from cronoq_server.engine.placement import Placement, PoolRules, Waiting
from cronoq_server.engine.placement.resources import NANO, ResourceRules, Resources
from tests.engine.placement_reference import (
    Mismatch,
    Reference,
    RefPool,
    RefResource,
    RefSession,
    RefTask,
)

SECOND = NANO
LABELS = ("gpu", "eu", "big")
KINDS = ("a", "b", "c")


@dataclass
class Running:
    """A started task, as the engine would keep it."""

    fast: Waiting
    plain: RefTask
    session: int


class World:
    """Both structures, and what the engine would know about them."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        chance = self.chance
        self.tick = chance.choice((1, SECOND))  # whole seconds make scores equal now and then
        self.wall = 1_700_000_000 * SECOND
        self.mono = chance.randrange(100 * SECOND)
        self.next_id = 1
        self.next_session = 1
        self.started: list[tuple[int, int]] = []  # (task, session), in order
        self.waiting: dict[int, tuple[Waiting, RefTask]] = {}
        self.running: list[Running] = []
        self.planned: dict[int, tuple[Waiting, RefTask]] = {}  # held, not pushed yet
        self.sizes: dict[int, int] = {}  # slots of each session
        self.reference = Reference()
        self.has_fair = chance.random() < 0.4
        self.has_labels = chance.random() < 0.6
        self.has_kinds = chance.random() < 0.4
        self.has_deadlines = chance.random() < 0.5
        self.has_holds = chance.random() < 0.3
        self.are_deadlines_close = chance.random() < 0.5
        self.is_plain = chance.random() < 0.1  # nothing but classes and deadlines
        if self.is_plain:
            self.has_labels = self.has_kinds = self.has_holds = False
        self.is_crowded = chance.random() < 0.01  # enough tasks for masks of masks
        self.fast = self._make_pools(self._make_resources())
        self.traits = [self._traits() for _ in range(chance.choice((1, 2, 4)))]

    def _make_resources(self) -> Resources:
        chance = self.chance
        rules = []
        for at in range(0 if self.is_plain else chance.choice((0, 1, 1, 2, 4))):
            name = f"r{at}"
            per_value = chance.random() < 0.35
            if chance.random() < 0.7:
                rules.append(ResourceRules(name, chance.randint(1, 4), per_value=per_value))
            else:
                rate = chance.choice((0, 1, NANO // 3, NANO, 7 * NANO + 3))
                burst = chance.randint(1, 4)
                rules.append(ResourceRules(name, None, rate, burst, per_value))
        self.rules = {rule.name: rule for rule in rules}
        for rule in rules:
            names = [f"{rule.name}:{v}" for v in "xyz"] if rule.per_value else [rule.name]
            for name in names:
                self.reference.resources[name] = RefResource(
                    name,
                    rule.permits,
                    rule.rate,
                    rule.burst,
                    level=rule.burst * NANO * NANO,
                    at=self.mono,
                )
        return Resources(rules, self.mono)

    def _make_pools(self, resources: Resources) -> Placement:
        pools = []
        for name in ("one", "two")[: self.chance.choice((1, 1, 2))]:
            fair = self.has_fair and self.chance.random() < 0.8
            weights = {"t1": 2, "t2": 5} if self.chance.random() < 0.5 else {}
            pools.append(PoolRules(name, fair, weights))
            self.reference.pools[name] = RefPool(name, fair, weights)
        self.pools = [pool.name for pool in pools]
        return Placement(pools, resources)

    def _traits(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        labels: tuple[str, ...] = ()
        kinds: tuple[str, ...] = ()
        if self.has_labels:
            labels = tuple(label for label in LABELS if self.chance.random() < 0.4)
        if self.has_kinds:
            kinds = tuple(kind for kind in KINDS if self.chance.random() < 0.4)
        return labels, kinds

    # Events

    def play(self, events: int) -> None:
        """Plays random events, then ends everything and checks that nothing is held."""
        choices = (
            (self.submit, 10),
            (self.end, 9),
            (self.nack, 2),
            (self.forgive, 1),
            (self.withdraw, 1),
            (self.join, 0.5),
            (self.leave, 0.4),
            (self.resize_session, 1),
            (self.pass_time, 5),
            (self.resize, 0.4),
            (self.replan, 1 if self.has_deadlines else 0),
            (self.pause, 0.3),
            (self.plan, 2 if self.has_holds else 0),
            (self.unplan, 1 if self.has_holds else 0),
        )
        events_of, weights = zip(*choices, strict=True)
        self.join()
        for _ in range(events // 2 if self.is_crowded else events):
            self.chance.choices(events_of, weights)[0]()
            self.step()
        while self.running:
            self.end()
            self.step()
        for name in self.reference.resources:
            account = self.fast.resources.find(name)
            assert account is None or account.held == 0, name

    def submit(self) -> None:
        """Some new tasks, now and then with an old place."""
        crowd = 12 if self.is_crowded else 1
        for _ in range(self.chance.choice((1, 1, 2, 6)) * crowd):
            since = self.wall
            if self.chance.random() < 0.05:
                since -= self.chance.randrange(500) * SECOND
            fast, plain = self._make(since)
            self._push(fast, plain)

    def _make(self, since: int) -> tuple[Waiting, RefTask]:
        chance = self.chance
        labels: tuple[str, ...] = ()
        kind = "a"
        if self.has_labels and chance.random() < 0.6:
            labels = tuple(label for label in LABELS if chance.random() < 0.3)
        if self.has_kinds:
            kind = chance.choice(KINDS)
        needs = {}
        for name, rule in self.rules.items():
            if chance.random() < 0.5:
                capacity = max(1, rule.burst if rule.permits is None else rule.permits)
                full = f"{name}:{chance.choice('xyz')}" if rule.per_value else name
                needs[full] = chance.choice((1, 1, 1, 2, 3, capacity))
        plain = RefTask(
            self.next_id,
            chance.choice((1, 2, 3, 3, 3, 4)),
            since,
            chance.choice(self.pools),
            frozenset(labels),
            kind,
            needs,
            chance.choice(("t1", "t2", "t3", "")),
            expected=chance.choice((0, SECOND, 7 * SECOND, 300 * SECOND, 4000 * SECOND)),
        )
        if self.has_deadlines and chance.random() < 0.5:
            furthest = 60 if self.are_deadlines_close else 1200
            plain.latest = self.wall + chance.randint(-50, furthest) * SECOND
        self.next_id += 1
        demand = self.fast.demand(plain.pool, labels, kind, tuple(needs.items()), plain.tenant)
        return Waiting(plain.id, plain.priority, since, demand), plain

    def _push(self, fast: Waiting, plain: RefTask) -> None:
        self.fast.push(fast, self.wall, plain.latest, plain.expected)
        self.reference.push(plain)
        self.waiting[plain.id] = (fast, plain)

    def _pick_running(self) -> Running | None:
        if not self.running:
            return None
        running = self.running.pop(self.chance.randrange(len(self.running)))
        self.fast.finished(running.fast)
        for name, amount in running.plain.needs.items():
            resource = self.reference.resources[name]
            if resource.permits is not None:
                resource.held -= amount
        self._tell_slots(running.session)
        return running

    def end(self) -> None:
        """Some attempts end; some of their tasks are ready again at once."""
        for _ in range(self.chance.choice((1, 2, 4))):
            running = self._pick_running()
            if running is None:
                return
            if self.chance.random() < 0.1:
                running.fast.since = running.plain.since = self.wall
                running.plain.avoid = ()
                self._push(running.fast, running.plain)
            else:
                self.fast.release(running.fast.demand)

    def nack(self) -> None:
        """A session gives a task back unrun."""
        running = self._pick_running()
        if running is None:
            return
        plain = running.plain
        if self.chance.random() < 0.8 and not self.is_plain:
            others = [each for each in plain.avoid if each != running.session]
            plain.avoid = (*others, running.session)
        self.fast.push_back(running.fast, self.wall, plain.latest, plain.expected, plain.avoid)
        self.reference.push(plain)
        self.waiting[plain.id] = (running.fast, plain)

    def forgive(self) -> None:
        """A task may go to sessions that refused it again: to all of them, or to the first."""
        avoiding = [pair for pair in self.waiting.values() if pair[1].avoid]
        if avoiding:
            fast, plain = self.chance.choice(avoiding)
            plain.avoid = self.chance.choice(((), plain.avoid[1:]))
            self.fast.forgive(fast, plain.avoid)

    def withdraw(self) -> None:
        """A waiting task is cancelled."""
        if self.waiting:
            fast, plain = self.waiting.pop(self.chance.choice(list(self.waiting)))
            self.fast.withdraw(fast)
            self.fast.release(fast.demand)
            self.reference.withdraw(plain)

    def join(self) -> None:
        """A worker connects, mostly with traits that are known."""
        if self.chance.random() < 0.3:
            self.traits.append(self._traits())
        labels, kinds = self.chance.choice(self.traits)
        pool = self.chance.choice(self.pools)
        session = self.next_session
        self.next_session += 1
        size = self.chance.choice((1, 1, 1, 2, 2, 4))
        self.sizes[session] = size
        self.reference.sessions[session] = RefSession(
            session, pool, frozenset(labels), frozenset(kinds), size
        )
        self.fast.session_joined(session, pool, labels, kinds, size)

    def leave(self) -> None:
        """A worker goes; what it ran is ready again in its old place, or gone."""
        if len(self.sizes) < 2:
            return
        session = self.chance.choice(list(self.sizes))
        for running in [each for each in self.running if each.session == session]:
            self.running.remove(running)
            self.fast.finished(running.fast)
            for name, amount in running.plain.needs.items():
                resource = self.reference.resources[name]
                if resource.permits is not None:
                    resource.held -= amount
            if self.chance.random() < 0.5:
                running.plain.avoid = ()
                self._push(running.fast, running.plain)
            else:
                self.fast.release(running.fast.demand)
        del self.sizes[session]
        self.reference.lose(session, 0)
        del self.reference.sessions[session]
        self.fast.session_left(session)

    def resize_session(self) -> None:
        """A worker asks for more or fewer slots."""
        session = self.chance.choice(list(self.sizes))
        self.sizes[session] = self.chance.choice((0, 1, 2, 5))
        self._tell_slots(session)

    def _tell_slots(self, session: int) -> None:
        if session not in self.sizes:
            return
        busy = sum(1 for running in self.running if running.session == session)
        free = max(0, self.sizes[session] - busy)
        self.reference.lose(session, free)
        self.reference.sessions[session].told = free
        self.fast.slots(session, free)
        self._follow_holds()

    def pass_time(self) -> None:
        """Time passes, from a nanosecond to minutes; now and then a clock is set."""
        chance = self.chance
        passed = chance.choice((1, 1000, SECOND // 10, SECOND, 5 * SECOND, 60 * SECOND))
        passed = chance.randint(1, passed * chance.choice((1, 1, 8)))
        passed = -(-passed // self.tick) * self.tick
        self.wall += passed
        self.mono += passed
        if self.waiting and chance.random() < 0.3:
            passed = max(0, self._instant_of_note() - self.wall)
            passed = passed if passed < 2000 * SECOND else 0
            self.wall += passed
            self.mono += passed
        elif chance.random() < 0.04:
            furthest = chance.choice((100, 4000))
            self.wall += chance.randint(-furthest, furthest) * SECOND

    def replan(self) -> None:
        """A waiting task gets another deadline, or none."""
        if self.waiting:
            fast, plain = self.waiting[self.chance.choice(list(self.waiting))]
            plain.latest = self.chance.choice((None, self.wall + 9 * SECOND, self.wall - SECOND))
            self.fast.set_latest(fast, self.wall, plain.latest, plain.expected)

    def _instant_of_note(self) -> int:
        """An instant at which the rank of some waiting task changes its course, or just beside."""
        _, task = self.waiting[self.chance.choice(list(self.waiting))]
        instants = [task.since + 60 * SECOND, task.since + 400 * SECOND]
        if task.latest is not None:
            window = min(max(task.expected, 5 * SECOND), 1000 * SECOND)
            instants += [task.latest - window, task.latest, task.latest + 40 * SECOND]
        return self.chance.choice(instants) + self.chance.choice((-1, 0, 0, 1, SECOND // 2))

    def resize(self) -> None:
        """A resource changes its size."""
        if not self.rules:
            return
        name = self.chance.choice(list(self.rules))
        rule = self.rules[name]
        size = self.chance.randint(0, 5)
        rate = self.chance.choice((1, NANO, 5 * NANO))
        for resource in self.reference.resources.values():
            if resource.name == name or resource.name.startswith(f"{name}:"):
                if resource.permits is not None:
                    resource.permits = size
                else:
                    resource.left(self.mono)
                    resource.rate = rate
                    resource.burst = size
                    resource.left(self.mono)
                    if self.fast.resources.find(resource.name) is None:
                        # Not in use: it is made anew, and full, by the next use.
                        resource.level = size * NANO * NANO
        if rule.permits is not None:
            self.fast.resize(name, self.mono, permits=size)
        else:
            self.fast.resize(name, self.mono, rate=rate, burst=size)

    def pause(self) -> None:
        """A pool is paused or resumed."""
        pool = self.reference.pools[self.chance.choice(self.pools)]
        pool.paused = not pool.paused
        self.fast.set_paused(pool.name, pool.paused)

    def plan(self) -> None:
        """A slot is held for a task, which mostly becomes ready later."""
        if self.planned and self.chance.random() < 0.5:
            fast, plain = self.planned.pop(self.chance.choice(list(self.planned)))
            fast.since = plain.since = self.wall
            self._push(fast, plain)
        else:
            fast, plain = self._make(self.wall)
            if self.chance.random() < 0.2:
                self._push(fast, plain)
            else:
                self.planned[plain.id] = (fast, plain)
            self.reference.holds.append((plain, None))
            self.fast.hold(fast)
            self._follow_holds()

    def unplan(self) -> None:
        """A hold ends before its task has started."""
        held = [hold[0].id for hold in self.reference.holds]
        if not held:
            return
        number = self.chance.choice(held)
        fast, plain = self.planned.get(number) or self.waiting[number]
        self.reference.holds = [each for each in self.reference.holds if each[0] is not plain]
        if number in self.planned and self.chance.random() < 0.5:
            del self.planned[number]
            self.fast.withdraw(fast)
            self.fast.release(fast.demand)
        else:
            self.fast.unhold(fast)

    # Comparing

    def _follow_holds(self) -> None:
        pairs = {**self.planned, **self.waiting}
        session_of = {
            task.id: self.fast.held_by(pairs[task.id][0]) for task, _ in self.reference.holds
        }
        self.reference.keep(session_of)
        for task, session in self.reference.holds:
            if session != session_of[task.id]:
                raise Mismatch(f"hold of {task.id}: {session_of[task.id]} instead of {session}")

    def step(self) -> None:
        """Runs both and compares what they start."""
        self._follow_holds()
        started = self.fast.run(self.wall, self.mono)
        expected = self.reference.run(
            self.wall, self.mono, [(task.id, session) for task, session in started]
        )
        for (fast, session), (plain, _) in zip(started, expected, strict=True):
            del self.waiting[plain.id]
            self.running.append(Running(fast, plain, session))
        self.started += [(task.id, session) for task, session in started]
        self._follow_holds()
        self._check_books()

    def _check_books(self) -> None:
        for name, plain in self.reference.resources.items():
            account = self.fast.resources.find(name)
            if account is not None and plain.permits is not None:
                assert account.held == plain.held, name
                assert account.available == plain.permits - plain.held, name
        for pool in self.pools:
            mine = [plain for _, plain in self.waiting.values() if plain.pool == pool]
            counts = tuple(sum(1 for t in mine if t.priority == p) for p in (1, 2, 3, 4))
            assert self.fast.count(pool) == counts, pool
