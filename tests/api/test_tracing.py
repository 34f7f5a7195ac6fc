"""A task that comes within a trace is followed there; others leave nothing."""

from __future__ import annotations

import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from cronoq_server._proto import task_pb2, tasks_pb2
from cronoq_server.api.tracing import Tracing
from cronoq_server.runtime.manual_clock import ManualClock
from tests.api.conftest import Edge, serving

TRACE = 0x0AF7651916CD43DD8448EB211C80319C
SPAN = 0xB7AD6B7169203331
SAMPLED = {"traceparent": f"00-{TRACE:032x}-{SPAN:016x}-01"}
NOT_SAMPLED = {"traceparent": f"00-{TRACE:032x}-{SPAN:016x}-00"}


@pytest.fixture
def recorder() -> InMemorySpanExporter:
    """Keeps what would be sent."""
    return InMemorySpanExporter()


def follow(edge: Edge, recorder: InMemorySpanExporter) -> None:
    """Has a server record its spans there."""
    edge.server.follow(Tracing(SimpleSpanProcessor(recorder), "1.2.3"))


async def test_a_traced_task_has_its_spans_in_its_submitters_trace(
    recorder: InMemorySpanExporter,
) -> None:
    """Submit with its commit inside, and one wait for each attempt, all below the caller's span."""
    async with serving() as edge:
        follow(edge, recorder)
        task_id = await edge.submit(kind="k", key="secret-key", trace_context=SAMPLED)
        worker = await edge.worker()
        (lease,) = await worker.leases(1)
        await worker.complete(1, lease)
        await worker.receipt(1)
        await worker.close()
    spans = {span.name: span for span in recorder.get_finished_spans()}
    assert set(spans) == {"cronoq.submit", "cronoq.commit", "cronoq.queue_wait"}
    for span in spans.values():
        assert span.context is not None
        assert span.context.trace_id == TRACE
        assert span.start_time is not None
        assert span.end_time is not None
        assert span.start_time <= span.end_time
        assert "secret-key" not in span.to_json()
    submit, commit, wait = (spans[f"cronoq.{n}"] for n in ("submit", "commit", "queue_wait"))
    assert submit.parent is not None
    assert wait.parent is not None
    assert commit.parent is not None
    assert submit.parent.span_id == wait.parent.span_id == SPAN
    assert commit.parent.span_id == submit.context.span_id
    instants = [submit.start_time, commit.start_time, commit.end_time, submit.end_time]
    assert instants == sorted(instants, key=lambda instant: instant or 0)
    assert submit.attributes == {
        "cronoq.task_id": str(task_id), "cronoq.pool": "default", "cronoq.kind": "k",
    }  # fmt: skip
    assert wait.attributes is not None
    assert wait.attributes["cronoq.attempt"] == 1


@pytest.mark.parametrize(
    "context", [{}, NOT_SAMPLED, {"traceparent": "no such thing"}, {"tracestate": "a=b"}]
)
async def test_what_nobody_traces_leaves_no_span(
    recorder: InMemorySpanExporter, context: dict[str, str]
) -> None:
    """No context, one that is not sampled, and one that is none."""
    async with serving() as edge:
        follow(edge, recorder)
        await edge.submit(trace_context=context)
        worker = await edge.worker()
        await worker.leases(1)
        await worker.close()
    assert not recorder.get_finished_spans()


async def test_each_traced_task_of_many_is_followed_once(recorder: InMemorySpanExporter) -> None:
    """A duplicate was submitted by another call, and a refused one never was."""
    async with serving() as edge:
        follow(edge, recorder)
        specs = [
            task_pb2.TaskSpec(key="a", trace_context=SAMPLED),
            task_pb2.TaskSpec(key="b"),
            task_pb2.TaskSpec(pool="nowhere", trace_context=SAMPLED),
        ]
        for _ in range(2):
            await edge.tasks.SubmitMany(tasks_pb2.SubmitManyRequest(tasks=specs))
    names = [span.name for span in recorder.get_finished_spans()]
    assert sorted(names) == ["cronoq.commit", "cronoq.submit"]


async def test_waiting_is_measured_from_ready(recorder: InMemorySpanExporter) -> None:
    """By the server's own time, for the time that no worker was there."""
    clock = ManualClock(1_700_000_000_000_000_000, 5)
    async with serving(clock=clock) as edge:
        follow(edge, recorder)
        await edge.submit(trace_context=SAMPLED)
        await clock.advance(7_000_000_000)
        worker = await edge.worker()
        await worker.leases(1)
        await worker.close()
    (wait,) = [s for s in recorder.get_finished_spans() if s.name == "cronoq.queue_wait"]
    assert wait.start_time == 1_700_000_000_000_000_000
    assert wait.end_time == 1_700_000_007_000_000_000
