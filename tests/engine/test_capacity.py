"""Pools paused and resumed, resources resized and shown: at run time, durably."""

from __future__ import annotations

from typing import Any

import pytest

from cronoq_server.engine import effects
from cronoq_server.engine.events import (
    ListResources,
    Reconfigured,
    ResizeResource,
    SetPoolPaused,
)
from cronoq_server.engine.model import (
    SECOND,
    EngineSettings,
    ErrorReason,
    PoolSettings,
    Refusal,
    ResourceSettings,
    Status,
)
from tests.engine.harness import World, spec

GPU = ResourceSettings("gpu", permits=1)
MAIL = ResourceSettings("mail", kind="token_bucket", rate=1.0, burst=2)
CUSTOMER = ResourceSettings("customer", permits=1, per_value=True)
NANO = 10**9


def resize(world: World, name: str, **figures: int) -> Any:
    """Resizes a resource; returns the answer."""
    return world.ask(ResizeResource(world.call(), name, **figures))


def shown(world: World) -> dict[str, effects.ResourceView]:
    """All resources, by name."""
    return {view.name: view for view in world.ask(ListResources(world.call()))}


def refused(answer: Any, reason: ErrorReason) -> None:
    """The answer is a refusal for this reason."""
    assert isinstance(answer, Refusal), answer
    assert answer.reason == reason


def test_paused_pool_starts_nothing_and_keeps_what_runs() -> None:
    """EN-140: submits are taken, places kept, and a failover forgets nothing of it."""
    world = World(PoolSettings("default"), PoolSettings("other"))
    session = world.join(slots=2)
    running = world.add(spec())
    pause = SetPoolPaused(world.call(), "default", paused=True)
    assert world.ask(pause) == effects.Done(changed=True)
    waiting = world.add(spec())
    assert world.status(running) == Status.RUNNING
    assert world.view(waiting).waiting_for[0] == "pool default is paused"
    assert world.snapshot().pools[0].paused
    world.ask(SetPoolPaused(world.call(), "default", paused=True))
    assert not world.taken[-1].step.mutations
    world.complete(session)
    world.crash()
    session = world.join(slots=2)
    assert not world.out.get(session)
    assert not world.snapshot().pools[1].paused
    world.ask(SetPoolPaused(world.call(), "default", paused=False))
    assert world.lease(session).task_id == waiting
    world.crash()
    assert not world.snapshot().pools[0].paused


def test_pause_of_an_unknown_pool_is_refused() -> None:
    """EN-140: and a pool that the configuration has no more is not paused by the store."""
    world = World(PoolSettings("default"), PoolSettings("old"))
    answer = world.ask(SetPoolPaused(world.call(), "none", paused=True))
    refused(answer, ErrorReason.POOL_UNKNOWN)
    world.ask(SetPoolPaused(world.call(), "old", paused=True))
    world.crash(pools=(PoolSettings("default"),))
    assert not world.snapshot().pools[0].paused


def test_larger_semaphore_lets_more_run_and_a_smaller_one_takes_nothing_away() -> None:
    """EN-141: permits that are out stay out; nothing new starts until enough are back."""
    world = World(resources=(GPU,))
    session = world.join(slots=5)
    world.add(*(spec(resources=(("gpu", 1),)) for _ in range(5)))
    assert len(world.out[session]) == 1
    view = resize(world, "gpu", permits=3)
    assert isinstance(view, effects.ResourceView)
    assert (view.permits, view.overridden) == (3, True)
    assert len(world.out[session]) == 3
    world.checks = False  # what is out may be more than there is
    resize(world, "gpu", permits=1)
    assert shown(world)["gpu"].held == 3
    world.complete(session, *list(world.out[session])[:2])
    assert len(world.out[session]) == 1
    world.checks = True
    world.complete(session)
    assert len(world.out[session]) == 1
    assert shown(world)["gpu"].waiting == 1


def test_resize_must_fit_the_kind_of_resource() -> None:
    """EN-141: a semaphore has permits, a bucket rate and burst."""
    world = World(resources=(GPU, MAIL))
    refused(resize(world, "none", permits=1), ErrorReason.RESOURCE_NOT_FOUND)
    refused(resize(world, "gpu", rate=1), ErrorReason.INVALID_FIELD)
    refused(resize(world, "gpu", burst=1), ErrorReason.INVALID_FIELD)
    refused(resize(world, "mail", permits=1), ErrorReason.INVALID_FIELD)
    view = resize(world, "mail", rate=5 * NANO, burst=9)
    assert (view.rate, view.burst) == (5 * NANO, 9)


def test_bucket_refills_with_time() -> None:
    """EN-141: a task starts when its tokens are there, and the engine wakes for it."""
    world = World(resources=(MAIL,))
    session = world.join(slots=9)
    world.add(*(spec(resources=(("mail", 1),)) for _ in range(4)))
    assert len(world.out[session]) == 2
    assert shown(world)["mail"].tokens == 0
    world.advance(SECOND)
    assert len(world.out[session]) == 3
    world.advance(SECOND)
    assert len(world.out[session]) == 4


@pytest.mark.parametrize("changed", [True, False])
def test_resize_holds_until_the_configured_size_itself_changes(changed: bool) -> None:
    """EN-142: over any number of failovers."""
    world = World(resources=(GPU, MAIL))
    resize(world, "gpu", permits=4)
    resize(world, "mail", rate=3 * NANO)
    world.crash()
    world.crash()
    assert shown(world)["gpu"].permits == 4
    assert (shown(world)["mail"].rate, shown(world)["mail"].burst) == (3 * NANO, 2)
    permits = 2 if changed else 1
    world.crash(resources=(ResourceSettings("gpu", permits=permits),))
    view = shown(world)["gpu"]
    assert (view.permits, view.overridden) == ((2, False) if changed else (4, True))
    assert "mail" not in shown(world)


@pytest.mark.parametrize("how", ["failover", "reload"])
def test_resize_that_has_ended_does_not_come_back_with_the_old_size(how: str) -> None:
    """EN-142: the configured size was changed and changed back; nobody has resized it since."""
    world = World(resources=(GPU,))
    resize(world, "gpu", permits=4)
    if how == "reload":
        reconfigure(world, ResourceSettings("gpu", permits=2))
        reconfigure(world, GPU)
    else:
        world.crash(resources=(ResourceSettings("gpu", permits=2),))
    for _ in range(2):
        world.crash(resources=(GPU,))
        assert (shown(world)["gpu"].permits, shown(world)["gpu"].overridden) == (1, False)
    resize(world, "gpu", permits=3)
    world.crash(resources=(GPU,))
    assert (shown(world)["gpu"].permits, shown(world)["gpu"].overridden) == (3, True)


def reconfigure(world: World, *resources: ResourceSettings, **limits: Any) -> None:
    """The configuration is read again, with these resources and limits."""
    world.step(Reconfigured(EngineSettings((PoolSettings("default"),), resources, **limits)))


def test_resources_follow_a_configuration_that_is_read_again() -> None:
    """Sizes change at once and end an override; new ones are there; old ones let tasks finish."""
    world = World(resources=(GPU, MAIL))
    session = world.join(slots=9)
    first, second = (world.add(spec(resources=(("gpu", 1),))) for _ in range(2))
    resize(world, "mail", burst=7)
    reconfigure(world, ResourceSettings("gpu", permits=2), MAIL, CUSTOMER)
    assert world.status(second) == Status.RUNNING
    assert (shown(world)["gpu"].permits, shown(world)["mail"].burst) == (2, 7)
    assert world.status(world.add(spec(resources=(("customer:a", 1),)))) == Status.RUNNING
    reconfigure(world, ResourceSettings("mail", kind="token_bucket", rate=1.0, burst=3))
    assert (shown(world)["mail"].burst, shown(world)["mail"].overridden) == (3, False)
    refused(world.submit(spec(resources=(("gpu", 1),))), ErrorReason.RESOURCE_UNKNOWN)
    world.complete(session)
    assert world.status(first) == Status.SUCCEEDED
    reconfigure(world, GPU)
    assert world.status(world.add(spec(resources=(("gpu", 1),)))) == Status.RUNNING


def test_kind_of_a_resource_stays_until_the_next_leadership() -> None:
    """A semaphore with permits out can't become a bucket under way."""
    world = World(resources=(GPU,))
    reconfigure(world, ResourceSettings("gpu", kind="token_bucket", rate=1.0, burst=3))
    assert shown(world)["gpu"].kind == "semaphore"


def test_limits_follow_a_configuration_that_is_read_again() -> None:
    """The next submit meets the new bound."""
    world = World()
    reconfigure(world, max_pending_total=1)
    world.add(spec())
    answer = world.submit(spec(), spec())
    refused(answer, ErrorReason.BATCH_TOO_LARGE)


def test_counters_per_value_are_shown_while_they_are_used() -> None:
    """EN-143: made on first use, one permit each, dropped when idle."""
    world = World(resources=(CUSTOMER,))
    session = world.join(slots=9)
    names = ("customer:a", "customer:a", "customer:b")
    world.add(*(spec(resources=((name, 1),)) for name in names))
    assert len(world.out[session]) == 2
    views = shown(world)
    assert views["customer"].per_value
    assert (views["customer:a"].held, views["customer:a"].waiting) == (1, 1)
    assert views["customer:b"].held == 1
    world.complete(session)
    world.complete(session)
    assert shown(world)["customer:a"].held == 0 if "customer:a" in shown(world) else True


def test_bucket_per_value_has_tokens_of_its_own() -> None:
    """EN-143: shown with what is left of them."""
    rules = ResourceSettings("tenant", kind="token_bucket", rate=1.0, burst=3, per_value=True)
    world = World(resources=(rules,))
    world.join()
    world.add(spec(resources=(("tenant:x", 2),)))
    view = shown(world)["tenant:x"]
    assert (view.kind, view.tokens, view.burst) == ("token_bucket", NANO, 3)
