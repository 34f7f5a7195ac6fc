"""Decides how the blocks of a page are run: as its reader would, one after the other.

A page has a folder, two ports and, from the block on that needs it, a server. The addresses of the
documentation stand for those ports, in programs, commands and configurations alike.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

from cronoq_server.config import parse
from tools.check_text import ROOT
from tools.doc_blocks import SHELLS, Block, commands_of, shows

GRPC, HTTP = "127.0.0.1:7070", "127.0.0.1:7071"
PATIENCE_S = 120
FRAMES = ROOT / "tests/docs/frames"
SECRETS = {
    "token_env": "a-token-for-the-tests-of-the-pages",
    "url_env": "postgres://db.example/cronoq",
}
CERTIFICATES = "/etc/cronoq/"
# What fails over HTTP fails as a command, and tells nothing but the answer.
CURL = """#!/bin/bash
exec /usr/bin/env -S PATH="$PATH_WITHOUT_SHIMS" curl --silent --show-error --fail-with-body "$@"
"""


def free_port() -> int:
    """Return a port that nobody has, from where the system gives out none by itself."""
    while True:
        port = random.randrange(20_000, 32_000)
        with contextlib.suppress(OSError), socket.socket() as one:
            one.bind(("127.0.0.1", port))
            return port


class Session:
    """One page, from its first block to its last.

    Attributes:
        folder: Where its programs and commands run.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ports = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
        self._running: list[subprocess.Popen[bytes]] = []
        self._server: subprocess.Popen[bytes] | None = None
        self._set: list[str] = []
        shims = Path(tempfile.mkdtemp(dir=folder, prefix="."))
        (shims / "curl").write_text(CURL)
        (shims / "curl").chmod(0o755)
        programs = Path(sys.executable).parent
        path = f"{programs}:{os.environ['PATH']}"
        self._environment = {
            **os.environ,
            "CRONOQ_ENDPOINT": self._ports[0],
            "CRONOQ_SERVER__GRPC_ADDR": self._ports[0],
            "CRONOQ_SERVER__HTTP_ADDR": self._ports[1],
            "PATH": f"{shims}:{path}",
            "PATH_WITHOUT_SHIMS": path,
            "PYTHONUNBUFFERED": "1",
            "COLUMNS": "120",
        }

    def run(self, block: Block) -> None:
        """Does what a block says.

        Raises:
            AssertionError: It did not end well, or not with what the page shows.
        """
        text = self._here(block.text)
        how, _, name = block.rest.partition(" ")
        if block.fate == "config":
            self._configure(text, block.rest.removeprefix("as "))
        elif block.fate == "save":
            self._save(block.rest.removeprefix("as "), text)
        elif how == "server":
            self._serve(commands_of(text)[0][0])
        elif how == "background":
            self._start(block, text)
        elif how == "bash" and block.language in SHELLS:
            for command, expected in commands_of(text):
                self._command(block, command, expected)
        elif how == "python":
            self._python(block, text, name)
        else:
            raise AssertionError(f"{block}: nobody knows how to run {block.rest!r}")

    def close(self) -> None:
        """Ends what still runs, and forgets what was set."""
        for variable in self._set:
            os.environ.pop(variable, None)
        for process in reversed(self._running):
            _interrupt(process)
        if self._server is not None:
            assert _interrupt(self._server) == 0

    def _here(self, text: str) -> str:
        return text.replace(GRPC, self._ports[0]).replace(HTTP, self._ports[1])

    def _save(self, name: str, text: str) -> Path:
        path = self.folder / (name or "program.py")
        path.write_text(text, encoding="utf-8")
        return path

    def _configure(self, text: str, name: str) -> None:
        # A reader would have set the variables, and have certificates where the file says.
        for line in text.splitlines():
            key, _, value = line.partition("=")
            if (secret := SECRETS.get(key.strip())) is not None:
                variable = json.loads(value.split("#")[0])
                self._environment[variable] = secret
                self._set.append(variable)
                os.environ[variable] = secret
        if CERTIFICATES in text:
            made = self._do(["cronoq-server", "dev-certs", "certificates"])
            assert made.returncode == 0, made.stderr
            text = text.replace(CERTIFICATES, f"{self.folder}/certificates/")
        parse(text)
        if name:
            self._save(name, text)

    def _python(self, block: Block, text: str, name: str) -> None:
        way, _, file = name.partition(" ")
        if way == "in":
            text = framed((FRAMES / file).read_text(encoding="utf-8"), text)
        if GRPC.split(":")[0] in text:
            self._ensure_server()
        program = self._save(file if way == "as" else "program.py", self._here(text))
        done = self._do([sys.executable, "-W", "error", program.name])
        assert (done.returncode, done.stderr) == (0, ""), f"{block}\n{done.stdout}{done.stderr}"
        if block.output is not None:
            assert shows(block.output, done.stdout), f"{block} printed\n{done.stdout}"

    def _command(self, block: Block, command: str, expected: str | None) -> None:
        if self._ports[0] in command or self._ports[1] in command or "cronoq " in command:
            self._ensure_server()
        done = self._do(["bash", "-euo", "pipefail", "-c", command])
        said = f"{block}\n$ {command}\n{done.stdout}{done.stderr}"
        assert done.returncode == 0, said
        assert expected is None or shows(expected, done.stdout), said

    def _do(self, command: list[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            cwd=self.folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )

    def _ensure_server(self) -> None:
        if self._server is None and not self._running:
            config = self.folder / "cronoq.toml"
            self._serve("cronoq-server" + (" --config cronoq.toml" if config.exists() else ""))

    def _serve(self, command: str) -> None:
        if self._server is not None:
            assert _interrupt(self._server) == 0
        self._server = self._spawn(command)
        self._await("/readyz", lambda _: True, self._server)

    def _start(self, block: Block, text: str) -> None:
        if block.language == "python":
            self._ensure_server()
            command = f"python {self._save('worker.py', text).name}"
        else:
            ((command, _),) = commands_of(text)
        process = self._spawn(command)
        self._running.append(process)
        self._await("/v1/workers", lambda told: count_workers(told) >= len(self._running), process)

    def _spawn(self, command: str) -> subprocess.Popen[bytes]:
        log = (self.folder / ".log").open("ab")
        with log:
            return subprocess.Popen(
                ["bash", "-c", f"exec {command}"],
                cwd=self.folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _await(
        self, path: str, is_told: Callable[[bytes], bool], process: subprocess.Popen[bytes]
    ) -> None:
        """Asks until the answer is as wanted; fails when the process ends, or takes too long."""
        end = time.monotonic() + PATIENCE_S
        while not self._says(path, is_told):
            assert process.poll() is None, (self.folder / ".log").read_text("utf-8")
            assert time.monotonic() < end, (self.folder / ".log").read_text("utf-8")
            time.sleep(0.05)

    def _says(self, path: str, is_told: Callable[[bytes], bool]) -> bool:
        try:
            with urllib.request.urlopen(f"http://{self._ports[1]}{path}") as answer:
                return is_told(answer.read())
        except OSError:
            return False


def count_workers(answer: bytes) -> int:
    """Return how many workers a listing of them has."""
    return len(json.loads(answer)["workers"])


def _interrupt(process: subprocess.Popen[bytes]) -> int:
    """Do what Ctrl-C does, which reaches all that a command has started; return the exit code."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGINT)
    return process.wait(PATIENCE_S)


def framed(frame: str, text: str) -> str:
    """Return a frame with a block in it, indented as far as the line that it replaces."""
    lines = frame.splitlines()
    (place,) = [index for index, line in enumerate(lines) if line.strip() == "# the block"]
    indent = lines[place][: len(lines[place]) - len(lines[place].lstrip())]
    lines[place : place + 1] = [f"{indent}{line}" if line else "" for line in text.splitlines()]
    return "\n".join(lines) + "\n"


@contextlib.contextmanager
def reading(folder: Path) -> Iterator[Session]:
    """A page that is being read."""
    session = Session(folder)
    try:
        yield session
    finally:
        session.close()
