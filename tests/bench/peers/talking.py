"""How the bench talks to an adapter: a line of JSON each way, and a deadline on every answer."""

from __future__ import annotations

import json
import os
import select
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from tests.bench.peers import trees

ANSWER_TIMEOUT_S = 120.0
LAST_LINES = 15


class PeerFailed(Exception):
    """A peer could not be installed, did not start, or did not do what it was asked for."""


def last_lines(path: Path) -> str:
    """The end of what a process had to say."""
    lines = path.read_text(errors="replace").splitlines() if path.exists() else []
    return "\n".join(lines[-LAST_LINES:])


def start(
    command: Sequence[str], folder: Path, env: Mapping[str, str], log: Path, *, talks: bool = False
) -> subprocess.Popen[str]:
    """Starts a process of a peer; what it says goes to a file, but for answers of a client."""
    pipe = subprocess.PIPE if talks else None
    with log.open("ab") as sink:
        return subprocess.Popen(
            list(command),
            cwd=folder,
            env={**os.environ, **env},
            stdin=pipe or subprocess.DEVNULL,
            stdout=pipe or sink,
            stderr=sink,
            text=True,
        )


class Client:
    """The client process of a peer."""

    def __init__(
        self, command: Sequence[str], folder: Path, env: Mapping[str, str], log: Path
    ) -> None:
        self._log = log
        self._process = start(command, folder, env, log, talks=True)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        trees.end(self._process)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def ask(self, what: str, **arguments: Any) -> dict[str, Any]:
        """Asks and returns the answer.

        Raises:
            PeerFailed: It has no answer, or a complaint.
        """
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        line = ""
        try:
            stdin.write(json.dumps({"do": what, **arguments}) + "\n")
            stdin.flush()
            if select.select([stdout], [], [], ANSWER_TIMEOUT_S)[0]:
                line = stdout.readline()
        except BrokenPipeError:
            pass
        if not line:
            raise PeerFailed(f"no answer to {what!r}: {last_lines(self._log)}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise PeerFailed(f"{what}: {answer['error']}")
        return answer
