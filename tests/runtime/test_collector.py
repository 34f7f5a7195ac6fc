"""What a server's process is set up with: a tame collector, and chance."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from cronoq_server.runtime import SystemChance, free_spared, tame_gc
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


class Holder:
    """Holds itself, as an engine and its driver hold each other."""

    def __init__(self) -> None:
        self.held = self


@pytest.mark.usefixtures("_own_collector")
def test_what_was_spared_is_freed_once_nobody_holds_it() -> None:
    """Else every leadership of a process would leave its tasks behind."""
    holder = Holder()
    seen = weakref.ref(holder)
    tame_gc()
    del holder
    gc.collect()
    assert seen() is not None  # which is why it has to be said that it may go
    free_spared()
    assert seen() is None
    assert gc.get_freeze_count() == 0


def test_chance_stays_within_its_bound() -> None:
    """And is not always the same."""
    chance = SystemChance()
    drawn = {chance.below(10) for _ in range(1000)}
    assert drawn == set(range(10))
    assert chance.below(1) == 0
