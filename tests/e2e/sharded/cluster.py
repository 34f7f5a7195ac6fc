"""Three shards of two replicas each as real processes: TLS, tokens, an address for each shard.

All servers read the same settings, as in any deployment; the addresses that they name of each other
are gateways, see `tests.e2e.sharded.gateway`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from cronoq_conformance.certificates import Certificates, make_certificates

import cronoq
from tests.e2e.replicas import Balancer, Group, ReplicaProcess
from tests.e2e.sharded.gateway import Gateway, holds

SHARDS: Mapping[str, tuple[int, tuple[str, ...]]] = {
    "cpu": (1, ("default", "mail")),
    "gpu": (2, ("llm",)),
    "web": (200, ("site",)),
}
"""Numbers and pools by name."""

POOLS = {pool: name for name, (_, pools) in SHARDS.items() for pool in pools}
"""The shard of each pool."""

REPLICAS = 2
TOKENS = {role: f"{role}-of-the-sharded-cluster" for role in ("client", "worker", "admin")}

SQLITE = 'kind = "sqlite"\npath = "{directory}/{{shard}}.db"\n'
POSTGRES = 'kind = "postgres"\nurl = "{url}"\n'

SHARD = (
    '[[shards]]\nname = "{name}"\nnumber = {number}\npools = {pools}\nendpoint = "https://{at}"\n'
)
POOL = '[[pools]]\nname = "{name}"\nretry = {{ max_attempts = 6, initial_backoff_s = 0.05 }}\n'
TLS = """
[server.tls]
cert = "{server.cert}"
key = "{server.key}"
[server.peer_tls]
ca = "{ca}"
"""


@dataclass(frozen=True, slots=True)
class Cluster:
    """All servers and their addresses.

    Attributes:
        groups: The replicas of each shard.
        gateways: Where each shard is reached.
        front: One address in front of all replicas of all shards.
        certificates: What servers show, and who signed it.
    """

    groups: Mapping[str, Group]
    gateways: Mapping[str, Gateway]
    front: Balancer
    certificates: Certificates

    @property
    def ca(self) -> Path:
        """Who signs the servers' certificates."""
        return self.certificates.trusted.ca

    def client(self, address: str, role: str = "client", deadline: float = 20.0) -> cronoq.Client:
        """A client of an address."""
        tls = cronoq.TlsOptions(ca=self.ca)
        return cronoq.Client(address, token=TOKENS[role], tls=tls, deadline=deadline)

    def last_words(self) -> str:
        """The end of what each server has logged."""
        servers = ((name, one) for name, group in self.groups.items() for one in group.servers)
        return "\n".join(f"{name}, {one.last_words()}" for name, one in servers)


def store_lines(directory: Path, database: str | None, further: str = "") -> str:
    """What the configuration says of the store: files in a directory, or schemas of a database."""
    text = SQLITE.format(directory=directory) if database is None else POSTGRES.format(url=database)
    return text + further


@asynccontextmanager
async def sharded(
    directory: Path, store: str, *, peer_timeout: float = 2.0
) -> AsyncIterator[Cluster]:
    """Starts all servers; the first replica of each shard leads.

    Args:
        directory: For configurations and certificates.
        store: The lines of `[store]`, with the shard left open.
        peer_timeout: After how long a peer that is silent is missing, seconds.
    """
    certificates = make_certificates(directory)
    groups: dict[str, Group] = {name: Group([]) for name in SHARDS}
    ports: dict[str, list[int]] = {name: [] for name in SHARDS}
    everywhere: list[int] = []
    async with AsyncExitStack() as stack:
        gateways = {
            name: await stack.enter_async_context(
                Gateway(ports[name], partial(others_hold, groups, name)).open()
            )
            for name in SHARDS
        }
        front = await stack.enter_async_context(Balancer(everywhere).open())
        further = settings(gateways, certificates)
        further += f"[sharding]\npeer_timeout_s = {peer_timeout}\n"

        async def start(name: str) -> None:
            for number in range(REPLICAS):
                server = ReplicaProcess(directory, f"{name}-{number}", store, further)
                server.wrapper = ("env", f"CRONOQ_SERVER__SHARD={name}")
                stack.push_async_callback(server.kill)
                groups[name].servers.append(server)  # gateways know it before it calls any
                await server.start()
                ports[name].append(server.port)
                everywhere.append(server.port)

        async with asyncio.TaskGroup() as starting:
            for name in SHARDS:
                starting.create_task(start(name))
        yield Cluster(groups, gateways, front, certificates)


def others_hold(groups: Mapping[str, Group], own: str, socket: str) -> bool:
    """Whether a server of another shard than one has this socket."""
    return any(
        holds(server.pid, socket)
        for name, group in groups.items()
        for server in group.servers
        if name != own and server.is_up
    )


def settings(gateways: Mapping[str, Gateway], certificates: Certificates) -> str:
    """What all servers are told besides their store and ports."""
    text = "".join(POOL.format(name=pool) for pool in POOLS if pool != "default")
    for name, (number, pools) in SHARDS.items():
        at = gateways[name].address
        text += SHARD.format(name=name, number=number, pools=list(pools), at=at)
    text += TLS.format(server=certificates.server, ca=certificates.trusted.ca)
    for role, token in TOKENS.items():
        text += f'[[auth.tokens]]\ntoken = "{token}"\nrole = "{role}"\n'
    return text
