"""Streams of several shards as one never leave their reader waiting for one that broke."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest

from cronoq_server.api.merged import MergedWatch, merged_results
from cronoq_server.engine import ErrorReason, Refusal, Results
from cronoq_server.runtime.refusals import Refused
from cronoq_server.runtime.watchers import WatchBatch


async def test_a_defect_in_one_watch_reaches_the_reader() -> None:
    """Not only refusals: whatever ends a stream ends the whole."""

    async def broken() -> AsyncGenerator[WatchBatch, None]:
        yield WatchBatch([], b"a")
        raise ZeroDivisionError

    merged = MergedWatch(b"", bookmarks=True)
    merged.add(1, broken())
    assert (await anext(merged)).cursor
    with pytest.raises(ZeroDivisionError):
        await anext(merged)
    await merged.aclose()


async def test_a_watch_without_a_shard_ends_when_that_one_is_back() -> None:
    """What was told before it stays told; the reader hears why, and begins anew."""
    back: asyncio.Future[Refusal] = asyncio.get_running_loop().create_future()

    async def told() -> AsyncGenerator[WatchBatch, None]:
        yield WatchBatch([], b"a")
        await asyncio.Event().wait()

    async def returned() -> Refusal:
        return await back

    merged = MergedWatch(b"", bookmarks=True)
    merged.end_with(returned)
    merged.add(1, told())
    assert (await anext(merged)).cursor
    back.set_result(Refusal(ErrorReason.SHARD_UNAVAILABLE, "it answers again"))
    with pytest.raises(Refused) as caught:
        await anext(merged)
    assert caught.value.refusal.reason is ErrorReason.SHARD_UNAVAILABLE
    await merged.aclose()


async def test_a_watch_of_shards_that_can_not_be_asked_begins_all_the_same() -> None:
    """Its reader gets the bookmark that it asked for, with the cursor that it came with."""
    begun = await anext(MergedWatch(b"", bookmarks=True))
    assert begun.events == []
    assert (await anext(MergedWatch(begun.cursor, bookmarks=True))).cursor == begun.cursor


async def test_a_defect_in_one_wait_reaches_the_reader() -> None:
    """What the others had to tell before it is told."""

    async def told() -> AsyncGenerator[Results, None]:
        yield Results(0, [])

    async def broken() -> AsyncGenerator[Results, None]:
        yield Results(0, [])
        raise ZeroDivisionError

    heard = []

    async def hear() -> None:
        async for results in merged_results([told(), broken()]):
            heard.append(results)

    with pytest.raises(ZeroDivisionError):
        await hear()
    assert heard
