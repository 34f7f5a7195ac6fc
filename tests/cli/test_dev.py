"""The command `dev` with real processes: where they listen, and that they end together."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

MODULE = """
import cronoq

app = cronoq.App()


@app.task
async def greet(name: str) -> str:
    return f"hello {name}"
"""


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def accepts(port: int) -> bool:
    """Whether somebody listens there."""
    with socket.socket() as caller:
        return caller.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_server_and_worker_end_with_the_command(tmp_path: Path, number: int) -> None:
    """Whoever ends it, nothing stays behind; and the endpoint that was named is the server's."""
    (tmp_path / "hello.py").write_text(MODULE)
    port = free_port()
    command = [sys.executable, "-m", "cronoq.cli", "--endpoint", f"127.0.0.1:{port}"]
    with subprocess.Popen(
        [*command, "dev", "hello:app", "--store", "memory", "--no-reload"],
        cwd=tmp_path,
        env={**os.environ, "CRONOQ_SERVER__HTTP_ADDR": "127.0.0.1:0"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as running:
        assert running.stdout is not None
        said = []
        for line in running.stdout:
            said.append(line)
            if "connected" in line:
                break
        assert accepts(port), said
        running.send_signal(number)
        # Children that stayed would keep the pipe open, and this would not end.
        said += running.stdout.readlines()
        assert running.wait() == 0, said
    assert not accepts(port)
