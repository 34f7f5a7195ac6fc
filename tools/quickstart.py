"""Decides how the programs in the documentation are taken out of their pages and run.

The quickstart runs word for word, but for the port. ``tools/release`` does that with the
installed packages, ``tests/docs`` with the checkout, along with all other pages.
"""

from __future__ import annotations

import contextlib
import re
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
README_ADDRESS = "127.0.0.1:7070"
EXPECTED_OUTPUT = "hello world\n"
READY = "serving gRPC on "
RUN_TIMEOUT_S = 60
STOP_TIMEOUT_S = 60

_PYTHON_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def read_quickstart() -> str:
    """Return the first Python block of the README."""
    block = _PYTHON_BLOCK.search((ROOT / "README.md").read_text(encoding="utf-8"))
    if block is None:
        raise ValueError("README.md has no Python block")
    return block.group(1)


@contextlib.contextmanager
def serving(command: Sequence[str], directory: Path) -> Iterator[str]:
    """Run ``cronoq-server`` on a free port and yield its address once it accepts.

    Args:
        command: How the server is called, without arguments.
        directory: Where it runs and where its log is written.

    Raises:
        RuntimeError: It did not come up, or did not stop in order; has its log.
    """
    log = directory / "server.log"
    with (
        log.open("wb") as errors,
        subprocess.Popen(
            [*command, "--grpc-addr", "127.0.0.1:0", "--http-addr", "127.0.0.1:0"],
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
        ) as process,
    ):
        assert process.stdout is not None
        try:
            said = process.stdout.readline().decode()
            if not said.startswith(READY):
                raise RuntimeError(f"the server said {said!r}\n{log.read_text('utf-8')}")
            yield said.removeprefix(READY).strip()
        finally:
            process.terminate()
            code = process.wait(timeout=STOP_TIMEOUT_S)
    if code != 0:
        raise RuntimeError(f"the server ended with {code}\n{log.read_text('utf-8')}")


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
