"""Real server processes that share a store, and a balancer before them that knows nothing of roles.

What a process does is read from its log, line by line, so that nobody has to guess when it is done.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import socket
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

CONFIG = """
[server]
grpc_addr = "127.0.0.1:{port}"
http_addr = "127.0.0.1:{http_port}"
shutdown_grace_s = 5

[store]
{store}
lock_poll_s = 0.1

[[pools]]
name = "default"
retry = {{ max_attempts = 6, initial_backoff_s = 0.05, max_backoff_s = 0.5 }}
"""


def free_port() -> int:
    """A port on which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class ReplicaProcess:
    """A server on a port of its own that can be killed and started again.

    Attributes:
        port: Where it serves gRPC.
        http_port: Where it tells its health.
    """

    def __init__(self, directory: Path, name: str, store: str) -> None:
        self.port = free_port()
        self.http_port = free_port()
        self._config = directory / f"{name}.toml"
        text = CONFIG.format(port=self.port, http_port=self.http_port, store=store)
        self._config.write_text(text, encoding="utf-8")
        self._process: Process | None = None
        self._reader: asyncio.Task[None] | None = None
        self._said: Counter[str] = Counter()
        self._more = asyncio.Condition()
        self._lines: list[str] = []

    async def start(self) -> None:
        """Starts it and returns when it leads or stands by."""
        self._said.clear()
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "cronoq_server", "--config", str(self._config)),
            stdout=DEVNULL,
            stderr=PIPE,
        )
        self._reader = asyncio.create_task(self._read(self._process))
        await self.says("server_ready", "stands_by")

    async def _read(self, process: Process) -> None:
        assert process.stderr is not None
        async for line in process.stderr:
            self._lines.append(line.decode())
            with contextlib.suppress(ValueError):  # a traceback, or what a library says
                said = json.loads(line)
                is_standby = said["message"].endswith("as standby")
                await self._note("stands_by" if is_standby else said.get("action", "other"))
        await self._note("")

    async def _note(self, action: str) -> None:
        async with self._more:
            self._said[action] += 1
            self._more.notify_all()

    def times(self, action: str) -> int:
        """How often the process has logged an action since its start."""
        return self._said[action]

    async def says(self, *actions: str) -> None:
        """Returns when the process has logged one of these since its start.

        Raises:
            RuntimeError: It ended before; has its log.
        """
        async with self._more:
            await self._more.wait_for(lambda: any(self._said[a] for a in (*actions, "")))
        if not any(self._said[action] for action in actions):
            raise RuntimeError("".join(self._lines))

    def send(self, number: signal.Signals) -> None:
        """Sends it a signal."""
        assert self._process is not None
        self._process.send_signal(number)

    async def end(self, number: signal.Signals) -> int:
        """Ends it with a signal and returns its exit code."""
        assert self._process is not None
        assert self._reader is not None
        self.send(number)
        await self._reader
        return await self._process.wait()

    async def kill(self) -> None:
        """Ends it without a chance to do anything, whatever state it is in."""
        if self._process is not None and self._process.returncode is None:
            await self.end(signal.SIGKILL)


class Balancer:
    """Passes each connection on to the next replica that takes it, leader or not.

    Attributes:
        address: Where it listens.
    """

    def __init__(self, ports: Sequence[int]) -> None:
        self.address = ""
        self._ports = list(ports)
        self._next = 0
        self._pipes: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Balancer]:
        """Listens while the context is open."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            server.close()
            for pipe in self._pipes:
                pipe.cancel()
            await asyncio.gather(*self._pipes, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._pipes.add(task)
        task.add_done_callback(self._pipes.discard)
        for _ in self._ports:
            self._next += 1
            port = self._ports[self._next % len(self._ports)]
            try:
                there, back = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                continue
            ends = asyncio.gather(_pipe(reader, back), _pipe(there, writer))
            with contextlib.suppress(asyncio.CancelledError):  # the test is over
                await ends
            break
        writer.close()


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while content := await reader.read(65_536):
            writer.write(content)
            await writer.drain()
    except ConnectionError:
        pass  # one side is gone, and with it the other
    finally:
        writer.close()


@asynccontextmanager
async def replicas(
    directory: Path, store: str, count: int = 2
) -> AsyncIterator[tuple[Balancer, list[ReplicaProcess]]]:
    """Replicas over one store, the first of which leads, behind a balancer."""
    async with AsyncExitStack() as stack:
        servers = [ReplicaProcess(directory, f"server-{n}", store) for n in range(count)]
        for server in servers:
            stack.push_async_callback(server.kill)
            await server.start()
        assert [server.times("server_ready") for server in servers] == [1] + [0] * (count - 1)
        balancer = await stack.enter_async_context(Balancer([s.port for s in servers]).open())
        yield balancer, servers
