"""What every result says of where it was measured, and how results are printed.

A figure without the machine, the commit and the load beside it cannot be compared with another.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "docs" / "performance"


def describe(name: str) -> dict[str, Any]:
    """Returns the head of a result; the load is what others ask of the machine as it begins."""
    return {
        "bench": name,
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _commit(),
        "python": platform.python_version(),
        "cpu_count": os.cpu_count(),
        "load_average": round(os.getloadavg()[0], 2),
    }


def _commit() -> str:
    """The commit, marked if files differ from it; empty where there is no repository."""
    # Results that were saved before this one change nothing of what is measured.
    changes = _git("status", "--porcelain", "--", ".", f":!{RESULTS.relative_to(ROOT)}")
    return _git("rev-parse", "--short", "HEAD") + ("-dirty" if changes else "")


def _git(*arguments: str) -> str:
    command = ("git", "-C", str(ROOT), *arguments)
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def save(result: dict[str, Any], name: str) -> None:
    """Puts a result among those that the documentation shows."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(result, indent=2) + "\n")


def print_result(result: dict[str, Any], rows: Sequence[tuple[str, ...]], *, as_json: bool) -> None:
    """Prints a result as JSON, or its rows as a table; JSON whenever nobody is looking."""
    if as_json or not sys.stdout.isatty():
        print(json.dumps(result, indent=2))
        return
    print(", ".join(f"{key} {result[key]}" for key in ("commit", "python", "cpu_count")))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)))


def quantile(ordered: Sequence[float], share: float) -> float:
    """Returns the value below which this share of an ascending list lies."""
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]
