"""A pipeline without an event loop: parts in one batch, and a task that depends on all of them.

python pipeline.py [ENDPOINT]
"""

from __future__ import annotations

import sys

from cronoq import Dep, EdgeCond, Priority, TaskSpec, new_key
from cronoq.blocking import Client

ENDPOINT = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:7070"


def main() -> None:
    """Submits everything at once: admitted whole or not at all."""
    run = new_key()
    parts = [TaskSpec("square", n, key=f"{run}/{n}") for n in range(10)]
    total = TaskSpec(
        "total",
        key=f"{run}/total",
        priority=Priority.HIGH,
        deps=[Dep(part.key, EdgeCond.ON_SUCCESS) for part in parts],
    )
    with Client(ENDPOINT) as client:
        *_, last = client.submit_batch([*parts, total])
        print(f"the sum of ten squares is {last.result(int)}")


main()
