"""The order of live tasks by id, for listings: appended to, never inserted into.

Ids rise, so a list in order of admission is in order of id; what has ended stays in it as a dead
entry until it is the last one, or half are dead. Only a redrive or a recovery brings an id back
that is lower than the last: it is put in its place, which is rare and costs a move of memory.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Container, Iterator
from typing import TypeAlias

from cronoq_server.engine.model import TaskFilter, TaskSpec

_REBUILD_MIN = 1024


class IdIndex:
    """Ids in rising order, with dead ones among them."""

    __slots__ = ("_dead", "_ids", "_living")

    def __init__(self, living: Container[int]) -> None:
        """`living` tells which ids still count."""
        self._ids: list[int] = []
        self._dead = 0
        self._living = living

    def __len__(self) -> int:
        """How many of them live."""
        return len(self._ids) - self._dead

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


Fact: TypeAlias = tuple[str, str, str]
"""One thing that a listing may ask for: which field, a name within it, the value."""

_COMMON_KIND = "default"


class Postings:
    """Which live tasks have a kind, a tenant or a tag, each in order of id.

    The common values, that of no kind and no tenant, have no list: one would hold nearly all.
    """

    __slots__ = ("_lists", "_living")

    def __init__(self, living: Container[int]) -> None:
        """`living` tells which ids still count."""
        self._lists: dict[Fact, IdIndex] = {}
        self._living = living

    def add(self, task_id: int, spec: TaskSpec) -> None:
        """Notes a task that lives from now on."""
        lists = self._lists
        for fact in _facts(spec):
            found = lists.get(fact)
            if found is None:
                found = lists[fact] = IdIndex(self._living)
            found.add(task_id)

    def left(self, spec: TaskSpec) -> None:
        """Notes that one of them has ended; what nobody has any more is dropped."""
        lists = self._lists
        for fact in _facts(spec):
            found = lists[fact]
            found.left()
            if not len(found):
                del lists[fact]

    def narrowest(self, wanted: TaskFilter) -> IdIndex | None:
        """The shortest list that holds all that a filter lets through; None = there is no list.

        What nobody has gives an empty one.
        """
        asked: list[Fact] = [("tag", name, value) for name, value in wanted.tags]
        if len(wanted.kinds) == 1 and wanted.kinds[0] != _COMMON_KIND:
            asked.append(("kind", "", wanted.kinds[0]))
        if len(wanted.tenants) == 1 and wanted.tenants[0]:
            asked.append(("tenant", "", wanted.tenants[0]))
        if not asked:
            return None
        lists = [self._lists.get(fact) for fact in asked]
        if any(found is None for found in lists):
            return IdIndex(self._living)
        return min((found for found in lists if found is not None), key=len)

    def clear(self) -> None:
        """Forgets everything."""
        self._lists.clear()


def _facts(spec: TaskSpec) -> list[Fact]:
    facts: list[Fact] = [("tag", name, value) for name, value in spec.tags] if spec.tags else []
    if spec.kind != _COMMON_KIND:
        facts.append(("kind", "", spec.kind))
    if spec.tenant:
        facts.append(("tenant", "", spec.tenant))
    return facts
