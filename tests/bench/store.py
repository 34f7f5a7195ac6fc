"""What a store does alone: lives (submit and dispatch, then end) per second, recovery, and churn.

Every batch submits so many tasks, dispatched at once, and ends those of the batch before, with
their outputs. Only commits are timed. `--churn` goes on for so many lives with a retention of a few
minutes, and shows whether throughput and size stay flat: the clock that instants are taken from is
moved along, so many seconds for so many lives, and pruning keeps up with it. `--layouts` compares
ways to lay out PostgreSQL tables. How long a new leader takes is measured by `recovery`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg

from cronoq_server.engine.ids import pack
from cronoq_server.engine.model import SECOND, Status, TaskSpec
from cronoq_server.engine.mutations import (
    Mutation,
    OutputStored,
    StatusChanged,
    TaskInserted,
    TasksPruned,
)
from cronoq_server.stores import StoreSettings, open_store
from cronoq_server.stores.base import Batch, Leadership, Store, TimeBase
from cronoq_server.stores.pg_session import PostgresSettings
from cronoq_server.stores.sqlite_file import SqliteSettings
from tests.bench import picture
from tests.bench.environment import RESULTS, describe, print_result, save
from tests.bench.layouts import LAYOUTS, measure
from tests.bench.processes import TICKS_PER_S
from tests.stores.pg import running_cluster

PAYLOAD = os.urandom(200)
OUTPUT = b"done" * 5
BATCH = 500
PRUNE_LIMIT = 1000
REPORTS = 20
VIRTUAL_RATE = 2000
"""Lives per second of the clock that is moved along in churn."""

MINUTE = 60 * SECOND


class Bench:
    """A store, and where its log and its ids have come to.

    Attributes:
        commit_s: Seconds spent in commits.
        slowest_s: Seconds that the slowest of them took.
    """

    def __init__(
        self, store: Store, leadership: Leadership, place: str, server: int | None = None
    ) -> None:
        """Takes a store that leads.

        Args:
            store: What is measured.
            leadership: Its term.
            place: Its file or address.
            server: Process of the database server, if there is one.
        """
        self._server = server
        self.store = store
        self.place = place
        self.commit_s = self.slowest_s = 0.0
        self._leadership = leadership
        self._position = leadership.position
        self._next = max(leadership.high_water + 1, pack(None, leadership.epoch, 1))
        self._running: list[int] = []
        self._clock = 0

    async def write(
        self, tasks: int, *, end: bool = True, prune: TasksPruned | None = None
    ) -> None:
        """Commits one batch: new tasks, the ends of those before, some pruning."""
        now = self._clock = max(time.time_ns(), self._clock + 1)
        ids = range(self._next, self._next + tasks)
        self._next += tasks
        mutations: list[Mutation] = []
        for task_id in ids:
            spec = TaskSpec("default", "bench", PAYLOAD, key=f"key-{task_id}")
            mutations.append(TaskInserted(task_id, now, spec))
            if end:
                mutations.append(StatusChanged(task_id, Status.RUNNING, 1, 3, now, now))
        for task_id in self._running:
            mutations.append(OutputStored(task_id, OUTPUT, "application/json"))
            mutations.append(
                StatusChanged(task_id, Status.SUCCEEDED, 1, 3, now, now, has_output=True)
            )
        if prune is not None:
            mutations.append(prune)
        self._running = list(ids) if end else []
        batch = Batch(self._position + 1)
        batch.add(mutations)
        began = time.perf_counter()
        await self.store.commit(self._leadership, batch)
        took = time.perf_counter() - began
        self.commit_s += took
        self.slowest_s = max(self.slowest_s, took)
        self._position += 1

    async def lives(self, count: int, size: int) -> dict[str, Any]:
        """So many lives in batches of this size."""
        self.commit_s, processor = 0.0, time.process_time()
        for _ in range(count // size):
            await self.write(size)
        used = time.process_time() - processor
        return {
            "batch": size,
            "lives_per_s": round(count // size * size / self.commit_s),
            "processor_us_per_life": round(used / count * 1e6, 1),
        }

    async def churn(self, count: int, minutes: float, most_s: float) -> list[dict[str, Any]]:
        """So many lives, or as many as fit; a report for every twentieth of them."""
        reports: list[dict[str, Any]] = []
        began = time.monotonic()
        for _ in range(REPORTS):
            batches = count // REPORTS // BATCH
            self.commit_s = self.slowest_s = 0.0
            server, own = self._server_s(), time.process_time()
            for number in range(batches):
                self._clock += BATCH * SECOND // VIRTUAL_RATE
                before = self._clock - round(minutes * MINUTE)
                # Every other batch prunes twice as much as a batch brings, and a little more.
                await self.write(
                    BATCH, prune=TasksPruned(before, PRUNE_LIMIT + 50) if number % 2 else None
                )
            lives = batches * BATCH
            reports.append(
                {
                    "lives_per_s": round(lives / self.commit_s),
                    "slowest_commit_ms": round(self.slowest_s * 1e3),
                    "own_us_per_life": round((time.process_time() - own) / lives * 1e6, 1),
                    "server_us_per_life": round((self._server_s() - server) / lives * 1e6, 1),
                    "load": round(os.getloadavg()[0], 1),
                }
                | await self.size()
            )
            print(reports[-1], file=sys.stderr, flush=True)
            if time.monotonic() - began > most_s:
                break
        return reports

    def _server_s(self) -> float:
        """Processor time of the database server and all of its processes, in seconds."""
        return 0.0 if self._server is None else family_s(self._server)

    async def size(self) -> dict[str, Any]:
        """How large everything is, and how many dead rows there are."""
        if self.place.startswith("postgresql:"):
            return await _postgres_size(self.place)
        if not self.place:
            return {}
        files = [Path(self.place + suffix) for suffix in ("", "-wal")]
        return {"mb": round(sum(f.stat().st_size for f in files if f.exists()) / 1e6, 1)}


def family_s(pid: int) -> float:
    """Processor time of a process and its children, those included that have ended, in seconds."""
    ticks = 0
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has just ended
        if int(entry.name) == pid:
            ticks += sum(map(int, fields[11:15]))
        elif int(fields[1]) == pid:
            ticks += sum(map(int, fields[11:13]))
    return ticks / TICKS_PER_S


async def _postgres_size(url: str) -> dict[str, Any]:
    db = await asyncpg.connect(url)
    row = await db.fetchrow(
        "SELECT sum(pg_total_relation_size(relid))::bigint AS bytes, "
        "sum(pg_indexes_size(relid))::bigint AS index_bytes, sum(n_dead_tup)::bigint AS dead, "
        "count(*) AS tables FROM pg_stat_user_tables"
    )
    await db.close()
    return {
        "mb": round((row["bytes"] or 0) / 1e6, 1),
        "index_mb": round(row["index_bytes"] / 1e6, 1),
        "dead_rows": row["dead"],
        "tables": row["tables"],
    }


@asynccontextmanager
async def _leading(
    settings: StoreSettings, place: str, server: int | None = None
) -> AsyncIterator[Bench]:
    store = open_store(settings)
    try:
        leadership = await store.acquire_leadership("bench", time.time_ns(), TimeBase())
        assert leadership is not None
        yield Bench(store, leadership, place, server)
    finally:
        await store.close()


@asynccontextmanager
async def opened(kind: str, segment_rows: int) -> AsyncIterator[Bench]:
    """A fresh store of this kind that leads, durable as it is by default."""
    if kind == "memory":
        async with _leading(StoreSettings(kind), "") as bench:
            yield bench
    elif kind == "sqlite":
        with tempfile.TemporaryDirectory() as directory:
            path = f"{directory}/bench.db"
            settings = StoreSettings(kind, sqlite=SqliteSettings(path))
            async with _leading(settings, path) as bench:
                yield bench
    else:
        with running_cluster(fsync=True) as cluster:
            own = PostgresSettings(cluster.url, segment_rows=segment_rows)
            settings = StoreSettings(kind, postgres=own)
            assert cluster.process is not None
            async with _leading(settings, cluster.url, cluster.process.pid) as bench:
                yield bench


async def run(options: argparse.Namespace) -> dict[str, Any]:
    """Everything that was asked for, on one store."""
    result = describe("store") | {"store": options.store}
    sizes = [int(size) for size in options.batches.split(",")]
    if options.layouts:
        with running_cluster(fsync=True) as cluster:
            result["layouts"] = [
                await measure(cluster.url, layout, options.lives, size)
                for size in sizes
                for layout in LAYOUTS
            ]
        return result
    async with opened(options.store, options.segment_rows) as bench:
        result["lives"] = [await bench.lives(options.lives, size) for size in sizes]
        result |= await bench.size()
        if options.churn:
            reports = await bench.churn(options.churn, options.minutes, options.most_s)
            result |= {"minutes": options.minutes, "virtual_rate": VIRTUAL_RATE, "churn": reports}
            result["churned"] = len(reports) * (options.churn // REPORTS // BATCH * BATCH)
    return result


def draw_churn() -> None:
    """Draws what was saved of every store: size and processor time over the lives."""
    paths = [RESULTS / f"churn-{store}.json" for store in ("sqlite", "postgres")]
    results = [json.loads(path.read_text()) for path in paths if path.exists()]
    parts = [
        picture.Axes("million lives", text, False, [_line(result, what) for result in results])
        for what, text in (("mb", "tables and indexes, MB"), ("us", "processor time of a life, µs"))
    ]
    picture.draw("Churn at a retention of minutes", parts, RESULTS / "churn.png")


def _line(result: dict[str, Any], what: str) -> picture.Line:
    reports = result["churn"]
    each = result["churned"] / len(reports) / 1e6
    values = [
        row["mb"] if what == "mb" else row["own_us_per_life"] + row["server_us_per_life"]
        for row in reports
    ]
    return picture.Line(result["store"], [each * n for n in range(1, len(reports) + 1)], values)


def main(arguments: Sequence[str]) -> int:
    """Runs from the command line."""
    parser = argparse.ArgumentParser(prog="./justw bench store", description=__doc__)
    parser.add_argument("--store", choices=("memory", "sqlite", "postgres"), default="sqlite")
    parser.add_argument("--batches", default="100,500,2000", help="sizes of batches")
    parser.add_argument("--lives", type=int, default=100_000, help="lives per size")
    parser.add_argument("--churn", type=int, default=0, help="lives with pruning")
    parser.add_argument("--minutes", type=float, default=5, help="retention in churn")
    parser.add_argument("--most-s", type=float, default=1500, help="seconds that churn may take")
    parser.add_argument(
        "--segment-rows", type=int, default=500_000, help="tasks in a segment (PostgreSQL)"
    )
    parser.add_argument(
        "--layouts", action="store_true", help="compare layouts of PostgreSQL tables instead"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--save", action="store_true", help="keep the result for the documentation")
    options = parser.parse_args(arguments)
    result = asyncio.run(run(options))
    if options.save:
        save(result, f"churn-{options.store}")
        draw_churn()
    measured = result["layouts"] if options.layouts else result["lives"]
    rows: list[tuple[str, ...]] = [tuple(measured[0])]
    rows += [tuple(str(value) for value in row.values()) for row in measured]
    print_result(result, rows, as_json=options.json or bool(options.churn))
    return 0
