//! Spans of attempts, collected in memory.

use opentelemetry::trace::{SpanId, TraceId};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{InMemorySpanExporter, SdkTracerProvider, SpanData};

use super::*;
use crate::TaskSpec;
use crate::testing::{FakeAttempt, run_handler};

const TRACE_PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

fn exporter() -> InMemorySpanExporter {
    let exporter = InMemorySpanExporter::default();
    let provider = SdkTracerProvider::builder().with_simple_exporter(exporter.clone()).build();
    global::set_tracer_provider(provider);
    global::set_text_map_propagator(TraceContextPropagator::new());
    exporter
}

async fn traced(fails: bool) -> Vec<SpanData> {
    let exporter = exporter();
    let fake = FakeAttempt {
        interceptors: vec![std::sync::Arc::new(tracing())],
        trace_context: [("traceparent".to_owned(), TRACE_PARENT.to_owned())].into(),
        ..FakeAttempt::default()
    };
    let handler = move |_: Attempt, (): ()| async move {
        assert!(Context::current().has_active_span());
        if fails { Err(HandlerError::permanent("no")) } else { Ok(()) }
    };
    run_handler(handler, fake).await.unwrap();
    exporter.get_finished_spans().unwrap()
}

/// Submits as one does, through a hook, and tells its span.
fn submitted(operation: &'static str, ids: &[u64], error: Option<&crate::Error>) -> SpanData {
    let exporter = exporter();
    let own = [("traceparent".to_owned(), TRACE_PARENT.to_owned())].into();
    let mut tasks = vec![TaskSpec { pool: "batch".to_owned(), ..TaskSpec::of("a") }];
    if operation != "submit" {
        tasks.push(TaskSpec { trace_context: own, ..TaskSpec::of("b") });
    }
    let mut submission = Submission { operation, tasks, ..Submission::default() };
    let ended = submitting()(&mut submission);
    submission.task_ids = ids.to_vec();
    ended(&submission, error);
    let span = exporter.get_finished_spans().unwrap().remove(0);
    let carried = &submission.trace_context.unwrap()["traceparent"];
    assert!(carried.contains(&span.span_context.span_id().to_string()));
    assert_eq!(span.span_kind, SpanKind::Producer);
    span
}

fn attribute(span: &SpanData, name: &str) -> String {
    let mut found = span.attributes.iter().filter(|pair| pair.key.as_str() == name);
    found.next().map(|pair| pair.value.to_string()).unwrap_or_default()
}

fn submissions_are_spans() {
    let one = submitted("submit", &[7], None);
    assert_eq!(one.name, "submit batch");
    assert_eq!(attribute(&one, "messaging.destination.name"), "batch");
    assert_eq!(attribute(&one, "messaging.message.id"), "7");
    let many = submitted("submit_many", &[7, 0], None);
    assert_eq!(many.name, "submit_many");
    assert_eq!(attribute(&many, "messaging.batch.message_count"), "2");
    assert_eq!(attribute(&many, "cronoq.refused_count"), "1");
    assert_eq!(many.links[0].span_context.span_id().to_string(), "b7ad6b7169203331");
    let failed = submitted("submit", &[], Some(&crate::Error::of(ErrorReason::QueueFull, "full")));
    assert_eq!(attribute(&failed, "error.type"), "queue_full");
    assert!(matches!(failed.status, Status::Error { .. }));
}

/// An attempt is a trace of its own, linked to its submitter's; how it failed is told. A submission is
/// a span, whose context goes along. The globals are shared, so this is one test.
#[tokio::test]
async fn submissions_are_spans_and_attempts_are_linked_to_them() {
    let span = traced(false).await.remove(0);
    assert_eq!(span.name, "cronoq.attempt");
    assert_eq!(span.parent_span_id, SpanId::INVALID);
    let link = &span.links[0].span_context;
    let submitter = TraceId::from_hex("0af7651916cd43dd8448eb211c80319c").unwrap();
    assert_eq!(link.trace_id(), submitter);
    assert_ne!(span.span_context.trace_id(), submitter);
    let failed = traced(true).await.remove(0);
    assert!(matches!(failed.status, Status::Error { .. }));

    let tracer = global::tracer("test");
    let context = Context::new().with_span(tracer.start("submit"));
    let guard = context.clone().attach();
    let told = current_trace_context();
    drop(guard);
    let trace = context.span().span_context().trace_id().to_string();
    assert!(told["traceparent"].contains(&trace));
    submissions_are_spans();
}
