"""What shards give and what they cost: whether throughput adds up, and what asking them all takes.

    throughput  tasks of two pools, of each half, run through: by one server that has both pools, by
                two shards whose callers know their shard, and by two shards whose callers all go to
                the first, which passes on what is the other's; in turns
    reads       one call at a time of those that ask every shard, for more and more shards: how long
                it takes, and what it costs the server that is asked and all others together
    model       from both and from `forwarding`: what a cluster of so many machines of this kind can
                do, and which share of it goes to passing on and to watching

Only figures of one run are compared: all servers and callers share the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from cronoq import Client, CronoqError
from cronoq.errors import TaskUnknownError
from tests.bench import picture
from tests.bench.e2e import run_tasks
from tests.bench.environment import RESULTS, describe, print_result, quantile, save
from tests.bench.forwarding import free_ports
from tests.bench.neighbours import READY, config_text, pool_of
from tests.bench.processes import SERVING, cpu_seconds, started
from tests.bench.worker import WORKING

STORES: Final = ("memory", "sqlite")
COUNTS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 255)
PAYLOAD: Final = 200
SLOTS: Final = 500
WARM_UP: Final = 2_000
LOOKUPS_PER_S: Final = 10
"""Reads over all shards that the model gives each shard's callers, for each second."""

NAME: Final = "sharding"


class Cluster:
    """Servers of some shards, in processes, and what callers need to know of them."""

    def __init__(self, stack: ExitStack, folder: Path, store: str, shards: int) -> None:
        self._stack = stack
        self.pids: list[int] = []
        self.addresses: list[str] = []
        ports = dict(enumerate(free_ports(shards), start=1))
        for number in ports:
            text = config_text(number, ports)
            if shards == 1:  # one server has what two shards have
                text = text.partition("[[shards]]")[0].replace('shard = "1"\n', "")
                text += f'[[pools]]\nname = "{pool_of(2)}"\nmax_pending = 10_000_000\n'
            file = folder / f"{shards}-{number}.toml"
            file.write_text(text)
            name = "one" if shards == 1 else "{shard}"
            where = store if store == "memory" else f"sqlite:{folder}/{name}.sqlite3"
            module = ("cronoq_server", "--config", str(file), "--store", where)
            pid, address = stack.enter_context(started(module, SERVING))
            self.pids.append(pid)
            self.addresses.append(address)

    def hire(self) -> None:
        """Starts a worker for each of two pools."""
        for number in (1, 2):
            place = self.addresses[min(number, len(self.addresses)) - 1]
            worker = ("tests.bench.worker", place, str(SLOTS), pool_of(number))
            self._stack.enter_context(started(worker, WORKING))


async def until_reached(client: Client, number: int) -> None:
    """Returns once a shard's pool can be reached through the server that a client talks to."""
    while True:
        try:
            await client.submit("mark", b"x" * PAYLOAD, pool=pool_of(number), call_deadline=0.5)
        except CronoqError:
            continue
        return


async def flow(addresses: Sequence[str], tasks: int) -> float:
    """Tasks per second, half of them for each pool, each half by a client of its own."""
    async with Client(addresses[0]) as first, Client(addresses[-1]) as second:
        begun = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for number, client in enumerate((first, second), start=1):
                group.create_task(run_tasks(client, tasks // 2, PAYLOAD, pool_of(number)))
        return tasks / (time.perf_counter() - begun)


async def measure_throughput(one: Cluster, two: Cluster, tasks: int, rounds: int) -> dict[str, Any]:
    """The first part."""
    async with Client(two.addresses[0]) as client:
        await until_reached(client, 2)
    ways = {
        "one server": (one, one.addresses),
        "two shards": (two, two.addresses),
        "two shards, all by the first": (two, two.addresses[:1]),
    }
    rates: dict[str, list[float]] = {name: [] for name in ways}
    spent: dict[str, list[float]] = {name: [] for name in ways}
    for count in (WARM_UP, *[tasks] * rounds):
        for name, (cluster, addresses) in ways.items():
            before = cpu_seconds(*cluster.pids)
            rates[name].append(await flow(addresses, count))
            spent[name].append((cpu_seconds(*cluster.pids) - before) / count * 1e6)
    found = {
        name: {
            "tasks_per_s": round(statistics.median(rates[name][1:])),
            "servers_us_per_task": round(statistics.median(spent[name][1:]), 1),
        }
        for name in ways
    }
    first = found["one server"]["tasks_per_s"]
    for figures in found.values():
        figures["to_one_server"] = round(figures["tasks_per_s"] / first, 2)
    return found


async def list_newest(client: Client) -> None:
    """One page of the newest tasks."""
    count = 0
    async for _ in client.list(newest_first=True):
        count += 1
        if count == 10:
            break


async def look_up(client: Client) -> None:
    """A key that no shard knows, so that every one has to say so."""
    try:
        await client.get("nobody")
    except TaskUnknownError:
        return
    raise RuntimeError("a key that nobody gave was found")


async def look_at_all(client: Client) -> None:
    """The counts of every shard."""
    await client.snapshot()


READS: Final[dict[str, Callable[[Client], Awaitable[None]]]] = {
    "get by key": look_up,
    "snapshot": look_at_all,
    "list, newest first": list_newest,
}


async def measure_reads(
    address: str, entry: int, others: Sequence[int], count: int, calls: int
) -> list[dict[str, Any]]:
    """The second part, for one number of shards."""
    rows = []
    async with Client(address) as client:
        while (await client.snapshot()).unavailable_shards:
            continue  # until the probes have found all of them
        for name, read in READS.items():
            await read(client)
            took = []
            before = cpu_seconds(entry), cpu_seconds(*others)
            for _ in range(calls):
                begun = time.perf_counter()
                await read(client)
                took.append((time.perf_counter() - begun) * 1e3)
            after = cpu_seconds(entry), cpu_seconds(*others)
            rows.append(
                {
                    "read": name,
                    "shards": count,
                    "p50_ms": round(statistics.median(took), 2),
                    "p99_ms": round(quantile(sorted(took), 0.99), 2),
                    "asked_ms_per_call": round((after[0] - before[0]) / calls * 1e3, 3),
                    "others_ms_per_call": round((after[1] - before[1]) / calls * 1e3, 3),
                }
            )
    return rows


def reads_of(count: int, calls: int) -> list[dict[str, Any]]:
    """Starts so many shards and measures the second part."""
    entry, *ports = free_ports(count)
    with tempfile.TemporaryDirectory(prefix="cronoq-bench-") as folder, ExitStack() as stack:
        others = []
        if ports:
            module = ("tests.bench.neighbours", str(entry), ",".join(map(str, ports)))
            others.append(stack.enter_context(started(module, READY))[0])
        file = Path(folder, "entry.toml")
        file.write_text(config_text(1, dict(enumerate((entry, *ports), start=1))))
        module = ("cronoq_server", "--config", str(file))
        pid, address = stack.enter_context(started(module, SERVING))
        return asyncio.run(measure_reads(address, pid, others, count, calls))


def model(throughput: dict[str, Any], reads: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """What a cluster of machines with a core for each shard's server can do.

    A task costs its shard's server what it costs one server. A caller that goes to any server is
    right once in so many; otherwise its task costs what passing on adds. Each shard's callers make
    `LOOKUPS_PER_S` look-ups by key, and one viewer of the console has the counts of all shards
    taken once a second by the server that he looks at; every server has a viewer.
    """
    own = throughput["one server"]["servers_us_per_task"]
    passing = throughput["two shards, all by the first"]["servers_us_per_task"]
    extra = max(0.0, (passing - throughput["two shards"]["servers_us_per_task"]) * 2)
    rows = []
    for shards in sorted({row["shards"] for row in reads}):
        cost = {
            row["read"]: row["asked_ms_per_call"] + row["others_ms_per_call"]
            for row in reads
            if row["shards"] == shards
        }
        looking = (LOOKUPS_PER_S * cost["get by key"] + cost["snapshot"]) / 1e3
        left = max(0.0, 1 - looking)
        any_server = own + extra * (1 - 1 / shards)
        rows.append(
            {
                "shards": shards,
                "share_for_reads": round(looking, 4),
                "tasks_per_s_right_server": round(shards * left / own * 1e6),
                "tasks_per_s_any_server": round(shards * left / any_server * 1e6),
            }
        )
    return rows


def draw(result: dict[str, Any]) -> None:
    """Draws reads and model by the number of shards."""
    reads, rows = result["reads"], result["model"]

    def line(name: str, of: Sequence[dict[str, Any]], value: str) -> picture.Line:
        return picture.Line(name, [row["shards"] for row in of], [row[value] for row in of])

    by_read = [line(name, [r for r in reads if r["read"] == name], "p50_ms") for name in READS]
    capacity = [
        line("callers go to their shard", rows, "tasks_per_s_right_server"),
        line("callers go to any server", rows, "tasks_per_s_any_server"),
    ]
    parts = [
        picture.Axes("shards", "a call that asks all, ms (p50)", True, by_read),
        picture.Axes("shards, a core for each", "tasks/s, modelled", True, capacity),
    ]
    picture.draw("Shards", parts, RESULTS / f"{NAME}.png")


def main(arguments: Sequence[str]) -> int:
    """Measures and prints."""
    parser = argparse.ArgumentParser(prog="./justw bench shards", description=__doc__)
    parser.add_argument("--tasks", type=int, default=60_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--calls", type=int, default=200, help="reads of each kind")
    parser.add_argument("--shards-max", type=int, default=max(COUNTS))
    parser.add_argument("--json", action="store_true", help="JSON, also on a terminal")
    parser.add_argument("--save", action="store_true", help="for the documentation")
    given = parser.parse_args(arguments)
    result: dict[str, Any] = {**describe("shards"), "tasks": given.tasks, "rounds": given.rounds}
    result["throughput"] = {}
    for store in STORES:
        with tempfile.TemporaryDirectory(prefix="cronoq-bench-") as name, ExitStack() as stack:
            one, two = (Cluster(stack, Path(name), store, shards) for shards in (1, 2))
            one.hire()
            two.hire()
            found = asyncio.run(measure_throughput(one, two, given.tasks, given.rounds))
            result["throughput"][store] = found
    counts = [count for count in COUNTS if count <= given.shards_max]
    result["reads"] = [row for count in counts for row in reads_of(count, given.calls)]
    result["model"] = model(result["throughput"]["memory"], result["reads"])
    if given.save:
        save(result, NAME)
        draw(result)
    rows = [("store", "way", "tasks/s", "to one server")]
    for store, found in result["throughput"].items():
        for way, figures in found.items():
            rows.append((store, way, str(figures["tasks_per_s"]), str(figures["to_one_server"])))
    print_result(result, rows, as_json=given.json)
    return 0
