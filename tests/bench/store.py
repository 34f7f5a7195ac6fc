"""What a store does alone: lives (submit and dispatch, then end) per second, recovery, and churn.

Every batch submits so many tasks, dispatched at once, and ends those of the batch before, with
their outputs. Only commits are timed. `--pending` measures how fast a new leader has everything
that lives, beside so many that have ended; `--churn` runs on with pruning, and shows whether
throughput and size stay flat. `--layouts` compares ways to lay out PostgreSQL tables.
"""

from __future__ import annotations

import argparse
import asyncio
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
from cronoq_server.engine.model import Status, TaskSpec
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
from tests.bench.environment import describe, print_result
from tests.bench.layouts import LAYOUTS, measure
from tests.stores.pg import running_cluster

PAYLOAD = os.urandom(200)
OUTPUT = b"done" * 5
BATCH = 500
PRUNE_LIMIT = 1000
REPORTS = 10


class Bench:
    """A store, and where its log and its ids have come to.

    Attributes:
        commit_s: Seconds spent in commits.
    """

    def __init__(self, store: Store, leadership: Leadership, place: str) -> None:
        self.store = store
        self.place = place
        self.commit_s = 0.0
        self._leadership = leadership
        self._position = leadership.position
        self._next = max(leadership.high_water + 1, pack(None, leadership.epoch, 1))
        self._running: list[int] = []
        self._clock = 0

    async def write(self, tasks: int, *, end: bool = True, prune: int = 0) -> None:
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
        if prune:
            mutations.append(TasksPruned(now, prune))
        self._running = list(ids) if end else []
        batch = Batch(self._position + 1)
        batch.add(mutations)
        began = time.perf_counter()
        await self.store.commit(self._leadership, batch)
        self.commit_s += time.perf_counter() - began
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

    async def churn(self, count: int, retained: int) -> list[dict[str, Any]]:
        """So many lives with a bound on those retained; a report for every tenth of them."""
        reports: list[dict[str, Any]] = []
        part = count // REPORTS
        ended = 0
        for _ in range(REPORTS):
            self.commit_s = 0.0
            for _ in range(part // BATCH):
                await self.write(BATCH, prune=PRUNE_LIMIT if ended > retained else 0)
                ended += BATCH if ended <= retained else BATCH - PRUNE_LIMIT
            report = {"lives_per_s": round(part / self.commit_s)} | await self.size()
            print(report, file=sys.stderr, flush=True)
            reports.append(report)
        return reports

    async def recover(self) -> dict[str, Any]:
        """How long a new leader takes to have everything that lives."""
        await self.store.release_leadership(self._leadership)
        began, processor = time.perf_counter(), time.process_time()
        leadership = await self.store.acquire_leadership("again", time.time_ns(), TimeBase())
        assert leadership is not None
        acquired = time.perf_counter()
        live = 0
        async for chunk in self.store.recover(leadership, time.time_ns()):
            live += len(chunk.live)
        self._leadership = leadership
        return {
            "live": live,
            "acquire_s": round(acquired - began, 3),
            "recover_s": round(time.perf_counter() - acquired, 2),
            "processor_s": round(time.process_time() - processor, 2),
        }

    async def size(self) -> dict[str, Any]:
        """How large everything is, and how many dead rows there are."""
        if self.place.startswith("postgresql:"):
            return await _postgres_size(self.place)
        if not self.place:
            return {}
        files = [Path(self.place + suffix) for suffix in ("", "-wal")]
        return {"mb": round(sum(f.stat().st_size for f in files if f.exists()) / 1e6, 1)}


async def _postgres_size(url: str) -> dict[str, Any]:
    db = await asyncpg.connect(url)
    row = await db.fetchrow(
        "SELECT sum(pg_total_relation_size(relid))::bigint AS bytes, "
        "sum(pg_indexes_size(relid))::bigint AS index_bytes, sum(n_dead_tup)::bigint AS dead, "
        "count(*) AS tables FROM pg_stat_user_tables"
    )
    await db.close()
    return {
        "mb": round(row["bytes"] / 1e6, 1),
        "index_mb": round(row["index_bytes"] / 1e6, 1),
        "dead_rows": row["dead"],
        "tables": row["tables"],
    }


@asynccontextmanager
async def _leading(settings: StoreSettings, place: str) -> AsyncIterator[Bench]:
    store = open_store(settings)
    try:
        leadership = await store.acquire_leadership("bench", time.time_ns(), TimeBase())
        assert leadership is not None
        yield Bench(store, leadership, place)
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
            async with _leading(settings, cluster.url) as bench:
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
        if options.pending:
            for _ in range(options.pending // BATCH):
                await bench.write(BATCH, end=False)
            result["recovery"] = await bench.recover()
        if options.churn:
            result["churn"] = await bench.churn(options.churn, options.retained)
    return result


def main(arguments: Sequence[str]) -> int:
    """Runs from the command line."""
    parser = argparse.ArgumentParser(prog="./justw bench store", description=__doc__)
    parser.add_argument("--store", choices=("memory", "sqlite", "postgres"), default="sqlite")
    parser.add_argument("--batches", default="100,500,2000", help="sizes of batches")
    parser.add_argument("--lives", type=int, default=100_000, help="lives per size")
    parser.add_argument("--pending", type=int, default=0, help="tasks to recover")
    parser.add_argument("--churn", type=int, default=0, help="lives with pruning")
    parser.add_argument("--retained", type=int, default=200_000, help="ended tasks kept in churn")
    parser.add_argument(
        "--segment-rows", type=int, default=500_000, help="tasks in a segment (PostgreSQL)"
    )
    parser.add_argument(
        "--layouts", action="store_true", help="compare layouts of PostgreSQL tables instead"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)
    result = asyncio.run(run(options))
    measured = result["layouts"] if options.layouts else result["lives"]
    rows: list[tuple[str, ...]] = [tuple(measured[0])]
    rows += [tuple(str(value) for value in row.values()) for row in measured]
    print_result(result, rows, as_json=options.json or bool(options.pending or options.churn))
    return 0
