"""Troubles one after another under load, and what is to be said of it in the end."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.e2e.sharded.cluster import SHARDS, sharded
from tests.e2e.sharded.faults import FAULTS, Fault, Scene
from tests.e2e.sharded.load import Load
from tests.e2e.sharded.record import NEVER_YET, Record, quantile
from tests.e2e.sharded.views import Views
from tests.e2e.sharded.workers import workers

CALLERS = 64
"""Who measures the capacity."""
CAPACITY_S = 5.0
SHARE = 0.1
"""Of the capacity that the load takes."""


@dataclass(frozen=True, slots=True)
class Plot:
    """How it is played.

    Attributes:
        seconds: How long troubles strike; the last one is played to its end.
        quiet_s: How long there is none at first.
        between_s: Between two.
        per_s: Calls a second; None = a tenth of what is measured.
        rounds: So many rounds of all troubles instead of a time.
        faults: Which troubles.
        outage_s: See `Scene`.
        hold_s: See `Scene`.
        delay_s: See `Scene`.
        peer_timeout_s: See `sharded`; a slow peer must be slower than that, or about as slow.
        patience_s: For how long one trouble and all that follows may last.
        deadline_s: See `Load`.
        front_deadline_s: See `Load`.
        on_time: See `Views.judge`.
    """

    seconds: float = 160.0
    quiet_s: float = 20.0
    between_s: float = 2.0
    per_s: float | None = None
    rounds: int = 0
    faults: tuple[Fault, ...] = FAULTS
    outage_s: float = 20.0
    hold_s: float = 8.0
    delay_s: float = 2.0
    peer_timeout_s: float = 2.0
    patience_s: float = 120.0
    deadline_s: float = 5.0
    front_deadline_s: float = 20.0
    on_time: bool = True


@dataclass(frozen=True, slots=True)
class Report:
    """What came of it.

    Attributes:
        record: Calls and troubles.
        acknowledged: How many submissions.
        views: How many answers over all shards.
        capacity: Submissions a second that were acknowledged at most; 0 if nobody measured.
        per_s: Calls a second that were made.
    """

    record: Record
    acknowledged: int
    views: int
    capacity: float
    per_s: float

    def summary(self) -> dict[str, Any]:
        """What is kept of it."""
        record = self.record
        troubles = [one for one in record.troubles if one.undone < NEVER_YET]
        latencies = record.latencies()
        quiet = latencies.pop("none", [])
        others = sorted(value for values in latencies.values() for value in values)
        return {
            "capacity_per_s": round(self.capacity),
            "calls_per_s": round(self.per_s, 1),
            "calls": len(record.calls),
            "acknowledged": self.acknowledged,
            "answers_over_all": self.views,
            "troubles": dict(Counter(one.kind for one in record.troubles)),
            "excused_failures": sum(record.errors().values()),
            "told_after_s": _seconds(one.told - one.began for one in troubles),
            "well_again_after_s": _seconds(one.ended - one.undone for one in troubles),
            "undisturbed_ms": _figures(quiet),
            "others_in_trouble_ms": _figures(others),
            "by_trouble_ms": {kind: _figures(values) for kind, values in latencies.items()},
        }


def _seconds(values: Iterable[float]) -> list[float]:
    return [round(value, 1) for value in values]


def _figures(ordered: Sequence[float]) -> dict[str, float]:
    if not ordered:
        return {"calls": 0}
    shares = {"p50": 0.5, "p99": 0.99, "max": 1.0}
    found = {name: round(quantile(ordered, share), 1) for name, share in shares.items()}
    return {"calls": len(ordered)} | found


async def play(
    directory: Path,
    store: str,
    commands: Mapping[str, Sequence[str]],
    plot: Plot,
    seed: int,
    *,
    say: Callable[[str], object] = str,
) -> Report:
    """Plays it.

    Args:
        directory: An empty one.
        store: The lines of `[store]`, with the shard left open.
        commands: How each pool's worker is started.
        plot: For how long, how patient.
        seed: Decides what happens when.
        say: Is told how it goes on.

    Raises:
        AssertionError: A promise was broken.
        TimeoutError: Something took longer than it may.
    """
    chance = random.Random(seed)
    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(
            sharded(directory, store, peer_timeout=plot.peer_timeout_s)
        )
        try:
            say("all servers run")
            async with asyncio.timeout(plot.patience_s):
                working = await stack.enter_async_context(workers(cluster, commands, chance))
            say("all workers have found their shards")
            load = await stack.enter_async_context(
                Load(
                    cluster,
                    seed,
                    deadline=plot.deadline_s,
                    front_deadline=plot.front_deadline_s,
                )
            )
            views = await stack.enter_async_context(Views(cluster, load.record))
            async with asyncio.timeout(plot.patience_s):
                await views.agree()
            views.forget()  # servers have still looked for each other
            capacity = 0.0 if plot.per_s else await load.capacity(CALLERS, CAPACITY_S)
            load.record.calls.clear()  # as busy as can be
            per_s = plot.per_s or SHARE * capacity
            say(f"{capacity:.0f} submissions a second at most, {per_s:.0f} calls a second from now")
            running = asyncio.create_task(load.run(per_s))
            stack.push_async_callback(_end, running)
            scene = Scene(cluster, load.record, views, plot.outage_s, plot.hold_s, plot.delay_s)
            await _strike(scene, plot, chance, say)
            load.stop()
            async with asyncio.timeout(plot.patience_s):
                await running
                await load.judge()
            working.judge()
            views.judge(on_time=plot.on_time)
            unexcused = load.record.unexcused()
            assert not unexcused, f"{len(unexcused)} calls failed that nothing concerned: " + str(
                unexcused[:5]
            )
        except (AssertionError, TimeoutError, RuntimeError) as error:
            error.add_note(cluster.last_words())
            raise
        return Report(load.record, len(load.acknowledged), len(views.seen), capacity, per_s)


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def _strike(
    scene: Scene, plot: Plot, chance: random.Random, say: Callable[[str], object]
) -> None:
    await asyncio.sleep(plot.quiet_s)
    ends_at = time.monotonic() + plot.seconds
    played = 0
    order: list[Fault] = []
    while played < plot.rounds * len(plot.faults) if plot.rounds else time.monotonic() < ends_at:
        order = order or chance.sample(plot.faults, len(plot.faults))
        fault, shard = order.pop(), chance.choice(list(SHARDS))
        began = time.monotonic()
        async with asyncio.timeout(plot.patience_s):
            await fault(scene, shard)
        say(f"{scene.record.troubles[-1].kind}: {shard}, {time.monotonic() - began:.1f} s")
        played += 1
        await asyncio.sleep(plot.between_s)
