"""A worker whose heartbeats end when it begins to stop. Breaks WP-43."""

from __future__ import annotations

from collections.abc import Sequence

from cronoq._session import Run, Session


def apply() -> None:
    """Sends no heartbeat while draining."""
    beat = Session._beat

    def silent(self: Session, now: float, first: Sequence[Run] = ()) -> None:
        if self._is_draining:
            self._beat_at = now
            for run in first:
                run.progress_is_new = False
        else:
            beat(self, now, first)

    Session._beat = silent  # type: ignore[method-assign]
