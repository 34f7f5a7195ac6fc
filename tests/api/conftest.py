"""A whole server within the test's own process, and a worker that speaks raw frames to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import grpc
import httpx
import pytest
from google.rpc import error_details_pb2, status_pb2

from cronoq_server import config as configuration
from cronoq_server._proto import (
    admin_pb2_grpc,
    task_pb2,
    tasks_pb2,
    tasks_pb2_grpc,
    workers_pb2,
    workers_pb2_grpc,
)
from cronoq_server.app import Server
from cronoq_server.runtime import Clock
from cronoq_server.stores.base import Store
from tests.api.web import browsing, close_lines

ANY_PORT = (
    "[server]\ngrpc_addr = '127.0.0.1:0'\nhttp_addr = '127.0.0.1:0'\nshutdown_grace_s = 0.1\n"
)
LARGE = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


class WireWorker:
    """A worker that says exactly what a test wants it to say."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream
        self.registered = workers_pb2.Registered()

    async def say(self, **message: Any) -> None:
        """Sends one message."""
        await self.stream.write(workers_pb2.WorkerMessage(**message))

    async def hear(self, kind: str) -> Any:
        """Reads up to the next message of a kind; receipts in between are passed over."""
        while True:
            message = await self.stream.read()
            assert message is not grpc.aio.EOF, f"the stream ended before {kind}"
            which = message.WhichOneof("message")
            if which == kind:
                return getattr(message, kind)
            assert which == "receipt", f"{which} came before {kind}"

    async def leases(self, count: int) -> list[workers_pb2.Lease]:
        """Reads leases until there are this many."""
        read: list[workers_pb2.Lease] = []
        while len(read) < count:
            read += (await self.hear("leases")).leases
        return read

    async def complete(self, number: int, *leases: workers_pb2.Lease, output: bytes = b"") -> None:
        """Reports results in one message."""
        reports = workers_pb2.Reports(number=number)
        for lease in leases:
            entry = reports.reports.add().complete
            entry.lease = lease.lease
            entry.output = output
        await self.say(reports=reports)

    async def receipt(self, reports: int) -> None:
        """Reads until everything up to these reports is durable."""
        while (await self.hear("receipt")).reports < reports:
            pass

    async def close(self) -> None:
        """Half-closes and waits for the server's end."""
        await self.stream.done_writing()
        while await self.stream.read() is not grpc.aio.EOF:
            pass


class Edge:
    """Stubs of one server."""

    def __init__(self, server: Server, channel: grpc.aio.Channel) -> None:
        self.server = server
        self.channel = channel
        self.tasks: Any = tasks_pb2_grpc.TasksStub(channel)
        self.workers: Any = workers_pb2_grpc.WorkersStub(channel)
        self.admin: Any = admin_pb2_grpc.AdminStub(channel)

    async def submit(self, **fields: Any) -> int:
        """Submits one task and returns its id."""
        request = tasks_pb2.SubmitRequest(task=task_pb2.TaskSpec(**fields))
        response: tasks_pb2.SubmitResponse = await self.tasks.Submit(request)
        return response.id

    async def status(self, task_id: int) -> int:
        """The status of a task."""
        info = await self.tasks.Get(tasks_pb2.GetRequest(task=task_pb2.TaskRef(id=task_id)))
        return int(info.status)

    async def worker(self, **register: Any) -> WireWorker:
        """Opens a session; version 4 with one slot unless told otherwise."""
        register.setdefault("protocol_version", 4)
        register.setdefault("slots", 1)
        worker = WireWorker(self.workers.Work())
        await worker.say(register=workers_pb2.Register(**register))
        worker.registered = await worker.hear("registered")
        return worker


@asynccontextmanager
async def serving(
    text: str = "", store: Store | None = None, clock: Clock | None = None, grace_s: float = 0.1
) -> AsyncIterator[Edge]:
    """A server with this configuration on top of a free port."""
    whole = ANY_PORT.replace("grace_s = 0.1", f"grace_s = {grace_s}") + text
    server = Server(configuration.parse(whole), store=store, clock=clock)
    ready = asyncio.Event()
    running = asyncio.create_task(server.run(lambda _: ready.set()))
    waiting = asyncio.create_task(ready.wait())
    await asyncio.wait((running, waiting), return_when=asyncio.FIRST_COMPLETED)
    if running.done():
        waiting.cancel()
        running.result()
    try:
        async with grpc.aio.insecure_channel(str(server.address), options=LARGE) as channel:
            yield Edge(server, channel)
    finally:
        await close_lines()
        server.stop()
        assert await running == 0


@pytest.fixture
async def edge() -> AsyncIterator[Edge]:
    """A server with the default configuration."""
    async with serving() as edge:
        yield edge


@pytest.fixture
async def web(edge: Edge) -> AsyncIterator[httpx.AsyncClient]:
    """An HTTP client of that server."""
    async with browsing(edge) as client:
        yield client


@pytest.fixture
async def serve() -> AsyncIterator[Callable[[str], Any]]:
    """Starts servers with configurations of the test's own."""
    async with AsyncExitStack() as stack:

        async def start(text: str) -> Edge:
            return await stack.enter_async_context(serving(text))

        yield start


async def joining(
    work: Any, register: workers_pb2.Register, metadata: Sequence[tuple[str, str]] = ()
) -> Any:
    """A worker's stream that has said its first message; what came of it is for its `read`.

    A server that refuses a call without reading from it may be faster than the write, and
    grpc.aio then puts an INTERNAL of its own before the server's answer: that call is made again.
    """
    while True:
        stream = work(metadata=metadata)
        try:
            await stream.write(workers_pb2.WorkerMessage(register=register))
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.INTERNAL and not error.trailing_metadata():
                continue
        return stream


def reason_of(error: grpc.aio.AioRpcError) -> tuple[str, dict[str, str]]:
    """The reason and the facts in an error's details."""
    for key, value in error.trailing_metadata() or ():
        if key == "grpc-status-details-bin":
            status = status_pb2.Status.FromString(value)
            info = error_details_pb2.ErrorInfo()
            assert status.details[0].Unpack(info)
            assert info.domain == "cronoq"
            return info.reason, dict(info.metadata)
    raise AssertionError(f"{error!r} has no details")
