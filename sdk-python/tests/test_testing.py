"""Tests of the server on a clock that tests move."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cronoq import Client, TaskStatus, Worker
from cronoq.testing import find_server, start_test_server

COMMAND = str(Path(sys.executable).with_name("cronoq-server"))


async def test_what_is_due_later_runs_when_time_is_moved() -> None:
    """Hours pass at once, and the task runs then and not before."""
    async with start_test_server(command=COMMAND) as server:
        worker = Worker(endpoint=server.endpoint)

        @worker.handler("late")
        async def late() -> str:
            return "done"

        async with worker, Client(server.endpoint) as client:
            handle = await client.submit("late", delay=3 * 3600)
            await server.settle()
            assert (await client.get(handle.id)).status is TaskStatus.SCHEDULED
            await server.advance(3 * 3600)
            assert await handle.result() == "done"
        with pytest.raises(ValueError, match="forward"):
            await server.advance(-1)


async def test_a_server_that_does_not_start_says_why() -> None:
    """The error has what the program said."""
    with pytest.raises(RuntimeError, match="unrecognized arguments"):
        async with start_test_server(command=COMMAND, args=["--no-such-option"]):
            pass


def test_a_program_that_is_nowhere_is_said_to_be_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With a word on how to get it; CRONOQ_SERVER comes before every search."""
    monkeypatch.delenv("CRONOQ_SERVER", raising=False)
    assert find_server() == COMMAND
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(FileNotFoundError, match="pip install cronoq-server"):
        find_server()
    monkeypatch.setenv("CRONOQ_SERVER", "/opt/cronoq-server")
    assert find_server() == "/opt/cronoq-server"


TESTS = """
def test_without_a_loop(cronoq_server):
    cronoq_server.advance_blocking(60)

def test_that_needs_none():
    pass
"""


@pytest.mark.parametrize("is_there", [True, False])
def test_tests_get_a_server_from_a_fixture(is_there: bool, tmp_path: Path) -> None:
    """In any project, with no other plugin; where there is no server, they are told so."""
    (tmp_path / "test_it.py").write_text(TESTS, encoding="utf-8")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "pytest_cronoq",
        "-p",
        "no:asyncio",
        "-W",
        "error",
    ]
    environment = {**os.environ, "CRONOQ_SERVER": COMMAND if is_there else str(tmp_path / "none")}
    run = subprocess.run(
        [*command, "-q", "test_it.py"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    if is_there:
        assert run.returncode == 0, run.stdout
        assert "2 passed" in run.stdout
    else:
        assert "1 passed, 1 error" in run.stdout
        assert "cronoq_server: " in run.stdout
        assert "No such file or directory" in run.stdout
