"""What a full queue does with newcomers: makes room by its policy, or says that there is none.

Bounds count pending tasks, per pool and over all pools. Victims are chosen for a whole batch
before the first one is pushed out, so that a batch that can't get in costs nobody his place.
"""

from __future__ import annotations

from collections.abc import Iterator

from cronoq_server.engine.draft import Draft
from cronoq_server.engine.ending import finish
from cronoq_server.engine.judging import Newcomer
from cronoq_server.engine.lifecycle import Cause
from cronoq_server.engine.model import (
    PENDING,
    ErrorReason,
    Overflow,
    Priority,
    Refusal,
    Status,
)
from cronoq_server.engine.readiness import line_up
from cronoq_server.engine.state import Pool, State, Task


def queue_full(pool: Pool) -> Refusal:
    """Why a newcomer can't get in."""
    settings = pool.settings
    shed = settings.overflow in (Overflow.SHED_LOWEST, Overflow.SHED_OLDEST)
    reason = ErrorReason.SHED_NONE if shed else ErrorReason.QUEUE_FULL
    return Refusal(
        reason,
        f"pool {settings.name!r} has no room for more pending tasks (max_pending "
        f"{settings.max_pending}, or max_pending_total)",
    )


def make_room(draft: Draft, newcomers: list[Newcomer]) -> Pool | None:
    """Makes room as the pools' policies say; returns the first pool that stays full."""
    state = draft.state
    wanted: dict[str, list[int]] = {}
    for newcomer in newcomers:
        if not newcomer.doom:
            wanted.setdefault(newcomer.spec.pool, []).append(newcomer.spec.priority)
    total = sum(len(priorities) for priorities in wanted.values())
    over = state.pending + total - state.settings.max_pending_total
    victims: list[Task] = []
    for name, priorities in wanted.items():
        pool = state.pools[name]
        lacking = pool.pending + len(priorities) - pool.settings.max_pending
        lacking = max(lacking, min(over, len(priorities)))
        if lacking <= 0:
            continue
        found = _victims(draft, pool, max(priorities), lacking)
        if len(found) < lacking:
            return pool
        victims += found
        over -= lacking
    for victim in victims:
        # An earlier victim's end may have skipped this one, which makes the same room.
        if victim.status in PENDING:
            finish(draft, victim, Cause.SHED, "pushed out of a full queue")
    return None


def _victims(draft: Draft, pool: Pool, lowest: int, count: int) -> list[Task]:
    """The tasks that the pool's policy would push out for newcomers down to class `lowest`."""
    found: list[Task] = []
    if pool.settings.overflow == Overflow.SHED_LOWEST:
        for priority in range(Priority.LOW, lowest, -1):
            for task in _newest_first(draft.state, pool, priority):
                found.append(task)
                if len(found) == count:
                    return found
    elif pool.settings.overflow == Overflow.SHED_OLDEST:
        line_up(draft)
        for task in _longest_waiting_first(draft.state, pool):
            found.append(task)
            if len(found) == count:
                return found
    return found


def _newest_first(state: State, pool: Pool, priority: int) -> Iterator[Task]:
    """Pending tasks of one class, newest first."""
    for task_id in pool.by_class[priority].walk(0, newest_first=True):
        task = state.tasks.get(task_id)
        if task is not None and task.status in PENDING:
            yield task


def _longest_waiting_first(state: State, pool: Pool) -> Iterator[Task]:
    """Pending tasks of class low: ready ones by their wait, then the others by age."""
    ready = [
        task
        for task_id in pool.by_class[Priority.LOW].walk(0, newest_first=False)
        if (task := state.tasks.get(task_id)) is not None and task.status == Status.READY
    ]
    ready.sort(key=lambda task: (task.since, task.id))
    yield from ready
    for task_id in pool.by_class[Priority.LOW].walk(0, newest_first=False):
        task = state.tasks.get(task_id)
        if task is not None and task.status in PENDING and task.status != Status.READY:
            yield task
