"""Decides what a clean place is: tracked files only, and commands that must succeed."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from tools.check_text import tracked_files
from tools.quickstart import ROOT


class Failed(Exception):
    """A package does not do what it has to; says which and how."""


def need(program: str) -> str:
    """Return where a program is.

    Raises:
        Failed: It is not installed.
    """
    found = shutil.which(program)
    if found is None:
        raise Failed(f"{program} is not installed, so its package cannot be tried")
    return found


def run(*command: str, cwd: Path, env: Mapping[str, str] | None = None) -> str:
    """Run a command and return its standard output.

    Args:
        command: The program and its arguments.
        cwd: Where it runs.
        env: Variables beside those of this process.

    Raises:
        Failed: It exited with another code than 0; has all that it said.
    """
    print("$", *command, flush=True)
    # The checkout must not be importable: it is the installed packages that are tried.
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        command,
        cwd=cwd,
        env={**inherited, **(env or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise Failed(
            f"{' '.join(command)}: exit code {done.returncode}\n{done.stdout}{done.stderr}"
        )
    return done.stdout


def export(folder: str, place: Path) -> Path:
    """Copy what git tracks below a folder of the repository, and nothing else; return the copy."""
    for path in tracked_files():
        inside = path.relative_to(ROOT)
        if inside.is_relative_to(folder):
            target = place / inside
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, target)
    return place / folder
