"""Two server processes on one SQLite file, under load, while the leader meets its end.

After each: every acknowledged task is there once and has succeeded, no attempt was begun twice or
beyond the maximum, nothing else is there.
"""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import httpx

from tests.e2e.load import Load
from tests.e2e.replicas import ReplicaProcess, replicas

LONG_LEASE = 'kind = "sqlite"\npath = "{path}"\nlease_ttl_s = 600\n'
SHORT_LEASE = 'kind = "sqlite"\npath = "{path}"\nlease_ttl_s = 1\nlease_renew_s = 0.3\n'


async def overtaken(leader: ReplicaProcess, standby: ReplicaProcess) -> bool:
    """Pauses a leader; whether the standby could take over.

    One that was paused in the middle of a write keeps the file locked, and nobody leads.
    """
    leader.send(signal.SIGSTOP)
    try:
        async with asyncio.timeout(5):
            await standby.says("server_ready")
    except TimeoutError:
        return False
    return True


async def test_killed_leader_is_replaced_at_once(tmp_path: Path) -> None:
    """Killed three times under load; the lease of ten minutes would outlast the test."""
    store = LONG_LEASE.format(path=tmp_path / "q.db")
    async with (
        asyncio.timeout(120),
        replicas(tmp_path, store) as (balancer, servers),
        Load(balancer.address) as load,
    ):
        for turn in range(3):
            leader, standby = servers[turn % 2], servers[(turn + 1) % 2]
            await load.goes_on(200)
            highest = max(load.acknowledged)
            await leader.kill()
            await standby.says("server_ready")
            await load.goes_on(200)
            assert max(load.acknowledged) >> 48 > highest >> 48
            await leader.start()
            assert leader.times("server_ready") == 0
        await load.judge()


async def test_end_of_everything_loses_nothing(tmp_path: Path) -> None:
    """All processes are killed at once; the first to come back goes on with all that was said."""
    store = LONG_LEASE.format(path=tmp_path / "q.db")
    async with (
        asyncio.timeout(120),
        replicas(tmp_path, store) as (balancer, servers),
        Load(balancer.address) as load,
    ):
        await load.goes_on(200)
        await asyncio.gather(*(server.kill() for server in servers))
        await servers[1].start()
        assert servers[1].times("server_ready") == 1
        await load.goes_on(200)
        await load.judge()


async def test_probes_tell_the_roles(tmp_path: Path) -> None:
    """Both live, one is ready; a standby stops in order as well."""
    store = LONG_LEASE.format(path=tmp_path / "q.db")
    async with (
        asyncio.timeout(60),
        replicas(tmp_path, store) as (_, (leader, standby)),
        httpx.AsyncClient(trust_env=False) as client,
    ):
        told = {}
        for name, server in (("leader", leader), ("standby", standby)):
            for path in ("healthz", "readyz"):
                answer = await client.get(f"http://127.0.0.1:{server.http_port}/{path}")
                told[name, path] = answer.status_code
        assert told == {
            ("leader", "healthz"): 200,
            ("leader", "readyz"): 200,
            ("standby", "healthz"): 200,
            ("standby", "readyz"): 503,
        }
        assert await standby.end(signal.SIGTERM) == 0
        assert await leader.end(signal.SIGTERM) == 0


async def test_leader_that_stops_in_order_hands_over(tmp_path: Path) -> None:
    """After SIGTERM the standby leads, long before the lease would have run out."""
    store = LONG_LEASE.format(path=tmp_path / "q.db")
    async with (
        asyncio.timeout(120),
        replicas(tmp_path, store) as (balancer, (leader, standby)),
        Load(balancer.address) as load,
    ):
        await load.goes_on(200)
        assert await leader.end(signal.SIGTERM) == 0
        await standby.says("server_ready")
        await load.goes_on(200)
        await load.judge()


async def test_leader_paused_beyond_its_lease_steps_down(tmp_path: Path) -> None:
    """Who wakes up after another took over writes nothing, answers nothing, and stands by."""
    store = SHORT_LEASE.format(path=tmp_path / "q.db")
    async with (
        asyncio.timeout(120),
        replicas(tmp_path, store) as (balancer, (leader, standby)),
        Load(balancer.address) as load,
    ):
        await load.goes_on(200)
        while not await overtaken(leader, standby):
            leader.send(signal.SIGCONT)
            await load.goes_on(1)
        leader.send(signal.SIGCONT)
        await leader.says("leadership_lost")
        await load.goes_on(200)
        assert leader.times("server_ready") == 1
        await load.judge()
