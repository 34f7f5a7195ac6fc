"""Where a server's engine gets its chance from; tests and simulations inject a seeded one."""

from __future__ import annotations

import random


class SystemChance:
    """Chance that nobody can repeat."""

    __slots__ = ("_source",)

    def __init__(self) -> None:
        self._source = random.SystemRandom()

    def below(self, bound: int) -> int:
        """A whole number from 0 to `bound` - 1, uniformly."""
        return self._source.randrange(bound)
