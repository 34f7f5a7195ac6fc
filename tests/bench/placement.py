"""What one start costs in placement, by how many tasks wait and what they ask for.

Each step ends up to 100 attempts, pushes as many tasks as the step before started, and starts what
can start. The cost is processor time per start, with push, accounts and slots, in the best of
several rounds.
"""

from __future__ import annotations

import argparse
import gc
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from cronoq_server.engine.placement import Placement, PoolRules, Waiting
from cronoq_server.engine.placement.gates import Demand
from cronoq_server.engine.placement.resources import ResourceRules, Resources
from tests.bench.environment import describe, print_result, save

SECOND = 10**9
STEP = 100


@dataclass
class Mix:
    """What tasks ask for, and who is there to run them."""

    fair: bool = False
    resources: list[ResourceRules] = field(default_factory=list)
    profiles: list[tuple[tuple[str, ...], tuple[str, ...]]] = field(
        default_factory=lambda: [((), ())]
    )
    slots: int = 400
    labels: Callable[[random.Random], tuple[str, ...]] = lambda _: ()
    kind: Callable[[random.Random], str] = lambda _: "k"
    needs: Callable[[random.Random], tuple[tuple[str, int], ...]] = lambda _: ()
    tenants: int = 1
    deadlines: float = 0.0
    is_stuck: bool = False  # the older half of what waits wants a label that nobody has


def _semaphores(count: int, permits: int) -> list[ResourceRules]:
    return [ResourceRules(f"s{at}", permits) for at in range(count)]


def _label_profiles(count: int, sets: int) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    chance = random.Random(1)
    return [
        (tuple(f"l{at}" for at in range(sets) if chance.random() < 0.5), ()) for _ in range(count)
    ]


def _one_of(prefix: str, count: int) -> Callable[[random.Random], tuple[str, ...]]:
    return lambda chance: (f"{prefix}{chance.randrange(count)}",)


def _maybe_one(count: int, share: float) -> Callable[[random.Random], tuple[tuple[str, int], ...]]:
    return lambda chance: ((f"s{chance.randrange(count)}", 1),) if chance.random() < share else ()


MIXES: dict[str, Callable[[], Mix]] = {
    "plain": Mix,
    "labels": lambda: Mix(profiles=_label_profiles(20, 200), labels=_one_of("l", 200)),
    "tenants": lambda: Mix(fair=True, tenants=500),
    "semaphores": lambda: Mix(resources=_semaphores(8, 10), needs=_maybe_one(8, 1.0)),
    "deadlines": lambda: Mix(deadlines=1.0),
    "realistic": lambda: Mix(
        fair=True,
        resources=_semaphores(3, 20),
        profiles=_label_profiles(5, 10),
        labels=_one_of("l", 10),
        needs=_maybe_one(3, 0.3),
        tenants=50,
        deadlines=0.1,
    ),
    "everything": lambda: Mix(
        fair=True,
        resources=_semaphores(8, 1000),
        profiles=_label_profiles(20, 200),
        labels=_one_of("l", 200),
        needs=_maybe_one(8, 1.0),
        tenants=500,
        deadlines=0.3,
    ),
    "everything-saturated": lambda: Mix(
        fair=True,
        resources=_semaphores(8, 10),
        profiles=_label_profiles(20, 200),
        labels=_one_of("l", 200),
        needs=_maybe_one(8, 1.0),
        tenants=500,
        deadlines=0.3,
    ),
    "unserved-labels": lambda: Mix(is_stuck=True),
    "one-semaphore": lambda: Mix(resources=_semaphores(1, 50), needs=_maybe_one(1, 0.99)),
    "large-first": lambda: Mix(
        resources=_semaphores(1, 10), needs=lambda chance: (("s0", chance.randint(1, 10)),)
    ),
    "kinds": lambda: Mix(
        profiles=[((), ()), ((), tuple(f"k{at}" for at in range(50)))],
        kind=lambda chance: f"k{chance.randrange(100_000)}",
    ),
    "per-customer": lambda: Mix(
        resources=[ResourceRules("c", 1, per_value=True)],
        needs=lambda chance: ((f"c:{int(chance.paretovariate(0.5)) % 20_000}", 1),),
    ),
    "pinned": lambda: Mix(
        profiles=[((f"h{at}",), ()) for at in range(200)],
        labels=lambda chance: (f"h{chance.randrange(200)}",) if chance.random() < 0.5 else (),
    ),
}


class Bench:
    """A placement with a backlog."""

    def __init__(self, mix: Mix, waiting: int) -> None:
        self.mix = mix
        self.chance = random.Random(2)
        self.now = 1_700_000_000 * SECOND
        self.ids = 0
        self.placement = Placement([PoolRules("p", mix.fair)], Resources(mix.resources))
        share = max(1, mix.slots // len(mix.profiles))
        for session, (labels, kinds) in enumerate(mix.profiles, 1):
            self.placement.session_joined(session, "p", labels, kinds, 0)
        self.free = dict.fromkeys(range(1, len(mix.profiles) + 1), share)
        self.started = STEP
        self.running: list[tuple[Waiting, int]] = []
        self.made = [self._asks() for _ in range(10 * STEP)]
        self.push(waiting)

    def _asks(self) -> tuple[tuple[str, ...], str, tuple[tuple[str, int], ...], str, int]:
        chance, mix = self.chance, self.mix
        return (
            mix.labels(chance),
            mix.kind(chance),
            mix.needs(chance),
            f"t{chance.randrange(mix.tenants)}",
            chance.choice((2, 3, 3, 4)),
        )

    def push(self, count: int) -> None:
        """Pushes new tasks, 1000 a second."""
        placement, mix, chance = self.placement, self.mix, self.chance
        for at in range(count):
            labels, kind, needs, tenant, priority = self.made[at % len(self.made)]
            if at % len(self.made) == 0:
                self.made = [self._asks() for _ in range(len(self.made))]
            if mix.is_stuck and at < count // 2:
                labels = ("nobody",)
            self.now += SECOND // 1000
            self.ids += 1
            demand: Demand = placement.demand("p", labels, kind, needs, tenant)
            task = Waiting(self.ids, priority, self.now, demand)
            latest = None
            if mix.deadlines and chance.random() < mix.deadlines:
                latest = self.now + chance.randrange(2000 * SECOND)
            placement.push(task, self.now, latest, 30 * SECOND)

    def step(self, tasks: list[tuple[Waiting, int | None]]) -> int:
        """One timed step: ends attempts, pushes, runs; returns how many were started."""
        placement = self.placement
        for task, latest in tasks:
            placement.push(task, self.now, latest, 30 * SECOND)
        for task, session in self.running[:STEP]:
            placement.finished(task)
            placement.release(task.demand)
            self.free[session] += 1
        del self.running[:STEP]
        for session, free in self.free.items():
            placement.slots(session, free)
        started = placement.run(self.now, self.now)
        for _, session in started:
            self.free[session] -= 1
        self.running.extend(started)
        self.started = len(started)
        return len(started)

    def prepare(self) -> list[tuple[Waiting, int | None]]:
        """Makes the tasks of the next step, which is not timed."""
        tasks: list[tuple[Waiting, int | None]] = []
        for _ in range(min(self.started, STEP)):
            labels, kind, needs, tenant, priority = self._asks()
            self.now += SECOND // 1000
            self.ids += 1
            demand = self.placement.demand("p", labels, kind, needs, tenant)
            latest = None
            if self.mix.deadlines and self.chance.random() < self.mix.deadlines:
                latest = self.now + self.chance.randrange(2000 * SECOND)
            tasks.append((Waiting(self.ids, priority, self.now, demand), latest))
        return tasks


def measure_mix(mix: Mix, waiting: int, rounds: int, steps: int) -> tuple[float, float]:
    """Returns microseconds per start (best round) and the slowest step in milliseconds."""
    bench = Bench(mix, waiting)
    for _ in range(10):
        bench.step(bench.prepare())
    gc.collect()
    gc.freeze()
    best, slowest = float("inf"), 0.0
    for _ in range(rounds):
        spent, starts = 0.0, 0
        for _ in range(steps):
            tasks = bench.prepare()
            begun = time.process_time()
            starts += bench.step(tasks)
            took = time.process_time() - begun
            spent += took
            slowest = max(slowest, took)
        best = min(best, spent / max(starts, 1) * 1e6)
    gc.unfreeze()
    return best, slowest * 1e3


def measure(names: Sequence[str], sizes: Sequence[int], rounds: int, steps: int) -> dict[str, Any]:
    """Returns a result with a row per mix and number of waiting tasks."""
    result = describe("placement")
    result["rows"] = []
    for name in names:
        for size in sizes:
            cost, slowest = measure_mix(MIXES[name](), size, rounds, steps)
            result["rows"].append(
                {
                    "mix": name,
                    "waiting": size,
                    "us_per_start": round(cost, 2),
                    "worst_step_ms": round(slowest, 2),
                }
            )
    return result


def main(arguments: Sequence[str]) -> int:
    """Runs the benchmark and prints what it found."""
    parser = argparse.ArgumentParser(prog="./justw bench placement", description=__doc__)
    parser.add_argument("--waiting", default="1000,10000,100000,1000000", help="lengths of lines")
    parser.add_argument("--mixes", default=",".join(MIXES), help="names of mixes")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=30, help="steps in a round")
    parser.add_argument("--json", action="store_true", help="JSON, also on a terminal")
    parser.add_argument("--save", action="store_true", help="keep the result for the documentation")
    options = parser.parse_args(arguments)
    names = options.mixes.split(",")
    unknown = [name for name in names if name not in MIXES]
    if unknown:
        parser.error(f"there is no mix {unknown[0]!r}; there are {', '.join(MIXES)}")
    sizes = [int(part) for part in options.waiting.split(",")]
    result = measure(names, sizes, options.rounds, options.steps)
    head = tuple(result["rows"][0])
    rows = [head, *(tuple(str(row[name]) for name in head) for row in result["rows"])]
    if options.save:
        save(result, "placement")
    print_result(result, rows, as_json=options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
