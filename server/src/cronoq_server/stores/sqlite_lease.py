"""When a process may take the lease of a SQLite file from the one that holds it.

Rules a change must keep:

1. Any doubt means: wait. Only the holder's release, its provable death or its silence makes room.
2. The wall clock alone is never believed, unless the lease had run out before the first look:
   somebody who watches has to see the row unchanged for a whole lease by its own monotonic clock.
3. The row counts its renewals, so that a watcher sees life whatever clocks say.

Reading and writing the row is the store's business.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Protocol

import msgspec

from cronoq_server.engine.model import Duration, Instant


class LeaseClock(Protocol):
    """The two readings a lease needs, in nanoseconds."""

    def wall(self) -> Instant:
        """Unix time."""

    def mono(self) -> Instant:
        """A clock of this process that never goes back."""


class SystemLeaseClock:
    """The machine's clocks."""

    def wall(self) -> Instant:
        """See `LeaseClock.wall`."""
        return time.time_ns()

    def mono(self) -> Instant:
        """See `LeaseClock.mono`."""
        return time.monotonic_ns()


class Process(msgspec.Struct, frozen=True):
    """A process, named so that another one on the same host can tell whether it still runs.

    Attributes:
        boot: Id of the running boot.
        namespace: Its pid namespace.
        pid: Its number there.
        started: When it started, in clock ticks since boot.
    """

    boot: str
    namespace: str
    pid: int
    started: int


class LeaseRow(msgspec.Struct, frozen=True):
    """What the leader row says about the lease."""

    epoch: int
    holder: str | None
    expires_at: Instant
    renewals: int
    process: Process | None


def _stat(pid: int) -> list[str] | None:
    """What the system says of a process, from its state on; None when that cannot be read."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The name in parentheses may hold spaces and parentheses.
    return stat.rpartition(")")[2].split()


def _started(pid: int) -> int | None:
    """When a process started; None when that cannot be read."""
    stat = _stat(pid)
    return None if stat is None else int(stat[19])


def _has_ended(pid: int) -> bool:
    """Whether a process has ended and only waits for its parent to hear of it.

    One whose first thread has ended looks the same while others run on: those are listed until
    they have let go of everything.
    """
    stat = _stat(pid)
    if stat is None or stat[0] != "Z":
        return False
    try:
        threads = [entry.name for entry in Path(f"/proc/{pid}/task").iterdir()]
    except OSError:
        return False
    return threads == [str(pid)]


def this_process() -> Process | None:
    """This process; None where the system does not tell."""
    pid = os.getpid()
    started = _started(pid)
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        namespace = Path("/proc/self/ns/pid").readlink().name
    except OSError:
        return None
    return None if started is None else Process(boot, namespace, pid, started)


def is_gone(holder: Process | None) -> bool:
    """Whether a process is certainly no more."""
    here = this_process()
    if holder is None or here is None:
        return False
    if (holder.boot, holder.namespace) != (here.boot, here.namespace):
        return False
    try:
        os.kill(holder.pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass  # it lives, and belongs to somebody else
    started = _started(holder.pid)
    return started is not None and (started != holder.started or _has_ended(holder.pid))


class Watch:
    """What one process has seen of the lease so far."""

    def __init__(self, ttl: Duration, poll: Duration) -> None:
        """Begins to watch.

        Args:
            ttl: How long a lease lasts, nanoseconds.
            poll: How often the row is looked at, nanoseconds.
        """
        self._ttl = ttl
        self._poll = poll
        self._seen: tuple[int, str | None, int] | None = None
        self._since: Instant = 0

    def may_take(self, row: LeaseRow, wall: Instant, mono: Instant) -> bool:
        """Whether the lease may be taken now."""
        if row.holder is None:
            return True
        has_expired = row.expires_at <= wall
        state = (row.epoch, row.holder, row.renewals)
        is_first_look = self._seen is None
        if state != self._seen:
            self._seen, self._since = state, mono
        if is_first_look and has_expired:
            return True
        unchanged = mono - self._since
        if unchanged >= self._ttl + self._poll or (has_expired and unchanged >= self._ttl):
            return True
        return is_gone(row.process)

    def forget(self) -> None:
        """Begins anew: what was seen concerns a term of one's own."""
        self._seen = None
