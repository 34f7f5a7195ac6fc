"""Where a server listens: who else may, and how leader and standby differ."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from cronoq_server._proto import tasks_pb2, tasks_pb2_grpc, workers_pb2_grpc
from cronoq_server.api.listener import AddressInUse, Listener, claim
from cronoq_server.app import Server
from cronoq_server.config import Address, LimitsConfig, parse
from tests.api.conftest import Edge, reason_of, serving

LOOPBACK = Address("127.0.0.1", 0)


async def closed(reader: asyncio.StreamReader) -> None:
    """Returns when the other side has closed the connection."""
    try:
        while await reader.read(65_536):
            pass
    except ConnectionResetError:
        pass


@pytest.fixture
async def listener() -> AsyncIterator[Listener]:
    """A listener of a server without services."""
    made = Listener(claim(LOOPBACK), LimitsConfig(), list)
    yield made
    await made.close(0)


def test_free_port_is_found() -> None:
    """Port 0 becomes a port that can be used."""
    address = claim(LOOPBACK)
    assert address.port > 0
    assert claim(address) == address


def test_address_of_another_machine_is_refused() -> None:
    """What can't be bound here is named in the error."""
    with pytest.raises(AddressInUse, match=r"192\.0\.2\.1:7070 can't be bound"):
        claim(Address("192.0.2.1", 7070))
    with pytest.raises(AddressInUse, match=r"no\.such\.host\.invalid:1"):
        claim(Address("no.such.host.invalid", 1))


def test_address_in_use_is_named() -> None:
    """A port on which somebody listens is refused, whatever options that one has set."""
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(AddressInUse, match=f"127.0.0.1:{port} is already in use"):
            claim(Address("127.0.0.1", port))


async def test_second_server_on_a_port_is_refused(edge: Edge) -> None:
    """Two servers never share a port, though gRPC would let them."""
    address = edge.server.address
    with pytest.raises(AddressInUse, match=f"{address} is already in use"):
        Server(parse(f"[server]\ngrpc_addr = '{address}'"))


async def test_port_is_held_before_anything_is_served(listener: Listener) -> None:
    """Between the start and the first role nobody else gets the port, by chance or by wish."""
    with pytest.raises(AddressInUse, match=f"{listener.address} is already in use"):
        claim(listener.address)
    await listener.close(0)
    assert claim(listener.address) == listener.address


async def test_standby_refuses_every_call(listener: Listener) -> None:
    """Calls of any kind get `not_leader`, health checks say that it does not serve."""
    await listener.stand_by()
    async with grpc.aio.insecure_channel(str(listener.address)) as channel:
        tasks: Any = tasks_pb2_grpc.TasksStub(channel)
        workers: Any = workers_pb2_grpc.WorkersStub(channel)
        for call in (
            tasks.Submit(tasks_pb2.SubmitRequest()),
            tasks.Watch(tasks_pb2.WatchRequest()).read(),
            workers.Work().read(),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
            assert reason_of(caught.value)[0] == "NOT_LEADER"
        health: Any = health_pb2_grpc.HealthStub(channel)
        answer = await health.Check(health_pb2.HealthCheckRequest())
        assert answer.status == health_pb2.HealthCheckResponse.NOT_SERVING


async def test_standby_closes_silent_connections(listener: Listener) -> None:
    """A connection on which nothing is said does not stay on a standby."""
    await listener.stand_by()
    host, port = listener.address
    reader, writer = await asyncio.open_connection(host, port)
    await closed(reader)
    writer.close()


async def test_roles_change_on_one_port(listener: Listener) -> None:
    """The port is served through every change of role, and says which role it is."""
    for role, status in (
        (listener.stand_by, health_pb2.HealthCheckResponse.NOT_SERVING),
        (listener.lead, health_pb2.HealthCheckResponse.SERVING),
        (listener.stand_by, health_pb2.HealthCheckResponse.NOT_SERVING),
    ):
        await role()
        async with grpc.aio.insecure_channel(str(listener.address)) as channel:
            health: Any = health_pb2_grpc.HealthStub(channel)
            answer = await health.Check(health_pb2.HealthCheckRequest(), wait_for_ready=True)
            assert answer.status == status


@pytest.mark.regression("R34")
async def test_connections_that_say_nothing_are_closed() -> None:
    """Silent sockets are reaped, and who talks beside them is served."""
    async with serving("[limits]\nidle_connection_timeout_s = 0.2\n") as edge:
        host, port = edge.server.address
        silent = [await asyncio.open_connection(host, port) for _ in range(50)]
        assert await edge.submit()
        for reader, writer in silent:
            await closed(reader)
            writer.close()
        assert await edge.submit()
