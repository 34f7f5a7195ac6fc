"""Decides nothing: a gRPC peer that does exactly what a scenario says, wrong things included.

Every call of a participant waits as an exchange until a step takes it; then that step, and later
ones, say what is sent and how it ends. The only thing done unasked is to confirm heartbeats, unless
the scenario forbids it, since almost none is about that.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
from collections.abc import Callable, Mapping
from time import monotonic
from typing import Any

import grpc
from google.protobuf import any_pb2, message_factory
from google.protobuf.message import Message
from google.rpc import code_pb2, error_details_pb2, status_pb2

from .judge import mismatch
from .wire import METHODS, OLD_METHODS, fill, plain

SHARD_ENDPOINT = "cronoq-shard-endpoint"
HEARTBEATS = ("heartbeats", "heartbeat")


class ExchangeOver(Exception):
    """The participant's side of a call has ended before what a step waits for."""


class Exchange:
    """One call, seen from the server.

    Attributes:
        method: Name of the method.
        headers: Metadata of the call.
        log: Every message so far, as plain data, in order.
        sizes: How many bytes each of them had.
        arrived_at: When the call came, seconds of the monotonic clock.
        ended_at: When it was over; None while it goes on.
    """

    def __init__(self, method: str, context: Any) -> None:
        self.method = method
        self.headers = dict(context.invocation_metadata())
        self.log: list[dict[str, Any]] = []
        self.sizes: list[int] = []
        self.arrived_at = monotonic()
        self.ended_at: float | None = None
        self.confirms_heartbeats = True
        self.is_old = False
        self.register: dict[str, Any] = {}
        self._descriptor = METHODS[method]
        self._response = message_factory.GetMessageClass(self._descriptor.output_type)
        self._context = context
        self._inbox: collections.deque[dict[str, Any]] = collections.deque()
        self._beats: collections.deque[dict[str, Any]] = collections.deque()
        self._more = asyncio.Condition()
        # gRPC takes one write at a time; receipts for heartbeats come beside the steps' own.
        self._writing = asyncio.Lock()
        self._is_half_closed = False
        self._is_over = False
        self._ending: asyncio.Future[Mapping[str, Any]] = asyncio.get_running_loop().create_future()

    async def serve(self) -> None:
        """Reads until a step or the participant ends the call."""
        reader = asyncio.create_task(self._read())
        try:
            await self._end(await self._ending)
        finally:
            reader.cancel()
            self.ended_at = monotonic()
            async with self._more:
                self._is_over = True
                self._more.notify_all()

    async def _read(self) -> None:
        with contextlib.suppress(grpc.RpcError, asyncio.InvalidStateError):
            while (message := await self._context.read()) is not grpc.aio.EOF:
                await self._take(plain(message), message.ByteSize())
        async with self._more:
            self._is_half_closed = True
            self._more.notify_all()

    async def _take(self, message: dict[str, Any], size: int) -> None:
        is_beat = self.method.endswith("/Work") and any(name in message for name in HEARTBEATS)
        async with self._more:
            self.log.append(message)
            self.sizes.append(size)
            (self._beats if is_beat else self._inbox).append(message)
            self._more.notify_all()
        if is_beat and "heartbeats" in message and self.confirms_heartbeats:
            await self.write({"receipt": {"heartbeats": message["heartbeats"]["number"]}})

    async def next(self) -> dict[str, Any]:
        """Returns the next message that is no heartbeat.

        Raises:
            ExchangeOver: There is none.
        """
        async with self._more:
            await self._more.wait_for(lambda: self._inbox or self._is_half_closed or self._is_over)
            if not self._inbox:
                raise ExchangeOver(f"{self.method}: the participant has ended its side")
            return self._inbox.popleft()

    async def beat(self, pattern: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the next heartbeat like the pattern; those before it are passed over.

        Raises:
            ExchangeOver: There is none.
        """
        while True:
            async with self._more:
                await self._more.wait_for(
                    lambda: self._beats or self._is_half_closed or self._is_over
                )
                if not self._beats:
                    raise ExchangeOver(f"no heartbeat like {pattern} before the stream's end")
                message = self._beats.popleft()
            if not mismatch(pattern, message):
                return message

    async def half_closed(self) -> None:
        """Returns when the participant has ended its side.

        Raises:
            ExchangeOver: It broke the call instead.
        """
        async with self._more:
            await self._more.wait_for(lambda: self._is_half_closed or self._is_over)
        if self._is_over and not self._is_half_closed:
            raise ExchangeOver("the call was broken, not ended")

    async def over(self) -> None:
        """Returns when the call is over, however."""
        async with self._more:
            await self._more.wait_for(lambda: self._is_over)

    @property
    def is_over(self) -> bool:
        """True when nothing can be sent any more."""
        return self._is_over

    async def write(self, data: Mapping[str, Any]) -> None:
        """Sends one message."""
        await self.write_message(fill(self._response(), data))

    async def write_message(self, message: Message) -> None:
        """Sends one message that is made already."""
        async with self._writing:
            with contextlib.suppress(asyncio.InvalidStateError, grpc.RpcError):
                await self._context.write(message)

    def end(self, how: Mapping[str, Any]) -> None:
        """Ends the call: in order without a code, else with it, a reason, metadata."""
        if not self._ending.done():
            self._ending.set_result(how)

    async def _end(self, how: Mapping[str, Any]) -> None:
        metadata: list[tuple[str, str | bytes]] = []
        metadata += [(key, str(value)) for key, value in how.get("metadata", {}).items()]
        if "endpoint" in how:
            metadata.append((SHARD_ENDPOINT, how["endpoint"]))
        if how.get("in") == "initial":
            await self._context.send_initial_metadata(tuple(metadata))
            metadata = []
        name = how.get("code", "OK")
        if name == "OK":
            self._context.set_trailing_metadata(tuple(metadata))
            return
        code = grpc.StatusCode[name]
        message = how.get("message", "as the scenario says")
        if "reason" in how:
            status = make_status(name, message, how["reason"], how.get("details", {}))
            metadata.append(("grpc-status-details-bin", status.SerializeToString()))
        await self._context.abort(code, message, tuple(metadata))


def make_status(
    code: str, message: str, reason: str, details: Mapping[str, str]
) -> status_pb2.Status:
    """Returns a status with its reason, as servers put it into details and outcomes."""
    detail = any_pb2.Any()
    info = error_details_pb2.ErrorInfo(reason=reason, domain="cronoq", metadata=dict(details))
    detail.Pack(info)
    number = getattr(code_pb2, code)
    return status_pb2.Status(code=number, message=message, details=[detail])


class Peer(grpc.GenericRpcHandler):
    """A scripted server on a port of its own.

    Attributes:
        port: Where it listens.
        is_old: Whether it is of protocol version 3: later methods are unknown to it.
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        *,
        credentials: grpc.ServerCredentials | None = None,
        is_old: bool = False,
    ) -> None:
        self._host = host
        self._credentials = credentials
        self._server: grpc.aio.Server | None = None
        self._waiting: dict[str, collections.deque[Exchange]] = collections.defaultdict(
            collections.deque
        )
        self._more = asyncio.Condition()
        self._exchanges: list[Exchange] = []
        self.is_old = is_old
        self.port = 0

    @property
    def endpoint(self) -> str:
        """Where it listens, `host:port`."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{host}:{self.port}"

    @property
    def url(self) -> str:
        """Where it listens, as redirects name it."""
        return f"{'http' if self._credentials is None else 'https'}://{self.endpoint}"

    async def start(self) -> None:
        """Listens; on the port it had before, if it had one."""
        options = [
            ("grpc.so_reuseport", 0),
            ("grpc.http2.max_ping_strikes", 0),
            ("grpc.max_receive_message_length", 64 * 1024 * 1024),
            ("grpc.max_send_message_length", 512 * 1024 * 1024),
        ]
        self._server = grpc.aio.server(options=options)
        self._server.add_generic_rpc_handlers((self,))
        if self._credentials is None:
            self.port = self._server.add_insecure_port(self.endpoint)
        else:
            self.port = self._server.add_secure_port(self.endpoint, self._credentials)
        await self._server.start()

    async def stop(self, grace: float | None = None) -> None:
        """Closes the port; connections at once, or with GOAWAY and this long for calls, seconds."""
        server, self._server = self._server, None
        if server is not None:
            await server.stop(grace)

    def go_away(self) -> asyncio.Task[None]:
        """Sends GOAWAY on every connection and closes the port; open calls go on."""
        return asyncio.ensure_future(self.stop(3600))

    async def next_call(self, name: str) -> Exchange:
        """Returns the next call of a method that no step has taken."""
        async with self._more:
            queue = self._waiting[name]
            await self._more.wait_for(lambda: bool(queue))
            return queue.popleft()

    def waiting(self, name: str) -> int:
        """Returns how many calls of a method no step has taken."""
        return len(self._waiting[name])

    def count(self, name: str) -> int:
        """Returns how many calls of a method have come."""
        return sum(each.method.endswith(f"/{name}") for each in self._exchanges)

    def service(self, details: Any) -> Any:
        """Finds who serves a method."""
        path: str = details.method
        name = path.rpartition("/")[2]
        if path not in METHODS or (self.is_old and name not in OLD_METHODS):
            return None
        request = message_factory.GetMessageClass(METHODS[path].input_type)
        return grpc.stream_stream_rpc_method_handler(
            self._serving(path), request.FromString, _serialize
        )

    def _serving(self, path: str) -> Callable[[Any, Any], Any]:
        async def serve(_: Any, context: Any) -> None:
            exchange = Exchange(path, context)
            exchange.is_old = self.is_old
            async with self._more:
                self._exchanges.append(exchange)
                self._waiting[path.rpartition("/")[2]].append(exchange)
                self._more.notify_all()
            await exchange.serve()

        return serve


def _serialize(message: Message) -> bytes:
    return message.SerializeToString()


def accepted(register: Mapping[str, Any], is_old: bool, said: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a Registered with the contract's usual values, and what a scenario says instead."""
    usual: dict[str, Any] = {
        "worker_id": 1,
        "slots": register.get("slots", 1),
        "protocol_version": 3 if is_old else 4,
        "max_message_bytes": 4 * 1024 * 1024,
        "lease_ttl_s": 30.0,
    }
    if not is_old:
        usual["session_token"] = "token-1"
    return {name: value for name, value in {**usual, **said}.items() if value is not None}


def make_lease(said: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a lease with the usual values, and what a scenario says instead."""
    number = int(said["lease"])
    usual = {
        "task_id": 1000 + number,
        "attempt": 1,
        "kind": "work",
        "payload": '"x"',
        "content_type": "application/json",
        "pool": "default",
    }
    return {**usual, **said}


def server_credentials(cert: bytes, key: bytes, client_ca: bytes | None) -> Any:
    """Returns credentials of a peer that asks for client certificates if it has an authority."""
    return grpc.ssl_server_credentials(
        [(key, cert)], root_certificates=client_ca, require_client_auth=client_ca is not None
    )


__all__ = [
    "Exchange",
    "ExchangeOver",
    "Peer",
    "accepted",
    "make_lease",
    "make_status",
    "server_credentials",
]
