"""A worker for each pool, in whatever language, all of them given the address of all shards."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from cronoq_conformance.languages import ROOT
from cronoq_conformance.participant import Participant
from cronoq_conformance.run import environment

from tests.e2e.sharded.cluster import TOKENS, Cluster

SLOTS = 32
HELD_S = (0.1, 2.0)
"""How long a task of the kind `held` is held, at least and at most."""

HANDLERS = {
    "quick": {"act": "echo", "quiet": True},
    "stumbles": {
        "act": "by_attempt",
        "attempts": [{"act": "fail", "message": "on purpose"}, {"act": "echo"}],
        "quiet": True,
    },
    "held": {"act": "block"},
}


class Workers:
    """All of them.

    Attributes:
        by_pool: The program that works for each pool.
    """

    def __init__(self, by_pool: Mapping[str, Participant]) -> None:
        self.by_pool = by_pool

    def judge(self) -> None:
        """Holds what handlers have begun against the promise that no attempt is begun twice.

        Raises:
            AssertionError: One was.
        """
        begun = Counter(
            (fact["task_id"], fact["attempt"])
            for worker in self.by_pool.values()
            for fact in worker.facts
            if fact["fact"] == "attempt_started"
        )
        twice = [attempt for attempt, count in begun.items() if count > 1]
        assert not twice, f"attempts that were begun twice: {twice[:10]}"


@asynccontextmanager
async def workers(
    cluster: Cluster, commands: Mapping[str, Sequence[str]], chance: random.Random
) -> AsyncIterator[Workers]:
    """Starts a worker for each pool and returns when each has found its shard.

    Args:
        cluster: For whom they work.
        commands: How each pool's is started.
        chance: Decides how long tasks are held.
    """
    by_pool = {
        pool: Participant(command, ROOT, environment()) for pool, command in commands.items()
    }
    async with AsyncExitStack() as stack:
        for worker in by_pool.values():
            stack.push_async_callback(worker.close)
        async with asyncio.TaskGroup() as starting:
            for pool, worker in by_pool.items():
                starting.create_task(_start(cluster, pool, worker))
        holding = [asyncio.create_task(_let_go(worker, chance)) for worker in by_pool.values()]
        try:
            yield Workers(by_pool)
        finally:
            for task in holding:
                task.cancel()
            await asyncio.gather(*holding, return_exceptions=True)


async def _start(cluster: Cluster, pool: str, worker: Participant) -> None:
    """Returns when a pool's worker has found its shard."""
    await worker.start()
    options = {
        "endpoint": cluster.front.address,
        "pool": pool,
        "slots": SLOTS,
        "token": TOKENS["worker"],
        "tls_ca": str(cluster.ca),
    }
    answer = await worker.send("start_worker", {"options": options, "handlers": HANDLERS})
    assert answer["fact"] == "done", answer
    await worker.fact("connected", {})


async def _let_go(worker: Participant, chance: random.Random) -> None:
    """Lets each held attempt end some time after it has begun."""
    loop = asyncio.get_running_loop()
    while True:
        fact = await worker.fact("attempt_started", {"kind": "held"})
        ending = {"task_id": fact["task_id"], "behaviour": {"act": "echo"}}
        loop.call_later(chance.uniform(*HELD_S), worker.send, "finish_attempt", ending)
