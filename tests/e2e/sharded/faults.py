"""What can befall a shard among others, and how it is over."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from tests.e2e.sharded.cluster import Cluster
from tests.e2e.sharded.record import Record
from tests.e2e.sharded.views import Views


@dataclass(frozen=True, slots=True)
class Scene:
    """What a fault can lay its hands on.

    Attributes:
        cluster: The servers.
        record: Where troubles are noted.
        views: What servers say of each other.
        outage_s: For how long a shard loses all its replicas.
        hold_s: For how long ways between shards are slow or gone, once all have noticed.
        delay_s: How slow a slow shard is.
    """

    cluster: Cluster
    record: Record
    views: Views
    outage_s: float = 20.0
    hold_s: float = 8.0
    delay_s: float = 2.0


Fault = Callable[[Scene, str], Awaitable[None]]


async def kill_leader(scene: Scene, shard: str) -> None:
    """SIGKILL of a shard's leader, which is started again once another one leads."""
    group = scene.cluster.groups[shard]
    with scene.record.trouble("leader killed", lambda entry, subject: shard in (entry, subject)):
        leader = await group.leader()
        await leader.end(signal.SIGKILL)
        await group.another(leader)
        await leader.start()
        await scene.views.agree()


async def lose_replicas(scene: Scene, shard: str) -> None:
    """SIGKILL of all replicas of a shard, which are started again after a while."""
    group = scene.cluster.groups[shard]
    excuses = lambda entry, subject: shard in (entry, subject)  # noqa: E731
    with scene.record.trouble("all replicas lost", excuses) as trouble:
        for server in group.servers:
            await server.kill()
        await scene.views.agree(trouble)
        trouble.told = time.monotonic()
        await asyncio.sleep(max(0.0, trouble.began + scene.outage_s - time.monotonic()))
        trouble.undone = time.monotonic()
        for server in group.servers:
            await server.start()
        await scene.views.agree()


async def slow_down(scene: Scene, shard: str) -> None:
    """Whatever other shards' servers send to this one arrives seconds later."""
    gateway = scene.cluster.gateways[shard]
    excuses = lambda entry, subject: subject == shard != entry  # noqa: E731
    with scene.record.trouble("slow", excuses) as trouble:
        trouble.is_leaky = True
        gateway.delay = scene.delay_s
        await scene.views.agree(trouble)
        trouble.told = time.monotonic()
        await asyncio.sleep(scene.hold_s)
        trouble.undone = time.monotonic()
        gateway.delay = 0.0
        await scene.views.agree()


async def part(scene: Scene, _: str) -> None:
    """No shard's servers get through to another's; clients and workers do."""
    gateways = scene.cluster.gateways.values()
    with scene.record.trouble("parted", lambda entry, subject: entry != subject) as trouble:
        for gateway in gateways:
            gateway.part()
        await scene.views.agree(trouble)
        trouble.told = time.monotonic()
        await asyncio.sleep(scene.hold_s)
        trouble.undone = time.monotonic()
        for gateway in gateways:
            gateway.join()
        await scene.views.agree()


FAULTS: tuple[Fault, ...] = (kill_leader, lose_replicas, slow_down, part)
