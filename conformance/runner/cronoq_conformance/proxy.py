"""Decides what becomes of the bytes between a participant and its server.

    pass       everything goes through, to the targets in turn
    refuse     every connection is reset as it is accepted (and counted)
    stall      connections are accepted and kept; nothing goes through, and nobody is told
    half       as stall, from the server to the participant only

`cut` resets what is open, also in the middle of a message. A mode counts for bytes of connections
that are open already, so a stall makes a half-open connection out of a living one.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Sequence
from time import monotonic

CHUNK = 64 * 1024
RESET = struct.pack("ii", 1, 0)  # SO_LINGER on, zero seconds: close sends RST.


class Proxy:
    """A TCP proxy on loopback.

    Attributes:
        port: Where it listens.
        accepted_at: When each connection was accepted, seconds of the monotonic clock.
    """

    def __init__(self, targets: Sequence[tuple[str, int]]) -> None:
        self._targets = list(targets)
        self._next = 0
        self._mode = "pass"
        self._flow = asyncio.Event()
        self._flow.set()
        self._open: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._changed = asyncio.Condition()
        self._cut_after: int | None = None
        self.delay = 0.0
        self.port = 0
        self.accepted_at: list[float] = []

    @property
    def endpoint(self) -> str:
        """Where it listens."""
        return f"127.0.0.1:{self.port}"

    async def start(self) -> None:
        """Listens on a free port."""
        self._server = await asyncio.start_server(self._begin, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Closes the port and every connection."""
        if self._server is not None:
            self._server.close()
        self.cut()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def set_mode(self, mode: str) -> None:
        """Sets what happens from now on, see the module."""
        assert mode in ("pass", "refuse", "stall", "half"), mode
        self._mode = mode
        if mode == "pass":
            self._flow.set()
        else:
            self._flow.clear()

    def cut(self) -> None:
        """Resets every open connection."""
        for writer in list(self._open):
            reset(writer)

    def cut_after(self, count: int) -> None:
        """Resets everything once so many more bytes have come from the participant."""
        self._cut_after = count

    async def accepted(self, count: int) -> None:
        """Returns when so many connections have been accepted since the start."""
        async with self._changed:
            await self._changed.wait_for(lambda: len(self.accepted_at) >= count)

    def _begin(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # A task of our own: asyncio's would complain of being cancelled at the end.
        task = asyncio.ensure_future(self._accept(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with self._changed:
            self.accepted_at.append(monotonic())
            self._changed.notify_all()
        if self._mode == "refuse":
            reset(writer)
            return
        self._open.add(writer)
        try:
            await self._join(reader, writer)
        except OSError:
            reset(writer)
        finally:
            self._open.discard(writer)
            writer.close()

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._mode == "stall":
            await self._flow.wait()
        host, port = self._targets[self._next % len(self._targets)]
        self._next += 1
        there, back = await asyncio.open_connection(host, port)
        self._open.add(back)
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(self._pipe(reader, back, from_participant=True))
                both.create_task(self._pipe(there, writer, from_participant=False))
        except* OSError:
            reset(writer)
            reset(back)
        finally:
            self._open.discard(back)
            back.close()

    async def _pipe(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, from_participant: bool
    ) -> None:
        while chunk := await source.read(CHUNK):
            if self._mode == "stall" or (self._mode == "half" and not from_participant):
                await self._flow.wait()
            if self.delay:
                await asyncio.sleep(self.delay)
            if from_participant and self._cut_after is not None:
                self._cut_after -= len(chunk)
                if self._cut_after <= 0:
                    self._cut_after = None
                    self.cut()
                    raise ConnectionResetError("cut, as told")
            sink.write(chunk)
            await sink.drain()
        with contextlib.suppress(OSError, RuntimeError):
            sink.write_eof()


def reset(writer: asyncio.StreamWriter) -> None:
    """Closes a connection with RST, as a crash or a firewall does."""
    transport = writer.transport
    raw = transport.get_extra_info("socket")
    if raw is not None and not transport.is_closing():
        with contextlib.suppress(OSError):
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    transport.abort()
