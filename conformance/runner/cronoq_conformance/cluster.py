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
from collections.abc import Mapping, Sequence
from pathlib import Path

from .certificates import Certificates
from .proxy import Proxy

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
{more}
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


SHARD = """
[[shards]]
name = "{name}"
number = {number}
pools = {pools}
endpoint = "{endpoint}"
"""

TLS = """
[server.tls]
cert = "{server.cert}"
key = "{server.key}"
{client_ca}
[server.peer_tls]
ca = "{ca}"
{identity}
"""

CERTIFICATE = """
[[auth.certs]]
dns_name = "localhost"
role = "admin"
"""

TOKEN = """
[[auth.tokens]]
token = "{token}"
role = "admin"
"""
SECRET = "of-the-sharded-cluster"


class Cluster:
    """Replicas that share a store.

    Attributes:
        replicas: Its processes; the first is the first to lead.
        named: The same by name, `r0`, `r1` and so on.
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
        self.replicas: list[ServerProcess] = []
        self.named: dict[str, ServerProcess] = {}
        for number in range(replicas):
            port = free_port()
            config = CONFIG.format(
                port=port,
                http_port=free_port(),
                store=store_lines(store, directory / "store.sqlite3"),
                lease_ttl=lease_ttl,
            )
            config += "".join(POOL.format(name=name) for name in pools) + RESOURCE.format(more="")
            path = directory / f"server-{number}.toml"
            self._add(f"r{number}", ServerProcess(config, path, port))

    def _add(self, name: str, server: ServerProcess) -> None:
        self.replicas.append(server)
        self.named[name] = server

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


class ShardedCluster(Cluster):
    """Replicas of several shards, and an address for each shard.

    Attributes:
        gates: What stands before each shard's replicas, by the shard's name: where workers are
            sent, and other shards' servers ask.
    """

    def __init__(
        self,
        directory: Path,
        certificates: Certificates,
        variant: str,
        *,
        shards: Mapping[str, Sequence[str]],
        replicas: int = 1,
        store: str = "memory",
        told: Mapping[str, str] | None = None,
        disagree: bool = False,
    ) -> None:
        """Lays it out; nothing runs before `start`.

        Args:
            directory: For configurations and stores.
            certificates: For variants with TLS.
            variant: `plain`, `tls`, or `mtls`, where callers are known by their certificates.
            shards: Further pools of each, numbered from 1; the first has the usual ones besides.
            replicas: Of each shard.
            store: `memory` or `sqlite`.
            told: Where servers say that a shard is, if not at its gate; `{port}` is the gate's.
            disagree: Whether all servers but the first shard's take each other's pools for theirs.
        """
        self.replicas, self.named = [], {}
        self._directory = directory
        self._certificates = certificates
        self._variant = variant
        usual = ["default", "tiny"]
        self._shards = {
            name: [*pools, *(usual if not at else ())]
            for at, (name, pools) in enumerate(shards.items())
        }
        self._store = store
        self._told = told or {}
        self._disagree = disagree
        self._ports = {
            name: [free_port() for _ in range(replicas if store != "memory" else 1)]
            for name in shards
        }
        self.gates = {
            name: Proxy([("127.0.0.1", port) for port in ports])
            for name, ports in self._ports.items()
        }

    @property
    def credentials(self) -> Mapping[str, str]:
        """Options that callers show who they are with, where their certificate does not."""
        return {} if self._variant == "mtls" else {"token": SECRET}

    async def start(self) -> None:
        """Starts the shards at once, the replicas of each one after another."""
        for gate in self.gates.values():
            await gate.start()
        for name, ports in self._ports.items():
            for number, port in enumerate(ports):
                path = self._directory / f"{name}-{number}.toml"
                server = ServerProcess(self._config(name, port), path, port)
                self._add(f"{name}{number}", server)
        async with asyncio.TaskGroup() as starting:
            for name in self._shards:
                starting.create_task(self._start(name))

    async def _start(self, shard: str) -> None:
        for number in range(len(self._ports[shard])):
            await self.named[f"{shard}{number}"].start()

    async def stop(self) -> None:
        """Ends all at once."""
        await super().stop()
        for gate in self.gates.values():
            await gate.stop()

    def _config(self, own: str, port: int) -> str:
        first = next(iter(self._shards))
        config = CONFIG.format(
            port=port,
            http_port=free_port(),
            store=store_lines(self._store, self._directory / "{shard}.sqlite3"),
            lease_ttl=30.0,
        )
        config += RESOURCE.format(more=f'shard = "{first}"')
        config = config.replace("[server]", f'[server]\nshard = "{own}"')
        further = [pool for some in self._shards.values() for pool in some]
        config += "".join(POOL.format(name=pool) for pool in further if pool not in config)
        return config + self._tables(own) + self._security()

    def _tables(self, own: str) -> str:
        """The shards, as the servers of one believe them to be."""
        pools = list(self._shards.values())
        if self._disagree and own != next(iter(self._shards)):
            pools = pools[1:] + pools[:1]
        scheme = "http" if self._variant == "plain" else "https"
        text = ""
        for number, (name, gate) in enumerate(self.gates.items(), 1):
            endpoint = self._told.get(name, f"{scheme}://127.0.0.1:{{port}}")
            text += SHARD.format(
                name=name,
                number=number,
                pools=json.dumps(list(pools[number - 1])),
                endpoint=endpoint.replace("{port}", str(gate.port)),
            )
        return text

    def _security(self) -> str:
        text, of = TOKEN.format(token=SECRET), self._certificates
        if self._variant == "plain":
            return text
        client_ca = identity = ""
        if self._variant == "mtls":
            client_ca = f'client_ca = "{of.trusted.ca}"'
            identity = f'cert = "{of.client.cert}"\nkey = "{of.client.key}"'
            text += CERTIFICATE
        return text + TLS.format(
            server=of.server, ca=of.trusted.ca, client_ca=client_ca, identity=identity
        )


def store_lines(kind: str, path: Path) -> str:
    """What the configuration says of a store."""
    if kind == "memory":
        return 'kind = "memory"'
    return f'kind = "sqlite"\npath = "{path}"\nlease_ttl_s = 1\nlease_renew_s = 0.2'
