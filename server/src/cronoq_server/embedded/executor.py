"""How attempts run as functions of this process, as a worker's would.

Rules a change must keep:

1. To the engine an executor is a worker with one session: leases, heartbeats, reports, aborts.
2. A slot is free when its function has ended, not when somebody stopped waiting for it.
3. When the session ends, so do its functions: coroutines are cancelled, threads are told. What
   they put out then is lost, and their attempts count as used.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, NamedTuple, TypeAlias

from cronoq_server.api import texts
from cronoq_server.embedded.values import decode, encode
from cronoq_server.engine import (
    CancelAttempt,
    CancelledByWorker,
    Completed,
    Dispatch,
    Dropped,
    Failed,
    HeartbeatsRead,
    Joined,
    Lease,
    NotJoined,
    Report,
    WorkerJoined,
)
from cronoq_server.runtime import Clock, Driver, Refused, Session, after
from cronoq_server.runtime.sessions import Outbound, ShutdownNotice

Handler: TypeAlias = Callable[..., Any]

BEATS_PER_TTL: Final = 3
"""How often a lease is confirmed within its time to live."""


class Retryable(Exception):
    """Raised by a handler: the attempt has failed, and another may follow.

    So does any other exception; this one may say when, in seconds.
    """

    def __init__(self, message: str = "", *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Permanent(Exception):
    """Raised by a handler: the task has failed, and no attempt follows."""


class Cancel(Exception):
    """Raised by a handler: the task ends as cancelled."""


class Attempt:
    """One attempt of a task, for handlers that take a second argument.

    Attributes:
        task_id: The task.
        number: The attempt's number, from 1.
        kind: The task's kind.
        key: Its key, or an empty text.
        pool: Its pool.
        payload: Its payload's bytes.
        content_type: What they are.
        tags: Its tags.
        parents: Ids of the tasks it depended on.
        has_begun: Whether its function was called.
    """

    def __init__(self, lease: Lease) -> None:
        spec = lease.spec
        self.task_id = lease.task_id
        self.number = lease.attempt
        self.kind = spec.kind
        self.key = spec.key
        self.pool = spec.pool
        self.payload = spec.payload
        self.content_type = spec.content_type
        self.tags: Mapping[str, str] = dict(spec.tags)
        self.parents = lease.parents
        self.has_begun = False
        self._cancelled = threading.Event()

    @property
    def is_cancelled(self) -> bool:
        """Whether the function should end: for those that run in threads."""
        return self._cancelled.is_set()

    def cancel(self) -> None:
        """Tells the function to end."""
        self._cancelled.set()


class Function:
    """A handler, and what has to be known to call it."""

    __slots__ = ("arity", "call", "is_coroutine")

    def __init__(self, handler: Handler) -> None:
        self.call = handler
        self.is_coroutine = inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(
            getattr(handler, "__call__", None)  # noqa: B004 - an object may have an async one
        )
        self.arity = _arity(handler)


class _Raised(Exception):
    """What a function raised in a thread."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error


class _Running(NamedTuple):
    """An attempt and the task of the event loop that sees it through."""

    attempt: Attempt
    function: Function
    task: asyncio.Task[None]


class Executor:
    """Runs the attempts of one pool."""

    def __init__(
        self,
        pool: str,
        handlers: Handler | Mapping[str, Handler],
        *,
        slots: int,
        clock: Clock,
        threads: ThreadPoolExecutor | None,
        output_max: int,
    ) -> None:
        """Prepares; nothing runs before `run`.

        Args:
            pool: The pool it works for.
            handlers: One function for all kinds, or one for each.
            slots: How many attempts may run at once.
            clock: Where time comes from.
            threads: Where functions run that are no coroutines; None = in the event loop.
            output_max: Most bytes of an output.
        """
        self.pool = pool
        self._for_all = None if isinstance(handlers, Mapping) else Function(handlers)
        self._by_kind = (
            {kind: Function(handler) for kind, handler in handlers.items()}
            if isinstance(handlers, Mapping)
            else {}
        )
        self._slots = slots
        self._clock = clock
        self._threads = threads
        self._output_max = output_max
        self._running: dict[int, _Running] = {}
        self._reports = 0
        self._beats = 0
        self._last_lease = 0

    async def run(self, driver: Driver) -> None:
        """Works under one leadership, to its end or until it is cancelled.

        Raises:
            Refused: The engine does not want it.
        """
        session = driver.sessions.open(
            lambda number, token: WorkerJoined(
                session=number,
                pool=self.pool,
                slots=self._slots,
                name=f"embedded-{self.pool}",
                labels=(),
                kinds=tuple(sorted(self._by_kind)),
                protocol=4,
                credential="",
                token=token,
                sdk="embedded",
            )
        )
        beating: asyncio.Task[None] | None = None
        try:
            while True:
                for effect in await session.outbound():
                    if isinstance(effect, Joined):
                        beating = asyncio.create_task(self._beat(session, effect.lease_ttl))
                    elif self._is_last(session, effect):
                        return
        finally:
            session.lost(clean=True)
            if beating is not None:
                beating.cancel()
            await self._end_all()

    def _is_last(self, session: Session, effect: Outbound) -> bool:
        """Does what an effect asks for; whether the session is over."""
        if isinstance(effect, NotJoined):
            raise Refused(effect.refusal)
        if isinstance(effect, Dispatch):
            for lease in effect.leases:
                self._start(session, lease)
        elif isinstance(effect, CancelAttempt):
            for lease_id, _ in effect.aborts:
                self._abort(lease_id)
        elif isinstance(effect, ShutdownNotice):
            return effect.not_leader
        return isinstance(effect, Dropped)

    async def _beat(self, session: Session, ttl: int) -> None:
        while True:
            await self._clock.sleep_until(after(self._clock.now(), ttl // BEATS_PER_TTL))
            self._beats += 1
            session.beat(
                HeartbeatsRead(
                    session.number,
                    list(self._running),
                    number=self._beats,
                    last_lease=self._last_lease,
                )
            )

    # --- attempts --------------------------------------------------------------------------------

    def _start(self, session: Session, lease: Lease) -> None:
        self._last_lease = max(self._last_lease, lease.lease)
        attempt = Attempt(lease)
        function = self._for_all or self._by_kind[attempt.kind]
        seeing_through = self._see_through(session, lease.lease, attempt, function)
        task = asyncio.create_task(seeing_through)
        self._running[lease.lease] = _Running(attempt, function, task)

    def _abort(self, lease_id: int) -> None:
        running = self._running.get(lease_id)
        if running is not None:
            running.attempt.cancel()
            # A thread can only be told; its slot is free when it has listened.
            if running.function.is_coroutine and running.attempt.has_begun:
                running.task.cancel()

    async def _see_through(
        self, session: Session, lease_id: int, attempt: Attempt, function: Function
    ) -> None:
        try:
            report = await self._report(lease_id, attempt, function)
        finally:
            self._running.pop(lease_id, None)
        self._reports += 1
        session.reported(self._reports, [report])

    async def _report(self, lease_id: int, attempt: Attempt, function: Function) -> Report:
        """Runs the function and says how it ended."""
        try:
            output = await self._call(attempt, function)
        except _Raised as raised:
            return _failure(lease_id, attempt, raised.error)
        # Whatever a handler raises is its failure, never the scheduler's. An attempt that nobody
        # has cancelled may have waited for something that was: without a report it would be
        # offered again and again, under one number.
        except (Exception, SystemExit, asyncio.CancelledError) as error:  # noqa: BLE001
            return _failure(lease_id, attempt, error)
        if attempt.is_cancelled:
            return CancelledByWorker(lease_id)
        return self._completed(lease_id, output)

    def _completed(self, lease_id: int, output: object) -> Report:
        try:
            content, content_type = encode(output)
        except TypeError as error:
            return Failed(lease_id, texts.clean(f"output: {error}"), permanent=True)
        if len(content) > self._output_max:
            message = f"output: {len(content)} bytes exceed the limit of {self._output_max}"
            return Failed(lease_id, message, permanent=True)
        return Completed(lease_id, content, content_type)

    async def _call(self, attempt: Attempt, function: Function) -> Any:
        if attempt.is_cancelled:
            return None
        attempt.has_begun = True
        try:
            value = decode(attempt.payload, attempt.content_type)
        except ValueError as error:
            raise Permanent(f"payload: {error}") from error
        arguments = (value, attempt)[: function.arity]
        if function.is_coroutine:
            return await function.call(*arguments)
        if self._threads is None:
            return function.call(*arguments)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, _call_in_thread, function, arguments)

    async def _end_all(self) -> None:
        """Ends all functions; threads are told and not waited for."""
        running = list(self._running.values())
        for one in running:
            one.attempt.cancel()
            one.task.cancel()
        await asyncio.gather(*(one.task for one in running), return_exceptions=True)
        self._running.clear()


def _call_in_thread(function: Function, arguments: tuple[object, ...]) -> object:
    """Calls a function that is no coroutine.

    Raises:
        _Raised: It raised something. As it is, a future would not carry all of it, and who waits
            for that one would wait for ever.
    """
    try:
        return function.call(*arguments)
    except BaseException as error:
        raise _Raised(error) from error


def _failure(lease_id: int, attempt: Attempt, error: BaseException) -> Report:
    """What an exception of a handler means."""
    if attempt.is_cancelled or isinstance(error, Cancel):
        return CancelledByWorker(lease_id)
    text = _text_of(error)
    if isinstance(error, Permanent):
        return Failed(lease_id, texts.clean(text), permanent=True)
    if isinstance(error, Retryable):
        after = error.retry_after
        wished = after if isinstance(after, int | float) else None
        return Failed(lease_id, texts.clean(text), retry_after=texts.clean_delay(wished))
    name = type(error).__name__
    return Failed(lease_id, texts.clean(f"{name}: {text}" if text else name))


def _text_of(error: BaseException) -> str:
    """What an exception says; its text is made by code of its own, which may fail."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001
        return "(its text can't be made)"


def _arity(handler: Handler) -> int:
    """How many arguments a handler takes: none, the value, or the value and the attempt."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    try:
        parameters = inspect.signature(handler).parameters.values()
    except ValueError:  # a function of C that does not tell
        return 1
    return min(2, sum(parameter.kind in kinds for parameter in parameters))
