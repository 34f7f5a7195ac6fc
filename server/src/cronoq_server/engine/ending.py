"""How a task ends, and what its end means to others.

`finish` is the only way out for a live task: it leaves every index, tells those who wait, decides
its children's fate, and stays behind as a slim entry. The cascade of skipped children runs over a
list, not by recursion: chains may be as long as memory allows.
"""

from __future__ import annotations

from collections import deque

from msgspec.structs import replace

from cronoq_server.engine.draft import Draft
from cronoq_server.engine.effects import Result
from cronoq_server.engine.lifecycle import Cause
from cronoq_server.engine.model import EdgeCondition, ErrorReason, Overlap, Status
from cronoq_server.engine.mutations import OutputStored
from cronoq_server.engine.records import Finished, Task
from cronoq_server.engine.state import State

_READY = Status.READY
_RUNNING = Status.RUNNING
_SUCCEEDED = Status.SUCCEEDED
_BLOCKED = Status.BLOCKED
_FAILURES = (Status.FAILED, Status.DEAD_LETTERED)
_COMPLETED = Cause.COMPLETED


def edge_holds(condition: int, parent_status: int) -> bool:
    """Whether an edge is satisfied by a parent that ended so."""
    if condition == EdgeCondition.ON_COMPLETE:
        return True
    if condition == EdgeCondition.ON_FAILURE:
        return parent_status in _FAILURES
    return parent_status == _SUCCEEDED


def finish(
    draft: Draft,
    task: Task,
    cause: Cause,
    message: str = "",
    output: OutputStored | None = None,
) -> None:
    """Ends a live task.

    Args:
        draft: The step.
        task: A task that holds no lease any more.
        cause: Why it ends; must lead to a terminal status.
        message: For people.
        output: What it returned, if it succeeded.
    """
    first = _end_one(draft, task, cause, message, output)
    if not first:
        return
    doomed = deque(first)
    while doomed:
        child, reason = doomed.popleft()
        if child.status == _BLOCKED:
            doomed += _end_one(draft, child, Cause.PARENT_IMPOSSIBLE, reason, None)


def _end_one(
    draft: Draft, task: Task, cause: Cause, message: str, output: OutputStored | None
) -> list[tuple[Task, str]]:
    """Ends one task; returns its children that can no longer run."""
    state, now = draft.state, draft.now
    spec = task.spec
    task_id = task.id
    if task.status == _READY:
        state.placement.withdraw(task)
    elif task.held:
        state.placement.unhold(task)
    if task.booked is not None:
        state.unbook(task)
    if task.schedule:
        _end_occurrence(draft, task, cause)
    if task.status != _RUNNING:
        state.disarm(task)
    task.message = message
    task.retry_at = None
    draft.transition(task, cause)
    draft.changed[task_id] = task
    if output is not None:
        draft.outputs.append(output)
    state.retire(task)
    status = task.status
    has_output = output is not None
    state.finished[task_id] = Finished(
        task_id,
        spec.key,
        spec.pool,
        status,
        task.attempt,
        now.wall,
        message,
        has_output,
        now.mono,
        spec.tenant,
    )
    state.retention.append((now.mono, task_id))
    if task_id in state.waiters:
        _tell_waiters(draft, task, output)
    if spec.dependencies:
        _leave_parents(draft, task)
    if task_id in state.children:
        return _judge_children(draft, task)
    return []


def _end_occurrence(draft: Draft, task: Task, cause: Cause) -> None:
    """An occurrence that does not succeed breaks the chain of its schedule, if it has one."""
    schedule = draft.state.schedules.get(task.schedule)
    if schedule is None or cause == _COMPLETED or schedule.stored.chain_broken:
        return
    stored = schedule.stored
    if stored.spec.overlap == Overlap.QUEUE_ON_SUCCESS and 0 < stored.first_task <= task.id:
        schedule.stored = replace(stored, chain_broken=True)
        draft.saved[task.schedule] = schedule


def _tell_waiters(draft: Draft, task: Task, output: OutputStored | None) -> None:
    if output is None:
        result = Result(task.id, task.status, task.message)
    else:
        result = Result(task.id, task.status, task.message, output.output, output.content_type)
    for call in draft.state.waiters.pop(task.id):
        draft.tell(call, result)


def _leave_parents(draft: Draft, task: Task) -> None:
    """Takes an ended child off its parents' lists and lets them be forgotten."""
    state = draft.state
    if task.unmet:
        for edge in task.spec.dependencies:
            target = edge.target
            if isinstance(target, str):
                waiting = state.awaited.get(target)
                if waiting is not None:
                    waiting.pop(task.id, None)
                    if not waiting:
                        del state.awaited[target]
        for parent in state.parents.get(task.id, ()):
            state.child_left(parent)
    state.unpin(state.parents.pop(task.id, ()), draft.now.mono)


def _judge_children(draft: Draft, parent: Task) -> list[tuple[Task, str]]:
    """Passes a parent's end on: satisfied edges count down, impossible ones doom the child."""
    doomed: list[tuple[Task, str]] = []
    status = parent.status
    draft.state.children_gone.pop(parent.id, None)
    for child, condition in draft.state.children.pop(parent.id):
        if child.status != _BLOCKED:
            continue
        if edge_holds(condition, status):
            ahead = ahead_of(draft.state, child) if child.schedule == parent.schedule else 0
            if ahead:
                queue_behind(draft.state, child, ahead)
                continue
            child.unmet -= 1
            if not child.unmet:
                draft.unblocked.append(child)
        else:
            doomed.append((child, impossible(parent.id, condition, status)))
    return doomed


def ahead_of(state: State, task: Task) -> int:
    """An earlier occurrence of the same schedule that still lives; 0 = none, or no chain.

    One that was cancelled or missed in its place frees nobody behind it while others are ahead.
    """
    if not task.schedule or len(task.spec.dependencies) != 1:
        return 0
    first = next(iter(state.occurrences[task.schedule]))
    return first if first < task.id else 0


def queue_behind(state: State, task: Task, ahead: int) -> None:
    """Lets a chained occurrence wait for the end of another one than it was created behind."""
    state.children.setdefault(ahead, []).append((task, EdgeCondition.ON_COMPLETE))
    parents = state.parents.get(task.id, ())
    if ahead not in parents:
        state.set_parents(task, (*parents, ahead))


def impossible(parent: int, condition: int, status: int) -> str:
    """Why a child is skipped, for people."""
    return (
        f"dependency on task {parent} ({EdgeCondition(condition).name.lower()}) can no longer "
        f"hold: it ended {Status(status).name.lower()}"
    )


def refuse_unknown(draft: Draft, call: int, target: int | str) -> None:
    """Refuses a call about a task that there is not, or that the caller may not know of."""
    named = f"key {target!r}" if isinstance(target, str) else f"id {target}"
    draft.refuse(call, ErrorReason.TASK_UNKNOWN, f"no task with {named}")
