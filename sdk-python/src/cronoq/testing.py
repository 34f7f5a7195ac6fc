"""Decides how a handler is run without a server: for the tests of those who write handlers.

The handler is called just as a worker would call it: its signature is read, the payload goes
through the codec, and its end becomes an outcome.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ._handlers import AnyHandler, Handler
from ._outcome import Cancelled, Completed, Failed, Nacked, Outcome
from ._payload import Codec, JsonCodec
from ._proto import workers_pb2
from ._session import Run
from .attempt import Attempt
from .spec import NO_PAYLOAD
from .views import Progress


@dataclass(frozen=True, slots=True)
class HandlerOutcome:
    """How a handler ended.

    Attributes:
        output: What it returned, encoded; None if it did not return.
        content_type: Of the output.
        failure: Message of a failure; None if it did not fail.
        is_permanent: Whether the failure ends the task.
        retry_after_s: Wait that the handler asked for.
        is_cancelled: Whether the handler cancelled its task.
        rejection: Reason for which the handler gave the attempt back.
    """

    codec: Codec
    output: bytes | None = None
    content_type: str = ""
    failure: str | None = None
    is_permanent: bool = False
    retry_after_s: float | None = None
    is_cancelled: bool = False
    rejection: str | None = None

    def value(self, as_type: Any = Any) -> Any:
        """Returns what a client would get as result.

        Raises:
            AssertionError: The handler did not return.
        """
        if self.output is None:
            raise AssertionError(f"the handler did not succeed: {self.failure or self}")
        return self.codec.decode(self.output, self.content_type, as_type)


class _Host:
    """Stands for the worker: knows outputs of parents, hears progress."""

    def __init__(
        self,
        codec: Codec,
        outputs: Mapping[int, Any],
        on_progress: Callable[[Progress], object] | None,
    ) -> None:
        self.codec = codec
        self._outputs = outputs
        self._on_progress = on_progress
        self.run: Run | None = None

    def note_progress(self) -> None:
        if self._on_progress is not None and self.run is not None and self.run.progress:
            self._on_progress(Progress(*self.run.progress))

    async def fetch_output(self, lease: int, task_id: int) -> workers_pb2.Output:
        return self.fetch_output_blocking(lease, task_id)

    def fetch_output_blocking(self, _lease: int, task_id: int) -> workers_pb2.Output:
        output, content_type = self.codec.encode(self._outputs[task_id])
        return workers_pb2.Output(output=output, content_type=content_type)


def _prepare(
    handler: AnyHandler,
    payload: Any,
    codec: Codec,
    outputs: Mapping[int, Any] | None,
    on_progress: Callable[[Progress], object] | None,
    fields: dict[str, Any],
) -> tuple[Handler, Attempt, Run]:
    lease = workers_pb2.Lease(lease=1, task_id=1, attempt=1, kind="test", pool="default")
    if payload is not NO_PAYLOAD:
        lease.payload, lease.content_type = codec.encode(payload)
    names = {"number": "attempt"}
    lease.MergeFrom(workers_pb2.Lease(**{names.get(k, k): v for k, v in fields.items()}))
    lease.parents.extend(outputs or ())
    host = _Host(codec, outputs or {}, on_progress)
    run = host.run = Run(lease, 0.0, 30.0)
    return Handler(handler, codec, ()), Attempt(run, host), run


def _told(outcome: Outcome, codec: Codec) -> HandlerOutcome:
    match outcome:
        case Completed(output, content_type):
            return HandlerOutcome(codec, output=output, content_type=content_type)
        case Failed(message, permanent, retry_after_s):
            return HandlerOutcome(
                codec, failure=message, is_permanent=permanent, retry_after_s=retry_after_s
            )
        case Nacked(reason):
            return HandlerOutcome(codec, rejection=reason)
        case Cancelled():
            return HandlerOutcome(codec, is_cancelled=True)


async def run_handler(
    handler: AnyHandler,
    payload: Any = NO_PAYLOAD,
    *,
    codec: Codec | None = None,
    outputs: Mapping[int, Any] | None = None,
    on_progress: Callable[[Progress], object] | None = None,
    **fields: Any,
) -> HandlerOutcome:
    """Runs an async handler as a worker would.

    Args:
        handler: The function.
        payload: What a client would submit.
        codec: JSON when None.
        outputs: Values of parents by task id.
        on_progress: Called with each progress the handler tells.
        fields: What the attempt tells: `task_id`, `number`, `kind`, `key`, `tags` and so on.
    """
    used = codec or JsonCodec()
    prepared, attempt, run = _prepare(handler, payload, used, outputs, on_progress, fields)
    return _told(await prepared.run_async(attempt, run), used)


def run_handler_blocking(
    handler: AnyHandler,
    payload: Any = NO_PAYLOAD,
    *,
    codec: Codec | None = None,
    outputs: Mapping[int, Any] | None = None,
    on_progress: Callable[[Progress], object] | None = None,
    **fields: Any,
) -> HandlerOutcome:
    """Runs a sync handler as a worker would, on the calling thread; see `run_handler`."""
    used = codec or JsonCodec()
    prepared, attempt, run = _prepare(handler, payload, used, outputs, on_progress, fields)
    return _told(prepared.run_blocking(attempt, run), used)
