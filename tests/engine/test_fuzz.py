"""Random lives: after every step the tables say what the tasks say, and in the end all ended."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cronoq_server.engine.model import FIRST_TERMINAL
from tests.engine.workloads import Workload, everything_ends


@pytest.mark.parametrize("seed", range(60))
def test_random_life_keeps_every_invariant_and_ends(seed: int) -> None:
    """EN-06, EN-40, EN-60, EN-90: counts, slots, numbers, indexes and permits never drift."""
    _live(Workload(seed), 150)


@settings(max_examples=30)
@given(st.randoms(use_true_random=False))
def test_short_life_that_fails_is_made_shorter(chance: random.Random) -> None:
    """EN-06, EN-40, EN-60, EN-90: the same, from draws that can be shrunk to what matters."""
    _live(Workload(chance), 25)


def _live(life: Workload, steps: int) -> None:
    for _ in life.run(steps):
        pass
    assert everything_ends(life.world), list(life.world.engine._state.tasks.values())
    ledger = life.world.ledger
    assert ledger.rows.keys() == ledger.ends.keys()
    assert all(change.status >= FIRST_TERMINAL for change in ledger.changes.values())
