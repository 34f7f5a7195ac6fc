"""What peers keep their jobs in: Redis and PostgreSQL that sync what they acknowledge, our server.

Everything listens on loopback, lives in a folder of its own and is ended by its process id. Redis
starts anew for each turn; PostgreSQL stays, and each turn has a database of its own.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.bench.environment import ROOT
from tests.bench.peers import trees
from tests.bench.peers.installing import CRATE_SERVER
from tests.bench.peers.talking import PeerFailed, last_lines, start
from tests.stores.pg import Cluster

READY_TIMEOUT_S = 180.0
SERVING = "serving gRPC on "
OURS = """
[server]
grpc_addr = "127.0.0.1:0"
http_addr = "127.0.0.1:0"
log_level = "error"
"""
CRATE = """
[server]
grpc_addr = "127.0.0.1:{grpc}"
http_addr = "127.0.0.1:{http}"

[store]
{store}
"""
POOLS = """
[[pools]]
name = "default"
max_pending = 10_000_000

[[resources]]
name = "slots-of-the-bench"
kind = "semaphore"
permits = 100_000

[[resources]]
name = "rate-of-the-bench"
kind = "token_bucket"
rate = 1_000_000
burst = 1_000_000
"""
_databases = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Place:
    """A broker for one turn: where it is, and the roots of its processes."""

    url: str
    roots: tuple[int, ...]


def _wait_for_port(process: subprocess.Popen[str], port: int, log: Path) -> None:
    deadline = time.monotonic() + READY_TIMEOUT_S
    while True:
        with (
            contextlib.suppress(ConnectionRefusedError),
            socket.create_connection(("127.0.0.1", port), READY_TIMEOUT_S),
        ):
            return
        if process.poll() is not None or time.monotonic() > deadline:
            raise PeerFailed(f"nothing listens on port {port}: {last_lines(log)}")
        time.sleep(0.01)


def free_port() -> int:
    """A port that nobody has at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def redis_program() -> str:
    """The program of a Redis server, or of one that took its place.

    Raises:
        PeerFailed: There is none.
    """
    found = shutil.which("redis-server") or shutil.which("valkey-server")
    if found is None:
        raise PeerFailed("no redis-server: install it, for example with apt-get")
    return found


@contextlib.contextmanager
def redis(folder: Path) -> Iterator[Place]:
    """A Redis that syncs its log before it answers, as strict as it can be."""
    port, log = free_port(), folder / "redis.log"
    options = {
        "port": port,
        "bind": "127.0.0.1",
        "dir": folder,
        "save": "",
        "appendonly": "yes",
        "appendfsync": "always",
    }
    arguments = [str(part) for name, value in options.items() for part in (f"--{name}", value)]
    process = start([redis_program(), *arguments], folder, {}, log)
    try:
        _wait_for_port(process, port, log)
        yield Place(f"redis://127.0.0.1:{port}/0", (process.pid,))
    finally:
        trees.end(process)


@contextlib.contextmanager
def postgres(cluster: Cluster) -> Iterator[Place]:
    """A database of its own in a cluster that syncs every commit."""
    name = f"turn_{next(_databases)}"
    assert cluster.process is not None
    _psql(cluster, f"CREATE DATABASE {name}")
    _psql(cluster, "CHECKPOINT")
    try:
        yield Place(cluster.tcp_url.replace("/postgres", f"/{name}"), (cluster.process.pid,))
    finally:
        _psql(cluster, f"DROP DATABASE {name} WITH (FORCE)")


def _psql(cluster: Cluster, statement: str) -> None:
    command = ["psql", "-X", "-q", "-d", cluster.tcp_url, "-c", statement]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode:
        raise PeerFailed(f"{statement}: {run.stderr.strip()}")


@contextlib.contextmanager
def our_server(folder: Path, store: str) -> Iterator[Place]:
    """Our server with a store: `memory`, a file that is synced, or the URL of a database."""
    config, log = folder / "cronoq.toml", folder / "server.log"
    config.write_text(OURS + POOLS)
    if store == "sqlite":
        store = f"sqlite:{folder / 'store.sqlite3'}"
    command = [sys.executable, "-m", "cronoq_server", "--config", str(config), "--store", store]
    process = start(command, ROOT, {}, log)
    try:
        yield Place(_announced(process, log), (process.pid,))
    finally:
        trees.end(process)


def _announced(process: subprocess.Popen[str], log: Path) -> str:
    deadline = time.monotonic() + READY_TIMEOUT_S
    while process.poll() is None and time.monotonic() < deadline:
        for line in log.read_text().splitlines():
            if line.startswith(SERVING):
                return line.removeprefix(SERVING)
        time.sleep(0.01)
    raise PeerFailed(f"the server did not start: {last_lines(log)}")


@contextlib.contextmanager
def crate_server(folder: Path, store: str) -> Iterator[Place]:
    """The server of the published crate, with a file or the URL of a database."""
    config, log = folder / "crate.toml", folder / "server.log"
    kept = {"kind": "sqlite", "path": str(folder / "store.sqlite3")}
    if store != "sqlite":
        kept = {"kind": "postgres", "url": store}
    lines = "\n".join(f"{name} = {json.dumps(value)}" for name, value in kept.items())
    grpc, http = free_port(), free_port()
    config.write_text(CRATE.format(grpc=grpc, http=http, store=lines) + POOLS)
    process = start([str(CRATE_SERVER), "--config", str(config)], folder, {}, log)
    try:
        _wait_for_port(process, grpc, log)
        yield Place(f"127.0.0.1:{grpc}", (process.pid,))
    finally:
        trees.end(process)


SERVERS = {"ours": our_server, "crate": crate_server}


def versions() -> dict[str, str]:
    """What the brokers say of themselves."""
    redis_server = shutil.which("redis-server") or shutil.which("valkey-server")
    found = {}
    for name, program in (("redis", redis_server), ("postgresql", shutil.which("psql"))):
        if program is not None:
            run = subprocess.run(
                [program, "--version"], capture_output=True, text=True, check=False
            )
            found[name] = run.stdout.strip()
    return found
