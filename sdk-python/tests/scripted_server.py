"""Plays a cronoq server from a script: each test decides every answer, and when it is given.

Knows no rules of its own: what a test does not script is answered with UNIMPLEMENTED, as an old
server would.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Self

import grpc
from google.protobuf import any_pb2, message_factory
from google.rpc import code_pb2, error_details_pb2, status_pb2

from cronoq._proto import admin_pb2, task_pb2, tasks_pb2, workers_pb2

# No answer takes this long; it only keeps a wrong program from waiting for ever.
PATIENCE_S = 20.0

Answer = Callable[[Any], Awaitable[Any]]

SERVICES = (
    admin_pb2.DESCRIPTOR.services_by_name["Admin"],
    tasks_pb2.DESCRIPTOR.services_by_name["Tasks"],
    workers_pb2.DESCRIPTOR.services_by_name["Workers"],
)
METHODS = {
    f"/{service.full_name}/{method.name}": method
    for service in SERVICES
    for method in service.methods
}


class Refusal(Exception):
    """What a scripted answer raises to refuse a call."""

    def __init__(
        self,
        code: grpc.StatusCode,
        message: str = "refused",
        *,
        reason: str = "",
        metadata: tuple[tuple[str, str], ...] = (),
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.reason = reason
        self.metadata = metadata

    def trailers(self) -> tuple[tuple[str, str | bytes], ...]:
        """The trailing metadata, with the reason in status details."""
        if not self.reason:
            return self.metadata
        status = make_status(self.code, self.message, self.reason)
        return (*self.metadata, ("grpc-status-details-bin", status.SerializeToString()))


def make_status(
    code: grpc.StatusCode, message: str, reason: str, details: dict[str, str] | None = None
) -> status_pb2.Status:
    """A google.rpc.Status as servers put it into details and outcomes."""
    detail = any_pb2.Any()
    detail.Pack(error_details_pb2.ErrorInfo(reason=reason, domain="cronoq", metadata=details))
    number = getattr(code_pb2, code.name)
    return status_pb2.Status(code=number, message=message, details=[detail])


class WorkStream:
    """One worker's stream, seen from the server."""

    def __init__(self, context: Any) -> None:
        self._context = context
        self.metadata = dict(context.invocation_metadata())
        self.inbox: asyncio.Queue[workers_pb2.WorkerMessage | None] = asyncio.Queue()
        self._ending: asyncio.Future[Refusal | None] = asyncio.get_running_loop().create_future()
        self.is_half_closed = False
        self.register = workers_pb2.Register()
        self.last_number = 0

    async def serve(self) -> None:
        """Reads until the script or the worker ends the stream."""
        reader = asyncio.create_task(self._read())
        try:
            refusal = await self._ending
        finally:
            reader.cancel()
        if refusal is not None:
            await self._context.abort(refusal.code, refusal.message, refusal.trailers())

    async def _read(self) -> None:
        try:
            while (message := await self._context.read()) is not grpc.aio.EOF:
                self.inbox.put_nowait(message)
            self.is_half_closed = True
        finally:
            self.inbox.put_nowait(None)

    async def next(self) -> workers_pb2.WorkerMessage | None:
        """The next message; None when the worker ended its side."""
        async with asyncio.timeout(PATIENCE_S):
            return await self.inbox.get()

    async def expect(self, kind: str) -> Any:
        """The next message of one kind; heartbeats before it are passed over."""
        while True:
            message = await self.next()
            assert message is not None, f"stream ended before {kind}"
            name = message.WhichOneof("message")
            if name == kind:
                return getattr(message, kind)
            assert name in ("heartbeats", "heartbeat"), f"{name} came before {kind}"

    async def reports(self, count: int, *, confirm: bool = True) -> list[workers_pb2.Report]:
        """So many reports, over as many messages as they come in, with receipts unless told."""
        found: list[workers_pb2.Report] = []
        while len(found) < count:
            message = await self.expect("reports")
            found.extend(message.reports)
            self.last_number = message.number
            if confirm:
                await self.receipt(message.number)
        return found

    async def end_of_worker(self) -> None:
        """Waits until the worker has ended its side."""
        while await self.next() is not None:
            pass

    async def accept(self, **fields: Any) -> None:
        """Accepts the worker as a server of this version with the defaults of the contract."""
        fields = {
            "worker_id": 1,
            "slots": self.register.slots,
            "protocol_version": 4,
            "max_message_bytes": 4 * 1024 * 1024,
            "lease_ttl_s": 30.0,
            "session_token": b"token-1",
        } | fields
        await self.send(registered=workers_pb2.Registered(**fields))

    async def send(self, **fields: Any) -> None:
        """Sends one message."""
        await self._context.write(workers_pb2.ServerMessage(**fields))

    async def lease(self, *leases: workers_pb2.Lease) -> None:
        """Sends leases as one batch."""
        await self.send(leases=workers_pb2.LeaseBatch(leases=leases))

    async def receipt(self, reports: int = 0, heartbeats: int = 0) -> None:
        """Confirms reports and heartbeats."""
        await self.send(receipt=workers_pb2.Receipt(reports=reports, heartbeats=heartbeats))

    def end(self, refusal: Refusal | None = None) -> None:
        """Ends the stream, in order or with an error."""
        if not self._ending.done():
            self._ending.set_result(refusal)

    def cut(self) -> None:
        """Breaks the stream."""
        self.end(Refusal(grpc.StatusCode.UNAVAILABLE, "cut"))


def make_lease(lease: int, payload: bytes = b'"x"', **fields: Any) -> workers_pb2.Lease:
    """A lease with valid defaults."""
    defaults: dict[str, Any] = {
        "task_id": 1000 + lease,
        "attempt": 1,
        "kind": "echo",
        "content_type": "application/json",
        "pool": "default",
    }
    return workers_pb2.Lease(lease=lease, payload=payload, **(defaults | fields))


class ScriptedServer(grpc.GenericRpcHandler):
    """A listener on loopback whose answers a test sets."""

    def __init__(self) -> None:
        self._server: grpc.aio.Server | None = None
        self.address = "127.0.0.1"
        self.port = 0
        self.answers: dict[str, Answer] = {}
        self.calls: list[tuple[str, Any]] = []
        self.metadata: list[dict[str, Any]] = []
        self._streams: asyncio.Queue[WorkStream] = asyncio.Queue()
        self.refusals: list[Refusal] = []
        self._credentials: grpc.ServerCredentials | None = None

    async def start(self, port: int = 0, credentials: grpc.ServerCredentials | None = None) -> Self:
        """Listens, on the given port or a free one."""
        self._credentials = credentials
        # Tests ping more often than a server would allow.
        options = [("grpc.so_reuseport", 0), ("grpc.http2.max_ping_strikes", 0)]
        self._server = grpc.aio.server(options=options)
        self._server.add_generic_rpc_handlers((self,))
        address = f"{self.address}:{port}"
        if credentials is None:
            self.port = self._server.add_insecure_port(address)
        else:
            self.port = self._server.add_secure_port(address, credentials)
        await self._server.start()
        return self

    async def stop(self) -> None:
        """Closes the port and every connection."""
        if self._server is not None:
            await self._server.stop(None)
            self._server = None

    @property
    def endpoint(self) -> str:
        """Where it listens."""
        return f"{self.address}:{self.port}"

    @property
    def url(self) -> str:
        """Where it listens, as redirects name it."""
        return f"{'http' if self._credentials is None else 'https'}://{self.endpoint}"

    def on(self, method: str, answer: Answer) -> None:
        """Sets the answer to a method of the Tasks service."""
        self.answers[f"/cronoq.v1.Tasks/{method}"] = answer

    def on_admin(self, method: str, answer: Answer) -> None:
        """Sets the answer to a method of the Admin service."""
        self.answers[f"/cronoq.v1.Admin/{method}"] = answer

    def on_workers(self, method: str, answer: Answer) -> None:
        """Sets the answer to a method of the Workers service."""
        self.answers[f"/cronoq.v1.Workers/{method}"] = answer

    def requests(self, method: str) -> list[Any]:
        """The requests of one method so far."""
        return [request for name, request in self.calls if name == method]

    async def stream(self) -> WorkStream:
        """The next worker's stream, its registration read."""
        async with asyncio.timeout(PATIENCE_S):
            stream = await self._streams.get()
        stream.register = await stream.expect("register")
        return stream

    def refuse_streams(self, *refusals: Refusal) -> None:
        """Refuses the next streams so, one by one, before any other is handed out."""
        self.refusals.extend(refusals)

    # --- gRPC ---

    def service(self, details: Any) -> Any:
        """Finds the handler of a method."""
        path = details.method
        if path == "/cronoq.v1.Workers/Work":
            return grpc.stream_stream_rpc_method_handler(
                self._work, workers_pb2.WorkerMessage.FromString, _write
            )
        if path not in self.answers:
            return None
        method = METHODS[path]
        read = message_factory.GetMessageClass(method.input_type).FromString
        if method.server_streaming:
            return grpc.unary_stream_rpc_method_handler(self._streaming(path), read, _write)
        return grpc.unary_unary_rpc_method_handler(self._unary(path), read, _write)

    def _unary(self, path: str) -> Any:
        async def answer(request: Any, context: Any) -> Any:
            self._note(path, request, context)
            try:
                return await self.answers[path](request)
            except Refusal as refusal:
                await context.abort(refusal.code, refusal.message, refusal.trailers())

        return answer

    def _streaming(self, path: str) -> Any:
        async def answer(request: Any, context: Any) -> Any:
            self._note(path, request, context)
            try:
                async for message in self.answers[path](request):  # type: ignore[attr-defined]
                    await context.write(message)
            except Refusal as refusal:
                await context.abort(refusal.code, refusal.message, refusal.trailers())

        return answer

    def _note(self, path: str, request: Any, context: Any) -> None:
        self.calls.append((path.rpartition("/")[2], request))
        self.metadata.append(dict(context.invocation_metadata()))

    async def _work(self, _requests: Any, context: Any) -> None:
        if self.refusals:
            refusal = self.refusals.pop(0)
            await context.abort(refusal.code, refusal.message, refusal.trailers())
        stream = WorkStream(context)
        self._streams.put_nowait(stream)
        await stream.serve()


def _write(message: Any) -> bytes:
    return bytes(message.SerializeToString())


def result(task_id: int, output: bytes = b'"done"') -> task_pb2.TaskResult:
    """A successful result."""
    return task_pb2.TaskResult(
        id=task_id,
        status=task_pb2.TASK_STATUS_SUCCEEDED,
        output=output,
        output_available=True,
        content_type="application/json",
    )
