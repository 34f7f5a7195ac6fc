"""Several shards' streams as one: results as they come, events with a cursor over all shards.

A merged watch ends when any of its streams ends, or when a shard is back that it had to begin
without, so that nobody takes a part for the whole; it is resumed from its cursor, which holds one
cursor for each shard.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from typing import Final, Protocol

import msgspec

from cronoq_server.engine import Refusal, Results, TaskRef
from cronoq_server.runtime.refusals import CURSOR_UNKNOWN, Refused
from cronoq_server.runtime.watchers import WatchBatch

AHEAD: Final = 4
"""Batches that one shard's stream may be ahead of the reader."""

MARK: Final = b"S"
"""First byte of cursors over several shards; those of one shard begin otherwise."""


class Batches(Protocol):
    """One shard's watch."""

    def __aiter__(self) -> AsyncIterator[WatchBatch]:
        """Its batches, in order."""

    async def aclose(self) -> None:
        """Ends it."""


class MergedWatch:
    """The events of several shards; iterate it, then close it.

    Attributes:
        refusals: Named tasks of the server's own shard that cannot be watched; another one's end
            the watch when that shard says so.
    """

    def __init__(self, cursor: bytes, *, bookmarks: bool) -> None:
        """Begins behind a cursor that an earlier one gave; empty = now.

        With bookmarks each shard begins with one. Nothing is told before all have, since a cursor
        that lacks a shard would lose its events.

        Raises:
            Refused: It is no cursor of several shards.
        """
        self.refusals: Sequence[tuple[TaskRef, Refusal]] = ()
        self._cursors = _read(cursor)
        self._bookmarks = bookmarks
        self._has_begun = False
        self._silent: set[int] = set()
        self._held: deque[tuple[int, WatchBatch]] = deque()
        self._streams: list[Batches] = []
        self._pumps: list[asyncio.Task[None]] = []
        self._queue: asyncio.Queue[tuple[int, WatchBatch | BaseException]] = asyncio.Queue(AHEAD)

    def start(self, number: int) -> bytes:
        """Where a shard's watch begins; empty = now."""
        return self._cursors.get(number, b"")

    def add(self, number: int, stream: Batches) -> None:
        """Takes a shard's watch in; it is closed with this one."""
        self._streams.append(stream)
        if self._bookmarks:
            self._silent.add(number)
        self._pumps.append(asyncio.create_task(self._pump(number, stream)))

    def end_with(self, over: Callable[[], Awaitable[Refusal]]) -> None:
        """Has the watch end with a refusal once there is one."""
        self._pumps.append(asyncio.create_task(self._end_with(over)))

    async def _end_with(self, over: Callable[[], Awaitable[Refusal]]) -> None:
        await self._queue.put((0, Refused(await over())))

    def __aiter__(self) -> MergedWatch:
        return self

    async def __anext__(self) -> WatchBatch:
        """The next events of any shard, or a bookmark.

        Raises:
            Refused: One of the shards ended its stream.
        """
        if self._bookmarks and not self._streams and not self._has_begun:
            # None of the shards that it is about can be asked: nobody else would say a first word.
            self._has_begun = True
            return WatchBatch([], _write(self._cursors))
        while self._silent or not self._held:
            number, found = await self._queue.get()
            if isinstance(found, BaseException):
                raise found
            if number in self._silent:
                self._silent.discard(number)
                self._cursors[number] = found.cursor
            self._held.append((number, found))
        number, batch = self._held.popleft()
        events = []
        for event, cursor in batch.events:
            self._cursors[number] = cursor
            events.append((event, _write(self._cursors)))
        self._cursors[number] = batch.cursor
        return WatchBatch(events, _write(self._cursors))

    async def aclose(self) -> None:
        """Watches no more."""
        for pump in self._pumps:
            pump.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)
        for stream in self._streams:
            await stream.aclose()

    async def _pump(self, number: int, stream: Batches) -> None:
        end: BaseException = StopAsyncIteration()
        try:
            async for batch in stream:
                await self._queue.put((number, batch))
        except Exception as error:  # noqa: BLE001 - raised again, where the reader waits for it
            end = error
        await self._queue.put((number, end))


async def merged_results(
    streams: Sequence[AsyncGenerator[Results, None]],
) -> AsyncGenerator[Results, None]:
    """The results of several waits as they come, until all have ended.

    Raises:
        Refused: One of them was refused as a whole.
    """
    queue: asyncio.Queue[Results | Exception | None] = asyncio.Queue(AHEAD)

    async def pump(stream: AsyncGenerator[Results, None]) -> None:
        try:
            async for results in stream:
                await queue.put(results)
        except Exception as error:  # noqa: BLE001 - raised again, where the reader waits for it
            await queue.put(error)
        finally:
            await stream.aclose()
        await queue.put(None)

    pumps = [asyncio.create_task(pump(stream)) for stream in streams]
    try:
        left = len(pumps)
        while left:
            found = await queue.get()
            if found is None:
                left -= 1
            elif isinstance(found, Exception):
                raise found
            else:
                yield found
    finally:
        for task in pumps:
            task.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)


def _write(cursors: dict[int, bytes]) -> bytes:
    return MARK + msgspec.msgpack.encode(cursors)


def _read(cursor: bytes) -> dict[int, bytes]:
    if not cursor:
        return {}
    if cursor[:1] != MARK:
        raise Refused(CURSOR_UNKNOWN)
    try:
        return msgspec.msgpack.decode(cursor[1:], type=dict[int, bytes])
    except msgspec.MsgspecError as error:
        raise Refused(CURSOR_UNKNOWN) from error
