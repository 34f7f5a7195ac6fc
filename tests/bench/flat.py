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
import time
from collections.abc import Sequence
from typing import Any

from cronoq_server.engine import (
    SECOND,
    Completed,
    Engine,
    EngineSettings,
    PoolSettings,
    Submit,
    SubmitMode,
    TaskSpec,
)
from cronoq_server.engine.cron import Calendar, parse
from cronoq_server.engine.effects import Dispatch
from cronoq_server.engine.events import (
    AttemptsReported,
    Event,
    PutSchedule,
    Released,
    WorkerJoined,
)
from cronoq_server.engine.model import Now, ScheduleSpec
from cronoq_server.runtime import SystemChance, tame_gc
from tests.bench.environment import describe, print_result, save

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


class Flat:
    """An engine under a steady flow."""

    def __init__(self, waiting: int, workers: int, schedules: int) -> None:
        pool = PoolSettings("default", max_pending=10_000_000)
        self._engine = Engine(EngineSettings((pool,)), SystemChance())
        self._now = Now(1_700_000_000 * SECOND, SECOND)
        self._engine.restore((), self._now)
        self._calls = self._steps = self._scheduled = 0
        self._reports = [0] * workers
        self._done: list[tuple[int, list[Any]]] = []
        tame_gc()
        for _ in range(waiting // LOAD):
            self._step([self._submit(LOAD)])
        self._step([self._schedule(number) for number in range(schedules)])
        self._step([self._join(worker, SLOTS // workers) for worker in range(workers)])

    def _submit(self, count: int) -> Submit:
        self._calls += 1
        specs = [TaskSpec("default", "bench", PAYLOAD) for _ in range(count)]
        return Submit(self._calls, specs, SubmitMode.MANY, 2**62)

    def _schedule(self, number: int) -> PutSchedule:
        self._calls += 1
        template = TaskSpec("default", "bench", PAYLOAD)
        spec = ScheduleSpec(f"s{number}", "* * * * * *", template)
        calendar = parse(spec.cron, spec.zone)
        assert isinstance(calendar, Calendar), calendar
        return PutSchedule(self._calls, spec, calendar)

    def _join(self, worker: int, slots: int) -> WorkerJoined:
        token = worker.to_bytes(16, "big")
        return WorkerJoined(worker, "default", slots, f"w{worker}", (), (), 4, "", token)

    def _step(self, happened: list[Event]) -> float:
        """Takes a step; returns the processor time that it took."""
        self._now = Now(self._now.wall + TICK, self._now.mono + TICK)
        if self._steps:
            happened.insert(0, Released(self._steps))
        begun = time.process_time()
        step = self._engine.step(happened, self._now)
        took = time.process_time() - begun
        self._steps = step.number
        self._done = [
            (effect.session, [Completed(lease.lease, b"", "") for lease in effect.leases])
            for effect in step.effects
            if type(effect) is Dispatch
        ]
        return took

    def _live(self) -> tuple[int, float]:
        """Reports what was dispatched and submits as much; the number of lives and the time."""
        happened: list[Event] = []
        lives = 0
        for worker, reports in self._done:
            self._reports[worker] += 1
            lives += len(reports)
            happened.append(AttemptsReported(worker, reports, self._reports[worker]))
        happened.append(self._submit(lives))
        return lives, self._step(happened)

    def round(self) -> float:
        """Processor time of a life, in microseconds."""
        played = [self._live() for _ in range(STEPS_PER_ROUND)]
        return sum(took for _, took in played) / sum(lives for lives, _ in played) * 1e6


def measure(what: str, counts: Sequence[int], rounds: int) -> list[dict[str, Any]]:
    """Returns a row for each size of what grows; all sizes take turns, round by round."""
    normal = {"waiting": WAITING, "workers": WORKERS, "schedules": 0}
    engines = {count: Flat(**{**normal, what: count}) for count in counts}
    for engine in engines.values():
        for _ in range(WARM_UP):
            engine.round()
    played: dict[int, list[float]] = {count: [] for count in counts}
    for _ in range(rounds):
        for count, engine in engines.items():
            played[count].append(engine.round())
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
