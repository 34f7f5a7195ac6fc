"""Decides who is first in the line of one (pool, class, tenant).

Most tasks stand in a row, first come, first served (`rows`). Two kinds do not:

- A task whose deadline presses is *hot*: its rank moves, so it stands in a tournament, one per
  gate, whose winners meet in the finals (`kinetic`).
- A task that wants a private account (`name:value`) stands in the row, but in the *shadow* of the
  first one that asks for the same: only that one shows its gate, and only while no private account
  of theirs is closed. So a million values need no gates of their own. Its hot ones play in a
  tournament of their own, whose winner plays in the tournament of the gate.

A change must keep: a task is in the row or in a tournament, never in both; `p_real` of a task that
wants a private account is what it asks for, whatever its `p_via` shows.
"""

from __future__ import annotations

from bisect import bisect_left

from cronoq_server.engine.placement.gates import SHADOW, Demand, Gate
from cronoq_server.engine.placement.kinetic import Finals, Tournament
from cronoq_server.engine.placement.rows import Row, place_of
from cronoq_server.engine.placement.urgency import score
from cronoq_server.engine.placement.waiting import HOT, OUT, Waiting

_DONE_MAX = 64


class _File:
    """The tasks of one demand in one row, in order; what is before `head` has left."""

    __slots__ = ("_head", "_keys", "_tasks")

    def __init__(self) -> None:
        self._keys: list[tuple[int, int]] = []
        self._tasks: list[Waiting | None] = []
        self._head = 0

    @property
    def first(self) -> Waiting | None:
        """The first task, None if there is none."""
        return self._tasks[self._head] if self._head < len(self._tasks) else None

    def add(self, task: Waiting) -> None:
        """Adds a task at its place."""
        key = place_of(task)
        at = len(self._keys)
        if at > self._head and key < self._keys[-1]:
            at = bisect_left(self._keys, key, lo=self._head)
        self._keys.insert(at, key)
        self._tasks.insert(at, task)

    def drop(self, task: Waiting) -> None:
        """Takes a task out."""
        at = bisect_left(self._keys, place_of(task), lo=self._head)
        if at != self._head:
            del self._keys[at]
            del self._tasks[at]
            return
        self._tasks[at] = None
        self._head += 1
        if self._head > _DONE_MAX and 2 * self._head > len(self._keys):
            del self._keys[: self._head]
            del self._tasks[: self._head]
            self._head = 0


class Line(Row):
    """Waiting tasks of one (pool, class, tenant)."""

    __slots__ = ("_files", "_finals", "_hot_files", "_hot_live", "hot")

    def __init__(self, masked: bool) -> None:
        super().__init__(masked)
        self.hot: dict[Gate, Tournament] = {}
        self._hot_live = 0
        self._finals: Finals | None = None  # of what is in `hot`
        self._files: dict[Demand, _File] = {}
        self._hot_files: dict[Demand, Tournament] = {}

    def __len__(self) -> int:
        return self.live + len(self.back) + self._hot_live

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

    def push(self, task: Waiting) -> None:
        """Adds a task whose deadline does not press, or that has none."""
        if task.p_real is not None:
            self._join_file(task, task.p_real)
        super().push(task)

    def heat(self, task: Waiting) -> None:
        """Adds a task whose deadline presses."""
        task.p_at = HOT
        self._hot_live += 1
        real = task.p_real
        if real is None:
            self._enter_tournament((task.p_via or task.demand).gate, task)
            return
        task.p_via = None if real is task.demand else real
        file = self._hot_files.get(real)
        if file is None:
            file = self._hot_files[real] = Tournament()
            file.add(task)
            if not real.shut_accounts:
                self._enter_tournament(real.gate, file)
        else:
            file.add(task)

    def remove(self, task: Waiting) -> None:
        """Takes a task out, wherever it stands; its `p_at` becomes `OUT`."""
        at = task.p_at
        real = task.p_real
        if at != HOT:
            super().remove(task)
            if real is not None:
                self._leave_file(task, real)
            return
        task.p_at = OUT
        self._hot_live -= 1
        if real is None:
            self._leave_tournament((task.p_via or task.demand).gate, task)
            return
        file = self._hot_files[real]
        if len(file) == 1:
            if not real.shut_accounts:
                self._leave_tournament(real.gate, file)
            del self._hot_files[real]
        file.remove(task)

    def show(self, demand: Demand) -> None:
        """Is told that the private accounts of a demand were shut or opened."""
        file = self._files.get(demand)
        if file is not None and file.first is not None:
            self._light(file.first, demand)
        hot = self._hot_files.get(demand)
        if hot is not None:
            if demand.shut_accounts:
                self._leave_tournament(demand.gate, hot)
            else:
                self._enter_tournament(demand.gate, hot)

    def first(self, open_bits: int, now: int) -> Waiting | None:
        """Returns the best task whose gate is in `open_bits`, None if there is none."""
        if self.masked and not self.root & open_bits:
            return None
        found = self.first_cold(open_bits)
        if self.hot:
            found = self._hotter(found, open_bits, now)
        if found is None and self.masked:
            self._tighten_root()
        return found

    def hot_tasks(self) -> list[Waiting]:
        """Returns the tasks whose deadlines press."""
        tasks = [task for each in self.hot.values() for task in each.tasks()]
        for file in self._hot_files.values():
            tasks += file.tasks()
        return tasks

    def newest(self) -> Waiting | None:
        """Returns the task that became ready last."""
        cold = self.newest_cold()
        found = [cold] if cold is not None else []
        return max([*found, *self.hot_tasks()], key=place_of, default=None)

    def oldest(self) -> Waiting | None:
        """Returns the task that waits longest, whether it may run or not."""
        cold = self.oldest_cold()
        found = [cold] if cold is not None else []
        return min([*found, *self.hot_tasks()], key=place_of, default=None)

    def remask(self, masked: bool) -> None:
        """Builds the masks anew after gates changed, or drops them."""
        hot = self.hot_tasks()
        for task in hot:
            assert task.p_rush is not None
            task.p_rush.leaf = -1
        self.hot = {}
        self._finals = None
        self._hot_files = {}
        self._hot_live = 0
        super().remask(masked)
        for task in hot:
            self.heat(task)

    def reset_times(self) -> None:
        """Plays all tournaments anew, because the clock was set back."""
        for tournament in [*self.hot.values(), *self._hot_files.values()]:
            tournament.reset()
        if self._finals is not None:
            self._finals.reset()

    def _join_file(self, task: Waiting, real: Demand) -> None:
        file = self._files.get(real)
        if file is None:
            file = self._files[real] = _File()
        before = file.first
        file.add(task)
        task.p_via = SHADOW
        if file.first is task:
            if before is not None:
                before.p_via = SHADOW
            if not real.shut_accounts:
                task.p_via = None if real is task.demand else real

    def _leave_file(self, task: Waiting, real: Demand) -> None:
        file = self._files[real]
        was_first = file.first is task
        file.drop(task)
        following = file.first
        if following is None:
            del self._files[real]
        elif was_first:
            self._light(following, real)

    def _light(self, task: Waiting, real: Demand) -> None:
        """Shows the gate of the first task of a file, or hides it."""
        if real.shut_accounts:
            task.p_via = SHADOW
        else:
            task.p_via = None if real is task.demand else real
            self.remark(task)

    def _enter_tournament(self, gate: Gate, player: Waiting | Tournament) -> None:
        tournament = self.hot.get(gate)
        if tournament is not None:
            tournament.add(player)
            return
        tournament = self.hot[gate] = Tournament()
        tournament.add(player)
        if self._finals is None:
            self._finals = Finals()
        self._finals.enter(tournament, gate.bit)
        if self.masked:
            self.root |= gate.bit

    def _leave_tournament(self, gate: Gate, player: Waiting | Tournament) -> None:
        tournament = self.hot[gate]
        if len(tournament) == 1:
            assert self._finals is not None
            self._finals.leave(tournament)
            del self.hot[gate]
        tournament.remove(player)

    def _hotter(self, found: Waiting | None, open_bits: int, now: int) -> Waiting | None:
        assert self._finals is not None
        hot = self._finals.best_open(now, open_bits)
        if found is None or hot is None:
            return found or hot
        lead = score(hot, now) - score(found, now)
        return hot if lead > 0 or (lead == 0 and place_of(hot) < place_of(found)) else found

    def _tighten_root(self) -> None:
        super()._tighten_root()
        if self._finals is not None:
            self.root |= self._finals.mask
