"""A disk so small that a test can fill it, and make room again; or a process that may not write.

Only root may mount a disk. Where that cannot be had, a process of one's own can be forbidden to
write to files: its system calls fail likewise, if with another number.
"""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MIB = 1024 * 1024
_PIECES = (MIB, 64 * 1024, 4096)


class NoSmallDisk(Exception):
    """None can be made here; the text says why."""


class SmallDisk:
    """A file system of its own in memory.

    Attributes:
        path: Where it is mounted.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._balloon = path / "balloon"

    def fill(self) -> None:
        """Leaves no room at all."""
        with self._balloon.open("wb", buffering=0) as balloon:
            for piece in _PIECES:
                try:
                    while True:
                        balloon.write(b"\0" * piece)
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise

    def make_room(self) -> None:
        """Takes away what filled it."""
        self._balloon.unlink(missing_ok=True)


def forbid_writing(pid: int) -> None:
    """Every write of a process to a file fails from now on."""
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))


def allow_writing(pid: int) -> None:
    """It may write again."""
    unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, unlimited)


@contextmanager
def small_disk(mib: int) -> Iterator[SmallDisk]:
    """A disk of so many MiB that every user can reach, mounted while the block lasts.

    Raises:
        NoSmallDisk: This process may not mount one.
    """
    if os.geteuid() != 0:
        raise NoSmallDisk("a small disk can only be mounted by root")
    with tempfile.TemporaryDirectory(prefix="cronoq-disk-") as path:
        options = f"size={mib}m,mode=0755"
        command = ("mount", "-t", "tmpfs", "-o", options, "cronoq-test", path)
        made = subprocess.run(command, capture_output=True, text=True, check=False)
        if made.returncode:
            raise NoSmallDisk(f"no small disk can be mounted: {made.stderr.strip()}")
        try:
            yield SmallDisk(Path(path))
        finally:
            subprocess.run(("umount", "--lazy", path), check=True)
