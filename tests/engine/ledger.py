"""A store as a model: what was committed, and nothing else.

It applies the batches that a driver would commit, checks what every store may rely on, and gives
back at any time what a new leader would recover. It has no clock, no IO and no opinion.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable

from cronoq_server.engine.model import FIRST_TERMINAL, Instant, Status, TaskRef
from cronoq_server.engine.mutations import (
    Mutation,
    OutputStored,
    PoolPaused,
    RecoveredChunk,
    ResourceResized,
    ScheduleRemoved,
    ScheduleSaved,
    StatusChanged,
    StoredSchedule,
    StoredTask,
    TaskDeleted,
    TaskInserted,
)
from cronoq_server.stores.base import Batch

WRITTEN = (Status.RUNNING, Status.RETRYING, *(s for s in Status if s >= FIRST_TERMINAL))
"""Statuses that are written; the others are derived. `READY` says that a task was put back."""


class Ledger:
    """Everything committed so far.

    Attributes:
        position: Number of the last batch.
        high_water: Highest id in any batch.
        rows: Tasks as they were inserted, in order.
        changes: The last change of each task.
        outputs: Outputs by task.
        ends: Position of the batch that ended each finished task.
        schedules: Schedules by name.
        paused: Pools that are paused, in order.
        resized: Resources that were resized, by name.
    """

    def __init__(self) -> None:
        self.position = 0
        self.high_water = 0
        self.rows: dict[int, TaskInserted] = {}
        self.changes: dict[int, StatusChanged] = {}
        self.outputs: dict[int, OutputStored] = {}
        self.ends: dict[int, int] = {}
        self.schedules: dict[str, StoredSchedule] = {}
        self.paused: dict[str, None] = {}
        self.resized: dict[str, ResourceResized] = {}

    def copy(self) -> Ledger:
        """The same content, going its own way from here."""
        other = copy.copy(self)
        for name, value in vars(self).items():
            if isinstance(value, dict):
                setattr(other, name, dict(value))
        return other

    def commit(self, mutations: Iterable[Mutation]) -> None:
        """Writes one step as a batch of its own; an empty one is no batch."""
        batch = Batch(self.position + 1)
        batch.add(tuple(mutations))
        if not len(batch):
            return
        for row in batch.inserted:
            assert row.task_id > self.high_water, "ids rise and are never used twice"
            self.high_water = row.task_id
            self.rows[row.task_id] = row
        for task_id, change in batch.changed.items():
            self._change(task_id, change)
        for task_id, output in batch.outputs.items():
            assert self.changes[task_id].has_output, "an output comes with its success"
            self.outputs[task_id] = output
        for mutation in batch.others:
            self._note(mutation)
        self.position = batch.position

    def _note(self, mutation: Mutation) -> None:
        match mutation:
            case ScheduleSaved(stored):
                self.schedules[stored.spec.name] = stored
            case ScheduleRemoved(name):
                self.schedules.pop(name, None)
            case PoolPaused(pool, paused):
                self.paused.pop(pool, None)
                if paused:
                    self.paused[pool] = None
            case ResourceResized():
                self.resized[mutation.name] = mutation
            case TaskDeleted(task_id):
                del self.ends[task_id], self.rows[task_id], self.changes[task_id]
                self.outputs.pop(task_id, None)
            case _:
                raise AssertionError(mutation)

    def _change(self, task_id: int, change: StatusChanged) -> None:
        assert task_id in self.rows, "only what was inserted changes"
        before = self.changes.get(task_id)
        if self.ends.pop(task_id, None) is not None:
            assert before is not None
            assert change.attempts_max > before.attempt, "a task put back has a budget"
            assert change.put_back > before.put_back, "each redrive has a number of its own"
        else:
            assert change.status in WRITTEN, "derived statuses are never written"
        if before is not None:
            assert change.attempt >= before.attempt, "attempt numbers rise"
        assert change.attempt <= change.attempts_max, "a budget is kept"
        self.changes[task_id] = change
        if change.status >= FIRST_TERMINAL:
            self.ends[task_id] = self.position + 1

    def stored(self, task_id: int) -> StoredTask:
        """One task as the store holds it."""
        row = self.rows[task_id]
        change, position = self.changes.get(task_id), self.ends.get(task_id, 0)
        return StoredTask(task_id, row.created_at, row.spec, change, position)

    def find(self, ids: Iterable[int], keys: Iterable[str]) -> dict[TaskRef, StoredTask]:
        """Finished tasks by id or key, as the driver looks them up before a submit enters."""
        found: dict[TaskRef, StoredTask] = {i: self.stored(i) for i in ids if i in self.ends}
        wanted = set(keys)
        for task_id in self.ends:
            key = self.rows[task_id].spec.key
            if key in wanted:
                found[key] = self.stored(task_id)
        return found

    def recovered(self, horizon: Instant) -> list[RecoveredChunk]:
        """What a new leader gets: live tasks, their ended parents, and recent ends."""
        live = [self.stored(i) for i in self.rows if i not in self.ends]
        by_key = {self.rows[i].spec.key: i for i in self.ends}
        needed: dict[int, None] = {}
        for task in live:
            for edge in task.spec.dependencies:
                target = edge.target
                parent = by_key.get(target) if isinstance(target, str) else target
                if parent in self.ends:
                    needed[parent] = None
        recent = [i for i in self.ends if self.changes[i].at >= horizon]
        recent.sort(key=lambda i: (self.changes[i].at, i), reverse=True)
        half = len(live) // 2
        return [
            RecoveredChunk(
                live=tuple(live[:half]),
                schedules=tuple(self.schedules[name] for name in sorted(self.schedules)),
                paused_pools=tuple(self.paused),
                resized=tuple(self.resized.values()),
            ),
            RecoveredChunk(live=tuple(live[half:]), parents=tuple(map(self.stored, needed))),
            RecoveredChunk(finished=tuple(map(self.stored, recent))),
        ]
