"""A relay before a database that loses the answer to a COMMIT when it is asked to."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

COMMITTED = b"C\x00\x00\x00\x0bCOMMIT\x00"
"""How PostgreSQL says that a transaction is committed."""


class LossyRelay:
    """Passes everything on, but for the answers it is to lose.

    Attributes:
        port: Where it listens on loopback.
    """

    def __init__(self, target: int) -> None:
        self.port = 0
        self._target = target
        self._lose = False
        self._lost = asyncio.Event()
        self._serving: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[LossyRelay]:
        """Listens while the context is open."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            await asyncio.sleep(0)  # who was accepted just now has not begun, and must be closed
            for task in list(self._serving):
                task.cancel()
            await asyncio.gather(*self._serving, return_exceptions=True)

    async def lose_one(self) -> None:
        """Returns when a transaction was committed and nobody was told."""
        self._lost.clear()
        self._lose = True
        await self._lost.wait()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)
        with contextlib.suppress(OSError, asyncio.CancelledError), contextlib.closing(writer):
            back, there = await asyncio.open_connection("127.0.0.1", self._target)
            ways = (
                asyncio.create_task(self._pass(reader, there)),
                asyncio.create_task(self._answer(back, writer)),
            )
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)
                there.close()

    async def _pass(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while content := await source.read(65_536):
            sink.write(content)
            await sink.drain()

    async def _answer(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while content := await source.read(65_536):
            if self._lose and COMMITTED in content:
                self._lose = False
                self._lost.set()
                return  # and the connection ends
            sink.write(content)
            await sink.drain()
