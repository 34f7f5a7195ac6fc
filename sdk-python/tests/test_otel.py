"""Tests of the OpenTelemetry hooks: what a submission sends along, and what an attempt becomes."""

from __future__ import annotations

import grpc
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from scripted_server import ScriptedServer, make_lease

from cronoq import Client, Retryable, TaskSpec, Worker
from cronoq._proto import tasks_pb2
from cronoq.errors import InvalidRequestError
from cronoq.otel import current_trace_context, submitting, tracing

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


async def answer_batch(request: tasks_pb2.SubmitBatchRequest) -> tasks_pb2.SubmitBatchResponse:
    """Admits a batch."""
    response = tasks_pb2.SubmitBatchResponse()
    for number, _ in enumerate(request.tasks, 1):
        response.tasks.add().id = number
    return response


async def refuse_submits(request: tasks_pb2.SubmitManyRequest) -> tasks_pb2.SubmitManyResponse:
    """Refuses every task."""
    response = tasks_pb2.SubmitManyResponse()
    for _ in request.tasks:
        response.outcomes.add().error.code = grpc.StatusCode.INVALID_ARGUMENT.value[0]
    return response


def span_id(span: ReadableSpan) -> str:
    """As trace contexts spell it."""
    assert span.context is not None
    return f"{span.context.span_id:016x}"


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


async def test_a_submission_is_a_span_that_its_task_carries(
    server: ScriptedServer, tracer: trace.Tracer, spans: InMemorySpanExporter
) -> None:
    """The span of a producer, child of what runs; a refusal is told, and what was refused."""
    server.on("SubmitMany", answer_submits)
    async with Client(server.endpoint, on_submit=submitting(tracer)) as client:
        with tracer.start_as_current_span("caller") as caller:
            handle = await client.submit("work", pool="batch")
        server.on("SubmitMany", refuse_submits)
        with pytest.raises(InvalidRequestError):
            await client.submit("work")
    good, _, bad = spans.get_finished_spans()
    assert (good.name, good.kind) == ("submit batch", trace.SpanKind.PRODUCER)
    assert good.parent is not None
    assert good.parent.span_id == caller.get_span_context().span_id
    assert good.attributes == {
        "messaging.operation.name": "submit",
        "messaging.operation.type": "send",
        "messaging.system": "cronoq",
        "messaging.destination.name": "batch",
        "messaging.message.id": str(handle.id),
    }
    assert (bad.name, bad.status.status_code) == ("submit", trace.StatusCode.ERROR)
    assert bad.attributes is not None
    assert bad.attributes["error.type"] == "InvalidRequestError"
    sent = [r.tasks[0].trace_context["traceparent"] for r in server.requests("SubmitMany")]
    assert [parts.split("-")[2] for parts in sent] == [span_id(good), span_id(bad)]


async def test_tasks_submitted_together_share_a_span(
    server: ScriptedServer, tracer: trace.Tracer, spans: InMemorySpanExporter
) -> None:
    """It counts them, and is linked to what tasks bring with them."""
    server.on("SubmitMany", answer_submits)
    server.on("SubmitBatch", answer_batch)
    tasks = [TaskSpec("a"), TaskSpec("b", pool="other"), TaskSpec("c", trace_context=CONTEXT)]
    async with Client(server.endpoint, on_submit=submitting(tracer)) as client:
        await client.submit_many(tasks)
        await client.submit_batch(tasks)
    for span, name in zip(spans.get_finished_spans(), ("SubmitMany", "SubmitBatch"), strict=True):
        # Those of different pools may come in requests of their own.
        sent = [task for request in server.requests(name) for task in request.tasks]
        carried = {task.kind: task.trace_context["traceparent"].split("-")[2] for task in sent}
        assert carried == {"a": span_id(span), "b": span_id(span), "c": "b7ad6b7169203331"}
        assert span.attributes is not None
        assert span.attributes["messaging.batch.message_count"] == 3
        assert span.attributes["cronoq.refused_count"] == 0
        assert [f"{link.context.span_id:016x}" for link in span.links] == ["b7ad6b7169203331"]


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
