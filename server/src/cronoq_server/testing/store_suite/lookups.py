"""Finished tasks are found by id, by key and by page; outputs by id."""

from __future__ import annotations

import itertools

import pytest

from cronoq_server.engine.model import Status, TaskFilter
from cronoq_server.engine.mutations import Output
from cronoq_server.stores.base import LOOKED_AT_MAX, FinishedQuery
from cronoq_server.testing.builders import batch, changed, inserted, output
from cronoq_server.testing.store_suite.place import Place, all_pages, finished, ids, opened, written


class TestOutputs:
    """Outputs are kept apart, and found by id."""

    async def test_outputs_come_back(self, place: Place) -> None:
        """Bytes and content type; ids without an output are left out."""
        content = bytes(range(256))
        store, _ = await written(
            place, *finished(1), output(1, content, "image/png"), *finished(2), *finished(3)
        )
        assert await store.load_outputs([1, 2, 99]) == {1: Output(content, "image/png")}

    async def test_an_empty_output_is_an_output(self, place: Place) -> None:
        """Nothing returned and nothing there are different things."""
        store, _ = await written(place, *finished(1), output(1, b""))
        assert await store.load_outputs([1]) == {1: Output(b"", "")}

    async def test_a_large_output_comes_back(self, place: Place) -> None:
        """As large as a message may be."""
        content = b"\x00\xff" * (2 * 1024 * 1024)
        store, _ = await written(place, *finished(1), output(1, content))
        assert (await store.load_outputs([1]))[1].content == content

    async def test_many_are_loaded_at_once(self, place: Place) -> None:
        """One call, however many ids."""
        numbers = range(1, 301)
        rows = itertools.chain.from_iterable(
            (*finished(n), output(n, str(n).encode())) for n in numbers
        )
        store, _ = await written(place, *rows)
        found = await store.load_outputs(list(numbers))
        assert {n: int(o.content) for n, o in found.items()} == {n: n for n in numbers}


class TestFindFinished:
    """Finished tasks are found by id, by key and by page."""

    async def test_by_id(self, place: Place) -> None:
        """Live and unknown ones are left out; what is found is whole but for its payload."""
        store, _ = await written(place, *finished(1, kind="a", payload=b"x"), inserted(2))
        (task,) = (await store.find_finished(FinishedQuery(ids=(1, 2, 3)))).tasks
        assert (task.task_id, task.spec.kind, task.position) == (1, "a", 1)
        assert task.change == changed(1)

    async def test_by_key(self, place: Place) -> None:
        """A live task's key is not found: the engine knows it."""
        store, _ = await written(place, *finished(1, key="a"), inserted(2, key="b"))
        page = await store.find_finished(FinishedQuery(keys=("a", "b", "c")))
        assert ids(page.tasks) == [1]

    async def test_of_one_key_the_newest_counts(self, place: Place) -> None:
        """A key can be used again once it is free."""
        store, leadership = await written(place, *finished(1, key="a"))
        await store.commit(leadership, batch(2, *finished(2, key="a")))
        assert ids((await store.find_finished(FinishedQuery(keys=("a",)))).tasks) == [2]

    async def test_by_ids_and_keys_together_each_once(self, place: Place) -> None:
        """One look-up serves a whole step."""
        store, _ = await written(place, *finished(1, key="a"), *finished(2, key="b"), *finished(3))
        page = await store.find_finished(FinishedQuery(ids=(1, 3), keys=("a", "b")))
        assert sorted(ids(page.tasks)) == [1, 2, 3]

    @pytest.mark.parametrize(
        ("wanted", "expected"),
        [
            (TaskFilter(), [1, 2, 3, 4]),
            (TaskFilter(pools=("p",)), [2]),
            (TaskFilter(pools=("p", "default")), [1, 2, 3, 4]),
            (TaskFilter(statuses=(Status.FAILED,)), [3]),
            (TaskFilter(kinds=("k",)), [1, 4]),
            (TaskFilter(keys=("key",)), [3]),
            (TaskFilter(tenants=("t",)), [4]),
            (TaskFilter(tags=(("a", "1"),)), [1, 4]),
            (TaskFilter(tags=(("a", "1"), ("b", "2"))), [4]),
            (TaskFilter(schedule="nightly"), [2]),
            (TaskFilter(kinds=("k",), tenants=("t",)), [4]),
            (TaskFilter(pools=("p",), kinds=("k",)), []),
        ],
    )
    async def test_a_page_by_filter(
        self, place: Place, wanted: TaskFilter, expected: list[int]
    ) -> None:
        """All parts of a filter must fit, within a part any value does, of tags all."""
        store, _ = await written(
            place,
            *finished(1, kind="k", tags=(("a", "1"),)),
            *finished(2, pool="p", tags=(("cronoq.schedule", "nightly"),)),
            inserted(3, key="key"),
            changed(3, Status.FAILED),
            *finished(4, kind="k", tags=(("a", "1"), ("b", "2")), tenant="t"),
            inserted(5, kind="k"),
        )
        assert await all_pages(store, FinishedQuery(filter=wanted, limit=2)) == expected

    @pytest.mark.parametrize("newest_first", [False, True])
    @pytest.mark.parametrize("limit", [1, 3, 10, 11])
    async def test_pages_give_everything_once(
        self, place: Place, limit: int, newest_first: bool
    ) -> None:
        """In both directions, wherever a page ends."""
        rows = itertools.chain.from_iterable(finished(n) for n in range(1, 11))
        store, _ = await written(place, *rows)
        query = FinishedQuery(filter=TaskFilter(), limit=limit, newest_first=newest_first)
        assert await all_pages(store, query) == sorted(range(1, 11), reverse=newest_first)

    async def test_a_page_looks_at_a_bounded_number_of_ends(self, place: Place) -> None:
        """One that finds nothing there is empty and says where to go on."""
        store, leadership = await opened(place)
        for position in (1, 2, 3):
            start = position * 10_000
            rows = [m for i in range(start, start + LOOKED_AT_MAX // 2) for m in finished(i)]
            await store.commit(leadership, batch(position, *rows))
        await store.commit(leadership, batch(4, *finished(99_999, kind="rare")))
        rare = FinishedQuery(filter=TaskFilter(kinds=("rare",)))
        page = await store.find_finished(rare)
        assert page.tasks == []
        assert page.next_after
        assert await all_pages(store, rare) == [99_999]

    async def test_a_page_begins_behind_its_cursor(self, place: Place) -> None:
        """Above it, or below it when the newest come first; it need not exist."""
        store, _ = await written(place, *finished(1), *finished(3), *finished(5))
        up = FinishedQuery(filter=TaskFilter(), after=2)
        down = FinishedQuery(filter=TaskFilter(), after=4, newest_first=True)
        assert ids((await store.find_finished(up)).tasks) == [3, 5]
        assert ids((await store.find_finished(down)).tasks) == [3, 1]

    @pytest.mark.parametrize("limit", [1, 2, 100])
    async def test_pages_in_order_of_ends(self, place: Place, limit: int) -> None:
        """By position, then by id; tasks of one batch may lie on different pages."""
        store, leadership = await written(place, *(inserted(n) for n in range(1, 7)))
        for position, ended in enumerate(([5, 2], [6], [1, 3]), 2):
            await store.commit(leadership, batch(position, *(changed(n) for n in ended)))
        query = FinishedQuery(filter=TaskFilter(), limit=limit, ended_after=0)
        assert await all_pages(store, query) == [2, 5, 6, 1, 3]

    async def test_a_page_of_ends_begins_within_its_position(self, place: Place) -> None:
        """First the rest of that batch, then what ended later."""
        store, leadership = await written(place, *finished(1), *finished(2))
        await store.commit(leadership, batch(2, *finished(3, pool="p")))
        whole = FinishedQuery(filter=TaskFilter(), ended_after=1)
        rest = FinishedQuery(filter=TaskFilter(), ended_after=1, after=1)
        other = FinishedQuery(filter=TaskFilter(pools=("p",)), ended_after=1)
        assert ids((await store.find_finished(whole)).tasks) == [1, 2, 3]
        assert ids((await store.find_finished(rest)).tasks) == [2, 3]
        assert ids((await store.find_finished(other)).tasks) == [3]

    async def test_a_task_that_ended_twice_is_told_at_its_last_end(self, place: Place) -> None:
        """A redriven task leaves its first position."""
        store, leadership = await written(place, *finished(1), *finished(2))
        await store.commit(leadership, batch(2, changed(1, Status.READY)))
        await store.commit(leadership, batch(3, changed(1, Status.FAILED)))
        query = FinishedQuery(filter=TaskFilter(), ended_after=0)
        assert await all_pages(store, query) == [2, 1]


class TestLoadTasks:
    """Whole tasks, by id."""

    async def test_live_and_finished_ones_come_with_their_payload(self, place: Place) -> None:
        """Unknown ids are left out."""
        store, _ = await written(
            place, *finished(1, payload=b"one"), inserted(2, payload=b"two"), output(1)
        )
        tasks = {task.task_id: task for task in await store.load_tasks([1, 2, 3])}
        assert {i: task.spec.payload for i, task in tasks.items()} == {1: b"one", 2: b"two"}
        assert tasks[1].change == changed(1)
        assert tasks[2].change is None
