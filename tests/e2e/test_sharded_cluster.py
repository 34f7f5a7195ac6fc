"""Shards as real processes behind one address: each fails by itself, and nothing is lost."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from cronoq import Client, TaskStatus, Worker
from cronoq.errors import UnavailableError
from tests.e2e.replicas import Balancer, Group, ReplicaProcess, first_that

SHARDS = {"cpu": (1, "default"), "gpu": (2, "llm")}
REPLICAS = 2
TASKS = 150


class Cluster:
    """Two shards with two replicas each.

    Attributes:
        groups: The replicas of each shard.
        front: One address in front of all of them.
        endpoints: Where each shard's replicas are reached.
    """

    def __init__(self) -> None:
        self.groups: dict[str, Group] = {}
        self.front = Balancer([])
        self.endpoints: dict[str, str] = {}


@asynccontextmanager
async def sharded(directory: Path) -> AsyncIterator[Cluster]:
    """Starts all servers and waits until each shard has a leader."""
    cluster = Cluster()
    async with AsyncExitStack() as stack:
        ports: dict[str, list[int]] = {name: [] for name in SHARDS}
        everywhere: list[int] = []
        for name in SHARDS:
            balancer = await stack.enter_async_context(Balancer(ports[name]).open())
            cluster.endpoints[name] = f"http://{balancer.address}"
        cluster.front = await stack.enter_async_context(Balancer(everywhere).open())
        further = '[[pools]]\nname = "llm"\n' + "".join(
            f'[[shards]]\nname = "{name}"\nnumber = {number}\npools = ["{pool}"]\n'
            f'endpoint = "{cluster.endpoints[name]}"\n'
            for name, (number, pool) in SHARDS.items()
        )
        store = f'kind = "sqlite"\npath = "{directory}/{{shard}}.db"\nlock_poll_s = 0.1'
        for name in SHARDS:
            servers = [
                ReplicaProcess(directory, f"{name}-{n}", store, further) for n in range(REPLICAS)
            ]
            for server in servers:
                server.wrapper = ("env", f"CRONOQ_SERVER__SHARD={name}")
                stack.push_async_callback(server.kill)
                await server.start()
                ports[name].append(server.port)
                everywhere.append(server.port)
            cluster.groups[name] = Group(servers)
        yield cluster


async def answers(client: Client, pool: str) -> None:
    """Returns when a pool takes tasks through whichever server is asked."""
    while True:
        try:
            await client.submit("greet", "?", pool=pool, call_deadline=2.0)
        except UnavailableError:
            continue
        return


async def test_a_shard_that_loses_its_leader_takes_no_other_with_it(tmp_path: Path) -> None:
    """Workers find their shards through one address; every acknowledged task ends once."""
    ran: dict[str, list[int]] = {pool: [] for _, pool in SHARDS.values()}

    def worker(endpoint: str, pool: str) -> Worker:
        made = Worker(endpoint=endpoint, pool=pool, slots=8)

        @made.handler("greet")
        async def greet(name: str) -> str:
            ran[pool].append(1)
            return f"hello {name}"

        return made

    async with sharded(tmp_path) as cluster, AsyncExitStack() as stack:
        endpoint = cluster.front.address
        for _, pool in SHARDS.values():
            await stack.enter_async_context(worker(endpoint, pool))
        client = await stack.enter_async_context(Client(endpoint, deadline=60.0))
        for pool in ran:
            await answers(client, pool)

        async def submit(pool: str, number: int) -> int:
            key = f"{pool}-{number}"
            return (await client.submit("greet", key, pool=pool, key=key)).id

        first = [submit(pool, n) for n in range(TASKS) for pool in ran]
        acknowledged = list(await asyncio.gather(*first))
        old = await cluster.groups["gpu"].leader()
        await old.end(signal.SIGKILL)
        # The other shard takes and finishes tasks while this one has nobody.
        alone = await asyncio.gather(*(submit("default", n) for n in range(TASKS, 2 * TASKS)))
        for task_id in alone:
            assert (await client.wait(task_id, timeout=60)).status is TaskStatus.SUCCEEDED
        await first_that(
            [one for one in cluster.groups["gpu"].servers if one is not old],
            lambda server: server.leads,
        )
        late = await asyncio.gather(*(submit("llm", n) for n in range(TASKS, 2 * TASKS)))
        results = await client.wait_many([*acknowledged, *alone, *late], timeout=120)
        ended = {result.id: result.status for result in results}
        assert set(ended) == {*acknowledged, *alone, *late}
        assert set(ended.values()) == {TaskStatus.SUCCEEDED}
        listed = [task.key async for task in client.list() if task.key]
        assert len(listed) == len(set(listed)) == 4 * TASKS
