"""Server processes on one SQLite file whose lease would outlast every test: who takes over when.

What is promised while leaders meet their ends is in `test_faults`.
"""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import httpx

from tests.e2e.load import Load
from tests.e2e.replicas import replicas

LONG_LEASE = 'kind = "sqlite"\npath = "{path}"\nlock_poll_s = 0.1\nlease_ttl_s = 600\n'


async def test_killed_or_stopped_leader_is_replaced_at_once(tmp_path: Path) -> None:
    """Nobody waits for a lease of ten minutes: its holder is gone, or has given it back."""
    store = LONG_LEASE.format(path=tmp_path / "q.db")
    async with (
        asyncio.timeout(120),
        replicas(tmp_path, store) as (balancer, group),
        Load(balancer.address, tmp_path) as load,
    ):
        for number in (signal.SIGKILL, signal.SIGTERM):
            leader = await group.leader()
            await load.goes_on(200)
            highest = max(load.acknowledged)
            assert await leader.end(number) == (0 if number is signal.SIGTERM else -number)
            await group.another(leader)
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
        replicas(tmp_path, store) as (balancer, group),
        Load(balancer.address, tmp_path) as load,
    ):
        await load.goes_on(200)
        await asyncio.gather(*(server.kill() for server in group.servers))
        await group.servers[1].start()
        assert group.servers[1].leads
        await load.goes_on(200)
        await load.judge()


async def test_probes_tell_the_roles(tmp_path: Path) -> None:
    """Both live, one is ready; a standby stops in order as well."""
    store = LONG_LEASE.format(path=tmp_path / "q.db")
    async with (
        asyncio.timeout(120),
        replicas(tmp_path, store) as (_, group),
        httpx.AsyncClient(trust_env=False) as client,
    ):
        leader, standby = group.servers
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
