"""Valid values for tests: say what the test is about, the rest is given."""

from __future__ import annotations

from typing import Any

from cronoq_server.engine.events import Submit, SubmitMode, WorkerJoined
from cronoq_server.engine.model import EngineSettings, PoolSettings, Status, TaskSpec
from cronoq_server.engine.mutations import OutputStored, StatusChanged, TaskInserted
from cronoq_server.engine.timers import NEVER
from cronoq_server.runtime.manual_clock import MANUAL_START
from cronoq_server.stores.base import Batch

EPOCH_START = MANUAL_START
"""A wall instant (Unix nanoseconds) for tests to begin at."""


def task(**given: Any) -> TaskSpec:
    """A spec in pool `default` of kind `default`."""
    return TaskSpec(**{"pool": "default", "kind": "default", **given})


def submit(call: int, *specs: TaskSpec, **given: Any) -> Submit:
    """A submit of these specs, each on its own; of one plain task when there are none."""
    return Submit(
        **{
            "call": call,
            "specs": list(specs) or [task()],
            "mode": SubmitMode.MANY,
            "until": NEVER,
            **given,
        }
    )


def worker(session: int, token: bytes, **given: Any) -> WorkerJoined:
    """A version 4 worker of pool `default` with one slot."""
    return WorkerJoined(
        **{
            "session": session,
            "pool": "default",
            "slots": 1,
            "name": f"worker-{session}",
            "labels": (),
            "kinds": (),
            "protocol": 4,
            "credential": "",
            "token": token,
            **given,
        }
    )


def engine_settings(**given: Any) -> EngineSettings:
    """Settings with the one pool `default`."""
    return EngineSettings(
        **{"pools": (PoolSettings("default"),), "store_remembers": False, **given}
    )


def inserted(task_id: int, *, at: int = EPOCH_START, **given: Any) -> TaskInserted:
    """A new task; what is given goes into its spec."""
    return TaskInserted(task_id, at, task(**given))


def changed(
    task_id: int, status: Status = Status.SUCCEEDED, *, at: int = EPOCH_START, **given: Any
) -> StatusChanged:
    """A change of a task in its first of three attempts."""
    return StatusChanged(
        **{
            "task_id": task_id,
            "status": status,
            "attempt": 1,
            "attempts_max": 3,
            "at": at,
            "started_at": at,
            **given,
        }
    )


def output(task_id: int, content: bytes = b"done", content_type: str = "") -> OutputStored:
    """An output."""
    return OutputStored(task_id, content, content_type)


def batch(position: int, *mutations: Any) -> Batch:
    """A batch of these mutations."""
    made = Batch(position)
    made.add(mutations)
    return made
