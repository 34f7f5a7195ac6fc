"""Decides which waiting task goes to which free slot, one dispatch step at a time.

A step makes greedy passes. A pass takes the best task in line (score, then ready since, then id,
over all classes and pools) whose gate is open. If amounts of its resources are there it starts;
if not, it stays and *claims* what it is short of, so that nobody ranked after it takes any in this
pass. When a pass started something and something is claimed, another pass begins without claims.

Rules a change must keep:

- Within a pass gates only close, so the best task of a class stays the best while its gate is open.
- One way in (`_enter`) and one way out (`_leave`) of the lines, one way to start.
- All instants are of one clock each: `wall` for waiting and deadlines, `mono` for refills.
- No linear term in the number of waiting tasks, sets are never iterated, numbers are whole.

This module does not know attempts, leases, statuses or messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush, heapreplace

import msgspec

from .gates import NOBODY, Demand, Gates
from .lines import OUT, STARTED, Line
from .resources import Needs, Resource, Resources
from .roster import Roster, Session
from .urgency import Rush, score

PRIORITIES = (1, 2, 3, 4)


class Waiting(msgspec.Struct, gc=False, eq=False):
    """What placement keeps in each task. The engine's own task record extends it.

    Args:
        id: Task id, the last word in every tie.
        priority: 1 critical, 2 high, 3 normal, 4 low.
        since: Instant (wall, ns) at which the task last became ready.
        demand: What it asks for, from `Placement.demand`.

    Fields that begin with `p_` belong to placement alone.
    """

    id: int
    priority: int
    since: int
    demand: Demand
    p_at: int = OUT
    p_via: Demand | None = None
    p_rush: Rush | None = None


class PoolRules(msgspec.Struct, frozen=True):
    """How one pool is placed.

    Args:
        name: Name of the pool.
        fair_share: True if tenants share each class of the pool by weight.
        weights: Weight of each tenant, whole and at least 1.
        default_weight: Weight of a tenant that is not named.
        max: Slots the pool may grant, None for no limit; whoever grants slots keeps it.
        paused: True if nothing starts for now.
    """

    name: str
    fair_share: bool = False
    weights: Mapping[str, int] = {}
    default_weight: int = 1
    max: int | None = None
    paused: bool = False


class _Pool:
    """One pool: its sessions, its gates and a line per class."""

    __slots__ = ("gates", "index", "is_dirty", "is_masked", "lines", "paused", "roster", "rules")

    def __init__(self, index: int, rules: PoolRules, resources: Resources) -> None:
        self.index = index
        self.rules = rules
        self.paused = rules.paused
        self.roster = Roster()
        self.gates = Gates(index, self.roster, resources)
        self.is_masked = False
        self.is_dirty = False
        self.lines = [Line(False) for _ in range(5)]  # by priority; the first one is not used

    def remask(self) -> None:
        """Builds the masks of all lines after the gates were made anew."""
        self.gates.must_remask = False
        self.is_masked = not self.gates.is_uniform
        for line in self.lines:
            line.remask(self.is_masked)


_Candidate = tuple[int, int, int, Waiting, _Pool, Line]


class Placement:
    """The waiting tasks, the free slots, and who gets what."""

    def __init__(self, pools: Sequence[PoolRules], resources: Resources) -> None:
        self._pools: list[_Pool] = []
        self._by_name: dict[str, _Pool] = {}
        self._sessions: dict[int, Session] = {}
        self.resources = resources
        self._dirty: list[_Pool] = []
        self._claimed: list[Resource] = []
        self._wanted: dict[str, int] = {}  # amounts of buckets that claims wait for
        self._reopenings: list[tuple[int, str]] = []  # (mono, name) of closed buckets
        for rules in pools:
            self.add_pool(rules)

    def add_pool(self, rules: PoolRules) -> None:
        """Adds a pool."""
        pool = _Pool(len(self._pools), rules, self.resources)
        self._pools.append(pool)
        self._by_name[rules.name] = pool

    def set_paused(self, pool: str, paused: bool) -> None:
        """Pauses or resumes a pool; what waits keeps its place."""
        found = self._by_name[pool]
        found.paused = paused
        self._touch(found)

    # Demands

    def demand(
        self,
        pool: str,
        labels: tuple[str, ...] = (),
        kind: str = "",
        resources: tuple[tuple[str, int], ...] = (),
        tenant: str = "",
    ) -> Demand:
        """Returns what a task asks for, shared with all tasks that ask for the same.

        Each call must be given back with `release` when the task has ended.

        Raises:
            KeyError: No such pool, or a resource that is not configured.
        """
        found = self._by_name[pool]
        if not found.rules.fair_share:
            tenant = ""
        demand = found.gates.find((labels, kind, resources, tenant, NOBODY))
        if found.gates.must_remask:
            found.remask()
        return demand

    def release(self, demand: Demand) -> None:
        """Gives back what `demand` returned."""
        self._pools[demand.pool].gates.release(demand)

    # Sessions

    def session_joined(
        self,
        session: int,
        pool: str,
        labels: Iterable[str] = (),
        kinds: Iterable[str] = (),
        free: int = 0,
    ) -> None:
        """Adds a worker session; no kinds means any kind."""
        assert session not in self._sessions and session >= 0, session
        found = self._by_name[pool]
        profile, is_new = found.roster.profile(labels, kinds)
        profile.members += 1
        found.roster.members += 1
        joined = Session(session, found.index, profile)
        self._sessions[session] = joined
        if is_new:
            found.gates.admit_profile(profile)
            if found.gates.must_remask:
                found.remask()
        self.slots(session, free)

    def session_left(self, session: int) -> None:
        """Removes a session; what it ran is the engine's business."""
        self.slots(session, 0)
        left = self._sessions.pop(session)
        pool = self._pools[left.pool]
        pool.roster.forget(left)
        if pool.roster.is_sparse:
            pool.gates.refit()
            pool.remask()

    def slots(self, session: int, free: int) -> None:
        """Sets how many slots of a session are free now."""
        found = self._sessions[session]
        pool = self._pools[found.pool]
        more = free > found.told
        found.told = free
        if pool.roster.set_free(found, free) or pool.gates.has_picky:
            pool.gates.is_stale = True
        if more and not pool.is_dirty:
            self._touch(pool)

    # Tasks

    def push(
        self,
        task: Waiting,
        now_wall: int,
        latest_start: int | None = None,
        expected_ns: int = 0,
    ) -> None:
        """Puts a task in line that became ready at `task.since`."""
        demand = task.demand
        pool = self._pools[demand.pool]
        pool.lines[task.priority].push(task)
        for account, _ in demand.needs:
            account.waiting += 1
        if not pool.is_dirty:
            self._touch(pool)

    def push_back(
        self,
        task: Waiting,
        now_wall: int,
        latest_start: int | None = None,
        expected_ns: int = 0,
        avoid: int | None = None,
    ) -> None:
        """Puts a task back in line in its old place, `task.since`.

        The session `avoid` is passed over until `forgive` is called.
        """
        if avoid is not None:
            pool = self._pools[task.demand.pool]
            task.p_via = pool.gates.variant(task.demand, avoid)
            if pool.gates.must_remask:
                pool.remask()
        self.push(task, now_wall, latest_start, expected_ns)

    def forgive(self, task: Waiting) -> None:
        """Lets the session that was passed over have the task again."""
        via = task.p_via
        if via is None:
            return
        task.p_via = None
        pool = self._pools[via.pool]
        if task.p_at not in (OUT, STARTED):
            pool.lines[task.priority].remark(task)
            self._touch(pool)
        pool.gates.release(via)

    def withdraw(self, task: Waiting) -> None:
        """Takes a waiting task out of its line, for whatever reason."""
        if task.p_at in (OUT, STARTED):
            return
        self._leave(task, self._pools[task.demand.pool])

    def finished(self, task: Waiting) -> None:
        """Gives back what a started task holds of its resources; its attempt has ended."""
        assert task.p_at == STARTED, task.id
        task.p_at = OUT
        needs = task.demand.needs
        if needs:
            self.resources.give(needs)

    def run(self, now_wall: int, now_mono: int) -> list[tuple[Waiting, int]]:
        """Starts what can start now.

        Returns:
            Tasks and the sessions that got them, in the order of dispatch. Their resources are
            taken and the slots are no longer free.
        """
        self._settle(now_mono)
        started: list[tuple[Waiting, int]] = []
        if not self._dirty:
            return started
        while True:
            count = len(started)
            self._pass(now_wall, now_mono, started)
            claimed = self._drop_claims()
            if not claimed:
                for pool in self._dirty:
                    pool.is_dirty = False
                self._dirty = []
                return started
            if len(started) == count:
                return started

    def next_change(self) -> tuple[int | None, int | None]:
        """Returns the instants (wall, mono) at which time alone may let `run` start something."""
        mono = self._reopenings[0][0] if self._reopenings else None
        for name, amount in self._wanted.items():
            account = self.resources.find(name)
            at = account.instant_of(amount) if account is not None else None
            if at is not None and (mono is None or at < mono):
                mono = at
        return None, mono

    # Questions

    def count(self, pool: str) -> tuple[int, int, int, int]:
        """Returns how many tasks wait in each class, critical first."""
        lines = self._by_name[pool].lines
        return len(lines[1]), len(lines[2]), len(lines[3]), len(lines[4])

    def newest_of_lowest_class(self, pool: str, above: int) -> Waiting | None:
        """Returns the newest waiting task of the lowest class below class `above`."""
        lines = self._by_name[pool].lines
        for priority in (4, 3, 2, 1):
            if priority <= above:
                return None
            if len(lines[priority]):
                return lines[priority].newest()
        return None

    def longest_waiting(self, pool: str, priority: int) -> Waiting | None:
        """Returns the task of a class that waits longest."""
        return self._by_name[pool].lines[priority].oldest()

    def waiting_for(self, task: Waiting) -> tuple[str, ...]:
        """Returns what a waiting task lacks, in words for people; empty if nothing."""
        pool = self._pools[task.demand.pool]
        demand = task.p_via or task.demand
        lacks = []
        if pool.paused:
            lacks.append(f"pool {pool.rules.name} is paused")
        lacks.extend(self._lacking_worker(pool, demand))
        for account, amount in demand.needs:
            if amount > account.capacity:
                lacks.append(f"resource {account.name}: asks for more than it can hold")
            elif amount > account.available:
                lacks.append(f"resource {account.name}")
        return tuple(lacks)

    @staticmethod
    def _lacking_worker(pool: _Pool, demand: Demand) -> list[str]:
        roster = pool.roster
        fits = roster.fitting(demand.labels, demand.kind)
        if not pool.roster.members:
            return [f"pool {pool.rules.name}: no worker is connected"]
        if not fits & roster.connected():
            lacks = []
            profiles = [profile for profile in roster if profile.members]
            lacks.extend(
                f"label {label}"
                for label in sorted(demand.labels)
                if not any(label in profile.labels for profile in profiles)
            )
            if not any(profile.fits(frozenset(), demand.kind) for profile in profiles):
                lacks.append(f"kind {demand.kind}: no worker serves it")
            return lacks or ["no worker has these labels and serves this kind"]
        free = fits & roster.free
        if free and demand.avoid >= 0:
            free = roster.without(free, demand.avoid)
        return [] if free else ["no free slot"]

    # The inside

    def _touch(self, pool: _Pool) -> None:
        if not pool.is_dirty:
            pool.is_dirty = True
            self._dirty.append(pool)

    def _leave(self, task: Waiting, pool: _Pool) -> None:
        pool.lines[task.priority].remove(task)
        for account, _ in task.demand.needs:
            account.waiting -= 1

    def _settle(self, mono: int) -> None:
        """Refills buckets that were closed and looks again at accounts that changed."""
        resources = self.resources
        resources.advance(mono)
        while self._reopenings and self._reopenings[0][0] <= mono:
            account = resources.find(heappop(self._reopenings)[1])
            if account is not None:
                account.refill(mono)
                resources.touched.append(account)
        if resources.touched:
            touched, resources.touched = resources.touched, []
            for account in touched:
                self._look_at(account)
                for index in account.users:
                    self._touch(self._pools[index])

    def _look_at(self, account: Resource) -> None:
        """Closes or opens an account by what is left of it and whether it is claimed."""
        closed = account.claimed or account.available < account.one
        if closed == account.closed:
            return
        account.closed = closed
        for index in account.users:
            self._pools[index].gates.set_closed(account, closed)
        if closed and account.is_bucket and not account.claimed:
            at = account.instant_of(account.one)
            if at is not None:
                heappush(self._reopenings, (at, account.name))

    def _drop_claims(self) -> bool:
        claimed, self._claimed = self._claimed, []
        for account in claimed:
            account.claimed = False
            self._look_at(account)
            for index in account.users:
                self._touch(self._pools[index])
        return bool(claimed)

    def _pass(self, wall: int, mono: int, started: list[tuple[Waiting, int]]) -> None:
        """Takes the best task in line again and again until no gate with a task is open."""
        self._wanted = {}
        heap = self._candidates(wall)
        while heap:
            _, _, _, task, pool, line = heap[0]
            demand = task.p_via or task.demand
            gates = pool.gates
            if demand.gate.bit & gates.open_bits:
                if demand.needs and self._claim(demand.needs, mono):
                    pass
                else:
                    self._start(task, demand, pool, line, started)
            following = line.first(gates.open_bits) if gates.open_bits else None
            if following is None:
                heappop(heap)
            else:
                rank = (-score(following, wall), following.since, following.id)
                heapreplace(heap, (*rank, following, pool, line))

    def _candidates(self, wall: int) -> list[_Candidate]:
        """Returns the best task of each class of each pool that may give something, as a heap."""
        heap: list[_Candidate] = []
        for pool in self._dirty:
            if pool.paused:
                continue
            open_bits = pool.gates.open_bits
            if not open_bits:
                continue
            for line in pool.lines:
                task = line.first(open_bits)
                if task is not None:
                    rank = (-score(task, wall), task.since, task.id)
                    heap.append((*rank, task, pool, line))
        heapify(heap)
        return heap

    def _claim(self, needs: Needs, mono: int) -> bool:
        """Closes what a task is short of for the rest of the pass; returns True if it is short."""
        short = False
        for account, amount in needs:
            if account.is_bucket:
                account.refill(mono)
            if account.available < amount:
                short = True
                if account.is_bucket:
                    self._want(account, amount)
                if not account.claimed:
                    account.claimed = True
                    self._claimed.append(account)
                    self._look_at(account)
        return short

    def _want(self, account: Resource, amount: int) -> None:
        before = self._wanted.get(account.name)
        if before is None or amount < before:
            self._wanted[account.name] = amount

    def _start(
        self,
        task: Waiting,
        demand: Demand,
        pool: _Pool,
        line: Line,
        started: list[tuple[Waiting, int]],
    ) -> None:
        roster = pool.roster
        avoid = demand.avoid
        session = roster.choose(demand.gate.fits, None if avoid == NOBODY else avoid)
        self._leave(task, pool)
        task.p_at = STARTED
        if demand.needs:
            self.resources.take(demand.needs)
            for account, _ in demand.needs:
                self._look_at(account)
        if roster.use(session) or pool.gates.has_picky:
            pool.gates.is_stale = True
        if task.p_via is not None:
            pool.gates.release(task.p_via)
            task.p_via = None
        started.append((task, session.number))
