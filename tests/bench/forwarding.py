"""What it costs to be asked through another shard's server: one call at a time, own and passed on.

Two servers with a memory store and a pool each, for which nobody works. The same call is made to
the server that owns the pool, and to the other one, which passes it on; the middles are compared.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import socket
import statistics
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from cronoq import Client, CronoqError
from tests.bench.environment import describe, print_result, quantile, save
from tests.bench.processes import SERVING, started

CONFIG = """
[server]
http_addr = "127.0.0.1:0"
log_level = "error"
[[pools]]
name = "a"
[[pools]]
name = "b"
[[shards]]
name = "one"
number = 1
pools = ["a"]
endpoint = "http://127.0.0.1:{one}"
[[shards]]
name = "two"
number = 2
pools = ["b"]
endpoint = "http://127.0.0.1:{two}"
"""


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on, all different.

    They are from below those that the system gives to outgoing connections, which would take them
    away again before the last of many servers has started.
    """
    with ExitStack() as stack:
        found: list[int] = []
        for port in range(20_000 + os.getpid() % 10_000, 32_000):
            if len(found) == count:
                break
            probe = stack.enter_context(socket.socket())
            with contextlib.suppress(OSError):
                probe.bind(("127.0.0.1", port))
                found.append(port)
    return found


async def measure(ports: Sequence[int], calls: int) -> dict[str, Any]:
    """Milliseconds of submits and gets, own and passed on, one after another."""
    async with Client(f"127.0.0.1:{ports[0]}") as client:
        while True:  # a peer is asked once it has answered a probe
            try:
                await client.submit("x", pool="b", call_deadline=0.5)
                break
            except CronoqError:
                continue
        took: dict[str, list[float]] = {}
        for _ in range(calls):
            for pool, word in (("a", "own"), ("b", "passed on")):
                begun = time.perf_counter()
                handle = await client.submit("x", b"x" * 200, pool=pool)
                middle = time.perf_counter()
                await client.get(handle.id)
                ended = time.perf_counter()
                took.setdefault(f"submit, {word}", []).append((middle - begun) * 1e3)
                took.setdefault(f"get, {word}", []).append((ended - middle) * 1e3)
    figures = {
        name: {"p50_ms": statistics.median(values), "p99_ms": quantile(sorted(values), 0.99)}
        for name, values in took.items()
    }
    added = {
        f"{call}, added": {
            "p50_ms": figures[f"{call}, passed on"]["p50_ms"] - figures[f"{call}, own"]["p50_ms"]
        }
        for call in ("submit", "get")
    }
    return {**figures, **added}


def main(arguments: Sequence[str]) -> int:
    """Measures and prints."""
    parser = argparse.ArgumentParser(prog="bench forwarding")
    parser.add_argument("--calls", type=int, default=1000)
    parser.add_argument("--json", action="store_true", help="for programs")
    parser.add_argument("--save", action="store_true", help="keep the result beside the docs")
    wanted = parser.parse_args(arguments)
    ports = free_ports(2)
    with tempfile.TemporaryDirectory(prefix="cronoq-bench-") as folder, ExitStack() as stack:
        file = Path(folder, "cronoq.toml")
        file.write_text(CONFIG.format(one=ports[0], two=ports[1]))
        for name, port in zip(("one", "two"), ports, strict=True):
            module = ("cronoq_server", "--config", str(file), "--shard", name)
            stack.enter_context(started((*module, "--grpc-addr", f"127.0.0.1:{port}"), SERVING))
        found = asyncio.run(measure(ports, wanted.calls))
    result = {**describe("forwarding"), "calls": wanted.calls, "figures": found}
    rows = [("call", "p50 ms", "p99 ms")]
    rows += [
        (name, f"{values['p50_ms']:.2f}", f"{values.get('p99_ms', float('nan')):.2f}")
        for name, values in found.items()
    ]
    print_result(result, rows, as_json=wanted.json)
    if wanted.save:
        save(result, "forwarding")
    return 0
