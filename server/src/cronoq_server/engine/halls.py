"""Decides nothing: one pool as placement sees it, put together from its parts.

A hall has the sessions of the pool, its gates, a queue per class, the patients per class (waiting
tasks that want resources) and the slots held for fixed starts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import msgspec

from cronoq_server.engine.gates import Gates
from cronoq_server.engine.holds import Holds
from cronoq_server.engine.lines import Line, Patients
from cronoq_server.engine.resources import Resources
from cronoq_server.engine.roster import Roster
from cronoq_server.engine.turns import Turns

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

    __slots__ = ("gates", "has_patients", "holds", "index", "is_dirty", "is_masked", "patients",
                 "paused", "queues", "roster", "rules", "turns")  # fmt: skip

    def __init__(self, index: int, rules: PoolRules, resources: Resources) -> None:
        self.index = index
        self.rules = rules
        self.paused = rules.paused
        self.roster = Roster()
        self.gates = Gates(index, self.roster, resources)
        self.holds = Holds(self.roster)
        self.is_masked = False
        self.is_dirty = False
        self.has_patients = False
        # By priority; the first of each is never used. Without fair share there are no turns.
        self.turns: list[Turns] = []
        if rules.fair_share:
            self.turns = [Turns(False, rules.weights, rules.default_weight) for _ in range(5)]
        self.queues: list[Queue] = [*self.turns] or [Line(False) for _ in range(5)]
        self.patients = [Patients(False) for _ in range(5)]

    def remask(self) -> None:
        """Builds the masks of all lines after the gates were made anew."""
        self.gates.must_remask = False
        self.is_masked = not self.gates.is_uniform
        for queue in self.queues:
            queue.remask(self.is_masked)
        for patients in self.patients:
            patients.remask(self.is_masked)
