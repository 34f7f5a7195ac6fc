"""When a task may run: parents, delays, fixed starts, backoffs, and what is due at a step.

Wall instants (delay, start, expiry) sit in one timer heap, mono instants (backoff, awaiting,
parking, waiting) in another, so that a clock that jumps makes instants due and nothing else.

Tasks that become ready in a step are put in line at its end, in order of the instant at which
they became ready: what joins a line must never be older than what joined before.
"""

from __future__ import annotations

from itertools import pairwise

from cronoq_server.engine.draft import Draft
from cronoq_server.engine.effects import Results
from cronoq_server.engine.ending import finish
from cronoq_server.engine.lifecycle import Cause
from cronoq_server.engine.model import Now, Status
from cronoq_server.engine.records import Task, TimerKind
from cronoq_server.engine.starts import hold, start_missed, watch_start
from cronoq_server.engine.state import State

_BECAME_READY = Cause.BECAME_READY


def settle(draft: Draft, task: Task) -> None:
    """Decides where a task without open edges stands: waiting for its time, or ready."""
    due = task.due_at
    if due is not None and due > draft.now.wall:
        draft.transition(task, Cause.WAITS_FOR_TIME)
        draft.state.wall_timers.arm(due, TimerKind.DUE, task)
        if task.miss_at is not None:
            watch_start(draft, task)
    else:
        became_ready(draft, task, draft.now.mono)


def became_ready(draft: Draft, task: Task, since: int) -> None:
    """Nothing but a slot is missing from now on; `since` is the mono instant it counts from."""
    task.since = since
    draft.state.pools[task.spec.pool].arrived += 1
    draft.transition(task, _BECAME_READY)
    draft.newly_ready.append(task)


def settle_unblocked(draft: Draft) -> None:
    """Moves on the tasks whose last edge was satisfied in this step."""
    for task in draft.unblocked:
        if task.status == Status.BLOCKED and not task.unmet:
            settle(draft, task)
    draft.unblocked.clear()


def line_up(draft: Draft) -> None:
    """Puts the step's newly ready tasks in line, oldest first."""
    ready = draft.newly_ready
    if not ready:
        return
    for before, after in pairwise(ready):
        if before.since > after.since or (before.since == after.since and before.id > after.id):
            ready.sort(key=_line_order)
            break
    mono = draft.now.mono
    to_mono = mono - draft.now.wall
    pools, placement = draft.state.pools, draft.state.placement
    push = placement.push
    for task in ready:
        if task.status != Status.READY:
            continue
        spec = task.spec
        expected = spec.duration_hint
        if expected is None:
            pool = pools[spec.pool]
            expected = pool.means.get(spec.kind, pool.settings.default_duration)
        task.expected = expected
        deadline = task.deadline_at
        latest = None if deadline is None else deadline - expected + to_mono
        if task.refusals:
            placement.push_back(task, mono, latest, expected, task.avoids(mono))
        else:
            push(task, mono, latest, expected)
    ready.clear()


def clock_moved(state: State, now: Now) -> None:
    """The wall clock jumped: waiting tasks with deadlines get their urgency anew."""
    to_mono = now.mono - now.wall
    for task in list(state.tasks.values()):
        deadline = task.deadline_at
        if deadline is not None and task.status == Status.READY:
            latest = deadline - task.expected + to_mono
            state.placement.set_latest(task, now.mono, latest, task.expected)


def _line_order(task: Task) -> tuple[int, int]:
    return task.since, task.id


def wake(draft: Draft) -> None:
    """Handles everything that is due by now, but for leases and timeouts."""
    now, state = draft.now, draft.state
    for at, kind, task in state.wall_timers.due(now.wall):
        if isinstance(task, str):
            draft.due_schedules.append(task)
        elif kind == TimerKind.DUE:
            # The due instant counts, not the step's; but nobody joins a line in its past.
            since = now.mono - min(now.wall - at, now.mono - state.last_mono)
            became_ready(draft, task, since)
        elif kind == TimerKind.MISS:
            start_missed(draft, task)
        elif kind == TimerKind.HOLD:
            hold(draft, task)
        else:
            finish(draft, task, Cause.MISSED, "expired: it had not started in time")
    for at, kind, owner in state.mono_timers.due(now.mono):
        if isinstance(owner, int):
            if kind == TimerKind.PARK:
                draft.overdue.append(owner)
            else:
                _wait_over(draft, owner)
        elif kind == TimerKind.BACKOFF:
            owner.retry_at = None
            became_ready(draft, owner, max(at, state.last_mono))
        elif kind == TimerKind.AWAIT:
            missing = next(
                (e.target for e in owner.spec.dependencies if e.target in state.awaited), "?"
            )
            message = f"no task with key {missing!r} was submitted in time"
            finish(draft, owner, Cause.PARENT_IMPOSSIBLE, message)
        elif owner.status == Status.READY:
            state.placement.forgive(owner, owner.avoids(now.mono))


def _wait_over(draft: Draft, call: int) -> None:
    """A wait has lasted as long as it may."""
    forget_wait(draft, call)
    told = draft.results.pop(call, [])
    draft.effects.append(Results(call, told, last=True, timed_out=True))


def forget_wait(draft: Draft, call: int) -> None:
    """Takes a waiting call off its tasks."""
    state = draft.state
    wait = state.waits.pop(call)
    for task_id in wait.tasks:
        calls = state.waiters.get(task_id)
        if calls is not None and call in calls:
            calls.remove(call)
            if not calls:
                del state.waiters[task_id]
