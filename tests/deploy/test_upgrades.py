"""A newer server changes the tables beside an older leader, and takes over when that one stops."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
from asyncio.subprocess import PIPE
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any, NamedTuple

import asyncpg
import grpc
import pytest

from cronoq_server import config as configuration
from cronoq_server._proto import task_pb2, tasks_pb2, tasks_pb2_grpc
from cronoq_server.app import Server
from cronoq_server.stores.base import Unusable
from cronoq_server.stores.migrations import steps
from tests.api.conftest import ANY_PORT, serving
from tests.stores.pg import Cluster

NEWER = r"""
import sys
from cronoq_server.stores import migrations
known = migrations.steps
def steps(dialect):
    found = known(dialect)
    tables = ("leader", "tasks", "live" if dialect == "sqlite" else "blocks", "ends", "schedules")
    more = "".join(
        f"ALTER TABLE cronoq_{table} ADD COLUMN newer integer DEFAULT 1;\n" for table in tables
    )
    return [*found, migrations.Step(len(found) + 1, more)]
migrations.steps = steps
from cronoq_server.stores import postgres, sqlite_file
in_file, in_schema = sqlite_file._migrate, postgres.migrate
def change_file(db):
    in_file(db)
    print("tables changed", flush=True)
async def change_schema(connection, schema):
    await in_schema(connection, schema)
    print("tables changed", flush=True)
sqlite_file._migrate, postgres.migrate = change_file, change_schema
from cronoq_server.cli import main
sys.exit(main(sys.argv[1:]))
"""
"""A build that knows one step more, and says when it has taken it."""

READY = b"serving gRPC on "


class Shared(NamedTuple):
    """A store that servers of two versions share."""

    text: str
    argument: str
    known: int
    version: Callable[[], Awaitable[int]]


def on_sqlite(path: Path) -> Shared:
    """A file."""

    async def version() -> int:
        with closing(sqlite3.connect(path)) as db:
            (found,) = db.execute("SELECT max(version) FROM cronoq_schema_version").fetchone()
        return int(found)

    text = f"[store]\nkind = 'sqlite'\npath = '{path}'\nlock_poll_s = 0.1\n"
    return Shared(text, f"sqlite:{path}", len(steps("sqlite")), version)


async def on_postgres(cluster: Cluster) -> Shared:
    """A database of its own."""

    async def ask(url: str, query: str) -> Any:
        db = await asyncpg.connect(url)
        try:
            return await db.fetchval(query)
        finally:
            await db.close()

    await ask(cluster.url, "CREATE DATABASE upgraded")
    url = cluster.url.replace("/postgres?", "/upgraded?")

    async def version() -> int:
        return int(await ask(url, "SELECT max(version) FROM cronoq_schema_version"))

    text = f"[store]\nkind = 'postgres'\nurl = '{url}'\nlock_poll_s = 0.1\n"
    return Shared(text, url, len(steps("postgres")), version)


@pytest.fixture(params=["sqlite", "postgres"])
async def shared(request: pytest.FixtureRequest, tmp_path: Path) -> Shared:
    """A store of each kind that replicas share."""
    if request.param == "sqlite":
        return on_sqlite(tmp_path / "queue.db")
    return await on_postgres(request.getfixturevalue("cluster"))


@asynccontextmanager
async def newer_build(shared: Shared) -> Any:
    """A server process of the next version."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", NEWER, "--store", shared.argument),
        *("--grpc-addr", "127.0.0.1:0", "--http-addr", "127.0.0.1:0"),
        stdout=PIPE,
    )
    try:
        yield process
    finally:
        process.terminate()
        assert await process.wait() == 0


async def test_newer_server_takes_over_from_an_older_one(shared: Shared) -> None:
    """The old leader works on while the tables change; an old standby gives up; nothing is lost."""
    async with serving(shared.text) as edge:
        ids = [await edge.submit(kind="before")]
        older = Server(configuration.parse(ANY_PORT + shared.text))
        standing_by = asyncio.create_task(older.run(lambda _: None))
        async with newer_build(shared) as process:
            assert await process.stdout.readline() == b"tables changed\n"
            assert await shared.version() == shared.known + 1
            ids.append(await edge.submit(kind="between"))
            await edge.tasks.Cancel(tasks_pb2.CancelRequest(task=task_pb2.TaskRef(id=ids[0])))
            edge.server.stop()
            with pytest.raises(Unusable, match="use a newer build"):
                await standing_by
            line = await process.stdout.readline()
            assert line.startswith(READY), line
            address = line.removeprefix(READY).decode().strip()
            async with grpc.aio.insecure_channel(address) as channel:
                tasks: Any = tasks_pb2_grpc.TasksStub(channel)
                found = [
                    (await tasks.Get(tasks_pb2.GetRequest(task=task_pb2.TaskRef(id=number)))).status
                    for number in ids
                ]
    assert found == [task_pb2.TASK_STATUS_CANCELLED, task_pb2.TASK_STATUS_READY]
