"""Decides how one set of hosts is laid, loaded and struck, and when a fault counts as over.

What is seen of it is written down by the processes under load; `hosts` has it judged.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
import tempfile
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path

import msgspec

from tests.campaigns._hosts_caller import POOL
from tests.campaigns._hosts_faults import CLIENTS, DATABASE, FAULTS, READERS, WORKERS, Fault, Scene
from tests.campaigns._hosts_network import Network, NotPermitted
from tests.campaigns._hosts_relays import Relays
from tests.e2e.audit import Audit, PostgresAudit, SqliteAudit, judge
from tests.e2e.replicas import ROOT, Group, ReplicaProcess
from tests.stores.pg import Cluster

STORES = ("postgres", "sqlite")
SCHEMA = "hosts"
SERVERS = {"postgres": 3, "sqlite": 2}
WORKER_COUNT = 2
SLOTS = 16
CALLERS = 8
READER_COUNT = 4
PAUSE_S = 0.03
LEASE_TTL_S = 2
LASTS_S = (1.5, 4.5)
BETWEEN_S = (0.3, 1.2)
GOES_ON = 10
"""Submits that have to be acknowledged after a fault before it counts as over."""
PATIENCE_S = 90.0
CLOCKS = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1")
HAS_CLOCKS = CLOCKS.exists()

STORE = {
    "postgres": (
        'kind = "postgres"\nurl = "postgresql://cronoq@{place}/postgres"\nschema = "hosts"\n'
        "lock_poll_s = 0.1\nkeepalive_s = 0.3\nsession_timeout_s = 2\ncommit_timeout_s = 3\n"
    ),
    "sqlite": (
        'kind = "sqlite"\npath = "{place}"\nlock_poll_s = 0.1\nlease_ttl_s = 2\n'
        "lease_renew_s = 0.4\ncommit_timeout_s = 3\n"
    ),
}

POOLS = f"""
[[pools]]
name = "{POOL}"
lease_ttl_s = {LEASE_TTL_S}
retry = {{ max_attempts = 60, initial_backoff_s = 0.02, max_backoff_s = 0.2 }}
"""


class HostCluster(Cluster):
    """A database server on a host of its own; whoever plays reaches it over its socket."""

    def __init__(self, directory: Path, wrapper: tuple[str, ...]) -> None:
        super().__init__(directory, fsync=True)
        self._wrapper = wrapper

    def _as_user(self) -> tuple[str, ...]:
        return (*self._wrapper, *super()._as_user())

    def make(self) -> None:
        """Makes the data directory; whoever is on this net is let in."""
        super().make()
        with (self._directory / "data" / "pg_hba.conf").open("a") as rules:
            rules.write("host all all samenet trust\n")

    def _launch(self, arguments: list[str]) -> None:
        everywhere = ("-c", "listen_addresses=*") if self._wrapper else ()
        super()._launch([*arguments, *everywhere])


class Episode(msgspec.Struct, frozen=True):
    """One fault, once.

    Attributes:
        fault: Which.
        lasted_s: For how long.
        recovered_s: After its end, until calls were acknowledged as before.
    """

    fault: str
    lasted_s: float
    recovered_s: float


class Callers:
    """The clients' process and how far it has come; another one is told what it may look at."""

    def __init__(self, process: Process, readers: Process) -> None:
        self._process = process
        self._readers = readers
        self._acknowledged = 0
        self._finished = False
        self._more = asyncio.Condition()
        self._reading = asyncio.create_task(self._read())

    async def close(self) -> None:
        """Returns when the process has said its last, once it was ended."""
        await self._reading

    async def _read(self) -> None:
        assert self._process.stdout is not None
        assert self._readers.stdin is not None
        async for line in self._process.stdout:
            word, _, key = line.decode().strip().partition(" ")
            if word == "acknowledged":
                self._readers.stdin.write(f"{key}\n".encode())
            async with self._more:
                self._finished = word == "finished"
                self._acknowledged += word == "acknowledged"
                self._more.notify_all()
        async with self._more:
            self._more.notify_all()

    async def goes_on(self, count: int) -> None:
        """Returns when so many more submits have been acknowledged."""
        wanted = self._acknowledged + count
        async with asyncio.timeout(PATIENCE_S), self._more:
            await self._more.wait_for(lambda: self._acknowledged >= wanted or self._reading.done())
        assert self._process.returncode is None, "the clients have ended"

    async def finish(self) -> None:
        """Has it see to the end of all that was acknowledged."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")
        async with asyncio.timeout(PATIENCE_S), self._more:
            await self._more.wait_for(lambda: self._finished or self._reading.done())
        assert self._finished, "the clients have ended before they were done"
        assert self._readers.returncode is None, "the readers have ended"
        assert self._readers.stdin is not None
        self._readers.stdin.write(b"\n")
        await self._readers.wait()


class Play:
    """One part: a set of hosts, faults on them, and a judgement."""

    def __init__(self, store: str, folder: Path, seed: str, net: Network | Relays) -> None:
        self._store = store
        self._folder = folder
        self._seed = seed
        self._net = net
        self._chance = random.Random(seed)
        self._stack = AsyncExitStack()
        self._workers: list[Process] = []
        self.episodes: list[Episode] = []

    async def run(self, count: int, names: list[str]) -> int:
        """Strikes so many times; returns how many leaderships the database has noted.

        Raises:
            AssertionError: A promise was broken; has the servers' last words.
        """
        async with self._stack:
            place, audit = await self._lay_store()
            scene = await self._serve(place)
            await audit.begin()
            callers = await self._begin_load(scene)
            kinds = self._kinds(scene, names)
            try:
                await callers.goes_on(GOES_ON)
                for number in range(count):
                    await self._strike(kinds[number % len(kinds)], scene, callers)
                await callers.finish()
                for worker in self._workers:
                    assert worker.returncode is None, "a worker has ended"
                terms = judge(await audit.rows())
                assert all(server.is_up for server in scene.group.servers), "a server has ended"
            except (AssertionError, TimeoutError, RuntimeError) as error:
                for server in scene.group.servers:
                    error.add_note(server.last_words())
                raise
            finally:
                await self._heal(scene)
        return terms

    def _kinds(self, scene: Scene, names: list[str]) -> list[Fault]:
        """The faults that can be played here, in an order of chance."""
        kinds = [
            fault
            for fault in FAULTS
            if self._store in fault.stores
            and (not names or fault.name in names)
            and (scene.clocks or not fault.clocks)
            and (self._net.knows_packets or not fault.packets)
        ]
        self._chance.shuffle(kinds)
        return kinds

    async def _lay_store(self) -> tuple[str, Audit]:
        if self._store == "sqlite":
            path = self._folder / "q.db"
            return str(path), SqliteAudit(path)
        directory = self._folder / "database"
        directory.mkdir()
        cluster = HostCluster(directory, self._net.wrapper(DATABASE))
        await asyncio.to_thread(cluster.make)
        self._stack.callback(cluster.stop)
        await asyncio.to_thread(cluster.start)
        return str(cluster.port), PostgresAudit(cluster.url, SCHEMA)

    async def _serve(self, place: str) -> Scene:
        servers, homes, clocks = [], [], []
        for number in range(SERVERS[self._store]):
            home = f"server{number}" if self._store == "postgres" else "server0"
            where = place
            if self._store == "postgres":
                where = await self._net.endpoint(home, DATABASE, int(place))
            server = ReplicaProcess(
                self._folder,
                f"server-{number}",
                STORE[self._store].format(place=where),
                POOLS,
                host=self._net.addresses[home],
            )
            server.wrapper = self._net.wrapper(home)
            if HAS_CLOCKS and self._store == "postgres":
                clocks.append(clock := self._folder / f"clock-{number}")
                clock.write_text("+0\n", encoding="ascii")
                server.wrapper += with_clock(clock)
            self._stack.push_async_callback(server.kill)
            await server.start()
            servers.append(server)
            homes.append(home)
        group = Group(servers)
        return Scene(self._net, group, homes, clocks, self._workers, self._chance, [])

    async def _begin_load(self, scene: Scene) -> Callers:
        ends = list(zip(scene.homes, scene.group.servers, strict=True))
        for number in range(WORKER_COUNT):
            addresses = [
                await self._net.endpoint(WORKERS, home, server.port) for home, server in ends
            ]
            path = self._folder / f"worker-{number}.ndjson"
            self._workers.append(
                await self._start(
                    *(WORKERS, "_hosts_worker", str(path), f"{self._seed} {number}", str(SLOTS)),
                    *addresses,
                )
            )
        addresses = [await self._net.endpoint(CLIENTS, home, server.port) for home, server in ends]
        settings = (str(self._folder), self._seed, str(CALLERS), str(PAUSE_S))
        process = await self._start(CLIENTS, "_hosts_caller", *settings, *addresses)
        addresses = [await self._net.endpoint(READERS, home, server.port) for home, server in ends]
        settings = (str(self._folder), READERS, str(READER_COUNT), str(PAUSE_S))
        readers = await self._start(READERS, "_hosts_caller", *settings, *addresses)
        callers = Callers(process, readers)
        self._stack.push_async_callback(callers.close)
        self._stack.push_async_callback(end, process)
        return callers

    async def _start(self, host: str, module: str, *arguments: str) -> Process:
        process = await asyncio.create_subprocess_exec(
            *(*self._net.wrapper(host), sys.executable, "-m", f"tests.campaigns.{module}"),
            *arguments,
            cwd=ROOT,
            stdin=PIPE,
            stdout=PIPE,
            start_new_session=True,
        )
        self._stack.push_async_callback(end, process)
        return process

    async def _strike(self, fault: Fault, scene: Scene, callers: Callers) -> None:
        """Once, for a while; returns when all is as before."""
        await asyncio.sleep(self._chance.uniform(*BETWEEN_S))
        lasts_s = self._chance.uniform(*LASTS_S)
        began = time.monotonic()
        await fault.strike(scene, lasts_s)
        await asyncio.sleep(max(0.0, began + lasts_s - time.monotonic()))
        await self._heal(scene)
        healed = time.monotonic()
        lasted_s = healed - began
        await callers.goes_on(GOES_ON)
        recovered_s = time.monotonic() - healed
        self.episodes.append(Episode(fault.name, round(lasted_s, 2), round(recovered_s, 2)))
        print(f"  {fault.name}: {lasted_s:.1f} s, goes on after {recovered_s:.1f} s", flush=True)

    async def _heal(self, scene: Scene) -> None:
        await self._net.heal()
        for undo in scene.undo:
            with contextlib.suppress(ProcessLookupError):
                undo()
        scene.undo.clear()


def with_clock(path: Path) -> tuple[str, ...]:
    """A command that runs another one by a clock that a file sets; its monotonic one is true."""
    return (
        "env",
        f"LD_PRELOAD={CLOCKS}",
        f"FAKETIME_TIMESTAMP_FILE={path}",
        "FAKETIME_DONT_FAKE_MONOTONIC=1",
        "FAKETIME_CACHE_DURATION=1",
    )


async def end(process: Process) -> None:
    """Ends a process, stopped or not."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
    if process.stdin is not None:
        process.stdin.close()
    await process.wait()


@asynccontextmanager
async def lay_hosts(*, relays: bool) -> AsyncIterator[Network | Relays]:
    """Hosts of their own, or what stands in where there are none to be had."""
    names = (DATABASE, "server0", "server1", "server2", CLIENTS, WORKERS, READERS)
    if not relays:
        try:
            async with Network(names).open() as net:
                yield net
                return
        except NotPermitted as reason:
            print(f"no hosts of their own, relays stand in: {reason}", flush=True)
    async with Relays(names).open() as stand_in:
        yield stand_in


@contextmanager
def public_folder() -> Iterator[Path]:
    """A folder that everybody may enter: the database server may be run by somebody else."""
    with tempfile.TemporaryDirectory(prefix="cronoq-hosts-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder
