"""What a tree of processes uses, and how all of it is paused and ended.

A broker, a pool of workers: each is one process with children that come and go. What children used
that have ended is counted with their parent, as the system does it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
STOP_TIMEOUT_S = 5.0


def _stat(pid: int) -> list[str]:
    """The fields of a process behind its name; empty if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def members(*roots: int) -> list[int]:
    """These processes and everything below them, parents first."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (fields := _stat(int(entry.name))):
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    found = list(roots)
    for pid in found:
        found += children.get(pid, [])
    return found


def cpu_seconds(*roots: int) -> float:
    """Processor time of the trees, with that of children that have ended."""
    stats = (_stat(pid) for pid in members(*roots))
    return sum(int(field) for fields in stats for field in fields[11:15]) / TICKS_PER_S


def memory_mb(*roots: int) -> float:
    """Memory of the trees in MB; a page that several processes share counts once."""
    kilobytes = 0
    for pid in members(*roots):
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        except (FileNotFoundError, ProcessLookupError):
            continue
        kilobytes += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return kilobytes * 1024 / 1e6


def _signal(number: int, pids: Sequence[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


@contextlib.contextmanager
def paused(*roots: int) -> Iterator[None]:
    """The trees stand still for as long as the block lasts."""
    pids = members(*roots)
    _signal(signal.SIGSTOP, pids)
    try:
        yield
    finally:
        _signal(signal.SIGCONT, pids)


def end(process: subprocess.Popen[str]) -> None:
    """Ends a tree: its root is asked to, and what is left of it after a while is killed."""
    pids = members(process.pid)
    process.terminate()
    deadline = time.monotonic() + STOP_TIMEOUT_S
    while process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    left = [pid for pid in pids if _stat(pid)]
    _signal(signal.SIGKILL, [pid for pid in left if pid != process.pid])
    if process.poll() is None:
        process.kill()
    process.wait()
