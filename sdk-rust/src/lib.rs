//! Client and worker for a cronoq server, a durable task queue.
//!
//! ```no_run
//! use cronoq::{Attempt, Client, ClientOptions, HandlerError, TaskSpec, Worker, WorkerOptions};
//!
//! async fn greet(_attempt: Attempt, name: String) -> Result<String, HandlerError> {
//!     Ok(format!("hello {name}"))
//! }
//!
//! # async fn program() -> cronoq::Result<()> {
//! let mut worker = Worker::new(WorkerOptions { slots: 4, ..Default::default() })?;
//! worker.handler("greet", greet)?;
//! worker.start()?;
//!
//! let client = Client::new(ClientOptions::default())?;
//! let task = client.submit(TaskSpec::new("greet", "world")).await?;
//! let greeting: String = task.result().await?;
//! # let _ = greeting;
//! worker.stop().await;
//! # Ok(())
//! # }
//! ```
//!
//! | for | see |
//! | --- | --- |
//! | submitting, waiting, listing, watching, schedules | [`Client`] |
//! | running handlers | [`Worker`], [`Attempt`], [`HandlerError`] |
//! | errors | [`Error`], [`ErrorKind`], [`ErrorReason`] |
//! | other encodings, compression, encryption | [`Codec`], [`Transform`] |
//! | tests of handlers | `cronoq::testing`, feature `testing` |
//! | traces | `cronoq::otel`, feature `otel` |
//!
//! Everything needs a tokio runtime with its timer on.

mod admin;
mod attempt;
mod calls;
mod chance;
mod client;
mod coalesce;
mod convert;
mod endpoint;
mod engagement;
mod errors;
#[cfg(test)]
mod fuzz_tests;
mod handlers;
mod link;
mod options;
#[cfg(feature = "otel")]
pub mod otel;
mod outcome;
mod payload;
mod reconnect;
mod run;
#[cfg(test)]
mod scripted;
mod session;
mod spec;
#[cfg(feature = "testing")]
pub mod testing;
mod transport;
mod views;
mod waits;
mod watch;
mod worker;

/// The wire contract: messages, clients and servers of `cronoq.v1`. Generated; needs no protoc.
#[allow(
    clippy::all,
    clippy::pedantic,
    dead_code,
    missing_docs,
    rustdoc::all,
    unreachable_pub,
    unused_imports
)]
mod proto {
    include!("gen/cronoq.v1.rs");
}

pub use admin::{ResourceSize, ScheduleRef};
pub use attempt::{Attempt, HandlerError};
pub use client::{BulkOptions, Client, TaskHandle};
pub use errors::{Error, ErrorKind, ErrorReason, Result, TaskFailure};
pub use handlers::{Interceptor, Next};
pub use options::{
    Backoff, ClientOptions, Keepalive, OnAbort, OnConnect, OnDisconnect, OnRedirect, OnSubmit,
    OnSubmitted, Submission, TlsOptions, TraceContext, WorkerOptions,
};
pub use payload::{
    Codec, Encoded, JsonCodec, MsgpackCodec, Payload, ReadTyped, Slot, Transform,
    TransformingCodec, Value, ZlibTransform, payload_error,
};
pub use spec::{
    BulkAction, CatchUp, Dep, EdgeCond, Fold, Gap, MissPolicy, Overlap, Priority, RetryPolicy,
    ScheduleSpec, TaskFilter, TaskRef, TaskSpec, TaskStatus, new_key,
};
pub use tokio_util::sync::CancellationToken;
pub use views::{
    AttemptRecord, BackfillOutcome, BulkOutcome, Gathered, ParentRecord, PoolSnapshot, Progress,
    ResourceInfo, ScheduleDetail, ScheduleInfo, Snapshot, StatusEvent, TaskDetail, TaskInfo,
    TaskResult, Totals, WorkerGroup, WorkerInfo,
};
pub use watch::{ListOptions, TaskPages, Watch, WatchOptions};
pub use worker::Worker;

/// The version of this crate.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

// The README's program is compiled with the documentation's.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
