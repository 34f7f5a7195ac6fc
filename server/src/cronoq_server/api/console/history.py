"""How things have been going lately: one sample of the leader every few seconds, kept for an hour.

The charts of all visitors are drawn from these samples, so that looking costs no more with many
visitors than with one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final, NoReturn

import msgspec

from cronoq_server.engine import SECOND, Instant, PoolView, SnapshotQuery, SnapshotView, Spread
from cronoq_server.runtime.driver import Driver
from cronoq_server.runtime.refusals import Refused

EVERY_S: Final = 2.0
KEPT: Final = 1800
"""Samples that are kept: an hour."""

ANSWER_MAX: Final = 1800


class PoolSample(msgspec.Struct, frozen=True, gc=False):
    """One pool at one moment; counters run since the leader took over."""

    pending: int
    busy: int
    capacity: int
    dispatched: int
    succeeded: int
    failed: int
    oldest_ready_s: float
    wait_p50_s: float
    wait_p99_s: float


class Sample(msgspec.Struct, frozen=True):
    """All pools at one moment.

    Attributes:
        at: Wall instant.
        epoch: Whose counters these are.
        pools: Figures by pool.
        commit_p50_s: Median time of the commits since the sample before.
        commit_p99_s: Their 99th percentile.
    """

    at: Instant
    epoch: int
    pools: dict[str, PoolSample]
    commit_p50_s: float
    commit_p99_s: float


class History:
    """The samples of one process, over all its leaderships."""

    def __init__(self) -> None:
        self._samples: deque[Sample] = deque(maxlen=KEPT)
        self._commits = Spread()

    def since(self, after: Instant) -> list[Sample]:
        """Samples later than an instant, oldest first."""
        found: list[Sample] = []
        for sample in reversed(self._samples):
            if sample.at <= after or len(found) == ANSWER_MAX:
                break
            found.append(sample)
        return found[::-1]

    @property
    def last(self) -> Sample | None:
        """The latest one."""
        return self._samples[-1] if self._samples else None

    async def run(self, driver: Driver) -> NoReturn:
        """Samples a leadership until it is cancelled; a leader that ends is asked in vain."""
        self._commits = driver.meters.commit_time.spread()
        while True:
            try:
                view = await driver.inbox.ask(SnapshotQuery)
            except Refused:
                view = None
            if isinstance(view, SnapshotView):
                self.take(driver, view)
            await asyncio.sleep(EVERY_S)

    def take(self, driver: Driver, view: SnapshotView) -> None:
        """Keeps one sample."""
        at = driver.clock.now().wall
        commits = driver.meters.commit_time.spread()
        before, self._commits = self._commits, commits
        self._samples.append(
            Sample(
                at,
                driver.leadership.epoch,
                {pool.name: _sample(pool, at) for pool in view.pools},
                quantile(before, commits, 0.5),
                quantile(before, commits, 0.99),
            )
        )


def quantile(before: Spread, after: Spread, share: float) -> float:
    """The bound, in seconds, below which a share of the new values lies; 0 = there are none."""
    old = before.counts if len(before.counts) == len(after.counts) else (0,) * len(after.counts)
    counts = [now - then for now, then in zip(after.counts, old, strict=True)]
    wanted = sum(counts) * share
    seen = 0
    for bound, count in zip((*after.bounds, after.bounds[-1]), counts, strict=True):
        seen += count
        if count and seen >= wanted:
            return bound / SECOND
    return 0.0


def _sample(pool: PoolView, at: Instant) -> PoolSample:
    oldest = pool.oldest_ready_at
    return PoolSample(
        sum(pool.pending_by_class),
        pool.busy,
        pool.capacity,
        pool.dispatched,
        pool.succeeded,
        pool.failed,
        0.0 if oldest is None else max(0, at - oldest) / SECOND,
        pool.waits[0],
        pool.waits[2],
    )
