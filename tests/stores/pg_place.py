"""A place for the store suites on a PostgreSQL server: one schema, and what befalls it."""

from __future__ import annotations

import itertools
from typing import Any

import asyncpg
import msgspec

from cronoq_server.stores.base import Leadership, Store
from cronoq_server.stores.pg_session import PostgresSettings, lock_key, quoted, session_name
from cronoq_server.stores.postgres import PostgresStore
from tests.stores.durable_suite import GARBAGE
from tests.stores.pg import Cluster

_schemas = itertools.count(1)


class PostgresPlace:
    """A schema with a name that wants quoting."""

    def __init__(self, cluster: Cluster) -> None:
        # Segments of a few tasks, so that short tests cross their borders.
        name = f'Clu"ster {next(_schemas)}'
        self.settings = PostgresSettings(cluster.url, schema=name, segment_rows=20)
        self._stores: list[Store] = []

    async def open(self) -> Store:
        """See `Place.open`."""
        return self.open_with()

    async def lapse(self, _store: Store, _leadership: Leadership, /) -> None:
        """See `Place.lapse`: the session that holds the lock is ended by the server."""
        await self.end_sessions(session_name(self.settings.schema, None))

    async def end_sessions(self, name: str) -> None:
        """The server ends all sessions of this name."""
        await self.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
            "WHERE application_name = $1",
            name,
        )

    async def open_as(self, shard: int) -> Store:
        """See `SqlPlace.open_as`."""
        return self.open_with(shard=shard)

    def open_with(self, **changes: Any) -> PostgresStore:
        """One more handle, with other settings."""
        store = PostgresStore(msgspec.structs.replace(self.settings, **changes))
        self._stores.append(store)
        return store

    async def spoil(self, table: str, column: str, key: str, value: object) -> None:
        """See `SqlPlace.spoil`."""
        await self.execute(f"UPDATE {table} SET {column} = $1 WHERE {key} = $2", GARBAGE, value)

    async def remove(self, table: str, key: str, value: object) -> None:
        """See `SqlPlace.remove`."""
        await self.execute(f"DELETE FROM {table} WHERE {key} = $1", value)

    async def execute(self, statement: str, *values: object) -> list[Any]:
        """What somebody does by hand; returns the rows."""
        options = {
            "search_path": quoted(self.settings.schema),
            "default_transaction_read_only": "off",
        }
        db = await asyncpg.connect(self.settings.url, server_settings=options)
        try:
            rows: list[Any] = await db.fetch(statement, *values)
            return rows
        finally:
            await db.close()

    async def restart(self) -> None:
        """See `Place.restart`."""
        await self.close()

    async def close(self) -> None:
        """Closes all handles."""
        for store in self._stores:
            await store.close()
        self._stores.clear()

    async def drop(self) -> None:
        """Removes the schema."""
        await self.execute(f"DROP SCHEMA IF EXISTS {quoted(self.settings.schema)} CASCADE")

    async def advisory_locks(self) -> int:
        """How many leader's locks of this place are held."""
        key = lock_key(self.settings.schema, "leader") & (1 << 64) - 1
        rows = await self.execute(
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted "
            "AND classid::bigint = $1 AND objid::bigint = $2",
            key >> 32,
            key & 0xFFFFFFFF,
        )
        return int(rows[0][0])
