"""What each shard's server says of all shards, again and again, and whether it is the truth.

Each shard has one task that nobody runs. An answer over all shards has that task, or names the
shard as missing: never neither, and both only while the shard is being lost. While a trouble that
every server has noticed lasts, answers name exactly those that it hides from them; while there is
none, nobody.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass

import cronoq
from tests.e2e.sharded.cluster import POOLS, SHARDS, Cluster
from tests.e2e.sharded.record import MARKER, Call, Record, Trouble

DEADLINE_S = 60.0
PAUSE_S = 0.3
MARKERS = cronoq.TaskFilter(kinds=[MARKER])
FAR_S = 3600.0


Said = tuple[Iterable[str], list[str]]
"""The shards that an answer names as missing, and pools that it has something of."""

Ask = Callable[[cronoq.Client], Coroutine[None, None, Said]]


@dataclass(frozen=True, slots=True)
class View:
    """One answer.

    Attributes:
        what: Which call.
        entry: The shard whose server has answered.
        began: When it was asked.
        ended: When it answered.
        named: The shards that it names as missing.
        present: The shards whose part it has.
    """

    what: str
    entry: str
    began: float
    ended: float
    named: frozenset[str]
    present: frozenset[str]


class Views:
    """Asks until it is closed.

    Attributes:
        seen: All answers, in the order in which they came.
    """

    def __init__(self, cluster: Cluster, record: Record) -> None:
        """Asks nothing yet.

        Args:
            cluster: Whom to ask.
            record: Where calls are noted, and troubles found.
        """
        self.seen: list[View] = []
        self._latest: dict[tuple[str, str], View] = {}
        self._record = record
        self._cluster = cluster
        self._more = asyncio.Condition()
        self._asking: list[asyncio.Task[None]] = []
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Views:
        clients: dict[str, cronoq.Client] = {}
        for entry, gateway in self._cluster.gateways.items():
            client = self._cluster.client(gateway.address, "admin", DEADLINE_S)
            await self._stack.enter_async_context(client)
            pool = SHARDS[entry][1][0]
            await client.submit(MARKER, pool=pool, key=f"marker of {entry}", delay=FAR_S)
            clients[entry] = client
        for entry, client in clients.items():  # each shard has its marker now
            for ask in (self._list, self._snapshot):
                self._asking.append(asyncio.create_task(self._ask(entry, client, ask)))
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._asking:
            task.cancel()
        await asyncio.gather(*self._asking, return_exceptions=True)
        await self._stack.aclose()

    async def _ask(self, entry: str, client: cronoq.Client, ask: Ask) -> None:
        what = ask.__name__.lstrip("_")
        while True:
            began, error = time.monotonic(), ""
            try:
                named, pools = await ask(client)
            except cronoq.CronoqError as failed:
                error = f"{type(failed).__name__}: {failed}"
            ended = time.monotonic()
            self._record.calls.append(Call(what, entry, entry, began, ended, error))
            if not error:
                present = frozenset(POOLS[pool] for pool in pools)
                view = View(what, entry, began, ended, frozenset(named), present)
                async with self._more:
                    self.seen.append(view)
                    self._latest[what, entry] = view
                    self._more.notify_all()
            await asyncio.sleep(PAUSE_S)

    async def _list(self, client: cronoq.Client) -> Said:
        pages = client.list(MARKERS)
        found = [info.pool async for info in pages]
        return pages.unavailable_shards, found

    async def _snapshot(self, client: cronoq.Client) -> Said:
        found = await client.snapshot()
        return found.unavailable_shards, [pool.name for pool in found.pools]

    def forget(self) -> None:
        """Forgets what was seen so far."""
        self.seen.clear()

    async def agree(self, trouble: Trouble | None = None) -> None:
        """Returns when every server that answers names what a trouble hides from it; None: nobody.

        Answers count that were asked for after this call.
        """
        since = time.monotonic()

        def agrees(entry: str, what: str) -> bool:
            view = self._latest.get((what, entry))
            return view is not None and view.began >= since and view.named == hidden(trouble, entry)

        async with self._more:
            await self._more.wait_for(
                lambda: all(
                    agrees(entry, what)
                    for entry in SHARDS
                    if trouble is None or not trouble.excuses(entry, entry)
                    for what in ("list", "snapshot")
                )
            )

    def judge(self, *, on_time: bool) -> None:
        """Holds every answer against what was there.

        Args:
            on_time: Whether servers have the time to answer each other's probes, so that nobody
                is taken for missing who is only late.

        Raises:
            AssertionError: An answer lacks a shard without naming it, or names one wrongly.
        """
        for view in self.seen:
            there = self._record.during(view.began, view.ended)
            told = f"{view} while {[one.kind for one in there] or 'all was well'}"
            assert view.named | view.present == SHARDS.keys(), f"lacks a shard unsaid: {told}"
            # A snapshot asks twice, for pools and for resources: a shard may be lost in between.
            is_half = view.what == "snapshot" and there
            assert is_half or not view.named & view.present, f"names one that it has: {told}"
            if not on_time:
                continue
            may = {shard for one in there for shard in hidden(one, view.entry)}
            assert view.named <= may, f"names a shard that nothing hides: {told}"
            for one in there:
                if one.told <= view.began and view.ended <= one.undone and not one.is_leaky:
                    assert view.named == hidden(one, view.entry), f"names the wrong ones: {told}"


def hidden(trouble: Trouble | None, entry: str) -> frozenset[str]:
    """The shards that a trouble hides from the servers of one."""
    if trouble is None:
        return frozenset()
    return frozenset(shard for shard in SHARDS if trouble.excuses(entry, shard))
