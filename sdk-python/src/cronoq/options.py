"""Decides which options a client and a worker have, and their defaults.

The names and defaults are the same in every language; conformance/defaults.toml lists the shared
ones and a test compares. Durations are seconds or timedeltas at the edge, float seconds inside.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from ._payload import Codec, JsonCodec

if TYPE_CHECKING:  # which itself needs this module
    from .spec import TaskSpec

Seconds = float | timedelta

KEEPALIVE_MIN_S = 10.0
MESSAGE_ROOM = 64 * 1024
"""Bytes of a message that are kept free around one payload or output."""


def seconds(value: Seconds) -> float:
    """Returns a duration as float seconds."""
    return value.total_seconds() if isinstance(value, timedelta) else float(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsOptions:
    """Files for TLS, read again for each connection when they have changed.

    Attributes:
        ca: Certificates to trust, PEM; the system's when None.
        cert: This side's certificate chain, PEM, for servers that ask for one.
        key: Its private key, PEM.
    """

    ca: str | Path | None = None
    cert: str | Path | None = None
    key: str | Path | None = None

    def __post_init__(self) -> None:
        if (self.cert is None) != (self.key is None):
            raise ValueError("tls: cert and key go together")


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Bounds of the exponential backoff with full jitter.

    Attributes:
        initial: Upper end of the first delay, seconds.
        maximum: Upper end that no delay exceeds, seconds.
    """

    initial: Seconds = 0.1
    maximum: Seconds = 5.0

    def __post_init__(self) -> None:
        if not 0 < seconds(self.initial) <= seconds(self.maximum):
            raise ValueError("backoff: 0 < initial <= maximum does not hold")


@dataclass(frozen=True, slots=True, kw_only=True)
class Keepalive:
    """How a dead connection is noticed.

    Attributes:
        interval: Silence before a ping, seconds, at least 10: servers close on pings that come
            too often.
        timeout: Wait for the answer, seconds.
    """

    interval: Seconds = 20.0
    timeout: Seconds = 10.0

    def __post_init__(self) -> None:
        if seconds(self.interval) < KEEPALIVE_MIN_S:
            raise ValueError(f"keepalive: interval is below {KEEPALIVE_MIN_S:g} s")
        if seconds(self.timeout) <= 0:
            raise ValueError("keepalive: timeout is not positive")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectOptions:
    """What every connection to a server needs.

    Attributes:
        endpoint: `host:port`, `http://…` or `https://…`.
        token: Bearer token, never shown in a repr.
        tls: TLS files; with `https://` alone the system's certificates are trusted.
        backoff: Delays between tries.
        connect_timeout: Time to get a connection, seconds.
        keepalive: How a dead connection is noticed.
        codec: How values become bytes.
        max_message_bytes: Largest message that is built; the server's limit must not be smaller.
    """

    endpoint: str = "127.0.0.1:7070"
    token: str | None = field(default=None, repr=False)
    tls: TlsOptions | None = None
    backoff: Backoff = Backoff()
    connect_timeout: Seconds = 5.0
    keepalive: Keepalive = Keepalive()
    codec: Codec = field(default_factory=JsonCodec)
    max_message_bytes: int = 4 * 1024 * 1024

    def __post_init__(self) -> None:
        # No metadata could carry it, so no call would ever be made.
        if self.token is not None and not all("!" <= letter <= "~" for letter in self.token):
            raise ValueError("token: printable ASCII without spaces")


@dataclass(slots=True)
class Submission:
    """One call that submits tasks, as `ClientOptions.on_submit` sees it.

    Attributes:
        operation: `submit`, `submit_many` or `submit_batch`.
        tasks: The tasks; of `submit_many` those that were taken so far, all at its end.
        trace_context: Goes with each task that names none; set it as the submission begins.
        task_ids: Once it has ended, the id of each task; 0 where it was refused.
    """

    operation: str
    tasks: Sequence[TaskSpec]
    trace_context: Mapping[str, str] | None = None
    task_ids: Sequence[int] = ()


OnSubmit = Callable[[Submission], Callable[[BaseException | None], object]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions(ConnectOptions):
    """Options of a `Client`.

    Attributes:
        deadline: Time that a call may take with all its retries, seconds. `wait` and `result`
            have none unless given.
        max_wait: Length of one slice of a wait, seconds; the server's `max_wait_s` or less.
        max_tasks_per_batch: Tasks in one request.
        trace_context: Asked for the W3C trace context of each task that names none;
            `cronoq.otel.current_trace_context` is one.
        on_submit: Called as a submission begins; what it returns is called with the error, or
            None, as it ends. `cronoq.otel.submitting()` is one.
    """

    deadline: Seconds = 60.0
    max_wait: Seconds = 60.0
    max_tasks_per_batch: int = 1000
    trace_context: Callable[[], Mapping[str, str]] | None = None
    on_submit: OnSubmit | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions(ConnectOptions):
    """Options of a `Worker`.

    Attributes:
        pool: Pool to work for; empty is the server's default.
        slots: Attempts that may run at once.
        name: Shown in listings; identifies nothing. Host and process id when empty.
        labels: What this worker can do; tasks may ask for labels.
        insecure_redirect_http: Send the token over plain http to hosts that a server named.
        drain_timeout: Time that running attempts get when the worker stops, seconds.
        session_reset: A session of this length starts the backoff anew, seconds.
    """

    pool: str = ""
    slots: int = 1
    name: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    insecure_redirect_http: bool = False
    drain_timeout: Seconds = 30.0
    session_reset: Seconds = 50.0

    def __post_init__(self) -> None:
        ConnectOptions.__post_init__(self)
        if self.slots < 1:
            raise ValueError("slots: at least 1")
