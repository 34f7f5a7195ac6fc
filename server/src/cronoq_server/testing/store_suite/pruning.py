"""Old ends go when a batch says so, and what is needed stays."""

from __future__ import annotations

import pytest

from cronoq_server.engine.model import Dependency, Status, TaskFilter
from cronoq_server.engine.mutations import TaskDeleted, TasksPruned
from cronoq_server.stores.base import FinishedQuery, Forgotten
from cronoq_server.testing.builders import EPOCH_START, batch, changed, inserted, output
from cronoq_server.testing.store_suite.place import (
    Place,
    finished,
    ids,
    lead,
    opened,
    recovered,
    written,
)


class TestPruning:
    """Old ends go when a batch says so."""

    async def test_a_deleted_task_is_gone_with_all_that_belongs_to_it(self, place: Place) -> None:
        """Only that one, and its id is not used again."""
        store, leadership = await written(
            place, *finished(1), *finished(2, key="a"), output(2), inserted(3)
        )
        await store.commit(leadership, batch(2, TaskDeleted(2)))
        assert (await store.find_finished(FinishedQuery(ids=(2,), keys=("a",)))).tasks == []
        assert await store.load_tasks([2]) == []
        assert await store.load_outputs([2]) == {}
        found = await recovered(store, leadership)
        assert (ids(found.live), ids(found.finished)) == ([3], [1])

    async def test_what_ended_before_goes(self, place: Place) -> None:
        """Later ends and live tasks stay."""
        store, leadership = await written(
            place, *finished(1, at=EPOCH_START), *finished(2, at=EPOCH_START + 10), inserted(3)
        )
        await store.commit(leadership, batch(2, TasksPruned(EPOCH_START + 10, 100)))
        found = await recovered(store, leadership)
        assert (ids(found.live), ids(found.finished)) == ([3], [2])

    async def test_a_pruned_task_is_gone_with_all_that_belongs_to_it(self, place: Place) -> None:
        """Key, row and output answer no more."""
        store, leadership = await written(place, *finished(1, key="a"), output(1))
        await store.commit(leadership, batch(2, TasksPruned(EPOCH_START + 1, 100)))
        assert (await store.find_finished(FinishedQuery(ids=(1,), keys=("a",)))).tasks == []
        assert await store.load_tasks([1]) == []
        assert await store.load_outputs([1]) == {}

    async def test_the_oldest_go_first_and_no_more_than_the_limit(self, place: Place) -> None:
        """A small batch of pruning never becomes a large one."""
        store, leadership = await opened(place)
        for position in (1, 2, 3):
            end = finished(position, at=EPOCH_START + position)
            await store.commit(leadership, batch(position, *end))
        await store.commit(leadership, batch(4, TasksPruned(EPOCH_START + 100, 2)))
        assert ids((await recovered(store, leadership)).finished) == [3]

    async def test_what_live_tasks_depend_on_stays(self, place: Place) -> None:
        """However old it is, by every name, with its output; others of its age go."""
        store, leadership = await written(
            place, *finished(1, key="a"), output(1), *finished(2), *finished(3, key="b")
        )
        child = inserted(9, dependencies=(Dependency(1), Dependency("b")))
        await store.commit(leadership, batch(2, child))
        await store.commit(leadership, batch(3, TasksPruned(EPOCH_START + 1, 100, (1, 3))))
        await store.release_leadership(leadership)
        leadership = await lead(store)
        named = FinishedQuery(ids=(1, 2), keys=("a", "b"))
        assert sorted(ids((await store.find_finished(named)).tasks)) == [1, 3]
        assert list(await store.load_outputs([1, 2, 3])) == [1]
        assert sorted(ids(await store.load_tasks([1, 2, 3]))) == [1, 3]
        found = await recovered(store, leadership, EPOCH_START + 1)
        assert sorted(set(ids(found.parents))) == [1, 3]
        assert ids(found.live) == [9]

    async def test_what_stayed_goes_when_nobody_needs_it(self, place: Place) -> None:
        """A later pruning no longer names it."""
        store, leadership = await written(place, *finished(1, key="a"), output(1), *finished(2))
        await store.commit(leadership, batch(2, TasksPruned(EPOCH_START + 1, 100, (1,))))
        await store.commit(leadership, batch(3, TasksPruned(EPOCH_START + 1, 100)))
        assert (await store.find_finished(FinishedQuery(ids=(1,), keys=("a",)))).tasks == []
        assert await store.load_tasks([1]) == []
        assert await store.load_outputs([1]) == {}

    async def test_what_stayed_can_be_put_back_and_end_again(self, place: Place) -> None:
        """It has one end then, the new one."""
        store, leadership = await written(place, *finished(1), *finished(2))
        await store.commit(leadership, batch(2, TasksPruned(EPOCH_START + 1, 100, (1,))))
        await store.commit(leadership, batch(3, changed(1, Status.READY)))
        assert ids((await recovered(store, leadership)).live) == [1]
        await store.commit(leadership, batch(4, changed(1, Status.FAILED, at=EPOCH_START + 9)))
        (task,) = (await store.find_finished(FinishedQuery(ids=(1,)))).tasks
        assert task.change == changed(1, Status.FAILED, at=EPOCH_START + 9)
        assert ids(await store.load_tasks([1])) == [1]

    async def test_what_stays_does_not_stop_what_follows(self, place: Place) -> None:
        """Small steps get past it, whatever their limit."""
        store, leadership = await opened(place)
        for position in (1, 2, 3, 4):
            await store.commit(leadership, batch(position, *finished(position)))
        for position in (5, 6, 7):
            await store.commit(leadership, batch(position, TasksPruned(EPOCH_START + 1, 1, (1, 2))))
        await store.commit(leadership, batch(8, TasksPruned(EPOCH_START + 1, 2, (1, 2))))
        kept = await store.find_finished(FinishedQuery(ids=(1, 2, 3, 4)))
        assert sorted(ids(kept.tasks)) == [1, 2]

    async def test_a_reader_of_pruned_ends_is_told(self, place: Place) -> None:
        """Who reads ends from a position before would miss some, and must know."""
        store, leadership = await written(place, *finished(1, at=EPOCH_START))
        await store.commit(leadership, batch(2, *finished(2, at=EPOCH_START + 10)))
        await store.commit(leadership, batch(3, TasksPruned(EPOCH_START + 5, 100)))
        with pytest.raises(Forgotten):
            await store.find_finished(FinishedQuery(filter=TaskFilter(), ended_after=1))
        page = await store.find_finished(FinishedQuery(filter=TaskFilter(), ended_after=2))
        assert ids(page.tasks) == [2]

    async def test_ids_of_pruned_tasks_are_not_used_again(self, place: Place) -> None:
        """The high-water mark does not depend on what is still there."""
        store, leadership = await written(place, *finished(41), *finished(42))
        await store.commit(leadership, batch(2, TasksPruned(EPOCH_START + 1, 100)))
        await store.release_leadership(leadership)
        assert (await lead(store)).high_water == 42
