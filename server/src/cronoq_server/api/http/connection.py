"""How long a connection may be silent, slow or idle, and what ends with it.

Every connection is in one of four states, and each has a bound:

    silent    opened, or amid the head of a request      HEAD_TIMEOUT_S, a standby STANDBY_AGE_S
    busy      a request is being answered                the request's own bounds
    idle      kept alive between requests                `idle_connection_timeout_s`
    stuck     it does not read what it asked for         STALL_TIMEOUT_S

When the server has as many connections as it takes, the one that has been silent or idle longest
makes room for a new one, so that connections that say nothing never keep out those that do. A
caller that goes away amid a request ends it: the task that serves it is cancelled.
"""

from __future__ import annotations

import asyncio
import socket
import time
from email.utils import formatdate
from typing import Any, Final

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

HEAD_TIMEOUT_S: Final = 10.0
STANDBY_AGE_S: Final = 1.0
STALL_TIMEOUT_S: Final = 30.0
CLOSE_TIMEOUT_S: Final = 10.0
"""How long a closed connection may take to read the rest of its answer."""

IN_LINE_MAX: Final = 16
"""Requests that may stand in line on a connection before no more is read from it."""

HEAD_BYTES_MAX: Final = 32 * 1024
"""Most bytes of a request line with its headers, and of what follows a body in chunks."""

CHUNK_COST_MAX: Final = 16
"""Bytes that each byte of a body may cost beside itself, for how it is cut into chunks."""

CERTIFICATE_NAMES: Final = "cronoq.certificate_names"
"""Where a request's scope has the DNS names of the client's certificate."""

_MALFORMED: Final = (400, "invalid_field", "this is not a request of HTTP/1.1")
_HEAD_TOO_LARGE: Final = (
    431,
    "too_large",
    f"the request's line and headers exceed the limit of {HEAD_BYTES_MAX} bytes",
)


class Connections(ServerState):
    """All connections of one listener, and their bounds.

    Attributes:
        most: How many there may be.
        is_leading: Whether they may stay between requests.
        waiting: Those that are silent or idle, the longest first.
    """

    def __init__(self, most: int, keepalive_interval_s: float) -> None:
        super().__init__()
        self.most = most
        self.is_leading = False
        self.waiting: dict[Connection, None] = {}
        self.keepalive_interval_s = keepalive_interval_s
        self._dated = 0

    def date(self) -> None:
        """Makes the header of this second, if that has not been done."""
        now = int(time.time())
        if now != self._dated:
            self._dated = now
            self.default_headers = [(b"date", formatdate(now, usegmt=True).encode())]

    def make_room(self) -> bool:
        """Whether one more connection has a place; one that only waits may lose its."""
        if len(self.connections) <= self.most:
            return True
        if not self.waiting:
            return False
        next(iter(self.waiting)).abort()
        return True


class Connection(HttpToolsProtocol):
    """One connection."""

    server_state: Connections

    def __init__(
        self,
        config: Config,
        server_state: Connections,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._serving = self.app
        self.app = self._serve
        self._task: asyncio.Task[Any] | None = None
        self._answering: RequestResponseCycle | None = None
        self._unanswered = 0
        self._is_last = False
        self._timer: asyncio.TimerHandle | None = None
        self._stall: asyncio.TimerHandle | None = None
        self._head_bytes = 0
        self._room = 0
        self._in_head = True
        self._certificate_names: tuple[str, ...] = ()

    # Coming and going

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Takes its place, or is closed at once."""
        super().connection_made(transport)
        self._certificate_names = certificate_names(transport)
        _keep_alive(transport, self.server_state.keepalive_interval_s)
        if not self.server_state.make_room():
            self.abort()
            return
        self.server_state.waiting[self] = None
        self._set_timer(HEAD_TIMEOUT_S if self.server_state.is_leading else STANDBY_AGE_S)

    def connection_lost(self, exc: Exception | None) -> None:
        """Ends what it asked for."""
        self.server_state.waiting.pop(self, None)
        self._set_timer(None)
        self._unset_keepalive_if_required()
        if self._stall is not None:
            self._stall.cancel()
        super().connection_lost(exc)
        answering = self._answering
        if answering is not None and self._task is not None and not answering.response_complete:
            # With requests in line, this is not the one that the base class knows of.
            answering.disconnected = True
            self._task.cancel()

    def abort(self) -> None:
        """Closes without a word."""
        self.server_state.waiting.pop(self, None)
        self.transport.abort()

    def step_down(self) -> None:
        """Closes when what is being answered is answered; at once if nothing is."""
        if self._unanswered:
            self._end_after_this()
        else:
            self.transport.close()
            self._set_timer(CLOSE_TIMEOUT_S)

    def _end_after_this(self) -> None:
        """Makes the answer that is being given, or comes next, the last one."""
        self._is_last = True
        if self._answering is not None:
            self._answering.keep_alive = False

    # Reading

    def data_received(self, data: bytes) -> None:
        """Reads what came, and refuses what is no request."""
        if self.transport.is_closing():
            return
        self._unset_keepalive_if_required()
        self._head_bytes += len(data)
        self._room -= len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            # Answered as if it had not asked; what follows is not HTTP any more.
            self._end_after_this()
        except httptools.HttpParserError:
            self._refuse(*_MALFORMED)
            return
        # A body has its own limit; this one is for what the parser keeps.
        if self._head_bytes > HEAD_BYTES_MAX if self._in_head else self._room < 0:
            self._refuse(*_HEAD_TOO_LARGE)

    def on_message_begin(self) -> None:
        """A request begins: its head has so long."""
        super().on_message_begin()
        if not self._in_head:
            self._in_head = True
            self._head_bytes = 0
            if not self._unanswered:
                self._set_timer(HEAD_TIMEOUT_S)

    def on_headers_complete(self) -> None:
        """A request can be answered."""
        self._in_head = False
        self._room = self._head_bytes + HEAD_BYTES_MAX
        self._set_timer(None)
        self.server_state.waiting.pop(self, None)
        self.server_state.date()
        super().on_headers_complete()
        self._unanswered += 1
        if not self.server_state.is_leading:
            self._is_last = True
        if 0 < len(self.pipeline) <= IN_LINE_MAX:
            # The base class stops reading here, and would not notice that the caller leaves.
            self.flow.resume_reading()

    def on_body(self, body: bytes) -> None:
        """A piece of a body makes room for what it costs."""
        self._room += len(body) * (1 + CHUNK_COST_MAX)
        super().on_body(body)

    def _refuse(self, status: int, reason: str, message: str) -> None:
        if self._unanswered and not self._gives_up_body():
            # An answer is on its way and must not be cut in two.
            self._end_after_this()
            self.flow.pause_reading()
            return
        body = (
            f'{{"error":{{"code":{status},"reason":"{reason}",'
            f'"message":"{message}","details":{{}}}}}}'
        ).encode()
        self.transport.write(
            b"HTTP/1.1 %d Refused\r\ncontent-type: application/json\r\ncontent-length: %d\r\n"
            b"connection: close\r\n\r\n%s" % (status, len(body), body)
        )
        self.transport.close()
        self._set_timer(CLOSE_TIMEOUT_S)

    def _gives_up_body(self) -> bool:
        """Ends the request whose body will never be whole; whether it is the next to be answered.

        Whoever waits for the rest would wait as long as a slow body may take.
        """
        cycle = self.cycle
        if not cycle.more_body or cycle.response_started:
            return False
        cycle.disconnected = True
        cycle.message_event.set()
        if self._unanswered > 1:
            return False
        if self._task is not None:
            self._task.cancel()
        return True

    # Answering

    async def _serve(self, scope: Any, receive: Any, send: Any) -> None:
        """Serves one request; the caller's leaving ends it without a word."""
        self._task = asyncio.current_task()
        self._answering = cycle = receive.__self__
        if self._is_last:
            cycle.keep_alive = False
        scope[CERTIFICATE_NAMES] = self._certificate_names
        joined = Joined(self.transport)

        async def send_joined(message: Any) -> None:
            if message["type"] == "http.response.start":
                cycle.transport = joined
                await send(message)
            else:
                await send(message)
                joined.flush()

        try:
            await self._serving(scope, receive, send_joined)
        except asyncio.CancelledError:
            if not cycle.disconnected:
                raise
            self.transport.close()  # whether it has left or sent what can't be read
        finally:
            if self._answering is cycle:
                self._task = self._answering = None

    def on_response_complete(self) -> None:
        """An answer is written: the next request may come, or the end."""
        self._task = self._answering = None
        self._unanswered -= 1
        super().on_response_complete()
        if self.transport.is_closing():
            self._set_timer(CLOSE_TIMEOUT_S)
        elif not self._unanswered:
            self.server_state.waiting[self] = None
            if self._in_head:
                self._set_timer(HEAD_TIMEOUT_S)

    def pause_writing(self) -> None:
        """The caller does not read: it has so long to begin again."""
        super().pause_writing()
        if self._stall is None:
            self._stall = self.loop.call_later(STALL_TIMEOUT_S, self.abort)

    def resume_writing(self) -> None:
        """The caller reads again."""
        super().resume_writing()
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None

    def timeout_keep_alive_handler(self) -> None:
        """It has been idle for too long."""
        self.abort()

    def _set_timer(self, seconds: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if seconds is None else self.loop.call_later(seconds, self.abort)


class Joined:
    """A transport that sends the head of an answer together with what follows it."""

    __slots__ = ("_head", "_transport")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._head: bytes | None = b""

    def write(self, content: bytes) -> None:
        """Keeps the first piece for the second, and writes all others."""
        if self._head is None:
            self._transport.write(content)
        elif self._head:
            head, self._head = self._head, None
            self._transport.write(head + content)
        else:
            self._head = content

    def flush(self) -> None:
        """Writes the first piece if nothing has followed it."""
        if self._head:
            self._transport.write(self._head)
        self._head = None

    def close(self) -> None:
        """Closes when all is written."""
        self.flush()
        self._transport.close()

    def is_closing(self) -> bool:
        """Whether it is closed."""
        return self._transport.is_closing()


def certificate_names(transport: asyncio.BaseTransport) -> tuple[str, ...]:
    """The DNS names in the certificate that the client has shown and that was verified."""
    certificate = transport.get_extra_info("peercert") or {}
    names = certificate.get("subjectAltName", ())
    return tuple(value for kind, value in names if kind == "DNS")


def _keep_alive(transport: asyncio.BaseTransport, interval_s: float) -> None:
    """Lets the system notice peers that are gone without a word."""
    sock = transport.get_extra_info("socket")
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    seconds = max(1, round(interval_s))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", seconds), ("TCP_KEEPINTVL", seconds), ("TCP_KEEPCNT", 3)):
        option = getattr(socket, name, None)
        if option is not None:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
