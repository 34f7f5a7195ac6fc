"""What a full queue does with newcomers: makes room by its policy, or says that there is none.

Bounds count pending tasks, per pool and over all pools. Whether enough can go is known for a whole
batch before the first one is pushed out, so that a batch that can't get in costs nobody his place.
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
)
from cronoq_server.engine.readiness import line_up
from cronoq_server.engine.records import Pool, Task
from cronoq_server.engine.state import State


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


def make_room(draft: Draft, newcomers: list[Newcomer], was_parked: bool = False) -> Pool | None:
    """Makes room as the pools' policies say, in all of them or in none.

    Args:
        draft: The step.
        newcomers: Who wants to get in.
        was_parked: Whether they have stood in line for room already.

    Returns:
        The first pool that stays full. While calls wait for a pool it is full for newcomers.
    """
    state = draft.state
    wanted: dict[str, list[int]] = {}
    for newcomer in newcomers:
        if not newcomer.doom:
            wanted.setdefault(newcomer.spec.pool, []).append(newcomer.spec.priority)
    total = sum(len(priorities) for priorities in wanted.values())
    over = state.pending + total - state.settings.max_pending_total
    excess: list[tuple[Pool, int, int]] = []
    for name, priorities in wanted.items():
        pool = state.pools[name]
        if not was_parked and _has_parked(state, pool):
            return pool
        lacking = pool.pending + len(priorities) - pool.settings.max_pending
        lacking = max(lacking, min(over, len(priorities)))
        if lacking <= 0:
            continue
        if lacking > _sheddable(pool, max(priorities)):
            return pool
        excess.append((pool, max(priorities), pool.pending - lacking))
        over -= lacking
    for pool, lowest, most in excess:
        # A victim's end may skip others, in any pool, which makes the same room.
        while pool.pending > most:
            victim = _victim(draft, pool, lowest)
            finish(draft, victim, Cause.SHED, "pushed out of a full queue")
    return None


def _has_parked(state: State, pool: Pool) -> bool:
    """Whether calls wait for room in a pool."""
    parked = pool.parked
    while parked and parked[0] not in state.parked:
        parked.popleft()
    return bool(parked)


def _sheddable(pool: Pool, lowest: int) -> int:
    """How many tasks the pool's policy would push out for newcomers down to class `lowest`."""
    if pool.settings.overflow == Overflow.SHED_LOWEST:
        return sum(pool.pending_by_class[lowest + 1 :])
    if pool.settings.overflow == Overflow.SHED_OLDEST:
        return pool.pending_by_class[Priority.LOW]
    return 0


def _victim(draft: Draft, pool: Pool, lowest: int) -> Task:
    """The task that the pool's policy pushes out next; there must be one."""
    state = draft.state
    if pool.settings.overflow == Overflow.SHED_LOWEST:
        classes = range(Priority.LOW, lowest, -1)
        return next(task for p in classes for task in _pending(state, pool, p, newest_first=True))
    line_up(draft)
    longest = state.placement.longest_waiting(pool.settings.name, Priority.LOW)
    if longest is not None:
        assert isinstance(longest, Task)
        return longest
    return next(_pending(state, pool, Priority.LOW, newest_first=False))


def _pending(state: State, pool: Pool, priority: int, newest_first: bool) -> Iterator[Task]:
    """Pending tasks of one class in order of arrival."""
    for task_id in pool.by_class[priority].walk(0, newest_first):
        task = state.tasks.get(task_id)
        if task is not None and task.status in PENDING:
            yield task
