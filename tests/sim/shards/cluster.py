"""Shards side by side: each a world of its own, its processes with the services of real servers.

What is made up is time, the databases, the wire, workers and callers. Everything between a call's
bytes and the engine is the server's own: credentials, routing, passing on, spreading, merging,
probes of peers.
"""

from __future__ import annotations

import dataclasses
import random
from functools import cache
from typing import Any, Final

import grpc
from grpc_health.v1 import health_pb2

from cronoq_server import config as configuration
from cronoq_server.api.auth import Authenticator
from cronoq_server.api.errors import abort
from cronoq_server.api.grpc_api import all_handlers
from cronoq_server.api.passing import FORWARDED_KEY, current
from cronoq_server.api.specs import SpecReader
from cronoq_server.assembly import pool_settings, services
from cronoq_server.config import Config, localized
from cronoq_server.engine.model import MILLISECOND, SECOND, Duration, EngineSettings, Instant
from cronoq_server.runtime.driver import Driver, DriverSettings
from cronoq_server.runtime.refusals import NOT_LEADER, Refused
from cronoq_server.sharding import Shard
from cronoq_server.sharding.peers import PeerSettings
from cronoq_server.stores.base import Batch
from tests.sim.clockwork import Machine
from tests.sim.shards.wire import Call, Line, Pairs, TimedLoop, Wires
from tests.sim.shared_disk import CALM, Term
from tests.sim.world import Process, World

NUMBERS: Final = (1, 2, 200, 7, 255)
"""Numbers of shards, in the order in which a world takes them."""

TOKENS: Final = {
    "all": ("client", "caller-for-all-pools-00"),
    "some": ("client", "caller-for-some-pools-0"),
    "ops": ("admin", "an-administrators-token"),
}
CERTIFICATE: Final = "caller.example"

HEALTH: Final = "/grpc.health.v1.Health/Check"

STALE: Final[Duration] = 3 * SECOND
"""How long a balancer may send to the wrong replica after a change."""

GRACE: Final[Duration] = 8 * SECOND
"""How long after its trouble a shard may still be taken for missing: a balancer that knows no
better, a probe that hangs, the pause to the next one."""

LOOK_EVERY: Final[Duration] = 100 * MILLISECOND


def pools_of(index: int) -> tuple[str, ...]:
    """The pools of a world's shard."""
    return (f"main-{index}",) if index else ("main-0", "side-0")


@cache
def config_of(count: int, index: int) -> Config:
    """What the servers of one of `count` shards are told; the same file for all."""
    pools = [pool for at in range(count) for pool in pools_of(at)]
    text = f'[server]\nshard = "shard-{index}"\n'
    for pool in pools:
        text += (
            f'[[pools]]\nname = "{pool}"\nlease_ttl_s = 6\n'
            "retry = { max_attempts = 4, initial_backoff_s = 0.2, max_backoff_s = 3 }\n"
        )
    for at in range(count):
        text += (
            f'[[shards]]\nname = "shard-{at}"\nnumber = {NUMBERS[at]}\n'
            f'pools = {list(pools_of(at))}\nendpoint = "https://shard-{at}.example:7070"\n'
        )
    for name, (role, token) in TOKENS.items():
        some = f"pools = {['main-0', 'main-1']}\n" if name == "some" else ""
        text += f'[[auth.tokens]]\ntoken = "{token}"\nrole = "{role}"\n{some}'
    config = configuration.parse(text)
    # A file that lets certificates in names who signs them, and there is no TLS in here.
    certs = (configuration.CertConfig(dns_name=CERTIFICATE, role="client"),)
    return dataclasses.replace(config, auth=dataclasses.replace(config.auth, certs=certs))


class PeerLine(Line):
    """A channel between servers: what goes over it is held to the rules for passing on."""

    def check(self, method: str, metadata: Pairs) -> None:
        """See `Line.check`."""
        if method == HEALTH:
            return
        broken = self.world.known.broken
        passing, sent = current.get(), dict(metadata)
        if passing is None or passing.forwarded:
            broken("what was passed on is passed no further", f"{method} to {self.world.name}")
        elif sent.get("authorization") != passing.authorization:
            broken("a call is passed on with its caller's own token", method)
        if FORWARDED_KEY not in sent:
            broken("what is passed on is marked", method)


class Front:
    """What answers calls in one process: the services of a server among shards.

    Attributes:
        services: The services.
        answered: Calls that it answered, by method.
    """

    def __init__(self, cluster: Cluster, process: ShardProcess) -> None:
        world = process.world
        config = config_of(len(cluster.worlds), world.index)
        reader = SpecReader(config.limits, [pool.name for pool in config.pools])

        def connect(shard: Shard, _settings: PeerSettings) -> Any:
            return PeerLine(cluster.wires, world.number, cluster.named(shard.name))

        def leader() -> Driver:
            if process.driver is None:
                raise Refused(NOT_LEADER)
            return process.driver

        self.services = services(config, leader, reader, connect)
        tasks, admin = self.services.tasks, self.services.admin
        self._handlers = all_handlers(tasks, admin, reader, Authenticator(config.auth))
        self._methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {}
        self._process = process
        assert self.services.peers is not None
        self.peers = self.services.peers
        self._probing = world.spawn(self.peers.run())

    def close(self) -> None:
        """Asks and answers nothing any more."""
        self._probing.cancel()

    async def serve(self, call: Call) -> None:
        """Answers a call.

        Raises:
            Aborted: It is refused.
        """
        leads = self._process.driver is not None
        if call.method == HEALTH:
            status = health_pb2.HealthCheckResponse.ServingStatus
            answer = status.SERVING if leads else status.NOT_SERVING
            call.say(health_pb2.HealthCheckResponse(status=answer).SerializeToString())
            return
        context: Any = call
        if not leads:
            await abort(context, NOT_LEADER)
        handler: Any = self._handler(call.method)
        if handler.unary_unary is not None:
            answer = await handler.unary_unary(call.content, context)
            call.say(answer.SerializeToString())
        else:
            assert handler.unary_stream is not None
            await handler.unary_stream(call.content, context)

    def _handler(self, method: str) -> grpc.RpcMethodHandler[Any, Any]:
        found = self._methods.get(method)
        if found is None:
            asked = _Asked(method)
            every = (handlers.service(asked) for handlers in self._handlers)
            found = self._methods[method] = next(one for one in every if one is not None)
        return found


class _Asked(grpc.HandlerCallDetails):
    """Names a method to those who look for its handler."""

    def __init__(self, method: str) -> None:
        self.method = method
        self.invocation_metadata = ()


class ShardProcess(Process):
    """One server process of a shard.

    Attributes:
        world: Its shard.
        front: What answers calls in it.
    """

    world: ShardWorld

    def __init__(self, world: ShardWorld, machine: Machine, number: int) -> None:
        super().__init__(world, machine, number)
        self.front = Front(world.cluster, self)

    def crash(self) -> None:
        """See `Process.crash`."""
        super().crash()
        self.front.close()

    async def stop(self) -> None:
        """See `Process.stop`."""
        await super().stop()
        self.front.close()


class ShardWorld(World):
    """One shard: its machines, its database, its servers, and what they promise.

    Attributes:
        cluster: All shards.
        index: Which one this is, from 0.
        name: What people call it.
        number: The top 8 bits of its tasks' ids.
        pools: Its pools.
        unwell_at: When it was last seen in trouble.
        gone_since: Since when none of its processes serves; None = one does.
        served_since: When its last leader began to serve.
    """

    def __init__(self, cluster: Cluster, index: int, settings: EngineSettings) -> None:
        self.cluster = cluster
        self.index = index
        self.name = f"shard-{index}"
        self.number = NUMBERS[index]
        self.pools = pools_of(index)
        self.unwell_at: Instant = 0
        self.gone_since: Instant | None = 0
        self.served_since: Instant = 0
        self._changed_at: Instant = 0
        super().__init__(cluster.loop, cluster.chance, settings, cluster.driver_settings, True)
        self.known.first = lambda: cluster.broke(self)

    def start(self, index: int) -> None:
        """See `World.start`; a machine has one process."""
        if self.processes[index] is not None:
            return
        self._numbers += 1
        self.processes[index] = ShardProcess(self, self.machines[index], self._numbers)

    def committed(self, term: Term, batch: Batch) -> None:
        """See `World.committed`; no other shard's tasks are in here."""
        for row in batch.inserted:
            if row.spec.pool not in self.pools:
                self.known.broken("a shard has only its own pools' tasks", f"{row.spec}")
        super().committed(term, batch)

    # --- how it is -------------------------------------------------------------------------------

    def serving(self, process: Process) -> None:
        """See `World.serving`."""
        self.gone_since = None
        self.served_since = self._changed_at = self.unwell_at = self.timeline.now
        super().serving(process)

    def look_for_vacancy(self) -> None:
        """See `World.look_for_vacancy`."""
        super().look_for_vacancy()
        if self.leader is None:
            self._changed_at = self.unwell_at = self.timeline.now
        if self.gone_since is None and not any(
            process is not None and process.driver is not None for process in self.processes
        ):
            self.gone_since = self.timeline.now

    def look(self) -> None:
        """Notes whether it is in trouble now."""
        leader, weather = self.leader, self.weather
        calm = weather.slowest <= CALM and not weather.failing and not weather.down
        is_here = (
            leader is not None
            and not leader.replica.stopping  # it refuses calls from the moment it is asked to stop
            and leader.machine.frozen_until <= self.timeline.now
        )
        if not (is_here and calm):
            self.unwell_at = self.timeline.now

    def balance(self, *, knows: bool) -> ShardProcess | None:
        """The process that a balancer in front of the shard sends a connection to.

        Args:
            knows: Whether it knows who leads; otherwise it may be wrong for a while after a change.
        """
        if knows or self.timeline.now - self._changed_at > STALE:
            return self.leader  # type: ignore[return-value]
        alive = [process for process in self.processes if process is not None]
        return self.chance.choice(alive) if alive else None  # type: ignore[return-value]


class Cluster:
    """All shards of a world.

    Attributes:
        loop: Where all runs.
        chance: The one source of chance.
        wires: Between servers, and from callers.
        worlds: The shards.
        culprit: The shard in which the first promise was broken.
        faults: What went wrong on purpose between shards, by kind.
    """

    def __init__(
        self, loop: TimedLoop, chance: random.Random, count: int, finished_max: int
    ) -> None:
        self.loop = loop
        self.timeline = loop.timeline
        self.chance = chance
        self.wires = Wires(loop.timeline, chance)
        self.driver_settings = DriverSettings(
            commit_timeout=6 * SECOND,
            retention=24 * 3600 * SECOND,
            step_tasks_max=chance.choice((7, 2000)),
            batch_mutations_max=chance.choice((30, 20_000)),
        )
        self.culprit: ShardWorld | None = None
        self.faults: dict[str, int] = {}
        self.worlds: list[ShardWorld] = []
        for index in range(count):
            pools = localized(config_of(count, index)).pools
            settings = EngineSettings(
                pools=tuple(pool_settings(pool) for pool in pools),
                shard=NUMBERS[index],
                key_retention=24 * 3600 * SECOND,
                finished_max=finished_max,
                store_remembers=True,
            )
            self.worlds.append(ShardWorld(self, index, settings))
        self.by_number = {world.number: world for world in self.worlds}
        self.owners = {pool: world for world in self.worlds for pool in world.pools}
        self.look()

    @property
    def is_broken(self) -> bool:
        """Whether a promise was broken."""
        return self.culprit is not None

    def broke(self, world: ShardWorld) -> None:
        """A shard is about to note its first violation."""
        world.evidence = list(world.tail)
        if self.culprit is None:
            self.culprit = world
        for each in self.worlds:
            each.is_broken.set()

    def named(self, name: str) -> ShardWorld:
        """The shard of this name."""
        return next(world for world in self.worlds if world.name == name)

    def of_id(self, task_id: int) -> ShardWorld | None:
        """The shard whose number an id carries."""
        return self.by_number.get(task_id >> 56)

    def count(self, fault: str) -> None:
        """Notes that something went wrong on purpose."""
        self.faults[fault] = self.faults.get(fault, 0) + 1

    def look(self) -> None:
        """Looks at all shards, now and every so often from now on."""
        for world in self.worlds:
            world.look()
        self.timeline.after(LOOK_EVERY, self.look)

    # --- who can be asked ------------------------------------------------------------------------

    def was_well(self, asker: ShardWorld, other: ShardWorld, since: Instant) -> bool:
        """Whether nothing was wrong with two shards, and between them, for long enough."""
        for world in (asker, other):
            world.look()
        quiet = since - GRACE
        between = self.wires.cut_since(asker.number, other.number) is None
        return (
            between
            and asker.unwell_at < quiet
            and other.unwell_at < quiet
            and (
                asker is other
                or not (healed := self.wires.healed_at(asker.number, other.number))
                or healed < quiet
            )
        )

    def was_away(self, asker: ShardWorld, other: ShardWorld, since: Instant) -> bool:
        """Whether a shard could not have been asked by another one's servers since an instant."""
        if other.gone_since is not None and other.gone_since <= since:
            return True
        cut = self.wires.cut_since(asker.number, other.number)
        return cut is not None and cut <= since
