"""The faults that a play can strike with, and how each is over.

A fault is a coroutine that does its worst and undoes it; who leads afterwards is the servers'
business. When it returns, all that is left to do is theirs.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable
from typing import Protocol

import msgspec

from tests.e2e.disk import allow_writing, forbid_writing
from tests.e2e.place import PostgresPlace, SqlitePlace, Waits
from tests.e2e.replicas import Group, ReplicaProcess

Place = SqlitePlace | PostgresPlace


class GoesOn(Protocol):
    """A load under which a fault strikes."""

    async def goes_on(self, count: int) -> None:
        """Returns when so many more calls have succeeded."""


class Scene(msgspec.Struct, frozen=True):
    """What a fault can lay its hands on."""

    place: Place
    group: Group
    load: GoesOn
    waits: Waits

    @property
    def database(self) -> PostgresPlace:
        """The place, of a fault that is PostgreSQL's alone."""
        assert isinstance(self.place, PostgresPlace)
        return self.place


class Fault(msgspec.Struct, frozen=True):
    """One kind of fault.

    Attributes:
        name: How it is asked for.
        stores: The stores that it can befall.
        strike: Does it.
        small_disk: MiB of the disk that it needs, or 0.
        lossy: Whether commits go through a relay.
        times: How often it strikes in the full form.
        submits: How many have to be acknowledged in the full form, at least.
    """

    name: str
    stores: tuple[str, ...]
    strike: Callable[[Scene], Awaitable[None]]
    small_disk: int = 0
    lossy: bool = False
    times: int = 10
    submits: int = 0


BOTH = ("sqlite", "postgres")
POSTGRES = ("postgres",)


async def kill_leader(scene: Scene) -> None:
    """SIGKILL of the leader; started again once another one leads."""
    leader = await scene.group.leader()
    await leader.kill()
    await scene.group.another(leader)
    await leader.start()


async def stop_leader(scene: Scene) -> None:
    """SIGTERM of the leader, which hands over."""
    leader = await scene.group.leader()
    assert await leader.end(signal.SIGTERM) == 0
    await scene.group.another(leader)
    await leader.start()


async def end_leader(scene: Scene) -> None:
    """Leaders are killed and stopped in turn."""
    leader = await scene.group.leader()
    terms = sum(server.terms for server in scene.group.servers)
    await (stop_leader if terms % 2 else kill_leader)(scene)
    assert not leader.leads


async def pause_leader(scene: Scene) -> None:
    """SIGSTOP of the leader until another one leads; then it goes on, and has to notice."""
    while True:
        leader = await scene.group.leader()
        lost = leader.times("leadership_lost")
        leader.send(signal.SIGSTOP)
        try:
            await overtaken(scene, leader)
            break
        except TimeoutError:  # paused in the middle of a write it keeps the file locked
            leader.send(signal.SIGCONT)
            await scene.load.goes_on(1)
    leader.send(signal.SIGCONT)
    await leader.until(lambda server: server.times("leadership_lost") > lost)


async def overtaken(scene: Scene, leader: ReplicaProcess) -> None:
    """Returns when another one leads in place of a paused leader."""
    if isinstance(scene.place, PostgresPlace):
        # Its host answers keepalives for it: only the loss of its session takes its lock.
        assert await scene.place.end_lock_session() == 1
    async with asyncio.timeout(3 * scene.waits.lease_ttl + 5):
        await scene.group.another(leader)


async def end_lock_session(scene: Scene) -> None:
    """The session that holds the lock is ended; the leader has to stop."""
    leader = await scene.group.leader()
    lost = leader.times("leadership_lost")
    assert await scene.database.end_lock_session() == 1
    await leader.until(lambda server: server.times("leadership_lost") > lost)


async def end_commit_sessions(scene: Scene) -> None:
    """The sessions that commit and read are ended; the leader goes on over new ones."""
    assert await scene.database.end_sessions(" epoch %") > 0


async def restart_database(scene: Scene) -> None:
    """Stopped in order and started again."""
    await asyncio.to_thread(scene.database.cluster.stop, signal.SIGINT)
    await asyncio.to_thread(scene.database.cluster.start)


async def kill_database(scene: Scene) -> None:
    """SIGKILL of all its processes, and a start with recovery."""
    await scene.database.kill()
    await asyncio.to_thread(scene.database.cluster.start)


async def pause_database(scene: Scene) -> None:
    """SIGSTOP of all its processes, for less than anybody's patience."""
    await _paused(scene, scene.waits.short)


async def pause_database_long(scene: Scene) -> None:
    """SIGSTOP of all its processes, for longer than sessions and commits are waited for."""
    await _paused(scene, scene.waits.long)


async def _paused(scene: Scene, seconds: float) -> None:
    scene.database.send(signal.SIGSTOP)
    try:
        await asyncio.sleep(seconds)
    finally:
        # Whatever was started before the first process stopped is a child of it as well.
        scene.database.send(signal.SIGCONT)


async def turn_read_only(scene: Scene) -> None:
    """New transactions may not write, until they may again."""
    leader = await scene.group.leader()
    late = leader.times("store_late")
    database = scene.database
    await database.execute("ALTER SYSTEM SET default_transaction_read_only = on")
    await database.execute("SELECT pg_reload_conf()")
    try:
        await leader.until(lambda server: server.times("store_late") > late)
        await asyncio.sleep(scene.waits.hold)
    finally:
        await database.execute("ALTER SYSTEM RESET default_transaction_read_only")
        await database.execute("SELECT pg_reload_conf()")


async def fill_disk(scene: Scene) -> None:
    """No room for another row, until there is."""
    leader = await scene.group.leader()
    late = leader.times("store_late")
    disk = scene.place.disk
    pids = [server.pid for server in scene.group.servers]
    try:
        if disk is not None:
            await asyncio.to_thread(disk.fill)
        else:
            for pid in pids:
                forbid_writing(pid)
        await leader.until(lambda server: server.times("store_late") > late)
        await asyncio.sleep(scene.waits.hold)
    finally:
        if disk is not None:
            await asyncio.to_thread(disk.make_room)
        else:
            for pid in pids:
                allow_writing(pid)


async def lose_commit(scene: Scene) -> None:
    """A transaction is committed and its answer lost."""
    relay = scene.database.relay
    assert relay is not None
    await relay.lose_one()


FAULTS = (
    Fault("leader-killed", BOTH, kill_leader, times=50),
    Fault("leader-stopped", BOTH, stop_leader),
    Fault("leaders-ended-in-turn", BOTH, end_leader, submits=10_000),
    Fault("leader-paused", BOTH, pause_leader),
    Fault("disk-full", BOTH, fill_disk, small_disk=192),
    Fault("lock-session-ended", POSTGRES, end_lock_session),
    Fault("commit-sessions-ended", POSTGRES, end_commit_sessions),
    Fault("commit-answer-lost", POSTGRES, lose_commit, lossy=True),
    Fault("database-restarted", POSTGRES, restart_database),
    Fault("database-killed", POSTGRES, kill_database),
    Fault("database-paused", POSTGRES, pause_database),
    Fault("database-paused-long", POSTGRES, pause_database_long),
    Fault("database-read-only", POSTGRES, turn_read_only),
)
