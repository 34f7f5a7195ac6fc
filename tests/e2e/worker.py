"""A worker process that writes down every attempt: `python -m tests.e2e.worker ADDRESS FILE SLOTS`.

What it has begun is in the file before the handler goes on, so that nothing can be begun twice
unseen, whichever process ends how.
"""

from __future__ import annotations

import asyncio
import os
import sys

import cronoq

WORKING = "working for "
STUMBLES = 7
"""Every seventh task fails at its first attempt."""
WORKS_S = 0.02
"""How long a handler takes: whoever is killed has attempts that run."""


def announce(where: str) -> None:
    """Says that the worker is connected."""
    sys.stdout.write(f"{WORKING}{where}\n")
    sys.stdout.flush()


def make_worker(address: str, path: str, slots: int) -> cronoq.Worker:
    """A worker for the kinds `work` and `tick`."""
    book = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
    worker = cronoq.Worker(
        endpoint=address,
        slots=slots,
        on_connect=announce,
    )

    def note(attempt: cronoq.Attempt) -> None:
        os.write(book, f"{attempt.task_id} {attempt.number}\n".encode())

    async def work(number: int, attempt: cronoq.Attempt) -> int:
        note(attempt)
        await asyncio.sleep(WORKS_S)
        if number % STUMBLES == 0 and attempt.number == 1:
            raise cronoq.Retryable("on purpose")
        return number

    async def tick(attempt: cronoq.Attempt) -> str:
        note(attempt)
        return attempt.key

    worker.handler("work")(work)
    worker.handler("tick")(tick)
    return worker


if __name__ == "__main__":
    make_worker(sys.argv[1], sys.argv[2], int(sys.argv[3])).run_forever()
