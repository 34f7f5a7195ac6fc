"""Dependencies: every edge against every end, before, during and after the child's submit."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from cronoq_server.engine import effects
from cronoq_server.engine.events import CancelledByWorker
from cronoq_server.engine.model import (
    SECOND,
    Dependency,
    EdgeCondition,
    ErrorReason,
    MissPolicy,
    Overflow,
    PoolSettings,
    Refusal,
    RetryPolicy,
    Status,
)
from tests.engine.harness import World, after, spec

AWAITING = PoolSettings("default", await_unknown_dependencies=60 * SECOND)


# --- the ways in which a parent can end ----------------------------------------------------------


def _succeed(world: World) -> None:
    world.complete(world.join(pool="parents"))


def _fail(world: World) -> None:
    world.fail(world.join(pool="parents"), permanent=True)


def _use_up(world: World) -> None:
    world.fail(world.join(pool="parents"))


def _cancel(world: World) -> None:
    world.cancel("parent")


def _cancel_by_worker(world: World) -> None:
    session = world.join(pool="parents")
    world.report(session, CancelledByWorker(world.lease(session).lease))


def _skip(world: World) -> None:
    world.cancel("grandparent")


def _expire(world: World) -> None:
    world.advance(31 * SECOND)


def _shed(world: World) -> None:
    world.add(*(spec(pool="parents", priority=1, delay=SECOND) for _ in range(10)))


ENDS: dict[str, tuple[dict[str, object], Callable[[World], None], Status]] = {
    "succeeds": ({}, _succeed, Status.SUCCEEDED),
    "fails": ({}, _fail, Status.FAILED),
    "is dead-lettered": ({"retry": RetryPolicy(max_attempts=1)}, _use_up, Status.DEAD_LETTERED),
    "is cancelled": ({}, _cancel, Status.CANCELLED),
    "is cancelled by its worker": ({}, _cancel_by_worker, Status.CANCELLED),
    "is skipped": ({"dependencies": after("grandparent")}, _skip, Status.SKIPPED),
    "expires": ({"expires_in": 30 * SECOND}, _expire, Status.MISSED),
    "misses its start": (
        {"start_in": 10 * SECOND, "on_miss": MissPolicy.SKIP},
        _expire,
        Status.MISSED,
    ),
    "misses its start and fails": (
        {"start_in": 10 * SECOND, "on_miss": MissPolicy.FAIL},
        _expire,
        Status.FAILED,
    ),
    "is shed": ({"priority": 4}, _shed, Status.SHED),
}
"""How a parent ends: what its spec says, what happens to it, and its status then."""

HOLDS = {
    EdgeCondition.ON_SUCCESS: {Status.SUCCEEDED},
    EdgeCondition.ON_FAILURE: {Status.FAILED, Status.DEAD_LETTERED},
    EdgeCondition.ON_COMPLETE: {s for s in Status if s >= Status.SUCCEEDED},
}
"""Ends that satisfy an edge."""


@pytest.mark.regression("R22")
@pytest.mark.parametrize("moment", ["before", "during", "after"])
@pytest.mark.parametrize("condition", EdgeCondition, ids=lambda c: c.name.lower())
@pytest.mark.parametrize("end", ENDS)
def test_child_goes_on_or_is_skipped(end: str, condition: EdgeCondition, moment: str) -> None:
    """EN-30: the table of ends and edges, whenever the parent ends; no child waits for ever."""
    fields, how, status = ENDS[end]
    world = World(
        PoolSettings("default"),
        PoolSettings("parents", max_pending=10, overflow=Overflow.SHED_LOWEST),
        PoolSettings("other"),
    )
    world.add(spec(pool="other", key="grandparent"))
    parent = spec(pool="parents", key="parent", **fields)
    child = spec(key="child", dependencies=after("parent", on=condition))
    if moment == "during":
        world.add(child, parent)
        how(world)
    else:
        world.add(parent)
        if moment == "before":
            how(world)
            world.add(child)
        else:
            world.add(child)
            assert world.status("child") == Status.BLOCKED
            how(world)
    assert world.status("parent") == status
    held = status in HOLDS[condition]
    assert world.status("child") == (Status.READY if held else Status.SKIPPED)
    if not held:
        assert status.name.lower() in world.view("child").message


@pytest.mark.regression("R22")
@pytest.mark.parametrize("condition", EdgeCondition, ids=lambda c: c.name.lower())
@pytest.mark.parametrize("end", ["succeeds", "fails", "is cancelled"])
def test_failover_in_the_middle_changes_nothing(end: str, condition: EdgeCondition) -> None:
    """EN-93: the same table when a leader is lost before and after the parent's end."""
    fields, how, status = ENDS[end]
    world = World(PoolSettings("default"), PoolSettings("parents"))
    world.add(spec(pool="parents", key="parent", **fields))
    world.add(spec(key="child", dependencies=after("parent", on=condition)))
    world.crash()
    assert world.status("child") == Status.BLOCKED
    how(world)
    world.crash()
    held = status in HOLDS[condition]
    assert world.status("child") == (Status.READY if held else Status.SKIPPED)


# --- shapes --------------------------------------------------------------------------------------


def test_all_edges_must_hold() -> None:
    """EN-30: the last parent lets the child go, not the first."""
    world = World()
    parents = [world.add(spec()) for _ in range(3)]
    child = world.add(spec(dependencies=after(*parents)))
    session = world.join()
    for _ in parents:
        assert world.status(child) == Status.BLOCKED
        world.complete(session)
    assert world.lease(session).task_id == child


def test_two_edges_to_one_parent_are_judged_each() -> None:
    """EN-31: an edge that holds does not save a child from one that cannot."""
    world = World()
    parent = world.add(spec())
    both = Dependency(parent, EdgeCondition.ON_COMPLETE), Dependency(parent)
    fine = world.add(spec(dependencies=both))
    torn = world.add(spec(dependencies=(both[1], Dependency(parent, EdgeCondition.ON_FAILURE))))
    world.complete(world.join())
    assert world.status(fine) == Status.RUNNING
    assert world.status(torn) == Status.SKIPPED


def test_first_impossible_edge_ends_the_child_while_others_are_open() -> None:
    """EN-31: a child does not wait for what can't help it any more."""
    world = World()
    slow, doomed = world.add(spec()), world.add(spec())
    child = world.add(spec(dependencies=after(slow, doomed)))
    world.cancel(doomed)
    assert world.status(child) == Status.SKIPPED
    assert str(doomed) in world.view(child).message
    world.complete(world.join())
    assert world.status(child) == Status.SKIPPED


def test_skipping_cascades_down_a_long_chain_in_one_step() -> None:
    """EN-31: a thousand generations end together, without deep recursion."""
    world = World(checks=False)
    chain = [world.add(spec())]
    depth = sys.getrecursionlimit() + 100
    for _ in range(depth):
        chain.append(world.add(spec(dependencies=after(chain[-1]))))
    world.cancel(chain[0])
    cancelled = world.taken[-1].step
    assert len(cancelled.mutations) == depth + 1
    assert world.snapshot().live_tasks == 0


def test_cascade_passes_on_what_each_edge_says() -> None:
    """EN-31: skipped is an end too: whoever asked for completion goes on after it."""
    world = World()
    root = world.add(spec())
    skipped = world.add(spec(dependencies=after(root)))
    cleaner = world.add(spec(dependencies=after(skipped, on=EdgeCondition.ON_COMPLETE)))
    fixer = world.add(spec(dependencies=after(skipped, on=EdgeCondition.ON_FAILURE)))
    world.cancel(root)
    assert world.status(skipped) == Status.SKIPPED
    assert world.status(cleaner) == Status.READY
    assert world.status(fixer) == Status.SKIPPED


@pytest.mark.regression("R22")
def test_diamond_runs_its_end_once() -> None:
    """EN-30: two ways to one parent are two edges and one run."""
    world = World()
    world.add(
        spec(key="top"),
        spec(key="left", dependencies=after("top")),
        spec(key="right", dependencies=after("top")),
        spec(key="end", dependencies=after("left", "right")),
    )
    session = world.join(slots=4)
    ran = []
    while world.out[session]:
        ran += [lease.spec.key for lease in world.out[session].values()]
        world.complete(session)
    assert ran == ["top", "left", "right", "end"]


@pytest.mark.regression("R22")
def test_diamond_is_skipped_once() -> None:
    """EN-31: a child that is doomed twice ends once."""
    world = World()
    world.add(
        spec(key="top"),
        spec(key="left", dependencies=after("top")),
        spec(key="right", dependencies=after("top")),
        spec(key="end", dependencies=after("left", "right")),
    )
    world.cancel("top")
    assert len(world.taken[-1].step.mutations) == 4
    assert world.status("end") == Status.SKIPPED


def _operations(work: Callable[[], object]) -> int:
    """How many Python calls and lines some work takes: the same number in every run."""
    count = 0

    def tracer(_frame: object, _event: str, _arg: object) -> object:
        nonlocal count
        count += 1
        return tracer

    before = sys.gettrace()
    sys.settrace(tracer)  # type: ignore[arg-type]
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def _fan_in(width: int) -> dict[str, int]:
    """Work for a child of many parents, and for many children of one parent and of one key."""
    world = World(AWAITING, checks=False)
    costs: dict[str, int] = {}

    def measured(name: str, work: Callable[[], object]) -> None:
        costs[name] = _operations(work)

    parents = world.add(*(spec() for _ in range(width)))
    measured("submit", lambda: world.add(spec(dependencies=after(*parents))))
    session = world.join(slots=width)
    measured("satisfy", lambda: world.complete(session))
    world.complete(session)
    top = world.add(spec(delay=SECOND))
    world.add(*(spec(dependencies=after(top)) for _ in range(width)))
    measured("cascade", lambda: world.cancel(top))
    world.add(*(spec(dependencies=after("late")) for _ in range(width)))
    measured("arrive", lambda: world.add(spec(key="late", delay=SECOND)))
    world.cancel("late")
    world.add(*(spec(dependencies=after("never")) for _ in range(width)))
    measured("give up", lambda: world.leap(61 * SECOND))
    assert world.snapshot().live_tasks == 0
    return costs


def test_wide_fan_in_and_fan_out_cost_the_same_per_edge() -> None:
    """EN-30: five thousand edges cost ten times as much as five hundred, not a hundred times."""
    narrow, wide = _fan_in(250), _fan_in(2500)
    for name, cost in wide.items():
        assert cost < 12 * narrow[name], (name, cost, narrow[name])


@pytest.mark.regression("R22")
def test_five_thousand_parents_hold_back_one_child() -> None:
    """EN-30: the child runs after the last of them, and not before."""
    world = World(checks=False)
    parents = world.add(*(spec() for _ in range(5000)))
    child = world.add(spec(dependencies=after(*parents)))
    session = world.join(slots=5000)
    leases = list(world.out[session])
    world.complete(session, *leases[:-1])
    assert world.status(child) == Status.BLOCKED
    world.complete(session, leases[-1])
    assert world.lease(session).task_id == child
    assert world.lease(session).parents == tuple(parents)


def test_children_that_ended_are_not_kept_by_a_parent_that_lives_on() -> None:
    """EN-31: a parent knows the children that wait for it, not all it ever had."""
    world = World(checks=False)
    parent, other = world.add(spec(), spec())
    for _ in range(500):
        world.cancel(world.add(spec(dependencies=after(parent, other))))
    stays = world.add(spec(dependencies=after(parent)))
    state = world.engine._state
    assert len(state.children[parent]) < 150
    world.complete(world.join())
    assert world.lease(1).task_id == other
    assert world.status(stays) == Status.READY
    world.cancel(other)
    assert not state.children
    assert not state.children_gone


# --- cycles --------------------------------------------------------------------------------------


def _cycle(answer: object) -> str:
    assert isinstance(answer, Refusal), answer
    assert answer.reason == ErrorReason.CYCLE
    path = dict(answer.details)["path"]
    assert path in answer.message
    return path


def test_cycle_in_a_batch_is_refused_with_its_path() -> None:
    """EN-33: the refusal names the tasks that would wait for each other."""
    world = World()
    answer = world.submit(
        spec(),
        spec(key="a", dependencies=after("b")),
        spec(key="b", dependencies=after("c")),
        spec(key="c", dependencies=after("a")),
    )
    assert _cycle(answer) == "'a' -> 'b' -> 'c' -> 'a'"
    assert not world.ledger.rows


def test_task_that_waits_for_itself_is_refused() -> None:
    """EN-33: the shortest cycle."""
    assert _cycle(World().submit(spec(key="a", dependencies=after("a")))) == "'a' -> 'a'"
    world = World(AWAITING)
    assert _cycle(world.submit(spec(key="a", dependencies=after("a")))) == "'a' -> 'a'"


def test_cycle_through_awaited_keys_is_refused() -> None:
    """EN-33: a newcomer that others await must not wait for them, however far away they are."""
    world = World(AWAITING)
    first = world.add(spec(dependencies=after("late")))
    second = world.add(spec(dependencies=after(first)))
    third = world.add(spec(key="third", dependencies=after(second)))
    path = _cycle(world.submit(spec(key="late", dependencies=after("third"))))
    assert path == f"'late' -> {third} -> {second} -> {first} -> 'late'"
    assert world.status(first) == Status.BLOCKED
    world.add(spec(key="late"))


def test_cycle_over_two_awaited_keys_is_refused() -> None:
    """EN-33: keys that wait for each other through several live tasks."""
    world = World(AWAITING)
    one = world.add(spec(key="one", dependencies=after("two")))
    path = _cycle(
        world.submit(
            spec(key="two", dependencies=after("three")),
            spec(key="three", dependencies=after("one")),
        )
    )
    assert path == f"'two' -> 'three' -> {one} -> 'two'"


def test_cycle_is_found_beside_keys_that_nobody_brings() -> None:
    """EN-33: a task on it may wait for more than what closes it."""
    world = World(AWAITING)
    blocked = world.add(spec(key="b", dependencies=after("elsewhere", "a")))
    answer = world.submit(
        spec(key="a", dependencies=after("b", "c")), spec(key="c", dependencies=after("b"))
    )
    assert str(blocked) in _cycle(answer)


def test_shared_ancestors_are_no_cycle() -> None:
    """EN-33: many ways down to one task are fine."""
    world = World(AWAITING)
    base = world.add(spec())
    world.add(spec(dependencies=after("later", base)))
    ids = world.add(
        spec(key="x", dependencies=after(base)),
        spec(key="y", dependencies=after(base, "x")),
        spec(key="later", dependencies=after("x", "y", base)),
    )
    assert len(ids) == 3


def test_submit_after_a_long_chain_costs_no_search() -> None:
    """EN-33: while nobody awaits a newcomer's key, the tasks above it are not looked at."""

    def cost(length: int) -> int:
        world = World(AWAITING, checks=False)
        world.add(spec(dependencies=after("elsewhere")))
        last = world.add(spec(key="0"))
        for number in range(length):
            last = world.add(spec(key=f"{number + 1}", dependencies=after(last)))
        event = world.submission(spec(key="x", dependencies=after(last)))
        return _operations(lambda: world.engine.step([event], world.now))

    assert cost(400) == cost(20)


# --- awaited keys --------------------------------------------------------------------------------


def test_unknown_parents_are_refused_where_the_pool_does_not_wait() -> None:
    """EN-34: a key nobody has submitted, or an id nobody was given."""
    world = World()
    for target in ("nobody", (1 << 48) + 1, 5 << 48, 0):
        answer = world.submit(spec(dependencies=after(target)))
        assert isinstance(answer, Refusal)
        assert answer.reason == ErrorReason.DEPENDENCY_UNKNOWN
        assert repr(target) in answer.message


@pytest.mark.parametrize("where", ["live", "ended", "stored"])
@pytest.mark.parametrize("by_key", [True, False])
def test_parent_in_a_foreign_pool_is_not_there(where: str, by_key: bool) -> None:
    """EN-37: whoever may not see a task can't learn of it, or of its output, through a child."""
    mine = PoolSettings("b", await_unknown_dependencies=60 * SECOND)
    world = World(PoolSettings("a"), mine, key_retention=SECOND)
    parent = world.add(spec(pool="a", key="secret"))
    if where != "live":
        world.complete(world.join(pool="a"))
    if where == "stored":
        world.leap(5 * SECOND)
    child = spec(pool="b", dependencies=after("secret" if by_key else parent))
    answer = world.submit(child, scope=frozenset("b"))
    assert isinstance(answer, Refusal)
    assert answer.reason == ErrorReason.DEPENDENCY_UNKNOWN
    world.add(child, scope=frozenset("ab"))
    world.add(child)


@pytest.mark.parametrize("target", ["nobody", 1 << 48])
def test_limited_caller_can_not_tell_a_foreign_parent_from_none(target: str | int) -> None:
    """EN-37: neither a key that may come nor an id of long ago is treated otherwise for them."""
    mine = PoolSettings("b", await_unknown_dependencies=60 * SECOND)
    world = World(PoolSettings("a"), mine)
    foreign = world.add(spec(pool="a", key="secret"))
    refusals = [
        world.submit(spec(pool="b", dependencies=after(one)), scope=frozenset("b"))
        for one in (target, "secret" if isinstance(target, str) else foreign)
    ]
    reasons = {refusal.reason for refusal in refusals if isinstance(refusal, Refusal)}
    assert reasons == {ErrorReason.DEPENDENCY_UNKNOWN}
    assert refusals[0].message.replace(repr(target), "…") == refusals[1].message.replace(
        repr("secret" if isinstance(target, str) else foreign), "…"
    )
    world.add(spec(pool="b", dependencies=after(target)))


def test_unknown_id_is_never_awaited() -> None:
    """EN-34: only keys are waited for: ids are the server's to give."""
    answer = World(AWAITING).submit(spec(dependencies=after(5 << 48)))
    assert isinstance(answer, Refusal)
    assert answer.reason == ErrorReason.DEPENDENCY_UNKNOWN


def test_awaited_key_arrives() -> None:
    """EN-34: from then on its task is a parent like any other."""
    world = World(AWAITING)
    child = world.add(spec(dependencies=after("late")))
    assert world.status(child) == Status.BLOCKED
    assert world.view(child).waiting_for == ("dependency late",)
    world.advance(59 * SECOND)
    late = world.add(spec(key="late"))
    world.advance(60 * SECOND)
    assert world.status(child) == Status.BLOCKED
    assert world.detail(late).children == (child,)
    session = world.join()
    world.complete(session)
    assert world.lease(session).parents == (late,)


def test_awaited_key_does_not_come() -> None:
    """EN-34: after the pool's patience the child is skipped, and its message names the key."""
    world = World(AWAITING)
    child = world.add(spec(dependencies=after("never")))
    world.advance(60 * SECOND - 1)
    assert world.status(child) == Status.BLOCKED
    world.advance(1)
    assert world.status(child) == Status.SKIPPED
    assert "'never'" in world.view(child).message


def test_awaited_key_that_arrives_doomed_judges_each_child_once() -> None:
    """EN-34: children that hang on the key and on each other end once."""
    world = World(AWAITING)
    failed = world.add(spec())
    world.cancel(failed)
    first = world.add(spec(dependencies=after("late")))
    second = world.add(spec(dependencies=after("late", first)))
    third = world.add(
        spec(dependencies=(Dependency("late"), Dependency("late", EdgeCondition.ON_FAILURE)))
    )
    fourth = world.add(spec(dependencies=after("late", on=EdgeCondition.ON_COMPLETE)))
    world.add(spec(key="late", dependencies=after(failed)))
    for child in (first, second, third):
        assert world.status(child) == Status.SKIPPED
    assert world.status(fourth) == Status.READY


def test_child_that_ends_while_it_awaits_leaves_nothing_behind() -> None:
    """EN-34: the key may come or not come later without any trace of it."""
    world = World(AWAITING)
    gone = world.add(spec(dependencies=after("late")))
    stays = world.add(spec(dependencies=after("late")))
    world.cancel(gone)
    assert list(world.engine._state.awaited["late"]) == [stays]
    world.cancel(stays)
    assert not world.engine._state.awaited
    world.add(spec(key="late"))
    world.advance(100 * SECOND)
    assert world.status(gone) == Status.CANCELLED


# --- parents of the past -------------------------------------------------------------------------


def test_parent_beyond_retention_counts_as_satisfied() -> None:
    """EN-35: an id of ours that nobody knows any more ended long ago, however."""
    world = World(key_retention=SECOND, store_remembers=False)
    parent = world.add(spec())
    world.cancel(parent)
    world.leap(5 * SECOND)
    child = world.add(spec(dependencies=after(parent)))
    assert world.status(child) == Status.READY
    assert world.view(child).waiting_for == ("pool default: no worker is connected",)


def test_id_of_another_shard_is_not_a_past_id() -> None:
    """EN-35: only this shard's own ids may be taken for forgotten ones."""
    world = World(shard=2)
    world.add(spec())
    answer = world.submit(spec(dependencies=after((1 << 56) + (1 << 40) + 1)))
    assert isinstance(answer, Refusal)
    assert answer.reason == ErrorReason.DEPENDENCY_UNKNOWN


@pytest.mark.parametrize("by_key", [True, False])
@pytest.mark.parametrize("good", [True, False])
def test_parent_that_only_the_store_knows_is_judged_by_it(by_key: bool, good: bool) -> None:
    """EN-35: what the driver found decides, and the child's worker is told the parent's id."""
    world = World(key_retention=SECOND)
    parent = world.add(spec(key="p"))
    session = world.join()
    world.complete(session) if good else world.fail(session, permanent=True)
    world.leap(5 * SECOND)
    child = world.add(spec(dependencies=after("p" if by_key else parent)))
    if good:
        assert world.lease(session).task_id == child
        assert world.lease(session).parents == (parent,)
    else:
        assert world.status(child) == Status.SKIPPED
        assert str(parent) in world.view(child).message


@pytest.mark.parametrize("good", [True, False])
@pytest.mark.parametrize("forgotten", [True, False])
def test_member_that_existed_before_is_judged_as_it_ended(good: bool, forgotten: bool) -> None:
    """EN-32: in a batch sent again, edges to members that are there already lead to those."""
    world = World(key_retention=SECOND)
    parent = world.add(spec(key="p"))
    session = world.join()
    world.complete(session) if good else world.fail(session, permanent=True)
    if forgotten:
        world.leap(5 * SECOND)
    ids = world.add(spec(key="p"), spec(key="c", dependencies=after("p")))
    assert ids[0] == parent
    assert world.status("c") == (Status.RUNNING if good else Status.SKIPPED)
    assert str(parent) in world.view("c").message or good


def test_member_that_lives_already_is_waited_for() -> None:
    """EN-32: a batch sent again while its first half runs."""
    world = World()
    session = world.join()
    parent = world.add(spec(key="p"))
    world.add(spec(key="p"), spec(key="c", dependencies=after("p")))
    assert world.status("c") == Status.BLOCKED
    world.complete(session)
    assert world.lease(session).parents == (parent,)


def test_parent_of_a_live_child_is_not_forgotten() -> None:
    """EN-36: neither time nor numbers drop what a live task depends on."""
    world = World(key_retention=SECOND, finished_max=2, store_remembers=False)
    parent = world.add(spec(key="p"))
    child = world.add(spec(dependencies=after(parent), delay=100 * SECOND))
    world.complete(world.join())
    for _ in range(5):
        world.cancel(world.add(spec(delay=SECOND)))
        world.leap(SECOND)
    assert world.detail(child).parents == (
        effects.ParentView(parent, EdgeCondition.ON_SUCCESS, Status.SUCCEEDED),
    )
    assert world.submit(spec(key="p")).duplicates == (0,)
    world.cancel(child)
    world.leap(3 * SECOND)
    assert parent not in world.engine._state.finished
    assert world.submit(spec(key="p")).duplicates == ()


def test_finished_tasks_are_bounded_oldest_first() -> None:
    """EN-36: at most so many are remembered, whatever the rate."""
    world = World(finished_max=2)
    ids = [world.add(spec(key=f"{n}", delay=SECOND)) for n in range(4)]
    for task in ids:
        world.cancel(task)
    assert list(world.engine._state.finished) == ids[2:]


def test_waiting_for_names_only_what_is_open() -> None:
    """EN-80: parents that have ended are no reason to wait."""
    world = World(AWAITING)
    done = world.add(spec(key="done"))
    session = world.join()
    world.complete(session)
    world.add(spec(key="child", dependencies=after(done, "done", "open")))
    assert world.view("child").waiting_for == ("dependency open",)
