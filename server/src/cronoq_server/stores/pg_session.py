"""How PostgreSQL is connected to, and what its errors mean.

Rules a change must keep:

1. A connection is used by one piece of work at a time. After an error, or when its work was
   cancelled, it is closed: whatever it was doing can have no effect that a retry would not see.
2. A lost connection is tried once more at once: it may have died long ago, or at the hand of a new
   leader, and then the retry is told so by the leader row.
3. What the server can never store is `Rejected`; what must be changed by people is `Unusable`;
   everything else is `Unavailable`.
"""

from __future__ import annotations

import asyncio
import hashlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeAlias, TypeVar

import asyncpg
import msgspec

from cronoq_server.engine.model import MILLISECOND, SECOND, Duration
from cronoq_server.stores.base import Rejected, StoreError, Unavailable, Unusable

T = TypeVar("T")

Connection: TypeAlias = Any
"""An `asyncpg.Connection`; the library has no types."""

FAULTS = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    OSError,
)
"""What a call of the library raises. A timeout is an OSError; the internal error is what the first
call hears after the server has said goodbye."""

_POOLER = (
    "a connection pooler stands between this server and PostgreSQL, and would break its session "
    "lock and settings: name a direct route in store.lock_url"
)


class PostgresSettings(msgspec.Struct, frozen=True):
    """Where a PostgreSQL store lies and how it behaves; durations in nanoseconds.

    Attributes:
        url: The database, as a libpq URL.
        lock_url: A direct route for the connection that holds the lock, and for the others if
            `url` leads through a pooler; empty = `url`.
        schema: The schema that holds the tables; made if it is not there.
        lock_poll: How often a standby tries the lock.
        keepalive: How often the leader checks the connection that holds it.
        session_timeout: How long a connection may be silent.
        commit_timeout: How long one statement may take.
        shard: The shard whose data this is, or None.
        connections_max: Most connections: one for the lock, one for commits, the others for
            look-ups; at least 3.
        segment_rows: Tasks after which a new segment begins; grows with what is retained.
    """

    url: str
    lock_url: str = ""
    schema: str = "public"
    lock_poll: Duration = 500 * MILLISECOND
    keepalive: Duration = SECOND
    session_timeout: Duration = 10 * SECOND
    commit_timeout: Duration = 30 * SECOND
    shard: int | None = None
    connections_max: int = 5
    segment_rows: int = 500_000


class Pooled(Unusable):
    """A connection pooler stands in between, so nothing of a session would last."""

    def __init__(self) -> None:
        super().__init__(_POOLER)


class ConnectionLost(Unavailable):
    """The connection ended under the work; it may or may not have been done."""


def quoted(name: str) -> str:
    """A name as an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """A text as an SQL literal (of a server with standard strings)."""
    return "'" + text.replace("'", "''") + "'"


def lock_key(schema: str, purpose: str) -> int:
    """The key of an advisory lock; one database may hold several clusters."""
    digest = hashlib.sha256(f"cronoq {purpose} {schema}".encode()).digest()
    return int.from_bytes(digest[:8], "big", signed=True)


def session_name(schema: str, epoch: int | None) -> str:
    """The application name of a connection; tells a new leader whose sessions are of the past."""
    cluster = f"cronoq {lock_key(schema, 'leader') & (1 << 64) - 1:016x}"
    return f"{cluster} epoch {epoch}" if epoch is not None else cluster


async def connect(settings: PostgresSettings, url: str, name: str) -> Connection:
    """Opens a connection with all that a store's sessions need.

    Raises:
        Unavailable: The server can't be reached.
        Pooled: A pooler stands on this route.
        Unusable: It must not be used as it is.
    """
    silent = max(1, settings.session_timeout // SECOND)
    timeout = settings.commit_timeout // MILLISECOND
    options = {
        "application_name": name,
        "statement_timeout": str(timeout),
        "idle_in_transaction_session_timeout": str(timeout),
        "synchronous_commit": "on",
        "standard_conforming_strings": "on",
        "search_path": quoted(settings.schema),
        "tcp_keepalives_idle": str(silent),
        "tcp_keepalives_interval": "1",
        "tcp_keepalives_count": "3",
        "tcp_user_timeout": str(silent * 1000),
        "jit": "off",
    }
    try:
        connection = await asyncpg.connect(url, timeout=float(silent), server_settings=options)
    except asyncpg.PostgresError as error:
        if "unsupported startup parameter" in str(error):
            raise Pooled from error
        raise as_store_error(error) from error
    except asyncpg.exceptions.ClientConfigurationError as error:
        raise Unusable(f"store.url: {error}") from error
    except (asyncpg.InterfaceError, asyncpg.InternalClientError, OSError) as error:
        # The internal one also says that no server has the role that the URL asks for.
        raise as_store_error(error) from error
    await _accept(connection, silent)
    return connection


@asynccontextmanager
async def prepared(connection: Connection) -> AsyncIterator[None]:
    """Ends a connection that nobody has yet, if what is done inside to set it up fails.

    Raises:
        Unavailable: The server did not do it.
    """
    try:
        yield
    except FAULTS as error:
        connection.terminate()
        raise as_store_error(error) from error
    except asyncio.CancelledError:
        connection.terminate()
        raise


async def _accept(connection: Connection, silent: int) -> None:
    """Looks whether this is a session of our own, and has its socket notice a silent peer."""
    async with prepared(connection):
        pid = await connection.fetchval("SELECT pg_backend_pid()", timeout=float(silent))
    if pid != connection.get_server_pid():
        connection.terminate()
        raise Pooled
    wire = connection._transport.get_extra_info("socket")
    if wire is not None and wire.family in (socket.AF_INET, socket.AF_INET6):
        wire.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in (
            ("TCP_KEEPIDLE", silent),
            ("TCP_KEEPINTVL", 1),
            ("TCP_KEEPCNT", 3),
            ("TCP_USER_TIMEOUT", silent * 1000),
        ):
            if hasattr(socket, option):
                wire.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def as_store_error(error: Exception) -> StoreError:
    """What an error of the library or of the server means for a store."""
    text = f"PostgreSQL: {error}"
    if isinstance(error, TimeoutError):
        return Unavailable("PostgreSQL did not answer in time")
    if isinstance(
        error,
        (
            asyncpg.PostgresConnectionError,
            asyncpg.AdminShutdownError,
            asyncpg.CrashShutdownError,
            asyncpg.InternalClientError,
            ConnectionError,
        ),
    ):
        return ConnectionLost(text)
    if isinstance(error, (asyncpg.IntegrityConstraintViolationError, asyncpg.DataError)):
        column = getattr(error, "column_name", None) or getattr(error, "constraint_name", None)
        return Rejected(text, "Batch", column=column or "")
    if isinstance(
        error,
        (
            asyncpg.InvalidAuthorizationSpecificationError,
            asyncpg.InvalidCatalogNameError,
            asyncpg.InsufficientPrivilegeError,
        ),
    ):
        return Unusable(text)
    if isinstance(error, asyncpg.InterfaceError):
        if isinstance(error, ValueError):  # a value that the library cannot encode
            return Rejected(text, "Batch")
        return ConnectionLost(text)
    if isinstance(error, (UnicodeError, OverflowError)):
        return Rejected(text, "Batch")
    return Unavailable(text)


class Line:
    """One connection, opened when it is needed, for one piece of work at a time.

    Attributes:
        is_proven: Whether any work was ever done over it.
    """

    def __init__(self, open_connection: Callable[[], Awaitable[Connection]]) -> None:
        self._open = open_connection
        self._lock = asyncio.Lock()
        self._connection: Connection | None = None
        self.is_proven = False
        self._closed = False

    @property
    def is_busy(self) -> bool:
        """Whether work is under way."""
        return self._lock.locked()

    async def run(self, work: Callable[[Connection], Awaitable[T]]) -> T:
        """Has work done.

        Raises:
            Unavailable: It could not be done now; its outcome may be unknown.
            Rejected: The server can never store what it writes.
            Unusable: It never worked, and won't. Once it has, what looks like that may pass.
        """
        async with self._lock:
            try:
                try:
                    return await self._attempt(work)
                except ConnectionLost:
                    return await self._attempt(work)
            except Unusable as error:
                if self.is_proven:
                    raise Unavailable(str(error)) from error
                raise

    async def _attempt(self, work: Callable[[Connection], Awaitable[T]]) -> T:
        if self._closed:
            raise Unavailable("this store was closed")
        if self._connection is None or self._connection.is_closed():
            self._connection = await self._open()
        is_clean = False
        try:
            result = await work(self._connection)
            is_clean = self.is_proven = True
            return result
        except (*FAULTS, UnicodeError, OverflowError) as error:
            raise as_store_error(error) from error
        finally:
            if not is_clean:
                self.drop()

    def drop(self) -> None:
        """Closes the connection, whatever it is doing; the next work opens another."""
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None

    def close(self) -> None:
        """Closes it for good."""
        self._closed = True
        self.drop()


class Lines:
    """Several connections for work that may go side by side; opened as they are needed."""

    def __init__(self, open_connection: Callable[[], Awaitable[Connection]], count: int) -> None:
        assert count > 0, count
        self._lines = [Line(open_connection) for _ in range(count)]
        self._turn = 0

    async def run(self, work: Callable[[Connection], Awaitable[T]]) -> T:
        """Has work done by the first that is free, or, if none is, by each in turn.

        Raises as `Line.run` does.
        """
        try:
            for line in self._lines:
                if not line.is_busy:
                    return await line.run(work)
            self._turn = (self._turn + 1) % len(self._lines)
            return await self._lines[self._turn].run(work)
        except Unusable as error:
            if any(line.is_proven for line in self._lines):
                raise Unavailable(str(error)) from error
            raise

    def drop(self) -> None:
        """Closes all, whatever they are doing; the next work opens others."""
        for line in self._lines:
            line.drop()

    def close(self) -> None:
        """Closes all for good."""
        for line in self._lines:
            line.close()


@asynccontextmanager
async def transaction(connection: Connection, mode: str = "") -> AsyncIterator[None]:
    """All or none of what is done inside; after an error the connection is closed anyway."""
    await connection.execute(f"BEGIN {mode}")
    yield
    await connection.execute("COMMIT")
