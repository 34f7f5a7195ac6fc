"""Procrastinate over PostgreSQL: `batch_defer_async` for many; it keeps a status, no results."""

from __future__ import annotations

import speaking
from procrastinate import App, PsycopgConnector

POOL = 32

app = App(connector=PsycopgConnector(conninfo=speaking.URL, min_size=4, max_size=POOL))


@app.task(name="job")
async def job(payload: str) -> str:
    """The work."""
    return speaking.work(payload)


class OverProcrastinate(speaking.Adapter):
    """One task in the queue `default`; the mix has four priorities."""

    packages = ("procrastinate", "psycopg")

    async def prepare(self) -> None:
        await app.open_async()
        await app.schema_manager.apply_schema_async()

    async def bulk(self, count: int, mixed: bool = False) -> None:
        for size in speaking.chunks(count):
            if mixed:
                for priority in range(4):
                    part = [{"payload": speaking.PLAIN}] * (size // 4 + (priority < size % 4))
                    await job.configure(priority=priority).batch_defer_async(*part)
            else:
                await job.batch_defer_async(*[{"payload": speaking.PLAIN}] * size)

    async def single(self, count: int) -> None:
        await speaking.by_tasks(lambda: job.defer_async(payload=speaking.PLAIN), count)

    async def probe(self) -> None:
        await job.defer_async(payload=speaking.probe())

    async def left(self, _: int) -> int:
        found = await app.connector.execute_query_one_async(
            "SELECT count(*) AS jobs FROM procrastinate_jobs WHERE status IN ('todo', 'doing')"
        )
        return int(found["jobs"])


async def serve() -> None:
    """Works until it is told to stop."""
    async with app.open_async():
        await app.run_worker_async(concurrency=speaking.SLOTS)


if __name__ == "__main__":
    speaking.run(OverProcrastinate, worker=lambda: speaking.run_loop(serve()))
