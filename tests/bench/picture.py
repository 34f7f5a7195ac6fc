"""Draws results. The library for it is no part of the tools: a picture is made seldom."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any


def draw(result: dict[str, Any], path: Path) -> None:
    """Draws the result of a sweep; without the library it says so and leaves the picture alone."""
    try:
        matplotlib = importlib.import_module("matplotlib")
    except ImportError:
        print("no picture: install matplotlib beside the tools to have one", file=sys.stderr)
        return
    matplotlib.use("Agg")
    pyplot = importlib.import_module("matplotlib.pyplot")
    sizes = [row["batch"] for row in result["rows"]]
    figure, axes = pyplot.subplots(figsize=(7, 4))
    axes.plot(sizes, [row["tasks_per_s"] for row in result["rows"]], marker="o")
    axes.set_xscale("log")
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.set_ylim(bottom=0)
    axes.set_xlabel("tasks in one request")
    axes.set_ylabel("tasks/s, submitted to result")
    axes.set_title(
        f"{result['store']} store, {result['workers']} workers, {result['payload']}-byte payload"
    )
    axes.grid(visible=True, alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
