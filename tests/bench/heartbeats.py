"""How late the answer to a heartbeat is while many clients send payloads at the size limit.

The clients are in processes of their own. The worker speaks the wire protocol and sends a numbered
heartbeat every 50 ms; the receipt that names it ends its time.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import grpc

from cronoq._proto import task_pb2, tasks_pb2, tasks_pb2_grpc, workers_pb2, workers_pb2_grpc
from tests.bench.environment import ROOT, describe, print_result, save
from tests.bench.processes import running

CLIENTS = 50
PROCESSES = 2
BEAT_EVERY_S = 0.05
PAYLOAD_BYTES = 4 * 1024 * 1024 - 64 * 1024 - 256
"""As large as a task's payload may be by default, but for its own few other bytes."""

BOUND_MS = 250.0
OPTIONS = (("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1))


async def _client(address: str, payload: bytes, sent: list[int]) -> None:
    """Submits one large task after the other, and cancels each so that the queue stays short."""
    async with grpc.aio.insecure_channel(address, options=OPTIONS) as channel:
        stub: Any = tasks_pb2_grpc.TasksStub(channel)
        spec = task_pb2.TaskSpec(pool="quiet", payload=payload)
        while True:
            response = await stub.Submit(tasks_pb2.SubmitRequest(task=spec))
            sent.append(response.id)
            ref = task_pb2.TaskRef(id=response.id)
            await stub.Cancel(tasks_pb2.CancelRequest(task=ref))


async def _flood(address: str, clients: int) -> None:
    """Sends from so many clients until the input ends, and prints how many tasks went through."""
    payload, sent = bytes(PAYLOAD_BYTES), list[int]()
    working = [asyncio.create_task(_client(address, payload, sent)) for _ in range(clients)]
    ended = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
    await asyncio.wait((*working, ended), return_when=asyncio.FIRST_COMPLETED)
    for task in working:
        task.cancel()
    for result in await asyncio.gather(*working, return_exceptions=True):
        if isinstance(result, Exception):
            raise result
    print(len(sent))


async def _beats(address: str, seconds: float) -> list[float]:
    """Milliseconds from each heartbeat to the receipt that names it."""
    async with grpc.aio.insecure_channel(address, options=OPTIONS) as channel:
        stub: Any = workers_pb2_grpc.WorkersStub(channel)
        stream = stub.Work()
        register = workers_pb2.Register(pool="default", slots=1, protocol_version=4)
        await stream.write(workers_pb2.WorkerMessage(register=register))
        await stream.read()
        written: dict[int, float] = {}
        took: list[float] = []

        async def read() -> None:
            while (message := await stream.read()) is not grpc.aio.EOF:
                now = time.perf_counter()
                for number in [one for one in written if one <= message.receipt.heartbeats]:
                    took.append((now - written.pop(number)) * 1e3)

        reading = asyncio.create_task(read())
        for number in range(1, int(seconds / BEAT_EVERY_S) + 1):
            written[number] = time.perf_counter()
            beat = workers_pb2.Heartbeats(number=number)
            await stream.write(workers_pb2.WorkerMessage(heartbeats=beat))
            await asyncio.sleep(BEAT_EVERY_S)
        await stream.done_writing()
        await reading
        return took


@contextlib.contextmanager
def _flooding(address: str, clients: int) -> Iterator[list[int]]:
    """Clients at work; afterwards the list holds how many tasks each process got through."""
    command = (sys.executable, "-m", "tests.bench.heartbeats", "--flood", address)
    pipe = subprocess.PIPE
    processes = [
        subprocess.Popen(
            (*command, "--clients", str(clients // PROCESSES)), cwd=ROOT, stdin=pipe, stdout=pipe
        )
        for _ in range(PROCESSES)
    ]
    sent: list[int] = []
    try:
        yield sent
    finally:
        for process in processes:
            output, _ = process.communicate()
            sent.append(int(output or 0))


def measure(store: str, clients: int, seconds: float) -> dict[str, float]:
    """Returns quantiles without and with the clients, and what these got through."""
    with (
        tempfile.TemporaryDirectory(prefix="cronoq-beats-") as folder,
        running(Path(folder), store, 0, 0) as system,
    ):
        calm = sorted(asyncio.run(_beats(system.address, seconds / 4)))
        with _flooding(system.address, clients) as sent:
            busy = sorted(asyncio.run(_beats(system.address, seconds)))
    return {
        "calm_p99_ms": round(_quantile(calm, 0.99), 1),
        "p50_ms": round(_quantile(busy, 0.5), 1),
        "p99_ms": round(_quantile(busy, 0.99), 1),
        "most_ms": round(busy[-1], 1),
        "mb_per_s": round(sum(sent) * PAYLOAD_BYTES / seconds / 1e6, 1),
    }


def _quantile(values: Sequence[float], share: float) -> float:
    return values[min(len(values) - 1, int(len(values) * share))]


def main(arguments: Sequence[str]) -> int:
    """Measures and prints; returns 1 if heartbeats are answered too late."""
    parser = argparse.ArgumentParser(prog="bench heartbeats", description=__doc__)
    parser.add_argument("--clients", type=int, default=CLIENTS)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--store", default="sqlite")
    parser.add_argument("--save", action="store_true", help="keep the result for docs/")
    parser.add_argument("--json", action="store_true", help="JSON, also on a terminal")
    parser.add_argument("--flood", metavar="ADDRESS", help="be one of the processes of clients")
    given = parser.parse_args(arguments)
    if given.flood is not None:
        asyncio.run(_flood(given.flood, given.clients))
        return 0
    result = describe("heartbeats") | {"clients": given.clients, "store": given.store}
    result |= measure(given.store, given.clients, given.seconds)
    rows = [(name, str(value)) for name, value in result.items()]
    print_result(result, rows, as_json=given.json)
    if given.save:
        save(result, "heartbeats")
    return int(result["p99_ms"] > BOUND_MS)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
