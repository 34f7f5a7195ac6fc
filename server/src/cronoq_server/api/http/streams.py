"""What goes on for a while: events as they happen, results as they come.

A stream ends with its reader: when the reader goes away, the task that writes is cancelled, and
what it had opened is closed. What ends a stream from this side is its last event or line.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator
from contextlib import aclosing
from typing import Any, Final

import msgspec
from starlette.responses import Response

from cronoq_server._proto import tasks_pb2
from cronoq_server.api import convert, texts
from cronoq_server.api.auth import UNAUTHENTICATED
from cronoq_server.api.http import answers, names, responses, writing
from cronoq_server.api.http.requests import NoQuery, WaitOrder, WatchQuery
from cronoq_server.api.http.routes import Call
from cronoq_server.api.service import Service
from cronoq_server.api.specs import SpecReader
from cronoq_server.engine import ErrorReason, Refusal, Results
from cronoq_server.runtime.refusals import Refused
from cronoq_server.runtime.watchers import WatchBatch, WatchFilter

EVENTS: Final = "text/event-stream"
LINES: Final = "application/x-ndjson"
PIECE_BYTES: Final = 64 * 1024
CURSOR_MAX: Final = 12_288
ENDS_STREAM: Final = (ErrorReason.CURSOR_UNKNOWN, ErrorReason.WATCH_TOO_SLOW)

Write = Callable[[bytes], Awaitable[None]]


class Stream(Response):
    """An answer that is written as it comes about."""

    def __init__(self, media: str, produce: Callable[[Write], Awaitable[None]]) -> None:
        self.status_code = 200
        self.background = None
        self.body = b""
        self._produce = produce
        self.raw_headers = [
            (b"content-type", media.encode()),
            (b"x-accel-buffering", b"no"),
            *answers.COMMON,
        ]

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Writes it all."""
        del scope, receive

        async def write(content: bytes) -> None:
            await send({"type": "http.response.body", "body": content, "more_body": True})

        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        await send(start)
        await self._produce(write)
        await send({"type": "http.response.body", "body": b""})


class StreamRoutes:
    """Serves the routes that stream."""

    def __init__(self, service: Service, reader: SpecReader) -> None:
        self._service = service
        self._reader = reader

    async def watch(self, call: Call) -> Response:
        """Status events as server-sent events."""
        query = call.query(WatchQuery)
        message = tasks_pb2.WatchRequest(
            ids=names.identities(query.id, "id"),
            keys=query.key,
        )
        ids, keys = convert.read_references(message, self._reader)
        pools = tuple(texts.name(pool, "pool") for pool in query.pool)
        wanted = WatchFilter(pools, ids, keys, query.all_transitions)
        field = "after_cursor" if query.after_cursor else "last-event-id"
        cursor = read_cursor(query.after_cursor or call.headers.get("last-event-id", ""), field)
        events = self._events(call, wanted, cursor)
        try:
            first: WatchBatch | Refusal = await anext(events)
        except Refused as refused:
            if refused.refusal.reason not in ENDS_STREAM:
                raise
            first = refused.refusal

        async def produce(write: Write) -> None:
            async with aclosing(events):
                if isinstance(first, Refusal):
                    await write(sse_error(first))
                    return
                await write(sse(first))
                try:
                    async for batch in events:
                        await write(sse(batch))
                except Refused as refused:
                    await write(sse_error(refused.refusal))

        return Stream(EVENTS, produce)

    async def _events(
        self, call: Call, wanted: WatchFilter, cursor: bytes
    ) -> AsyncGenerator[WatchBatch, None]:
        task = asyncio.current_task()
        assert task is not None
        with self._service.gate.stream(), call.holding(call.who, task.cancel) as hold:
            stream = await self._service.watch(call.who, wanted, cursor, bookmarks=True)
            try:
                for _, refusal in stream.refusals:
                    raise Refused(refusal)
                async for batch in stream:
                    yield batch
            except asyncio.CancelledError:
                if not hold.is_revoked:
                    raise
                task.uncancel()
                raise Refused(UNAUTHENTICATED) from None
            finally:
                await stream.aclose()

    async def wait_many(self, call: Call) -> Response:
        """Results of many tasks, one per line, as they come."""
        call.query(NoQuery)
        order = call.body(WaitOrder)
        message = tasks_pb2.WaitManyRequest(ids=names.identities(order.ids, "ids"), keys=order.keys)
        ids, keys = convert.read_references(message, self._reader)
        timeout = convert.read_wait(order.timeout_s, "timeout_s", self._service.limits.max_wait_s)
        outputs = not order.without_output
        ends = self._service.wait_many(call.who, ids, keys, timeout, outputs=outputs)

        async def produce(write: Write) -> None:
            async with aclosing(ends) as stream:
                try:
                    async for results in stream:
                        for piece in pieces(_lines(results, outputs=outputs)):
                            await write(piece)
                except Refused as refused:
                    line = responses.WaitLine(error=writing.error_body(refused.refusal))
                    await write(one_line(line) + b"\n")

        return Stream(LINES, produce)


def _lines(results: Results, *, outputs: bool) -> Iterator[bytes]:
    for one in results.results:
        told = responses.WaitLine(result=writing.result(one, with_output=outputs))
        yield one_line(told) + b"\n"
    for ref, refusal in results.refusals:
        yield one_line(writing.wait_error(ref, refusal)) + b"\n"


def pieces(parts: Iterable[bytes]) -> Iterator[bytes]:
    """Joins parts into few writes, none of which is much longer than it has to be.

    What is told at once may be hundreds of megabytes; only as much is made of it as is read.
    """
    held: list[bytes] = []
    size = 0
    for part in parts:
        held.append(part)
        size += len(part)
        if size >= PIECE_BYTES:
            yield b"".join(held)
            held, size = [], 0
    if held:
        yield b"".join(held)


def one_line(value: responses.Answer) -> bytes:
    """A value in JSON without any line break: values of others may hold some between tokens."""
    told = msgspec.json.encode(value)
    if b"\n" in told or b"\r" in told:
        return msgspec.json.format(told, indent=-1)
    return told


def read_cursor(text: str, field: str) -> bytes:
    """The cursor that a watcher resumes from; empty = from now.

    Raises:
        Refused: It is none that this server could have given.
    """
    if len(text) > CURSOR_MAX:
        raise texts.invalid(field, f"has {len(text)} characters, the limit is {CURSOR_MAX}")
    try:
        return base64.b64decode(text.encode(), b"-_", validate=True)
    except (binascii.Error, ValueError) as error:
        raise texts.invalid(field, f"is no cursor: {texts.shown(text)}") from error


def cursor_text(cursor: bytes) -> str:
    """A cursor as it is told."""
    return base64.urlsafe_b64encode(cursor).decode()


def sse(batch: WatchBatch) -> bytes:
    """Events with their cursors as ids; none: a bookmark."""
    if not batch.events:
        return f"event: bookmark\nid: {cursor_text(batch.cursor)}\ndata: {{}}\n\n".encode()
    parts = []
    for change, after in batch.events:
        told = one_line(writing.event(change))
        parts.append(b"event: status\nid: %s\ndata: %s\n\n" % (cursor_text(after).encode(), told))
    return b"".join(parts)


def sse_error(refusal: Refusal) -> bytes:
    """The last event of a stream that this side ends."""
    told = one_line(responses.Error(error=writing.error_body(refusal)))
    return b"event: error\ndata: %s\n\n" % told
