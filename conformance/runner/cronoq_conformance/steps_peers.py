"""Decides what the steps about several parties do: old workers, and tasks that cross languages."""

from __future__ import annotations

from .stage import Step

STEPS: dict[str, Step] = {}
