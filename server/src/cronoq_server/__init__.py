"""The cronoq server, and its scheduler for programs that embed it.

`__version__` is the version, in the one place that packaging and the wire read. The names of
`embedded` are found here too; they are loaded when they are first asked for, so that the command
line starts quickly.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cronoq_server.embedded import (
        Attempt,
        Cancel,
        MemoryStore,
        Permanent,
        Pool,
        PostgresStore,
        Retryable,
        Scheduler,
        SchedulerError,
        SqliteStore,
        TaskFailed,
        TaskOptions,
    )

__version__ = "0.3.0"

__all__ = [
    "Attempt",
    "Cancel",
    "MemoryStore",
    "Permanent",
    "Pool",
    "PostgresStore",
    "Retryable",
    "Scheduler",
    "SchedulerError",
    "SqliteStore",
    "TaskFailed",
    "TaskOptions",
    "__version__",
]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(importlib.import_module("cronoq_server.embedded"), name)
    return value
