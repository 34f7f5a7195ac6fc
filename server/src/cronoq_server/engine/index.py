"""The order of live tasks by id, for listings: appended to, never inserted into.

Ids rise, so a list in order of admission is in order of id; what has ended stays in it as a dead
entry until it is the last one, or half are dead. Only a redrive or a recovery brings an id back
that is lower than the last: it is put in its place, which is rare and costs a move of memory.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Container, Iterator

_REBUILD_MIN = 1024


class IdIndex:
    """Ids in rising order, with dead ones among them."""

    __slots__ = ("_dead", "_ids", "_living")

    def __init__(self, living: Container[int]) -> None:
        """`living` tells which ids still count."""
        self._ids: list[int] = []
        self._dead = 0
        self._living = living

    def add(self, task_id: int) -> None:
        """Notes a task that lives from now on."""
        ids = self._ids
        if not ids or task_id > ids[-1]:
            ids.append(task_id)
        elif ids[bisect_left(ids, task_id)] == task_id:
            self._dead -= 1
        else:
            insort(ids, task_id)

    def left(self) -> None:
        """Notes that one of them has ended; rebuilds when half are dead."""
        self._dead += 1
        ids, living = self._ids, self._living
        while ids and ids[-1] not in living:
            ids.pop()
            self._dead -= 1
        if self._dead > _REBUILD_MIN and self._dead * 2 > len(self._ids):
            self._ids = [task_id for task_id in ids if task_id in living]
            self._dead = 0

    def walk(self, after: int, newest_first: bool) -> Iterator[int]:
        """Ids behind a cursor, dead ones among them; 0 = from the beginning."""
        ids = self._ids
        if newest_first:
            at = bisect_left(ids, after) if after else len(ids)
            for index in range(at - 1, -1, -1):
                yield ids[index]
        else:
            for index in range(bisect_right(ids, after), len(ids)):
                yield ids[index]

    def clear(self) -> None:
        """Forgets everything."""
        self._ids.clear()
        self._dead = 0
