"""Rows, tournaments and turns answer like their plain definitions."""

from __future__ import annotations

import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from cronoq_server.engine.placement import Waiting, rows
from cronoq_server.engine.placement.gates import NOBODY, Demand, Gate
from cronoq_server.engine.placement.kinetic import Finals, Tournament
from cronoq_server.engine.placement.rows import Row
from cronoq_server.engine.placement.turns import COST_MIN, IDLE_MAX, Turns
from cronoq_server.engine.placement.unions import UnionTree
from cronoq_server.engine.placement.urgency import FOREVER, SECOND, rush_of, score
from cronoq_server.engine.placement.waiting import OUT

GATES = [Gate(index, 0, NOBODY, ()) for index in range(6)]


def demand(gate: int, tenant: str = "") -> Demand:
    """A demand behind one of the gates."""
    made = Demand(0, ((), "", (), tenant, NOBODY), ())
    made.gate = GATES[gate]
    return made


DEMANDS = [demand(gate) for gate in range(len(GATES))]


def place(task: Waiting) -> tuple[int, int]:
    """What a row is sorted by."""
    return task.since, task.id


class RowMachine(RuleBasedStateMachine):
    """A row beside a sorted list; blocks of tasks, so that masks of masks come into play."""

    def __init__(self) -> None:
        super().__init__()
        self.row = Row(True)
        self.tasks: list[Waiting] = []
        self.ids = 0
        self.now = 0

    def add(self, since: int, gate: int) -> None:
        """Pushes one task into both."""
        self.ids += 1
        task = Waiting(self.ids, 3, since, DEMANDS[gate])
        self.row.push(task)
        self.tasks.append(task)

    @rule(count=st.sampled_from([1, 3, 40, 700]), gate=st.integers(0, 5), step=st.integers(0, 2))
    def push_many(self, count: int, gate: int, step: int) -> None:
        """A run of tasks, mostly behind one gate."""
        for at in range(count):
            self.now += step
            self.add(self.now, gate if at % 97 else (gate + 1) % 6)

    @rule(gate=st.integers(0, 5), back=st.integers(0, 2000))
    def push_back(self, gate: int, back: int) -> None:
        """A task with an old place."""
        self.add(self.now - back, gate)

    @rule(count=st.sampled_from([1, 30, 900]), open_bits=st.integers(1, 63))
    def take_first(self, count: int, open_bits: int) -> None:
        """Takes the first ones behind open gates, as a dispatch step does."""
        for _ in range(count):
            expected = [t for t in self.tasks if t.demand.gate.bit & open_bits]
            found = self.first(open_bits)
            if not expected:
                assert found is None
                return
            assert found is min(expected, key=place)
            self.row.remove(found)
            self.tasks.remove(found)

    def first(self, open_bits: int) -> Waiting | None:
        """What the row says, asked as lines ask it."""
        if self.row.masked and not self.row.root & open_bits:
            return None
        return self.row.first_cold(open_bits)

    @rule(seed=st.integers(0, 9), share=st.sampled_from([0.02, 0.5, 0.95]))
    def withdraw_some(self, seed: int, share: float) -> None:
        """Cancels tasks all over the row."""
        chance = random.Random(seed)
        kept = []
        for task in self.tasks:
            if chance.random() < share:
                self.row.remove(task)
                assert task.p_at == OUT
            else:
                kept.append(task)
        self.tasks = kept

    @rule()
    def remask(self) -> None:
        """Gates were made anew."""
        self.row.remask(True)

    @invariant()
    def ends_agree(self) -> None:
        """Length, first, last and first per gate are those of the sorted list."""
        assert len(self.row) == len(self.tasks)
        assert self.row.oldest_cold() is min(self.tasks, key=place, default=None)
        assert self.row.newest_cold() is max(self.tasks, key=place, default=None)
        for gate in GATES:
            mine = [task for task in self.tasks if task.demand.gate is gate]
            assert self.first(gate.bit) is min(mine, key=place, default=None)


RowMachine.TestCase.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)
TestRow = RowMachine.TestCase


def test_row_drops_what_has_left_at_its_head(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long-lived row keeps no more than a few places per living task."""
    monkeypatch.setattr(rows, "_CHOP_MIN", 32768)
    row = Row(True)
    queue: list[Waiting] = []
    for number in range(150_000):
        task = Waiting(number, 3, number, DEMANDS[number % 6])
        row.push(task)
        queue.append(task)
        if number >= 40_000:
            first = queue[number - 40_000]
            assert row.first_cold(63) is first
            row.remove(first)
    assert len(row) == 40_000
    assert len(row.tasks) < 5 * 40_000 + 100
    assert row.first_cold(GATES[5].bit) is next(t for t in queue[110_000:] if t.id % 6 == 5)


def test_row_takes_in_a_clock_that_was_set_back() -> None:
    """Many tasks with old places become a sorted list again, in their order."""
    row = Row(True)
    tasks = [Waiting(n, 3, n if n < 500 else n - 1000, DEMANDS[n % 6]) for n in range(2000)]
    for task in tasks:
        row.push(task)
    assert len(row.back) <= 8 * rows.BACK_MAX
    for expected in sorted(tasks, key=place):
        found = row.first_cold(63)
        assert found is expected
        row.remove(found)


@pytest.mark.parametrize("seed", range(6))
def test_union_tree_has_the_bits_of_all_masks(seed: int) -> None:
    """The root is the OR of what was set last at each index."""
    chance = random.Random(seed)
    tree = UnionTree()
    masks: dict[int, int] = {}
    for _ in range(300):
        index, mask = chance.randrange(40), chance.getrandbits(70) & chance.getrandbits(70)
        tree.set(index, mask)
        masks[index] = mask
        union = 0
        for each in masks.values():
            union |= each
        assert tree.root == union


@pytest.mark.parametrize("seed", range(40))
def test_tournament_knows_the_best_at_any_time(seed: int) -> None:
    """With players joining, leaving and nested, the winner has the highest score, then place."""
    chance = random.Random(seed)
    host = Tournament()
    nested = [Tournament() for _ in range(3)]
    homes: dict[int, tuple[Waiting, Tournament]] = {}
    now = 10**15
    for number in range(400):
        choice = chance.random()
        if choice < 0.5 or not homes:
            task = Waiting(
                number,
                chance.choice((3, 3, 3, 4)),
                now - chance.choice((0, 0, 7, 500, 1000, 3 * SECOND, 399 * SECOND)),
                DEMANDS[0],
            )
            latest = now + chance.randint(-50, 100) * SECOND
            task.p_rush = rush_of(latest, chance.choice((0, 60, 90)) * SECOND)
            home = chance.choice([host, *nested])
            home.add(task)
            if home is not host and len(home) == 1:
                host.add(home)
            homes[number] = (task, home)
        elif choice < 0.75:
            task, home = homes.pop(chance.choice(list(homes)))
            if home is not host and len(home) == 1:
                host.remove(home)
            home.remove(task)
        if chance.random() < 0.5 and now < host._until[1] < FOREVER:
            # The instant at which something may change, or the one before it.
            now = host._until[1] - chance.randrange(2)
        else:
            now += chance.choice((0, 0, 1, 500, SECOND, 30 * SECOND))
        if chance.random() < 0.05:
            now -= 100 * SECOND
            for tournament in (host, *nested):
                tournament.reset()
        if homes:
            best = min(
                (task for task, _ in homes.values()), key=lambda t: (-score(t, now), *place(t))
            )
            assert host.best(now) is best


@pytest.mark.parametrize("seed", range(12))
def test_finals_know_the_best_behind_open_gates(seed: int) -> None:
    """Of many tournaments behind gates, the best task of those whose gates are open wins."""
    chance = random.Random(seed)
    finals = Finals()
    played: dict[int, tuple[Tournament, list[Waiting]]] = {}
    now = 10**15
    for number in range(600):
        gate = chance.randrange(24)
        if chance.random() < 0.6 or gate not in played:
            since = now - chance.randrange(20) * SECOND
            task = Waiting(number, chance.choice((3, 3, 4)), since, DEMANDS[0])
            task.p_rush = rush_of(now + chance.randint(-50, 100) * SECOND, 0)
            tournament, tasks = played.setdefault(gate, (Tournament(), []))
            tournament.add(task)
            tasks.append(task)
            if len(tasks) == 1:
                finals.enter(tournament, 1 << gate)
        else:
            tournament, tasks = played[gate]
            if len(tasks) == 1:
                finals.leave(tournament)
                del played[gate]
            tournament.remove(tasks.pop(chance.randrange(len(tasks))))
        now += chance.choice((0, 1, SECOND, 9 * SECOND))
        assert finals.mask == sum(1 << each for each in played)
        for share in (1, 2, 8):
            open_bits = sum(1 << each for each in range(24) if not chance.randrange(share))
            able = [t for each, (_, ts) in played.items() if open_bits >> each & 1 for t in ts]
            best = min(able, key=lambda task: (-score(task, now), *place(task)), default=None)
            assert finals.best_open(now, open_bits) is best


@pytest.mark.parametrize("seed", range(8))
def test_turns_go_to_the_least_tag(seed: int) -> None:
    """The next task is that of the tenant with the least (tag, appearance) behind an open gate."""
    chance = random.Random(seed)
    weights = {f"t{at}": at % 4 + 1 for at in range(80)}
    turns = Turns(True, weights, 1)
    waiting: list[Waiting] = []
    tags: dict[str, tuple[int, int]] = {}
    time = numbers = 0
    asks = [demand(at % 6, f"t{at}") for at in range(80)] + [
        demand(1, f"t{at}") for at in range(80)
    ]
    for number in range(1500):
        choice = chance.random()
        if choice < 0.5:
            task = Waiting(number, 3, number, chance.choice(asks))
            task.p_cost = chance.choice((0, SECOND, 9 * SECOND))
            tenant = task.demand.tenant
            if not any(each.demand.tenant == tenant for each in waiting):
                tag = tags.get(tenant)
                if tag is None or tag[0] <= time:
                    numbers += 1
                    tags[tenant] = (time, numbers)
            turns.push(task)
            waiting.append(task)
        elif choice < 0.6 and waiting:
            task = waiting.pop(chance.randrange(len(waiting)))
            turns.remove(task)
        else:
            open_bits = chance.randrange(1, 64)
            able = [task for task in waiting if task.demand.gate.bit & open_bits]
            found = turns.first(open_bits, 0)
            if not able:
                assert found is None
                continue
            turn = min({task.demand.tenant for task in able}, key=lambda tenant: tags[tenant])
            assert found is min((t for t in able if t.demand.tenant == turn), key=place)
            turns.charge(found)
            turns.remove(found)
            waiting.remove(found)
            time = max(time, tags[turn][0])
            cost = (max(found.p_cost, COST_MIN) << 20) // weights[turn]
            tags[turn] = (time + cost, tags[turn][1])
    assert len(turns) == len(waiting)
    assert len(turns.lines()) <= 80


def test_turns_do_not_remember_every_tenant_that_ever_came() -> None:
    """Tenants that come once are forgotten, though one that is blocked holds up virtual time."""
    turns = Turns(False, {}, 1)
    turns.push(Waiting(0, 3, 0, demand(1, "blocked")))
    for number in range(1, 5000):
        task = Waiting(number, 3, number, demand(0, f"once-{number}"))
        turns.push(task)
        turns.charge(task)
        turns.remove(task)
    assert len(turns.lines()) <= IDLE_MAX + 1


def test_turns_forget_tenants_whose_tasks_are_cancelled_though_they_came_back() -> None:
    """Who was pushed out of the list of idle ones while waiting again is listed anew."""
    turns = Turns(False, {}, 1)
    turns.push(Waiting(0, 3, 0, demand(1, "blocked")))

    def ran(tenant: str) -> None:
        task = Waiting(1, 3, 1, demand(0, tenant))
        turns.push(task)
        turns.charge(task)
        turns.remove(task)

    for number in range(5):
        names = [f"back-{number}-{each}" for each in range(500)]
        for name in names:
            ran(name)
        again = [Waiting(2 + i, 3, 2 + i, demand(0, name)) for i, name in enumerate(names)]
        for task in again:
            turns.push(task)
        for each in range(IDLE_MAX + 200):
            ran(f"once-{number}-{each}")
        for task in again:
            turns.remove(task)
    assert len(turns.lines()) <= IDLE_MAX + 1
