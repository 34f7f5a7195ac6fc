"""A worker: run it beside a server, then run submit_and_wait.py.

python hello_worker.py [ENDPOINT [POOL]]
"""

from __future__ import annotations

import logging
import sys
import time
from dataclasses import dataclass

from cronoq import Attempt, Permanent, Retryable, Worker

endpoint = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:7070"
pool = sys.argv[2] if len(sys.argv) > 2 else "default"
worker = Worker(endpoint=endpoint, pool=pool, slots=8)


@dataclass
class Order:
    """What a client submits for `bill`: any JSON object with these fields will do."""

    customer: str
    cents: int


@worker.handler("greet")
async def greet(name: str) -> str:
    """Async handlers run side by side on one event loop."""
    return f"hello {name}"


@worker.handler("bill")
def bill(attempt: Attempt, order: Order) -> dict[str, int | str]:
    """Sync handlers run in threads; (task_id, number) is a fencing token for outside systems."""
    if order.cents < 0:
        raise Permanent(f"{order.customer} cannot owe {order.cents} cents")
    if attempt.number == 1:
        raise Retryable("the bank asks to come back", retry_after=0.2)
    return {"customer": order.customer, "cents": order.cents, "attempt": attempt.number}


@worker.handler("count")
def count(attempt: Attempt, steps: int) -> int:
    """A long handler tells how far it is and stops when it is told to."""
    for step in range(steps):
        if attempt.is_cancelled:
            break
        attempt.progress(fraction=step / steps)
        time.sleep(0.1)
    return steps


@worker.handler("total")
async def total(attempt: Attempt) -> int:
    """A task can read the outputs of those it depended on."""
    return sum([await attempt.output(parent, int) for parent in attempt.parents])


@worker.handler("square")
async def square(number: int) -> int:
    """One part of the pipeline in pipeline.py."""
    return number * number


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    worker.run_forever()
