"""Decides what is made of stored rows that somebody damaged: they are set aside, or can be led.

The bytes of a row go through the codec of the SQL stores. What it calls readable is taken over by
an engine, which then has to go on: run the task, retry it, create occurrences, show and write it.
"""

from __future__ import annotations

from typing import Any

import msgspec

from cronoq_server.engine import events
from cronoq_server.engine.engine import Engine, Step
from cronoq_server.engine.model import (
    SECOND,
    EngineSettings,
    Now,
    PoolSettings,
    ResourceSettings,
    Status,
    TaskFilter,
    TaskSpec,
)
from cronoq_server.engine.mutations import (
    RecoveredChunk,
    ScheduleSaved,
    StatusChanged,
    TaskInserted,
)
from cronoq_server.engine.views import stored_detail, stored_event, stored_result, stored_view
from cronoq_server.stores import codec

NOW = Now(1_700_000_000 * SECOND, 1_000 * SECOND)
STEPS = 12
"""How often an engine that has taken a row over is woken."""


class Lowest:
    """Chance that always draws zero."""

    def below(self, _bound: int) -> int:
        """Zero."""
        return 0


def rows(content: bytes) -> None:
    """One stored value, by the first byte: a spec, a change, both of an end, a schedule, a size."""
    if not content:
        return
    blob = content[1:]
    match content[0] % 5:
        case 0:
            _spec(blob)
        case 1:
            _change(blob)
        case 2:
            _ended(blob)
        case 3:
            schedule = codec.decode_schedule(blob)
            if schedule is not None:
                _lead(RecoveredChunk(schedules=(schedule,)))
        case _:
            resized = codec.decode_resized(blob)
            if resized is not None:
                _lead(RecoveredChunk(resized=(resized,)))


def _spec(blob: bytes) -> None:
    task = codec.read_live(1, NOW.wall - SECOND, "key", blob, b"payload", None)
    if task is not None:
        _lead(RecoveredChunk(live=(task,)))


def _change(blob: bytes) -> None:
    spec = codec._encode(TaskSpec("default", "work"))
    task = codec.read_live(1, NOW.wall - SECOND, None, spec, None, blob)
    if task is not None:
        _lead(RecoveredChunk(live=(task,)))


def _ended(blob: bytes) -> None:
    half = len(blob) // 2
    columns = codec.EndedColumns(
        *(1, NOW.wall, "key", "default", "work", None, blob[:half], None),
        *(1, NOW.wall, int(Status.FAILED), blob[half:]),
    )
    task = codec.read_ended(columns)
    for view in (stored_view, stored_detail, stored_event, stored_result):
        view(task)
    whole = codec.read_spec(blob, None)
    if whole is not None:
        task = msgspec.structs.replace(task, spec=whole)
    _lead(RecoveredChunk(finished=(task,)))


def _lead(chunk: RecoveredChunk) -> None:
    """Leads from this and nothing else, for a while."""
    pools = (PoolSettings("default"),)
    resources = (
        ResourceSettings("gpu", permits=2),
        ResourceSettings("api", "token_bucket", rate=1.0, burst=5),
    )
    engine = Engine(EngineSettings(pools=pools, resources=resources), Lowest())
    steps = [engine.restore([chunk], NOW)]
    now = NOW
    calls: list[Any] = [
        events.WorkerJoined(1, "default", 2, "worker", (), (), 4, "", b"token"),
        events.SnapshotQuery(1),
        events.ListTasks(2, TaskFilter(), 0, 10),
        events.Get(3, 1),
    ]
    for number in range(STEPS):
        happened = (calls.pop(0),) if calls else ()
        step = engine.step(happened, now)
        steps.append(step)
        steps.append(engine.step([events.Released(step.number)], now))
        wake, longest = step.wake_at, (number + 1) * 900 * SECOND
        forward = max(1, min(wake.mono - now.mono, wake.wall - now.wall, longest))
        now = Now(now.wall + forward, now.mono + forward)
    engine.close()
    for step in steps:
        _write(step)


def _write(step: Step) -> None:
    """Everything that was decided can be written and read again."""
    for mutation in step.mutations:
        if isinstance(mutation, StatusChanged):
            assert codec.read_change(mutation.task_id, codec.encode_change(mutation)) == mutation
        elif isinstance(mutation, TaskInserted):
            row = codec.task_row(mutation)
            assert codec.read_spec(row[7], row[8], row[2]) == mutation.spec
        elif isinstance(mutation, ScheduleSaved):
            blob = codec.encode_schedule(mutation.schedule)
            assert codec.decode_schedule(blob) == mutation.schedule
