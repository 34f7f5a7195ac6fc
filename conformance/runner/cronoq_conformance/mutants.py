"""Decides whether the suite notices an SDK that is wrong."""

from __future__ import annotations

from collections.abc import Sequence

from .scenario import Scenario


def main(scenarios: Sequence[Scenario], jobs: int) -> int:
    """Plays."""
    return 1
