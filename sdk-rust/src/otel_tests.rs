//! Spans of attempts, collected in memory.

use opentelemetry::trace::{SpanId, TraceId};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{InMemorySpanExporter, SdkTracerProvider, SpanData};

use super::*;
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

/// An attempt is a trace of its own, linked to its submitter's; how it failed is told. The globals
/// are shared, so this is one test.
#[tokio::test]
async fn attempts_are_linked_to_their_submitters() {
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
}
