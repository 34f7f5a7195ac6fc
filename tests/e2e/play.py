"""One fault, again and again at random moments under load, with a judgement after each.

After each strike every task that was acknowledged has ended once and well, and nobody has written
under an epoch that was over. At the end everything that is there is held against everything that
was promised: see `tests.e2e.load` and `tests.e2e.audit`.
"""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import msgspec

from tests.e2e.audit import judge
from tests.e2e.faults import Fault, Place, Scene
from tests.e2e.load import Load
from tests.e2e.place import Waits, postgres_place, sqlite_place
from tests.e2e.replicas import replicas
from tests.stores.pg import Cluster

CONNECTS_MAX = 12
"""Connections that one client or worker may make within any second, whatever happens."""


class Plot(msgspec.Struct, frozen=True):
    """How a fault is played.

    Attributes:
        times: How often it strikes.
        submits: How many have to be acknowledged, at least.
        between: Acknowledged submits between two strikes, at most.
        waits: How patient everybody is.
        pause: Of each caller between two submits, seconds.
        patience: For how long a strike and all that follows may last, seconds.
        workers: Processes that work.
    """

    times: int
    submits: int = 0
    between: int = 200
    waits: Waits = Waits()
    pause: float = 0.03
    patience: float = 120.0
    workers: int = 1


class Report(msgspec.Struct, frozen=True):
    """What came of it.

    Attributes:
        fault: Which one.
        store: Where.
        strikes: How often.
        tasks: Submits that were acknowledged, each of which ended once and well.
        occurrences: Of the schedule, none missing and none twice.
        terms: Leaderships, by the notes of the store.
        connects: Connections in the busiest second, by the callers' client and all workers.
        silences: After each strike the longest time without an acknowledgement, seconds.
    """

    fault: str
    store: str
    strikes: int
    tasks: int
    occurrences: int
    terms: int
    connects: int
    silences: list[float]

    def summary(self) -> dict[str, Any]:
        """What is kept of it."""
        ordered = sorted(self.silences)
        kept = {name: getattr(self, name) for name in self.__struct_fields__ if name != "silences"}
        return kept | {
            "silence_median_s": round(ordered[len(ordered) // 2], 2),
            "silence_longest_s": round(ordered[-1], 2),
        }


async def play(
    fault: Fault,
    store: str,
    directory: Path,
    plot: Plot,
    chance: random.Random,
    *,
    cluster: Cluster | None = None,
) -> Report:
    """Plays a fault on a store.

    Args:
        fault: Which.
        store: `sqlite` or `postgres`.
        directory: An empty one.
        plot: How often, how patient.
        chance: Decides the moments.
        cluster: The database server, for PostgreSQL.

    Raises:
        AssertionError: A promise was broken.
        NoSmallDisk: It needs a disk that cannot be had.
        TimeoutError: Something took longer than it may.
    """
    async with AsyncExitStack() as stack:
        place: Place
        if store == "sqlite":
            place = stack.enter_context(sqlite_place(directory, plot.waits, fault.small_disk))
        else:
            assert cluster is not None
            schema = fault.name.replace("-", "_")
            place = await stack.enter_async_context(
                postgres_place(
                    cluster,
                    schema,
                    plot.waits,
                    small=fault.small_disk,
                    lossy=fault.lossy,
                )
            )
        started = replicas(directory, place.store, place.replicas)
        balancer, group = await stack.enter_async_context(started)
        await place.audit.begin()
        load = Load(balancer.address, directory, pause=plot.pause, workers=plot.workers)
        await stack.enter_async_context(load)
        scene = Scene(place, group, load, plot.waits)
        try:
            silences = [await _strike(fault, scene, load, plot, chance) for _ in range(plot.times)]
            async with asyncio.timeout(plot.patience):
                await load.goes_on(max(0, plot.submits - len(load.acknowledged)))
                occurrences = await load.judge()
            terms = judge(await place.audit.rows())
            assert all(server.is_up for server in group.servers), "a server has ended by itself"
            assert balancer.busiest_second() <= CONNECTS_MAX * (1 + plot.workers)
        except (AssertionError, TimeoutError) as error:
            for server in group.servers:
                error.add_note(server.last_words())
            raise
        connects = balancer.busiest_second()
        tasks = len(load.acknowledged)
        return Report(fault.name, store, plot.times, tasks, occurrences, terms, connects, silences)


async def _strike(
    fault: Fault, scene: Scene, load: Load, plot: Plot, chance: random.Random
) -> float:
    """Once, at a random moment; returns for how long nobody was answered."""
    async with asyncio.timeout(plot.patience):
        await load.goes_on(chance.randrange(plot.between))
        struck = time.monotonic()
        await fault.strike(scene)
        await load.goes_on(50)
        silence = load.longest_silence(struck)
        await load.settle()
        judge(await scene.place.audit.rows())
    return silence
