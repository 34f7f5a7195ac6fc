"""What a leader knows by heart of its PostgreSQL tables: where rows are, and which tasks live.

Tasks lie in segments, tables that are filled one after the other and dropped as a whole. Which of
them live is kept as bitmaps over blocks of ids, so that a new leader goes straight to the live rows
however many others there are. Both are written in the transaction that changes them; this copy
follows when the transaction is known to have been committed.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable, Iterator

from cronoq_server.stores.pg_keys import KeyFilter, that_may_hold

_BITS = 10
BLOCK = 1 << _BITS
"""Ids in a block."""

_MASK = BLOCK - 1

ASIDE = 0
"""The segment of stragglers."""


class Blocks:
    """Which (unsigned) ids live."""

    def __init__(self, rows: Iterable[tuple[int, bytes]] = ()) -> None:
        """Takes the blocks as they are stored."""
        self._alive = {block: int.from_bytes(bits, "little") for block, bits in rows}

    def is_alive(self, task_id: int) -> bool:
        """Whether this one lives."""
        return bool(self._alive.get(task_id >> _BITS, 0) >> (task_id & _MASK) & 1)

    def altered(self, born: Iterable[int], died: Iterable[int]) -> dict[int, int]:
        """The blocks that change when these come to life and those end."""
        alive = self._alive
        found: dict[int, int] = {}
        for task_id in born:
            block = task_id >> _BITS
            bits = found.get(block)
            if bits is None:
                bits = alive.get(block, 0)
            found[block] = bits | 1 << (task_id & _MASK)
        for task_id in died:
            block = task_id >> _BITS
            bits = found.get(block)
            if bits is None:
                bits = alive.get(block, 0)
            found[block] = bits & ~(1 << (task_id & _MASK))
        return found

    def apply(self, altered: dict[int, int]) -> None:
        """Takes over what was committed."""
        alive = self._alive
        for block, bits in altered.items():
            if bits:
                alive[block] = bits
            else:
                alive.pop(block, None)

    def ids(self, low: int = 0, high: int = 1 << 64) -> Iterator[int]:
        """The living ones from `low` up to below `high`, in order."""
        for block in sorted(self._alive):
            first = block << _BITS
            if first >= high or first + BLOCK <= low:
                continue
            bits = self._alive[block]
            while bits:
                lowest = bits & -bits
                task_id = first + lowest.bit_length() - 1
                if low <= task_id < high:
                    yield task_id
                bits ^= lowest


def block_bytes(bits: int) -> bytes:
    """A block as it is stored."""
    return bits.to_bytes(BLOCK // 8, "little")


class Segments:
    """Which segment each (unsigned) id is in.

    Attributes:
        aside: Ids whose rows were moved to the segment of stragglers.
        filters: Which keys segments may hold, as far as that is known.
        unread: Segments whose filters are stored and were not read yet.
    """

    def __init__(
        self,
        rows: Iterable[tuple[int, int]] = (),
        aside: Iterable[int] = (),
        unread: Iterable[int] = (),
    ) -> None:
        """Takes (first id, segment) pairs, ids set aside, and segments whose filters are stored."""
        self._firsts = sorted(rows)
        self.aside = set(aside)
        self.filters: dict[int, KeyFilter] = {}
        self.unread = dict.fromkeys(unread)

    def __len__(self) -> int:
        """How many there are, that of the stragglers not counted."""
        return len(self._firsts)

    @property
    def newest(self) -> int:
        """The segment that is being filled; 0 = there is none yet."""
        return self._firsts[-1][1] if self._firsts else ASIDE

    def of(self, task_id: int) -> int:
        """The segment that holds the rows of a task, if it is anywhere."""
        if task_id in self.aside:
            return ASIDE
        index = bisect_right(self._firsts, (task_id, 1 << 62))
        return self._firsts[index - 1][1] if index else ASIDE

    def by_segment(self, ids: Iterable[int]) -> dict[int, list[int]]:
        """The same ids by the segment that holds their rows."""
        found: dict[int, list[int]] = {}
        for task_id in ids:
            found.setdefault(self.of(task_id), []).append(task_id)
        return found

    def that_may_hold(self, keys: Iterable[str]) -> tuple[list[int], list[str]]:
        """Pairs of a segment and a key that it may hold, side by side."""
        known = [ASIDE, *(segment for _, segment in self._firsts)]
        return that_may_hold(keys, [(segment, self.filters.get(segment)) for segment in known])

    def begin(self, segment: int, first_id: int, keys: KeyFilter) -> None:
        """A new segment takes ids from this one on."""
        insort(self._firsts, (first_id, segment))
        self.filters[segment] = keys

    def drop(self, segment: int) -> None:
        """A segment is no more."""
        self.filters.pop(segment, None)
        self.unread.pop(segment, None)
        self._firsts = [pair for pair in self._firsts if pair[1] != segment]

    def full_ones(self) -> list[tuple[int, int, int]]:
        """All but the newest, oldest first: (segment, its first id, first id after it)."""
        firsts = self._firsts
        return [
            (segment, first, firsts[index + 1][0])
            for index, (first, segment) in enumerate(firsts[:-1])
        ]


class Ledger:
    """One leader's knowledge.

    Attributes:
        position: The batch that it reflects.
        top: The highest id so far.
        rows: Tasks in the newest segment.
        pruned: (position, signed id) up to which ends are gone.
    """

    def __init__(
        self,
        position: int,
        top: int,
        rows: int,
        pruned: tuple[int, int],
        segments: Segments,
        blocks: Blocks,
    ) -> None:
        self.position = position
        self.top = top
        self.rows = rows
        self.pruned = pruned
        self.segments = segments
        self.blocks = blocks
