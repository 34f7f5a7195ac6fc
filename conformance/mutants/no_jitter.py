"""A worker whose delays are the whole bound, so that all come back together. Breaks RR-03."""

from __future__ import annotations

from cronoq import _reconnect


def apply() -> None:
    """Leaves chance out."""

    def delay(self: _reconnect.ReconnectPolicy) -> float:
        bound = self.backoff_bound
        self._failures += 1
        return bound

    _reconnect.ReconnectPolicy._delay = delay  # type: ignore[method-assign]
