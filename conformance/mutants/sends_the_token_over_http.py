"""A worker that sends its token over plain http to whatever host a server names. Breaks RR-15."""

from __future__ import annotations

from cronoq import _reconnect
from cronoq._endpoint import Endpoint


def apply() -> None:
    """Allows the redirect, and the token."""

    def forbidden(self: _reconnect.ReconnectPolicy, target: Endpoint) -> str:
        at = self._at
        return f"redirect from https to {target}" if at.is_encrypted > target.is_encrypted else ""

    def may_send_token(self: _reconnect.ReconnectPolicy, target: Endpoint) -> bool:
        del target
        return self._settings.has_token

    _reconnect.ReconnectPolicy._forbidden = forbidden  # type: ignore[method-assign]
    _reconnect.ReconnectPolicy._may_send_token = may_send_token  # type: ignore[method-assign]
