"""How a store that was restored from a back-up is made fit to be served.

The back-up's leader row is older than what the world has seen: ids, leases and cursors were given
out after it. Served as it is, the store would give the same ids to other tasks, and a watcher's
cursor would seem to lie in the future, until the log has come that far and swallows ends.

So three marks of the row jump, as far as the past can have come and no farther than the numbers
allow many times over:

- the epoch by `TERMS`, or above what the operator has seen: ids and lease ids carry it;
- the highest id to the end of that epoch's room, and by `IDS` at least, since ids stop carrying the
  epoch at 65 535;
- the position to the next history: cursors of another one are refused for good.

Rules a change must keep:

1. Nothing is raised while somebody may lead, nor in a store that is not there or belongs to
   another shard.
2. All three in one transaction; to raise twice does no harm.
"""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path
from typing import Final

import msgspec

from cronoq_server.engine import ids
from cronoq_server.stores import StoreSettings
from cronoq_server.stores.base import HISTORY_BITS, Unavailable, Unusable, history_of
from cronoq_server.stores.codec import signed, unsigned
from cronoq_server.stores.pg_leader import LockSession, migrate
from cronoq_server.stores.pg_session import Connection, PostgresSettings, quoted
from cronoq_server.stores.pg_session import transaction as pg_transaction
from cronoq_server.stores.sqlite import read_lease
from cronoq_server.stores.sqlite_file import SqliteSettings, connect
from cronoq_server.stores.sqlite_lane import transaction
from cronoq_server.stores.sqlite_lease import Watch

TERMS: Final = 4096
"""Terms that may have begun since the back-up: one every two minutes for five days."""

IDS: Final = 1 << 36
"""Ids that may have been given out since: at 10 000 tasks a second, those of 79 days."""

_LED: Final = "a leader holds this store, or did moments ago: stop all its servers, then try again"
_ABSENT: Final = "there is no store of cronoq that was ever led: restore the back-up first"
_READ: Final = "SELECT epoch, position, high_water FROM cronoq_leader"


class Marks(msgspec.Struct, frozen=True):
    """How far a store has come: what a leader begins from."""

    epoch: int
    position: int
    high_water: int


def raised(marks: Marks, shard: int | None, above: int = 0) -> Marks:
    """Marks above all that can have been given out since these were written.

    Args:
        marks: Those of the back-up.
        shard: Whose ids they are, or None.
        above: An epoch that was certainly reached, or 0.

    Raises:
        Unusable: The shard's range of ids has no room left.
    """
    epoch = max(marks.epoch, above) + TERMS
    high_water = max(marks.high_water + IDS, ids.pack(shard, epoch, 0))
    end = ids.ID_MAX if shard is None else ids.pack(shard + 1, 0, 0) - 1
    if high_water > end:
        raise Unusable("no room is left in the range of ids: begin a new shard, or a new store")
    return Marks(epoch, history_of(marks.position) + 1 << HISTORY_BITS, high_water)


async def raise_store(settings: StoreSettings, above: int = 0) -> tuple[Marks, Marks]:
    """Raises the marks of a store that nobody leads, and returns those before and after.

    Args:
        settings: Where it lies.
        above: An epoch that was certainly reached since the back-up, or 0.

    Raises:
        Unavailable: Somebody leads, or the store can't be reached.
        Unusable: It is no store that can be raised; the text says why.
    """
    if settings.sqlite is not None:
        return _raise_file(settings.sqlite, above)
    if settings.postgres is not None:
        return await _raise_schema(settings.postgres, above)
    raise Unusable("the memory store keeps nothing that could be restored")


def _raise_file(settings: SqliteSettings, above: int) -> tuple[Marks, Marks]:
    if not Path(settings.path).exists():
        raise Unusable(f"{settings.path}: {_ABSENT}")
    try:
        db = connect(settings)
        try:
            return _raise_row(db, settings, above)
        finally:
            db.close()
    except sqlite3.Error as error:
        raise Unavailable(f"SQLite: {error}") from error


def _raise_row(db: sqlite3.Connection, settings: SqliteSettings, above: int) -> tuple[Marks, Marks]:
    watch = Watch(settings.lease_ttl, settings.lock_poll)
    with transaction(db):
        if not watch.may_take(read_lease(db), time.time_ns(), time.monotonic_ns()):
            raise Unavailable(_LED)
        before = _marks(db.execute(_READ).fetchone())
        _compare_shard(db.execute("SELECT shard FROM cronoq_identity").fetchone(), settings.shard)
        after = raised(before, settings.shard, above)
        db.execute(
            "UPDATE cronoq_leader SET epoch = ?, position = ?, high_water = ?, holder = NULL, "
            "expires_at = 0, process = NULL WHERE one = 1",
            (after.epoch, after.position, signed(after.high_water)),
        )
    return before, after


async def _raise_schema(settings: PostgresSettings, above: int) -> tuple[Marks, Marks]:
    session = LockSession(settings)
    found: list[tuple[Marks, Marks]] = []

    async def look(db: Connection) -> None:
        table = f"{quoted(settings.schema)}.cronoq_leader"
        if await db.fetchval("SELECT to_regclass($1)", table) is None:
            raise Unusable(f"schema {settings.schema}: {_ABSENT}")
        await migrate(db, settings.schema)

    async def write(db: Connection) -> None:
        async with pg_transaction(db):
            before = _marks(await db.fetchrow(f"{_READ} FOR UPDATE"))
            _compare_shard(await db.fetchrow("SELECT shard FROM cronoq_identity"), settings.shard)
            after = raised(before, settings.shard, above)
            await db.execute(
                "UPDATE cronoq_leader SET epoch = $1, position = $2, high_water = $3, "
                "holder = NULL",
                after.epoch,
                after.position,
                signed(after.high_water),
            )
        found.append((before, after))

    try:
        await session.run(look)
        if not await session.take():
            raise Unavailable(_LED)
        await session.run(write)
    finally:
        await session.end()
    return found[0]


def _marks(row: tuple[int, int, int | None]) -> Marks:
    epoch, position, highest = row
    return Marks(epoch, position, 0 if highest is None else unsigned(highest))


def _compare_shard(row: tuple[int | None] | None, shard: int | None) -> None:
    if row is None:
        raise Unusable(_ABSENT)
    if row[0] != shard:
        raise Unusable(f"this store belongs to shard {row[0] or 'none'}, not to {shard or 'none'}")
