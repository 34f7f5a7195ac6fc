"""Which tasks the demo submits: one per file, and a tree of sums above them.

A task may depend on 100 others, so many files need sums of sums. Sums name what they depend on by
key: the whole tree can be written down before any task has an id.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import cronoq
from demo.handlers import FileToCount, add_counts, count_file, run_on, succeed_third

FAN_IN = 100
"""Parents of one sum: as many as a server allows by default."""
ATTEMPTS_MAX = 20
"""Of the two tasks that are watched: enough for many servers that die on the way."""
NAME_MAX = 200
"""Bytes of a file's name in a key; keys have at most 256 by default."""
SMALL_BYTES = 4 * 1024
LARGE_BYTES = 64 * 1024


class Plan:
    """All tasks of one run.

    Keys and a tag carry the run's own name: a store that lasts may have tasks of earlier runs. One
    that was cut short is found by another tag, which stands for the folder as it is.

    Attributes:
        name: The run's.
        is_continued: Whether it had begun before.
        tag: What the tasks of this run are tagged with.
        files: One task per file.
        levels: The sums, level by level; the last level is the one task that has everything.
        stubborn: The task that needs three attempts.
        endless: The task that has to be cancelled.
    """

    def __init__(self, folder: Path, files: Sequence[Path], name: str | None = None) -> None:
        """Plans a run.

        Args:
            folder: Where the files are.
            files: What is to be counted.
            name: Of the run that is to go on; a new one if not given.
        """
        self.name = name or cronoq.new_key()[:8]
        self.is_continued = name is not None
        self.tag = {"run": self.name}
        self._tags = {**self.tag, **folder_tag(folder, files)}
        self.files = [self._file(folder, path) for path in files]
        self.levels = self._sums([spec.key for spec in self.files])
        retry = cronoq.RetryPolicy(
            max_attempts=ATTEMPTS_MAX, initial_backoff=0.1, max_backoff=0.2, jitter=False
        )
        self.stubborn = self._task(succeed_third, "stubborn", retry=retry)
        self.endless = self._task(run_on, "endless", priority=cronoq.Priority.CRITICAL, retry=retry)

    @property
    def task_count(self) -> int:
        """How many tasks these are."""
        return len(self.files) + sum(map(len, self.levels)) + 2

    def _task(
        self,
        handler: Callable[..., Any],
        name: str,
        payload: Any = cronoq.NO_PAYLOAD,
        *,
        deps: Sequence[str] = (),
        priority: cronoq.Priority = cronoq.Priority.NORMAL,
        retry: cronoq.RetryPolicy | None = None,
    ) -> cronoq.TaskSpec:
        return cronoq.TaskSpec(
            handler.__name__,
            payload,
            key=f"{self.name}:{name}",
            deps=deps,
            priority=priority,
            retry=retry,
            tags=self._tags,
        )

    def _file(self, folder: Path, path: Path) -> cronoq.TaskSpec:
        """Small files first: many of them are done soon."""
        size = path.stat().st_size
        if size <= SMALL_BYTES:
            priority = cronoq.Priority.HIGH
        else:
            priority = cronoq.Priority.NORMAL if size <= LARGE_BYTES else cronoq.Priority.LOW
        name = short_name(path.relative_to(folder).as_posix())
        return self._task(count_file, f"file:{name}", FileToCount(str(path)), priority=priority)

    def _sums(self, keys: Sequence[str]) -> list[list[cronoq.TaskSpec]]:
        levels: list[list[cronoq.TaskSpec]] = []
        while not levels or len(keys) > 1:
            groups = [keys[start : start + FAN_IN] for start in range(0, len(keys), FAN_IN)]
            levels.append(
                [
                    self._task(add_counts, f"sum:{len(levels)}:{index}", deps=parents)
                    for index, parents in enumerate(groups)
                ]
            )
            keys = [spec.key for spec in levels[-1]]
        return levels


def folder_tag(folder: Path, files: Sequence[Path]) -> dict[str, str]:
    """A tag that stands for these files, as long as none of them changes."""
    digest = hashlib.sha256(os.fsencode(folder))
    for path in files:
        stat = path.stat()
        digest.update(f"\0{path}\0{stat.st_size}\0{stat.st_mtime_ns}".encode())
    return {"folder": digest.hexdigest()[:32]}


def short_name(name: str) -> str:
    """Returns a name that fits into a key: a long one is cut, and told apart by its digest."""
    if len(name.encode()) <= NAME_MAX:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:32]
    return f"{digest}:{name.encode()[-NAME_MAX // 2 :].decode(errors='ignore')}"
