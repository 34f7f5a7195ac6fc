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
from collections.abc import Iterable

_PER_ROW = 16
_BITS_MIN, _BITS_MAX = 10, 24
"""Bits of a filter, as powers of two: from 128 bytes to 2 MiB."""

_SPREAD = 0x9E3779B97F4A7C15
_WRAP = (1 << 64) - 1


class KeyFilter:
    """The keys of one segment, roughly."""

    __slots__ = ("_bits", "_shift")

    def __init__(self, bitmap: bytes) -> None:
        """Takes a filter as it was stored."""
        self._bits = bytearray(bitmap)
        self._shift = 64 - (8 * len(bitmap) - 1).bit_length()

    @classmethod
    def for_rows(cls, count: int) -> KeyFilter:
        """An empty one for a segment of so many rows: a hundredth of strange keys get past it."""
        power = (_PER_ROW * count - 1).bit_length()
        return cls(bytes(1 << min(max(power, _BITS_MIN), _BITS_MAX) >> 3))

    def add(self, keys: Iterable[str]) -> None:
        """Notes keys."""
        bits, shift = self._bits, self._shift
        for key in keys:
            first, second = _places(key, shift)
            bits[first >> 3] |= 1 << (first & 7)
            bits[second >> 3] |= 1 << (second & 7)

    def may_hold(self, key: str) -> bool:
        """Whether the key may have been noted; False is certain."""
        bits = self._bits
        first, second = _places(key, self._shift)
        return bool(bits[first >> 3] >> (first & 7) & bits[second >> 3] >> (second & 7) & 1)

    def stored(self) -> bytes:
        """As it is stored."""
        return bytes(self._bits)


def _places(key: str, shift: int) -> tuple[int, int]:
    # The checksum alone is linear: keys that differ in a number would fall into patterns.
    mixed = zlib.crc32(key.encode()) * _SPREAD & _WRAP
    return mixed >> shift, (mixed * _SPREAD & _WRAP) >> shift
