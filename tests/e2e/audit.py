"""Who wrote when: every change of the leader row, noted by the database itself.

A trigger in the store under test copies epoch, holder and position whenever one of them is
written. So a write under an epoch that was over shows, whatever the servers believe.
"""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Protocol

import asyncpg

from cronoq_server.stores.pg_session import quoted

Row = tuple[int, str, int]
"""Epoch, holder, position."""

SQLITE = """
CREATE TABLE audit (n INTEGER PRIMARY KEY AUTOINCREMENT, epoch INT, holder TEXT, position INT);
CREATE TRIGGER audit AFTER UPDATE OF epoch, position ON cronoq_leader BEGIN
    INSERT INTO audit (epoch, holder, position) VALUES (NEW.epoch, NEW.holder, NEW.position);
END;
"""

POSTGRES = """
CREATE TABLE audit (n bigserial, epoch bigint, holder text, position bigint);
CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO audit (epoch, holder, position) VALUES (NEW.epoch, NEW.holder, NEW.position);
    RETURN NULL;
END $$;
CREATE TRIGGER audit AFTER UPDATE OF epoch, position ON cronoq_leader
    FOR EACH ROW EXECUTE FUNCTION note();
"""
# The row's lock is held when a number is drawn, so that numbers are in the order of the commits.

READ = "SELECT epoch, holder, position FROM audit ORDER BY n"


class Audit(Protocol):
    """The notes of one store."""

    async def begin(self) -> None:
        """Notes from now on."""

    async def rows(self) -> list[Row]:
        """All notes, in the order of the writes."""


class SqliteAudit:
    """See `Audit`."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def begin(self) -> None:
        """See `Audit.begin`."""
        with closing(sqlite3.connect(self._path, timeout=30)) as db:
            db.executescript(SQLITE)

    async def rows(self) -> list[Row]:
        """See `Audit.rows`."""
        return await asyncio.to_thread(self._read)

    def _read(self) -> list[Row]:
        with closing(sqlite3.connect(self._path, timeout=30)) as db:
            return db.execute(READ).fetchall()


class PostgresAudit:
    """See `Audit`."""

    def __init__(self, url: str, schema: str) -> None:
        self._url = url
        self._options = {"search_path": quoted(schema), "default_transaction_read_only": "off"}

    async def begin(self) -> None:
        """See `Audit.begin`."""
        db = await asyncpg.connect(self._url, server_settings=self._options)
        await db.execute(POSTGRES)
        await db.close()

    async def rows(self) -> list[Row]:
        """See `Audit.rows`."""
        db = await asyncpg.connect(self._url, server_settings=self._options)
        rows = [tuple(row) for row in await db.fetch(READ)]
        await db.close()
        return rows


def judge(rows: list[Row]) -> int:
    """Holds the notes against what a store owes; returns how many terms there were.

    Raises:
        AssertionError: Somebody wrote under an epoch that was over, or a batch is missing.
    """
    holders: dict[int, str] = {}
    for epoch, holder, _ in rows:
        assert holders.setdefault(epoch, holder) == holder, f"two holders wrote in epoch {epoch}"
    for before, after in pairwise(rows):
        begins = after[0] == before[0] + 1 and after[2] == before[2]
        goes_on = after[0] == before[0] and after[2] == before[2] + 1
        assert begins or goes_on, f"{after} was written after {before}"
    return len(holders)
