"""What a call brings along that only matters between servers, and what its answer lacks.

A transport sets it before the body runs; whoever passes the call on, or answers without a shard,
finds it here. It holds the caller's own credential: it is never printed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextvars import ContextVar

FORWARDED_KEY = "cronoq-forwarded"
"""Metadata key, and HTTP header, of calls that a server passed on."""

MISSING_KEY = "cronoq-unavailable-shards"
"""Metadata key, and HTTP header, that names the shards which an answer lacks."""


class Passing:
    """One call's baggage.

    Attributes:
        authorization: The credential as the caller sent it; None = none, or a certificate.
        forwarded: Whether another server passed the call on.
        until: Loop time of the caller's deadline, in seconds; None = it has none.
        missing: Names of the shards that the answer lacks, in the order found.
    """

    __slots__ = ("authorization", "forwarded", "missing", "until")

    def __init__(
        self,
        authorization: str | None = None,
        remaining_s: float | None = None,
        *,
        forwarded: bool = False,
    ) -> None:
        self.authorization = authorization
        self.forwarded = forwarded
        self.until = None if remaining_s is None else _loop_time() + remaining_s
        self.missing: list[str] = []

    def remaining_s(self) -> float | None:
        """Seconds until the caller's deadline, not below 0; None = it has none."""
        return None if self.until is None else max(0.0, self.until - _loop_time())

    def lacks(self, shards: Iterable[str]) -> None:
        """Notes shards that the answer goes without; each is named once."""
        self.missing += [name for name in shards if name not in self.missing]


current: ContextVar[Passing | None] = ContextVar("passing", default=None)
"""Of the call that this task serves; None for the server's own doings."""


def passing() -> Passing:
    """The baggage of the call that is being served; empty outside of any."""
    found = current.get()
    if found is None:
        found = Passing()
        current.set(found)
    return found


def missing_shards() -> list[str]:
    """Names of the shards that the answer of the present call lacks."""
    found = current.get()
    return [] if found is None else found.missing


def missing_metadata() -> tuple[tuple[str, str], ...]:
    """The metadata that names them; empty if the answer is complete."""
    names = missing_shards()
    return ((MISSING_KEY, ",".join(names)),) if names else ()


def _loop_time() -> float:
    return asyncio.get_running_loop().time()
