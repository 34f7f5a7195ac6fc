"""What was committed, as an onlooker at the database saw it: the facts that promises are held to.

It shares no code with any store. Positions, histories and live sets are kept here from the batches
alone, so that what a store forgets or a leader undoes is still known.
"""

from __future__ import annotations

import hashlib

from cronoq_server.engine.filters import SCHEDULE_TAG
from cronoq_server.engine.model import FIRST_TERMINAL, Status
from cronoq_server.engine.mutations import (
    ScheduleRemoved,
    ScheduleSaved,
    StatusChanged,
    StoredSchedule,
    TaskDeleted,
    TaskInserted,
)
from cronoq_server.stores.base import Batch


class Chronicle:
    """Everything committed so far.

    Attributes:
        position: Number of the last batch.
        epoch: Epoch of its writer.
        high_water: Highest id ever inserted.
        rows: Every task ever inserted.
        changes: The last change of each.
        ends: All ends of each: (position, status).
        live: Tasks that have not ended.
        running: Tasks whose last change says that they run.
        by_key: All tasks that ever had a key, in order.
        occurrences: All tasks of each schedule, in order.
        schedules: How schedules stand.
        puts: How each schedule stood when it was put, or first saved since then.
        put_above: Highest id there was then: what has a higher one came of that put or later.
        was_paused: Schedules that were paused since they were put.
        deleted: Tasks removed by hand.
        redriven: How often each task was put back.
        inserted_at: Position of the batch that brought each task.
        turns: What ended each task or put it back, in order: (position, status; 0 = put back).
    """

    def __init__(self) -> None:
        self.position = 0
        self.epoch = 0
        self.high_water = 0
        self.rows: dict[int, TaskInserted] = {}
        self.changes: dict[int, StatusChanged] = {}
        self.ends: dict[int, list[tuple[int, int]]] = {}
        self.live: dict[int, None] = {}
        self.running: dict[int, None] = {}
        self.by_key: dict[str, list[int]] = {}
        self.occurrences: dict[str, list[int]] = {}
        self.schedules: dict[str, StoredSchedule] = {}
        self.puts: dict[str, StoredSchedule] = {}
        self.put_above: dict[str, int] = {}
        self.was_paused: dict[str, None] = {}
        self.deleted: dict[int, None] = {}
        self.redriven: dict[int, int] = {}
        self.inserted_at: dict[int, int] = {}
        self.turns: dict[int, list[tuple[int, int]]] = {}

    def write(self, epoch: int, batch: Batch) -> None:
        """Takes over a batch that the database has just accepted."""
        self.position = batch.position
        self.epoch = epoch
        for row in batch.inserted:
            self._insert(row)
        for task_id, change in batch.changed.items():
            self._change(task_id, change)
        for mutation in batch.others:
            kind = type(mutation)
            if kind is ScheduleSaved:
                self._save(mutation.schedule)  # type: ignore[union-attr]
            elif kind is ScheduleRemoved:
                self.schedules.pop(mutation.name, None)  # type: ignore[union-attr]
            elif kind is TaskDeleted:
                self.deleted[mutation.task_id] = None  # type: ignore[union-attr]

    def _save(self, stored: StoredSchedule) -> None:
        name = stored.spec.name
        before = self.puts.get(name)
        if before is None or before.put_at != stored.put_at or name not in self.schedules:
            self.puts[name] = stored
            self.put_above[name] = self.high_water
            self.was_paused.pop(name, None)
        if stored.paused:
            self.was_paused[name] = None
        self.schedules[name] = stored

    def _insert(self, row: TaskInserted) -> None:
        task_id = row.task_id
        self.rows[task_id] = row
        self.live[task_id] = None
        self.inserted_at[task_id] = self.position
        self.high_water = max(self.high_water, task_id)
        if row.spec.key:
            self.by_key.setdefault(row.spec.key, []).append(task_id)
        for name, value in row.spec.tags:
            if name == SCHEDULE_TAG:
                self.occurrences.setdefault(value, []).append(task_id)

    def _change(self, task_id: int, change: StatusChanged) -> None:
        before = self.changes.get(task_id)
        if before is not None and before.status >= FIRST_TERMINAL:
            self.redriven[task_id] = self.redriven.get(task_id, 0) + 1
            self.turns[task_id].append((self.position, 0))
            self.live[task_id] = None
        self.changes[task_id] = change
        if change.status >= FIRST_TERMINAL:
            self.ends.setdefault(task_id, []).append((self.position, change.status))
            self.turns.setdefault(task_id, []).append((self.position, change.status))
            self.live.pop(task_id, None)
        if change.status == Status.RUNNING:
            self.running[task_id] = None
        else:
            self.running.pop(task_id, None)

    def decisive_end(self, parent: int, since: int) -> int | None:
        """The end that decides an edge of a task that came with the batch at position `since`.

        Returns:
            Its status; 0 if none is written yet; None if it can't be told, because something
            happened to the parent in that very batch.
        """
        decisive = 0
        for position, status in self.turns.get(parent, ()):
            if position == since:
                return None
            if position < since:
                decisive = status
            else:
                return decisive or status
        return decisive

    def digest(self) -> str:
        """One short text for all that was committed, in its order."""
        ends = sorted(self.ends.items())
        changes = sorted((i, c.status, c.attempt, c.at) for i, c in self.changes.items())
        whole = repr((self.position, self.epoch, list(self.rows), ends, changes))
        return hashlib.sha256(whole.encode()).hexdigest()[:16]

    def status(self, task_id: int) -> int:
        """The last written status; 0 = none was."""
        change = self.changes.get(task_id)
        return 0 if change is None else change.status

    def attempt(self, task_id: int) -> int:
        """The last written attempt number."""
        change = self.changes.get(task_id)
        return 0 if change is None else change.attempt

    def has_ended(self, task_id: int, status: int | None = None) -> bool:
        """Whether a task ever ended, or ever ended so."""
        ends = self.ends.get(task_id, ())
        return bool(ends) if status is None else any(each == status for _, each in ends)
