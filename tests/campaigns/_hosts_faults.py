"""The faults between hosts, and of their clocks: what each spoils until somebody heals it.

A fault is a coroutine that does its worst and returns; it is told for how long it will last.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
from asyncio.subprocess import Process
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path

import msgspec

from tests.campaigns._hosts_network import Network
from tests.campaigns._hosts_relays import Relays
from tests.campaigns._hosts_wire import Rule
from tests.e2e.replicas import Group, ReplicaProcess

DATABASE, CLIENTS, WORKERS, READERS = "database", "clients", "workers", "readers"
OUTSIDE = (CLIENTS, WORKERS, READERS)
CALM_S = 0.5
TAKEOVER_S = 12.0
STALE_S = 2.5
LEADS = "leadership_acquired"
LOSS = 0.3
LATE = Rule(delay_ms=300)
DISORDER = Rule(duplicate=0.25, reorder=0.25)
FLAP_S = 0.3


class Scene(msgspec.Struct):
    """What a fault can lay its hands on.

    Attributes:
        net: The hosts.
        group: The servers.
        homes: The host of each server, in the order of the group.
        clocks: A file a server by which its clock is set, where that can be done.
        workers: The processes that work.
        chance: Decides what is left open.
        undo: What has to be done at the end, beside healing the net.
    """

    net: Network | Relays
    group: Group
    homes: list[str]
    clocks: list[Path]
    workers: list[Process]
    chance: random.Random
    undo: list[Callable[[], object]] = []

    def leader(self) -> int:
        """Who leads, as far as is known, or anybody."""
        servers = self.group.servers
        leading = [number for number, server in enumerate(servers) if server.leads]
        if not leading:
            return self.chance.randrange(len(servers))
        return max(leading, key=lambda n: int(servers[n].last_said(LEADS)["epoch"]))

    @property
    def home(self) -> str:
        """The leader's host."""
        return self.homes[self.leader()]

    async def cut(self, ways: Iterable[tuple[str, str]], share: float = 1.0) -> None:
        """Loses what goes these ways."""
        for source, target in ways:
            await self.net.cut(source, target, share)

    async def spoil(self, ways: Iterable[tuple[str, str]], rule: Rule) -> None:
        """Spoils what goes these ways."""
        await self.net.spoil(dict.fromkeys(ways, rule))

    def stop(self, send: Callable[[signal.Signals], object]) -> None:
        """Stops a process until the end of the fault."""
        send(signal.SIGSTOP)
        self.undo.append(lambda: send(signal.SIGCONT))

    def front(self) -> list[tuple[str, str]]:
        """Both ways between whoever calls or works and all servers."""
        return [way for home in set(self.homes) for one in OUTSIDE for way in both(one, home)]


class Fault(msgspec.Struct, frozen=True):
    """One kind of fault.

    Attributes:
        name: How it is asked for.
        strike: Does it; is given how many seconds it lasts.
        stores: Those it can befall.
        packets: Whether it needs packets to spoil.
        clocks: Whether it needs clocks to set.
    """

    name: str
    strike: Callable[[Scene, float], Awaitable[None]]
    stores: tuple[str, ...] = ("postgres",)
    packets: bool = False
    clocks: bool = False


def both(one: str, other: str) -> list[tuple[str, str]]:
    """Both ways between two hosts."""
    return [(one, other), (other, one)]


async def leader_from_database(scene: Scene, _: float) -> None:
    """Leader and database do not hear each other."""
    await scene.cut(both(scene.home, DATABASE))


async def leader_from_callers(scene: Scene, _: float) -> None:
    """The leader is there for the database alone."""
    home = scene.home
    await scene.cut(way for host in OUTSIDE for way in both(home, host))


async def leader_alone(scene: Scene, _: float) -> None:
    """Nobody hears the leader, and it hears nobody."""
    home = scene.home
    await scene.cut(way for host in (DATABASE, *OUTSIDE) for way in both(home, host))


async def leader_with_readers(scene: Scene, _: float) -> None:
    """A leader without work is left alone with those who only look, until another one leads.

    Nothing that it would write holds up what it says: only its doubts do.
    """
    old = scene.group.servers[scene.leader()]
    home = scene.home
    await scene.cut(both(home, CLIENTS))
    await asyncio.sleep(CALM_S)
    await scene.cut([*both(home, WORKERS), *both(home, DATABASE)])
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(TAKEOVER_S):
            await scene.group.another(old)
    await asyncio.sleep(STALE_S)


async def database_alone(scene: Scene, _: float) -> None:
    """No server reaches the database."""
    await scene.cut(way for home in scene.homes for way in both(home, DATABASE))


async def leader_mute(scene: Scene, _: float) -> None:
    """The database does not hear the leader, who hears it."""
    await scene.cut([(scene.home, DATABASE)])


async def leader_deaf(scene: Scene, _: float) -> None:
    """The leader does not hear the database, which hears it: commits without an answer."""
    await scene.cut([(DATABASE, scene.home)])


async def answers_lost(scene: Scene, _: float) -> None:
    """What clients and workers say arrives, no answer comes back."""
    await scene.cut((home, host) for home in set(scene.homes) for host in OUTSIDE)


async def database_flaps(scene: Scene, lasts_s: float) -> None:
    """Leader and database lose each other again and again."""
    home = scene.home
    for _ in range(max(1, int(lasts_s / FLAP_S / 2))):
        await scene.cut(both(home, DATABASE))
        await asyncio.sleep(FLAP_S)
        await scene.net.heal()
        await asyncio.sleep(FLAP_S)


async def loss_to_database(scene: Scene, _: float) -> None:
    """A third of the packets between leader and database is lost."""
    await scene.cut(both(scene.home, DATABASE), LOSS)


async def loss_to_callers(scene: Scene, _: float) -> None:
    """A third of the packets between servers and everybody outside is lost."""
    await scene.cut(scene.front(), LOSS)


async def late_to_database(scene: Scene, _: float) -> None:
    """Packets between leader and database are under way for long."""
    await scene.spoil(both(scene.home, DATABASE), LATE)


async def late_to_callers(scene: Scene, _: float) -> None:
    """Packets between servers and everybody outside are under way for long."""
    await scene.spoil(scene.front(), LATE)


async def disorder_to_database(scene: Scene, _: float) -> None:
    """Packets between leader and database come twice, and overtake each other."""
    await scene.spoil(both(scene.home, DATABASE), DISORDER)


async def disorder_to_callers(scene: Scene, _: float) -> None:
    """Packets between servers and everybody outside come twice, and overtake each other."""
    await scene.spoil(scene.front(), DISORDER)


async def clock_jumps(scene: Scene, _: float) -> None:
    """The leader's wall clock is set ahead or back, and put right at the end."""
    _set_clock(scene, scene.leader(), scene.chance.choice((-1, 1)) * scene.chance.uniform(1, 20))


async def clocks_apart(scene: Scene, _: float) -> None:
    """Every server has a clock of its own, and the leader is cut off: another one takes over."""
    for number in range(len(scene.clocks)):
        _set_clock(scene, number, scene.chance.uniform(-10, 10))
    await leader_alone(scene, 0)


def _set_clock(scene: Scene, number: int, ahead_s: float) -> None:
    clock = scene.clocks[number]
    clock.write_text(f"{ahead_s:+.3f}\n", encoding="ascii")
    scene.undo.append(lambda: clock.write_text("+0\n", encoding="ascii"))


async def leader_killed_alone(scene: Scene, _: float) -> None:
    """The leader's host goes down: nobody is told that its connections are over."""
    number = scene.leader()
    await leader_alone(scene, 0)
    server = scene.group.servers[number]
    await server.kill()
    await server_starts(server)


async def server_starts(server: ReplicaProcess) -> None:
    """Starts it without waiting: it may be cut off."""
    starting = asyncio.ensure_future(server.start())
    starting.add_done_callback(lambda done: done.exception())


async def leader_paused(scene: Scene, _: float) -> None:
    """The leader stands still, and its host answers for it."""
    scene.stop(scene.group.servers[scene.leader()].send)


async def worker_paused(scene: Scene, _: float) -> None:
    """A worker stands still for longer than its leases, and then reports."""
    scene.stop(scene.chance.choice(scene.workers).send_signal)


BOTH = ("postgres", "sqlite")

FAULTS = (
    Fault("leader-cut-from-database", leader_from_database),
    Fault("leader-cut-from-callers", leader_from_callers, BOTH),
    Fault("leader-cut-from-all", leader_alone),
    Fault("leader-left-with-readers", leader_with_readers),
    Fault("database-cut-from-all", database_alone),
    Fault("leader-mute-to-database", leader_mute),
    Fault("leader-deaf-to-database", leader_deaf),
    Fault("answers-to-callers-lost", answers_lost, BOTH),
    Fault("database-flaps", database_flaps),
    Fault("loss-to-database", loss_to_database),
    Fault("loss-to-callers", loss_to_callers, BOTH),
    Fault("delay-to-database", late_to_database),
    Fault("delay-to-callers", late_to_callers, BOTH),
    Fault("disorder-to-database", disorder_to_database, packets=True),
    Fault("disorder-to-callers", disorder_to_callers, BOTH, packets=True),
    Fault("leader-clock-jumps", clock_jumps, clocks=True),
    Fault("clocks-apart", clocks_apart, clocks=True),
    Fault("leader-host-down", leader_killed_alone),
    Fault("leader-paused", leader_paused, BOTH),
    Fault("worker-paused", worker_paused, BOTH),
)
