"""Three server processes on one PostgreSQL database, under load, while something meets its end.

After each: every acknowledged task is there once and has succeeded, no attempt was begun twice or
beyond the maximum, nothing else is there.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest

from tests.e2e.load import Load
from tests.e2e.replicas import ReplicaProcess, replicas
from tests.stores.pg import Cluster, running_cluster


@pytest.fixture
def database() -> Iterator[Cluster]:
    """A database server of the test's own."""
    with running_cluster() as cluster:
        yield cluster


def store_of(database: Cluster) -> str:
    """What the configuration says of it."""
    return f'kind = "postgres"\nurl = "{database.tcp_url}"\nkeepalive_s = 0.2\n'


async def next_leader(*servers: ReplicaProcess) -> ReplicaProcess:
    """The first of some standbys that leads."""
    waits = {asyncio.create_task(server.says("server_ready")): server for server in servers}
    done, rest = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for task in rest:
        task.cancel()
    return waits[done.pop()]


async def test_killed_leader_is_replaced(database: Cluster, tmp_path: Path) -> None:
    """Killed twice under load, each time one of the standbys takes over."""
    async with (
        asyncio.timeout(120),
        replicas(tmp_path, store_of(database), 3) as (balancer, servers),
        Load(balancer.address) as load,
    ):
        leader = servers[0]
        for _ in range(2):
            await load.goes_on(200)
            highest = max(load.acknowledged)
            await leader.kill()
            following = await next_leader(*(s for s in servers if s is not leader))
            await load.goes_on(200)
            assert max(load.acknowledged) >> 48 > highest >> 48
            await leader.start()
            leader = following
        await load.judge()


async def test_leader_whose_lock_session_ends_steps_down(database: Cluster, tmp_path: Path) -> None:
    """Only the connection that holds the lock is ended: the leader believes nothing after that."""
    async with (
        asyncio.timeout(120),
        replicas(tmp_path, store_of(database), 3) as (balancer, servers),
        Load(balancer.address) as load,
    ):
        await load.goes_on(200)
        admin = await asyncpg.connect(database.tcp_url)
        ended = await admin.fetchval(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_locks "
            "WHERE locktype = 'advisory' AND granted"
        )
        await admin.close()
        assert ended == 1
        await servers[0].says("leadership_lost")
        await load.goes_on(200)
        assert sum(server.times("leadership_acquired") for server in servers) == 2
        await load.judge()


async def test_database_that_restarts_is_outlived(database: Cluster, tmp_path: Path) -> None:
    """While it is away calls wait or fail; afterwards somebody leads and all is there."""
    async with (
        asyncio.timeout(120),
        replicas(tmp_path, store_of(database), 3) as (balancer, servers),
        Load(balancer.address) as load,
    ):
        await load.goes_on(200)
        await asyncio.to_thread(database.stop, signal.SIGQUIT)
        await asyncio.to_thread(database.start)
        await load.goes_on(200)
        await load.judge()
        assert [server.times("") for server in servers] == [0, 0, 0], "a process has ended"
