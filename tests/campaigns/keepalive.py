"""Leaves many workers idle for a quarter of an hour: none of them may lose its connection.

`./justw campaign keepalive [--minutes N] [--workers N]` starts a server with its defaults. Workers
with the SDKs' defaults do nothing but ping and beat; beside them one pings every second, which the
server takes for misuse: it is told so and comes back, and it alone.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from typing import Any

import grpc

from cronoq_server._proto import workers_pb2, workers_pb2_grpc
from tests.campaigns.fuzz import server_process

SDK_PING_MS = 20_000
SDK_TIMEOUT_MS = 10_000
HASTY_PING_MS = 1000


def options(ping_ms: int) -> list[tuple[str, int]]:
    """Of a connection of its own that pings so often, calls or none."""
    return [
        ("grpc.keepalive_time_ms", ping_ms),
        ("grpc.keepalive_timeout_ms", SDK_TIMEOUT_MS),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.use_local_subchannel_pool", 1),
    ]


async def idle(address: str, ping_ms: int, lost: list[str]) -> None:
    """Registers, beats, and opens its stream again whenever it breaks; breaks are told."""
    async with grpc.aio.insecure_channel(address, options=options(ping_ms)) as channel:
        stub: Any = workers_pb2_grpc.WorkersStub(channel)
        while True:
            stream = stub.Work(wait_for_ready=True)
            try:
                register = workers_pb2.Register(slots=1, protocol_version=4)
                await stream.write(workers_pb2.WorkerMessage(register=register))
                ttl_s = (await stream.read()).registered.lease_ttl_s
                await _beat(stream, ttl_s / 3)
            except grpc.aio.AioRpcError as error:
                lost.append(error.details() or error.code().name)


async def _beat(stream: Any, every_s: float) -> None:
    reading = asyncio.create_task(_read_all(stream))
    number = 0
    while not reading.done():
        number += 1
        beat = workers_pb2.Heartbeats(number=number)
        await stream.write(workers_pb2.WorkerMessage(heartbeats=beat))
        await asyncio.wait({reading}, timeout=every_s)
    await reading


async def _read_all(stream: Any) -> None:
    while await stream.read() is not grpc.aio.EOF:
        pass


async def run(workers: int, minutes: float) -> tuple[list[str], list[str]]:
    """What idle workers with margin, and the one without, were told when they lost their stream."""
    calm: list[str] = []
    hasty: list[str] = []
    async with server_process() as server:
        tasks = [asyncio.create_task(idle(server.grpc, SDK_PING_MS, calm)) for _ in range(workers)]
        tasks.append(asyncio.create_task(idle(server.grpc, HASTY_PING_MS, hasty)))
        done, _ = await asyncio.wait(
            tasks, timeout=minutes * 60, return_when=asyncio.FIRST_EXCEPTION
        )
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for task in done:
            task.result()
    return calm, hasty


def main(arguments: Sequence[str]) -> int:
    """Runs the campaign and returns 1 if a worker with margin lost its connection."""
    parser = argparse.ArgumentParser(prog="keepalive", description=__doc__)
    parser.add_argument("--workers", type=int, default=200)
    parser.add_argument("--minutes", type=float, default=15)
    given = parser.parse_args(arguments)
    calm, hasty = asyncio.run(run(given.workers, given.minutes))
    print(f"{given.workers} workers with margin lost {len(calm)} streams: {sorted(set(calm))}")
    print(f"the one without lost {len(hasty)}: {sorted(set(hasty))}")
    told = given.minutes < 1 or any("too_many_pings" in text.lower() for text in hasty)
    return int(bool(calm) or not told)
