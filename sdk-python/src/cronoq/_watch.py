"""Decides how a watch goes on across breaks: from the cursor of the last event or bookmark."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from ._calls import WATCH, WATCH_BATCHES, BackoffSeries, Caller
from ._convert import read_event
from ._proto import tasks_pb2
from ._transport import is_unavailable
from .errors import CronoqError, UnsupportedError, WatchTooSlowError
from .views import StatusEvent


async def watch_events(
    caller: Caller, request: tasks_pb2.WatchRequest
) -> AsyncIterator[StatusEvent]:
    """Yields events for ever, over as many streams as it takes.

    Raises:
        CronoqError: The watch was refused, or cannot go on.
    """
    backoff = BackoffSeries(caller.options)
    read = _read_batches
    while True:
        trouble: CronoqError | None = None
        try:
            async for event in read(caller, request):
                backoff.reset()
                yield event
        except UnsupportedError:
            if read is _read_singles:
                raise
            read = _read_singles
            continue
        except CronoqError as error:
            # Too slow: the stream is gone, but the cursor says where this reader stands.
            is_resumable = isinstance(error, WatchTooSlowError) and bool(request.after_cursor)
            if not is_unavailable(error) and not is_resumable:
                raise
            trouble = error
        # A stream that ends without an error ends for its server's reasons: go on likewise.
        await asyncio.sleep(backoff.next_delay(trouble))


async def _read_batches(
    caller: Caller, request: tasks_pb2.WatchRequest
) -> AsyncIterator[StatusEvent]:
    stream = caller.connection.channel().stream(WATCH_BATCHES, request, None)
    try:
        async for message in stream:
            for item in message.events:
                event = read_event(item)
                yield event
                # Moved only after the reader took the event: a break resumes before it.
                if event.cursor:
                    request.after_cursor = event.cursor
            if message.cursor:
                request.after_cursor = message.cursor
    finally:
        stream.cancel()


async def _read_singles(
    caller: Caller, request: tasks_pb2.WatchRequest
) -> AsyncIterator[StatusEvent]:
    stream: Any = caller.connection.channel().stream(WATCH, request, None)
    try:
        async for item in stream:
            yield read_event(item)
            if item.cursor:
                request.after_cursor = item.cursor
    finally:
        stream.cancel()
