"""Two shards with every credential, over every kind of connection; and what a cell must hear."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import grpc
import httpx

from cronoq_server import config as configuration
from cronoq_server.api.rpc import OPERATIONS
from cronoq_server.app import Server
from cronoq_server.sharding import (
    Caller,
    Credential,
    FanOut,
    Forward,
    Local,
    OnResource,
    Refuse,
    Router,
    Shard,
    Topology,
)
from tests.api import permissions
from tests.api.certificates import Place
from tests.api.conftest import LARGE, Edge
from tests.api.permissions import CREDENTIALS, NAMES_SCHEDULE, NAMES_TASK
from tests.sharding.conftest import free_ports
from tools.passing_table import ABOUT

OWNERS: Final = {"mine": "here", "other": "there"}
"""Pools and the shards that run them; the resource is with the second."""

ELSEWHERE: Final = {"mine": "there", "other": "here", "nowhere": "here"}
"""Whose server is asked about a pool: never its owner's."""

SECURITIES: Final = ("plain", "tls", "mtls")

SHARDS: Final = {
    name: Shard(name, number, frozenset({pool}), resources, f"https://{name}.test")
    for name, number, pool, resources in (
        ("here", 1, "mine", frozenset()),
        ("there", 2, "other", frozenset({"gpu"})),
    )
}


def certificate_of(who: permissions.Credential) -> str:
    """The DNS name by which a credential is known if it comes as a certificate."""
    return f"{who.role}-{'limited' if who.is_limited else 'everywhere'}.example"


class Guarded:
    """The servers of both shards.

    Attributes:
        security: Whether connections are plain, encrypted, or show certificates on both sides.
        edges: Stubs of each server, by its shard's name, for a caller whose certificate says
            nothing.
    """

    def __init__(self, security: str, folder: Path, stack: AsyncExitStack) -> None:
        self.security = security
        self.edges: dict[str, Edge] = {}
        self._place = Place(folder)
        self._stack = stack
        self._servers: dict[str, Server] = {}
        self._ports = dict(zip(SHARDS, free_ports(len(SHARDS)), strict=True))

    async def start(self) -> None:
        """Starts both, and waits until each knows that the other answers."""
        if self.security != "plain":
            self._place.issue("server", ["localhost"], for_server=True)
            names = ["nobody.example", *map(certificate_of, CREDENTIALS)]
            for name in names if self.security == "mtls" else ():
                self._place.issue(name, [name])
        for name in SHARDS:
            self._servers[name] = await self._stack.enter_async_context(running(self._text(name)))
        for name, server in self._servers.items():
            assert server.peers is not None
            while server.peers.missing():
                await server.peers.probe()
            self.edges[name] = await self.edge(name, "nobody.example")

    def _text(self, name: str) -> str:
        scheme = "http" if self.security == "plain" else "https"
        text = permissions.CONFIG + "[[resources]]\nname = 'gpu'\npermits = 1\nshard = 'there'\n"
        for shard in SHARDS.values():
            text += (
                f"[[shards]]\nname = '{shard.name}'\nnumber = {shard.number}\n"
                f"pools = {sorted(shard.pools)}\n"
                f"endpoint = '{scheme}://localhost:{self._ports[shard.name]}'\n"
            )
        if self.security == "mtls":
            for who in CREDENTIALS:
                text += f"[[auth.certs]]\ndns_name = '{certificate_of(who)}'\nrole = '{who.role}'\n"
                text += "pools = ['mine']\n" if who.is_limited else ""
        text += self._tls()
        return (
            f"[server]\ngrpc_addr = 'localhost:{self._ports[name]}'\n"
            f"http_addr = 'localhost:0'\nshutdown_grace_s = 0.1\nshard = '{name}'\n{text}"
        )

    def _tls(self) -> str:
        if self.security == "plain":
            return ""
        text = self._place.tls(client_ca=self.security == "mtls")
        text += f"[server.peer_tls]\nca = '{self._place.ca}'\n"
        if self.security == "mtls":
            folder = self._place.folder
            text += f"cert = '{folder}/nobody.example.pem'\n"
            text += f"key = '{folder}/nobody.example-key.pem'\n"
        return text

    async def edge(self, name: str, certificate: str) -> Edge:
        """Stubs of a shard's server, for a caller that shows a certificate where one is asked."""
        server = self._servers[name]
        target = f"localhost:{self._ports[name]}"
        if self.security == "plain":
            channel = grpc.aio.insecure_channel(target, options=LARGE)
        else:
            shown = certificate if self.security == "mtls" else None
            credentials = self._place.credentials(shown)
            channel = grpc.aio.secure_channel(target, credentials, options=LARGE)
        return Edge(server, await self._stack.enter_async_context(channel))

    async def web(self, name: str, certificate: str, **headers: str) -> httpx.AsyncClient:
        """A client of a shard's HTTP, that shows a certificate where one is asked."""
        address = self._servers[name].http_address
        scheme, verify = "http", False
        context: Any = verify
        if self.security != "plain":
            scheme = "https"
            context = ssl.create_default_context(cafile=str(self._place.ca))
            if self.security == "mtls":
                folder = self._place.folder
                context.load_cert_chain(
                    folder / f"{certificate}.pem", folder / f"{certificate}-key.pem"
                )
        client = httpx.AsyncClient(
            base_url=f"{scheme}://localhost:{address.port}",
            headers=headers,
            trust_env=False,
            verify=context,
            timeout=60,
        )
        return await self._stack.enter_async_context(client)


@asynccontextmanager
async def running(text: str) -> AsyncIterator[Server]:
    """A server with this configuration, from when it leads until the end."""
    server = Server(configuration.parse(text))
    ready = asyncio.Event()
    serving = asyncio.create_task(server.run(lambda _: ready.set()))
    waiting = asyncio.create_task(ready.wait())
    await asyncio.wait((serving, waiting), return_when=asyncio.FIRST_COMPLETED)
    if serving.done():
        waiting.cancel()
        serving.result()
    try:
        yield server
    finally:
        server.stop()
        assert await serving == 0


@asynccontextmanager
async def guarded(security: str, folder: Path) -> AsyncIterator[Guarded]:
    """Both shards over one kind of connection."""
    async with AsyncExitStack() as stack:
        pair = Guarded(security, folder, stack)
        await pair.start()
        yield pair


class Heard(NamedTuple):
    """What a cell must hear.

    Attributes:
        there: How the call ends at the owner's own server.
        here: How it ends at the other one's.
    """

    there: str
    here: str


def heard(
    who: permissions.Credential, method: str, pool: str, caller: Callable[..., Caller]
) -> Heard:
    """How a cell must end: as the matrix says at its owner, unless the router says otherwise.

    Args:
        who: The credential.
        method: The method.
        pool: What it is about.
        caller: Makes what the router is told, from the pools that may be used.
    """
    there = permissions.expected(who, method, pool)
    if there in ("ROLE_NOT_ALLOWED", "POOL_NOT_ALLOWED"):
        return Heard(there, there)
    asked = ELSEWHERE[pool]
    about = ABOUT[OPERATIONS[method]](pool)
    owner: str | None = OWNERS.get(pool)
    if isinstance(about, OnResource):
        about, owner = OnResource("gpu"), "there"
    router = Router(Topology(SHARDS.values(), asked), lambda _: True)
    limits = frozenset({"mine"}) if who.is_limited else None
    match router.decide(about, caller(pools=limits)):
        case Forward():
            return Heard(there, there)
        case Refuse(reason):
            return Heard(there, reason.name)
        case FanOut(ask):
            is_reached = owner in [shard.name for shard in ask]
        case Local():
            is_reached = owner == asked
    return Heard(there, there if is_reached or owner is None else _absent(method, there))


def _absent(method: str, there: str) -> str:
    """How a call ends where its task or schedule is not."""
    if method in NAMES_TASK:
        return "TASK_UNKNOWN"
    if method in NAMES_SCHEDULE and method != "RemoveRecurring":
        return "SCHEDULE_UNKNOWN"
    return there


def token_caller(pools: frozenset[str] | None) -> Caller:
    """What the router is told of a caller with a token."""
    return Caller(Credential.TOKEN, pools)


def certificate_caller(pools: frozenset[str] | None) -> Caller:
    """What the router is told of a caller with a certificate."""
    return Caller(Credential.CERTIFICATE, pools)


def forging_caller(pools: frozenset[str] | None) -> Caller:
    """What the router is told of a call that says that it was passed on."""
    return Caller(Credential.TOKEN, pools, forwarded=True)
