//! Decides which options a client and a worker have, and their defaults.
//!
//! Names and defaults are the same in every language; `conformance/defaults.toml` lists the shared
//! ones and a test compares.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::attempt::Attempt;
use crate::endpoint::{Endpoint, parse_configured};
use crate::errors::{Error, ErrorKind, Result};
use crate::handlers::Interceptor;
use crate::payload::{Codec, JsonCodec};
use crate::spec::TaskSpec;

pub(crate) const KEEPALIVE_INTERVAL_MIN: Duration = Duration::from_secs(10);
/// Bytes of a message that are kept free around one payload or output.
pub(crate) const MESSAGE_ROOM: usize = 64 * 1024;
pub(crate) const MAX_MESSAGE_BYTES: usize = 4 * 1024 * 1024;

/// Files for TLS, read again for each connection when they have changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsOptions {
    /// Certificates to trust, PEM; the system's when `None`.
    pub ca: Option<PathBuf>,
    /// This side's certificate chain, PEM, for servers that ask for one.
    pub cert: Option<PathBuf>,
    /// Its private key, PEM.
    pub key: Option<PathBuf>,
}

/// Bounds of the exponential backoff with full jitter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// Upper end of the first delay.
    pub initial: Duration,
    /// Upper end that no delay exceeds.
    pub maximum: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { initial: Duration::from_millis(100), maximum: Duration::from_secs(5) }
    }
}

/// How a dead connection is noticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keepalive {
    /// Silence before a ping; at least 10 s, since servers close on pings that come too often.
    pub interval: Duration,
    /// Wait for the answer.
    pub timeout: Duration,
}

impl Default for Keepalive {
    fn default() -> Self {
        Self { interval: Duration::from_secs(20), timeout: Duration::from_secs(10) }
    }
}

/// Tells the W3C trace context of what runs now; `otel::current_trace_context` is one.
pub type TraceContext = Arc<dyn Fn() -> BTreeMap<String, String> + Send + Sync>;

/// One call that submits tasks, as [`ClientOptions::on_submit`] sees it.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Submission {
    /// `submit`, `submit_many` or `submit_batch`.
    pub operation: &'static str,
    /// The tasks; of `submit_many` those that were taken so far, all at its end.
    pub tasks: Vec<TaskSpec>,
    /// Goes with each task that names none; set it as the submission begins.
    pub trace_context: Option<BTreeMap<String, String>>,
    /// Once it has ended without an error, the id of each task; 0 where it was refused.
    pub task_ids: Vec<u64>,
}

/// Called as a submission begins; what it returns is called as it ends, and dropped uncalled if the
/// caller gives up before. `otel::submitting()` is one.
pub type OnSubmit = Arc<dyn Fn(&mut Submission) -> OnSubmitted + Send + Sync>;
/// Called as a submission ends, with the error if it failed.
pub type OnSubmitted = Box<dyn FnOnce(&Submission, Option<&Error>) + Send>;

/// Options of a [`Client`](crate::Client).
#[derive(Clone)]
pub struct ClientOptions {
    /// `host:port`, `http://…` or `https://…`.
    pub endpoint: String,
    /// Bearer token, never shown.
    pub token: Option<String>,
    /// TLS files; with `https://` alone the system's certificates are trusted.
    pub tls: Option<TlsOptions>,
    /// Delays between tries.
    pub backoff: Backoff,
    /// Time to get a connection.
    pub connect_timeout: Duration,
    /// How a dead connection is noticed.
    pub keepalive: Keepalive,
    /// How values become bytes.
    pub codec: Arc<dyn Codec>,
    /// Largest message that is built; the server's limit must not be smaller.
    pub max_message_bytes: usize,
    /// Time that a call may take with all its retries. Waits have none unless given.
    pub deadline: Duration,
    /// Length of one slice of a wait; the server's `max_wait_s` or less.
    pub max_wait: Duration,
    /// Tasks in one request.
    pub max_tasks_per_batch: usize,
    /// Asked for the trace context of each task that names none.
    pub trace_context: Option<TraceContext>,
    /// Called as a submission begins and as it ends.
    pub on_submit: Option<OnSubmit>,
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self {
            endpoint: "127.0.0.1:7070".to_owned(),
            token: None,
            tls: None,
            backoff: Backoff::default(),
            connect_timeout: Duration::from_secs(5),
            keepalive: Keepalive::default(),
            codec: Arc::new(JsonCodec),
            max_message_bytes: MAX_MESSAGE_BYTES,
            deadline: Duration::from_secs(60),
            max_wait: Duration::from_secs(60),
            max_tasks_per_batch: 1000,
            trace_context: None,
            on_submit: None,
        }
    }
}

impl fmt::Debug for ClientOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientOptions")
            .field("endpoint", &self.endpoint)
            .field("tls", &self.tls)
            .field("deadline", &self.deadline)
            .finish_non_exhaustive()
    }
}

/// Called with the endpoint when a server accepted the worker.
pub type OnConnect = Arc<dyn Fn(&str) + Send + Sync>;
/// Called with endpoint and reason when a stream that had been accepted ended.
pub type OnDisconnect = Arc<dyn Fn(&str, &str) + Send + Sync>;
/// Called with the endpoint that a server named and why it is not followed; empty if it is.
pub type OnRedirect = Arc<dyn Fn(&str, &str) + Send + Sync>;
/// Called with attempt and reason when a handler is told to stop.
pub type OnAbort = Arc<dyn Fn(&Attempt, &str) + Send + Sync>;

/// Options of a [`Worker`](crate::Worker).
#[derive(Clone)]
pub struct WorkerOptions {
    /// `host:port`, `http://…` or `https://…`.
    pub endpoint: String,
    /// Pool to work for; empty is the server's default.
    pub pool: String,
    /// Attempts that may run at once.
    pub slots: u32,
    /// Shown in listings; identifies nothing. Host and process id when empty.
    pub name: String,
    /// What this worker can do; tasks may ask for labels.
    pub labels: BTreeMap<String, String>,
    /// Bearer token, never shown.
    pub token: Option<String>,
    /// TLS files; with `https://` alone the system's certificates are trusted.
    pub tls: Option<TlsOptions>,
    /// Send the token over plain http to hosts that a server named.
    pub insecure_redirect_http: bool,
    /// Time that running attempts get when the worker stops.
    pub drain_timeout: Duration,
    /// Delays between connections.
    pub backoff: Backoff,
    /// A session of this length starts the backoff anew.
    pub session_reset: Duration,
    /// Time to get a connection.
    pub connect_timeout: Duration,
    /// How a dead connection is noticed.
    pub keepalive: Keepalive,
    /// How values become bytes.
    pub codec: Arc<dyn Codec>,
    /// Largest message until a server names its own.
    pub max_message_bytes: usize,
    /// Each is called around every handler, the first outermost.
    pub interceptors: Vec<Arc<dyn Interceptor>>,
    /// Hook: a server accepted the worker.
    pub on_connect: Option<OnConnect>,
    /// Hook: such a stream ended.
    pub on_disconnect: Option<OnDisconnect>,
    /// Hook: a server named another one.
    pub on_redirect: Option<OnRedirect>,
    /// Hook: a handler is told to stop.
    pub on_abort: Option<OnAbort>,
}

impl Default for WorkerOptions {
    fn default() -> Self {
        Self {
            endpoint: "127.0.0.1:7070".to_owned(),
            pool: String::new(),
            slots: 1,
            name: String::new(),
            labels: BTreeMap::new(),
            token: None,
            tls: None,
            insecure_redirect_http: false,
            drain_timeout: Duration::from_secs(30),
            backoff: Backoff::default(),
            session_reset: Duration::from_secs(50),
            connect_timeout: Duration::from_secs(5),
            keepalive: Keepalive::default(),
            codec: Arc::new(JsonCodec),
            max_message_bytes: MAX_MESSAGE_BYTES,
            interceptors: Vec::new(),
            on_connect: None,
            on_disconnect: None,
            on_redirect: None,
            on_abort: None,
        }
    }
}

impl fmt::Debug for WorkerOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkerOptions")
            .field("endpoint", &self.endpoint)
            .field("pool", &self.pool)
            .field("slots", &self.slots)
            .field("name", &self.name)
            .field("tls", &self.tls)
            .finish_non_exhaustive()
    }
}

/// What every connection needs, checked.
#[derive(Clone)]
pub(crate) struct ConnectOptions {
    pub(crate) endpoint: Endpoint,
    pub(crate) token: Option<String>,
    pub(crate) tls: Option<TlsOptions>,
    pub(crate) backoff: Backoff,
    pub(crate) connect_timeout: Duration,
    pub(crate) keepalive: Keepalive,
}

impl ConnectOptions {
    pub(crate) fn of_client(options: &ClientOptions) -> Result<Self> {
        let positive = [
            (options.deadline, "deadline: not positive"),
            (options.max_wait, "max_wait: not positive"),
        ];
        for (value, text) in positive {
            require(!value.is_zero(), text)?;
        }
        require(options.max_tasks_per_batch > 0, "max_tasks_per_batch: at least 1")?;
        require_room(options.max_message_bytes)?;
        Self {
            endpoint: parse_configured(&options.endpoint, options.tls.is_some())?,
            token: options.token.clone(),
            tls: options.tls.clone(),
            backoff: options.backoff,
            connect_timeout: options.connect_timeout,
            keepalive: options.keepalive,
        }
        .checked()
    }

    pub(crate) fn of_worker(options: &WorkerOptions) -> Result<Self> {
        require(options.slots > 0, "slots: at least 1")?;
        require_room(options.max_message_bytes)?;
        Self {
            endpoint: parse_configured(&options.endpoint, options.tls.is_some())?,
            token: options.token.clone(),
            tls: options.tls.clone(),
            backoff: options.backoff,
            connect_timeout: options.connect_timeout,
            keepalive: options.keepalive,
        }
        .checked()
    }

    fn checked(self) -> Result<Self> {
        if let Some(tls) = &self.tls {
            require(tls.cert.is_some() == tls.key.is_some(), "tls: cert and key go together")?;
        }
        let Backoff { initial, maximum } = self.backoff;
        require(
            !initial.is_zero() && initial <= maximum,
            "backoff: 0 < initial <= maximum does not hold",
        )?;
        require(!self.connect_timeout.is_zero(), "connect_timeout: not positive")?;
        require(
            self.keepalive.interval >= KEEPALIVE_INTERVAL_MIN,
            "keepalive: interval is below 10 s",
        )?;
        require(!self.keepalive.timeout.is_zero(), "keepalive: timeout is not positive")?;
        let is_sendable = |token: &String| token.bytes().all(|byte| matches!(byte, 0x20..=0x7e));
        require(self.token.as_ref().is_none_or(is_sendable), "token: not printable ASCII")?;
        Ok(self)
    }
}

fn require_room(max_message_bytes: usize) -> Result<()> {
    require(max_message_bytes > 2 * MESSAGE_ROOM, "max_message_bytes: at least 128 KiB")
}

fn require(holds: bool, text: &str) -> Result<()> {
    if holds { Ok(()) } else { Err(Error::new(ErrorKind::InvalidOption, text)) }
}
