"""Draws results. The library for it is no part of the tools: a picture is made seldom."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple


class Line(NamedTuple):
    """One series of a picture."""

    name: str
    places: Sequence[float]
    values: Sequence[float]


class Axes(NamedTuple):
    """What one part of a picture is about; places are on a logarithmic scale if told so."""

    places: str
    values: str
    is_log: bool
    lines: Sequence[Line]


def draw(title: str, parts: Sequence[Axes], path: Path) -> None:
    """Draws parts side by side; without the library it says so and leaves the picture alone."""
    try:
        matplotlib = importlib.import_module("matplotlib")
    except ImportError:
        print("no picture: install matplotlib beside the tools to have one", file=sys.stderr)
        return
    matplotlib.use("Agg")
    pyplot = importlib.import_module("matplotlib.pyplot")
    figure, row = pyplot.subplots(1, len(parts), figsize=(6 * len(parts) + 1, 4), squeeze=False)
    for axes, part in zip(row[0], parts, strict=True):
        _fill(axes, part)
    figure.suptitle(title)
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def _fill(axes: Any, part: Axes) -> None:
    for line in part.lines:
        axes.plot(line.places, line.values, marker="o", label=line.name)
    if part.is_log:
        places = sorted({place for line in part.lines for place in line.places})
        axes.set_xscale("log")
        axes.set_xticks(places, [f"{place:,.0f}".replace(",", " ") for place in places])
    axes.set_ylim(bottom=0)
    axes.set_xlabel(part.places)
    axes.set_ylabel(part.values)
    axes.grid(visible=True, alpha=0.3)
    if len(part.lines) > 1:
        axes.legend()
