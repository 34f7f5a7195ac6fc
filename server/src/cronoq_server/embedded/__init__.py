"""The scheduler in the caller's own process: same engine, same stores, functions as executors.

Nothing listens and nothing is sent: a `Scheduler` leads as a server would, one of several over a
shared store, and hands attempts to functions instead of workers.
"""

from cronoq_server.embedded.executor import Attempt, Cancel, Permanent, Retryable
from cronoq_server.embedded.scheduler import (
    MemoryStore,
    Pool,
    PostgresStore,
    Scheduler,
    SchedulerError,
    SqliteStore,
    TaskFailed,
)
from cronoq_server.embedded.values import TaskOptions

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
]
