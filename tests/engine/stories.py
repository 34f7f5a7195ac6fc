"""The main stories of the engine, to be kept as golden traces in `traces/`.

``python -m tests.engine.stories`` writes the traces anew: after a change of behaviour that was
meant, so that the difference can be read before it is committed.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from cronoq_server.engine.events import CancelledByWorker, Completed, Watch
from cronoq_server.engine.model import (
    SECOND,
    EdgeCondition,
    MissPolicy,
    Overflow,
    PoolSettings,
    Progress,
    RetryPolicy,
)
from tests.engine.harness import World, after, spec
from tests.engine.rendering import render

TRACES = Path(__file__).parent / "traces"


def submit_run_succeed() -> World:
    """A task is submitted, handed out, reported on, and its caller is told."""
    world = World()
    world.step(Watch(world.call()))
    task = world.add(spec("mail", key="order-7", payload=b"hello"))
    world.wait(task)
    session = world.join(slots=2)
    lease = world.lease(session).lease
    world.advance(10 * SECOND)
    world.beat(session, lease, progress=((lease, Progress(b"half", 0.5)),))
    world.report(session, Completed(lease, b"sent", "text/plain"), number=1)
    world.submit(spec("mail", key="order-7", payload=b"hello"))
    return world


def fail_retry_dead_letter() -> World:
    """A task fails, waits out its backoffs, fails for good, and takes its child with it."""
    world = World()
    session = world.join()
    task = world.add(spec(retry=RetryPolicy(max_attempts=2, initial_backoff=SECOND)))
    world.add(spec(dependencies=after(task)))
    world.add(spec("alarm", dependencies=after(task, on=EdgeCondition.ON_FAILURE)))
    world.fail(session, message="no route to host")
    world.advance(SECOND)
    world.fail(session, message="no route to host")
    return world


def batch_with_dependencies() -> World:
    """A batch whose members depend on each other, in an order of its own."""
    world = World()
    world.add(
        spec("reduce", key="sum", dependencies=after("left", "right")),
        spec("map", key="left"),
        spec("map", key="right"),
    )
    session = world.join(slots=2)
    world.complete(session)
    world.complete(session)
    world.submit(spec(key="x", dependencies=after("y")), spec(key="y", dependencies=after("x")))
    return world


def worker_goes_and_comes_back() -> World:
    """A stream breaks; the worker resumes; what never arrived is offered again."""
    world = World()
    world.add(spec(), spec(), spec())
    session = world.join(slots=3)
    first, second, third = world.out[session]
    world.report(session, Completed(first, b"1", "text/plain"), number=1)
    world.advance(5 * SECOND)
    world.lose(session)
    world.advance(5 * SECOND)
    session = world.resume(session, first, second, slots=3)
    world.report(session, Completed(second, b"2", "text/plain"), number=2)
    world.complete(session)
    assert third not in world.out[session]
    return world


def worker_is_gone() -> World:
    """A worker vanishes; its lease runs out; another one takes the next attempt."""
    world = World(PoolSettings("default", lease_ttl=5 * SECOND))
    world.add(spec())
    session = world.join()
    world.advance(2 * SECOND)
    world.lose(session)
    other = world.join()
    world.advance(5 * SECOND)
    world.advance(SECOND)
    world.complete(other)
    return world


def refusals_and_lost_leases() -> World:
    """An attempt is refused, lost on its way, and run at last, all under one number."""
    world = World()
    world.add(spec())
    first = world.join()
    world.nack(first)
    second = world.join()
    world.beat(second, last=world.lease(second).lease)
    world.complete(second, max(world.leases))
    return world


def cancel_while_running() -> World:
    """A running task is cancelled; its slot is taken until its handler has ended."""
    world = World()
    session = world.join()
    task = world.add(spec(timeout=60 * SECOND))
    lease = world.lease(session).lease
    world.cancel(task)
    world.add(spec("next"))
    world.beat(session, lease)
    world.report(session, CancelledByWorker(lease), number=1)
    return world


def full_queue() -> World:
    """Callers are parked, let in by order of arrival, refused at their deadline, pushed out."""
    world = World(
        PoolSettings("default", max_pending=1),
        PoolSettings("shed", max_pending=1, overflow=Overflow.SHED_LOWEST),
    )
    world.add(spec())
    patient = world.submission(spec("second"), patience=60 * SECOND)
    hasty = world.submission(spec("third"), patience=SECOND)
    world.step(patient, hasty)
    world.advance(SECOND)
    world.join()
    world.add(spec(pool="shed", priority=4))
    world.add(spec(pool="shed", priority=2))
    world.submit(spec(pool="shed", priority=2))
    return world


def times() -> World:
    """Delay, expiry, a fixed start that is kept and one that is missed."""
    world = World()
    world.add(spec("delayed", delay=2 * SECOND))
    world.add(spec("expires", expires_in=SECOND))
    world.add(spec("missed", start_in=SECOND, on_miss=MissPolicy.SKIP))
    world.add(spec("kept", start_in=4 * SECOND))
    world.advance(3 * SECOND)
    session = world.join(slots=2)
    world.complete(session)
    world.advance(SECOND)
    return world


def failover() -> World:
    """A leader dies with work in every state; the next one goes on from what was committed."""
    world = World(PoolSettings("default", await_unknown_dependencies=60 * SECOND))
    session = world.join(slots=3)
    last = world.add(spec("last", retry=RetryPolicy(max_attempts=1)))
    world.add(spec("running"))
    world.add(spec("retrying", retry=RetryPolicy(initial_backoff=30 * SECOND)))
    world.fail(session, list(world.out[session])[2])
    world.add(spec("blocked", dependencies=after(last)))
    world.add(spec("awaits", dependencies=after("late")))
    world.add(spec("delayed", delay=60 * SECOND))
    world.lose(session, clean=False)
    world.add(spec("ready", key="ready"))
    world.crash(gap=10 * SECOND)
    world.add(spec("late", key="late"))
    world.join(slots=10)
    return world


STORIES: dict[str, Callable[[], World]] = {
    story.__name__: story
    for story in (
        submit_run_succeed,
        fail_retry_dead_letter,
        batch_with_dependencies,
        worker_goes_and_comes_back,
        worker_is_gone,
        refusals_and_lost_leases,
        cancel_while_running,
        full_queue,
        times,
        failover,
    )
}


def trace(story: Callable[[], World]) -> str:
    """A story's trace, under its own first words."""
    return f"{story.__doc__}\n\n{render(story().taken)}"


def main() -> None:
    """Writes all traces."""
    for name, story in STORIES.items():
        (TRACES / f"{name}.txt").write_text(trace(story), encoding="utf-8")


if __name__ == "__main__":
    main()
