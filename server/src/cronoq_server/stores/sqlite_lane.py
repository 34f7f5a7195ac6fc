"""One thread with one SQLite connection: how the event loop is kept from waiting for a disk.

Rules a change must keep:

1. A connection is used by its own thread only, one piece of work after the other.
2. Work that is cancelled is interrupted, and waited for: when `run` returns, it has no effect any
   more, or has had all of it.
3. After an error that leaves doubt about a connection it is closed; the next work opens another.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

from cronoq_server.stores.base import Unavailable

T = TypeVar("T")

Work = Callable[[sqlite3.Connection], T]


class Lane:
    """A thread and its connection."""

    def __init__(self, name: str, connect: Callable[[], sqlite3.Connection]) -> None:
        """Makes a lane; the connection is opened by the first work."""
        self._connect = connect
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._lock = threading.Lock()
        self._running: object | None = None
        self._db: sqlite3.Connection | None = None
        self._closed = False

    async def run(self, work: Work[T]) -> T:
        """Has work done on the lane's thread.

        Raises:
            Unavailable: The database could not do it now, or the lane was closed.
        """
        if self._closed:
            raise Unavailable("this store was closed")
        token = object()
        future = self._executor.submit(self._do, work, token)
        waited_for = asyncio.wrap_future(future)
        try:
            return await asyncio.shield(waited_for)
        except asyncio.CancelledError:
            if not future.cancel():
                self._interrupt(token)
                await _ended(waited_for)
            raise

    async def close(self) -> None:
        """Ends the thread after what it is doing, and closes the connection."""
        if self._closed:
            return
        self._closed = True
        await _ended(asyncio.wrap_future(self._executor.submit(self._disconnect)))
        self._executor.shutdown(wait=False)

    def _do(self, work: Work[T], token: object) -> T:
        try:
            if self._db is None:
                self._db = self._connect()
            with self._lock:
                self._running = token
            return work(self._db)
        except sqlite3.Error as error:
            self._tidy(error)
            raise Unavailable(f"SQLite: {error}") from error
        finally:
            with self._lock:
                self._running = None

    def _interrupt(self, token: object) -> None:
        with self._lock:
            if self._running is token and self._db is not None:
                self._db.interrupt()

    def _tidy(self, error: sqlite3.Error) -> None:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the primary code
        if code not in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_INTERRUPT):
            self._disconnect()

    def _disconnect(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None


@contextmanager
def transaction(db: sqlite3.Connection, mode: str = "IMMEDIATE") -> Iterator[None]:
    """All or none of what is done inside."""
    db.execute(f"BEGIN {mode}")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


async def _ended(future: asyncio.Future[T]) -> None:
    """Waits until it is over, whatever happens to the one who waits."""
    while not future.done():
        try:
            await asyncio.wait({future})
        except asyncio.CancelledError:
            continue
    if not future.cancelled():
        future.exception()
