"""Draws results. The library for it is no part of the tools: a picture is made seldom."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping, Sequence
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
    pyplot = _pyplot()
    if pyplot is None:
        return
    figure, row = pyplot.subplots(1, len(parts), figsize=(6 * len(parts) + 1, 4), squeeze=False)
    for axes, part in zip(row[0], parts, strict=True):
        _fill(axes, part)
    figure.suptitle(title)
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def draw_bars(
    title: str,
    values: str,
    names: Sequence[str],
    series: Mapping[str, Sequence[float]],
    path: Path,
) -> None:
    """Draws rows of bars on a logarithmic scale, the first name on top, each with its number."""
    pyplot = _pyplot()
    if pyplot is None:
        return
    figure, axes = pyplot.subplots(figsize=(10, 0.5 * len(names) * len(series) ** 0.5 + 1.5))
    height = 0.8 / len(series)
    for index, (label, lengths) in enumerate(series.items()):
        places = [at + (index - (len(series) - 1) / 2) * height for at in range(len(names))]
        bars = axes.barh(places, lengths, height, label=label)
        axes.bar_label(bars, [f"{length:,.0f}".replace(",", " ") for length in lengths], padding=3)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.margins(x=0.12)
    axes.set_xlabel(values)
    axes.set_title(title)
    axes.grid(visible=True, axis="x", alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def _pyplot() -> Any:
    """The library, or None after saying that it is missing."""
    try:
        matplotlib = importlib.import_module("matplotlib")
    except ImportError:
        print("no picture: install matplotlib beside the tools to have one", file=sys.stderr)
        return None
    matplotlib.use("Agg")
    return importlib.import_module("matplotlib.pyplot")


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
