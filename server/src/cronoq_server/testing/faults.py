"""A store that fails when it is told to.

With it and a clock moved by hand a test decides what happens when: nothing here waits for real
time, and a seed makes every fault repeatable.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import AsyncIterator, Iterable, Sequence
from enum import StrEnum

from cronoq_server.engine.model import Instant
from cronoq_server.engine.mutations import Output, RecoveredChunk, StoredTask
from cronoq_server.runtime.manual_clock import ManualClock as ManualClock
from cronoq_server.runtime.manual_clock import settle as settle
from cronoq_server.stores.base import (
    Batch,
    Capabilities,
    Fenced,
    FinishedPage,
    FinishedQuery,
    Leadership,
    Rejected,
    Store,
    TimeBase,
    Unavailable,
)


class Fault(StrEnum):
    """What becomes of one commit, or of one check."""

    NONE = "none"
    OUTAGE = "outage"
    """`Unavailable`, and nothing was written."""
    LOST_ACK = "lost_ack"
    """`Unavailable`, though it was written."""
    FENCED = "fenced"
    """`Fenced`, and nothing was written."""
    REJECTED = "rejected"
    """`Rejected`, and nothing was written."""


class FaultyStore:
    """Another store, with faults in its commits and checks, by script or by seed.

    Attributes:
        attempts: Positions of all commits that were tried, in order.
        checks: How many checks were made.
        committed: Positions of the batches that were written, in order.
        searches: Keys of all look-ups of finished tasks, in order.
    """

    def __init__(
        self,
        inner: Store,
        *,
        script: Iterable[Fault] = (),
        seed: int | None = None,
        rate: float = 0.2,
    ) -> None:
        """Wraps a store.

        Args:
            inner: The store that does the work.
            script: Faults of the first commits and checks, in order.
            seed: After the script, passing faults by chance from this seed; None = no faults.
            rate: How many of them, from 0 to 1.
        """
        self.attempts: list[int] = []
        self.checks = 0
        self.committed: list[int] = []
        self.searches: list[tuple[str, ...]] = []
        self._inner = inner
        self._script = deque(script)
        self._chance = None if seed is None else random.Random(seed)
        self._rate = rate
        self._way_in = asyncio.Event()
        self._way_out = asyncio.Event()
        self._search_gate = asyncio.Event()
        self._recovery_gate = asyncio.Event()
        self._search_faults = 0
        self._searches_to_hold: int | None = None
        self._way_in.set()
        self._way_out.set()
        self._search_gate.set()
        self._recovery_gate.set()

    def hold(self) -> None:
        """From now on commits and checks wait before they do anything, until `let_go`."""
        self._way_in.clear()

    def hold_answers(self) -> None:
        """From now on commits and checks are done, but do not answer until `let_go`."""
        self._way_out.clear()

    def hold_searches(self, count: int | None = None) -> None:
        """From now on look-ups of finished tasks wait, until `let_go`; all, or the next so many."""
        self._search_gate.clear()
        self._searches_to_hold = count

    def hold_recovery(self) -> None:
        """From now on recoveries wait before they begin, until `let_go`."""
        self._recovery_gate.clear()

    def fail_searches(self, count: int) -> None:
        """The next so many look-ups are `Unavailable`."""
        self._search_faults = count

    def let_go(self) -> None:
        """Lets everything pass again."""
        self._way_in.set()
        self._way_out.set()
        self._search_gate.set()
        self._recovery_gate.set()

    def add_faults(self, *faults: Fault) -> None:
        """Faults of the next commits and checks."""
        self._script.extend(faults)

    @property
    def capabilities(self) -> Capabilities:
        """See `Store.capabilities`."""
        return self._inner.capabilities

    async def acquire_leadership(
        self, holder: str, now: Instant, time_base: TimeBase
    ) -> Leadership | None:
        """See `Store.acquire_leadership`."""
        leadership = await self._inner.acquire_leadership(holder, now, time_base)
        return None if leadership is None else _FaultyLeadership(self, leadership)

    async def commit(self, leadership: Leadership, batch: Batch) -> None:
        """See `Store.commit`."""
        self.attempts.append(batch.position)
        await self._way_in.wait()
        fault = self._next_fault()
        self._fail_before(fault)
        await self._inner.commit(_inner_term(leadership), batch)
        if batch.position not in self.committed:
            self.committed.append(batch.position)
        await self._way_out.wait()
        if fault is Fault.LOST_ACK:
            raise Unavailable("the answer was lost, on purpose")

    async def check(self, leadership: Leadership) -> None:
        """What `Leadership.check` does."""
        self.checks += 1
        await self._way_in.wait()
        fault = self._next_fault()
        self._fail_before(fault)
        await leadership.check()
        await self._way_out.wait()
        if fault is Fault.LOST_ACK:
            raise Unavailable("the answer was lost, on purpose")

    def _next_fault(self) -> Fault:
        if self._script:
            return self._script.popleft()
        if self._chance is not None and self._chance.random() < self._rate:
            return self._chance.choice((Fault.OUTAGE, Fault.LOST_ACK))
        return Fault.NONE

    def _fail_before(self, fault: Fault) -> None:
        if fault is Fault.OUTAGE:
            raise Unavailable("an outage, on purpose")
        if fault is Fault.FENCED:
            raise Fenced("fenced, on purpose")
        if fault is Fault.REJECTED:
            raise Rejected("rejected, on purpose", "StatusChanged", 1, "message")

    async def recover(
        self, leadership: Leadership, horizon: Instant
    ) -> AsyncIterator[RecoveredChunk]:
        """See `Store.recover`."""
        await self._recovery_gate.wait()
        async for chunk in self._inner.recover(_inner_term(leadership), horizon):
            yield chunk

    async def release_leadership(self, leadership: Leadership) -> None:
        """See `Store.release_leadership`."""
        await self._inner.release_leadership(_inner_term(leadership))

    async def load_outputs(self, ids: Sequence[int]) -> dict[int, Output]:
        """See `Store.load_outputs`."""
        return await self._inner.load_outputs(ids)

    async def find_finished(self, query: FinishedQuery) -> FinishedPage:
        """See `Store.find_finished`."""
        self.searches.append(query.keys)
        if self._searches_to_hold is None:
            await self._search_gate.wait()
        elif self._searches_to_hold:
            self._searches_to_hold -= 1
            await self._search_gate.wait()
        if self._search_faults:
            self._search_faults -= 1
            raise Unavailable("a failed look-up, on purpose")
        return await self._inner.find_finished(query)

    async def load_tasks(self, ids: Sequence[int]) -> list[StoredTask]:
        """See `Store.load_tasks`."""
        return await self._inner.load_tasks(ids)

    async def close(self) -> None:
        """See `Store.close`."""
        await self._inner.close()


class _FaultyLeadership:
    """A term whose checks fail as its store says."""

    def __init__(self, store: FaultyStore, inner: Leadership) -> None:
        self.epoch = inner.epoch
        self.position = inner.position
        self.high_water = inner.high_water
        self.inner = inner
        self._store = store

    async def check(self) -> None:
        await self._store.check(self.inner)


def _inner_term(leadership: Leadership) -> Leadership:
    assert isinstance(leadership, _FaultyLeadership), leadership
    return leadership.inner
