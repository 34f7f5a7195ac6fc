"""The processes that a measurement needs, and what the system says of each.

A process is reached by its pid alone, and each is ended by it, the last one first.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.bench.environment import ROOT
from tests.bench.worker import WORKING

SERVING = "serving gRPC on "
STOP_TIMEOUT_S = 30.0
TICKS_PER_S = os.sysconf("SC_CLK_TCK")

CONFIG = """
[server]
grpc_addr = "127.0.0.1:0"
http_addr = "127.0.0.1:0"
log_level = "error"

[[pools]]
name = "default"

[[pools]]
name = "quiet"  # nobody works for it
max_pending = 10_000_000
"""

SEATS, CALLS = "seats", "calls"
LIMITED = f"""
[[pools]]
name = "limited"
fair_share = true

[[resources]]
name = "{SEATS}"
permits = 800

[[resources]]
name = "{CALLS}"
kind = "token_bucket"
rate = 1_000_000
burst = 1_000_000
"""
"""A pool whose tenants share, a semaphore and a bucket of tokens: limits that bind nobody."""


@dataclass(frozen=True, slots=True)
class System:
    """A server with its workers."""

    address: str
    server: int
    workers: tuple[int, ...]


@contextlib.contextmanager
def started(module: Sequence[str], announcement: str) -> Iterator[tuple[int, str]]:
    """Starts `python -m MODULE`; yields its pid and the rest of the line that announces it.

    Raises:
        RuntimeError: It said something else; what it had to say is on standard error.
    """
    command = [sys.executable, "-m", *module]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline().strip()
            if not line.startswith(announcement):
                raise RuntimeError(f"{module[0]} did not start, it said {line!r}")
            yield process.pid, line.removeprefix(announcement)
        finally:
            process.terminate()
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()


@contextlib.contextmanager
def running(
    folder: Path, store: str, workers: int, slots: int, pool: str = "default"
) -> Iterator[System]:
    """A server and its workers, connected.

    Args:
        folder: Where the server's files are put.
        store: As the server's `--store` has it; `sqlite` alone is a file in that folder.
        workers: How many worker processes.
        slots: Slots of each.
        pool: Whom the workers work for.
    """
    config = folder / "cronoq.toml"
    config.write_text(CONFIG + LIMITED)
    if store == "sqlite":
        store = f"sqlite:{folder / 'store.sqlite3'}"
    with contextlib.ExitStack() as stack:
        module = ("cronoq_server", "--config", str(config), "--store", store)
        server, address = stack.enter_context(started(module, SERVING))
        worker = ("tests.bench.worker", address, str(slots), pool)
        pids = tuple(stack.enter_context(started(worker, WORKING))[0] for _ in range(workers))
        yield System(address, server, pids)


def cpu_seconds(*pids: int) -> float:
    """Returns the processor time that these processes have used, threads included."""
    ticks = 0
    for pid in pids:
        # The name may have spaces; the fields behind it are counted from its closing parenthesis.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / TICKS_PER_S


def resident_mb(pid: int) -> float:
    """Returns the memory that a process has in use now, in MB."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6
