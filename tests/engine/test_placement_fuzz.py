"""The placement starts what its definition starts, in random worlds."""

from __future__ import annotations

import pytest

from tests.engine.placement_world import World

SEEDS = 500
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
        starts += world.starts
    assert starts > 20 * BATCH
