"""The engine alone under a realistic mix: labels, tenants, limits and deadlines all at once.

Ten label sets on five kinds of worker, fifty tenants that share by weight, three semaphores that
are always used up, a deadline on every tenth task. Each step reports what the one before has
dispatched and submits as many new tasks, so that the backlog stays as long as it is. Steps are
timed by processor time.
"""

from __future__ import annotations

import random
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
    ResourceSettings,
    Submit,
    SubmitMode,
    TaskSpec,
)
from cronoq_server.engine.effects import Dispatch
from cronoq_server.engine.events import AttemptsReported, Event, Released, WorkerJoined
from cronoq_server.engine.model import Now
from cronoq_server.runtime import SystemChance, tame_gc

LABELS, PROFILES, TENANTS, SEMAPHORES, PERMITS = 10, 5, 50, 3, 20
STEP_SIZE = 100
STEPS_PER_ROUND = 100
WARM_UP = 2
TICK = SECOND // 100
"""Time between two steps."""


class MixedEngine:
    """An engine with a mixed backlog and five workers that live through what it dispatches."""

    def __init__(self, pending: int) -> None:
        self._random = random.Random(1)
        pool = PoolSettings("default", fair_share=True, max_pending=10_000_000)
        limits = tuple(ResourceSettings(f"s{at}", permits=PERMITS) for at in range(SEMAPHORES))
        self._engine = Engine(EngineSettings((pool,), limits), SystemChance())
        self._now = Now(1_700_000_000 * SECOND, SECOND)
        self._engine.restore((), self._now)
        self._calls = self._steps = 0
        self._reports = [0] * PROFILES
        self._done: list[tuple[int, list[Any]]] = []
        tame_gc()
        for _ in range(pending // 1000):
            self._step([self._submit(1000)])
        self._step([self._join(worker) for worker in range(PROFILES)])

    def _join(self, worker: int) -> WorkerJoined:
        per_worker = LABELS // PROFILES
        labels = tuple((f"l{worker * per_worker + at}", "") for at in range(per_worker))
        token = worker.to_bytes(16, "big")
        slots = STEP_SIZE // PROFILES
        return WorkerJoined(worker, "default", slots, f"w{worker}", labels, (), 4, "", token)

    def _submit(self, count: int) -> Submit:
        self._calls += 1
        return Submit(self._calls, [self._spec() for _ in range(count)], SubmitMode.MANY, 2**62)

    def _spec(self) -> TaskSpec:
        chance = self._random
        limited = chance.random() < 0.3
        return TaskSpec(
            "default",
            "bench",
            labels=((f"l{chance.randrange(LABELS)}", ""),),
            tenant=f"t{chance.randrange(TENANTS)}",
            resources=((f"s{chance.randrange(SEMAPHORES)}", 1),) if limited else (),
            deadline_in=chance.randrange(1, 600) * SECOND if chance.random() < 0.1 else None,
        )

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
        happened.append(self._submit(max(1, lives)))
        return lives, self._step(happened)

    def round(self) -> float:
        """Lives per second of processor time."""
        played = [self._live() for _ in range(STEPS_PER_ROUND)]
        return sum(lives for lives, _ in played) / sum(took for _, took in played)


def measure_mix(backlogs: Sequence[int], rounds: int) -> list[dict[str, Any]]:
    """Returns a row per backlog."""
    rows = []
    for pending in backlogs:
        engine = MixedEngine(pending)
        for _ in range(WARM_UP):
            engine.round()
        rates = [engine.round() for _ in range(rounds)]
        rate = statistics.median(rates)
        rows.append(
            {
                "pending": pending,
                "lives_per_s": round(rate),
                "best_lives_per_s": round(max(rates)),
                "us_per_life": round(1e6 / rate, 2),
            }
        )
    return rows
