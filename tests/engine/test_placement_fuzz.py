"""The placement starts what its definition starts, in random worlds.

Campaigns play more of them: `CRONOQ_PLACEMENT_SEEDS=20000`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.engine.placement_world import World

SEEDS = int(os.environ.get("CRONOQ_PLACEMENT_SEEDS", "500"))
BATCH = 50


@pytest.mark.parametrize("first", range(0, SEEDS, BATCH))
def test_starts_are_those_of_the_definition(first: int) -> None:
    """In random worlds, the same tasks start in the same order on equally versatile workers."""
    starts = 0
    for seed in range(first, first + BATCH):
        world = World(seed)
        try:
            world.play(120)
        except AssertionError as error:
            error.add_note(f"seed {seed}")
            raise
        starts += len(world.started)
    assert starts > 20 * BATCH


def test_starts_do_not_depend_on_the_hash_seed() -> None:
    """Nothing is decided by the order of a set or by a hash: tasks and sessions are the same."""
    program = """
from tests.engine.placement_world import World
for seed in range(12):
    world = World(seed)
    world.play(60)
    print(world.started)
"""
    told = [
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            cwd=Path(__file__).parents[2],
            capture_output=True,
            check=True,
        ).stdout
        for hash_seed in ("0", "1", "77")
    ]
    assert len(told[0]) > 1000
    assert told[0] == told[1] == told[2]
