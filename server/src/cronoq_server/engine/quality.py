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

from collections import deque

from cronoq_server.engine.model import SECOND, Duration

WINDOW = 1000
"""Dispatches that the figures look back on."""


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
    """

    __slots__ = ("adherence", "starts", "used", "waits")

    def __init__(self) -> None:
        self.adherence = Share()
        self.starts = Share()
        self.used: Duration = 0
        self.waits: deque[Duration] = deque(maxlen=WINDOW)

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
