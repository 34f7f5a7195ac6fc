"""How a process comes to lead, and how long it may believe that it still does.

Rules a change must keep:

1. A belief counts from the moment at which the check that confirmed it *began*, by the monotonic
   clock, and ends before another process could have taken over.
2. A belief that lapsed takes back the claim to be ready and nothing else: the driver shows and
   starts nothing without a commit or a check of its own. Only the store's word ends a term.
3. A term is kept from the moment it is taken, through recovery, whatever else goes on.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from typing import NoReturn

import msgspec

from cronoq_server.engine.model import SECOND, Duration, Now
from cronoq_server.engine.timers import NEVER
from cronoq_server.runtime.clock import Clock, after, within
from cronoq_server.stores.base import Leadership, Store, TimeBase, Unavailable

log = logging.getLogger(__name__)


class TermSettings(msgspec.Struct, frozen=True):
    """How leadership is sought and kept; durations in nanoseconds.

    Attributes:
        poll: How often a standby asks for it.
        keepalive: How often a leader confirms it; None = never, for a store of one process.
        trust: For how long a confirmation counts.
    """

    poll: Duration = SECOND // 2
    keepalive: Duration | None = SECOND
    trust: Duration = 9 * SECOND


class Candidate:
    """A process that would lead if it could."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._is_late = False

    async def ask(self) -> Leadership | None:
        """Asks the store once for the leadership; None while it can't be had.

        Raises:
            Unusable: The store must not be used as it is set up.
        """
        holder = uuid.uuid4().hex  # new for every acquisition
        wall = self._clock.now().wall
        try:
            leadership = await self._store.acquire_leadership(holder, wall, TimeBase())
        except Unavailable as error:
            self._note_late(error)
            return None
        self._is_late = False
        return leadership

    def _note_late(self, error: Unavailable) -> None:
        """Says once that the store does not answer, not with every poll."""
        if not self._is_late:
            log.warning("no leadership yet: %s", error, extra={"action": "store_late"})
        self._is_late = True


class Keeper:
    """Keeps one term by confirming it again and again."""

    def __init__(self, leadership: Leadership, clock: Clock, settings: TermSettings) -> None:
        """Begins to keep a term that was taken just now."""
        self._leadership = leadership
        self._clock = clock
        self._settings = settings
        self._confirmed = clock.now().mono
        self._is_late = False

    def is_trusted(self) -> bool:
        """Whether nobody else can have begun to lead."""
        if self._settings.keepalive is None:
            return True
        return self._clock.now().mono - self._confirmed < self._settings.trust

    async def run(self) -> NoReturn:
        """Confirms the term until it is cancelled.

        Raises:
            Fenced: The term is over.
        """
        pause = self._settings.keepalive
        while True:
            await self._clock.sleep_until(
                Now(NEVER, NEVER) if pause is None else after(self._clock.now(), pause)
            )
            await self._confirm()

    async def _confirm(self) -> None:
        began = self._clock.now().mono
        try:
            await self._leadership.check()
        except Unavailable as error:
            if not self._is_late:
                log.warning(
                    "the leadership is not confirmed: %s", error, extra={"action": "store_late"}
                )
            self._is_late = True
        else:
            self._confirmed = began
            self._is_late = False


async def pause(clock: Clock, stopping: asyncio.Event, length: Duration) -> None:
    """Waits for so many nanoseconds, or until `stopping` is set."""
    await within(clock, after(clock.now(), length), stopping.wait())
