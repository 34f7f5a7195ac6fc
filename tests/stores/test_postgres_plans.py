"""What PostgreSQL reads for a look-up is about what it returns, however much there is.

The planner knows little of tables that grow this fast; these tests look at what its plans did.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from cronoq_server.engine.model import TaskFilter
from cronoq_server.stores import pg_reads as reads
from cronoq_server.stores.base import FinishedQuery
from cronoq_server.stores.pg_ledger import Segments
from cronoq_server.stores.pg_pruning import LATER, OLDEST
from cronoq_server.stores.pg_session import connect
from cronoq_server.stores.postgres import PostgresStore
from cronoq_server.testing.builders import batch, changed, inserted, output
from cronoq_server.testing.store_suite import ids, lead
from tests.stores.pg_place import PostgresPlace

NAMES = range(100, 120)
ROWS_MAX = 400
"""Rows that all parts of a plan together may handle for 20 tasks."""


class Explained:
    """A connection that counts the rows that plans handle."""

    def __init__(self, connection: Any) -> None:
        self.rows = 0
        self.read_whole: set[str] = set()
        self.looks_by_key = 0
        self._connection = connection

    async def fetch(self, statement: str, *values: Any) -> list[Any]:
        """Runs a statement twice: once to count, once for its rows."""
        explained = await self._connection.fetchval(
            f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}", *values
        )
        plan = json.loads(explained)[0]["Plan"]
        self.rows += handled(plan)
        self.read_whole |= read_whole(plan)
        self.looks_by_key += looks_by_key(plan)
        found: list[Any] = await self._connection.fetch(statement, *values)
        return found

    async def fetchrow(self, statement: str, *values: Any) -> Any:
        """The first row, found as `fetch` finds it."""
        return next(iter(await self.fetch(statement, *values)), None)

    async def fetchval(self, statement: str, *values: Any) -> Any:
        """Not counted: it reads one row."""
        return await self._connection.fetchval(statement, *values)


def handled(plan: dict[str, Any]) -> int:
    """Rows that a node and those below it returned or threw away."""
    rows = plan["Actual Rows"] + sum(n for k, n in plan.items() if k.startswith("Rows Removed"))
    return int(rows * plan["Actual Loops"]) + sum(handled(part) for part in plan.get("Plans", ()))


def read_whole(plan: dict[str, Any]) -> set[str]:
    """Tables of tasks that a plan reads from end to end."""
    found = set().union(*(read_whole(part) for part in plan.get("Plans", ())))
    if plan["Node Type"] == "Seq Scan" and plan["Relation Name"] != "cronoq_leader":
        found.add(plan["Relation Name"])
    return found


def looks_by_key(plan: dict[str, Any]) -> int:
    """How often a plan goes down an index of keys."""
    looks = sum(looks_by_key(part) for part in plan.get("Plans", ()))
    if plan.get("Index Name", "").endswith("_key_idx"):
        looks += int(plan["Actual Loops"])
    return looks


@pytest.fixture
def place(postgres: PostgresPlace) -> PostgresPlace:
    """A fresh schema."""
    return postgres


Look = Callable[[Any, Segments], Awaitable[Any]]

LOOKS: dict[str, Look] = {
    "by id": lambda db, at: reads.named(db, at, FinishedQuery(ids=tuple(NAMES)), 0),
    "by key": lambda db, at: reads.named(
        db, at, FinishedQuery(keys=tuple(f"key-{n}" for n in NAMES)), 0
    ),
    "outputs": lambda db, at: reads.outputs(db, at, list(NAMES)),
    "whole tasks": lambda db, at: reads.tasks(db, at, list(NAMES), 0),
    "live tasks": lambda db, at: reads.live(db, at, list(range(1, 21)), 0),
    "a page": lambda db, at: reads.page(
        db, at, FinishedQuery(filter=TaskFilter(), after=1000, limit=20), 0
    ),
    "the newest": lambda db, at: reads.page(
        db, at, FinishedQuery(filter=TaskFilter(), newest_first=True, limit=20), 0
    ),
    "a page by key": lambda db, at: reads.page(
        db, at, FinishedQuery(filter=TaskFilter(keys=("key-100", "key-2000")), limit=20), 0
    ),
    "ends": lambda db, at: reads.page(
        db, at, FinishedQuery(filter=TaskFilter(), ended_after=2, limit=20), 0
    ),
    "the oldest ends": lambda db, _: db.fetch(OLDEST, 3, 700, 20),
}


async def filled(place: PostgresPlace) -> PostgresStore:
    """Three thousand tasks in ten segments; all but the first twenty have ended."""
    store = place.open_with(segment_rows=300)
    leadership = await lead(store)
    for position in range(1, 11):
        numbers = range((position - 1) * 300 + 1, position * 300 + 1)
        rows = [inserted(n, key=f"key-{n}") for n in numbers]
        ends = [m for n in numbers if n > 20 for m in (changed(n), output(n))]
        await store.commit(leadership, batch(position, *rows, *ends))
    return store


@asynccontextmanager
async def explaining(place: PostgresPlace) -> AsyncIterator[Explained]:
    """A connection like those of the store."""
    db = await connect(place.settings, place.settings.url, "test")
    try:
        await db.execute(reads.PLANNING)
        yield Explained(db)
    finally:
        db.terminate()


@pytest.mark.parametrize("name", LOOKS)
async def test_a_look_up_handles_few_rows(place: PostgresPlace, name: str) -> None:
    """Twenty of three thousand, in many segments."""
    store = await filled(place)
    assert store._segments is not None
    async with explaining(place) as explained:
        await LOOKS[name](explained, store._segments)
        assert 0 < explained.rows < ROWS_MAX
        assert explained.read_whole == set()


@pytest.mark.parametrize("number", [600, 601, 890])
async def test_whether_a_segment_can_be_dropped_is_one_look_at_its_index(
    place: PostgresPlace, number: int
) -> None:
    """However many of its ends lie behind the mark."""
    await filled(place)
    async with explaining(place) as explained:
        await explained.fetch(LATER.format(segment=3), 3, number)
        assert explained.rows <= 2
        assert explained.read_whole == set()


NEW_KEYS = tuple(f"new-{n}" for n in range(100))


async def test_a_key_is_looked_for_where_it_may_be(place: PostgresPlace) -> None:
    """New keys in hardly any of ten full segments, a known one in its own."""
    store = await filled(place)
    segments = store._segments
    assert segments is not None
    async with explaining(place) as explained:
        assert (await reads.named(explained, segments, FinishedQuery(keys=NEW_KEYS), 0)).tasks == []
        assert explained.looks_by_key < 2 * len(NEW_KEYS)
        explained.looks_by_key = 0
        named = FinishedQuery(keys=("key-700",))
        assert ids((await reads.named(explained, segments, named, 0)).tasks) == [700]
        assert explained.looks_by_key < len(segments)


async def test_a_later_leader_knows_where_keys_may_be(place: PostgresPlace) -> None:
    """Of full segments it reads what was stored, of the one being filled it knows nothing."""
    store = await filled(place)
    assert store._term is not None
    await store.release_leadership(store._term)
    leadership = await lead(store)
    segments = store._segments
    assert segments is not None
    assert (len(segments.unread), segments.filters) == (9, {})
    for keys in (("key-700",), ("key-2950",), NEW_KEYS):
        found = await store.find_finished(FinishedQuery(keys=keys))
        assert [task.spec.key for task in found.tasks] == [key for key in keys if key[:3] == "key"]
    assert (segments.unread, sorted(segments.filters)) == ({}, list(range(1, 10)))
    rows = [m for n in range(3001, 3302) for m in (inserted(n, key=f"key-{n}"), changed(n))]
    await store.commit(leadership, batch(11, *rows))
    found = await store.find_finished(FinishedQuery(keys=("key-3001", "key-2950")))
    assert sorted(ids(found.tasks)) == [2950, 3001]
