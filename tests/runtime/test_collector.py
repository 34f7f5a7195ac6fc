"""What a server's process is set up with: a tame collector, and chance."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from cronoq_server.runtime import SystemChance, tame_gc
from cronoq_server.runtime.collector import THRESHOLDS


@pytest.fixture
def _own_collector() -> Iterator[None]:
    """The collector's settings are everybody's: they are put back."""
    before = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*before)


@pytest.mark.usefixtures("_own_collector")
def test_what_is_there_is_spared_and_collections_are_rarer() -> None:
    """A recovered million of tasks is not walked over again and again."""
    tame_gc()
    assert gc.get_freeze_count() > 0
    assert gc.get_threshold() == THRESHOLDS
    assert gc.isenabled()


def test_chance_stays_within_its_bound() -> None:
    """And is not always the same."""
    chance = SystemChance()
    drawn = {chance.below(10) for _ in range(1000)}
    assert drawn == set(range(10))
    assert chance.below(1) == 0
