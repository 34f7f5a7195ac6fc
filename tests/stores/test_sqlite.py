"""The SQLite store keeps the contract of the stores, on a real file."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cronoq_server.stores.base import FinishedQuery, Leadership, Store
from cronoq_server.stores.sqlite import SqliteStore
from cronoq_server.stores.sqlite_file import SqliteSettings
from cronoq_server.testing.builders import batch, changed, inserted
from cronoq_server.testing.store_suite import *  # noqa: F403 (a store's tests are the suite)
from cronoq_server.testing.store_suite import Place, finished, ids, recovered, written
from tests.stores.durable_suite import *  # noqa: F403
from tests.stores.durable_suite import GARBAGE


class HandClock:
    """Clocks of a replica that can be stopped and moved."""

    def __init__(self) -> None:
        self.wall_offset = 0
        self.mono_offset = 0

    def wall(self) -> int:
        """See `LeaseClock.wall`."""
        return time.time_ns() + self.wall_offset

    def mono(self) -> int:
        """See `LeaseClock.mono`."""
        return time.monotonic_ns() + self.mono_offset


class SqlitePlace:
    """A file in a directory of its own."""

    def __init__(self, path: Path) -> None:
        self.settings = SqliteSettings(str(path))
        self.clocks: dict[Store, HandClock] = {}

    async def open(self) -> Store:
        """See `Place.open`."""
        clock = HandClock()
        store = SqliteStore(self.settings, clock=clock)
        self.clocks[store] = clock
        return store

    async def lapse(self, store: Store, _leadership: Leadership, /) -> None:
        """See `Place.lapse`: its lease has run out, and what it renews has run out too."""
        self.clocks[store].wall_offset = -3600 * 1_000_000_000
        self.execute("UPDATE cronoq_leader SET expires_at = 0")

    async def open_as(self, shard: int) -> Store:
        """See `SqlPlace.open_as`."""
        settings = msgspec.structs.replace(self.settings, shard=shard)
        clock = HandClock()
        store = SqliteStore(settings, clock=clock)
        self.clocks[store] = clock
        return store

    async def spoil(self, table: str, column: str, key: str, value: object) -> None:
        """See `SqlPlace.spoil`."""
        self.execute(f"UPDATE {table} SET {column} = ? WHERE {key} = ?", GARBAGE, value)

    async def remove(self, table: str, key: str, value: object) -> None:
        """See `SqlPlace.remove`."""
        self.execute(f"DELETE FROM {table} WHERE {key} = ?", value)

    def execute(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        """What somebody does by hand; returns the rows."""
        db = sqlite3.connect(self.settings.path)
        try:
            with db:
                return db.execute(statement, values).fetchall()
        finally:
            db.close()

    async def restart(self) -> None:
        """See `Place.restart`."""
        await self.close()

    async def close(self) -> None:
        """Closes all handles."""
        for store in self.clocks:
            await store.close()
        self.clocks.clear()


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    """A fresh file for each test."""
    made = SqlitePlace(tmp_path / "cronoq.db")
    yield made
    await made.close()


@pytest.mark.parametrize("count", [5, 9, 33, 129, 300, 513, 1025])
async def test_a_batch_of_any_size_is_written_whole(place: Place, count: int) -> None:
    """Statements take rows by the dozen; none is lost between two of them, and none made up."""
    store, leadership = await written(place, *(inserted(n) for n in range(1, count + 1)))
    await store.commit(leadership, batch(2, *(changed(n) for n in range(1, count + 1, 2))))
    found = await recovered(store, leadership)
    assert ids(found.live) == list(range(2, count + 1, 2))
    assert sorted(ids(found.finished)) == list(range(1, count + 1, 2))


async def test_a_text_where_a_number_belongs_hides_no_other_task(place: Any) -> None:
    """What somebody did by hand costs the quick way of reading, and nothing else."""
    store, _ = await written(place, *finished(1), *finished(2, key="a"))
    place.execute("UPDATE cronoq_ends SET at = 'yesterday' WHERE id = 1")
    page = await store.find_finished(FinishedQuery(ids=(1, 2)))
    assert sorted(ids(page.tasks)) == [1, 2]
