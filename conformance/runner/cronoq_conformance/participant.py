"""Decides how a participant is spoken to, and keeps its facts until a scenario asks for them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from .judge import mismatch

LINE_MAX = 64 * 1024 * 1024
LOG_LINES_KEPT = 200

Fact = dict[str, Any]


class ParticipantError(Exception):
    """The participant did not do its part: it ended, or said something that is no fact."""


class Participant:
    """A program under test.

    Attributes:
        facts: Every fact so far that answers no command, in order.
        most_running: Most handlers that ran at once.
        on_fact: Told of each such fact instead, if set: long runs keep none.
    """

    def __init__(self, command: Sequence[str], root: Path, environment: Mapping[str, str]) -> None:
        self._command = command
        self._root = root
        self._environment = environment
        self._process: Process | None = None
        self._readers: list[asyncio.Task[None]] = []
        self._answers: dict[int, asyncio.Future[Fact]] = {}
        self._number = 0
        self._more = asyncio.Condition()
        self._unread: list[Fact] = []
        self._running = 0
        self._is_ended = False
        self.most_running = 0
        self.on_fact: Callable[[Fact], object] | None = None
        self.facts: list[Fact] = []
        self.log: list[str] = []

    async def start(self) -> None:
        """Starts the program and returns when it has said hello."""
        self._process = await asyncio.create_subprocess_exec(
            *self._command,
            cwd=self._root,
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            limit=LINE_MAX,
            env={**os.environ, **self._environment},
        )
        self._readers = [
            asyncio.create_task(self._read_facts()),
            asyncio.create_task(self._read_log()),
        ]
        await self.fact("hello", {})

    async def _read_facts(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        try:
            async for line in self._process.stdout:
                await self._take(json.loads(line))
        except (ValueError, KeyError) as error:
            self.log.append(f"(no fact: {error})")
        finally:
            async with self._more:
                self._is_ended = True
                self._more.notify_all()
            for answer in self._answers.values():
                if not answer.done():
                    answer.cancel()

    async def _take(self, fact: Fact) -> None:
        name = fact["fact"]
        if name in ("done", "failed"):
            answer = self._answers[fact["id"]]
            if not answer.done():
                answer.set_result(fact)
            return
        self._running += {"attempt_started": 1, "attempt_ended": -1}.get(name, 0)
        self.most_running = max(self.most_running, self._running)
        if self.on_fact is not None:
            self.on_fact(fact)
            return
        async with self._more:
            self.facts.append(fact)
            self._unread.append(fact)
            self._more.notify_all()

    async def _read_log(self) -> None:
        assert self._process is not None
        assert self._process.stderr is not None
        async for line in self._process.stderr:
            self.log.append(line.decode(errors="replace").rstrip())
            del self.log[:-LOG_LINES_KEPT]

    def send(self, name: str, fields: Mapping[str, Any]) -> asyncio.Future[Fact]:
        """Gives a command and returns the future of its answer."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._number += 1
        answer: asyncio.Future[Fact] = asyncio.get_running_loop().create_future()
        self._answers[self._number] = answer
        line = json.dumps({"id": self._number, "do": name, **fields}, ensure_ascii=False) + "\n"
        if self._is_ended:
            raise ParticipantError("the participant has ended")
        self._process.stdin.write(line.encode())
        return answer

    async def fact(self, name: str, pattern: Mapping[str, Any]) -> Fact:
        """Returns the first fact of this name like the pattern that no step has taken yet.

        Raises:
            ParticipantError: The program ended before there was one.
        """

        def found() -> Fact | None:
            for fact in self._unread:
                if fact["fact"] == name and not mismatch(pattern, fact):
                    return fact
            return None

        async with self._more:
            await self._more.wait_for(lambda: found() or self._is_ended)
            fact = found()
            if fact is None:
                raise ParticipantError(f"the participant ended before {name}")
            self._unread.remove(fact)
            return fact

    def unread(self, name: str, pattern: Mapping[str, Any]) -> list[Fact]:
        """Returns the facts of this name like the pattern that no step has taken."""
        return [f for f in self._unread if f["fact"] == name and not mismatch(pattern, f)]

    @property
    def pid(self) -> int:
        """The process, while there is one."""
        assert self._process is not None
        return self._process.pid

    def signal(self, name: str) -> None:
        """Sends a signal by its name, such as SIGTERM."""
        assert self._process is not None
        # Not by the process object: it would look for an end that the loop's watcher is to find.
        os.kill(self._process.pid, signal.Signals[name])

    async def ended(self) -> int:
        """Returns the exit code once the program has ended."""
        assert self._process is not None
        return await self._process.wait()

    async def close(self) -> None:
        """Ends the program, whatever it does."""
        process = self._process
        if process is None:
            return
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
        await process.wait()
        await asyncio.gather(*self._readers, return_exceptions=True)
        for answer in self._answers.values():
            answer.cancel()
