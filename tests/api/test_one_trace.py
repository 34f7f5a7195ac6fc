"""A task followed from its submitter to its result, over a real server, by its spans alone."""

from __future__ import annotations

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from cronoq import Attempt, Client, Retryable, RetryPolicy, Worker
from cronoq.otel import submitting, tracing
from cronoq_server.api.tracing import Tracing
from tests.api.conftest import serving


def parent_of(span: ReadableSpan) -> int:
    """The span above it; 0 if there is none."""
    return int(span.parent.span_id) if span.parent is not None else 0


def own(span: ReadableSpan) -> int:
    """Its id."""
    assert span.context is not None
    return int(span.context.span_id)


def attribute(span: ReadableSpan, name: str) -> object:
    """What it says."""
    assert span.attributes is not None
    return span.attributes[name]


async def test_one_trace_leads_from_the_submitter_to_every_attempt() -> None:
    """Submission, commit, waiting before each of two attempts, and both of those."""
    kept = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    tracer = provider.get_tracer("test")
    async with serving() as edge:
        edge.server.follow(Tracing(SimpleSpanProcessor(kept), "1.2.3"))
        endpoint = str(edge.server.address)
        worker = Worker(endpoint=endpoint, interceptors=[tracing(tracer)])

        @worker.handler("flaky")
        async def flaky(attempt: Attempt) -> str:
            if attempt.number == 1:
                raise Retryable("not yet")
            return "done"

        async with worker, Client(endpoint, on_submit=submitting(tracer)) as client:
            with tracer.start_as_current_span("caller") as caller:
                retry = RetryPolicy(max_attempts=2, initial_backoff=0.01, jitter=False)
                handle = await client.submit("flaky", pool="default", retry=retry)
            assert await handle.result() == "done"
    spans: dict[str, list[ReadableSpan]] = {}
    for span in sorted(kept.get_finished_spans(), key=lambda span: span.start_time or 0):
        spans.setdefault(span.name, []).append(span)
    (submitted,) = spans["submit default"]
    (served,), (committed,) = spans["cronoq.submit"], spans["cronoq.commit"]
    waited, attempted = spans["cronoq.queue_wait"], spans["cronoq.attempt"]
    assert parent_of(submitted) == caller.get_span_context().span_id
    assert parent_of(served) == own(submitted)
    assert parent_of(committed) == own(served)
    assert [parent_of(wait) for wait in waited] == [own(submitted)] * 2
    assert [attribute(wait, "cronoq.attempt") for wait in waited] == [1, 2]
    for span in (submitted, served, committed, *waited):
        assert span.context is not None
        assert span.context.trace_id == caller.get_span_context().trace_id
    assert [attribute(attempt, "cronoq.attempt") for attempt in attempted] == [1, 2]
    assert [parent_of(attempt) for attempt in attempted] == [0, 0]
    links = [[link.context.span_id for link in attempt.links] for attempt in attempted]
    assert links == [[own(submitted)]] * 2
    assert [attempt.status.is_ok for attempt in attempted] == [False, True]
    assert attribute(submitted, "messaging.message.id") == str(handle.id)
    for span in (served, *waited, *attempted):
        assert attribute(span, "cronoq.task_id") == str(handle.id)
