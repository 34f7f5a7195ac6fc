"""Decides how concurrent waits share streams.

Waits that begin in one turn of the event loop go out as one WaitMany stream. Few streams are open
at a time: when all are in use, new waits gather for a moment and then join the smallest one, which
is opened anew. Targets are ids, since answers carry ids only. Waits change nothing, so a stream
that ends or breaks is simply opened again for what is still unanswered, in slices that the server
allows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any

from ._calls import WAIT, WAIT_MANY, BackoffSeries, Caller
from ._convert import read_result
from ._proto import tasks_pb2
from ._transport import ServerStream, client_closed, is_unavailable, status_error
from .errors import CronoqError, DeadlineError, UnsupportedError
from .options import seconds
from .views import TaskResult

STREAMS_MAX = 4
TARGETS_PER_STREAM = 10_000
# How long new waits gather while all streams are in use, seconds.
GATHER_S = 0.005
# The server ends a slice by itself; the call's own limit only guards against one that does not.
SLICE_ROOM_S = 30.0
# Single waits at a time toward a server that has no shared ones.
SINGLE_MAX = 256


class _Stream:
    """One open stream and what it still owes."""

    __slots__ = ("call", "is_replaced", "targets")

    def __init__(self, targets: set[int]) -> None:
        self.targets = targets
        self.call: ServerStream[tasks_pb2.TaskResults] | None = None
        self.is_replaced = False


class SharedWaits:
    """Joins the waits of one event loop into streams."""

    def __init__(self, caller: Caller, loop: asyncio.AbstractEventLoop) -> None:
        self._caller = caller
        self._loop = loop
        self._slice = seconds(caller.options.max_wait)
        self._waiting: dict[int, list[asyncio.Future[TaskResult]]] = {}
        self._fresh: set[int] = set()
        self._streams: set[_Stream] = set()
        self._timer: asyncio.Handle | None = None
        self._knows_many = True
        self._singles = asyncio.Semaphore(SINGLE_MAX)
        self._running: set[asyncio.Task[None]] = set()

    def begin(self, target: int) -> asyncio.Future[TaskResult]:
        """Starts a wait for a task id; the future tells the result when the task has ended."""
        future: asyncio.Future[TaskResult] = self._loop.create_future()
        waiting = self._waiting.get(target)
        if waiting is None:
            self._waiting[target] = [future]
            self._fresh.add(target)
            if self._timer is None:
                self._timer = self._loop.call_soon(self._open_fresh)
        else:
            waiting.append(future)
        return future

    def forget(self, target: int, future: asyncio.Future[TaskResult]) -> None:
        """Ends one wait that nobody waits for any more."""
        waiting = self._waiting.get(target)
        if waiting is not None and future in waiting:
            waiting.remove(future)
            if not waiting:
                del self._waiting[target]

    def _open_fresh(self) -> None:
        self._timer = None
        if not self._knows_many:
            self._wait_singly(self._take_fresh())
        elif len(self._streams) < STREAMS_MAX:
            self._open(self._take_fresh())
        else:
            self._timer = self._loop.call_later(GATHER_S, self._join_smallest)

    def _take_fresh(self) -> set[int]:
        fresh, self._fresh = self._fresh, set()
        return {target for target in fresh if target in self._waiting}

    def _join_smallest(self) -> None:
        self._timer = None
        targets = self._take_fresh()
        if len(self._streams) >= STREAMS_MAX:
            smallest = min(self._streams, key=lambda stream: len(stream.targets))
            smallest.is_replaced = True
            self._streams.discard(smallest)
            targets |= smallest.targets
            if smallest.call is not None:
                smallest.call.cancel()
        self._open(targets)

    def _open(self, targets: set[int]) -> None:
        ordered = list(targets)
        for start in range(0, len(ordered), TARGETS_PER_STREAM):
            stream = _Stream(set(ordered[start : start + TARGETS_PER_STREAM]))
            self._streams.add(stream)
            self._spawn(self._follow(stream))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _follow(self, stream: _Stream) -> None:
        """Keeps a stream open until it owes nothing."""
        backoff = BackoffSeries(self._caller.options)
        try:
            while self._still_owed(stream):
                trouble: CronoqError | None = None
                try:
                    needs_pause = await self._read(stream, backoff)
                except UnsupportedError:
                    self._knows_many = False
                    self._wait_singly(stream.targets)
                    return
                except DeadlineError:
                    needs_pause = True
                except CronoqError as error:
                    if stream.is_replaced:
                        return
                    if not is_unavailable(error):
                        self._fail(stream.targets, error)
                        return
                    needs_pause, trouble = True, error
                except OSError as error:  # a certificate file
                    self._fail(stream.targets, error)
                    return
                if needs_pause and self._still_owed(stream):
                    await asyncio.sleep(backoff.next_delay(trouble))
        finally:
            self._streams.discard(stream)
            if self._fresh and self._timer is not None:
                # A stream is free: nothing to gather for any more.
                self._timer.cancel()
                self._timer = self._loop.call_soon(self._open_fresh)

    def _still_owed(self, stream: _Stream) -> bool:
        if stream.is_replaced:
            return False
        stream.targets = {target for target in stream.targets if target in self._waiting}
        return bool(stream.targets)

    async def _read(self, stream: _Stream, backoff: BackoffSeries) -> bool:
        """Reads one stream to its end; True if the next shall wait a moment."""
        request = tasks_pb2.WaitManyRequest(timeout_s=self._slice)
        request.ids.extend(stream.targets)
        channel = self._caller.connection.channel()
        stream.call = channel.stream(WAIT_MANY, request, self._slice + SLICE_ROOM_S)
        has_failed_part = False
        began_at = self._loop.time()
        try:
            async for message in stream.call:
                if message.results:
                    backoff.reset()
                self._settle(message, stream)
                has_failed_part |= self._note_errors(message)
        finally:
            stream.call.cancel()
            stream.call = None
        # A server that ends slices at once must not be asked again and again without a pause.
        is_short = self._loop.time() - began_at < self._slice / 2
        return has_failed_part or is_short

    def _settle(self, message: tasks_pb2.TaskResults, stream: _Stream) -> None:
        for item in message.results:
            result = read_result(item)
            self._deliver(result)
            stream.targets.discard(result.id)

    def _note_errors(self, message: tasks_pb2.TaskResults) -> bool:
        has_retryable = False
        for failed in message.errors:
            error = status_error(failed.status)
            if isinstance(error, DeadlineError):
                continue
            if is_unavailable(error):
                has_retryable = True
                continue
            self._fail((failed.task.id,), error)
        return has_retryable

    def _deliver(self, result: TaskResult) -> None:
        for future in self._waiting.pop(result.id, ()):
            if not future.done():
                future.set_result(result)

    def _fail(self, targets: Iterable[int], error: Exception) -> None:
        for target in targets:
            for future in self._waiting.pop(target, ()):
                if not future.done():
                    future.set_exception(error)

    def _wait_singly(self, targets: Iterable[int]) -> None:
        for target in targets:
            self._spawn(self._wait_single(target))

    async def _wait_single(self, target: int) -> None:
        """Waits for one task on a server that has no shared waits."""
        backoff = BackoffSeries(self._caller.options)
        async with self._singles:
            while target in self._waiting:
                request = tasks_pb2.WaitRequest(timeout_s=self._slice)
                request.task.id = target
                ends_at = self._loop.time() + self._slice + SLICE_ROOM_S
                try:
                    answer = await self._caller.call(
                        WAIT, request, idempotent=True, ends_at=ends_at
                    )
                except CronoqError as error:
                    if not isinstance(error, DeadlineError) and not is_unavailable(error):
                        self._fail((target,), error)
                        return
                    await asyncio.sleep(backoff.next_delay(error))
                except OSError as error:  # a certificate file
                    self._fail((target,), error)
                else:
                    self._deliver(read_result(answer))

    async def close(self) -> None:
        """Ends all that is under way; whoever waits hears that the client is closed."""
        if self._timer is not None:
            self._timer.cancel()
        for task in tuple(self._running):
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        self._fail(tuple(self._waiting), client_closed())
