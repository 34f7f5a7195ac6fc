"""Which finished tasks a new leader is given beside those that live; the same for SQL stores."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from cronoq_server.engine.model import SECOND, Instant
from cronoq_server.engine.mutations import StoredTask
from cronoq_server.stores.base import FinishedQuery

_NAMES = 1000
"""Parents looked up at once."""

_OUT_OF_ORDER = 3600 * SECOND
"""How far the instants of ends may be out of the order of their positions: clocks of hosts differ,
and a leader's clock may be set back."""


class Parents:
    """The tasks that live ones depend on, gathered while the live ones pass by."""

    def __init__(self) -> None:
        self._ids: set[int] = set()
        self._keys: set[str] = set()

    def note(self, live: Iterable[StoredTask]) -> None:
        """Notes whom these depend on."""
        for task in live:
            for edge in task.spec.dependencies:
                if isinstance(edge.target, int):
                    self._ids.add(edge.target)
                else:
                    self._keys.add(edge.target)

    def queries(self) -> Iterator[FinishedQuery]:
        """Look-ups that find those of them that have ended."""
        ids, keys = sorted(self._ids), sorted(self._keys)
        for start in range(0, len(ids), _NAMES):
            yield FinishedQuery(ids=tuple(ids[start : start + _NAMES]))
        for start in range(0, len(keys), _NAMES):
            yield FinishedQuery(keys=tuple(keys[start : start + _NAMES]))


def ended_within(
    newest_first: Sequence[StoredTask], horizon: Instant
) -> tuple[tuple[StoredTask, ...], bool]:
    """Those that ended at or after the horizon, and whether older ends may hold more of them."""
    found = tuple(t for t in newest_first if t.change is not None and t.change.at >= horizon)
    if found or not newest_first:
        return found, True
    latest = max(t.change.at for t in newest_first if t.change is not None)
    return found, latest >= horizon - _OUT_OF_ORDER
