"""The lock session and the others: what ends a term, what an outage is, and what goes on."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from cronoq_server.engine.model import SECOND
from cronoq_server.stores.base import (
    Fenced,
    Leadership,
    Store,
    TimeBase,
    Unavailable,
    Unusable,
)
from cronoq_server.stores.pg_session import PostgresSettings, connect, quoted, session_name
from cronoq_server.stores.postgres import PostgresStore
from cronoq_server.testing.builders import batch, changed, inserted, output
from cronoq_server.testing.store_suite import (
    acquire,
    finished,
    ids,
    lead,
    opened,
    recovered,
    written,
)
from tests.stores.pg import Cluster, running_cluster
from tests.stores.pg_place import PostgresPlace
from tests.stores.proxy import Proxy


@pytest.fixture
def place(postgres: PostgresPlace) -> PostgresPlace:
    """A fresh schema."""
    return postgres


# --- the lock session ----------------------------------------------------------------------------


async def lead_soon(store: Store) -> Leadership:
    """Leads as soon as the server has noticed that a session is gone."""
    leadership = None
    while leadership is None:
        leadership = await acquire(store)
    return leadership


@pytest.mark.regression("R1")
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


@pytest.mark.parametrize("by_commit", [False, True])
async def test_a_term_that_its_row_does_not_name_gives_its_lock_back(
    place: PostgresPlace, by_commit: bool
) -> None:
    """Somebody raised the epoch by hand: the next term begins above it."""
    store, leadership = await written(place, inserted(1))
    await place.execute("UPDATE cronoq_leader SET epoch = epoch + 5")
    last = store.commit(leadership, batch(2, inserted(2))) if by_commit else leadership.check()
    with pytest.raises(Fenced, match="epoch"):
        await last
    assert (await lead_soon(store)).epoch == leadership.epoch + 6


@pytest.mark.regression("R2")
async def test_the_lock_is_taken_once_however_often_it_is_checked(place: PostgresPlace) -> None:
    """A hundred checks of the session leave one lock, and a release none."""
    store = place.open_with(keepalive=0)
    leadership = await lead(store)
    for _ in range(100):
        await leadership.check()
    assert await place.advisory_locks() == 1
    await store.release_leadership(leadership)
    assert await place.advisory_locks() == 0


@pytest.mark.regression("R2")
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


@pytest.mark.regression("R2")
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


@pytest.mark.regression("R1")
async def test_all_who_ask_over_a_dead_lock_session_hear_that_the_term_is_over(
    place: PostgresPlace, cluster: Cluster
) -> None:
    """Several ask at once: whoever waited while another found the session dead is told the same."""
    async with Proxy(cluster.port) as proxy:
        url = cluster.tcp_url.replace(str(cluster.port), str(proxy.port))
        store = place.open_with(lock_url=url, keepalive=0, session_timeout=SECOND)
        leadership = await lead(store)
        proxy.hold_answers()
        asking = [leadership.check() for _ in range(5)]
        told = await asyncio.gather(*asking, return_exceptions=True)
        assert [type(each) for each in told] == [Fenced] * 5
        proxy.let_go()
        again = await lead_soon(store)
        assert again.epoch == leadership.epoch + 1
        await again.check()


def strange_pid(received: bytes) -> bytes:
    """What a pooler does: it names a session of its own in place of the server's."""
    at = received.find(b"K\x00\x00\x00\x0c")
    return received if at < 0 else received[: at + 5] + b"\x7f\x7f\x7f\x7f" + received[at + 9 :]


@pytest.mark.regression("R27")
@pytest.mark.parametrize("name", ["url", "lock_url"])
async def test_a_pooler_is_refused_with_the_setting_that_helps(
    place: PostgresPlace, cluster: Cluster, name: str
) -> None:
    """Its sessions are nobody's in particular: neither a lock nor settings would stay."""
    async with Proxy(cluster.port, strange_pid) as proxy:
        url = cluster.tcp_url.replace(str(cluster.port), str(proxy.port))
        with pytest.raises(Unusable, match=r"store\.lock_url"):
            await acquire(place.open_with(**{name: url}))


POOLER = """
[databases]
postgres = host=127.0.0.1 port={server} user=cronoq
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
{more}
"""


@asynccontextmanager
async def pgbouncer(directory: Path, server: int, more: str) -> AsyncIterator[int]:
    """The pooler that most people use; its port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    config = directory / "pgbouncer.ini"
    config.write_text(POOLER.format(server=server, port=port, more=more))
    config.chmod(0o644)
    user = ("-u", "nobody") if os.geteuid() == 0 else ()
    with (directory / "log").open("wb") as log:
        command = ("pgbouncer", *user, str(config))
        process = await asyncio.create_subprocess_exec(*command, stdout=log, stderr=log)
    try:
        while not await listens(port):
            assert process.returncode is None, (directory / "log").read_text()
        yield port
    finally:
        process.terminate()
        await process.wait()


async def listens(port: int) -> bool:
    """Whether somebody takes connections there."""
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    await writer.wait_closed()
    return True


@asynccontextmanager
async def stand_in(_directory: Path, server: int, _more: str) -> AsyncIterator[int]:
    """What the store can tell a pooler by, without one."""
    async with Proxy(server, strange_pid) as proxy:
        yield proxy.port


TOLERANT = (
    "ignore_startup_parameters = statement_timeout,idle_in_transaction_session_timeout,"
    "synchronous_commit,search_path,tcp_keepalives_idle,tcp_keepalives_interval,"
    "tcp_keepalives_count,tcp_user_timeout,jit"
)
POOLERS = [pytest.param(stand_in, "", id="stand-in")]
if shutil.which("pgbouncer"):
    POOLERS += [
        pytest.param(pgbouncer, "", id="pgbouncer"),
        pytest.param(pgbouncer, TOLERANT, id="pgbouncer that swallows settings"),
    ]


@pytest.mark.regression("R27")
@pytest.mark.parametrize(("pooler", "more"), POOLERS)
async def test_a_direct_route_for_the_lock_is_used_for_commits_as_well(
    place: PostgresPlace,
    cluster: Cluster,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    pooler: Callable[[Path, int, str], AbstractAsyncContextManager[int]],
    more: str,
) -> None:
    """When the usual one leads through a pooler: sessions keep their names and settings."""
    async with pooler(tmp_path, cluster.port, more) as port:
        pooled = cluster.tcp_url.replace(str(cluster.port), str(port))
        with pytest.raises(Unusable, match=r"store\.lock_url"):
            await acquire(place.open_with(url=pooled))
        store = place.open_with(url=pooled, lock_url=place.settings.url)
        leadership = await lead(store)
        await store.commit(leadership, batch(1, inserted(1)))
        assert ids(await store.load_tasks([1])) == [1]
        assert "store.lock_url is used for everything" in caplog.text
        await place.lapse(store, leadership)
        with pytest.raises(Fenced):
            await store.commit(leadership, batch(2, inserted(2)))


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


@pytest.mark.regression("R3")
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


@pytest.mark.regression("R3")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGQUIT], ids=["stopped", "crashed"])
async def test_a_server_that_comes_back_has_everything_and_wants_a_new_term(
    number: signal.Signals,
) -> None:
    """While it is down the store is unavailable; its lock did not outlive it."""
    with running_cluster(fsync=True) as own:
        place = PostgresPlace(own)
        store, leadership = await written(place, *finished(1), output(1), inserted(2))
        own.stop(number)
        for _ in range(2):
            with pytest.raises((Unavailable, Fenced)):
                await store.commit(leadership, batch(2, inserted(3)))
        with pytest.raises(Unavailable):
            await lead_soon(store)
        own.start()
        with pytest.raises(Fenced):
            await store.commit(leadership, batch(2, inserted(3)))
        again = await lead(store)
        assert (again.epoch, again.position) == (leadership.epoch + 1, 1)
        found = await recovered(store, again)
        assert (ids(found.live), ids(found.finished)) == ([2], [1])
        await place.close()


async def test_a_server_that_is_gone_is_unavailable(place: PostgresPlace) -> None:
    """Nobody listens there."""
    with pytest.raises(Unavailable):
        await acquire(place.open_with(url="postgresql://nobody@127.0.0.1:1/none"))


async def test_a_database_that_does_not_exist_is_no_outage(
    place: PostgresPlace, cluster: Cluster
) -> None:
    """Nobody should wait for it."""
    with pytest.raises(Unusable, match="does not exist"):
        await acquire(place.open_with(url=cluster.tcp_url.replace("/postgres", "/nowhere")))


async def test_rights_that_are_missing_are_told_before_leading_and_waited_for_afterwards(
    place: PostgresPlace, cluster: Cluster
) -> None:
    """A leader whose rights were taken away gets them back, as a rule."""
    await place.execute("CREATE ROLE guest LOGIN")
    try:
        url = cluster.url.replace("cronoq@", "guest@")
        with pytest.raises(Unusable, match="permission denied"):
            await acquire(place.open_with(url=url))
        schema = quoted(place.settings.schema)
        await place.execute(f"CREATE SCHEMA {schema} AUTHORIZATION guest")
        store = place.open_with(url=url)
        leadership = await lead(store)
        await place.execute(f"REVOKE ALL ON SCHEMA {schema} FROM guest")
        with pytest.raises(Unavailable):
            await store.commit(leadership, batch(1, inserted(1)))
        await place.execute(f"GRANT ALL ON SCHEMA {schema} TO guest")
        await store.commit(leadership, batch(1, inserted(1)))
    finally:
        await place.close()
        await place.execute("DROP OWNED BY guest")
        await place.execute("DROP ROLE guest")


async def test_a_url_that_is_none_is_told_so() -> None:
    """A slip of the pen is no outage."""
    store = PostgresStore(PostgresSettings("mysql://x"))
    with pytest.raises(Unusable, match=r"store\.url"):
        await acquire(store)
    await store.close()


@pytest.mark.parametrize("most", [3, 4])
async def test_look_ups_share_a_bounded_number_of_connections(
    place: PostgresPlace, most: int
) -> None:
    """However many are asked for at once; one connection is for the lock and one for commits."""
    store = place.open_with(connections_max=most)
    leadership = await lead(store)
    await store.commit(leadership, batch(1, *finished(1), output(1)))
    await asyncio.gather(*(store.load_tasks([1]) for _ in range(20)))
    rows = await place.execute(
        "SELECT application_name FROM pg_stat_activity WHERE starts_with(application_name, $1)",
        session_name(place.settings.schema, None),
    )
    assert len(rows) == most
