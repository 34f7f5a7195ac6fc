"""Three shards in the test's own process: each a whole server, reached over the wire."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import grpc
import pytest

from cronoq_server import config as configuration
from cronoq_server._proto import task_pb2, tasks_pb2
from cronoq_server.app import Server
from tests.api.conftest import LARGE, Edge

SHARDS = {"cpu": (1, ["default", "mail"]), "gpu": (2, ["llm"]), "web": (200, ["site"])}
"""Names with numbers and pools."""

POOLS = [pool for _, pools in SHARDS.values() for pool in pools]


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on, from below those that the system gives to outgoing calls."""
    found: list[int] = []
    while len(found) < count:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as one, contextlib.suppress(OSError):
            one.bind(("127.0.0.1", port))
            if port not in found:
                found.append(port)
    return found


class Cluster:
    """The servers of all shards.

    Attributes:
        edges: Stubs of each server, by its shard's name.
        servers: The servers themselves.
    """

    def __init__(self, further: str, host: str) -> None:
        self.edges: dict[str, Edge] = {}
        self.servers: dict[str, Server] = {}
        self._further = further
        self._host = host
        self._ports = dict(zip(SHARDS, free_ports(len(SHARDS)), strict=True))
        self._running: dict[str, asyncio.Task[int]] = {}

    def config(self, name: str) -> configuration.Config:
        """What the server of a shard is told."""
        shards = "".join(
            f'[[shards]]\nname = "{shard}"\nnumber = {number}\npools = {pools}\n'
            f'endpoint = "{self.endpoint(shard)}"\n'
            for shard, (number, pools) in SHARDS.items()
        )
        pools = "".join(f'[[pools]]\nname = "{pool}"\n' for pool in POOLS)
        text = (
            f'[server]\ngrpc_addr = "127.0.0.1:{self._ports[name]}"\nhttp_addr = "127.0.0.1:0"\n'
            f'shutdown_grace_s = 0.1\nshard = "{name}"\n{pools}{shards}{self._further}'
        )
        return configuration.parse(text)

    def endpoint(self, name: str) -> str:
        """Where a shard is reached."""
        return f"http://{self._host}:{self._ports[name]}"

    async def start(self, name: str) -> None:
        """Starts the server of a shard and waits until it leads."""
        server = Server(self.config(name))
        ready = asyncio.Event()
        running = asyncio.create_task(server.run(lambda _: ready.set()))
        waiting = asyncio.create_task(ready.wait())
        await asyncio.wait((running, waiting), return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            waiting.cancel()
            running.result()
        self.servers[name], self._running[name] = server, running

    async def stop(self, name: str) -> None:
        """Stops the server of a shard."""
        self.servers.pop(name).stop()
        assert await self._running.pop(name) == 0

    async def agree(self, *silent: str) -> None:
        """Waits until every server has found out who answers: all but `silent`."""
        for name, server in self.servers.items():
            assert server.peers is not None
            others = {shard for shard in SHARDS if shard != name}
            while set(server.peers.missing()) != others & set(silent):
                await server.peers.probe()

    async def close(self) -> None:
        """Stops all servers."""
        await asyncio.gather(*(self.stop(name) for name in list(self.servers)))


@asynccontextmanager
async def sharded(further: str = "", host: str = "127.0.0.1") -> AsyncIterator[Cluster]:
    """All shards, each knowing that the others answer.

    Args:
        further: Configuration that all of them have besides.
        host: How their endpoints name this machine; under another name they don't find each other.
    """
    cluster = Cluster(further, host)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(cluster.close)
        for name in SHARDS:
            await cluster.start(name)
            target = str(cluster.servers[name].address)
            channel = grpc.aio.insecure_channel(target, options=LARGE)
            await stack.enter_async_context(channel)
            cluster.edges[name] = Edge(cluster.servers[name], channel)
        if host == "127.0.0.1":
            await cluster.agree()
        yield cluster


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    """Three shards without authentication."""
    async with sharded() as cluster:
        yield cluster


@pytest.fixture
async def shards() -> AsyncIterator[Callable[..., Any]]:
    """Starts three shards with further configuration."""
    async with AsyncExitStack() as stack:

        async def start(further: str, host: str = "127.0.0.1") -> Cluster:
            return await stack.enter_async_context(sharded(further, host))

        yield start


def spec(pool: str, **fields: Any) -> task_pb2.TaskSpec:
    """A task for a pool."""
    return task_pb2.TaskSpec(pool=pool, **fields)


def by_id(task_id: int) -> task_pb2.TaskRef:
    """A task by its id."""
    return task_pb2.TaskRef(id=task_id)


def by_key(key: str) -> task_pb2.TaskRef:
    """A task by its key."""
    return task_pb2.TaskRef(key=key)


def get(ref: task_pb2.TaskRef) -> tasks_pb2.GetRequest:
    """Asks for a task."""
    return tasks_pb2.GetRequest(task=ref)
