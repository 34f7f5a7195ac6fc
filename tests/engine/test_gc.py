"""A closed engine is freed: nothing that the collector does not track is kept by a cycle."""

from __future__ import annotations

import gc
import sys
import weakref

from cronoq_server.engine.model import SECOND, Overflow, PoolSettings, ResourceSettings
from tests.engine.harness import World, after, spec


def _busy_world(payload: bytes) -> World:
    """A world with a task in every place that an engine has."""
    world = World(
        PoolSettings("default", fair_share=True, await_unknown_dependencies=60 * SECOND),
        PoolSettings("small", max_pending=2, max=4),
        PoolSettings("shed", overflow=Overflow.SHED_LOWEST),
        resources=(ResourceSettings("gpu", permits=1),),
    )
    session = world.join(slots=4)
    for number in range(3):
        world.add(spec(payload=payload, timeout=(number + 1) * SECOND, key=f"{number}"))
    world.add(spec(payload=payload, resources=(("gpu", 1),)))
    first = next(iter(world.out[session]))
    world.fail(session, first)
    world.add(spec(payload=payload, resources=(("gpu", 1),), tenant="t"))
    world.add(spec(payload=payload, delay=SECOND, expires_in=9 * SECOND))
    world.add(spec(payload=payload, dependencies=after("1", "2")))
    world.add(spec(payload=payload, dependencies=after("unborn")))
    world.add(spec(payload=payload, deadline_in=100 * SECOND, labels=(("a", "b"),)))
    world.add(spec(payload=payload, pool="shed", priority=4))
    world.add(spec(payload=payload, pool="small", start_in=5 * SECOND))
    world.add(spec(payload=payload, pool="small"))
    world.step(world.submission(spec(payload=payload, pool="small"), patience=60 * SECOND))
    other = world.join(slots=1)
    world.nack(other)
    world.cancel("1")
    world.wait(*world.engine._state.tasks)
    broken = world.join(slots=1)
    world.add(spec(payload=payload))
    world.lose(broken)
    return world


def test_closed_engine_is_freed_with_everything_in_it() -> None:
    """EN-96: the records are not tracked, so that each must be let go by hand."""
    payload = bytes(range(256)) * 7
    before = sys.getrefcount(payload)
    world = _busy_world(payload)
    assert sys.getrefcount(payload) > before + 10
    engine = weakref.ref(world.engine)
    world.engine.close()
    del world
    gc.collect()
    assert engine() is None
    assert sys.getrefcount(payload) == before


def test_five_recoveries_leave_nothing_of_the_leaders_before() -> None:
    """EN-96: a process that leads again and again keeps one engine's worth of tasks."""
    payload = bytes(range(256)) * 5
    world = _busy_world(payload)
    world.taken.clear()
    counts = []
    for _ in range(5):
        world.crash(gap=SECOND)
        world.join(slots=4)
        world.taken.clear()
        world.out.clear()
        world.leases.clear()
        gc.collect()
        counts.append(sys.getrefcount(payload))
    assert counts[1:] == counts[1:2] * 4


def test_tasks_that_ended_are_not_kept() -> None:
    """EN-36: a finished task's payload is the store's alone."""
    payload = bytes(range(256)) * 3
    before = sys.getrefcount(payload)
    world = World(checks=False)
    session = world.join(slots=10)
    for _ in range(30):
        world.add(*(spec(payload=payload, timeout=SECOND) for _ in range(10)))
        world.complete(session)
        world.taken.clear()
        world.ledger.rows.clear()
        world.ledger.ends.clear()
        world.leases.clear()
    gc.collect()
    assert len(world.engine._state.finished) == 300
    assert sys.getrefcount(payload) == before
