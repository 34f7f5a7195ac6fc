"""Thirteen plausible bugs, and the proof that the oracle sees each of them.

A mutant is a function that patches one bug into the engine or the driver; `patched` takes it out
again. `hunt` plays seeds under each until one breaks a promise.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

from tests.sim.mutants import driver, engine
from tests.sim.play import Outcome, play

Patch: TypeAlias = Callable[[object, str, Any], None]
Mutant: TypeAlias = Callable[[Patch], None]

MUTANTS: dict[str, Mutant] = {
    "effect-before-commit": driver.effect_before_commit,
    "lost-semaphore-release": engine.lost_semaphore_release,
    "attempt-not-counted": engine.attempt_not_counted,
    "fifo-broken": engine.fifo_broken,
    "id-reuse": engine.id_reuse,
    "epoch-unchecked": driver.epoch_unchecked,
    "double-dispatch-on-resume": engine.double_dispatch_on_resume,
    "token-changed-by-resume": engine.token_changed_by_resume,
    "overlap-guard-lost-at-failover": engine.overlap_guard_lost_at_failover,
    "dependency-edge-missed": engine.dependency_edge_missed,
    "timer-lost": engine.timer_lost,
    "retry-beyond-the-maximum": engine.retry_beyond_the_maximum,
    "read-before-durable": driver.read_before_durable,
}


@contextmanager
def patched(mutant: Mutant) -> Iterator[None]:
    """With this bug in it, for a while."""
    undo: list[tuple[object, str, Any]] = []

    def patch(owner: object, name: str, value: Any) -> None:
        undo.append((owner, name, vars(owner)[name]))
        setattr(owner, name, value)

    mutant(patch)
    try:
        yield
    finally:
        for owner, name, value in reversed(undo):
            setattr(owner, name, value)


def catch(
    mutant: Mutant, first: int, within: int, player: Callable[[int], Outcome] = play
) -> Outcome | None:
    """The outcome of the first seed that breaks a promise under a mutant; None = it got away."""
    logging.disable(logging.CRITICAL)
    with patched(mutant):
        for seed in range(first, first + within):
            outcome = player(seed)
            if outcome.violations:
                return outcome
    return None


def hunt(
    first: int,
    within: int,
    only: str = "",
    mutants: dict[str, Mutant] = MUTANTS,
    player: Callable[[int], Outcome] = play,
) -> int:
    """Shows for each mutant when and how it was caught; 0 if all were."""
    names = [only] if only else list(mutants)
    free = 0
    for name in names:
        caught = catch(mutants[name], first, within, player)
        if caught is None:
            free += 1
            print(f"{name}: NOT CAUGHT within {within} seeds", flush=True)
        else:
            promise = caught.violations[0].promise
            text = caught.violations[0].text.splitlines()[-1][:120]
            print(f"{name}: caught by seed {caught.seed}: {promise} ({text})", flush=True)
    print(f"{len(names) - free} of {len(names)} mutants caught")
    return 1 if free else 0
