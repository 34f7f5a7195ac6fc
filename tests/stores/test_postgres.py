"""The PostgreSQL store keeps the contract of the stores, on a real server."""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections.abc import AsyncIterator, Iterator
from typing import Any

import asyncpg
import msgspec
import pytest

from cronoq_server.engine.model import SECOND, Status
from cronoq_server.engine.mutations import TasksPruned
from cronoq_server.stores.base import (
    Fenced,
    Leadership,
    Store,
    TimeBase,
    Unavailable,
    Unusable,
)
from cronoq_server.stores.migrations import steps
from cronoq_server.stores.pg_session import (
    PostgresSettings,
    connect,
    lock_key,
    quoted,
    session_name,
)
from cronoq_server.stores.postgres import PostgresStore
from cronoq_server.testing.builders import EPOCH_START, batch, changed, inserted
from cronoq_server.testing.store_suite import *  # noqa: F403 (a store's tests are the suite)
from cronoq_server.testing.store_suite import (
    acquire,
    finished,
    ids,
    lead,
    opened,
    recovered,
    written,
)
from tests.stores.durable_suite import *  # noqa: F403
from tests.stores.durable_suite import GARBAGE
from tests.stores.pg import Cluster, running_cluster
from tests.stores.proxy import Proxy

_schemas = itertools.count(1)


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """One server for all tests; each has a schema of its own."""
    with running_cluster() as made:
        yield made


class PostgresPlace:
    """A schema with a name that wants quoting."""

    def __init__(self, cluster: Cluster) -> None:
        # Segments of a few tasks, so that short tests cross their borders.
        name = f'Clu"ster {next(_schemas)}'
        self.settings = PostgresSettings(cluster.url, schema=name, segment_rows=20)
        self._stores: list[Store] = []

    async def open(self) -> Store:
        """See `Place.open`."""
        return self.open_with()

    async def lapse(self, _store: Store, _leadership: Leadership, /) -> None:
        """See `Place.lapse`: the session that holds the lock is ended by the server."""
        await self.end_sessions(session_name(self.settings.schema, None))

    async def end_sessions(self, name: str) -> None:
        """The server ends all sessions of this name."""
        await self.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
            "WHERE application_name = $1",
            name,
        )

    async def open_as(self, shard: int) -> Store:
        """See `SqlPlace.open_as`."""
        return self.open_with(shard=shard)

    def open_with(self, **changes: Any) -> PostgresStore:
        """One more handle, with other settings."""
        store = PostgresStore(msgspec.structs.replace(self.settings, **changes))
        self._stores.append(store)
        return store

    async def spoil(self, table: str, column: str, key: str, value: object) -> None:
        """See `SqlPlace.spoil`."""
        await self.execute(f"UPDATE {table} SET {column} = $1 WHERE {key} = $2", GARBAGE, value)

    async def remove(self, table: str, key: str, value: object) -> None:
        """See `SqlPlace.remove`."""
        await self.execute(f"DELETE FROM {table} WHERE {key} = $1", value)

    async def execute(self, statement: str, *values: object) -> list[Any]:
        """What somebody does by hand; returns the rows."""
        options = {
            "search_path": quoted(self.settings.schema),
            "default_transaction_read_only": "off",
        }
        db = await asyncpg.connect(self.settings.url, server_settings=options)
        try:
            rows: list[Any] = await db.fetch(statement, *values)
            return rows
        finally:
            await db.close()

    async def restart(self) -> None:
        """See `Place.restart`."""
        await self.close()

    async def close(self) -> None:
        """Closes all handles."""
        for store in self._stores:
            await store.close()
        self._stores.clear()

    async def drop(self) -> None:
        """Removes the schema."""
        await self.execute(f"DROP SCHEMA IF EXISTS {quoted(self.settings.schema)} CASCADE")


@pytest.fixture
async def place(cluster: Cluster) -> AsyncIterator[PostgresPlace]:
    """A fresh schema for each test."""
    made = PostgresPlace(cluster)
    yield made
    await made.close()
    await made.drop()


# --- the lock session ----------------------------------------------------------------------------


async def advisory_locks(place: PostgresPlace) -> int:
    """How many leader's locks of this place are held."""
    key = lock_key(place.settings.schema, "leader") & (1 << 64) - 1
    rows = await place.execute(
        "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted "
        "AND classid::bigint = $1 AND objid::bigint = $2",
        key >> 32,
        key & 0xFFFFFFFF,
    )
    return int(rows[0][0])


async def lead_soon(store: Store) -> Leadership:
    """Leads as soon as the server has noticed that a session is gone."""
    leadership = None
    while leadership is None:
        leadership = await acquire(store)
    return leadership


async def test_a_leader_without_its_lock_session_stops(place: PostgresPlace) -> None:
    """Though the row still names it and nobody else leads: another one could at any moment."""
    store, leadership = await written(place, inserted(1))
    await place.lapse(store, leadership)
    with pytest.raises(Fenced, match="lock"):
        await leadership.check()
    with pytest.raises(Fenced, match="lock"):
        await store.commit(leadership, batch(2, inserted(2)))
    again = await lead(store)
    assert (again.epoch, again.position) == (leadership.epoch + 1, 1)


async def test_the_lock_is_taken_once_however_often_it_is_checked(place: PostgresPlace) -> None:
    """A hundred checks of the session leave one lock, and a release none."""
    store = place.open_with(keepalive=0)
    leadership = await lead(store)
    for _ in range(100):
        await leadership.check()
    assert await advisory_locks(place) == 1
    await store.release_leadership(leadership)
    assert await advisory_locks(place) == 0


async def test_a_lock_whose_answer_is_lost_is_not_kept(
    place: PostgresPlace, cluster: Cluster
) -> None:
    """The connection over which it may have been taken is closed, and another replica leads."""
    await (await place.open()).acquire_leadership("warm up", 0, TimeBase())
    await place.close()
    async with Proxy(cluster.port) as proxy:
        url = cluster.tcp_url.replace(str(cluster.port), str(proxy.port))
        store = place.open_with(lock_url=url, session_timeout=SECOND // 5)
        other = await place.open()
        term = await lead(other)
        assert await acquire(store) is None  # the session is there, and has not got the lock
        await other.release_leadership(term)
        proxy.hold_answers()
        with pytest.raises(Unavailable):
            await acquire(store)
        await lead_soon(other)


async def test_a_silent_lock_session_ends_the_term(place: PostgresPlace, cluster: Cluster) -> None:
    """A leader that can no longer ask whether it leads does not."""
    async with Proxy(cluster.port) as proxy:
        url = cluster.tcp_url.replace(str(cluster.port), str(proxy.port))
        store = place.open_with(lock_url=url, keepalive=0, session_timeout=SECOND)
        leadership = await lead(store)
        await leadership.check()
        proxy.hold_answers()
        with pytest.raises(Fenced):
            await leadership.check()


def strange_pid(received: bytes) -> bytes:
    """What a pooler does: it names a session of its own in place of the server's."""
    at = received.find(b"K\x00\x00\x00\x0c")
    return received if at < 0 else received[: at + 5] + b"\x7f\x7f\x7f\x7f" + received[at + 9 :]


@pytest.mark.parametrize("name", ["url", "lock_url"])
async def test_a_pooler_is_refused_with_the_setting_that_helps(
    place: PostgresPlace, cluster: Cluster, name: str
) -> None:
    """Its sessions are nobody's in particular: neither a lock nor settings would stay."""
    async with Proxy(cluster.port, strange_pid) as proxy:
        url = cluster.tcp_url.replace(str(cluster.port), str(proxy.port))
        with pytest.raises(Unusable, match=r"store\.lock_url"):
            await acquire(place.open_with(**{name: url}))


async def test_a_new_leader_ends_sessions_of_older_epochs_only(place: PostgresPlace) -> None:
    """A commit in flight of a leader that does not know yet ends with its session."""
    old, first = await written(place, inserted(1))
    await place.lapse(old, first)
    past = session_name(place.settings.schema, first.epoch)
    active = "SELECT count(*) FROM pg_stat_activity WHERE application_name = $1"
    assert (await place.execute(active, past))[0][0] > 0
    new, second = await opened(place)
    assert (await place.execute(active, past))[0][0] == 0
    present = session_name(place.settings.schema, second.epoch)
    assert (await place.execute(active, present))[0][0] > 0
    await new.commit(second, batch(2, inserted(2)))


# --- connections and what befalls them -----------------------------------------------------------


async def test_sessions_are_set_up_for_what_can_go_wrong(place: PostgresPlace) -> None:
    """Time limits, keepalives, and commits that wait for the disk."""
    connection = await connect(place.settings, place.settings.url, "test")
    expected = {
        "statement_timeout": "30s",
        "idle_in_transaction_session_timeout": "30s",
        "synchronous_commit": "on",
        "application_name": "test",
        "search_path": quoted(place.settings.schema),
    }
    found = {name: await connection.fetchval(f"SHOW {name}") for name in expected}
    connection.terminate()
    assert found == expected


async def test_keepalives_are_set_on_both_ends(place: PostgresPlace, cluster: Cluster) -> None:
    """A peer that vanished is noticed within the session timeout."""
    connection = await connect(place.settings, cluster.tcp_url, "test")
    try:
        assert await connection.fetchval("SHOW tcp_keepalives_idle") == "10"
        assert await connection.fetchval("SHOW tcp_user_timeout") == "10000"
        wire = connection._transport.get_extra_info("socket")
        assert wire.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert wire.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 10_000
    finally:
        connection.terminate()


async def test_a_commit_outlives_its_connection(place: PostgresPlace) -> None:
    """The server ended it: the store connects again, and nobody notices."""
    store, leadership = await written(place, inserted(1))
    await place.end_sessions(session_name(place.settings.schema, leadership.epoch))
    await store.commit(leadership, batch(2, inserted(2)))
    assert ids(await store.load_tasks([1, 2])) == [1, 2]


async def test_a_lost_answer_to_a_commit_is_found_out(
    place: PostgresPlace, cluster: Cluster
) -> None:
    """The batch is there once, and the log goes on with the next."""
    async with Proxy(cluster.port) as proxy:
        url = cluster.tcp_url.replace(str(cluster.port), str(proxy.port))
        store = place.open_with(url=url, lock_url=place.settings.url)
        leadership = await lead(store)
        await store.commit(leadership, batch(1, inserted(1)))
        proxy.hold_answers()
        commit = asyncio.ensure_future(store.commit(leadership, batch(2, inserted(2), changed(1))))
        await asyncio.sleep(0)
        commit.cancel()
        await asyncio.gather(commit, return_exceptions=True)
        proxy.let_go()
        await store.commit(leadership, batch(2, inserted(2), changed(1)))
        await store.commit(leadership, batch(3, changed(2)))
        found = await recovered(store, leadership)
        assert (found.live, ids(found.finished)) == ((), [2, 1])


async def test_a_cancelled_commit_leaves_no_doubt(place: PostgresPlace) -> None:
    """Whatever became of it, the same batch can be committed again and is there once."""
    store, leadership = await opened(place)
    for position in range(1, 16):
        rows = [inserted(position * 100 + n) for n in range(10)]
        commit = asyncio.ensure_future(store.commit(leadership, batch(position, *rows)))
        for _ in range(2 * position):
            await asyncio.sleep(0)
        commit.cancel()
        await asyncio.gather(commit, return_exceptions=True)
        await store.commit(leadership, batch(position, *rows))
    assert len((await recovered(store, leadership)).live) == 150


async def test_a_server_that_turned_read_only_is_unavailable(
    place: PostgresPlace,
) -> None:
    """Every attempt uses a new connection, so it works again as soon as the server does."""
    store, leadership = await written(place, inserted(1))
    writes = "ALTER DATABASE postgres SET default_transaction_read_only = {}"
    present = session_name(place.settings.schema, leadership.epoch)
    await place.execute(writes.format("on"))
    try:
        await place.end_sessions(present)
        for _ in range(3):
            with pytest.raises(Unavailable, match="read-only"):
                await store.commit(leadership, batch(2, inserted(2)))
    finally:
        await place.execute(writes.format("off"))
    await store.commit(leadership, batch(2, inserted(2)))


async def test_a_server_that_is_gone_is_unavailable(place: PostgresPlace) -> None:
    """Nobody listens there."""
    with pytest.raises(Unavailable):
        await acquire(place.open_with(url="postgresql://nobody@127.0.0.1:1/none"))


async def test_a_url_that_is_none_is_told_so() -> None:
    """A slip of the pen is no outage."""
    store = PostgresStore(PostgresSettings("mysql://x"))
    with pytest.raises(Unusable, match=r"store\.url"):
        await acquire(store)
    await store.close()


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
    assert await advisory_locks(place) == 0


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
