"""Recovery: what a new leader makes of what was committed, at every boundary between steps."""

from __future__ import annotations

import msgspec
import pytest

from cronoq_server.engine import effects
from cronoq_server.engine.cron import Calendar, parse
from cronoq_server.engine.engine import Engine
from cronoq_server.engine.events import (
    ListResources,
    PutSchedule,
    Redrive,
    RemoveSchedule,
    ResizeResource,
    SetPoolPaused,
    SubmitMode,
)
from cronoq_server.engine.model import (
    FIRST_TERMINAL,
    SECOND,
    EdgeCondition,
    ErrorReason,
    MissPolicy,
    Outcome,
    PoolSettings,
    Refusal,
    ResourceSettings,
    RetryPolicy,
    ScheduleSpec,
    Status,
)
from cronoq_server.engine.mutations import RecoveredChunk, StatusChanged
from cronoq_server.engine.records import Task
from cronoq_server.engine.state import State
from tests.engine.harness import Highest, World, after, spec
from tests.engine.ledger import Ledger
from tests.engine.workloads import Workload, everything_ends

HOUR = 3600 * SECOND


def state_of(world: World) -> State:
    """The tables of a world's engine."""
    return world.engine._state


def refused(answer: object, reason: ErrorReason) -> None:
    """The answer is a refusal for this reason."""
    assert isinstance(answer, Refusal), answer
    assert answer.reason == reason


# --- every boundary ------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(40))
def test_nothing_is_lost_at_any_boundary(seed: int) -> None:
    """EN-90: ids, order, numbers, budgets, parents, keys and history at every possible crash."""
    life = Workload(seed, crashes=False)
    for world in life.run(60):
        _compare(world, world.heir())


def _compare(world: World, heir: World) -> None:
    before, after_ = state_of(world), state_of(heir)
    assert heir.mono != world.mono
    used_up = {t.id for t in before.tasks.values() if _counts_as_used_up(world, t)}
    for task_id, task in before.tasks.items():
        found = after_.tasks.get(task_id)
        if found is not None:
            _compare_live(world, heir, task, found)
        else:
            ended = after_.finished[task_id]
            doomed = task.status == Status.BLOCKED and used_up
            assert task_id in used_up or doomed
            assert ended.status in (Status.DEAD_LETTERED, Status.SKIPPED)
    assert list(after_.tasks) == sorted(after_.tasks)
    assert after_.tasks.keys() <= before.tasks.keys()
    for key, task_id in before.keys.items():
        if task_id in before.tasks:
            assert after_.keys[key] == task_id


def _counts_as_used_up(world: World, task: Task) -> bool:
    """Whether the store has the task as running its last attempt."""
    change = world.ledger.changes.get(task.id)
    return (
        change is not None
        and change.status == Status.RUNNING
        and (change.attempt == change.attempts_max)
    )


def _compare_live(world: World, heir: World, before: Task, found: Task) -> None:
    change = world.ledger.changes.get(before.id)
    assert (found.spec, found.created_at) == (before.spec, before.created_at)
    assert (found.attempt, found.attempts_max) == (before.attempt, before.attempts_max)
    assert found.deadline_at == before.deadline_at
    parents_before = state_of(world).parents.get(before.id, ())
    parents_found = state_of(heir).parents.get(before.id, ())
    remembered = state_of(world).tasks.keys() | state_of(world).finished.keys()
    if not before.schedule:  # an occurrence that had to queue again has forgotten behind whom
        assert set(parents_found) >= {p for p in parents_before if p in remembered}
    if change is None or change.status == Status.READY:
        assert found.history == before.history
        assert found.status == before.status or before.status == Status.BLOCKED
        if found.status == Status.BLOCKED:
            assert found.unmet <= before.unmet
            assert found.awaiting == before.awaiting
        if found.status == Status.READY and before.status == Status.READY:
            waited = heir.mono - found.since
            assert waited >= world.mono - before.since, "nobody's wait begins anew"
        return
    if change.status == Status.RUNNING:
        assert found.status == Status.RETRYING
        assert found.history[-1].outcome == Outcome.LEADER_LOST
        assert found.history[:-1] == change.history[-19:]
        return
    assert change.status == Status.RETRYING
    assert found.history == before.history == change.history
    assert found.message == change.message
    if found.status == Status.RETRYING:
        assert found.retry_at == before.retry_at == change.retry_at
        assert found.backoff_until - heir.mono == before.backoff_until - world.mono
    else:
        assert found.status == Status.READY
        assert change.retry_at is not None
        assert found.since == heir.mono - (heir.wall - change.retry_at)


@pytest.mark.parametrize("seed", range(100, 106))
def test_every_task_ends_whenever_the_leader_is_lost(seed: int) -> None:
    """EN-90: from any boundary on, workers that succeed bring everything to an end."""
    life = Workload(seed, crashes=False, checks=False)
    for number, world in enumerate(life.run(40)):
        if number % 4 == 0:
            heir = world.heir(gap=number * SECOND)
            assert everything_ends(heir)
            assert heir.ledger.rows.keys() == heir.ledger.ends.keys()


# --- attempts ------------------------------------------------------------------------------------


def test_running_attempt_counts_as_used() -> None:
    """EN-91: retried after a backoff, with a word on it in the history, under the next number."""
    world = World()
    world.join()
    task = world.add(spec(retry=RetryPolicy(initial_backoff=5 * SECOND)))
    step = world.crash(gap=HOUR)
    (change,) = step.mutations
    assert isinstance(change, StatusChanged)
    assert (change.status, change.attempt, change.retry_at) == (
        Status.RETRYING,
        1,
        world.wall + 5 * SECOND,
    )
    (past,) = change.history
    assert (past.outcome, past.number) == (Outcome.LEADER_LOST, 1)
    session = world.join()
    world.advance(5 * SECOND - 1)
    assert not world.out.get(session)
    world.advance(1)
    assert world.lease(session).attempt == 2
    assert world.lease(session).task_id == task


def test_last_attempt_that_was_running_is_dead_lettered_with_its_children() -> None:
    """EN-91: decided and written before anything is served; nobody waits for it for ever."""
    world = World()
    world.join()
    parent = world.add(spec(retry=RetryPolicy(max_attempts=1)))
    skipped = world.add(spec(dependencies=after(parent)))
    fixer = world.add(spec(dependencies=after(parent, on=EdgeCondition.ON_FAILURE)))
    cleaner = world.add(spec(dependencies=after(skipped, on=EdgeCondition.ON_COMPLETE)))
    step = world.crash()
    assert {m.task_id: m.status for m in step.mutations if isinstance(m, StatusChanged)} == {
        parent: Status.DEAD_LETTERED,
        skipped: Status.SKIPPED,
    }
    assert world.status(fixer) == world.status(cleaner) == Status.READY


def test_three_leaders_use_up_three_attempts() -> None:
    """EN-91: a task that kills its leaders does not do so for ever."""
    world = World()
    task = world.add(spec())
    for number in (1, 2, 3):
        world.advance(10 * SECOND)
        session = world.join()
        assert world.lease(session).attempt == number
        world.crash()
    assert world.status(task) == Status.DEAD_LETTERED
    assert [p.outcome for p in world.ledger.changes[task].history] == [Outcome.LEADER_LOST] * 3


def test_attempt_given_back_before_the_crash_counts_as_used() -> None:
    """EN-91: what was handed out may have run: only the dispatch is written."""
    world = World()
    session = world.join()
    task = world.add(spec())
    world.nack(session)
    assert world.status(task) == Status.READY
    world.crash()
    assert world.status(task) == Status.RETRYING


@pytest.mark.parametrize("gap", [0, 4 * SECOND, 10 * SECOND, HOUR])
def test_backoff_goes_on_where_it_was(gap: int) -> None:
    """EN-92: by the wall clock, while nobody led; past: ready from the instant it was due."""
    world = World()
    session = world.join()
    task = world.add(spec(retry=RetryPolicy(initial_backoff=10 * SECOND)))
    world.fail(session)
    due = world.wall + 10 * SECOND
    world.crash(gap=gap)
    left = due - world.wall
    if left > 0:
        assert world.view(task).next_run_at == due
        world.advance(left - 1)
        assert world.status(task) == Status.RETRYING
        world.advance(1)
    assert world.status(task) == Status.READY
    assert world.snapshot().pools[0].oldest_ready_at == due


def test_clock_set_back_over_a_failover_does_not_stretch_a_backoff() -> None:
    """EN-92: what is left is at most what it came from."""
    world = World()
    session = world.join()
    task = world.add(spec(retry=RetryPolicy(initial_backoff=10 * SECOND)))
    world.fail(session)
    world.crash(gap=-HOUR)
    world.advance(10 * SECOND)
    assert world.status(task) == Status.READY


def test_parents_are_known_to_an_attempt_after_a_failover() -> None:
    """EN-93: a child that had started is told its parents again, by id and by key."""
    world = World()
    first, second = world.add(spec(), spec(key="k"))
    session = world.join(slots=2)
    world.complete(session)
    child = world.add(spec(dependencies=after(first, "k")))
    world.fail(session)
    for gap in (0, 2 * HOUR):
        world.crash(gap=gap)
        world.advance(10 * SECOND)
        session = world.join()
        assert world.lease(session).task_id == child
        assert world.lease(session).parents == (first, second)
        if not gap:
            world.fail(session)


# --- waiting -------------------------------------------------------------------------------------


def test_order_of_the_line_survives() -> None:
    """EN-94: class, then the instant of readiness, then id, as if nobody had died."""
    world = World()
    session = world.join(slots=3)
    failed = world.add(spec(), spec())
    parent = world.add(spec())
    first, second, third = world.out[session]
    world.fail(session, first, retry_after=3 * SECOND)
    world.fail(session, second, retry_after=2 * SECOND)
    child = world.add(spec(dependencies=after(parent)))
    world.lose(session)
    world.leap(SECOND)
    early = world.add(spec())
    delayed = world.add(spec(delay=SECOND))
    urgent = world.add(spec(priority=1))
    world.leap(4 * SECOND)
    late = world.add(spec())
    world.leap(1)
    session = world.resume(session, third, slots=0)
    world.complete(session, third)
    expected = [urgent, early, failed[1], delayed, failed[0], late, child]

    def starts(of: World) -> list[int]:
        worker = of.join()
        ran = []
        while of.out[worker]:
            ran.append(of.lease(worker).task_id)
            of.complete(worker)
        return ran

    assert starts(world.heir()) == expected
    assert starts(world) == expected


def test_delays_and_expiries_are_instants() -> None:
    """EN-92: time goes on while nobody leads."""
    world = World()
    delayed = world.add(spec(delay=10 * SECOND))
    expiring = world.add(spec(expires_in=10 * SECOND))
    world.crash(gap=5 * SECOND)
    assert world.status(delayed) == Status.SCHEDULED
    assert world.status(expiring) == Status.READY
    world.advance(5 * SECOND)
    assert world.status(delayed) == Status.READY
    assert world.status(expiring) == Status.MISSED
    world = World()
    expiring = world.add(spec(expires_in=10 * SECOND))
    world.crash(gap=HOUR)
    session = world.join()
    assert not world.out.get(session)
    assert world.status(expiring) == Status.MISSED


@pytest.mark.parametrize(
    ("policy", "status"),
    [
        (MissPolicy.RUN_LATE, Status.RUNNING),
        (MissPolicy.SKIP, Status.MISSED),
        (MissPolicy.FAIL, Status.FAILED),
    ],
)
def test_start_that_passed_while_nobody_led_follows_its_policy(
    policy: MissPolicy, status: Status
) -> None:
    """EN-92: missed is missed, whoever was there."""
    world = World()
    task = world.add(spec(start_in=10 * SECOND, on_miss=policy))
    world.crash(gap=HOUR)
    world.step()
    world.join()
    assert world.status(task) == status


def test_start_is_no_more_for_a_task_that_had_an_attempt() -> None:
    """EN-92: it is retried like any other, however late."""
    world = World()
    world.join()
    task = world.add(spec(start_in=0, on_miss=MissPolicy.FAIL))
    assert world.status(task) == Status.RUNNING
    world.crash(gap=HOUR)
    world.advance(10 * SECOND)
    assert world.status(task) == Status.READY


def test_awaited_key_is_awaited_for_what_is_left() -> None:
    """EN-93: from submission on, failovers included; it may still come."""
    pool = PoolSettings("default", await_unknown_dependencies=60 * SECOND)
    world = World(pool)
    first = world.add(spec(dependencies=after("late", "later")))
    world.crash(gap=20 * SECOND)
    second = world.add(spec(dependencies=after("never")))
    assert world.status(first) == Status.BLOCKED
    world.advance(20 * SECOND)
    world.add(spec(key="late"), spec(key="later"))
    session = world.join(slots=2)
    world.complete(session)
    assert world.status(first) == Status.RUNNING
    world.crash()
    world.advance(40 * SECOND - 1)
    assert world.status(second) == Status.BLOCKED
    world.advance(1)
    assert world.status(second) == Status.SKIPPED


def test_awaited_key_counts_as_satisfied_where_the_pool_does_not_wait_any_more() -> None:
    """EN-93: a key that nobody knows, and nobody waits for, ended before anybody remembers."""
    world = World(PoolSettings("default", await_unknown_dependencies=60 * SECOND))
    child = world.add(spec(dependencies=after("late")))
    world.crash(pools=(PoolSettings("default"),))
    assert world.status(child) == Status.READY


def test_parent_beyond_retention_is_satisfied_after_a_failover() -> None:
    """EN-93: an id that the store does not give back any more ended long ago."""
    world = World()
    gone, live = world.add(spec(), spec(delay=HOUR))
    child = world.add(spec(dependencies=after(gone, live)))
    world.complete(world.join())
    for table in (world.ledger.rows, world.ledger.ends, world.ledger.changes):
        del table[gone]
    world.crash()
    assert world.status(child) == Status.BLOCKED
    world.advance(HOUR)
    world.complete(world.join())
    assert world.status(child) == Status.RUNNING


def test_child_of_a_quarantined_parent_is_skipped() -> None:
    """EN-93: a row that could not be read comes back as failed; edges are judged by that."""
    world = World()
    parent = world.add(spec())
    child = world.add(spec(dependencies=after(parent)))
    fixer = world.add(spec(dependencies=after(parent, on=EdgeCondition.ON_FAILURE)))
    chunk = RecoveredChunk(
        live=(world.ledger.stored(child), world.ledger.stored(fixer)),
        parents=(
            msgspec.structs.replace(
                world.ledger.stored(parent),
                change=StatusChanged(parent, Status.FAILED, 0, 3, world.wall, message="unreadable"),
            ),
        ),
    )
    settings = msgspec.structs.replace(world.settings, epoch=2, high_water=world.ledger.high_water)
    engine = Engine(settings, Highest())
    step = engine.restore([chunk], world.now)
    assert [(m.task_id, m.status) for m in step.mutations if isinstance(m, StatusChanged)] == [
        (child, Status.SKIPPED)
    ]
    assert engine._state.tasks[fixer].status == Status.READY


# --- ended tasks ---------------------------------------------------------------------------------


def test_keys_of_ended_tasks_are_known_for_the_rest_of_their_retention() -> None:
    """EN-95: counted from the end, failovers included."""
    world = World(key_retention=60 * SECOND, store_remembers=False)
    task = world.add(spec(key="k"))
    world.cancel(task)
    world.crash(gap=40 * SECOND)
    assert world.submit(spec(key="k")).duplicates == (0,)
    world.leap(21 * SECOND)
    assert world.submit(spec(key="k")).duplicates == ()


def test_newest_task_of_a_key_answers_for_it() -> None:
    """EN-95: a key that was used again, when it had been forgotten, is the later task's."""
    world = World(key_retention=SECOND, store_remembers=False)
    ids = []
    for _ in range(3):
        ids.append(world.add(spec(key="k")))
        world.cancel(ids[-1])
        world.leap(2 * SECOND)
    world.crash(key_retention=HOUR)
    assert world.submit(spec(key="k")) == effects.Admitted([ids[-1]], (0,))
    world = World(key_retention=SECOND, store_remembers=False)
    world.cancel(world.add(spec(key="k")))
    world.leap(2 * SECOND)
    live = world.add(spec(key="k"))
    world.crash(key_retention=HOUR)
    assert world.submit(spec(key="k")) == effects.Admitted([live], (0,))


def test_empty_store_is_recovered_in_an_empty_step() -> None:
    """EN-90: nothing to take over, nothing to write."""
    world = World()
    assert world.taken[0].step.mutations == ()
    assert world.taken[0].step.effects == ()


def test_recovery_in_the_instant_of_dispatch_uses_each_number_once() -> None:
    """EN-91: a frozen clock cuts nothing out of what is recovered."""
    world = World()
    seen: set[tuple[int, int]] = set()
    for _ in range(50):
        task = world.add(spec(retry=RetryPolicy(max_attempts=100, jitter=False)))
        for lease in world.out.get(world.join(slots=3), {}).values():
            assert (lease.task_id, lease.attempt) not in seen
            seen.add((lease.task_id, lease.attempt))
        world.crash()
        assert state_of(world).tasks[task].attempt <= 1
        if len(seen) % 7 == 0:
            world.advance(60 * SECOND)
    assert len(seen) > 50


def test_acknowledged_submit_survives_and_lost_one_leaves_no_trace() -> None:
    """EN-90: what was committed is there; what a step only thought is not."""
    world = World()
    kept = world.add(spec(key="kept"))
    ledger: Ledger = world.ledger.copy()
    world.add(spec(key="lost"))
    world.ledger = ledger
    world._highest.clear()
    world.crash()
    assert world.status(kept) == Status.READY
    assert world.submit(spec(key="lost")).duplicates == ()
    assert all(t.status < FIRST_TERMINAL for t in state_of(world).tasks.values())


# --- what the configuration no longer has --------------------------------------------------------


def test_tasks_of_a_pool_that_is_gone_are_kept_and_wait_visibly() -> None:
    """EN-97: listed, shown, cancelled; nobody may submit or join; they go on when it is back."""
    old = PoolSettings("old", retry=RetryPolicy(initial_backoff=SECOND))
    world = World(PoolSettings("default"), old)
    session = world.join(pool="old")
    running = world.add(spec(pool="old"))
    ready, blocked = world.add(spec(pool="old"), spec(pool="old", dependencies=after(running)))
    world.crash(pools=(PoolSettings("default"),))
    world.advance(SECOND)
    assert {world.status(task) for task in (running, ready)} == {Status.READY}
    assert world.view(ready).waiting_for
    assert [view.task_id for view in world.page().tasks] == [running, ready, blocked]
    refused(world.submit(spec(pool="old")), ErrorReason.POOL_UNKNOWN)
    many = world.submit(spec(pool="old"), mode=SubmitMode.MANY)
    refused(many.refusals[0][1], ErrorReason.POOL_UNKNOWN)
    session = world.join(pool="old")
    refused(world.joined[session], ErrorReason.POOL_UNKNOWN)
    world.cancel(ready)
    assert world.status(ready) == Status.CANCELLED
    redriven = Redrive(world.call(), ready, found=world.ledger.find([ready], []))
    refused(world.ask(redriven), ErrorReason.POOL_UNKNOWN)
    world.crash(pools=(PoolSettings("default"), old))
    world.advance(SECOND)
    assert world.lease(world.join(pool="old")).task_id == running


def test_tasks_of_a_resource_that_is_gone_are_kept_and_wait_visibly() -> None:
    """EN-97: it holds nothing, so that nothing starts; and it is there again when it is."""
    gpu = ResourceSettings("gpu", permits=1)
    world = World(resources=(gpu,))
    task = world.add(spec(resources=(("gpu", 1),)))
    world.crash(resources=())
    session = world.join()
    assert not world.out.get(session)
    assert world.view(task).waiting_for == ("resource gpu cannot hold as much",)
    refused(world.submit(spec(resources=(("gpu", 1),))), ErrorReason.RESOURCE_UNKNOWN)
    resize = ResizeResource(world.call(), "gpu", permits=5)
    refused(world.ask(resize), ErrorReason.RESOURCE_NOT_FOUND)
    (shown,) = world.ask(ListResources(world.call()))
    assert (shown.permits, shown.waiting) == (0, 1)
    world.crash(resources=(gpu,))
    assert world.lease(world.join()).task_id == task


def test_schedule_of_a_pool_that_is_gone_goes_on_creating() -> None:
    """EN-97: its occurrences wait like everything else there; it can be removed."""
    world = World(PoolSettings("default"), PoolSettings("old"))
    calendar = parse("* * * * *")
    assert isinstance(calendar, Calendar)
    template = spec(pool="old", resources=())
    event = PutSchedule(world.call(), ScheduleSpec("s", "* * * * *", template), calendar)
    world.step(event)
    world.crash(pools=(PoolSettings("default"),))
    world.advance(60 * SECOND)
    (task,) = world.ledger.rows
    assert world.status(task) == Status.READY
    again = PutSchedule(world.call(), ScheduleSpec("t", "* * * * *", template), calendar)
    refused(world.ask(again), ErrorReason.POOL_UNKNOWN)
    assert world.ask(RemoveSchedule(world.call(), "s")) == effects.Done(changed=True)
    pause = SetPoolPaused(world.call(), "old", paused=True)
    refused(world.ask(pause), ErrorReason.POOL_UNKNOWN)
