"""The simulator in short: hundreds of worlds, those that once broke, and a bug to be seen."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.sim import mutants
from tests.sim.__main__ import main, regressions
from tests.sim.play import play

SEEDS = 100
"""Seeds of each of three parts."""

PROCESSES = 2


@pytest.mark.regression("R20")
@pytest.mark.parametrize("first", [1, 101, 201])
def test_no_promise_is_broken_in_any_world(first: int, capsys: pytest.CaptureFixture[str]) -> None:
    """Each seed is a world with its own work and its own trouble."""
    code = main(["--seed", str(first), "--seeds", str(SEEDS), "--processes", str(PROCESSES)])

    said = capsys.readouterr().out
    assert code == 0, said
    assert said.splitlines()[-1].startswith(f"{SEEDS} seeds, 0 violations, ")


def test_no_world_that_once_broke_breaks_again() -> None:
    """Every seed that ever found a fault stays sound."""
    outcomes = [play(seed) for seed in regressions()]

    assert outcomes
    assert [each.violations for each in outcomes if each.violations] == []


def test_every_world_has_its_share_of_work_and_trouble() -> None:
    """At least 300 tasks and 5 faults, whatever a seed draws."""
    outcomes = [play(seed) for seed in range(1, 11)]

    assert min(each.tasks for each in outcomes) >= 300
    assert min(sum(each.faults.values()) for each in outcomes) >= 5


def test_same_seed_is_the_same_world_whatever_the_hash_seed() -> None:
    """Two processes with different string hashes commit the same, to the byte."""
    program = "from tests.sim.play import quietly; print(quietly(7).digest)"
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


@pytest.mark.regression("R20")
def test_oracle_sees_a_bug() -> None:
    """Permits that do not come back are noticed within a few seeds."""
    caught = mutants.catch(mutants.MUTANTS["lost-semaphore-release"], 1, 20)

    assert caught is not None
    assert caught.violations[0].promise == "held = running"
