"""A worker that follows redirects without end. Breaks RR-10."""

from __future__ import annotations

from cronoq import _reconnect


def apply() -> None:
    """Lifts the limit."""
    _reconnect.REDIRECTS_MAX = 1_000_000
