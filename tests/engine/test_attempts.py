"""Attempts: leases and their clocks, reports, failures, refusals, cancels, and lost sessions."""

from __future__ import annotations

from typing import Any

import pytest

from cronoq_server.engine import effects, policies
from cronoq_server.engine.events import (
    AttemptsReported,
    Cancel,
    CancelledByWorker,
    Completed,
    DispatchRested,
    DispatchStopped,
    Failed,
    HeartbeatsRead,
    ListWorkers,
    Nacked,
    Resume,
    SlotsSet,
    Unsent,
    WorkerLost,
)
from cronoq_server.engine.model import (
    MILLISECOND,
    SECOND,
    ErrorReason,
    Outcome,
    PoolSettings,
    Progress,
    Refusal,
    ResourceSettings,
    RetryPolicy,
    Status,
)
from cronoq_server.engine.records import Total
from tests.engine.harness import Dice, Highest, Lowest, World, after, spec

TTL = 30 * SECOND


def running(world: World | None = None, slots: int = 1, **fields: Any) -> tuple[World, int, int]:
    """A world with one worker that runs one task."""
    world = world or World()
    session = world.join(slots)
    return world, session, world.add(spec(**fields))


def total(world: World, which: Total) -> int:
    """One of the engine's counters."""
    return world.engine._state.totals[which]


# --- dispatch ------------------------------------------------------------------------------------


def test_lease_carries_what_a_handler_needs() -> None:
    """EN-40: spec, number, TTL, deadline and parents come with the lease."""
    world = World()
    parent = world.add(spec())
    session = world.join()
    world.complete(session)
    child = world.add(spec("mail", payload=b"x", dependencies=after(parent), deadline_in=SECOND))
    lease = world.lease(session)
    assert (lease.task_id, lease.attempt, lease.ttl) == (child, 1, TTL)
    assert lease.deadline_at == world.wall + SECOND
    assert lease.parents == (parent,)
    assert lease.spec.payload == b"x"


def test_leases_of_one_step_go_out_together() -> None:
    """EN-40: one effect per session and step, leases in order."""
    world = World()
    world.add(*(spec() for _ in range(5)))
    world.join(slots=5)
    dispatches = [e for t in world.taken for e in t.step.effects if isinstance(e, effects.Dispatch)]
    assert [len(d.leases) for d in dispatches] == [5]


def test_slots_are_never_exceeded() -> None:
    """EN-60: a worker has at most as many leases as slots, whatever waits."""
    world = World()
    world.add(*(spec() for _ in range(10)))
    session = world.join(slots=3)
    assert len(world.out[session]) == 3
    world.complete(session, next(iter(world.out[session])))
    assert len(world.out[session]) == 3


def test_kinds_and_labels_decide_who_gets_what() -> None:
    """EN-60: a kind or label that nobody serves waits, visibly, until somebody does."""
    world = World()
    mail = world.add(spec("mail"))
    gpu = world.add(spec(labels=(("gpu", "a100"),)))
    other = world.join(kinds=("other",))
    assert not world.out.get(other)
    assert world.view(mail).waiting_for == ("kind mail: no worker serves it",)
    assert world.view(gpu).waiting_for[0].startswith("label gpu")
    mailer = world.join(kinds=("mail", "fax"))
    assert world.lease(mailer).task_id == mail
    labelled = world.join(labels=(("gpu", "a100"), ("zone", "b")))
    assert world.lease(labelled).task_id == gpu


def test_stopped_dispatch_starts_nothing_any_more() -> None:
    """EN-60: during a shutdown submits are taken and wait for the next leader."""
    world = World()
    session = world.join()
    world.step(DispatchStopped())
    task = world.add(spec())
    assert not world.out.get(session)
    world.crash()
    assert world.lease(world.join()).task_id == task


def test_resting_dispatch_goes_on_where_it_stopped() -> None:
    """EN-60: while the store is late nothing starts; then everything does."""
    world = World()
    session = world.join()
    world.step(DispatchRested(True))
    task = world.add(spec())
    assert not world.out.get(session)
    world.step(DispatchRested(False))
    assert world.lease(session).task_id == task


# --- leases and their clocks ---------------------------------------------------------------------


def test_lease_expires_without_heartbeats() -> None:
    """EN-42: after the TTL the attempt counts as failed, retryable, and the worker is told."""
    world, session, task = running()
    lease = world.lease(session).lease
    world.advance(TTL - 1)
    assert world.status(task) == Status.RUNNING
    world.advance(1)
    assert world.status(task) == Status.RETRYING
    assert [lease for lease, _ in world.aborts[session]] == [lease]
    assert total(world, Total.LEASE_EXPIRIES) == 1
    assert world.detail(task).attempts[-1].outcome == Outcome.LEASE_EXPIRED


def test_heartbeat_renews_what_it_names() -> None:
    """EN-41: a beat gives a full TTL to the leases in it, and to no others."""
    world, session, task = running(slots=2)
    other = world.add(spec())
    first, second = world.out[session]
    world.advance(20 * SECOND)
    world.beat(session, first, last=first)
    world.advance(10 * SECOND)
    assert world.status(other) == Status.RETRYING
    world.advance(20 * SECOND - 1)
    assert world.status(task) == Status.RUNNING
    world.advance(1)
    assert world.status(task) == Status.RETRYING
    assert second not in {a for a, _ in world.aborts[session][1:]}


def test_clocks_start_when_the_lease_has_gone_out() -> None:
    """EN-41: the time a commit takes is not the worker's."""
    world = World()
    world.releases = False
    session = world.join()
    task = world.add(spec(timeout=10 * SECOND))
    number = world.taken[-1].step.number
    world.advance(100 * SECOND)
    assert world.status(task) == Status.RUNNING
    world.release(number)
    world.advance(10 * SECOND - 1)
    assert world.status(task) == Status.RUNNING
    world.advance(1)
    assert world.status(task) == Status.RETRYING
    assert world.out[session]


def test_beat_before_the_release_is_heard() -> None:
    """EN-41: a worker may read its lease and beat before the engine learns that it is out."""
    world = World()
    world.releases = False
    session = world.join()
    task = world.add(spec())
    number = world.taken[-1].step.number
    world.beat(session, world.lease(session).lease)
    world.release(number)
    world.advance(TTL - 1)
    assert world.status(task) == Status.RUNNING


def test_attempt_that_ended_before_its_release_starts_no_clock() -> None:
    """EN-41: a report may overtake the word that the lease is out."""
    world = World()
    world.releases = False
    session = world.join()
    task = world.add(spec(timeout=SECOND))
    number = world.taken[-1].step.number
    world.complete(session)
    world.release(number)
    world.advance(2 * TTL)
    assert world.status(task) == Status.SUCCEEDED


@pytest.mark.regression("R8")
def test_pause_of_the_leader_ages_no_lease() -> None:
    """EN-04: a gap between steps is time in which nobody could be heard."""
    world, session, task = running()
    world.leap(10 * SECOND)
    world.beat(session, *world.out[session])
    world.leap(3600 * SECOND)
    assert world.status(task) == Status.RUNNING
    world.advance(TTL - SECOND - 1)
    assert world.status(task) == Status.RUNNING
    world.advance(1)
    assert world.status(task) == Status.RETRYING


def test_engine_wants_to_be_woken_while_leases_are_out() -> None:
    """EN-05: a quiet second is noticed as such, so that a pause can be told from it."""
    world, _, _ = running()
    assert world.wake_at.mono - world.mono == SECOND


def test_heard_in_the_step_that_would_expire_it() -> None:
    """EN-06: in one step heartbeats and reports come before expiries."""
    world, session, task = running()
    for _ in range(29):
        world.leap(SECOND)
    world.wall += SECOND
    world.mono += SECOND
    world.beat(session, *world.out[session])
    assert world.status(task) == Status.RUNNING
    for _ in range(29):
        world.leap(SECOND)
    world.wall += SECOND
    world.mono += SECOND
    world.complete(session)
    assert world.status(task) == Status.SUCCEEDED


def test_attempt_times_out() -> None:
    """EN-43: per attempt, whatever its heartbeats; retryable, counted, in the history."""
    world, session, task = running(timeout=5 * SECOND)
    world.leap(4 * SECOND)
    world.beat(session, *world.out[session])
    world.advance(SECOND - 1)
    assert world.status(task) == Status.RUNNING
    world.advance(1)
    assert world.status(task) == Status.RETRYING
    (past,) = world.detail(task).attempts
    assert past.outcome == Outcome.TIMED_OUT
    assert "5 s" in past.message
    assert total(world, Total.TIMEOUTS) == 1


def test_timeout_does_not_wait_for_the_leader() -> None:
    """EN-43: unlike a lease, a timeout runs on while the leader can't listen."""
    world, _, task = running(timeout=5 * SECOND)
    world.leap(5 * SECOND)
    assert world.status(task) == Status.RETRYING


def test_last_attempt_that_times_out_is_dead_lettered() -> None:
    """EN-43: a timeout uses an attempt up like a failure."""
    world, _, task = running(timeout=SECOND, retry=RetryPolicy(max_attempts=1))
    world.leap(SECOND)
    assert world.status(task) == Status.DEAD_LETTERED


def test_many_different_timeouts_leave_nothing_behind() -> None:
    """EN-43: a list per length lives only as long as an attempt in it."""
    world, session, _ = running(timeout=SECOND)
    for number in range(50):
        world.complete(session)
        world.add(spec(timeout=SECOND + number))
    world.complete(session)
    assert not world.engine._state.timeout_lists


# --- reports -------------------------------------------------------------------------------------


def test_success_stores_its_output_with_its_status() -> None:
    """EN-40: one step has the end and what came out of it."""
    world, session, task = running()
    world.complete(session, output=b"\x00result")
    assert world.status(task) == Status.SUCCEEDED
    assert world.ledger.outputs[task].output == b"\x00result"
    assert world.view(task).has_output


def test_permanent_failure_ends_the_task() -> None:
    """EN-46: trying again is of no use."""
    world, session, task = running()
    world.fail(session, permanent=True, message="no such user")
    assert world.status(task) == Status.FAILED
    assert world.view(task).message == "no such user"
    assert world.ledger.changes[task].history[-1].outcome == Outcome.FAILED_PERMANENTLY


def test_worker_may_cancel() -> None:
    """EN-48: a handler that ends as cancelled ends its task so."""
    world, session, task = running()
    world.report(session, CancelledByWorker(world.lease(session).lease))
    assert world.status(task) == Status.CANCELLED
    assert world.ledger.changes[task].history[-1].outcome == Outcome.CANCELLED_BY_WORKER


def test_stale_reports_are_counted_and_change_nothing() -> None:
    """EN-47: for a lease that ended, that another session has, or of a session that is gone."""
    world, session, task = running()
    lease = world.lease(session).lease
    other = world.join()
    world.report(other, Completed(lease, b"", ""))
    assert world.status(task) == Status.RUNNING
    world.complete(session)
    world.report(session, Failed(lease, "late"), Nacked(lease, ""), Completed(lease, b"2", ""))
    world.step(AttemptsReported(999, [Completed(lease, b"", ""), CancelledByWorker(lease)]))
    assert total(world, Total.STALE_REPORTS) == 6
    assert world.snapshot().totals.stale_completions == 6
    assert world.status(task) == Status.SUCCEEDED
    assert world.ledger.outputs[task].output == b"out"


def test_one_lease_is_reported_once_within_a_message() -> None:
    """EN-47: of two words on one lease the first counts."""
    world, session, task = running()
    lease = world.lease(session).lease
    world.report(session, Completed(lease, b"1", ""), Failed(lease, "2", True))
    assert world.status(task) == Status.SUCCEEDED
    assert total(world, Total.STALE_REPORTS) == 1


def test_receipt_names_what_is_durable() -> None:
    """EN-55: the receipt leaves with the step that took the reports, numbers and all."""
    world, session, _ = running(slots=2)
    world.add(spec())
    first, second = world.out[session]
    world.report(session, Completed(first, b"", ""), number=1)
    assert world.receipts[session] == effects.Receipt(session, 1, 0)
    world.beat(session, second, number=7)
    assert world.receipts[session] == effects.Receipt(session, 1, 7)


def test_reports_sent_again_are_taken_once() -> None:
    """EN-55: a number that was read before gets its receipt and nothing else."""
    world, session, task = running(slots=2)
    other = world.add(spec())
    first, second = world.out[session]
    world.report(session, Completed(first, b"", ""), number=1)
    world.receipts.clear()
    world.report(session, Completed(second, b"", ""), number=1)
    assert world.receipts[session].reports == 1
    assert world.status(task) == Status.SUCCEEDED
    assert world.status(other) == Status.RUNNING
    assert total(world, Total.STALE_REPORTS) == 0


def test_learned_duration_ignores_the_wall_clock() -> None:
    """EN-02: somebody who sets the clock while a handler runs makes no task seem long."""
    world, session, _ = running()
    world.wall += 3600 * SECOND
    world.mono += 2 * SECOND
    world.complete(session)
    assert world.engine._state.pools["default"].means["work"] == 2 * SECOND


# --- failures and retries ------------------------------------------------------------------------


def test_failed_attempt_is_tried_again_after_its_backoff() -> None:
    """EN-44: waits double up to the bound; numbers rise; the budget ends it."""
    policy = RetryPolicy(
        max_attempts=5,
        initial_backoff=SECOND,
        multiplier=2.0,
        max_backoff=3 * SECOND,
        jitter=False,
    )
    world, session, task = running(retry=policy)
    for number, wait in enumerate((1, 2, 3, 3), start=1):
        assert world.lease(session).attempt == number
        world.fail(session, message=f"try {number}")
        view = world.view(task)
        assert view.status == Status.RETRYING
        assert view.message == f"try {number}"
        assert view.next_run_at == world.wall + wait * SECOND
        world.advance(wait * SECOND - 1)
        assert not world.out[session]
        world.advance(1)
    world.fail(session)
    assert world.status(task) == Status.DEAD_LETTERED
    history = world.ledger.changes[task].history
    assert [past.number for past in history] == [1, 2, 3, 4, 5]
    assert history[0].worker == "worker-1"


def test_numbers_left_at_zero_come_from_the_pool_then_the_default() -> None:
    """EN-44: field by field; jitter is the task's own word."""
    pool = RetryPolicy(max_attempts=7, initial_backoff=5 * SECOND, jitter=False)
    own = RetryPolicy(multiplier=3.0)
    assert policies.effective_retry(None, pool) == RetryPolicy(
        7, 5 * SECOND, 2.0, 60 * SECOND, False
    )
    assert policies.effective_retry(own, pool) == RetryPolicy(7, 5 * SECOND, 3.0, 60 * SECOND, True)
    world = World(PoolSettings("default", retry=pool))
    assert world.view(world.add(spec())).attempts_max == 7
    assert world.view(world.add(spec(retry=RetryPolicy(max_attempts=2)))).attempts_max == 2


@pytest.mark.parametrize("multiplier", [1e-9, 0.5, 1.0, 1.5, 2.0, 10.0, 1e300])
@pytest.mark.parametrize("attempt", [-3, 0, 1, 2, 3, 60, 10_000, 10**9])
def test_backoff_saturates(multiplier: float, attempt: int) -> None:
    """EN-44: any number and any multiplier give a wait within the bound."""
    policy = RetryPolicy(3, SECOND, multiplier, 60 * SECOND, False)
    wait = policies.backoff(policy, attempt, Lowest())
    assert 0 <= wait <= 60 * SECOND
    if attempt <= 1 or multiplier == 1.0:
        assert wait == SECOND


def test_jitter_draws_from_zero_to_the_backoff() -> None:
    """EN-44: both ends included, and spread over all of it."""
    policy = RetryPolicy(3, SECOND, 2.0, 60 * SECOND, True)
    assert policies.backoff(policy, 3, Highest()) == 4 * SECOND
    assert policies.backoff(policy, 3, Lowest()) == 0
    dice = Dice(1)
    drawn = [policies.backoff(policy, 2, dice) for _ in range(400)]
    assert min(drawn) >= 0
    assert max(drawn) <= 2 * SECOND
    quarters = [sum(q * SECOND // 2 <= d < (q + 1) * SECOND // 2 for d in drawn) for q in range(4)]
    assert min(quarters) > 50


def test_initial_backoff_above_the_bound_is_cut() -> None:
    """EN-44: the bound holds from the first wait on."""
    policy = RetryPolicy(3, 90 * SECOND, 2.0, 60 * SECOND, False)
    assert policies.backoff(policy, 1, Lowest()) == 60 * SECOND


def test_backoff_of_nothing_goes_on_at_once() -> None:
    """EN-44: a drawn wait of zero is due in the next step."""
    world, session, task = running(World(chance=Lowest()))
    world.fail(session)
    assert world.wake_at.mono == world.mono
    world.step()
    assert world.lease(session).attempt == 2
    assert world.status(task) == Status.RUNNING


@pytest.mark.parametrize(
    ("asked", "given"), [(0, 0), (90 * SECOND, 90 * SECOND), (10**18, policies.RETRY_AFTER_MAX)]
)
def test_worker_may_say_when_to_try_again(asked: int, given: int) -> None:
    """EN-45: its word replaces the backoff, up to a day."""
    world, session, task = running()
    world.fail(session, retry_after=asked)
    assert world.ledger.changes[task].retry_at == world.wall + given


def test_history_keeps_the_last_twenty_attempts() -> None:
    """EN-49: the oldest go; each has who, when and why."""
    world, session, task = running(retry=RetryPolicy(max_attempts=30))
    for number in range(25):
        world.fail(session, message=f"#{number + 1}", retry_after=0)
        world.step()
    past = world.detail(task).attempts
    assert [p.number for p in past] == list(range(6, 26))
    assert past[-1].message == "#25"
    assert past[-1].ended_at == world.wall


def test_learned_mean_moves_by_an_eighth() -> None:
    """The first duration counts whole, later ones an eighth."""
    assert policies.learned_mean(None, 800) == 800
    assert policies.learned_mean(800, 1600) == 900
    assert policies.learned_mean(800, 0) == 700


def test_remaining_time_is_bounded_on_both_sides() -> None:
    """EN-92: what is left is never negative and never more than it came from."""
    assert policies.remaining(10, 4, 100) == 6
    assert policies.remaining(10, 11, 100) == 0
    assert policies.remaining(1000, 0, 100) == 100


# --- refusals ------------------------------------------------------------------------------------


def test_refused_attempt_goes_to_another_session() -> None:
    """EN-50: within the same number, under a new lease."""
    world, session, task = running()
    first = world.lease(session)
    other = world.join()
    world.nack(session)
    second = world.lease(other)
    assert second.task_id == task
    assert second.attempt == first.attempt == 1
    assert second.lease > first.lease
    assert world.detail(task).attempts == ()


def test_session_that_refused_is_passed_over_for_a_while() -> None:
    """EN-51: alone, it gets the task again only after the initial backoff; others go first."""
    world, session, task = running(retry=RetryPolicy(initial_backoff=5 * SECOND))
    behind = world.add(spec())
    world.nack(session)
    assert world.lease(session).task_id == behind
    assert world.status(task) == Status.READY
    world.complete(session)
    assert not world.out[session]
    world.advance(5 * SECOND - 1)
    assert not world.out[session]
    world.advance(1)
    assert world.lease(session).task_id == task
    assert world.lease(session).attempt == 1


def test_refused_task_keeps_its_place() -> None:
    """EN-50: it is served before what came later, and waits from when it was first ready."""
    world, session, task = running()
    world.add(spec())
    world.leap(MILLISECOND)
    world.add(spec())
    world.nack(session)
    world.complete(session)
    other = world.join()
    assert world.lease(other).task_id == task


def test_sixth_refusal_fails_the_attempt() -> None:
    """EN-52: five are free; the sixth counts as a retryable failure."""
    world, session, task = running(retry=RetryPolicy(max_attempts=2, initial_backoff=SECOND))
    for _ in range(5):
        world.nack(session)
        assert world.status(task) == Status.READY
        world.advance(SECOND)
        assert world.lease(session).attempt == 1
    world.nack(session)
    assert world.status(task) == Status.RETRYING
    (past,) = world.detail(task).attempts
    assert past.outcome == Outcome.REFUSED_TOO_OFTEN
    assert "not mine" in past.message
    world.advance(SECOND)
    assert world.lease(session).attempt == 2
    world.nack(session)
    assert world.status(task) == Status.READY, "each attempt has five of its own"


def test_last_session_that_refused_is_passed_over_for_its_whole_time() -> None:
    """EN-51: the end of an earlier session's time is nothing to a later one."""
    world, first, task = running(retry=RetryPolicy(initial_backoff=10 * SECOND))
    second = world.join()
    world.nack(first)
    world.add(spec(), spec())
    assert world.lease(second).task_id == task
    world.leap(5 * SECOND)
    world.nack(second)
    assert world.status(task) == Status.READY
    world.complete(second)
    world.advance(10 * SECOND - 1)
    assert world.status(task) == Status.READY
    world.advance(1)
    assert world.lease(second).task_id == task


def test_every_session_that_refused_is_passed_over_for_its_own_time() -> None:
    """EN-51: the first refuser does not get it back because a second one refused it too."""
    world, first, task = running(retry=RetryPolicy(initial_backoff=10 * SECOND))
    second = world.join()
    world.nack(first)
    assert world.lease(second).task_id == task
    world.advance(4 * SECOND)
    world.nack(second)
    assert not world.out[first]
    assert not world.out[second]
    assert world.view(task).waiting_for == ("the workers with a free slot have just refused it",)
    world.advance(6 * SECOND - 1)
    assert world.status(task) == Status.READY
    world.advance(1)
    assert world.lease(first).task_id == task
    world.nack(first)
    world.advance(4 * SECOND)
    assert world.lease(second).task_id == task


def test_third_session_gets_what_two_refused() -> None:
    """EN-51: whoever has not refused it may have it at once."""
    world, first, task = running()
    second = world.join()
    world.nack(first)
    world.nack(second)
    assert world.status(task) == Status.READY
    third = world.join()
    assert world.lease(third).task_id == task
    assert world.lease(third).attempt == 1


def test_session_that_refused_is_passed_over_in_the_next_attempt_too() -> None:
    """EN-51: an attempt that failed meanwhile does not make the session willing."""
    world, first, task = running(retry=RetryPolicy(initial_backoff=10 * SECOND))
    second = world.join()
    world.nack(first)
    world.fail(second, retry_after=2 * SECOND)
    world.add(spec(), spec())
    world.advance(2 * SECOND)
    world.complete(first)
    assert not world.out[first]
    world.advance(8 * SECOND - 1)
    assert world.status(task) == Status.READY
    world.advance(1)
    assert world.lease(first).task_id == task
    assert world.lease(first).attempt == 2


def test_session_that_refused_is_passed_over_when_the_next_lease_is_lost() -> None:
    """EN-51: another session's lost lease is no reason to ask it again."""
    world, first, task = running(retry=RetryPolicy(initial_backoff=5 * SECOND))
    world.nack(first)
    second = world.join()
    lost = world.lease(second).lease
    world.leap(SECOND)
    world.beat(second, last=lost)
    assert world.lease_of(task).lease > lost
    assert task in {lease.task_id for lease in world.out[second].values()}
    assert not world.out[first]
    world.jump_wall(3600 * SECOND)
    world.lose(second, clean=False)
    world.step(Unsent(second, tuple(world.out[second])))
    assert world.status(task) == Status.READY
    world.advance(4 * SECOND)
    assert world.lease(first).task_id == task


def test_refused_task_may_be_cancelled() -> None:
    """EN-50: while it waits for another session it is a ready task like any other."""
    world, session, task = running()
    world.nack(session)
    world.cancel(task)
    world.advance(5 * SECOND)
    assert world.status(task) == Status.CANCELLED
    assert not world.out[session]


def test_permits_come_back_with_a_refusal() -> None:
    """EN-40: whatever ends an attempt gives its permits back, a refusal included."""
    world = World(resources=(ResourceSettings("gpu", permits=1),))
    world, session, task = running(world, resources=(("gpu", 1),))
    other = world.add(spec(resources=(("gpu", 1),)))
    assert world.status(other) == Status.READY
    world.nack(session)
    assert world.lease(session).task_id == other
    assert world.status(task) == Status.READY


# --- what was lost on its way --------------------------------------------------------------------


def test_lease_that_a_beat_does_not_name_is_offered_again() -> None:
    """EN-53: read, neither named nor reported: it was lost; same number, new lease, at once."""
    world, session, task = running()
    lost = world.lease(session)
    world.beat(session, last=lost.lease)
    again = world.lease_of(task)
    assert again.lease > lost.lease
    assert again.attempt == lost.attempt == 1
    world.report(session, Completed(lost.lease, b"", ""))
    assert world.status(task) == Status.RUNNING


def test_lease_above_the_last_one_read_is_on_its_way() -> None:
    """EN-53: only its TTL counts."""
    world, session, task = running(slots=2)
    first = world.lease(session).lease
    second = world.add(spec())
    world.beat(session, first, last=first)
    assert world.status(second) == Status.RUNNING
    assert world.lease_of(second).lease == first + 1
    assert world.status(task) == Status.RUNNING


def test_old_workers_beats_lose_nothing() -> None:
    """EN-53: before version 4 a beat names only what it likes to."""
    world = World()
    session = world.join(2, protocol=3)
    first, second = world.add(spec(), spec())
    lease = next(iter(world.out[session]))
    world.beat(session, lease, last=0, number=0)
    assert world.status(second) == Status.RUNNING
    assert session not in world.receipts
    world.advance(20 * SECOND)
    world.beat(session, lease, last=0, number=0)
    world.advance(15 * SECOND)
    assert world.lease_of(first).attempt == 1
    assert world.lease_of(second).attempt == 2


def test_lease_that_could_not_be_handed_over_is_offered_again() -> None:
    """EN-54: an effect for a session that was gone comes back."""
    world, session, task = running()
    lease = world.lease(session).lease
    other = world.join()
    world.step(Unsent(session, (lease, 12345)), WorkerLost(session, False))
    assert world.lease(other).task_id == task
    assert world.lease(other).attempt == 1
    world.step(Unsent(session, (lease,)), Unsent(777, (1,)))
    assert world.lease(other).attempt == 1


def test_lease_that_ended_before_it_left_frees_its_slot() -> None:
    """EN-54: its worker never had it, so nobody waits for its word."""
    world, session, task = running()
    lease = world.lease(session).lease
    world.cancel(task)
    behind = world.add(spec())
    assert world.status(behind) == Status.READY
    world.step(Unsent(session, (lease,)))
    assert world.lease_of(behind).attempt == 1


def test_beats_and_reports_of_unknown_sessions_are_ignored() -> None:
    """EN-47: a message may come from a session that the engine has dropped."""
    world = World()
    world.step(HeartbeatsRead(5, [1]), SlotsSet(5, 3), WorkerLost(5, True))
    assert not world.taken[-1].step.effects


# --- progress ------------------------------------------------------------------------------------


@pytest.mark.regression("R33")
def test_last_progress_reaches_the_next_attempt() -> None:
    """EN-49: shown while it runs, written with the end of the attempt, handed to the next one."""
    world, session, task = running()
    lease = world.lease(session).lease
    for percent in (10, 20):
        world.beat(session, lease, progress=((lease, Progress(b"%d" % percent, percent / 100)),))
    assert not world.taken[-1].step.mutations
    assert world.view(task).progress == Progress(b"20", 0.2)
    world.beat(session, lease, progress=((999, Progress()),))
    world.fail(session)
    assert world.ledger.changes[task].progress == Progress(b"20", 0.2)
    world.crash()
    session = world.join()
    world.advance(2 * SECOND)
    assert world.lease(session).progress == Progress(b"20", 0.2)


def test_progress_and_failure_in_one_step_are_both_kept() -> None:
    """EN-49: the last word before the failure is not lost."""
    world, session, task = running()
    lease = world.lease(session).lease
    world.step(
        HeartbeatsRead(session, [lease], ((lease, Progress(b"last")),), 1, lease),
        AttemptsReported(session, [Failed(lease, "x")], 1),
    )
    assert world.ledger.changes[task].progress == Progress(b"last")


# --- cancel and stuck slots ----------------------------------------------------------------------


def test_cancelled_task_ends_at_once_and_its_worker_is_told() -> None:
    """EN-48: the task does not wait for its handler."""
    world, session, task = running()
    lease = world.lease(session).lease
    assert world.cancel(task) == effects.Done(True)
    assert world.status(task) == Status.CANCELLED
    assert [aborted for aborted, _ in world.aborts[session]] == [lease]
    assert world.ledger.changes[task].history[-1].outcome == Outcome.CANCELLED_BY_CLIENT


@pytest.mark.parametrize("how", ["report", "beat", "result"])
def test_slot_of_an_aborted_handler_is_taken_until_it_really_ended(how: str) -> None:
    """EN-48: the worker says so, by a word on the lease or by not naming it any more."""
    world, session, task = running()
    lease = world.lease(session).lease
    world.cancel(task)
    waiting = world.add(spec())
    assert world.status(waiting) == Status.READY
    assert world.snapshot().pools[0].stuck == 1
    assert world.snapshot().pools[0].busy == 1
    world.beat(session, lease)
    assert world.status(waiting) == Status.READY, "it still runs: the beat names it"
    world.beat(session, last=lease - 1)
    assert world.status(waiting) == Status.READY, "this beat was sent before the lease was read"
    if how == "report":
        world.report(session, CancelledByWorker(lease))
    elif how == "beat":
        world.beat(session)
    else:
        world.report(session, Completed(lease, b"", ""))
    assert world.status(waiting) == Status.RUNNING
    assert world.snapshot().pools[0].stuck == 0
    assert total(world, Total.STALE_REPORTS) == (how == "result")


def test_old_workers_slot_is_free_at_once() -> None:
    """EN-48: version 3 cannot say when its handler ended."""
    world = World()
    session = world.join(protocol=3)
    task = world.add(spec())
    world.cancel(task)
    waiting = world.add(spec())
    assert world.status(waiting) == Status.RUNNING
    assert world.aborts[session]


def test_timed_out_handler_keeps_its_slot() -> None:
    """EN-48: however an attempt is ended from outside, its handler may run on."""
    world, session, task = running(timeout=SECOND)
    world.advance(10 * SECOND)
    assert world.status(task) == Status.READY
    assert world.snapshot().pools[0].stuck == 1
    world.beat(session)
    assert world.lease_of(task).attempt == 2


# --- sessions ------------------------------------------------------------------------------------


def test_registration_for_an_unknown_pool_is_refused() -> None:
    """EN-60: a refusal, as a value."""
    world = World()
    session = world.join(pool="nowhere")
    answer = world.joined[session]
    assert isinstance(answer, Refusal)
    assert answer.reason == ErrorReason.POOL_UNKNOWN


@pytest.mark.parametrize(
    ("pool", "server", "granted"),
    [
        (PoolSettings("default"), 10_000, 50),
        (PoolSettings("default", max_slots_per_worker=7), 10_000, 7),
        (PoolSettings("default", max=5), 10_000, 5),
        (PoolSettings("default", max=5, max_slots_per_worker=7), 3, 3),
    ],
)
def test_granted_slots_are_the_least_of_all_bounds(
    pool: PoolSettings, server: int, granted: int
) -> None:
    """EN-60: what the worker asks, the server, the pool per worker, the pool in all."""
    world = World(pool, max_slots_per_worker=server)
    session = world.join(slots=50)
    answer = world.joined[session]
    assert isinstance(answer, effects.Joined)
    assert answer.slots == granted
    assert answer.lease_ttl == TTL


def test_slots_granted_in_a_pool_never_exceed_its_max() -> None:
    """EN-60: who comes last gets what is left, and more when it asks again."""
    world = World(PoolSettings("default", max=5))
    first, second = world.join(slots=4), world.join(slots=4)
    answer = world.joined[second]
    assert isinstance(answer, effects.Joined)
    assert answer.slots == 1
    world.add(*(spec() for _ in range(10)))
    assert world.snapshot().running == 5
    world.lose(first, clean=True)
    world.step(SlotsSet(second, 4))
    assert len(world.out[second]) == 4


def test_drained_worker_gets_nothing_more() -> None:
    """EN-65: what it has it may finish."""
    world, session, task = running(slots=2)
    world.step(SlotsSet(session, 0))
    waiting = world.add(spec())
    assert world.status(waiting) == Status.READY
    world.complete(session)
    assert world.status(task) == Status.SUCCEEDED
    assert world.status(waiting) == Status.READY
    world.step(SlotsSet(session, 1))
    assert world.status(waiting) == Status.RUNNING


@pytest.mark.parametrize(("protocol", "clean"), [(4, True), (3, False), (3, True)])
def test_session_that_can_not_come_back_fails_its_leases(protocol: int, clean: bool) -> None:
    """EN-61: closed in order, or of an old worker: retryable at once."""
    world = World()
    session = world.join(protocol=protocol)
    task = world.add(spec())
    world.lose(session, clean)
    assert world.status(task) == Status.RETRYING
    assert world.detail(task).attempts[-1].outcome == Outcome.WORKER_LOST
    assert not world.engine._state.sessions
    world.lose(session, clean)


def test_broken_session_has_no_capacity_but_keeps_its_leases_for_a_ttl() -> None:
    """EN-62: counted from when the server saw the break."""
    world, session, task = running(slots=2)
    world.advance(20 * SECOND)
    world.lose(session)
    waiting = world.add(spec())
    assert world.status(waiting) == Status.READY
    assert world.snapshot().workers_connected == 0
    assert world.snapshot().pools[0].capacity == 0
    world.advance(TTL - 1)
    assert world.status(task) == Status.RUNNING
    world.advance(1)
    assert world.status(task) == Status.RETRYING
    assert not world.engine._state.sessions
    assert not world.aborts


@pytest.mark.parametrize("clean", [True, False])
def test_session_that_ends_before_its_lease_went_out(clean: bool) -> None:
    """EN-62: what the engine does not know to be out yet is kept, or given back unused."""
    world = World()
    world.releases = False
    session = world.join()
    task = world.add(spec())
    number = world.taken[-1].step.number
    world.lose(session, clean)
    assert world.status(task) == (Status.READY if clean else Status.RUNNING)
    world.release(number)
    world.advance(TTL)
    world.advance(SECOND)
    assert world.view(task).attempt == 1
    assert world.status(task) == Status.READY


def test_idle_session_that_breaks_is_forgotten() -> None:
    """EN-62: without leases there is nothing to come back to."""
    world = World()
    session = world.join()
    world.lose(session)
    assert not world.engine._state.sessions
    assert not world.engine._state.tokens


@pytest.mark.regression("R4")
def test_worker_of_the_same_name_is_somebody_else() -> None:
    """EN-62: killed and started again at once, a worker waits out the old one's lease."""
    world, session, task = running()
    world.lose(session)
    newcomer = world.join()
    assert not world.out.get(newcomer)
    world.advance(TTL)
    world.advance(SECOND)
    assert world.lease(newcomer).task_id == task
    assert world.lease(newcomer).attempt == 2


# --- resume --------------------------------------------------------------------------------------


@pytest.mark.parametrize("named", [(0, 1, 2), (1,), ()])
@pytest.mark.parametrize("seen", [True, False])
def test_resume_adopts_what_both_sides_know(named: tuple[int, ...], seen: bool) -> None:
    """EN-63: named and held goes on; held but not named is offered again within its attempt."""
    world = World()
    tasks = world.add(spec(), spec(), spec())
    old = world.join(slots=3)
    leases = list(world.out[old])
    world.advance(20 * SECOND)
    if seen:
        world.lose(old)
    mine = tuple(leases[i] for i in named)
    new = world.resume(old, *mine, 99, slots=3)
    answer = world.joined[new]
    assert isinstance(answer, effects.Joined)
    assert answer.adopted == mine
    assert world.dropped == ([] if seen else [old])
    assert [lease.attempt for lease in world.out[new].values()] == [1, 1, 1]
    again = [lease for lease in world.out[new] if lease not in mine]
    assert all(lease > leases[-1] for lease in again)
    assert len(again) == 3 - len(mine)
    world.advance(TTL - 1)
    assert [world.status(task) for task in tasks] == [Status.RUNNING] * 3
    world.advance(1)
    assert [world.status(task) for task in tasks] == [Status.RETRYING] * 3
    assert not world.engine._state.sessions.keys() - {new}


def test_resumed_session_goes_on_with_its_report_numbers() -> None:
    """EN-63: the worker is told which of its messages was read last."""
    world, old, _ = running(slots=2)
    world.add(spec())
    first, second = world.out[old]
    world.report(old, Completed(first, b"", ""), number=41)
    world.lose(old)
    new = world.resume(old, first, second, slots=2)
    answer = world.joined[new]
    assert isinstance(answer, effects.Joined)
    assert answer.reports_seen == 41
    assert answer.adopted == (second,)
    world.report(new, Completed(second, b"", ""), number=42)
    assert world.snapshot().totals.succeeded == 2


def test_result_finished_during_the_gap_is_delivered_once() -> None:
    """EN-63: its lease is adopted, so its report counts."""
    world, old, task = running()
    lease = world.lease(old).lease
    world.lose(old)
    world.advance(10 * SECOND)
    new = world.resume(old, lease)
    world.report(new, Completed(lease, b"", ""), number=1)
    assert world.status(task) == Status.SUCCEEDED
    assert total(world, Total.STALE_REPORTS) == 0


def test_cancel_during_the_gap_is_found_at_resume() -> None:
    """EN-63: named, but not held any more: not adopted, and its slot is taken until it stops."""
    world, old, task = running()
    lease = world.lease(old).lease
    other = world.add(spec())
    world.lose(old)
    world.step()
    new = world.resume(old, lease)
    answer = world.joined[new]
    assert isinstance(answer, effects.Joined)
    assert answer.adopted == (lease,)
    world.lose(new)
    world.cancel(task)
    assert not world.aborts
    assert world.status(other) == Status.READY


@pytest.mark.parametrize("losses", [1, 2, 5])
def test_answer_to_a_resume_that_is_lost_costs_nothing(losses: int) -> None:
    """A worker whose streams break under Registered comes back with the token that it has."""
    world, session, task = running()
    lease = world.lease(session).lease
    token = Resume(b"token-%d" % session, (lease,))
    for _ in range(losses + 1):
        world.lose(session)
        session = world.join(resume=token)
        answer = world.joined[session]
        assert isinstance(answer, effects.Joined)
        assert (answer.adopted, answer.token) == ((lease,), token.token)
    world.report(session, Completed(lease, b"", ""))
    assert world.status(task) == Status.SUCCEEDED
    assert world.view(task).attempt == 1


@pytest.mark.parametrize("when", ["before", "during"])
def test_handler_that_was_aborted_keeps_its_slot_over_a_resume(when: str) -> None:
    """EN-48: a new stream does not make a handler stop that ignores its abort."""
    world, old, task = running(slots=2)
    kept = world.add(spec())
    lease, other = world.out[old]
    if when == "before":
        world.cancel(task)
        world.lose(old)
    else:
        world.lose(old)
        world.cancel(task)
    new = world.resume(old, lease, other, slots=2)
    answer = world.joined[new]
    assert isinstance(answer, effects.Joined)
    assert answer.adopted == (other,)
    waiting = world.add(spec())
    assert world.status(waiting) == Status.READY
    assert world.snapshot().pools[0].stuck == 1
    world.report(new, CancelledByWorker(lease))
    assert world.status(waiting) == Status.RUNNING
    assert world.status(kept) == Status.RUNNING


@pytest.mark.parametrize("wrong", ["token", "credential", "pool", "protocol"])
def test_token_that_does_not_fit_adopts_nothing(wrong: str) -> None:
    """EN-64: forged, of somebody else, of another pool or of an old worker: no error, no lease."""
    world = World(PoolSettings("default"), PoolSettings("other"))
    old = world.join()
    task = world.add(spec())
    lease = world.lease(old).lease
    token = b"forged" if wrong == "token" else b"token-%d" % old
    new = world.join(
        pool="other" if wrong == "pool" else "default",
        credential="thief" if wrong == "credential" else "worker",
        protocol=3 if wrong == "protocol" else 4,
        resume=Resume(token, (lease,)),
    )
    answer = world.joined[new]
    assert isinstance(answer, effects.Joined)
    assert answer.adopted == ()
    assert answer.token == (b"" if wrong == "protocol" else b"token-%d" % new)
    assert not world.dropped
    assert world.engine._state.tasks[task].session == old


def test_token_of_another_leader_adopts_nothing() -> None:
    """EN-64: a token is worth nothing after a failover; the attempt counts as used."""
    world, old, task = running()
    lease = world.lease(old).lease
    world.crash()
    new = world.resume(old, lease)
    answer = world.joined[new]
    assert isinstance(answer, effects.Joined)
    assert answer.adopted == ()
    assert world.status(task) == Status.RETRYING


def test_resume_before_the_release_of_a_lease() -> None:
    """EN-63: the clocks of an adopted lease start when its step is out, under its new session."""
    world = World()
    world.releases = False
    old = world.join()
    task = world.add(spec())
    number = world.taken[-1].step.number
    new = world.resume(old, world.lease(old).lease)
    world.release(number)
    world.advance(TTL - 1)
    assert world.status(task) == Status.RUNNING
    world.complete(new)
    assert world.status(task) == Status.SUCCEEDED


def test_resume_for_fewer_slots_than_leases() -> None:
    """EN-63: what runs goes on; nothing new comes until it is below the grant."""
    world = World()
    world.add(*(spec() for _ in range(4)))
    old = world.join(slots=3)
    leases = tuple(world.out[old])
    new = world.resume(old, *leases, slots=1)
    assert len(world.out[new]) == 3
    world.complete(new, *leases[:2])
    assert len(world.out[new]) == 1
    world.complete(new)
    assert len(world.out[new]) == 1


def test_cancel_and_report_in_one_step() -> None:
    """EN-06: events count in the order in which they came."""
    world, session, task = running()
    lease = world.lease(session).lease
    call = world.call()
    world.step(AttemptsReported(session, [Completed(lease, b"", "")], 1), Cancel(call, task))
    assert world.status(task) == Status.SUCCEEDED
    assert world.replies[call] == effects.Done(False)
    world, session, task = running()
    lease = world.lease(session).lease
    world.step(
        Cancel(world.call(), task), AttemptsReported(session, [Completed(lease, b"", "")], 1)
    )
    assert world.status(task) == Status.CANCELLED
    assert world.ledger.outputs == {}


def test_slots_given_back_go_to_whoever_asked_for_more() -> None:
    """EN-66: a worker that joined a full pool takes over when the ones before it leave."""
    world = World(PoolSettings("default", max=3))
    first, second, _ = world.join(slots=2), world.join(slots=3), world.join(slots=3)
    granted = [worker.slots for worker in world.ask(ListWorkers(world.call()))]
    assert granted == [2, 1, 0]
    for _ in range(4):
        world.add(spec())
    world.lose(first, clean=True)
    granted = [worker.slots for worker in world.ask(ListWorkers(world.call()))]
    assert granted == [3, 0]
    world.step(SlotsSet(second, 1))
    granted = [worker.slots for worker in world.ask(ListWorkers(world.call()))]
    assert granted == [1, 2]
    assert sum(worker.slots for worker in world.ask(ListWorkers(world.call()))) == 3
