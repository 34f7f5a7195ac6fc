"""Tables come by steps, and go by segments; what still lives in them stays."""

from __future__ import annotations

import asyncio
import itertools

import asyncpg
import pytest

from cronoq_server.engine.model import Status
from cronoq_server.engine.mutations import TasksPruned
from cronoq_server.stores.base import (
    FinishedQuery,
    Leadership,
    Store,
    Unusable,
)
from cronoq_server.stores.migrations import steps
from cronoq_server.stores.pg_session import quoted
from cronoq_server.testing.builders import EPOCH_START, batch, changed, inserted
from cronoq_server.testing.store_suite import (
    acquire,
    finished,
    ids,
    lead,
    opened,
    recovered,
    written,
)
from tests.stores.pg import Cluster
from tests.stores.pg_place import PostgresPlace


@pytest.fixture
def place(postgres: PostgresPlace) -> PostgresPlace:
    """A fresh schema."""
    return postgres


# --- tables --------------------------------------------------------------------------------------


async def test_many_openers_of_one_schema_apply_each_step_once(place: PostgresPlace) -> None:
    """One of them leads, the others find the tables there."""
    stores = [await place.open() for _ in range(4)]
    terms = await asyncio.gather(*(acquire(store) for store in stores))
    assert sum(term is not None for term in terms) == 1
    rows = await place.execute("SELECT version FROM cronoq_schema_version ORDER BY version")
    assert [version for (version,) in rows] == [step.version for step in steps("postgres")]


async def test_a_newer_schema_is_refused_at_the_door_and_before_leading(
    place: PostgresPlace,
) -> None:
    """By who connects now, and by who did before it became newer; a leader works on."""
    leader, leadership = await opened(place)
    standby = await place.open()
    assert await acquire(standby) is None
    await place.execute("INSERT INTO cronoq_schema_version (version) VALUES (1000)")
    await leader.commit(leadership, batch(1, inserted(1)))
    await leader.release_leadership(leadership)
    for store in (standby, await place.open()):
        with pytest.raises(Unusable, match="version 1000"):
            await acquire(store)
    assert await place.advisory_locks() == 0


async def test_two_schemas_of_one_database_know_nothing_of_each_other(
    place: PostgresPlace, cluster: Cluster
) -> None:
    """Each has its leader, its epochs and its tasks."""
    other = PostgresPlace(cluster)
    here, first = await written(place, inserted(1))
    there, second = await written(other, inserted(2))
    await here.commit(first, batch(2, inserted(3)))
    assert ids(await here.load_tasks([1, 2, 3])) == [1, 3]
    assert ids(await there.load_tasks([1, 2, 3])) == [2]
    await second.check()
    await other.close()
    await other.drop()


async def segments(place: PostgresPlace) -> list[int]:
    """The segments whose tables are there."""
    rows = await place.execute(
        "SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid "
        "WHERE i.inhparent = 'cronoq_tasks'::regclass"
    )
    return sorted(int(name.rpartition("_")[2]) for (name,) in rows)


async def lived(store: Store, leadership: Leadership, position: int, *numbers: int) -> None:
    """A batch in which these tasks came and ended."""
    rows = itertools.chain.from_iterable(
        finished(number, at=EPOCH_START + position, key=f"key-{number}") for number in numbers
    )
    await store.commit(leadership, batch(position, *rows))


async def test_segments_are_dropped_as_a_whole_and_stragglers_live_on(
    place: PostgresPlace,
) -> None:
    """What still lives in an old segment is written anew, changes as before, and ends as before."""
    store, leadership = await opened(place)
    await store.commit(leadership, batch(1, inserted(1, payload=b"p"), inserted(2)))
    await store.commit(leadership, batch(2, changed(1, Status.RUNNING)))
    for position in range(3, 13):
        await lived(store, leadership, position, *range(position * 10, position * 10 + 10))
    assert len(await segments(place)) == 6
    for position in range(13, 20):
        await store.commit(leadership, batch(position, TasksPruned(EPOCH_START + 12, 30)))
    assert await segments(place) == [0, 5]
    await store.release_leadership(leadership)
    leadership = await lead(store)
    found = await recovered(store, leadership)
    assert [(t.task_id, t.spec.payload, t.change) for t in found.live] == [
        (1, b"p", changed(1, Status.RUNNING)),
        (2, b"", None),
    ]
    assert len(found.finished) == 10
    await store.commit(leadership, batch(20, changed(1, Status.RETRYING), changed(2)))
    found = await recovered(store, leadership)
    assert found.live[0].change == changed(1, Status.RETRYING)
    assert found.finished[0].task_id == 2
    assert ids(await store.load_tasks([1, 2])) == [2, 1]
    await store.commit(leadership, batch(21, TasksPruned(EPOCH_START + 99, 30)))
    assert await store.load_tasks([2]) == []
    assert (await place.execute("SELECT id FROM cronoq_tasks_0"))[0][0] == 1


async def test_a_segment_that_is_read_from_is_dropped_another_time(place: PostgresPlace) -> None:
    """Pruning never waits for a reader, and the batch is committed all the same."""
    store, leadership = await opened(place)
    for position in range(1, 6):
        await lived(store, leadership, position, *range(position * 20, position * 20 + 20))
    before = await segments(place)
    reader = await asyncpg.connect(place.settings.url)
    read = reader.transaction()
    await read.start()
    await reader.fetch(f"SELECT id FROM {quoted(place.settings.schema)}.cronoq_tasks")
    await store.commit(leadership, batch(6, TasksPruned(EPOCH_START + 5, 100)))
    assert await segments(place) == before
    assert len((await recovered(store, leadership)).finished) == 20
    await read.rollback()
    await reader.close()
    await store.commit(leadership, batch(7, TasksPruned(EPOCH_START + 5, 100)))
    assert len(await segments(place)) == len(before) - 1


async def test_nothing_of_the_living_is_left_in_the_bitmaps_when_all_has_ended(
    place: PostgresPlace,
) -> None:
    """A block without a living task has no row."""
    store, leadership = await written(place, *(inserted(n) for n in range(1000, 3000, 100)))
    assert len(await place.execute("SELECT block FROM cronoq_blocks")) == 3
    await store.commit(leadership, batch(2, *(changed(n) for n in range(1000, 3000, 100))))
    assert await place.execute("SELECT block FROM cronoq_blocks") == []


async def test_tables_of_the_first_version_are_taken_over(place: PostgresPlace) -> None:
    """Segments that were filled before nobody noted keys are looked into."""
    store, leadership = await written(place, *finished(1, key="a"))
    await store.release_leadership(leadership)
    await store.close()
    await place.execute("ALTER TABLE cronoq_segments DROP COLUMN keys")
    await place.execute("DELETE FROM cronoq_schema_version WHERE version > 1")
    store, leadership = await opened(place)
    for position in range(2, 5):
        numbers = range(position * 20, position * 20 + 20)
        rows = [m for n in numbers for m in finished(n, key=f"key-{n}")]
        await store.commit(leadership, batch(position, *rows))
    found = await store.find_finished(FinishedQuery(keys=("a", "key-45", "key-99", "b")))
    assert sorted(ids(found.tasks)) == [1, 45, 99]


async def test_what_happens_in_one_batch_is_written_once(place: PostgresPlace) -> None:
    """A task that comes and starts is one row, one that also ends is two."""
    await written(
        place,
        inserted(1),
        changed(1, Status.RUNNING),
        inserted(2),
        changed(2, Status.RUNNING),
        *finished(3),
    )
    counts = [
        len(await place.execute(f"SELECT id FROM cronoq_{table}"))
        for table in ("tasks", "changes", "ends")
    ]
    assert counts == [3, 0, 1]
