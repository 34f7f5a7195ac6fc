"""A worker process for measurements: `python -m tests.bench.worker HOST:PORT SLOTS [POOL]`.

mark     does nothing; puts out the first bytes of its payload, so that every result can be told
         from the others
stamp    puts out when it was started, in nanoseconds of the clock that all processes share
"""

from __future__ import annotations

import sys
import time

import cronoq

MARK_BYTES = 8
WORKING = "working for "


async def mark(payload: bytes) -> bytes:
    """Puts out what tells this task from the others."""
    return payload[:MARK_BYTES]


async def stamp() -> int:
    """Puts out the instant of its start."""
    return time.monotonic_ns()


def main() -> None:
    """Serves until SIGTERM."""
    worker = cronoq.Worker(
        endpoint=sys.argv[1],
        slots=int(sys.argv[2]),
        pool=sys.argv[3] if len(sys.argv) > 3 else "default",
        on_connect=lambda where: print(f"{WORKING}{where}", flush=True),
    )
    for function in (mark, stamp):
        worker.handler(function.__name__)(function)
    worker.run_forever()


if __name__ == "__main__":
    main()
