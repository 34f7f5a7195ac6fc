"""Celery over Redis: late acknowledgement, results in a database of their own; a group for many."""

from __future__ import annotations

import speaking
from celery import Celery, group
from redis import Redis

RESULTS = speaking.URL.removesuffix("/0") + "/1"

app = Celery("peer", broker=speaking.URL, backend=RESULTS)
app.conf.update(
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=speaking.SLOTS,
    broker_pool_limit=speaking.CALLERS,
    broker_connection_retry_on_startup=True,
    broker_transport_options={"queue_order_strategy": "priority"},
    redis_max_connections=2 * speaking.CALLERS,
)


@app.task(name="job")
def job(payload: str) -> str:
    """The work."""
    return speaking.work(payload)


@app.task(name="limited", rate_limit="1000000/s")
def limited(payload: str) -> str:
    """The work, for a task whose rate each worker limits."""
    return speaking.work(payload)


class OverCelery(speaking.Adapter):
    """One queue; the mix has four priorities and a rate limit."""

    packages = ("celery", "kombu", "redis", "hiredis")

    def __init__(self) -> None:
        self._results = Redis.from_url(RESULTS)

    async def bulk(self, count: int, mixed: bool = False) -> None:
        for size in speaking.chunks(count):
            if mixed:
                jobs = [limited.s(speaking.PLAIN).set(priority=3 * (at % 4)) for at in range(size)]
            else:
                jobs = [job.s(speaking.PLAIN) for _ in range(size)]
            group(jobs).apply_async()

    async def single(self, count: int) -> None:
        speaking.by_threads(lambda: job.delay(speaking.PLAIN), count)

    async def probe(self) -> None:
        job.delay(speaking.probe())

    async def left(self, submitted: int) -> int:
        return submitted - self._results.dbsize()


if __name__ == "__main__":
    speaking.run(OverCelery)
