"""How well a pool has been doing lately: figures over a sliding window, for operators.

| figure | formula |
| --- | --- |
| priority adherence | dispatches before which no higher-scored task was passed over / dispatches |
| fixed-start hit rate | fixed starts that began within their tolerance / fixed starts decided |
| schedule efficiency | slots busy / slots that could have been busy = min(capacity, busy + ready) |
| waits | quantiles of the time from becoming ready to being dispatched |
| cost | slot-seconds that attempts have used under this leadership |

The window holds about the last `WINDOW` dispatches. Shares are 1 where nothing has been counted.
A task is passed over when one that was dispatched later in the same step, in the same pool, had a
higher score: fair shares, held slots and resources make that happen, a broken line would too.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence

import msgspec

from cronoq_server.engine.model import MILLISECOND, SECOND, Duration

WINDOW = 1000
"""Dispatches that the figures look back on."""

LATENCIES: tuple[Duration, ...] = tuple(
    [step * MILLISECOND for step in (1, 2, 5, 10, 20, 50, 100, 200, 500)]
    + [step * SECOND for step in (1, 2, 5, 10, 30, 60, 120, 300, 900, 3600, 21_600, 86_400)]
)
"""Upper bounds of the classes that waits and run times are counted in: a millisecond to a day."""


class Spread(msgspec.Struct, frozen=True, gc=False):
    """What a histogram holds at one moment.

    Attributes:
        bounds: Upper bound of each class, ascending; the last class has none.
        counts: How many values fell into each class, one more than there are bounds.
        total: The sum of all values.
    """

    bounds: tuple[int, ...] = ()
    counts: tuple[int, ...] = (0,)
    total: int = 0


class Histogram:
    """Counts values by size, for as long as this leadership lasts."""

    __slots__ = ("_bounds", "_counts", "_total")

    def __init__(self, bounds: Sequence[int] = LATENCIES) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._total = 0

    def count(self, value: int) -> None:
        """Adds one value; one that equals a bound is within it."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._total += value

    def spread(self) -> Spread:
        """All that has been counted."""
        return Spread(self._bounds, tuple(self._counts), self._total)


class Share:
    """A share of hits that forgets: when the window is full, both counts are halved."""

    __slots__ = ("_counted", "_hits")

    def __init__(self) -> None:
        self._hits = 0.0
        self._counted = 0.0

    def count(self, hits: int, of: int) -> None:
        """Adds `hits` of `of`."""
        self._hits += hits
        self._counted += of
        if self._counted > 2 * WINDOW:
            self._hits /= 2
            self._counted /= 2

    @property
    def value(self) -> float:
        """The share, 1.0 if nothing has been counted."""
        return self._hits / self._counted if self._counted else 1.0


class Quality:
    """The figures of one pool.

    Attributes:
        adherence: Dispatches in order of score.
        starts: Fixed starts that were met.
        used: Slot time used by attempts, nanoseconds.
        waits: Times from ready to dispatched of the last dispatches, nanoseconds.
        waited: The same of all dispatches, by size.
        ran: How long leases were out, by size, nanoseconds.
        lagged: How long after their instants occurrences were created, by size, nanoseconds.
    """

    __slots__ = ("adherence", "lagged", "ran", "starts", "used", "waited", "waits")

    def __init__(self) -> None:
        self.adherence = Share()
        self.starts = Share()
        self.used: Duration = 0
        self.waits: deque[Duration] = deque(maxlen=WINDOW)
        self.waited = Histogram()
        self.ran = Histogram()
        self.lagged = Histogram()

    def count_wait(self, wait: Duration) -> None:
        """Adds a dispatch that came so long after its task was ready."""
        self.waits.append(wait)
        self.waited.count(wait)

    def count_run(self, ran: Duration) -> None:
        """Adds an attempt whose lease was out for so long."""
        self.used += ran
        self.ran.count(ran)

    def wait_quantiles(self) -> tuple[float, float, float]:
        """Median, 90th and 99th percentile of the waits, in seconds; 0 without any."""
        waits = sorted(self.waits)
        if not waits:
            return 0.0, 0.0, 0.0
        last = len(waits) - 1
        p50, p90, p99 = (waits[last * share // 100] / SECOND for share in (50, 90, 99))
        return p50, p90, p99


def efficiency(capacity: int, busy: int, ready: int) -> float:
    """How much of the slots that could be busy are."""
    usable = min(capacity, busy + ready)
    return min(1.0, busy / usable) if usable > 0 else 1.0
