"""A worker that forgets what it has sent when its stream breaks. Breaks WP-22 and WP-33."""

from __future__ import annotations

from cronoq._session import Session


def apply() -> None:
    """Forgets reports with the stream."""
    broken = Session.broken

    def forget(self: Session) -> None:
        broken(self)
        self._sent.clear()

    Session.broken = forget  # type: ignore[method-assign]
