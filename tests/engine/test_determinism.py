"""The same seed, events and instants give the same steps, byte for byte, in every process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cronoq_server.engine.effects import Dispatch
from tests.engine import harness
from tests.engine.digest import digest, digests
from tests.engine.workloads import Workload

ROOT = Path(__file__).resolve().parents[2]


def test_same_seed_gives_the_same_bytes() -> None:
    """EN-08: twice in one process; another seed gives another life."""
    assert digest(1, 80) == digest(1, 80)
    assert digest(1, 80) != digest(2, 80)


def test_hash_seed_changes_nothing() -> None:
    """EN-08: nothing depends on the order of a set or on the hash of a string."""
    expected = digests()
    for hash_seed in ("0", "1", "4242"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        told = subprocess.run(
            [sys.executable, "-m", "tests.engine.digest"],
            cwd=ROOT,
            env=environment,
            check=True,
            capture_output=True,
            text=True,
        )
        assert told.stdout.split() == expected, hash_seed


def test_nothing_written_depends_on_the_monotonic_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """EN-01: the same life, with a process that started at another time, writes the same rows."""

    def written() -> list[object]:
        life = Workload(3, crashes=False, checks=False)
        for _ in life.run(80):
            pass
        return [mutation for taken in life.world.taken for mutation in taken.step.mutations]

    before = written()
    monkeypatch.setattr(harness, "MONO_ZERO", 987_654_321_000_000_007)
    assert written() == before


def test_random_lives_are_worth_comparing() -> None:
    """A digest of lives in which nothing happens would prove nothing."""
    life = Workload(0, checks=False)
    for _ in life.run(120):
        pass
    steps = [taken.step for taken in life.world.taken]
    assert sum(len(step.mutations) for step in steps) > 50
    assert sum(isinstance(e, Dispatch) for step in steps for e in step.effects) > 10
