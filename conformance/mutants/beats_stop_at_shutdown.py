"""A worker whose heartbeats end when it begins to stop. Breaks WP-43."""

from __future__ import annotations

from cronoq._session import Session


def apply() -> None:
    """Sends no heartbeat while draining."""
    beat = Session._beat

    def silent(self: Session, now: float) -> None:
        if self._is_draining:
            self._beat_at = now
        else:
            beat(self, now)

    Session._beat = silent  # type: ignore[method-assign]
