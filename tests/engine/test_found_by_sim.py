"""Faults that the simulator found, each as the shortest way to see it."""

from __future__ import annotations

import pytest

from cronoq_server.engine.effects import Admitted
from cronoq_server.engine.events import (
    Cancel,
    DispatchRested,
    DispatchStopped,
    Event,
    Redrive,
)
from cronoq_server.engine.model import (
    SECOND,
    ErrorReason,
    PoolSettings,
    Refusal,
    ResourceSettings,
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
