"""Tests of the server on a clock that tests move."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from cronoq import Client, TaskStatus, Worker
from cronoq.testing import start_test_server

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
