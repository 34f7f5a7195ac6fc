"""The guide to dispatch order keeps its word: its programs print what it shows."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tools.quickstart import ROOT, read_programs

ORDERING = ROOT / "docs/guide/ordering.md"


@pytest.mark.parametrize(("program", "expected"), read_programs(ORDERING), ids=lambda _: "")
def test_programs_of_the_guide_print_what_they_show(
    program: str, expected: str, tmp_path: Path
) -> None:
    """Every program of the page runs as it stands, without a warning."""
    file = tmp_path / "program.py"
    file.write_text(program, encoding="utf-8")
    command = [sys.executable, "-W", "error", str(file)]
    run = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert (run.stdout, run.stderr) == (expected, "")
