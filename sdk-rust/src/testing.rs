//! Decides how handlers are tried without a server, and how tests get a server whose clock they
//! move.
//!
//! ```
//! # use cronoq::{Attempt, HandlerError};
//! use cronoq::testing::{FakeAttempt, run_handler};
//!
//! async fn greet(_attempt: Attempt, name: String) -> Result<String, HandlerError> {
//!     Ok(format!("hello {name}"))
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> cronoq::Result<()> {
//! let outcome = run_handler(greet, FakeAttempt::with_payload("world")).await?;
//! assert_eq!(outcome.value::<String>()?, "hello world");
//! # Ok(())
//! # }
//! ```

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use tonic::transport::Channel;

use crate::attempt::{Attempt, HandlerError, Host};
use crate::convert::{missing, read_progress, unix_ns};
use crate::endpoint::parse_configured;
use crate::errors::{Error, ErrorKind, Result};
use crate::handlers::{Handler, Interceptor, execute, typed, typed_blocking};
use crate::options::{ConnectOptions, WorkerOptions};
use crate::outcome::Outcome;
use crate::payload::{self, Codec, JsonCodec, Payload};
use crate::proto;
use crate::proto::testing_client::TestingClient;
use crate::run::{Run, Stop};
use crate::session::LEASE_TTL_DEFAULT;
use crate::spec::TaskStatus;
use crate::transport::{call_error, dial};
use crate::views::Progress;

/// What a handler under test is told about its attempt; the default is the first attempt of task 1,
/// of kind `test` in pool `default`, without payload.
#[derive(Clone)]
pub struct FakeAttempt {
    /// What a client would submit.
    pub payload: Payload,
    /// Id of the task.
    pub task_id: u64,
    /// Number of the attempt.
    pub number: u32,
    /// Kind of the task.
    pub kind: String,
    /// Key of the task.
    pub key: String,
    /// Pool of the task.
    pub pool: String,
    /// Tags of the task.
    pub tags: BTreeMap<String, String>,
    /// Deadline of the task.
    pub deadline: Option<SystemTime>,
    /// Longest time of the attempt, which the handler is told; nothing ends it then.
    pub timeout: Option<Duration>,
    /// W3C trace context of the submitter.
    pub trace_context: BTreeMap<String, String>,
    /// What the attempt before said last.
    pub last_progress: Option<Progress>,
    /// Outputs of parents by task id.
    pub outputs: BTreeMap<u64, Payload>,
    /// Called with each progress that the handler tells.
    pub on_progress: Option<Arc<dyn Fn(Progress) + Send + Sync>>,
    /// Tells the handler to stop, as if its task was cancelled.
    pub cancelled: CancellationToken,
    /// Codec of the worker.
    pub codec: Arc<dyn Codec>,
    /// Interceptors of the worker.
    pub interceptors: Vec<Arc<dyn Interceptor>>,
}

impl Default for FakeAttempt {
    fn default() -> Self {
        Self {
            payload: Payload::nothing(),
            task_id: 1,
            number: 1,
            kind: "test".to_owned(),
            key: String::new(),
            pool: "default".to_owned(),
            tags: BTreeMap::new(),
            deadline: None,
            timeout: None,
            trace_context: BTreeMap::new(),
            last_progress: None,
            outputs: BTreeMap::new(),
            on_progress: None,
            cancelled: CancellationToken::new(),
            codec: Arc::new(JsonCodec),
            interceptors: Vec::new(),
        }
    }
}

impl fmt::Debug for FakeAttempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FakeAttempt")
            .field("task_id", &self.task_id)
            .field("number", &self.number)
            .field("kind", &self.kind)
            .finish_non_exhaustive()
    }
}

impl FakeAttempt {
    /// An attempt with a payload, and defaults for all else.
    pub fn with_payload<T: Serialize + Send + Sync + 'static>(payload: T) -> Self {
        Self { payload: Payload::new(payload), ..Self::default() }
    }

    fn lease(&self) -> Result<proto::Lease> {
        let encoded = self.payload.encode(self.codec.as_ref())?;
        let (payload, content_type) =
            encoded.map(|made| (made.payload, made.content_type)).unwrap_or_default();
        let progress = self.last_progress.clone();
        Ok(proto::Lease {
            lease: 1,
            task_id: self.task_id,
            attempt: self.number,
            payload: payload.into(),
            content_type,
            kind: self.kind.clone(),
            key: self.key.clone(),
            tags: self.tags.clone().into_iter().collect(),
            timeout_s: self.timeout.map(|timeout| timeout.as_secs_f64()),
            deadline_unix_ns: self.deadline.map(unix_ns).transpose()?,
            pool: self.pool.clone(),
            trace_context: self.trace_context.clone().into_iter().collect(),
            last_progress: progress.map(|progress| proto::Progress {
                data: progress.data.into(),
                fraction: progress.fraction,
            }),
            parents: self.outputs.keys().copied().collect(),
            ..proto::Lease::default()
        })
    }
}

/// How a handler ended.
#[derive(Clone)]
#[non_exhaustive]
pub struct HandlerOutcome {
    /// What it returned, encoded; `None` if it did not return a value.
    pub output: Option<Vec<u8>>,
    /// Content type of the output.
    pub content_type: String,
    /// Message of a failure; `None` if it did not fail.
    pub failure: Option<String>,
    /// Whether the failure ends the task.
    pub is_permanent: bool,
    /// Wait that the handler asked for.
    pub retry_after: Option<Duration>,
    /// Whether the handler cancelled its task.
    pub is_cancelled: bool,
    /// Reason for which the handler gave the attempt back.
    pub rejection: Option<String>,
    codec: Arc<dyn Codec>,
}

impl fmt::Debug for HandlerOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HandlerOutcome")
            .field("has_output", &self.output.is_some())
            .field("failure", &self.failure)
            .field("is_permanent", &self.is_permanent)
            .field("retry_after", &self.retry_after)
            .field("is_cancelled", &self.is_cancelled)
            .field("rejection", &self.rejection)
            .finish_non_exhaustive()
    }
}

impl HandlerOutcome {
    /// What a client would get as result; an error when the handler did not return a value.
    pub fn value<T: DeserializeOwned + 'static>(&self) -> Result<T> {
        let output = self.output.as_ref().ok_or_else(|| {
            Error::new(ErrorKind::TaskFailed, format!("the handler did not succeed: {self:?}"))
        })?;
        payload::decode(self.codec.as_ref(), output, &self.content_type)
    }

    fn new(outcome: Outcome, codec: Arc<dyn Codec>) -> Self {
        let mut told = Self {
            output: None,
            content_type: String::new(),
            failure: None,
            is_permanent: false,
            retry_after: None,
            is_cancelled: false,
            rejection: None,
            codec,
        };
        match outcome {
            Outcome::Completed(encoded) => {
                told.output = Some(encoded.payload);
                told.content_type = encoded.content_type;
            }
            Outcome::Failed { message, is_permanent, retry_after } => {
                told.failure = Some(message);
                told.is_permanent = is_permanent;
                told.retry_after = retry_after;
            }
            Outcome::Nacked { reason } => told.rejection = Some(reason),
            Outcome::Cancelled { .. } => told.is_cancelled = true,
        }
        told
    }
}

/// Runs an async handler just as a worker would, and tells how it ended.
pub async fn run_handler<In, Out, E, F, Fut>(
    handler: F,
    fake: FakeAttempt,
) -> Result<HandlerOutcome>
where
    In: DeserializeOwned + Send + 'static,
    Out: Serialize + Send + 'static,
    E: Into<HandlerError>,
    F: Fn(Attempt, In) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<Out, E>> + Send + 'static,
{
    run(typed(handler), fake).await
}

/// Runs a handler that blocks its thread just as a worker would, and tells how it ended.
pub async fn run_handler_blocking<In, Out, E, F>(
    handler: F,
    fake: FakeAttempt,
) -> Result<HandlerOutcome>
where
    In: DeserializeOwned + Send + 'static,
    Out: Serialize + Send + 'static,
    E: Into<HandlerError> + Send + 'static,
    F: Fn(Attempt, In) -> Result<Out, E> + Send + Sync + 'static,
{
    run(typed_blocking(handler), fake).await
}

async fn run(handler: Handler, fake: FakeAttempt) -> Result<HandlerOutcome> {
    let run = Run::new(fake.lease()?, Duration::ZERO, LEASE_TTL_DEFAULT);
    let codec = Arc::clone(&fake.codec);
    let interceptors = fake.interceptors.as_slice().into();
    let cancelled = fake.cancelled.clone();
    let attempt = Attempt { run: Arc::clone(&run), host: Arc::new(FakeHost(fake)) };
    let work = execute(handler, attempt, interceptors);
    tokio::pin!(work);
    let outcome = tokio::select! {
        biased;
        () = cancelled.cancelled() => {
            run.tell(Stop::Aborted, "");
            work.await
        }
        outcome = &mut work => outcome,
    };
    Ok(HandlerOutcome::new(outcome, codec))
}

/// Stands for the worker: knows outputs of parents, hears progress.
struct FakeHost(FakeAttempt);

impl Host for FakeHost {
    fn codec(&self) -> &dyn Codec {
        self.0.codec.as_ref()
    }

    fn note_progress(&self, progress: &proto::Progress) {
        if let Some(hear) = &self.0.on_progress {
            hear(read_progress(progress.clone()));
        }
    }

    fn fetch_output(&self, _lease: u64, task_id: u64) -> BoxFuture<'_, Result<proto::Output>> {
        let found = self.0.outputs.get(&task_id).ok_or_else(|| missing("that parent's output"));
        let encoded = found.and_then(|output| output.encode(self.codec()));
        let answer = encoded.map(|encoded| {
            let (output, content_type) = encoded
                .map(|made| (Some(made.payload.into()), made.content_type))
                .unwrap_or_default();
            proto::Output { output, content_type, status: TaskStatus::Succeeded.number() }
        });
        futures_util::future::ready(answer).boxed()
    }
}

/// A server of a test's own, in memory, whose time stands still until the test moves it.
///
/// It is ended when this is dropped.
pub struct TestServer {
    child: Child,
    endpoint: String,
    clock: TestingClient<Channel>,
}

impl fmt::Debug for TestServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TestServer").field("endpoint", &self.endpoint).finish_non_exhaustive()
    }
}

impl TestServer {
    /// Starts what the environment variable `CRONOQ_SERVER` names, or `cronoq-server` on the path.
    pub async fn start() -> Result<Self> {
        let program = std::env::var_os("CRONOQ_SERVER").map(PathBuf::from);
        Self::start_program(program.unwrap_or_else(|| "cronoq-server".into())).await
    }

    /// Starts this program as the server, on a free port of loopback.
    pub async fn start_program(program: impl AsRef<Path>) -> Result<Self> {
        let mut child = Command::new(program.as_ref())
            .args(["--test-clock", "--grpc-addr", "127.0.0.1:0", "--http-addr", "127.0.0.1:0"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| {
                let text = format!("cannot start {}", program.as_ref().display());
                failed(text).caused_by(error)
            })?;
        let found = match (child.stdout.take(), child.stderr.take()) {
            (Some(stdout), Some(stderr)) => endpoint_in(stdout, stderr).await,
            _ => None,
        };
        let Some(endpoint) = found else {
            end(&mut child);
            return Err(failed("the server ended without serving"));
        };
        let options = ConnectOptions::of_worker(&WorkerOptions::default())?;
        match dial(&options, &parse_configured(&endpoint, false)?).await {
            Ok(channel) => Ok(Self { child, endpoint, clock: TestingClient::new(channel) }),
            Err(error) => {
                end(&mut child);
                Err(error)
            }
        }
    }

    /// Where it listens: `host:port`.
    #[must_use]
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// Moves the server's clock forward.
    pub async fn advance(&self, by: Duration) -> Result<()> {
        let request = proto::AdvanceRequest { seconds: by.as_secs_f64() };
        let answer = self.clock.clone().advance(request).await;
        answer.map(|_| ()).map_err(|status| call_error(&status, None))
    }

    /// Returns when everything that is due has been done.
    pub async fn settle(&self) -> Result<()> {
        let answer = self.clock.clone().settle(proto::Empty {}).await;
        answer.map(|_| ()).map_err(|status| call_error(&status, None))
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        end(&mut self.child);
    }
}

fn failed(text: impl Into<String>) -> Error {
    Error::new(ErrorKind::Internal, text)
}

fn end(child: &mut Child) {
    // It may have ended by itself, which is as good.
    let _ = child.kill();
    let _ = child.wait();
}

/// Reads both outputs to their ends, so that the server is never held up, and tells where it says
/// it serves.
async fn endpoint_in(
    stdout: impl Read + Send + 'static,
    stderr: impl Read + Send + 'static,
) -> Option<String> {
    let (found, endpoint) = oneshot::channel();
    std::thread::spawn(move || std::io::copy(&mut BufReader::new(stderr), &mut std::io::sink()));
    std::thread::spawn(move || {
        let mut found = Some(found);
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            if let Some((_, address)) = line.split_once("serving gRPC on ")
                && let Some(found) = found.take()
            {
                // Whoever asked may have given up.
                let _ = found.send(address.trim().to_owned());
            }
        }
    });
    endpoint.await.ok()
}

#[cfg(test)]
#[path = "testing_tests.rs"]
mod tests;
