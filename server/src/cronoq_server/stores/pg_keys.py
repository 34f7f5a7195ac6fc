"""Which segments may hold a key, so that a look-up by key passes over the others.

A filter is a bitmap in which each key of a segment has set two bits: where one of them is missing
the key is not there, and where both are set it nearly always is. It is made while its segment is
filled, by the leader that began it, and stored when the next segment begins. Of a segment that was
begun by one leader and filled by another nobody knows: it is looked into.

Rules a change must keep:

1. A key is noted before it is committed. A key too many costs a look, one too few would let a key
   be given twice.
2. The places of a key's bits are the same in every process and build.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence

_PER_ROW = 16
_BITS_MIN, _BITS_MAX = 10, 24
"""Bits of a filter, as powers of two: from 128 bytes to 2 MiB."""

_SPREAD = 0x9E3779B97F4A7C15
_WRAP = (1 << 64) - 1


class KeyFilter:
    """The keys of one segment, roughly."""

    __slots__ = ("bits", "shift")

    def __init__(self, bitmap: bytes) -> None:
        """Takes a filter as it was stored."""
        self.bits = bytearray(bitmap)
        self.shift = 64 - (8 * len(bitmap) - 1).bit_length()

    @classmethod
    def for_rows(cls, count: int) -> KeyFilter:
        """An empty one for a segment of so many rows: a hundredth of strange keys get past it."""
        power = (_PER_ROW * count - 1).bit_length()
        return cls(bytes(1 << min(max(power, _BITS_MIN), _BITS_MAX) >> 3))

    def add(self, keys: Iterable[str]) -> None:
        """Notes keys."""
        bits, shift = self.bits, self.shift
        for key in keys:
            for number in _mixed(key):
                place = number >> shift
                bits[place >> 3] |= 1 << (place & 7)

    def stored(self) -> bytes:
        """As it is stored."""
        return bytes(self.bits)


def that_may_hold(
    keys: Iterable[str], segments: Sequence[tuple[int, KeyFilter | None]]
) -> tuple[list[int], list[str]]:
    """Pairs of a segment and a key that it may hold, side by side.

    Args:
        keys: What is looked for.
        segments: Each with its filter; None = it may hold anything.
    """
    places: list[int] = []
    names: list[str] = []
    blind = [segment for segment, seen in segments if seen is None]
    filters = [(segment, seen.bits, seen.shift) for segment, seen in segments if seen is not None]
    for key in keys:
        found = list(blind)
        first, second = _mixed(key)
        known, at, bit = -1, 0, 0
        for segment, bits, shift in filters:
            if shift != known:
                known, at, bit = shift, first >> shift >> 3, 1 << (first >> shift & 7)
            if bits[at] & bit:
                place = second >> shift
                if bits[place >> 3] >> (place & 7) & 1:
                    found.append(segment)
        places += found
        names += [key] * len(found)
    return places, names


def _mixed(key: str) -> tuple[int, int]:
    """Two numbers of 64 bits, whose highest bits are the places of the key's bits."""
    # The checksum alone is linear: keys that differ in a number would fall into patterns.
    first = zlib.crc32(key.encode()) * _SPREAD & _WRAP
    return first, first * _SPREAD & _WRAP
