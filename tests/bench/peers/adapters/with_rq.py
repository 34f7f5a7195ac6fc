"""RQ over Redis: jobs and results as hashes; `enqueue_many` sends one pipeline."""

from __future__ import annotations

import speaking
from redis import Redis
from rq import Queue


class OverRq(speaking.Adapter):
    """The queue `default`, and `urgent` before it for the mix of priorities."""

    packages = ("rq", "redis", "hiredis")

    def __init__(self) -> None:
        self._redis = Redis.from_url(speaking.URL, max_connections=2 * speaking.CALLERS)
        self._queue = Queue("default", connection=self._redis)
        self._urgent = Queue("urgent", connection=self._redis)

    async def bulk(self, count: int, mixed: bool = False) -> None:
        for size in speaking.chunks(count):
            shares = ((self._urgent, size // 2),) if mixed else ()
            for queue, part in (*shares, (self._queue, size - size // 2 if mixed else size)):
                jobs = [Queue.prepare_data(speaking.work, (speaking.PLAIN,)) for _ in range(part)]
                queue.enqueue_many(jobs)

    async def single(self, count: int) -> None:
        speaking.by_threads(lambda: self._queue.enqueue(speaking.work, speaking.PLAIN), count)

    async def probe(self) -> None:
        self._queue.enqueue(speaking.work, speaking.probe())

    async def left(self, submitted: int) -> int:
        queues = (self._queue, self._urgent)
        ended = (each.finished_job_registry.get_job_count(cleanup=False) for each in queues)
        return submitted - sum(ended)


if __name__ == "__main__":
    speaking.run(OverRq)
