"""Decides how real servers are started for scenarios: replicas of one store, a process each."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections import Counter
from pathlib import Path

CONFIG = """
[server]
grpc_addr = "127.0.0.1:{port}"
http_addr = "127.0.0.1:{http_port}"
shutdown_grace_s = 5

[store]
{store}
lock_poll_s = 0.1

[limits]
max_wait_s = 60

[[pools]]
name = "default"
lease_ttl_s = {lease_ttl}
retry = {{ max_attempts = 4, initial_backoff_s = 0.05, max_backoff_s = 0.2 }}

[[pools]]
name = "tiny"
max_pending = 1
overflow = "reject"
"""

POOL = """
[[pools]]
name = "{name}"
retry = {{ max_attempts = 4, initial_backoff_s = 0.05, max_backoff_s = 0.2 }}
"""

RESOURCE = """
[[resources]]
name = "gpu"
kind = "semaphore"
permits = 100
"""


def free_port() -> int:
    """Returns a port on which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class ServerProcess:
    """One server process; what it does is read from its log.

    Attributes:
        port: Where it serves gRPC.
    """

    def __init__(self, config: str, path: Path, port: int) -> None:
        self.port = port
        self._path = path
        path.write_text(config, encoding="utf-8")
        self._process: Process | None = None
        self._reader: asyncio.Task[None] | None = None
        self._said: Counter[str] = Counter()
        self._more = asyncio.Condition()
        self.log: list[str] = []

    @property
    def pid(self) -> int:
        """The process, while there is one."""
        assert self._process is not None
        return self._process.pid

    async def start(self) -> None:
        """Starts it and returns when it leads or stands by."""
        self._said.clear()
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "cronoq_server", "--config", str(self._path)),
            stdout=DEVNULL,
            stderr=PIPE,
        )
        self._reader = asyncio.create_task(self._read(self._process))
        await self.says("server_ready", "stands_by")

    async def _read(self, process: Process) -> None:
        assert process.stderr is not None
        async for line in process.stderr:
            self.log.append(line.decode(errors="replace"))
            with contextlib.suppress(ValueError):  # A traceback, or what a library says.
                said = json.loads(line)
                stands_by = said["message"].endswith("as standby")
                await self._note("stands_by" if stands_by else said.get("action", "other"))
        await self._note("")

    async def _note(self, action: str) -> None:
        async with self._more:
            self._said[action] += 1
            self._more.notify_all()

    async def says(self, *actions: str) -> None:
        """Returns when it has logged one of these since its start.

        Raises:
            RuntimeError: It ended before; has its log.
        """
        async with self._more:
            await self._more.wait_for(lambda: any(self._said[a] for a in (*actions, "")))
        if not any(self._said[action] for action in actions):
            raise RuntimeError("the server ended:\n" + "".join(self.log[-20:]))

    async def end(self, number: signal.Signals) -> None:
        """Ends it with a signal and returns when it is gone."""
        if self._process is None or self._process.returncode is not None:
            return
        assert self._reader is not None
        os.kill(self._process.pid, number)
        await self._reader
        await self._process.wait()


class Cluster:
    """Replicas that share a store.

    Attributes:
        replicas: Its processes; the first is the first to lead.
    """

    def __init__(
        self,
        directory: Path,
        *,
        replicas: int = 1,
        store: str = "memory",
        pools: tuple[str, ...] = (),
        lease_ttl: float = 30.0,
    ) -> None:
        text = 'kind = "memory"'
        if store == "sqlite":
            path = directory / "store.sqlite3"
            text = f'kind = "sqlite"\npath = "{path}"\nlease_ttl_s = 1\nlease_renew_s = 0.2'
        self.replicas = []
        for number in range(replicas):
            port = free_port()
            config = CONFIG.format(
                port=port, http_port=free_port(), store=text, lease_ttl=lease_ttl
            )
            config += "".join(POOL.format(name=name) for name in pools) + RESOURCE
            path = directory / f"server-{number}.toml"
            self.replicas.append(ServerProcess(config, path, port))

    @property
    def endpoint(self) -> str:
        """Where the first replica serves."""
        return f"127.0.0.1:{self.replicas[0].port}"

    async def start(self) -> None:
        """Starts all, one after another, so that the first leads."""
        for replica in self.replicas:
            await replica.start()

    async def stop(self) -> None:
        """Ends all at once."""
        for replica in self.replicas:
            await replica.end(signal.SIGKILL)
