"""Who gets in: keys, dependencies, bounds, and what a full queue does.

A batch is judged whole before anything is changed: `_judge` looks at every spec and returns
either the plan for all of them or the first refusal, with its index. Only then are ids taken.

Parked callers wait in order of arrival per pool; each is judged anew when there is room. What is
admitted is never refused later: retries, redrives and recovered tasks don't pass here.
"""

from __future__ import annotations

import msgspec

from cronoq_server.engine.draft import Draft
from cronoq_server.engine.effects import Admitted
from cronoq_server.engine.ending import edge_holds, finish, impossible
from cronoq_server.engine.events import Found, Scope, Submit, SubmitMode
from cronoq_server.engine.lifecycle import Cause
from cronoq_server.engine.model import (
    FIRST_TERMINAL,
    SECOND,
    ErrorReason,
    Overflow,
    Priority,
    Refusal,
    Status,
    TaskRef,
    TaskSpec,
)
from cronoq_server.engine.policies import effective_retry
from cronoq_server.engine.readiness import line_up, settle
from cronoq_server.engine.state import Finished, Pool, State, Task, TimerKind, Total

DEFAULT_TOLERANCE = SECOND
"""How late a fixed start may be when its spec does not say."""

CYCLE_SEARCH_MAX = 1_000_000
"""Tasks looked at when a cycle through awaited keys is searched for."""


class _Edge(msgspec.Struct, frozen=True, gc=False):
    """A dependency that still has to be satisfied, by a parent or by a key yet unknown."""

    parent: int
    """Id of a live parent, or minus (index in the batch + 1), or 0 = awaited key."""
    condition: int
    key: str = ""


class _Newcomer(msgspec.Struct, gc=False, eq=False):
    """One spec that will become a task: its open edges, and why it is doomed, if it is."""

    index: int
    spec: TaskSpec
    edges: list[_Edge]
    parents: list[int]
    doom: str = ""


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


def wants(state: State, event: Submit) -> tuple[list[int], list[str]]:
    """Ids and keys of a submit that the engine does not hold: the store may know them."""
    ids: list[int] = []
    keys: list[str] = []
    for spec in event.specs:
        if spec.key and spec.key not in state.keys:
            keys.append(spec.key)
        for edge in spec.dependencies:
            target = edge.target
            if isinstance(target, str):
                if target not in state.keys:
                    keys.append(target)
            elif target not in state.tasks and target not in state.finished:
                ids.append(target)
    return ids, keys


def _submit_many(draft: Draft, event: Submit) -> None:
    """Each task on its own: what can't get in comes back with its refusal."""
    ids: list[int] = []
    duplicates: list[int] = []
    refusals: list[tuple[int, Refusal]] = []
    for index, spec in enumerate(event.specs):
        if _is_simple(draft.state, spec):
            ids.append(_admit_simple(draft, spec))
            continue
        judged = _judge(draft.state, [spec], event.scope, event.found)
        full = None if isinstance(judged, Refusal) else _full_pool(draft, judged[1])
        if isinstance(judged, Refusal) or full is not None:
            ids.append(0)
            refusals.append((index, judged if isinstance(judged, Refusal) else _queue_full(full)))
            continue
        known, newcomers = judged
        if known[0]:
            duplicates.append(index)
        _create(draft, known, newcomers)
        ids.append(known[0])
    draft.reply(event.call, Admitted(ids, tuple(duplicates), tuple(refusals)))


def _is_simple(state: State, spec: TaskSpec) -> bool:
    """The common case, decided quickly: a new task that wants nothing but a slot."""
    pool = state.pools.get(spec.pool)
    return (
        pool is not None
        and not spec.key
        and not spec.dependencies
        and not spec.resources
        and state.pending < state.settings.max_pending_total
        and pool.pending < pool.settings.max_pending
        and state.ids.left() > 0
    )


def _admit_simple(draft: Draft, spec: TaskSpec) -> int:
    task = _new_task(draft, draft.state.ids.take(), spec)
    settle(draft, task)
    return task.id


def _admit_together(draft: Draft, event: Submit) -> Admitted | Refusal | Pool:
    """All or none; a `Pool` means that it is full and that the call may wait for room."""
    specs = event.specs
    if len(specs) == 1 and _is_simple(draft.state, specs[0]):
        return Admitted([_admit_simple(draft, specs[0])])
    judged = _judge(draft.state, specs, event.scope, event.found)
    if isinstance(judged, Refusal):
        return judged
    known, newcomers = judged
    full = _full_pool(draft, newcomers)
    if full is not None:
        if full.settings.overflow == Overflow.WAIT:
            return full
        return _queue_full(full)
    duplicates = tuple(index for index, task_id in enumerate(known) if task_id)
    _create(draft, known, newcomers)
    return Admitted(known, duplicates)


def _queue_full(pool: Pool | None) -> Refusal:
    assert pool is not None
    settings = pool.settings
    shed = settings.overflow in (Overflow.SHED_LOWEST, Overflow.SHED_OLDEST)
    reason = ErrorReason.SHED_NONE if shed else ErrorReason.QUEUE_FULL
    return Refusal(
        reason,
        f"pool {settings.name!r} has no room for more pending tasks (max_pending "
        f"{settings.max_pending}, or max_pending_total)",
    )


# --- judging -------------------------------------------------------------------------------------


def _judge(
    state: State, specs: list[TaskSpec], scope: Scope, found: Found
) -> tuple[list[int], list[_Newcomer]] | Refusal:
    """Looks at a batch without changing anything.

    Returns:
        Per spec the id it already has (0 = new), and the newcomers; or the first refusal.
    """
    in_batch: dict[str, int] = {}
    for index, spec in enumerate(specs):
        if spec.key and in_batch.setdefault(spec.key, index) != index:
            return _at(
                len(specs),
                index,
                ErrorReason.DUPLICATE_KEY_IN_BATCH,
                f"key: {spec.key!r} is also the key of task {in_batch[spec.key]} of this batch",
            )
    known = [0] * len(specs)
    newcomers: list[_Newcomer] = []
    per_pool: dict[str, int] = {}
    for index, spec in enumerate(specs):
        pool = state.pools.get(spec.pool)
        if pool is None:
            return _at(
                len(specs), index, ErrorReason.POOL_UNKNOWN, f"pool: there is no pool {spec.pool!r}"
            )
        existing = _existing(state, spec.key, found) if spec.key else None
        if existing is not None:
            task_id, its_pool = existing
            if scope is not None and its_pool not in scope:
                message = f"key: {spec.key!r} is in use in a pool that you may not use"
                return _at(len(specs), index, ErrorReason.KEY_IN_USE, message)
            known[index] = task_id
            continue
        newcomer = _newcomer(state, index, spec, in_batch, found)
        refusal = newcomer if isinstance(newcomer, Refusal) else _resources(state, spec)
        if refusal is not None:
            return _at(len(specs), index, refusal.reason, refusal.message, refusal)
        assert isinstance(newcomer, _Newcomer)
        newcomers.append(newcomer)
        per_pool[spec.pool] = per_pool.get(spec.pool, 0) + 1
    refusal = _too_large(state, per_pool, len(newcomers))
    if refusal is None:
        refusal = _resolve_batch(state, specs, known, newcomers)
    return refusal if refusal is not None else (known, newcomers)


def _at(
    count: int, index: int, reason: ErrorReason, message: str, origin: Refusal | None = None
) -> Refusal:
    """A refusal that names the index of the task, if there are several."""
    details = origin.details if origin is not None else ()
    if count == 1:
        return Refusal(reason, message, details)
    return Refusal(reason, f"tasks[{index}]: {message}", (*details, ("index", str(index))))


def _existing(state: State, key: str, found: Found) -> tuple[int, str] | None:
    """The task that has this key, live or retained, here or in the store."""
    task_id = state.keys.get(key)
    if task_id is not None:
        task = state.tasks.get(task_id)
        pool = task.spec.pool if task is not None else state.finished[task_id].pool
        return task_id, pool
    stored = found.get(key) if found else None
    return None if stored is None else (stored.task_id, stored.spec.pool)


def _too_large(state: State, per_pool: dict[str, int], total: int) -> Refusal | None:
    for name, count in per_pool.items():
        most = state.pools[name].settings.max_pending
        if count > most:
            return Refusal(
                ErrorReason.BATCH_TOO_LARGE,
                f"tasks: {count} tasks for pool {name!r} exceed its max_pending {most}",
            )
    if total > state.settings.max_pending_total:
        return Refusal(
            ErrorReason.BATCH_TOO_LARGE,
            f"tasks: {total} tasks exceed max_pending_total {state.settings.max_pending_total}",
        )
    if state.ids.left() < total:
        return Refusal(ErrorReason.IDS_EXHAUSTED, "no task id is left in this range")
    return None


def _resources(state: State, spec: TaskSpec) -> Refusal | None:
    """Every resource must exist and be large enough to ever hold what is asked."""
    for name, amount in spec.resources:
        rules = state.resources.rules_of(name)
        if rules is None:
            return Refusal(
                ErrorReason.RESOURCE_UNKNOWN, f"resources: there is no resource {name!r}"
            )
        capacity = rules.burst if rules.permits is None else rules.permits
        if amount > capacity:
            return Refusal(
                ErrorReason.RESOURCE_EXCEEDS_CAPACITY,
                f"resources: {amount} of {name!r} can never be there, it holds {capacity}",
            )
    return None


def _newcomer(
    state: State, index: int, spec: TaskSpec, in_batch: dict[str, int], found: Found
) -> _Newcomer | Refusal:
    """Resolves a spec's dependencies as far as the engine's tables go."""
    newcomer = _Newcomer(index, spec, [], [])
    for dependency in spec.dependencies:
        target, condition = dependency.target, dependency.condition
        if isinstance(target, str) and target in in_batch:
            newcomer.edges.append(_Edge(-in_batch[target] - 1, condition, target))
            continue
        task_id = state.keys.get(target) if isinstance(target, str) else target
        if task_id is not None and task_id in state.tasks:
            newcomer.edges.append(_Edge(task_id, condition))
            newcomer.parents.append(task_id)
            continue
        status = _ended_status(state, target, task_id, found)
        if status is None:
            refusal = _unknown_parent(state, spec, target, newcomer, condition)
            if refusal is not None:
                return refusal
            continue
        if task_id is not None:
            newcomer.parents.append(task_id)
        if status and not edge_holds(condition, status):
            newcomer.doom = newcomer.doom or impossible(task_id or 0, condition, status)
    return newcomer


def _ended_status(state: State, target: TaskRef, task_id: int | None, found: Found) -> int | None:
    """How an ended parent ended; 0 = long ago, nobody knows any more; None = unknown."""
    ended: Finished | None = state.finished.get(task_id) if task_id is not None else None
    if ended is not None:
        return ended.status
    stored = found.get(target) if found else None
    if stored is not None and stored.change is not None:
        return stored.change.status
    if isinstance(target, int) and state.is_past(target):
        return 0
    return None


def _unknown_parent(
    state: State, spec: TaskSpec, target: TaskRef, newcomer: _Newcomer, condition: int
) -> Refusal | None:
    """A key that nobody has submitted may be awaited, if the pool says so."""
    if isinstance(target, str) and state.pools[spec.pool].settings.await_unknown_dependencies:
        newcomer.edges.append(_Edge(0, condition, target))
        return None
    named = f"key {target!r}" if isinstance(target, str) else f"id {target}"
    return Refusal(ErrorReason.DEPENDENCY_UNKNOWN, f"dependencies: there is no task with {named}")


def _resolve_batch(
    state: State, specs: list[TaskSpec], known: list[int], newcomers: list[_Newcomer]
) -> Refusal | None:
    """Turns edges to members that existed before into edges to those, and refuses cycles."""
    inner = False
    for newcomer in newcomers:
        for at, edge in enumerate(newcomer.edges):
            if edge.parent >= 0:
                continue
            existing = known[-edge.parent - 1]
            if not existing:
                inner = True
                continue
            if existing in state.tasks:
                newcomer.edges[at] = _Edge(existing, edge.condition)
            else:
                ended = state.finished.get(existing)
                status = ended.status if ended is not None else 0
                newcomer.edges[at] = _Edge(-len(specs) - 1, edge.condition)
                if status and not edge_holds(edge.condition, status):
                    newcomer.doom = newcomer.doom or impossible(existing, edge.condition, status)
            newcomer.parents.append(existing)
        newcomer.edges = [edge for edge in newcomer.edges if edge.parent >= -len(specs)]
    if inner or state.awaited:
        return _refuse_cycle(state, newcomers)
    return None


def _refuse_cycle(state: State, newcomers: list[_Newcomer]) -> Refusal | None:
    """Searches for a way from a newcomer back to itself along "waits for" edges."""
    graph = _WaitsFor(state, newcomers)
    path = graph.cycle()
    if path is None:
        return None
    return Refusal(
        ErrorReason.CYCLE,
        "dependencies: these tasks would wait for each other: " + " -> ".join(path),
        (("path", " -> ".join(path)),),
    )


class _WaitsFor:
    """The graph of open edges among newcomers and the live tasks that await their keys.

    Nodes are indexes of newcomers (minus index minus 1) and ids of live blocked tasks. Only
    blocked tasks that await a key can lead back to a newcomer, so only from those on upward is
    searched.
    """

    def __init__(self, state: State, newcomers: list[_Newcomer]) -> None:
        self._state = state
        self._newcomers = {-n.index - 1: n for n in newcomers}
        self._keys = {n.spec.key: -n.index - 1 for n in newcomers if n.spec.key}

    def cycle(self) -> list[str] | None:
        """The names along a cycle, its first one repeated at the end; None = there is none."""
        done: set[int] = set()
        for start in self._newcomers:
            if start in done:
                continue
            path: list[int] = [start]
            on_path = {start}
            stack = [iter(self._parents(start))]
            while stack:
                assert len(done) < CYCLE_SEARCH_MAX
                parent = next(stack[-1], None)
                if parent is None:
                    stack.pop()
                    left = path.pop()
                    on_path.discard(left)
                    done.add(left)
                elif parent in on_path:
                    loop = [*path[path.index(parent) :], parent]
                    return [self._name(node) for node in loop]
                elif parent not in done:
                    path.append(parent)
                    on_path.add(parent)
                    stack.append(iter(self._parents(parent)))
        return None

    def _parents(self, node: int) -> list[int]:
        newcomer = self._newcomers.get(node)
        if newcomer is not None:
            return [
                edge.parent if edge.parent else self._keys.get(edge.key, 0)
                for edge in newcomer.edges
                if edge.parent or edge.key in self._keys
            ]
        task = self._state.tasks.get(node)
        if task is None or task.status != Status.BLOCKED:
            return []
        parents = []
        for edge in task.spec.dependencies:
            target = edge.target
            if isinstance(target, str):
                awaited = self._keys.get(target)
                parent = awaited if awaited is not None else self._state.keys.get(target)
            else:
                parent = target
            if parent is not None:
                parents.append(parent)
        return parents

    def _name(self, node: int) -> str:
        newcomer = self._newcomers.get(node)
        if newcomer is not None:
            return repr(newcomer.spec.key) if newcomer.spec.key else f"tasks[{newcomer.index}]"
        return str(node)


# --- bounds --------------------------------------------------------------------------------------


def _full_pool(draft: Draft, newcomers: list[_Newcomer]) -> Pool | None:
    """Makes room as the pools' policies say; returns the first pool that stays full."""
    state = draft.state
    wanted: dict[str, list[int]] = {}
    for newcomer in newcomers:
        if not newcomer.doom:
            wanted.setdefault(newcomer.spec.pool, []).append(newcomer.spec.priority)
    total = sum(len(priorities) for priorities in wanted.values())
    if not total:
        return None
    lacking_total = state.pending + total - state.settings.max_pending_total
    for name, priorities in wanted.items():
        pool = state.pools[name]
        lacking = pool.pending + len(priorities) - pool.settings.max_pending
        lacking = max(lacking, min(lacking_total, len(priorities)))
        if lacking <= 0:
            continue
        if not _shed(draft, pool, max(priorities), lacking):
            return pool
        lacking_total -= lacking
    return None


def _shed(draft: Draft, pool: Pool, lowest: int, lacking: int) -> bool:
    """Pushes tasks out for newcomers, if the policy allows and enough can go."""
    placement, name = draft.state.placement, pool.settings.name
    oldest = pool.settings.overflow == Overflow.SHED_OLDEST
    if not oldest and pool.settings.overflow != Overflow.SHED_LOWEST:
        return False
    line_up(draft)
    waiting = placement.count(name)
    if sum(waiting[Priority.LOW - 1 if oldest else lowest :]) < lacking:
        return False
    for _ in range(lacking):
        if oldest:
            victim = placement.longest_waiting(name, Priority.LOW)
        else:
            victim = placement.newest_of_lowest_class(name, lowest)
        assert isinstance(victim, Task)
        finish(draft, victim, Cause.SHED, "pushed out of a full queue")
    return True


def _park(draft: Draft, event: Submit, pool: Pool) -> None:
    """The caller waits, in order of arrival, until there is room or its time is over."""
    state = draft.state
    if event.until <= draft.now.mono:
        draft.reply(event.call, _queue_full(pool))
        return
    pool.parked.append(event.call)
    state.parked[event.call] = event
    state.mono_timers.arm(event.until, TimerKind.PARK, event.call)


def unpark(draft: Draft) -> None:
    """Admits parked calls, first come first served, now that there may be room."""
    state = draft.state
    for call in draft.overdue:
        event = state.parked.pop(call, None)
        if event is not None:
            pool = state.pools[event.specs[0].pool]
            draft.reply(call, _queue_full(pool))
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
            outcome = _admit_together(draft, event)
            if outcome is pool:
                break
            parked.popleft()
            if isinstance(outcome, Pool):
                outcome.parked.append(event.call)
                continue
            del state.parked[event.call]
            state.mono_timers.disarmed()
            draft.reply(event.call, outcome)


# --- creating ------------------------------------------------------------------------------------


def _new_task(draft: Draft, task_id: int, spec: TaskSpec) -> Task:
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
    if task.expires_at is not None:
        state.wall_timers.arm(task.expires_at, TimerKind.EXPIRES, task)
    if task.miss_at is not None:
        state.wall_timers.arm(task.miss_at, TimerKind.MISS, task)
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
    start = spec.start_at
    if start is None and spec.start_in is not None:
        start = base + spec.start_in
    if start is not None:
        tolerance = DEFAULT_TOLERANCE if spec.tolerance is None else spec.tolerance
        task.due_at = start
        task.miss_at = start + tolerance
    elif spec.not_before is not None:
        task.due_at = spec.not_before
    elif spec.delay is not None:
        task.due_at = base + spec.delay
    if spec.expires_in is not None:
        task.expires_at = base + spec.expires_in


def _create(draft: Draft, known: list[int], newcomers: list[_Newcomer]) -> None:
    """Turns a judged batch into tasks; fills `known` with their ids."""
    state = draft.state
    created: dict[int, Task] = {}
    for newcomer in newcomers:
        task = _new_task(draft, state.ids.take(), newcomer.spec)
        known[newcomer.index] = task.id
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
            _arrived(draft, created[newcomer.index])


def _tie(draft: Draft, task: Task, newcomer: _Newcomer, created: dict[int, Task]) -> None:
    """Registers a task with the parents it waits for."""
    state = draft.state
    parents = dict.fromkeys(newcomer.parents)
    for edge in newcomer.edges:
        if edge.parent == 0:
            state.awaited.setdefault(edge.key, []).append((task, edge.condition))
            task.awaiting += 1
        else:
            parent = edge.parent if edge.parent > 0 else created[-edge.parent - 1].id
            state.children.setdefault(parent, []).append((task, edge.condition))
            parents[parent] = None
    task.unmet = len(newcomer.edges)
    state.set_parents(task, tuple(parents))
    if task.awaiting:
        until = state.pools[task.spec.pool].settings.await_unknown_dependencies
        state.mono_timers.arm(draft.now.mono + until, TimerKind.AWAIT, task)


def _arrived(draft: Draft, parent: Task) -> None:
    """A key that others awaited is there: their edges lead to its task from now on."""
    state = draft.state
    waiting = state.awaited.pop(parent.spec.key, None)
    if waiting is None:
        return
    for child, condition in waiting:
        child.awaiting -= 1
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
