"""The lifecycle table: every row is reached by engine events, and nothing else is possible."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from cronoq_server.engine import draft
from cronoq_server.engine.events import CancelledByWorker, WorkerJoined
from cronoq_server.engine.lifecycle import TRANSITIONS, Cause, InvariantError, next_status
from cronoq_server.engine.model import (
    SECOND,
    MissPolicy,
    Overflow,
    PoolSettings,
    RetryPolicy,
    Status,
)
from tests.engine.harness import World, after, spec

B, S, R, RUN, RET = (
    Status.BLOCKED,
    Status.SCHEDULED,
    Status.READY,
    Status.RUNNING,
    Status.RETRYING,
)
Row = tuple[Status | None, Cause]


def _blocked() -> tuple[World, int, int]:
    world = World()
    parent = world.add(spec())
    return world, parent, world.add(spec(dependencies=after(parent)))


def _running(**fields: Any) -> tuple[World, int, int]:
    world = World()
    session = world.join()
    return world, session, world.add(spec(**fields))


def _retrying() -> tuple[World, int]:
    world, session, task = _running()
    world.fail(session)
    return world, task


def _full(policy: Overflow = Overflow.SHED_LOWEST) -> World:
    return World(PoolSettings("default", max_pending=1, overflow=policy))


def _fails_at_its_start(world: World, **fields: Any) -> None:
    world.add(spec(start_in=SECOND, on_miss=MissPolicy.FAIL, **fields))
    world.advance(5 * SECOND)


def _admitted_blocked() -> None:
    _blocked()


def _admitted_scheduled() -> None:
    World().add(spec(delay=SECOND))


def _admitted_ready() -> None:
    World().add(spec())


def _blocked_then_scheduled() -> None:
    world, parent, _ = _blocked()
    world.add(spec(dependencies=after(parent), delay=SECOND))
    world.complete(world.join())


def _blocked_then_ready() -> None:
    world, _, _ = _blocked()
    world.complete(world.join())


def _blocked_then_skipped() -> None:
    world, parent, _ = _blocked()
    world.cancel(parent)


def _scheduled_then_ready() -> None:
    world = World()
    world.add(spec(delay=SECOND))
    world.advance(SECOND)


def _retrying_then_ready() -> None:
    world, _ = _retrying()
    world.advance(SECOND)


def _started() -> None:
    _running()


def _given_back() -> None:
    world, session, _ = _running()
    world.nack(session)


def _completed() -> None:
    world, session, _ = _running()
    world.complete(session)


def _will_retry() -> None:
    _retrying()


def _used_up() -> None:
    world, session, _ = _running(retry=RetryPolicy(max_attempts=1))
    world.fail(session)


def _failed() -> None:
    world, session, _ = _running()
    world.fail(session, permanent=True)


def _cancelled_by_worker() -> None:
    world, session, _ = _running()
    world.report(session, CancelledByWorker(world.lease(session).lease))


def _blocked_cancelled() -> None:
    world, _, child = _blocked()
    world.cancel(child)


def _scheduled_cancelled() -> None:
    world = World()
    world.cancel(world.add(spec(delay=SECOND)))


def _ready_cancelled() -> None:
    world = World()
    world.cancel(world.add(spec()))


def _retrying_cancelled() -> None:
    world, task = _retrying()
    world.cancel(task)


def _blocked_shed() -> None:
    world = World(PoolSettings("default", max_pending=2, overflow=Overflow.SHED_LOWEST))
    parent = world.add(spec(delay=SECOND, priority=1))
    world.add(spec(dependencies=after(parent)))
    world.add(spec(priority=1))


def _scheduled_shed() -> None:
    world = _full()
    world.add(spec(delay=SECOND))
    world.add(spec(priority=1))


def _ready_shed() -> None:
    world = _full(Overflow.SHED_OLDEST)
    world.add(spec(priority=4))
    world.add(spec())


def _retrying_shed() -> None:
    world = _full()
    session = world.join()
    world.add(spec())
    world.fail(session)
    world.add(spec(priority=1))


def _blocked_missed() -> None:
    world, parent, _ = _blocked()
    world.add(spec(dependencies=after(parent), expires_in=SECOND))
    world.advance(2 * SECOND)


def _scheduled_missed() -> None:
    world = World()
    world.add(spec(delay=5 * SECOND, expires_in=SECOND))
    world.advance(2 * SECOND)


def _ready_missed() -> None:
    world = World()
    world.add(spec(expires_in=SECOND))
    world.advance(2 * SECOND)


def _blocked_failed() -> None:
    world, parent, _ = _blocked()
    _fails_at_its_start(world, dependencies=after(parent))


def _scheduled_failed() -> None:
    _fails_at_its_start(World(), tolerance=0)


def _ready_failed() -> None:
    _fails_at_its_start(World())


STORIES: dict[Row, Callable[[], None]] = {
    (None, Cause.WAITS_FOR_PARENTS): _admitted_blocked,
    (None, Cause.WAITS_FOR_TIME): _admitted_scheduled,
    (None, Cause.BECAME_READY): _admitted_ready,
    (B, Cause.WAITS_FOR_TIME): _blocked_then_scheduled,
    (B, Cause.BECAME_READY): _blocked_then_ready,
    (B, Cause.PARENT_IMPOSSIBLE): _blocked_then_skipped,
    (S, Cause.BECAME_READY): _scheduled_then_ready,
    (RET, Cause.BECAME_READY): _retrying_then_ready,
    (R, Cause.STARTED): _started,
    (RUN, Cause.GIVEN_BACK): _given_back,
    (RUN, Cause.COMPLETED): _completed,
    (RUN, Cause.WILL_RETRY): _will_retry,
    (RUN, Cause.ATTEMPTS_USED_UP): _used_up,
    (RUN, Cause.FAILED_PERMANENTLY): _failed,
    (RUN, Cause.CANCELLED): _cancelled_by_worker,
    (B, Cause.CANCELLED): _blocked_cancelled,
    (S, Cause.CANCELLED): _scheduled_cancelled,
    (R, Cause.CANCELLED): _ready_cancelled,
    (RET, Cause.CANCELLED): _retrying_cancelled,
    (B, Cause.SHED): _blocked_shed,
    (S, Cause.SHED): _scheduled_shed,
    (R, Cause.SHED): _ready_shed,
    (RET, Cause.SHED): _retrying_shed,
    (B, Cause.MISSED): _blocked_missed,
    (S, Cause.MISSED): _scheduled_missed,
    (R, Cause.MISSED): _ready_missed,
    (B, Cause.FAILED_PERMANENTLY): _blocked_failed,
    (S, Cause.FAILED_PERMANENTLY): _scheduled_failed,
    (R, Cause.FAILED_PERMANENTLY): _ready_failed,
}
"""For each row of the table, events that make an engine take it."""


def _name(row: Row) -> str:
    before, cause = row
    return f"{before.name.lower() if before else 'admission'}-{cause.name.lower()}"


def test_every_row_of_the_table_has_a_story() -> None:
    """EN-09: a row that no events lead to has no place in the table."""
    assert STORIES.keys() == TRANSITIONS.keys()


@pytest.mark.parametrize("row", TRANSITIONS, ids=_name)
def test_row_is_taken_by_engine_events(row: Row, monkeypatch: pytest.MonkeyPatch) -> None:
    """EN-09: events alone bring a task from this status by this cause to that status."""
    seen: dict[Row, Status] = {}

    def watched(status: int, cause: int) -> Status:
        following = next_status(status, cause)
        seen[Status(status) if status else None, Cause(cause)] = following
        return following

    monkeypatch.setattr(draft, "next_status", watched)
    STORIES[row]()
    assert seen[row] == TRANSITIONS[row]


def test_change_outside_the_table_is_a_bug() -> None:
    """EN-07: what the table does not have raises, and the leader stops."""
    for status in Status:
        for cause in Cause:
            if (status, cause) not in TRANSITIONS:
                with pytest.raises(InvariantError):
                    next_status(status, cause)


def test_terminal_statuses_are_not_left() -> None:
    """EN-09: only a redrive leaves a terminal status, and it leaves by rows of its own."""
    left = {before for before, cause in TRANSITIONS if before and before >= Status.SUCCEEDED}
    assert not left


def test_event_of_an_unknown_type_is_a_bug() -> None:
    """EN-07: the engine does not skip what it does not know."""
    with pytest.raises(KeyError):
        World().step(WorkerJoined)  # type: ignore[arg-type]
