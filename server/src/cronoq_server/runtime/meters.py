"""What a leadership measures of its own work, for whoever asks.

Counting costs a few hundred nanoseconds per batch and nothing per task.
"""

from __future__ import annotations

from cronoq_server.engine.model import MILLISECOND, SECOND, Duration
from cronoq_server.engine.quality import Histogram
from cronoq_server.stores.base import Batch

COMMIT_TIMES: tuple[Duration, ...] = tuple(
    [step * MILLISECOND // 2 for step in (1, 2, 4, 10, 20, 40, 100, 200, 400)]
    + [step * SECOND // 2 for step in (1, 2, 4, 10, 20, 60)]
)
"""Classes of commit times, from half a millisecond to half a minute."""

BATCH_SIZES = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000)
"""Classes of batch sizes, in mutations."""


class Meters:
    """Figures about the batches of one leadership.

    Attributes:
        commit_time: From handing a batch to the store to its confirmation, nanoseconds.
        batch_size: How many mutations batches had.
        last: The last batch confirmed: its position, and the mono instants between which it was
            on its way.
    """

    __slots__ = ("batch_size", "commit_time", "last")

    def __init__(self) -> None:
        self.commit_time = Histogram(COMMIT_TIMES)
        self.batch_size = Histogram(BATCH_SIZES)
        self.last: tuple[int, int, int] = (0, 0, 0)

    def confirmed(self, batch: Batch, began: int, ended: int) -> None:
        """Counts a batch that is durable."""
        self.commit_time.count(ended - began)
        self.batch_size.count(len(batch))
        self.last = (batch.position, began, ended)
