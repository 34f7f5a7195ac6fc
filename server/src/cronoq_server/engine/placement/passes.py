"""Decides what starts in one dispatch step, by greedy passes over the best tasks in line.

A pass takes the best task in line (score, then ready since, then id, over all classes and pools;
in a fair class the best of the tenant whose turn it is). If amounts of its resources are there, it
starts. If not, it stays and *claims* what it is short of: nobody ranked after it takes any of it
in this pass. When a pass started something and something is claimed, another pass begins.

*Elders*: per class, the task that wants resources and waits longest, if that is a minute or more
and a connected session fits. What it wants counts as taken for everybody ranked after it, and a
pass begins with it if all is there. Without them, several scarce things never come together.

Rules a change must keep:

- Within a pass gates only close, so the best task of a queue stays the best while its gate is
  open. When it closes, the next one of a line ranks lower, that of the next tenant maybe higher.
- A hall may be forgotten (`is_dirty` False) only after a pass in which nobody was short of
  anything: then nothing in it can start before a slot, an account or a task comes.
- A closed account has less than one permit or token, or is claimed.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush, heapreplace
from typing import TypeAlias

from cronoq_server.engine.placement.gates import HOLDER, Demand
from cronoq_server.engine.placement.halls import PRIORITIES, Hall, Queue
from cronoq_server.engine.placement.lines import Line
from cronoq_server.engine.placement.openings import Openings
from cronoq_server.engine.placement.resources import Needs, Resource, Resources
from cronoq_server.engine.placement.urgency import SECOND, score
from cronoq_server.engine.placement.waiting import HOT, STARTED, Waiting

ELDER_AGE = 60 * SECOND

Rank: TypeAlias = tuple[int, int, int]
Started: TypeAlias = list[tuple[Waiting, int]]
_Candidate: TypeAlias = tuple[int, int, int, Waiting, "_Stand"]


class _Stand:
    """A queue in a pass, and the task that is its best while that task's gate is open."""

    __slots__ = ("hall", "queue", "task")

    def __init__(self, hall: Hall, queue: Queue, task: Waiting) -> None:
        self.hall = hall
        self.queue = queue
        self.task: Waiting | None = task


class Passes:
    """The passes over all halls, and what they leave for the next step."""

    def __init__(self, halls: list[Hall], resources: Resources, openings: Openings) -> None:
        self._halls = halls
        self._resources = resources
        self._openings = openings
        self._dirty: list[Hall] = []
        self._claimed: list[Resource] = []
        self._wanted: dict[Resource, int] = {}  # amounts of buckets that claims wait for
        self._aside: dict[Resource, list[tuple[Rank, int]]] = {}  # what elders keep from others
        self._reopenings: list[tuple[int, str]] = []  # (mono, name) of closed buckets
        self._is_short = False  # the last pass ended with claims
        self._flips = 0  # how often an account was closed or opened

    def touch(self, hall: Hall) -> None:
        """Notes that something in a hall changed that may let a task start."""
        if not hall.is_dirty:
            hall.is_dirty = True
            self._dirty.append(hall)

    def run(self, wall: int, mono: int) -> Started:
        """Starts what can start now, in the order of dispatch."""
        self._settle(mono)
        started: Started = []
        while self._dirty:
            count = len(started)
            self._pass(wall, mono, started)
            self._is_short = self._drop_claims()
            if not self._is_short:
                for hall in self._dirty:
                    hall.is_dirty = False
                self._dirty = []
            elif len(started) == count:
                break
        return started

    def leave(self, task: Waiting, hall: Hall) -> None:
        """Takes a task out of its queue; the only way out."""
        was_hot = task.p_at == HOT
        hall.leave(task)
        if task.p_rush is not None:
            task.p_rush = None
            if not was_hot:
                self._openings.drop()

    def next_refill(self) -> int | None:
        """Returns the monotonic instant at which a bucket that is wanted has enough."""
        heap = self._reopenings
        while heap:
            account = self._resources.find(heap[0][1])
            if account is not None and account.closed:
                break
            heappop(heap)
        first = heap[0][0] if heap else None
        for account, amount in self._wanted.items():
            at = account.instant_of(amount)
            if at is not None and (first is None or at < first):
                first = at
        return first

    def next_turn(self, wall: int) -> int | None:
        """Returns the wall instant at which ranks change so that claims may fall otherwise."""
        if not self._is_short:
            return None
        first = self._openings.next()
        for hall in self._halls:
            if not hall.has_patients or hall.paused:
                continue
            bits = hall.gates.connected_bits
            for priority in PRIORITIES:
                task = hall.patients[priority].first(bits)
                if task is not None and wall < task.since + ELDER_AGE:
                    at = task.since + ELDER_AGE
                    first = at if first is None or at < first else first
        return first

    def _settle(self, mono: int) -> None:
        """Refills buckets that are due and looks again at accounts that changed."""
        resources = self._resources
        resources.advance(mono)
        while self._reopenings and self._reopenings[0][0] <= mono:
            account = resources.find(heappop(self._reopenings)[1])
            if account is not None and account.closed:
                resources.touched.append(account)
        if not resources.touched:
            return
        touched, resources.touched = resources.touched, []
        for account in touched:
            if account.is_bucket:
                account.refill(mono)
            self._look_at(account)
            if account.closed and account.is_bucket:
                self._await_refill(account)

    def _look_at(self, account: Resource) -> None:
        """Closes or opens an account by what is left of it and whether it is claimed."""
        closed = account.claimed or account.available < account.one
        if closed == account.closed:
            return
        account.closed = closed
        self._flips += 1
        for index in account.pools:
            hall = self._halls[index]
            for demand in hall.gates.set_closed(account, closed):
                for queue in hall.classes:
                    queue.show(demand)
            if not closed:
                self.touch(hall)
        if closed and account.is_bucket and not account.claimed:
            self._await_refill(account)

    def _await_refill(self, account: Resource) -> None:
        at = account.instant_of(account.one)
        if at is not None:
            heappush(self._reopenings, (at, account.name))

    def _pass(self, wall: int, mono: int, started: Started) -> None:
        self._wanted.clear()
        self._aside.clear()
        self._start_elders(wall, mono, started)
        heap, fair = self._candidates(wall)
        while heap:
            negative_score, since, number, task, stand = heap[0]
            if stand.task is not task:
                heappop(heap)
                continue
            hall = stand.hall
            gates = hall.gates
            demand = task.p_via or task.demand
            flips = self._flips
            if not demand.needs and stand.queue.is_plain and not len(hall.holds):
                self._start_many(heap, wall, started)
            elif (
                demand.gate.bit & gates.open_bits
                and not demand.shut_accounts
                and not (
                    demand.needs
                    and self._claim(demand.needs, (negative_score, since, number), mono)
                )
            ):
                self._start(task, demand, hall, started)
            open_bits = gates.open_bits
            following = stand.queue.first(open_bits, wall) if open_bits else None
            stand.task = following
            if following is None:
                heappop(heap)
            else:
                heapreplace(heap, (*_rank(following, wall), following, stand))
            if fair:
                # A start changes its own hall; an account may change any.
                halls = fair.values() if self._flips != flips else (fair.get(hall.index, ()),)
                for stands in halls:
                    for other in stands:
                        self._check_turn(other, heap, wall)

    def _start_many(self, heap: list[_Candidate], wall: int, started: Started) -> None:
        """Starts tasks from the head of the best line while they are the best.

        They want nothing but a slot and stand behind one gate.
        """
        task, stand = heap[0][3:]
        line = stand.queue
        assert isinstance(line, Line)
        hall = stand.hall
        roster = hall.roster
        fits = task.demand.gate.fits
        rival = min(heap[1:3])[:3] if len(heap) > 1 else None
        tasks = line.tasks
        index = line.head
        count = len(started)
        while fits & roster.free and index < len(tasks):
            following = tasks[index]
            if following is not None:
                if rival is not None and _rank(following, wall) > rival:
                    break
                session = roster.take(fits)
                tasks[index] = None
                following.p_at = STARTED
                if following.p_rush is not None:
                    following.p_rush = None
                    self._openings.drop()
                started.append((following, session.number))
            index += 1
        if len(started) > count:
            line.advance(index, len(started) - count)
        hall.gates.refresh()

    def _candidates(self, wall: int) -> tuple[list[_Candidate], dict[int, list[_Stand]]]:
        """Returns the best task of each class of each hall that may give something, as a heap.

        And the stands among them whose tenants take turns, by hall.
        """
        heap: list[_Candidate] = []
        fair: dict[int, list[_Stand]] = {}
        for hall in self._dirty:
            open_bits = 0 if hall.paused else hall.gates.open_bits
            if not open_bits:
                continue
            for queue in hall.classes:
                task = queue.first(open_bits, wall)
                if task is not None:
                    stand = _Stand(hall, queue, task)
                    heap.append((*_rank(task, wall), task, stand))
                    if hall.turns:
                        fair.setdefault(hall.index, []).append(stand)
        heapify(heap)
        return heap, fair

    def _check_turn(self, stand: _Stand, heap: list[_Candidate], wall: int) -> None:
        """Looks whose turn it is when the one whose turn it was can run no more.

        In a line the next one ranks lower and may be found late; the next tenant's task may rank
        higher.
        """
        task = stand.task
        if task is None:
            return
        open_bits = stand.hall.gates.open_bits
        demand = task.p_via or task.demand
        if demand.gate.bit & open_bits and not demand.shut_accounts:
            return
        task = stand.task = stand.queue.first(open_bits, wall) if open_bits else None
        if task is not None:
            heappush(heap, (*_rank(task, wall), task, stand))

    def _claim(self, needs: Needs, rank: Rank, mono: int) -> bool:
        """Closes what a task is short of for the rest of the pass; returns True if it is short."""
        short = False
        for account, amount in needs:
            if account.is_bucket:
                account.refill(mono)
            for elder, kept in self._aside.get(account, ()):
                if elder < rank:
                    amount += kept
            if account.available < amount:
                short = True
                if account.is_bucket:
                    before = self._wanted.get(account)
                    if before is None or amount < before:
                        self._wanted[account] = amount
                if not account.claimed:
                    account.claimed = True
                    self._claimed.append(account)
                    self._look_at(account)
        return short

    def _drop_claims(self) -> bool:
        claimed, self._claimed = self._claimed, []
        for account in claimed:
            account.claimed = False
            self._look_at(account)
        return bool(claimed)

    def _start_elders(self, wall: int, mono: int, started: Started) -> None:
        """Starts the elders that can; keeps what the others want from those ranked after them."""
        for rank, task, hall in self._elders(wall):
            demand = task.p_real or task.p_via or task.demand
            needs = demand.needs
            if demand.gate.bit & hall.gates.open_bits and self._is_there(needs, mono):
                self._start(task, demand, hall, started)
                continue
            for account, amount in needs:
                self._aside.setdefault(account, []).append((rank, amount))

    def _elders(self, wall: int) -> list[tuple[Rank, Waiting, Hall]]:
        elders: list[tuple[Rank, Waiting, Hall]] = []
        halls = [hall for hall in self._halls if hall.has_patients and not hall.paused]
        for priority in PRIORITIES if halls else ():
            eldest: tuple[int, int, Waiting, Hall] | None = None
            for hall in halls:
                bits = hall.gates.connected_bits
                task = hall.patients[priority].first(bits)
                if task is not None and wall - task.since >= ELDER_AGE:
                    other = (task.since, task.id, task, hall)
                    eldest = other if eldest is None or other[:2] < eldest[:2] else eldest
            if eldest is not None:
                elders.append((_rank(eldest[2], wall), eldest[2], eldest[3]))
        elders.sort(key=lambda elder: elder[0])
        return elders

    def _is_there(self, needs: Needs, mono: int) -> bool:
        for account, amount in needs:
            if account.is_bucket:
                account.refill(mono)
            kept = sum(each for _, each in self._aside.get(account, ()))
            if account.available < amount + kept:
                return False
        return True

    def _start(self, task: Waiting, demand: Demand, hall: Hall, started: Started) -> None:
        roster = hall.roster
        avoid = demand.avoid
        if hall.turns:
            hall.turns[task.priority].charge(task)
        if avoid == HOLDER:
            session = hall.holds.consume(task)
        else:
            # Holds are served before others get a slot, so a task that waits for one has none.
            assert task not in hall.holds, task.id
            session = roster.take(demand.gate.fits, avoid)
            if not session.free:
                hall.gates.refresh()
        needs = demand.needs
        self.leave(task, hall)
        task.p_at = STARTED
        if needs:
            self._resources.take(needs)
            for account, _ in needs:
                self._look_at(account)
        started.append((task, session.number))


def _rank(task: Waiting, wall: int) -> Rank:
    return -score(task, wall), task.since, task.id
