"""What makes steps durable: one commit, or one check of the leadership, at a time.

Rules a change must keep:

1. An attempt that ends as `Unavailable`, or takes longer than `commit_timeout`, may have happened:
   the same batch is tried again, with the same number, until the store says yes or no.
2. A retry begins only after the attempt before has ended; ending a cancelled one safely is the
   store's duty.
3. A check begins after the reads that it covers have arrived.
"""

from __future__ import annotations

import asyncio
import logging

from cronoq_server.engine.model import MILLISECOND, SECOND, Duration, Instant
from cronoq_server.runtime.clock import Clock, after
from cronoq_server.stores.base import Batch, Leadership, Store, StoreError, Unavailable

log = logging.getLogger(__name__)

BACKOFF_MIN: Duration = 100 * MILLISECOND
BACKOFF_MAX: Duration = 2 * SECOND


class Writer:
    """The one way from the driver to its store.

    Attributes:
        begun: Mono instant at which the present work began.
        failing: Whether the last attempt was not confirmed.
    """

    def __init__(
        self,
        store: Store,
        leadership: Leadership,
        clock: Clock,
        commit_timeout: Duration,
        bell: asyncio.Event,
    ) -> None:
        self.begun: Instant = 0
        self.failing = False
        self._store = store
        self._leadership = leadership
        self._clock = clock
        self._timeout = commit_timeout
        self._bell = bell
        self._batch: Batch | None = None
        self._work: asyncio.Task[None] | None = None

    @property
    def busy(self) -> bool:
        """Whether something was begun and not yet taken."""
        return self._work is not None

    def begin(self, batch: Batch | None, now: Instant) -> None:
        """Begins to commit a batch, or to check the leadership (None); rings when decided."""
        assert self._work is None
        self.begun = now
        self._batch = batch
        self._work = asyncio.get_running_loop().create_task(self._until_decided(batch))
        self._work.add_done_callback(lambda _: self._bell.set())

    def is_decided(self) -> bool:
        """Whether `take` may be called."""
        return self._work is not None and self._work.done()

    def take(self) -> Batch | None:
        """Returns the batch that is durable now, None after a check.

        Raises:
            Fenced: The leadership is over.
            Rejected: The batch can never be stored.
        """
        work, batch = self._work, self._batch
        assert work is not None
        self._work = self._batch = None
        work.result()
        return batch

    @property
    def committing(self) -> bool:
        """Whether a batch, and not a mere check, is on its way."""
        return self._batch is not None

    def waits_since(self, now: Instant) -> Duration:
        """For how long the present work has been going on; 0 without any."""
        return now - self.begun if self._work is not None else 0

    async def abandon(self) -> None:
        """Gives up what is going on, and returns when it can have no effect any more."""
        if self._work is not None:
            self._work.cancel()
            await asyncio.wait({self._work})
            if not self._work.cancelled():
                self._work.exception()
            self._work = self._batch = None

    async def _until_decided(self, batch: Batch | None) -> None:
        backoff = BACKOFF_MIN
        while True:
            try:
                await self._attempt(batch)
            except Unavailable as error:
                self.failing = True
                log.warning(
                    "the store did not confirm batch %s, trying again: %s",
                    "(check)" if batch is None else batch.position,
                    str(error),
                    extra={"action": "store_late"},
                )
            else:
                self.failing = False
                return
            await self._clock.sleep_until(after(self._clock.now(), backoff))
            backoff = min(2 * backoff, BACKOFF_MAX)

    async def _attempt(self, batch: Batch | None) -> None:
        task = asyncio.current_task()
        assert task is not None
        expired = False

        def expire() -> None:
            nonlocal expired
            expired = True
            task.cancel()

        alarm = self._clock.call_at(after(self._clock.now(), self._timeout), expire)
        try:
            if batch is None:
                await self._leadership.check()
            else:
                await self._store.commit(self._leadership, batch)
        except asyncio.CancelledError:
            # Cancelled by the owner as well: that one counts.
            if not expired or task.uncancel() > 0:
                raise
            raise Unavailable("no answer within the commit timeout") from None
        except StoreError:
            # Of a store that says so instead of raising what it was cancelled with.
            if expired:
                task.uncancel()
            if task.cancelling():
                raise asyncio.CancelledError from None
            raise
        else:
            if expired:
                task.uncancel()
        finally:
            alarm.cancel()
