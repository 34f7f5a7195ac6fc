"""Decides where sync handlers run: in daemon threads of the worker's own, made when needed.

A thread cannot be ended from outside, so its slot is taken until it returns; being a daemon, it
does not keep a program alive that has given up on it.
"""

from __future__ import annotations

import contextvars
import queue
import threading
from collections.abc import Callable

Work = Callable[[], None]


class HandlerThreads:
    """Runs work on at most `size` threads."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._queue: queue.SimpleQueue[tuple[contextvars.Context, Work] | None] = (
            queue.SimpleQueue()
        )
        self._lock = threading.Lock()
        self._count = 0
        self._open = 0  # work begun or queued

    def submit(self, work: Work) -> None:
        """Has a thread do `work`, in a copy of the caller's context."""
        with self._lock:
            self._open += 1
            is_short = self._open > self._count and self._count < self._size
            if is_short:
                self._count += 1
        self._queue.put((contextvars.copy_context(), work))
        if is_short:
            name = f"cronoq-handler-{self._count}"
            threading.Thread(target=self._serve, name=name, daemon=True).start()

    def _serve(self) -> None:
        while (item := self._queue.get()) is not None:
            context, work = item
            context.run(work)
            with self._lock:
                self._open -= 1

    def close(self) -> None:
        """Lets idle threads end; busy ones end when their work does."""
        with self._lock:
            count = self._count
        for _ in range(count):
            self._queue.put(None)
