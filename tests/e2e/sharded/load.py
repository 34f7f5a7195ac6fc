"""Calls to the servers of all shards at a steady pace, about the tasks of all shards.

Some go in at a shard's own address, some at the one in front of all. Tasks are submitted with keys
and without, looked up by id and by key, cancelled by id. What was acknowledged is remembered and
held against what is there in the end.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TypeVar

import cronoq
from cronoq.errors import NotFoundError
from tests.e2e.sharded.cluster import POOLS, Cluster
from tests.e2e.sharded.record import FRONT, MARKER, SPANS, Call, Record

T = TypeVar("T")

FAR_S = 3600.0
"""When tasks would run that are cancelled before."""
KINDS = {"quick": 0.85, "stumbles": 0.1, "held": 0.05}
NEVER = "never"
"""The kind of the tasks that are cancelled before they run."""


@dataclass(frozen=True, slots=True)
class Task:
    """What was submitted; tasks are told apart by their numbers.

    Attributes:
        number: Its payload, and a tag.
        kind: What its handler does.
        pool: Where.
        key: Empty for one that was given none.
    """

    number: int
    kind: str
    pool: str
    key: str

    @property
    def shard(self) -> str:
        """Whose it is."""
        return POOLS[self.pool]

    def spec(self) -> cronoq.TaskSpec:
        """As it is submitted."""
        delay = FAR_S if self.kind == NEVER else None
        tags = {"number": str(self.number)}
        return cronoq.TaskSpec(
            self.kind, self.number, pool=self.pool, key=self.key, tags=tags, delay=delay
        )


class Load:
    """Calls until it is told to stop.

    Attributes:
        record: What was called and what came of it.
        acknowledged: What was acknowledged, by id.
        cancelled: Ids whose cancellation was acknowledged.
        unsure: Numbers of tasks whose submission has failed, in whatever way.
        broken: Promises that an answer has broken.
    """

    def __init__(
        self, cluster: Cluster, seed: int, *, deadline: float, front_deadline: float
    ) -> None:
        """Calls nothing yet.

        Args:
            cluster: Whom to call.
            seed: Decides about what.
            deadline: Of calls at a shard's own address, seconds.
            front_deadline: At the address of all, where a shard that is gone has to be left for
                another one meanwhile.
        """
        self.record = Record()
        self.acknowledged: dict[int, Task] = {}
        self.cancelled: set[int] = set()
        self.unsure: set[int] = set()
        self.broken: list[str] = []
        self._clients: dict[str, cronoq.Client] = {
            name: cluster.client(gateway.address, deadline=deadline)
            for name, gateway in cluster.gateways.items()
        }
        self._clients[FRONT] = cluster.client(cluster.front.address, deadline=front_deadline)
        self._chance = random.Random(seed)
        self._number = 0
        self._ids: list[int] = []
        self._keyed: list[int] = []
        self._under_way: set[asyncio.Task[None]] = set()
        self._stopping = asyncio.Event()

    async def __aenter__(self) -> Load:
        self._stack = AsyncExitStack()
        for client in self._clients.values():
            await self._stack.enter_async_context(client)
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._under_way:
            task.cancel()
        await asyncio.gather(*self._under_way, return_exceptions=True)
        await self._stack.aclose()

    async def run(self, per_s: float) -> None:
        """Calls so often, whatever becomes of the calls before; ends once `stop` was called."""
        clock = time.monotonic
        begun, made = clock(), 0
        while not self._stopping.is_set():
            while made < (clock() - begun) * per_s:
                made += 1
                self._make()
            await asyncio.sleep(1 / per_s)
        await asyncio.gather(*self._under_way)

    def stop(self) -> None:
        """Makes no further calls."""
        self._stopping.set()

    async def capacity(self, callers: int, seconds: float) -> float:
        """How many submissions a second are acknowledged if so many callers wait for each."""
        ends_at = time.monotonic() + seconds
        before = len(self.acknowledged)
        entries = [entry for entry in self._clients if entry != FRONT]

        async def caller(number: int) -> None:
            while time.monotonic() < ends_at:
                await self._submit(entries[number % len(entries)], self._new("quick", keyed=True))

        await asyncio.gather(*(caller(number) for number in range(callers)))
        return (len(self.acknowledged) - before) / seconds

    # One call

    def _make(self) -> None:
        entry = self._chance.choice([*self._clients, *self._clients][:-1])  # seldom at the front
        task = asyncio.create_task(self._any(entry))
        self._under_way.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._under_way.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.broken.append(f"{type(error).__name__}: {error}")

    async def _any(self, entry: str) -> None:
        which = self._chance.random()
        if which < 0.6 or not self._keyed:
            (kind,) = self._chance.choices(list(KINDS), list(KINDS.values()))
            # What has no key is not tried again, so that it may not meet a server that is killed.
            await self._submit(entry, self._new(kind, keyed=which < 0.45 or entry == FRONT))
        elif which < 0.8:
            await self._get(entry, self._chance.choice(self._ids))
        elif which < 0.9:
            await self._find(entry, self._chance.choice(self._keyed))
        else:
            await self._submit_and_cancel(entry)

    def _new(self, kind: str, *, keyed: bool) -> Task:
        self._number += 1
        pool = self._chance.choice(list(POOLS))
        return Task(self._number, kind, pool, f"key-{self._number}" if keyed else "")

    async def _submit(self, entry: str, task: Task) -> int | None:
        try:
            call = self._clients[entry].submit(task.spec())
            handle = await self._timed("submit", entry, task.shard, call)
        except cronoq.CronoqError:
            self.unsure.add(task.number)
            return None
        before = self.acknowledged.setdefault(handle.id, task)
        assert before is task, f"{task} was given the id of {before}"
        self._ids.append(handle.id)
        if task.key:
            self._keyed.append(handle.id)
        return handle.id

    async def _get(self, entry: str, task_id: int) -> None:
        task = self.acknowledged[task_id]
        call = self._clients[entry].get(task_id)
        await self._look("get", entry, task_id, task, call)

    async def _find(self, entry: str, task_id: int) -> None:
        """By its key: every shard is asked, and the one that has it answers."""
        task = self.acknowledged[task_id]
        call = self._clients[entry].get(task.key)
        await self._look(SPANS, entry, task_id, task, call)

    async def _look(
        self, what: str, entry: str, task_id: int, task: Task, call: Awaitable[cronoq.TaskInfo]
    ) -> None:
        try:
            found = await self._timed(what, entry, task.shard, call)
        except NotFoundError as error:
            raise AssertionError(f"{task} with the id {task_id} is unknown: {error}") from error
        except cronoq.CronoqError:
            return
        there = found.id, found.pool, found.tags["number"]
        assert there == (task_id, task.pool, str(task.number)), f"{task} is {found}"

    async def _submit_and_cancel(self, entry: str) -> None:
        task = self._new(NEVER, keyed=True)
        task_id = await self._submit(entry, task)
        if task_id is None:
            return
        call = self._clients[entry].cancel(task_id)
        try:
            changed = await self._timed("cancel", entry, task.shard, call)
        except NotFoundError as error:
            raise AssertionError(f"{task} with the id {task_id} is unknown: {error}") from error
        except cronoq.CronoqError:
            return
        assert changed, f"{task} could not be cancelled"
        self.cancelled.add(task_id)

    async def _timed(self, what: str, entry: str, subject: str, call: Awaitable[T]) -> T:
        began, error = time.monotonic(), ""
        try:
            return await call
        except cronoq.CronoqError as failed:
            error = f"{type(failed).__name__}: {failed}"
            raise
        finally:
            ended = time.monotonic()
            self.record.calls.append(Call(what, entry, subject, began, ended, error))

    # What is there in the end

    async def judge(self) -> None:
        """Waits until all that was acknowledged has ended, and compares.

        Raises:
            AssertionError: Something is not as it was promised.
        """
        assert not self.broken, "\n".join(self.broken[:10])
        client = self._clients[FRONT]
        ran = [i for i, task in self.acknowledged.items() if task.kind != NEVER]
        results = {result.id: result for result in await client.wait_many(ran)}
        for task_id in ran:
            task, result = self.acknowledged[task_id], results[task_id]
            assert result.status is cronoq.TaskStatus.SUCCEEDED, f"{task} ended as {result}"
            assert client.decode(result) == task.number, f"{task} ended as {result}"
        pages = client.list()
        there = {info.id: info async for info in pages if info.kind != MARKER}
        assert not pages.unavailable_shards
        numbers = Counter(int(info.tags["number"]) for info in there.values())
        twice = [number for number, count in numbers.items() if count > 1]
        assert not twice, f"tasks that are there twice: {twice[:10]}"
        lost = self.acknowledged.keys() - there.keys()
        assert not lost, f"{len(lost)} tasks are lost: {[self.acknowledged[i] for i in lost][:10]}"
        known = {task.number for task in self.acknowledged.values()}
        invented = numbers.keys() - known - self.unsure
        assert not invented, f"tasks that nobody has submitted: {sorted(invented)[:10]}"
        for task_id in self.cancelled:
            assert there[task_id].status is cronoq.TaskStatus.CANCELLED, there[task_id]
