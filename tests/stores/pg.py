"""A throw-away PostgreSQL for tests: made, started and stopped by whoever needs it.

It listens on a socket in a directory of its own and on one free loopback port, lets everybody in,
and does not wait for the disk unless asked to. PostgreSQL refuses to run as root: then it runs as
another user, who owns the directory.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

_START_TIMEOUT_S = 30
_UNPRIVILEGED = ("postgres", "nobody")


class NotInstalled(Exception):
    """PostgreSQL's server programs are missing: install postgresql (15 or newer)."""


def find_programs() -> Path:
    """The directory of PostgreSQL's server programs, of the newest version there is.

    Raises:
        NotInstalled: There is none.
    """
    versions = [path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/initdb")]
    if versions:
        return max(versions, key=lambda path: int(path.parent.name))
    found = shutil.which("initdb")
    if found is None:
        raise NotInstalled(
            "PostgreSQL's server programs (initdb, postgres) are missing: install them, for example"
            " with `apt-get install postgresql`"
        )
    return Path(found).resolve().parent


class Cluster:
    """One server with its data.

    Attributes:
        url: Of its database, over the socket.
        port: Its loopback port.
        process: The server's process.
        user: Who runs it, if not who runs the tests.
    """

    def __init__(self, directory: Path, *, fsync: bool = False) -> None:
        self._directory = directory
        self._programs = find_programs()
        self.user = next(u for u in _UNPRIVILEGED if _exists(u)) if os.geteuid() == 0 else None
        self._fsync = fsync
        self.port = _free_port()
        self.url = f"postgresql://cronoq@/postgres?host={directory}&port={self.port}"
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def tcp_url(self) -> str:
        """The same database over the loopback port."""
        return f"postgresql://cronoq@127.0.0.1:{self.port}/postgres"

    def make(self) -> None:
        """Makes the data directory."""
        if self.user is not None:
            shutil.chown(self._directory, self.user)
        self._run(
            "initdb", "-D", "data", "-U", "cronoq", "-A", "trust", "-E", "UTF8", "--no-locale", "-N"
        )

    def start(self) -> None:
        """Starts the server and returns when it answers.

        After a crash, sessions of the server before may take a moment to end; until then a new
        one finds their memory and sockets in use and gives up, and is started again.
        """
        arguments = [str(self._programs / "postgres"), "-D", "data", "-k", str(self._directory)]
        for option in (
            f"port={self.port}",
            "listen_addresses=127.0.0.1",
            f"fsync={'on' if self._fsync else 'off'}",
            "shared_buffers=128MB",
            "max_wal_size=2GB",
        ):
            arguments += ["-c", option]
        deadline = time.monotonic() + _START_TIMEOUT_S
        self._launch(arguments)
        while not self._stands():
            assert self.process is not None
            if time.monotonic() > deadline:
                raise RuntimeError((self._directory / "log").read_text(encoding="utf-8"))
            time.sleep(0.02)
            if self.process.poll() is not None:
                self._launch(arguments)

    def _stands(self) -> bool:
        """Whether this very process is ready; one that was killed has left its word behind."""
        assert self.process is not None
        try:
            told = (self._directory / "data" / "postmaster.pid").read_text(encoding="utf-8")
        except FileNotFoundError:
            return False
        return told.startswith(f"{self.process.pid}\n") and "ready" in told

    def _launch(self, arguments: list[str]) -> None:
        with (self._directory / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [*self._as_user(), *arguments], cwd=self._directory, stdout=log, stderr=log
            )

    def _as_user(self) -> tuple[str, ...]:
        """A command that goes on as the user who runs the server, with the same process id.

        Python itself would fork for that, and gRPC's threads do not outlive a fork.
        """
        if self.user is None:
            return ()
        group = pwd.getpwnam(self.user).pw_gid
        return ("setpriv", f"--reuid={self.user}", f"--regid={group}", "--clear-groups")

    def stop(self, number: int = signal.SIGINT) -> None:
        """Stops the server: SIGINT ends its sessions, SIGQUIT leaves it to recover."""
        if self.process is not None:
            self.process.send_signal(number)
            self.process.wait()
            self.process = None

    def _run(self, program: str, *arguments: str) -> None:
        subprocess.run(
            [str(self._programs / program), *arguments],
            cwd=self._directory,
            user=self.user,
            check=True,
            stdout=subprocess.DEVNULL,
        )


@contextlib.contextmanager
def running_cluster(*, fsync: bool = False) -> Iterator[Cluster]:
    """A server that lives as long as the block."""
    with tempfile.TemporaryDirectory(prefix="cronoq-pg-") as name:
        cluster = Cluster(Path(name), fsync=fsync)
        cluster.make()
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.stop()


def _exists(user: str) -> bool:
    try:
        pwd.getpwnam(user)
    except KeyError:
        return False
    return True


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
