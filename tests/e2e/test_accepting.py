"""Connections of relays are closed in the end, whatever they were doing."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from tests.e2e.accepting import accepting


@pytest.mark.parametrize("turns", range(6))
async def test_every_connection_is_closed_however_far_it_came(turns: int) -> None:
    """Accepted, begun or at work as the context ends: the other side sees an end each time."""

    async def serve(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        await reader.read()  # until the other side ends, which it does not

    async with accepting(serve) as acceptor:
        callers = [await asyncio.open_connection("127.0.0.1", acceptor.port) for _ in range(20)]
        for _ in range(turns):
            await asyncio.sleep(0)
    for reader, writer in callers:
        with contextlib.suppress(ConnectionResetError):  # it was not even accepted
            assert await reader.read() == b""
        writer.close()


async def test_cut_connections_end_and_others_come_after_them() -> None:
    """A cut ends what there is and nothing else."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while content := await reader.read(100):
            writer.write(content)

    async with accepting(serve) as acceptor:
        for _ in range(2):
            reader, writer = await asyncio.open_connection("127.0.0.1", acceptor.port)
            writer.write(b"there?")
            assert await reader.readexactly(6) == b"there?"
            acceptor.cut()
            assert await reader.read() == b""
            writer.close()
