"""Where a memory store persists to: dictionaries that behave like one small database.

Rules a change must keep:

1. A batch is checked first and then written without a pause, so that it is all or none.
2. What is kept is bounded: so many finished tasks, so many bytes of outputs and of payloads of
   finished tasks; the oldest go first, never one that a live task depends on.
3. Writing is cheap: about a microsecond per task, however many there are.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, takewhile
from typing import assert_never

from cronoq_server.engine.filters import passes
from cronoq_server.engine.model import FIRST_TERMINAL, Instant, TaskFilter, TaskRef, TaskSpec
from cronoq_server.engine.mutations import (
    Mutation,
    Output,
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
    TasksPruned,
)
from cronoq_server.stores.base import (
    LOOKED_AT_MAX,
    Batch,
    FinishedPage,
    FinishedQuery,
    Forgotten,
    Rejected,
)
from cronoq_server.stores.timebase import (
    shift_change,
    shift_inserted,
    shift_schedule,
    shift_task,
)

PAYLOADS_MAX = 256 * 1024 * 1024
"""Bytes of payloads of finished tasks that are kept."""

_TRIM_MIN = 4096


class MemoryDisk:
    """What several stores in one process share.

    Attributes:
        epoch: Number of the last term.
        holder: Who leads, or None.
        since: Wall instant, in the store's time, at which the last term began.
        lapsed: Whether the holder is believed gone, so that another may take over.
        position: Number of the last batch.
        high_water: The highest id in any batch.
        forgotten: Highest position of an end that was pruned.
    """

    def __init__(
        self,
        finished_max: int = 1_000_000,
        cache_bytes: int = 64 * 1024 * 1024,
        payloads_max: int = PAYLOADS_MAX,
    ) -> None:
        self.epoch = 0
        self.holder: str | None = None
        self.since: Instant = 0
        self.lapsed = False
        self.position = 0
        self.high_water = 0
        self.forgotten = 0
        self._finished_max = finished_max
        self._cache_bytes = cache_bytes
        self._payloads_max = payloads_max
        self._rows: dict[int, TaskInserted] = {}
        self._changes: dict[int, StatusChanged] = {}
        self._ends: dict[int, int] = {}
        self._keys: dict[str, int] = {}
        self._outputs: dict[int, OutputStored] = {}
        self._outputs_order: deque[int] = deque()
        self._outputs_bytes = 0
        self._payloads_bytes = 0
        self._needed: dict[TaskRef, int] = {}
        self._schedules: dict[str, StoredSchedule] = {}
        self._paused: dict[str, bool] = {}
        self._resized: dict[str, ResourceResized] = {}
        # Ids of all tasks in order, and (position, id) of all ends; entries may have died.
        self._ids: list[int] = []
        self._ids_first = 0
        self._order: list[tuple[int, int]] = []
        self._order_first = 0

    # --- writing ---------------------------------------------------------------------------------

    def write(self, batch: Batch, base: int) -> None:
        """Writes a whole batch.

        Raises:
            Rejected: A task of it is there already, or one that it changes is not.
        """
        inserted: Sequence[TaskInserted] = batch.inserted
        changed = batch.changed
        if base:
            inserted = [shift_inserted(row, base) for row in inserted]
            changed = {i: shift_change(row, base) for i, row in changed.items()}
        rows = {row.task_id: row for row in inserted}
        self._check_rows(rows, changed)
        self._rows.update(rows)
        self._ids += rows
        for row in inserted:
            if row.spec.dependencies:
                self._need(row.spec, 1)
        self._changes.update(changed)
        self._write_ends(changed, batch.position)
        if batch.outputs:
            self._write_outputs(batch.outputs)
        for mutation in batch.others:
            self._write_other(mutation, base)
        self._retain()
        self.position = batch.position
        self.high_water = max(self.high_water, batch.high_water)

    def _write_other(self, mutation: Mutation, base: int) -> None:
        match mutation:
            case TasksPruned(before, limit, keep):
                self._prune(before + base, limit, set(keep))
            case TaskDeleted(task_id):
                if task_id in self._ends:
                    self._forget([task_id])
            case ScheduleSaved(schedule):
                self._schedules[schedule.spec.name] = shift_schedule(schedule, base)
            case ScheduleRemoved(name):
                self._schedules.pop(name, None)
            case PoolPaused(pool, paused):
                self._paused[pool] = paused
            case ResourceResized():
                self._resized[mutation.name] = mutation
            case TaskInserted() | StatusChanged() | OutputStored():
                raise AssertionError(f"a batch keeps {mutation!r} elsewhere")
            case _:
                assert_never(mutation)

    def _check_rows(self, rows: dict[int, TaskInserted], changed: dict[int, StatusChanged]) -> None:
        known = self._rows
        if not known.keys().isdisjoint(rows):
            clash = next(i for i in rows if i in known)
            raise Rejected(f"task {clash} is there already", "TaskInserted", clash, "task_id")
        for task_id in changed:
            if task_id not in known and task_id not in rows:
                raise Rejected(f"task {task_id} is not there", "StatusChanged", task_id, "task_id")

    def _write_ends(self, changed: dict[int, StatusChanged], position: int) -> None:
        rows, ends, keys, order = self._rows, self._ends, self._keys, self._order
        ended: list[int] = []
        for task_id, change in changed.items():
            if change.status >= FIRST_TERMINAL:
                ended.append(task_id)
            elif task_id in ends:
                self._revive(task_id)
        ended.sort()
        payloads = 0
        for task_id in ended:
            spec = rows[task_id].spec
            if task_id not in ends:
                payloads += len(spec.payload)
                if spec.dependencies:
                    self._need(spec, -1)
            ends[task_id] = position
            order.append((position, task_id))
            if spec.key:
                keys[spec.key] = task_id
        self._payloads_bytes += payloads

    def _revive(self, task_id: int) -> None:
        """A finished task was put back."""
        del self._ends[task_id]
        spec = self._rows[task_id].spec
        self._payloads_bytes -= len(spec.payload)
        self._need(spec, 1)
        if self._keys.get(spec.key) == task_id:
            del self._keys[spec.key]

    def _need(self, spec: TaskSpec, by: int) -> None:
        """Counts how many live tasks depend on each parent."""
        needed = self._needed
        for edge in spec.dependencies:
            count = needed.get(edge.target, 0) + by
            if count:
                needed[edge.target] = count
            else:
                del needed[edge.target]

    def _write_outputs(self, outputs: dict[int, OutputStored]) -> None:
        kept, order = self._outputs, self._outputs_order
        for task_id, output in outputs.items():
            before = kept.get(task_id)
            if before is not None:
                self._outputs_bytes -= len(before.output)
            kept[task_id] = output
            order.append(task_id)
            self._outputs_bytes += len(output.output)
        while self._outputs_bytes > self._cache_bytes:
            self._drop_output(order.popleft())
        if len(order) > 2 * len(kept) + _TRIM_MIN:
            self._outputs_order = deque(dict.fromkeys(i for i in order if i in kept))

    def _drop_output(self, task_id: int) -> None:
        output = self._outputs.pop(task_id, None)
        if output is not None:
            self._outputs_bytes -= len(output.output)

    # --- forgetting ------------------------------------------------------------------------------

    def _retain(self) -> None:
        """Keeps within the bounds, the oldest ends going first."""
        while True:
            excess = len(self._ends) - self._finished_max
            if self._payloads_bytes > self._payloads_max:
                excess = max(excess, 1)
            victims = list(islice(self._oldest(), excess)) if excess > 0 else []
            if not victims:
                return
            self._let_go(victims)

    def _prune(self, before: Instant, limit: int, keep: set[int]) -> None:
        changes = self._changes
        old = takewhile(lambda end: changes[end[1]].at < before, self._oldest())
        self._let_go(list(islice((end for end in old if end[1] not in keep), limit)))

    def _oldest(self) -> Iterator[tuple[int, int]]:
        """Finished tasks that nobody needs, in order of their ends."""
        ends, order, needed = self._ends, self._order, self._needed
        for index in range(self._order_first, len(order)):
            position, task_id = order[index]
            if ends.get(task_id) != position:
                continue
            if needed and (task_id in needed or self._rows[task_id].spec.key in needed):
                continue
            yield position, task_id

    def _let_go(self, victims: list[tuple[int, int]]) -> None:
        """Forgets the oldest ends; who reads ends from before will be told."""
        if victims:
            self.forgotten = max(self.forgotten, victims[-1][0])
            self._forget([task_id for _, task_id in victims])

    def _forget(self, victims: list[int]) -> None:
        rows, changes, ends, keys = self._rows, self._changes, self._ends, self._keys
        outputs = self._outputs
        for task_id in victims:
            spec = rows.pop(task_id).spec
            del changes[task_id], ends[task_id]
            if task_id in outputs:
                self._outputs_bytes -= len(outputs.pop(task_id).output)
            self._payloads_bytes -= len(spec.payload)
            if keys.get(spec.key) == task_id:
                del keys[spec.key]
        self._trim()

    def _trim(self) -> None:
        """Drops dead entries, mostly at the front; the rest when they are the majority."""
        rows, ids, first = self._rows, self._ids, self._ids_first
        while first < len(ids) and ids[first] not in rows:
            first += 1
        self._ids_first = first
        if first > _TRIM_MIN and first * 2 > len(ids):
            del ids[:first]
            self._ids_first = 0
        elif len(ids) - first > 2 * len(rows) + _TRIM_MIN:
            self._ids = [i for i in ids if i in rows]
            self._ids_first = 0
        ends, order, first = self._ends, self._order, self._order_first
        while first < len(order) and ends.get(order[first][1]) != order[first][0]:
            first += 1
        self._order_first = first
        if first > _TRIM_MIN and first * 2 > len(order):
            del order[:first]
            self._order_first = 0
        elif len(order) - first > 2 * len(ends) + _TRIM_MIN:
            self._order = [entry for entry in order if ends.get(entry[1]) == entry[0]]
            self._order_first = 0

    # --- reading ---------------------------------------------------------------------------------

    def task(self, task_id: int, base: int) -> StoredTask | None:
        """One task as it is stored, in engine time."""
        row = self._rows.get(task_id)
        if row is None:
            return None
        change, position = self._changes.get(task_id), self._ends.get(task_id, 0)
        stored = StoredTask(task_id, row.created_at, row.spec, change, position)
        return shift_task(stored, -base) if base else stored

    def tasks(self, ids: Iterable[int], base: int) -> list[StoredTask]:
        """Those of these tasks that are there."""
        return [task for i in ids if (task := self.task(i, base)) is not None]

    def output(self, task_id: int) -> Output | None:
        """A finished task's output, if it is still kept."""
        stored = self._outputs.get(task_id)
        return None if stored is None else Output(stored.output, stored.content_type)

    def settings(self, base: int) -> RecoveredChunk:
        """Schedules, paused pools and resized resources, by name."""
        schedules = sorted(self._schedules.items())
        return RecoveredChunk(
            schedules=tuple(shift_schedule(schedule, -base) for _, schedule in schedules),
            paused_pools=tuple(sorted(pool for pool, paused in self._paused.items() if paused)),
            resized=tuple(resized for _, resized in sorted(self._resized.items())),
        )

    def live_ids(self) -> list[int]:
        """Tasks that have not ended, in order."""
        rows, ends = self._rows, self._ends
        return [i for i in self._ids[self._ids_first :] if i in rows and i not in ends]

    def parent_ids(self) -> list[int]:
        """Ended tasks that live ones depend on."""
        found: dict[int, None] = {}
        for target in self._needed:
            task_id = self._keys.get(target) if isinstance(target, str) else target
            if task_id in self._ends:
                found[task_id] = None
        return sorted(found)

    def ended_since(self, horizon: Instant) -> list[int]:
        """Tasks that ended at or after an instant (of the store's time), newest first."""
        ends, changes = self._ends, self._changes
        return [
            task_id
            for position, task_id in reversed(self._order[self._order_first :])
            if ends.get(task_id) == position and changes[task_id].at >= horizon
        ]

    def named(self, ids: Iterable[int], keys: Iterable[str], base: int) -> list[StoredTask]:
        """Finished tasks by id and key."""
        found = dict.fromkeys(i for i in ids if i in self._ends)
        found.update((self._keys[key], None) for key in keys if key in self._keys)
        return self.tasks(found, base)

    def page_by_id(self, query: FinishedQuery, base: int) -> FinishedPage:
        """A page in id order."""
        ids, after = self._ids, query.after
        if query.newest_first:
            start = len(ids) if not after else bisect_left(ids, after)
            walk: Iterable[int] = range(start - 1, self._ids_first - 1, -1)
        else:
            walk = range(max(self._ids_first, bisect_right(ids, after)), len(ids))
        page = self._page(((0, ids[i]) for i in walk if ids[i] in self._ends), query, base)
        return FinishedPage(page.tasks, page.next_after)

    def page_by_end(self, query: FinishedQuery, base: int) -> FinishedPage:
        """A page in order of ends.

        Raises:
            Forgotten: An end that would be in it was pruned.
        """
        position = query.ended_after
        assert position is not None
        if self.forgotten and self.forgotten >= position:
            raise Forgotten
        order, ends = self._order, self._ends
        start = max(self._order_first, bisect_right(order, (position, query.after)))
        walk = (order[i] for i in range(start, len(order)))
        return self._page((e for e in walk if ends.get(e[1]) == e[0]), query, base)

    def _page(
        self, entries: Iterable[tuple[int, int]], query: FinishedQuery, base: int
    ) -> FinishedPage:
        wanted = query.filter or TaskFilter()
        tasks: list[StoredTask] = []
        last = (0, 0)
        for looked_at, (position, task_id) in enumerate(entries):
            if looked_at == LOOKED_AT_MAX or len(tasks) == query.limit:
                return FinishedPage(tasks, last[1], last[0])
            last = (position, task_id)
            if passes(self._rows[task_id].spec, self._changes[task_id].status, wanted):
                tasks += self.tasks([task_id], base)
        return FinishedPage(tasks)
