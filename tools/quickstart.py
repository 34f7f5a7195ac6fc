"""Decides how the programs in the documentation are taken out of their pages and run.

They run word for word, but for the port. Used by ``tests/tidy/test_docs.py`` (the checkout)
and by ``tools/check_package.py`` (the installed packages), so that both try the same lines.
"""

from __future__ import annotations

import contextlib
import re
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import grpc

ROOT = Path(__file__).resolve().parent.parent
README_ADDRESS = "127.0.0.1:7070"
EXPECTED_OUTPUT = "hello world\n"
START_TIMEOUT_S = 20
LOOK_INTERVAL_S = 0.2
RUN_TIMEOUT_S = 60

_PYTHON_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_PROGRAM_WITH_OUTPUT = re.compile(
    r"^```python\n((?:(?!^```).)*?)^```\n\n```text\n(.*?)^```$", re.DOTALL | re.MULTILINE
)


def read_quickstart() -> str:
    """Return the first Python block of the README."""
    block = _PYTHON_BLOCK.search((ROOT / "README.md").read_text(encoding="utf-8"))
    if block is None:
        raise ValueError("README.md has no Python block")
    return block.group(1)


def read_programs(page: Path) -> list[tuple[str, str]]:
    """Return each program of a page that shows its output, with that output."""
    return _PROGRAM_WITH_OUTPUT.findall(page.read_text(encoding="utf-8"))


def free_ports(count: int) -> list[int]:
    """Return ports of the loopback interface that were free a moment ago."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for listener in sockets:
            listener.bind(("127.0.0.1", 0))
        return [int(listener.getsockname()[1]) for listener in sockets]


@contextlib.contextmanager
def serving(command: Sequence[str], directory: Path) -> Iterator[str]:
    """Run ``cronoq-server`` on free ports and yield its gRPC address once it accepts.

    Args:
        command: How the server is called, without arguments.
        directory: Where its configuration and its log are written.

    Raises:
        RuntimeError: It ended, or did not accept within ``START_TIMEOUT_S``; has its output.
    """
    grpc_port, http_port = free_ports(2)
    address = f"127.0.0.1:{grpc_port}"
    config = directory / "cronoq.toml"
    config.write_text(
        f'[server]\ngrpc_addr = "{address}"\nhttp_addr = "127.0.0.1:{http_port}"\n',
        encoding="utf-8",
    )
    log = directory / "server.log"
    with (
        log.open("wb") as output,
        subprocess.Popen(
            [*command, "--config", str(config)],
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        ) as process,
    ):
        try:
            await_acceptance(address, process, log)
            yield address
        finally:
            process.terminate()
            process.wait(timeout=60)


def await_acceptance(address: str, process: subprocess.Popen[bytes], log: Path) -> None:
    """Return when the server at an address accepts connections."""
    last = time.monotonic() + START_TIMEOUT_S
    with grpc.insecure_channel(address) as channel:
        is_ready = grpc.channel_ready_future(channel)
        while True:
            try:
                is_ready.result(timeout=LOOK_INTERVAL_S)
                return
            except grpc.FutureTimeoutError as error:
                # A server that ended will never accept: say so at once.
                if process.poll() is None and time.monotonic() < last:
                    continue
                state = "does not accept" if process.poll() is None else "ended"
                output = log.read_text(encoding="utf-8", errors="replace")
                raise RuntimeError(f"the server {state}:\n{output}") from error


def run_program(source: str, python: str, address: str, directory: Path) -> str:
    """Paste a program into a file, run it against a server, return what it printed.

    Raises:
        RuntimeError: It exited with another code than 0; has its output.
    """
    if README_ADDRESS not in source:
        raise ValueError(f"the program does not name {README_ADDRESS}")
    program = directory / "program.py"
    program.write_text(source.replace(README_ADDRESS, address), encoding="utf-8")
    run = subprocess.run(
        [python, "-W", "error", str(program)],
        cwd=directory,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=RUN_TIMEOUT_S,
        check=False,
    )
    if run.returncode != 0 or run.stderr:
        raise RuntimeError(f"exit code {run.returncode}\n{run.stdout}{run.stderr}")
    return run.stdout
