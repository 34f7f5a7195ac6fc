"""How a 64-bit task id is laid out: shard, epoch and sequence, in submission order.

Unsharded: 16 bits of epoch, 48 bits of sequence. Sharded: 8 bits of shard number (1-255),
16 bits of epoch, 40 bits of sequence. Ids only rise and are never reused: a leadership starts
above the high-water mark of everything committed before, and a sequence that overflows carries
into the epoch bits, but never into the shard's. Fencing uses the store's full epoch, not these
bits. Lease ids have their own layout: 24 bits of epoch, 40 bits of a counter.
"""

from __future__ import annotations

EPOCH_MAX = 0xFFFF
SHARD_SHIFT = 56
SHARDED_SEQUENCE_BITS = 40
SEQUENCE_BITS = 48
LEASE_COUNTER_BITS = 40
LEASE_EPOCH_MASK = 0xFFFFFF
ID_MAX = (1 << 64) - 1


class IdsExhausted(Exception):
    """No id is left in this shard's range."""


def pack(shard: int | None, epoch: int, sequence: int) -> int:
    """Builds an id from its parts; an epoch above 65 535 is written as 65 535.

    Args:
        shard: 1-255, or None when unsharded.
        epoch: The leadership's epoch.
        sequence: The number within it.
    """
    epoch = min(epoch, EPOCH_MAX)
    if shard is None:
        return epoch << SEQUENCE_BITS | sequence
    return shard << SHARD_SHIFT | epoch << SHARDED_SEQUENCE_BITS | sequence


def shard_of(task_id: int) -> int:
    """The shard number in a sharded deployment's id."""
    return task_id >> SHARD_SHIFT


def lease_base(epoch: int) -> int:
    """The lease id before the first one of this leadership."""
    return (epoch & LEASE_EPOCH_MASK) << LEASE_COUNTER_BITS


class IdSource:
    """Hands out the ids of one leadership, in order."""

    __slots__ = ("_end", "_next")

    def __init__(self, shard: int | None, epoch: int, high_water: int) -> None:
        """Starts above both the high-water mark and the epoch's first id."""
        self._next = max(high_water + 1, pack(shard, epoch, 1))
        self._end = ID_MAX if shard is None else (shard << SHARD_SHIFT) | ((1 << SHARD_SHIFT) - 1)

    @property
    def last(self) -> int:
        """The highest id handed out or known to be used."""
        return self._next - 1

    def take(self) -> int:
        """The next id.

        Raises:
            IdsExhausted: The shard's range is used up.
        """
        task_id = self._next
        if task_id > self._end:
            raise IdsExhausted
        self._next = task_id + 1
        return task_id

    def pass_over(self, task_id: int) -> None:
        """Takes no id up to this one, which was drawn before."""
        self._next = max(self._next, task_id + 1)

    def left(self) -> int:
        """How many ids can still be taken."""
        return self._end - self._next + 1
