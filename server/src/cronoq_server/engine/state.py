"""The tables of everything that lives: tasks, keys, sessions, attempts, waiters.

This module owns all mutable state of the engine; the others change it only through a `Draft`
(one step in the making), so that what a step changed and what it must write stay together.

Rules a change must keep:

1. Dictionaries keep insertion order, and ids rise: `tasks` is in submission order but for what a
   redrive puts back. Nothing iterates a set.
2. An index holds a task only while it lives; whoever ends a task goes through `ending.finish`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from cronoq_server.engine import ids
from cronoq_server.engine.events import Scope, Submit
from cronoq_server.engine.filters import SCHEDULE_TAG
from cronoq_server.engine.index import IdIndex, Postings
from cronoq_server.engine.model import (
    FIRST_TERMINAL,
    EngineSettings,
    Instant,
    Overflow,
    PoolSettings,
    Priority,
    ResourceSettings,
    Status,
    TaskRef,
    TaskSpec,
)
from cronoq_server.engine.mutations import ResourceResized
from cronoq_server.engine.placement import (
    NANO,
    Demand,
    Placement,
    PoolRules,
    ResourceRules,
    Resources,
)
from cronoq_server.engine.policies import Chance
from cronoq_server.engine.records import (
    Attempt,
    Finished,
    Pool,
    Schedule,
    Session,
    Task,
    Timeout,
    TimerKind,
    Total,
    WaitState,
)
from cronoq_server.engine.timers import ExpiryList, TimerHeap

_UNSTARTED = (Status.BLOCKED, Status.SCHEDULED, Status.READY)

CHILDREN_GONE_MIN = 64
"""So many children may end before their parent without its list of them being swept."""

DELETED_MAX = 1000
"""Deleted tasks remembered: more than can be deleted while a look-up is under way."""


class State:
    """All tables of one leadership."""

    def __init__(self, settings: EngineSettings, chance: Chance) -> None:
        self.settings = settings
        self.chance = chance
        self.ids = ids.IdSource(settings.shard, settings.epoch, settings.high_water)
        self.lease = ids.lease_base(settings.epoch)
        self.lease_lists: dict[int, ExpiryList] = {}
        self.timeout_lists: dict[int, ExpiryList] = {}
        self.pools = {pool.name: self.new_pool(pool) for pool in settings.pools}
        self.resource_rules = tuple(resource_rules(each) for each in settings.resources)
        self.resources = Resources(self.resource_rules)
        self.placement = Placement([_pool_rules(each) for each in settings.pools], self.resources)
        self.pending = 0
        self.tasks: dict[int, Task] = {}
        self.index = IdIndex(self.tasks)
        self.postings = Postings(self.tasks)
        for pool in self.pools.values():
            if pool.settings.overflow in (Overflow.SHED_LOWEST, Overflow.SHED_OLDEST):
                pool.by_class = tuple(IdIndex(self.tasks) for _ in range(len(Priority) + 1))
        self.keys: dict[str, int] = {}
        self.finished: dict[int, Finished] = {}
        self.deleted: dict[int, None] = {}
        self.retention: deque[tuple[Instant, int]] = deque()
        self.children: dict[int, list[tuple[Task, int]]] = {}
        self.children_gone: dict[int, int] = {}
        self.parents: dict[int, tuple[int, ...]] = {}
        self.pinned: dict[int, int] = {}
        self.spared: dict[int, None] = {}  # pinned parents that ended before retention
        self.awaited: dict[str, dict[int, list[tuple[Task, int]]]] = {}
        self.sessions: dict[int, Session] = {}
        self.tokens: dict[bytes, int] = {}
        self.unreleased: deque[tuple[int, list[Attempt]]] = deque()
        self.schedules: dict[str, Schedule] = {}
        self.occurrences: dict[str, dict[int, None]] = {}
        self.overrides: dict[str, ResourceResized] = {}
        self.orphans: dict[str, None] = {}  # resources that are no longer configured
        self.waits: dict[int, WaitState] = {}
        self.waiters: dict[int, list[int]] = {}
        self.parked: dict[int, Submit] = {}
        self.named: dict[TaskRef, int] = {}
        self.watches = 0
        self.totals = [0] * len(Total)
        self.wall_timers: TimerHeap[Task | str] = TimerHeap(self._wall_alive)
        self.mono_timers: TimerHeap[Task | int] = TimerHeap(self._mono_alive)
        self.ttl_shift = 0
        self.last_mono = 0
        self.dispatching = True
        self.resting = False

    def new_pool(self, settings: PoolSettings) -> Pool:
        """A pool that shares its list of lease deadlines with those of the same TTL."""
        ttl = settings.lease_ttl
        return Pool(settings, self.lease_lists.setdefault(ttl, ExpiryList(ttl)))

    def has_pool(self, name: str) -> bool:
        """Whether the configuration has this pool."""
        pool = self.pools.get(name)
        return pool is not None and pool.configured

    def keep_orphan(self, spec: TaskSpec) -> None:
        """Makes room for a recovered task whose pool or resources are no longer configured."""
        if spec.pool not in self.pools:
            settings = PoolSettings(spec.pool)
            pool = self.pools[spec.pool] = self.new_pool(settings)
            pool.configured = False
            self.placement.add_pool(_pool_rules(settings))
        for name, _ in spec.resources:
            if self.resources.rules_of(name) is None:
                self.orphans[name] = None
                self.resources.add(ResourceRules(name, 0))

    def adopt(self, task: Task) -> None:
        """Puts a task into the tables."""
        self.tasks[task.id] = task
        self.index.add(task.id)
        self.postings.add(task.id, task.spec)
        by_class = self.pools[task.spec.pool].by_class
        if by_class:
            by_class[task.priority].add(task.id)
        if task.spec.key:
            self.keys[task.spec.key] = task.id
        for name, value in task.spec.tags:
            if name == SCHEDULE_TAG:
                task.schedule = value
                self.occurrences.setdefault(value, {})[task.id] = None

    def unbook(self, task: Task) -> None:
        """Gives back the stretch booked for a task's fixed start."""
        assert task.booked is not None
        self.pools[task.spec.pool].bookings.remove(*task.booked)
        task.booked = None

    def retire(self, task: Task) -> None:
        """Takes an ended task out of the tables of live ones."""
        del self.tasks[task.id]
        self.index.left(task.id)
        self.postings.left(task.id, task.spec)
        by_class = self.pools[task.spec.pool].by_class
        if by_class:
            by_class[task.priority].left(task.id)
        if task.schedule:
            alive = self.occurrences[task.schedule]
            del alive[task.id]
            if not alive:
                del self.occurrences[task.schedule]
        self.placement.release(task.demand)

    def demand(self, spec: TaskSpec) -> Demand:
        """What a spec asks of its pool's slots and of resources, shared by all that ask alike."""
        labels = tuple(f"{name}={value}" for name, value in spec.labels) if spec.labels else ()
        return self.placement.demand(spec.pool, labels, spec.kind, spec.resources, spec.tenant)

    def set_parents(self, task: Task, parents: tuple[int, ...]) -> None:
        """Notes a task's parents and keeps those remembered."""
        self.pin(parents[len(self.parents.get(task.id, ())) :])
        self.parents[task.id] = parents

    def child_left(self, parent: int) -> None:
        """Notes that a child ended before its parent; sweeps the list when most of it has."""
        entries = self.children.get(parent)
        if entries is None:
            return
        gone = self.children_gone.get(parent, 0) + 1
        if gone > CHILDREN_GONE_MIN and gone * 2 > len(entries):
            entries[:] = [entry for entry in entries if entry[0].status == Status.BLOCKED]
            gone = 0
        self.children_gone[parent] = gone

    def await_key(self, key: str, task: Task, condition: int) -> None:
        """Notes that a task waits for a key that nobody has submitted yet."""
        self.awaited.setdefault(key, {}).setdefault(task.id, []).append((task, condition))
        task.awaiting += 1

    def disarm(self, task: Task) -> None:
        """Tells the timer heaps how many entries lose their meaning with a task's end or start."""
        if not task.attempt:
            armed = (task.expires_at is not None) + (task.miss_at is not None)
            armed += task.status == Status.SCHEDULED
            if armed:
                self.wall_timers.disarmed(armed)
        if task.status == Status.RETRYING or task.awaiting:
            self.mono_timers.disarmed()

    def is_past(self, task_id: int) -> bool:
        """Whether this id of ours has been given out before."""
        settings = self.settings
        if settings.shard is not None and ids.shard_of(task_id) != settings.shard:
            return False
        return 0 < task_id <= self.ids.last

    def timeouts(self, length: int) -> ExpiryList:
        """The list of timeouts of this length."""
        found = self.timeout_lists.get(length)
        if found is None:
            found = self.timeout_lists[length] = ExpiryList(length)
        return found

    def end_timeout(self, timeout: Timeout, length: int) -> None:
        """Takes a timeout out of its list, and the list with it if it was the last one."""
        timeouts = self.timeout_lists[length]
        timeouts.remove(timeout)
        if timeouts.is_empty:
            del self.timeout_lists[length]

    def resolve(self, target: TaskRef, scope: Scope) -> Task | Finished | None:
        """The task, live or remembered, if the caller may know of it."""
        task_id = self.keys.get(target) if isinstance(target, str) else target
        if task_id is None:
            return None
        task = self.tasks.get(task_id)
        if task is not None:
            return task if scope is None or task.spec.pool in scope else None
        ended = self.finished.get(task_id)
        if ended is not None and scope is not None and ended.pool not in scope:
            return None
        return ended

    def drop_session(self, session: Session) -> None:
        """Forgets a session that holds nothing any more."""
        if self.sessions.pop(session.number, None) is not None:
            self.tokens.pop(session.token, None)

    def forget_finished(self, now_mono: Instant) -> None:
        """Lets go of ended tasks beyond retention, oldest first, but for pinned ones."""
        horizon = now_mono - self.settings.key_retention
        retention, finished, most = self.retention, self.finished, self.settings.finished_max
        while retention and (retention[0][0] < horizon or len(retention) > most):
            kept_from, task_id = retention.popleft()
            ended = finished.get(task_id)
            if ended is None or ended.kept_from != kept_from:
                continue
            if task_id in self.pinned:
                self.spared[task_id] = None
                continue
            if self.named and (task_id in self.named or ended.key in self.named):
                continue
            self.drop_finished(ended)

    def drop_finished(self, ended: Finished) -> None:
        """Removes one ended task and its key."""
        del self.finished[ended.task_id]
        self.spared.pop(ended.task_id, None)
        if ended.key and self.keys.get(ended.key) == ended.task_id:
            del self.keys[ended.key]

    def forget_deleted(self, task_id: int) -> None:
        """Notes that a task was deleted, for events whose look-ups came before."""
        self.deleted[task_id] = None
        if len(self.deleted) > DELETED_MAX:
            del self.deleted[next(iter(self.deleted))]

    def park(self, event: Submit) -> None:
        """Keeps a call that waits for room; what it names is remembered until it gets in.

        What was looked up in the store for it gets old while it waits.
        """
        self.parked[event.call] = event
        for name in _names_in(event):
            self.named[name] = self.named.get(name, 0) + 1

    def unpark(self, call: int) -> Submit | None:
        """Lets go of a call that waits for room; None if it does not (any more)."""
        event = self.parked.pop(call, None)
        if event is None:
            return None
        for name in _names_in(event):
            self.named[name] -= 1
            if not self.named[name]:
                del self.named[name]
                task_id = self.keys.get(name, 0) if isinstance(name, str) else name
                ended = self.finished.get(task_id)
                if ended is not None:
                    ended.kept_from = self.last_mono
                    self.retention.append((self.last_mono, task_id))
        return event

    def pin(self, parents: Iterable[int]) -> None:
        """Keeps parents remembered while a child lives."""
        for parent in parents:
            self.pinned[parent] = self.pinned.get(parent, 0) + 1
            if parent not in self.tasks and parent not in self.finished:
                self.spared[parent] = None  # only the store knows it

    def unpin(self, parents: Iterable[int], now_mono: Instant) -> None:
        """Lets go of parents; one that ended long ago is queued to be forgotten."""
        for parent in parents:
            left = self.pinned.get(parent, 0) - 1
            if left > 0:
                self.pinned[parent] = left
            else:
                self.pinned.pop(parent, None)
                self.spared.pop(parent, None)
                ended = self.finished.get(parent)
                if ended is not None:
                    ended.kept_from = now_mono
                    self.retention.append((now_mono, parent))

    def _wall_alive(self, at: int, kind: int, owner: Task | str) -> bool:
        if isinstance(owner, str):
            schedule = self.schedules.get(owner)
            return schedule is not None and schedule.due_at == at
        if kind == TimerKind.DUE:
            return owner.status == Status.SCHEDULED and owner.due_at == at
        if kind == TimerKind.HOLD:
            return owner.status == Status.SCHEDULED and not owner.held
        if owner.attempt or owner.status not in _UNSTARTED:
            return False
        return at == (owner.miss_at if kind == TimerKind.MISS else owner.expires_at)

    def _mono_alive(self, at: int, kind: int, owner: Task | int) -> bool:
        if isinstance(owner, int):
            return owner in (self.parked if kind == TimerKind.PARK else self.waits)
        if kind == TimerKind.BACKOFF:
            return owner.status == Status.RETRYING and owner.backoff_until == at
        if kind == TimerKind.AWAIT:
            return owner.status == Status.BLOCKED and owner.awaiting > 0
        return owner.status < FIRST_TERMINAL and any(until == at for _, until in owner.refusals)

    def close(self) -> None:
        """Cuts every link, so that untracked records are freed."""
        for task in self.tasks.values():
            self.placement.withdraw(task)
        for table in (self.lease_lists, self.timeout_lists):
            for expiries in table.values():
                expiries.clear()
        for session in self.sessions.values():
            for attempt in session.leases.values():
                attempt.timeout = None
            session.leases.clear()
        for mapping in (
            self.tasks,
            self.finished,
            self.children,
            self.parents,
            self.awaited,
            self.sessions,
            self.waiters,
            self.waits,
            self.parked,
        ):
            mapping.clear()
        self.index.clear()
        self.postings.clear()
        self.unreleased.clear()
        self.retention.clear()
        self.wall_timers.clear()
        self.mono_timers.clear()


def _names_in(event: Submit) -> Iterator[TaskRef]:
    """The keys and parents of a call's tasks."""
    for spec in event.specs:
        if spec.key:
            yield spec.key
        for edge in spec.dependencies:
            yield edge.target


WEIGHT_ONE = 1000
"""What a tenant of weight 1 weighs in placement, which wants whole numbers."""


def _pool_rules(settings: PoolSettings) -> PoolRules:
    weights = {
        tenant: max(1, round(weight * WEIGHT_ONE)) for tenant, weight in settings.tenant_weights
    }
    return PoolRules(settings.name, settings.fair_share, weights, WEIGHT_ONE, settings.max)


def resource_rules(settings: ResourceSettings) -> ResourceRules:
    """What placement is told of a configured resource."""
    if settings.kind == "token_bucket":
        rate = round(settings.rate * NANO)
        return ResourceRules(settings.name, None, rate, settings.burst, settings.per_value)
    return ResourceRules(settings.name, settings.permits, per_value=settings.per_value)
