"""What the gateway does: single submits and batches over kept connections, acknowledged durably.

The load is made by this process with plain sockets, so that the figures are the server's and not
those of an HTTP library. Nobody works for the tasks: what is measured is admission.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import statistics
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from tests.bench.environment import describe, print_result, quantile, save
from tests.bench.processes import CONFIG, SERVING, cpu_seconds, resident_mb, started

WARM_UP = 200


class Load:
    """So many connections that ask one thing over and over."""

    def __init__(self, port: int, path: str, body: dict[str, Any]) -> None:
        content = json.dumps(body).encode()
        head = (
            f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
            f"content-length: {len(content)}\r\n\r\n"
        )
        self._request = head.encode() + content
        self._port = port
        self._left = 0
        self.took: list[float] = []

    async def run(self, connections: int, requests: int) -> float:
        """Sends so many requests over all connections and returns the seconds that it took."""
        self._left = requests
        self.took.clear()
        begun = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for _ in range(connections):
                group.create_task(self._connection())
        return time.perf_counter() - begun

    async def _connection(self) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        while self._left > 0:
            self._left -= 1
            begun = time.perf_counter()
            writer.write(self._request)
            await self._answer(reader)
            self.took.append((time.perf_counter() - begun) * 1e3)
        writer.close()

    async def _answer(self, reader: asyncio.StreamReader) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        _, _, length = head.partition(b"content-length: ")
        body = await reader.readexactly(int(length.partition(b"\r")[0]))
        if not head.startswith(b"HTTP/1.1 20"):
            raise RuntimeError(f"the server refused: {body!r}")


async def measure(options: argparse.Namespace, port: int, server: int) -> dict[str, Any]:
    """Both parts, one after the other."""
    task = {"kind": "noop", "payload": "x" * options.payload, "pool": "quiet"}
    batch = {"tasks": [task] * options.batch, "atomic": False}
    result: dict[str, Any] = {}
    for name, path, body, count in (
        ("single", "/v1/tasks", task, options.tasks),
        ("batch", "/v1/batches", batch, options.tasks * 2 // options.batch),
    ):
        load = Load(port, path, body)
        await load.run(options.connections, min(WARM_UP, count))
        rates = []
        before = cpu_seconds(server)
        for _ in range(options.rounds):
            rates.append(round(count / await load.run(options.connections, count)))
        spent = cpu_seconds(server) - before
        load.took.sort()
        result[f"{name}_requests_per_s"] = round(statistics.median(rates))
        result[f"{name}_requests_per_s_by_round"] = rates
        result[f"{name}_p50_ms"] = round(quantile(load.took, 0.5), 3)
        result[f"{name}_p99_ms"] = round(quantile(load.took, 0.99), 3)
        result[f"{name}_server_cpu_ms_per_request"] = round(
            spent * 1e3 / (count * options.rounds), 3
        )
    result["batch_tasks_per_s"] = result["batch_requests_per_s"] * options.batch
    result["rss_mb"] = round(resident_mb(server), 1)
    return result


def free_port() -> int:
    """A port that nobody listens on."""
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def main(arguments: Sequence[str]) -> int:
    """Runs the benchmark and prints what it found."""
    parser = argparse.ArgumentParser(prog="./justw bench http", description=__doc__)
    parser.add_argument("--store", default="memory", help="memory, sqlite, or as the server has it")
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--tasks", type=int, default=10_000, help="single submits of a round")
    parser.add_argument("--batch", type=int, default=100, help="tasks of a batch")
    parser.add_argument("--payload", type=int, default=200, help="characters")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--save", action="store_true", help="for the documentation")
    parser.add_argument("--json", action="store_true", help="JSON, also on a terminal")
    options = parser.parse_args(arguments)
    names = ("store", "connections", "tasks", "batch", "payload", "rounds")
    result = {**describe("http"), **{name: getattr(options, name) for name in names}}
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="cronoq-bench-") as folder:
        config = Path(folder) / "cronoq.toml"
        config.write_text(CONFIG)
        store = options.store
        if store == "sqlite":
            store = f"sqlite:{os.path.join(folder, 'store.sqlite3')}"
        module = ("cronoq_server", "--config", str(config), "--store", store)
        with started((*module, "--http-addr", f"127.0.0.1:{port}"), SERVING) as (server, _):
            result |= asyncio.run(measure(options, port, server))
    if options.save:
        save(result, f"http-{options.store.partition(':')[0]}")
    rows = [(name, str(value)) for name, value in result.items()]
    print_result(result, rows, as_json=options.json)
    return 0
