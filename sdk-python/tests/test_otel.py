"""Tests of the OpenTelemetry hooks: what a submission sends along, and what an attempt becomes."""

from __future__ import annotations

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from scripted_server import ScriptedServer, make_lease

from cronoq import Client, Retryable, TaskSpec, Worker
from cronoq._proto import tasks_pb2
from cronoq.otel import current_trace_context, tracing

CONTEXT = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}


@pytest.fixture
def spans() -> InMemorySpanExporter:
    """Where the spans of a test end up."""
    return InMemorySpanExporter()


@pytest.fixture
def tracer(spans: InMemorySpanExporter) -> trace.Tracer:
    """A tracer of a provider of its own."""
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    return provider.get_tracer("test")


async def answer_submits(request: tasks_pb2.SubmitManyRequest) -> tasks_pb2.SubmitManyResponse:
    """Admits every task."""
    response = tasks_pb2.SubmitManyResponse()
    for number, _ in enumerate(request.tasks, 1):
        response.outcomes.add().response.id = number
    return response


async def test_submissions_carry_the_present_trace(
    server: ScriptedServer, tracer: trace.Tracer
) -> None:
    """A task that names no trace context gets the one of what runs; one that does keeps its own."""
    server.on("SubmitMany", answer_submits)
    async with Client(server.endpoint, trace_context=current_trace_context) as client:
        with tracer.start_as_current_span("caller") as span:
            await client.submit("work")
            await client.submit_many([TaskSpec("work", trace_context=CONTEXT)])
        await client.submit("outside of any")
    sent = [dict(r.tasks[0].trace_context) for r in server.requests("SubmitMany")]
    assert f"{span.get_span_context().trace_id:032x}" in sent[0]["traceparent"]
    assert sent[1:] == [CONTEXT, {}]


async def test_attempts_are_traces_linked_to_their_submitter(
    server: ScriptedServer, tracer: trace.Tracer, spans: InMemorySpanExporter
) -> None:
    """An attempt is a root span with a link, current while the handler runs; failures are told."""
    inside: list[trace.SpanContext] = []
    worker = Worker(endpoint=server.endpoint, slots=2, interceptors=[tracing(tracer)])

    @worker.handler("good")
    async def good() -> None:
        inside.append(trace.get_current_span().get_span_context())

    @worker.handler("bad")
    def bad() -> None:
        raise Retryable("not yet")

    async with worker:
        stream = await server.stream()
        await stream.accept()
        await stream.lease(make_lease(1, kind="good", trace_context=CONTEXT))
        await stream.reports(1)
        await stream.lease(make_lease(2, kind="bad"))
        await stream.reports(1)
        stream.end()
    first, second = spans.get_finished_spans()
    assert first.context is not None
    assert first.context.span_id == inside[0].span_id
    assert first.parent is None
    assert [f"{link.context.trace_id:032x}" for link in first.links] == [
        "0af7651916cd43dd8448eb211c80319c"
    ]
    assert first.attributes is not None
    assert first.attributes["cronoq.task_id"] == "1001"
    assert not second.links
    assert second.events[0].name == "exception"
