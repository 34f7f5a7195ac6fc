"""Whether a peer is found to lead does not depend on the way to it, or on who answers first."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from cronoq_server._proto import task_pb2
from cronoq_server.api.listener import StandbyHandler
from cronoq_server.sharding import Shard
from cronoq_server.sharding.peers import Peer, Peers, PeerSettings, open_channel
from tests.api.certificates import Place
from tests.e2e.replicas import Balancer
from tests.e2e.sharded.gateway import Gateway
from tests.sharding.conftest import free_ports

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


@asynccontextmanager
async def answering(
    status: health_pb2.HealthCheckResponse.ServingStatus, *others: grpc.GenericRpcHandler
) -> AsyncIterator[int]:
    """A server that answers probes so, and other calls as it is told; gives its port."""
    server = grpc.aio.server()
    server.add_generic_rpc_handlers(others)
    checks = health.aio.HealthServicer()
    await checks.set("cronoq.v1.Tasks", status)
    health_pb2_grpc.add_HealthServicer_to_server(checks, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield port
    finally:
        await server.stop(None)


@asynccontextmanager
async def peer_at(address: str, timeout_s: float = 30.0) -> AsyncIterator[Peer]:
    """A peer that is reached at an address."""
    shard = Shard("gpu", 2, frozenset({"llm"}), endpoint=f"http://{address}")
    peer = Peer(shard, PeerSettings(timeout_s=timeout_s))
    try:
        yield peer
    finally:
        await peer.close()


async def test_a_leader_is_found_behind_a_balancer_that_knows_no_roles() -> None:
    """One probe is enough, wherever the balancer begins."""
    async with AsyncExitStack() as stack:
        ports = [
            await stack.enter_async_context(answering(status)) for status in (SERVING, NOT_SERVING)
        ]
        front = await stack.enter_async_context(Balancer(ports).open())
        for _ in range(4):
            peer = await stack.enter_async_context(peer_at(front.address))
            await peer.probe()
            assert peer.answers
            assert not peer.stands_by


async def test_standbys_alone_are_told_from_nobody() -> None:
    """Both do not answer as a leader; who reads the table wants to know which it is."""
    async with answering(NOT_SERVING) as port, peer_at(f"127.0.0.1:{port}") as peer:
        await peer.probe()
        assert (peer.answers, peer.stands_by, peer.leader) == (False, True, None)
    async with peer_at(f"127.0.0.1:{port}") as peer:
        await peer.probe()
        assert (peer.answers, peer.stands_by, peer.leader) == (False, False, None)


async def test_a_peer_far_away_is_found() -> None:
    """A connection may take its time to be there; it is not begun anew again and again."""
    async with AsyncExitStack() as stack:
        port = await stack.enter_async_context(answering(SERVING))
        way = await stack.enter_async_context(Gateway([port], is_peer=lambda _: True).open())
        way.delay = 0.3
        peer = await stack.enter_async_context(peer_at(way.address))
        await peer.probe()
        assert peer.answers


async def test_probes_go_on_while_a_certificates_file_is_gone(tmp_path: Path) -> None:
    """It is exchanged in two steps, and nobody has to wait for a restart afterwards."""
    place = Place(tmp_path / "certificates")
    shard = Shard("far", 2, frozenset({"b"}), endpoint=f"https://localhost:{free_ports(1)[0]}")
    peers = Peers([shard], PeerSettings(timeout_s=1.0, ca=str(place.ca)))
    content = place.ca.read_bytes()
    place.ca.unlink()
    for _ in range(2):
        await peers.probe()
        assert peers.missing() == ["far"]
    place.ca.write_bytes(content)
    await peers.probe()
    assert peers.missing() == ["far"]
    await peers.of(shard).close()


METHOD = "/cronoq.test.Shard/Ask"
NOTHING = task_pb2.Empty()


class Shows(grpc.GenericRpcHandler):
    """Answers every call; those that are told to wait have no answer.

    Attributes:
        asked: How many calls have come.
    """

    def __init__(self, *, waits: bool = False) -> None:
        self.asked = asyncio.Semaphore(0)
        self._waits = waits

    def service(self, handler_call_details: Any) -> Any:
        """The one handler that there is."""
        if handler_call_details.method != METHOD:
            return None
        return grpc.stream_stream_rpc_method_handler(self._answer)

    async def _answer(self, _requests: object, _context: object) -> AsyncIterator[bytes]:
        self.asked.release()
        if self._waits:
            await asyncio.Event().wait()
        yield b""


async def hear_out(peer: Peer) -> None:
    """Makes a call with many answers, and hears all of them."""
    async for _ in peer.stream(METHOD, NOTHING, task_pb2.Empty, (), None):
        pass


async def test_calls_that_a_closed_connection_cuts_off_end_as_lost() -> None:
    """Whoever asked is not cancelled by it, and hears an end, on an old connection as on a new."""
    shows = Shows(waits=True)
    async with AsyncExitStack() as stack:
        port = await stack.enter_async_context(answering(NOT_SERVING, shows))
        peer = await stack.enter_async_context(peer_at(f"127.0.0.1:{port}"))
        calls = []
        for _ in range(2):
            calls += [
                asyncio.create_task(peer.call(METHOD, NOTHING, task_pb2.Empty, (), None)),
                asyncio.create_task(hear_out(peer)),
            ]
            await shows.asked.acquire()
            await shows.asked.acquire()
            await peer.probe()  # finds no leader: later calls take a new connection
        await peer.close()
        for call in calls:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_caller_that_gives_up_is_cancelled_as_anywhere() -> None:
    """That is its own doing, and no loss of the peer."""
    shows = Shows(waits=True)
    async with AsyncExitStack() as stack:
        port = await stack.enter_async_context(answering(SERVING, shows))
        peer = await stack.enter_async_context(peer_at(f"127.0.0.1:{port}"))
        asking = peer.call(METHOD, NOTHING, task_pb2.Empty, (), None)
        for call in (asyncio.create_task(asking), asyncio.create_task(hear_out(peer))):
            await shows.asked.acquire()
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call


async def test_calls_that_met_a_standby_together_share_one_new_connection() -> None:
    """A change of leaders is no storm of connections, however many calls are under way."""
    async with AsyncExitStack() as stack:
        ports = [
            await stack.enter_async_context(answering(status, handler))
            for status, handler in ((NOT_SERVING, StandbyHandler()), (SERVING, Shows()))
        ]
        made = 0

        def connect(_: Shard, settings: PeerSettings) -> grpc.aio.Channel:
            nonlocal made
            made += 1
            address = f"http://127.0.0.1:{ports[min(made, 2) - 1]}"
            return open_channel(Shard("gpu", 2, frozenset({"llm"}), endpoint=address), settings)

        peer = Peer(Shard("gpu", 2, frozenset({"llm"})), PeerSettings(timeout_s=30.0), connect)
        stack.push_async_callback(peer.close)
        calls = (peer.call(METHOD, NOTHING, task_pb2.Empty, (), None) for _ in range(50))
        assert len(await asyncio.gather(*calls)) == 50
        assert made == 2
