"""What a new leader is given is what was written."""

from __future__ import annotations

import pytest

from cronoq_server.engine.ids import pack
from cronoq_server.engine.model import (
    Dependency,
    PastAttempt,
    Progress,
    ScheduleSpec,
    Status,
    TaskSpec,
)
from cronoq_server.engine.mutations import (
    Mutation,
    PoolPaused,
    RecoveredChunk,
    ResourceResized,
    ScheduleRemoved,
    ScheduleSaved,
    StoredSchedule,
    StoredTask,
    TaskInserted,
    TasksPruned,
)
from cronoq_server.stores.base import Fenced
from cronoq_server.testing.builders import EPOCH_START, batch, changed, inserted, output, task
from cronoq_server.testing.store_suite.place import (
    FOREVER_AGO,
    SHARD,
    Place,
    finished,
    ids,
    opened,
    recovered,
    usurp,
    written,
)
from cronoq_server.testing.store_suite.specs import ABSOLUTE_SPEC, FULL_SPEC, FULL_TEMPLATE


class TestRecovery:
    """What a new leader is given is what was written."""

    async def test_an_empty_place_gives_nothing(self, place: Place) -> None:
        """There is nothing to rebuild."""
        assert await recovered(*await opened(place)) == RecoveredChunk()

    @pytest.mark.parametrize("spec", [FULL_SPEC, ABSOLUTE_SPEC], ids=["relative", "absolute"])
    async def test_a_spec_comes_back_whole(self, place: Place, spec: TaskSpec) -> None:
        """Every field that a caller can give is kept, payload included."""
        store, leadership = await written(place, TaskInserted(1, EPOCH_START + 7, spec))
        (task,) = (await recovered(store, leadership)).live
        assert task == StoredTask(1, EPOCH_START + 7, spec)

    async def test_a_change_comes_back_whole(self, place: Place) -> None:
        """Counts, instants, message, progress and past attempts are kept."""
        past = PastAttempt(1, "w", EPOCH_START, EPOCH_START + 1, "failed", "no disk")
        change = changed(
            1,
            Status.RETRYING,
            attempt=2,
            attempts_max=5,
            at=EPOCH_START + 9,
            started_at=EPOCH_START + 8,
            retry_at=EPOCH_START + 99,
            message="no disk",
            progress=Progress(b"\x00half", 0.5),
            history=(past, PastAttempt(2, "", EPOCH_START + 2, EPOCH_START + 3, "timed_out", "")),
            put_back=77,
        )
        store, leadership = await written(place, inserted(1), change)
        (task,) = (await recovered(store, leadership)).live
        assert task.change == change

    async def test_live_tasks_come_in_order_of_their_ids(self, place: Place) -> None:
        """However many there are, and whatever became of those between them."""
        store, leadership = await opened(place)
        for position in (1, 2, 3):
            rows = [inserted(i) for i in range(position * 1000, position * 1000 + 700)]
            await store.commit(leadership, batch(position, *rows))
        await store.commit(leadership, batch(4, *(changed(i) for i in (1003, 2500, 3699))))
        live = ids((await recovered(store, leadership)).live)
        assert len(live) == 2097
        assert live == sorted(live)

    async def test_finished_tasks_come_newest_first(self, place: Place) -> None:
        """In reverse order of their ends, not of their ids."""
        store, leadership = await written(place, inserted(1), inserted(2), inserted(3))
        for position, task_id in enumerate((2, 1, 3), 2):
            end = changed(task_id, at=EPOCH_START + position)
            await store.commit(leadership, batch(position, end))
        assert ids((await recovered(store, leadership)).finished) == [3, 1, 2]

    async def test_only_finished_tasks_within_the_horizon_come(self, place: Place) -> None:
        """The instant of the horizon belongs to it."""
        store, leadership = await written(
            place,
            *finished(1, at=EPOCH_START - 1),
            *finished(2, at=EPOCH_START),
            *finished(3, at=EPOCH_START + 1),
        )
        found = await recovered(store, leadership, EPOCH_START)
        assert sorted(ids(found.finished)) == [2, 3]

    async def test_parents_of_live_tasks_come_however_old(self, place: Place) -> None:
        """A live task's parents are known, by id and by key, and nobody else's."""
        store, leadership = await written(
            place,
            *finished(1),
            *finished(2, key="parent"),
            *finished(3),
            inserted(4, dependencies=(Dependency(1), Dependency("parent"))),
            *finished(5, dependencies=(Dependency(3),)),
        )
        found = await recovered(store, leadership, EPOCH_START + 1)
        assert sorted(set(ids(found.parents))) == [1, 2]
        assert found.finished == ()

    async def test_a_redriven_task_is_live_again(self, place: Place) -> None:
        """After a terminal status another one counts, if it was written later."""
        store, leadership = await written(place, *finished(1))
        again = changed(1, Status.READY, attempt=1, attempts_max=4)
        await store.commit(leadership, batch(2, again))
        found = await recovered(store, leadership)
        assert ids(found.live) == [1]
        assert found.live[0].change == again
        assert found.finished == ()

    async def test_pieces_are_many_and_small(self, place: Place) -> None:
        """A new leader is never handed everything at once, live or ended."""
        store, leadership = await opened(place)
        await store.commit(leadership, batch(1, *(inserted(i) for i in range(1, 2501))))
        rows = [m for i in range(3001, 5501) for m in finished(i)]
        await store.commit(leadership, batch(2, *rows))
        pieces = [chunk async for chunk in store.recover(leadership, FOREVER_AGO)]
        assert sum(len(piece.live) for piece in pieces) == 2500
        assert sum(len(piece.finished) for piece in pieces) == 2500
        assert max(len(piece.live) + len(piece.finished) for piece in pieces) < 2500
        # Live ones are complete before the first ended one comes: that is when a leader may serve.
        last = max(n for n, piece in enumerate(pieces) if piece.live)
        assert all(n > last for n, piece in enumerate(pieces) if piece.finished or piece.parents)

    async def test_reading_ends_when_another_term_has_begun(self, place: Place) -> None:
        """In the middle, too: half a truth is not gone on with."""
        store, first = await opened(place)
        await store.commit(first, batch(1, *(inserted(i) for i in range(1, 6001))))
        pieces = store.recover(first, FOREVER_AGO)
        while not (await anext(pieces)).live:
            pass
        await usurp(place, store, first)
        with pytest.raises(Fenced):
            async for _ in pieces:
                pass

    async def test_ended_tasks_can_be_read_while_batches_are_committed(self, place: Place) -> None:
        """What is read later comes once, whatever has come, ended or gone meanwhile."""
        store, leadership = await opened(place)
        for position in range(1, 4):
            numbers = range(position * 1000, position * 1000 + 900)
            rows = [m for i in numbers for m in finished(i, at=EPOCH_START + position)]
            await store.commit(leadership, batch(position, *rows))
        pieces = store.recover(leadership, FOREVER_AGO)
        found: list[int] = []
        async for piece in pieces:
            found += ids(piece.finished)
            if found:
                break
        await store.commit(leadership, batch(4, *finished(9000), inserted(9001)))
        await store.commit(leadership, batch(5, TasksPruned(EPOCH_START + 2, 100)))
        async for piece in pieces:
            found += ids(piece.finished)
        assert len(found) == len(set(found))
        assert set(range(1100, 1900)) | set(range(2000, 2900)) <= set(found)


class TestSettings:
    """What was set at run time: schedules, paused pools, resized resources."""

    async def test_a_schedule_comes_back_whole(self, place: Place) -> None:
        """As it was put, and how far it has come."""
        schedule = StoredSchedule(
            ScheduleSpec("nightly", "0 3 * * *", FULL_TEMPLATE, "Europe/Berlin", 2, 2, 3, 3),
            put_at=EPOCH_START,
            paused=True,
            processed_at=EPOCH_START + 5,
            next_at=EPOCH_START + 10,
            last_task=pack(SHARD, 1, 7),
            first_task=pack(SHARD, 1, 3),
            chain_broken=True,
            skipped=12,
        )
        store, leadership = await written(place, ScheduleSaved(schedule))
        assert (await recovered(store, leadership)).schedules == (schedule,)

    async def test_schedules_come_by_name_each_in_its_last_state(self, place: Place) -> None:
        """Removed ones not at all, unless they were put again."""
        saved = [
            ScheduleSaved(StoredSchedule(ScheduleSpec(name, "@hourly", task()), EPOCH_START))
            for name in ("b", "a", "c", "d")
        ]
        store, leadership = await written(place, *saved)
        again = StoredSchedule(ScheduleSpec("b", "@daily", task()), EPOCH_START, skipped=1)
        changes: list[Mutation] = [
            ScheduleSaved(again),
            ScheduleRemoved("c"),
            ScheduleRemoved("d"),
            saved[3],
            ScheduleRemoved("unknown"),
        ]
        await store.commit(leadership, batch(2, *changes))
        found = (await recovered(store, leadership)).schedules
        assert found == (saved[1].schedule, again, saved[3].schedule)

    async def test_paused_pools_come_back_until_they_are_resumed(self, place: Place) -> None:
        """The last word counts."""
        store, leadership = await written(
            place, PoolPaused("b", True), PoolPaused("a", True), PoolPaused("c", True)
        )
        await store.commit(leadership, batch(2, PoolPaused("c", False), PoolPaused("d", False)))
        assert (await recovered(store, leadership)).paused_pools == ("a", "b")

    async def test_resized_resources_come_back(self, place: Place) -> None:
        """With what the configuration said then; the last size counts."""
        first = ResourceResized("gpu", 4, 0, 0, (2, 0, 0))
        last = ResourceResized("gpu", 6, 0, 0, (2, 0, 0))
        bucket = ResourceResized("api", 0, 2**62, 100, (0, 10, 50))
        store, leadership = await written(place, first, bucket)
        await store.commit(leadership, batch(2, last))
        assert (await recovered(store, leadership)).resized == (bucket, last)


class TestRestart:
    """A store keeps its word about what outlives a process."""

    async def test_what_survives_is_what_was_promised(self, place: Place) -> None:
        """A durable store finds everything, another one nothing."""
        store, leadership = await written(place, inserted(1), *finished(2), output(2))
        survives = store.capabilities.survives_restart
        await store.release_leadership(leadership)
        await store.close()
        await place.restart()
        store, leadership = await opened(place)
        found = await recovered(store, leadership)
        assert ids(found.live) == ([1] if survives else [])
        assert ids(found.finished) == ([2] if survives else [])
        assert list(await store.load_outputs([2])) == ([2] if survives else [])
        assert leadership.position == (1 if survives else 0)
