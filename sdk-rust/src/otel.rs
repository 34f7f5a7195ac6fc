//! Decides how tasks appear in OpenTelemetry traces.
//!
//! A submission carries the trace context of its submitter; each attempt is a trace of its own,
//! linked to the submission. The program chooses tracer provider and propagator:
//!
//! ```no_run
//! # use std::sync::Arc;
//! # use cronoq::{ClientOptions, WorkerOptions, otel};
//! let client = ClientOptions {
//!     trace_context: Some(Arc::new(otel::current_trace_context)),
//!     ..Default::default()
//! };
//! let worker = WorkerOptions {
//!     interceptors: vec![Arc::new(otel::tracing())],
//!     ..Default::default()
//! };
//! ```

use std::collections::{BTreeMap, HashMap};

use futures_util::future::BoxFuture;
use opentelemetry::trace::{FutureExt, Link, SpanKind, Status, TraceContextExt, Tracer};
use opentelemetry::{Context, KeyValue, global};

use crate::attempt::{Attempt, Ending, HandlerError};
use crate::handlers::{Interceptor, Next};

/// The trace context of what runs now: the option `trace_context` of a client.
#[must_use]
pub fn current_trace_context() -> BTreeMap<String, String> {
    let mut carrier: HashMap<String, String> = HashMap::new();
    global::get_text_map_propagator(|propagator| propagator.inject(&mut carrier));
    carrier.into_iter().collect()
}

/// Makes a span of each attempt; see [`tracing()`].
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Tracing;

/// An interceptor for a worker that makes a span of each attempt. It is the root of a trace of its
/// own, since an attempt may run long after its submitter's trace has ended, and is linked to the
/// span that submitted the task. The span is the current one while an async handler runs.
#[must_use]
pub fn tracing() -> Tracing {
    Tracing
}

impl Interceptor for Tracing {
    fn around(&self, attempt: Attempt, next: Next) -> BoxFuture<'static, Result<(), HandlerError>> {
        let context = span_of(&attempt);
        Box::pin(async move {
            let ended = next.run().with_context(context.clone()).await;
            let span = context.span();
            if let Err(error) = &ended {
                span.set_status(Status::error(error.to_string()));
                span.set_attribute(KeyValue::new("cronoq.outcome", outcome_of(&error.0)));
            }
            span.end();
            ended
        })
    }
}

fn span_of(attempt: &Attempt) -> Context {
    let told = attempt.trace_context().into_iter();
    let carrier: HashMap<String, String> =
        told.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    let submitter = global::get_text_map_propagator(|propagator| propagator.extract(&carrier));
    let from = submitter.span().span_context().clone();
    let links = if from.is_valid() { vec![Link::new(from, Vec::new(), 0)] } else { Vec::new() };
    let tracer = global::tracer("cronoq");
    let span = tracer
        .span_builder("cronoq.attempt")
        .with_kind(SpanKind::Consumer)
        .with_attributes([
            KeyValue::new("cronoq.task_id", attempt.task_id().to_string()),
            KeyValue::new("cronoq.attempt", i64::from(attempt.number())),
            KeyValue::new("cronoq.kind", attempt.kind().to_owned()),
            KeyValue::new("cronoq.pool", attempt.pool().to_owned()),
        ])
        .with_links(links)
        .start_with_context(&tracer, &Context::new());
    Context::new().with_span(span)
}

fn outcome_of(ending: &Ending) -> &'static str {
    match ending {
        Ending::Retryable { .. } => "retryable",
        Ending::Permanent(_) => "permanent",
        Ending::Cancel(_) => "cancelled",
        Ending::Reject(_) => "rejected",
        Ending::Stopped => "stopped",
    }
}

#[cfg(test)]
#[path = "otel_tests.rs"]
mod tests;
