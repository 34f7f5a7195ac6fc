"""A worker that lets a server lead it from https to http. Breaks RR-14."""

from __future__ import annotations

from cronoq import _reconnect
from cronoq._endpoint import Endpoint


def apply() -> None:
    """Looks at the token only."""

    def forbidden(self: _reconnect.ReconnectPolicy, target: Endpoint) -> str:
        settings = self._settings
        is_safe = target.is_encrypted or target.is_loopback or settings.insecure_redirect_http
        return f"token over http to {target}" if settings.has_token and not is_safe else ""

    _reconnect.ReconnectPolicy._forbidden = forbidden  # type: ignore[method-assign]
