"""What the whole system does: a server, Python workers and a Python client, in processes.

Three parts, one after the other on the same server:

    tasks     handed in by submit_many, run by workers, every status and output delivered back and
              checked: tasks per second, from the first submission to the last result; the median of
              a few rounds
    idle      one task at a time: how long submit takes, and until its handler starts
    submits   single submit calls by many callers at once, for a pool that nobody works for, and
              once more for one with workers

With --limited the first part twice, in turns: as it is, and in a pool whose tenants share by
weight, with a semaphore and a token bucket that every task takes from. With --sweep the first part
alone, for one batch size after another; with --by-backlog the first part beside ever more tasks
that wait, up to --pending. Both are saved for the documentation, with a picture. `--store postgres`
starts a database of its own, with default fsync.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import json
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cronoq
from cronoq import TaskStatus
from tests.bench import picture
from tests.bench.environment import RESULTS, describe, print_result, quantile, save
from tests.bench.processes import CALLS, SEATS, System, cpu_seconds, resident_mb, running
from tests.bench.worker import MARK_BYTES, mark, stamp
from tests.stores.pg import running_cluster

STORES = ("memory", "sqlite", "postgres")
SHARE_TASKS = 5_000
"""Tasks of one submit_many with its wait_many."""
SHARES_AT_ONCE = 3
IDLE_PAUSE_S = 0.005
CALLERS = 64
SUBMITS = 20_000
WARM_UP_TASKS = 2_000
SWEEP_SIZES = (1, 3, 10, 30, 100, 300, 1000)
SWEEP_TASKS_PER_SIZE = 300
SWEEP_TASKS_MIN = 3_000
SWEEP = "throughput-by-batch"
BACKLOGS = (1_000, 10_000, 100_000, 1_000_000)
BY_BACKLOG = "cost-by-backlog"
LIMITED_POOL = "limited"
LIMITS = {SEATS: 1, CALLS: 1}
TENANTS = 20


@dataclasses.dataclass(frozen=True, slots=True)
class Options:
    """What to measure with."""

    store: str
    tasks: int
    workers: int
    payload: int
    slots: int
    idle_tasks: int
    pending: int
    rounds: int


def _specs(
    first: int, count: int, payload_bytes: int, pool: str = "default"
) -> list[cronoq.TaskSpec]:
    """Tasks that can be told apart by the first bytes of their payload."""
    rest = os.urandom(payload_bytes - MARK_BYTES)
    limited = pool == LIMITED_POOL
    return [
        cronoq.TaskSpec(
            mark.__name__,
            index.to_bytes(MARK_BYTES, "big") + rest,
            pool=pool,
            tenant=f"tenant-{index % TENANTS}" if limited else "",
            resources=LIMITS if limited else None,
        )
        for index in range(first, first + count)
    ]


async def _share(
    client: cronoq.Client, first: int, count: int, payload_bytes: int, pool: str
) -> None:
    """Hands tasks in, waits for them, and holds each result against its task."""
    specs = _specs(first, count, payload_bytes, pool)
    handles = []
    for answer in await client.submit_many(specs):
        if not isinstance(answer, cronoq.TaskHandle):
            raise answer
        handles.append(answer)
    for spec, result in zip(specs, await client.wait_many(handles), strict=True):
        if result.status is not TaskStatus.SUCCEEDED or result.output != spec.payload[:MARK_BYTES]:
            raise RuntimeError(f"task {result.id} came back as {result}")


async def run_tasks(
    client: cronoq.Client, count: int, payload_bytes: int, pool: str = "default"
) -> float:
    """Runs so many tasks through and returns the seconds that it took."""
    gate = asyncio.Semaphore(SHARES_AT_ONCE)

    async def share(first: int) -> None:
        async with gate:
            await _share(client, first, min(SHARE_TASKS, count - first), payload_bytes, pool)

    begun = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for first in range(0, count, SHARE_TASKS):
            group.create_task(share(first))
    return time.perf_counter() - begun


async def fill_up(system: System, start: int, end: int, payload_bytes: int) -> None:
    """Hands in tasks that stay, since nobody works for their pool."""
    async with cronoq.Client(system.address) as client:
        for first in range(start, end, SHARE_TASKS):
            count = min(SHARE_TASKS, end - first)
            await client.submit_many(_specs(first, count, payload_bytes, "quiet"))


async def measure_tasks(system: System, options: Options) -> dict[str, Any]:
    """The first part: throughput, and what each process spends on it."""
    processes = {"server": (system.server,), "workers": system.workers, "client": (os.getpid(),)}
    rates = []
    async with cronoq.Client(system.address) as client:
        await run_tasks(client, WARM_UP_TASKS, options.payload)
        before = {name: cpu_seconds(*pids) for name, pids in processes.items()}
        for _ in range(options.rounds):
            seconds = await run_tasks(client, options.tasks, options.payload)
            rates.append(round(options.tasks / seconds))
            if len(rates) == 1:
                memory = resident_mb(system.server)
    thousands = options.tasks * options.rounds / 1000
    cpu = {
        f"{name}_cpu_s_per_1000": round((cpu_seconds(*pids) - before[name]) / thousands, 4)
        for name, pids in processes.items()
    }
    return {
        "tasks_per_s": round(statistics.median(rates)),
        "tasks_per_s_by_round": rates,
        **cpu,
        "rss_mb": round(memory, 1),
    }


async def measure_idle(system: System, count: int) -> dict[str, float]:
    """The second part: one task at a time."""
    submits, starts = [], []
    async with cronoq.Client(system.address) as client:
        for _ in range(count):
            await asyncio.sleep(IDLE_PAUSE_S)
            begun = time.monotonic_ns()
            handle = await client.submit(stamp.__name__)
            submits.append((time.monotonic_ns() - begun) / 1e6)
            starts.append((await handle.result(int) - begun) / 1e6)
    return {**_percentiles("submit", submits), **_percentiles("start_latency", starts)}


async def measure_submits(system: System, pool: str, options: Options) -> dict[str, float]:
    """The third part: many callers that submit one task after the other."""
    count = min(SUBMITS, options.tasks)
    left = iter(_specs(0, count, options.payload, pool))
    took: list[float] = []

    async def call(client: cronoq.Client) -> None:
        for spec in left:
            begun = time.perf_counter()
            await client.submit(spec)
            took.append((time.perf_counter() - begun) * 1e3)

    async with cronoq.Client(system.address) as client:
        begun = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for _ in range(CALLERS):
                group.create_task(call(client))
        seconds = time.perf_counter() - begun
    return {"submits_per_s": round(count / seconds), **_percentiles("call", took)}


def _percentiles(name: str, milliseconds: list[float]) -> dict[str, float]:
    milliseconds.sort()
    return {
        f"{name}_p50_ms": round(quantile(milliseconds, 0.5), 3),
        f"{name}_p99_ms": round(quantile(milliseconds, 0.99), 3),
    }


async def measure(system: System, options: Options) -> dict[str, Any]:
    """All three parts."""
    await fill_up(system, 0, options.pending, options.payload)
    tasks = await measure_tasks(system, options)
    idle = await measure_idle(system, options.idle_tasks)
    quiet = await measure_submits(system, "quiet", options)
    served = await measure_submits(system, "default", options)
    return {
        **tasks,
        **idle,
        **quiet,
        "submits_while_served_per_s": served["submits_per_s"],
    }


async def measure_limited(plain: System, limited: System, options: Options) -> dict[str, Any]:
    """The first part with and without limits, round by round on servers of their own."""
    sides = {"": (plain, "default"), "limited_": (limited, LIMITED_POOL)}
    rates: dict[str, list[float]] = {side: [] for side in sides}
    spent: dict[str, list[float]] = {side: [] for side in sides}
    for count in (WARM_UP_TASKS, *[options.tasks] * options.rounds):
        for side, (system, pool) in sides.items():
            before = cpu_seconds(system.server)
            async with cronoq.Client(system.address) as client:
                seconds = await run_tasks(client, count, options.payload, pool)
            rates[side].append(count / seconds)
            spent[side].append((cpu_seconds(system.server) - before) / count * 1e6)
    found: dict[str, Any] = {}
    for side in sides:
        found[f"{side}tasks_per_s"] = round(statistics.median(rates[side][1:]))
        found[f"{side}server_us_per_task"] = round(statistics.median(spent[side][1:]), 1)
    ratio = found["limited_tasks_per_s"] / found["tasks_per_s"]
    return found | {"limited_to_plain": round(ratio, 2)}


async def sweep(system: System, options: Options) -> list[dict[str, int]]:
    """The first part for one batch size after the other."""
    rows = []
    for size in SWEEP_SIZES:
        count = min(options.tasks, max(SWEEP_TASKS_MIN, SWEEP_TASKS_PER_SIZE * size))
        async with cronoq.Client(system.address, max_tasks_per_batch=size) as client:
            await run_tasks(client, size, options.payload)
            rates = [
                count / await run_tasks(client, count, options.payload)
                for _ in range(options.rounds)
            ]
        rows.append({"batch": size, "tasks": count, "tasks_per_s": round(statistics.median(rates))})
    return rows


async def by_backlog(system: System, options: Options) -> list[dict[str, float]]:
    """The first part beside one backlog after the other."""
    rows: list[dict[str, float]] = []
    there = 0
    for backlog in BACKLOGS:
        if backlog > options.pending:
            break
        await fill_up(system, there, backlog, options.payload)
        there = backlog
        found = await measure_tasks(system, options)
        row = {"pending": backlog, "tasks_per_s": found["tasks_per_s"]}
        rows.append(row | {"server_us_per_task": round(found["server_cpu_s_per_1000"] * 1000, 1)})
    return rows


def main(arguments: Sequence[str]) -> int:
    """Runs the benchmark and prints what it found."""
    parser = argparse.ArgumentParser(prog="./justw bench e2e", description=__doc__)
    parser.add_argument("--store", default="memory", choices=STORES)
    parser.add_argument("--tasks", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3, help="of that many tasks")
    parser.add_argument("--workers", type=int, default=2, help="worker processes")
    parser.add_argument("--slots", type=int, default=500, help="slots of each worker")
    parser.add_argument("--payload", type=int, default=200, help=f"bytes, at least {MARK_BYTES}")
    parser.add_argument("--idle-tasks", type=int, default=300, help="tasks on the idle system")
    parser.add_argument("--pending", type=int, default=0, help="tasks that wait all the while")
    parser.add_argument("--limited", action="store_true", help="beside fair share and limits")
    parser.add_argument("--sweep", action="store_true", help="by batch size, with a picture")
    parser.add_argument("--by-backlog", action="store_true", help="by backlog, with a picture")
    parser.add_argument("--save", action="store_true", help="for the documentation")
    parser.add_argument("--json", action="store_true", help="JSON, also on a terminal")
    given = parser.parse_args(arguments)
    if given.payload < MARK_BYTES:
        parser.error(f"--payload: at least {MARK_BYTES}")
    names = (field.name for field in dataclasses.fields(Options))
    options = Options(**{name: getattr(given, name) for name in names})
    kinds = (given.sweep, "sweep"), (given.by_backlog, "backlog"), (given.limited, "limited")
    name = " ".join(["e2e", *(kind for wanted, kind in kinds if wanted)])
    result = {**describe(name), **dataclasses.asdict(options)}
    with contextlib.ExitStack() as stack:
        store = options.store
        if store == "postgres":
            cluster = stack.enter_context(running_cluster(fsync=True))
            store = cluster.url
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="cronoq-bench-"))
        sizes = (options.workers, options.slots)
        system = stack.enter_context(running(Path(folder), store, *sizes))
        if given.limited:
            other = stack.enter_context(tempfile.TemporaryDirectory(prefix="cronoq-bench-"))
            if options.store == "postgres":
                store = stack.enter_context(running_cluster(fsync=True)).url
            limited = stack.enter_context(running(Path(other), store, *sizes, LIMITED_POOL))
            result |= asyncio.run(measure_limited(system, limited, options))
        elif given.sweep:
            result["rows"] = asyncio.run(sweep(system, options))
        elif given.by_backlog:
            result["rows"] = asyncio.run(by_backlog(system, options))
        else:
            result |= asyncio.run(measure(system, options))
    if given.sweep:
        save(result, f"{SWEEP}-{options.store}")
        draw_sweeps()
    elif given.by_backlog:
        save(result, f"{BY_BACKLOG}-{options.store}")
        draw_backlogs()
    elif given.limited and given.save:
        save(result, f"{LIMITED_POOL}-{options.store}")
    elif given.save:
        part = "-with-backlog" if options.pending else ""
        save(result, f"e2e-{options.store}{part}")
    print_result(result, _table(result), as_json=given.json)
    return 0


def saved(name: str) -> list[dict[str, Any]]:
    """The saved results of a kind, one for each store that has one."""
    paths = (RESULTS / f"{name}-{store}.json" for store in STORES)
    return [json.loads(path.read_text()) for path in paths if path.exists()]


def _line(result: dict[str, Any], place: str, value: str) -> picture.Line:
    rows = result["rows"]
    return picture.Line(result["store"], [row[place] for row in rows], [row[value] for row in rows])


def draw_sweeps() -> None:
    """Draws what was saved of throughput by batch size."""
    lines = [_line(result, "batch", "tasks_per_s") for result in saved(SWEEP)]
    axes = picture.Axes("tasks in one request", "tasks/s, submitted to result", True, lines)
    picture.draw("Throughput by batch size", [axes], RESULTS / f"{SWEEP}.png")


def draw_backlogs() -> None:
    """Draws what was saved of cost by backlog."""
    results = saved(BY_BACKLOG)
    parts = [
        picture.Axes(
            "other tasks that wait",
            text,
            True,
            [_line(result, "pending", value) for result in results],
        )
        for value, text in (
            ("tasks_per_s", "tasks/s, submitted to result"),
            ("server_us_per_task", "server's processor time for a task, µs"),
        )
    ]
    picture.draw("Cost by backlog", parts, RESULTS / f"{BY_BACKLOG}.png")


def _table(result: dict[str, Any]) -> list[tuple[str, ...]]:
    if "rows" not in result:
        return [(name, str(value)) for name, value in result.items()]
    rows = result["rows"]
    return [tuple(rows[0]), *(tuple(map(str, row.values())) for row in rows)]
