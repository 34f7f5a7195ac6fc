"""Decides who is first in a line: first come, first served among those who may run.

A line holds the waiting tasks of one (pool, class, tenant) in the order (ready since, id). Each
task stands behind a *gate*, a bit that says whether such a task may run now. While all tasks of a
pool stand behind one gate, a line is a list. Else a tree of masks lies over the list: the OR of the
gates per 32, 1024 and 32 768 places, and `first` walks down to the leftmost open gate.

Rules a change must keep:

- Every mask has at least the bits of the living tasks under it. It may have more: a walk in vain
  makes it exact again.
- Places never change except when the list is rebuilt, which writes the new places into the tasks.
- A task that returns with an old place goes into `back`, a short sorted list.
- A task whose deadline presses stands in `hot` only, a tournament per gate, because its rank moves.

This module does not know what a gate means.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import TYPE_CHECKING

from cronoq_server.engine.kinetic import Tournament
from cronoq_server.engine.urgency import score

if TYPE_CHECKING:
    from cronoq_server.engine.gates import Gate
    from cronoq_server.engine.placement import Waiting

# Values of `Waiting.p_at` that are no place in a line.
OUT = -1
STARTED = -2
BACK = -3
HOT = -4

BACK_MAX = 256
_NEVER = -(1 << 100)  # before any instant
_SLACK = 64
_CHOP_MIN = 1 << 16


class UnionTree:
    """The OR of many masks of which one at a time changes, in O(log n) per change."""

    __slots__ = ("_nodes", "_size")

    def __init__(self) -> None:
        self._size = 1
        self._nodes = [0, 0]

    @property
    def root(self) -> int:
        """The OR of all masks."""
        return self._nodes[1]

    def set(self, index: int, mask: int) -> None:
        """Replaces the mask at `index`; the tree grows as needed."""
        while index >= self._size:
            self._grow()
        nodes = self._nodes
        at = index + self._size
        if nodes[at] == mask:
            return
        nodes[at] = mask
        at >>= 1
        while at:
            union = nodes[at + at] | nodes[at + at + 1]
            if nodes[at] == union:
                return
            nodes[at] = union
            at >>= 1

    def _grow(self) -> None:
        leaves = self._nodes[self._size :]
        self._size *= 2
        self._nodes = [0] * self._size + leaves + [0] * len(leaves)
        for at in range(self._size - 1, 0, -1):
            self._nodes[at] = self._nodes[at + at] | self._nodes[at + at + 1]


class Line:
    """Waiting tasks of one (pool, class, tenant) in the order (since, id)."""

    __slots__ = (
        "_m1",
        "_m2",
        "_m3",
        "back",
        "base",
        "head",
        "hot",
        "hot_live",
        "last",
        "last_id",
        "live",
        "masked",
        "root",
        "tasks",
    )

    def __init__(self, masked: bool) -> None:
        self.tasks: list[Waiting | None] = []
        self.base = 0  # place of tasks[0]
        self.head = 0  # nobody stands before this index
        self.live = 0  # tasks in the list, without `back`
        self.last = _NEVER  # since and id of the last one appended
        self.last_id = 0
        self.masked = masked
        self.back: list[tuple[int, int, Waiting]] = []
        self.hot: dict[Gate, Tournament] = {}
        self.hot_live = 0
        self.root = 0
        self._m1: list[int] = []
        self._m2: list[int] = []
        self._m3: list[int] = []

    def __len__(self) -> int:
        return self.live + len(self.back) + self.hot_live

    def push(self, task: Waiting) -> None:
        """Adds a task at its place: the end, or `back` if it comes with an old place."""
        since = task.since
        if since <= self.last and (since < self.last or task.id < self.last_id):
            self._push_back(task)
            return
        self.last = since
        self.last_id = task.id
        tasks = self.tasks
        index = len(tasks)
        task.p_at = self.base + index
        tasks.append(task)
        self.live += 1
        if self.masked:
            self._mark(index, (task.p_via or task.demand).gate.bit)

    def heat(self, task: Waiting) -> None:
        """Adds a task whose deadline presses."""
        gate = (task.p_via or task.demand).gate
        tournament = self.hot.get(gate)
        if tournament is None:
            tournament = self.hot[gate] = Tournament()
        tournament.add(task)
        task.p_at = HOT
        self.hot_live += 1
        if self.masked:
            self.root |= gate.bit

    @property
    def is_plain(self) -> bool:
        """True if the tasks stand in one list in their order, all behind one gate."""
        return not (self.masked or self.hot or self.back)

    def line_of(self, _task: Waiting) -> Line:
        """Returns the line a task stands in: this one."""
        return self

    def marked(self, task: Waiting) -> None:
        """Is told that a task was moved within its line: nothing else depends on it."""

    def lines(self) -> tuple[Line, ...]:
        """Returns all lines: this one."""
        return (self,)

    def remove(self, task: Waiting) -> None:
        """Takes a task out, wherever it stands; its `p_at` becomes `OUT`."""
        at = task.p_at
        task.p_at = OUT
        if at >= 0:
            self._vacate(at - self.base)
        elif at == BACK:
            del self.back[bisect_left(self.back, (task.since, task.id))]
        else:
            gate = (task.p_via or task.demand).gate
            tournament = self.hot[gate]
            tournament.remove(task)
            self.hot_live -= 1
            if not len(tournament):
                del self.hot[gate]

    def first(self, open_bits: int, now: int) -> Waiting | None:
        """Returns the best task whose gate is in `open_bits`, None if there is none."""
        if not self.masked:
            found = self.tasks[self.head] if self.live else None
            if self.back:
                found = self._earlier(self.back[0][2], found)
        elif self.root & open_bits:
            found = None
            if self.live:
                found = self.tasks[self.head]
                assert found is not None
                if not (found.p_via or found.demand).gate.bit & open_bits:
                    found = self._search(open_bits)
            for _, _, task in self.back:
                if (task.p_via or task.demand).gate.bit & open_bits:
                    found = self._earlier(task, found)
                    break
        else:
            return None
        if self.hot:
            found = self._hotter(found, open_bits, now)
        if found is None and self.masked:
            self._tighten_root()
        return found

    def living(self) -> list[Waiting]:
        """Returns the tasks in order."""
        living = [task for task in self.tasks if task is not None]
        if self.back:
            living.extend(task for _, _, task in self.back)
            living.sort(key=_place)
        return living

    def hot_tasks(self) -> list[Waiting]:
        """Returns the tasks whose deadlines press."""
        return [task for tournament in self.hot.values() for task in tournament.tasks()]

    def newest(self) -> Waiting | None:
        """Returns the last task in order."""
        tasks = self.tasks
        while tasks and tasks[-1] is None:
            tasks.pop()
        if self.masked:
            self._trim(len(tasks))
        found = [tasks[-1]] if self.live else []
        if self.back:
            found.append(self.back[-1][2])
        found += self.hot_tasks()
        return max((task for task in found if task is not None), key=_place, default=None)

    def oldest(self) -> Waiting | None:
        """Returns the first task in order, whether it may run or not."""
        found = [self.tasks[self.head]] if self.live else []
        if self.back:
            found.append(self.back[0][2])
        found += self.hot_tasks()
        return min((task for task in found if task is not None), key=_place, default=None)

    def remask(self, masked: bool) -> None:
        """Builds the masks anew after gates changed, or drops them."""
        self.masked = masked
        for task in self._cool():
            self.heat(task)
        self._mask()

    def _mask(self) -> None:
        tasks = self.tasks
        self._m1, self._m2, self._m3, self.root = [], [], [], 0
        if not self.masked:
            return
        for start in range(0, len(tasks), 32):
            self._m1.append(_union_of(tasks[start : start + 32]))
        self._m2 = _fold(self._m1)
        self._m3 = _fold(self._m2)
        self._tighten_root()

    def reset_times(self) -> None:
        """Plays all tournaments anew, because the clock was set back."""
        for tournament in self.hot.values():
            tournament.reset()

    def advance(self, index: int, taken: int) -> None:
        """Is told that the first `taken` tasks, all before `index`, were taken out."""
        self.live -= taken
        if not self.live:
            self._reset()
            return
        tasks = self.tasks
        while tasks[index] is None:
            index += 1
        self.head = index
        self._shrink()

    def _vacate(self, index: int) -> None:
        self.tasks[index] = None
        if index == self.head:
            self.advance(index, 1)
            return
        self.live -= 1
        if not self.live:
            self._reset()
        else:
            self._shrink()

    def _shrink(self) -> None:
        head, length = self.head, len(self.tasks)
        if head >= _CHOP_MIN and head + head > length:
            self._chop()
        elif length > 5 * self.live + _SLACK:
            self._rebuild([task for task in self.tasks if task is not None])

    def _cool(self) -> list[Waiting]:
        """Takes all tasks out of the tournaments."""
        tasks = self.hot_tasks()
        for tournament in self.hot.values():
            for task in tournament.tasks():
                tournament.remove(task)
        self.hot = {}
        self.hot_live = 0
        return tasks

    def _hotter(self, found: Waiting | None, open_bits: int, now: int) -> Waiting | None:
        best = None if found is None else (-score(found, now), found.since, found.id)
        for gate, tournament in self.hot.items():
            if gate.bit & open_bits:
                task = tournament.best(now)
                rank = (-score(task, now), task.since, task.id)
                if best is None or rank < best:
                    best = rank
                    found = task
        return found

    def _put(self, task: Waiting, at: int) -> None:
        task.p_at = at

    @staticmethod
    def _earlier(one: Waiting, other: Waiting | None) -> Waiting:
        if other is None or _place(one) < _place(other):
            return one
        return other

    def _push_back(self, task: Waiting) -> None:
        self._put(task, BACK)
        insort(self.back, (task.since, task.id, task))
        if self.masked:
            self.root |= (task.p_via or task.demand).gate.bit
        if len(self.back) > BACK_MAX and 8 * len(self.back) > self.live:
            living = self.living()
            self.back = []
            self._rebuild(living)

    def _rebuild(self, living: list[Waiting]) -> None:
        self.tasks = list(living)
        self.base = self.head = 0
        self.live = len(living)
        for index, task in enumerate(living):
            self._put(task, index)
        self._mask()

    def _reset(self) -> None:
        self.tasks = []
        self.base = self.head = 0
        self.last = _NEVER
        self.last_id = 0
        self._m1, self._m2, self._m3 = [], [], []
        if self.masked:
            self._tighten_root()

    def _chop(self) -> None:
        # Whole blocks only, so that the masks keep their borders.
        blocks = self.head >> 15
        del self.tasks[: blocks << 15]
        del self._m1[: blocks << 10]
        del self._m2[: blocks << 5]
        del self._m3[:blocks]
        self.base += blocks << 15
        self.head -= blocks << 15

    def _trim(self, length: int) -> None:
        del self._m1[(length + 31) >> 5 :]
        del self._m2[(length + 1023) >> 10 :]
        del self._m3[(length + 32767) >> 15 :]

    def _mark(self, index: int, bit: int) -> None:
        at = index >> 5
        if at == len(self._m1):
            self._m1.append(bit)
        elif self._m1[at] & bit:
            return
        else:
            self._m1[at] |= bit
        at >>= 5
        if at == len(self._m2):
            self._m2.append(bit)
        else:
            self._m2[at] |= bit
        at >>= 5
        if at == len(self._m3):
            self._m3.append(bit)
        else:
            self._m3[at] |= bit
        self.root |= bit

    def _search(self, open_bits: int) -> Waiting | None:
        m1, m2, m3 = self._m1, self._m2, self._m3
        head1, head2 = self.head >> 5, self.head >> 10
        for at3 in range(self.head >> 15, len(m3)):
            if not m3[at3] & open_bits:
                continue
            end2 = min(at3 + 1 << 5, len(m2))
            for at2 in range(max(at3 << 5, head2), end2):
                if not m2[at2] & open_bits:
                    continue
                end1 = min(at2 + 1 << 5, len(m1))
                for at1 in range(max(at2 << 5, head1), end1):
                    if m1[at1] & open_bits:
                        found = self._look(at1, open_bits)
                        if found is not None:
                            return found
                m2[at2] = _union(m1[at2 << 5 : end1])
            m3[at3] = _union(m2[at3 << 5 : end2])
        return None

    def _look(self, at1: int, open_bits: int) -> Waiting | None:
        """Looks at the 32 places of one block; in vain, its mask becomes exact."""
        union = 0
        for task in self.tasks[at1 << 5 : at1 + 1 << 5]:
            if task is not None:
                bit = (task.p_via or task.demand).gate.bit
                if bit & open_bits:
                    return task
                union |= bit
        self._m1[at1] = union
        return None

    def _tighten_root(self) -> None:
        self.root = _union(self._m3)
        for _, _, task in self.back:
            self.root |= (task.p_via or task.demand).gate.bit
        for gate in self.hot:
            self.root |= gate.bit


class Patients(Line):
    """The tasks of one class that want resources, all of them, by how long they wait.

    It is kept beside the lines to know who waits longest; a task has its place here in `p_wait`.
    """

    __slots__ = ()

    def push(self, task: Waiting) -> None:
        """Adds a task at its place."""
        since = task.since
        if since <= self.last and (since < self.last or task.id < self.last_id):
            self._push_back(task)
            return
        self.last = since
        self.last_id = task.id
        index = len(self.tasks)
        task.p_wait = self.base + index
        self.tasks.append(task)
        self.live += 1
        if self.masked:
            self._mark(index, (task.p_via or task.demand).gate.bit)

    def remove(self, task: Waiting) -> None:
        """Takes a task out; its `p_wait` becomes `OUT`."""
        at = task.p_wait
        task.p_wait = OUT
        if at >= 0:
            self._vacate(at - self.base)
        else:
            del self.back[bisect_left(self.back, (task.since, task.id))]

    def _put(self, task: Waiting, at: int) -> None:
        task.p_wait = at


def _place(task: Waiting) -> tuple[int, int]:
    return task.since, task.id


def _union(masks: list[int]) -> int:
    union = 0
    for mask in masks:
        union |= mask
    return union


def _union_of(tasks: list[Waiting | None]) -> int:
    union = 0
    for task in tasks:
        if task is not None:
            union |= (task.p_via or task.demand).gate.bit
    return union


def _fold(masks: list[int]) -> list[int]:
    return [_union(masks[start : start + 32]) for start in range(0, len(masks), 32)]
