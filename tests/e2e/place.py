"""Where a play takes place: the store under test, how servers are told of it, how it is hurt.

A place is made before the servers and outlives them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path

import asyncpg
import msgspec

from cronoq_server.stores.pg_session import quoted, session_name
from tests.e2e.audit import Audit, PostgresAudit, SqliteAudit
from tests.e2e.disk import NoSmallDisk, SmallDisk, small_disk
from tests.e2e.lossy import LossyRelay
from tests.stores.pg import Cluster


class Waits(msgspec.Struct, frozen=True):
    """How patient servers are, and how long faults last; everything in seconds.

    Attributes:
        lock_poll: See the configuration; so the next five.
        short: A pause that nobody should mind.
        long: A pause that outlasts every patience.
        hold: How long a store stays unusable.
    """

    lock_poll: float = 0.5
    keepalive: float = 1.0
    session_timeout: float = 10.0
    commit_timeout: float = 30.0
    lease_ttl: float = 10.0
    lease_renew: float = 2.0
    short: float = 3.0
    long: float = 40.0
    hold: float = 10.0


SHORT = Waits(
    lock_poll=0.1,
    keepalive=0.2,
    session_timeout=1.0,
    commit_timeout=2.0,
    lease_ttl=1.0,
    lease_renew=0.3,
    short=0.5,
    long=4.0,
    hold=1.0,
)


class SqlitePlace:
    """A file, on a small disk if it has to run full.

    Attributes:
        kind: Of the store.
        replicas: How many servers share it.
        disk: The small disk, if that was asked for.
    """

    kind = "sqlite"
    replicas = 2

    def __init__(self, directory: Path, waits: Waits, disk: SmallDisk | None) -> None:
        self.disk = disk
        self._waits = waits
        self._path = (directory if disk is None else disk.path) / "q.db"

    @property
    def store(self) -> str:
        """What the configuration says of it."""
        waits = self._waits
        return (
            f'kind = "sqlite"\npath = "{self._path}"\nlock_poll_s = {waits.lock_poll}\n'
            f"lease_ttl_s = {waits.lease_ttl}\nlease_renew_s = {waits.lease_renew}\n"
            f"commit_timeout_s = {waits.commit_timeout}\n"
        )

    @property
    def audit(self) -> Audit:
        """Who wrote when."""
        return SqliteAudit(self._path)


@contextmanager
def sqlite_place(directory: Path, waits: Waits, small: int = 0) -> Iterator[SqlitePlace]:
    """A place on a disk, or on one of so many MiB if that can be had."""
    with ExitStack() as stack:
        disk = None
        if small:
            with contextlib.suppress(NoSmallDisk):
                disk = stack.enter_context(small_disk(small))
        yield SqlitePlace(directory, waits, disk)


class PostgresPlace:
    """A schema of a database server of one's own.

    Attributes:
        kind: Of the store.
        replicas: How many servers share it.
        cluster: The database server.
        disk: A small disk that has the tables, if that was asked for.
        relay: What commits go through, and may lose their answers.
    """

    kind = "postgres"
    replicas = 3

    def __init__(
        self,
        cluster: Cluster,
        schema: str,
        waits: Waits,
        disk: SmallDisk | None,
        relay: LossyRelay | None,
    ) -> None:
        self.cluster = cluster
        self.disk = disk
        self.relay = relay
        self._schema = schema
        self._waits = waits

    @property
    def store(self) -> str:
        """What the configuration says of it."""
        waits, direct = self._waits, self.cluster.tcp_url
        url = direct
        if self.relay is not None:
            url = direct.replace(f":{self.cluster.port}/", f":{self.relay.port}/")
        return (
            f'kind = "postgres"\nurl = "{url}"\nlock_url = "{direct}"\nschema = "{self._schema}"\n'
            f"lock_poll_s = {waits.lock_poll}\nkeepalive_s = {waits.keepalive}\n"
            f"session_timeout_s = {waits.session_timeout}\n"
            f"commit_timeout_s = {waits.commit_timeout}\n"
        )

    @property
    def audit(self) -> Audit:
        """Who wrote when."""
        return PostgresAudit(self.cluster.tcp_url, self._schema)

    async def execute(self, statement: str) -> int:
        """What an administrator does; returns the number of rows."""
        options = {"default_transaction_read_only": "off"}
        db = await asyncpg.connect(self.cluster.tcp_url, server_settings=options)
        try:
            return len(await db.fetch(statement))
        finally:
            await db.close()

    async def end_sessions(self, suffix: str) -> int:
        """Ends the sessions with this end of a name; returns how many there were."""
        name = session_name(self._schema, None) + suffix
        return await self.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            f"WHERE application_name LIKE '{name}'"
        )

    async def end_lock_session(self) -> int:
        """Ends the session that holds the leader's lock, and no other."""
        name = session_name(self._schema, None)
        return await self.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_locks JOIN pg_stat_activity USING (pid) "
            f"WHERE locktype = 'advisory' AND granted AND application_name = '{name}'"
        )

    def processes(self) -> list[int]:
        """The database server's processes, the one that starts the others first."""
        assert self.cluster.process is not None
        first = self.cluster.process.pid
        return [first, *children(first)]

    def send(self, number: signal.Signals) -> None:
        """Sends a signal to every process of the database server."""
        for pid in self.processes():
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue  # it was faster

    async def kill(self) -> None:
        """Ends the database server and all its sessions without a chance to do anything."""
        self.send(signal.SIGKILL)
        await asyncio.to_thread(self.cluster.stop, signal.SIGKILL)


def children(pid: int) -> list[int]:
    """The processes that a process has started and that still are."""
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for task in tasks for child in task.read_text().split()]


@asynccontextmanager
async def postgres_place(
    cluster: Cluster, schema: str, waits: Waits, *, small: int = 0, lossy: bool
) -> AsyncIterator[PostgresPlace]:
    """A schema, on a disk of so many MiB or with a lossy relay before it if asked for."""
    with ExitStack() as stack:
        disk = stack.enter_context(small_disk(small)) if small else None
        relay = LossyRelay(cluster.port) if lossy else None
        place = PostgresPlace(cluster, schema, waits, disk, relay)
        if disk is not None:
            await _move_tables(place, disk)
        try:
            if relay is None:
                yield place
            else:
                async with relay.open():
                    yield place
        finally:
            await place.execute(f"DROP SCHEMA IF EXISTS {quoted(schema)} CASCADE")
            if disk is not None:
                await place.execute("ALTER SYSTEM RESET default_tablespace")
                await place.execute("SELECT pg_reload_conf()")
                await place.execute("DROP TABLESPACE small")


async def _move_tables(place: PostgresPlace, disk: SmallDisk) -> None:
    """New tables are made on the small disk; the log is not, for without it nothing goes on."""
    tables = disk.path / "tables"
    tables.mkdir()
    if place.cluster.user is not None:
        shutil.chown(tables, place.cluster.user)
    await place.execute(f"CREATE TABLESPACE small LOCATION '{tables}'")
    await place.execute("ALTER SYSTEM SET default_tablespace = 'small'")
    await place.execute("SELECT pg_reload_conf()")
