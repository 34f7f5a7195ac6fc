"""When something is due: heaps for single instants, linked lists for renewable ones.

`TimerHeap` keeps instants that come once (starts, backoffs, expiries). Entries are not removed
when their task leaves; their owner counts them as dead, and the heap is rebuilt when half of it
is. `ExpiryList` keeps deadlines of one length that are renewed all the time (leases, timeouts):
a linked list whose order is the order of renewal, so that renewing is moving to the tail and the
next to expire is the head; no garbage, whatever the rate.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

import msgspec

NEVER = (1 << 63) - 1
"""An instant that does not come."""

_REBUILD_MIN = 64

T = TypeVar("T")


class TimerHeap(Generic[T]):
    """Instants with an owner each, earliest first; ties in order of arming."""

    __slots__ = ("_alive", "_dead", "_heap", "_sequence")

    def __init__(self, alive: Callable[[int, int, T], bool]) -> None:
        """`alive(at, kind, owner)` tells whether an entry still means something."""
        self._heap: list[tuple[int, int, int, T]] = []
        self._sequence = 0
        self._dead = 0
        self._alive = alive

    def __len__(self) -> int:
        return len(self._heap)

    def arm(self, at: int, kind: int, owner: T) -> None:
        """Wakes `owner` at `at`."""
        self._sequence += 1
        heapq.heappush(self._heap, (at, self._sequence, kind, owner))

    def disarmed(self, count: int = 1) -> None:
        """Says that `count` entries have lost their meaning; rebuilds when most have."""
        self._dead += count
        if self._dead > _REBUILD_MIN and self._dead * 2 > len(self._heap):
            alive = self._alive
            self._heap = [entry for entry in self._heap if alive(entry[0], entry[2], entry[3])]
            heapq.heapify(self._heap)
            self._dead = 0

    def due(self, now: int) -> Iterator[tuple[int, int, T]]:
        """Takes out everything up to `now` that is alive: (at, kind, owner)."""
        heap = self._heap
        while heap and heap[0][0] <= now:
            at, _, kind, owner = heapq.heappop(heap)
            if self._alive(at, kind, owner):
                yield at, kind, owner
            elif self._dead:
                self._dead -= 1
            heap = self._heap

    def next(self) -> int:
        """The earliest instant that means something, or NEVER."""
        heap = self._heap
        while heap:
            at, _, kind, owner = heap[0]
            if self._alive(at, kind, owner):
                return at
            heapq.heappop(heap)
            if self._dead:
                self._dead -= 1
        return NEVER

    def clear(self) -> None:
        """Forgets everything."""
        self._heap.clear()
        self._dead = 0


class Node(msgspec.Struct, gc=False, eq=False):
    """A place in an `ExpiryList`. Links are cut on removal: nodes are not garbage collected."""

    at: int = 0
    before: Node | None = None
    after: Node | None = None


class ExpiryList:
    """Deadlines of one length, in order of renewal."""

    __slots__ = ("_head", "_tail", "length")

    def __init__(self, length: int) -> None:
        """`length` is the duration from renewal to expiry, in nanoseconds."""
        self.length = length
        self._head: Node | None = None
        self._tail: Node | None = None

    def renew(self, node: Node, now: int) -> None:
        """Puts `node` at the tail, due `length` from `now`; it may be in the list already."""
        at = now + self.length
        tail = self._tail
        if tail is node:
            node.at = at
            return
        if node.after is not None or node.before is not None:
            self.remove(node)
            tail = self._tail
        node.at = at
        node.before = tail
        if tail is None:
            self._head = node
        else:
            tail.after = node
        self._tail = node

    def remove(self, node: Node) -> None:
        """Takes `node` out; one that is not in any list is left as it is."""
        before, after = node.before, node.after
        if before is None:
            if self._head is not node:
                return
            self._head = after
        else:
            before.after = after
            node.before = None
        if after is None:
            self._tail = before
        else:
            after.before = before
            node.after = None

    def first_due(self, now: int) -> Node | None:
        """The first node, if it is due; the caller removes it."""
        head = self._head
        return head if head is not None and head.at <= now else None

    @property
    def is_empty(self) -> bool:
        """Whether no node is in it."""
        return self._head is None

    def next(self) -> int:
        """When the first one is due, or NEVER."""
        return NEVER if self._head is None else self._head.at

    def clear(self) -> None:
        """Cuts all links."""
        node = self._head
        self._head = self._tail = None
        while node is not None:
            following = node.after
            node.before = node.after = None
            node = following
