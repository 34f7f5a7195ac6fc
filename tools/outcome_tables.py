"""Decides nothing: plays small worlds through the engine and writes down what became of tasks.

The tables of `docs/spec/outcomes.md` come from here, so that they can't say what the engine does
not do.
"""

from __future__ import annotations

from cronoq_server.engine.cron import Calendar, parse
from cronoq_server.engine.ending import edge_holds
from cronoq_server.engine.events import PutSchedule
from cronoq_server.engine.model import (
    FIRST_TERMINAL,
    SECOND,
    EdgeCondition,
    MissPolicy,
    Overlap,
    PoolSettings,
    RetryPolicy,
    ScheduleSpec,
    Status,
    TaskSpec,
)
from tests.engine.harness import World

ENDS = tuple(status for status in Status if status >= FIRST_TERMINAL)
SCHEDULE = "s"
NO_RETRY = RetryPolicy(max_attempts=1)


def word(status: int) -> str:
    """A status as the wire's documentation writes it."""
    return f"`{Status(status).name.lower()}`"


def table(head: list[str], rows: list[list[str]]) -> list[str]:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(cells) + " |" for cells in lines]


def dependencies() -> list[str]:
    """What each end of a parent means to a child, by the edge's condition."""
    head = ["parent ended", *(f"`{condition.name.lower()}`" for condition in EdgeCondition)]
    rows = [
        [
            word(status),
            *("goes on" if edge_holds(edge, status) else "`skipped`" for edge in EdgeCondition),
        ]
        for status in ENDS
    ]
    return table(head, rows)


def misses() -> list[str]:
    """What becomes of a fixed start that nobody served in time, and then when a worker comes."""
    rows = []
    for policy in MissPolicy:
        world = World()
        spec = TaskSpec("default", "default", start_in=10 * SECOND, on_miss=policy)
        task = world.add(spec)
        world.advance(11 * SECOND)
        at_tolerance = world.status(task)
        world.advance(SECOND)
        late = world.status(task)
        world.join()
        served = world.status(task) if late < FIRST_TERMINAL else late
        cells = (at_tolerance, late, served)
        rows.append([f"`{policy.name.lower()}`", *(word(status) for status in cells)])
    return table(["policy", "at start + tolerance", "after it", "when a worker comes"], rows)


def overlaps() -> list[str]:
    """What the next occurrence does, by how the one before stands when it is due."""
    stands = ["alive", "succeeded", "failed", "cancelled"]
    rows = [
        [f"`{overlap.name.lower()}`", *(_next_occurrence(overlap, stand) for stand in stands)]
        for overlap in Overlap
    ]
    return table(["overlap", *(f"the one before: {stand}" for stand in stands)], rows)


def _next_occurrence(overlap: Overlap, stand: str) -> str:
    world = World(PoolSettings("default", lease_ttl=3600 * SECOND))
    template = TaskSpec("default", "default", retry=NO_RETRY)
    spec = ScheduleSpec(SCHEDULE, "* * * * *", template, overlap=overlap)
    calendar = parse(spec.cron)
    assert isinstance(calendar, Calendar)
    world.ask(PutSchedule(world.call(), spec, calendar))
    session = world.join(slots=2)
    world.advance(60 * SECOND)
    first = min(world.ledger.rows)
    if stand == "succeeded":
        world.complete(session, world.lease_of(first).lease)
    elif stand == "failed":
        world.fail(session, world.lease_of(first).lease)
    elif stand == "cancelled":
        world.cancel(first)
    before = set(world.ledger.rows)
    world.advance(60 * SECOND)
    made = sorted(set(world.ledger.rows) - before)
    return word(world.status(made[0])) if made else "none is created"


def sections() -> list[str]:
    """All tables with what to know about them."""
    return [
        "## Dependencies",
        "",
        "All edges of a task must hold. The first that no longer can ends it `skipped`, and that",
        "is an end like any other for its own children.",
        "",
        *dependencies(),
        "",
        "A parent that ended before the retention window counts as satisfied for every edge.",
        "",
        "## Missed starts",
        "",
        "A fixed start is missed once its tolerance is over and the task has not started.",
        "",
        *misses(),
        "",
        "## Overlapping occurrences",
        "",
        "What the next occurrence of a schedule does when it is due; a worker with a free slot is",
        "there. Under `queue_on_success` an end without success breaks the chain until the",
        "schedule is put again.",
        "",
        *overlaps(),
        "",
    ]
