"""When the store lets go of tasks that ended long ago: in small steps, so that commits never wait.

Every interval one step is made. Steps follow each other without a pause while the oldest tasks
that the store still shows are older than what is kept, those aside that stay whatever their age;
each step is durable before the next one begins, so that other work comes between them.
"""

from __future__ import annotations

import logging
from typing import NoReturn

import msgspec

from cronoq_server.engine.events import Prune
from cronoq_server.engine.model import SECOND, Duration, Instant, TaskFilter
from cronoq_server.runtime.clock import Clock, after
from cronoq_server.runtime.inbox import Inbox
from cronoq_server.runtime.refusals import Refused
from cronoq_server.stores.base import FinishedQuery, Store, StoreError

log = logging.getLogger(__name__)

LOOK: int = 100
"""How many of the oldest ids are looked at to see whether there is more to let go."""


class PruneSettings(msgspec.Struct, frozen=True):
    """How long ended tasks are kept; durations in nanoseconds.

    Attributes:
        keep: How long after its end a task may still be found.
        interval: Pause between looks.
        batch: Most tasks that one step lets go.
    """

    keep: Duration = 604_800 * SECOND
    interval: Duration = 60 * SECOND
    batch: int = 1000


class Pruner:
    """Prunes under one leadership."""

    def __init__(self, inbox: Inbox, store: Store, clock: Clock, settings: PruneSettings) -> None:
        self._inbox = inbox
        self._store = store
        self._clock = clock
        self._settings = settings

    async def run(self) -> NoReturn:
        """Prunes until it is cancelled; what fails is tried again an interval later."""
        while True:
            await self._clock.sleep_until(after(self._clock.now(), self._settings.interval))
            try:
                await self._catch_up()
            except (Refused, StoreError) as error:
                log.debug("old tasks are let go later: %s", error)

    async def _catch_up(self) -> None:
        """Makes steps until the oldest tasks are young enough, but for those that have to stay."""
        before = self._clock.now().wall - self._settings.keep
        behind = 0
        previous: list[int] = []
        while True:
            await self._inbox.ask(lambda call: Prune(call, before, self._settings.batch))
            older = await self._older(before, behind)
            if not older:
                return
            if older == previous:  # these stay, since live tasks depend on them: look behind them
                behind = older[-1]
            previous = older

    async def _older(self, before: Instant, behind: int) -> list[int]:
        # Ends are let go in their own order, while look-ups go by id: a few tasks that lived very
        # long may hide older ends behind them, and those wait for the next interval.
        page = await self._store.find_finished(
            FinishedQuery(filter=TaskFilter(), after=behind, limit=LOOK)
        )
        return [
            task.task_id
            for task in page.tasks
            if task.change is not None and task.change.at < before
        ]
