//! Decides how tasks appear in OpenTelemetry traces.
//!
//! A submission is a span, whose context its tasks carry; each attempt is a trace of its own, linked
//! to that span. The program chooses tracer provider and propagator:
//!
//! ```no_run
//! # use std::sync::Arc;
//! # use cronoq::{ClientOptions, WorkerOptions, otel};
//! let client = ClientOptions {
//!     on_submit: Some(otel::submitting()),
//!     ..Default::default()
//! };
//! let worker = WorkerOptions {
//!     interceptors: vec![Arc::new(otel::tracing())],
//!     ..Default::default()
//! };
//! ```

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use futures_util::future::BoxFuture;
use opentelemetry::trace::{FutureExt, Link, SpanKind, SpanRef, Status, TraceContextExt, Tracer};
use opentelemetry::{Context, KeyValue, global};

use crate::attempt::{Attempt, Ending, HandlerError};
use crate::errors::ErrorReason;
use crate::handlers::{Interceptor, Next};
use crate::options::{OnSubmit, OnSubmitted, Submission};

/// The trace context of what runs now: the option `trace_context` of a client that makes no spans of
/// its submissions.
#[must_use]
pub fn current_trace_context() -> BTreeMap<String, String> {
    carried(&Context::current())
}

fn carried(context: &Context) -> BTreeMap<String, String> {
    let mut carrier: HashMap<String, String> = HashMap::new();
    global::get_text_map_propagator(|propagator| propagator.inject_context(context, &mut carrier));
    carrier.into_iter().collect()
}

/// The option `on_submit` of a client that makes a span of each submission. Many tasks that are
/// submitted together share one span. It is the parent of what the server records of its tasks, and
/// attempts are linked to it. A task that names a trace context keeps that; the span is linked to
/// it. Names are those of OpenTelemetry's conventions for messaging.
#[must_use]
pub fn submitting() -> OnSubmit {
    Arc::new(|submission| {
        let tracer = global::tracer("cronoq");
        let span = tracer
            .span_builder(submission.operation)
            .with_kind(SpanKind::Producer)
            .with_attributes([
                KeyValue::new("messaging.operation.name", submission.operation),
                KeyValue::new("messaging.operation.type", "send"),
                KeyValue::new("messaging.system", "cronoq"),
            ])
            .start_with_context(&tracer, &Context::current());
        let context = Context::new().with_span(span);
        submission.trace_context = Some(carried(&context));
        let ended: OnSubmitted = Box::new(move |submission, error| {
            let span = context.span();
            tell_submission(&span, submission);
            if let Some(error) = error {
                let kind = error.reason().map_or_else(|| format!("{:?}", error.kind()), word_of);
                span.set_attribute(KeyValue::new("error.type", kind));
                span.set_status(Status::error(error.to_string()));
            }
            span.end();
        });
        ended
    })
}

fn word_of(reason: ErrorReason) -> String {
    reason.to_string()
}

/// Says what was submitted, which `submit_many` knows only at its end.
fn tell_submission(span: &SpanRef<'_>, submission: &Submission) {
    let tasks = &submission.tasks;
    if let Some(first) = tasks.first()
        && !first.pool.is_empty()
        && tasks.iter().all(|task| task.pool == first.pool)
    {
        span.set_attribute(KeyValue::new("messaging.destination.name", first.pool.clone()));
        span.update_name(format!("{} {}", submission.operation, first.pool));
    }
    if submission.operation == "submit" {
        if let Some(id) = submission.task_ids.first() {
            span.set_attribute(KeyValue::new("messaging.message.id", id.to_string()));
        }
    } else {
        let refused = submission.task_ids.iter().filter(|id| **id == 0).count();
        span.set_attribute(KeyValue::new("messaging.batch.message_count", whole(tasks.len())));
        span.set_attribute(KeyValue::new("cronoq.refused_count", whole(refused)));
    }
    for task in tasks {
        let from = context_of(task.trace_context.iter()).span().span_context().clone();
        if from.is_valid() {
            span.add_link(from, Vec::new());
        }
    }
}

fn whole(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// What a task carries, as a context.
fn context_of<S: AsRef<str>>(told: impl IntoIterator<Item = (S, S)>) -> Context {
    let carrier: HashMap<String, String> = told
        .into_iter()
        .map(|(name, value)| (name.as_ref().to_owned(), value.as_ref().to_owned()))
        .collect();
    global::get_text_map_propagator(|propagator| propagator.extract(&carrier))
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
    let from = context_of(attempt.trace_context()).span().span_context().clone();
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
