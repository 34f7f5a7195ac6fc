"""Decides what a worker offers to a program: handlers by kind, start, readiness, stop."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Self, TypeVar

from ._endpoint import parse_configured
from ._engagement import Engagement, Hooks
from ._handlers import AnyHandler, Handler, Handlers
from ._payload import Codec
from ._signals import run_with_signals
from .attempt import Attempt, Interceptor
from .errors import ClosedError
from .options import Backoff, Keepalive, Seconds, TlsOptions, WorkerOptions, seconds

F = TypeVar("F", bound=AnyHandler)


class Worker:
    """Runs handlers for the tasks of one pool.

    Use it as an async context manager, or `await run()`, or call `run_forever()` from a program
    that has no event loop.
    """

    def __init__(
        self,
        *,
        endpoint: str = "127.0.0.1:7070",
        pool: str = "",
        slots: int = 1,
        name: str = "",
        labels: Mapping[str, str] | None = None,
        token: str | None = None,
        tls: TlsOptions | None = None,
        insecure_redirect_http: bool = False,
        drain_timeout: Seconds = 30.0,
        backoff: Backoff | None = None,
        session_reset: Seconds = 50.0,
        connect_timeout: Seconds = 5.0,
        keepalive: Keepalive | None = None,
        codec: Codec | None = None,
        max_message_bytes: int = 4 * 1024 * 1024,
        interceptors: Sequence[Interceptor] = (),
        on_connect: Callable[[str], object] | None = None,
        on_disconnect: Callable[[str, str], object] | None = None,
        on_redirect: Callable[[str, str], object] | None = None,
        on_abort: Callable[[Attempt, str], object] | None = None,
    ) -> None:
        """Makes a worker; nothing is sent before it is started.

        Args:
            endpoint: `host:port`, `http://…` or `https://…`.
            pool: Pool to work for; empty is the server's default.
            slots: Attempts that may run at once.
            name: Shown in listings; host and process id when empty.
            labels: What this worker can do.
            token: Bearer token.
            tls: TLS files.
            insecure_redirect_http: Send the token over plain http to hosts that a server named.
            drain_timeout: Time that running attempts get at a stop, seconds.
            backoff: Delays between connections.
            session_reset: A session of this length starts the backoff anew, seconds.
            connect_timeout: Time to get a connection, seconds.
            keepalive: How a dead connection is noticed.
            codec: How values become bytes.
            max_message_bytes: Largest message until a server names its own.
            interceptors: Each makes a context manager that is entered around every handler.
            on_connect: Called with the endpoint when a server accepted the worker.
            on_disconnect: Called with endpoint and reason when such a stream ended.
            on_redirect: Called with the endpoint that a server named, and why it is not followed
                (empty if it is).
            on_abort: Called with attempt and reason when a handler is told to stop.

        Raises:
            EndpointError: The endpoint cannot be read.
            ValueError: An option is out of its range.
        """
        defaults = WorkerOptions()
        self.options = WorkerOptions(
            endpoint=endpoint,
            pool=pool,
            slots=slots,
            name=name or f"{socket.gethostname()}:{os.getpid()}",
            labels=dict(labels or {}),
            token=token,
            tls=tls,
            insecure_redirect_http=insecure_redirect_http,
            drain_timeout=drain_timeout,
            backoff=backoff or defaults.backoff,
            session_reset=session_reset,
            connect_timeout=connect_timeout,
            keepalive=keepalive or defaults.keepalive,
            codec=codec or defaults.codec,
            max_message_bytes=max_message_bytes,
        )
        self._endpoint = parse_configured(endpoint, tls=tls is not None)
        self._interceptors = tuple(interceptors)
        self._hooks: Hooks = {
            "on_abort": on_abort,
            "on_connect": on_connect,
            "on_disconnect": on_disconnect,
            "on_redirect": on_redirect,
        }
        self._handlers = Handlers()
        self._engagement: Engagement | None = None

    def __repr__(self) -> str:
        options = self.options
        return f"Worker({options.endpoint!r}, pool={options.pool!r}, slots={options.slots})"

    # --- handlers -------------------------------------------------------------------------------

    def handler(self, kind: str) -> Callable[[F], F]:
        """Returns a decorator that makes a function the handler of a kind.

        Raises:
            ValueError: The kind has a handler already.
            TypeError: The signature cannot be called; see `cronoq` on handlers.
        """

        def register(function: F) -> F:
            self._handlers.add(kind, self._handler_of(function))
            return function

        return register

    def default_handler(self, function: F) -> F:
        """Makes a function the handler of every kind that has no other.

        Raises:
            ValueError: There is a default handler already.
            TypeError: The signature cannot be called.
        """
        self._handlers.add_default(self._handler_of(function))
        return function

    def _handler_of(self, function: AnyHandler) -> Handler:
        return Handler(function, self.options.codec, self._interceptors)

    # --- life -----------------------------------------------------------------------------------

    @property
    def is_ready(self) -> bool:
        """True while this worker receives work: connected, accepted, neither side stopping."""
        engagement = self._here()
        return engagement is not None and engagement.session.is_serving

    def start(self) -> None:
        """Starts the worker on the running loop; returns at once, connects in the background.

        Raises:
            ValueError: There is no handler.
            ClosedError: The worker runs already.
        """
        if not self._handlers:
            raise ValueError("the worker has no handler")
        if self._here() is not None:
            raise ClosedError("the worker was started already")
        self._engagement = Engagement(self.options, self._handlers, self._hooks)
        self._engagement.start(self._endpoint)

    async def wait_ready(self) -> None:
        """Waits until the worker receives work.

        Raises:
            GaveUpError: It never will.
            ClosedError: It is not running, or was stopped meanwhile.
        """
        await self._current().until(lambda: self.is_ready)

    async def stop(self, *, drain_timeout: Seconds | None = None) -> None:
        """Takes no more work, lets handlers finish, reports, disconnects. May be called again.

        Args:
            drain_timeout: Time for running handlers, seconds, instead of the option's.
        """
        engagement = self._here()
        if engagement is None:
            return
        timeout = self.options.drain_timeout if drain_timeout is None else drain_timeout
        await engagement.stop(seconds(timeout))
        if self._engagement is engagement:
            self._engagement = None

    async def run(self) -> None:
        """Runs until `stop` is called or the task is cancelled; drains in both cases.

        Raises:
            GaveUpError: A server's answer makes retries useless.
        """
        self.start()
        engagement = self._current()
        try:
            await engagement.until(lambda: engagement.is_stopped)
        finally:
            await self.stop()

    def run_forever(self) -> None:
        """Runs until SIGTERM or SIGINT, then drains; a second signal ends the drain.

        Raises:
            GaveUpError: A server's answer makes retries useless.
        """
        asyncio.run(run_with_signals(self.run, self._stop_at_signal))

    async def _stop_at_signal(self, may_drain: bool) -> None:
        await self.stop(drain_timeout=None if may_drain else 0.0)

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        engagement = self._here()
        failure = engagement.failure if engagement is not None else None
        await self.stop()
        if failure is not None and error is None:
            raise failure

    def _here(self) -> Engagement | None:
        """What runs in this process; a forked child has the parent's in memory, not in fact."""
        engagement = self._engagement
        return engagement if engagement is not None and engagement.is_here else None

    def _current(self) -> Engagement:
        engagement = self._here()
        if engagement is None:
            raise ClosedError("the worker is not running")
        return engagement
