"""A backlog of one kind whose workers were away, under load, and what becomes of it."""

from __future__ import annotations

from itertools import pairwise

import pytest

from cronoq_server.engine.model import SECOND
from tests.engine.harness import World, spec

AWAY = 600
"""For how many seconds nobody serves the kind."""

AT_ONCE = 3
"""Slots of its workers when they are back: each task takes a second, and one comes each second."""


@pytest.mark.regression("R32")
def test_backlog_goes_before_fresh_work() -> None:
    """EN-73, R32: oldest first, and the age of the oldest falls steadily until there is none."""
    world = World(checks=False)
    others = world.join(2, kinds=("other",))
    for _ in range(AWAY):
        world.submit(spec("mail"), spec("other"))
        world.leap(SECOND)
        world.complete(others)
    waiting = [task.id for task in world.engine._state.tasks.values() if task.spec.kind == "mail"]
    assert len(waiting) == AWAY

    mailers = world.join(AT_ONCE, kinds=("mail",))
    started: list[int] = []
    ages: list[int] = []
    while len(started) < AWAY:
        assert len(world.out[mailers]) == AT_ONCE
        started += [lease.task_id for lease in world.out[mailers].values()]
        oldest = min(world.ledger.rows[i].created_at for i in world.engine._state.tasks)
        ages.append(world.wall - oldest)
        world.submit(spec("mail"), spec("other"))
        world.leap(SECOND)
        world.complete(others)
        world.complete(mailers)

    assert started == sorted(started)
    assert started[:AWAY] == waiting
    steps = [before - after for before, after in pairwise(ages)]
    assert min(steps) >= (AT_ONCE - 1) * SECOND, "three seconds of backlog go in each second"
