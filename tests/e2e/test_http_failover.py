"""HTTP across a change of leaders, on real processes: nothing that was acknowledged is lost."""

from __future__ import annotations

import asyncio
import signal
from contextlib import AsyncExitStack
from pathlib import Path

import httpx
import pytest

from tests.api.web import watching
from tests.e2e.replicas import replicas

LONG_LEASE = 'kind = "sqlite"\npath = "{path}"\nlock_poll_s = 0.1\nlease_ttl_s = 600\n'


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
async def test_watch_resumes_at_the_next_leader(tmp_path: Path, number: signal.Signals) -> None:
    """With the last event's id no end is missed, whichever way the leader before has gone."""
    store = LONG_LEASE.format(path=tmp_path / "q.db")
    async with (
        asyncio.timeout(120),
        replicas(tmp_path, store) as (_, group),
        AsyncExitStack() as stack,
    ):
        leader, standby = group.servers
        before, after = [
            await stack.enter_async_context(
                httpx.AsyncClient(
                    base_url=f"http://127.0.0.1:{server.http_port}", trust_env=False, timeout=60
                )
            )
            for server in (leader, standby)
        ]
        refused = await after.post("/v1/tasks", json={})
        assert refused.status_code == 503
        assert refused.json()["error"]["reason"] == "not_leader"
        assert refused.headers["connection"] == "close"
        tasks = {"tasks": [{"key": f"k{n}"} for n in range(4)]}
        ids = [one["id"] for one in (await before.post("/v1/batches", json=tasks)).json()["tasks"]]
        async with watching(before) as watch:
            await watch.next()
            await before.post(f"/v1/tasks/{ids[0]}/cancel")
            last = await watch.status()
        for task_id in ids[1:3]:
            await before.post(f"/v1/tasks/{task_id}/cancel")
        await leader.end(number)
        await group.another(leader)
        again = await after.post("/v1/tasks", json={}, headers={"Idempotency-Key": "k3"})
        assert again.json() == {"id": ids[3], "duplicate": True}
        await after.post(f"/v1/tasks/{ids[3]}/cancel")
        async with watching(after, cursor=last.cursor) as watch:
            seen: set[str] = set()
            while not seen >= set(ids[1:]):
                event = await watch.status()
                assert event.told["status"] == "cancelled"
                seen.add(event.told["id"])
