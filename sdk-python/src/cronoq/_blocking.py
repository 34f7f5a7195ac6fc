"""Decides how blocking calls ride on the async client: one event loop on a thread of its own.

A forked child has no such thread; the first call there makes its own.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator
from typing import Any, TypeVar

from .errors import ClosedError

T = TypeVar("T")


class LoopThread:
    """An event loop that runs in the background, for callers that have none."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pid = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def _begin(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        if self._pid != os.getpid():
            # Forked: the parent's loop has no thread here, and its lock may be held for ever.
            self._lock = threading.Lock()
            self._loop = None
            self._pid = os.getpid()
        with self._lock:
            if self._loop is None:
                loop = self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=loop.run_forever, name="cronoq-blocking", daemon=True
                )
                self._thread.start()
            # Under the lock: what is begun before the end of the loop ends with it.
            return asyncio.run_coroutine_threadsafe(work, self._loop)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine to its end; an interrupt cancels it.

        Raises:
            ClosedError: The loop was ended meanwhile.
            RuntimeError: Called from the loop itself, which would wait for ever.
        """
        if threading.current_thread() is self._thread and self._pid == os.getpid():
            work.close()
            raise RuntimeError("a blocking call on its own event loop never ends")
        future = self._begin(work)
        try:
            return future.result()
        except concurrent.futures.CancelledError as error:
            raise ClosedError("the client is closed") from error
        except BaseException:
            future.cancel()
            raise

    def iterate(self, items: AsyncIterator[T]) -> Iterator[T]:
        """Iterates over an async iterator; leaving early closes it."""
        try:
            while (item := self.run(_next(items))) is not None:
                yield item[0]
        finally:
            close = getattr(items, "aclose", None)
            if close is not None:
                self.run(close())

    def close(self) -> None:
        """Ends the loop and its thread, and with them the calls that other threads wait for."""
        if self._pid != os.getpid():
            return
        with self._lock:
            loop, thread = self._loop, self._thread
            self._loop = None
        if loop is None or thread is None:
            return
        asyncio.run_coroutine_threadsafe(_cancel_others(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


async def _next(items: AsyncIterator[T]) -> tuple[T] | None:
    try:
        return (await anext(items),)
    except StopAsyncIteration:
        return None
