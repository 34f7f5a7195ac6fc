"""The SQLite file itself: who may read it, where it may lie, and who leads when a holder dies."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import sqlite3
import stat
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from cronoq_server.engine.model import MILLISECOND, SECOND
from cronoq_server.engine.mutations import TasksPruned
from cronoq_server.stores import sqlite_file
from cronoq_server.stores.base import Fenced, Unavailable, Unusable
from cronoq_server.stores.sqlite import SqliteStore
from cronoq_server.stores.sqlite_file import SqliteSettings, connect, file_system_of
from cronoq_server.stores.sqlite_lane import Lane, transaction
from cronoq_server.stores.sqlite_reads import LIVE
from cronoq_server.testing.builders import EPOCH_START, batch, changed, inserted, output
from cronoq_server.testing.store_suite import acquire, finished, ids, lead, recovered


class HandClock:
    """Clocks moved by hand."""

    def __init__(self) -> None:
        self.now = 1_700_000_000 * SECOND

    def wall(self) -> int:
        """See `LeaseClock.wall`."""
        return self.now

    def mono(self) -> int:
        """See `LeaseClock.mono`."""
        return self.now


@asynccontextmanager
async def store_at(path: Path, clock: HandClock | None = None) -> AsyncIterator[SqliteStore]:
    """A store on this file, closed afterwards."""
    settings = SqliteSettings(str(path), busy_timeout=100 * MILLISECOND)
    store = SqliteStore(settings, clock=clock)
    try:
        yield store
    finally:
        await store.close()


def by_hand(path: Path, statement: str) -> list[tuple[object, ...]]:
    """What another process sees or does."""
    db = sqlite3.connect(path, isolation_level=None)
    try:
        return db.execute(statement).fetchall()
    finally:
        db.close()


def modes(directory: Path) -> dict[str, int]:
    """Who may do what with the files of a directory."""
    return {file.name: stat.S_IMODE(file.stat().st_mode) for file in directory.iterdir()}


async def test_files_are_their_owners_alone(tmp_path: Path) -> None:
    """The journal's files as well, whatever the process's mask is."""
    path = tmp_path / "cronoq.db"
    mask = os.umask(0)
    try:
        async with store_at(path) as store:
            leadership = await lead(store)
            await store.commit(leadership, batch(1, inserted(1)))
            found = modes(tmp_path)
    finally:
        os.umask(mask)
    names = ("cronoq.db", "cronoq.db-wal", "cronoq.db-shm")
    assert found == dict.fromkeys(names, 0o600)


@pytest.mark.parametrize(("full_sync", "expected"), [(True, 2), (False, 1)])
def test_commits_wait_for_the_disk_unless_told_not_to(
    tmp_path: Path, full_sync: bool, expected: int
) -> None:
    """The connection that writes is set so."""
    db = connect(SqliteSettings(str(tmp_path / "cronoq.db"), full_sync=full_sync))
    assert db.execute("PRAGMA synchronous").fetchone() == (expected,)
    assert db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    db.close()


async def test_a_directory_that_is_not_there_is_named(tmp_path: Path) -> None:
    """A slip of the pen in the path is no outage."""
    (tmp_path / "file").touch()
    for place in ("nowhere", "file"):
        async with store_at(tmp_path / place / "cronoq.db") as store:
            with pytest.raises(Unusable, match=place):
                await acquire(store)


@pytest.mark.parametrize(("fault", "kind"), [(errno.EMFILE, Unavailable), (errno.EACCES, Unusable)])
async def test_what_the_system_refuses_is_a_word_of_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: int, kind: type[Exception]
) -> None:
    """Whoever asks for leadership understands nothing else, and would end the process."""

    def refuse(*_: object) -> int:
        raise OSError(fault, os.strerror(fault))

    async with store_at(tmp_path / "cronoq.db") as store:
        with monkeypatch.context() as patch:
            patch.setattr(os, "open", refuse)
            with pytest.raises(kind, match=os.strerror(fault)):
                await acquire(store)


async def test_a_file_that_is_no_database_is_unavailable(tmp_path: Path) -> None:
    """It is left as it is."""
    path = tmp_path / "notes.txt"
    path.write_text("no database, " * 100)
    async with store_at(path) as store:
        with pytest.raises(Unavailable, match="not a database"):
            await acquire(store)
    assert path.read_text() == "no database, " * 100


MOUNTS = """\
22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
40 22 0:35 / /mnt/share rw - nfs4 server:/export rw
41 40 0:36 / /mnt/share/local rw shared:3 - ext4 /dev/vdb rw
42 22 0:37 / /mnt/with\\040space rw - cifs //server/x rw
"""


@pytest.mark.parametrize(
    ("directory", "expected"),
    [
        ("/var/lib", "ext4"),
        ("/mnt/share/deep/er", "nfs4"),
        ("/mnt/share/local/db", "ext4"),
        ("/mnt/with space", "cifs"),
        ("/mnt/sharedX", "ext4"),
    ],
)
def test_the_innermost_mount_tells_the_file_system(
    tmp_path: Path, directory: str, expected: str
) -> None:
    """As the kernel lists them."""
    mounts = tmp_path / "mountinfo"
    mounts.write_text(MOUNTS)
    assert file_system_of(Path(directory), mounts) == expected


def test_a_system_that_does_not_list_mounts_is_believed(tmp_path: Path) -> None:
    """What cannot be detected is not refused."""
    assert file_system_of(tmp_path, tmp_path / "none") == ""


async def test_a_network_file_system_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything is made there."""
    kind = file_system_of(tmp_path)
    monkeypatch.setattr(sqlite_file, "NETWORK_FILE_SYSTEMS", frozenset({kind}))
    async with store_at(tmp_path / "cronoq.db") as store:
        with pytest.raises(Unusable, match="network file system"):
            await acquire(store)
    assert modes(tmp_path) == {}


async def test_a_link_to_a_file_on_a_network_file_system_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The journal lies beside the file, not beside the link."""
    there = tmp_path / "there"
    there.mkdir()
    (tmp_path / "cronoq.db").symlink_to(there / "real.db")
    (there / "real.db").touch()
    monkeypatch.setattr(
        sqlite_file, "file_system_of", {there: "nfs4", tmp_path: "ext4"}.__getitem__
    )
    async with store_at(tmp_path / "cronoq.db") as store:
        with pytest.raises(Unusable, match="network file system"):
            await acquire(store)


HOLDER = """
import asyncio, sys
from cronoq_server.stores.sqlite import SqliteStore
from cronoq_server.stores.sqlite_file import SqliteSettings
from cronoq_server.testing.builders import batch, inserted
from cronoq_server.testing.store_suite import lead

async def main():
    store = SqliteStore(SqliteSettings(sys.argv[1]))
    await store.commit(await lead(store), batch(1, inserted(1)))
    print("leads", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Another process that leads and has committed a task."""
    command = [sys.executable, "-c", HOLDER, str(tmp_path / "cronoq.db")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"leads\n"
        yield process
        process.kill()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs Linux's process facts")
async def test_a_killed_holder_is_succeeded_at_once(
    tmp_path: Path, holder: subprocess.Popen[bytes]
) -> None:
    """Not while it lives; and what it committed is there."""
    async with store_at(tmp_path / "cronoq.db") as store:
        assert await acquire(store) is None
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        leadership = await lead(store)
        assert leadership.position == 1
        assert ids((await recovered(store, leadership)).live) == [1]


async def test_a_lease_that_ran_out_unseen_goes_on_under_the_same_epoch(tmp_path: Path) -> None:
    """Nobody took it: the holder was only slow."""
    clock = HandClock()
    async with store_at(tmp_path / "cronoq.db", clock) as store:
        leadership = await lead(store)
        clock.now += 3600 * SECOND
        await leadership.check()
        await store.commit(leadership, batch(1, inserted(1)))


async def test_a_lease_that_ran_out_and_was_taken_is_over(tmp_path: Path) -> None:
    """A check finds out, and a commit as well."""
    path, clock = tmp_path / "cronoq.db", HandClock()
    async with store_at(path, clock) as store, store_at(path, clock) as other:
        leadership = await lead(store)
        clock.now += 3600 * SECOND
        await lead(other)
        with pytest.raises(Fenced):
            await leadership.check()
        with pytest.raises(Fenced):
            await store.commit(leadership, batch(1, inserted(1)))


@pytest.mark.parametrize("by_commit", [False, True])
async def test_checks_and_commits_renew_the_lease(tmp_path: Path, by_commit: bool) -> None:
    """A standby that looks sees it live on."""
    path, clock = tmp_path / "cronoq.db", HandClock()
    async with store_at(path, clock) as store:
        leadership = await lead(store)
        clock.now += 3 * SECOND
        if by_commit:
            await store.commit(leadership, batch(1, inserted(1)))
        else:
            await leadership.check()
        expected = [(clock.now + 10 * SECOND,)]
        assert by_hand(path, "SELECT expires_at FROM cronoq_leader") == expected


async def test_a_file_locked_for_too_long_is_unavailable_and_the_loop_goes_on(
    tmp_path: Path,
) -> None:
    """The same batch is taken once the lock is gone."""
    path = tmp_path / "cronoq.db"
    async with store_at(path) as store:
        leadership = await lead(store)
        blocker = sqlite3.connect(path, isolation_level=None)
        blocker.execute("BEGIN IMMEDIATE")
        commit = asyncio.ensure_future(store.commit(leadership, batch(1, inserted(1))))
        turns = 0
        while not commit.done():
            await asyncio.sleep(0)
            turns += 1
        assert turns > 1
        with pytest.raises(Unavailable, match="locked"):
            await commit
        blocker.close()
        await store.commit(leadership, batch(1, inserted(1)))
        assert ids((await recovered(store, leadership)).live) == [1]


async def test_a_cancelled_commit_has_ended_when_it_returns(tmp_path: Path) -> None:
    """Whatever became of it, the same batch can be committed again and is there once."""
    path = tmp_path / "cronoq.db"
    async with store_at(path) as store:
        leadership = await lead(store)
        for position in range(1, 21):
            rows = [inserted(position * 100 + n) for n in range(50)]
            commit = asyncio.ensure_future(store.commit(leadership, batch(position, *rows)))
            for _ in range(position % 5):
                await asyncio.sleep(0)
            commit.cancel()
            await asyncio.gather(commit, return_exceptions=True)
            await store.commit(leadership, batch(position, *rows))
        assert len((await recovered(store, leadership)).live) == 1000


async def test_work_cancelled_while_it_waits_its_turn_is_not_begun(tmp_path: Path) -> None:
    """A lane forgets what nobody wants any more."""
    lane = Lane("test", lambda: sqlite3.connect(tmp_path / "x.db", isolation_level=None))
    gate = asyncio.Event()
    loop = asyncio.get_running_loop()
    done: list[str] = []

    def first(_: sqlite3.Connection) -> None:
        asyncio.run_coroutine_threadsafe(gate.wait(), loop).result()
        done.append("first")

    running = asyncio.ensure_future(lane.run(first))
    waiting = asyncio.ensure_future(lane.run(lambda _: done.append("second")))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    gate.set()
    await running
    await lane.close()
    assert done == ["first"]
    with pytest.raises(Unavailable, match="closed"):
        await lane.run(lambda _: None)


def test_an_error_inside_a_transaction_takes_everything_back() -> None:
    """Also one that is not the database's."""
    db = sqlite3.connect(":memory:", isolation_level=None)
    db.execute("CREATE TABLE t (x)")

    def work() -> None:
        with transaction(db):
            db.execute("INSERT INTO t VALUES (1)")
            raise KeyError

    with pytest.raises(KeyError):
        work()
    assert db.execute("SELECT count(*) FROM t").fetchone() == (0,)
    db.close()


async def test_fresh_outputs_cost_no_look_up_and_are_forgotten_with_their_tasks(
    tmp_path: Path,
) -> None:
    """What was pruned or deleted is not answered from memory."""
    path = tmp_path / "cronoq.db"
    async with store_at(path) as store:
        leadership = await lead(store)
        await store.commit(leadership, batch(1, *finished(1), output(1), *finished(2), output(2)))
        by_hand(path, "UPDATE cronoq_ends SET output = NULL")
        assert sorted(await store.load_outputs([1, 2])) == [1, 2]
        await store.commit(leadership, batch(2, TasksPruned(EPOCH_START + 1, 1)))
        assert sorted(await store.load_outputs([1, 2])) == [2]


async def test_recovery_reads_what_lives_and_not_what_ended(tmp_path: Path) -> None:
    """The plan of the statement begins with the narrow table of the living."""
    path = tmp_path / "cronoq.db"
    async with store_at(path) as store:
        leadership = await lead(store)
        await store.commit(leadership, batch(1, inserted(1), inserted(2), changed(2)))
    assert by_hand(path, "SELECT id FROM cronoq_live") == [(1,)]
    plan = by_hand(path, f"EXPLAIN QUERY PLAN {LIVE} WHERE l.id BETWEEN 1 AND 9 ORDER BY l.id")
    steps = [str(row[3]) for row in plan]
    assert steps == [
        "SEARCH l USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)",
        "SEARCH t USING INTEGER PRIMARY KEY (rowid=?)",
    ]
