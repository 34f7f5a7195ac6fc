"""What probes and balancers hear over HTTP: whether the process lives, and whether it leads.

`/healthz` is 200 while the process can answer; `/readyz` is 200 while it leads and may be sent
calls, else 503. Rules a change must keep:

1. Every connection ends after one answer, so that a probe's next look may reach another replica.
2. A connection that does not finish its request is closed: soon on a standby, later on a leader.
3. Nothing is told here that would need a credential.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from http import HTTPStatus
from typing import Final

from cronoq_server.api.listener import AddressInUse
from cronoq_server.config import Address

REQUEST_MAX: Final = 8192
"""Most bytes of a request line with its headers."""

STANDBY_PATIENCE_S: Final = 1.0
LEADER_PATIENCE_S: Final = 5.0
CONNECTIONS_MAX: Final = 256
"""Most connections at a time; who comes on top is closed at once."""


class HealthServer:
    """Answers `/healthz` and `/readyz` on one address, whatever the role.

    Attributes:
        address: Where; once it has started, with the real port.
    """

    def __init__(self, address: Address, is_ready: Callable[[], bool]) -> None:
        """Prepares to listen.

        Args:
            address: Where; port 0 lets the system choose.
            is_ready: Whether calls may be sent to this process now.
        """
        self.address = address
        self._is_ready = is_ready
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Begins to answer.

        Raises:
            AddressInUse: Somebody else listens there.
        """
        host, port = self.address
        try:
            self._server = await asyncio.start_server(self._serve, host, port, limit=REQUEST_MAX)
        except OSError as error:
            raise AddressInUse(self.address, error) from error
        self.address = Address(host, self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Closes the address and every connection."""
        if self._server is not None:
            self._server.close()
        for task in list(self._open):
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        patience = LEADER_PATIENCE_S if self._is_ready() else STANDBY_PATIENCE_S
        try:
            if len(self._open) <= CONNECTIONS_MAX:
                async with asyncio.timeout(patience):
                    await self._answer(reader, writer)
        except (TimeoutError, ConnectionError, asyncio.IncompleteReadError):
            pass  # it did not ask, or does not listen
        except asyncio.CancelledError:
            pass  # `close` waits for this task and nobody else does
        finally:
            self._open.discard(task)
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            status, text, method = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "too large", "GET"
        else:
            method, status, text = self._judge(head)
        body = f"{text}\n".encode()
        writer.write(
            f"HTTP/1.1 {status.value} {status.phrase}\r\n"
            "Content-Type: text/plain; charset=utf-8\r\n"
            f"Content-Length: {len(body)}\r\n"
            "Cache-Control: no-store\r\n"
            "Connection: close\r\n\r\n".encode()
            + (b"" if method == "HEAD" else body)
        )
        await writer.drain()

    def _judge(self, head: bytes) -> tuple[str, HTTPStatus, str]:
        """Method, status and text of the answer to a request."""
        words = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            return "GET", HTTPStatus.BAD_REQUEST, "not a request of HTTP/1.1"
        method, target, _ = words
        path = target.partition("?")[0]
        if path not in ("/healthz", "/readyz"):
            return method, HTTPStatus.NOT_FOUND, "not found"
        if method not in ("GET", "HEAD"):
            return method, HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD"
        if path == "/healthz":
            return method, HTTPStatus.OK, "alive"
        if self._is_ready():
            return method, HTTPStatus.OK, "ready"
        return method, HTTPStatus.SERVICE_UNAVAILABLE, "not ready"
