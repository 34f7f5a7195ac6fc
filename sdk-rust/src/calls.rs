//! Decides which calls are made again, when, and for how long.
//!
//! A call is repeated only on UNAVAILABLE: always when nothing was executed, else only if repeating
//! it changes nothing. Delays grow with full jitter; the deadline covers all tries together.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tonic::metadata::AsciiMetadataValue;
use tonic::transport::Channel;
use tonic::{Request, Response, Status, Streaming};

use crate::chance::fraction;
use crate::errors::{Error, ErrorKind, ErrorReason, Result};
use crate::options::{Backoff, ClientOptions, ConnectOptions};
use crate::reconnect::jittered;
use crate::transport::{Connection, Live, call_error, is_broken_connection, request_of};

/// A call with less time left than this is not made again.
const LAST_TRY: Duration = Duration::from_millis(10);
/// The server gets to know a deadline that is this much later than ours, which counts.
const DEADLINE_ROOM: Duration = Duration::from_millis(500);
/// For waits, which have no deadline of their own.
pub(crate) const FOREVER: Duration = Duration::from_secs(365 * 86_400);

/// When a time that begins now is over.
pub(crate) fn end_of(time: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(time).unwrap_or(now + FOREVER)
}

/// Makes the function that makes one call: `rpc!(tasks, cancel)`.
macro_rules! rpc {
    ($service:ident, $method:ident) => {
        |channel, request| {
            Box::pin(async move {
                let channel = $crate::transport::usable(channel).await?;
                $crate::calls::clients::$service(channel).$method(request).await
            })
        }
    };
}
pub(crate) use rpc;

/// Clients of the services, which take messages of any size: the server bounds what it sends, and a
/// limit here would turn its larger one into a break.
pub(crate) mod clients {
    use tonic::transport::Channel;

    use crate::proto::admin_client::AdminClient;
    use crate::proto::tasks_client::TasksClient;
    use crate::proto::workers_client::WorkersClient;

    pub(crate) fn tasks(channel: Channel) -> TasksClient<Channel> {
        TasksClient::new(channel).max_decoding_message_size(usize::MAX)
    }

    pub(crate) fn admin(channel: Channel) -> AdminClient<Channel> {
        AdminClient::new(channel).max_decoding_message_size(usize::MAX)
    }

    pub(crate) fn workers(channel: Channel) -> WorkersClient<Channel> {
        WorkersClient::new(channel).max_decoding_message_size(usize::MAX)
    }
}

pub(crate) type Answered<A> = BoxFuture<'static, Result<Response<A>, Status>>;

/// As if so many calls had failed in a row, at most, when the answer was that somebody else leads or
/// will: where nothing was executed nothing is overloaded, and the leader is one connection away.
const NOT_LEADER_FAILURES: u32 = 1;

/// The delays of one row of failures: full jitter, growing to a bound.
pub(crate) struct Delays {
    bounds: Backoff,
    failures: u32,
}

impl Delays {
    pub(crate) fn new(options: &ClientOptions) -> Self {
        Self { bounds: options.backoff, failures: 0 }
    }

    /// The next delay, after a call that failed with this if it did.
    pub(crate) fn next(&mut self, error: Option<&Error>) -> Duration {
        let reason = error.and_then(Error::reason);
        if reason.is_some_and(ErrorReason::says_not_executed) {
            self.failures = self.failures.min(NOT_LEADER_FAILURES);
        }
        let Backoff { initial, maximum } = self.bounds;
        let delay = jittered(initial, maximum, self.failures, fraction());
        self.failures = self.failures.saturating_add(1);
        delay
    }

    /// Starts the series anew, after a success.
    pub(crate) fn reset(&mut self) {
        self.failures = 0;
    }
}

/// True if a call that failed so may be made again.
pub(crate) fn may_repeat(error: &Error, is_idempotent: bool) -> bool {
    error.is_unavailable() && (is_idempotent || error.executed() == Some(false))
}

/// Makes single calls for a client, with deadline and repetition.
pub(crate) struct Caller {
    pub(crate) options: ClientOptions,
    connection: Arc<Connection>,
    closed: CancellationToken,
}

impl Caller {
    pub(crate) fn new(options: ClientOptions) -> Result<Self> {
        let connection = Arc::new(Connection::new(ConnectOptions::of_client(&options)?));
        Ok(Self { options, connection, closed: CancellationToken::new() })
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.is_cancelled()
    }

    pub(crate) fn close(&self) {
        self.closed.cancel();
        self.connection.close();
    }

    /// Runs work of the client's own beside its callers, until the client is closed.
    pub(crate) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        let closed = self.closed.clone();
        tokio::spawn(async move { closed.run_until_cancelled(work).await });
    }

    /// Waits for `work`, at most until the client is closed.
    pub(crate) async fn while_open<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        self.closed.run_until_cancelled(work).await.unwrap_or_else(|| Err(Error::closed()))
    }

    /// Makes a call, again if that is safe, until `ends_at`.
    pub(crate) async fn call<Q: Clone, A>(
        &self,
        name: &str,
        rpc: impl Fn(Channel, Request<Q>) -> Answered<A>,
        message: Q,
        is_idempotent: bool,
        ends_at: Instant,
    ) -> Result<A> {
        let mut delays = Delays::new(&self.options);
        let mut trouble: Option<Error> = None;
        loop {
            let left = ends_at.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(out_of_time(name, trouble.as_ref()));
            }
            // On the heap: messages and their futures are large, and calls are made from everywhere.
            let tried = Box::pin(self.try_once(&rpc, message.clone(), left)).await;
            let error = match tried {
                Ok(answer) => return Ok(answer),
                Err(error) if error.is_deadline() && trouble.is_some() => {
                    return Err(out_of_time(name, trouble.as_ref()));
                }
                Err(error) => error,
            };
            let left = ends_at.saturating_duration_since(Instant::now());
            if !may_repeat(&error, is_idempotent) || left < LAST_TRY {
                return Err(error);
            }
            trouble = Some(error);
            // Near its end the delays shrink, so that the deadline is used up.
            let pause = delays.next(trouble.as_ref()).min(left / 2);
            let sleep = async {
                tokio::time::sleep(pause).await;
                Ok(())
            };
            self.while_open(sleep).await?;
        }
    }

    /// Makes a call once, within `left`.
    pub(crate) async fn try_once<Q, A>(
        &self,
        rpc: impl Fn(Channel, Request<Q>) -> Answered<A>,
        message: Q,
        left: Duration,
    ) -> Result<A> {
        let work = async {
            let live = self.connection.live().await?;
            let mut request = self.request(message);
            request.set_timeout(left + DEADLINE_ROOM);
            let answer = rpc(live.channel.clone(), request).await;
            answer.map(Response::into_inner).map_err(|status| self.failed(&status, &live))
        };
        match tokio::time::timeout(left, self.while_open(work)).await {
            Ok(answered) => answered,
            Err(_) => Err(Error::new(ErrorKind::Deadline, "the deadline passed, outcome unknown")),
        }
    }

    /// Opens a stream of answers.
    pub(crate) async fn open<Q, A>(
        self: &Arc<Self>,
        rpc: impl Fn(Channel, Request<Q>) -> Answered<Streaming<A>>,
        message: Q,
    ) -> Result<Answers<A>> {
        self.while_open(async {
            let live = self.connection.live().await?;
            let answer = rpc(live.channel.clone(), self.request(message)).await;
            let stream = answer.map_err(|status| self.failed(&status, &live))?.into_inner();
            Ok(Answers { caller: Arc::clone(self), live, stream })
        })
        .await
    }

    fn request<Q>(&self, message: Q) -> Request<Q> {
        let credential: Option<&AsciiMetadataValue> = self.connection.credential.as_ref();
        request_of(message, credential)
    }

    fn failed(&self, status: &Status, live: &Live) -> Error {
        if is_broken_connection(status) {
            self.connection.broke(live);
        }
        let error = call_error(status, None);
        if error.reason().is_some_and(ErrorReason::says_not_executed) {
            self.connection.leave(live);
        }
        error
    }
}

/// A stream of answers.
pub(crate) struct Answers<A> {
    caller: Arc<Caller>,
    live: Live,
    stream: Streaming<A>,
}

impl<A> Answers<A> {
    /// The next answer, `None` at the end. May be dropped and called again.
    pub(crate) async fn next(&mut self) -> Result<Option<A>> {
        let caller = Arc::clone(&self.caller);
        caller
            .while_open(async {
                self.stream
                    .message()
                    .await
                    .map_err(|status| self.caller.failed(&status, &self.live))
            })
            .await
    }
}

/// What to say when the deadline passes: what stood in the way, if anything did.
pub(crate) fn out_of_time(name: &str, trouble: Option<&Error>) -> Error {
    match trouble {
        None => Error::new(ErrorKind::Deadline, format!("{name}: the deadline passed")),
        Some(trouble) => {
            let text = format!("{name}: no server answered before the deadline: {trouble}");
            let reason = trouble.reason();
            Error::new(ErrorKind::Unavailable, text).with_reason(reason).caused_by(trouble.clone())
        }
    }
}
