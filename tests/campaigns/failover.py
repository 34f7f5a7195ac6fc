"""Decides how real faults are played at length on real processes, and what is told of it.

Each fault has servers, a store, workers and callers of its own. `--save` keeps the figures for
`docs/performance.md`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import tempfile
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncpg

import cronoq
from tests.bench.environment import RESULTS, describe, save
from tests.e2e.disk import NoSmallDisk
from tests.e2e.faults import FAULTS, Fault
from tests.e2e.place import SHORT, Waits
from tests.e2e.play import Plot, Report, play
from tests.stores.pg import Cluster, running_cluster

STORES = ("sqlite", "postgres")
PAUSE_S = 0.08
"""Between two submits of one caller: the load goes on for long, and all of it is judged."""
WORKERS = 2
RESULT = "faults"

BROKEN = (AssertionError, TimeoutError, RuntimeError, OSError, cronoq.CronoqError)
"""What a broken promise looks like."""

COLUMNS = {
    "store": 9,
    "fault": 23,
    "strikes": 8,
    "tasks": 8,
    "occurrences": 12,
    "terms": 6,
    "connects": 9,
    "silence_median_s": 17,
    "silence_longest_s": 18,
}


def main(arguments: list[str]) -> int:
    """Plays what was asked for; 1 if a promise was broken, 2 if something could not be played."""
    options = read(arguments)
    rows: list[dict[str, Any]] = []
    broken = left_out = 0
    head = describe("failover-faults")
    print("".join(name.rjust(width) for name, width in COLUMNS.items()), "  took_s", flush=True)
    with database(options) as cluster:
        for store, fault in wanted(options):
            began = time.monotonic()
            try:
                report = play_one(fault, store, options, cluster)
            except NoSmallDisk as reason:
                left_out += 1
                print(f"left out: {fault.name} on {store}: {reason}", flush=True)
            except (*BROKEN, asyncpg.PostgresError):
                broken += 1
                print(f"BROKEN: {fault.name} on {store}\n{traceback.format_exc()}", flush=True)
            else:
                rows.append(row := report.summary() | {"took_s": round(time.monotonic() - began)})
                cells = "".join(str(row[name]).rjust(width) for name, width in COLUMNS.items())
                print(f"{cells}  {row['took_s']}", flush=True)
    if options.save:
        keep(head | {"seed": options.seed, "short": options.short}, rows)
    print(verdict(rows, broken, left_out))
    return 1 if broken else 2 if left_out else 0


def keep(head: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    """Keeps rows for the page, in place of earlier ones of the same faults."""
    kept = {}
    if (RESULTS / f"{RESULT}.json").exists():
        earlier = json.loads((RESULTS / f"{RESULT}.json").read_text())
        kept = {
            (row["store"], row["fault"]): {"commit": earlier["commit"], **row}
            for row in earlier["rows"]
        }
    for row in rows:
        of = {name: head[name] for name in ("commit", "load_average")}
        kept[row["store"], row["fault"]] = of | row
    ordered = [
        kept[store, fault.name]
        for store in STORES
        for fault in FAULTS
        if (store, fault.name) in kept
    ]
    save(head | {"rows": ordered}, RESULT)


def verdict(rows: list[dict[str, Any]], broken: int, left_out: int) -> str:
    """The last line."""
    strikes, tasks = (sum(row[name] for row in rows) for name in ("strikes", "tasks"))
    held = f"{strikes} strikes, {tasks} tasks acknowledged and all accounted for"
    failed = f"{broken} faults broke a promise, {left_out} left out"
    return f"{'BROKEN' if broken else 'ok'}: {held}; {failed}"


def read(arguments: list[str]) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(prog="./justw campaign failover", description=__doc__)
    parser.add_argument("--store", choices=(*STORES, "all"), default="all")
    parser.add_argument("--only", choices=[fault.name for fault in FAULTS], action="append")
    parser.add_argument("--kills", type=int, help="strikes of each fault (50 of leader-killed, 10)")
    parser.add_argument("--seed", type=int, default=1, help="decides the moments")
    parser.add_argument("--short", action="store_true", help="impatient servers, as in the tests")
    parser.add_argument("--save", action="store_true", help="keep the figures for the page")
    return parser.parse_args(arguments)


def wanted(options: argparse.Namespace) -> Iterator[tuple[str, Fault]]:
    """Stores and faults, in order."""
    for store in STORES if options.store == "all" else (options.store,):
        for fault in FAULTS:
            if store in fault.stores and (not options.only or fault.name in options.only):
                yield store, fault


@contextlib.contextmanager
def database(options: argparse.Namespace) -> Iterator[Cluster | None]:
    """The database server, if one is needed; it waits for the disk, as any should."""
    if options.store == "sqlite":
        yield None
        return
    with running_cluster(fsync=True) as cluster:
        yield cluster


def play_one(
    fault: Fault, store: str, options: argparse.Namespace, cluster: Cluster | None
) -> Report:
    """One fault on one store, in a directory of its own."""
    waits = SHORT if options.short else Waits()
    times = options.kills or fault.times
    patience = 60 if options.short else 300
    submits = 0 if options.short else fault.submits
    plot = Plot(times, submits, waits=waits, pause=PAUSE_S, patience=patience, workers=WORKERS)
    chance = random.Random(f"{options.seed} {store} {fault.name}")
    with tempfile.TemporaryDirectory(prefix="cronoq-failover-") as directory:
        Path(directory).chmod(0o755)  # the database server may be run by somebody else
        return asyncio.run(play(fault, store, Path(directory), plot, chance, cluster=cluster))
