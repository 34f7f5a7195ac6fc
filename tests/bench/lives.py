"""The engine alone, stepped through whole lives of tasks and timed by its processor time.

Each step reports what the one before has dispatched and submits as many new tasks, so that a
backlog stays as long as it is.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from typing import Any

from cronoq_server.engine import (
    SECOND,
    Completed,
    Duration,
    Engine,
    EngineSettings,
    Submit,
    SubmitMode,
    TaskSpec,
)
from cronoq_server.engine.effects import Dispatch
from cronoq_server.engine.events import AttemptsReported, Event, Released
from cronoq_server.engine.model import Now
from cronoq_server.runtime import SystemChance, tame_gc


class Lives(ABC):
    """An engine under a steady flow.

    Args:
        settings: Its pools and limits.
        workers: How many workers will have joined; their sessions are 0, 1, and so on.
        tick: Time between two steps.
    """

    def __init__(self, settings: EngineSettings, workers: int, tick: Duration) -> None:
        self._engine = Engine(settings, SystemChance())
        self._tick = tick
        self._now = Now(1_700_000_000 * SECOND, SECOND)
        self._engine.restore((), self._now)
        self._calls = self._steps = 0
        self._reports = [0] * workers
        self._done: list[tuple[int, list[Any]]] = []
        tame_gc()

    @abstractmethod
    def _spec(self) -> TaskSpec:
        """A task to be submitted."""

    def _submit(self, count: int) -> Submit:
        self._calls += 1
        return Submit(self._calls, [self._spec() for _ in range(count)], SubmitMode.MANY, 2**62)

    def _step(self, happened: list[Event]) -> float:
        """Takes a step; returns the processor time that it took, in seconds."""
        self._now = Now(self._now.wall + self._tick, self._now.mono + self._tick)
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

    def round(self, steps: int) -> float:
        """Processor time of a life over so many steps, in seconds."""
        played = [self._live() for _ in range(steps)]
        return sum(took for _, took in played) / sum(lives for lives, _ in played)
