"""What probes hear: the role, at once, and a closed connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from cronoq_server.api import health_http
from cronoq_server.api.health_http import HealthServer
from cronoq_server.api.listener import AddressInUse
from cronoq_server.app import Server
from cronoq_server.config import Address, parse

LOOPBACK = Address("127.0.0.1", 0)


class Probe:
    """A health server whose role the test decides."""

    def __init__(self) -> None:
        self.ready = False
        self.server = HealthServer(LOOPBACK, lambda: self.ready)

    async def ask(self, request: bytes) -> tuple[int, dict[str, str], str]:
        """Status, headers and body of the answer to raw bytes; returns at the connection's end."""
        reader, writer = await asyncio.open_connection(*self.server.address)
        writer.write(request)
        answer = (await reader.read()).decode()
        writer.close()
        head, _, body = answer.partition("\r\n\r\n")
        first, *lines = head.split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines)
        return int(first.split()[1]), headers, body

    async def get(self, path: str) -> int:
        """The status of a path."""
        status, headers, _ = await self.ask(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        assert headers["connection"] == "close"
        return status


@pytest.fixture
async def probe() -> AsyncIterator[Probe]:
    """A server that answers."""
    made = Probe()
    await made.server.start()
    yield made
    await made.server.close()


async def test_role_is_told(probe: Probe) -> None:
    """Alive whatever the role; ready only while it leads."""
    assert (await probe.get("/healthz"), await probe.get("/readyz")) == (200, 503)
    probe.ready = True
    assert (await probe.get("/healthz"), await probe.get("/readyz?full=1")) == (200, 200)


@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        ("GET / HTTP/1.1", 404),
        ("GET /v1/tasks HTTP/1.1", 404),
        ("POST /readyz HTTP/1.1", 405),
        ("HEAD /healthz HTTP/1.0", 200),
        ("hello", 400),
        ("GET /healthz HTTP/2", 400),
        (f"GET /{'x' * 9000} HTTP/1.1", 431),
    ],
)
async def test_other_requests_are_refused(probe: Probe, request_line: str, status: int) -> None:
    """Whatever is asked gets a status, and HEAD no body."""
    got, headers, body = await probe.ask(f"{request_line}\r\nHost: x\r\n\r\n".encode())
    assert got == status
    assert headers["connection"] == "close"
    assert len(body) == (0 if request_line.startswith("HEAD") else int(headers["content-length"]))


@pytest.mark.parametrize("said", [b"", b"GET /healthz HT"])
async def test_silent_connection_is_closed(
    probe: Probe, said: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who asks nothing, or only half, does not keep a connection, on either role."""
    monkeypatch.setattr(health_http, "STANDBY_PATIENCE_S", 0.02)
    monkeypatch.setattr(health_http, "LEADER_PATIENCE_S", 0.02)
    for probe.ready in (False, True):
        reader, writer = await asyncio.open_connection(*probe.server.address)
        writer.write(said)
        assert await reader.read() == b""
        writer.close()


async def test_too_many_connections_are_closed_at_once(
    probe: Probe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Connections that say nothing can't use the process up, nor does closing wait for them."""
    monkeypatch.setattr(health_http, "CONNECTIONS_MAX", 2)
    silent = [await asyncio.open_connection(*probe.server.address) for _ in range(2)]
    reader, writer = await asyncio.open_connection(*probe.server.address)
    assert await reader.read() == b""
    await probe.server.close()
    for reader, other in silent:
        assert await reader.read() == b""
        other.close()
    writer.close()


async def test_address_in_use_is_named(probe: Probe) -> None:
    """Neither a second listener nor a whole second server gets the port."""
    address = probe.server.address
    with pytest.raises(AddressInUse, match=f"{address} is already in use"):
        await HealthServer(address, lambda: True).start()
    with pytest.raises(AddressInUse, match=f"{address} is already in use"):
        Server(parse(f"[server]\ngrpc_addr = '127.0.0.1:0'\nhttp_addr = '{address}'"))
