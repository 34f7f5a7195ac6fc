"""What stands in for `_hosts_network` where no network namespaces can be had: relays on loopback.

Whoever would speak to another host speaks to a relay. What is cut is held back until it is healed,
as a peer that sends again would have it; a share that is lost comes late. Packets cannot be doubled
or overtaken here, and so they are not.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager

from tests.campaigns._hosts_wire import Rule

SENT_AGAIN_S = 0.2
"""How late comes what was lost: the least time after which TCP sends again."""


class Relays:
    """See `Network`; all hosts are this one.

    Attributes:
        addresses: By host.
        knows_packets: Whether packets can be doubled and overtaken.
    """

    knows_packets = False

    def __init__(self, hosts: Iterable[str]) -> None:
        self.addresses = dict.fromkeys(hosts, "127.0.0.1")
        self._cut: dict[tuple[str, str], float] = {}
        self._delays_s: dict[tuple[str, str], float] = {}
        self._healed = asyncio.Event()
        self._chance = random.Random(0)
        self._stack = AsyncExitStack()
        self._serving: set[asyncio.Task[None]] = set()

    def wrapper(self, _host: str) -> tuple[str, ...]:
        """Nothing is needed to run a command here."""
        return ()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Relays]:
        """Relays made meanwhile live as long as the context."""
        async with self._stack:
            try:
                yield self
            finally:
                for task in list(self._serving):
                    task.cancel()
                await asyncio.gather(*self._serving, return_exceptions=True)

    async def endpoint(self, source: str, target: str, port: int) -> str:
        """Where a port of a target is for a source."""

        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.ensure_future(self._serve(reader, writer, source, target, port))
            self._serving.add(task)
            task.add_done_callback(self._serving.discard)

        server = await asyncio.start_server(accept, "127.0.0.1", 0)
        self._stack.callback(server.close)
        return f"127.0.0.1:{server.sockets[0].getsockname()[1]}"

    async def cut(self, source: str, target: str, share: float = 1.0) -> None:
        """See `Network.cut`."""
        self._healed.clear()
        self._cut[source, target] = share

    async def spoil(self, rules: dict[tuple[str, str], Rule]) -> None:
        """See `Network.spoil`."""
        for way, rule in rules.items():
            self._delays_s[way] = rule.delay_ms / 1000

    async def heal(self) -> None:
        """See `Network.heal`."""
        self._cut.clear()
        self._delays_s.clear()
        self._healed.set()

    async def _serve(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        source: str,
        target: str,
        port: int,
    ) -> None:
        with contextlib.suppress(OSError), contextlib.closing(writer):
            back, there = await asyncio.open_connection("127.0.0.1", port)
            with contextlib.closing(there):
                ways = {
                    asyncio.ensure_future(self._pass(reader, there, (source, target))),
                    asyncio.ensure_future(self._pass(back, writer, (target, source))),
                }
                try:
                    await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for way in ways:
                        way.cancel()
                    await asyncio.gather(*ways, return_exceptions=True)

    async def _pass(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, way: tuple[str, str]
    ) -> None:
        while content := await source.read(65_536):
            share = self._cut.get(way, 0.0)
            if share >= 1:
                await self._healed.wait()
            elif self._chance.random() < share:
                await asyncio.sleep(SENT_AGAIN_S)
            if delay_s := self._delays_s.get(way):
                await asyncio.sleep(delay_s)
            sink.write(content)
            await sink.drain()
