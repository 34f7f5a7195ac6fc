"""Decides whose turn it is among the tenants of one class: start-time fair queueing.

Every tenant has a tag in virtual time. The tenant with the least tag among those that have a task
that may run is next; a start sets the virtual time to its tag (lifted to the virtual time first)
and moves the tag on by cost / weight. So tenants get shares by weight, and neither an idle nor a
long blocked tenant has saved up credit.

Rules a change must keep:

- Tenants with waiting tasks are *seated*: sorted by (tag, order of first appearance) in blocks,
  each with the OR of the masks of its lines.
- A tenant that is not seated and not ahead of the virtual time is forgotten; of those that are
  ahead, the ones that are least so when there are too many. They come back as newcomers.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from heapq import heappop, heappush
from typing import TypeAlias

from cronoq_server.engine.placement.gates import Demand
from cronoq_server.engine.placement.lines import Line
from cronoq_server.engine.placement.waiting import Waiting

BLOCK_MAX = 32
IDLE_MAX = 1024  # tenants without tasks whose tags are remembered
COST_MIN = 1_000_000  # ns; nobody runs for free
_FINENESS = 20  # bits of virtual time below a nanosecond

_Key: TypeAlias = tuple[int, int]


class _Seat:
    """A tenant; `key` is (tag, number by first appearance), `block` None without waiting tasks."""

    __slots__ = ("block", "is_listed", "key", "line", "tenant", "weight")

    def __init__(self, tenant: str, key: _Key, weight: int, line: Line) -> None:
        self.tenant = tenant
        self.key = key
        self.weight = weight
        self.line = line
        self.block: _Block | None = None
        self.is_listed = False  # among the idle ones, with this very key


class _Block:
    """Some seats in order; `mask` has at least the bits of their lines."""

    __slots__ = ("keys", "mask", "seats")

    def __init__(self, keys: list[_Key], seats: list[_Seat]) -> None:
        self.keys = keys
        self.seats = seats
        self.mask = 0
        self.unite()

    def unite(self) -> None:
        """Makes the mask exact as far as the lines are."""
        mask = 0
        for seat in self.seats:
            mask |= seat.line.root
        self.mask = mask


class Turns:
    """The lines of one class of a pool that is shared fairly; stands in for a `Line`."""

    __slots__ = ("_blocks", "_default_weight", "_idle", "_lasts", "_masked", "_numbers", "_seats",
                 "_time", "_weights", "live")  # fmt: skip

    def __init__(self, masked: bool, weights: Mapping[str, int], default_weight: int) -> None:
        self._masked = masked
        self._weights = weights
        self._default_weight = default_weight
        self._seats: dict[str, _Seat] = {}
        self._blocks: list[_Block] = []
        self._lasts: list[_Key] = []  # of each block
        self._idle: list[tuple[_Key, str]] = []  # tenants without tasks, ahead of the time
        self._time = 0
        self._numbers = 0
        self.live = 0

    def __len__(self) -> int:
        return self.live

    @property
    def is_plain(self) -> bool:
        """Never True: tenants take turns."""
        return False

    def lines(self) -> tuple[Line, ...]:
        """Returns the line of every tenant that is known."""
        return tuple(seat.line for seat in self._seats.values())

    def line_of(self, task: Waiting) -> Line:
        """Returns the line a waiting task stands in."""
        return self._seats[task.demand.tenant].line

    def marked(self, task: Waiting) -> None:
        """Is told that a task was moved within its line: its block must know the gate."""
        self._mark(self._seats[task.demand.tenant])

    def show(self, demand: Demand) -> None:
        """Is told that the private accounts of a demand were shut or opened."""
        seat = self._seats.get(demand.tenant)
        if seat is not None:
            seat.line.show(demand)
            self._mark(seat)

    def push(self, task: Waiting) -> None:
        """Adds a task to the line of its tenant."""
        seat = self._seat_of(task.demand.tenant)
        seat.line.push(task)
        self._added(seat)

    def heat(self, task: Waiting) -> None:
        """Adds a task whose window is open to the line of its tenant."""
        seat = self._seat_of(task.demand.tenant)
        seat.line.heat(task)
        self._added(seat)

    def remove(self, task: Waiting) -> None:
        """Takes a task out; its tenant gives up the turn if it was the last."""
        seat = self._seats[task.demand.tenant]
        seat.line.remove(task)
        self.live -= 1
        if not len(seat.line):
            self._unseat(seat)
            self._retire(seat)

    def first(self, open_bits: int, now: int) -> Waiting | None:
        """Returns the best task of the tenant whose turn it is among those that may run."""
        for block in self._blocks:
            if self._masked and not block.mask & open_bits:
                continue
            for seat in block.seats:
                task = seat.line.first(open_bits, now)
                if task is not None:
                    return task
            block.unite()
        return None

    def charge(self, task: Waiting) -> None:
        """Moves the tag of a tenant on, whose task is about to start."""
        seat = self._seats[task.demand.tenant]
        tag, number = seat.key
        now = self._time
        if tag > now:
            now = self._time = tag
        expected = task.p_cost
        cost = ((expected if expected > COST_MIN else COST_MIN) << _FINENESS) // seat.weight
        key = (now + (cost or 1), number)
        if len(self._lasts) == 1 and len(self._blocks[0].keys) == 1:
            seat.key = self._lasts[0] = self._blocks[0].keys[0] = key
        else:
            self._unseat(seat)
            seat.key = key
            self._sit(seat)
        seat.is_listed = False
        while self._idle and self._idle[0][0][0] <= now:
            key, tenant = heappop(self._idle)
            idle = self._seats.get(tenant)
            if idle is not None and idle.key == key:
                idle.is_listed = False
                self._retire(idle)

    def newest(self) -> Waiting | None:
        """Returns the task of any tenant that became ready last."""
        found = [seat.line.newest() for block in self._blocks for seat in block.seats]
        tasks = [task for task in found if task is not None]
        return max(tasks, key=lambda task: (task.since, task.id)) if tasks else None

    def oldest(self) -> Waiting | None:
        """Returns the task of any tenant that waits longest."""
        found = [seat.line.oldest() for block in self._blocks for seat in block.seats]
        tasks = [task for task in found if task is not None]
        return min(tasks, key=lambda task: (task.since, task.id)) if tasks else None

    def remask(self, masked: bool) -> None:
        """Builds all masks anew after gates changed."""
        self._masked = masked
        for seat in self._seats.values():
            seat.line.remask(masked)
        for block in self._blocks:
            block.unite()

    @staticmethod
    def _mark(seat: _Seat) -> None:
        if seat.block is not None:
            seat.block.mask |= seat.line.root

    def _seat_of(self, tenant: str) -> _Seat:
        seat = self._seats.get(tenant)
        if seat is not None and (seat.block is not None or seat.key[0] > self._time):
            return seat
        self._numbers += 1
        weight = self._weights.get(tenant, self._default_weight)
        line = Line(self._masked) if seat is None else seat.line
        seat = _Seat(tenant, (self._time, self._numbers), weight, line)
        self._seats[tenant] = seat
        return seat

    def _added(self, seat: _Seat) -> None:
        self.live += 1
        if seat.block is None:
            self._sit(seat)
        elif self._masked:
            seat.block.mask |= seat.line.root

    def _retire(self, seat: _Seat) -> None:
        """Forgets a tenant without tasks, now or when the time has caught up with its tag."""
        if seat.block is not None:
            return
        if seat.key[0] <= self._time:
            del self._seats[seat.tenant]
        elif not seat.is_listed:
            seat.is_listed = True
            heappush(self._idle, (seat.key, seat.tenant))
            if len(self._idle) > IDLE_MAX:
                key, tenant = heappop(self._idle)
                least = self._seats.get(tenant)
                if least is not None and least.key == key:
                    least.is_listed = False  # one that waits again must be listed again later
                    if least.block is None:
                        del self._seats[tenant]

    def _sit(self, seat: _Seat) -> None:
        key = seat.key
        lasts = self._lasts
        if not lasts:
            seat.block = _Block([key], [seat])
            self._blocks.append(seat.block)
            lasts.append(key)
            return
        if key > lasts[-1]:
            at = len(lasts) - 1
            block = self._blocks[at]
            block.keys.append(key)
            block.seats.append(seat)
            lasts[at] = key
        else:
            at = bisect_left(lasts, key)
            block = self._blocks[at]
            place = bisect_left(block.keys, key)
            block.keys.insert(place, key)
            block.seats.insert(place, seat)
        seat.block = block
        block.mask |= seat.line.root
        if len(block.keys) > BLOCK_MAX:
            self._split(at)

    def _split(self, at: int) -> None:
        block = self._blocks[at]
        half = len(block.keys) // 2
        later = _Block(block.keys[half:], block.seats[half:])
        del block.keys[half:]
        del block.seats[half:]
        for seat in later.seats:
            seat.block = later
        block.unite()
        self._blocks.insert(at + 1, later)
        self._lasts[at : at + 1] = [block.keys[-1], later.keys[-1]]

    def _unseat(self, seat: _Seat) -> None:
        key = seat.key
        at = bisect_left(self._lasts, key)
        block = self._blocks[at]
        keys = block.keys
        place = 0 if keys[0] == key else bisect_left(keys, key)
        del keys[place]
        del block.seats[place]
        seat.block = None
        if keys:
            if place == len(keys):
                self._lasts[at] = keys[-1]
        else:
            del self._blocks[at]
            del self._lasts[at]
