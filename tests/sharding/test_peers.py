"""Whether a peer is found to lead does not depend on the way to it, or on who answers first."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from cronoq_server.sharding import Shard
from cronoq_server.sharding.peers import Peer, Peers, PeerSettings
from tests.api.certificates import Place
from tests.e2e.replicas import Balancer
from tests.e2e.sharded.gateway import Gateway
from tests.sharding.conftest import free_ports

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


@asynccontextmanager
async def answering(status: health_pb2.HealthCheckResponse.ServingStatus) -> AsyncIterator[int]:
    """A server that answers probes so; gives its port."""
    server = grpc.aio.server()
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
