"""What happens to a request before any route sees it: role, host, credentials, body.

The order matters and is kept: probes are answered to everybody; a standby answers nothing else;
foreign hosts are refused; callers are identified; only then is a body read, within its bounds.
"""

from __future__ import annotations

import asyncio
import ipaddress
import zlib
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from typing import Any, Final, Protocol, TypeAlias
from urllib.parse import urlsplit

from cronoq_server.api import audit, texts
from cronoq_server.api.auth import Hold, Principal
from cronoq_server.api.http import answers
from cronoq_server.api.http.answers import Reply
from cronoq_server.api.http.connection import CERTIFICATE_NAMES
from cronoq_server.api.passing import Passing, current
from cronoq_server.config import MIB
from cronoq_server.engine import ErrorReason, Refusal
from cronoq_server.runtime.refusals import NOT_LEADER, STOPPING, Refused

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

WHO: Final = "cronoq.who"
"""Where a request's scope has its `Principal`."""

HOLDING: Final = "cronoq.holding"
"""Where it has what keeps streams for as long as their credential is good."""

BODY: Final = "cronoq.body"
"""Where it has the bytes of its body."""

HEADERS: Final = "cronoq.headers"
"""Where it has its headers by name."""

BODY_TIMEOUT_S: Final = 30.0
"""How long a body may take to arrive."""

HELD_BYTES_MAX: Final = 256 * MIB
"""How much of all bodies that are arriving is held; whoever brings more is to come later."""

TOO_MUCH_HELD: Final = Refusal(
    ErrorReason.TOO_MANY_REQUESTS, "the server is being sent too much at this moment"
)
CLOSE: Final = (b"connection", b"close")
PROBES: Final = ("/healthz", "/readyz")
METRICS: Final = "/metrics"
LOCAL_NAMES: Final = frozenset({"localhost"})


class Identify(Protocol):
    """Tells who calls, or refuses; see `Authenticator.identify`."""

    def __call__(
        self, authorization: str | None, certificate_names: Iterable[str] = ()
    ) -> Principal:
        """The caller."""


class Holding(Protocol):
    """Keeps a stream for as long as its credential is good; see `Authenticator.holding`."""

    def __call__(self, who: Principal, end: Callable[[], object]) -> AbstractContextManager[Hold]:
        """Keeps it within the context."""


def holding_nothing(who: Principal, end: Callable[[], object]) -> AbstractContextManager[Hold]:
    """Where credentials never change."""
    return nullcontext(Hold(who, end))


class Role(Protocol):
    """What the process is at this moment."""

    @property
    def is_leading(self) -> bool:
        """Whether calls are served."""

    @property
    def is_ready(self) -> bool:
        """Whether calls should be sent here."""

    @property
    def is_stopping(self) -> bool:
        """Whether it was asked to stop."""


class Front:
    """Stands before the routes.

    Attributes:
        body_bytes_max: Most bytes of a body, before and after decompression.
        only_local: Whether requests must be meant for this machine by their `Host`: where nobody
            is asked who they are, a page in a browser could otherwise reach it under a name of
            its own.
        is_open: Paths that are served whatever the role.
        held_bytes: How much of bodies that are arriving is held.
        holding: Keeps streams for as long as their credential is good.
    """

    def __init__(
        self, inner: App, role: Role, identify: Identify, *, is_open: frozenset[str] = frozenset()
    ) -> None:
        """Stands before an application.

        Args:
            inner: The application.
            role: What the process is.
            identify: Tells who calls.
            is_open: Paths that are served whatever the role.
        """
        self.body_bytes_max = 4 * MIB
        self.only_local: Callable[[], bool] = lambda: True
        self.is_public: Callable[[str], bool] = lambda _: False
        self.holding: Holding = holding_nothing
        self.held_bytes = 0
        self._inner = inner
        self._role = role
        self._identify = identify
        self.is_open = is_open

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request."""
        path: str = scope["path"]
        if path in PROBES:
            await answer(closing(probe(self._role, path, scope["method"])), scope, send)
            return
        if not self._role.is_leading and path not in self.is_open:
            refusal = STOPPING if self._role.is_stopping else NOT_LEADER
            await answer(closing(answers.refusal(refusal)), scope, send)
            return
        scope[HEADERS] = headers = by_name(scope["headers"])
        audit.origin.set(_origin(scope))
        try:
            if self.only_local():
                check_local(headers, scope["method"])
            if self.is_public(path):
                await self._inner(scope, receive, send)
                return
            authorization = headers.get("authorization")
            scope[WHO] = self._identify(authorization, scope.get(CERTIFICATE_NAMES, ()))
            scope[HOLDING] = self.holding
            current.set(Passing(authorization))
            scope[BODY] = await self._body(headers, receive)
        except Refused as refused:
            await answer(closing(answers.refusal(refused.refusal)), scope, send)
        except Unreadable as unreadable:
            reply = answers.refusal(unreadable.refusal, code=unreadable.code)
            await answer(closing(reply), scope, send)
        else:
            await self._inner(scope, receive, send)

    async def _body(self, headers: Mapping[str, str], receive: Receive) -> bytes:
        """The whole body.

        Raises:
            Unreadable: It is too large, too slow, or encoded in a way that is not known.
        """
        length = headers.get("content-length")
        if length is None and "transfer-encoding" not in headers:
            return b""
        most = self.body_bytes_max
        if length is not None and length.isdecimal() and int(length) > most:
            raise too_large(int(length), most)
        encoding = headers.get("content-encoding", "identity").strip().lower()
        if encoding not in ("identity", "gzip"):
            text = f"content-encoding: must be gzip or absent, not {texts.shown(encoding)}"
            raise Unreadable(415, ErrorReason.INVALID_FIELD, text)
        try:
            async with asyncio.timeout(BODY_TIMEOUT_S):
                body = await self._read(receive, most)
        except TimeoutError as error:
            text = f"the body did not arrive within {BODY_TIMEOUT_S:g} s"
            raise Unreadable(408, ErrorReason.INVALID_FIELD, text) from error
        return body if encoding == "identity" else await unpacked(body, most)

    async def _read(self, receive: Receive, most: int) -> bytes:
        parts: list[bytes] = []
        size = 0
        try:
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise asyncio.CancelledError  # nobody is there to answer
                part: bytes = message.get("body", b"")
                size += len(part)
                self.held_bytes += len(part)
                if size > most:
                    raise too_large(size, most)
                if self.held_bytes > max(HELD_BYTES_MAX, most):
                    raise Refused(TOO_MUCH_HELD)
                parts.append(part)
                if not message.get("more_body", False):
                    return b"".join(parts)
        finally:
            self.held_bytes -= size


def probe(role: Role, path: str, method: str) -> Reply:
    """What probes hear."""
    if method not in ("GET", "HEAD"):
        reply = Reply(b"only GET and HEAD\n", 405, [(b"allow", b"GET, HEAD")])
    elif path == "/healthz":
        reply = Reply(b"alive\n")
    elif role.is_ready:
        reply = Reply(b"ready\n")
    else:
        reply = Reply(b"not ready\n", 503)
    reply.add(b"content-type", b"text/plain; charset=utf-8")
    return reply


class Unreadable(Exception):
    """A request that has no place in the table of reasons.

    Attributes:
        code: Its status.
        refusal: What is said about it.
    """

    def __init__(self, code: int, reason: ErrorReason, text: str, *details: tuple[str, str]):
        super().__init__(text)
        self.code = code
        self.refusal = Refusal(reason, text, details)


def too_large(size: int, most: int) -> Unreadable:
    """A body that is too large."""
    return Unreadable(
        413,
        ErrorReason.TOO_LARGE,
        f"body: {size} bytes exceed the limit of {most}",
        ("field", "body"),
        ("limit", str(most)),
    )


async def unpacked(body: bytes, most: int) -> bytes:
    """A body as it was before it was compressed.

    Raises:
        Unreadable: It is damaged, or has more than `most` bytes.
    """
    try:
        if len(body) < answers.GZIP_MIN:
            return unpack(body, most)
        return await asyncio.to_thread(unpack, body, most)
    except zlib.error as error:
        text = "body: is not what gzip makes"
        raise Unreadable(400, ErrorReason.INVALID_FIELD, text, ("field", "body")) from error


def unpack(body: bytes, most: int) -> bytes:
    """Decompresses a body, which may not become larger than `most` bytes.

    Raises:
        Unreadable: It would.
        zlib.error: It is damaged.
    """
    unpacker = zlib.decompressobj(zlib.MAX_WBITS | 16)
    content = unpacker.decompress(body, most + 1)
    if len(content) > most:
        raise too_large(len(content), most)
    if not unpacker.eof or unpacker.unused_data:
        raise zlib.error("cut short, or followed by something else")
    return content


def check_local(headers: Mapping[str, str], method: str) -> None:
    """Makes sure that a request is meant for this machine.

    Raises:
        Refused: Its `Host` names another one, or a page of another one sent it.
    """
    if not _is_local(headers.get("host", "")):
        shown = texts.shown(headers.get("host", ""))
        raise texts.invalid("host", f"must name this machine (localhost, 127.0.0.1), not {shown}")
    origin = headers.get("origin")
    if origin is not None and method not in ("GET", "HEAD") and not _is_local_origin(origin):
        raise texts.invalid("origin", f"pages of {texts.shown(origin)} may change nothing here")


@lru_cache(maxsize=256)
def _is_local(host: str) -> bool:
    name, colon, port = host.rpartition(":")
    if not colon or not port.isdecimal():
        name = host
    name = name.strip("[]").lower()
    if name in LOCAL_NAMES:
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _is_local_origin(origin: str) -> bool:
    try:
        return _is_local(urlsplit(origin).hostname or "")
    except ValueError:
        return False


def closing(reply: Reply) -> Reply:
    """The same answer as the last of its connection."""
    reply.add(*CLOSE)
    return reply


async def answer(reply: Reply, scope: Scope, send: Send) -> None:
    """Sends an answer that no route has made."""
    await answers.finish(reply, accepts_gzip=False)
    body = b"" if scope["method"] == "HEAD" else reply.body
    await send(
        {
            "type": "http.response.start",
            "status": reply.status_code,
            "headers": reply.raw_headers,
        }
    )
    await send({"type": "http.response.body", "body": body})


def _origin(scope: Scope) -> str:
    """Where a request came from."""
    client = scope.get("client")
    return f"{client[0]}:{client[1]}" if client else ""


def by_name(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Headers by name, the last one of each; texts that are no Latin-1 are nobody's."""
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in headers}
