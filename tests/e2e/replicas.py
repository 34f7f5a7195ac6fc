"""Real server processes that share a store, and a balancer before them that knows nothing of roles.

What a process does is read from its log, line by line, so that nobody has to guess when it is done.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import socket
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from tests.e2e.accepting import Acceptor, accepting

ROOT = Path(__file__).resolve().parents[2]

CONFIG = """
[server]
grpc_addr = "{host}:{port}"
http_addr = "{host}:{http_port}"
shutdown_grace_s = 5

[store]
{store}

[[pools]]
name = "default"
retry = {{ max_attempts = 6, initial_backoff_s = 0.05, max_backoff_s = 0.5 }}
"""


NO_LEADER = frozenset({"leadership_lost", "store_rejected", "server_stopping", ""})
"""What a process says when it leads no more; the empty word is its end."""


LAST_WORDS = 30
"""Lines."""


def free_port() -> int:
    """A port on which nobody listens, from below those that the system gives to outgoing calls.

    Whoever is started again after a while still finds it free.
    """
    while True:
        port = random.SystemRandom().randrange(20_000, 32_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


class ReplicaProcess:
    """A server on a port of its own that can be killed and started again.

    Attributes:
        port: Where it serves gRPC.
        http_port: Where it tells its health.
        leads: Whether it leads, as far as it has said.
        terms: How often it has led.
        wrapper: A command that runs it.
    """

    def __init__(
        self, directory: Path, name: str, store: str, further: str = "", host: str = "127.0.0.1"
    ) -> None:
        """Writes the configuration of a server; nothing runs before `start`.

        Args:
            directory: Where its configuration is put.
            name: Of that file.
            store: The lines of `[store]`.
            further: Tables that stand behind the rest.
            host: The address that it serves at; beyond loopback nobody has to say who they are.
        """
        self.port = free_port()
        self.http_port = free_port()
        self._config = directory / f"{name}.toml"
        text = CONFIG.format(host=host, port=self.port, http_port=self.http_port, store=store)
        self._config.write_text(text + further, encoding="utf-8")
        self._open = () if host == "127.0.0.1" else ("--insecure-no-auth",)
        self.leads = False
        self.terms = 0
        self.wrapper: tuple[str, ...] = ()
        self._process: Process | None = None
        self._reader: asyncio.Task[None] | None = None
        self._said: Counter[str] = Counter()
        self._last_said: dict[str, dict[str, Any]] = {}
        self._more = asyncio.Condition()
        self._lines: list[str] = []

    async def start(self) -> None:
        """Starts it and returns when it leads or stands by."""
        self._said.clear()
        self._process = await asyncio.create_subprocess_exec(
            *(*self.wrapper, sys.executable, "-m", "cronoq_server", "--config", str(self._config)),
            *self._open,
            stdout=DEVNULL,
            stderr=PIPE,
            start_new_session=bool(self.wrapper),  # else it ends with whoever started it
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
                action = "stands_by" if is_standby else said.get("action", "other")
                self._last_said[action] = said
                await self._note(action)
        await self._note("")

    async def _note(self, action: str) -> None:
        async with self._more:
            if action == "server_ready":
                self.leads = True
                self.terms += 1
            elif action in NO_LEADER:
                self.leads = False
            self._said[action] += 1
            self._more.notify_all()

    def times(self, action: str) -> int:
        """How often the process has logged an action since its start."""
        return self._said[action]

    def said_at(self, action: str) -> float:
        """When it last logged an action, as Unix time in seconds."""
        return datetime.fromisoformat(self.last_said(action)["at"]).timestamp()

    def last_said(self, action: str) -> dict[str, Any]:
        """The last line that it has logged of an action."""
        return self._last_said[action]

    async def says(self, *actions: str) -> None:
        """Returns when the process has logged one of these since its start.

        Raises:
            RuntimeError: It ended before; has its log.
        """
        async with self._more:
            await self._more.wait_for(lambda: any(self._said[a] for a in (*actions, "")))
        if not any(self._said[action] for action in actions):
            raise RuntimeError("".join(self._lines))

    async def until(self, holds: Callable[[ReplicaProcess], bool]) -> None:
        """Returns when something holds of it; looks again whenever it says something."""
        async with self._more:
            await self._more.wait_for(lambda: holds(self))

    def last_words(self) -> str:
        """The end of all that it has logged."""
        return f"port {self.port}:\n{''.join(self._lines[-LAST_WORDS:])}"

    @property
    def is_up(self) -> bool:
        """Whether the process runs."""
        return self._process is not None and self._process.returncode is None

    @property
    def pid(self) -> int:
        """Of the process."""
        assert self._process is not None
        return self._process.pid

    def send(self, number: signal.Signals) -> None:
        """Sends it a signal."""
        assert self._process is not None
        self._process.send_signal(number)

    async def end(self, number: signal.Signals) -> int:
        """Ends it with a signal and returns its exit code, once all that it said is read."""
        assert self._process is not None
        assert self._reader is not None
        self.send(number)
        await self.wait()
        assert self._process.returncode is not None
        return self._process.returncode

    def end_group(self) -> None:
        """Ends it together with the command that runs it, if one does."""
        assert self._process is not None
        if self.wrapper:
            os.killpg(self._process.pid, signal.SIGKILL)
        else:
            self.send(signal.SIGKILL)

    async def wait(self) -> None:
        """Returns when it has ended."""
        assert self._process is not None
        assert self._reader is not None
        await self._reader
        await self._process.wait()

    async def kill(self) -> None:
        """Ends it without a chance to do anything, whatever state it is in."""
        if self._process is not None and self._process.returncode is None:
            await self.end(signal.SIGKILL)


class Balancer:
    """Passes each connection on to the next replica that takes it, leader or not.

    Attributes:
        address: Where it listens.
        accepted: When it took connections (monotonic, seconds).
    """

    def __init__(self, ports: Sequence[int]) -> None:
        """Passes on to these ports; more may be added to a list while it listens."""
        self.address = ""
        self.accepted: list[float] = []
        self._ports = ports
        self._next = 0
        self._acceptor: Acceptor | None = None

    def busiest_second(self) -> int:
        """The most connections taken within any second."""
        first = most = 0
        for last, at in enumerate(self.accepted):
            while at - self.accepted[first] >= 1:
                first += 1
            most = max(most, last - first + 1)
        return most

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Balancer]:
        """Listens while the context is open."""
        async with accepting(self._serve) as self._acceptor:
            self.address = f"127.0.0.1:{self._acceptor.port}"
            yield self

    def cut(self) -> None:
        """Cuts every connection that there is."""
        if self._acceptor is not None:
            self._acceptor.cut()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted.append(time.monotonic())
        for _ in self._ports:
            self._next += 1
            port = self._ports[self._next % len(self._ports)]
            try:
                there, back = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                continue
            with contextlib.closing(back):
                await asyncio.gather(_pipe(reader, back), _pipe(there, writer))
            break


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while content := await reader.read(65_536):
            writer.write(content)
            await writer.drain()
    except ConnectionError:
        pass  # one side is gone, and with it the other
    finally:
        writer.close()


class Group:
    """Replicas over one store.

    Attributes:
        servers: All of them.
    """

    def __init__(self, servers: list[ReplicaProcess]) -> None:
        self.servers = servers

    async def leader(self) -> ReplicaProcess:
        """The one that leads; waits for it."""
        return await first_that(self.servers, lambda server: server.leads)

    async def another(self, old: ReplicaProcess) -> ReplicaProcess:
        """One that leads and is not the old one; waits for it."""
        others = [server for server in self.servers if server is not old]
        return await first_that(others, lambda server: server.leads)


async def first_that(
    servers: Sequence[ReplicaProcess], holds: Callable[[ReplicaProcess], bool]
) -> ReplicaProcess:
    """The first of these of which something holds; waits for it."""
    waits = {asyncio.create_task(server.until(holds)): server for server in servers}
    try:
        done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        return waits[done.pop()]
    finally:
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)


@asynccontextmanager
async def replicas(
    directory: Path, store: str, count: int = 2
) -> AsyncIterator[tuple[Balancer, Group]]:
    """Replicas over one store, the first of which leads, behind a balancer."""
    async with AsyncExitStack() as stack:
        servers = [ReplicaProcess(directory, f"server-{n}", store) for n in range(count)]
        for server in servers:
            stack.push_async_callback(server.kill)
            await server.start()
        assert [server.times("server_ready") for server in servers] == [1] + [0] * (count - 1)
        balancer = await stack.enter_async_context(Balancer([s.port for s in servers]).open())
        yield balancer, Group(servers)
