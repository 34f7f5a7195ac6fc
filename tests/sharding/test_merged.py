"""Streams of several shards as one never leave their reader waiting for one that broke."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest

from cronoq_server.api.merged import MergedWatch, merged_results
from cronoq_server.engine import Results
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
