"""Worlds of several shards in short: some seeds, those that once broke, and bugs to be seen."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.sim import mutants
from tests.sim.__main__ import SHARD_REGRESSIONS, main, regressions
from tests.sim.shards import mutants as shard_mutants
from tests.sim.shards.play import play

SEEDS = 15
"""Seeds of each number of shards."""


@pytest.mark.parametrize("shards", [2, 3])
def test_no_promise_is_broken_among_shards(shards: int, capsys: pytest.CaptureFixture[str]) -> None:
    """Whoever is asked, whatever is down: what is promised of one server holds among several."""
    code = main(["--seed", "101", "--seeds", str(SEEDS), "--shards", str(shards)])

    said = capsys.readouterr().out
    assert code == 0, said
    assert said.splitlines()[-1].startswith(f"{SEEDS} seeds, 0 violations, ")


def test_no_world_of_shards_that_once_broke_breaks_again() -> None:
    """Every seed that ever found a fault stays sound."""
    outcomes = [play(seed) for seed in regressions(SHARD_REGRESSIONS)]

    assert outcomes
    assert [each.violations for each in outcomes if each.violations] == []


def test_every_world_of_shards_has_its_share_of_work_and_trouble() -> None:
    """At least 60 tasks and 5 faults, whatever a seed draws."""
    outcomes = [play(seed) for seed in range(1, 6)]

    assert min(each.tasks for each in outcomes) >= 60
    assert min(sum(each.faults.values()) for each in outcomes) >= 5


def test_same_seed_is_the_same_world_of_shards_whatever_the_hash_seed() -> None:
    """Two processes with different string hashes commit the same, to the byte."""
    program = "from tests.sim.shards.play import quietly; print(quietly(8).digest)"
    digests = {
        subprocess.run(
            [sys.executable, "-c", program],
            cwd=Path(__file__).parents[2],
            env={"PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    }

    assert len(digests) == 1


@pytest.mark.parametrize(
    ("name", "promise"),
    [
        ("forwards-further", "what was passed on is passed no further"),
        ("shard-lost-in-a-list", "a listing leaves nothing out"),
        ("watch-goes-on-without", "a merged watch misses no end"),
    ],
)
def test_oracle_sees_a_bug_between_shards(name: str, promise: str) -> None:
    """A few of the mutants, each noticed for what it is."""
    caught = mutants.catch(shard_mutants.MUTANTS[name], 1, 20, play)

    assert caught is not None
    assert caught.violations[0].promise == promise
