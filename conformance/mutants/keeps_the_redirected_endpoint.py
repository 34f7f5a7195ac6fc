"""A worker that never goes back to its configured endpoint. Breaks RR-18 and RR-19."""

from __future__ import annotations

from cronoq import _reconnect
from cronoq._endpoint import Endpoint


def apply() -> None:
    """Waits for where it is instead of where it should go."""
    wait = _reconnect.ReconnectPolicy._wait

    def stay(
        self: _reconnect.ReconnectPolicy,
        target: Endpoint,
        now: float,
        delay: float,
        refused: str = "",
    ) -> _reconnect.Decision:
        del target
        return wait(self, self._at, now, delay, refused)

    _reconnect.ReconnectPolicy._wait = stay  # type: ignore[method-assign]
