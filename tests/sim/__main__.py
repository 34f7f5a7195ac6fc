"""The simulator from the command line: `python -m tests.sim --seeds N`, or `./justw sim …`.

Prints what was broken, and at the end one line: `N seeds, V violations, H simulated hours`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from tests.sim import mutants
from tests.sim.play import Outcome, quietly
from tests.sim.shards import mutants as shard_mutants
from tests.sim.shards import play as shard_play
from tests.sim.shards.cluster import NUMBERS
from tests.sim.trace import report

REGRESSIONS = Path(__file__).with_name("regressions.txt")
"""Seeds that once found something, one a line; what follows a number is a comment."""

SHARD_REGRESSIONS = REGRESSIONS.parent / "shards" / REGRESSIONS.name
"""The same, of worlds of three shards."""

PIECE = 20
"""Seeds that one process plays at a time."""

CATCH_WITHIN = 500
"""Seeds within which every mutant must be caught."""


def regressions(path: Path = REGRESSIONS) -> list[int]:
    """The seeds of `regressions.txt`."""
    lines = path.read_text().splitlines()
    return [int(line.split()[0]) for line in lines if line[:1].isdigit()]


def play_all(
    seeds: Iterable[int], processes: int, player: Callable[[int], Outcome] = quietly
) -> Iterator[Outcome]:
    """Plays seeds in order, on several processes if wanted; what came of each."""
    seeds = list(seeds)
    if processes <= 1:
        yield from map(player, seeds)
        return
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        yield from pool.map(player, seeds, chunksize=PIECE)


def main(arguments: list[str]) -> int:
    """Plays what the command line says; 1 if anything was broken."""
    given = _parser().parse_args(arguments)
    player = partial(shard_play.quietly, count=given.shards) if given.shards else quietly
    if given.mutants:
        which = shard_mutants.MUTANTS if given.shards else mutants.MUTANTS
        return mutants.hunt(given.seed, CATCH_WITHIN, given.only, which, player)
    path = SHARD_REGRESSIONS if given.shards else REGRESSIONS
    seeds = regressions(path) if given.regressions else range(given.seed, given.seed + given.seeds)
    violations, hours, count = 0, 0.0, 0
    slowest, cpu_s = (0.0, 0), 0.0
    for outcome in play_all(seeds, given.processes, player):
        count += 1
        hours += outcome.hours
        cpu_s += outcome.cpu_s
        violations += len(outcome.violations)
        slowest = max(slowest, (outcome.cpu_s, outcome.seed))
        if outcome.violations:
            print(report(outcome, given.shards), flush=True)
        if given.verbose:
            print(_line(outcome), flush=True)
    if given.verbose:
        print(f"slowest: seed {slowest[1]} with {slowest[0]:.2f} s, all: {cpu_s:.1f} s of CPU")
    print(f"{count} seeds, {violations} violations, {hours:.1f} simulated hours")
    return 1 if violations else 0


def _line(outcome: Outcome) -> str:
    faults = sum(outcome.faults.values())
    ends = " ".join(f"{name.lower()}={count}" for name, count in sorted(outcome.ends.items()))
    return (
        f"seed {outcome.seed}: {outcome.cpu_s:.2f} s, {outcome.tasks} tasks, {faults} faults, "
        f"{outcome.terms} terms, {outcome.hours:.3f} h; {ends}"
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="./justw sim", description="Simulates whole replicas.")
    parser.add_argument("--seeds", type=int, default=300, help="how many seeds (300)")
    parser.add_argument("--seed", type=int, default=1, help="the first one (1)")
    parser.add_argument("--processes", "--jobs", type=int, default=1, help="side by side (1)")
    parser.add_argument(
        "--shards",
        type=int,
        default=0,
        choices=range(2, len(NUMBERS) + 1),
        metavar="N",
        help="play worlds of so many shards, 2 to 5 (worlds of one server and its standby)",
    )
    parser.add_argument("--regressions", action="store_true", help="the seeds of regressions.txt")
    parser.add_argument("--mutants", action="store_true", help="show that every mutant is caught")
    parser.add_argument("--only", default="", help="with --mutants: this one alone")
    parser.add_argument("--verbose", action="store_true", help="one line for each seed")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
