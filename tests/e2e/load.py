"""A client that remembers every acknowledgement, a worker that remembers every attempt, a judge.

A watch is open all the while, and has to see the end of every task.

The load goes on while a test does its worst; afterwards what was promised is compared with what
is there.
"""

from __future__ import annotations

import asyncio
from collections import Counter

import cronoq

SUBMITTERS = 16
ATTEMPTS_MAX = 6
STUMBLES = 7
"""Every seventh task fails at its first attempt."""


class Load:
    """Submits and works until it is told to finish, then judges.

    Attributes:
        acknowledged: Keys by id, in the order of the acknowledgements.
        attempts: How often each attempt (task, number) was begun.
        seen: Ids of the tasks whose end the watch has seen.
    """

    def __init__(self, address: str) -> None:
        self.acknowledged: dict[int, str] = {}
        self.attempts: Counter[tuple[int, int]] = Counter()
        self.seen: set[int] = set()
        self._number = 0
        self._finishing = False
        self._more = asyncio.Condition()
        self._tasks: list[asyncio.Task[None]] = []
        self._client = cronoq.Client(address, deadline=60.0)
        self._worker = cronoq.Worker(endpoint=address, slots=50)
        self._worker.handler("work")(self._work)

    async def __aenter__(self) -> Load:
        self._worker.start()
        self._watching = asyncio.create_task(self._watch())
        while not self.seen:  # the watch may not stand yet
            await (await self._submit_one()).wait()
        self._unwatched = set(self.acknowledged)
        self._tasks = [asyncio.create_task(self._submit()) for _ in range(SUBMITTERS)]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in (*self._tasks, self._watching):
            task.cancel()
        await asyncio.gather(*self._tasks, self._watching, return_exceptions=True)
        await self._worker.stop(drain_timeout=0)
        await self._client.close()

    async def _watch(self) -> None:
        async for event in self._client.watch():
            self.seen.add(event.id)
            async with self._more:
                self._more.notify_all()

    async def _submit(self) -> None:
        while not self._finishing:
            await self._submit_one()

    async def _submit_one(self) -> cronoq.TaskHandle:
        self._number += 1
        key = f"task-{self._number}"
        handle = await self._client.submit("work", self._number, key=key)
        assert self.acknowledged.setdefault(handle.id, key) == key
        async with self._more:
            self._more.notify_all()
        return handle

    async def _work(self, number: int, attempt: cronoq.Attempt) -> int:
        self.attempts[attempt.task_id, attempt.number] += 1
        if number % STUMBLES == 0 and attempt.number == 1:
            raise cronoq.Retryable("on purpose")
        return number

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

    async def judge(self) -> None:
        """Finishes, and holds what is there against what was acknowledged."""
        self._finishing = True
        await asyncio.gather(*self._tasks)
        ids = list(self.acknowledged)
        results = {result.id: result for result in await self._client.wait_many(ids)}
        assert {result.status for result in results.values()} == {cronoq.TaskStatus.SUCCEEDED}
        listed = [info async for info in self._client.list()]
        # Every submit was tried again until it was acknowledged: nothing else may be there.
        assert Counter(info.id for info in listed) == Counter(ids)
        assert {info.id: info.key for info in listed} == self.acknowledged
        assert max(info.attempt for info in listed) <= ATTEMPTS_MAX
        assert all(
            self._client.decode(results[task_id]) == int(key.removeprefix("task-"))
            for task_id, key in self.acknowledged.items()
        )
        assert max(self.attempts.values()) == 1, "an attempt was begun twice"
        watched = set(ids) - self._unwatched
        async with self._more:
            await self._more.wait_for(lambda: self.seen >= watched or self._watching.done())
        if self._watching.done():
            self._watching.result()
