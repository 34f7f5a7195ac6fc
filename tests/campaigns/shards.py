"""Decides how three shards are hurt at length on real processes, and what is told of it.

    ./justw campaign shards [--store sqlite|postgres] [--minutes 3] [--seed 1] [--runs 3] [--save]

Three shards of two replicas with TLS, a worker in each language behind one address, calls at a
tenth of what the machine can take. Shards lose their leader or all replicas, become slow, lose
sight of each other. What was acknowledged must be there in the end, what concerns only healthy
shards must not fail, answers must name what they lack. How long calls at healthy shards take is
judged here alone, for a busy machine proves nothing by it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import statistics
import tempfile
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from cronoq_conformance.languages import build, read_languages

import cronoq
from tests.bench.environment import RESULTS, describe, save
from tests.e2e.sharded.cluster import POOLS, store_lines
from tests.e2e.sharded.play import Plot, play
from tests.stores.pg import running_cluster

STORES = ("sqlite", "postgres")
RESULT = "shards"
QUIET_S = 20.0
LATE_MS = 250.0
LATE_RATIO = 3.0
BROKEN = (AssertionError, TimeoutError, RuntimeError, OSError, cronoq.CronoqError)


def main(arguments: list[str]) -> int:
    """Plays what was asked for; 1 if a promise was broken or calls came late."""
    options = read(arguments)
    head = describe(RESULT) | {"minutes": options.minutes, "seed": options.seed}
    commands = asyncio.run(builds(options.lang))
    stores = STORES if options.store == "all" else (options.store,)
    rows = [row for store in stores for row in earlier(store)] if options.add else []
    is_broken = False
    for store in stores:
        for run in range(options.runs):
            seed = options.seed + run
            print(f"{store}, seed {seed}", flush=True)
            try:
                row = play_one(store, seed, options, commands)
            except BROKEN:
                is_broken = True
                print(f"BROKEN\n{traceback.format_exc()}", flush=True)
            else:
                rows.append({"store": store, "seed": seed, **row})
                print(json.dumps(row, indent=2), flush=True)
                if options.save:
                    keep(head, rows)
    verdicts = judge(rows)
    print(json.dumps(verdicts, indent=2))
    late = [store for store, verdict in verdicts.items() if not verdict["is_held"]]
    print(f"{'BROKEN' if is_broken else 'ok'}: {len(rows)} runs; late: {', '.join(late) or 'no'}")
    return 1 if is_broken or late else 0


def read(arguments: list[str]) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(prog="./justw campaign shards", description=__doc__)
    parser.add_argument("--store", choices=(*STORES, "all"), default="all")
    parser.add_argument("--minutes", type=float, default=3.0, help="of each run")
    parser.add_argument("--runs", type=int, default=3, help="on each store; medians are judged")
    parser.add_argument("--seed", type=int, default=1, help="decides what happens when")
    parser.add_argument("--lang", action="append", help="of workers; all if not given")
    parser.add_argument("--save", action="store_true", help="keep the figures for the page")
    parser.add_argument("--add", action="store_true", help="to the runs that were kept before")
    return parser.parse_args(arguments)


async def builds(wanted: list[str] | None) -> Mapping[str, tuple[str, ...]]:
    """Builds the workers and tells how that of each pool is started."""
    commands = await build([one for one in read_languages() if not wanted or one.name in wanted])
    in_turn = list(commands.values())
    return {pool: in_turn[at % len(in_turn)] for at, pool in enumerate(POOLS)}


def play_one(
    store: str, seed: int, options: argparse.Namespace, commands: Mapping[str, tuple[str, ...]]
) -> dict[str, Any]:
    """One run in a directory of its own."""
    plot = Plot(seconds=max(0.0, 60 * options.minutes - QUIET_S), quiet_s=QUIET_S)
    with tempfile.TemporaryDirectory(prefix="cronoq-shards-") as name, database(store) as url:
        lines = store_lines(Path(name), url)
        report = asyncio.run(play(Path(name), lines, commands, plot, seed, say=say))
    return report.summary()


def say(text: str) -> None:
    """Tells how a run goes on."""
    print(f"  {text}", flush=True)


@contextlib.contextmanager
def database(store: str) -> Iterator[str | None]:
    """The address of a database, if one is needed; it waits for the disk, as any should."""
    if store == "sqlite":
        yield None
        return
    with running_cluster(fsync=True) as cluster:
        yield cluster.tcp_url


def judge(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Whether calls at healthy shards were as quick as they must be, in the middle run."""
    verdicts = {}
    for store in dict.fromkeys(row["store"] for row in rows):
        of = [row for row in rows if row["store"] == store]
        quiet = statistics.median(row["undisturbed_ms"]["p99"] for row in of)
        others = statistics.median(row["others_in_trouble_ms"]["p99"] for row in of)
        most = max(LATE_MS, LATE_RATIO * quiet)
        verdicts[store] = {
            "runs": len(of),
            "undisturbed_p99_ms": quiet,
            "others_in_trouble_p99_ms": others,
            "at_most_ms": round(most, 1),
            "is_held": others <= most,
        }
    return verdicts


def earlier(store: str) -> list[dict[str, Any]]:
    """The runs on a store that were kept before; none if there are none."""
    path = RESULTS / f"{RESULT}.json"
    stores = json.loads(path.read_text())["stores"] if path.exists() else {}
    rows: list[dict[str, Any]] = stores.get(store, {}).get("rows", [])
    return rows


def keep(head: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    """Keeps runs for the page, beside those on another store."""
    path = RESULTS / f"{RESULT}.json"
    stores = json.loads(path.read_text())["stores"] if path.exists() else {}
    of = {name: head[name] for name in ("at", "commit", "load_average", "minutes")}
    for store, verdict in judge(rows).items():
        stores[store] = of | {
            "verdict": verdict,
            "rows": [row for row in rows if row["store"] == store],
        }
    save(
        {name: head[name] for name in ("bench", "python", "cpu_count")} | {"stores": stores}, RESULT
    )
