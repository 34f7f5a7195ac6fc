"""Random lives: after every step the tables say what the tasks say, and in the end all ended."""

from __future__ import annotations

import pytest

from cronoq_server.engine.model import FIRST_TERMINAL
from tests.engine.workloads import Workload, everything_ends


@pytest.mark.parametrize("seed", range(60))
def test_random_life_keeps_every_invariant_and_ends(seed: int) -> None:
    """EN-06, EN-40, EN-60, EN-90: counts, slots, numbers, indexes and permits never drift."""
    life = Workload(seed)
    for _ in life.run(150):
        pass
    assert everything_ends(life.world), list(life.world.engine._state.tasks.values())
    ledger = life.world.ledger
    assert ledger.rows.keys() == ledger.ends.keys()
    assert all(change.status >= FIRST_TERMINAL for change in ledger.changes.values())
