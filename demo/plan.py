"""Which tasks the demo submits: one per file, and a tree of sums above them.

A task may depend on 100 others, so many files need sums of sums. Sums name what they depend on by
key: the whole tree can be written down before any task has an id.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import cronoq
from demo.handlers import FAILURES, FileToCount, add_counts, count_file, run_on, succeed_third

FAN_IN = 100
"""Parents of one sum: as many as a server allows by default."""
KEY_MAX = 200
SMALL_BYTES = 4 * 1024
LARGE_BYTES = 64 * 1024


def plan_files(folder: Path, files: Sequence[Path]) -> list[cronoq.TaskSpec]:
    """Returns a task per file: small files first, since many of them are done soon."""
    return [
        cronoq.TaskSpec(
            count_file.__name__,
            FileToCount(str(path)),
            key=file_key(path.relative_to(folder).as_posix()),
            priority=_priority(path.stat().st_size),
        )
        for path in files
    ]


def _priority(size: int) -> cronoq.Priority:
    if size <= SMALL_BYTES:
        return cronoq.Priority.HIGH
    return cronoq.Priority.NORMAL if size <= LARGE_BYTES else cronoq.Priority.LOW


def file_key(name: str) -> str:
    """Returns the key of a file's task; a long name is cut and told apart by its digest."""
    if len(name.encode()) <= KEY_MAX:
        return f"file:{name}"
    digest = hashlib.sha256(name.encode()).hexdigest()[:32]
    return f"file:{name.encode()[-KEY_MAX // 2 :].decode(errors='ignore')}:{digest}"


def plan_sums(keys: Sequence[str]) -> list[list[cronoq.TaskSpec]]:
    """Returns the sums, level by level; the last level is the one task that has everything."""
    levels: list[list[cronoq.TaskSpec]] = []
    while not levels or len(keys) > 1:
        levels.append(
            [
                cronoq.TaskSpec(
                    add_counts.__name__, key=f"sum:{len(levels)}:{index}", deps=list(parents)
                )
                for index, parents in enumerate(_groups(keys, FAN_IN))
            ]
        )
        keys = [spec.key for spec in levels[-1]]
    return levels


def _groups(keys: Sequence[str], size: int) -> Iterator[Sequence[str]]:
    return (keys[start : start + size] for start in range(0, len(keys), size))


def plan_stubborn() -> cronoq.TaskSpec:
    """Returns the task that needs three attempts, and gets just as many."""
    retry = cronoq.RetryPolicy(
        max_attempts=FAILURES + 1, initial_backoff=0.1, max_backoff=0.2, jitter=False
    )
    return cronoq.TaskSpec(succeed_third.__name__, key="stubborn", retry=retry)


def plan_endless() -> cronoq.TaskSpec:
    """Returns the task that has to be cancelled."""
    urgent = cronoq.Priority.CRITICAL
    return cronoq.TaskSpec(run_on.__name__, key="endless", priority=urgent)
