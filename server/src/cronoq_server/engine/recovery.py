"""How stored rows become live state: used-up attempts, missed starts, satisfied parents.

Tasks keep their ids, their order and their attempt counts. One that was running when the leader
before was lost has used that attempt: it is retried after a backoff, or dead-lettered. A parent
that nobody knows any more ended before the retention window: its edges hold. What recovery
changes is part of its step's mutations, and committed before anything is served.
"""

from __future__ import annotations

from collections.abc import Iterable

from cronoq_server.engine.admission import arm_instants, derive_instants, drop_past
from cronoq_server.engine.draft import Draft
from cronoq_server.engine.ending import (
    ahead_of,
    edge_holds,
    finish,
    impossible,
    queue_behind,
)
from cronoq_server.engine.lifecycle import Cause
from cronoq_server.engine.model import Outcome, PastAttempt, Status
from cronoq_server.engine.mutations import RecoveredChunk, StatusChanged, StoredTask
from cronoq_server.engine.policies import backoff, effective_retry, remaining
from cronoq_server.engine.readiness import became_ready, settle
from cronoq_server.engine.starts import book_again
from cronoq_server.engine.state import HISTORY_MAX, Finished, State, Task, TimerKind


def restore(draft: Draft, chunks: Iterable[RecoveredChunk]) -> None:
    """Rebuilds the tables from what a store gave back, and decides where each task stands."""
    state = draft.state
    live: list[tuple[Task, StoredTask]] = []
    finished: list[StoredTask] = []
    for chunk in chunks:
        live += [(_live_task(state, stored), stored) for stored in chunk.live]
        finished += chunk.parents
        finished += chunk.finished
    for stored in sorted(finished, key=_ended_at):
        _remember(draft, stored)
    dooms: dict[int, str] = {}
    for task, stored in live:
        if task.spec.dependencies:
            doom = _tie(draft, task, stored)
            if doom is not None:
                dooms[task.id] = doom
    # Whoever waits for a parent stands there before the first parent ends.
    for task, stored in live:
        if not _has_started(stored):
            _place(draft, task, stored, task.id in dooms)
    for task, stored in live:
        if stored.change is not None and _has_started(stored):
            _go_on(draft, task, stored.change)
    for task, _ in live:
        if task.id in dooms and task.status == Status.BLOCKED:
            finish(draft, task, Cause.PARENT_IMPOSSIBLE, dooms[task.id])


def _has_started(stored: StoredTask) -> bool:
    """Whether a live task has an attempt behind it, since it was put back if it was."""
    return stored.change is not None and stored.change.status != Status.READY


def _ended_at(stored: StoredTask) -> tuple[int, int]:
    assert stored.change is not None
    return stored.change.at, stored.task_id


def _live_task(state: State, stored: StoredTask) -> Task:
    """A task with everything that its rows say; its status is decided later."""
    spec, change = stored.spec, stored.change
    state.keep_orphan(spec)
    retry = state.pools[spec.pool].retry
    task = Task(
        id=stored.task_id,
        priority=spec.priority,
        since=0,
        demand=state.demand(spec),
        spec=spec,
        created_at=stored.created_at,
        attempts_max=effective_retry(spec.retry, retry).max_attempts,
    )
    derive_instants(task)
    if change is not None:
        task.attempt = change.attempt
        task.attempts_max = change.attempts_max
        task.started_at = change.started_at
        task.message = change.message
        task.progress = change.progress
        task.history = change.history
    state.adopt(task)
    return task


def _remember(draft: Draft, stored: StoredTask) -> None:
    """Keeps an ended task as a slim entry for as long as it still answers."""
    state, change = draft.state, stored.change
    if change is None or stored.task_id in state.finished:
        return
    spec = stored.spec
    kept_from = draft.now.mono - max(0, draft.now.wall - change.at)
    state.finished[stored.task_id] = Finished(
        stored.task_id,
        spec.key,
        spec.pool,
        change.status,
        change.attempt,
        change.at,
        change.message,
        change.has_output,
        kept_from,
    )
    if spec.key and state.keys.get(spec.key) not in state.tasks:
        state.keys[spec.key] = stored.task_id
    state.retention.append((kept_from, stored.task_id))


def _tie(draft: Draft, task: Task, stored: StoredTask) -> str | None:
    """Finds the parents again; returns why the task is doomed, if it is.

    Edges of a task that has started hold for good. Those of one that was put back were judged
    then: it waits for parents that live, and for nothing else.
    """
    state, change = draft.state, stored.change
    parents: dict[int, None] = {}
    doom: str | None = None
    for edge in task.spec.dependencies:
        target, condition = edge.target, edge.condition
        parent = state.keys.get(target) if isinstance(target, str) else target
        if parent is None:
            if change is None and _still_awaits(draft, task):
                state.await_key(str(target), task, condition)
                task.unmet += 1
            continue
        parents[parent] = None
        ended = state.finished.get(parent)
        if parent in state.tasks and not _has_started(stored):
            state.children.setdefault(parent, []).append((task, condition))
            task.unmet += 1
        elif change is None and ended is not None and not edge_holds(condition, ended.status):
            doom = doom or impossible(parent, condition, ended.status)
    state.set_parents(task, tuple(parents))
    if change is None and not task.unmet and doom is None:
        ahead = ahead_of(state, task)
        if ahead:
            queue_behind(state, task, ahead)
            task.unmet = 1
    return doom


def _still_awaits(draft: Draft, task: Task) -> bool:
    """Whether a key that nobody has submitted may still come for this task."""
    longest = draft.state.pools[task.spec.pool].settings.await_unknown_dependencies
    if not longest:
        return False
    left = remaining(task.created_at + longest, draft.now.wall, longest)
    if not task.awaiting:
        draft.state.mono_timers.arm(draft.now.mono + left, TimerKind.AWAIT, task)
    return True


def _place(draft: Draft, task: Task, stored: StoredTask, doomed: bool) -> None:
    """Decides where a recovered task waits that has not started, or was put back."""
    state = draft.state
    if stored.change is not None:
        drop_past(task, stored.change.at)
    arm_instants(state, task)
    book_again(state, task)
    if task.unmet or doomed:
        draft.transition(task, Cause.WAITS_FOR_PARENTS)
    else:
        _settle_since(draft, task, stored)


def _go_on(draft: Draft, task: Task, change: StatusChanged) -> None:
    """Decides what becomes of a task that was running or between attempts."""
    now = draft.now
    task.due_at = task.miss_at = None
    draft.transition(task, Cause.BECAME_READY)
    draft.transition(task, Cause.STARTED)
    if change.status != Status.RETRYING:
        _leader_lost(draft, task)
        return
    assert change.retry_at is not None
    longest = max(0, change.retry_at - change.at)
    left = remaining(change.retry_at, now.wall, longest)
    _retry(draft, task, left)
    if not left:
        task.retry_at = None
        became_ready(draft, task, now.mono - max(0, now.wall - change.retry_at))


def _settle_since(draft: Draft, task: Task, stored: StoredTask) -> None:
    """Ready or scheduled; a task that waited before goes on with the wait it had."""
    now = draft.now
    ready_at = task.created_at if stored.change is None else stored.change.at
    if task.due_at is not None:
        ready_at = max(ready_at, task.due_at)
    for parent in draft.state.parents.get(task.id, ()):
        ended = draft.state.finished.get(parent)
        if ended is not None:
            ready_at = max(ready_at, ended.finished_at)
    if ready_at > now.wall:
        settle(draft, task)
    else:
        became_ready(draft, task, now.mono - (now.wall - ready_at))


def _leader_lost(draft: Draft, task: Task) -> None:
    """The attempt that ran under the leader before counts as used."""
    state, now = draft.state, draft.now
    message = "the server that led this attempt was lost"
    past = PastAttempt(
        task.attempt, "", task.started_at or 0, now.wall, Outcome.LEADER_LOST, message
    )
    task.history = (*task.history[-(HISTORY_MAX - 1) :], past)
    if task.attempt >= task.attempts_max:
        finish(draft, task, Cause.ATTEMPTS_USED_UP, message)
        return
    policy = effective_retry(task.spec.retry, state.pools[task.spec.pool].retry)
    number = task.attempt - task.attempts_max + policy.max_attempts
    task.message = message
    _retry(draft, task, backoff(policy, number, state.chance))
    draft.changed[task.id] = task


def _retry(draft: Draft, task: Task, wait: int) -> None:
    """The next attempt may start after `wait`."""
    task.retry_at = draft.now.wall + wait
    task.backoff_until = draft.now.mono + wait
    draft.transition(task, Cause.WILL_RETRY)
    draft.state.mono_timers.arm(task.backoff_until, TimerKind.BACKOFF, task)
