"""A TCP relay between a store and its database that holds back or rewrites what comes back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

Rewrite = Callable[[bytes], bytes]


class Proxy:
    """Relays connections to a port.

    Attributes:
        port: Where it listens on loopback.
    """

    def __init__(self, target: int, rewrite: Rewrite | None = None) -> None:
        """Makes a relay.

        Args:
            target: The port relayed to.
            rewrite: Applied to whatever the server sends.
        """
        self.port = 0
        self._target = target
        self._rewrite = rewrite
        self._answers = asyncio.Event()
        self._answers.set()
        self._server: asyncio.Server | None = None
        self._clients: list[asyncio.StreamWriter] = []
        self._serving: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Proxy:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self.let_go()
        for writer in self._clients:
            writer.close()
        await asyncio.gather(*self._serving)

    def hold_answers(self) -> None:
        """From now on nothing comes back, until `let_go`."""
        self._answers.clear()

    def let_go(self) -> None:
        """Answers pass again."""
        self._answers.set()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._clients.append(writer)
        self._serving.append(asyncio.ensure_future(self._serve(reader, writer)))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back_reader, back_writer = await asyncio.open_connection("127.0.0.1", self._target)
        there = asyncio.ensure_future(self._pump(reader, back_writer, answers=False))
        back = asyncio.ensure_future(self._pump(back_reader, writer, answers=True))
        await asyncio.wait({there, back}, return_when=asyncio.FIRST_COMPLETED)
        for pump in (there, back):
            pump.cancel()
        await asyncio.gather(there, back, return_exceptions=True)
        writer.close()
        back_writer.close()

    async def _pump(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, answers: bool
    ) -> None:
        while received := await source.read(65_536):
            if answers:
                if self._rewrite is not None:
                    received = self._rewrite(received)
                await self._answers.wait()
            sink.write(received)
            await sink.drain()
