"""A client that does what clients do beside an attack, in a process of its own, and is timed.

`python -m tests.campaigns._neighbour ADDRESS [CALLS]` submits and looks at tasks so many times, or
until its input ends, and prints below which 99 of 100 stayed, in seconds.
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any

import grpc

from cronoq_server._proto import task_pb2, tasks_pb2, tasks_pb2_grpc

PAUSE_S = 0.005


async def work(address: str, calls: int, ends: asyncio.Event) -> list[float]:
    """Seconds that each round of two calls took, so many rounds or until it is told to end."""
    took_s: list[float] = []
    async with grpc.aio.insecure_channel(address) as channel:
        tasks: Any = tasks_pb2_grpc.TasksStub(channel)
        for number in range(calls):
            if ends.is_set():
                break
            began = time.perf_counter()
            spec = task_pb2.TaskSpec(pool="quiet", key=f"neighbour-{number % 50}")
            response = await tasks.Submit(tasks_pb2.SubmitRequest(task=spec))
            ref = task_pb2.TaskRef(id=response.id)
            info = await tasks.Get(tasks_pb2.GetRequest(task=ref))
            assert info.id == response.id
            took_s.append(time.perf_counter() - began)
            await asyncio.sleep(PAUSE_S)
    return took_s


async def until_input_ends(address: str) -> list[float]:
    """Works until nobody listens any more."""
    ends = asyncio.Event()
    working = asyncio.create_task(work(address, sys.maxsize, ends))
    await asyncio.to_thread(sys.stdin.read)
    ends.set()
    return await working


def main(arguments: list[str]) -> int:
    """Works and prints."""
    address, *calls = arguments
    running = work(address, int(calls[0]), asyncio.Event()) if calls else until_input_ends(address)
    took_s = sorted(asyncio.run(running))
    print(f"{took_s[int(len(took_s) * 0.99)]:.6f}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
