"""Tells a pool's webhook how many slots are wanted, newest wish only, one request at a time.

Rules a change must keep:

1. Requests to one webhook never overlap, so that a late answer can't undo a newer wish; each
   carries a number that rises, for receivers behind a proxy that reorders.
2. A wish that changed while a request was out is sent next; those in between are not sent.
3. A failure is logged and tried again with a growing pause; it never touches the engine.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from types import TracebackType

import httpx
import msgspec

from cronoq_server.engine.model import SECOND, Duration
from cronoq_server.runtime.clock import Clock, after

REQUEST_TIMEOUT_S = 10.0
PAUSE_MIN: Duration = SECOND
PAUSE_MAX: Duration = 60 * SECOND

FAILURES = (httpx.HTTPError, httpx.InvalidURL, ValueError, OverflowError, ExceptionGroup)
"""What a request may raise. The last ones are about hosts, ports and tokens that can't be sent:
some of them come as a group, out of the attempts to connect."""

log = logging.getLogger(__name__)


class Webhook(msgspec.Struct, frozen=True):
    """Where one pool's wishes go.

    Attributes:
        pool: The pool.
        url: Receives a POST of `{"pool", "desired", "number"}`.
        token: Sent as a bearer token; empty = none.
    """

    pool: str
    url: str
    token: str = ""

    def __repr__(self) -> str:
        """Says nothing of the token, nor of what a URL may carry."""
        return f"Webhook(pool={self.pool!r})"


class Scalers:
    """The webhooks of one leadership; an asynchronous context that ends their requests."""

    def __init__(
        self,
        webhooks: Sequence[Webhook],
        clock: Clock,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """Args: `transport` replaces the network, for tests."""
        self._client = httpx.AsyncClient(timeout=REQUEST_TIMEOUT_S, transport=transport)
        self._lines = {hook.pool: _Line(hook, self._client, clock) for hook in webhooks}
        self._tasks: list[asyncio.Task[None]] = []

    def want(self, pool: str, desired: int) -> None:
        """Notes what a pool wants now; pools without a webhook are passed over."""
        line = self._lines.get(pool)
        if line is not None:
            line.want(desired)

    async def __aenter__(self) -> Scalers:
        self._tasks = [asyncio.create_task(line.run()) for line in self._lines.values()]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._client.aclose()


class _Line:
    """One webhook and the newest wish for it."""

    def __init__(self, hook: Webhook, client: httpx.AsyncClient, clock: Clock) -> None:
        self._hook = hook
        self._client = client
        self._clock = clock
        self._wanted: int | None = None
        self._told: int | None = None
        self._number = 0
        self._changed = asyncio.Event()

    def want(self, desired: int) -> None:
        self._wanted = desired
        self._changed.set()

    async def run(self) -> None:
        """Sends each new wish until it is cancelled."""
        pause = PAUSE_MIN
        while True:
            await self._changed.wait()
            self._changed.clear()
            wanted = self._wanted
            if wanted is None or wanted == self._told:
                continue
            if await self._tell(wanted):
                self._told = wanted
                pause = PAUSE_MIN
                continue
            await self._clock.sleep_until(after(self._clock.now(), pause))
            pause = min(2 * pause, PAUSE_MAX)
            self._changed.set()

    async def _tell(self, desired: int) -> bool:
        """Makes one request; whether the webhook took it."""
        self._number += 1
        hook = self._hook
        headers = {"authorization": f"Bearer {hook.token}"} if hook.token else {}
        body = {"pool": hook.pool, "desired": desired, "number": self._number}
        try:
            answer = await self._client.post(hook.url, json=body, headers=headers)
        except FAILURES as error:
            why = type(error).__name__
        else:
            if answer.is_success:
                return True
            why = f"status {answer.status_code}"
        log.warning(
            "the scaler of pool %s failed: %s",
            hook.pool,
            why,
            extra={"action": "scaler_failed", "pool": hook.pool},
        )
        return False
