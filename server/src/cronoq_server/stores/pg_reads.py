"""What is read from PostgreSQL tables, and by which index.

Ends behind the mark of pruning are gone, though their rows may still be there: every statement
that reads ends compares. A single statement sees one state of the database, so most look-ups need
no transaction.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

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
    unsigned,
)
from cronoq_server.stores.pages import conditions, cut, fit, page_until
from cronoq_server.stores.pg_keys import KeyFilter
from cronoq_server.stores.pg_ledger import ASIDE, Blocks, Ledger, Segments
from cronoq_server.stores.pg_session import Connection, transaction
from cronoq_server.stores.timebase import shift_schedule, shift_task

CHUNK = 1000
"""Tasks read at once."""

ONE_STATE = "ISOLATION LEVEL REPEATABLE READ READ ONLY"
"""Mode of a transaction whose statements all see the same."""

PLANNING = (
    "SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off; "
    "SET enable_bitmapscan = off; SET plan_cache_mode = force_generic_plan"
)
"""All look-ups are walks along an index with others beside it; statistics, which lag behind tables
that grow this fast, must not talk the planner into reading them whole. For the same reason rows
are joined one by one (`LATERAL … LIMIT 1`), which is an order that it cannot turn round."""

_COLUMNS = (
    "t.id, t.created_at, t.key, t.pool, t.kind, t.tenant, t.spec, {payload}, "
    "e.position, e.at, e.status, e.change"
)
_SLIM = _COLUMNS.format(payload="NULL::bytea")
_WHOLE = _COLUMNS.format(payload="t.payload")
_END = """CROSS JOIN LATERAL (
    SELECT id, position, at, status, change, content_type, output FROM cronoq_ends
    WHERE segment = w.segment AND id = w.id LIMIT 1
) e"""
_TASK = """CROSS JOIN LATERAL (
    SELECT id, created_at, key, pool, kind, tenant, schedule, spec, payload, change
    FROM cronoq_tasks WHERE segment = w.segment AND id = w.id LIMIT 1
) t"""
_TASK_OF_END = _TASK.replace("w.", "e.")
_ENDS = "SELECT e.segment, e.id, e.position, e.at, e.status, e.change"
_KEPT = "(e.position, e.id) > (l.pruned_position, l.pruned_id)"
_SPARED = f"({_KEPT} OR w.segment = {ASIDE})"
"""By name what was set aside is found whatever the mark says; pages leave it out."""
_IDS = "unnest($1::integer[], $2::bigint[]) AS w (segment, id)"
_NAMED = f"{_IDS} {_END} CROSS JOIN cronoq_leader l"

_KEYED = """(
    SELECT k.segment, k.id FROM unnest(${}::integer[], ${}::text[]) AS p (segment, key)
    CROSS JOIN LATERAL (
        SELECT segment, id FROM cronoq_tasks WHERE segment = p.segment AND key = p.key OFFSET 0
    ) k
) w"""
_FILTERS_READ = 8
"""Filters of full segments that one look-up reads at most; those left are looked into."""


def places(segments: Segments, ids: Iterable[int]) -> tuple[list[int], list[int]]:
    """Segments and signed ids of these tasks, side by side; impossible ids are left out."""
    possible = [i for i in ids if 0 < i < 1 << 64]
    return [segments.of(i) for i in possible], [signed(i) for i in possible]


def _ended(rows: Sequence[Any], base: int) -> list[StoredTask]:
    tasks = [read_ended(EndedColumns(*row)) for row in rows]
    return [shift_task(task, -base) for task in tasks] if base else tasks


# --- by name -------------------------------------------------------------------------------------


async def outputs(db: Connection, segments: Segments, ids: Sequence[int]) -> dict[int, Output]:
    """Outputs of these tasks."""
    rows = await db.fetch(
        f"SELECT e.id, e.output, e.content_type FROM {_NAMED} "
        f"WHERE e.output IS NOT NULL AND {_SPARED}",
        *places(segments, ids),
    )
    return {unsigned(number): Output(content, kind or "") for number, content, kind in rows}


async def named(
    db: Connection, segments: Segments, query: FinishedQuery, base: int
) -> FinishedPage:
    """Finished tasks by id and by key, each once."""
    found: dict[int, StoredTask] = {}
    if query.ids:
        rows = await db.fetch(
            f"SELECT {_SLIM} FROM {_NAMED} {_TASK} WHERE {_SPARED}", *places(segments, query.ids)
        )
        found = {task.task_id: task for task in _ended(rows, base)}
    if query.keys:
        await read_filters(db, segments)
        rows = await db.fetch(
            f"SELECT {_SLIM} FROM {_KEYED.format(1, 2)} {_END} CROSS JOIN cronoq_leader l {_TASK} "
            f"WHERE {_SPARED} ORDER BY e.position, e.id",
            *segments.that_may_hold(query.keys),
        )
        newest = {task.spec.key: task for task in _ended(rows, base)}
        found |= {task.task_id: task for task in newest.values()}
    return FinishedPage(list(found.values()))


async def read_filters(db: Connection, segments: Segments) -> None:
    """Reads some of the filters that a leader before has stored."""
    if segments.unread:
        wanted = list(segments.unread)[-_FILTERS_READ:]
        stored = await db.fetch(
            "SELECT segment, keys FROM cronoq_segments WHERE segment = ANY($1)", wanted
        )
        for segment in wanted:
            segments.unread.pop(segment, None)
        segments.filters |= {segment: KeyFilter(bits) for segment, bits in stored}


async def tasks(
    db: Connection, segments: Segments, ids: Sequence[int], base: int
) -> list[StoredTask]:
    """Tasks with their payloads, whether they live or have ended."""
    where = places(segments, dict.fromkeys(ids))
    rows = await db.fetch(f"SELECT {_WHOLE} FROM {_NAMED} {_TASK} WHERE {_SPARED}", *where)
    found = _ended(rows, base)
    seen = {task.task_id for task in found}
    # Of the others those live that have no end at all, not even one behind the mark.
    rows = await db.fetch(
        f"{_LIVE} AND NOT EXISTS "
        "(SELECT FROM cronoq_ends e WHERE e.segment = w.segment AND e.id = w.id)",
        *where,
    )
    live = [task for row in rows if (task := read_live(*row)) is not None]
    live = [shift_task(task, -base) for task in live] if base else live
    return found + [task for task in live if task.task_id not in seen]


# --- recovery ------------------------------------------------------------------------------------

_LIVE = f"""
SELECT t.id, t.created_at, t.key, t.spec, t.payload, coalesce(c.change, t.change)
FROM {_IDS} {_TASK}
LEFT JOIN LATERAL (
    SELECT change FROM cronoq_changes
    WHERE segment = w.segment AND id = w.id ORDER BY position DESC LIMIT 1
) c ON true
WHERE true"""

_LIVE_IN = """
SELECT t.id, t.created_at, t.key, t.spec, t.payload, coalesce(c.change, t.change)
FROM cronoq_tasks_{segment} t
LEFT JOIN LATERAL (
    SELECT change FROM cronoq_changes_{segment} WHERE id = t.id ORDER BY position DESC LIMIT 1
) c ON true
WHERE t.id = ANY($1)"""


async def ledger(db: Connection) -> Ledger:
    """Everything a leader knows by heart, in one state of the database."""
    async with transaction(db, ONE_STATE):
        leader = await db.fetchrow("SELECT * FROM cronoq_leader")
        segments = await db.fetch(
            "SELECT first_id, segment, keys IS NOT NULL FROM cronoq_segments ORDER BY segment"
        )
        aside = await db.fetch(f"SELECT id FROM cronoq_tasks_{ASIDE}")
        blocks = await db.fetch("SELECT block, alive FROM cronoq_blocks")
    highest = leader["high_water"]
    return Ledger(
        leader["position"],
        0 if highest is None else unsigned(highest),
        leader["segment_rows"],
        (leader["pruned_position"], leader["pruned_id"]),
        Segments(
            ((unsigned(first), segment) for first, segment, _ in segments),
            (unsigned(number) for (number,) in aside),
            (segment for _, segment, is_known in segments if is_known),
        ),
        Blocks((block, bits) for block, bits in blocks),
    )


async def settings(db: Connection, base: int) -> tuple[RecoveredChunk, list[str]]:
    """Schedules, paused pools and resized resources; and names of schedules not readable."""
    schedules: list[StoredSchedule] = []
    broken: list[str] = []
    stored = "SELECT name, schedule FROM cronoq_schedules WHERE quarantined IS NULL ORDER BY name"
    for name, blob in await db.fetch(stored):
        schedule = decode_schedule(blob)
        if schedule is None:
            broken.append(name)
        else:
            schedules.append(shift_schedule(schedule, -base) if base else schedule)
    paused = await db.fetch("SELECT pool FROM cronoq_paused_pools ORDER BY pool")
    resized = await db.fetch("SELECT resized FROM cronoq_resized ORDER BY name")
    chunk = RecoveredChunk(
        schedules=tuple(schedules),
        paused_pools=tuple(pool for (pool,) in paused),
        # Where what was set by hand cannot be read, the configured size holds.
        resized=tuple(size for (blob,) in resized if (size := decode_resized(blob)) is not None),
    )
    return chunk, broken


async def live(
    db: Connection, segments: Segments, ids: Sequence[int], base: int
) -> tuple[list[StoredTask], list[int]]:
    """These live tasks in order of their ids; and ids of those that cannot be read.

    Each segment is asked for its own: a million rows are too many to look for each one's table.
    """
    found: dict[int, StoredTask] = {}
    for segment, numbers in segments.by_segment(ids).items():
        rows = await db.fetch(_LIVE_IN.format(segment=segment), [signed(i) for i in numbers])
        for row in rows:
            task = read_live(*row)
            if task is not None:
                found[task.task_id] = shift_task(task, -base) if base else task
    return [found[i] for i in ids if i in found], [i for i in ids if i not in found]


async def ends_before(
    db: Connection, place: tuple[int, int], base: int
) -> tuple[list[StoredTask], tuple[int, int] | None]:
    """Ends before a (position, signed id), newest first; and where the rest begins."""
    rows = await db.fetch(
        f"SELECT {_SLIM} FROM ({_ENDS} FROM cronoq_ends e, cronoq_leader l "
        f"WHERE (e.position, e.id) < ($1, $2) AND {_KEPT} "
        f"ORDER BY e.position DESC, e.id DESC LIMIT $3) e {_TASK_OF_END} "
        "ORDER BY e.position DESC, e.id DESC",
        *place,
        CHUNK,
    )
    found = _ended(rows, base)
    if len(found) < CHUNK:
        return found, None
    return found, (found[-1].position, signed(found[-1].task_id))


# --- pages ---------------------------------------------------------------------------------------


class _Filter:
    """A filter's conditions, and the values for them, behind those that were there before."""

    def __init__(self, wanted: TaskFilter, values: list[Any]) -> None:
        self.values = values
        self.sql = "".join(
            f" AND {condition}" for condition in conditions(wanted, self._among, self._contains)
        )

    def _among(self, column: str, values: list[Any]) -> str:
        self.values.append(values)
        return f"{column} = ANY(${len(self.values)})"

    def _contains(self, column: str, part: bytes) -> str:
        self.values.append(part)
        return f"position(${len(self.values)} IN {column}) > 0"


async def page(db: Connection, segments: Segments, query: FinishedQuery, base: int) -> FinishedPage:
    """A page in order of ids or of ends.

    Raises:
        Forgotten: An end that would be in it was pruned.
    """
    if query.filter is not None and query.filter.keys:
        await read_filters(db, segments)
    if query.ended_after is None:
        return await _page_by_id(db, segments, query, base)
    forgotten = await db.fetchval("SELECT pruned_position FROM cronoq_leader")
    if forgotten and forgotten >= query.ended_after:
        raise Forgotten
    after = signed(query.after) if query.after else -(1 << 63)
    window = ("(e.position, e.id) > ($1, $2)", [query.ended_after, after], ("position", "id"))
    return await _window(db, segments, query, window, [], base)


async def _page_by_id(
    db: Connection, segments: Segments, query: FinishedQuery, base: int
) -> FinishedPage:
    found: list[StoredTask] = []
    for span in id_spans(query.after, newest_first=query.newest_first):
        window = ("e.id BETWEEN $1 AND $2", list(span), ("id",))
        result = await _window(db, segments, query, window, found, base)
        if result.next_after:
            return result
        found = result.tasks
    return FinishedPage(found)


_BY_KEY = f"""(
    SELECT w.segment, w.id, e.position, e.at, e.status, e.change
    FROM {_KEYED.format(3, 4)} {_END}
)"""


async def _window(
    db: Connection,
    segments: Segments,
    query: FinishedQuery,
    ordered: tuple[str, list[Any], tuple[str, ...]],
    before: list[StoredTask],
    base: int,
) -> FinishedPage:
    """A page from one window of the ends, behind tasks that were found before."""
    where, bounds, columns = ordered
    wanted = query.filter or TaskFilter()
    down = " DESC" if query.newest_first and query.ended_after is None else ""
    order = ", ".join(f"e.{column}{down}" for column in columns)
    source, among = "cronoq_ends", bounds
    if wanted.keys:  # few tasks have one key: the window is made of those
        source, among = _BY_KEY, [*bounds, *segments.that_may_hold(wanted.keys)]
    window = f"{_ENDS} FROM {source} e, cronoq_leader l WHERE {where} AND {_KEPT} ORDER BY {order}"
    room = query.limit + 1 - len(before)
    place = len(among) + 1
    only = _Filter(wanted, [*among, room, room])
    if only.sql:
        only.values[place - 1] = LOOKED_AT_MAX
    rows = await db.fetch(
        f"SELECT {_SLIM} FROM ({window} LIMIT ${place}) e {_TASK_OF_END} "
        f"WHERE true{only.sql} ORDER BY {order} LIMIT ${place + 1}",
        *only.values,
    )
    found = before + _ended(rows, base)
    full = cut(found, query)
    if full is not None:
        return full
    if only.sql:
        last = await db.fetchrow(f"{window} LIMIT 1 OFFSET {LOOKED_AT_MAX - 1}", *among)
        if last is not None:
            return page_until(found, unsigned(last["id"]), last["position"], query)
    return FinishedPage(fit(found, wanted))
