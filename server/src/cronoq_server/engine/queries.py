"""Questions and small changes about single tasks: get, list, wait, watch, cancel.

Reads are events like any other, so that their answers are released only when everything they show
is durable. A task that the engine does not hold is not looked for here: the answer says so, and
the outbox asks the store after the commit.
"""

from __future__ import annotations

import msgspec

from cronoq_server.engine.attempts import end_from_outside
from cronoq_server.engine.draft import Draft
from cronoq_server.engine.effects import (
    Done,
    FromStore,
    Result,
    Results,
    StatusEvent,
    Wanted,
    Watching,
)
from cronoq_server.engine.ending import finish, refuse_unknown
from cronoq_server.engine.events import (
    Cancel,
    Forget,
    Get,
    GetOutput,
    ListTasks,
    ListWorkers,
    Scope,
    SnapshotQuery,
    Unwatch,
    Wait,
    Watch,
)
from cronoq_server.engine.lifecycle import Cause
from cronoq_server.engine.model import (
    ErrorReason,
    Outcome,
    Status,
    TaskFilter,
    TaskRef,
)
from cronoq_server.engine.readiness import forget_wait
from cronoq_server.engine.records import Finished, Task, TimerKind, WaitState
from cronoq_server.engine.state import State
from cronoq_server.engine.views import (
    live_page,
    snapshot,
    task_detail,
    task_view,
    worker_view,
)


def get(draft: Draft, event: Get) -> None:
    """What is known of a task."""
    state = draft.state
    found = state.resolve(event.target, event.scope)
    if isinstance(found, Task):
        view = task_detail if event.detail else task_view
        draft.reply(event.call, view(state, found))
    elif found is None and is_hidden(state, event.target):
        refuse_unknown(draft, event.call, event.target)
    else:
        want = Wanted.DETAIL if event.detail else Wanted.VIEW
        target = event.target if found is None else found.task_id
        draft.reply(event.call, FromStore(target, want, event.scope))


def is_hidden(state: State, target: TaskRef) -> bool:
    """Whether the engine holds the task after all, so that only the scope hides it."""
    return state.resolve(target, None) is not None


def list_tasks(draft: Draft, event: ListTasks) -> None:
    """The live part of one page."""
    wanted = within(event.filter, event.scope)
    limit = min(event.limit, draft.state.settings.max_list)
    page = live_page(draft.state, wanted, event.after, limit, event.newest_first)
    draft.reply(event.call, page)


def within(wanted: TaskFilter, scope: Scope) -> TaskFilter:
    """Cuts a filter down to the pools its caller may see."""
    if scope is None:
        return wanted
    pools = [pool for pool in wanted.pools if pool in scope] if wanted.pools else sorted(scope)
    # A name that no pool can have lets nothing through, where an empty list would let all.
    return msgspec.structs.replace(wanted, pools=tuple(pools) or ("",))


def cancel(draft: Draft, event: Cancel) -> None:
    """Ends a task now, whatever it is doing."""
    state = draft.state
    found = state.resolve(event.target, event.scope)
    if isinstance(found, Task):
        cancel_task(draft, found)
        draft.reply(event.call, Done(True))
    elif found is not None:
        draft.reply(event.call, Done(found.status == Status.CANCELLED))
    elif is_hidden(state, event.target):
        refuse_unknown(draft, event.call, event.target)
    else:
        draft.reply(event.call, FromStore(event.target, Wanted.CANCELLED, event.scope))


def cancel_task(draft: Draft, task: Task) -> None:
    """Cancels a live task; a running handler is told to stop."""
    message = "cancelled by a client"
    if task.status == Status.RUNNING:
        attempt = draft.state.sessions[task.session].leases[task.lease]
        end_from_outside(draft, attempt, Outcome.CANCELLED_BY_CLIENT, message, Cause.CANCELLED)
    else:
        finish(draft, task, Cause.CANCELLED, message)


def wait(draft: Draft, event: Wait) -> None:
    """Tells the ends of tasks: at once where they are past, later where not."""
    state, call = draft.state, event.call
    pending: list[int] = []
    told: list[Result] = []
    unknown: list[TaskRef] = []
    seen: set[int] = set()
    named: tuple[TaskRef, ...] = (*event.ids, *event.keys)
    for target in dict.fromkeys(named):
        found = state.resolve(target, event.scope)
        if found is None:
            unknown.append(target)
            continue
        task_id = found.id if isinstance(found, Task) else found.task_id
        if task_id in seen:
            continue
        seen.add(task_id)
        if isinstance(found, Task):
            pending.append(task_id)
        else:
            told.append(_result_of(found))
    if told or unknown or not pending:
        last = not pending
        scope = event.scope
        draft.replies.append(Results(call, told, (), tuple(unknown), scope, last))
    if not pending:
        return
    if event.until is not None and event.until <= draft.now.mono:
        draft.replies.append(Results(call, [], last=True, timed_out=True))
        return
    state.waits[call] = WaitState(pending)
    waiters = state.waiters
    for task_id in pending:
        calls = waiters.get(task_id)
        if calls is None:
            waiters[task_id] = [call]
        else:
            calls.append(call)
    if event.until is not None:
        state.mono_timers.arm(event.until, TimerKind.WAIT, call)


def _result_of(ended: Finished) -> Result:
    return Result(ended.task_id, ended.status, ended.message, fetch=ended.has_output)


def watch(draft: Draft, event: Watch) -> None:
    """From now on transitions are published; named tasks that ended before are told at once."""
    state = draft.state
    state.watches += 1
    ended: list[StatusEvent] = []
    unknown: list[TaskRef] = []
    named: tuple[TaskRef, ...] = (*event.ids, *event.keys)
    for target in named:
        found = state.resolve(target, event.scope)
        if found is None:
            unknown.append(target)
        elif isinstance(found, Finished):
            ended.append(_event_of(found))
    draft.replies.append(Watching(event.call, tuple(ended), tuple(unknown)))


def _event_of(ended: Finished) -> StatusEvent:
    return StatusEvent(
        ended.task_id,
        ended.pool,
        ended.key,
        ended.status,
        ended.attempt,
        ended.finished_at,
        ended.message,
    )


def unwatch(draft: Draft, _event: Unwatch) -> None:
    """One watch less."""
    draft.state.watches -= 1
    assert draft.state.watches >= 0


def forget(draft: Draft, event: Forget) -> None:
    """The caller of a parked submit or of a wait is gone."""
    state = draft.state
    if state.unpark(event.call) is not None:
        state.mono_timers.disarmed()
        draft.room_made = True  # those behind it may want less
    elif event.call in state.waits:
        forget_wait(draft, event.call)
        draft.results.pop(event.call, None)
        state.mono_timers.disarmed()


def take_snapshot(draft: Draft, event: SnapshotQuery) -> None:
    """Counts of all pools."""
    draft.reply(event.call, snapshot(draft.state, event.scope, draft.now))


def list_workers(draft: Draft, event: ListWorkers) -> None:
    """The connected sessions, in order of joining."""
    scope = event.scope
    sessions = draft.state.sessions.values()
    views = [worker_view(s) for s in sessions if s.connected and (scope is None or s.pool in scope)]
    draft.reply(event.call, tuple(views))


def get_output(draft: Draft, event: GetOutput) -> None:
    """A parent's output, for the worker that holds a lease of its child."""
    state = draft.state
    session = state.sessions.get(event.session) if event.session is not None else None
    sessions = [session] if session is not None else state.sessions.values()
    attempt = next((s.leases[event.lease] for s in sessions if event.lease in s.leases), None)
    if attempt is None or event.task_id not in state.parents.get(attempt.task.id, ()):
        message = f"lease {event.lease} does not run a task that depends on {event.task_id}"
        draft.refuse(event.call, ErrorReason.TASK_UNKNOWN, message)
        return
    draft.reply(event.call, FromStore(event.task_id, Wanted.OUTPUT, None))
