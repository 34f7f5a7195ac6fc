"""Decides how the simulator is played at length: 10 000 seeds, with one line for each thousand."""

from __future__ import annotations

import argparse

from tests.sim.__main__ import main as simulate

PART = 1000


def main(arguments: list[str]) -> int:
    """Plays the seeds in parts; 1 if any part found a violation."""
    parser = argparse.ArgumentParser(prog="campaign sim")
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    parser.add_argument("--seeds", type=int, default=10_000, help="how many")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--shards", type=int, default=0, help="play worlds of so many shards")
    wanted = parser.parse_args(arguments)
    code = 0
    for first in range(wanted.seed, wanted.seed + wanted.seeds, PART):
        seeds = min(PART, wanted.seed + wanted.seeds - first)
        part = [f"--seed={first}", f"--seeds={seeds}", f"--processes={wanted.processes}"]
        if wanted.shards:
            part.append(f"--shards={wanted.shards}")
        code |= simulate(part)
    return code
