"""The PostgreSQL store keeps the contract of the stores, on a real server."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator

import asyncpg
import pytest

from cronoq_server.stores.base import Leadership, Store
from cronoq_server.stores.pg_session import PostgresSettings, quoted, session_name
from cronoq_server.stores.postgres import PostgresStore
from cronoq_server.testing.store_suite import *  # noqa: F403 (a store's tests are the suite)
from cronoq_server.testing.store_suite import Place
from tests.stores.pg import Cluster, running_cluster

_schemas = itertools.count(1)


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """One server for all tests; each has a schema of its own."""
    with running_cluster() as made:
        yield made


class PostgresPlace:
    """A schema with a name that wants quoting."""

    def __init__(self, cluster: Cluster) -> None:
        self.settings = PostgresSettings(cluster.url, schema=f'Clu"ster {next(_schemas)}')
        self._stores: list[Store] = []

    async def open(self) -> Store:
        """See `Place.open`."""
        store = PostgresStore(self.settings)
        self._stores.append(store)
        return store

    async def lapse(self, _store: Store, _leadership: Leadership, /) -> None:
        """See `Place.lapse`: the session that holds the lock is ended by the server."""
        db = await asyncpg.connect(self.settings.url)
        await db.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
            "WHERE application_name = $1",
            session_name(self.settings.schema, None),
        )
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
        db = await asyncpg.connect(self.settings.url)
        await db.execute(f"DROP SCHEMA IF EXISTS {quoted(self.settings.schema)} CASCADE")
        await db.close()


@pytest.fixture
async def place(cluster: Cluster) -> AsyncIterator[Place]:
    """A fresh schema for each test."""
    made = PostgresPlace(cluster)
    yield made
    await made.close()
    await made.drop()
