"""Ours: a Python client with a Python worker; `submit_many` for many, results delivered.

It is also how the server of the published crate is measured: that speaks the same protocol.
"""

from __future__ import annotations

import asyncio

import speaking

import cronoq

MIX = ("critical", "high", "normal", "low")
LIMITS = {"slots-of-the-bench": 1, "rate-of-the-bench": 1}
IN_FLIGHT = 3
SHARE = 5_000


class OverCronoq(speaking.Adapter):
    """One client; every result comes back and is looked at."""

    def __init__(self) -> None:
        self._client = cronoq.Client(speaking.URL)

    async def prepare(self) -> None:
        self._plain = cronoq.TaskSpec("job", speaking.PLAIN.encode())
        self._mix = [
            cronoq.TaskSpec(
                "job",
                speaking.PLAIN.encode(),
                priority=cronoq.Priority[name.upper()],
                resources=LIMITS,
            )
            for name in MIX
        ]

    async def bulk(self, count: int, mixed: bool = False) -> None:
        await self._submit(count, mixed)

    async def _submit(self, count: int, mixed: bool) -> list[cronoq.TaskHandle]:
        specs = [self._mix[index % 4] if mixed else self._plain for index in range(count)]
        handles = []
        for answer in await self._client.submit_many(specs):
            if not isinstance(answer, cronoq.TaskHandle):
                raise answer
            handles.append(answer)
        return handles

    async def single(self, count: int) -> None:
        await speaking.by_tasks(lambda: self._client.submit(self._plain), count)

    async def probe(self) -> None:
        await self._client.submit("job", speaking.probe().encode())

    async def through(self, count: int, how: str, done: int) -> None:
        if how == "single":
            await super().through(count, how, done)
            return
        gate = asyncio.Semaphore(IN_FLIGHT)

        async def share(size: int) -> None:
            async with gate:
                handles = await self._submit(size, how == "mixed")
                for result in await self._client.wait_many(handles):
                    if result.output != speaking.work(speaking.PLAIN).encode():
                        raise RuntimeError(f"a task came back as {result}")

        shares = (min(SHARE, count - first) for first in range(0, count, SHARE))
        await asyncio.gather(*map(share, shares))

    async def left(self, submitted: int) -> int:
        totals = (await self._client.snapshot()).totals
        return submitted - totals.succeeded


async def job(payload: bytes) -> bytes:
    """The work."""
    return speaking.work(payload.decode()).encode()


def serve() -> None:
    """Works until it is told to stop."""
    worker = cronoq.Worker(endpoint=speaking.URL, slots=speaking.SLOTS)
    worker.handler("job")(job)
    worker.run_forever()


if __name__ == "__main__":
    speaking.run(OverCronoq, worker=serve)
