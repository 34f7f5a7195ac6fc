"""One shard's address: passes connections to its replicas in turn, and hurts only other shards'.

Clients, workers and servers of other shards all come to the same address, as in any deployment. A
gateway tells them apart by the process at the other end of a connection, so that the way between
shards can be slow or gone while everybody else is served. Needs Linux's `/proc`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from tests.e2e.accepting import accepting

CHUNK = 65_536
TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))


class Gateway:
    """Listens for one shard.

    Attributes:
        address: Where.
        delay: How long bytes from servers of other shards take on their way, seconds.
    """

    def __init__(self, ports: Sequence[int], is_peer: Callable[[str], bool]) -> None:
        """Passes on to these ports; more may be added to a list while it listens.

        Args:
            ports: Of the shard's replicas.
            is_peer: Whether a server of another shard has this socket, by its number.
        """
        self.address = ""
        self.delay = 0.0
        self._port = 0
        self._ports = ports
        self._holds = is_peer
        self._next = 0
        self._way = asyncio.Event()
        self._way.set()
        self._lost: set[asyncio.StreamWriter] = set()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Gateway]:
        """Listens while the context is open."""
        async with accepting(self._serve) as acceptor:
            self._port = acceptor.port
            self.address = f"127.0.0.1:{self._port}"
            yield self

    def part(self) -> None:
        """Nothing from servers of other shards comes through any more, and nobody is told."""
        self._way.clear()

    def join(self) -> None:
        """Lets servers of other shards through again, but for those who called meanwhile."""
        for writer in self._lost:
            writer.transport.abort()
        self._way.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        is_peer = self._is_peer(writer.get_extra_info("peername")[1])
        try:
            if is_peer and not self._way.is_set():
                self._lost.add(writer)
                await self._way.wait()  # only to be closed: its first bytes would have been lost
            else:
                await self._connect(reader, writer, is_peer=is_peer)
        finally:
            self._lost.discard(writer)

    async def _connect(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_peer: bool
    ) -> None:
        for _ in self._ports:
            self._next += 1
            port = self._ports[self._next % len(self._ports)]
            try:
                there, back = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                continue
            hurt = self._hurt_pipe if is_peer else pipe
            try:
                await asyncio.gather(hurt(reader, back), pipe(there, writer))
            finally:
                back.close()
            return

    async def _hurt_pipe(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """As `pipe`, with whatever stands between shards at the moment."""
        line: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        clock = asyncio.get_running_loop().time

        async def deliver() -> None:
            while True:
                due, content = await line.get()
                await asyncio.sleep(due - clock())
                await self._way.wait()
                writer.write(content)
                await writer.drain()
                if not content:
                    return

        delivering = asyncio.create_task(deliver())
        try:
            with contextlib.suppress(ConnectionError):  # one side is gone, and with it the other
                while content := await reader.read(CHUNK):
                    line.put_nowait((clock() + self.delay, content))
        finally:
            delivering.cancel()
            await asyncio.gather(delivering, return_exceptions=True)
            writer.close()

    def _is_peer(self, port: int) -> bool:
        """Whether a server of another shard is at the other end of a connection from this port."""
        socket = socket_between(port, self._port)
        return socket is not None and self._holds(socket)


async def pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Passes everything on until one side is gone."""
    with contextlib.suppress(ConnectionError):
        while content := await reader.read(CHUNK):
            writer.write(content)
            await writer.drain()
    writer.close()


def socket_between(port: int, to: int) -> str | None:
    """The number of the socket that is connected from a loopback port to another one."""
    for table in TABLES:
        for line in table.read_text(encoding="ascii").splitlines()[1:]:
            fields = line.split()
            here, there = (int(field.rpartition(":")[2], 16) for field in fields[1:3])
            if (here, there) == (port, to):
                return fields[9]
    return None


def holds(pid: int, socket: str) -> bool:
    """Whether a process has this socket."""
    wanted = f"socket:[{socket}]"
    try:
        for name in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                if os.readlink(f"/proc/{pid}/fd/{name}") == wanted:
                    return True
    except (FileNotFoundError, ProcessLookupError):
        return False  # the process has ended
    return False
