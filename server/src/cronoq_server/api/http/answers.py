"""What an answer is made of: JSON or bytes, headers that belong to it, gzip when it pays.

Refusals become answers here, with their status from the one table in `api.errors`.
"""

from __future__ import annotations

import asyncio
import re
import zlib
from typing import Any, Final

import msgspec
from starlette.responses import Response

from cronoq_server.api import errors
from cronoq_server.api.http import writing
from cronoq_server.api.http.responses import Error
from cronoq_server.engine import ErrorReason, Refusal

JSON: Final = b"application/json"
GZIP_MIN: Final = 1024
"""Bytes of a body from which on compressing it pays."""

GZIP_LEVEL: Final = 1
IN_THREAD_MIN: Final = 64 * 1024
"""Bytes from which on compressing would hold up the loop."""

RETRY_LATER: Final = {429: b"1", 503: b"1"}
"""Seconds after which a refused caller may come again, by status."""

_SHARD_HEADERS: Final = {"shard": b"cronoq-shard", "endpoint": b"cronoq-shard-endpoint"}
_HEADER_SAFE: Final = re.compile(r"[\x21-\x7e]{1,512}")
_encode = msgspec.json.Encoder().encode

Headers = list[tuple[bytes, bytes]]


class Reply(Response):
    """An answer with a body that is there as a whole."""

    def __init__(self, body: bytes, status: int = 200, headers: Headers | None = None) -> None:
        self.status_code = status
        self.body = body
        self.background = None
        self.raw_headers = headers or []

    def add(self, name: bytes, value: bytes) -> None:
        """Adds a header."""
        self.raw_headers.append((name, value))


def json(value: Any, status: int = 200, headers: Headers | None = None) -> Reply:
    """An answer in JSON."""
    return Reply(_encode(value), status, [(b"content-type", JSON), *(headers or ())])


def nothing() -> Reply:
    """An answer that only says that it is done."""
    return Reply(b"", 204)


def refusal(refused: Refusal, *, code: int | None = None, submitting: bool = False) -> Reply:
    """A refusal, with the headers that belong to it.

    Args:
        refused: What was refused.
        code: The status, if it is not that of the table.
        submitting: Whether a submission was refused.
    """
    body = writing.error_body(refused, code=code, submitting=submitting)
    headers: Headers = []
    if body.code in RETRY_LATER:
        headers.append((b"retry-after", _retry_after(refused, RETRY_LATER[body.code])))
    if refused.reason is ErrorReason.UNAUTHENTICATED:
        headers.append((b"www-authenticate", b'Bearer realm="cronoq"'))
    for name, value in refused.details:
        header = _SHARD_HEADERS.get(name)
        if header is not None and _HEADER_SAFE.fullmatch(value):
            headers.append((header, value.encode()))
    return json(Error(error=body), body.code, headers)


def _retry_after(refused: Refusal, default: bytes) -> bytes:
    given = dict(refused.details).get("retry_after_s", "")
    try:
        return str(max(1, round(float(given)))).encode()
    except ValueError:
        return default


async def finish(reply: Reply, accepts_gzip: bool) -> Reply:
    """Adds what every answer has, and compresses it if that pays and is wanted."""
    body = reply.body
    if accepts_gzip and len(body) >= GZIP_MIN and not _is_packed(reply):
        if len(body) >= IN_THREAD_MIN:
            body = await asyncio.to_thread(pack, body)
        else:
            body = pack(body)
        reply.body = body
        reply.add(b"content-encoding", b"gzip")
        reply.add(b"vary", b"accept-encoding")
    if reply.status_code != 204:
        reply.add(b"content-length", str(len(body)).encode())
    reply.raw_headers += COMMON
    return reply


COMMON: Final[Headers] = [
    (b"cronoq-protocol", str(errors.PROTOCOL).encode()),
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
]


def _is_packed(reply: Reply) -> bool:
    return any(name == b"content-encoding" for name, _ in reply.raw_headers)


def pack(body: bytes | memoryview) -> bytes:
    """Compresses a body."""
    packer = zlib.compressobj(GZIP_LEVEL, zlib.DEFLATED, zlib.MAX_WBITS | 16)
    return packer.compress(body) + packer.flush()
