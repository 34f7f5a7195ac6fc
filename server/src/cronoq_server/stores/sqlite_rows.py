"""How a batch becomes rows of a SQLite file.

A task is a row when it comes and a row when it ends; while it lives, a narrow row beside them
holds its last change, so that recovery reads what lives and nothing else. Submitted and dispatched
in one batch it is one change fewer, submitted and ended in one batch it never is among the live.

Rows go in many at a time: every statement lets go of the interpreter's lock once, and gets it back
from a busy event loop only after a while.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from itertools import chain, takewhile
from typing import Any, assert_never

import msgspec

from cronoq_server.engine.model import FIRST_TERMINAL, Instant
from cronoq_server.engine.mutations import (
    Mutation,
    OutputStored,
    PoolPaused,
    ResourceResized,
    ScheduleRemoved,
    ScheduleSaved,
    StatusChanged,
    TaskDeleted,
    TaskInserted,
    TasksPruned,
)
from cronoq_server.stores.base import Batch, Rejected
from cronoq_server.stores.codec import (
    encode_change,
    encode_schedule,
    signed,
    task_row,
    unsigned,
)
from cronoq_server.stores.timebase import shift_change, shift_inserted, shift_schedule

ROWS_MAX = 512
"""Rows written by one statement."""

IDS = "(SELECT value FROM json_each(?))"
"""A list of numbers, given as one JSON text."""

# Columns are named: a newer build may add some while this one leads.
_INTO_TASKS = (
    "INSERT INTO cronoq_tasks (id, created_at, key, pool, kind, tenant, schedule, spec, payload)"
)
_INTO_LIVE = "INSERT OR REPLACE INTO cronoq_live (id, change)"
_INTO_ENDS = "INSERT INTO cronoq_ends (id, position, at, status, change, content_type, output)"


def id_list(ids: Iterable[int]) -> str:
    """The parameter for `IDS`."""
    return msgspec.json.encode(list(ids)).decode()


def write_batch(db: sqlite3.Connection, batch: Batch, base: int) -> list[int]:
    """Writes all of a batch within the transaction that is open.

    Returns:
        Ids of tasks that were pruned or deleted.

    Raises:
        Rejected: A task of it is there already, or one that it changes is not.
        sqlite3.IntegrityError: A row of it is there already.
    """
    inserted: Sequence[TaskInserted] = batch.inserted
    changed = batch.changed
    if base:
        inserted = [shift_inserted(row, base) for row in inserted]
        changed = {i: shift_change(row, base) for i, row in changed.items()}
    _insert(db, _INTO_TASKS, [task_row(row) for row in inserted])
    new = {row.task_id for row in inserted}
    outputs = dict(batch.outputs)
    _write_changes(db, new, changed, outputs, batch.position)
    for task_id, output in outputs.items():
        db.execute(
            "UPDATE cronoq_ends SET content_type = ?, output = ? WHERE id = ?",
            (output.content_type or None, output.output, signed(task_id)),
        )
    gone: list[int] = []
    for mutation in batch.others:
        gone += _write_other(db, mutation, base)
    return gone


def _write_changes(
    db: sqlite3.Connection,
    new: set[int],
    changed: dict[int, StatusChanged],
    outputs: dict[int, OutputStored],
    position: int,
) -> None:
    """Writes where tasks stand now; takes the outputs that it has written out of `outputs`."""
    live: list[tuple[int, bytes | None]] = []
    ends: list[tuple[int, int, Instant, int, bytes, str | None, bytes | None]] = []
    moved: list[int] = []
    ended: list[int] = []
    for task_id, change in changed.items():
        number, blob = signed(task_id), encode_change(change)
        if change.status < FIRST_TERMINAL:
            live.append((number, blob))
            if task_id not in new:
                moved.append(number)
            continue
        output = outputs.pop(task_id, None)
        content_type, content = (
            (None, None) if output is None else (output.content_type or None, output.output)
        )
        ends.append((number, position, change.at, change.status, blob, content_type, content))
        if task_id not in new:
            ended.append(number)
    live += [(signed(task_id), None) for task_id in new if task_id not in changed]
    _bring_back(db, moved)
    _take_leave(db, ended)
    live.sort()
    _insert(db, _INTO_LIVE, live)
    ends.sort()
    _insert(db, _INTO_ENDS, ends)


def _bring_back(db: sqlite3.Connection, moved: list[int]) -> None:
    """Sees to it that none of these, which live, has an end: some may have been put back."""
    if not moved:
        return
    ids = id_list(moved)
    count = f"SELECT count(*) FROM cronoq_live WHERE id IN {IDS}"
    missing = len(moved) - int(db.execute(count, (ids,)).fetchone()[0])
    if missing and _drop_ends(db, ids) != missing:
        raise _unknown(db, moved)


def _take_leave(db: sqlite3.Connection, ended: list[int]) -> None:
    """Takes these from among the live; one that was put back and ended anew has an end so far."""
    if not ended:
        return
    ids = id_list(ended)
    live = db.execute(f"DELETE FROM cronoq_live WHERE id IN {IDS}", (ids,)).rowcount
    missing = len(ended) - live
    if missing and _drop_ends(db, ids) != missing:
        raise _unknown(db, ended)


def _drop_ends(db: sqlite3.Connection, ids: str) -> int:
    return db.execute(f"DELETE FROM cronoq_ends WHERE id IN {IDS}", (ids,)).rowcount


def _unknown(db: sqlite3.Connection, ids: list[int]) -> Rejected:
    known = {
        i for (i,) in db.execute(f"SELECT id FROM cronoq_tasks WHERE id IN {IDS}", (id_list(ids),))
    }
    task_id = unsigned(next((i for i in ids if i not in known), ids[0]))
    return Rejected(f"task {task_id} is not there", "StatusChanged", task_id, "task_id")


def _insert(db: sqlite3.Connection, into: str, rows: Sequence[tuple[Any, ...]]) -> None:
    """Inserts rows, so many by one statement.

    Statements come in few sizes, so that they stay prepared: what is missing to the next one is
    filled with rows of NULL, which are passed over.
    """
    for start in range(0, len(rows), ROWS_MAX):
        part = rows[start : start + ROWS_MAX]
        size = _size(len(part))
        width = len(part[0])
        row = f"({','.join('?' * width)})"
        parameters = list(chain.from_iterable(part))
        parameters += [None] * (width * (size - len(part)))
        db.execute(
            f"{into} SELECT * FROM (VALUES {','.join([row] * size)}) WHERE column1 IS NOT NULL",
            parameters,
        )


def _size(count: int) -> int:
    """The next size of a statement: four of them up to the double, so that few rows are filled."""
    step = 1 << max(0, (count - 1).bit_length() - 3)
    return -(-count // step) * step


# What happens seldom.


def _write_other(db: sqlite3.Connection, mutation: Mutation, base: int) -> list[int]:
    """Writes what is no task's change; returns ids of tasks that are gone."""
    match mutation:
        case TasksPruned(before, limit, keep):
            return _prune(db, before + base, limit, keep)
        case TaskDeleted(task_id):
            ended = "SELECT id FROM cronoq_ends WHERE id = ?"
            return _forget(db, [i for (i,) in db.execute(ended, (signed(task_id),))])
        case ScheduleSaved(schedule):
            blob = encode_schedule(shift_schedule(schedule, base) if base else schedule)
            db.execute(
                "INSERT OR REPLACE INTO cronoq_schedules (name, schedule) VALUES (?, ?)",
                (schedule.spec.name, blob),
            )
        case ScheduleRemoved(name):
            db.execute("DELETE FROM cronoq_schedules WHERE name = ?", (name,))
        case PoolPaused(pool, True):
            db.execute("INSERT OR IGNORE INTO cronoq_paused_pools (pool) VALUES (?)", (pool,))
        case PoolPaused(pool, _):
            db.execute("DELETE FROM cronoq_paused_pools WHERE pool = ?", (pool,))
        case ResourceResized():
            db.execute(
                "INSERT OR REPLACE INTO cronoq_resized (name, resized) VALUES (?, ?)",
                (mutation.name, msgspec.msgpack.encode(mutation)),
            )
        case TaskInserted() | StatusChanged() | OutputStored():
            raise AssertionError(f"a batch keeps {mutation!r} elsewhere")
        case _:
            assert_never(mutation)
    return []


def _prune(db: sqlite3.Connection, before: Instant, limit: int, keep: Sequence[int]) -> list[int]:
    # The whole list of ends is never looked through: those that stay are few, and at its front.
    oldest = db.execute(
        f"SELECT id, position, at FROM cronoq_ends WHERE id NOT IN {IDS} "
        "ORDER BY position, id LIMIT ?",
        (id_list(map(signed, keep)), limit),
    ).fetchall()
    victims = list(takewhile(lambda end: end[2] < before, oldest))
    if not victims:
        return []
    db.execute(
        "UPDATE cronoq_leader SET forgotten = max(forgotten, ?) WHERE one = 1", (victims[-1][1],)
    )
    return _forget(db, [number for number, _, _ in victims])


def _forget(db: sqlite3.Connection, numbers: list[int]) -> list[int]:
    ids = id_list(numbers)
    db.execute(f"DELETE FROM cronoq_ends WHERE id IN {IDS}", (ids,))
    db.execute(f"DELETE FROM cronoq_tasks WHERE id IN {IDS}", (ids,))
    return [unsigned(number) for number in numbers]
