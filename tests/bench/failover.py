"""How long nobody is answered when the leader is killed, and when it hands over.

A store is filled with tasks that wait and with tasks that have ended within the hour. Servers with
the default settings share it, behind a balancer that knows nothing of roles, and one caller submits
one task after the other through it. A kill counts from the signal, a handover from the moment at
which the leader gives the leadership back; both until a submit that began later is acknowledged.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import cronoq
from tests.bench.environment import describe, print_result, save
from tests.bench.recovery import fill
from tests.e2e.place import PostgresPlace, SqlitePlace, Waits
from tests.e2e.replicas import Group, ReplicaProcess, replicas
from tests.stores.pg import running_cluster

DEADLINE_S = 120.0
FLOORS_S = {"killed": ("submit_median_s", 2.0), "stopped": ("ready_median_s", 1.0)}
"""What is bounded: after a kill the first acknowledgement, after a release the next leader."""


class Caller:
    """Submits one task after the other, and notes when the acknowledged ones began and ended."""

    def __init__(self, address: str) -> None:
        self.client = cronoq.Client(address, deadline=DEADLINE_S)
        self._more = asyncio.Condition()
        self._last = (0.0, 0.0)

    async def run(self) -> None:
        """Submits until it is cancelled."""
        while True:
            began = time.time()
            await self.client.submit("bench", key=cronoq.new_key())
            async with self._more:
                self._last = (began, time.time())
                self._more.notify_all()

    async def first_after(self, instant: float) -> float:
        """When the first submit that began after an instant was acknowledged."""
        async with self._more:
            await self._more.wait_for(lambda: self._last[0] > instant)
        return self._last[1]


@contextlib.asynccontextmanager
async def _calling(address: str) -> AsyncIterator[Caller]:
    caller = Caller(address)
    submitting = asyncio.create_task(caller.run())
    try:
        yield caller
    finally:
        submitting.cancel()
        await asyncio.gather(submitting, return_exceptions=True)
        await caller.client.close()


async def _end(leader: ReplicaProcess, group: Group, caller: Caller, how: str) -> dict[str, float]:
    """Ends a leader, waits for the next one, starts the old one again."""
    killed_at = time.time()
    if how == "killed":
        await leader.kill()
        since = killed_at
    else:
        await leader.end(signal.SIGTERM)
        since = leader.said_at("leadership_released")
    answered_at = await caller.first_after(since)
    following = await group.another(leader)
    ready_at = following.said_at("server_ready")
    await leader.start()
    return {
        "recovery_s": following.last_said("recovery_finished")["took_ms"] / 1000,
        "ready_s": round(ready_at - since, 3),
        "submit_s": round(answered_at - since, 3),
    }


async def _measure(
    directory: Path, place: SqlitePlace | PostgresPlace, rounds: int
) -> dict[str, Any]:
    result: dict[str, Any] = {}
    started = replicas(directory, place.store, place.replicas)
    async with started as (balancer, group), _calling(balancer.address) as caller:
        for how in FLOORS_S:
            rows = []
            for _ in range(rounds):
                leader = await group.leader()
                await caller.first_after(time.time())
                rows.append(await _end(leader, group, caller, how))
                print(place.kind, how, rows[-1], file=sys.stderr, flush=True)
            result[how] = {
                "rounds": rows,
                "submit_median_s": statistics.median(row["submit_s"] for row in rows),
                "submit_longest_s": max(row["submit_s"] for row in rows),
                "ready_median_s": statistics.median(row["ready_s"] for row in rows),
            }
    return result


async def _sqlite(directory: Path, options: argparse.Namespace) -> dict[str, Any]:
    place = SqlitePlace(directory, Waits(), None)
    await fill("sqlite", str(directory / "q.db"), options.pending, options.finished)
    return await _measure(directory, place, options.rounds)


async def _postgres(directory: Path, options: argparse.Namespace) -> dict[str, Any]:
    with running_cluster(fsync=True) as cluster:
        place = PostgresPlace(cluster, "public", Waits(), None, None)
        await fill("postgres", cluster.tcp_url, options.pending, options.finished)
        return await _measure(directory, place, options.rounds)


def main(arguments: Sequence[str]) -> int:
    """Runs from the command line; 1 if a median is above its bound."""
    parser = argparse.ArgumentParser(prog="./justw bench failover", description=__doc__)
    parser.add_argument("--store", choices=("sqlite", "postgres", "all"), default="all")
    parser.add_argument("--pending", type=int, default=10_000, help="tasks that wait")
    parser.add_argument("--finished", type=int, default=1_000_000, help="tasks that have ended")
    parser.add_argument("--rounds", type=int, default=5, help="leaders ended in each way")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--save", action="store_true", help="keep the result for the page")
    options = parser.parse_args(arguments)
    result = describe("failover") | {
        "pending": options.pending,
        "finished": options.finished,
        "stores": {},
    }
    for store, measure in (("sqlite", _sqlite), ("postgres", _postgres)):
        if options.store in (store, "all"):
            with tempfile.TemporaryDirectory(prefix="cronoq-failover-") as directory:
                result["stores"][store] = asyncio.run(measure(Path(directory), options))
    if options.save:
        save(result, "failover")
    rows: list[tuple[str, ...]] = [
        ("store", "leader", "ready s", "submit s", "longest s", "bounded s", "at most s")
    ]
    is_met = True
    for store, ways in result["stores"].items():
        for how, (bounded, most) in FLOORS_S.items():
            way = ways[how]
            names = ("ready_median_s", "submit_median_s", "submit_longest_s", bounded)
            rows.append((store, how, *(f"{way[name]:.2f}" for name in names), f"{most:.1f}"))
            is_met = is_met and way[bounded] <= most
    print_result(result, rows, as_json=options.json)
    return 0 if is_met else 1
