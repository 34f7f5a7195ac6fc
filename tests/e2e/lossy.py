"""A relay before a database that loses the answer to a COMMIT when it is asked to."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.e2e.accepting import accepting

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

    @asynccontextmanager
    async def open(self) -> AsyncIterator[LossyRelay]:
        """Listens while the context is open."""
        async with accepting(self._serve) as acceptor:
            self.port = acceptor.port
            yield self

    async def lose_one(self) -> None:
        """Returns when a transaction was committed and nobody was told."""
        self._lost.clear()
        self._lose = True
        await self._lost.wait()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            back, there = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            return
        with contextlib.closing(there):
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
