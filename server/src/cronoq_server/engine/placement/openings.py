"""Decides when a waiting task's deadline begins to press: a heap of window openings.

Entries of tasks that have left are counted and swept out when they are half of the heap, so that
a year-long deadline does not keep a finished task in memory.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from cronoq_server.engine.placement.waiting import Rush, Waiting

_DEAD_MIN = 64


class Openings:
    """Tasks in line whose windows are still shut, by the wall instant at which they open."""

    __slots__ = ("_count", "_dead", "_heap")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Waiting, Rush]] = []
        self._count = 0
        self._dead = 0

    def __len__(self) -> int:
        return len(self._heap) - self._dead

    def add(self, task: Waiting, rush: Rush) -> None:
        """Adds a task in line; its `p_rush` is `rush`."""
        self._count += 1
        heappush(self._heap, (rush.opens, self._count, task, rush))

    def drop(self) -> None:
        """Is told that a task that was added has left and has no `p_rush` any more."""
        self._dead += 1
        if self._dead > _DEAD_MIN and self._dead * 2 > len(self._heap):
            self._heap = [entry for entry in self._heap if entry[2].p_rush is entry[3]]
            heapify(self._heap)
            self._dead = 0

    def due(self, wall: int) -> list[Waiting]:
        """Takes out the tasks whose windows are open at `wall`."""
        found = []
        while self._heap and self._heap[0][0] <= wall:
            _, _, task, rush = heappop(self._heap)
            if task.p_rush is rush:
                found.append(task)
            else:
                self._dead -= 1
        return found

    def next(self) -> int | None:
        """Returns the next instant at which a window opens."""
        while self._heap and self._heap[0][2].p_rush is not self._heap[0][3]:
            heappop(self._heap)
            self._dead -= 1
        return self._heap[0][0] if self._heap else None
