"""What a client or a worker writes down of its operations: one JSON object a line.

Instants are nanoseconds of the machine's monotonic clock, the same one in all its namespaces, so
that what different processes saw can be put in order.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from cronoq_server._proto import task_pb2

KEEPALIVE = [
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 3_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.min_reconnect_backoff_ms", 500),
    ("grpc.use_local_subchannel_pool", 1),
]
"""Options of every channel: a host that comes back is to be found soon."""

STATUSES = {
    number: name.removeprefix("TASK_STATUS_").lower()
    for name, number in task_pb2.TaskStatus.items()
}


def output_of(key: str, attempt: int) -> bytes:
    """What a worker's attempt comes to: it tells whose it was."""
    return f"{key}:{attempt}".encode()


class Record:
    """A file of operations."""

    def __init__(self, path: Path, who: str) -> None:
        self._file = path.open("w", encoding="utf-8", buffering=1)
        self._who = who

    def note(
        self, op: str, key: str, call: int, *, returned: int | None = None, **seen: Any
    ) -> None:
        """Writes one down; without a return nobody knows what came of it."""
        said = {"who": self._who, "op": op, "key": key, "call": call, **seen}
        if returned is not None:
            said["return"] = returned
        self._file.write(json.dumps(said) + "\n")

    def close(self) -> None:
        """Nothing follows."""
        self._file.close()


now = time.monotonic_ns
