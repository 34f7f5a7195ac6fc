"""A client that remembers every acknowledgement, workers that write down every attempt, a judge.

A watch is open all the while, and has to see the end of every task; a schedule fires every second.
The load goes on while a test does its worst; afterwards what was promised is held against what
is there.
"""

from __future__ import annotations

import asyncio
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections import Counter
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import cronoq
from tests.e2e.replicas import ROOT
from tests.e2e.worker import WORKING

ATTEMPTS_MAX = 6
SLOTS = 25
DEADLINE_S = 300.0
"""Calls are tried again for longer than any fault lasts: not one may fail."""
SCHEDULE = "every-second"
OCCURRENCES = cronoq.TaskFilter(schedule=SCHEDULE)


class Load:
    """Submits and works until it is told to finish, then judges.

    Attributes:
        acknowledged: Keys by id, in the order of the acknowledgements.
        seen: How tasks have ended, by id, as the watch told.
    """

    def __init__(
        self,
        address: str,
        directory: Path,
        *,
        submitters: int = 16,
        workers: int = 1,
        pause: float = 0.03,
    ) -> None:
        """Nothing is sent yet.

        Args:
            address: Of the balancer.
            directory: Where workers write down what they begin.
            submitters: Callers that submit one task after the other.
            workers: Processes that work.
            pause: Between an acknowledgement and the next submit of one caller, seconds.
        """
        self.acknowledged: dict[int, str] = {}
        self.seen: dict[int, cronoq.TaskStatus] = {}
        self._acknowledged_at: list[float] = []
        self._settled = 0
        self._number = 0
        self._highest = 0
        self._finishing = False
        self._more = asyncio.Condition()
        self._address = address
        self._books = [directory / f"attempts-{n}" for n in range(workers)]
        self._workers: list[Process] = []
        self._submitters = submitters
        self._pause = pause
        self._tasks: list[asyncio.Task[None]] = []
        self.client = cronoq.Client(address, deadline=DEADLINE_S)

    async def __aenter__(self) -> Load:
        for book in self._books:
            await self._start_worker(book)
        self._watching = asyncio.create_task(self._watch())
        while not self.seen:  # the watch may not stand yet
            await (await self._submit_one()).wait()
        self._unwatched = set(self.acknowledged)
        await self.client.put_schedule(
            cronoq.ScheduleSpec(
                name=SCHEDULE,
                cron="* * * * * *",
                template=cronoq.TaskSpec("tick"),
                overlap=cronoq.Overlap.ALLOW,
                catch_up=cronoq.CatchUp.ALL,
            )
        )
        self._tasks = [asyncio.create_task(self._submit()) for _ in range(self._submitters)]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in (*self._tasks, self._watching):
            task.cancel()
        await asyncio.gather(*self._tasks, self._watching, return_exceptions=True)
        for worker in self._workers:
            if worker.returncode is None:
                worker.kill()
            await worker.communicate()
        await self.client.close()

    async def _start_worker(self, book: Path) -> None:
        worker = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.e2e.worker", self._address, str(book), str(SLOTS)),
            cwd=ROOT,
            stdout=PIPE,
        )
        self._workers.append(worker)
        assert worker.stdout is not None
        line = await worker.stdout.readline()
        assert line.decode().startswith(WORKING), line

    async def _watch(self) -> None:
        async for event in self.client.watch():
            # An end may be told twice, but never another one.
            assert self.seen.setdefault(event.id, event.status) is event.status
            async with self._more:
                self._more.notify_all()

    async def _submit(self) -> None:
        while not self._finishing:
            await self._submit_one()
            if self._pause:
                await asyncio.sleep(self._pause)

    async def _submit_one(self) -> cronoq.TaskHandle:
        self._number += 1
        key = f"task-{self._number}"
        before = self._highest
        handle = await self.client.submit("work", self._number, key=key)
        assert handle.id > before, "an id does not rise above one that was told before"
        assert self.acknowledged.setdefault(handle.id, key) == key
        self._highest = max(self._highest, handle.id)
        self._acknowledged_at.append(time.monotonic())
        async with self._more:
            self._more.notify_all()
        return handle

    async def goes_on(self, count: int) -> None:
        """Returns when so many more submits have been acknowledged."""
        wanted = len(self.acknowledged) + count
        async with self._more:
            await self._more.wait_for(
                lambda: len(self.acknowledged) >= wanted or any(t.done() for t in self._tasks)
            )
        for task in self._tasks:
            if task.done():
                task.result()

    def longest_silence(self, since: float) -> float:
        """The longest time without an acknowledgement since a moment (monotonic), in seconds."""
        later = [at for at in self._acknowledged_at if at > since]
        return max(b - a for a, b in pairwise([since, *later, time.monotonic()]))

    async def settle(self) -> None:
        """Waits for the end of all that was acknowledged by now, and judges it."""
        ids = list(self.acknowledged)[self._settled :]
        results = {result.id: result for result in await self.client.wait_many(ids)}
        self._settled += len(ids)
        assert sorted(results) == sorted(ids)
        assert {result.status for result in results.values()} <= {cronoq.TaskStatus.SUCCEEDED}
        for task_id, result in results.items():
            number = int(self.acknowledged[task_id].removeprefix("task-"))
            assert self.client.decode(result) == number

    async def judge(self) -> int:
        """Finishes, and holds what is there against what was acknowledged.

        Returns:
            How many occurrences the schedule has had.
        """
        self._finishing = True
        await asyncio.gather(*self._tasks)
        while not [info async for info in self.client.list(OCCURRENCES)]:
            pass  # a short play may have been over within the schedule's first second
        await self.client.pause_schedule(SCHEDULE)
        await self.settle()
        occurrences = [info async for info in self.client.list(OCCURRENCES)]
        await self.client.wait_many([info.id for info in occurrences])
        everything = [info async for info in self.client.list()]
        ticks = [info for info in everything if info.kind == "tick"]
        assert Counter(info.key for info in ticks) == Counter(info.key for info in occurrences)
        self._judge_schedule(ticks)
        works = [info for info in everything if info.kind == "work"]
        # Every submit was tried again until it was acknowledged: nothing else may be there.
        assert sorted(info.id for info in works) == sorted(self.acknowledged)
        assert {info.id: info.key for info in works} == self.acknowledged
        assert {info.status for info in everything} == {cronoq.TaskStatus.SUCCEEDED}
        self._judge_attempts({info.id: info.attempt for info in everything})
        await self._judge_watch()
        assert [worker.returncode for worker in self._workers] == [None] * len(self._workers)
        return len(ticks)

    def _judge_schedule(self, ticks: list[cronoq.TaskInfo]) -> None:
        """Each second from the first to the last has its task, and only one."""
        prefix = f"{SCHEDULE}@"
        starts = sorted(
            datetime.strptime(info.key.removeprefix(prefix), "%Y-%m-%dT%H:%M:%SZ").replace(
                tzinfo=UTC
            )
            for info in ticks
        )
        assert starts, "the schedule never fired"
        for earlier, later in pairwise(starts):
            assert later - earlier == timedelta(seconds=1), f"after {earlier} came {later}"

    def _judge_attempts(self, counted: dict[int, int]) -> None:
        begun = Counter(
            tuple(map(int, line.split()))
            for book in self._books
            for line in book.read_text(encoding="ascii").splitlines()
        )
        assert max(begun.values()) == 1, "an attempt was begun twice"
        assert max(counted.values()) <= ATTEMPTS_MAX
        assert {task_id for task_id, _ in begun} == set(counted)
        for task_id, number in begun:
            assert 1 <= number <= counted[task_id]

    async def _judge_watch(self) -> None:
        watched = set(self.acknowledged) - self._unwatched
        async with self._more:
            await self._more.wait_for(lambda: self.seen.keys() >= watched or self._watching.done())
        if self._watching.done():
            self._watching.result()
        assert set(self.seen.values()) == {cronoq.TaskStatus.SUCCEEDED}
