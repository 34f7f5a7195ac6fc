"""Admission: keys, duplicates, batches, bounds, and what a full queue does."""

from __future__ import annotations

import itertools

import pytest

from cronoq_server.engine import effects
from cronoq_server.engine.events import Cancel, Forget, SubmitMode
from cronoq_server.engine.model import (
    SECOND,
    EdgeCondition,
    ErrorReason,
    Overflow,
    PoolSettings,
    Refusal,
    ResourceSettings,
    Status,
)
from tests.engine.harness import World, after, spec


def refused(answer: object, reason: ErrorReason) -> Refusal:
    """The refusal an answer is, for this reason."""
    assert isinstance(answer, Refusal), answer
    assert answer.reason == reason
    return answer


# --- keys ----------------------------------------------------------------------------------------


def test_key_of_a_live_task_returns_it_and_changes_nothing() -> None:
    """EN-15: the second submit of a key is told the first one's id, and writes nothing."""
    world = World()
    first = world.add(spec(key="k", payload=b"1"))
    answer = world.submit(spec(key="k", payload=b"2"))
    assert answer == effects.Admitted([first], (0,))
    assert not world.taken[-1].step.mutations
    assert world.view(first).spec.payload == b"1"


def test_key_of_a_retained_task_returns_it() -> None:
    """EN-15: a finished task answers for its key until its retention is over."""
    world = World(key_retention=60 * SECOND, store_remembers=False)
    first = world.add(spec(key="k"))
    world.complete(world.join())
    world.leap(60 * SECOND)
    assert world.submit(spec(key="k")) == effects.Admitted([first], (0,))
    world.leap(SECOND)
    second = world.submit(spec(key="k"))
    assert second.ids != [first]
    assert second.duplicates == ()


def test_key_that_only_the_store_remembers_returns_its_task() -> None:
    """EN-15: what the driver found in the store counts like what the engine holds."""
    world = World(key_retention=SECOND)
    first = world.add(spec(key="k"))
    world.complete(world.join())
    world.leap(5 * SECOND)
    assert first not in world.engine._state.finished
    event = world.submission(spec(key="k"))
    assert world.engine.wants(event) == ([], ["k"])
    world.step(event)
    assert world.replies[event.call] == effects.Admitted([first], (0,))


def test_key_that_was_taken_after_the_look_up_counts_as_taken() -> None:
    """EN-15: between the store's answer and the step another caller may have come first."""
    world = World()
    late = world.submission(spec(key="k"))
    first = world.add(spec(key="k"))
    world.step(late)
    assert world.replies[late.call] == effects.Admitted([first], (0,))


def test_engine_asks_the_store_for_nothing_it_knows() -> None:
    """EN-15: only keys and parents that the engine does not hold are looked up."""
    world = World()
    known = world.add(spec(key="known"))
    event = world.submission(
        spec(key="known", dependencies=after(known, "known", "unknown", 99)), spec()
    )
    assert world.engine.wants(event) == ([99], ["unknown"])
    assert World(store_remembers=False).engine.wants(event) == ([], [])
    assert world.engine.wants(Forget(1)) == ([], [])


def test_key_in_a_foreign_pool_is_refused() -> None:
    """EN-16: a caller who may not see the key's task learns only that the key is in use."""
    world = World(PoolSettings("a"), PoolSettings("b"))
    world.add(spec(pool="a", key="k"))
    answer = world.submit(spec(pool="b", key="k"), scope=frozenset({"b"}))
    refused(answer, ErrorReason.KEY_IN_USE)
    assert world.submit(spec(pool="b", key="k"), scope=frozenset({"a", "b"})).duplicates == (0,)


def test_key_of_a_task_ended_in_the_same_step_is_still_taken() -> None:
    """EN-15: an end and a new submit of its key in one step don't make two tasks."""
    world = World()
    first = world.add(spec(key="k"))
    again = world.submission(spec(key="k"))
    world.step(Cancel(world.call(), "k"), again)
    assert world.status(first) == Status.CANCELLED
    assert world.replies[again.call] == effects.Admitted([first], (0,))


# --- batches -------------------------------------------------------------------------------------


def test_batch_members_may_depend_on_each_other_in_any_order() -> None:
    """EN-32: whatever the order in the call, ids follow it and edges find their parents."""
    members = (
        spec(key="a"),
        spec(key="b", dependencies=after("a")),
        spec(key="c", dependencies=after("a", "b")),
    )
    for order in itertools.permutations(members):
        world = World()
        ids = world.add(*order)
        assert ids == sorted(ids)
        session = world.join()
        ran = []
        for _ in order:
            ran.append(world.lease(session).spec.key)
            world.complete(session)
        assert ran == ["a", "b", "c"]


def test_batch_with_a_bad_member_leaves_nothing_behind() -> None:
    """EN-17: one refusal refuses all; it names the member; no id is used up."""
    world = World()
    answer = world.submit(spec(key="a"), spec(pool="nowhere"), spec(key="c"))
    refusal = refused(answer, ErrorReason.POOL_UNKNOWN)
    assert refusal.details == (("index", "1"),)
    assert "nowhere" in refusal.message
    assert world.snapshot().live_tasks == 0
    assert not world.ledger.rows
    assert world.add(spec(key="a")) == (1 << 48) + 1


def test_single_submit_names_no_index() -> None:
    """EN-17: a call with one task has nothing to point at."""
    refusal = refused(World().submit(spec(pool="nowhere")), ErrorReason.POOL_UNKNOWN)
    assert refusal.details == ()


def test_batch_tells_duplicates_apart_in_order() -> None:
    """EN-17: results come in order, each with its own word on whether it is new."""
    world = World()
    old = world.add(spec(key="old"))
    answer = world.submit(spec(key="new"), spec(key="old"), spec())
    assert answer.duplicates == (1,)
    assert answer.ids[1] == old
    assert len(set(answer.ids)) == 3


def test_key_twice_in_one_batch_is_refused() -> None:
    """EN-17: a batch is one statement, and must not contradict itself."""
    world = World()
    refusal = refused(
        world.submit(spec(key="a"), spec(), spec(key="a")), ErrorReason.DUPLICATE_KEY_IN_BATCH
    )
    assert ("index", "2") in refusal.details


def test_many_judges_each_task_alone() -> None:
    """EN-18: refusals and duplicates stand beside what was admitted."""
    world = World(PoolSettings("default"), PoolSettings("small", max_pending=1))
    old = world.add(spec(key="old"))
    answer = world.submit(
        spec(),
        spec(pool="nowhere"),
        spec(key="old"),
        spec(key="twice"),
        spec(key="twice"),
        spec(pool="small"),
        spec(pool="small"),
        spec(dependencies=after("unborn")),
        mode=SubmitMode.MANY,
        patience=SECOND,
    )
    reasons = {index: refusal.reason for index, refusal in answer.refusals}
    assert reasons == {
        1: ErrorReason.POOL_UNKNOWN,
        6: ErrorReason.QUEUE_FULL,
        7: ErrorReason.DEPENDENCY_UNKNOWN,
    }
    assert [bool(i) for i in answer.ids] == [i not in reasons for i in range(8)]
    assert answer.duplicates == (2, 4)
    assert answer.ids[2] == old
    assert answer.ids[3] == answer.ids[4]


def test_many_with_a_member_that_is_doomed_ends_it_at_once() -> None:
    """EN-18: what can never run is admitted and skipped, alone as in a batch."""
    world = World()
    parent = world.add(spec())
    world.cancel(parent)
    (task,) = world.submit(spec(dependencies=after(parent)), mode=SubmitMode.MANY).ids
    assert world.status(task) == Status.SKIPPED


# --- resources -----------------------------------------------------------------------------------


def test_resource_must_exist_and_be_large_enough() -> None:
    """EN-23: what could never start is refused."""
    world = World(
        resources=(
            ResourceSettings("gpu", permits=2),
            ResourceSettings("mail", kind="token_bucket", rate=1.0, burst=3),
        )
    )
    unknown = refused(world.submit(spec(resources=(("no", 1),))), ErrorReason.RESOURCE_UNKNOWN)
    assert "'no'" in unknown.message
    for name, most in (("gpu", 2), ("mail", 3)):
        world.add(spec(resources=((name, most),)))
        answer = world.submit(spec(resources=((name, most + 1),)))
        refusal = refused(answer, ErrorReason.RESOURCE_EXCEEDS_CAPACITY)
        assert name in refusal.message


# --- bounds --------------------------------------------------------------------------------------


def test_batch_beyond_the_bound_is_refused_for_good() -> None:
    """EN-19: what can never fit is not a full queue but a bad call."""
    world = World(PoolSettings("default", max_pending=2), max_pending_total=2)
    specs = [spec() for _ in range(3)]
    refused(world.submit(*specs, patience=SECOND), ErrorReason.BATCH_TOO_LARGE)
    world = World(PoolSettings("default"), max_pending_total=2)
    refused(world.submit(*specs, patience=SECOND), ErrorReason.BATCH_TOO_LARGE)
    assert len(world.add(*specs[:2])) == 2


def test_full_queue_under_reject_refuses_at_once() -> None:
    """EN-21: patience is of no use where nobody is parked."""
    world = World(PoolSettings("default", max_pending=1, overflow=Overflow.REJECT))
    world.add(spec())
    refused(world.submit(spec(), patience=SECOND), ErrorReason.QUEUE_FULL)


def test_total_bound_counts_over_all_pools() -> None:
    """EN-19: a pool with room of its own is full when all pools together are."""
    world = World(
        PoolSettings("a", overflow=Overflow.REJECT),
        PoolSettings("b", overflow=Overflow.REJECT),
        max_pending_total=2,
    )
    world.add(spec(pool="a"), spec(pool="a"))
    refused(world.submit(spec(pool="b")), ErrorReason.QUEUE_FULL)


def test_retries_are_never_refused() -> None:
    """EN-19: what was admitted comes back over the bound; only newcomers wait for it."""
    world = World(PoolSettings("default", max_pending=1, overflow=Overflow.REJECT))
    session = world.join()
    first = world.add(spec())
    second = world.add(spec())
    world.fail(session)
    assert world.status(first) == Status.RETRYING
    assert world.status(second) == Status.RUNNING
    world.fail(session)
    assert world.snapshot().pending == 2
    refused(world.submit(spec()), ErrorReason.QUEUE_FULL)


def test_duplicate_needs_no_room() -> None:
    """EN-15: a full queue does not keep a caller from learning what became of its key."""
    world = World(PoolSettings("default", max_pending=1, overflow=Overflow.REJECT))
    first = world.add(spec(key="k"))
    assert world.submit(spec(key="k")) == effects.Admitted([first], (0,))


# --- parking -------------------------------------------------------------------------------------


def _full_world(max_pending: int = 1) -> World:
    world = World(PoolSettings("default", max_pending=max_pending))
    for _ in range(max_pending):
        world.add(spec())
    return world


def test_call_is_parked_until_a_task_starts() -> None:
    """EN-20: a start makes room, in the same step, long before the task ends."""
    world = _full_world()
    event = world.submission(spec(), patience=60 * SECOND)
    world.step(event)
    assert event.call not in world.replies
    world.join()
    assert isinstance(world.replies[event.call], effects.Admitted)


def test_parked_task_starts_in_the_step_that_lets_it_in() -> None:
    """EN-20: who gets in through a start may start at once itself, as slots allow."""
    world = _full_world()
    calls = [world.submission(spec(), patience=60 * SECOND) for _ in range(3)]
    world.step(*calls)
    world.join(slots=10)
    assert all(call.call in world.replies for call in calls)
    assert world.snapshot().running == 4


def test_parked_calls_get_in_by_order_of_arrival() -> None:
    """EN-20: first come, first served, single calls and batches alike."""
    world = _full_world(2)
    pair = world.submission(spec(), spec(), patience=60 * SECOND)
    single = world.submission(spec(), patience=60 * SECOND)
    world.step(pair)
    world.step(single)
    session = world.join(slots=1)
    assert not world.replies.keys() & {pair.call, single.call}, "one place is not enough for two"
    world.complete(session)
    assert pair.call in world.replies
    assert single.call not in world.replies
    world.complete(session)
    assert single.call in world.replies


def test_newcomer_does_not_overtake_who_is_parked() -> None:
    """EN-20: room that a parked batch waits for is not taken by whoever comes later."""
    world = _full_world(2)
    pair = world.submission(spec(), spec(), patience=60 * SECOND)
    world.step(pair)
    world.join(slots=1)
    assert world.snapshot().pending == 1
    assert world.submit(spec(), patience=60 * SECOND) is None
    many = world.submit(spec(), mode=SubmitMode.MANY)
    assert many.refusals[0][1].reason == ErrorReason.QUEUE_FULL


def test_parked_call_is_refused_at_its_deadline() -> None:
    """EN-20: who waited long enough is told that the queue is full."""
    world = _full_world()
    event = world.submission(spec(), patience=5 * SECOND)
    world.step(event)
    world.advance(5 * SECOND - 1)
    assert event.call not in world.replies
    world.advance(1)
    refused(world.replies[event.call], ErrorReason.QUEUE_FULL)
    world.join()
    assert world.snapshot().totals.submitted == 1


def test_call_without_patience_is_refused_at_once() -> None:
    """EN-20: a deadline that has passed parks nobody."""
    refused(_full_world().submit(spec(), patience=0), ErrorReason.QUEUE_FULL)


def test_forgotten_call_is_not_admitted() -> None:
    """EN-20: a caller that is gone leaves no task behind."""
    world = _full_world()
    event = world.submission(spec(), patience=60 * SECOND)
    world.step(event)
    world.step(Forget(event.call), Forget(12345))
    world.join()
    world.advance(100 * SECOND)
    assert event.call not in world.replies
    assert world.snapshot().totals.submitted == 1


def test_call_forgotten_at_its_deadline_is_not_answered() -> None:
    """EN-85: the caller was gone before the step could refuse it."""
    world = _full_world()
    event = world.submission(spec(), patience=5 * SECOND)
    world.step(event)
    world.wall += 5 * SECOND
    world.mono += 5 * SECOND
    world.step(Forget(event.call))
    assert event.call not in world.replies


@pytest.mark.parametrize("how", ["deadline", "forgotten"])
def test_callers_that_gave_up_behind_a_patient_one_are_not_kept(how: str) -> None:
    """EN-85: clients that try again and again at a full pool fill no memory."""
    world = _full_world()
    patient = world.submission(spec(), patience=10_000 * SECOND)
    world.step(patient)
    for _ in range(500):
        event = world.submission(spec(), patience=SECOND)
        world.step(event)
        if how == "deadline":
            world.leap(SECOND)
        else:
            world.step(Forget(event.call))
    assert len(world.engine._state.pools["default"].parked) < 100
    last = world.submission(spec(), patience=10_000 * SECOND)
    world.step(last)
    world.join(slots=9)
    calls = [call for call in world.replies if call in (patient.call, last.call)]
    assert calls == [patient.call, last.call]


@pytest.mark.parametrize("how", ["deadline", "forgotten"])
def test_who_stood_behind_a_large_batch_gets_in_when_it_goes(how: str) -> None:
    """EN-20: the room that a batch was waiting for is there for the next one at once."""
    world = _full_world(2)
    pair = world.submission(spec(), spec(), patience=5 * SECOND)
    single = world.submission(spec(), patience=60 * SECOND)
    world.step(pair, single)
    world.join(slots=1)
    assert single.call not in world.replies
    if how == "deadline":
        world.advance(5 * SECOND)
    else:
        world.step(Forget(pair.call))
    assert isinstance(world.replies[single.call], effects.Admitted)


def test_parked_call_is_judged_anew() -> None:
    """EN-20: what changed while it waited counts: here its parent has failed by then."""
    world = World(PoolSettings("default"), PoolSettings("small", max_pending=1))
    parent = world.add(spec())
    blocker = world.add(spec(pool="small"))
    event = world.submission(spec(pool="small", dependencies=after(parent)), patience=60 * SECOND)
    world.step(event)
    world.cancel(parent)
    world.cancel(blocker)
    (task,) = world.replies[event.call].ids
    assert world.status(task) == Status.SKIPPED


def test_batch_over_two_pools_waits_for_each() -> None:
    """EN-20: a call that found room in one pool goes on waiting for the other."""
    world = World(PoolSettings("a", max_pending=1), PoolSettings("b", max_pending=1))
    blockers = [world.add(spec(pool=pool)) for pool in ("a", "b")]
    event = world.submission(spec(pool="a"), spec(pool="b"), patience=60 * SECOND)
    world.step(event)
    world.cancel(blockers[0])
    assert event.call not in world.replies
    world.cancel(blockers[1])
    assert isinstance(world.replies[event.call], effects.Admitted)


def test_key_that_arrives_through_parking_wakes_who_awaited_it() -> None:
    """EN-34: a child that awaited the key of a parked task goes on in the step that admits it."""
    waiting = PoolSettings("default", max_pending=2, await_unknown_dependencies=60 * SECOND)
    world = World(waiting, PoolSettings("other"))
    failed = world.add(spec(pool="other"))
    world.cancel(failed)
    child = world.add(spec(dependencies=after("late", on=EdgeCondition.ON_COMPLETE)))
    blocker = world.add(spec(delay=100 * SECOND))
    event = world.submission(
        spec(key="late", dependencies=after(failed)), spec(), patience=60 * SECOND
    )
    world.step(event)
    world.cancel(blocker)
    assert event.call in world.replies
    assert world.status("late") == Status.SKIPPED
    assert world.status(child) == Status.READY


# --- shedding ------------------------------------------------------------------------------------


def _shedding(policy: Overflow, most: int) -> World:
    return World(PoolSettings("default", max_pending=most, overflow=policy))


def test_shed_lowest_pushes_out_the_newest_of_the_lowest_class() -> None:
    """EN-21: low goes before normal, and within a class the newest."""
    world = _shedding(Overflow.SHED_LOWEST, 3)
    old_low, new_low, normal = (world.add(spec(priority=p)) for p in (4, 4, 3))
    world.add(spec(priority=2))
    assert world.status(new_low) == Status.SHED
    world.add(spec(priority=2))
    assert world.status(old_low) == Status.SHED
    world.add(spec(priority=2))
    assert world.status(normal) == Status.SHED
    refused(world.submit(spec(priority=2)), ErrorReason.SHED_NONE)
    world.add(spec(priority=1))


def test_shed_lowest_looks_at_every_pending_task_but_not_at_running_ones() -> None:
    """EN-21: what waits for its time, a parent or its next attempt may go; what runs may not."""
    world = _shedding(Overflow.SHED_LOWEST, 4)
    session = world.join()
    retrying = world.add(spec(priority=4))
    world.fail(session)
    running = world.add(spec(priority=4))
    scheduled = world.add(spec(priority=4, delay=60 * SECOND))
    blocked = world.add(spec(priority=4, dependencies=after(scheduled)))
    ready = world.add(spec(priority=4))
    gone = []
    for _ in range(4):
        world.add(spec(priority=1, delay=SECOND))
        gone.append([t for t in (ready, blocked, scheduled, retrying) if world.ended(t)])
    assert gone == [
        [ready],
        [ready, blocked],
        [ready, blocked, scheduled],
        [ready, blocked, scheduled, retrying],
    ]
    assert world.status(running) == Status.RUNNING
    refused(world.submit(spec(priority=1)), ErrorReason.SHED_NONE)


def test_shed_oldest_pushes_out_the_longest_waiting_low_task() -> None:
    """EN-21: only low tasks go, the one that waits longest first."""
    world = _shedding(Overflow.SHED_OLDEST, 3)
    first, second = world.add(spec(priority=4)), world.add(spec(priority=4))
    world.add(spec(priority=3))
    world.add(spec(priority=4))
    assert world.status(first) == Status.SHED
    assert world.status(second) == Status.READY
    world.add(spec(), spec())
    refused(world.submit(spec(priority=1)), ErrorReason.SHED_NONE)


def test_shedding_is_all_or_none() -> None:
    """EN-21: a batch that is refused has pushed nobody out, in none of its pools."""
    world = World(
        PoolSettings("a", max_pending=2, overflow=Overflow.SHED_LOWEST),
        PoolSettings("b", max_pending=1, overflow=Overflow.REJECT),
    )
    lows = world.add(spec(pool="a", priority=4), spec(pool="a", priority=4))
    world.add(spec(pool="b"))
    refused(world.submit(spec(pool="a"), spec(pool="b")), ErrorReason.QUEUE_FULL)
    assert [world.status(task) for task in lows] == [Status.READY] * 2
    refused(world.submit(spec(pool="a"), spec(pool="a", priority=4)), ErrorReason.SHED_NONE)
    assert len(world.add(spec(pool="a"), spec(pool="a"))) == 2


def test_shed_parent_skips_its_children_and_makes_more_room() -> None:
    """EN-22: shed is an end like any other; who goes with it need not be pushed out as well."""
    world = _shedding(Overflow.SHED_LOWEST, 4)
    parent = world.add(spec(priority=4))
    low = [world.add(spec(priority=4)), world.add(spec(priority=4, dependencies=after(parent)))]
    on_complete = world.add(
        spec(priority=3, dependencies=after(parent, on=EdgeCondition.ON_COMPLETE))
    )
    world.add(spec(priority=2), spec(priority=2), spec(priority=2))
    assert world.status(parent) == Status.SHED
    assert {world.status(task) for task in low} == {Status.SHED}
    assert world.status(on_complete) == Status.READY


def test_newcomer_whose_parent_it_pushes_out_is_skipped() -> None:
    """EN-22: nobody waits for a parent that ended before they were created."""
    world = _shedding(Overflow.SHED_LOWEST, 1)
    parent = world.add(spec(priority=4))
    child = world.add(spec(priority=1, dependencies=after(parent)))
    assert world.status(parent) == Status.SHED
    assert world.status(child) == Status.SKIPPED


def test_shedding_over_two_pools_counts_the_total_once() -> None:
    """EN-19: room made in one pool for the total is not made again in the next."""
    world = World(
        PoolSettings("a", overflow=Overflow.SHED_LOWEST),
        PoolSettings("b", overflow=Overflow.SHED_LOWEST),
        max_pending_total=4,
    )
    world.add(*(spec(pool=pool, priority=4) for pool in ("a", "a", "b")))
    world.add(spec(pool="a"), spec(pool="b"))
    assert world.snapshot().pending == 4
    assert world.snapshot().totals.shed == 1
    world.add(spec(pool="a", priority=1), spec(pool="b", priority=1))
    assert world.snapshot().pending == 4
    assert world.snapshot().totals.shed == 3


def test_pushing_out_stays_cheap_while_tasks_come_and_go() -> None:
    """EN-21: the order of arrival keeps about as many entries as there are live tasks."""
    world = World(
        PoolSettings("default", max_pending=10, overflow=Overflow.SHED_LOWEST), checks=False
    )
    session = world.join(slots=5)
    for _ in range(300):
        world.submit(spec(priority=4))
        world.complete(session)
    index = world.engine._state.pools["default"].by_class[4]
    assert len(list(index.walk(0, newest_first=True))) <= 20


# --- other ---------------------------------------------------------------------------------------


def test_spec_is_written_whole_and_once() -> None:
    """EN-09: the row has everything that the caller said, and the instant of its arrival."""
    world = World()
    asked = spec(key="k", payload=b"\x00\xff", tags=(("a", "b"),), trace_context=(("t", "1"),))
    task = world.add(asked)
    row = world.ledger.rows[task]
    assert row.spec == asked
    assert row.created_at == world.wall
