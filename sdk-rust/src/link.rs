//! Decides nothing itself: carries a session over streams, as the reconnect policy says.
//!
//! One place at a time: waiting, opening a stream, reading one, or over. Each stream has a
//! connection of its own (RR-08, RR-09).

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::{BoxFuture, pending};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::metadata::{AsciiMetadataValue, MetadataMap};
use tonic::transport::Channel;
use tonic::{Code, Response, Status, Streaming};

use crate::calls::clients;
use crate::endpoint::Endpoint;
use crate::errors::{Error, ErrorReason, Result};
use crate::options::ConnectOptions;
use crate::proto;
use crate::reconnect::{Event, Moment};
use crate::session::Outbox;
use crate::transport::{
    SHARD_ENDPOINT_KEY, bearer, call_error, dial, is_broken_connection, request_of,
};

const OUTPUT_TIMEOUT: Duration = Duration::from_secs(30);
/// Pauses between tries to fetch a parent's output, about 20 s together.
const OUTPUT_PAUSES_MS: [u64; 10] = [50, 100, 200, 400, 800, 1600, 3000, 5000, 5000, 5000];

/// What came of the link's present place.
pub(crate) enum Happening {
    /// The wait is over.
    Elapsed,
    /// The server said something.
    Message(Box<proto::ServerMessage>),
    /// The stream ended, or there was no connection.
    Ended(Event),
}

enum Way {
    Waiting(Moment),
    Opening(BoxFuture<'static, Opened>),
    Open(Box<Stream>),
    Over,
}

type Opened = std::result::Result<(Channel, Response<Streaming<proto::ServerMessage>>), Failed>;

enum Failed {
    Unreachable(Error),
    Refused(Status),
}

struct Stream {
    inbound: Streaming<proto::ServerMessage>,
    initial: MetadataMap,
}

/// One worker's way to its servers.
pub(crate) struct Link {
    options: ConnectOptions,
    epoch: Instant,
    way: Way,
    endpoint: Endpoint,
    credential: Option<AsciiMetadataValue>,
    outbox: Option<Outbox>,
    outputs: Arc<Outputs>,
}

impl Link {
    pub(crate) fn new(options: ConnectOptions, epoch: Instant, outputs: Arc<Outputs>) -> Self {
        let endpoint = options.endpoint.clone();
        Self { options, epoch, way: Way::Over, endpoint, credential: None, outbox: None, outputs }
    }

    /// Where the present or last stream is.
    pub(crate) fn endpoint(&self) -> String {
        self.endpoint.to_string()
    }

    pub(crate) fn is_open(&self) -> bool {
        matches!(self.way, Way::Open(_))
    }

    /// True when no stream will come unless one is opened.
    pub(crate) fn is_over(&self) -> bool {
        matches!(self.way, Way::Over)
    }

    /// Where a session writes to.
    pub(crate) fn outbox(&self) -> Option<Outbox> {
        self.outbox.clone()
    }

    /// Does nothing until then.
    pub(crate) fn wait(&mut self, until: Moment) {
        self.way = Way::Waiting(until);
    }

    /// Begins a stream on a fresh connection, with `first` as its first message.
    pub(crate) fn open(
        &mut self,
        endpoint: Endpoint,
        may_send_token: bool,
        first: proto::WorkerMessage,
    ) {
        let token = self.options.token.as_deref().filter(|_| may_send_token);
        let credential = token.and_then(bearer);
        let (outbox, messages) = mpsc::unbounded_channel();
        // The receiver is at hand, so this cannot fail.
        let _ = outbox.send(first);
        self.outbox = Some(outbox);
        self.endpoint = endpoint.clone();
        self.credential.clone_from(&credential);
        let options = self.options.clone();
        self.way = Way::Opening(Box::pin(async move {
            let channel = dial(&options, &endpoint).await.map_err(Failed::Unreachable)?;
            let request = request_of(UnboundedReceiverStream::new(messages), credential.as_ref());
            let answer = clients::workers(channel.clone()).work(request).await;
            Ok((channel, answer.map_err(Failed::Refused)?))
        }));
    }

    /// Ends this side of the stream; the server ends the other (WP-44).
    pub(crate) fn half_close(&mut self) {
        self.outbox = None;
    }

    /// Ends everything now.
    pub(crate) fn abandon(&mut self) {
        self.leave();
    }

    fn leave(&mut self) {
        self.way = Way::Over;
        self.outbox = None;
        self.outputs.set(None);
    }

    /// Waits for what comes next. The future may be dropped and called for again.
    pub(crate) async fn next(&mut self) -> Happening {
        loop {
            let event = match &mut self.way {
                Way::Waiting(until) => {
                    tokio::time::sleep_until(self.epoch + *until).await;
                    return Happening::Elapsed;
                }
                Way::Over => pending().await,
                Way::Opening(opening) => match opening.await {
                    Ok((channel, answer)) => {
                        let (initial, inbound, _) = answer.into_parts();
                        self.outputs.set(Some((channel, self.credential.clone())));
                        self.way = Way::Open(Box::new(Stream { inbound, initial }));
                        continue;
                    }
                    Err(Failed::Unreachable(error)) => Event::Ended {
                        code: Code::Unavailable,
                        not_leader: false,
                        message: error.to_string(),
                    },
                    Err(Failed::Refused(status)) => event_of(&status, None),
                },
                Way::Open(stream) => match stream.inbound.message().await {
                    Ok(Some(message)) => return Happening::Message(Box::new(message)),
                    Ok(None) => Event::Ended {
                        code: Code::Ok,
                        not_leader: false,
                        message: "the server ended the stream".to_owned(),
                    },
                    Err(status) => event_of(&status, Some(&stream.initial)),
                },
            };
            self.leave();
            return Happening::Ended(event);
        }
    }
}

/// What the end of a stream means. The endpoint of a redirect may come with either metadata.
fn event_of(status: &Status, initial: Option<&MetadataMap>) -> Event {
    let error = call_error(status, initial);
    let code = if is_broken_connection(status) { Code::Unavailable } else { status.code() };
    match error.details().get(SHARD_ENDPOINT_KEY) {
        Some(endpoint) if code == Code::FailedPrecondition => {
            Event::Redirected { endpoint: endpoint.clone() }
        }
        _ => Event::Ended {
            code,
            not_leader: error.reason() == Some(ErrorReason::NotLeader),
            message: error.message().to_owned(),
        },
    }
}

type OutputWay = (Channel, Option<AsciiMetadataValue>);

/// The way to parents' outputs: the connection of the present stream.
#[derive(Default)]
pub(crate) struct Outputs(Mutex<Option<OutputWay>>);

impl Outputs {
    fn place(&self) -> MutexGuard<'_, Option<OutputWay>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, way: Option<OutputWay>) {
        *self.place() = way;
    }

    /// Fetches the output of a parent of a lease; waits out a broken connection.
    pub(crate) async fn fetch(&self, lease: u64, task_id: u64) -> Result<proto::Output> {
        let request = proto::GetOutputRequest { lease, task_id };
        for pause in OUTPUT_PAUSES_MS {
            let way = self.place().clone();
            if let Some((channel, credential)) = way {
                let mut client = clients::workers(channel);
                let call = client.get_output(request_of(request, credential.as_ref()));
                match tokio::time::timeout(OUTPUT_TIMEOUT, call).await {
                    Ok(Ok(answer)) => return Ok(answer.into_inner()),
                    Ok(Err(status)) => {
                        let error = call_error(&status, None);
                        if !error.is_unavailable() {
                            return Err(error);
                        }
                        tracing::debug!(task = task_id, %error, "cannot fetch an output");
                    }
                    Err(_) => tracing::debug!(task = task_id, "no answer to a fetch of an output"),
                }
            }
            tokio::time::sleep(Duration::from_millis(pause)).await;
        }
        let text = format!("no server answered for the output of task {task_id}");
        Err(Error::from_code(Code::Unavailable, None, &text))
    }
}
