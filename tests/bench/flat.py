"""Whether a task costs the same however much there is: what waits, who works, what recurs.

The engine alone, by the processor time of its steps. Each step reports what the one before
dispatched and submits as many. One thing grows and all others stay:

    waiting    tasks that wait in the same pool
    workers    that share a thousand slots
    schedules  that are due each second, beside what is submitted

The wire is left out: a message costs what it costs, and a thousand workers with a slot each send a
thousand. `e2e --by-backlog` has the whole server's share for each task.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from typing import Any

from cronoq_server.engine import SECOND, EngineSettings, PoolSettings, TaskSpec
from cronoq_server.engine.cron import Calendar, parse
from cronoq_server.engine.events import PutSchedule, WorkerJoined
from cronoq_server.engine.model import ScheduleSpec
from tests.bench.environment import describe, print_result, save
from tests.bench.lives import Lives

SLOTS = 1_000
WAITING = 10_000
WORKERS = 10
WAITING_SIZES = (1_000, 10_000, 100_000, 1_000_000)
WORKER_COUNTS = (1, 10, 100, 1_000)
SCHEDULE_COUNTS = (1, 10, 100)
STEPS_PER_ROUND = 40
WARM_UP = 2
ROUNDS = 5
TICK = SECOND // 10
"""Time between two steps: every schedule is due in each tenth."""

LOAD = 1_000
PAYLOAD = bytes(200)


class Flat(Lives):
    """An engine under a steady flow of tasks that are all alike."""

    def __init__(self, waiting: int, workers: int, schedules: int) -> None:
        pool = PoolSettings("default", max_pending=10_000_000)
        super().__init__(EngineSettings((pool,)), workers, TICK)
        for _ in range(waiting // LOAD):
            self._step([self._submit(LOAD)])
        self._step([self._schedule(number) for number in range(schedules)])
        self._step([self._join(worker, SLOTS // workers) for worker in range(workers)])

    def _spec(self) -> TaskSpec:
        return TaskSpec("default", "bench", PAYLOAD)

    def _schedule(self, number: int) -> PutSchedule:
        self._calls += 1
        spec = ScheduleSpec(f"s{number}", "* * * * * *", self._spec())
        calendar = parse(spec.cron, spec.zone)
        assert isinstance(calendar, Calendar), calendar
        return PutSchedule(self._calls, spec, calendar)

    def _join(self, worker: int, slots: int) -> WorkerJoined:
        token = worker.to_bytes(16, "big")
        return WorkerJoined(worker, "default", slots, f"w{worker}", (), (), 4, "", token)


def measure(what: str, counts: Sequence[int], rounds: int) -> list[dict[str, Any]]:
    """Returns a row for each size of what grows; all sizes take turns, round by round."""
    normal = {"waiting": WAITING, "workers": WORKERS, "schedules": 0}
    engines = {count: Flat(**{**normal, what: count}) for count in counts}
    for engine in engines.values():
        for _ in range(WARM_UP):
            engine.round(STEPS_PER_ROUND)
    played: dict[int, list[float]] = {count: [] for count in counts}
    for _ in range(rounds):
        for count, engine in engines.items():
            played[count].append(1e6 * engine.round(STEPS_PER_ROUND))
    least = statistics.median(played[counts[0]])
    return [
        {
            "grows": what,
            "count": count,
            "us_per_life": round(statistics.median(took), 2),
            "to_first": round(statistics.median(took) / least, 2),
        }
        for count, took in played.items()
    ]


def main(arguments: Sequence[str]) -> int:
    """Runs the benchmark and prints what it found."""
    parser = argparse.ArgumentParser(prog="./justw bench flat", description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--waiting-max", type=int, default=max(WAITING_SIZES))
    parser.add_argument("--save", action="store_true", help="for the documentation")
    parser.add_argument("--json", action="store_true", help="JSON, also on a terminal")
    options = parser.parse_args(arguments)
    sizes = [size for size in WAITING_SIZES if size <= options.waiting_max]
    rows = measure("waiting", sizes, options.rounds)
    rows += measure("workers", WORKER_COUNTS, options.rounds)
    rows += measure("schedules", SCHEDULE_COUNTS, options.rounds)
    result = {**describe("flat"), "slots": SLOTS, "rounds": options.rounds, "rows": rows}
    if options.save:
        save(result, "flat")
    table = [tuple(rows[0]), *(tuple(map(str, row.values())) for row in rows)]
    print_result(result, table, as_json=options.json)
    return 0
