"""PgQueuer over PostgreSQL: `enqueue` takes many at once; ended jobs go to its log, no results."""

from __future__ import annotations

import asyncpg
import speaking
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver, AsyncpgPoolDriver
from pgqueuer.models import Job
from pgqueuer.queries import Queries

POOL = 32


class OverPgQueuer(speaking.Adapter):
    """One entrypoint; the mix has another one with a limit of concurrency, and priorities."""

    packages = ("pgqueuer", "asyncpg")

    async def prepare(self) -> None:
        self._pool = await asyncpg.create_pool(speaking.URL, min_size=4, max_size=POOL)
        self._queries = Queries(AsyncpgPoolDriver(self._pool))
        await self._queries.install()

    async def bulk(self, count: int, mixed: bool = False) -> None:
        name = "limited" if mixed else "job"
        payload = speaking.PLAIN.encode()
        for size in speaking.chunks(count):
            places = [index % 4 if mixed else 0 for index in range(size)]
            await self._queries.enqueue([name] * size, [payload] * size, places)

    async def single(self, count: int) -> None:
        payload = speaking.PLAIN.encode()
        await speaking.by_tasks(lambda: self._queries.enqueue("job", payload), count)

    async def probe(self) -> None:
        await self._queries.enqueue("job", speaking.probe().encode())

    async def left(self, _: int) -> int:
        return int(await self._pool.fetchval("SELECT count(*) FROM pgqueuer"))


async def serve() -> None:
    """Works until it is ended."""
    worker = PgQueuer(AsyncpgDriver(await asyncpg.connect(speaking.URL)))

    async def work(job: Job) -> None:
        assert job.payload is not None
        speaking.work(job.payload.decode())

    worker.entrypoint("job")(work)
    worker.entrypoint("limited", concurrency_limit=100_000)(work)
    await worker.run(batch_size=speaking.SLOTS)


if __name__ == "__main__":
    speaking.run(OverPgQueuer, worker=lambda: speaking.run_loop(serve()))
