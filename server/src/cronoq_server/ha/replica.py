"""One replica's life: standing by, recovering, leading, stepping down, and over again.

Rules a change must keep:

1. Every leadership has an engine and a driver of its own, recovered anew from the store.
2. What runs beside the driver is watched: a keeper that finds the term gone ends it at once; any
   other end of a companion is a defect that gives the term back and ends the process.
3. While it leads, whatever `Stage.leading` opened is open; it is closed before anybody else is
   asked to lead here again.
4. The store's refusal of a batch is recovered from once a minute; then the process ends, since
   recovery does not help.

How calls arrive is the stage's business.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from enum import StrEnum
from typing import Final, NoReturn, Protocol

import msgspec

from cronoq_server.engine.engine import Engine
from cronoq_server.engine.model import MILLISECOND, SECOND, Duration
from cronoq_server.ha.leadership import Candidate, Keeper, TermSettings, pause
from cronoq_server.runtime.clock import Clock, after, within
from cronoq_server.runtime.driver import LAST_COMMIT, Driver, DriverSettings, Ending
from cronoq_server.runtime.pruner import Pruner, PruneSettings
from cronoq_server.runtime.refusals import NOT_LEADER, STOPPING, Refused
from cronoq_server.stores.base import (
    Fenced,
    Leadership,
    Rejected,
    Store,
    StoreError,
    Unavailable,
)

log = logging.getLogger(__name__)

REJECTIONS_APART: Final[Duration] = 60 * SECOND
"""Two batches refused for good within this time end the process."""


class Stage(Protocol):
    """What the rest of the process does when its role changes."""

    def leading(self, driver: Driver) -> AbstractAsyncContextManager[None]:
        """Serves calls with this driver while the context is open."""

    async def stand_by(self) -> None:
        """Serves none from now on; called again and again while that is so."""


class Outcome(StrEnum):
    """Why a replica's life ended."""

    STOPPED = "stopped"
    """It was asked to."""
    REJECTED = "rejected"
    """The store keeps refusing what it is given."""


class ReplicaSettings(msgspec.Struct, frozen=True):
    """What a replica is told once.

    Attributes:
        driver: For each leadership's driver.
        term: How leadership is sought and kept.
        prune: When old tasks are let go.
        grace: How long running attempts may report at a shutdown, nanoseconds.
    """

    driver: DriverSettings = DriverSettings()
    term: TermSettings = TermSettings()
    prune: PruneSettings = PruneSettings()
    grace: Duration = 30 * SECOND


class Replica:
    """One process over a store that others may share."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        engine: Callable[[Leadership], Engine],
        settings: ReplicaSettings,
        stage: Stage,
    ) -> None:
        """Nothing is asked of the store before `run`.

        Args:
            store: Where state is kept; the caller closes it.
            clock: Where time comes from.
            engine: Makes the engine of a leadership.
            settings: Its rules.
            stage: What else changes with the role.
        """
        self._store = store
        self._clock = clock
        self._engine = engine
        self._settings = settings
        self._stage = stage
        self._driver: Driver | None = None
        self._keeper: Keeper | None = None
        self._stopping = asyncio.Event()

    @property
    def leading(self) -> bool:
        """Whether there is a driver that leads."""
        return self._driver is not None

    @property
    def ready(self) -> bool:
        """Whether calls are answered here: it leads, may believe so, and the store keeps up."""
        driver, keeper = self._driver, self._keeper
        return driver is not None and keeper is not None and driver.ready and keeper.is_trusted()

    @property
    def stopping(self) -> bool:
        """Whether it was asked to stop."""
        return self._stopping.is_set()

    def leader(self) -> Driver:
        """The driver that leads at this moment.

        Raises:
            Refused: This process does not lead, or has stopped.
        """
        if self._driver is None:
            raise Refused(STOPPING if self.stopping else NOT_LEADER)
        return self._driver

    def stop(self) -> None:
        """Asks for a shutdown in order; `run` returns when it is done."""
        self._stopping.set()

    async def run(self) -> Outcome:
        """Leads whenever it can, until it is stopped.

        Raises:
            Unusable: The store must not be used as it is set up.
        """
        rejected_at: int | None = None
        candidate = Candidate(self._store, self._clock)
        while not self.stopping:
            leadership = await candidate.ask()
            if leadership is None:
                await self._stage.stand_by()
                await pause(self._clock, self._stopping, self._settings.term.poll)
                continue
            if await self._lead(leadership) is Ending.REJECTED:
                now = self._clock.now().mono
                if rejected_at is not None and now - rejected_at < REJECTIONS_APART:
                    return Outcome.REJECTED
                rejected_at = now
        return Outcome.STOPPED

    async def _lead(self, leadership: Leadership) -> Ending:
        """One leadership; nothing here holds on to what it had when the stage stands by again."""
        try:
            return await self._have_term(leadership)
        finally:
            if not self.stopping:
                await self._stage.stand_by()

    async def _have_term(self, leadership: Leadership) -> Ending:
        """One leadership, from recovery to its end."""
        keeper = Keeper(leadership, self._clock, self._settings.term)
        engine = self._engine(leadership)
        driver = Driver(engine, self._store, leadership, self._clock, self._settings.driver)
        keeping = asyncio.create_task(keeper.run(), name="keeper")
        try:
            try:
                ending = await self._recover(driver, keeping)
            except BaseException:  # a defect, or the end of it all: let others lead
                await self._release(leadership)
                raise
            if ending is not None:
                await self._give_up(leadership, ending)
                return ending
            self._keeper = keeper
            return await self._serve(driver, keeping)
        finally:
            self._keeper = None
            await _end(keeping)

    # --- recovering ------------------------------------------------------------------------------

    async def _recover(self, driver: Driver, keeping: asyncio.Task[NoReturn]) -> Ending | None:
        """Recovers; how the term ended if that did not succeed."""
        began = self._clock.now().mono
        recovering = asyncio.create_task(driver.recover(), name="recovery")
        asked_to_stop = asyncio.create_task(self._stopping.wait(), name="stop")
        try:
            await asyncio.wait(
                (recovering, keeping, asked_to_stop), return_when=asyncio.FIRST_COMPLETED
            )
            if keeping.done():
                keeping.result()
            if not recovering.done():
                return Ending.STOPPED
            recovering.result()
        except Fenced as error:
            log.warning("leadership lost: %s", error, extra={"action": "leadership_lost"})
            return Ending.FENCED
        except (Rejected, Unavailable) as error:
            log.error("recovery failed: %s", error, extra={"action": "store_rejected"})
            return Ending.REJECTED if isinstance(error, Rejected) else Ending.FENCED
        finally:
            await _end(recovering, asked_to_stop)
        self._say_leading(driver, self._clock.now().mono - began)
        return None

    def _say_leading(self, driver: Driver, took: Duration) -> None:
        leadership, found = driver.leadership, driver.recovering
        log.info(
            "recovered %d live and %d ended tasks and %d schedules in %d ms",
            found.live,
            found.ended,
            found.schedules,
            took // MILLISECOND,
            extra={
                "action": "recovery_finished",
                "tasks": found.live,
                "ended": found.ended,
                "schedules": found.schedules,
                "took_ms": took // MILLISECOND,
                "epoch": leadership.epoch,
            },
        )
        log.info(
            "leading with epoch %d",
            leadership.epoch,
            extra={"action": "leadership_acquired", "epoch": leadership.epoch},
        )

    async def _give_up(self, leadership: Leadership, ending: Ending) -> None:
        """Lets others try, and waits a little: they may be luckier."""
        await self._release(leadership)
        if ending is not Ending.STOPPED:
            await self._stage.stand_by()
            await pause(self._clock, self._stopping, self._settings.term.poll)

    async def _release(self, leadership: Leadership) -> None:
        last = after(self._clock.now(), LAST_COMMIT)
        with contextlib.suppress(StoreError):  # the term runs out by itself
            await within(self._clock, last, self._store.release_leadership(leadership))

    # --- leading ---------------------------------------------------------------------------------

    async def _serve(self, driver: Driver, keeping: asyncio.Task[NoReturn]) -> Ending:
        pruner = Pruner(driver.inbox, self._store, self._clock, self._settings.prune)
        running = asyncio.create_task(driver.run(), name="driver")
        pruning = asyncio.create_task(pruner.run(), name="pruner")
        stopping = asyncio.create_task(self._stop_when_asked(driver), name="stop")
        try:
            self._driver = driver
            async with self._stage.leading(driver):
                await self._watch(driver, running, keeping, pruning)
                return await running
        finally:
            self._driver = None
            await _end(running, pruning, stopping)

    async def _watch(
        self, driver: Driver, running: asyncio.Task[Ending], *companions: asyncio.Task[NoReturn]
    ) -> None:
        """Returns when the driver has ended, or will: fenced by what a companion found."""
        await asyncio.wait((running, *companions), return_when=asyncio.FIRST_COMPLETED)
        for companion in companions:
            if companion.done() and not running.done():
                try:
                    companion.result()
                except Fenced as lost:
                    driver.fence(lost)

    async def _stop_when_asked(self, driver: Driver) -> None:
        await self._stopping.wait()
        log.info("shutting down", extra={"action": "server_stopping"})
        await driver.stop(self._settings.grace)


async def _end(*tasks: asyncio.Task[object]) -> None:
    """Cancels tasks and waits for them; what they failed with was asked for elsewhere."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
