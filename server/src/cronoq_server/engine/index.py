"""The order of live tasks by id, for listings: appended to, never inserted into.

Ids rise, so lists in order of admission are in order of id. They are blocks of a bounded length:
what has ended stays in its block as a dead entry until half of the block is dead, and then that
block alone is rebuilt, so that no single end costs more than a block. Only a redrive or a recovery
brings an id back that is lower than the last: it is put in its place within its block.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Container, Iterator
from typing import TypeAlias

from cronoq_server.engine.model import TaskFilter, TaskSpec

_BLOCK_MAX = 4096


class IdIndex:
    """Ids in rising order, with dead ones among them."""

    __slots__ = ("_block_max", "_blocks", "_dead", "_firsts", "_live", "_living")

    def __init__(self, living: Container[int], block_max: int = _BLOCK_MAX) -> None:
        """`living` tells which ids still count; a block has about `block_max` of them."""
        self._block_max = block_max
        self._blocks: list[list[int]] = []
        self._firsts: list[int] = []  # a block has ids from its own first up to the next one's
        self._dead: list[int] = []
        self._live = 0
        self._living = living

    def __len__(self) -> int:
        """How many of them live."""
        return self._live

    def add(self, task_id: int) -> None:
        """Notes a task that lives from now on."""
        self._live += 1
        blocks = self._blocks
        if not blocks or (task_id > blocks[-1][-1] and len(blocks[-1]) >= self._block_max):
            self._begin(len(blocks), [task_id])
        elif task_id > blocks[-1][-1]:
            blocks[-1].append(task_id)
        else:
            self._put_back(task_id)

    def _begin(self, at: int, ids: list[int]) -> None:
        self._blocks.insert(at, ids)
        self._firsts.insert(at, ids[0])
        self._dead.insert(at, 0)

    def _put_back(self, task_id: int) -> None:
        """An id that is lower than the last, maybe there as a dead entry."""
        at = max(0, bisect_right(self._firsts, task_id) - 1)
        block = self._blocks[at]
        place = bisect_left(block, task_id)
        if place < len(block) and block[place] == task_id:
            self._dead[at] -= 1
            return
        insort(block, task_id)
        self._firsts[at] = block[0]
        if len(block) > 2 * self._block_max:
            self._begin(at + 1, block[self._block_max :])
            del block[self._block_max :]
            self._rebuild(at + 1)
            self._rebuild(at)

    def left(self, task_id: int) -> None:
        """Notes that one of them has ended; rebuilds its block when half of it is dead."""
        self._live -= 1
        at = bisect_right(self._firsts, task_id) - 1
        self._dead[at] += 1
        if self._dead[at] * 2 > len(self._blocks[at]):
            self._rebuild(at)

    def _rebuild(self, at: int) -> None:
        living = self._living
        ids = [task_id for task_id in self._blocks[at] if task_id in living]
        if ids:
            self._blocks[at], self._firsts[at], self._dead[at] = ids, ids[0], 0
        else:
            del self._blocks[at], self._firsts[at], self._dead[at]

    def walk(self, after: int, newest_first: bool) -> Iterator[int]:
        """Ids behind a cursor, dead ones among them; 0 = from the beginning."""
        blocks = self._blocks
        if newest_first:
            at = bisect_left(self._firsts, after) - 1 if after else len(blocks) - 1
            for index in range(at, -1, -1):
                block = blocks[index]
                end = bisect_left(block, after) if after else len(block)
                yield from reversed(block[:end])
        else:
            for index in range(max(0, bisect_right(self._firsts, after) - 1), len(blocks)):
                block = blocks[index]
                yield from block[bisect_right(block, after) :]

    def clear(self) -> None:
        """Forgets everything."""
        for each in (self._blocks, self._firsts, self._dead):
            each.clear()
        self._live = 0


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

    def left(self, task_id: int, spec: TaskSpec) -> None:
        """Notes that one of them has ended; what nobody has any more is dropped."""
        lists = self._lists
        for fact in _facts(spec):
            found = lists[fact]
            found.left(task_id)
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
