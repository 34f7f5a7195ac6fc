"""A restored store gives out no id again, and knows that its past was another one."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import msgspec
import pytest

from cronoq_server.engine.ids import EPOCH_MAX, ID_MAX, IdSource, pack
from cronoq_server.stores import StoreSettings
from cronoq_server.stores.base import Store, Unavailable, Unusable, history_of
from cronoq_server.stores.pg_session import quoted
from cronoq_server.stores.raising import IDS, TERMS, Marks, raise_store, raised
from cronoq_server.stores.sqlite import SqliteStore
from cronoq_server.stores.sqlite_file import SqliteSettings
from cronoq_server.testing.builders import EPOCH_START, batch, inserted
from cronoq_server.testing.store_suite import ids, lead, recovered
from tests.stores.pg import Cluster, find_programs
from tests.stores.pg_place import PostgresPlace


class Kept:
    """A store of one kind, and how it is backed up and restored."""

    def __init__(
        self,
        settings: StoreSettings,
        open_one: Callable[[], Store],
        back_up: Callable[[], Awaitable[None]],
        restore: Callable[[], Awaitable[None]],
    ) -> None:
        self.settings = settings
        self.open = open_one
        self.back_up = back_up
        self.restore = restore

    async def lead_once(self) -> tuple[int, int, int]:
        """Leads, submits a task under the next id, and leaves; what it began with, and the id."""
        store = self.open()
        try:
            term = await lead(store)
            task_id = IdSource(None, term.epoch, term.high_water).take()
            await store.commit(term, batch(term.position + 1, inserted(task_id)))
            await store.release_leadership(term)
            return term.epoch, term.position, task_id
        finally:
            await store.close()


def sqlite_kept(directory: Path) -> Kept:
    """A file; the back-up is taken as the operations guide says."""
    path, copy = directory / "queue.db", directory / "backup.db"
    settings = SqliteSettings(str(path))

    async def back_up() -> None:
        db = sqlite3.connect(path)
        db.execute("VACUUM INTO ?", (str(copy),))
        db.close()

    async def restore() -> None:
        for name in ("queue.db-wal", "queue.db-shm"):
            (directory / name).unlink(missing_ok=True)
        shutil.copy(copy, path)

    file = StoreSettings("sqlite", sqlite=settings)
    return Kept(file, lambda: SqliteStore(settings), back_up, restore)


def postgres_kept(place: PostgresPlace, cluster: Cluster) -> Kept:
    """A schema; the back-up is a dump in the database's own format."""
    dump = b""

    def program(name: str, *arguments: str, given: bytes = b"") -> bytes:
        command = [str(find_programs() / name), *arguments]
        return subprocess.run(command, input=given, capture_output=True, check=True).stdout

    async def back_up() -> None:
        nonlocal dump
        schema = quoted(place.settings.schema)
        dump = program("pg_dump", "--format=custom", f"--schema={schema}", cluster.url)

    async def restore() -> None:
        await place.drop()
        program("pg_restore", "--exit-on-error", f"--dbname={cluster.url}", given=dump)

    settings = StoreSettings("postgres", postgres=place.settings)
    return Kept(settings, place.open_with, back_up, restore)


@pytest.fixture(params=["sqlite", "postgres"])
async def kept(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Kept]:
    """A store of each kind that can be restored."""
    if request.param == "sqlite":
        yield sqlite_kept(tmp_path)
        return
    cluster: Cluster = request.getfixturevalue("cluster")
    place = PostgresPlace(cluster)
    yield postgres_kept(place, cluster)
    await place.close()
    await place.drop()


async def test_restored_store_gives_out_ids_again_unless_it_is_raised(kept: Kept) -> None:
    """The very id of the task that came after the back-up comes twice; raised, it never does."""
    await kept.lead_once()
    await kept.back_up()
    lost = await kept.lead_once()
    await kept.restore()
    assert await kept.lead_once() == lost

    await kept.restore()
    before, after = await raise_store(kept.settings)
    assert before.epoch == lost[0] - 1
    epoch, position, task_id = await kept.lead_once()
    assert epoch == after.epoch + 1 > lost[0] + 1
    assert position == after.position
    assert history_of(position) == history_of(lost[1]) + 1
    assert task_id > max(lost[2], after.high_water)


async def test_raised_store_keeps_its_tasks_and_goes_on(kept: Kept) -> None:
    """What was backed up is there, and the batches after it lie in a row as ever."""
    old = (await kept.lead_once())[2]
    await raise_store(kept.settings)
    new = [(await kept.lead_once())[2] for _ in range(2)]
    store = kept.open()
    try:
        chunk = await recovered(store, await lead(store))
    finally:
        await store.close()
    assert ids(chunk.live) == [old, *new]


async def test_nothing_is_raised_under_a_leader(kept: Kept) -> None:
    """Its commits would fail, and the ids it gave out be unknown; so it goes on undisturbed."""
    store = kept.open()
    try:
        term = await lead(store)
        with pytest.raises(Unavailable, match="a leader holds this store"):
            await raise_store(kept.settings)
        await store.commit(term, batch(term.position + 1, inserted(pack(None, term.epoch, 1))))
    finally:
        await store.close()


async def test_another_shards_store_is_not_raised(kept: Kept) -> None:
    """Its ids lie in another range."""
    await kept.lead_once()
    changes = {
        name: msgspec.structs.replace(one, shard=7)
        for name in ("sqlite", "postgres")
        if (one := getattr(kept.settings, name)) is not None
    }
    with pytest.raises(Unusable, match="belongs to shard none, not to 7"):
        await raise_store(msgspec.structs.replace(kept.settings, **changes))


async def test_a_store_that_is_not_there_is_not_made(kept: Kept) -> None:
    """A wrong address is an error, not an empty queue."""
    with pytest.raises(Unusable, match="no store of cronoq that was ever led"):
        await raise_store(kept.settings)


async def test_the_memory_store_cannot_be_raised() -> None:
    """There is nothing to restore it from."""
    with pytest.raises(Unusable, match="memory store keeps nothing"):
        await raise_store(StoreSettings())


async def test_a_holder_that_is_gone_is_no_leader(tmp_path: Path) -> None:
    """The row of a back-up names who led as it was taken; the lease has run out since."""
    kept = sqlite_kept(tmp_path)
    store = kept.open()
    term = await lead(store)
    await store.commit(term, batch(1, inserted(pack(None, term.epoch, 1))))
    await kept.back_up()
    await store.close()
    await kept.restore()
    db = sqlite3.connect(tmp_path / "queue.db", isolation_level=None)
    db.execute("UPDATE cronoq_leader SET expires_at = ?", (EPOCH_START,))
    db.close()
    _, after = await raise_store(kept.settings)
    assert (await kept.lead_once())[0] == after.epoch + 1


@pytest.mark.parametrize("shard", [None, 1, 255])
@pytest.mark.parametrize("epoch", [0, 3, EPOCH_MAX - 1, EPOCH_MAX, 10 * EPOCH_MAX])
def test_first_id_is_above_all_that_can_have_been_given_out(shard: int | None, epoch: int) -> None:
    """Those of later epochs as well, and those of a time when ids carry no epoch any more."""
    used = IdSource(shard, epoch, 0).take()
    latest = IdSource(shard, epoch + TERMS - 1, used).take() + IDS - 1
    after = raised(Marks(epoch, 5, used), shard)
    source = IdSource(shard, after.epoch + 1, after.high_water)
    assert source.take() > max(used, latest if epoch + TERMS <= EPOCH_MAX else used + IDS - 1)
    assert source.left() > 0


def test_an_epoch_that_was_seen_counts() -> None:
    """More terms than are expected may have begun since the back-up."""
    assert raised(Marks(3, 1, 1), None, above=70_000).epoch == 70_000 + TERMS


def test_raising_ends_with_the_range_of_ids() -> None:
    """A shard never gives out ids of its neighbour."""
    for shard, last in ((3, pack(4, 0, 0) - 1), (None, ID_MAX)):
        with pytest.raises(Unusable, match="no room is left"):
            raised(Marks(EPOCH_MAX, 1, last - IDS + 1), shard)
        assert raised(Marks(EPOCH_MAX, 1, last - IDS), shard).high_water == last


@pytest.mark.parametrize(("shard", "times"), [(None, 4000), (1, 30)])
def test_there_is_room_to_raise_many_times(shard: int | None, times: int) -> None:
    """As often as the guide says, with a task in between."""
    marks = Marks(1, 1, 0)
    for _ in range(times):
        marks = raised(marks, shard)
        used = IdSource(shard, marks.epoch + 1, marks.high_water).take()
        marks = Marks(marks.epoch + 1, marks.position + 1, used)
