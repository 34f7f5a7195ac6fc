"""A batch is written whole or not at all, once, and in order."""

from __future__ import annotations

import asyncio

import pytest

from cronoq_server.engine.model import Status, TaskFilter
from cronoq_server.stores.base import FinishedQuery, Rejected
from cronoq_server.testing.builders import EPOCH_START, batch, changed, inserted, output
from cronoq_server.testing.store_suite.place import (
    Place,
    all_pages,
    finished,
    ids,
    lead,
    opened,
    recovered,
    written,
)


class TestAtomicity:
    """A batch is written whole or not at all."""

    async def test_a_batch_is_there_as_a_whole(self, place: Place) -> None:
        """Tasks, changes and outputs of one batch come back together."""
        store, leadership = await written(
            place, inserted(1), *finished(2), output(2), inserted(3), changed(3, Status.RUNNING)
        )
        found = await recovered(store, leadership)
        assert ids(found.live) == [1, 3]
        assert ids(found.finished) == [2]
        assert list(await store.load_outputs([1, 2, 3])) == [2]

    async def test_a_rejected_batch_leaves_nothing(self, place: Place) -> None:
        """A task that exists cannot be submitted again; the rest of that batch is not there."""
        store, leadership = await written(place, inserted(1, key="a"))
        with pytest.raises(Rejected):
            await store.commit(
                leadership,
                batch(2, changed(1), inserted(2), inserted(1), *finished(3), output(3)),
            )
        found = await recovered(store, leadership)
        assert ids(found.live) == [1]
        assert found.live[0].change is None
        assert found.finished == ()
        assert await store.load_outputs([3]) == {}

    async def test_after_a_rejected_batch_its_number_is_free(self, place: Place) -> None:
        """Nothing of it happened, so another batch takes its place."""
        store, leadership = await written(place, inserted(1))
        with pytest.raises(Rejected):
            await store.commit(leadership, batch(2, inserted(1)))
        await store.commit(leadership, batch(2, inserted(2)))
        assert ids((await recovered(store, leadership)).live) == [1, 2]

    async def test_of_several_changes_the_last_one_is_kept(self, place: Place) -> None:
        """A task that ran, waited and ran again within one batch is running."""
        store, leadership = await written(
            place,
            inserted(1),
            changed(1, Status.RUNNING, attempt=1),
            changed(1, Status.RETRYING, attempt=1, retry_at=EPOCH_START + 1),
            changed(1, Status.RUNNING, attempt=2),
        )
        (task,) = (await recovered(store, leadership)).live
        assert task.change == changed(1, Status.RUNNING, attempt=2)

    @pytest.mark.parametrize("head_start", range(8))
    async def test_a_cancelled_commit_leaves_no_doubt(self, place: Place, head_start: int) -> None:
        """When it has returned it can do no more; the same batch again makes sure of it."""
        store, leadership = await opened(place)
        rows = [*finished(1), output(1), inserted(2)]
        committing = asyncio.ensure_future(store.commit(leadership, batch(1, *rows)))
        for _ in range(head_start):
            await asyncio.sleep(0)
        committing.cancel()
        await asyncio.wait({committing})
        await store.commit(leadership, batch(1, *rows))
        await store.commit(leadership, batch(2, inserted(3)))
        found = await recovered(store, leadership)
        assert (ids(found.live), ids(found.finished)) == ([2, 3], [1])


class TestPositions:
    """Batches have one sequence for the life of the store."""

    async def test_the_position_passes_on(self, place: Place) -> None:
        """A new term goes on where the one before stopped."""
        store, first = await written(place, inserted(1))
        await store.commit(first, batch(2, inserted(2)))
        await store.release_leadership(first)
        second = await lead(store)
        assert second.position == 2

    async def test_a_batch_whose_answer_was_lost_can_be_repeated(self, place: Place) -> None:
        """The second time changes nothing, and is confirmed."""
        mutations = [inserted(1), *finished(2), output(2)]
        store, leadership = await written(place, *mutations)
        before = await recovered(store, leadership)
        await store.commit(leadership, batch(1, *mutations))
        assert await recovered(store, leadership) == before
        await store.commit(leadership, batch(2, inserted(3)))
        assert ids((await recovered(store, leadership)).live) == [1, 3]

    async def test_a_repeated_batch_does_not_take_back_what_came_later(self, place: Place) -> None:
        """A late retry of an old batch leaves the present alone."""
        store, leadership = await written(place, inserted(1), changed(1, Status.RUNNING))
        await store.commit(leadership, batch(2, changed(1)))
        await store.commit(leadership, batch(1, inserted(1), changed(1, Status.RUNNING)))
        assert ids((await recovered(store, leadership)).finished) == [1]

    async def test_every_end_knows_its_position(self, place: Place) -> None:
        """A finished task carries the number of the batch that ended it, a live one none."""
        store, leadership = await written(place, inserted(1), inserted(2))
        await store.commit(leadership, batch(2, inserted(3), changed(3, Status.FAILED)))
        await store.commit(leadership, batch(3, changed(1)))
        found = await recovered(store, leadership)
        assert [(task.task_id, task.position) for task in found.finished] == [(1, 3), (3, 2)]
        assert [(task.task_id, task.position) for task in found.live] == [(2, 0)]


class TestRefusals:
    """What cannot be right is refused, and leaves nothing."""

    async def test_a_gap_in_the_numbers_of_batches_is_refused(self, place: Place) -> None:
        """A lost batch must not go by unnoticed."""
        store, leadership = await opened(place)
        with pytest.raises(Rejected):
            await store.commit(leadership, batch(2, inserted(1)))
        await store.commit(leadership, batch(1, inserted(1)))

    @pytest.mark.parametrize("status", [Status.RUNNING, Status.FAILED])
    async def test_a_change_of_an_unknown_task_is_refused(
        self, place: Place, status: Status
    ) -> None:
        """It would be a row without a spec; the refusal says whose."""
        store, leadership = await opened(place)
        with pytest.raises(Rejected) as caught:
            await store.commit(leadership, batch(1, inserted(1), changed(5, status)))
        assert (caught.value.kind, caught.value.task_id) == ("StatusChanged", 5)
        await store.commit(leadership, batch(1, inserted(2)))
        assert ids((await recovered(store, leadership)).live) == [2]


class TestMergedChanges:
    """One batch can hold more of a task's life than its last change tells."""

    async def test_put_back_and_started_in_one_batch(self, place: Place) -> None:
        """The end that it had is taken back."""
        store, leadership = await written(place, *finished(1), output(1))
        running = changed(1, Status.RUNNING, attempt=2)
        await store.commit(leadership, batch(2, changed(1, Status.READY), running))
        found = await recovered(store, leadership)
        assert (found.live[0].change, found.finished) == (running, ())

    async def test_put_back_and_ended_in_one_batch(self, place: Place) -> None:
        """It has one end, the new one."""
        store, leadership = await written(place, *finished(1), *finished(2))
        again = changed(1, Status.CANCELLED)
        await store.commit(leadership, batch(2, changed(1, Status.READY), again))
        assert await all_pages(store, FinishedQuery(filter=TaskFilter(), ended_after=0)) == [2, 1]
        assert (await recovered(store, leadership)).finished[0].change == again

    async def test_submitted_started_and_ended_in_one_batch(self, place: Place) -> None:
        """It never was among the live."""
        running = changed(1, Status.RUNNING)
        store, leadership = await written(place, inserted(1), running, changed(1), output(1))
        found = await recovered(store, leadership)
        assert (found.live, ids(found.finished)) == ((), [1])
