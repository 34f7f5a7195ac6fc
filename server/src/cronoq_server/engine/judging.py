"""Whether tasks may be admitted at all: keys, parents, resources, sizes, cycles.

A batch is judged whole before anything is changed: `judge` looks at every spec and returns either
the plan for all of them or the first refusal, with its index. Nothing here changes the state.
"""

from __future__ import annotations

import msgspec

from cronoq_server.engine.ending import edge_holds, impossible
from cronoq_server.engine.events import Found, Submit
from cronoq_server.engine.model import ErrorReason, Refusal, Status, TaskRef, TaskSpec
from cronoq_server.engine.records import Finished
from cronoq_server.engine.state import State


class OpenEdge(msgspec.Struct, frozen=True, gc=False):
    """A dependency that still has to be satisfied, by a parent or by a key yet unknown."""

    parent: int
    """Id of a live parent, or minus (index in the batch + 1), or 0 = awaited key."""
    condition: int
    key: str = ""


class Newcomer(msgspec.Struct, gc=False, eq=False):
    """One spec that will become a task: its open edges, and why it is doomed, if it is."""

    index: int
    spec: TaskSpec
    edges: list[OpenEdge]
    parents: list[int]
    doom: str = ""


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


def judge(
    state: State, specs: list[TaskSpec], event: Submit
) -> tuple[list[int], list[Newcomer]] | Refusal:
    """Looks at a batch without changing anything.

    Args:
        state: What there is.
        specs: The batch: all that is handed in, or one task of many that stand each on its own.
        event: How it is handed in, and by whom.

    Returns:
        Per spec the id it already has (0 = new), and the newcomers; or the first refusal.
    """
    scope, found = event.scope, event.found
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
    newcomers: list[Newcomer] = []
    per_pool: dict[str, int] = {}
    for index, spec in enumerate(specs):
        pool = state.pools.get(spec.pool)
        if pool is None or not pool.configured:
            return _at(
                len(specs), index, ErrorReason.POOL_UNKNOWN, f"pool: there is no pool {spec.pool!r}"
            )
        existing = _existing(state, spec.key, found) if spec.key else None
        if existing is not None:
            task_id, owner = existing
            if scope is not None and owner.pool not in scope:
                message = f"key: {spec.key!r} is in use in a pool that you may not use"
                return _at(len(specs), index, ErrorReason.KEY_IN_USE, message)
            if event.tenant is not None and owner.tenant != event.tenant:
                message = f"key: {spec.key!r} is in use by a task that you may not see"
                return _at(len(specs), index, ErrorReason.KEY_IN_USE, message)
            known[index] = task_id
            continue
        newcomer = _newcomer(state, index, spec, in_batch, event)
        refusal = newcomer if isinstance(newcomer, Refusal) else resources_refusal(state, spec)
        if refusal is not None:
            return _at(len(specs), index, refusal.reason, refusal.message, refusal)
        assert isinstance(newcomer, Newcomer)
        newcomers.append(newcomer)
        per_pool[spec.pool] = per_pool.get(spec.pool, 0) + 1
    refusal = _too_large(state, per_pool, len(newcomers))
    if refusal is None:
        refusal = _resolve_batch(state, specs, known, newcomers, found)
    return refusal if refusal is not None else (known, newcomers)


def _at(
    count: int, index: int, reason: ErrorReason, message: str, origin: Refusal | None = None
) -> Refusal:
    """A refusal that names the index of the task, if there are several."""
    details = origin.details if origin is not None else ()
    if count == 1:
        return Refusal(reason, message, details)
    return Refusal(reason, f"tasks[{index}]: {message}", (*details, ("index", str(index))))


class Owner(msgspec.Struct, frozen=True, gc=False):
    """Whose a task is."""

    pool: str
    tenant: str


def _existing(state: State, key: str, found: Found) -> tuple[int, Owner] | None:
    """The task that has this key, live or retained, here or in the store."""
    task_id = state.keys.get(key)
    if task_id is None:
        stored = found.get(key) if found else None
        if stored is None:
            return None
        task_id = stored.task_id
    owner = _owner_of(state, key, task_id, found)
    assert owner is not None
    return task_id, owner


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


def resources_refusal(state: State, spec: TaskSpec) -> Refusal | None:
    """Every resource must exist and be large enough to ever hold what is asked."""
    for name, amount in spec.resources:
        rules = state.resources.rules_of(name)
        if rules is None or name in state.orphans:
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
    state: State, index: int, spec: TaskSpec, in_batch: dict[str, int], event: Submit
) -> Newcomer | Refusal:
    """Resolves a spec's dependencies as far as the engine's tables go.

    A parent in a pool that the caller may not use, or of a tenant that is not theirs, is refused
    like one that does not exist: its child would tell how it ended, and its child's worker would be
    given its output. So that nobody can tell the two apart, a caller who is limited so waits for no
    key that is to come, and no id counts as satisfied that nobody knows any more.
    """
    found = event.found
    is_limited = event.scope is not None or event.tenant is not None
    newcomer = Newcomer(index, spec, [], [])
    for dependency in spec.dependencies:
        target, condition = dependency.target, dependency.condition
        if isinstance(target, str) and target in in_batch:
            newcomer.edges.append(OpenEdge(-in_batch[target] - 1, condition, target))
            continue
        task_id = state.keys.get(target) if isinstance(target, str) else target
        owner = _owner_of(state, target, task_id, found) if is_limited else None
        if owner is not None and not _is_open_to(event, owner):
            return _no_parent(target)
        if task_id is not None and task_id in state.tasks:
            newcomer.edges.append(OpenEdge(task_id, condition))
            newcomer.parents.append(task_id)
            continue
        status = _ended_status(state, target, task_id, found)
        if is_limited and not status:
            return _no_parent(target)
        if status is None:
            refusal = _unknown_parent(state, spec, target, newcomer, condition)
            if refusal is not None:
                return refusal
            continue
        if task_id is None:
            assert found is not None
            task_id = found[target].task_id
        newcomer.parents.append(task_id)
        if status and not edge_holds(condition, status):
            newcomer.doom = newcomer.doom or impossible(task_id, condition, status)
    return newcomer


def _is_open_to(event: Submit, owner: Owner) -> bool:
    """Whether the caller may know of a task of this owner."""
    is_own = event.tenant is None or owner.tenant == event.tenant
    return is_own and (event.scope is None or owner.pool in event.scope)


def _owner_of(state: State, target: TaskRef, task_id: int | None, found: Found) -> Owner | None:
    """Whose a task is that the engine or the store holds; None = nobody knows it."""
    if task_id is not None:
        live, ended = state.tasks.get(task_id), state.finished.get(task_id)
        if live is not None:
            return Owner(live.spec.pool, live.spec.tenant)
        if ended is not None:
            return Owner(ended.pool, ended.tenant)
    stored = found.get(target) if found else None
    return None if stored is None else Owner(stored.spec.pool, stored.spec.tenant)


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
    state: State, spec: TaskSpec, target: TaskRef, newcomer: Newcomer, condition: int
) -> Refusal | None:
    """A key that nobody has submitted may be awaited, if the pool says so."""
    if isinstance(target, str) and state.pools[spec.pool].settings.await_unknown_dependencies:
        newcomer.edges.append(OpenEdge(0, condition, target))
        return None
    return _no_parent(target)


def _no_parent(target: TaskRef) -> Refusal:
    named = f"key {target!r}" if isinstance(target, str) else f"id {target}"
    return Refusal(ErrorReason.DEPENDENCY_UNKNOWN, f"dependencies: there is no task with {named}")


def _resolve_batch(
    state: State,
    specs: list[TaskSpec],
    known: list[int],
    newcomers: list[Newcomer],
    found: Found,
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
                newcomer.edges[at] = OpenEdge(existing, edge.condition)
            else:
                status = _ended_status(state, edge.key, existing, found)
                newcomer.edges[at] = OpenEdge(-len(specs) - 1, edge.condition)
                if status and not edge_holds(edge.condition, status):
                    newcomer.doom = newcomer.doom or impossible(existing, edge.condition, status)
            newcomer.parents.append(existing)
        newcomer.edges = [edge for edge in newcomer.edges if edge.parent >= -len(specs)]
    if inner or any(newcomer.spec.key in state.awaited for newcomer in newcomers):
        return _refuse_cycle(state, newcomers)
    return None


def _refuse_cycle(state: State, newcomers: list[Newcomer]) -> Refusal | None:
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

    Nodes are indexes of newcomers (minus index minus 1) and ids of live blocked tasks. Only a
    task that awaits a newcomer's key can lead back to it: where nobody does, no live task is
    looked at, however many there are upward.
    """

    def __init__(self, state: State, newcomers: list[Newcomer]) -> None:
        self._state = state
        self._comes = any(n.spec.key in state.awaited for n in newcomers)
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
        task = self._state.tasks.get(node) if self._comes else None
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
        # Only by its key can others wait for a newcomer, so one on a cycle has a key.
        return str(node) if newcomer is None else repr(newcomer.spec.key)
