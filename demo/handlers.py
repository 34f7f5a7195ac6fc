"""What the demo's worker can do: four handlers, and the process that offers them.

    count_file      a real file: digest, lines, words
    add_counts      what its parents put out, added up
    succeed_third   fails twice, then succeeds
    run_on          runs until it is cancelled

Run as `python -m demo.handlers HOST:PORT`; it drains and ends on SIGTERM, as any worker should.
"""

from __future__ import annotations

import asyncio
import hashlib
import sys
from dataclasses import dataclass
from pathlib import Path

import cronoq
from demo.counts import TEXT_LOOK_BYTES, Counts, add_up, is_text

SLOTS = 16
WORKING = "working for "
"""How the process says that it is connected."""
FAILURES = 2
DRAIN_S = 2.0
"""What running handlers get when the demo is interrupted; its tasks are not needed any more."""


@dataclass(frozen=True, slots=True)
class FileToCount:
    """The payload of `count_file`."""

    path: str


def count_file(file: FileToCount, attempt: cronoq.Attempt) -> Counts:
    """Reads a file in chunks. Not async, so it runs on a thread, may block and must look."""
    digest = hashlib.sha256()
    size = lines = words = 0
    last = b""
    text = True
    with Path(file.path).open("rb") as content:
        while chunk := content.read(TEXT_LOOK_BYTES):
            if attempt.is_cancelled:
                raise cronoq.Retryable(f"stopped: {attempt.cancel_reason}")
            text = text and (size > 0 or is_text(chunk))
            digest.update(chunk)
            size += len(chunk)
            if not text:
                continue
            lines += chunk.count(b"\n")
            words += len(chunk.split())
            # A word that crosses from chunk to chunk was counted in both.
            if last and not last.isspace() and not chunk[:1].isspace():
                words -= 1
            last = chunk[-1:]
    if last and last != b"\n":
        lines += 1
    return Counts(1, int(not text), size, lines, words, digest.hexdigest())


async def add_counts(attempt: cronoq.Attempt) -> Counts:
    """Adds up what the tasks put out that this one depends on."""
    outputs = [attempt.output(parent, Counts) for parent in attempt.parents]
    return add_up(await asyncio.gather(*outputs))


async def succeed_third(attempt: cronoq.Attempt) -> int:
    """Fails twice and says so, then returns the number of the attempt that made it."""
    if attempt.number <= FAILURES:
        raise cronoq.Retryable(f"attempt {attempt.number} fails on purpose")
    return attempt.number


async def run_on(attempt: cronoq.Attempt) -> None:
    """Waits for what never comes; a cancelled task cancels its handler too."""
    attempt.progress("running until somebody cancels me")
    await asyncio.Event().wait()


HANDLERS = (count_file, add_counts, succeed_third, run_on)


def make_worker(endpoint: str) -> cronoq.Worker:
    """Returns a worker that serves each handler under the function's name."""
    worker = cronoq.Worker(
        endpoint=endpoint,
        slots=SLOTS,
        name="demo-worker",
        drain_timeout=DRAIN_S,
        on_connect=lambda where: print(f"{WORKING}{where}", flush=True),
    )
    for function in HANDLERS:
        worker.handler(function.__name__)(function)
    return worker


if __name__ == "__main__":
    make_worker(sys.argv[1]).run_forever()
