"""Ids use all 64 bits, texts come back letter for letter, instants mean the same to everybody."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from cronoq_server.engine.ids import pack
from cronoq_server.engine.model import (
    Dependency,
    PastAttempt,
    ScheduleSpec,
    Status,
    TaskFilter,
    TaskSpec,
)
from cronoq_server.engine.mutations import (
    ScheduleSaved,
    StatusChanged,
    StoredSchedule,
    StoredTask,
    TaskInserted,
    TasksPruned,
)
from cronoq_server.stores.base import FinishedQuery
from cronoq_server.testing.builders import EPOCH_START, batch, changed, inserted, output, task
from cronoq_server.testing.store_suite.place import (
    SHARD,
    Place,
    all_pages,
    finished,
    ids,
    lead,
    opened,
    recovered,
    written,
)


class TestIds:
    """Ids use all 64 bits and are never reused."""

    async def test_the_highest_id_passes_on(self, place: Place) -> None:
        """A new term is told the highest id of any batch."""
        store, first = await written(place, inserted(7), inserted(9))
        await store.commit(first, batch(2, inserted(12)))
        await store.commit(first, batch(3, changed(7)))
        await store.release_leadership(first)
        assert (await lead(store)).high_water == 12

    async def test_ids_with_the_highest_bit_are_ids_like_others(self, place: Place) -> None:
        """They come back unsigned and in order, by every way of asking."""
        low, middle, high = (pack(SHARD, 1, n) for n in (1, 2, 3))
        store, leadership = await written(
            place, *finished(low), output(low), inserted(middle), *finished(high)
        )
        found = await recovered(store, leadership)
        assert (ids(found.live), sorted(ids(found.finished))) == ([middle], [low, high])
        assert list(await store.load_outputs([low, middle])) == [low]
        assert ids(await store.load_tasks([middle])) == [middle]
        assert ids((await store.find_finished(FinishedQuery(ids=(high,)))).tasks) == [high]
        await store.release_leadership(leadership)
        assert (await lead(store)).high_water == high

    @pytest.mark.parametrize("newest_first", [False, True])
    async def test_pages_know_the_order_of_such_ids(self, place: Place, newest_first: bool) -> None:
        """A page begins at the cursor, whatever sign the database sees."""
        numbers = [pack(SHARD, 1, n) for n in range(1, 8)]
        mutations = itertools.chain.from_iterable(finished(number) for number in numbers)
        store, _ = await written(place, *mutations)
        query = FinishedQuery(filter=TaskFilter(), limit=2, newest_first=newest_first)
        assert await all_pages(store, query) == sorted(numbers, reverse=newest_first)

    async def test_an_edge_to_such_an_id_finds_its_parent(self, place: Place) -> None:
        """Ids inside of specs are ids, too."""
        parent, child = pack(SHARD, 1, 1), pack(SHARD, 1, 2)
        store, leadership = await written(
            place, *finished(parent), inserted(child, dependencies=(Dependency(parent),))
        )
        found = await recovered(store, leadership, EPOCH_START + 1)
        assert ids(found.parents) == [parent]
        assert found.live[0].spec.dependencies == (Dependency(parent),)


class TestBothHalvesOfIds:
    """Ids with and without the highest bit are in one order, that of unsigned numbers."""

    LOW, HIGH = 5, (1 << 63) + 5

    async def test_live_ones_come_in_order(self, place: Place) -> None:
        """An epoch beyond 32 767 has such ids without any shard."""
        store, leadership = await written(place, inserted(self.LOW), inserted(self.HIGH))
        assert ids((await recovered(store, leadership)).live) == [self.LOW, self.HIGH]

    @pytest.mark.parametrize("newest_first", [False, True])
    @pytest.mark.parametrize("limit", [1, 2, 3, 10])
    async def test_pages_cross_the_border(
        self, place: Place, limit: int, newest_first: bool
    ) -> None:
        """Wherever a page ends."""
        numbers = [self.LOW, self.LOW + 1, self.HIGH, self.HIGH + 1]
        rows = [mutation for number in numbers for mutation in finished(number)]
        store, leadership = await written(place, *rows)
        query = FinishedQuery(filter=TaskFilter(), limit=limit, newest_first=newest_first)
        assert await all_pages(store, query) == sorted(numbers, reverse=newest_first)
        await store.release_leadership(leadership)
        assert (await lead(store)).high_water == numbers[-1]


TEXTS = [
    pytest.param("naïve café", id="latin"),
    pytest.param("東京 \U0001f680 e\u0301", id="astral and combining"),
    pytest.param('it\'s "100%" \\n ; -- :x $1 ?', id="signs of query languages"),
    pytest.param("one\ntwo\r\n\tthree\x01\x1f\x7f", id="control characters"),
    pytest.param("\ufffd\u2028\u200f\ufeff", id="marks"),
    pytest.param(" ", id="blank"),
    pytest.param("\U0001f680" * 256, id="as long as a kind may be"),
]


class TestText:
    """What passes admission comes back letter for letter."""

    @pytest.mark.parametrize("text", TEXTS)
    async def test_texts_come_back(self, place: Place, text: str) -> None:
        """Keys, kinds, tags, labels, tenants and messages are kept as they are."""
        row = inserted(1, key=text, kind=text, tags=((text, text),), tenant=text)
        past = PastAttempt(1, text, EPOCH_START, EPOCH_START, "failed", text)
        store, leadership = await written(
            place, row, changed(1, Status.FAILED, message=text, history=(past,))
        )
        (task,) = (await recovered(store, leadership)).finished
        assert task.spec == row.spec
        assert task.change is not None
        assert (task.change.message, task.change.history) == (text, (past,))
        assert ids((await store.find_finished(FinishedQuery(keys=(text,)))).tasks) == [1]

    async def test_a_long_message_comes_back(self, place: Place) -> None:
        """As long as admission lets a worker's message be, and longer."""
        text = "é" * 1_000_000
        store, leadership = await written(
            place, inserted(1), changed(1, Status.FAILED, message=text)
        )
        (task,) = (await recovered(store, leadership)).finished
        assert task.change is not None
        assert task.change.message == text

    async def test_texts_that_look_alike_differ(self, place: Place) -> None:
        """Keys are compared letter by letter: no folding, no trimming, no normal form."""
        keys = ["a", "A", "a ", "\u00e9", "e\u0301"]
        store, _ = await written(
            place, *itertools.chain(*(finished(i, key=key) for i, key in enumerate(keys, 1)))
        )
        for task_id, key in enumerate(keys, 1):
            assert ids((await store.find_finished(FinishedQuery(keys=(key,)))).tasks) == [task_id]


class TestTimeBase:
    """Instants are stored as Unix time, whatever the engine counts from."""

    BASE = 1_000_000_007_000_000_000

    async def test_instants_come_back_as_they_were_written(self, place: Place) -> None:
        """With any base, for tasks, changes, horizons and pruning."""
        store, leadership = await opened(place, base=self.BASE)
        past = PastAttempt(1, "w", 3, 4, "failed", "")
        schedule = StoredSchedule(ScheduleSpec("s", "@hourly", task()), 1, False, 2, 3)
        end = changed(2, Status.FAILED, at=9, started_at=8, history=(past,))
        waits = changed(3, Status.RETRYING, at=5, started_at=4, retry_at=6)
        spec = TaskSpec("default", "default", deadline_at=50, start_at=40, not_before=30)
        rows = [TaskInserted(1, 10, spec), inserted(2, at=1), end, inserted(3, at=2), waits]
        rows.append(ScheduleSaved(schedule))
        await store.commit(leadership, batch(1, *rows))
        found = await recovered(store, leadership, 9)
        assert found.schedules == (schedule,)
        assert found.live[0] == StoredTask(1, 10, spec)
        assert found.live[1].change == waits
        assert found.finished[0].change == end
        assert (await store.find_finished(FinishedQuery(ids=(2,)))).tasks[0].change == end
        assert (await recovered(store, leadership, 10)).finished == ()
        await store.commit(leadership, batch(2, TasksPruned(9, 10)))
        assert ids((await recovered(store, leadership)).finished) == [2]
        await store.commit(leadership, batch(3, TasksPruned(10, 10)))
        assert (await recovered(store, leadership)).finished == ()

    async def test_another_base_reads_the_same_instants(self, place: Place) -> None:
        """Two terms that count from different zeros mean the same moment."""
        store, first = await opened(place, base=self.BASE)
        await store.commit(first, batch(1, *_instants(0)))
        await store.release_leadership(first)
        other, second = await opened(place)
        found = await recovered(other, second)
        moved = _instants(self.BASE)
        task_row, waits, row, end, schedule = moved
        assert isinstance(task_row, TaskInserted)
        assert isinstance(row, TaskInserted)
        assert isinstance(schedule, ScheduleSaved)
        assert found.live == (StoredTask(1, task_row.created_at, task_row.spec, waits),)
        assert found.finished == (StoredTask(2, row.created_at, row.spec, end, 1),)
        assert found.schedules == (schedule.schedule,)


def _instants(zero: int) -> tuple[TaskInserted, StatusChanged, TaskInserted, StatusChanged, Any]:
    """Rows with every instant that there is, each a different one, counted from `zero`."""

    def at(number: int) -> int:
        return zero + number

    spec = TaskSpec("default", "default", deadline_at=at(50), start_at=at(40), not_before=at(30))
    past = PastAttempt(1, "w", at(3), at(4), "failed", "")
    return (
        TaskInserted(1, at(10), spec),
        changed(1, Status.RETRYING, at=at(5), started_at=at(6), retry_at=at(7), history=(past,)),
        inserted(2, at=at(11)),
        changed(2, at=at(12), started_at=at(8)),
        ScheduleSaved(
            StoredSchedule(ScheduleSpec("s", "@hourly", task()), at(1), False, at(2), at(9))
        ),
    )
