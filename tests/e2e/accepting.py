"""How relays of tests take connections: each is closed when all is over, however far it came."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]


class Acceptor:
    """What is being served.

    Attributes:
        port: Where it listens on loopback.
    """

    def __init__(self, serve: Serve) -> None:
        self.port = 0
        self._serve = serve
        self._is_over = False
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serves a connection in a task of its own: asyncio's complains when it is cancelled."""
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._tasks.add(task)

        def ended(_: asyncio.Task[None]) -> None:
            # Not left to the task: one that is cancelled before it began closes nothing.
            self._tasks.discard(task)
            writer.close()

        task.add_done_callback(ended)
        if self._is_over:
            task.cancel()

    def cut(self) -> None:
        """Ends every connection that there is."""
        for task in list(self._tasks):
            task.cancel()

    async def end(self) -> None:
        """Ends every connection, also those that are accepted and have not begun."""
        self._is_over = True
        await asyncio.sleep(0)
        while self._tasks:
            self.cut()
            await asyncio.gather(*self._tasks, return_exceptions=True)


@asynccontextmanager
async def accepting(serve: Serve) -> AsyncIterator[Acceptor]:
    """Takes connections on loopback while the context is open.

    Args:
        serve: Serves one; it is closed when this returns or is cancelled.
    """
    acceptor = Acceptor(serve)
    server = await asyncio.start_server(acceptor.begin, "127.0.0.1", 0)
    acceptor.port = server.sockets[0].getsockname()[1]
    try:
        yield acceptor
    finally:
        server.close()
        await acceptor.end()
