"""How stored rows become live state: used-up attempts, missed starts, satisfied parents.

Tasks keep their ids, their order and their attempt counts. One that was running when the leader
before was lost has used that attempt: it is retried after a backoff, or dead-lettered. A parent
that nobody knows any more ended before the retention window: its edges hold. What recovery
changes is part of its step's mutations, and committed before anything is served.
"""

from __future__ import annotations

from collections.abc import Iterable

from cronoq_server.engine.admission import arm_instants, derive_instants, drop_past
from cronoq_server.engine.capacity import restore_capacity
from cronoq_server.engine.draft import Draft
from cronoq_server.engine.ending import (
    ahead_of,
    edge_holds,
    finish,
    impossible,
    queue_behind,
)
from cronoq_server.engine.lifecycle import Cause
from cronoq_server.engine.model import Instant, Outcome, PastAttempt, Status
from cronoq_server.engine.mutations import RecoveredChunk, StatusChanged, StoredTask
from cronoq_server.engine.policies import backoff, effective_retry, remaining
from cronoq_server.engine.readiness import became_ready, settle
from cronoq_server.engine.records import HISTORY_MAX, Finished, Task, TimerKind
from cronoq_server.engine.schedules import restore_schedules
from cronoq_server.engine.starts import book_again
from cronoq_server.engine.state import State


class Restoration:
    """What a store gives back, taken over piece by piece; then it is decided where each stands.

    Rows are not kept: while a million of them pass by, what is built from them is there once.
    """

    __slots__ = ("_changes", "_ended", "_live", "_put_back", "_settings", "_state")

    def __init__(self, state: State) -> None:
        self._state = state
        self._live: list[Task] = []
        self._changes: dict[int, StatusChanged] = {}
        self._ended: list[StoredTask] = []
        self._put_back: dict[int, int] = {}
        self._settings: list[RecoveredChunk] = []

    def take(self, chunk: RecoveredChunk) -> None:
        """Builds the tables from one piece."""
        state, changes = self._state, self._changes
        for stored in chunk.live:
            self._live.append(_live_task(state, stored))
            if stored.change is not None:
                changes[stored.task_id] = stored.change
                if stored.change.put_back:
                    self._was_put_back(stored.task_id, stored.change.put_back)
        for ended in (chunk.parents, chunk.finished):
            for stored in ended:
                if stored.change is not None and stored.change.put_back:
                    self._was_put_back(stored.task_id, stored.change.put_back)
        self._ended += chunk.parents
        self._ended += chunk.finished
        if chunk.schedules or chunk.paused_pools or chunk.resized:
            self._settings.append(chunk)

    def _was_put_back(self, task_id: int, number: int) -> None:
        self._put_back[task_id] = number
        self._state.ids.pass_over(number)

    def settle(self, draft: Draft) -> None:
        """Decides where everything stands that was taken over."""
        restore_capacity(draft, self._settings)
        restore_schedules(draft, self._settings)
        for stored in sorted(self._ended, key=_ended_at):
            _remember(draft, stored)
        live, last = self._live, self._changes.get
        dooms: dict[int, str] = {}
        for task in live:
            if task.spec.dependencies:
                doom = _tie(draft, task, last(task.id), self._put_back)
                if doom is not None:
                    dooms[task.id] = doom
        # Whoever waits for a parent stands there before the first parent ends.
        for task in live:
            change = last(task.id)
            if not _has_started(change):
                _place(draft, task, change, task.id in dooms, self._put_back)
        for task in live:
            change = last(task.id)
            if change is not None and _has_started(change):
                _go_on(draft, task, change)
        for task_id, doom in dooms.items():
            doomed = draft.state.tasks.get(task_id)
            if doomed is not None and doomed.status == Status.BLOCKED:
                finish(draft, doomed, Cause.PARENT_IMPOSSIBLE, doom)


def remember_more(draft: Draft, tasks: Iterable[StoredTask]) -> None:
    """Keeps ended tasks that were read, newest first, after what is newer had been taken over.

    What has happened since counts more than what was read.
    """
    state = draft.state
    for stored in tasks:
        task_id = stored.task_id
        if task_id in state.tasks or task_id in state.deleted or task_id in state.finished:
            continue
        ended = _slim(draft, stored)
        if ended is None:
            continue
        state.finished[task_id] = ended
        state.retention.appendleft((ended.kept_from, task_id))
        if ended.key:
            state.keys.setdefault(ended.key, task_id)


def _has_started(change: StatusChanged | None) -> bool:
    """Whether a live task has an attempt behind it, since it was put back if it was."""
    return change is not None and change.status != Status.READY


def _ended_at(stored: StoredTask) -> tuple[int, int]:
    assert stored.change is not None
    return stored.change.at, stored.task_id


def _live_task(state: State, stored: StoredTask) -> Task:
    """A task with everything that its rows say; its status is decided later."""
    spec, change = stored.spec, stored.change
    pool = state.pools.get(spec.pool)
    if pool is None or spec.resources:
        state.keep_orphan(spec)
        pool = state.pools[spec.pool]
    retry = pool.retry if spec.retry is None else effective_retry(spec.retry, pool.retry)
    task = Task(
        id=stored.task_id,
        priority=spec.priority,
        since=0,
        demand=state.demand(spec),
        spec=spec,
        created_at=stored.created_at,
        attempts_max=retry.max_attempts,
    )
    derive_instants(task)
    if change is not None:
        task.attempt = change.attempt
        task.attempts_max = change.attempts_max
        task.started_at = change.started_at
        task.message = change.message
        task.progress = change.progress
        task.history = change.history
        task.put_back = change.put_back
    state.adopt(task)
    return task


def _remember(draft: Draft, stored: StoredTask) -> None:
    """Keeps an ended task as a slim entry for as long as it still answers."""
    state = draft.state
    ended = None if stored.task_id in state.finished else _slim(draft, stored)
    if ended is None:
        return
    state.finished[stored.task_id] = ended
    if ended.key and state.keys.get(ended.key) not in state.tasks:
        state.keys[ended.key] = stored.task_id
    state.retention.append((ended.kept_from, stored.task_id))


def _slim(draft: Draft, stored: StoredTask) -> Finished | None:
    """What is kept of an ended task; None of one that has not ended."""
    spec, change = stored.spec, stored.change
    if change is None:
        return None
    return Finished(
        stored.task_id,
        spec.key,
        spec.pool,
        change.status,
        change.attempt,
        change.at,
        change.message,
        change.has_output,
        draft.now.mono - max(0, draft.now.wall - change.at),
        spec.tenant,
    )


def _tie(
    draft: Draft, task: Task, change: StatusChanged | None, put_back: dict[int, int]
) -> str | None:
    """Finds the parents again; returns why the task is doomed, if it is.

    Edges of a task that has started hold for good. Those of one that was put back were judged
    then: it waits for parents that live, and for nothing else. Whoever waited when a parent was
    put back had seen that one's end: the edge holds, whatever becomes of the parent now.

    Args:
        draft: The step.
        task: Whose edges.
        change: Its last change.
        put_back: What was drawn when tasks were put back, by task.
    """
    state = draft.state
    came = task.put_back or task.id
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
        if parent > came and _came_too_late(draft, parent, task):
            continue
        parents[parent] = None
        if came < put_back.get(parent, 0):
            continue
        ended = state.finished.get(parent)
        if parent in state.tasks and not _has_started(change):
            state.children.setdefault(parent, []).append((task, condition))
            task.unmet += 1
        elif change is None and ended is not None and not edge_holds(condition, ended.status):
            doom = doom or impossible(parent, condition, ended.status)
    state.set_parents(task, tuple(parents))
    if change is None and not task.unmet and doom is None:
        ahead = _ahead(state, task, put_back)
        if ahead:
            queue_behind(state, task, ahead)
            task.unmet = 1
    return doom


def _came_too_late(draft: Draft, other: int, task: Task) -> bool:
    """Whether a task with a parent's key came when that parent was forgotten, and the key free.

    What was put back awaits no key. Otherwise, where keys are awaited, it may be the one that was
    waited for.
    """
    if task.put_back:
        return True
    live = draft.state.tasks.get(other)
    awaits = draft.state.pools[task.spec.pool].settings.await_unknown_dependencies
    return live is not None and not awaits and live.created_at > task.created_at


def _ahead(state: State, task: Task, put_back: dict[int, int]) -> int:
    """The first occurrence that a chained one waits for; those put back since it came don't count.

    Returns:
        Its id; 0 = none.
    """
    if ahead_of(state, task):
        for other in state.occurrences[task.schedule]:
            if other >= task.id:
                break
            if put_back.get(other, 0) <= task.id:
                return other
    return 0


def _still_awaits(draft: Draft, task: Task) -> bool:
    """Whether a key that nobody has submitted may still come for this task."""
    longest = draft.state.pools[task.spec.pool].settings.await_unknown_dependencies
    if not longest:
        return False
    left = remaining(task.created_at + longest, draft.now.wall, longest)
    if not task.awaiting:
        draft.state.mono_timers.arm(draft.now.mono + left, TimerKind.AWAIT, task)
    return True


def _place(
    draft: Draft,
    task: Task,
    change: StatusChanged | None,
    doomed: bool,
    put_back: dict[int, int],
) -> None:
    """Decides where a recovered task waits that has not started, or was put back."""
    state = draft.state
    if change is not None:
        drop_past(task, change.at)
    if task.expires_at is not None or task.miss_at is not None:
        arm_instants(state, task)
        book_again(state, task)
    if task.unmet or doomed:
        draft.transition(task, Cause.WAITS_FOR_PARENTS)
    else:
        seen: list[int] = []
        if task.spec.dependencies:
            came = task.put_back or task.id
            seen = [p for p in state.parents.get(task.id, ()) if put_back.get(p, 0) <= came]
        _settle_since(draft, task, task.created_at if change is None else change.at, seen)


def _go_on(draft: Draft, task: Task, change: StatusChanged) -> None:
    """Decides what becomes of a task that was running or between attempts."""
    now = draft.now
    task.due_at = task.miss_at = None
    draft.transition(task, Cause.BECAME_READY)
    draft.transition(task, Cause.STARTED)
    if change.status != Status.RETRYING:
        _leader_lost(draft, task)
        return
    retry_at = change.at if change.retry_at is None else change.retry_at
    left = remaining(retry_at, now.wall, max(0, retry_at - change.at))
    _retry(draft, task, left)
    if not left:
        task.retry_at = None
        became_ready(draft, task, now.mono - max(0, now.wall - retry_at))


def _settle_since(draft: Draft, task: Task, ready_at: Instant, parents: list[int]) -> None:
    """Ready or scheduled; a task that waited before goes on with the wait it had."""
    now = draft.now
    if task.due_at is not None:
        ready_at = max(ready_at, task.due_at)
    for parent in parents:
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
