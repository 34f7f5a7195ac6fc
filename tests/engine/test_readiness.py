"""When a task may run: delays, fixed starts, expiry, waits, and clocks that are set."""

from __future__ import annotations

from typing import Any

import pytest

from cronoq_server.engine.events import ClockSet
from cronoq_server.engine.model import (
    SECOND,
    MissPolicy,
    PoolSettings,
    RetryPolicy,
    Status,
)
from cronoq_server.engine.timers import NEVER
from tests.engine.harness import World, after, spec

HOUR = 3600 * SECOND
TTL = 30 * SECOND


# --- delays and expiry ---------------------------------------------------------------------------


def test_delay_counts_from_arrival() -> None:
    """EN-70: scheduled until then, shown with its instant, started at it."""
    world = World()
    session = world.join()
    task = world.add(spec(delay=10 * SECOND))
    view = world.view(task)
    assert (view.status, view.next_run_at) == (Status.SCHEDULED, world.wall + 10 * SECOND)
    assert world.wake_at.wall == world.wall + 10 * SECOND
    world.advance(10 * SECOND - 1)
    assert world.status(task) == Status.SCHEDULED
    world.advance(1)
    assert world.lease(session).task_id == task


def test_not_before_is_an_instant() -> None:
    """EN-70: one in the past holds nobody up."""
    world = World()
    later = world.add(spec(not_before=world.wall + SECOND))
    now = world.add(spec(not_before=world.wall - SECOND))
    assert world.status(later) == Status.SCHEDULED
    assert world.status(now) == Status.READY
    world.advance(SECOND)
    assert world.status(later) == Status.READY


def test_delay_and_parent_must_both_be_over() -> None:
    """EN-70: whichever comes last lets the task go."""
    for first in ("parent", "time"):
        world = World()
        parent = world.add(spec())
        child = world.add(spec(dependencies=after(parent), delay=10 * SECOND))
        session = world.join()
        if first == "parent":
            world.complete(session)
            assert world.status(child) == Status.SCHEDULED
            world.advance(10 * SECOND)
        else:
            world.advance(20 * SECOND)
            assert world.status(child) == Status.BLOCKED
            world.complete(session)
        assert world.lease(session).task_id == child


@pytest.mark.parametrize("state", [Status.READY, Status.SCHEDULED, Status.BLOCKED])
def test_task_that_has_not_started_in_time_is_missed(state: Status) -> None:
    """EN-71: wherever it stood, exactly at the instant."""
    world = World()
    parent = world.add(spec())
    ways: dict[Status, dict[str, Any]] = {
        Status.READY: {},
        Status.SCHEDULED: {"delay": 60 * SECOND},
        Status.BLOCKED: {"dependencies": after(parent)},
    }
    task = world.add(spec(expires_in=10 * SECOND, **ways[state]))
    assert world.status(task) == state
    world.advance(10 * SECOND - 1)
    assert world.status(task) == state
    world.advance(1)
    assert world.status(task) == Status.MISSED


def test_task_that_started_does_not_expire() -> None:
    """EN-71: not while it runs, not between attempts, not when it was given back."""
    world = World()
    session = world.join()
    task = world.add(spec(expires_in=SECOND, retry=RetryPolicy(initial_backoff=60 * SECOND)))
    world.advance(5 * SECOND)
    assert world.status(task) == Status.RUNNING
    world.nack(session)
    world.advance(5 * SECOND)
    assert world.status(task) == Status.READY
    other = world.join()
    world.fail(other)
    world.advance(5 * SECOND)
    assert world.status(task) == Status.RETRYING


# --- fixed starts --------------------------------------------------------------------------------


@pytest.mark.parametrize("absolute", [True, False])
def test_fixed_start_is_kept(absolute: bool) -> None:
    """EN-72: with a free slot there the task starts at its instant, not before."""
    world = World()
    session = world.join()
    if absolute:
        task = world.add(spec(start_at=world.wall + 20 * SECOND))
    else:
        task = world.add(spec(start_in=20 * SECOND))
    world.advance(20 * SECOND - 1)
    assert world.status(task) == Status.SCHEDULED
    world.advance(1)
    assert world.lease(session).task_id == task
    assert world.view(task).started_at == world.ledger.rows[task].created_at + 20 * SECOND


@pytest.mark.parametrize(
    ("policy", "status"),
    [
        (MissPolicy.RUN_LATE, Status.READY),
        (MissPolicy.SKIP, Status.MISSED),
        (MissPolicy.FAIL, Status.FAILED),
    ],
)
@pytest.mark.parametrize("tolerance", [None, 5 * SECOND])
def test_missed_start_follows_its_policy(
    policy: MissPolicy, status: Status, tolerance: int | None
) -> None:
    """EN-72: missed means not started by start + tolerance, a second unless told otherwise."""
    world = World()
    task = world.add(spec(start_in=10 * SECOND, on_miss=policy, tolerance=tolerance))
    allowed = SECOND if tolerance is None else tolerance
    world.advance(10 * SECOND + allowed - 1)
    assert world.status(task) == Status.READY
    world.advance(1)
    assert world.status(task) == status
    session = world.join()
    assert len(world.out.get(session, {})) == (policy == MissPolicy.RUN_LATE)


def test_retries_have_no_start() -> None:
    """EN-72: a task that started in time can't miss its start any more."""
    world = World()
    session = world.join()
    task = world.add(spec(start_in=SECOND, on_miss=MissPolicy.FAIL))
    world.advance(SECOND)
    world.fail(session)
    world.advance(SECOND)
    assert world.lease(session).attempt == 2
    assert world.status(task) == Status.RUNNING


def test_start_passed_while_the_task_was_blocked_is_missed() -> None:
    """EN-72: a parent that is late makes its child late."""
    world = World()
    parent = world.add(spec(delay=HOUR))
    child = world.add(spec(dependencies=after(parent), start_in=SECOND, on_miss=MissPolicy.SKIP))
    world.advance(2 * SECOND)
    assert world.status(child) == Status.MISSED


def test_deadline_ends_nothing_but_is_told() -> None:
    """EN-72: relative or absolute, it raises urgency; a task that is late runs late."""
    world = World()
    in_time = world.add(spec(deadline_in=SECOND, duration_hint=SECOND // 2))
    at = world.add(spec(deadline_at=world.wall + SECOND))
    world.leap(60 * SECOND)
    session = world.join(slots=2)
    told = {lease.task_id: lease.deadline_at for lease in world.out[session].values()}
    assert told == dict.fromkeys((in_time, at), world.wall - 59 * SECOND)


# --- who is ready since when ---------------------------------------------------------------------


def test_tasks_due_in_one_step_start_in_order_of_their_instants() -> None:
    """EN-73: the due instant counts, not the step's, nor the order of submission."""
    world = World()
    late = world.add(spec(delay=500_000_000))
    early = world.add(spec(delay=100_000_000))
    world.leap(SECOND)
    session = world.join()
    assert world.lease(session).task_id == early
    world.complete(session)
    assert world.lease(session).task_id == late


def test_backoffs_that_end_in_one_step_start_in_order_of_their_ends() -> None:
    """EN-73: likewise after failures."""
    world = World()
    session = world.join(slots=2)
    first, second = world.add(spec(), spec())
    one, two = world.out[session]
    world.fail(session, one, retry_after=20 * SECOND)
    world.fail(session, two, retry_after=10 * SECOND)
    world.lose(session)
    world.leap(30 * SECOND)
    session = world.join()
    assert world.lease(session).task_id == second
    world.complete(session)
    assert world.lease(session).task_id == first


def test_child_waits_from_its_last_parents_end() -> None:
    """EN-73: being blocked is no waiting in line."""
    world = World()
    parent = world.add(spec())
    child = world.add(spec(dependencies=after(parent)))
    world.leap(10 * SECOND)
    other = world.add(spec())
    world.leap(10 * SECOND)
    session = world.join()
    world.complete(session)
    assert world.lease(session).task_id == other
    world.complete(session)
    assert world.lease(session).task_id == child


def test_oldest_ready_is_shown_by_wall_time() -> None:
    """EN-73: the age of what waits longest is there to be watched."""
    world = World()
    assert world.snapshot().pools[0].oldest_ready_at is None
    world.leap(5 * SECOND)
    world.add(spec())
    ready_at = world.wall
    world.leap(5 * SECOND)
    assert world.snapshot().pools[0].oldest_ready_at == ready_at


# --- clocks that are set -------------------------------------------------------------------------


def test_wall_clock_that_jumps_an_hour_forward_expires_no_lease() -> None:
    """EN-02: instants become due; leases, timeouts, backoffs and waits don't."""
    world = World()
    session = world.join(slots=2)
    running = world.add(spec(timeout=20 * SECOND))
    retrying = world.add(spec(retry=RetryPolicy(initial_backoff=20 * SECOND)))
    world.fail(session, list(world.out[session])[1])
    delayed = world.add(spec(pool="default", delay=HOUR // 2, labels=(("no", "body"),)))
    expiring = world.add(spec(expires_in=HOUR // 2, labels=(("no", "body"),)))
    waiting = world.wait(running, patience=20 * SECOND)
    world.jump_wall(HOUR)
    assert world.status(running) == Status.RUNNING
    assert world.status(retrying) == Status.RETRYING
    assert world.status(delayed) == Status.READY
    assert world.status(expiring) == Status.MISSED
    assert not world.is_over(waiting)
    world.advance(20 * SECOND - 1)
    assert world.status(running) == Status.RUNNING
    assert world.status(retrying) == Status.RETRYING
    assert not world.is_over(waiting)
    world.advance(1)
    assert world.is_over(waiting)
    assert world.lease_of(running).attempt == world.lease_of(retrying).attempt - 1 == 1
    assert world.status(running) == Status.RETRYING


def test_wall_clock_set_back_ten_minutes_neither_stops_nor_doubles_anything() -> None:
    """EN-03: what runs goes on, what is due comes once, when the clock says so again."""
    world = World()
    session = world.join(slots=10)
    running = world.add(spec())
    world.add(spec(retry=RetryPolicy(initial_backoff=SECOND, jitter=False)))
    world.fail(session, list(world.out[session])[1])
    world.add(spec(delay=SECOND))
    world.advance(SECOND)
    started = len(world.leases)
    assert started == 4
    delayed = world.add(spec(delay=5 * SECOND))
    world.jump_wall(-600 * SECOND)
    world.advance(20 * SECOND)
    world.beat(session, *world.out[session])
    assert len(world.leases) == started
    assert world.status(running) == Status.RUNNING
    fresh = world.add(spec())
    assert world.status(fresh) == Status.RUNNING
    world.complete(session)
    assert world.status(delayed) == Status.SCHEDULED
    world.advance(600 * SECOND)
    assert world.lease_of(delayed).attempt == 1
    assert len(world.leases) == started + 2


def test_retry_goes_by_the_monotonic_clock_when_the_wall_clock_is_set_back() -> None:
    """EN-03: a backoff lasts as long as it lasts."""
    world = World()
    session = world.join()
    world.add(spec(retry=RetryPolicy(initial_backoff=5 * SECOND)))
    world.fail(session)
    world.jump_wall(-HOUR)
    world.advance(5 * SECOND)
    assert world.lease(session).attempt == 2


@pytest.mark.parametrize("leap", [-2 * HOUR, 2 * HOUR])
def test_set_clock_moves_the_urgency_of_deadlines(leap: int) -> None:
    """EN-02: a deadline is an instant of the wall clock, whenever that comes."""
    world = World()
    plain = world.add(spec())
    world.leap(SECOND)
    hurried = world.add(spec(deadline_in=HOUR))
    world.jump_wall(leap)
    world.step(ClockSet())
    session = world.join()
    first = hurried if leap > 0 else plain
    assert world.lease(session).task_id == first
    world.complete(session)
    assert world.lease(session).task_id == (plain if leap > 0 else hurried)


def test_clock_that_drifts_slowly_moves_deadlines_too() -> None:
    """EN-02: a thousand small differences are as good as one leap."""
    world = World(checks=False)
    plain = world.add(spec())
    world.leap(SECOND)
    hurried = world.add(spec(deadline_in=HOUR))
    for _ in range(200):
        world.wall += 20 * SECOND - 50_000_000
        world.mono += 50_000_000
        world.step()
    session = world.join()
    assert world.lease(session).task_id == hurried
    world.complete(session)
    assert world.lease(session).task_id == plain


def test_monotonic_clock_that_goes_back_is_a_bug() -> None:
    """EN-07: the runtime promises that it does not."""
    world = World()
    world.mono -= 1
    with pytest.raises(AssertionError, match="monotonic"):
        world.step()


# --- waking --------------------------------------------------------------------------------------


def test_idle_engine_sleeps_for_ever() -> None:
    """EN-05: nothing waits for time, so nobody has to wake it."""
    world = World()
    world.join()
    assert world.wake_at.wall == NEVER
    assert world.wake_at.mono == NEVER
    world.add(spec())
    world.complete(1)
    assert world.wake_at.mono == NEVER


def test_timers_of_tasks_that_left_are_swept_out() -> None:
    """EN-05: tasks that end before their instants leave no heap of them behind."""
    world = World(checks=False)
    session = world.join()
    for _ in range(400):
        world.cancel(world.add(spec(start_in=HOUR, expires_in=2 * HOUR, tolerance=HOUR)))
        world.add(spec(expires_in=HOUR, start_in=0, tolerance=HOUR))
        world.complete(session)
        world.add(spec())
        world.fail(session, retry_after=HOUR)
        world.cancel(world.add(spec(delay=HOUR)))
    state = world.engine._state
    for task in list(state.tasks):
        world.cancel(task)
    assert not state.tasks
    assert len(state.wall_timers) < 200
    assert len(state.mono_timers) < 200


def test_timers_of_awaited_keys_are_swept_out() -> None:
    """EN-05: likewise for keys that came and children that went."""
    pool = PoolSettings("default", await_unknown_dependencies=HOUR)
    world = World(pool, checks=False)
    for number in range(300):
        child = world.add(spec(dependencies=after(f"{number}")))
        if number % 2:
            world.add(spec(key=f"{number}"))
            world.cancel(f"{number}")
        else:
            world.cancel(child)
    assert len(world.engine._state.mono_timers) < 200
