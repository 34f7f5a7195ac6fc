"""Bugs in the driver, and in what stands between it and the database."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cronoq_server.runtime.driver import Driver
from cronoq_server.stores.memory import MemoryLeadership

if TYPE_CHECKING:
    from tests.sim.mutants import Patch


def _release_at_once(driver: Driver, note: Any, step: Any, now: Any) -> None:
    note(driver, step, now)
    if step.effects:
        driver._release([driver._made.pop()])


def effect_before_commit(patch: Patch) -> None:
    """What a step says is said before it is durable."""
    note = Driver._note

    def note_and_release(self: Driver, step: Any, now: Any) -> None:
        _release_at_once(self, note, step, now)

    patch(Driver, "_note", note_and_release)


def read_before_durable(patch: Patch) -> None:
    """A step that writes nothing is released although what it saw is not durable yet."""
    note = Driver._note

    def note_reads(self: Driver, step: Any, now: Any) -> None:
        if step.mutations:
            note(self, step, now)
        else:
            _release_at_once(self, note, step, now)

    patch(Driver, "_note", note_reads)


def epoch_unchecked(patch: Patch) -> None:
    """A commit is taken from whoever sends it."""

    def hold(_self: MemoryLeadership) -> None:
        return

    patch(MemoryLeadership, "assert_holds", hold)
