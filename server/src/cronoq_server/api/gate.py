"""How many callers may be inside at a time: bounds on requests, waiters and streams.

A request is short: it is answered with the next commit. A waiter sits until something happens
(a wait, or a submit parked on a full queue) and costs little, so that many more are let in. A
stream is a worker's or a watcher's.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from types import TracebackType
from typing import Literal

from cronoq_server.config import LimitsConfig
from cronoq_server.engine import ErrorReason, Refusal
from cronoq_server.runtime.refusals import Refused

Kind = Literal["requests", "waiters", "streams"]

PARKED_AFTER_S = 1.0
"""A submit without an answer after this long is taken to be parked."""


class Gate:
    """Counts who is inside and refuses whoever would be too many."""

    def __init__(self, limits: LimitsConfig) -> None:
        self._inside: Counter[Kind] = Counter()
        self._most: dict[Kind, int] = {}
        self.replace(limits)

    def replace(self, limits: LimitsConfig) -> None:
        """Takes other bounds from now on; nobody who is inside is sent away."""
        self._most = {
            "requests": limits.max_concurrent_requests,
            "waiters": limits.max_waiters,
            "streams": limits.max_concurrent_streams,
        }

    def request(self, *, may_park: bool = False) -> Place:
        """A place for a call that is answered soon, or may turn out to be parked."""
        return Place(self, "requests", may_park)

    def waiter(self) -> Place:
        """A place for a call that waits for something to happen."""
        return Place(self, "waiters")

    def stream(self) -> Place:
        """A place for a worker or a watcher."""
        return Place(self, "streams")

    def inside(self, kind: Kind) -> int:
        """How many of a kind are inside."""
        return self._inside[kind]

    def enter(self, kind: Kind) -> None:
        """Lets one in.

        Raises:
            Refused: There are too many already.
        """
        if self._inside[kind] >= self._most[kind]:
            reason = (
                ErrorReason.TOO_MANY_STREAMS if kind == "streams" else ErrorReason.TOO_MANY_REQUESTS
            )
            text = f"the server has {self._most[kind]} {kind} already, come back later"
            raise Refused(Refusal(reason, text, (("limit", str(self._most[kind])),)))
        self._inside[kind] += 1

    def leave(self, kind: Kind) -> None:
        """Lets one out."""
        self._inside[kind] -= 1


class Place:
    """One caller's place inside, from entering to leaving the context."""

    __slots__ = ("_gate", "_kind", "_may_park", "_parking")

    def __init__(self, gate: Gate, kind: Kind, may_park: bool = False) -> None:
        self._gate = gate
        self._kind = kind
        self._may_park = may_park
        self._parking: asyncio.TimerHandle | None = None

    def __enter__(self) -> None:
        self._gate.enter(self._kind)
        if self._may_park:
            loop = asyncio.get_running_loop()
            self._parking = loop.call_later(PARKED_AFTER_S, self._park)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._parking is not None:
            self._parking.cancel()
        self._gate.leave(self._kind)

    def _park(self) -> None:
        """Moves among the waiters; stays a request while there are too many of those."""
        try:
            self._gate.enter("waiters")
        except Refused:
            return
        self._gate.leave(self._kind)
        self._kind = "waiters"
