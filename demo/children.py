"""How the demo's processes are started, watched and stopped.

Each child has a session of its own, so that Ctrl-C on a terminal reaches the demo alone, which
then stops its children in order: a child that got the signal twice would end without draining.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NoReturn

from demo.errors import DemoError, ProcessEnded

ROOT = Path(__file__).resolve().parent.parent
START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 15.0
"""How long a child may take to end; then it is killed."""
LOG_TAIL_LINES = 12


@dataclass(frozen=True, slots=True)
class Child:
    """One process, and the file that has what it said."""

    name: str
    process: asyncio.subprocess.Process
    log: IO[bytes]
    ended: asyncio.Task[int]

    def failure(self, what: str) -> DemoError:
        """Returns an error that says what happened, with the end of the log."""
        path = Path(self.log.name)
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        return DemoError("\n".join([f"the {self.name} {what}", *lines[-LOG_TAIL_LINES:]]))


class Children:
    """All processes of one run."""

    def __init__(self, logs: Path) -> None:
        """No process yet.

        Args:
            logs: An existing folder for what they say.
        """
        self._logs = logs
        self._children: list[Child] = []
        self._has_ended = asyncio.Event()

    async def start(self, name: str, module: Sequence[str], announcement: str) -> str:
        """Starts `python -m MODULE` and waits until it says that it is ready.

        Args:
            name: What messages call it.
            module: The module and its arguments.
            announcement: How the line on its standard output begins that says so.

        Returns:
            The rest of that line.

        Raises:
            DemoError: It said something else, or nothing in time.
        """
        child = await self._start(name, (sys.executable, "-m", *module), subprocess.PIPE)
        return await _await_announcement(child, announcement)

    async def run(self, name: str, command: Sequence[str]) -> None:
        """Starts a program that says nothing when it is ready."""
        await self._start(name, command, None)

    async def _start(self, name: str, command: Sequence[str], output: int | None) -> Child:
        log = (self._logs / f"{name}.log").open("wb")
        process = await asyncio.create_subprocess_exec(
            *command,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=log if output is None else output,
            stderr=log,
            start_new_session=True,
        )
        ended = asyncio.create_task(process.wait())
        ended.add_done_callback(lambda _: self._has_ended.set())
        child = Child(name, process, log, ended)
        self._children.append(child)
        return child

    async def first_end(self) -> NoReturn:
        """Waits until a child ends that nobody stopped, and raises that as ProcessEnded."""
        await self._has_ended.wait()
        child = next(child for child in self._children if child.ended.done())
        raise ProcessEnded(str(child.failure(f"ended with exit code {child.ended.result()}")))

    async def stop(self) -> list[DemoError]:
        """Stops all, the last one first, and returns what was not in order."""
        failures: list[DemoError] = []
        for child in reversed(self._children):
            was_up = not child.ended.done()
            if was_up:
                child.process.terminate()
            done, _ = await asyncio.wait((child.ended,), timeout=STOP_TIMEOUT_S)
            if not done:
                child.process.kill()
                await child.ended
                failures.append(child.failure(f"did not stop within {STOP_TIMEOUT_S:g} s"))
            elif was_up and child.ended.result() != 0:
                failures.append(child.failure(f"stopped with exit code {child.ended.result()}"))
            child.log.close()
        return failures


async def _await_announcement(child: Child, announcement: str) -> str:
    assert child.process.stdout is not None
    try:
        async with asyncio.timeout(START_TIMEOUT_S):
            line = (await child.process.stdout.readline()).decode(errors="replace").strip()
    except TimeoutError as error:
        raise child.failure(f"is not ready after {START_TIMEOUT_S:g} s") from error
    if not line.startswith(announcement):
        raise child.failure(f"did not start: it said {line!r}" if line else "did not start")
    return line.removeprefix(announcement)
