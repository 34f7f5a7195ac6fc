"""The memory store keeps the contract of the stores, and its own bounds."""

from __future__ import annotations

import pytest

from cronoq_server.engine.model import Dependency, Status, TaskFilter
from cronoq_server.engine.mutations import Mutation
from cronoq_server.stores import StoreSettings, open_store
from cronoq_server.stores.base import (
    FinishedQuery,
    Forgotten,
    Leadership,
    Store,
    Unavailable,
)
from cronoq_server.stores.memory import MemoryDisk, MemoryStore
from cronoq_server.testing.builders import batch, changed, inserted, output
from cronoq_server.testing.store_suite import *  # noqa: F403 (a store's tests are the suite)
from cronoq_server.testing.store_suite import Place, acquire, all_pages, lead, recovered


class MemoryPlace:
    """A disk in this process."""

    def __init__(self) -> None:
        self.disk = MemoryDisk()

    async def open(self) -> Store:
        """See `Place.open`."""
        return MemoryStore(self.disk)

    async def lapse(self, _store: Store, _leadership: Leadership, /) -> None:
        """See `Place.lapse`."""
        self.disk.lapsed = True

    async def restart(self) -> None:
        """See `Place.restart`."""
        self.disk = MemoryDisk()


@pytest.fixture
def place() -> Place:
    """A fresh one for each test."""
    return MemoryPlace()


async def ended(disk: MemoryDisk, *numbers: int, size: int = 0) -> Store:
    """A store in which these tasks ended one after the other, each with payload and output."""
    store = MemoryStore(disk)
    leadership = await lead(store)
    for position, number in enumerate(numbers, 1):
        content = bytes(size)
        row = inserted(number, key=f"key-{number}", payload=content)
        end: list[Mutation] = [row, changed(number), output(number, content)]
        await store.commit(leadership, batch(position, *end))
    return store


EVERYTHING = FinishedQuery(filter=TaskFilter())


async def test_only_so_many_finished_tasks_are_kept() -> None:
    """The oldest end goes first, with its key and its output."""
    store = await ended(MemoryDisk(finished_max=3), *range(1, 11))
    assert await all_pages(store, EVERYTHING) == [8, 9, 10]
    assert (await store.find_finished(FinishedQuery(keys=("key-7",)))).tasks == []
    assert await store.load_outputs([7]) == {}


async def test_a_reader_of_ends_is_told_what_the_bound_took() -> None:
    """Who resumes behind a forgotten end must not believe that nothing happened."""
    store = await ended(MemoryDisk(finished_max=3), *range(1, 11))
    with pytest.raises(Forgotten):
        await store.find_finished(FinishedQuery(filter=TaskFilter(), ended_after=7))
    query = FinishedQuery(filter=TaskFilter(), ended_after=8)
    assert await all_pages(store, query) == [8, 9, 10]


async def test_only_so_many_bytes_of_outputs_are_kept() -> None:
    """The oldest outputs go, their tasks stay."""
    store = await ended(MemoryDisk(cache_bytes=250), 1, 2, 3, 4, size=100)
    assert sorted(await store.load_outputs([1, 2, 3, 4])) == [3, 4]
    assert await all_pages(store, EVERYTHING) == [1, 2, 3, 4]


async def test_only_so_many_bytes_of_payloads_of_finished_tasks_are_kept() -> None:
    """Large payloads make the oldest finished tasks go earlier."""
    store = await ended(MemoryDisk(payloads_max=250), 1, 2, 3, 4, size=100)
    assert await all_pages(store, EVERYTHING) == [3, 4]


async def test_live_tasks_are_kept_however_many() -> None:
    """Bounds concern what has ended."""
    disk = MemoryDisk(finished_max=1, payloads_max=10)
    store = MemoryStore(disk)
    leadership = await lead(store)
    rows = [inserted(number, payload=bytes(100)) for number in range(1, 50)]
    await store.commit(leadership, batch(1, *rows))
    assert len((await recovered(store, leadership)).live) == 49


@pytest.mark.parametrize("target", [1, "key-1"])
async def test_a_parent_is_kept_while_a_live_task_depends_on_it(target: int | str) -> None:
    """By id or by key; when the child has ended, the parent goes like any other."""
    disk = MemoryDisk(finished_max=2)
    store = MemoryStore(disk)
    leadership = await lead(store)
    child = inserted(100, dependencies=(Dependency(target),))
    await store.commit(leadership, batch(1, inserted(1, key="key-1"), changed(1), child))
    for position in range(2, 8):
        await store.commit(leadership, batch(position, inserted(position), changed(position)))
    assert await all_pages(store, EVERYTHING) == [1, 7]
    assert [task.task_id for task in (await recovered(store, leadership)).parents] == [1]
    await store.commit(leadership, batch(8, changed(100)))
    await store.commit(leadership, batch(9, inserted(200), changed(200)))
    assert await all_pages(store, EVERYTHING) == [100, 200]


async def test_pages_stay_whole_while_old_tasks_go() -> None:
    """One straggler and many dead entries between: every page still finds its place."""
    disk = MemoryDisk(finished_max=10)
    store = MemoryStore(disk)
    leadership = await lead(store)
    await store.commit(leadership, batch(1, inserted(1)))
    number = 1
    for position in range(2, 30):
        rows: list[Mutation] = []
        for _ in range(1000):
            number += 1
            rows += [inserted(number), changed(number)]
        await store.commit(leadership, batch(position, *rows))
    expected = list(range(number - 9, number + 1))
    for newest_first in (False, True):
        query = FinishedQuery(filter=TaskFilter(), limit=3, newest_first=newest_first)
        assert await all_pages(store, query) == sorted(expected, reverse=newest_first)
    assert [task.task_id for task in (await recovered(store, leadership)).live] == [1]


async def test_a_redriven_task_does_not_count_as_finished() -> None:
    """It is live again, and the bound leaves it alone."""
    disk = MemoryDisk(finished_max=2)
    store = await ended(disk, 1, 2)
    await store.close()
    store = MemoryStore(disk)
    leadership = await lead(store)
    await store.commit(leadership, batch(3, changed(1, Status.READY)))
    for position in range(4, 8):
        await store.commit(leadership, batch(position, inserted(position), changed(position)))
    assert [task.task_id for task in (await recovered(store, leadership)).live] == [1]
    assert await all_pages(store, EVERYTHING) == [6, 7]


async def test_a_store_that_is_closed_lets_others_lead() -> None:
    """As if its process had died; it answers nothing itself."""
    disk = MemoryDisk()
    store, other = MemoryStore(disk), MemoryStore(disk)
    await lead(store)
    assert await acquire(other) is None
    await store.close()
    assert await acquire(other) is not None
    with pytest.raises(Unavailable):
        await store.load_outputs([1])


def test_settings_name_the_store() -> None:
    """The memory store is there; another kind is an error that names it."""
    assert isinstance(open_store(StoreSettings()), MemoryStore)
    with pytest.raises(ValueError, match="papyrus"):
        open_store(StoreSettings(kind="papyrus"))
