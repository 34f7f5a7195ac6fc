"""What is read from a SQLite file, and by which index.

Every function works within one transaction of a reading connection. Where many rows are read in
order, callers come back for more, so that no reader holds up the journal for long.

Ended tasks are read as one row that holds them all as JSON: for each row SQLite gives up the
interpreter's lock, and a thread gets it back from a busy event loop only after five milliseconds.
What lives is read before there is anything to be busy with, row by row.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

import msgspec

from cronoq_server.engine.model import TaskFilter
from cronoq_server.engine.mutations import (
    Output,
    RecoveredChunk,
    StoredSchedule,
    StoredTask,
)
from cronoq_server.stores.base import LOOKED_AT_MAX, FinishedPage, FinishedQuery, Forgotten
from cronoq_server.stores.codec import (
    EndedColumns,
    decode_resized,
    decode_schedule,
    id_spans,
    read_ended,
    read_live,
    signed,
    signed_list,
    unsigned,
)
from cronoq_server.stores.pages import conditions, cut, fit, page_until
from cronoq_server.stores.sqlite_rows import IDS, id_list
from cronoq_server.stores.timebase import shift_schedule, shift_task

CHUNK = 1000
"""Tasks read at once."""

CHUNK_BYTES = 16 * 1024 * 1024
"""Bytes of payloads after which a chunk of tasks is full."""

_COLUMNS = (
    "t.id, t.created_at, t.key, t.pool, t.kind, t.tenant, t.spec, {payload}, "
    "e.position, e.at, e.status, e.change"
)
_SLIM = _COLUMNS.format(payload="NULL")
_WHOLE = _COLUMNS.format(payload="t.payload")
_ENDED = f"SELECT {_SLIM} FROM cronoq_ends e CROSS JOIN cronoq_tasks t ON t.id = e.id"
_AS_JSON = (
    "SELECT json_group_array(json_array(id, created_at, CAST(key AS TEXT), CAST(pool AS TEXT), "
    "CAST(kind AS TEXT), CAST(tenant AS TEXT), hex(spec), position, at, status, hex(change)))"
)


class _Slim(msgspec.Struct, array_like=True, gc=False):
    """An ended task's columns as JSON has them: bytes as hexadecimal text."""

    id: int
    created_at: int
    key: str | None
    pool: str
    kind: str
    tenant: str | None
    spec: str
    position: int
    at: int
    status: int
    change: str


_slim = msgspec.json.Decoder(list[_Slim]).decode


def _ended(
    db: sqlite3.Connection, select: str, values: Sequence[Any], base: int
) -> list[StoredTask]:
    """Ended tasks without payloads, in the order of the select if that has a limit."""
    (text,) = db.execute(f"{_AS_JSON} FROM ({select})", values).fetchone()
    try:
        columns = [
            EndedColumns(
                *(row.id, row.created_at, row.key, row.pool, row.kind, row.tenant),
                *(bytes.fromhex(row.spec), None, row.position, row.at, row.status),
                bytes.fromhex(row.change),
            )
            for row in _slim(text)
        ]
    except msgspec.DecodeError:  # somebody put a text where a number belongs
        columns = [EndedColumns(*row) for row in db.execute(select, values)]
    return _tasks(columns, base)


def _tasks(columns: Sequence[EndedColumns], base: int) -> list[StoredTask]:
    tasks = [read_ended(each) for each in columns]
    return [shift_task(task, -base) for task in tasks] if base else tasks


# --- by name -------------------------------------------------------------------------------------


def outputs(db: sqlite3.Connection, ids: Sequence[int]) -> dict[int, Output]:
    """Outputs of these tasks."""
    rows = db.execute(
        f"SELECT id, output, content_type FROM cronoq_ends WHERE id IN {IDS} "
        "AND output IS NOT NULL",
        (id_list(signed_list(ids)),),
    )
    return {unsigned(number): Output(content, kind or "") for number, content, kind in rows}


def named(db: sqlite3.Connection, query: FinishedQuery, base: int) -> FinishedPage:
    """Finished tasks by id and by key, each once."""
    found: dict[int, StoredTask] = {}
    if query.ids:
        wanted = (id_list(signed_list(query.ids)),)
        ended = _ended(db, f"{_ENDED} WHERE e.id IN {IDS}", wanted, base)
        found = {task.task_id: task for task in ended}
    if query.keys:
        newest: dict[str, StoredTask] = {}
        for task in by_keys(db, query.keys, base):
            newest[task.spec.key] = task
        found |= {task.task_id: task for task in newest.values()}
    return FinishedPage(list(found.values()))


def by_keys(db: sqlite3.Connection, keys: Sequence[str], base: int) -> list[StoredTask]:
    """Finished tasks with these keys, the last ended ones last."""
    select = (
        f"SELECT {_SLIM} FROM cronoq_tasks t CROSS JOIN cronoq_ends e ON e.id = t.id "
        f"WHERE t.key IN {IDS}"
    )
    found = _ended(db, select, (msgspec.json.encode(keys).decode(),), base)
    return sorted(found, key=lambda task: (task.position, signed(task.task_id)))


def tasks(db: sqlite3.Connection, ids: Sequence[int], base: int) -> list[StoredTask]:
    """Tasks with their payloads, whether they live or have ended."""
    numbers = id_list(signed_list(ids))
    rows = db.execute(
        f"SELECT {_WHOLE} FROM cronoq_ends e CROSS JOIN cronoq_tasks t ON t.id = e.id "
        f"WHERE e.id IN {IDS}",
        (numbers,),
    )
    found = _tasks([EndedColumns(*row) for row in rows], base)
    rows = db.execute(f"{LIVE} WHERE l.id IN {IDS}", (numbers,))
    live = [task for row in rows.fetchall() if (task := read_live(*row)) is not None]
    return found + ([shift_task(task, -base) for task in live] if base else live)


# --- recovery ------------------------------------------------------------------------------------

LIVE = (
    "SELECT l.id, t.created_at, t.key, t.spec, t.payload, l.change "
    "FROM cronoq_live l CROSS JOIN cronoq_tasks t ON t.id = l.id"
)
"""Reads what lives and nothing else: CROSS JOIN keeps the order of the two tables."""


def settings(db: sqlite3.Connection, base: int) -> tuple[RecoveredChunk, list[str]]:
    """Schedules, paused pools and resized resources; and names of schedules not readable."""
    schedules: list[StoredSchedule] = []
    broken: list[str] = []
    stored = "SELECT name, schedule FROM cronoq_schedules WHERE quarantined IS NULL ORDER BY name"
    for name, blob in db.execute(stored).fetchall():
        schedule = decode_schedule(blob)
        if schedule is None:
            broken.append(name)
        else:
            schedules.append(shift_schedule(schedule, -base) if base else schedule)
    paused = db.execute("SELECT pool FROM cronoq_paused_pools ORDER BY pool").fetchall()
    resized = db.execute("SELECT resized FROM cronoq_resized ORDER BY name").fetchall()
    chunk = RecoveredChunk(
        schedules=tuple(schedules),
        paused_pools=tuple(pool for (pool,) in paused),
        # Where what was set by hand cannot be read, the configured size holds.
        resized=tuple(size for (blob,) in resized if (size := decode_resized(blob)) is not None),
    )
    return chunk, broken


def live(
    db: sqlite3.Connection, low: int, high: int, base: int
) -> tuple[list[StoredTask], list[int], int | None]:
    """Live tasks with (signed) ids in a span, in order.

    Returns:
        The tasks; ids of those that cannot be read; where the rest begins, None = nothing is left.
    """
    found: list[StoredTask] = []
    broken: list[int] = []
    size = 0
    rows = db.execute(f"{LIVE} WHERE l.id BETWEEN ? AND ? ORDER BY l.id", (low, high))
    for count, row in enumerate(rows, 1):
        task = read_live(*row)
        if task is None:
            broken.append(unsigned(row[0]))
        else:
            found.append(shift_task(task, -base) if base else task)
        size += len(row[4] or b"")
        if count == CHUNK or size >= CHUNK_BYTES:
            rows.close()
            return found, broken, row[0] + 1
    return found, broken, None


def orphans(db: sqlite3.Connection) -> list[int]:
    """Ids that are marked as live and have no row."""
    rows = db.execute(
        "SELECT l.id FROM cronoq_live l LEFT JOIN cronoq_tasks t ON t.id = l.id WHERE t.id IS NULL"
    )
    return [number for (number,) in rows.fetchall()]


def ends_before(
    db: sqlite3.Connection, place: tuple[int, int], base: int
) -> tuple[list[StoredTask], tuple[int, int] | None]:
    """Ends before a (position, signed id), newest first; and where the rest begins."""
    position, number = place
    select = (
        f"{_ENDED} WHERE e.position <= ? AND (e.position < ? OR e.id < ?) "
        "ORDER BY e.position DESC, e.id DESC LIMIT ?"
    )
    found = _ended(db, select, (position, position, number, CHUNK), base)
    if len(found) < CHUNK:
        return found, None
    return found, (found[-1].position, signed(found[-1].task_id))


# --- pages ---------------------------------------------------------------------------------------


class _Filter:
    """A filter's conditions, and the values for them."""

    def __init__(self, wanted: TaskFilter) -> None:
        self.values: list[Any] = []
        self.sql = "".join(
            f" AND {condition}" for condition in conditions(wanted, self._among, self._contains)
        )

    def _among(self, column: str, values: list[Any]) -> str:
        self.values.append(msgspec.json.encode(values).decode())
        return f"{column} IN {IDS}"

    def _contains(self, column: str, part: bytes) -> str:
        self.values.append(part)
        return f"instr({column}, ?) > 0"


def page(db: sqlite3.Connection, query: FinishedQuery, base: int) -> FinishedPage:
    """A page in order of ids or of ends.

    Raises:
        Forgotten: An end that would be in it was pruned.
    """
    if query.ended_after is None:
        return _page_by_id(db, query, base)
    (forgotten,) = db.execute("SELECT forgotten FROM cronoq_leader").fetchone()
    if forgotten and forgotten >= query.ended_after:
        raise Forgotten
    after = signed(query.after) if query.after else -(1 << 63)
    where = "position >= ? AND (position > ? OR id > ?)"
    bounds = (query.ended_after, query.ended_after, after)
    return _window(db, query, (where, bounds, ("position", "id")), [], base)


def _page_by_id(db: sqlite3.Connection, query: FinishedQuery, base: int) -> FinishedPage:
    found: list[StoredTask] = []
    for span in id_spans(query.after, newest_first=query.newest_first):
        result = _window(db, query, ("id BETWEEN ? AND ?", span, ("id",)), found, base)
        if result.next_after:
            return result
        found = result.tasks
    return FinishedPage(found)


_BY_KEY = (
    "(SELECT e.id, e.position FROM cronoq_tasks k CROSS JOIN cronoq_ends e ON e.id = k.id "
    f"WHERE k.key IN {IDS})"
)


def _window(
    db: sqlite3.Connection,
    query: FinishedQuery,
    ordered: tuple[str, tuple[int, ...], tuple[str, ...]],
    before: list[StoredTask],
    base: int,
) -> FinishedPage:
    """A page from one window of the ends, behind tasks that were found before."""
    where, bounds, columns = ordered
    wanted = query.filter or TaskFilter()
    down = " DESC" if query.newest_first and query.ended_after is None else ""
    order = ", ".join(f"{column}{down}" for column in columns)
    among: tuple[Any, ...] = bounds
    source = "cronoq_ends"
    if wanted.keys:  # few tasks have one key: the window is made of those
        source, among = _BY_KEY, (msgspec.json.encode(wanted.keys).decode(), *bounds)
    window = f"SELECT id, position FROM {source} WHERE {where} ORDER BY {order}"
    only = _Filter(wanted)
    room = query.limit + 1 - len(before)
    select = (
        f"SELECT {_SLIM} FROM ({window} LIMIT ?) w "
        "CROSS JOIN cronoq_ends e ON e.id = w.id CROSS JOIN cronoq_tasks t ON t.id = w.id "
        f"WHERE 1{only.sql} ORDER BY {', '.join(f'w.{c}{down}' for c in columns)} LIMIT ?"
    )
    values = (*among, LOOKED_AT_MAX if only.sql else room, *only.values, room)
    found = before + _ended(db, select, values, base)
    full = cut(found, query)
    if full is not None:
        return full
    if only.sql:
        last = db.execute(f"{window} LIMIT 1 OFFSET {LOOKED_AT_MAX - 1}", among).fetchone()
        if last is not None:
            return page_until(found, unsigned(last[0]), last[1], query)
    return FinishedPage(fit(found, wanted))
