"""Which part of a task's life the server adds to its submitter's trace.

A task that was submitted within a trace gets three spans there: `cronoq.submit` from the call to
its answer, within it `cronoq.commit` while its batch was on the way to the store, and
`cronoq.queue_wait` from ready to handed to a worker, once for each attempt. The attempt itself is
the worker's to record. Tasks without a trace, and traces that are not sampled, cost one look.

Span attributes are ids and names of the configuration: no payload, key, tag or tenant.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import SpanKind
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from cronoq_server.engine import Admitted, Dispatch, Instant, Now, Pairs, TaskSpec
from cronoq_server.runtime.driver import Driver

PARENT: Final = "traceparent"


class Tracing:
    """Records spans of one server process."""

    def __init__(self, processor: SpanProcessor, version: str) -> None:
        """Hands spans to a processor; `close` flushes it."""
        resource = Resource.create({"service.name": "cronoq-server", "service.version": version})
        self._provider = TracerProvider(resource=resource)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("cronoq_server", version)
        self._propagator = TraceContextTextMapPropagator()

    @classmethod
    def to_collector(cls, endpoint: str, version: str) -> Tracing:
        """Sends spans to an OTLP receiver (gRPC), in batches and from a thread of its own.

        Args:
            endpoint: `http://host:port` or `https://host:port`.
            version: The version of this server.
        """
        exporter = OTLPSpanExporter(endpoint, insecure=endpoint.startswith("http://"))
        return cls(BatchSpanProcessor(exporter), version)

    def close(self) -> None:
        """Sends what is left; waits for it as long as the exporter's own timeout."""
        self._provider.shutdown()

    def admitted(
        self, driver: Driver, specs: Sequence[TaskSpec], admitted: Admitted, began: Now
    ) -> None:
        """Records the submission of those tasks that came within a trace.

        Args:
            driver: Whose batch holds them: it was the last one to be confirmed.
            specs: The tasks.
            admitted: What became of them.
            began: When the call arrived.
        """
        traced = [(at, spec) for at, spec in enumerate(specs) if spec.trace_context]
        if not traced:
            return
        ended = driver.clock.now()
        _, commit_began, commit_ended = driver.meters.last
        for at, spec in traced:
            parent = self._parent(spec.trace_context)
            task_id = admitted.ids[at]
            if parent is None or not task_id or at in admitted.duplicates:
                continue
            span = self._tracer.start_span(
                "cronoq.submit",
                parent,
                SpanKind.SERVER,
                {"cronoq.task_id": str(task_id), **_about(spec)},
                start_time=began.wall,
            )
            if began.mono <= commit_began:
                shift = ended.wall - ended.mono
                self._tracer.start_span(
                    "cronoq.commit",
                    trace.set_span_in_context(span),
                    start_time=commit_began + shift,
                ).end(commit_ended + shift)
            span.end(ended.wall)

    def dispatched(self, dispatch: Dispatch, wall: Instant) -> None:
        """Records how long each of some leases' tasks had been ready."""
        for lease in dispatch.leases:
            if not lease.spec.trace_context:
                continue
            parent = self._parent(lease.spec.trace_context)
            if parent is None:
                continue
            attributes: dict[str, str | int] = {
                "cronoq.task_id": str(lease.task_id),
                "cronoq.attempt": lease.attempt,
                **_about(lease.spec),
            }
            self._tracer.start_span(
                "cronoq.queue_wait",
                parent,
                attributes=attributes,
                start_time=wall - lease.waited,
            ).end(wall)

    def _parent(self, pairs: Pairs) -> Context | None:
        """The submitter's span; None if there is none that is sampled."""
        context = self._propagator.extract(dict(pairs), Context())
        found = trace.get_current_span(context).get_span_context()
        return context if found.is_valid and found.trace_flags.sampled else None


def _about(spec: TaskSpec) -> dict[str, str]:
    return {"cronoq.pool": spec.pool, "cronoq.kind": spec.kind}
