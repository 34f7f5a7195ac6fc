"""Which task goes to which worker, rule by rule."""

from __future__ import annotations

import gc
import random
import sys
from collections.abc import Iterable
from itertools import combinations
from types import FrameType
from typing import TYPE_CHECKING

import pytest

from cronoq_server.engine.placement import Placement, PoolRules, Waiting
from cronoq_server.engine.placement.gates import IDLE_DEMANDS_MAX, PICKY_MAX
from cronoq_server.engine.placement.holds import Hold
from cronoq_server.engine.placement.kinetic import Tournament
from cronoq_server.engine.placement.lines import Line
from cronoq_server.engine.placement.resources import NANO, ResourceRules, Resources

if TYPE_CHECKING:
    from _typeshed import TraceFunction

SECOND = NANO
START = 1_700_000_000 * SECOND
CRITICAL, HIGH, NORMAL, LOW = 1, 2, 3, 4


class Desk:
    """A placement with a clock, and tasks by number."""

    def __init__(self, *pools: PoolRules, resources: Iterable[ResourceRules] = ()) -> None:
        self.placement = Placement(pools or [PoolRules("p")], Resources(resources))
        self.now = START
        self.tasks: dict[int, Waiting] = {}

    def task(
        self,
        priority: int = NORMAL,
        *,
        pool: str = "p",
        labels: tuple[str, ...] = (),
        kind: str = "k",
        needs: dict[str, int] | None = None,
        tenant: str = "",
    ) -> Waiting:
        """Makes a task that is not in line."""
        demand = self.placement.demand(pool, labels, kind, tuple((needs or {}).items()), tenant)
        task = Waiting(len(self.tasks) + 1, priority, self.now, demand)
        self.tasks[task.id] = task
        return task

    def push(
        self,
        priority: int = NORMAL,
        *,
        latest: int | None = None,
        expected: int = 0,
        pool: str = "p",
        labels: tuple[str, ...] = (),
        kind: str = "k",
        needs: dict[str, int] | None = None,
        tenant: str = "",
    ) -> int:
        """Pushes a new task; returns its number."""
        task = self.task(priority, pool=pool, labels=labels, kind=kind, needs=needs, tenant=tenant)
        self.placement.push(task, self.now, latest, expected)
        return task.id

    def worker(
        self,
        session: int,
        free: int = 1,
        *,
        pool: str = "p",
        labels: tuple[str, ...] = (),
        kinds: tuple[str, ...] = (),
    ) -> None:
        """Connects a worker."""
        self.placement.session_joined(session, pool, labels, kinds, free)

    def run(self, after: float = 0) -> list[tuple[int, int]]:
        """Lets time pass and runs: (task, session) in the order of dispatch."""
        self.now += int(after * SECOND)
        return [
            (task.id, session) for task, session in self.placement.run(self.now, self.now - START)
        ]

    def order(self, after: float = 0) -> list[int]:
        """Runs one start at a time on session 1 until nothing starts."""
        self.now += int(after * SECOND)
        found: list[int] = []
        while True:
            self.placement.slots(1, 1)
            started = self.run()
            if not started:
                return found
            found.append(started[0][0])
            self.finish(started[0][0])

    def finish(self, number: int) -> None:
        """Ends the attempt of a started task."""
        self.placement.finished(self.tasks[number])


class TestOrder:
    """Class, age, deadline, place."""

    def test_classes_then_first_come(self) -> None:
        """Fresh tasks start by class, and in a class by order of submission."""
        desk = Desk()
        desk.worker(1)
        low, normal, critical, high = (desk.push(p) for p in (LOW, NORMAL, CRITICAL, HIGH))
        second = desk.push(HIGH)
        assert desk.order() == [critical, high, second, normal, low]

    @pytest.mark.parametrize(("waited", "is_first"), [(44.9, False), (45.1, True)])
    def test_low_overtakes_a_fresh_normal_after_45_seconds(
        self, waited: float, is_first: bool
    ) -> None:
        """Two points a second make up the 90 points between the classes."""
        desk = Desk()
        desk.worker(1)
        low = desk.push(LOW)
        desk.now += int(waited * SECOND)
        normal = desk.push(NORMAL)
        assert desk.order() == ([low, normal] if is_first else [normal, low])

    def test_low_never_overtakes_high(self) -> None:
        """Age is worth at most 800 points, however long it lasts."""
        desk = Desk()
        desk.worker(1)
        low = desk.push(LOW)
        desk.now += 10**6 * SECOND
        high = desk.push(HIGH)
        assert desk.order() == [high, low]

    def test_equal_scores_go_by_ready_instant_then_id(self) -> None:
        """After 400 s all of a class have the same score; who became ready earlier is first."""
        desk = Desk()
        desk.worker(1)
        later = desk.task()
        later.since = desk.now + 5
        earlier = desk.task()
        earlier.since = desk.now + 3
        twin = desk.task()
        twin.since = desk.now + 3
        for task in (later, twin, earlier):
            desk.placement.push(task, desk.now)
        assert desk.order(1000) == [earlier.id, twin.id, later.id]

    def test_urgency_rises_only_inside_the_window(self) -> None:
        """A deadline lifts a low task over high ones near its latest start, not before."""
        desk = Desk()
        desk.worker(1)
        low = desk.push(LOW, latest=desk.now + 100 * SECOND, expected=20 * SECOND)
        high = desk.push(HIGH)
        desk.now += 79 * SECOND
        desk.placement.slots(1, 0)
        assert desk.placement.run(desk.now, 0) == []
        fresh = desk.push(HIGH)
        assert desk.order(21) == [low, high, fresh]

    def test_overdue_tasks_rank_by_how_late_they_are(self) -> None:
        """Overdue adds 50 points a second, at most 2000: after 40 s lateness counts no more."""
        desk = Desk()
        desk.worker(1)
        newer = desk.push(latest=desk.now + 10 * SECOND)
        older = desk.push(latest=desk.now - 20 * SECOND)
        assert desk.order(25) == [older, newer]
        newer = desk.push(latest=desk.now + 10 * SECOND)
        older = desk.push(latest=desk.now - 20 * SECOND)
        assert desk.order(500) == [newer, older]

    def test_pools_compete_by_score_for_a_shared_resource(self) -> None:
        """The better task of any pool takes the last permit."""
        desk = Desk(PoolRules("a"), PoolRules("b"), resources=[ResourceRules("r", 1)])
        desk.worker(1, 5, pool="a")
        desk.worker(2, 5, pool="b")
        desk.push(NORMAL, pool="a", needs={"r": 1})
        high = desk.push(HIGH, pool="b", needs={"r": 1})
        assert desk.run() == [(high, 2)]

    def test_a_task_that_returns_keeps_its_place(self) -> None:
        """A nacked task goes before those that became ready after it."""
        desk = Desk()
        desk.worker(1)
        first = desk.push()
        assert desk.run() == [(first, 1)]
        second = desk.push()
        desk.finish(first)
        desk.placement.push_back(desk.tasks[first], desk.now)
        assert desk.order() == [first, second]

    def test_a_clock_that_was_set_back_neither_stops_nor_doubles(self) -> None:
        """Tasks pushed before and after the clock was set back by hours all start once."""
        desk = Desk()
        desk.worker(1)
        for at in range(40):
            desk.push(latest=desk.now + at * SECOND)
        desk.now -= 7200 * SECOND
        for at in range(40):
            desk.push(latest=desk.now + at * SECOND)
        assert sorted(desk.order()) == list(range(1, 81))


class TestWorkers:
    """Which session gets a task."""

    def test_labels_must_all_be_there(self) -> None:
        """A task goes only to a worker that has every label it wants."""
        desk = Desk()
        desk.worker(1, labels=("gpu",))
        both = desk.push(labels=("gpu", "eu"))
        one = desk.push(labels=("gpu",))
        assert desk.run() == [(one, 1)]
        desk.worker(2, labels=("eu", "gpu", "big"))
        assert desk.run() == [(both, 2)]

    @pytest.mark.regression("R29")
    def test_a_kind_nobody_serves_waits_until_somebody_does(self) -> None:
        """It waits visibly and holds up nobody; the first worker that serves it gets it."""
        desk = Desk()
        desk.worker(1, 5, kinds=("a",))
        unknown, known = desk.push(kind="b"), desk.push(kind="a")
        assert desk.run() == [(known, 1)]
        assert desk.placement.waiting_for(desk.tasks[unknown]) == ("kind b: no worker serves it",)
        desk.worker(2, kinds=("b", "c"))
        assert desk.run() == [(unknown, 2)]

    def test_the_least_versatile_worker_goes_first(self) -> None:
        """Fewest labels, then declared kinds before any kind."""
        desk = Desk()
        desk.worker(1, labels=("gpu",))
        desk.worker(2)
        desk.worker(3, kinds=("k",))
        desk.worker(4, labels=("eu",), kinds=("k",))
        for _ in range(4):
            desk.push()
        assert [session for _, session in desk.run()] == [3, 2, 4, 1]

    def test_equal_workers_take_turns(self) -> None:
        """Inside a profile and between equally versatile ones nobody is passed over."""
        desk = Desk()
        for session in (1, 2, 3):
            desk.worker(session, 4)
        for _ in range(6):
            desk.push()
        assert [session for _, session in desk.run()] == [1, 2, 3, 1, 2, 3]
        hosts = Desk()
        for session in (1, 2, 3):
            hosts.worker(session, 4, labels=(f"host-{session}",))
        for _ in range(6):
            hosts.push()
        assert sorted(session for _, session in hosts.run()) == [1, 1, 2, 2, 3, 3]

    def test_slots_are_never_exceeded(self) -> None:
        """A session gets as many tasks as it has free slots, and none after it has left."""
        desk = Desk()
        desk.worker(1, 2)
        desk.worker(2, 1)
        for _ in range(10):
            desk.push()
        assert sorted(session for _, session in desk.run()) == [1, 1, 2]
        desk.placement.slots(1, 1)
        desk.placement.session_left(1)
        desk.placement.slots(2, 2)
        assert [session for _, session in desk.run()] == [2, 2]

    def test_a_session_that_refused_is_passed_over_until_forgiven(self) -> None:
        """Another one gets the task if it is free, the refusing one only once it is forgiven."""
        desk = Desk()
        desk.worker(1, 1)
        refused = desk.push()
        assert desk.run() == [(refused, 1)]
        desk.finish(refused)
        desk.placement.push_back(desk.tasks[refused], desk.now, avoid=(1,))
        desk.placement.slots(1, 1)
        assert desk.run() == []
        assert desk.placement.waiting_for(desk.tasks[refused]) == (
            "the workers with a free slot have just refused it",
        )
        other = desk.push()
        desk.worker(2, 0)
        assert desk.run() == [(other, 1)]
        desk.placement.slots(1, 1)
        desk.placement.forgive(desk.tasks[refused])
        assert desk.run() == [(refused, 1)]

    def test_a_refused_task_goes_to_another_session_at_once(self) -> None:
        """With somebody else free, nothing waits."""
        desk = Desk()
        desk.worker(1, 2)
        refused = desk.push()
        desk.run()
        desk.finish(refused)
        desk.worker(2, 1)
        desk.placement.push_back(desk.tasks[refused], desk.now, avoid=(1,))
        assert desk.run() == [(refused, 2)]

    def test_all_sessions_that_refused_are_passed_over(self) -> None:
        """One of them that is free changes nothing; each may be forgiven on its own."""
        desk = Desk()
        desk.worker(1, 1)
        refused = desk.push()
        desk.run()
        desk.finish(refused)
        desk.placement.push_back(desk.tasks[refused], desk.now, avoid=(2, 1))
        desk.placement.slots(1, 1)
        desk.worker(2, 1)
        assert desk.run() == []
        desk.placement.forgive(desk.tasks[refused], (1,))
        assert desk.run() == [(refused, 2)]

    def test_sets_of_sessions_beyond_the_most_are_cut_to_the_last(self) -> None:
        """However many tasks were refused by however many sets, gates stay few."""
        desk = Desk()
        sessions = range(1, 41)
        for session in sessions:
            desk.worker(session, 2)
        refused = [desk.push() for _ in range(80)]
        desk.run()
        for number, (one, other) in zip(refused, combinations(sessions, 2), strict=False):
            desk.finish(number)
            desk.placement.push_back(desk.tasks[number], desk.now, avoid=(one, other))
        gates = desk.placement._halls[0].gates
        assert len({gate.avoid for gate in gates._gates.values()} - {()}) <= PICKY_MAX + 40
        assert max(len(gate.avoid) for gate in gates._gates.values()) == 2
        last = desk.tasks[refused[-1]]
        assert last.p_via is not None
        assert len(last.p_via.avoid) == 1

    def test_profiles_that_are_gone_are_forgotten(self) -> None:
        """Workers with a label of their own come and go by hundreds without a trace."""
        desk = Desk()
        desk.worker(1)
        for session in range(2, 500):
            desk.worker(session, labels=(f"host-{session}",))
            desk.placement.session_left(session)
        assert len(desk.placement._halls[0].roster.profiles) < 64
        number = desk.push()
        assert desk.run() == [(number, 1)]


class TestWaiting:
    """What happens to tasks that do not start."""

    def test_a_paused_pool_starts_nothing_and_holds_up_nobody(self) -> None:
        """What waits keeps its place."""
        desk = Desk(PoolRules("p"), PoolRules("q"), resources=[ResourceRules("r", 1)])
        desk.worker(1, 2)
        desk.worker(2, 2, pool="q")
        desk.placement.set_paused("p", True)
        first, second = desk.push(needs={"r": 1}), desk.push()
        other = desk.push(pool="q", needs={"r": 1})
        assert desk.run() == [(other, 2)]
        assert desk.placement.waiting_for(desk.tasks[second]) == ("pool p is paused",)
        desk.placement.set_paused("p", False)
        assert desk.run() == [(second, 1)]
        desk.finish(other)
        assert desk.run() == [(first, 1)]

    def test_a_withdrawn_task_never_starts(self) -> None:
        """Wherever it stands: in line, pressing, behind others, held."""
        desk = Desk(resources=[ResourceRules("r", 1), ResourceRules("c", 1, per_value=True)])
        numbers = [
            desk.push(),
            desk.push(latest=desk.now),
            desk.push(latest=desk.now + 500 * SECOND),
            desk.push(needs={"r": 1}),
            *(desk.push(needs={"c:x": 1}) for _ in range(3)),
            desk.push(latest=desk.now, needs={"c:x": 1}),
        ]
        for number in numbers:
            desk.placement.withdraw(desk.tasks[number])
            desk.placement.withdraw(desk.tasks[number])
        desk.worker(1, 20)
        assert desk.run(600) == []
        assert desk.placement.count("p") == (0, 0, 0, 0)

    def test_reasons_name_what_is_lacking(self) -> None:
        """Resource, label, worker: in words."""
        desk = Desk(PoolRules("p", max=1), resources=[ResourceRules("r", 1)])
        reason = desk.placement.waiting_for
        lonely = desk.tasks[desk.push()]
        assert reason(lonely) == ("pool p: no worker is connected",)
        desk.worker(1, 1)
        desk.run()
        assert reason(desk.tasks[desk.push()]) == ("pool p is full (max 1)",)
        assert reason(desk.tasks[desk.push(labels=("gpu",))]) == ("label gpu",)
        desk.placement.slots(1, 1)
        holder = desk.push(CRITICAL, needs={"r": 1})
        assert desk.run() == [(holder, 1)]
        desk.placement.slots(1, 1)
        assert reason(desk.tasks[desk.push(needs={"r": 1})]) == ("resource r",)

    def test_counts_and_victims_of_a_full_queue(self) -> None:
        """The newest of the lowest class below the newcomer's, and the longest waiting low one."""
        desk = Desk()
        old_low, new_low = desk.push(LOW), desk.push(LOW)
        normal, high = desk.push(NORMAL), desk.push(HIGH)
        placement, tasks = desk.placement, desk.tasks
        assert placement.count("p") == (0, 1, 1, 2)
        assert placement.newest_of_lowest_class("p", HIGH) is tasks[new_low]
        assert placement.longest_waiting("p", LOW) is tasks[old_low]
        for number in (old_low, new_low):
            placement.withdraw(tasks[number])
        assert placement.newest_of_lowest_class("p", HIGH) is tasks[normal]
        assert placement.newest_of_lowest_class("p", NORMAL) is None
        assert placement.longest_waiting("p", LOW) is None
        assert placement.longest_waiting("p", HIGH) is tasks[high]


class TestFairShare:
    """Tenants take turns."""

    def rules(self) -> PoolRules:
        """A fair pool with three weights."""
        return PoolRules("p", True, {"one": 1, "two": 2, "five": 5})

    def test_tenants_share_by_weight(self) -> None:
        """Of 800 starts, weights 1, 2 and 5 give 100, 200 and 500."""
        desk = Desk(self.rules())
        tenant_of = {}
        for at in range(3000):
            tenant = ("one", "two", "five")[at % 3]
            tenant_of[desk.push(tenant=tenant, expected=SECOND)] = tenant
        desk.worker(1, 800)
        started = [tenant_of[number] for number, _ in desk.run()]
        shares = {tenant: started.count(tenant) for tenant in ("one", "two", "five")}
        assert shares == {"one": 100, "two": 200, "five": 500}

    def test_cost_is_expected_duration(self) -> None:
        """Tenants of equal weight get equal time, not equal counts."""
        desk = Desk(PoolRules("p", True))
        long = {desk.push(tenant="a", expected=30 * SECOND) for _ in range(100)}
        for _ in range(400):
            desk.push(tenant="b", expected=10 * SECOND)
        desk.worker(1, 200)
        assert sum(number in long for number, _ in desk.run()) == 50

    def test_an_idle_tenant_saves_no_credit(self) -> None:
        """Whoever was away for long takes turns from the first task on."""
        desk = Desk(PoolRules("p", True))
        desk.push(tenant="away", expected=SECOND)
        for _ in range(100):
            desk.push(tenant="busy", expected=SECOND)
        desk.worker(1, 50)
        desk.run()
        mine = {desk.push(tenant="away", expected=SECOND) for _ in range(50)}
        desk.placement.slots(1, 20)
        assert sum(number in mine for number, _ in desk.run()) == 10

    def test_deadlines_are_no_way_around_fairness(self) -> None:
        """Urgency counts within a tenant, not between tenants of a class."""
        desk = Desk(PoolRules("p", True))
        urgent = {desk.push(tenant="a", expected=SECOND, latest=desk.now) for _ in range(20)}
        for _ in range(20):
            desk.push(tenant="b", expected=SECOND)
        desk.worker(1, 20)
        assert sum(number in urgent for number, _ in desk.run(30)) == 10

    def test_the_next_tenant_may_rank_above_other_classes(self) -> None:
        """When the one whose turn it was finds no slot any more, the next one's urgency counts."""
        desk = Desk(PoolRules("p", True))
        desk.worker(1, 1, kinds=("a",))
        desk.worker(2, 1, kinds=("c",))
        desk.push(LOW, tenant="first", kind="a")
        urgent = desk.push(LOW, tenant="second", kind="c", latest=desk.now)
        high = desk.push(HIGH, kind="a")
        desk.push(NORMAL, kind="c")
        assert desk.run() == [(high, 1), (urgent, 2)]


class TestResources:
    """Limits, and who is held by them."""

    def test_all_amounts_or_none(self) -> None:
        """A task starts only when everything it wants is there."""
        desk = Desk(resources=[ResourceRules("a", 1), ResourceRules("b", 1)])
        desk.worker(1, 9)
        first, both = desk.push(needs={"a": 1}), desk.push(needs={"a": 1, "b": 1})
        assert desk.run() == [(first, 1)]
        account = desk.placement.resources.find("b")
        assert account is not None
        assert account.available == 1
        desk.finish(first)
        assert desk.run() == [(both, 1)]

    def test_a_large_request_is_not_starved_by_small_ones(self) -> None:
        """Who is short of a resource keeps what comes back from those ranked after it."""
        desk = Desk(resources=[ResourceRules("r", 3)])
        desk.worker(1, 50)
        small = [desk.push(needs={"r": 1}) for _ in range(3)]
        desk.run()
        large = desk.push(needs={"r": 3})
        for _ in range(10):
            desk.push(needs={"r": 1})
        for number in small:
            assert desk.run() == []
            desk.finish(number)
        assert desk.run() == [(large, 1)]

    def test_who_has_no_slot_holds_up_nobody(self) -> None:
        """A task without a suitable free slot claims nothing."""
        desk = Desk(resources=[ResourceRules("r", 2)])
        desk.worker(1, 9)
        desk.push(HIGH, labels=("gpu",), needs={"r": 2})
        small = desk.push(needs={"r": 1})
        assert desk.run() == [(small, 1)]

    def test_more_than_there_can_be_holds_up_nobody(self) -> None:
        """After a resource shrank, what asks for too much waits aside until it grows again."""
        desk = Desk(resources=[ResourceRules("r", 3)])
        desk.worker(1, 9)
        assert desk.placement.resize("r", 0, permits=2)
        large, small = desk.push(needs={"r": 3}), desk.push(needs={"r": 1})
        assert desk.run() == [(small, 1)]
        assert desk.placement.waiting_for(desk.tasks[large]) == ("resource r cannot hold as much",)
        desk.placement.resize("r", 0, permits=4)
        assert desk.run() == [(large, 1)]

    def test_a_bucket_tells_when_it_has_enough(self) -> None:
        """`next_change` is the instant at which the first one in order can start."""
        desk = Desk(resources=[ResourceRules("b", None, NANO // 2, 4)])
        desk.worker(1, 9)
        first, second = desk.push(needs={"b": 3}), desk.push(needs={"b": 3})
        assert desk.run() == [(first, 1)]
        assert desk.placement.next_change() == (desk.now + 60 * SECOND, 4 * SECOND)
        assert desk.run(3.999999999) == []
        assert desk.run(0.000000001) == [(second, 1)]

    def test_customers_run_one_at_a_time(self) -> None:
        """Each value of a private resource is a counter of its own, first come, first served."""
        desk = Desk(resources=[ResourceRules("c", 1, per_value=True)])
        desk.worker(1, 9)
        x1, x2, y1 = (desk.push(needs={f"c:{value}": 1}) for value in ("x", "x", "y"))
        assert desk.run() == [(x1, 1), (y1, 1)]
        desk.finish(y1)
        assert desk.run() == []
        desk.finish(x1)
        assert desk.run() == [(x2, 1)]

    @pytest.mark.regression("R35")
    def test_three_limits_each_cost_no_extra_step(self) -> None:
        """Four tasks in a row that want three free limits each start in one step."""
        rules = [ResourceRules("a", 9), ResourceRules("b", 9), ResourceRules("c", None, NANO, 9)]
        desk = Desk(resources=rules)
        desk.worker(1, 9)
        numbers = [desk.push(needs={"a": 1, "b": 1, "c": 1}) for _ in range(4)]
        assert desk.run() == [(number, 1) for number in numbers]

    @pytest.mark.regression("R21")
    def test_limits_keep_the_order(self) -> None:
        """With 10 tokens a second, 400 tasks of four classes start by class, then as they came."""
        desk = Desk(resources=[ResourceRules("b", None, 10 * NANO, 10)])
        desk.worker(1, 400)
        chance = random.Random(21)
        class_of = {}
        for _ in range(400):
            priority = chance.choice((CRITICAL, HIGH, NORMAL, LOW))
            class_of[desk.push(priority, needs={"b": 1})] = priority
        order: list[int] = []
        while len(order) < 400:
            order += [number for number, _ in desk.run()]
            _, mono = desk.placement.next_change()
            if len(order) < 400:
                assert mono is not None
                desk.now = START + mono
        # All of them wait equally long, so age never lifts one class over another.
        assert order == sorted(class_of, key=lambda number: (class_of[number], number))
        assert desk.now - START == 39 * SECOND


class TestElders:
    """Several scarce things come together."""

    def test_two_permits_out_of_phase_come_together(self) -> None:
        """A task that wants two permits, released in turn, starts soon after a minute."""
        desk = Desk(resources=[ResourceRules("a", 1), ResourceRules("b", 1)])
        desk.worker(1, 500)
        busy = {name: [desk.push(HIGH, needs={name: 1})] for name in ("a", "b")}
        desk.run()
        both = desk.push(needs={"a": 1, "b": 1})
        for half_second in range(200):
            name = "ab"[half_second % 2]
            desk.push(needs={name: 1})
            for number in busy[name]:
                desk.finish(number)
            busy[name] = [number for number, _ in desk.run(0.5)]
            if both in busy[name]:
                break
        assert 60 <= (desk.now - START) / SECOND <= 63

    def test_a_rare_slot_finds_all_permits_there(self) -> None:
        """What an elder wants is kept from those after it while its slot is busy."""
        desk = Desk(resources=[ResourceRules("r", 4)])
        desk.worker(1, 50)
        desk.worker(2, 0, labels=("gpu",))
        whole = desk.push(labels=("gpu",), needs={"r": 4})
        assert desk.run() == []
        small = desk.push(needs={"r": 1})
        assert desk.run(59) == [(small, 1)]
        desk.finish(small)
        desk.push(needs={"r": 1})
        assert desk.run(1) == []
        above = desk.push(HIGH, needs={"r": 1})
        assert desk.run() == [(above, 1)]
        desk.finish(above)
        desk.placement.slots(2, 1)
        assert desk.run() == [(whole, 2)]


class TestHolds:
    """Slots kept for fixed starts."""

    def test_a_held_slot_is_for_one_task_only(self) -> None:
        """Others do not see it; its task starts there when it becomes ready."""
        desk = Desk()
        desk.worker(1, 1)
        fixed = desk.task(LOW)
        desk.placement.hold(fixed)
        assert desk.placement.held_by(fixed) == 1
        assert desk.placement.held("p") == 1
        other = desk.push(CRITICAL)
        assert desk.run() == []
        desk.placement.push(fixed, desk.now)
        assert desk.run() == [(fixed.id, 1)]
        assert desk.placement.held("p") == 0
        desk.placement.slots(1, 1)
        assert desk.run() == [(other, 1)]

    def test_a_hold_takes_the_next_suitable_slot(self) -> None:
        """With none free it takes the first that is; when its session goes, another one."""
        desk = Desk()
        desk.worker(1, 1, labels=("gpu",))
        fixed = desk.task(labels=("gpu",))
        busy = desk.push()
        assert desk.run() == [(busy, 1)]
        desk.placement.hold(fixed)
        assert desk.placement.held_by(fixed) is None
        desk.worker(2, 1)
        desk.placement.slots(1, 1)
        assert desk.placement.held_by(fixed) == 1
        desk.worker(3, 1, labels=("gpu", "eu"))
        desk.placement.session_left(1)
        assert desk.placement.held_by(fixed) == 3
        desk.placement.push(fixed, desk.now)
        assert desk.run() == [(fixed.id, 3)]

    def test_a_dropped_hold_frees_its_slot(self) -> None:
        """Others get the slot in the next step; the task waits like any other."""
        desk = Desk()
        desk.worker(1, 1)
        fixed = desk.task(LOW)
        desk.placement.hold(fixed)
        desk.placement.push(fixed, desk.now)
        other = desk.push(CRITICAL)
        desk.placement.unhold(fixed)
        assert desk.run() == [(other, 1)]
        desk.placement.slots(1, 1)
        assert desk.run() == [(fixed.id, 1)]

    def test_a_held_task_still_waits_for_its_resources(self) -> None:
        """The slot stays kept while a permit is missing."""
        desk = Desk(resources=[ResourceRules("r", 1)])
        desk.worker(1, 2)
        holder = desk.push(needs={"r": 1})
        desk.run()
        fixed = desk.task(needs={"r": 1})
        desk.placement.hold(fixed)
        desk.placement.push(fixed, desk.now)
        desk.push()
        assert desk.run() == []
        desk.finish(holder)
        assert desk.run() == [(fixed.id, 1)]


class TestBounds:
    """Nothing grows without need."""

    def test_kinds_and_values_seen_once_leave_nothing_behind(self) -> None:
        """Demands, gates and accounts are dropped with the tasks that asked for them."""
        desk = Desk(resources=[ResourceRules("c", 1, per_value=True)])
        desk.worker(1, 1, kinds=("k0",))
        for at in range(3000):
            number = desk.push(kind=f"k{at}", needs={f"c:{at}": 1})
            desk.placement.withdraw(desk.tasks[number])
            desk.placement.release(desk.tasks[number].demand)
        assert len(list(desk.placement._halls[0].gates)) <= IDLE_DEMANDS_MAX + 1
        assert len(desk.placement.resources.all()) <= IDLE_DEMANDS_MAX + 1

    def test_a_placement_that_is_dropped_is_freed(self) -> None:
        """No cycle leads through the tasks, which the garbage collector does not track."""

        def living() -> int:
            return sum(isinstance(each, Line | Tournament | Hold) for each in gc.get_objects())

        gc.collect()
        before = living()
        desk = Desk(
            PoolRules("p", True),
            resources=[ResourceRules("r", 1), ResourceRules("c", 1, per_value=True)],
        )
        desk.worker(1, 2)
        for at in range(50):
            desk.push(
                latest=desk.now + at * SECOND,
                needs={"r": 1, f"c:{at % 3}": 1} if at % 2 else {},
                tenant=f"t{at % 5}",
            )
        desk.placement.hold(desk.task())
        desk.run(5)
        assert living() > before
        del desk
        gc.collect()
        assert living() == before

    @pytest.mark.parametrize("mix", ["plain", "labels", "tenants", "semaphore", "values"])
    def test_work_per_start_does_not_grow_with_what_waits(self, mix: str) -> None:
        """Lines executed per start are much the same with 300 and with 9000 tasks waiting."""

        def lines_per_start(waiting: int) -> float:
            rules = [ResourceRules("r", 20), ResourceRules("c", 1, per_value=True)]
            desk = Desk(PoolRules("p", mix == "tenants"), resources=rules)
            desk.worker(1, 0, labels=("l1", "l2"))
            desk.worker(2, 0, labels=("l3",))
            for at in range(waiting):
                needs = {}
                if mix == "semaphore":
                    needs = {"r": 1}
                elif mix == "values":
                    needs = {f"c:{at % 40}": 1}
                desk.push(
                    (HIGH, NORMAL, LOW)[at % 3],
                    labels=(f"l{at % 5}",) if mix == "labels" else (),
                    needs=needs,
                    tenant=f"t{at % 20}",
                )
            count = starts = 0

            def trace(_frame: FrameType, event: str, _argument: object) -> TraceFunction:
                nonlocal count
                count += event == "line"
                return trace

            for step in range(10):
                desk.placement.slots(1, 10)
                desk.placement.slots(2, 10)
                is_warm = step > 4
                before = sys.gettrace()
                if is_warm:
                    sys.settrace(trace)
                started = desk.run()
                sys.settrace(before)
                starts += len(started) if is_warm else 0
                for number, _ in started:
                    desk.finish(number)
            assert starts >= 50
            return count / starts

        assert lines_per_start(9000) < 1.5 * lines_per_start(300)
