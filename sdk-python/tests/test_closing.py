"""Holds a closed client to its promise: every call under way ends, nothing connects again."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from scripted_server import PATIENCE_S, ScriptedServer

from cronoq import Backoff, Client, TaskSpec, TlsOptions, blocking
from cronoq.errors import ClosedError

QUICK = Backoff(initial=0.001, maximum=0.01)


async def _first(client: Client) -> Any:
    return await anext(aiter(client.watch()))


async def _many(client: Client) -> Any:
    (answer,) = await client.submit_many([TaskSpec("echo")])
    assert isinstance(answer, Exception)
    raise answer


CALLS: dict[str, Callable[[Client], Awaitable[Any]]] = {
    "batch": lambda client: client.submit_batch([TaskSpec("echo")]),
    "get": lambda client: client.get(5),
    "retry": lambda client: client.retry(5),
    "submit": lambda client: client.submit("echo"),
    "submit_keyed": lambda client: client.submit("echo", key="k"),
    "submit_many": _many,
    "wait": lambda client: client.wait(5),
    "wait_by_key": lambda client: client.wait("k"),
    "wait_many": lambda client: client.wait_many([5, 6]),
    "watch": _first,
}


class Silence:
    """Takes every call and never answers."""

    def __init__(self, server: ScriptedServer) -> None:
        self._asked = threading.Event()
        for method in ("Get", "Retry", "Submit", "SubmitBatch", "SubmitMany"):
            server.on(method, self._answer)
        for method in ("WaitMany", "WatchBatches"):
            server.on(method, self._stream)  # type: ignore[arg-type]

    async def _answer(self, _request: Any) -> Any:
        self._asked.set()
        await asyncio.get_running_loop().create_future()

    async def _stream(self, request: Any) -> AsyncIterator[Any]:
        yield await self._answer(request)

    async def asked(self) -> None:
        """Waits for the first call."""
        assert await asyncio.to_thread(self._asked.wait, PATIENCE_S)


@pytest.mark.parametrize("name", CALLS)
async def test_a_call_under_way_ends_with_the_client(server: ScriptedServer, name: str) -> None:
    """At once, and it is not made again."""
    silence = Silence(server)
    client = Client(server.endpoint, backoff=QUICK)
    call = asyncio.ensure_future(CALLS[name](client))
    await silence.asked()
    await client.close()
    with pytest.raises(ClosedError):
        await asyncio.wait_for(call, PATIENCE_S)
    assert len(server.calls) == 1
    assert client._caller.connection._channel is None


@pytest.mark.parametrize("name", CALLS)
async def test_a_call_that_waits_to_be_made_again_ends_with_the_client(
    server: ScriptedServer, name: str
) -> None:
    """It connects no more: nobody would close that connection."""
    await server.stop()
    tries: asyncio.Queue[None] = asyncio.Queue()
    client = Client(server.endpoint, backoff=QUICK)
    dial = client._caller.connection.channel

    def channel() -> Any:
        tries.put_nowait(None)
        return dial()

    client._caller.connection.channel = channel  # type: ignore[method-assign]
    call = asyncio.ensure_future(CALLS[name](client))
    for _ in range(3):
        await asyncio.wait_for(tries.get(), PATIENCE_S)
    await client.close()
    with pytest.raises(ClosedError):
        await asyncio.wait_for(call, PATIENCE_S)
    assert client._caller.connection._channel is None


async def test_blocking_calls_of_other_threads_end_with_their_client(
    server: ScriptedServer,
) -> None:
    """Their loop ends, and whoever waits for it must hear of that."""
    silence = Silence(server)
    # A call that waits to be made again knows of no end but that of the loop.
    client = blocking.Client(server.endpoint, backoff=Backoff(initial=60, maximum=60))
    call = asyncio.ensure_future(asyncio.to_thread(client.wait, 5))
    await silence.asked()
    await server.stop()
    again = asyncio.ensure_future(asyncio.to_thread(client.get, 5))
    await asyncio.to_thread(client.close)
    for each in (call, again):
        with pytest.raises(ClosedError):
            await asyncio.wait_for(each, PATIENCE_S)


@pytest.mark.parametrize("name", ["submit", "submit_many", "wait", "wait_many"])
async def test_a_certificate_that_cannot_be_read_reaches_every_caller(name: str) -> None:
    """Calls that share a request or a stream hear of it as single ones do."""
    async with Client("https://127.0.0.1:1", tls=TlsOptions(ca="/none.pem")) as client:
        with pytest.raises(FileNotFoundError, match=r"none\.pem"):
            await asyncio.wait_for(CALLS[name](client), PATIENCE_S)
