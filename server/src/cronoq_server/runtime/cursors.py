"""What a watch cursor holds: where in the stream of durable events a watcher stands.

A cursor is opaque to callers and may gain fields; its first byte is a version. It names the epoch
as well, since only positions are the same for every leader: the index within a position counts
what one leader published.
"""

from __future__ import annotations

import struct

import msgspec

_LAYOUT = struct.Struct(">BQQI?")
_VERSION = 1


class Cursor(msgspec.Struct, frozen=True, gc=False):
    """A place between two events.

    Attributes:
        epoch: Epoch of the leader that gave it.
        position: Number of the last batch of which something was seen.
        index: How many events of that position were seen.
        whole: Whether every end of that position was seen.
    """

    epoch: int
    position: int
    index: int
    whole: bool = False


def encode(epoch: int, position: int, index: int, whole: bool = False) -> bytes:
    """A cursor's bytes."""
    return _LAYOUT.pack(_VERSION, epoch, position, index, whole)


def decode(cursor: bytes) -> Cursor | None:
    """Reads a cursor; None when it is not one."""
    if len(cursor) != _LAYOUT.size:
        return None
    version, epoch, position, index, whole = _LAYOUT.unpack(cursor)
    if version != _VERSION:
        return None
    return Cursor(epoch, position, index, whole)
