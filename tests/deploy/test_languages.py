"""What a newcomer sees first: workers in four languages beside each other, by one command."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from demo.errors import DemoError
from demo.languages import build, cache_folder, languages

ROOT = Path(__file__).resolve().parents[2]


def test_workers_in_all_languages_finish_tasks_and_end_in_order() -> None:
    """Each is built from its SDK's example, gets tasks of its own, and succeeds in all of them."""
    command = [sys.executable, "-m", "demo.main", "--languages", "--rounds", "2"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
    last = done.stdout.replace("\r", "\n").strip().splitlines()
    assert last[-1] == "demo: ok 16 tasks"
    assert last[-2] == "succeeded: python 4   go 4   typescript 4   rust 4"
    assert "console: http://127.0.0.1:" in done.stdout


def test_missing_tools_are_named() -> None:
    """Nobody has to guess why a language is not there."""
    spoken = next(one for one in languages(cache_folder()) if one.name == "rust")

    with pytest.raises(DemoError, match="rust: there is no no-such-tool on this machine"):
        asyncio.run(build(replace(spoken, needs="no-such-tool")))


def test_a_build_that_fails_is_quoted() -> None:
    """With the language, the command and what it said."""
    command = (sys.executable, "-c", "raise SystemExit('no such place')")
    spoken = replace(languages(cache_folder())[0], builds=((os.curdir, command),))

    with pytest.raises(DemoError, match=r"python: .* failed\n.*no such place"):
        asyncio.run(build(spoken))
