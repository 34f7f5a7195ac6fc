"""Runs the project that the guide on task functions shows, and the programs of this package."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tools.quickstart import ROOT, run_program

if TYPE_CHECKING:
    from cronoq.testing import TestServer

pytest_plugins = ["pytest_cronoq"]

GUIDE = ROOT / "docs/guide/python-tasks.md"
README = ROOT / "sdk-python/README.md"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
OUTPUT = re.compile(r"^```text\n(.*?)^```$", re.DOTALL | re.MULTILINE)
TOGETHER_S = 900

WEB = """
import asyncio
import httpx
from web import app, web

async def main():
    async with web.router.lifespan_context(web):
        transport = httpx.ASGITransport(web)
        async with httpx.AsyncClient(transport=transport, base_url="http://web") as browser:
            answer = await browser.post("/orders", json={"customer": "Ada", "cents": 5})
        result = await app.client.result(int(answer.json()["task"]), str)
    print(answer.status_code, result)

asyncio.run(main())
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The guide's files, word for word but for a clock that would not move by itself."""
    for block in BLOCK.findall(GUIDE.read_text(encoding="utf-8")):
        name = re.match(r"# (\w+\.py)\n", block)
        assert name is not None, f"a block of the guide names no file:\n{block}"
        text = block.replace(", delay=0.1", "") if name[1] == "submit.py" else block
        (tmp_path / name[1]).write_text(text, encoding="utf-8")
    return tmp_path


def _run(project: Path, *command: str) -> str:
    run = subprocess.run(
        [sys.executable, "-W", "error", *command],
        cwd=project,
        env=dict(os.environ),
        capture_output=True,
        text=True,
        timeout=TOGETHER_S,
        check=False,
    )
    assert (run.returncode, run.stderr) == (0, ""), run.stdout + run.stderr
    return run.stdout


@pytest.mark.usefixtures("cronoq_server")
def test_the_guides_programs_print_what_they_show(project: Path) -> None:
    """With the worker beside them, against a real server."""
    worker = subprocess.Popen([sys.executable, "-W", "error", "tasks.py"], cwd=project)
    try:
        (shown,) = OUTPUT.findall(GUIDE.read_text(encoding="utf-8"))
        assert _run(project, "submit.py") == shown
        assert _run(project, "-c", WEB) == "200 Ada owes 0.05\n"
    finally:
        worker.terminate()
        assert worker.wait() == 0


def test_the_guides_tests_pass(project: Path) -> None:
    """With a server of their own."""
    plugins = ("-p", "pytest_cronoq", "-p", "no:asyncio", "-p", "no:cacheprovider")
    said = _run(project, "-m", "pytest", "-q", *plugins)
    assert "2 passed" in said


def test_programs_of_the_readme_run(cronoq_server: TestServer, tmp_path: Path) -> None:
    """All that are complete, word for word."""
    blocks = BLOCK.findall(README.read_text(encoding="utf-8"))
    programs = [block for block in blocks if "asyncio.run(main())" in block]
    said = [
        run_program(program, sys.executable, cronoq_server.endpoint, tmp_path)
        for program in programs
    ]
    assert said == ["hello world\n", "hello WORLD\n"]
