"""Decides how tasks show in OpenTelemetry traces: each attempt a trace of its own, linked.

Needs `opentelemetry-api` (the extra `otel`), which nothing else in the SDK does.

client = Client(…, trace_context=current_trace_context)    the submitter's context goes along
worker = Worker(…, interceptors=[tracing()])               each attempt is a span, linked to it
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.propagate import extract, inject
from opentelemetry.trace import Link, SpanKind, Tracer
from opentelemetry.util.types import AttributeValue

from ._version import __version__
from .attempt import Attempt, Interceptor

__all__ = ["current_trace_context", "tracing"]


def current_trace_context() -> dict[str, str]:
    """Returns the trace context of what runs now: the option `trace_context` of a client."""
    carrier: dict[str, str] = {}
    inject(carrier)
    return carrier


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
