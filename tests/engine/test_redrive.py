"""Redrives, deletions and bulk actions: what leaves a terminal status, and what may not."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec
import pytest

from cronoq_server.engine import effects
from cronoq_server.engine.events import (
    Bulk,
    CancelledByWorker,
    Delete,
    Redrive,
    Submit,
    SubmitMode,
)
from cronoq_server.engine.model import (
    SECOND,
    BulkAction,
    EdgeCondition,
    ErrorReason,
    MissPolicy,
    Overflow,
    PoolSettings,
    Refusal,
    ResourceSettings,
    RetryPolicy,
    Status,
    TaskFilter,
    TaskRef,
)
from cronoq_server.engine.mutations import StatusChanged, TaskDeleted
from tests.engine.harness import World, after, spec

DONE = effects.Done(changed=True)
ONCE = RetryPolicy(max_attempts=1, jitter=False)
HOUR = 3600 * SECOND


def redrive_of(world: World, target: TaskRef, scope: frozenset[str] | None = None) -> Redrive:
    """The event of a redrive, with what the store holds of its task."""
    return _looked_up(world, Redrive(world.call(), target, scope))


E = TypeVar("E", Redrive, Delete)


def _looked_up(world: World, event: E) -> E:
    ids, keys = world.engine.wants(event)
    return msgspec.structs.replace(event, found=world.ledger.find(ids, keys))


def redrive(world: World, target: TaskRef, scope: frozenset[str] | None = None) -> Any:
    """Puts a task back; returns the answer."""
    return world.ask(redrive_of(world, target, scope))


def delete(world: World, target: TaskRef, scope: frozenset[str] | None = None) -> Any:
    """Deletes a task; returns the answer."""
    return world.ask(_looked_up(world, Delete(world.call(), target, scope)))


def refused(answer: Any, reason: ErrorReason) -> None:
    """The answer is a refusal for this reason."""
    assert isinstance(answer, Refusal), answer
    assert answer.reason == reason


def ended(status: Status) -> tuple[World, int]:
    """A world with one task that ended so."""
    world = World(PoolSettings("default", max_pending=1, overflow=Overflow.SHED_LOWEST))
    if status == Status.SKIPPED:
        parent = world.add(spec())
        world.cancel(parent)
        return world, world.add(spec(key="k", dependencies=after(parent)))
    task = world.add(spec(key="k", retry=ONCE, expires_in=HOUR))
    if status == Status.SHED:
        world.cancel(world.add(spec(priority=1)))
    elif status == Status.MISSED:
        world.leap(HOUR)
    elif status == Status.CANCELLED:
        world.cancel(task)
    else:
        session = world.join()
        if status == Status.SUCCEEDED:
            world.complete(session)
        else:
            world.fail(session, permanent=status == Status.FAILED)
        world.lose(session, clean=True)
    assert world.status(task) == status
    return world, task


@pytest.mark.regression("R30")
@pytest.mark.parametrize(
    "status",
    [Status.FAILED, Status.DEAD_LETTERED, Status.CANCELLED, Status.MISSED, Status.SHED],
    ids=lambda s: s.name.lower(),
)
@pytest.mark.parametrize("by_key", [True, False])
def test_ended_task_runs_again_with_a_fresh_budget(status: Status, by_key: bool) -> None:
    """EN-110: same id, key and spec; numbers go on; it may dead-letter again."""
    world, task = ended(status)
    before = world.view(task)
    assert redrive(world, "k" if by_key else task) == DONE
    view = world.view("k")
    assert (view.task_id, view.spec, view.status) == (task, before.spec, Status.READY)
    assert (view.attempt, view.attempts_max) == (before.attempt, before.attempt + 1)
    assert view.created_at == before.created_at
    session = world.join()
    assert world.lease(session).attempt == before.attempt + 1
    world.fail(session)
    assert world.status(task) == Status.DEAD_LETTERED
    assert redrive(world, task) == DONE
    assert world.lease(session).attempt == before.attempt + 2


def test_success_is_not_put_back() -> None:
    """EN-110: asking does no harm."""
    world, task = ended(Status.SUCCEEDED)
    assert redrive(world, task) == effects.Done(changed=False)
    assert world.status(task) == Status.SUCCEEDED


def test_live_and_unknown_tasks_are_refused() -> None:
    """EN-110: there must be something to put back, that the caller may see."""
    world = World(PoolSettings("a"), PoolSettings("b"))
    live = world.add(spec(pool="a"))
    refused(redrive(world, live), ErrorReason.NOT_TERMINAL)
    refused(redrive(world, 99), ErrorReason.TASK_UNKNOWN)
    refused(redrive(world, "none"), ErrorReason.TASK_UNKNOWN)
    world.cancel(live)
    refused(redrive(world, live, frozenset("b")), ErrorReason.TASK_UNKNOWN)
    assert redrive(world, live, frozenset("a")) == DONE


def test_key_that_another_live_task_has_forbids_it() -> None:
    """EN-111: a key is unique while its task lives."""
    world = World(key_retention=SECOND, store_remembers=False)
    old = world.add(spec(key="k"))
    world.cancel(old)
    world.leap(5 * SECOND)
    new = world.add(spec(key="k"))
    refused(redrive(world, old), ErrorReason.KEY_IN_USE)
    world.cancel(new)
    assert redrive(world, old) == DONE
    assert world.view("k").task_id == old


@pytest.mark.parametrize("condition", [EdgeCondition.ON_SUCCESS, EdgeCondition.ON_COMPLETE])
def test_edges_are_judged_again(condition: EdgeCondition) -> None:
    """EN-112: an edge that can't hold any more refuses; a parent put back is waited for again."""
    world = World()
    parent = world.add(spec(key="p"))
    child = world.add(spec(dependencies=after("p", on=condition)))
    world.cancel(child)
    world.cancel(parent)
    if condition == EdgeCondition.ON_SUCCESS:
        refused(redrive(world, child), ErrorReason.DEPENDENCY_IMPOSSIBLE)
    else:
        assert redrive(world, child) == DONE
        assert world.status(child) == Status.READY
        world.cancel(child)
    assert redrive(world, parent) == DONE
    assert redrive(world, child) == DONE
    assert world.status(child) == Status.BLOCKED
    world.crash()
    assert world.status(child) == Status.BLOCKED
    session = world.join()
    world.complete(session)
    assert world.lease(session).task_id == child
    assert world.lease(session).parents == (parent,)


def test_parents_that_nobody_knows_count_as_satisfied() -> None:
    """EN-112: before and after a failover, also where unknown keys are awaited."""
    pool = PoolSettings("default", await_unknown_dependencies=10 * SECOND)
    world = World(pool, key_retention=SECOND, store_remembers=False)
    failed = world.add(spec())
    world.cancel(failed)
    child = world.add(spec(dependencies=after("never")))
    other = world.add(spec(dependencies=after(failed)))
    world.leap(20 * SECOND)
    assert world.status(child) == world.status(other) == Status.SKIPPED
    assert redrive(world, child) == DONE
    assert redrive(world, other) == DONE
    assert world.status(child) == world.status(other) == Status.READY
    world.crash(gap=HOUR)
    world.step()
    assert world.status(child) == world.status(other) == Status.READY


@pytest.mark.parametrize("by_key", [True, False])
@pytest.mark.parametrize("ends_again", [True, False])
def test_child_that_is_past_an_edge_stays_past_it(by_key: bool, ends_again: bool) -> None:
    """EN-117: what held when the parent ended holds, whatever the parent does when put back."""
    world = World()
    parent, gate = world.add(spec("parent", key="p"), spec("gate"))
    edges = after("p" if by_key else parent, on=EdgeCondition.ON_FAILURE)
    child = world.add(spec(dependencies=edges + after(gate)))
    session = world.join(kinds=("parent",))
    world.fail(session, permanent=True)
    assert redrive(world, parent) == DONE
    later = world.add(spec(dependencies=edges))
    if ends_again:
        world.complete(session)
        assert world.status(later) == Status.SKIPPED
    world.crash()
    assert world.status(child) == Status.BLOCKED
    if not ends_again:
        assert world.status(later) == Status.BLOCKED
    world.complete(world.join(kinds=("gate",)))
    worker = world.join(kinds=("work",))
    assert world.lease(worker).task_id == child
    assert world.lease(worker).parents == (parent, gate)


def test_child_put_back_after_its_parent_waits_for_it_after_a_failover() -> None:
    """EN-117: the order of redrives counts, also when nothing was submitted in between."""
    world = World()
    parent, gate = world.add(spec("parent"), spec("gate"))
    edges = after(parent, on=EdgeCondition.ON_COMPLETE) + after(gate)
    waits, past = world.add(spec(dependencies=edges), spec(dependencies=edges))
    session = world.join(kinds=("parent",))
    world.fail(session, permanent=True)
    world.cancel(waits)
    world.cancel(past)
    assert redrive(world, past) == DONE
    assert redrive(world, parent) == DONE
    assert redrive(world, waits) == DONE
    for _ in range(2):
        assert world.engine._state.tasks[past].unmet == 1
        assert world.engine._state.tasks[waits].unmet == 2
        world.crash()


def test_numbers_of_redrives_are_never_ids() -> None:
    """EN-117: a leader whose epoch can't be told from the one before begins above them."""
    world = World(epoch=70_000)
    task = world.add(spec())
    world.cancel(task)
    assert redrive(world, task) == DONE
    world.crash()
    assert world.add(spec()) > world.ledger.changes[task].put_back > task


def test_key_that_came_after_a_redrive_is_not_waited_for_after_a_failover() -> None:
    """EN-117: it counted as satisfied when the task was put back."""
    world = World(PoolSettings("default", await_unknown_dependencies=10 * SECOND))
    task = world.add(spec(dependencies=after("never")))
    world.leap(20 * SECOND)
    assert redrive(world, task) == DONE
    world.add(spec("other", key="never"))
    world.crash()
    assert world.status(task) == Status.READY


def test_task_that_took_the_key_of_a_forgotten_parent_is_no_parent() -> None:
    """EN-117: only the store knew that parent, and has pruned it: the edge holds all the same."""
    world = World(key_retention=SECOND)
    parent = world.add(spec("other", key="p"))
    world.complete(world.join(kinds=("other",)))
    world.leap(5 * SECOND)
    gate = world.add(spec("gate"))
    child = world.add(spec(dependencies=after("p", gate)))
    world.leap(SECOND)
    submit = Submit(world.call(), [spec("taker", key="p")], SubmitMode.ONE, world.mono)
    (taker,) = world.ask(submit).ids
    assert taker != parent
    world.crash()
    assert world.engine._state.tasks[child].unmet == 1
    world.cancel(taker)
    assert world.status(child) == Status.BLOCKED


def test_skipped_children_stay_skipped() -> None:
    """EN-112: a redrive is for one task; its children are put back by hand."""
    world = World()
    parent = world.add(spec())
    child = world.add(spec(dependencies=after(parent)))
    world.cancel(parent)
    assert redrive(world, parent) == DONE
    world.complete(world.join())
    assert world.status(child) == Status.SKIPPED
    assert redrive(world, child) == DONE
    assert world.status(child) == Status.RUNNING


def test_past_start_is_dropped_and_a_future_one_is_kept() -> None:
    """EN-113: also over a failover; a task that had an attempt has no start any more."""
    world = World()
    missed = world.add(spec(start_in=SECOND, on_miss=MissPolicy.SKIP))
    delayed = world.add(spec(delay=HOUR, expires_in=2 * HOUR))
    world.leap(10 * SECOND)
    world.cancel(delayed)
    assert world.status(missed) == Status.MISSED
    assert redrive(world, missed) == DONE
    assert redrive(world, delayed) == DONE
    for _ in range(2):
        assert world.status(missed) == Status.READY
        assert world.status(delayed) == Status.SCHEDULED
        world.leap(10 * SECOND)
        world.crash()
    world.advance(HOUR)
    assert world.status(delayed) == Status.READY
    world.advance(HOUR)
    assert world.status(delayed) == Status.MISSED


@pytest.mark.regression("R30")
def test_redrive_is_written_and_survives() -> None:
    """EN-114: as one row that says that the task lives again, with its budget and its history."""
    world, task = ended(Status.DEAD_LETTERED)
    redrive(world, task)
    (change,) = world.taken[-1].step.mutations
    assert isinstance(change, StatusChanged)
    assert (change.status, change.attempt, change.attempts_max) == (Status.READY, 1, 2)
    assert len(change.history) == 1
    world.crash(gap=HOUR)
    session = world.join()
    lease = world.lease(session)
    assert (lease.task_id, lease.attempt) == (task, 2)
    world.crash()
    assert world.status(task) == Status.DEAD_LETTERED
    assert [past.number for past in world.ledger.changes[task].history] == [1, 2]


def test_backoff_begins_anew_with_a_budget() -> None:
    """EN-110: the first failure after a redrive waits like a first failure."""
    world = World()
    policy = RetryPolicy(max_attempts=2, initial_backoff=SECOND, multiplier=10.0, jitter=False)
    task = world.add(spec(retry=policy))
    session = world.join()
    world.fail(session)
    world.advance(SECOND)
    world.fail(session)
    redrive(world, task)
    world.fail(session)
    assert world.view(task).next_run_at == world.wall + SECOND


def test_two_redrives_in_one_step_put_a_task_back_once() -> None:
    """EN-114: the second one finds a live task."""
    world, task = ended(Status.FAILED)
    first, second = redrive_of(world, task), redrive_of(world, task)
    world.step(first, second)
    assert world.replies[first.call] == DONE
    refused(world.replies[second.call], ErrorReason.NOT_TERMINAL)


@pytest.mark.parametrize("good", [True, False])
def test_look_up_that_was_overtaken_is_not_believed(good: bool) -> None:
    """EN-114: the task was put back and ended again between the look-up and the step."""
    world, task = ended(Status.FAILED)
    late = redrive_of(world, task)
    bulk = _bulk(world, BulkAction.RETRY)
    redrive(world, task)
    session = world.join()
    world.complete(session) if good else world.fail(session)
    world.step(late, bulk)
    if good:
        assert world.replies[late.call] == effects.Done(changed=False)
    else:
        refused(world.replies[late.call], ErrorReason.NOT_TERMINAL)
    assert world.replies[bulk.call].changed == 0
    assert world.view(task).attempt == 2


def test_waiters_and_arrivals_of_a_task_put_back() -> None:
    """EN-114: from then on it is live: waited for, listed, named as a parent."""
    pool = PoolSettings("default", await_unknown_dependencies=HOUR)
    world = World(pool, key_retention=SECOND, store_remembers=False)
    task = world.add(spec(key="k"))
    later = world.add(spec())
    world.cancel(task)
    world.leap(5 * SECOND)
    child = world.add(spec(dependencies=after("k")))
    assert world.status(child) == Status.BLOCKED
    redrive(world, task)
    call = world.wait(task)
    assert [v.task_id for v in world.page(statuses=(Status.READY, Status.BLOCKED)).tasks] == [
        task,
        later,
        child,
    ]
    session = world.join(slots=2)
    world.complete(session)
    assert world.told(call) == [(task, Status.SUCCEEDED)]
    assert world.status(child) == Status.RUNNING


def test_task_of_a_pool_or_resource_that_is_gone_is_refused() -> None:
    """EN-110: where it could never run, and its demands could not be counted."""
    world = World(
        PoolSettings("default"),
        PoolSettings("old"),
        resources=(ResourceSettings("gpu", permits=1),),
    )
    first = world.add(spec(pool="old"))
    second = world.add(spec(resources=(("gpu", 1),)))
    for task in (first, second):
        world.cancel(task)
    world.crash(pools=(PoolSettings("default"),), resources=())
    refused(redrive(world, first), ErrorReason.POOL_UNKNOWN)
    refused(redrive(world, second), ErrorReason.RESOURCE_UNKNOWN)


# --- delete --------------------------------------------------------------------------------------


def test_deleted_task_is_gone_for_good() -> None:
    """EN-115: its key is free, nothing of it is found, nothing comes back."""
    world, task = ended(Status.FAILED)
    late = redrive_of(world, task)
    assert delete(world, "k") == DONE
    assert world.taken[-1].step.mutations == (TaskDeleted(task),)
    refused(redrive(world, task), ErrorReason.TASK_UNKNOWN)
    refused(delete(world, task), ErrorReason.TASK_UNKNOWN)
    world.step(late)
    refused(world.replies[late.call], ErrorReason.TASK_UNKNOWN)
    assert world.submit(spec(key="k")).duplicates == ()


def test_only_ended_tasks_of_ones_own_are_deleted() -> None:
    """EN-115: a live task is refused, a foreign one is not there."""
    world = World(PoolSettings("a"), PoolSettings("b"))
    task = world.add(spec(pool="a"))
    refused(delete(world, task), ErrorReason.NOT_TERMINAL)
    world.cancel(task)
    refused(delete(world, task, frozenset("b")), ErrorReason.TASK_UNKNOWN)
    refused(delete(world, 99), ErrorReason.TASK_UNKNOWN)
    assert delete(world, task, frozenset("a")) == DONE


@pytest.mark.parametrize("started", [True, False])
def test_parent_of_a_live_task_is_not_deleted(started: bool) -> None:
    """EN-115: a handler may ask for its output, and a leader for its key."""
    world = World()
    parent, gate = world.add(spec("parent", key="p"), spec("gate"))
    child = world.add(spec(dependencies=after("p", *(() if started else (gate,)))))
    session = world.join(kinds=("parent", "work"))
    world.complete(session)
    assert bool(world.out[session]) is started
    refused(delete(world, parent), ErrorReason.NOT_TERMINAL)
    world.crash()
    refused(delete(world, parent), ErrorReason.NOT_TERMINAL)
    world.cancel(child)
    assert delete(world, parent) == DONE


def test_forgotten_task_is_deleted_from_the_store() -> None:
    """EN-115: the engine need not hold it, as long as the store does."""
    world = World(key_retention=SECOND)
    task = world.add(spec())
    world.cancel(task)
    world.leap(5 * SECOND)
    assert delete(world, task) == DONE
    assert task not in world.ledger.rows


def test_deletion_and_redrive_in_one_step_agree() -> None:
    """EN-115: whichever comes first is the truth for the other."""
    world, task = ended(Status.FAILED)
    gone = _looked_up(world, Delete(world.call(), task))
    again = _looked_up(world, Delete(world.call(), task))
    back = redrive_of(world, task)
    bulk = _bulk(world, BulkAction.RETRY)
    heir = world.heir()
    world.step(gone, back, bulk, again)
    assert world.replies[gone.call] == DONE
    refused(world.replies[back.call], ErrorReason.TASK_UNKNOWN)
    refused(world.replies[again.call], ErrorReason.TASK_UNKNOWN)
    assert world.replies[bulk.call].changed == 0
    heir.step(back, gone)
    refused(heir.replies[gone.call], ErrorReason.NOT_TERMINAL)
    assert task in heir.ledger.rows


def test_deleted_tasks_are_remembered_for_a_while_only() -> None:
    """EN-115: the memory of what was deleted has a bound."""
    world = World(checks=False)
    for _ in range(1100):
        task = world.add(spec(delay=SECOND))
        world.cancel(task)
        delete(world, task)
    assert len(world.engine._state.deleted) == 1000
    assert not world.engine._state.finished


# --- bulk ----------------------------------------------------------------------------------------


def _bulk(world: World, action: BulkAction, limit: int = 100, **how: Any) -> Bulk:
    wanted = how.pop("filter", TaskFilter())
    event = Bulk(world.call(), wanted, action, limit, **how)
    if action == BulkAction.RETRY:
        page = [world.ledger.stored(i) for i in sorted(world.ledger.ends) if i > event.after]
        following = page[limit - 1].task_id if len(page) > limit else 0
        event = msgspec.structs.replace(event, found=tuple(page[:limit]), found_next=following)
    return event


@pytest.mark.parametrize("dry_run", [True, False])
def test_bulk_cancel_goes_page_by_page(dry_run: bool) -> None:
    """EN-116: live tasks that the filter lets through, counted, and cancelled unless only asked."""
    world = World(PoolSettings("a"), PoolSettings("b"))
    mine = [world.add(spec("old", pool="a")) for _ in range(5)]
    world.add(spec("new", pool="a"), spec("old", pool="b"))
    answers = []
    cursor = 0
    while True:
        event = _bulk(
            world,
            BulkAction.CANCEL,
            2,
            after=cursor,
            dry_run=dry_run,
            filter=TaskFilter(kinds=("old",)),
            scope=frozenset("a"),
        )
        answers.append(world.ask(event))
        cursor = answers[-1].next_after
        if not cursor:
            break
    assert sum(answer.matched for answer in answers) == 5
    assert sum(answer.changed for answer in answers) == (0 if dry_run else 5)
    assert {world.status(task) for task in mine} == {Status.READY if dry_run else Status.CANCELLED}
    assert world.snapshot().live_tasks == (7 if dry_run else 2)


def test_bulk_cancel_meets_children_that_went_with_their_parents() -> None:
    """EN-116: an earlier one's end may have skipped a later one."""
    world = World()
    session = world.join()
    parent = world.add(spec())
    child = world.add(spec(dependencies=after(parent)))
    answer = world.ask(_bulk(world, BulkAction.CANCEL))
    assert answer == effects.Bulked(2, 2, 0)
    assert world.status(parent) == Status.CANCELLED
    assert world.status(child) == Status.SKIPPED
    world.report(session, CancelledByWorker(max(world.leases)))


@pytest.mark.parametrize("dry_run", [True, False])
def test_bulk_retry_puts_back_what_it_may(dry_run: bool) -> None:
    """EN-116: ended without success, let through by the filter; refusals are no errors."""
    world = World()
    session = world.join()
    done = world.add(spec())
    world.complete(session)
    failed = world.add(spec())
    world.fail(session, permanent=True)
    doomed = world.add(spec(dependencies=after(failed)))
    other = world.add(spec("other", delay=SECOND))
    world.cancel(other)
    event = _bulk(world, BulkAction.RETRY, dry_run=dry_run, filter=TaskFilter(kinds=("work",)))
    answer = world.ask(event)
    assert answer == effects.Bulked(2, 0 if dry_run else 2, 0)
    if dry_run:
        assert world.status(failed) == Status.FAILED
        return
    assert world.status(failed) == Status.RUNNING
    assert world.status(doomed) == Status.BLOCKED
    assert world.status(done) == Status.SUCCEEDED
    assert world.status(other) == Status.CANCELLED
    page = _bulk(world, BulkAction.RETRY, 1)
    assert world.ask(page) == effects.Bulked(0, 0, done)


def test_bulk_retry_counts_only_what_it_changed() -> None:
    """EN-116: an edge that can't hold leaves its task as it is."""
    world = World()
    parent = world.add(spec())
    child = world.add(spec(dependencies=after(parent)))
    world.cancel(child)
    world.complete(world.join())
    failing = world.add(spec(dependencies=after(parent, on=EdgeCondition.ON_FAILURE)))
    assert world.ask(_bulk(world, BulkAction.RETRY)) == effects.Bulked(2, 1, 0)
    assert world.status(child) == Status.RUNNING
    assert world.status(failing) == Status.SKIPPED
