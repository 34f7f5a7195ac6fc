"""What was acknowledged is on the disk: the system calls of server and database say so.

A killed process loses nothing that the operating system has, synced or not. So strace looks on:
between a submit and its acknowledgement the journal must have been synced.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

import cronoq
from tests.e2e.place import PostgresPlace, Waits
from tests.e2e.replicas import ReplicaProcess
from tests.stores.pg import running_cluster

STRACE = ("strace", "-f", "-qq", "-y", "-e", "trace=fsync,fdatasync")
SUBMITS = 5


@pytest.fixture(autouse=True)
def _strace() -> None:
    assert shutil.which("strace"), "strace is missing: install it, as with `apt-get install strace`"


class Trace:
    """What strace has written so far; it writes a call before the process goes on."""

    def __init__(self, directory: Path, journal: str) -> None:
        self.path = directory / "calls"
        self.path.touch()
        self._journal = journal

    def syncs(self) -> int:
        """How often the journal has been synced."""
        lines = self.path.read_text(errors="replace").splitlines()
        return sum(self._journal in line for line in lines)


@contextlib.asynccontextmanager
async def serving(directory: Path, store: str, *wrapper: str) -> AsyncIterator[cronoq.Client]:
    """A client of a server over a store."""
    server = ReplicaProcess(directory, "server", store)
    server.wrapper = wrapper
    try:
        await server.start()
        async with cronoq.Client(f"127.0.0.1:{server.port}") as client:
            await client.submit("warm-up")
            yield client
    finally:
        server.end_group()
        await server.wait()


async def synced_submits(client: cronoq.Client, trace: Trace) -> int:
    """How many of some submits, one after the other, saw a sync before they were acknowledged."""
    synced = 0
    for _ in range(SUBMITS):
        before = trace.syncs()
        await client.submit("work")
        synced += trace.syncs() > before
    return synced


@pytest.mark.parametrize("full_sync", [True, False])
async def test_sqlite_syncs_before_it_acknowledges(tmp_path: Path, full_sync: bool) -> None:
    """Each of them with `full_sync`; without it none: then the looker-on would see that."""
    trace = Trace(tmp_path, "q.db-wal>")
    store = (
        f'kind = "sqlite"\npath = "{tmp_path / "q.db"}"\nlease_ttl_s = 600\nlease_renew_s = 300\n'
        f"full_sync = {'true' if full_sync else 'false'}\n"
    )
    async with serving(tmp_path, store, *STRACE, "-o", str(trace.path)) as client:
        assert await synced_submits(client, trace) == (SUBMITS if full_sync else 0)


@pytest.mark.parametrize("fsync", [True, False])
async def test_postgresql_syncs_before_it_acknowledges(tmp_path: Path, fsync: bool) -> None:
    """Each of them, unless the database itself was told not to."""
    trace = Trace(tmp_path, "/pg_wal/")
    with running_cluster(fsync=fsync) as cluster:
        place = PostgresPlace(cluster, "public", Waits(), None, None)
        with looking_on(place.processes(), trace):
            async with serving(tmp_path, place.store) as client:
                assert await synced_submits(client, trace) == (SUBMITS if fsync else 0)


@contextlib.contextmanager
def looking_on(pids: list[int], trace: Trace) -> Iterator[None]:
    """Traces processes that run already, and all that they start."""
    targets = [argument for pid in pids for argument in ("-p", str(pid))]
    command = (*STRACE[:2], *STRACE[3:], "-o", str(trace.path), *targets)
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as strace:
        assert strace.stderr is not None
        for _ in pids:
            said = strace.stderr.readline()
            assert "attached" in said, said
        try:
            yield
        finally:
            strace.terminate()
