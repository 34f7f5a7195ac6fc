"""The engine alone under a realistic mix: labels, tenants, limits and deadlines all at once.

Ten label sets on five kinds of worker, fifty tenants that share by weight, three semaphores that
are always used up, a deadline on every tenth task. Each step reports what the one before has
dispatched and submits as many new tasks, so that the backlog stays as long as it is. Steps are
timed by processor time.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from typing import Any

from cronoq_server.engine import SECOND, EngineSettings, PoolSettings, ResourceSettings, TaskSpec
from cronoq_server.engine.events import WorkerJoined
from tests.bench.lives import Lives

LABELS, PROFILES, TENANTS, SEMAPHORES, PERMITS = 10, 5, 50, 3, 20
STEP_SIZE = 100
STEPS_PER_ROUND = 100
WARM_UP = 2
TICK = SECOND // 100
"""Time between two steps."""


class MixedEngine(Lives):
    """An engine with a mixed backlog and five workers that live through what it dispatches."""

    def __init__(self, pending: int) -> None:
        pool = PoolSettings("default", fair_share=True, max_pending=10_000_000)
        limits = tuple(ResourceSettings(f"s{at}", permits=PERMITS) for at in range(SEMAPHORES))
        super().__init__(EngineSettings((pool,), limits), PROFILES, TICK)
        self._random = random.Random(1)
        for _ in range(pending // 1000):
            self._step([self._submit(1000)])
        self._step([self._join(worker) for worker in range(PROFILES)])

    def _join(self, worker: int) -> WorkerJoined:
        per_worker = LABELS // PROFILES
        labels = tuple((f"l{worker * per_worker + at}", "") for at in range(per_worker))
        token = worker.to_bytes(16, "big")
        slots = STEP_SIZE // PROFILES
        return WorkerJoined(worker, "default", slots, f"w{worker}", labels, (), 4, "", token)

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


def measure_mix(backlogs: Sequence[int], rounds: int) -> list[dict[str, Any]]:
    """Returns a row per backlog."""
    rows = []
    for pending in backlogs:
        engine = MixedEngine(pending)
        for _ in range(WARM_UP):
            engine.round(STEPS_PER_ROUND)
        rates = [1 / engine.round(STEPS_PER_ROUND) for _ in range(rounds)]
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
