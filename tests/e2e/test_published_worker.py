"""The worker of the published crate 0.2 works for our server, as it comes from the registry.

It is there where `./justw bench peers` has been run for it once; elsewhere there is nothing to
test, and nothing is skipped.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import cronoq
from cronoq import RetryPolicy, TaskStatus
from tests.bench.peers.installing import CRATE_WORKER
from tests.e2e.replicas import ReplicaProcess

SLOTS = 8
PAYLOAD = b"-" + bytes(199)
TOO_SHORT = b"-"
"""Its handler asks for eight bytes and panics."""


@contextlib.asynccontextmanager
async def published_worker(port: int, folder: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """The worker, connected to a port of this machine."""
    env = {
        "PEER_URL": f"127.0.0.1:{port}",
        "PEER_SLOTS": str(SLOTS),
        "PEER_PROBES": str(folder / "probes"),
    }
    worker = await asyncio.create_subprocess_exec(CRATE_WORKER, env={**os.environ, **env})
    try:
        yield worker
    finally:
        with contextlib.suppress(ProcessLookupError):
            worker.kill()
        await worker.wait()


async def outputs(client: cronoq.Client, count: int) -> list[object]:
    """What so many tasks put out, in order."""
    answers = await client.submit_many([cronoq.TaskSpec("job", PAYLOAD)] * count)
    handles = [answer for answer in answers if isinstance(answer, cronoq.TaskHandle)]
    return [result.output for result in await client.wait_many(handles)]


if CRATE_WORKER.exists():

    async def test_the_published_worker_runs_tasks_fails_them_comes_back_and_leaves(
        tmp_path: Path,
    ) -> None:
        """All that a worker of an older release meets in its life."""
        server = ReplicaProcess(
            tmp_path, "server", f'kind = "sqlite"\npath = "{tmp_path / "store.sqlite3"}"'
        )
        await server.start()
        try:
            async with (
                cronoq.Client(f"127.0.0.1:{server.port}") as client,
                published_worker(server.port, tmp_path) as worker,
            ):
                assert await outputs(client, 3 * SLOTS) == [PAYLOAD[:8]] * 3 * SLOTS

                once = RetryPolicy(max_attempts=1)
                failed = await client.submit("job", TOO_SHORT, retry=once)
                assert (await failed.wait()).status is not TaskStatus.SUCCEEDED

                await server.kill()
                await server.start()
                assert await outputs(client, SLOTS) == [PAYLOAD[:8]] * SLOTS

                worker.send_signal(signal.SIGTERM)
                assert await worker.wait() == 0
        finally:
            await server.kill()
