"""What many connected workers cost a server while there is nothing to do.

The workers speak the wire protocol and nothing more, each on a connection of its own: a thousand
processes would measure themselves.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc

from cronoq._proto import workers_pb2, workers_pb2_grpc
from tests.bench.environment import describe, print_result, save
from tests.bench.processes import System, cpu_seconds, resident_mb, running

SLOTS = 10
BEATS_PER_LEASE = 3
CONNECTING_AT_ONCE = 50
OWN_CONNECTION = (("grpc.use_local_subchannel_pool", 1),)


async def _worker(address: str, number: int, registered: asyncio.Semaphore) -> None:
    """Registers and sends heartbeats until it is cancelled."""
    async with grpc.aio.insecure_channel(address, options=OWN_CONNECTION) as channel:
        stub: Any = workers_pb2_grpc.WorkersStub(channel)
        stream = stub.Work()
        register = workers_pb2.Register(
            pool="default", slots=SLOTS, protocol_version=4, worker_name=f"idle-{number}"
        )
        await stream.write(workers_pb2.WorkerMessage(register=register))
        answer: workers_pb2.ServerMessage = await stream.read()
        registered.release()
        reading = asyncio.create_task(_read_all(stream))
        beats = 0
        while not reading.done():
            await asyncio.sleep(answer.registered.lease_ttl_s / BEATS_PER_LEASE)
            beats += 1
            beat = workers_pb2.Heartbeats(number=beats)
            await stream.write(workers_pb2.WorkerMessage(heartbeats=beat))
        raise RuntimeError(f"the server ended the stream of worker {number}")


async def _read_all(stream: Any) -> None:
    while await stream.read() is not grpc.aio.EOF:
        pass


async def measure(system: System, count: int, seconds: float) -> dict[str, float]:
    """Connects so many workers, lets them be, and returns what the server spends on them."""
    registered = asyncio.Semaphore(0)
    before = resident_mb(system.server)
    begun = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        workers = []
        for number in range(count):
            if number >= CONNECTING_AT_ONCE:
                await registered.acquire()
            workers.append(group.create_task(_worker(system.address, number, registered)))
        for _ in range(min(count, CONNECTING_AT_ONCE)):
            await registered.acquire()
        connected = time.perf_counter() - begun
        spent, begun = cpu_seconds(system.server), time.perf_counter()
        await asyncio.sleep(seconds)
        share = (cpu_seconds(system.server) - spent) / (time.perf_counter() - begun)
        grown = resident_mb(system.server) - before
        for worker in workers:
            worker.cancel()
    return {
        "connected_in_s": round(connected, 2),
        "server_core_percent": round(100 * share, 1),
        "kb_per_worker": round(grown / count * 1e3, 1),
    }


def main(arguments: Sequence[str]) -> int:
    """Runs the benchmark and prints what it found."""
    parser = argparse.ArgumentParser(prog="./justw bench idle", description=__doc__)
    parser.add_argument("--workers", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=30.0, help="at least a lease or so")
    parser.add_argument("--save", action="store_true", help="for the documentation")
    parser.add_argument("--json", action="store_true", help="JSON, also on a terminal")
    options = parser.parse_args(arguments)
    result: dict[str, Any] = {
        **describe("idle"),
        "workers": options.workers,
        "slots": SLOTS,
        "seconds": options.seconds,
    }
    with (
        tempfile.TemporaryDirectory(prefix="cronoq-bench-") as folder,
        running(Path(folder), "memory", 0, SLOTS) as system,
    ):
        result |= asyncio.run(measure(system, options.workers, options.seconds))
    if options.save:
        save(result, "idle")
    rows = [(name, str(value)) for name, value in result.items()]
    print_result(result, rows, as_json=options.json)
    return 0
