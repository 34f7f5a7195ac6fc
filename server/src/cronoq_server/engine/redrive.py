"""Putting ended tasks back, deleting them, and doing either to all that a filter lets through.

A redrive gives a fresh budget; attempt numbers go on rising. Its edges are judged again, parents
that nobody knows any more count as satisfied, a past start is dropped, skipped children stay
skipped. The task's spec comes from the store: the engine keeps none of ended tasks.
"""

from __future__ import annotations

from cronoq_server.engine.admission import (
    arm_instants,
    arrived,
    derive_instants,
    drop_past,
)
from cronoq_server.engine.draft import Draft
from cronoq_server.engine.effects import Bulked, Done
from cronoq_server.engine.ending import edge_holds, refuse_unknown
from cronoq_server.engine.events import Bulk, Delete, Found, Redrive
from cronoq_server.engine.filters import passes
from cronoq_server.engine.judging import resources_refusal
from cronoq_server.engine.lifecycle import Cause
from cronoq_server.engine.model import (
    FIRST_TERMINAL,
    BulkAction,
    ErrorReason,
    Refusal,
    Status,
    TaskRef,
)
from cronoq_server.engine.mutations import StoredTask, TaskDeleted
from cronoq_server.engine.policies import effective_retry
from cronoq_server.engine.queries import cancel_task, is_hidden, within
from cronoq_server.engine.readiness import settle
from cronoq_server.engine.records import Task
from cronoq_server.engine.starts import book_again
from cronoq_server.engine.state import State
from cronoq_server.engine.views import scan

REDRIVABLE = tuple(s for s in Status if s >= FIRST_TERMINAL and s != Status.SUCCEEDED)
"""Statuses that a redrive leaves."""


def redrive(draft: Draft, event: Redrive) -> None:
    """Puts one ended task back."""
    state = draft.state
    known = state.resolve(event.target, event.scope)
    if isinstance(known, Task):
        draft.refuse(event.call, ErrorReason.NOT_TERMINAL, f"task {known.id} has not ended")
        return
    stored = event.found.get(event.target) if event.found else None
    hidden = event.scope is not None and stored and stored.spec.pool not in event.scope
    if known is not None and stored is None:
        # It ended after the store was asked, or its end is not written yet.
        message = f"task {known.task_id} had not ended when this call came"
        draft.refuse(event.call, ErrorReason.NOT_TERMINAL, message)
        return
    if stored is None or stored.change is None or hidden or stored.task_id in state.deleted:
        refuse_unknown(draft, event.call, event.target)
        return
    if Status.SUCCEEDED in (stored.change.status, known.status if known is not None else 0):
        draft.reply(event.call, Done(False))
        return
    refusal = put_back(draft, stored, event.found)
    draft.reply(event.call, Done(True) if refusal is None else refusal)


def put_back(draft: Draft, stored: StoredTask, found: Found) -> Refusal | None:
    """Makes an ended task live again, unless its key or an edge forbids it.

    Args:
        draft: The step.
        stored: The task.
        found: What the store holds of its parents.
    """
    state, spec, change = draft.state, stored.spec, stored.change
    assert change is not None
    pool = state.pools.get(spec.pool)
    if pool is None or not pool.configured:
        return Refusal(ErrorReason.POOL_UNKNOWN, f"pool: there is no pool {spec.pool!r} any more")
    ended = state.finished.get(stored.task_id)
    if ended is not None and (ended.status, ended.attempt) != (change.status, change.attempt):
        return Refusal(
            ErrorReason.NOT_TERMINAL, f"task {stored.task_id} was put back and ended meanwhile"
        )
    lacking = resources_refusal(state, spec)
    if lacking is not None and lacking.reason == ErrorReason.RESOURCE_UNKNOWN:
        return lacking
    if spec.key and state.keys.get(spec.key, stored.task_id) in state.tasks:
        return Refusal(
            ErrorReason.KEY_IN_USE, f"key: {spec.key!r} is the key of another task that lives"
        )
    judged = _judge_edges(state, stored, found)
    if isinstance(judged, Refusal):
        return judged
    live_parents, parents = judged
    retry = effective_retry(spec.retry, pool.retry)
    task = Task(
        id=stored.task_id,
        priority=spec.priority,
        since=draft.now.mono,
        demand=state.demand(spec),
        spec=spec,
        created_at=stored.created_at,
        attempt=change.attempt,
        attempts_max=change.attempt + retry.max_attempts,
        started_at=change.started_at,
        progress=change.progress,
        history=change.history,
        put_back=state.ids.take() if state.ids.left() else state.ids.last,
    )
    derive_instants(task)
    drop_past(task, draft.now.wall)
    arm_instants(state, task)
    book_again(state, task)
    state.finished.pop(task.id, None)
    state.adopt(task)
    for parent, condition in live_parents:
        state.children.setdefault(parent, []).append((task, condition))
    task.unmet = len(live_parents)
    if spec.dependencies:
        state.set_parents(task, tuple(parents))
    if task.unmet:
        draft.transition(task, Cause.WAITS_FOR_PARENTS)
    else:
        settle(draft, task)
    draft.changed[task.id] = task
    if spec.key:
        arrived(draft, task)
    return None


def _judge_edges(
    state: State, stored: StoredTask, found: Found
) -> tuple[list[tuple[int, int]], dict[int, None]] | Refusal:
    """Looks at a task's edges again: which parents still live, which are known."""
    live: list[tuple[int, int]] = []
    parents: dict[int, None] = {}
    for edge in stored.spec.dependencies:
        target = edge.target
        known = found.get(target) if found else None
        parent = state.keys.get(target) if isinstance(target, str) else target
        if parent is None and known is not None:
            parent = known.task_id
        if parent is None or parent == stored.task_id:
            continue
        if parent in state.tasks:
            live.append((parent, edge.condition))
            parents[parent] = None
            continue
        status = _ended_status(state, parent, known)
        if not status:
            continue
        parents[parent] = None
        if not edge_holds(edge.condition, status):
            return Refusal(
                ErrorReason.DEPENDENCY_IMPOSSIBLE,
                f"dependencies: task {parent} ended {Status(status).name.lower()}, so that "
                "this task could not run",
            )
    return live, parents


def _ended_status(state: State, parent: int, known: StoredTask | None) -> int:
    """How a parent that does not live ended; 0 = nobody knows any more.

    Args:
        state: What the engine remembers, which counts more.
        parent: Its id.
        known: What the store holds under the parent's name.
    """
    ended = state.finished.get(parent)
    if ended is not None:
        return ended.status
    if known is None or known.change is None or known.task_id != parent or parent in state.deleted:
        return 0
    return known.change.status


def delete(draft: Draft, event: Delete) -> None:
    """Removes one finished task for good."""
    state = draft.state
    known = state.resolve(event.target, event.scope)
    if isinstance(known, Task):
        draft.refuse(event.call, ErrorReason.NOT_TERMINAL, f"task {known.id} has not ended")
        return
    if known is not None:
        task_id = known.task_id
        if state.pinned.get(task_id):
            message = f"a task that has not ended depends on task {task_id}"
            draft.refuse(event.call, ErrorReason.NOT_TERMINAL, message)
            return
        state.drop_finished(known)
    else:
        stored = event.found.get(event.target) if event.found else None
        hidden = event.scope is not None and stored and stored.spec.pool not in event.scope
        if stored is None or hidden or is_hidden(state, event.target):
            refuse_unknown(draft, event.call, event.target)
            return
        task_id = stored.task_id
        if task_id in state.tasks or task_id in state.deleted:
            # What the store said was true before other events of this step, or of one before.
            refuse_unknown(draft, event.call, event.target)
            return
    state.forget_deleted(task_id)
    draft.others.append(TaskDeleted(task_id))
    draft.reply(event.call, Done(True))


def bulk(draft: Draft, event: Bulk) -> None:
    """Cancels or puts back one page of what a filter lets through."""
    if event.action == BulkAction.CANCEL:
        draft.reply(event.call, _cancel_page(draft, event))
    else:
        draft.reply(event.call, _redrive_page(draft, event))


def _cancel_page(draft: Draft, event: Bulk) -> Bulked:
    wanted = within(event.filter, event.scope)
    found, following = scan(draft.state, wanted, event.after, event.limit, newest_first=False)
    if not event.dry_run:
        for task in found:
            # An earlier one's end may have skipped this one.
            if task.status < FIRST_TERMINAL:
                cancel_task(draft, task)
    return Bulked(len(found), 0 if event.dry_run else len(found), following)


def _redrive_page(draft: Draft, event: Bulk) -> Bulked:
    wanted = within(event.filter, event.scope)
    matched = changed = 0
    for stored in event.found or ():
        change = stored.change
        if change is None or change.status not in REDRIVABLE:
            continue
        if stored.task_id in draft.state.tasks or stored.task_id in draft.state.deleted:
            continue
        if not passes(stored.spec, change.status, wanted):
            continue
        matched += 1
        if not event.dry_run and put_back(draft, stored, event.parents) is None:
            changed += 1
    return Bulked(matched, changed, event.found_next)


def lookups(state: State, target: TaskRef) -> tuple[list[int], list[str]]:
    """What of the store a redrive or a deletion needs: nothing for a live task."""
    if isinstance(state.resolve(target, None), Task):
        return [], []
    return ([], [target]) if isinstance(target, str) else ([target], [])
