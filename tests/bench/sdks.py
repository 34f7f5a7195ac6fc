"""What each SDK's worker manages: one process of 64 slots, on a server with SQLite.

    ./justw bench sdks [--tasks N] [--lang L] [--json]

Tasks that do nothing wait already; then the worker comes. Measured are the seconds until all have
succeeded, and what the server and the worker used of a processor for each of them: where the
server's part is most of it, the server is the limit and not the SDK.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc
from cronoq_conformance.cluster import Cluster
from cronoq_conformance.languages import ROOT, Language, build, read_languages
from cronoq_conformance.participant import Participant
from cronoq_conformance.run import environment

from cronoq_server._proto import admin_pb2_grpc, task_pb2, tasks_pb2, tasks_pb2_grpc
from tests.bench.environment import describe
from tests.bench.processes import cpu_seconds

TASKS = 40_000
WARM_UP_TASKS = 2_000
SLOTS = 64
PER_REQUEST = 1_000
POLL_S = 0.02


@dataclasses.dataclass(frozen=True, slots=True)
class Result:
    """What one SDK managed."""

    language: str
    tasks_per_s: float
    server_us_per_task: float
    worker_us_per_task: float


async def submit(stub: Any, count: int) -> None:
    """Submits so many tasks that do nothing."""
    for first in range(0, count, PER_REQUEST):
        request = tasks_pb2.SubmitManyRequest()
        for _ in range(min(PER_REQUEST, count - first)):
            request.tasks.add(kind="nothing", payload=b"1", content_type="application/json")
        await stub.SubmitMany(request)


async def all_succeeded(stub: Any, count: int) -> None:
    """Returns when so many tasks have succeeded."""
    while True:
        if (await stub.Snapshot(task_pb2.Empty())).totals.succeeded >= count:
            return
        await asyncio.sleep(POLL_S)


async def measure(language: str, command: Sequence[str], tasks: int) -> Result:
    """Measures one SDK."""
    worker = Participant(command, ROOT, environment())
    with tempfile.TemporaryDirectory(prefix="cronoq-bench-") as folder:
        cluster = Cluster(Path(folder), store="sqlite")
        await cluster.start()
        try:
            async with grpc.aio.insecure_channel(cluster.endpoint) as channel:
                submits = tasks_pb2_grpc.TasksStub(channel)
                admin = admin_pb2_grpc.AdminStub(channel)
                await submit(submits, WARM_UP_TASKS)
                await worker.start()
                start = {"endpoint": cluster.endpoint, "slots": SLOTS}
                does = {"act": "complete", "output": 1, "quiet": True}
                await worker.send("start_worker", {"options": start, "default_handler": does})
                await all_succeeded(admin, WARM_UP_TASKS)
                await worker.send("stop_worker", {})
                await submit(submits, tasks)
                pids = cluster.replicas[0].pid, worker.pid
                before = [cpu_seconds(pid) for pid in pids]
                begun = time.perf_counter()
                await worker.send("start_worker", {"options": start, "default_handler": does})
                await all_succeeded(admin, WARM_UP_TASKS + tasks)
                took = time.perf_counter() - begun
                used = [cpu_seconds(pid) - at for pid, at in zip(pids, before, strict=True)]
        finally:
            await worker.close()
            await cluster.stop()
    server_us, worker_us = (1e6 * each / tasks for each in used)
    return Result(language, tasks / took, server_us, worker_us)


async def run(languages: Sequence[Language], tasks: int, as_json: bool) -> None:
    """Measures each SDK and prints the results."""
    results = []
    for language, command in (await build(languages)).items():
        results.append(await measure(language, command, tasks))
        if not as_json:
            each = results[-1]
            print(
                f"{each.language:<12} {each.tasks_per_s:>8,.0f} tasks/s   processor per task: "
                f"server {each.server_us_per_task:.0f} µs, worker {each.worker_us_per_task:.0f} µs",
                flush=True,
            )
    if as_json:
        found = [dataclasses.asdict(result) for result in results]
        print(json.dumps({**describe("sdks"), "results": found}, indent=1))


def main(arguments: Sequence[str]) -> int:
    """Runs the benchmark and returns the exit code."""
    parser = argparse.ArgumentParser(prog="./justw bench sdks", description=__doc__)
    parser.add_argument("--tasks", type=int, default=TASKS)
    parser.add_argument("--lang", action="append", help="only this language; may come twice")
    parser.add_argument("--json", action="store_true")
    said = parser.parse_args(arguments)
    languages = [each for each in read_languages() if not said.lang or each.name in said.lang]
    asyncio.run(run(languages, said.tasks, said.json))
    return 0 if languages else 2
