"""What SQL stores promise beyond the exported suite: gaps, unreadable rows, ids of both halves.

Bound like the exported suite, to places that can also spoil what lies in the database.
"""

from __future__ import annotations

import random
from typing import Protocol

import pytest

from cronoq_server.api.texts import clean
from cronoq_server.engine.ids import pack
from cronoq_server.engine.model import PastAttempt, ScheduleSpec, Status, TaskFilter
from cronoq_server.engine.mutations import (
    Mutation,
    ScheduleSaved,
    StatusChanged,
    StoredSchedule,
    StoredTask,
    TaskDeleted,
    TaskInserted,
    TasksPruned,
)
from cronoq_server.stores.base import FinishedQuery, Rejected, Store, Unusable
from cronoq_server.stores.codec import UNREADABLE
from cronoq_server.stores.memory import MemoryDisk, MemoryStore
from cronoq_server.testing.builders import EPOCH_START, batch, changed, inserted, output, task
from cronoq_server.testing.store_suite import (
    Place,
    all_pages,
    ids,
    lead,
    opened,
    recovered,
    written,
)

__all__ = [
    "TestAgainstAModel",
    "TestIdentity",
    "TestNul",
    "TestQuarantine",
    "TestUnfitValues",
    "TestWhatAdmissionLetsThrough",
]

EVERYTHING = FinishedQuery(filter=TaskFilter())
GARBAGE = b"\xc1 no msgpack"


class SqlPlace(Place, Protocol):
    """A place whose rows can be spoilt."""

    async def open_as(self, shard: int) -> Store:
        """One more handle, as a replica of this shard would have it."""

    async def spoil(self, table: str, column: str, key: str, value: object) -> None:
        """Makes a column of the row with this key unreadable."""

    async def remove(self, table: str, key: str, value: object) -> None:
        """Takes the row with this key away."""


class TestUnfitValues:
    """What no column can hold is refused, and leaves nothing."""

    async def test_a_number_beyond_64_bits_is_refused(self, place: SqlPlace) -> None:
        """The next batch is taken as if nothing had been."""
        store, leadership = await opened(place)
        with pytest.raises(Rejected):
            await store.commit(leadership, batch(1, inserted(1, at=1 << 70)))
        await store.commit(leadership, batch(1, inserted(1)))

    async def test_a_text_that_is_none_is_refused(self, place: SqlPlace) -> None:
        """A lone surrogate has no bytes; admission lets none through."""
        store, leadership = await opened(place)
        with pytest.raises(Rejected):
            await store.commit(leadership, batch(1, inserted(1, key="\ud800")))
        await store.commit(leadership, batch(1, inserted(1)))


class TestQuarantine:
    """What cannot be read is set aside, and stops nothing."""

    async def test_a_live_task_with_an_unreadable_spec_fails(self, place: SqlPlace) -> None:
        """It ends with an explanation, in the batch after the last one; the others live."""
        store, leadership = await written(place, inserted(1), inserted(2, key="k"), inserted(3))
        await place.spoil("cronoq_tasks", "spec", "id", 2)
        found = await recovered(store, leadership)
        assert ids(found.live) == [1, 3]
        (failed,) = found.finished
        assert failed.change is not None
        assert (failed.task_id, failed.position) == (2, 2)
        assert (failed.change.status, failed.change.message) == (Status.FAILED, UNREADABLE)
        assert failed.spec == task(key="k")

    async def test_it_is_set_aside_once(self, place: SqlPlace) -> None:
        """The next recovery finds an end like any other, and the log goes on."""
        store, first = await written(place, inserted(1))
        await place.spoil("cronoq_tasks", "spec", "id", 1)
        before = await recovered(store, first)
        await store.commit(first, batch(2, inserted(2)))
        await store.release_leadership(first)
        second = await lead(store)
        after = await recovered(store, second)
        assert (ids(after.live), after.finished) == ([2], before.finished)

    @pytest.mark.regression("R25")
    async def test_an_unreadable_schedule_is_left_out(self, place: SqlPlace) -> None:
        """Until it is put again."""
        saved = [
            ScheduleSaved(StoredSchedule(ScheduleSpec(name, "@hourly", task()), EPOCH_START))
            for name in ("a", "b")
        ]
        store, leadership = await written(place, *saved)
        await place.spoil("cronoq_schedules", "schedule", "name", "a")
        assert (await recovered(store, leadership)).schedules == (saved[1].schedule,)
        await store.commit(leadership, batch(2, saved[0]))
        assert len((await recovered(store, leadership)).schedules) == 2

    async def test_an_ended_task_that_cannot_be_read_is_told_by_its_columns(
        self, place: SqlPlace
    ) -> None:
        """Spec and change are filled in as far as columns know them."""
        store, _ = await written(
            place, inserted(1, kind="k", key="a", tenant="t"), changed(1, Status.CANCELLED, at=7)
        )
        await place.spoil("cronoq_tasks", "spec", "id", 1)
        await place.spoil("cronoq_ends", "change", "id", 1)
        (found,) = (await store.find_finished(FinishedQuery(ids=(1,)))).tasks
        assert found.spec == task(kind="k", key="a", tenant="t")
        assert found.change is not None
        assert (found.change.status, found.change.at) == (Status.CANCELLED, 7)
        assert found.change.message == UNREADABLE

    async def test_a_live_task_without_a_row_stops_nothing(self, place: SqlPlace) -> None:
        """Somebody removed it by hand."""
        store, leadership = await written(place, inserted(1), inserted(2))
        await place.remove("cronoq_tasks", "id", 1)
        assert ids((await recovered(store, leadership)).live) == [2]
        assert ids((await recovered(store, leadership)).live) == [2]


class TestIdentity:
    """A store belongs to the shard of its first leader."""

    async def test_another_shard_is_refused(self, place: SqlPlace) -> None:
        """And leaves the lead to whom it belongs."""
        store = await place.open_as(1)
        await store.release_leadership(await lead(store))
        with pytest.raises(Unusable, match="shard 1"):
            await lead(await place.open_as(2))
        with pytest.raises(Unusable, match="shard 1"):
            await lead(await place.open())
        await lead(await place.open_as(1))


class TestNul:
    """NUL is no character of a message: U+FFFD takes its place, in every store alike."""

    async def test_in_messages_and_past_attempts(self, place: SqlPlace) -> None:
        """Wherever a worker's words are kept."""
        past = PastAttempt(1, "w", EPOCH_START, EPOCH_START, "failed", "a\0b")
        store, leadership = await written(
            place, inserted(1), changed(1, Status.FAILED, message="\0", history=(past,))
        )
        (found,) = (await recovered(store, leadership)).finished
        assert found.change is not None
        assert found.change.message == "\ufffd"
        assert found.change.history[0].message == "a\ufffdb"


class TestWhatAdmissionLetsThrough:
    """Whatever passes the one function that knows all limits can be stored, by every store."""

    @pytest.mark.regression("R17")
    @pytest.mark.parametrize("seed", range(3))
    async def test_nothing_of_it_is_poison(self, place: SqlPlace, seed: int) -> None:
        """A hundred tasks of the oddest texts commit in one batch, and come back."""
        chance = random.Random(seed)
        rows: list[Mutation] = []
        for number in range(1, 101):
            odd = clean(_odd_text(chance))
            past = PastAttempt(1, odd[:50], EPOCH_START, EPOCH_START, "failed", odd)
            fit = odd.replace("\0", "")[:200] or "x"
            rows.append(inserted(number, key=f"{number} {fit}", kind=fit, tags=((fit, odd),)))
            rows.append(changed(number, Status.FAILED, message=odd, history=(past,)))
        store, leadership = await written(place, *rows)
        found = {t.task_id: t for t in (await recovered(store, leadership)).finished}
        for row in rows:
            if isinstance(row, TaskInserted):
                assert found[row.task_id].spec == row.spec
            elif isinstance(row, StatusChanged):
                assert found[row.task_id].change == row


def _odd_text(chance: random.Random) -> str:
    """NUL, lone surrogates, control characters, marks, and what lies beyond 16 bits."""
    ranges = ((0, 0x20), (0x7F, 0xA0), (0xD800, 0xDFFF), (0xFDD0, 0xFFFF), (0x10000, 0x10FFFF))
    return "".join(chr(chance.randint(*chance.choice(ranges))) for _ in range(chance.randrange(80)))


class TestAgainstAModel:
    """Random logs read the same as from the memory store, whatever layout is behind."""

    @pytest.mark.parametrize("seed", range(4))
    async def test_random_batches(self, place: SqlPlace, seed: int) -> None:
        """Submits, changes, ends, redrives, deletions and pruning, with other terms between."""
        log = _RandomLog(random.Random(seed))
        store, leadership = await opened(place)
        model = MemoryStore(MemoryDisk())
        model_term = await lead(model)
        for position in range(1, 41):
            mutations = log.step()
            await model.commit(model_term, batch(position, *mutations))
            await store.commit(leadership, batch(position, *mutations))
            if position % 10 == 0:
                await store.release_leadership(leadership)
                leadership = await lead(store)
            if position % 4 == 0:
                known = log.ids
                assert await recovered(store, leadership) == await recovered(model, model_term)
                assert await all_pages(store, EVERYTHING) == await all_pages(model, EVERYTHING)
                assert await store.load_outputs(known) == await model.load_outputs(known)
                assert _sorted(await store.load_tasks(known)) == _sorted(
                    await model.load_tasks(known)
                )


def _sorted(tasks: list[StoredTask]) -> list[StoredTask]:
    return sorted(tasks, key=lambda found: found.task_id)


class _RandomLog:
    """Makes batches that an engine might make."""

    def __init__(self, chance: random.Random) -> None:
        self.ids: list[int] = []
        self._chance = chance
        self._live: dict[int, Status] = {}
        self._ended: set[int] = set()
        self._now = EPOCH_START

    def step(self) -> list[Mutation]:
        """One batch."""
        chance = self._chance
        self._now += 10
        made: list[Mutation] = []
        for _ in range(chance.randrange(8)):
            number = pack(200, 1, len(self.ids) + 1)
            self.ids.append(number)
            made.append(inserted(number, at=self._now, key=f"key-{chance.randrange(30)}"))
            self._live[number] = Status.READY
        for number in list(self._live):
            if chance.random() < 0.3:
                made += self._change(number)
        if chance.random() < 0.3:
            made.append(TasksPruned(self._now - chance.randrange(100), chance.randrange(1, 12)))
        elif self._ended and chance.random() < 0.2:
            made.append(TaskDeleted(chance.choice(sorted(self._ended))))
        return made

    def _change(self, number: int) -> list[Mutation]:
        status = self._chance.choice((Status.RUNNING, Status.RETRYING, Status.SUCCEEDED))
        made: list[Mutation] = [changed(number, status, at=self._now)]
        self._live[number] = status
        if status is Status.SUCCEEDED:
            made.append(output(number, str(number).encode()))
            del self._live[number]
            self._ended.add(number)
        return made
