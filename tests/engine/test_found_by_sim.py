"""Faults that the simulator found, each as the shortest way to see it."""

from __future__ import annotations

import pytest

from cronoq_server.engine.cron import Calendar, parse
from cronoq_server.engine.effects import Admitted
from cronoq_server.engine.events import (
    Cancel,
    DispatchRested,
    DispatchStopped,
    Event,
    PutSchedule,
    Redrive,
)
from cronoq_server.engine.model import (
    SECOND,
    ErrorReason,
    Overlap,
    PoolSettings,
    Refusal,
    ResourceSettings,
    ScheduleSpec,
    Status,
)
from tests.engine.harness import World, after, spec


@pytest.mark.parametrize("event", [DispatchRested(True), DispatchStopped()])
def test_nothing_wakes_an_engine_that_may_start_nothing(event: Event) -> None:
    """While dispatch rests, a refilled bucket is no reason to step again and again."""
    world = World(resources=(ResourceSettings("api", "token_bucket", rate=1.0, burst=1),))
    world.join(2)
    world.add(spec(resources=(("api", 1),)))
    world.add(spec(resources=(("api", 1),)))
    world.step(event)
    world.leap(5 * SECOND)

    assert world.wake_at.mono > world.mono


def test_lease_that_never_left_uses_up_no_attempt() -> None:
    """A session that closes before its leases were released gives them back unused."""
    world = World()
    world.releases = False
    session = world.join()
    task = world.add(spec())
    assert world.view(task).attempt == 1

    world.lose(session, clean=True)
    assert world.status(task) == Status.READY

    world.join()
    assert (world.status(task), world.view(task).attempt) == (Status.RUNNING, 1)


def test_redrive_that_overtakes_the_end_is_told_that_there_was_none() -> None:
    """The store does not know an end of this very step: the task is there, and has not ended."""
    world = World()
    task = world.add(spec())
    redrive = Redrive(world.call(), task)

    world.step(Cancel(world.call(), task), redrive)

    answer = world.replies[redrive.call]
    assert isinstance(answer, Refusal)
    assert answer.reason == ErrorReason.NOT_TERMINAL


def test_parked_call_finds_how_its_parent_ended() -> None:
    """What a call names is not forgotten while it waits for room: the parent failed, after all."""
    world = World(PoolSettings("default", max_pending=2), PoolSettings("side"), finished_max=1)
    first, _ = world.add(spec(), spec())
    parent = world.add(spec(pool="side"))
    batch = (spec(dependencies=after(parent)), spec())
    submit = world.submission(*batch, patience=60 * SECOND)
    world.step(submit)
    world.cancel(parent)
    world.cancel(world.add(spec(pool="side")))
    assert submit.call not in world.replies

    world.cancel(first)

    answer = world.replies[submit.call]
    assert isinstance(answer, Admitted)
    assert world.status(answer.ids[0]) == Status.SKIPPED


def test_parked_call_finds_who_had_its_key() -> None:
    """A key that came and went while the call waited for room still names its first task."""
    world = World(PoolSettings("default", max_pending=2), PoolSettings("side"), finished_max=1)
    first, _ = world.add(spec(), spec())
    submit = world.submission(spec(key="k"), spec(), patience=60 * SECOND)
    world.step(submit)
    holder = world.add(spec(pool="side", key="k"))
    world.cancel(holder)
    world.cancel(world.add(spec(pool="side")))
    assert submit.call not in world.replies

    world.cancel(first)

    answer = world.replies[submit.call]
    assert isinstance(answer, Admitted)
    assert (answer.ids[0], answer.duplicates) == (holder, (0,))


def queue_of(count: int) -> tuple[World, list[int]]:
    """A schedule whose occurrences queue, with so many of them alive."""
    world = World(PoolSettings("default", lease_ttl=3600 * SECOND))
    calendar = parse("* * * * *")
    assert isinstance(calendar, Calendar)
    asked = ScheduleSpec("s", "* * * * *", spec(), overlap=Overlap.QUEUE)
    world.step(PutSchedule(world.call(), asked, calendar))
    world.advance(count * 60 * SECOND)
    return world, list(world.ledger.rows)


@pytest.mark.parametrize("fails_over", [False, True])
def test_occurrence_cancelled_in_its_place_frees_nobody_behind_it(fails_over: bool) -> None:
    """EN-122: those behind a cancelled occurrence wait for whoever it waited for."""
    world, (first, second, third) = queue_of(3)
    world.cancel(second)
    if fails_over:
        world.crash()
    session = world.join(slots=3)
    assert world.lease(session).task_id == first
    assert world.status(third) == Status.BLOCKED

    world.complete(session)

    assert world.lease(session).task_id == third


def test_occurrence_queues_behind_one_that_lives_not_behind_one_that_left() -> None:
    """EN-122: the last one was cancelled, an earlier one still runs: the next waits for that."""
    world, (first, second) = queue_of(2)
    session = world.join(slots=3)
    world.cancel(second)
    world.advance(60 * SECOND)
    third = max(world.ledger.rows)
    assert (world.lease(session).task_id, world.status(third)) == (first, Status.BLOCKED)

    world.complete(session)

    assert world.lease(session).task_id == third
