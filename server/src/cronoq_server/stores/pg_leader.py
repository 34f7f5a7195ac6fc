"""Who leads a PostgreSQL cluster: the holder of an advisory lock, under an epoch in a row.

Rules a change must keep:

1. The lock is taken once per connection, over a direct one. When it is unknown whether it was
   taken, that connection is closed.
2. A new leader first ends the sessions of older epochs, then raises the epoch; the row makes it
   wait for a commit in flight.
3. A term ends with its lock session: who lost it stops, and does not take the lock again under the
   same epoch.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from cronoq_server.engine.model import SECOND, Instant
from cronoq_server.stores.base import Fenced, StoreError, Unusable
from cronoq_server.stores.migrations import pending
from cronoq_server.stores.pg_session import (
    FAULTS,
    Connection,
    PostgresSettings,
    as_store_error,
    connect,
    lock_key,
    quoted,
    session_name,
    transaction,
)

log = logging.getLogger(__name__)

_ENDING_TIMEOUT_MS = 2000
"""How long each session of an older epoch is given to end."""


class LockSession:
    """The connection whose life is the leadership."""

    def __init__(self, settings: PostgresSettings) -> None:
        self._settings = settings
        self._connection: Connection | None = None
        self._lock = asyncio.Lock()
        self._checked_at: Instant = 0

    @property
    def is_held(self) -> bool:
        """Whether the connection is still there, as far as this process knows."""
        return self._connection is not None and not self._connection.is_closed()

    async def take(self) -> bool:
        """Tries to get the lock; waits for nothing.

        Raises:
            Unavailable: The server can't be reached.
            Unusable: It must not be used over this route.
        """
        settings = self._settings
        if not self.is_held:
            name = session_name(settings.schema, None)
            self._connection = await connect(settings, settings.lock_url or settings.url, name)
        key = lock_key(settings.schema, "leader")
        try:
            taken = await self._ask("SELECT pg_try_advisory_lock($1)", key)
        except FAULTS as error:
            raise as_store_error(error) from error
        self._checked_at = time.monotonic_ns()
        return taken

    async def check(self) -> None:
        """Makes sure, every `keepalive`, that the session still lives.

        Raises:
            Fenced: It does not.
        """
        if not self.is_held:
            raise Fenced("the session that held the leader's lock was lost")
        if time.monotonic_ns() - self._checked_at < self._settings.keepalive:
            return
        try:
            await self._ask("SELECT 1")
        except FAULTS as error:
            raise Fenced("the session that held the leader's lock is gone") from error
        self._checked_at = time.monotonic_ns()

    async def run(self, work: Callable[[Connection], Awaitable[None]]) -> None:
        """Has work done over this session, once it is there."""
        if not self.is_held:
            name = session_name(self._settings.schema, None)
            url = self._settings.lock_url or self._settings.url
            self._connection = await connect(self._settings, url, name)
        try:
            await work(self._connection)
        except FAULTS as error:
            self.close()
            raise as_store_error(error) from error
        except (StoreError, asyncio.CancelledError):
            self.close()  # a transaction that was not ended holds its locks
            raise

    async def _ask(self, question: str, *arguments: object) -> bool:
        """Asks over the connection that there is now; who asked before may have found it dead."""
        connection = self._connection
        timeout = self._settings.session_timeout / SECOND
        async with self._lock:
            if connection is None or connection.is_closed():
                raise ConnectionResetError("the connection was closed while others asked")
            is_known = False
            try:
                answer = await connection.fetchval(question, *arguments, timeout=timeout)
                is_known = True
            finally:
                if not is_known:
                    self._give_up(connection)
        return bool(answer)

    def close(self) -> None:
        """Ends the session, and with it the lock."""
        if self._connection is not None:
            self._give_up(self._connection)

    def _give_up(self, connection: Connection) -> None:
        """Ends a connection, and the session if it is this one's still."""
        connection.terminate()
        if self._connection is connection:
            self._connection = None

    async def end(self) -> None:
        """Ends the session in order: the lock is free when this returns, if the server answers."""
        if self._connection is None:
            return
        try:
            await self._connection.close(timeout=self._settings.session_timeout / SECOND)
        except FAULTS:
            self._connection.terminate()
        self._connection = None


async def migrate(connection: Connection, schema: str) -> None:
    """Brings the tables to this build's form, one process at a time.

    Raises:
        Unusable: They are newer than this build.
    """
    async with transaction(connection):
        await connection.execute("SELECT pg_advisory_xact_lock($1)", lock_key(schema, "migrations"))
        await _make_schema(connection, schema)
        version = await _version(connection)
        for step in pending("postgres", version):
            await connection.execute(step.statements)
            await connection.execute(
                "INSERT INTO cronoq_schema_version (version) VALUES ($1)", step.version
            )


async def _make_schema(connection: Connection, schema: str) -> None:
    """Makes what is missing; asks first, for a role may be allowed to use and not to make."""
    there = await connection.fetchval("SELECT to_regnamespace($1)", quoted(schema))
    if there is None:
        await connection.execute(f"CREATE SCHEMA {quoted(schema)}")
    table = f"{quoted(schema)}.cronoq_schema_version"
    if await connection.fetchval("SELECT to_regclass($1)", table) is None:
        await connection.execute(
            f"CREATE TABLE {table} (version integer PRIMARY KEY, "
            "applied_at timestamptz NOT NULL DEFAULT now())"
        )


async def _version(connection: Connection) -> int:
    version = await connection.fetchval("SELECT max(version) FROM cronoq_schema_version")
    return version or 0


async def begin_term(
    connection: Connection, settings: PostgresSettings, holder: str, since: Instant
) -> int:
    """Ends what is left of older terms and raises the epoch; returns it. The lock is held.

    Raises:
        Unusable: The tables are newer than this build, or another shard's.
    """
    pending("postgres", await _version(connection))
    await _identify(connection, settings.shard)
    epoch = await connection.fetchval("SELECT epoch FROM cronoq_leader")
    await _end_sessions(connection, settings.schema, epoch)
    raised: int = await connection.fetchval(
        "UPDATE cronoq_leader SET epoch = epoch + 1, holder = $1, since = $2 RETURNING epoch",
        holder,
        since,
    )
    return raised


async def _end_sessions(connection: Connection, schema: str, epoch: int) -> None:
    """Ends the sessions of epochs up to this one."""
    prefix = session_name(schema, None) + " epoch "
    rows = await connection.fetch(
        "SELECT pid, application_name FROM pg_stat_activity "
        "WHERE datname = current_database() AND starts_with(application_name, $1)",
        prefix,
    )
    for pid, name in rows:
        number = name[len(prefix) :]
        if not number.isdecimal() or int(number) > epoch:
            continue
        try:
            await connection.execute("SELECT pg_terminate_backend($1, $2)", pid, _ENDING_TIMEOUT_MS)
        except FAULTS as error:
            # It belongs to another role. It can write no more either, only linger.
            log.warning(
                "a session of epoch %s could not be ended: %s",
                number,
                str(error),
                extra={"action": "old_session_remains"},
            )
            if connection.is_closed():
                raise


async def _identify(connection: Connection, shard: int | None) -> None:
    """The first leader writes whose data this is; later ones compare.

    Raises:
        Unusable: It is another shard's.
    """
    await connection.execute(
        "INSERT INTO cronoq_identity (shard) VALUES ($1) ON CONFLICT DO NOTHING", shard
    )
    owner = await connection.fetchval("SELECT shard FROM cronoq_identity")
    if owner != shard:
        raise Unusable(f"this store belongs to shard {owner or 'none'}, not to {shard or 'none'}")
