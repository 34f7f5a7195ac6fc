"""Decides when and where a worker connects: pure policy without sockets, clock or chance.

Rules RR-01 … of docs/spec/redirect-and-reconnect.md, cited below. Input is what happened and when
(seconds of a monotonic clock), output is one decision. Chance comes in as a function that
returns a fraction in [0, 1). The same events and fractions give the same decisions in every
language; conformance/vectors/reconnect.json holds them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from ._endpoint import Endpoint, EndpointError, parse_redirect

REDIRECTS_MAX = 3  # RR-10
TRIES_MAX = 4  # RR-05
TRIES_WINDOW_BACKOFFS = 10  # RR-05: the span, in initial backoffs
FATAL_CODES = frozenset(  # RR-06
    {
        "UNAUTHENTICATED",
        "PERMISSION_DENIED",
        "NOT_FOUND",
        "INVALID_ARGUMENT",
        "UNIMPLEMENTED",
        "FAILED_PRECONDITION",
    }
)


@dataclass(frozen=True, slots=True)
class Started:
    """The worker was started."""


@dataclass(frozen=True, slots=True)
class Registered:
    """The server accepted the worker."""


@dataclass(frozen=True, slots=True)
class Redirected:
    """The stream ended with FAILED_PRECONDITION and a shard endpoint in its metadata."""

    endpoint: str


@dataclass(frozen=True, slots=True)
class Ended:
    """The stream ended, or there was no connection (then as UNAVAILABLE)."""

    code: str
    not_leader: bool = False
    message: str = ""


@dataclass(frozen=True, slots=True)
class Elapsed:
    """The time of the last Wait has come."""


Event = Started | Registered | Redirected | Ended | Elapsed


@dataclass(frozen=True, slots=True)
class Connect:
    """Open a fresh connection there, now."""

    endpoint: Endpoint
    may_send_token: bool
    refused: str = ""


@dataclass(frozen=True, slots=True)
class Wait:
    """Do nothing until then, and say Elapsed."""

    until: float
    refused: str = ""


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Stop: no retry can change this answer."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Stay:
    """Go on with the stream as it is."""


Decision = Connect | Wait | GiveUp | Stay


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconnectSettings:
    """What the policy needs to know of the worker's options. Durations in seconds."""

    endpoint: Endpoint
    has_token: bool = False
    insecure_redirect_http: bool = False
    backoff_initial: float = 0.1
    backoff_max: float = 5.0
    session_reset: float = 50.0


class ReconnectPolicy:
    """One worker's policy; feed it every event in order and do what it says."""

    def __init__(self, settings: ReconnectSettings, chance: Callable[[], float]) -> None:
        self._settings = settings
        self._chance = chance
        self._at = settings.endpoint  # where the current or last stream is
        self._next = settings.endpoint  # where Elapsed leads
        self._hops = 0
        self._failures = 0
        self._registered_at: float | None = None
        self._tries: deque[float] = deque(maxlen=TRIES_MAX)

    @property
    def backoff_bound(self) -> float:
        """Upper end of the next delay, in seconds (RR-03)."""
        # The exponent is capped: a float overflows long before the backoff matters.
        grown = self._settings.backoff_initial * 2.0 ** min(self._failures, 64)
        return min(self._settings.backoff_max, grown)

    def decide(self, event: Event, now: float) -> Decision:
        """Returns what to do about `event`, which happened at `now`."""
        match event:
            case Started():
                return self._connect(self._settings.endpoint, now)
            case Elapsed():
                return self._connect(self._next, now)
            case Registered():
                self._registered_at = now
                self._hops = 0  # RR-11
                return Stay()
            case Redirected(endpoint):
                return self._redirected(endpoint, now)
            case Ended():
                return self._ended(event, now)

    def _redirected(self, text: str, now: float) -> Decision:
        self._registered_at = None
        if self._hops >= REDIRECTS_MAX:  # RR-10
            return self._refuse(f"redirect {self._hops + 1} in a row to {text}", now)
        try:
            target = parse_redirect(text)
        except EndpointError as error:
            return self._refuse(str(error), now)
        problem = self._forbidden(target)
        if problem:
            return self._refuse(problem, now)
        self._hops += 1
        return self._connect(target, now)  # RR-09: at once

    def _forbidden(self, target: Endpoint) -> str:
        if target.is_encrypted:
            return ""
        if self._at.is_encrypted:  # RR-14
            return f"redirect from https to {target}"
        settings = self._settings
        if settings.has_token and not (target.is_loopback or settings.insecure_redirect_http):
            return f"token over http to {target}"  # RR-15
        return ""

    def _refuse(self, why: str, now: float) -> Decision:
        """RR-16: not followed, reported, back to the configured endpoint with backoff."""
        self._hops = 0
        return self._wait(self._settings.endpoint, now, self._delay(), why)

    def _ended(self, event: Ended, now: float) -> Decision:
        registered_at, self._registered_at = self._registered_at, None
        self._hops = 0  # RR-11
        if event.code in FATAL_CODES:  # RR-06
            return GiveUp(event.code, event.message)
        lived = registered_at is not None and now - registered_at >= self._settings.session_reset
        if lived or event.not_leader:  # RR-04
            self._failures = 0
        if registered_at is None:  # RR-18, RR-19
            return self._wait(self._settings.endpoint, now, self._delay())
        if event.not_leader:  # RR-07
            return self._wait(self._at, now, 0.0)
        return self._wait(self._at, now, self._delay())  # RR-17

    def _delay(self) -> float:
        delay = self._chance() * self.backoff_bound
        self._failures += 1
        return delay

    def _wait(self, target: Endpoint, now: float, delay: float, refused: str = "") -> Decision:
        until = now + delay
        if len(self._tries) == TRIES_MAX:  # RR-05
            window = TRIES_WINDOW_BACKOFFS * self._settings.backoff_initial
            until = max(until, self._tries[0] + window)
        if until <= now:
            return self._connect(target, now, refused)
        self._next = target
        return Wait(until, refused)

    def _connect(self, target: Endpoint, now: float, refused: str = "") -> Connect:
        self._at = self._next = target
        self._tries.append(now)
        return Connect(target, self._may_send_token(target), refused)

    def _may_send_token(self, target: Endpoint) -> bool:
        settings = self._settings
        return settings.has_token and (
            target == settings.endpoint
            or target.is_encrypted
            or target.is_loopback
            or settings.insecure_redirect_http
        )
