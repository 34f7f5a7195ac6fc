"""Decides how tasks show in OpenTelemetry traces: submissions as spans, attempts linked to them.

Needs `opentelemetry-api` (the extra `otel`), which nothing else in the SDK does.

client = Client(…, on_submit=submitting())                 each submission is a span
client = Client(…, trace_context=current_trace_context)    or the present span goes along
worker = Worker(…, interceptors=[tracing()])               each attempt is a span, linked to it
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.propagate import extract, inject
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, Tracer
from opentelemetry.util.types import AttributeValue

from ._version import __version__
from .attempt import Attempt, Interceptor
from .errors import CronoqError
from .options import OnSubmit, Submission

__all__ = ["current_trace_context", "submitting", "tracing"]


def current_trace_context() -> dict[str, str]:
    """Returns the trace context of what runs now: the option `trace_context` of a client."""
    carrier: dict[str, str] = {}
    inject(carrier)
    return carrier


def submitting(tracer: Tracer | None = None) -> OnSubmit:
    """Returns the option `on_submit` of a client that makes a span of each submission.

    Many tasks that are submitted together share one span. It is the parent of what the server
    records of its tasks, and attempts are linked to it. A task that names a trace context keeps
    that; the span is linked to it. Names are those of OpenTelemetry's conventions for messaging.

    Args:
        tracer: Makes the spans; the global provider's when None.
    """
    used = tracer or trace.get_tracer("cronoq", __version__)

    def began(submission: Submission) -> Callable[[BaseException | None], None]:
        attributes: dict[str, AttributeValue] = {
            "messaging.operation.name": submission.operation,
            "messaging.operation.type": "send",
            "messaging.system": "cronoq",
        }
        span = used.start_span(submission.operation, kind=SpanKind.PRODUCER, attributes=attributes)
        carrier: dict[str, str] = {}
        inject(carrier, trace.set_span_in_context(span))
        submission.trace_context = carrier
        return lambda error: _submitted(span, submission, error)

    return began


def _submitted(span: Span, submission: Submission, error: BaseException | None) -> None:
    """Says what was submitted, which `submit_many` knows only at its end, and ends the span."""
    pools = {spec.pool for spec in submission.tasks}
    if len(pools) == 1 and (pool := pools.pop()):
        span.set_attribute("messaging.destination.name", pool)
        span.update_name(f"{submission.operation} {pool}")
    if submission.operation == "submit":
        for task_id in submission.task_ids:
            span.set_attribute("messaging.message.id", str(task_id))
    else:
        span.set_attribute("messaging.batch.message_count", len(submission.tasks))
        span.set_attribute("cronoq.refused_count", list(submission.task_ids).count(0))
    for spec in submission.tasks:
        if spec.trace_context:
            created = trace.get_current_span(extract(spec.trace_context)).get_span_context()
            if created.is_valid:
                span.add_link(created)
    if error is not None:
        span.record_exception(error)
        span.set_attribute("error.type", _type_of(error))
        span.set_status(Status(StatusCode.ERROR, str(error)))
    span.end()


def _type_of(error: BaseException) -> str:
    """The reason that the server gave, if it gave one."""
    if isinstance(error, CronoqError) and error.reason is not None:
        return error.reason.value
    return type(error).__qualname__


def tracing(tracer: Tracer | None = None) -> Interceptor:
    """Returns an interceptor for a worker that makes a span of each attempt.

    The span is the root of a trace of its own, since an attempt may run long after its submitter's
    trace has ended, and is linked to the span that submitted the task. What a handler raises is
    recorded. The span is the current one while the handler runs.

    Args:
        tracer: Makes the spans; the global provider's when None.
    """
    used = tracer or trace.get_tracer("cronoq", __version__)

    @contextlib.contextmanager
    def around(attempt: Attempt) -> Iterator[None]:
        submitted = trace.get_current_span(extract(attempt.trace_context)).get_span_context()
        links = [Link(submitted)] if submitted.is_valid else []
        attributes: dict[str, AttributeValue] = {
            "cronoq.attempt": attempt.number,
            "cronoq.kind": attempt.kind,
            "cronoq.pool": attempt.pool,
            "cronoq.task_id": str(attempt.task_id),
        }
        with used.start_as_current_span(
            "cronoq.attempt",
            context=Context(),
            kind=SpanKind.CONSUMER,
            attributes=attributes,
            links=links,
        ):
            yield

    return around
