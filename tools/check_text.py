"""Decides what no committed text file may contain, and how large a file may be.

Called by pre-commit with the files of a commit and by ``tests/tidy`` with all of them. Everything
here must stay instant: it reads each file once. It does not know about formatting or links.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SIZE_MAX = 1024 * 1024

GENERATED_DIRECTORIES = ("_proto", "gen", "cronoqpb")
GENERATED_MARK = re.compile(r"generated|DO NOT EDIT", re.IGNORECASE)
# Generators and lock files have a layout of their own.
FOREIGN = re.compile(
    r"(^|/)(_proto|gen|cronoqpb|node_modules)/|\.lock$|-lock\.json$|\.sum$|^LICENSE$"
)

MERGE_MARK = re.compile(r"^(<{7} |={7}$|>{7} )", re.MULTILINE)
TRAILING_SPACE = re.compile(r"[ \t]+$", re.MULTILINE)
# Spelt in pieces, so that this file passes its own check.
LATER_NOTE = re.compile(r"\b(?:TO" r"DO|FIX" r"ME|X" r"XX)\b")
MACHINE_PATH = re.compile(r"(?<![\w.$}/-])/(?:work|root|home/[a-z]+|tmp/[a-z_]+)/\w")
FILE_WITHOUT_LATER_NOTES = (".md", ".py", ".proto", ".rs", ".go", ".ts", ".toml", ".sql", ".yaml")


def tracked_files() -> list[Path]:
    """Return every file of the repository that git tracks or would track."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listing = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return sorted(path for name in listing.split("\0") if name and (path := ROOT / name).is_file())


def is_generated(name: str) -> bool:
    """Say whether a path, relative to the repository, is one that ``just gen`` writes."""
    return any(f"/{directory}/" in name for directory in GENERATED_DIRECTORIES)


def find_faults(path: Path) -> Iterator[str]:
    """Yield one line per fault of a file, as ``path: what is wrong``."""
    name = path.relative_to(ROOT).as_posix()
    content = path.read_bytes()
    if len(content) > SIZE_MAX and not is_generated(name):
        yield f"{name}: larger than {SIZE_MAX} bytes"
    if b"\0" in content:
        return
    text = content.decode("utf-8", errors="replace")
    if MERGE_MARK.search(text) and path.suffix != ".md":
        yield f"{name}: has a merge mark"
    if is_generated(name):
        if path.suffix in {".py", ".pyi", ".go", ".ts", ".rs"} and path.name != "__init__.py":
            head = "\n".join(text.splitlines()[:10])
            if not GENERATED_MARK.search(head):
                yield f"{name}: does not say at its top that it is generated"
        return
    if FOREIGN.search(name):
        return
    yield from find_faults_of_hand_written(name, path.suffix, text)


def find_faults_of_hand_written(name: str, suffix: str, text: str) -> Iterator[str]:
    """Yield the faults that only matter in files that people write."""
    if TRAILING_SPACE.search(text):
        yield f"{name}: has space at the end of a line"
    if text and not text.endswith("\n"):
        yield f"{name}: does not end with a newline"
    if suffix in FILE_WITHOUT_LATER_NOTES and LATER_NOTE.search(text):
        yield f"{name}: leaves a note for later; write an issue or do it"
    if found := MACHINE_PATH.search(text):
        yield f"{name}: names a path of one machine ({found.group()}…)"


def main(paths: Iterable[str]) -> int:
    """Check the given files and return the exit code."""
    files = [path for given in paths if (path := Path(given).resolve()).is_file()]
    faults = [fault for path in files for fault in find_faults(path)]
    for fault in faults:
        print(fault)
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
