"""What the engine alone does: lives (submit, dispatch, complete) per second, by size of the step.

Each step reports what the step before dispatched, submits as many new tasks, and releases, as the
driver does; the backlog stays as long as it is. Only the step is timed: events are made by the
server's edge. One process has a short backlog and one a long one, and they take turns, round by
round, so that what else the machine does falls on both. Steps are timed twice: by the processor
time that they take, which is the figure of the engine, and by the clock, which on a busy machine
is that of its neighbours too.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import statistics
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from cronoq_server.assembly import engine_settings
from cronoq_server.config import Config
from cronoq_server.engine import Completed, Engine, Lease, Step, Submit, SubmitMode, TaskSpec
from cronoq_server.engine.effects import Dispatch
from cronoq_server.engine.events import AttemptsReported, Event, Released, WorkerJoined, WorkerLost
from cronoq_server.runtime import SystemChance, SystemClock, tame_gc
from cronoq_server.stores import StoreSettings, open_store
from cronoq_server.stores.base import TimeBase
from tests.bench.engine_mix import STEP_SIZE, measure_mix
from tests.bench.environment import describe, print_result, quantile, save

STEP_SIZES = (1, 10, 100, 1000)
SHORT, LONG = 1_000, 1_000_000
MIXED_MAX = 100_000
"""The longest backlog under which the realistic mix is measured."""
LIVES_PER_ROUND = 20_000
ROUNDS = 5
LOAD_STEP = 1_000
PAYLOAD_BYTES = 200
PAYLOAD_OBJECT_BYTES = PAYLOAD_BYTES + 33
"""A bytes object of this length in CPython."""


class Took(NamedTuple):
    """What a step took, in seconds."""

    processor: float
    clock: float


class Round(msgspec.Struct):
    """One timed round, by processor time unless it says otherwise."""

    lives_per_s: float
    p99_step_ms: float
    worst_step_ms: float
    worst_step_clock_ms: float


class Bench:
    """An engine with a backlog that one worker at a time eats from."""

    def __init__(self, pending: int) -> None:
        self._clock = SystemClock()
        store = open_store(StoreSettings("memory"))
        leading = store.acquire_leadership("bench", self._clock.now().wall, TimeBase())
        leadership = asyncio.run(leading)
        assert leadership is not None
        settings = engine_settings(Config(), leadership, store)
        self._engine = Engine(settings, SystemChance())
        self._engine.restore((), self._clock.now())
        self._calls = self._sessions = self._reports = 0
        self._leases: list[Lease] = []
        self._step_number = 0
        tame_gc()
        before = resident_bytes()
        for _ in range(pending // LOAD_STEP):
            self._step([self._submit(LOAD_STEP)])
        self.bytes_per_task = (resident_bytes() - before) / pending - PAYLOAD_OBJECT_BYTES

    def _submit(self, count: int) -> Submit:
        self._calls += 1
        payloads = (os.urandom(PAYLOAD_BYTES) for _ in range(count))
        specs = [TaskSpec("default", "bench", payload) for payload in payloads]
        return Submit(self._calls, specs, SubmitMode.MANY, 2**62)

    def _step(self, happened: list[Event]) -> Took:
        """Takes a step, keeps its leases, and returns how long it took."""
        if self._step_number:
            happened.insert(0, Released(self._step_number))
        now = self._clock.now()
        begun, begun_clock = time.process_time(), time.perf_counter()
        step = self._engine.step(happened, now)
        took = Took(time.process_time() - begun, time.perf_counter() - begun_clock)
        self._step_number = step.number
        self._leases = _leases(step)
        return took

    def _complete(self) -> AttemptsReported:
        self._reports += 1
        reports: list[Any] = [
            Completed(lease.lease, b"done", "application/json") for lease in self._leases
        ]
        return AttemptsReported(self._sessions, reports, self._reports)

    def round(self, size: int) -> Round:
        """Lets a worker with `size` slots live through a round of steps."""
        self._sessions += 1
        self._reports = 0
        self._step([self._join(size)])
        self._step([self._complete(), self._submit(size)])
        took: list[Took] = []
        for _ in range(LIVES_PER_ROUND // size):
            assert len(self._leases) == size, "the backlog has run dry"
            took.append(self._step([self._complete(), self._submit(size)]))
        self._step([self._complete(), WorkerLost(self._sessions, True)])
        processor = sorted(each.processor for each in took)
        return Round(
            lives_per_s=len(took) * size / sum(processor),
            p99_step_ms=quantile(processor, 0.99) * 1e3,
            worst_step_ms=processor[-1] * 1e3,
            worst_step_clock_ms=max(each.clock for each in took) * 1e3,
        )

    def _join(self, slots: int) -> WorkerJoined:
        token = self._sessions.to_bytes(16, "big")
        name = f"bench-{self._sessions}"
        return WorkerJoined(self._sessions, "default", slots, name, (), (), 4, "", token)


def _leases(step: Step) -> list[Lease]:
    return [lease for effect in step.effects if type(effect) is Dispatch for lease in effect.leases]


def resident_bytes() -> int:
    """Returns the memory that this process has in use."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _serve(pending: int, pipe: Connection) -> None:
    """A process with one engine: says what a task costs, then plays a round per size it is sent."""
    bench = Bench(pending)
    pipe.send(bench.bytes_per_task)
    while size := pipe.recv():
        pipe.send(bench.round(size))


def measure(sizes: Sequence[int], backlogs: Sequence[int], rounds: int) -> dict[str, Any]:
    """Returns a result with a row per backlog and step size."""
    result = describe("engine")
    context = multiprocessing.get_context("spawn")
    pipes: dict[int, Connection] = {}
    memory: dict[int, float] = {}
    for pending in backlogs:
        pipes[pending], theirs = context.Pipe()
        context.Process(target=_serve, args=(pending, theirs), daemon=True).start()
        theirs.close()  # so that a process that dies is the end of the pipe
        memory[pending] = pipes[pending].recv()
    rows = []
    for size in sizes:
        played: dict[int, list[Round]] = {pending: [] for pending in backlogs}
        for _ in range(rounds):
            for pending, pipe in pipes.items():
                pipe.send(size)
                played[pending].append(pipe.recv())
        rows += [_row(pending, size, many) for pending, many in played.items()]
    for pipe in pipes.values():
        pipe.send(0)
    result["rows"] = rows
    result["realistic"] = measure_mix([min(each, MIXED_MAX) for each in backlogs], rounds)
    result["bytes_per_pending_task_beyond_payload"] = round(memory[max(backlogs)])
    result["long_to_short"] = _ratios(rows, min(backlogs), max(backlogs))
    return result


def _row(pending: int, size: int, rounds: Sequence[Round]) -> dict[str, Any]:
    rate = statistics.median(each.lives_per_s for each in rounds)
    return {
        "pending": pending,
        "step": size,
        "lives_per_s": round(rate),
        "best_lives_per_s": round(max(each.lives_per_s for each in rounds)),
        "us_per_life": round(1e6 / rate, 2),
        "p99_step_ms": round(statistics.median(each.p99_step_ms for each in rounds), 3),
        "worst_step_ms": round(max(each.worst_step_ms for each in rounds), 3),
        "worst_step_clock_ms": round(max(each.worst_step_clock_ms for each in rounds), 3),
    }


def _ratios(rows: Sequence[dict[str, Any]], short: int, long: int) -> dict[str, float]:
    rates = {(row["pending"], row["step"]): row["lives_per_s"] for row in rows}
    return {
        str(step): round(rates[long, step] / rate, 2)
        for (pending, step), rate in rates.items()
        if pending == short
    }


def main(arguments: Sequence[str]) -> int:
    """Runs the benchmark and prints what it found."""
    parser = argparse.ArgumentParser(prog="./justw bench engine", description=__doc__)
    parser.add_argument("--steps", default=",".join(map(str, STEP_SIZES)), help="sizes of steps")
    parser.add_argument("--pending", default=f"{SHORT},{LONG}", help="lengths of the backlog")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--save", action="store_true", help="for the documentation")
    parser.add_argument("--json", action="store_true", help="JSON, also on a terminal")
    options = parser.parse_args(arguments)
    sizes, backlogs = (
        [int(part) for part in text.split(",")] for text in (options.steps, options.pending)
    )
    result = measure(sizes, backlogs, options.rounds)
    if options.save:
        save(result, "engine")
    head = tuple(result["rows"][0])
    rows = [head, *(tuple(str(row[name]) for name in head) for row in result["rows"])]
    mixed = [{"step": f"{STEP_SIZE}, realistic mix", **row} for row in result["realistic"]]
    rows += [tuple(str(row.get(name, "")) for name in head) for row in mixed]
    print_result(result, rows, as_json=options.json)
    return 0
