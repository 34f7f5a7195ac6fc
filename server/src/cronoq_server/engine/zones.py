"""What a zone's clocks read at an instant, and when they change.

Rules a change must keep:

1. Zone data comes from the `tzdata` package and never from the machine: replicas of one build
   agree about every instant, and a machine without zone files does not matter. Reading it is
   this package's only input; it happens in `load_zone`, so when a schedule is put.
2. An unknown name is an answer (None). It never turns into UTC.
3. Instants are whole Unix seconds here, offsets are seconds east of UTC.

This module knows nothing of schedules.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import cache
from importlib import resources
from typing import NamedTuple
from zoneinfo import ZoneInfo

_PROBE = 3 * 86_400
"""Distance of the probes that look for changes. In all published zone data two changes of one
zone are at least 6.9 days apart, so no pair can hide between two probes; a test holds the bundled
data against this."""

_BLOCK = 8 * _PROBE
"""Changes are found, and kept, for this many seconds at a time: short, because the next times of a
rare schedule lie years apart and only their surroundings matter."""

_SECOND = timedelta(seconds=1)

_PLACEHOLDERS = frozenset({"Factory"})
"""Listed names that stand for "nobody has chosen a zone yet"."""


class Change(NamedTuple):
    """One change of a zone's offset.

    Attributes:
        at: First Unix second with the new offset.
        before: Offset until then, seconds.
        after: Offset from then on, seconds.
    """

    at: int
    before: int
    after: int

    @property
    def skipped(self) -> int:
        """Seconds of wall time that do not exist because of this change; 0 = none."""
        return max(0, self.after - self.before)

    @property
    def repeated(self) -> int:
        """Seconds of wall time that are read twice because of this change; 0 = none."""
        return max(0, self.before - self.after)


class Zone:
    """One time zone. Equal questions get equal answers; what was found out is kept."""

    __slots__ = ("_changes", "_info", "_origin", "name")

    def __init__(self, name: str, info: ZoneInfo) -> None:
        self.name = name
        self._info = info
        self._origin = datetime(1970, 1, 1, tzinfo=info)
        self._changes: dict[int, tuple[Change, ...]] = {}

    def __repr__(self) -> str:
        return f"Zone({self.name!r})"

    def offset_at(self, second: int) -> int:
        """Return the offset in force at a Unix second.

        Args:
            second: Unix seconds, years 1 to 9998.
        """
        # Arithmetic on an aware datetime is naive: this is the UTC reading with the zone attached,
        # just what `fromutc` asks for.
        local = self._info.fromutc(self._origin + second * _SECOND)
        offset = local.utcoffset()
        assert offset is not None
        return offset // _SECOND

    def changes_between(self, first: int, last: int) -> list[Change]:
        """Return the changes from `first` to `last`, both included, in order.

        Args:
            first: Unix seconds.
            last: Unix seconds.
        """
        return [
            change
            for block in range((first - 1) // _BLOCK, (last - 1) // _BLOCK + 1)
            for change in self._changes_in(block)
            if first <= change.at <= last
        ]

    def _changes_in(self, block: int) -> tuple[Change, ...]:
        """The changes after second `block * _BLOCK`, up to and with the last of the block."""
        known = self._changes.get(block)
        if known is None:
            start = block * _BLOCK
            known = self._changes[block] = tuple(self._search(start, start + _BLOCK))
        return known

    def _search(self, start: int, stop: int) -> list[Change]:
        found = []
        before = self.offset_at(start)
        for probe in range(start, stop, _PROBE):
            after = self.offset_at(probe + _PROBE)
            if after != before:
                found.append(Change(self._first_with(after, probe, probe + _PROBE), before, after))
                before = after
        return found

    def _first_with(self, offset: int, low: int, high: int) -> int:
        """The first second with `offset`: not yet at `low`, in force at `high`."""
        while high - low > 1:
            middle = (low + high) // 2
            if self.offset_at(middle) == offset:
                high = middle
            else:
                low = middle
        return high


def load_zone(name: str) -> Zone | None:
    """Return the zone of this IANA name, or None if the bundled data has none.

    Reads the bundled data on the first call for a name. Names are case-sensitive.
    """
    return _load(name) if name in _names() else None


@cache
def _names() -> frozenset[str]:
    listed = resources.files("tzdata").joinpath("zones").read_text(encoding="ascii")
    return frozenset(listed.split()) - _PLACEHOLDERS


@cache  # bounded by the number of names
def _load(name: str) -> Zone:
    resource = resources.files("tzdata").joinpath("zoneinfo", *name.split("/"))
    with resource.open("rb") as compiled:
        return Zone(name, ZoneInfo.from_file(compiled, name))
