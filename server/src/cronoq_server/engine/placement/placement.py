"""Decides which waiting task goes to which free slot; the door to everything around that.

The engine asks for a task's demand once, pushes the task when it becomes ready, says which slots
are free, and calls `run` in each step. Placement takes resources and slots for what `run` returns;
the engine says when an attempt has `finished`.

Rules a change must keep:

- All instants of waiting and deadlines are of one clock (`wall`), refills of another (`mono`).
- No linear term in the number of waiting tasks, sets are never iterated, numbers are whole.
- Tasks refer to demands, and nothing that demands refer to leads back to a task: tasks are not
  tracked by the garbage collector, and a cycle through one would keep a dead engine alive.

This module does not know attempts, leases, statuses or messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cronoq_server.engine.placement.gates import HOLDER, NOBODY, Demand
from cronoq_server.engine.placement.halls import Hall, PoolRules, is_waiting
from cronoq_server.engine.placement.openings import Openings
from cronoq_server.engine.placement.passes import Passes
from cronoq_server.engine.placement.resources import Resources
from cronoq_server.engine.placement.roster import Session
from cronoq_server.engine.placement.urgency import rush_of
from cronoq_server.engine.placement.waiting import HOT, OUT, STARTED, Waiting

__all__ = ["Demand", "Placement", "PoolRules", "Waiting"]


class Placement:
    """The waiting tasks, the free slots, and who gets what."""

    def __init__(self, pools: Sequence[PoolRules], resources: Resources) -> None:
        self.resources = resources
        self._halls: list[Hall] = []
        self._by_name: dict[str, Hall] = {}
        self._sessions: dict[int, Session] = {}
        self._openings = Openings()
        self._passes = Passes(self._halls, resources, self._openings)
        self._wall = 0
        for rules in pools:
            self.add_pool(rules)

    def add_pool(self, rules: PoolRules) -> None:
        """Adds a pool."""
        assert rules.name not in self._by_name, rules.name
        hall = Hall(len(self._halls), rules, self.resources)
        self._halls.append(hall)
        self._by_name[rules.name] = hall

    def set_paused(self, pool: str, paused: bool) -> None:
        """Pauses or resumes a pool; what waits keeps its place."""
        hall = self._by_name[pool]
        hall.paused = paused
        self._passes.touch(hall)

    def resize(
        self,
        name: str,
        now_mono: int,
        *,
        permits: int | None = None,
        rate: int | None = None,
        burst: int | None = None,
    ) -> bool:
        """Changes the size of a configured resource, see `Resources.resize`.

        Tasks that ask for more than it can hold now wait without holding up anybody.

        Returns:
            False if there is no such resource.
        """
        found = self.resources.resize(name, now_mono, permits=permits, rate=rate, burst=burst)
        for hall in self._halls:
            hall.gates.check_sizes()
            if hall.gates.must_remask:
                hall.remask()
                self._passes.touch(hall)
                self._serve_holds(hall, [])
        return found

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
        hall = self._by_name[pool]
        gates = hall.gates
        demand = gates.find((labels, kind, resources, tenant if hall.turns else "", NOBODY))
        if gates.must_remask:
            hall.remask()
        return demand

    def release(self, demand: Demand) -> None:
        """Gives back what `demand` returned."""
        self._halls[demand.pool].gates.release(demand)

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
        assert session >= 0 and session not in self._sessions, session
        hall = self._by_name[pool]
        profile, is_new = hall.roster.profile(labels, kinds)
        self._sessions[session] = hall.roster.enlist(session, hall.index, profile)
        if is_new:
            hall.gates.admit_profile(profile)
            if hall.gates.must_remask:
                hall.remask()
        self.slots(session, free)

    def session_left(self, session: int) -> None:
        """Removes a session; what it ran is the engine's business."""
        self.slots(session, 0)
        left = self._sessions.pop(session)
        hall = self._halls[left.pool]
        hall.roster.forget(left)
        if hall.roster.is_sparse:
            hall.gates.refit()
            hall.remask()

    def slots(self, session: int, free: int) -> None:
        """Sets how many slots of a session are free now, held ones included."""
        found = self._sessions[session]
        hall = self._halls[found.pool]
        lost = hall.holds.lose(found, free) if found.held > free else []
        if free > found.told:
            self._passes.touch(hall)
        found.told = free
        if hall.roster.set_free(found, free - found.held):
            hall.gates.refresh()
        if len(hall.holds):
            self._serve_holds(hall, lost)

    # Tasks

    def push(
        self,
        task: Waiting,
        now_wall: int,
        latest_start: int | None = None,
        expected_ns: int = 0,
    ) -> None:
        """Puts a task in line that became ready at `task.since`.

        Args:
            task: The task; it stands in no line.
            now_wall: The wall instant of this step, ns.
            latest_start: Wall instant, ns, by which it should start; None without a deadline.
            expected_ns: Expected duration, ns; fixed from here on.
        """
        assert task.p_at == OUT, task.id
        hall = self._halls[task.demand.pool]
        if hall.turns:
            task.p_cost = expected_ns
        if len(hall.holds) and task.p_via is None and hall.holds.session_for(task) is not None:
            task.p_via = hall.gates.variant(task.demand, HOLDER)
            if hall.gates.must_remask:
                hall.remask()
        if latest_start is None:
            hall.enter(task, False)
        else:
            rush = task.p_rush = rush_of(latest_start, expected_ns)
            is_hot = rush.opens <= now_wall
            hall.enter(task, is_hot)
            if not is_hot:
                self._openings.add(task, rush)
        if not hall.is_dirty:
            self._passes.touch(hall)

    def push_back(
        self,
        task: Waiting,
        now_wall: int,
        latest_start: int | None = None,
        expected_ns: int = 0,
        avoid: Sequence[int] = (),
    ) -> None:
        """Puts a task back in line in its old place, `task.since`.

        The sessions `avoid`, the last that refused it last, are passed over until `forgive` is
        called.
        """
        if avoid:
            hall = self._halls[task.demand.pool]
            task.p_via = hall.gates.variant(task.demand, avoid)
            if hall.gates.must_remask:
                hall.remask()
        self.push(task, now_wall, latest_start, expected_ns)

    def forgive(self, task: Waiting, avoid: Sequence[int] = ()) -> None:
        """Lets the sessions that were passed over have the task again, but for some of them."""
        if _via(task).avoid not in (NOBODY, HOLDER):
            hall = self._halls[task.demand.pool]
            hall.turn_to(task, avoid)
            self._passes.touch(hall)

    def withdraw(self, task: Waiting) -> None:
        """Takes a waiting task out of its line, for whatever reason; ends its hold."""
        hall = self._halls[task.demand.pool]
        if is_waiting(task):
            self._passes.leave(task, hall)
        if len(hall.holds):
            self.unhold(task)

    def set_latest(
        self, task: Waiting, now_wall: int, latest_start: int | None, expected_ns: int = 0
    ) -> None:
        """Gives a waiting task another deadline; place, hold and turn stay as they are.

        For clocks that were set: the deadline is then another instant of the clock used here.
        """
        if not is_waiting(task):
            return
        hall = self._halls[task.demand.pool]
        was_shut = task.p_rush is not None and task.p_at != HOT
        rush = None if latest_start is None else rush_of(latest_start, expected_ns)
        is_hot = rush is not None and rush.opens <= now_wall
        hall.replan(task, rush, is_hot)
        if was_shut:
            self._openings.drop()
        if rush is not None and not is_hot:
            self._openings.add(task, rush)
        self._passes.touch(hall)

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
            taken and their slots are no longer free.
        """
        if now_wall < self._wall:
            for hall in self._halls:
                for queue in hall.queues:
                    for line in queue.lines():
                        line.reset_times()
        self._wall = now_wall
        for task in self._openings.due(now_wall):
            self._halls[task.demand.pool].replan(task, task.p_rush, True)
        return self._passes.run(now_wall, now_mono)

    def next_change(self) -> tuple[int | None, int | None]:
        """Returns the instants (wall, mono) at which time alone may let `run` start something."""
        return self._passes.next_turn(self._wall), self._passes.next_refill()

    # Held slots

    def hold(self, task: Waiting) -> None:
        """Keeps a suitable slot for a task: a free one now, or the next one there is.

        `run` gives that slot to this task only, once it is pushed. If its session goes, the next
        suitable slot is kept. The hold ends when the task starts, is withdrawn, or by `unhold`.
        """
        hall = self._halls[task.demand.pool]
        hall.holds.add(task)
        self._serve_holds(hall, [])

    def unhold(self, task: Waiting) -> None:
        """Ends the hold of a task, if it has one; it stays in line like any other."""
        hall = self._halls[task.demand.pool]
        if hall.holds.drop(task):
            hall.gates.refresh()
        self._passes.touch(hall)
        self._serve_holds(hall, [task])

    def held(self, pool: str) -> int:
        """Returns how many slots of a pool are kept for fixed starts now."""
        return self._by_name[pool].holds.held

    def held_by(self, task: Waiting) -> int | None:
        """Returns the session that keeps a slot for a task now, None if there is none."""
        session = self._halls[task.demand.pool].holds.session_for(task)
        return None if session is None else session.number

    # Questions

    def count(self, pool: str) -> tuple[int, int, int, int]:
        """Returns how many tasks wait in each class, critical first."""
        queues = self._by_name[pool].queues
        return len(queues[1]), len(queues[2]), len(queues[3]), len(queues[4])

    def newest_of_lowest_class(self, pool: str, above: int) -> Waiting | None:
        """Returns the newest waiting task of the lowest class below class `above`."""
        queues = self._by_name[pool].queues
        for priority in range(4, above, -1):
            if len(queues[priority]):
                return queues[priority].newest()
        return None

    def longest_waiting(self, pool: str, priority: int) -> Waiting | None:
        """Returns the task of a class that waits longest."""
        return self._by_name[pool].queues[priority].oldest()

    def waiting_for(self, task: Waiting) -> tuple[str, ...]:
        """Returns what a waiting task lacks, in words for people; empty if nothing."""
        hall = self._halls[task.demand.pool]
        demand = _via(task)
        lacks = []
        if hall.paused:
            lacks.append(f"pool {hall.rules.name} is paused")
        lacks.extend(_lacking_worker(hall, demand))
        for account, amount in demand.needs:
            if amount > account.capacity:
                lacks.append(f"resource {account.name} cannot hold as much")
            elif amount > account.available:
                lacks.append(f"resource {account.name}")
        return tuple(lacks)

    # The inside

    def _serve_holds(self, hall: Hall, changed: list[Waiting]) -> None:
        """Gives free slots to holds that wait, and moves tasks in line whose hold changed."""
        served = hall.holds.serve()
        if served:
            hall.gates.refresh()
        for task in [*changed, *served]:
            if not is_waiting(task):
                continue
            has_slot = hall.holds.session_for(task) is not None
            if has_slot != (_via(task).avoid == HOLDER):
                hall.turn_to(task, HOLDER if has_slot else NOBODY)
                self._passes.touch(hall)


def _via(task: Waiting) -> Demand:
    """Returns the demand a task stands behind, whatever it shows."""
    return task.p_real or task.p_via or task.demand


def _lacking_worker(hall: Hall, demand: Demand) -> list[str]:
    roster = hall.roster
    if not roster.members:
        return [f"pool {hall.rules.name}: no worker is connected"]
    fits = roster.fitting(demand.labels, demand.kind)
    if not fits & roster.connected:
        profiles = [profile for profile in roster if profile.members]
        lacks = [
            f"label {label}"
            for label in sorted(demand.labels)
            if not any(label in profile.labels for profile in profiles)
        ]
        if not any(profile.fits(frozenset(), demand.kind) for profile in profiles):
            lacks.append(f"kind {demand.kind}: no worker serves it")
        return lacks or ["no worker has these labels and serves this kind"]
    free = fits & roster.free
    if demand.avoid == HOLDER or roster.without(free, demand.avoid):
        return []
    if free:
        return ["the workers with a free slot have just refused it"]
    if hall.rules.max is not None:
        return [f"pool {hall.rules.name} is full (max {hall.rules.max})"]
    return ["no free slot"]
