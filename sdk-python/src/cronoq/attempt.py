"""Decides what a handler is given beside its payload, and what it can say beside a value.

A handler ends an attempt by returning a value or by raising: `Retryable`, `Permanent`, `Cancel`,
`Reject`, or anything else, which counts as retryable.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol

from ._convert import instant_of, read_progress
from ._payload import Codec
from ._proto import workers_pb2
from ._session import PROGRESS_BYTES_MAX, Run
from .options import Seconds, seconds
from .spec import Priority
from .views import Progress


class Retryable(Exception):
    """The attempt failed; another may succeed."""

    # Of the class, for subclasses whose constructor does not call this one's.
    message: str = ""
    retry_after_s: float | None = None

    def __init__(self, message: str = "", *, retry_after: Seconds | None = None) -> None:
        """Ends the attempt as failed.

        Args:
            message: Why, for people.
            retry_after: Wait before the next attempt, seconds; replaces the backoff.

        Raises:
            ValueError: The wait is negative or no number.
        """
        super().__init__(message)
        self.message = message
        self.retry_after_s = None if retry_after is None else seconds(retry_after)
        if self.retry_after_s is not None and not 0 <= self.retry_after_s < math.inf:
            raise ValueError(f"retry_after: {retry_after!r} is no time to wait")


class Permanent(Exception):
    """The task failed for good; no further attempt."""

    message: str = ""

    def __init__(self, message: str = "") -> None:
        """Ends the task as failed, with a `message` for people."""
        super().__init__(message)
        self.message = message


class Cancel(Exception):
    """The handler cancels its task."""

    reason: str = ""

    def __init__(self, reason: str = "") -> None:
        """Ends the task as cancelled; the `reason` is logged."""
        super().__init__(reason)
        self.reason = reason


class Reject(Exception):
    """The handler gives the attempt back unrun, for another worker."""

    reason: str = ""

    def __init__(self, reason: str = "") -> None:
        """Gives the attempt back; the `reason` is for people."""
        super().__init__(reason)
        self.reason = reason


class Host(Protocol):
    """What an attempt needs of the worker that runs it."""

    codec: Codec

    def note_progress(self) -> None:
        """An attempt has new progress."""

    async def fetch_output(self, lease: int, task_id: int) -> workers_pb2.Output:
        """Fetches a parent's output."""

    def fetch_output_blocking(self, lease: int, task_id: int) -> workers_pb2.Output:
        """Fetches a parent's output on the calling thread."""


class Attempt:
    """One try of one task, while its handler runs.

    `task_id` and `number` together are the fencing token toward outside systems: a higher number
    of the same task is the newer attempt.
    """

    __slots__ = ("_host", "_message", "_run")

    def __init__(self, run: Run, host: Host) -> None:
        self._run = run
        self._host = host
        self._message = run.message

    def __repr__(self) -> str:
        return f"Attempt(task_id={self.task_id}, number={self.number}, kind={self.kind!r})"

    @property
    def task_id(self) -> int:
        """Id of the task."""
        return self._message.task_id

    @property
    def number(self) -> int:
        """Number of this attempt, from 1, rising."""
        return self._message.attempt

    @property
    def kind(self) -> str:
        """Kind of the task."""
        return self._message.kind

    @property
    def key(self) -> str:
        """Key of the task, empty if it has none."""
        return self._message.key

    @property
    def pool(self) -> str:
        """Pool the task belongs to."""
        return self._message.pool

    @property
    def priority(self) -> Priority:
        """Class of the task."""
        return Priority(self._message.priority or Priority.NORMAL)

    @property
    def payload(self) -> bytes:
        """The payload as it came."""
        return self._message.payload

    @property
    def content_type(self) -> str:
        """Content type of the payload."""
        return self._message.content_type

    @property
    def tags(self) -> Mapping[str, str]:
        """Tags of the task."""
        return dict(self._message.tags)

    @property
    def deadline(self) -> datetime | None:
        """When the task should be done; nothing ends it then."""
        message = self._message
        has_deadline = message.HasField("deadline_unix_ns")
        return instant_of(message.deadline_unix_ns) if has_deadline else None

    @property
    def timeout_s(self) -> float | None:
        """Longest time of this attempt, seconds; the server ends it then."""
        return self._message.timeout_s if self._message.HasField("timeout_s") else None

    @property
    def trace_context(self) -> Mapping[str, str]:
        """W3C trace context of the submitter."""
        return dict(self._message.trace_context)

    @property
    def last_progress(self) -> Progress | None:
        """What the attempt before this one said last."""
        message = self._message
        has_progress = message.HasField("last_progress")
        return read_progress(message.last_progress) if has_progress else None

    @property
    def parents(self) -> Sequence[int]:
        """Ids of the tasks this one depended on."""
        return tuple(self._message.parents)

    @property
    def is_cancelled(self) -> bool:
        """True once the handler should stop; async handlers are cancelled besides."""
        return self._run.stop is not None

    def wait_cancelled(self, timeout: Seconds | None = None) -> bool:
        """Waits until the handler should stop; for handlers that run in threads.

        Args:
            timeout: Longest wait, seconds; for ever when None.

        Returns:
            Whether it should stop.
        """
        return self._run.wait_stop(None if timeout is None else seconds(timeout))

    @property
    def cancel_reason(self) -> str:
        """Why the handler should stop, empty while it need not."""
        stop = self._run.stop
        return "" if stop is None else self._run.stop_reason or stop.value

    def progress(self, data: bytes | str = b"", *, fraction: float | None = None) -> None:
        """Says how far the handler is; only the last word counts, and it goes out soon.

        Args:
            data: Anything, at most 1024 bytes; handed to the next attempt.
            fraction: Done part, 0 to 1.

        Raises:
            ValueError: The data is too long or the fraction outside its range.
        """
        raw = data.encode() if isinstance(data, str) else bytes(data)
        if len(raw) > PROGRESS_BYTES_MAX:
            raise ValueError(f"progress: {len(raw)} bytes, at most {PROGRESS_BYTES_MAX}")
        if fraction is not None and not 0.0 <= fraction <= 1.0:
            raise ValueError(f"progress: fraction {fraction} is outside 0 to 1")
        run = self._run
        run.progress = (raw, fraction)
        run.progress_is_new = True
        self._host.note_progress()

    async def output(self, parent: int, as_type: Any = Any) -> Any:
        """Returns the output of a parent, decoded.

        Args:
            parent: Id of one of `parents`.
            as_type: Type to decode into; whatever is there when not given.

        Raises:
            CronoqError: The server refused or could not be reached.
            PayloadError: The output is not of that type.
        """
        return self._read(await self._host.fetch_output(self._run.lease, parent), as_type)

    def output_blocking(self, parent: int, as_type: Any = Any) -> Any:
        """Returns the output of a parent, decoded; for handlers that run in threads."""
        return self._read(self._host.fetch_output_blocking(self._run.lease, parent), as_type)

    def _read(self, answer: workers_pb2.Output, as_type: Any) -> Any:
        return self._host.codec.decode(answer.output, answer.content_type, as_type)


Interceptor = Callable[[Attempt], Any]
"""Makes a context manager that is entered around the handler."""
