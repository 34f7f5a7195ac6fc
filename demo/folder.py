"""Which files of a folder the demo counts, and what they come to when counted here.

The count here shares nothing with the handlers but the meaning of the words: it reads line by line
and hashes in one go, so that a mistake of the one is not a mistake of the other.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from demo.counts import TEXT_LOOK_BYTES, Counts, is_text
from demo.errors import DemoError

SKIPPED_FOLDERS = frozenset({"__pycache__", "build", "dist", "node_modules", "target", "venv"})


def find_files(folder: Path) -> list[Path]:
    """Returns the files under a folder in a fixed order.

    Hidden folders (version control, environments, caches), those that tools fill, links, and files
    that cannot be read or have names that are no text are left out.

    Raises:
        DemoError: There is no such folder, or nothing to count in it.
    """
    if not folder.is_dir():
        raise DemoError(f"{folder} is not a folder")
    found: list[Path] = []
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if _is_walked(Path(place, name)))
        for name in sorted(names):
            path = Path(place, name)
            if _is_counted(path):
                found.append(path)
    if not found:
        raise DemoError(f"{folder} has no files to count")
    return found


def _is_walked(folder: Path) -> bool:
    if folder.name.startswith(".") or folder.name in SKIPPED_FOLDERS:
        return False
    # An environment under whatever name.
    return not (folder / "pyvenv.cfg").exists()


def _is_counted(path: Path) -> bool:
    try:
        str(path).encode()
    except UnicodeEncodeError:
        return False
    return path.is_file() and not path.is_symlink() and os.access(path, os.R_OK)


def count_here(path: Path) -> Counts:
    """Counts one file in this process."""
    lines = words = 0
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        size = file.tell()
        file.seek(0)
        text = is_text(file.read(TEXT_LOOK_BYTES))
        if text:
            file.seek(0)
            for line in file:
                lines += 1
                words += len(line.split())
    return Counts(1, int(not text), size, lines, words, digest)
