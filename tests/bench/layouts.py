"""How PostgreSQL tables can be laid out for tasks that come and end, measured beside each other.

`in place`: one row per task, updated when it ends. `moved`: a row among the live ones, which is
deleted when one among the ended is written. `appended`: what the store does, a row when a task
comes and a row when it ends. All with the same columns, the same indexes and the same first
statement, in batches of the same size; rows go in by COPY, ids of what ends in one array.
"""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import asyncpg

PAYLOAD = bytes(200)
SPEC = bytes(60)
CHANGE = bytes(40)
OUTPUT = bytes(20)

_TASK = "id bigint, created_at bigint, key text, pool text, kind text, spec bytea, payload bytea"
_END = "position bigint, at bigint, status integer, change bytea, output bytea"
_NEW = ["id", "created_at", "key", "pool", "kind", "spec", "payload"]


class Layout(NamedTuple):
    """A way to lay out tables.

    Attributes:
        tables: Statements that make them; `new` takes what comes.
        end: Statement that ends the ids in $1 at position $2; None = ends are copied in.
    """

    name: str
    tables: str
    end: str | None


LAYOUTS = (
    Layout(
        "in place",
        f"CREATE TABLE new ({_TASK}, {_END}, PRIMARY KEY (id)) WITH (fillfactor = 70);"
        "CREATE INDEX ON new (key); CREATE INDEX ON new (position) WHERE position IS NOT NULL",
        "UPDATE new SET position = $2, at = 1, status = 6, change = $3, output = $4 "
        "WHERE id = ANY($1)",
    ),
    Layout(
        "moved",
        f"CREATE TABLE new ({_TASK}, PRIMARY KEY (id)); CREATE INDEX ON new (key);"
        f"CREATE TABLE ended ({_TASK}, {_END}, PRIMARY KEY (id));"
        "CREATE INDEX ON ended (key); CREATE INDEX ON ended (position)",
        "WITH gone AS (DELETE FROM new WHERE id = ANY($1) RETURNING *) "
        "INSERT INTO ended SELECT *, $2::bigint, 1, 6, $3::bytea, $4::bytea FROM gone",
    ),
    Layout(
        "appended",
        f"CREATE TABLE new ({_TASK}, PRIMARY KEY (id)); CREATE INDEX ON new (key);"
        f"CREATE TABLE ended (id bigint, {_END}, PRIMARY KEY (id));"
        "CREATE INDEX ON ended (position)",
        None,
    ),
)


async def measure(url: str, layout: Layout, lives: int, batch: int) -> dict[str, Any]:
    """So many lives in batches of this size, in a schema of its own."""
    db = await asyncpg.connect(url, server_settings={"search_path": "layout"})
    await db.execute(
        "DROP SCHEMA IF EXISTS layout CASCADE; CREATE SCHEMA layout;"
        "CREATE TABLE leader (epoch bigint, position bigint); INSERT INTO leader VALUES (1, 0);"
        + layout.tables
    )
    began = time.perf_counter()
    running: list[int] = []
    for position in range(1, lives // batch + 1):
        running = await _commit(db, layout, position, batch, running)
    took = time.perf_counter() - began
    row = await db.fetchrow(
        "SELECT sum(pg_table_size(relid))::bigint AS table_bytes, "
        "sum(pg_indexes_size(relid))::bigint AS index_bytes, sum(n_tup_upd + n_tup_del)::bigint "
        "AS dead_made FROM pg_stat_user_tables WHERE schemaname = 'layout' AND relname <> 'leader'"
    )
    await db.execute("DROP SCHEMA layout CASCADE")
    await db.close()
    return {
        "layout": layout.name,
        "batch": batch,
        "lives_per_s": round(lives / took),
        "table_mb": round(row["table_bytes"] / 1e6, 1),
        "index_mb": round(row["index_bytes"] / 1e6, 1),
        "dead_rows_made": row["dead_made"],
    }


async def _commit(
    db: Any, layout: Layout, position: int, batch: int, running: list[int]
) -> list[int]:
    """One batch; returns the ids that it began."""
    ids = list(range(position * batch, (position + 1) * batch))
    await db.execute(f"BEGIN; UPDATE leader SET position = {position} WHERE epoch = 1")
    rows = [(i, 1, f"key-{i}", "default", "bench", SPEC, PAYLOAD) for i in ids]
    await db.copy_records_to_table("new", records=rows, columns=_NEW, schema_name="layout")
    if layout.end is not None:
        await db.execute(layout.end, running, position, CHANGE, OUTPUT)
    elif running:
        ends = [(i, position, 1, 6, CHANGE, OUTPUT) for i in running]
        await db.copy_records_to_table("ended", records=ends, schema_name="layout")
    await db.execute("COMMIT")
    return ids
