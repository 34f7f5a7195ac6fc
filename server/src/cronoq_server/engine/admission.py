"""Who gets in: submits of one, of a batch, of many, and the callers that wait for room.

What is admitted is never refused later: retries, redrives, schedule occurrences and recovered
tasks don't pass here. Ids are taken only after everything about a call was judged.

Parked callers wait in order of arrival per pool; each is judged anew when there is room.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from cronoq_server.engine.draft import Draft
from cronoq_server.engine.effects import Admitted
from cronoq_server.engine.ending import edge_holds, finish, impossible
from cronoq_server.engine.events import Submit, SubmitMode
from cronoq_server.engine.judging import Newcomer, judge
from cronoq_server.engine.lifecycle import Cause
from cronoq_server.engine.model import (
    FIRST_TERMINAL,
    Overflow,
    Refusal,
    Status,
    TaskSpec,
)
from cronoq_server.engine.policies import effective_retry
from cronoq_server.engine.readiness import settle
from cronoq_server.engine.records import Pool, Task, TimerKind, Total
from cronoq_server.engine.room import make_room, queue_full
from cronoq_server.engine.starts import (
    Stretch,
    book_all,
    give_back_all,
    start_of,
    tolerance_of,
)
from cronoq_server.engine.state import State

PARKED_GONE_MIN: Final = 64
"""So many callers may give up without a pool's line of callers being swept."""


def submit(draft: Draft, event: Submit) -> None:
    """Admits, parks or refuses a call's tasks."""
    if event.mode == SubmitMode.MANY:
        _submit_many(draft, event)
        return
    outcome = _admit_together(draft, event)
    if isinstance(outcome, Pool):
        _park(draft, event, outcome)
    else:
        draft.reply(event.call, outcome)


def _submit_many(draft: Draft, event: Submit) -> None:
    """Each task on its own: what can't get in comes back with its refusal."""
    ids: list[int] = []
    duplicates: list[int] = []
    refusals: list[tuple[int, Refusal]] = []
    for index, spec in enumerate(event.specs):
        if _is_simple(draft.state, spec):
            ids.append(_admit_simple(draft, spec))
            continue
        outcome = _enter(draft, [spec], event)
        if isinstance(outcome, Pool):
            outcome = queue_full(outcome)
        if isinstance(outcome, Refusal):
            ids.append(0)
            refusals.append((index, outcome))
            continue
        ids.append(outcome.ids[0])
        if outcome.duplicates:
            duplicates.append(index)
    draft.reply(event.call, Admitted(ids, tuple(duplicates), tuple(refusals)))


def _is_simple(state: State, spec: TaskSpec) -> bool:
    """The common case, decided quickly: a new task that wants nothing but a slot."""
    pool = state.pools.get(spec.pool)
    return (
        pool is not None
        and pool.configured
        and not spec.key
        and not spec.dependencies
        and not spec.resources
        and spec.start_at is None
        and spec.start_in is None
        and not pool.parked
        and state.pending < state.settings.max_pending_total
        and pool.pending < pool.settings.max_pending
        and state.ids.left() > 0
    )


def _admit_simple(draft: Draft, spec: TaskSpec) -> int:
    task = new_task(draft, draft.state.ids.take(), spec)
    settle(draft, task)
    return task.id


def _admit_together(
    draft: Draft, event: Submit, was_parked: bool = False
) -> Admitted | Refusal | Pool:
    """All or none; a `Pool` means that it is full and that the call may wait for room."""
    specs = event.specs
    if len(specs) == 1 and _is_simple(draft.state, specs[0]):
        return Admitted([_admit_simple(draft, specs[0])])
    outcome = _enter(draft, specs, event, was_parked)
    if isinstance(outcome, Pool) and outcome.settings.overflow != Overflow.WAIT:
        return queue_full(outcome)
    return outcome


def _enter(
    draft: Draft, specs: list[TaskSpec], event: Submit, was_parked: bool = False
) -> Admitted | Refusal | Pool:
    """Judges specs, books their starts, makes room, and only then creates their tasks."""
    judged = judge(draft.state, specs, event)
    if isinstance(judged, Refusal):
        return judged
    known, newcomers = judged
    booked = book_all(draft, newcomers)
    if isinstance(booked, Refusal):
        return booked
    pending = draft.state.pending
    full = make_room(draft, newcomers, was_parked)
    if full is not None:
        give_back_all(draft.state, newcomers, booked)
        return full
    if draft.state.pending < pending:
        # What was pushed out may be a parent of a newcomer.
        judged = judge(draft.state, specs, event)
        assert not isinstance(judged, Refusal)
        known, newcomers = judged
    duplicates = tuple(index for index, task_id in enumerate(known) if task_id)
    _create(draft, known, newcomers, booked)
    return Admitted(known, duplicates)


def _park(draft: Draft, event: Submit, pool: Pool) -> None:
    """The caller waits, in order of arrival, until there is room or its time is over."""
    state = draft.state
    if event.until <= draft.now.mono:
        draft.reply(event.call, queue_full(pool))
        return
    pool.parked.append(event.call)
    state.park(event)
    if len(pool.parked) > PARKED_GONE_MIN + 2 * len(state.parked):
        # Those who gave up behind somebody patient would stay for as long as he does.
        pool.parked = deque(call for call in pool.parked if call in state.parked)
    state.mono_timers.arm(event.until, TimerKind.PARK, event.call)


def unpark(draft: Draft) -> None:
    """Admits parked calls, first come first served, now that there may be room."""
    state = draft.state
    for call in draft.overdue:
        event = state.unpark(call)
        if event is not None:
            pool = state.pools[event.specs[0].pool]
            draft.reply(call, queue_full(pool))
            draft.room_made = True  # those behind it may want less
    draft.overdue.clear()
    if not draft.room_made or not state.parked:
        return
    draft.room_made = False
    for pool in state.pools.values():
        parked = pool.parked
        while parked:
            event = state.parked.get(parked[0])
            if event is None:
                parked.popleft()
                continue
            outcome = _admit_together(draft, event, was_parked=True)
            if outcome is pool:
                break
            parked.popleft()
            if isinstance(outcome, Pool):
                outcome.parked.append(event.call)
                continue
            state.unpark(event.call)
            state.mono_timers.disarmed()
            draft.reply(event.call, outcome)


def new_task(draft: Draft, task_id: int, spec: TaskSpec) -> Task:
    """Puts a task into the tables; its status is decided by the caller."""
    state, wall = draft.state, draft.now.wall
    retry = state.pools[spec.pool].retry
    if spec.retry is not None:
        retry = effective_retry(spec.retry, retry)
    task = Task(
        id=task_id,
        priority=spec.priority,
        since=draft.now.mono,
        demand=state.demand(spec),
        spec=spec,
        created_at=wall,
        attempts_max=retry.max_attempts,
    )
    derive_instants(task)
    arm_instants(state, task)
    state.adopt(task)
    draft.insert(task)
    state.totals[Total.SUBMITTED] += 1
    return task


def derive_instants(task: Task) -> None:
    """Turns a spec's relative times into instants, counted from the task's arrival."""
    spec, base = task.spec, task.created_at
    if spec.deadline_at is not None:
        task.deadline_at = spec.deadline_at
    elif spec.deadline_in is not None:
        task.deadline_at = base + spec.deadline_in
    start = start_of(spec, base)
    if start is not None:
        task.due_at = start
        task.miss_at = start + tolerance_of(spec)
    elif spec.not_before is not None:
        task.due_at = spec.not_before
    elif spec.delay is not None:
        task.due_at = base + spec.delay
    if spec.expires_in is not None:
        task.expires_at = base + spec.expires_in


def drop_past(task: Task, wall: int) -> None:
    """Takes from a task that was put back at `wall` the instants that were past then.

    One that has had an attempt keeps none: only a first attempt has a start to keep.
    """
    if task.attempt or (task.due_at is not None and task.due_at <= wall):
        task.due_at = task.miss_at = None
    if task.attempt or (task.expires_at is not None and task.expires_at <= wall):
        task.expires_at = None


def arm_instants(state: State, task: Task) -> None:
    """Arms what ends a task that does not start in time."""
    if task.expires_at is not None:
        state.wall_timers.arm(task.expires_at, TimerKind.EXPIRES, task)
    if task.miss_at is not None:
        state.wall_timers.arm(task.miss_at, TimerKind.MISS, task)


def _create(
    draft: Draft, known: list[int], newcomers: list[Newcomer], booked: dict[int, Stretch]
) -> None:
    """Turns a judged batch into tasks; fills `known` with their ids."""
    state = draft.state
    created: dict[int, Task] = {}
    for newcomer in newcomers:
        task = new_task(draft, state.ids.take(), newcomer.spec)
        known[newcomer.index] = task.id
        task.booked = booked.get(newcomer.index)
        created[newcomer.index] = task
    for newcomer in newcomers:
        if newcomer.spec.dependencies:
            _tie(draft, created[newcomer.index], newcomer, created)
    for newcomer in newcomers:
        task = created[newcomer.index]
        if task.unmet or newcomer.doom:
            draft.transition(task, Cause.WAITS_FOR_PARENTS)
        else:
            settle(draft, task)
    for newcomer in newcomers:
        task = created[newcomer.index]
        if newcomer.doom and task.status == Status.BLOCKED:
            finish(draft, task, Cause.PARENT_IMPOSSIBLE, newcomer.doom)
    for newcomer in newcomers:
        if newcomer.spec.key:
            arrived(draft, created[newcomer.index])


def _tie(draft: Draft, task: Task, newcomer: Newcomer, created: dict[int, Task]) -> None:
    """Registers a task with the parents it waits for."""
    state = draft.state
    parents = dict.fromkeys(newcomer.parents)
    for edge in newcomer.edges:
        if edge.parent == 0:
            state.await_key(edge.key, task, edge.condition)
        else:
            parent = edge.parent if edge.parent > 0 else created[-edge.parent - 1].id
            state.children.setdefault(parent, []).append((task, edge.condition))
            parents[parent] = None
    task.unmet = len(newcomer.edges)
    state.set_parents(task, tuple(parents))
    if task.awaiting:
        until = state.pools[task.spec.pool].settings.await_unknown_dependencies
        state.mono_timers.arm(draft.now.mono + until, TimerKind.AWAIT, task)


def arrived(draft: Draft, parent: Task) -> None:
    """A key that others awaited is there: their edges lead to its task from now on."""
    state = draft.state
    waiting = state.awaited.pop(parent.spec.key, None)
    if waiting is None:
        return
    for child, condition in [entry for entries in waiting.values() for entry in entries]:
        if child.status != Status.BLOCKED:
            continue  # it ended with one of the others
        child.awaiting -= 1
        if not child.awaiting:
            state.mono_timers.disarmed()
        if parent.status < FIRST_TERMINAL:
            state.children.setdefault(parent.id, []).append((child, condition))
            state.set_parents(child, (*state.parents.get(child.id, ()), parent.id))
        elif edge_holds(condition, parent.status):
            child.unmet -= 1
            if not child.unmet:
                draft.unblocked.append(child)
        else:
            why = impossible(parent.id, condition, parent.status)
            finish(draft, child, Cause.PARENT_IMPOSSIBLE, why)
