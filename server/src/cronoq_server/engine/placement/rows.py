"""Decides who is first in a row: first come, first served among those whose gate is open.

A row holds waiting tasks in the order (ready since, id). Each task stands behind a *gate*, a bit
that says whether such a task may run now. While all tasks of a pool stand behind one gate, a row is
a list. Else a tree of masks lies over the list: the OR of the gates per 32, 1024 and 32 768 places,
and `first_cold` walks down to the leftmost open gate.

Rules a change must keep:

- Every mask has at least the bits of the living tasks under it. It may have more: a walk in vain
  makes it exact again.
- Places never change except when the list is rebuilt, which writes the new places into the tasks.
- A task that returns with an old place goes into `back`, a short sorted list.

This module does not know what a gate means, nor what time it is.
"""

from __future__ import annotations

from bisect import bisect_left, insort

from cronoq_server.engine.placement.waiting import BACK, OUT, Waiting

BACK_MAX = 256
_NEVER = -(1 << 100)  # before any instant
_SLACK = 64
_CHOP_MIN = 1 << 16


class Row:
    """Waiting tasks in the order (since, id), each with a bit."""

    __slots__ = (
        "_last",
        "_last_id",
        "_m1",
        "_m2",
        "_m3",
        "back",
        "base",
        "head",
        "live",
        "masked",
        "root",
        "tasks",
    )

    def __init__(self, masked: bool) -> None:
        self.tasks: list[Waiting | None] = []
        self.base = 0  # place of tasks[0]
        self.head = 0  # the first living task, if there is one
        self.live = 0  # tasks in the list, without `back`
        self.masked = masked
        self.back: list[tuple[int, int, Waiting]] = []
        self.root = 0
        self._last = _NEVER  # since and id of the last one appended
        self._last_id = 0
        self._m1: list[int] = []
        self._m2: list[int] = []
        self._m3: list[int] = []

    def __len__(self) -> int:
        return self.live + len(self.back)

    def push(self, task: Waiting) -> None:
        """Adds a task at its place: the end, or `back` if it comes with an old place."""
        since = task.since
        if since <= self._last and (since < self._last or task.id < self._last_id):
            self._push_back(task)
            return
        self._last = since
        self._last_id = task.id
        tasks = self.tasks
        index = len(tasks)
        task.p_at = self.base + index
        tasks.append(task)
        self.live += 1
        if self.masked:
            self._mark(index, (task.p_via or task.demand).gate.bit)

    def remove(self, task: Waiting) -> None:
        """Takes a task out; its `p_at` becomes `OUT`."""
        at = task.p_at
        task.p_at = OUT
        self._take_out(task, at)

    def first_cold(self, open_bits: int) -> Waiting | None:
        """Returns the first task whose gate is in `open_bits`, None if there is none.

        The caller has seen that the gate is open if the row has no masks, and that the root has
        one of the bits if it has.
        """
        found = self.tasks[self.head] if self.live else None
        if found is not None and self.masked and not self.bit_of(found) & open_bits:
            found = self._search(open_bits)
        for _, _, task in self.back:
            if not self.masked or self.bit_of(task) & open_bits:
                return _earlier(task, found)
        return found

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

    def newest_cold(self) -> Waiting | None:
        """Returns the last task in order."""
        tasks = self.tasks
        while tasks and tasks[-1] is None:
            tasks.pop()
        self._trim(len(tasks))
        found = tasks[-1] if self.live else None
        if self.back:
            last = self.back[-1][2]
            if found is None or place_of(last) > place_of(found):
                return last
        return found

    def oldest_cold(self) -> Waiting | None:
        """Returns the first task in order, whether it may run or not."""
        found = self.tasks[self.head] if self.live else None
        return _earlier(self.back[0][2], found) if self.back else found

    def remask(self, masked: bool) -> None:
        """Builds the masks anew after gates changed, or drops them."""
        self.masked = masked
        self._mask()

    def remark(self, task: Waiting) -> None:
        """Adds the bit of a task whose gate changed while it stands here."""
        bit = self.bit_of(task)
        if task.p_at == BACK:
            self.root |= bit
        else:
            self._mark(task.p_at - self.base, bit)

    def bit_of(self, task: Waiting) -> int:
        """Returns the bit of a task's gate."""
        return (task.p_via or task.demand).gate.bit

    def _put(self, task: Waiting, at: int) -> None:
        task.p_at = at

    def _take_out(self, task: Waiting, at: int) -> None:
        if at == BACK:
            del self.back[bisect_left(self.back, (task.since, task.id))]
            return
        index = at - self.base
        self.tasks[index] = None
        if index == self.head:
            self.advance(index, 1)
            return
        self.live -= 1
        if self.live:
            self._shrink()
        else:
            self._reset()

    def _push_back(self, task: Waiting) -> None:
        self._put(task, BACK)
        insort(self.back, (task.since, task.id, task))
        if self.masked:
            self.root |= self.bit_of(task)
        if len(self.back) > BACK_MAX and 8 * len(self.back) > self.live:
            living = [each for each in self.tasks if each is not None]
            living.extend(each for _, _, each in self.back)
            living.sort(key=place_of)
            self.back = []
            self._rebuild(living)

    def _shrink(self) -> None:
        head, length = self.head, len(self.tasks)
        if head >= _CHOP_MIN and head + head > length:
            self._chop()
        elif length > 5 * self.live + _SLACK:
            self._rebuild([task for task in self.tasks if task is not None])

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
        self._last = _NEVER
        self._last_id = 0
        self._mask()

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

    def _mask(self) -> None:
        self._m1, self._m2, self._m3, self.root = [], [], [], 0
        if self.masked:
            for start in range(0, len(self.tasks), 32):
                self._m1.append(self._union_of(self.tasks[start : start + 32]))
            self._m2 = _fold(self._m1)
            self._m3 = _fold(self._m2)
            self._tighten_root()

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
            self.root |= self.bit_of(task)

    def _union_of(self, tasks: list[Waiting | None]) -> int:
        union = 0
        for task in tasks:
            if task is not None:
                union |= self.bit_of(task)
        return union


class Patients(Row):
    """The tasks of one class that want resources, all of them, by how long they wait.

    It is kept beside the lines to know who waits longest; a task has its place here in `p_wait`.
    """

    __slots__ = ()

    def push(self, task: Waiting) -> None:
        """Adds a task at its place."""
        since = task.since
        if since <= self._last and (since < self._last or task.id < self._last_id):
            self._push_back(task)
            return
        self._last = since
        self._last_id = task.id
        index = len(self.tasks)
        task.p_wait = self.base + index
        self.tasks.append(task)
        self.live += 1
        if self.masked:
            self._mark(index, self.bit_of(task))

    def remove(self, task: Waiting) -> None:
        """Takes a task out; its `p_wait` becomes `OUT`."""
        at = task.p_wait
        task.p_wait = OUT
        self._take_out(task, at)

    def first(self, bits: int) -> Waiting | None:
        """Returns the task that waits longest among those whose gate is in `bits`."""
        if not bits or (self.masked and not self.root & bits):
            return None
        found = self.first_cold(bits)
        if found is None and self.masked:
            self._tighten_root()
        return found

    def bit_of(self, task: Waiting) -> int:
        """Returns the bit of a task's gate, also of one that stands in another's shadow."""
        return (task.p_real or task.p_via or task.demand).gate.bit

    def _put(self, task: Waiting, at: int) -> None:
        task.p_wait = at

    def _look(self, at1: int, open_bits: int) -> Waiting | None:
        union = 0
        for task in self.tasks[at1 << 5 : at1 + 1 << 5]:
            if task is not None:
                bit = self.bit_of(task)
                if bit & open_bits:
                    return task
                union |= bit
        self._m1[at1] = union
        return None


def place_of(task: Waiting) -> tuple[int, int]:
    """Returns what rows are sorted by."""
    return task.since, task.id


def _earlier(one: Waiting, other: Waiting | None) -> Waiting:
    if other is None or place_of(one) < place_of(other):
        return one
    return other


def _union(masks: list[int]) -> int:
    union = 0
    for mask in masks:
        union |= mask
    return union


def _fold(masks: list[int]) -> list[int]:
    return [_union(masks[start : start + 32]) for start in range(0, len(masks), 32)]
