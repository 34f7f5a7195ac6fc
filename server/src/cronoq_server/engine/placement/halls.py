"""Decides where a waiting task stands in its pool: which queue, behind whose demand.

A hall is one pool as placement sees it: its sessions, its gates, a queue per class, the patients
per class (waiting tasks that want resources) and the slots held for fixed starts.

A change must keep: `enter` is the one way into the queues and `leave` the one way out, so that
counts and second thoughts (`p_via`, `p_real`) can't leak.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import msgspec

from cronoq_server.engine.placement.gates import Gates
from cronoq_server.engine.placement.holds import Holds
from cronoq_server.engine.placement.lines import Line
from cronoq_server.engine.placement.resources import Resources
from cronoq_server.engine.placement.roster import Roster
from cronoq_server.engine.placement.rows import Patients
from cronoq_server.engine.placement.turns import Turns
from cronoq_server.engine.placement.waiting import HOT, OUT, STARTED, Rush, Waiting

PRIORITIES = (1, 2, 3, 4)  # critical, high, normal, low

Queue: TypeAlias = Line | Turns


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


class Hall:
    """One pool: its sessions, its gates, its queues and its held slots."""

    __slots__ = (
        "classes",
        "gates",
        "has_patients",
        "holds",
        "index",
        "is_dirty",
        "patients",
        "paused",
        "queues",
        "roster",
        "rules",
        "turns",
    )

    def __init__(self, index: int, rules: PoolRules, resources: Resources) -> None:
        self.index = index
        self.rules = rules
        self.paused = rules.paused
        self.roster = Roster()
        self.gates = Gates(index, self.roster, resources)
        self.holds = Holds(self.roster)
        self.is_dirty = False
        self.has_patients = False
        # By priority; the first of each is never used. Without fair share there are no turns.
        self.turns: list[Turns] = []
        if rules.fair_share:
            self.turns = [Turns(False, rules.weights, rules.default_weight) for _ in range(5)]
        self.queues: list[Queue] = [*self.turns] or [Line(False) for _ in range(5)]
        self.classes = tuple(self.queues[1:])
        self.patients = [Patients(False) for _ in range(5)]

    def remask(self) -> None:
        """Builds the masks of all lines after the gates were made anew."""
        self.gates.must_remask = False
        masked = self.gates.is_masked = not self.gates.is_uniform
        for queue in self.queues:
            queue.remask(masked)
        for patients in self.patients:
            patients.remask(masked)

    def enter(self, task: Waiting, is_hot: bool) -> None:
        """Puts a task in line behind `p_via`, or else behind its demand."""
        demand = task.demand
        if demand.private:
            task.p_real = task.p_via or demand
        if is_hot:
            self.queues[task.priority].heat(task)
        else:
            self.queues[task.priority].push(task)
        if demand.needs:
            self.has_patients = True
            self.patients[task.priority].push(task)
            for account, _ in demand.needs:
                account.waiting += 1

    def leave(self, task: Waiting) -> None:
        """Takes a waiting task out of line."""
        self.queues[task.priority].remove(task)
        needs = task.demand.needs
        if needs:
            self.patients[task.priority].remove(task)
            for account, _ in needs:
                account.waiting -= 1
        via = task.p_real or task.p_via
        if via is not None:
            task.p_via = task.p_real = None
            if via is not task.demand:
                self.gates.release(via)

    def replan(self, task: Waiting, rush: Rush | None, is_hot: bool) -> None:
        """Gives a task in line another deadline; `is_hot` says whether it presses now."""
        if task.p_at != HOT and not is_hot:
            task.p_rush = rush
            return
        queue = self.queues[task.priority]
        line = queue.line_of(task)
        line.remove(task)
        task.p_rush = rush
        if is_hot:
            line.heat(task)
        else:
            line.push(task)
        queue.marked(task)

    def turn_to(self, task: Waiting, avoid: Sequence[int]) -> None:
        """Puts a task behind the variant of its demand that avoids sessions, in its place.

        `NOBODY` means its own demand again.
        """
        before = task.p_real or task.p_via
        after = self.gates.variant(task.demand, avoid) if avoid else None
        if self.gates.must_remask:
            self.remask()
        if is_waiting(task):
            queue = self.queues[task.priority]
            line = queue.line_of(task)
            was_hot = task.p_at == HOT
            needs = task.demand.needs
            line.remove(task)
            if needs:
                self.patients[task.priority].remove(task)
            if task.p_real is not None:
                task.p_real = after or task.demand
            task.p_via = after
            if was_hot:
                line.heat(task)
            else:
                line.push(task)
            queue.marked(task)
            if needs:
                self.patients[task.priority].push(task)
        else:
            task.p_via = after
        if before is not None and before is not task.demand:
            self.gates.release(before)


def is_waiting(task: Waiting) -> bool:
    """Returns True if a task stands in a line."""
    return task.p_at not in (OUT, STARTED)
