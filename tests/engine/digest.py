"""Prints one line per seed: a digest of every step of a random life, for comparing processes."""

from __future__ import annotations

import hashlib
import sys

import msgspec

from tests.engine.stories import STORIES
from tests.engine.workloads import Workload


def digest(seed: int, steps: int) -> str:
    """A digest of all steps that a seed leads to, byte for byte."""
    life = Workload(seed, checks=False)
    for _ in life.run(steps):
        pass
    found = hashlib.sha256()
    for taken in life.world.taken:
        found.update(msgspec.msgpack.encode(taken.step))
    return found.hexdigest()


def digests() -> list[str]:
    """What is compared: some random lives, and the stories."""
    found = [digest(seed, 120) for seed in range(6)]
    for story in STORIES.values():
        told = b"".join(msgspec.msgpack.encode(taken.step) for taken in story().taken)
        found.append(hashlib.sha256(told).hexdigest())
    return found


if __name__ == "__main__":
    sys.stdout.write("\n".join(digests()) + "\n")
