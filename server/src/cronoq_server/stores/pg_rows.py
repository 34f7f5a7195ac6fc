"""How a batch becomes rows of PostgreSQL tables: planned first, then sent in a few calls.

Planning needs no database: it knows from the ledger what lives and which segment holds it. Tasks,
changes and ends go in by COPY; what happens seldom is a statement each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from cronoq_server.engine.model import FIRST_TERMINAL
from cronoq_server.engine.mutations import (
    PoolPaused,
    ResourceResized,
    ScheduleRemoved,
    ScheduleSaved,
    StatusChanged,
    TaskInserted,
)
from cronoq_server.stores.base import Batch, Rejected
from cronoq_server.stores.codec import encode_change, encode_schedule, signed, task_row, unsigned
from cronoq_server.stores.pg_keys import KeyFilter
from cronoq_server.stores.pg_ledger import Ledger, block_bytes
from cronoq_server.stores.pg_session import Connection
from cronoq_server.stores.timebase import shift_change, shift_inserted, shift_schedule

SEGMENTS_WANTED = 64
"""Segments grow so that there are no more than about so many: pages and unknown keys visit each."""

_TASKS = (
    *("segment", "id", "created_at", "key", "pool", "kind", "tenant", "schedule"),
    *("spec", "payload", "change"),
)
_CHANGES = ("segment", "id", "position", "change")
_ENDS = ("segment", "id", "position", "at", "status", "change", "content_type", "output")


class Plan:
    """What a batch writes of tasks.

    Attributes:
        begins: The new segment that its tasks begin, its first (unsigned) id, and its keys.
        returned: Ids whose end is taken back: tasks put back, or ended anew after that.
        altered: Blocks of living ids that change.
        rows: Tasks in the newest segment afterwards.
        top: The highest id afterwards.
    """

    def __init__(self, batch: Batch, base: int, ledger: Ledger, segment_rows: int) -> None:
        self._batch = batch
        inserted: Sequence[TaskInserted] = batch.inserted
        changed = batch.changed
        if base:
            inserted = [shift_inserted(row, base) for row in inserted]
            changed = {i: shift_change(row, base) for i, row in changed.items()}
        self._ledger = ledger
        self.returned: list[int] = []
        self.begins = self._new_segment(segment_rows)
        self.rows = len(inserted) + (0 if self.begins else ledger.rows)
        self.top = max(ledger.top, batch.high_water)
        self.tasks: list[tuple[Any, ...]] = []
        self.changes: list[tuple[Any, ...]] = []
        self.ends: list[tuple[Any, ...]] = []
        self.outputs = dict(batch.outputs)
        self.altered = self._changes(self._inserts(inserted, changed), changed)

    def _new_segment(self, segment_rows: int) -> tuple[int, int, KeyFilter] | None:
        segments, batch = self._ledger.segments, self._batch
        wanted = max(segment_rows, len(segments) * segment_rows // SEGMENTS_WANTED)
        if not batch.inserted or (segments.newest and self._ledger.rows < wanted):
            return None
        return segments.newest + 1, batch.inserted[0].task_id, KeyFilter.for_rows(wanted)

    def _inserts(
        self, inserted: Sequence[TaskInserted], changed: dict[int, StatusChanged]
    ) -> set[int]:
        """Plans new tasks, with their change if they live on; returns their ids."""
        segments = self._ledger.segments
        segment = self.begins[0] if self.begins else segments.newest
        keys = self.begins[2] if self.begins else segments.filters.get(segment)
        if keys is not None:
            keys.add(row.spec.key for row in inserted if row.spec.key)
        add = self.tasks.append
        for row in inserted:
            change = changed.get(row.task_id)
            blob = None
            if change is not None and change.status < FIRST_TERMINAL:
                blob = encode_change(change)
            add((segment, *task_row(row), blob))
        return {row.task_id for row in inserted}

    def _changes(self, new: set[int], changed: dict[int, StatusChanged]) -> dict[int, int]:
        """Plans changes and ends; returns the blocks that change by all that is planned."""
        position, segments, blocks = (
            self._batch.position,
            self._ledger.segments,
            self._ledger.blocks,
        )
        segment = self.begins[0] if self.begins else segments.newest
        born: list[int] = []
        died: list[int] = []
        for task_id, change in changed.items():
            is_end = change.status >= FIRST_TERMINAL
            if task_id in new:
                place = segment
            else:
                place = segments.of(task_id)
                if not blocks.is_alive(task_id):
                    self.returned.append(task_id)
                    if not is_end:
                        born.append(task_id)
                elif is_end:
                    died.append(task_id)
            number = signed(task_id)
            if is_end:
                self._end(place, number, change)
            elif task_id not in new:
                self.changes.append((place, number, position, encode_change(change)))
        born += [i for i in new if i not in changed or changed[i].status < FIRST_TERMINAL]
        return blocks.altered(born, died)

    def _end(self, segment: int, number: int, change: StatusChanged) -> None:
        output = self.outputs.pop(change.task_id, None)
        content_type, content = (
            (None, None) if output is None else (output.content_type or None, output.output)
        )
        row = (number, self._batch.position, change.at, int(change.status), encode_change(change))
        self.ends.append((segment, *row, content_type, content))

    async def write(self, connection: Connection, schema: str) -> None:
        """Sends it, within the transaction that is open.

        Raises:
            Rejected: A task that is changed is not there.
        """
        if self.begins:
            segment, first_id, _ = self.begins
            await begin_segment(connection, segment, first_id)
            await _keep_filter(connection, self._ledger)
        await self._take_back(connection)
        for table, columns, rows in (
            ("cronoq_tasks", _TASKS, self.tasks),
            ("cronoq_changes", _CHANGES, self.changes),
            ("cronoq_ends", _ENDS, self.ends),
        ):
            if rows:
                await connection.copy_records_to_table(
                    table, records=rows, columns=columns, schema_name=schema
                )
        await write_blocks(connection, self.altered)
        for task_id, output in self.outputs.items():
            segment = self._ledger.segments.of(task_id)
            await connection.execute(
                f"UPDATE cronoq_ends_{segment} SET content_type = $1, output = $2 WHERE id = $3",
                output.content_type or None,
                output.output,
                signed(task_id),
            )

    async def _take_back(self, connection: Connection) -> None:
        """Removes the ends of tasks that live again, or have ended anew since."""
        if not self.returned:
            return
        missing = set(self.returned)
        for segment, ids in self._ledger.segments.by_segment(self.returned).items():
            rows = await connection.fetch(
                f"DELETE FROM cronoq_ends_{segment} WHERE id = ANY($1) RETURNING id",
                [signed(i) for i in ids],
            )
            missing -= {unsigned(number) for (number,) in rows}
        if missing:
            task_id = min(missing)
            raise Rejected(f"task {task_id} is not there", "StatusChanged", task_id, "task_id")


async def _keep_filter(connection: Connection, ledger: Ledger) -> None:
    """Stores which keys the segment may hold that has just been filled, if that is known."""
    full = ledger.segments.newest
    keys = ledger.segments.filters.get(full)
    if keys is not None:
        await connection.execute(
            "UPDATE cronoq_segments SET keys = $1 WHERE segment = $2", keys.stored(), full
        )


async def write_blocks(connection: Connection, altered: dict[int, int]) -> None:
    """Writes the blocks that change, within the transaction that is open."""
    alive = [(block, block_bytes(bits)) for block, bits in altered.items() if bits]
    empty = [block for block, bits in altered.items() if not bits]
    if alive:
        await connection.execute(
            "INSERT INTO cronoq_blocks (block, alive) SELECT * FROM unnest($1::bigint[], "
            "$2::bytea[]) ON CONFLICT (block) DO UPDATE SET alive = EXCLUDED.alive",
            *map(list, zip(*alive, strict=True)),
        )
    if empty:
        await connection.execute("DELETE FROM cronoq_blocks WHERE block = ANY($1)", empty)


async def begin_segment(connection: Connection, segment: int, first_id: int) -> None:
    """Makes the tables of a segment; attached afterwards, which no reader has to wait for."""
    statements = ["SET LOCAL client_min_messages = warning"]
    for table, primary in (("tasks", "id"), ("changes", "id, position"), ("ends", "id")):
        parent = f"cronoq_{table}"
        statements += [
            f"CREATE TABLE {parent}_{segment} (LIKE {parent} INCLUDING ALL, "
            f"CHECK (segment = {segment}), PRIMARY KEY ({primary}))",
            f"ALTER TABLE {parent} ATTACH PARTITION {parent}_{segment} FOR VALUES IN ({segment})",
        ]
    statements += [
        f"CREATE INDEX ON cronoq_tasks_{segment} (key) WHERE key IS NOT NULL",
        f"CREATE INDEX ON cronoq_ends_{segment} (position, id)",
        f"INSERT INTO cronoq_segments (segment, first_id) VALUES ({segment}, {signed(first_id)})",
    ]
    await connection.execute("; ".join(statements))


Setting = ScheduleSaved | ScheduleRemoved | PoolPaused | ResourceResized


async def write_setting(connection: Connection, mutation: Setting, base: int) -> None:
    """Writes what was set at run time."""
    match mutation:
        case ScheduleSaved(schedule):
            blob = encode_schedule(shift_schedule(schedule, base) if base else schedule)
            await connection.execute(
                "INSERT INTO cronoq_schedules (name, schedule) VALUES ($1, $2) ON CONFLICT (name) "
                "DO UPDATE SET schedule = EXCLUDED.schedule, quarantined = NULL",
                schedule.spec.name,
                blob,
            )
        case ScheduleRemoved(name):
            await connection.execute("DELETE FROM cronoq_schedules WHERE name = $1", name)
        case PoolPaused(pool, True):
            await connection.execute(
                "INSERT INTO cronoq_paused_pools (pool) VALUES ($1) ON CONFLICT DO NOTHING", pool
            )
        case PoolPaused(pool, _):
            await connection.execute("DELETE FROM cronoq_paused_pools WHERE pool = $1", pool)
        case ResourceResized():
            await connection.execute(
                "INSERT INTO cronoq_resized (name, resized) VALUES ($1, $2) ON CONFLICT (name) "
                "DO UPDATE SET resized = EXCLUDED.resized",
                mutation.name,
                msgspec.msgpack.encode(mutation),
            )
