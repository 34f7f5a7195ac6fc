"""A worker that goes on asking although no retry can change the answer. Breaks RR-06."""

from __future__ import annotations

from cronoq import _reconnect


def apply() -> None:
    """Knows no fatal codes."""
    _reconnect.FATAL_CODES = frozenset()
