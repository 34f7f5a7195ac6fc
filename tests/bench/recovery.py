"""What a new leader costs: time, processor time and memory until it can serve.

A store is filled with tasks that wait (200 bytes of payload and a key each) and, with `--ended`,
with tasks that have ended within the hour. Then a process of its own leads, recovers and rebuilds
the engine, as a server does; it is measured from asking for the leadership until calls would be
taken. Processor time is that of this process; a database has its own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from cronoq_server.engine.engine import Engine
from cronoq_server.engine.model import EngineSettings, PoolSettings
from cronoq_server.runtime.chance import SystemChance
from cronoq_server.runtime.clock import SystemClock
from cronoq_server.runtime.collector import tame_gc
from cronoq_server.runtime.driver import Driver
from cronoq_server.stores import StoreSettings, open_store
from cronoq_server.stores.base import TimeBase
from cronoq_server.stores.pg_session import PostgresSettings
from cronoq_server.stores.sqlite_file import SqliteSettings
from tests.bench.environment import ROOT, describe, print_result, save
from tests.bench.store import BATCH, PAYLOAD, Bench
from tests.stores.pg import running_cluster

FILL_BATCH = 2000
PAYLOAD_OBJECT_BYTES = sys.getsizeof(PAYLOAD)


def _settings(kind: str, place: str) -> StoreSettings:
    if kind == "sqlite":
        return StoreSettings(kind, sqlite=SqliteSettings(place))
    return StoreSettings(kind, postgres=PostgresSettings(place))


async def fill(kind: str, place: str, pending: int, ended: int) -> None:
    """Writes so many tasks that have ended, then so many that wait."""
    store = open_store(_settings(kind, place))
    leadership = await store.acquire_leadership("fill", time.time_ns(), TimeBase())
    assert leadership is not None
    bench = Bench(store, leadership, place)
    for _ in range(-(-ended // BATCH)):
        await bench.write(BATCH)
    await bench.write(0)
    for start in range(0, pending, FILL_BATCH):
        await bench.write(min(FILL_BATCH, pending - start), end=False)
    await store.release_leadership(leadership)
    await store.close()


async def recover(kind: str, place: str) -> dict[str, Any]:
    """Leads, and recovers as a server does."""
    tame_gc()
    store, clock = open_store(_settings(kind, place)), SystemClock()
    before = _resident()
    began, processor = time.perf_counter(), time.process_time()
    leadership = await store.acquire_leadership("again", clock.now().wall, TimeBase())
    assert leadership is not None
    acquired = time.perf_counter()
    settings = EngineSettings(
        (PoolSettings("default", max_pending=10_000_000),),
        epoch=leadership.epoch,
        high_water=leadership.high_water,
        store_remembers=store.capabilities.remembers,
    )
    driver = Driver(Engine(settings, SystemChance()), store, leadership, clock)
    live = await driver.recover()
    took, used = time.perf_counter() - began, time.process_time() - processor
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    tame_gc()
    after = _resident()
    result = {
        "live": live,
        "acquire_s": round(acquired - began, 3),
        "recovered_s": round(took, 2),
        "processor_s": round(used, 2),
        "rss_mb": round(after / 1e6),
        # The system counts both in its own way, so that the peak may come out lower.
        "peak_mb": round(max(peak, after) / 1e6),
    }
    if live:
        bytes_each = (after - before) / live - PAYLOAD_OBJECT_BYTES
        result["bytes_per_pending_task_beyond_payload"] = round(bytes_each)
    await driver.recovering.abandon()
    await store.release_leadership(leadership)
    await store.close()
    return result


def _resident() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@contextmanager
def _place(kind: str) -> Iterator[str]:
    if kind == "sqlite":
        with tempfile.TemporaryDirectory() as directory:
            yield f"{directory}/bench.db"
    else:
        with running_cluster(fsync=True) as cluster:
            yield cluster.url


def _in_own_process(kind: str, place: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.bench.recovery", kind, place]
    run = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(run.stdout)
    return found


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Fills a store once, and recovers from it as often as asked."""
    result = describe("recovery")
    result |= {"store": options.store, "pending": options.pending, "ended": options.ended}
    with _place(options.store) as place:
        asyncio.run(fill(options.store, place, options.pending, options.ended))
        result["rounds"] = [_in_own_process(options.store, place) for _ in range(options.rounds)]
    return result


def main(arguments: Sequence[str]) -> int:
    """Runs from the command line."""
    parser = argparse.ArgumentParser(prog="./justw bench recovery", description=__doc__)
    parser.add_argument("--store", choices=("sqlite", "postgres"), default="sqlite")
    parser.add_argument("--pending", type=int, default=1_000_000, help="tasks that wait")
    parser.add_argument("--ended", type=int, default=0, help="tasks that have ended just now")
    parser.add_argument("--rounds", type=int, default=3, help="how often it is recovered")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--save", action="store_true", help="keep the result for the documentation")
    options = parser.parse_args(arguments)
    result = measure(options)
    if options.save:
        save(result, f"recovery-{options.store}")
    rows: list[tuple[str, ...]] = [tuple(result["rounds"][0])]
    rows += [tuple(str(value) for value in row.values()) for row in result["rounds"]]
    print_result(result, rows, as_json=options.json)
    return 0


if __name__ == "__main__":
    print(json.dumps(asyncio.run(recover(sys.argv[1], sys.argv[2]))))
