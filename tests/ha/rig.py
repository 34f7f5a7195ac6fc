"""Replicas on a manual clock over one memory disk, and a stage that remembers its roles."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import TypeVar

from cronoq_server.engine.engine import Engine
from cronoq_server.engine.events import Get
from cronoq_server.engine.model import SECOND
from cronoq_server.ha import Outcome, Replica, ReplicaSettings, TermSettings
from cronoq_server.runtime import Driver, PruneSettings
from cronoq_server.stores.base import Leadership
from cronoq_server.stores.memory import MemoryDisk, MemoryStore
from cronoq_server.testing.builders import engine_settings, submit
from cronoq_server.testing.faults import FaultyStore, ManualClock, settle

T = TypeVar("T")

TERM = TermSettings(poll=SECOND // 2, keepalive=SECOND, trust=5 * SECOND)
QUIET = PruneSettings(interval=10_000 * SECOND)


class HalfChance:
    """Chance that always says the middle."""

    def below(self, bound: int) -> int:
        """Half of the bound."""
        return bound // 2


class Node:
    """One replica with its own handle on a disk.

    Attributes:
        leads: Set while it leads.
        replica: What is tested.
        roles: What it has been, in order.
        store: Fails when the test says so.
        running: Its `run`.
    """

    def __init__(
        self,
        disk: MemoryDisk,
        clock: ManualClock,
        term: TermSettings = TERM,
        prune: PruneSettings = QUIET,
    ) -> None:
        self.store = FaultyStore(MemoryStore(disk, remembers=True))
        self.roles: list[str] = []
        self.leads = asyncio.Event()
        self.replica = Replica(
            self.store,
            clock,
            _engine,
            ReplicaSettings(term=term, prune=prune, grace=SECOND),
            self,
        )
        self.running: asyncio.Task[Outcome] | None = None

    def start(self) -> None:
        """Begins to run."""
        self.running = asyncio.create_task(self.replica.run())

    def is_ready(self) -> bool:
        """Whether it may be sent calls."""
        return self.replica.ready

    @asynccontextmanager
    async def leading(self, driver: Driver) -> AsyncIterator[None]:
        """Notes when it leads and when it ceases to."""
        self.roles.append(f"leads {driver.leadership.epoch}")
        self.leads.set()
        try:
            yield
        finally:
            self.leads.clear()
            self.roles.append("steps down")

    async def stand_by(self) -> None:
        """Notes the first time of standing by."""
        if self.roles[-1:] != ["stands by"]:
            self.roles.append("stands by")

    async def submit(self) -> int:
        """Submits one task and returns its id."""
        answer = await self.replica.leader().inbox.ask(submit)
        task_id: int = answer.ids[0]  # type: ignore[union-attr]
        return task_id

    async def status(self, task_id: int) -> int:
        """The status of a task."""
        answer = await self.replica.leader().inbox.ask(lambda call: Get(call, task_id))
        status: int = answer.status  # type: ignore[union-attr]
        return status

    async def stop(self) -> Outcome:
        """Stops it in order."""
        assert self.running is not None
        self.replica.stop()
        return await self.running


def _engine(leadership: Leadership) -> Engine:
    settings = engine_settings(
        epoch=leadership.epoch, high_water=leadership.high_water, store_remembers=True
    )
    return Engine(settings, HalfChance())


async def eventually(clock: ManualClock, work: Awaitable[T]) -> T:
    """Moves the clock until a piece of work is done."""
    task = asyncio.ensure_future(work)
    while not task.done():
        await clock.advance(SECOND // 10)
    return task.result()


__all__ = ["TERM", "Node", "eventually", "settle"]
