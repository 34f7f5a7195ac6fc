"""Connections that misuse the port, in raw frames: what becomes of them and of others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from cronoq_server._proto import tasks_pb2
from tests.api.conftest import Edge, serving

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS, PING, GOAWAY = 4, 6, 7
ACK = 1


def frame(kind: int, flags: int = 0, content: bytes = b"", stream: int = 0) -> bytes:
    """One HTTP/2 frame."""
    head = len(content).to_bytes(3) + bytes((kind, flags)) + stream.to_bytes(4)
    return head + content


class Raw:
    """A connection that says exactly what a test wants it to say."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    def say(self, *frames: bytes) -> None:
        """Sends frames."""
        self._writer.write(b"".join(frames))

    def end(self) -> None:
        """Says that nothing more comes."""
        self._writer.write_eof()

    async def frames(self) -> AsyncIterator[tuple[int, int, bytes]]:
        """What the server says until it closes: kind, flags, content."""
        try:
            while True:
                head = await self._reader.readexactly(9)
                content = await self._reader.readexactly(int.from_bytes(head[:3]))
                yield head[3], head[4], content
        except (asyncio.IncompleteReadError, ConnectionResetError):
            return

    async def first(self, kind: int) -> bytes:
        """Reads up to a frame of a kind."""
        async for found, flags, content in self.frames():
            if found == kind and not flags & ACK:
                return content
        raise AssertionError(f"closed before a frame {kind}")

    async def closed(self) -> list[int]:
        """Reads until the server closes; returns the kinds of frames that came."""
        return [kind async for kind, _, _ in self.frames()]


@asynccontextmanager
async def raw(edge: Edge) -> AsyncIterator[Raw]:
    """A connection to a server."""
    reader, writer = await asyncio.open_connection(*edge.server.address)
    try:
        yield Raw(reader, writer)
    finally:
        writer.close()


@pytest.mark.regression("R34")
async def test_connection_without_calls_is_closed() -> None:
    """R34: one that has introduced itself and then says nothing more goes like a silent one."""
    async with serving("[limits]\nidle_connection_timeout_s = 0.2\n") as edge:
        watch = edge.tasks.Watch(tasks_pb2.WatchRequest(bookmarks=True))
        await watch.read()
        async with raw(edge) as idle, raw(edge) as half:
            idle.say(PREFACE, frame(SETTINGS))
            half.say(PREFACE[:10])
            assert GOAWAY in await idle.closed()
            await half.closed()
        assert await edge.submit()
        watch.cancel()


@pytest.mark.regression("R13")
async def test_connection_that_only_pings_is_told_to_stop(edge: Edge) -> None:
    """R13: pings without margin end that connection, with the reason, and nobody else's."""
    watch = edge.tasks.Watch(tasks_pb2.WatchRequest(bookmarks=True))
    await watch.read()
    async with raw(edge) as hasty:
        hasty.say(PREFACE, frame(SETTINGS), *[frame(PING, content=bytes(8))] * 9)
        content = await hasty.first(GOAWAY)
        assert content.endswith(b"too_many_pings")
        await hasty.closed()
    task_id = await edge.submit()
    await edge.tasks.Cancel(tasks_pb2.CancelRequest(task={"id": task_id}))  # type: ignore[arg-type]
    while not (event := await watch.read()).id:
        pass
    assert event.id == task_id
    watch.cancel()


@pytest.mark.parametrize(
    "rubbish",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        bytes(64),
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64),
        PREFACE + bytes(9),
        PREFACE + frame(SETTINGS) + b"\xff\xff\xff\x00\x00\x00\x00\x00\x01",
        PREFACE + frame(SETTINGS) + frame(1, 4, b"\xff" * 40, 1),
        PREFACE + frame(SETTINGS) + frame(9, 0, b"x" * 40, 7),
    ],
    ids=["http1", "zeros", "tls", "no-settings", "huge", "bad-headers", "stray-continuation"],
)
async def test_what_is_no_http2_ends_its_own_connection(edge: Edge, rubbish: bytes) -> None:
    """Bytes that mean nothing cost the connection they came on, and the server nothing."""
    async with raw(edge) as broken:
        broken.say(rubbish)
        broken.end()
        await broken.closed()
    assert await edge.submit()
