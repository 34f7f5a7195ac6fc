"""What tasks, sessions and pools look like from outside: read-only values, made on demand.

Half of these functions look at live state, the other half at what a store gave back; both give
the same values, so that no caller can tell where a task was found. Pages put both together.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cronoq_server.engine.effects import (
    Page,
    ParentView,
    PartPage,
    PoolView,
    Result,
    SnapshotView,
    StatusEvent,
    TaskDetail,
    TaskView,
    TotalsView,
    WorkerGroupView,
    WorkerView,
)
from cronoq_server.engine.events import Scope
from cronoq_server.engine.filters import passes
from cronoq_server.engine.model import (
    FIRST_TERMINAL,
    SECOND,
    Now,
    Pairs,
    Status,
    TaskFilter,
    TaskRef,
    TaskSpec,
)
from cronoq_server.engine.mutations import StoredTask
from cronoq_server.engine.quality import efficiency
from cronoq_server.engine.records import Pool, Session, Task, Total
from cronoq_server.engine.state import State

CHILDREN_SHOWN = 100
"""A detail lists this many children at most."""

LOOKED_AT_MAX = 10_000
"""A page looks at no more than this many tasks; it may then be short."""


def task_view(state: State, task: Task) -> TaskView:
    """A live task."""
    return TaskView(
        task.id,
        task.spec,
        task.status,
        task.attempt,
        task.attempts_max,
        task.created_at,
        task.started_at,
        None,
        task.message,
        False,
        task.due_at if task.status == Status.SCHEDULED else task.retry_at,
        task.progress,
        waiting_for(state, task),
    )


def waiting_for(state: State, task: Task) -> tuple[str, ...]:
    """What a task lacks before it can run, in words."""
    if task.status == Status.READY:
        return state.placement.waiting_for(task)
    if task.status == Status.BLOCKED:
        return tuple(
            f"dependency {parent.target}"
            for parent in parent_views(state, task.spec)
            if 0 < parent.status < FIRST_TERMINAL or parent.target in state.awaited
        )
    return ()


def parent_views(state: State, spec: TaskSpec) -> tuple[ParentView, ...]:
    """How the parents that a spec names stand; status 0 = nobody knows (any more)."""
    found = []
    for edge in spec.dependencies:
        found.append(ParentView(edge.target, edge.condition, _status_of(state, edge.target)))
    return tuple(found)


def _status_of(state: State, target: TaskRef) -> int:
    task_id = state.keys.get(target, 0) if isinstance(target, str) else target
    live = state.tasks.get(task_id)
    if live is not None:
        return live.status
    ended = state.finished.get(task_id)
    return ended.status if ended is not None else 0


def task_detail(state: State, task: Task) -> TaskDetail:
    """A live task with everything around it."""
    children = state.children.get(task.id, ())
    ids = list(dict.fromkeys(child.id for child, _ in children))
    return TaskDetail(
        task_view(state, task),
        task.history,
        parent_views(state, task.spec),
        tuple(ids[:CHILDREN_SHOWN]),
    )


def worker_view(session: Session) -> WorkerView:
    """A connected session."""
    return WorkerView(
        session.number,
        session.name,
        session.pool,
        session.labels,
        session.kinds,
        session.granted,
        session.busy,
        session.connected_at,
        session.sdk,
    )


def snapshot(state: State, scope: Scope, now: Now) -> SnapshotView:
    """Counts of all pools that the caller may see."""
    pools = [pool for name, pool in state.pools.items() if scope is None or name in scope]
    names = {pool.settings.name: None for pool in pools}
    sessions = [s for s in state.sessions.values() if s.connected and s.pool in names]
    views = tuple(
        _pool_view(state, pool, [s for s in sessions if s.pool == pool.settings.name], now)
        for pool in pools
    )
    running = sum(pool.counts[Status.RUNNING] for pool in pools)
    pending = sum(pool.pending for pool in pools)
    return SnapshotView(
        views, running + pending, running, pending, _totals(state, pools, scope), len(sessions)
    )


def _pool_view(state: State, pool: Pool, sessions: list[Session], now: Now) -> PoolView:
    groups: dict[Pairs, list[int]] = {}
    stuck = 0
    for session in sessions:
        group = groups.setdefault(session.labels, [0, 0])
        group[0] += session.granted
        group[1] += session.busy
        stuck += len(session.stuck)
    counts = pool.counts
    name = pool.settings.name
    since = [
        task.since
        for priority in (1, 2, 3, 4)
        if (task := state.placement.longest_waiting(name, priority)) is not None
    ]
    capacity = sum(group[0] for group in groups.values())
    busy = sum(group[1] for group in groups.values())
    quality = pool.quality
    return PoolView(
        name,
        capacity,
        busy,
        stuck,
        tuple(pool.pending_by_class[1:]),
        len(sessions),
        pool.dispatched,
        counts[Status.SUCCEEDED],
        counts[Status.FAILED] + counts[Status.DEAD_LETTERED],
        tuple(WorkerGroupView(labels, group[0], group[1]) for labels, group in groups.items()),
        pool.paused,
        min(since) - now.mono + now.wall if since else None,
        state.placement.held(name),
        pool.autoscaler.desired,
        pool.bookings.total,
        quality.adherence.value,
        quality.starts.value,
        min(1.0, busy / capacity) if capacity else 0.0,
        efficiency(capacity, busy, counts[Status.READY]),
        quality.wait_quantiles(),
        quality.used / SECOND,
        quality.waited.spread(),
        quality.ran.spread(),
        quality.lagged.spread(),
    )


def _totals(state: State, pools: Sequence[Pool], scope: Scope) -> TotalsView:
    """What happened in the pools that the caller may see; what is counted over all alone is 0."""

    def ended(status: Status) -> int:
        return sum(pool.counts[status] for pool in pools)

    totals = state.totals if scope is None else [0] * len(Total)
    return TotalsView(
        totals[Total.SUBMITTED],
        sum(pool.dispatched for pool in pools),
        ended(Status.SUCCEEDED),
        ended(Status.FAILED),
        ended(Status.DEAD_LETTERED),
        ended(Status.CANCELLED),
        ended(Status.SKIPPED),
        ended(Status.MISSED),
        ended(Status.SHED),
        totals[Total.RETRIES],
        totals[Total.TIMEOUTS],
        totals[Total.LEASE_EXPIRIES],
        totals[Total.STALE_REPORTS],
    )


# --- what a store gave back ----------------------------------------------------------------------


def stored_view(stored: StoredTask) -> TaskView:
    """A task that only the store holds."""
    change = stored.change
    assert change is not None, "only ended tasks are asked of the store"
    return TaskView(
        stored.task_id,
        stored.spec,
        change.status,
        change.attempt,
        change.attempts_max,
        stored.created_at,
        change.started_at,
        change.at if change.status >= FIRST_TERMINAL else None,
        change.message,
        change.has_output,
        None,
        change.progress,
    )


def stored_detail(stored: StoredTask) -> TaskDetail:
    """The same with its past attempts; how its parents ended is no longer known."""
    assert stored.change is not None
    parents = tuple(ParentView(e.target, e.condition, 0) for e in stored.spec.dependencies)
    return TaskDetail(stored_view(stored), stored.change.history, parents, ())


def stored_result(stored: StoredTask) -> Result:
    """How it ended; its output still has to be fetched, if it has one."""
    change = stored.change
    assert change is not None
    return Result(stored.task_id, change.status, change.message, fetch=change.has_output)


def stored_event(stored: StoredTask) -> StatusEvent:
    """The transition that ended it."""
    change = stored.change
    assert change is not None
    return StatusEvent(
        stored.task_id,
        stored.spec.pool,
        stored.spec.key,
        change.status,
        change.attempt,
        change.at,
        change.message,
        change.progress,
    )


# --- pages ---------------------------------------------------------------------------------------


def live_page(
    state: State, wanted: TaskFilter, after: int, limit: int, newest_first: bool
) -> PartPage:
    """The live tasks of a page, in id order from the cursor on."""
    finished = not wanted.statuses or any(s >= FIRST_TERMINAL for s in wanted.statuses)
    found, following = scan(state, wanted, after, limit, newest_first)
    views = tuple(task_view(state, task) for task in found)
    return PartPage(views, following, wanted, after, limit, newest_first, finished)


def scan(
    state: State, wanted: TaskFilter, after: int, limit: int, newest_first: bool
) -> tuple[list[Task], int]:
    """Live tasks that a filter lets through, from a cursor on.

    Returns:
        At most `limit` of them, and the cursor behind what was looked at; 0 = all was.
    """
    found: list[Task] = []
    looked_at = last = 0
    tasks = state.tasks
    for task_id in _candidates(state, wanted, after, newest_first):
        task = tasks.get(task_id)
        if task is None:
            continue
        if looked_at == LOOKED_AT_MAX or len(found) == limit:
            return found, last
        looked_at += 1
        last = task_id
        if passes(task.spec, task.status, wanted):
            found.append(task)
    return found, 0


def _candidates(state: State, wanted: TaskFilter, after: int, newest_first: bool) -> Iterable[int]:
    """Ids, from a cursor on and in the page's order, among which is all that a filter wants."""
    if wanted.keys:
        named = [task_id for key in wanted.keys if (task_id := state.keys.get(key)) is not None]
    elif wanted.statuses == (Status.RUNNING,):
        sessions = state.sessions.values()
        named = [attempt.task.id for s in sessions for attempt in s.leases.values()]
    elif wanted.schedule:
        named = list(state.occurrences.get(wanted.schedule, ()))
    else:
        narrowest = state.postings.narrowest(wanted)
        order = state.index if narrowest is None else narrowest
        return order.walk(after, newest_first)
    behind = [i for i in named if not after or (i < after if newest_first else i > after)]
    return sorted(behind, reverse=newest_first)


def merge_page(part: PartPage, stored: Sequence[StoredTask], stored_next: int) -> Page:
    """Puts live and finished tasks of a page into one order.

    A task seen in both counts once, as the engine has it. Nothing beyond the nearer of both
    cursors is given out, or the next page would miss tasks.

    Args:
        part: The engine's half.
        stored: The store's half, in the page's order.
        stored_next: The store's cursor; 0 = there is nothing behind.
    """
    views = {view.task_id: view for view in map(stored_view, stored)}
    views.update((view.task_id, view) for view in part.live)
    order = sorted(views, reverse=part.newest_first)
    bounds = [cursor for cursor in (part.live_next, stored_next) if cursor]
    if bounds:
        bound = max(bounds) if part.newest_first else min(bounds)
        order = [i for i in order if (i >= bound if part.newest_first else i <= bound)]
    more = bool(bounds) or len(order) > part.limit
    order = order[: part.limit]
    cursor = 0
    if more:
        cursor = order[-1] if len(order) == part.limit else bound
    return Page(tuple(views[i] for i in order), cursor)
