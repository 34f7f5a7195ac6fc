"""Dramatiq over Redis: acknowledged after the work, results in a database of their own; no bulk."""

from __future__ import annotations

import dramatiq
import speaking
from dramatiq.brokers.redis import RedisBroker
from dramatiq.rate_limits import BucketRateLimiter, ConcurrentRateLimiter
from dramatiq.rate_limits.backends import RedisBackend as LimitsBackend
from dramatiq.results import Results
from dramatiq.results.backends import RedisBackend as ResultsBackend
from redis import Redis

SERVER = speaking.URL.removesuffix("/0")

broker = RedisBroker(url=speaking.URL)
broker.add_middleware(Results(backend=ResultsBackend(url=f"{SERVER}/1")))
dramatiq.set_broker(broker)
limits = LimitsBackend(url=f"{SERVER}/2")
concurrency = ConcurrentRateLimiter(limits, "slots", limit=100_000)
rate = BucketRateLimiter(limits, "rate", limit=1_000_000_000, bucket=1_000)


def run_limited(payload: str) -> str:
    """The work inside two limits that are never reached."""
    with concurrency.acquire(), rate.acquire():
        return speaking.work(payload)


job = dramatiq.actor(speaking.work, actor_name="job", store_results=True)
mix = [
    dramatiq.actor(run_limited, actor_name=f"limited-{place}", priority=place, store_results=True)
    for place in range(4)
]


class OverDramatiq(speaking.Adapter):
    """One queue; the mix has four priorities and two limits."""

    packages = ("dramatiq", "redis", "hiredis")

    def __init__(self) -> None:
        self._results = Redis.from_url(f"{SERVER}/1")
        self._turn = 0

    def _send_limited(self) -> None:
        self._turn += 1
        mix[self._turn % 4].send(speaking.PLAIN)

    async def bulk(self, count: int, mixed: bool = False) -> None:
        if mixed:
            speaking.by_threads(self._send_limited, count)
        else:
            await self.single(count)

    async def single(self, count: int) -> None:
        speaking.by_threads(lambda: job.send(speaking.PLAIN), count)

    async def probe(self) -> None:
        job.send(speaking.probe())

    async def left(self, submitted: int) -> int:
        return submitted - self._results.dbsize()


if __name__ == "__main__":
    speaking.run(OverDramatiq)
