"""What every store must pass: the store contract as short tests, grouped by clause.

Bind it in a test module of your own, with one fixture and asyncio's auto mode:

    from cronoq_server.testing.store_suite import *

    @pytest.fixture
    def place() -> Place: ...

A `Place` is where stores of one test persist to, fresh for each test; every `open` gives one more
replica's handle on it. No test here names a store: what a store can do, it says itself
(`capabilities`).
"""

from __future__ import annotations

import asyncio
import itertools
from typing import Any, Protocol

import msgspec
import pytest

from cronoq_server.engine.ids import pack
from cronoq_server.engine.model import (
    SECOND,
    Dependency,
    EdgeCondition,
    PastAttempt,
    Progress,
    RetryPolicy,
    ScheduleSpec,
    Status,
    TaskFilter,
    TaskSpec,
)
from cronoq_server.engine.mutations import (
    Mutation,
    Output,
    PoolPaused,
    RecoveredChunk,
    ResourceResized,
    ScheduleRemoved,
    ScheduleSaved,
    StatusChanged,
    StoredSchedule,
    StoredTask,
    TaskDeleted,
    TaskInserted,
    TasksPruned,
)
from cronoq_server.stores.base import (
    Fenced,
    FinishedPage,
    FinishedQuery,
    Forgotten,
    Leadership,
    Rejected,
    Store,
    TimeBase,
)
from cronoq_server.testing.builders import EPOCH_START, batch, changed, inserted, output, task

__all__ = [
    "TestAtomicity",
    "TestFencing",
    "TestFindFinished",
    "TestIds",
    "TestLeadership",
    "TestLoadTasks",
    "TestOutputs",
    "TestPositions",
    "TestPruning",
    "TestRecovery",
    "TestRestart",
    "TestSettings",
    "TestText",
    "TestTimeBase",
]

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


FULL_SPEC = TaskSpec(
    pool="default",
    kind="resize",
    payload=bytes(range(256)),
    content_type="application/json",
    priority=2,
    key="order-17",
    deadline_in=60 * SECOND,
    start_in=5 * SECOND,
    tolerance=2 * SECOND,
    on_miss=2,
    duration_hint=3 * SECOND,
    timeout=30 * SECOND,
    retry=RetryPolicy(7, SECOND, 1.5, 9 * SECOND, False),
    dependencies=(Dependency(11), Dependency("a", EdgeCondition.ON_COMPLETE)),
    resources=(("gpu", 1), ("tokens", 40)),
    tags=(("team", "blue"), ("zone", "")),
    labels=(("os", "linux"),),
    tenant="acme",
    trace_context=(("traceparent", "00-1-2-01"),),
    delay=4 * SECOND,
    expires_in=90 * SECOND,
)
"""Every field set that can be set together, with relative times."""

ABSOLUTE_SPEC = TaskSpec(
    pool="default",
    kind="default",
    deadline_at=EPOCH_START + 5,
    start_at=EPOCH_START + 3,
    not_before=EPOCH_START + 1,
)
"""The absolute forms of the same."""


FULL_TEMPLATE = msgspec.structs.replace(FULL_SPEC, dependencies=())
"""What a schedule's template can say."""


class TestLeadership:
    """One term at a time, each with a higher epoch."""

    async def test_a_fresh_place_begins_at_nothing(self, place: Place) -> None:
        """The first term finds no batch and no id."""
        _, leadership = await opened(place)
        assert (leadership.position, leadership.high_water) == (0, 0)
        assert leadership.epoch >= 1

    async def test_nobody_else_leads_while_a_term_holds(self, place: Place) -> None:
        """A second replica is told to wait, and the first goes on."""
        _, leadership = await opened(place)
        assert await acquire(await place.open()) is None
        await leadership.check()

    async def test_a_released_term_makes_room_at_once(self, place: Place) -> None:
        """The next replica leads under a higher epoch."""
        store, first = await opened(place)
        await store.release_leadership(first)
        second = await lead(await place.open())
        assert second.epoch > first.epoch

    async def test_the_same_replica_can_lead_again(self, place: Place) -> None:
        """A term after one's own has a higher epoch as well."""
        store, first = await opened(place)
        await store.release_leadership(first)
        second = await lead(store)
        assert second.epoch > first.epoch

    async def test_a_lapsed_term_makes_room(self, place: Place) -> None:
        """A holder that is believed gone is succeeded."""
        store, first = await opened(place)
        _, second = await usurp(place, store, first)
        assert second.epoch > first.epoch
        await second.check()

    async def test_a_check_finds_out_about_a_successor(self, place: Place) -> None:
        """Who was replaced learns it when it asks."""
        store, first = await opened(place)
        await usurp(place, store, first)
        with pytest.raises(Fenced):
            await first.check()

    async def test_a_check_finds_out_about_a_release(self, place: Place) -> None:
        """A term that was released holds no more, even with nobody after it."""
        store, leadership = await opened(place)
        await store.release_leadership(leadership)
        with pytest.raises(Fenced):
            await leadership.check()

    async def test_a_late_release_leaves_the_successor_alone(self, place: Place) -> None:
        """Releasing a term that is over ends nobody else's."""
        store, first = await opened(place)
        _, second = await usurp(place, store, first)
        await store.release_leadership(first)
        await second.check()
        assert await acquire(await place.open()) is None


class TestFencing:
    """At most one term's writes are accepted."""

    async def test_a_past_term_cannot_commit(self, place: Place) -> None:
        """Its commit fails, and leaves nothing."""
        store, first = await opened(place)
        other, second = await usurp(place, store, first)
        with pytest.raises(Fenced):
            await store.commit(first, batch(1, inserted(1)))
        assert (await recovered(other, second)).live == ()

    async def test_a_released_term_cannot_commit(self, place: Place) -> None:
        """Who gave up leadership writes nothing any more."""
        store, leadership = await opened(place)
        await store.release_leadership(leadership)
        with pytest.raises(Fenced):
            await store.commit(leadership, batch(1, inserted(1)))

    async def test_a_past_term_cannot_even_repeat_itself(self, place: Place) -> None:
        """The retry of a batch that is there already is fenced, not confirmed."""
        store, first = await written(place, inserted(1))
        await usurp(place, store, first)
        with pytest.raises(Fenced):
            await store.commit(first, batch(1, inserted(1)))

    async def test_a_past_term_cannot_recover(self, place: Place) -> None:
        """A replica that was replaced while it recovers does not go on with half a truth."""
        store, first = await opened(place)
        await usurp(place, store, first)
        with pytest.raises(Fenced):
            await recovered(store, first)

    @pytest.mark.parametrize("head_start", range(12))
    async def test_a_commit_and_a_takeover_never_both_succeed_unseen(
        self, place: Place, head_start: int
    ) -> None:
        """Either the new term sees the old commit, or that commit fails."""
        old, first = await opened(place)
        await place.lapse(old, first)
        new = await place.open()
        committing = asyncio.ensure_future(old.commit(first, batch(1, inserted(1))))
        for _ in range(head_start):
            await asyncio.sleep(0)
        second = await lead(new)
        (outcome,) = await asyncio.gather(committing, return_exceptions=True)
        seen = ids((await recovered(new, second)).live)
        if outcome is None:
            assert (second.position, seen) == (1, [1])
        else:
            assert isinstance(outcome, Fenced)
            assert (second.position, seen) == (0, [])


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
