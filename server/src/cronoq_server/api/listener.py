"""Where the server listens, and how it behaves there as leader and as standby.

Rules a change must keep:

1. An address that somebody else uses is an error that names it: gRPC binds with SO_REUSEPORT,
   which would let a second process in silently, so each address is bound without it first.
2. Leader and standby are two gRPC servers on one port, since a server's connection age is fixed
   for its life. The new one is up before the old one closes.
3. A standby answers every call with `not_leader` and closes every connection about a second
   after it was accepted.
"""

from __future__ import annotations

import errno
import logging
import socket
from collections.abc import Callable, Sequence
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from cronoq_server.api.errors import abort
from cronoq_server.api.tls import Certificates
from cronoq_server.config import MIB, Address, LimitsConfig
from cronoq_server.runtime.refusals import NOT_LEADER

UINT31_MAX = 2**31 - 1
RECEIVE_MARGIN = 2 * MIB
"""What is accepted above `max_message_bytes`: a message a little too large gets a precise error."""

SEND_MARGIN = MIB
PING_INTERVAL_MIN_MS = 5000
HANDSHAKE_TIMEOUT_MS = 10_000
STANDBY_AGE_MS = 1000
STEP_DOWN_GRACE_S = 0.5
"""How long calls that a listener is answering may take once another one has taken over."""

STANDBY_GRACE_MS = 100
SERVICES = ("cronoq.v1.Tasks", "cronoq.v1.Workers", "cronoq.v1.Admin")
TESTING = "cronoq.v1.Testing"
"""Offered on top where time is moved by hand."""


SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING

log = logging.getLogger(__name__)


class AddressInUse(Exception):
    """Another process listens where this one should.

    Attributes:
        address: Where.
    """

    def __init__(self, address: Address, cause: OSError) -> None:
        reason = (
            "is already in use"
            if cause.errno == errno.EADDRINUSE
            else f"can't be bound: {cause.strerror or cause}"
        )
        super().__init__(f"address {address} {reason}")
        self.address = address


def claim(address: Address) -> Address:
    """Makes sure that nobody listens at an address, and turns port 0 into a free port.

    Raises:
        AddressInUse: Somebody does, or it is not this machine's.
    """
    try:
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise AddressInUse(address, error) from error
    port = address.port
    for family, kind, protocol, _, where in found:
        with socket.socket(family, kind, protocol) as probe:
            # With this, connections of an earlier server that still linger do not count.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((where[0], port))
                probe.listen(1)
            except OSError as error:
                raise AddressInUse(Address(address.host, port), error) from error
            port = probe.getsockname()[1]
    return Address(address.host, port)


def hold(address: Address) -> list[socket.socket]:
    """Keeps an address for those who share it: nobody is given its port by chance meanwhile.

    Raises:
        AddressInUse: Somebody who does not share it was faster.
    """
    held: list[socket.socket] = []
    try:
        for family, kind, protocol, _, where in socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM
        ):
            keeper = socket.socket(family, kind, protocol)
            held.append(keeper)
            keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            keeper.bind(where)
    except OSError as error:
        for keeper in held:
            keeper.close()
        raise AddressInUse(address, error) from error
    return held


class Listener:
    """The gRPC port of one process.

    Attributes:
        address: Where it listens, with the real port.
    """

    def __init__(
        self,
        address: Address,
        limits: LimitsConfig,
        handlers: Callable[[], list[grpc.GenericRpcHandler]],
        *,
        certificates: Certificates | None = None,
        services: Sequence[str] = SERVICES,
    ) -> None:
        """Prepares to listen, and holds the port; `close` lets go of it.

        Args:
            address: As `claim` gave it.
            limits: Message sizes and keepalive.
            handlers: Makes the handlers of a leader.
            certificates: What it shows of itself; None = connections are not encrypted.
            services: Names of the services that the handlers offer.
        """
        self._certificates = certificates
        self._services = services
        self.address = address
        self._limits = limits
        self._handlers = handlers
        self._held = hold(address)
        self._server: grpc.aio.Server | None = None
        self._is_leading = False
        self._told: tuple[tuple[str, str], ...] = ()

    async def lead(self, told: Sequence[tuple[str, str]] = ()) -> None:
        """Serves as leader from now on.

        Args:
            told: Metadata of answers to health checks, for everybody who can connect.
        """
        self._told = tuple(told)
        await self._switch(leading=True)

    async def stand_by(self) -> None:
        """Refuses every call from now on and closes connections soon."""
        await self._switch(leading=False)

    async def close(self, grace_s: float) -> None:
        """Takes no calls any more; those that run get `grace_s` seconds to end."""
        server, self._server = self._server, None
        if server is not None:
            await server.stop(grace_s)
        for keeper in self._held:
            keeper.close()

    async def _switch(self, *, leading: bool) -> None:
        if self._server is not None and self._is_leading == leading:
            return
        old, server = self._server, self._build(leading=leading)
        checks = Checks(self._told if leading else ())
        for name in ("", *self._services):
            await checks.set(name, SERVING if leading else NOT_SERVING)
        health_pb2_grpc.add_HealthServicer_to_server(checks, server)
        try:
            if self._certificates is None:
                server.add_insecure_port(str(self.address))
            else:
                server.add_secure_port(str(self.address), self._certificates.grpc_credentials())
        except RuntimeError as error:
            cause = OSError(errno.EADDRINUSE, str(error))
            raise AddressInUse(self.address, cause) from error
        await server.start()
        self._server, self._is_leading = server, leading
        log.info(
            "listening on %s as %s",
            self.address,
            "leader" if leading else "standby",
            extra={"action": "listener_changed", "address": str(self.address)},
        )
        if old is not None:
            # Calls under way are being refused with a reason; cut off, they would see none.
            await old.stop(STEP_DOWN_GRACE_S)

    def _build(self, *, leading: bool) -> grpc.aio.Server:
        server = grpc.aio.server(options=self._options(leading=leading))
        if leading:
            server.add_generic_rpc_handlers(tuple(self._handlers()))
            names = (*self._services, health.SERVICE_NAME, reflection.SERVICE_NAME)
            reflection.enable_server_reflection(names, server)
        else:
            server.add_generic_rpc_handlers((StandbyHandler(),))
        return server

    def _options(self, *, leading: bool) -> list[tuple[str, int]]:
        limits = self._limits
        calls = limits.max_concurrent_requests + limits.max_waiters + limits.max_concurrent_streams
        options = [
            ("grpc.so_reuseport", 1),
            # Calls whose message never comes are seen by nobody else, who they are of included.
            ("grpc.max_concurrent_streams", min(calls, UINT31_MAX)),
            ("grpc.max_receive_message_length", limits.max_message_bytes + RECEIVE_MARGIN),
            ("grpc.max_send_message_length", limits.max_message_bytes + SEND_MARGIN),
            ("grpc.keepalive_time_ms", round(limits.keepalive_interval_s * 1000)),
            ("grpc.keepalive_timeout_ms", round(limits.keepalive_timeout_s * 1000)),
            # Without it an unanswered ping is noticed after a minute, whatever the line above says.
            ("grpc.http2.ping_timeout_ms", round(limits.keepalive_timeout_s * 1000)),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.max_pings_without_data", 0),
            ("grpc.http2.min_ping_interval_without_data_ms", PING_INTERVAL_MIN_MS),
        ]
        if leading:
            idle_ms = round(limits.idle_connection_timeout_s * 1000)
            options += [
                ("grpc.max_connection_idle_ms", idle_ms),
                ("grpc.server_handshake_timeout_ms", min(HANDSHAKE_TIMEOUT_MS, idle_ms)),
            ]
        else:
            options += [
                ("grpc.max_connection_age_ms", STANDBY_AGE_MS),
                ("grpc.max_connection_age_grace_ms", STANDBY_GRACE_MS),
                ("grpc.server_handshake_timeout_ms", STANDBY_AGE_MS),
            ]
        return options


class Checks(health.aio.HealthServicer):  # type: ignore[misc]  # it has no types
    """Answers health checks, and tells in metadata who has answered."""

    def __init__(self, told: tuple[tuple[str, str], ...]) -> None:
        super().__init__()
        self._told = told

    async def Check(  # noqa: N802 - gRPC's name
        self,
        request: health_pb2.HealthCheckRequest,
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> health_pb2.HealthCheckResponse:
        """See `HealthServicer`."""
        context.set_trailing_metadata(self._told)
        answer: health_pb2.HealthCheckResponse = await super().Check(request, context)
        return answer


class StandbyHandler(grpc.GenericRpcHandler):
    """Answers every call but health checks with `not_leader`, before anything is read."""

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """The one answer there is; health checks have a handler of their own."""
        if handler_call_details.method.startswith("/grpc.health."):
            return None
        handler: grpc.RpcMethodHandler[Any, Any] = grpc.stream_stream_rpc_method_handler(_refuse)
        return handler


async def _refuse(_requests: object, context: grpc.aio.ServicerContext[Any, Any]) -> None:
    await abort(context, NOT_LEADER)
