"""Which store a setting names."""

from __future__ import annotations

import time

import msgspec

from cronoq_server.engine.ids import EPOCH_MAX
from cronoq_server.stores.base import Store
from cronoq_server.stores.memory import MemoryDisk, MemoryStore
from cronoq_server.stores.pg_session import PostgresSettings
from cronoq_server.stores.postgres import PostgresStore
from cronoq_server.stores.sqlite import SqliteStore
from cronoq_server.stores.sqlite_file import SqliteSettings


class StoreSettings(msgspec.Struct, frozen=True):
    """What `open_store` has to know.

    Attributes:
        kind: `memory`, `sqlite` or `postgres`.
        finished_max: Finished tasks that the memory store keeps.
        cache_bytes: Outputs that are kept in memory, in bytes: by the memory store all there are,
            by others the newest.
        sqlite: Where a SQLite store lies and how it behaves.
        postgres: Where a PostgreSQL store lies and how it behaves.
    """

    kind: str = "memory"
    finished_max: int = 1_000_000
    cache_bytes: int = 64 * 1024 * 1024
    sqlite: SqliteSettings | None = None
    postgres: PostgresSettings | None = None


def open_store(settings: StoreSettings) -> Store:
    """Makes the store that the settings name; nothing is opened before it is used.

    Raises:
        ValueError: There is no store of this kind, or its own settings are missing.
    """
    match settings:
        case StoreSettings(kind="memory"):
            disk = MemoryDisk(settings.finished_max, settings.cache_bytes)
            disk.epoch = _epoch_of_this_process()
            return MemoryStore(disk)
        case StoreSettings(kind="sqlite", sqlite=SqliteSettings() as file):
            return SqliteStore(file, cache_bytes=settings.cache_bytes)
        case StoreSettings(kind="sqlite"):
            raise ValueError("a sqlite store needs its path")
        case StoreSettings(kind="postgres", postgres=PostgresSettings() as database):
            return PostgresStore(database, cache_bytes=settings.cache_bytes)
        case StoreSettings(kind="postgres"):
            raise ValueError("a postgres store needs its url")
        case _:
            known = "memory, sqlite, postgres"
            raise ValueError(f"there is no store of kind {settings.kind!r}; there are: {known}")


def _epoch_of_this_process() -> int:
    """Where the terms of a store that forgets begin: elsewhere after each restart.

    Otherwise a client that waits across a restart could be told of another task with its id.
    """
    return int(time.time()) % (EPOCH_MAX - 1)
