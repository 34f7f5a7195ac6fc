//! Decides what a handler is given beside its payload, and what it can say beside a value.
//!
//! A handler ends an attempt by returning `Ok(value)` or an error: a [`HandlerError`] made by one
//! of its functions, or any other error, which counts as retryable, as does a panic.

use std::any::Any;
use std::collections::BTreeMap;
use std::error::Error as StdError;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures_util::future::BoxFuture;
use serde::de::DeserializeOwned;
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

use crate::convert::{duration_of, maybe_instant, read_progress};
use crate::errors::{Error, ErrorKind, Result};
use crate::payload::{self, Codec};
use crate::proto;
use crate::run::Run;
use crate::spec::{Numbered, Priority};
use crate::views::Progress;

pub(crate) const PROGRESS_BYTES_MAX: usize = 1024;

/// How a handler ends its attempt without a value.
///
/// Any error converts into one with `?`, as a failure that another attempt may mend.
pub struct HandlerError(pub(crate) Ending);

pub(crate) enum Ending {
    Retryable {
        message: String,
        retry_after: Option<Duration>,
    },
    Permanent(String),
    Cancel(String),
    Reject(String),
    /// The handler ended because it was told to stop.
    Stopped,
}

impl HandlerError {
    /// The attempt failed; another may succeed.
    pub fn retryable(message: impl Into<String>) -> Self {
        Self(Ending::Retryable { message: message.into(), retry_after: None })
    }

    /// The same, with a wait before the next attempt that replaces the backoff.
    pub fn retry_after(wait: Duration, message: impl Into<String>) -> Self {
        Self(Ending::Retryable { message: message.into(), retry_after: Some(wait) })
    }

    /// The task failed for good; no further attempt.
    pub fn permanent(message: impl Into<String>) -> Self {
        Self(Ending::Permanent(message.into()))
    }

    /// The handler cancels its task; the reason is logged.
    pub fn cancel(reason: impl Into<String>) -> Self {
        Self(Ending::Cancel(reason.into()))
    }

    /// The handler gives the attempt back unrun, for another worker.
    pub fn reject(reason: impl Into<String>) -> Self {
        Self(Ending::Reject(reason.into()))
    }

    /// The handler ends because it was told to stop; see [`Attempt::cancelled`].
    #[must_use]
    pub fn stopped() -> Self {
        Self(Ending::Stopped)
    }
}

impl<E: StdError + Send + Sync + 'static> From<E> for HandlerError {
    fn from(error: E) -> Self {
        let mut message = error.to_string();
        // Our own errors say all that is for people in their message.
        let is_ours = (&error as &dyn Any).is::<Error>();
        let mut cause = if is_ours { None } else { error.source() };
        while let Some(inner) = cause {
            let text = inner.to_string();
            // Many errors already tell their cause.
            if !message.ends_with(&text) {
                message.push_str(": ");
                message.push_str(&text);
            }
            cause = inner.source();
        }
        Self::retryable(message)
    }
}

impl fmt::Debug for HandlerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for HandlerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Ending::Retryable { message, .. } => write!(f, "retryable: {message}"),
            Ending::Permanent(message) => write!(f, "permanent: {message}"),
            Ending::Cancel(reason) => write!(f, "cancel: {reason}"),
            Ending::Reject(reason) => write!(f, "reject: {reason}"),
            Ending::Stopped => f.write_str("stopped"),
        }
    }
}

/// What an attempt needs of the worker that runs it.
pub(crate) trait Host: Send + Sync {
    fn codec(&self) -> &dyn Codec;
    fn note_progress(&self, progress: &proto::Progress);
    fn fetch_output(&self, lease: u64, task_id: u64) -> BoxFuture<'_, Result<proto::Output>>;
}

/// One try of one task, while its handler runs. Cheap to clone.
///
/// [`task_id`](Self::task_id) and [`number`](Self::number) together are the fencing token toward
/// outside systems: a higher number of the same task is the newer attempt.
#[derive(Clone)]
pub struct Attempt {
    pub(crate) run: Arc<Run>,
    pub(crate) host: Arc<dyn Host>,
}

impl fmt::Debug for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Attempt")
            .field("task_id", &self.task_id())
            .field("number", &self.number())
            .field("kind", &self.kind())
            .finish_non_exhaustive()
    }
}

impl Attempt {
    /// Id of the task.
    #[must_use]
    pub fn task_id(&self) -> u64 {
        self.run.message.task_id
    }

    /// Number of this attempt, from 1, rising.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.run.message.attempt
    }

    /// Kind of the task.
    #[must_use]
    pub fn kind(&self) -> &str {
        &self.run.message.kind
    }

    /// Key of the task, empty if it has none.
    #[must_use]
    pub fn key(&self) -> &str {
        &self.run.message.key
    }

    /// Pool the task belongs to.
    #[must_use]
    pub fn pool(&self) -> &str {
        &self.run.message.pool
    }

    /// Class of the task.
    #[must_use]
    pub fn priority(&self) -> Priority {
        Priority::from_number(self.run.message.priority).unwrap_or(Priority::Normal)
    }

    /// The payload as it came.
    #[must_use]
    pub fn payload(&self) -> &[u8] {
        &self.run.message.payload
    }

    /// Content type of the payload.
    #[must_use]
    pub fn content_type(&self) -> &str {
        &self.run.message.content_type
    }

    /// The payload, decoded.
    pub fn decode<T: DeserializeOwned + 'static>(&self) -> Result<T> {
        payload::decode(self.host.codec(), self.payload(), self.content_type())
    }

    /// Tags of the task.
    #[must_use]
    pub fn tags(&self) -> BTreeMap<&str, &str> {
        borrowed(&self.run.message.tags)
    }

    /// When the task should be done; nothing ends it then.
    #[must_use]
    pub fn deadline(&self) -> Option<SystemTime> {
        maybe_instant(self.run.message.deadline_unix_ns)
    }

    /// Longest time of this attempt; the server ends it then.
    #[must_use]
    pub fn timeout(&self) -> Option<Duration> {
        self.run.message.timeout_s.map(duration_of)
    }

    /// W3C trace context of the submitter.
    #[must_use]
    pub fn trace_context(&self) -> BTreeMap<&str, &str> {
        borrowed(&self.run.message.trace_context)
    }

    /// What the attempt before this one said last.
    #[must_use]
    pub fn last_progress(&self) -> Option<Progress> {
        self.run.message.last_progress.clone().map(read_progress)
    }

    /// Ids of the tasks this one depended on.
    #[must_use]
    pub fn parents(&self) -> &[u64] {
        &self.run.message.parents
    }

    /// True once the handler should stop.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.run.cancelled.is_cancelled()
    }

    /// Why the handler should stop, empty while it need not.
    #[must_use]
    pub fn cancel_reason(&self) -> String {
        self.run.stop_reason()
    }

    /// Cancelled once the handler should stop: the task was cancelled or timed out, the lease was
    /// lost, or the worker stops. A handler that ignores it keeps its slot until it ends.
    #[must_use]
    pub fn cancellation_token(&self) -> CancellationToken {
        self.run.cancelled.clone()
    }

    /// Waits until the handler should stop.
    pub async fn cancelled(&self) {
        self.run.cancelled.cancelled().await;
    }

    /// Runs `work` until it ends or the handler should stop, which drops it:
    /// `attempt.until_cancelled(work).await?`.
    pub async fn until_cancelled<F: Future>(&self, work: F) -> Result<F::Output, HandlerError> {
        let cancelled = self.run.cancelled.run_until_cancelled(work).await;
        cancelled.ok_or_else(HandlerError::stopped)
    }

    /// Waits until the handler should stop, at most so long; for handlers that block their thread.
    /// Returns whether it should stop.
    #[must_use]
    pub fn wait_cancelled(&self, timeout: Duration) -> bool {
        let waiting = tokio::time::timeout(timeout, self.run.cancelled.cancelled());
        Handle::try_current().is_ok_and(|runtime| runtime.block_on(async { waiting.await.is_ok() }))
            || self.is_cancelled()
    }

    /// Says how far the handler is; only the last word counts, and it goes out soon.
    ///
    /// `data` is anything, at most 1024 bytes, and is handed to the next attempt; `fraction` is the
    /// done part, 0 to 1.
    pub fn progress(&self, data: impl AsRef<[u8]>, fraction: impl Into<Option<f64>>) -> Result<()> {
        let (data, fraction) = (data.as_ref(), fraction.into());
        if data.len() > PROGRESS_BYTES_MAX {
            let text = format!("progress: {} bytes, at most {PROGRESS_BYTES_MAX}", data.len());
            return Err(Error::new(ErrorKind::InvalidRequest, text));
        }
        if let Some(part) = fraction
            && !(0.0..=1.0).contains(&part)
        {
            let text = format!("progress: fraction {part} is outside 0 to 1");
            return Err(Error::new(ErrorKind::InvalidRequest, text));
        }
        let progress = proto::Progress { data: data.to_vec().into(), fraction };
        self.run.set_progress(progress.clone());
        self.host.note_progress(&progress);
        Ok(())
    }

    /// The output of a parent, decoded; see [`parents`](Self::parents).
    pub async fn output<T: DeserializeOwned + 'static>(&self, parent: u64) -> Result<T> {
        let answer = self.host.fetch_output(self.run.lease(), parent).await?;
        let output = answer.output.unwrap_or_default();
        payload::decode(self.host.codec(), &output, &answer.content_type)
    }

    /// The same, for handlers that block their thread.
    pub fn output_blocking<T: DeserializeOwned + 'static>(&self, parent: u64) -> Result<T> {
        let runtime = Handle::try_current()
            .map_err(|error| Error::new(ErrorKind::Closed, "no runtime here").caused_by(error))?;
        runtime.block_on(self.output(parent))
    }
}

fn borrowed(pairs: &std::collections::HashMap<String, String>) -> BTreeMap<&str, &str> {
    pairs.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect()
}
