"""Where a suite's stores persist to, and what its tests do with them again and again."""

from __future__ import annotations

import itertools
from typing import Any, Protocol

from cronoq_server.engine.mutations import (
    Mutation,
    RecoveredChunk,
    ResourceResized,
    StoredSchedule,
    StoredTask,
)
from cronoq_server.stores.base import FinishedPage, FinishedQuery, Leadership, Store, TimeBase
from cronoq_server.testing.builders import EPOCH_START, batch, changed, inserted

FOREVER_AGO = 0


SHARD = 200
"""Its ids have the highest bit set, as signed numbers they are negative."""


_holders = itertools.count(1)


class Place(Protocol):
    """Where the stores of one test persist to; fresh for each test."""

    async def open(self) -> Store:
        """One more handle, as another replica would have it."""

    async def lapse(self, store: Store, leadership: Leadership, /) -> None:
        """The holder of this term is believed gone, though it still runs: another may lead."""

    async def restart(self) -> None:
        """Every process that had a handle has ended; handles from before are not used again."""


async def acquire(store: Store, *, base: int = 0) -> Leadership | None:
    """Tries to lead, under a new name."""
    holder = f"holder-{next(_holders)}"
    return await store.acquire_leadership(holder, EPOCH_START, TimeBase(base))


async def lead(store: Store, *, base: int = 0) -> Leadership:
    """Leads, or fails the test."""
    leadership = await acquire(store, base=base)
    assert leadership is not None
    return leadership


async def opened(place: Place, *, base: int = 0) -> tuple[Store, Leadership]:
    """A store that leads."""
    store = await place.open()
    return store, await lead(store, base=base)


async def usurp(place: Place, store: Store, leadership: Leadership) -> tuple[Store, Leadership]:
    """Another replica takes over from one that does not know it yet."""
    await place.lapse(store, leadership)
    return await opened(place)


async def written(place: Place, *mutations: Mutation) -> tuple[Store, Leadership]:
    """A store that leads and has committed these mutations as its first batch."""
    store, leadership = await opened(place)
    await store.commit(leadership, batch(leadership.position + 1, *mutations))
    return store, leadership


async def recovered(
    store: Store, leadership: Leadership, horizon: int = FOREVER_AGO
) -> RecoveredChunk:
    """Everything that comes back, as one chunk."""
    live: list[StoredTask] = []
    parents: list[StoredTask] = []
    finished: list[StoredTask] = []
    schedules: list[StoredSchedule] = []
    paused: list[str] = []
    resized: list[ResourceResized] = []
    async for chunk in store.recover(leadership, horizon):
        live += chunk.live
        parents += chunk.parents
        finished += chunk.finished
        schedules += chunk.schedules
        paused += chunk.paused_pools
        resized += chunk.resized
    return RecoveredChunk(
        tuple(live),
        tuple(parents),
        tuple(finished),
        tuple(schedules),
        tuple(paused),
        tuple(resized),
    )


def ids(tasks: tuple[StoredTask, ...] | list[StoredTask]) -> list[int]:
    """Their ids, in order."""
    return [task.task_id for task in tasks]


def finished(task_id: int, *, at: int = EPOCH_START, **spec: Any) -> list[Mutation]:
    """A task that came and succeeded in one batch."""
    return [inserted(task_id, **spec), changed(task_id, at=at)]


async def all_pages(store: Store, query: FinishedQuery) -> list[int]:
    """Ids of all pages, following the cursors to the end."""
    found: list[int] = []
    for _ in range(1000):
        page = await store.find_finished(query)
        found += ids(page.tasks)
        if not page.next_after:
            return found
        query = _behind(query, page)
    raise AssertionError("the pages have no end")


def _behind(query: FinishedQuery, page: FinishedPage) -> FinishedQuery:
    by_end = query.ended_after is not None
    return FinishedQuery(
        filter=query.filter,
        after=page.next_after,
        limit=query.limit,
        newest_first=query.newest_first,
        ended_after=page.next_position if by_end else None,
    )
