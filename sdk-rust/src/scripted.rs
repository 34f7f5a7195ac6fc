//! Plays a cronoq server from a script: each test decides every answer, and when it is given.
//!
//! Knows no rules of its own: what a test does not script is answered with UNIMPLEMENTED, as an old
//! server would.

use std::any::Any;
use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::{Stream, StreamExt};
use prost::Message as _;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::metadata::MetadataMap;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Identity, Server, ServerTlsConfig};
use tonic::{Code, Request, Response, Status, Streaming};
use tonic_types::pb;

use crate::proto;
use crate::proto::server_message::Message as Heard;
use crate::proto::worker_message::Message as Said;

/// No answer takes this long; it only keeps a wrong program from waiting for ever.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// Waits for a fact, and fails the test when it does not come.
pub(crate) async fn soon<T>(fact: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, fact).await.expect("the fact does not come")
}

/// A refusal with a machine-readable reason.
pub(crate) fn refusal(code: Code, reason: &str) -> Status {
    let details = status_message(code, reason, "").encode_to_vec();
    Status::with_details(code, "refused", details.into())
}

/// A status as servers put it into outcomes.
pub(crate) fn status_message(code: Code, reason: &str, message: &str) -> pb::Status {
    let info = pb::ErrorInfo {
        reason: reason.to_owned(),
        domain: "cronoq".to_owned(),
        metadata: HashMap::from([("field".to_owned(), "tasks[0].kind".to_owned())]),
    };
    let type_url = "type.googleapis.com/google.rpc.ErrorInfo".to_owned();
    let any = prost_types_any(type_url, info.encode_to_vec());
    pb::Status { code: code as i32, message: message.to_owned(), details: vec![any] }
}

fn prost_types_any(type_url: String, value: Vec<u8>) -> prost_types::Any {
    prost_types::Any { type_url, value }
}

/// A redirect as a server tells it.
pub(crate) fn redirect(endpoint: &str) -> Status {
    let mut status = Status::failed_precondition("wrong shard");
    status.metadata_mut().insert("cronoq-shard-endpoint", endpoint.parse().unwrap());
    status
}

/// One worker's stream, seen from the server.
pub(crate) struct WorkStream {
    pub(crate) register: proto::Register,
    pub(crate) metadata: MetadataMap,
    inbound: Streaming<proto::WorkerMessage>,
    outbound: Option<mpsc::UnboundedSender<Result<proto::ServerMessage, Status>>>,
    pub(crate) confirms_beats: bool,
}

impl WorkStream {
    /// Accepts the worker as a server of this version.
    pub(crate) fn accept(&self) {
        self.accept_as(accepted());
    }

    pub(crate) fn accept_as(&self, mut answer: proto::Registered) {
        if answer.slots == 0 {
            answer.slots = self.register.slots;
        }
        self.send(Heard::Registered(answer));
    }

    pub(crate) fn send(&self, message: Heard) {
        let message = proto::ServerMessage { message: Some(message) };
        self.outbound.as_ref().expect("the stream has ended").send(Ok(message)).unwrap();
    }

    pub(crate) fn lease(&self, leases: impl IntoIterator<Item = proto::Lease>) {
        self.send(Heard::Leases(proto::LeaseBatch { leases: leases.into_iter().collect() }));
    }

    pub(crate) fn abort(&self, lease: u64) {
        self.send(Heard::Abort(proto::Abort { lease, reason: "by the test".to_owned() }));
    }

    pub(crate) fn receipt(&self, reports: u64, heartbeats: u64) {
        self.send(Heard::Receipt(proto::Receipt { reports, heartbeats }));
    }

    /// The next message; `None` when the worker ended its side or is gone.
    pub(crate) async fn next(&mut self) -> Option<Said> {
        let message = soon(self.inbound.message()).await;
        message.ok().flatten().and_then(|message| message.message)
    }

    /// The next message that is no heartbeat; those get their receipts.
    pub(crate) async fn next_but_beats(&mut self) -> Option<Said> {
        loop {
            match self.next().await {
                Some(Said::Heartbeats(beat)) if self.confirms_beats => self.receipt(0, beat.number),
                Some(Said::Heartbeats(_)) => {}
                other => return other,
            }
        }
    }

    /// So many reports, over as many messages as they come in, each with its receipt.
    pub(crate) async fn reports(&mut self, count: usize) -> Vec<proto::report::Report> {
        let mut found = Vec::new();
        while found.len() < count {
            let Some(Said::Reports(message)) = self.next_but_beats().await else {
                panic!("something else came before {count} reports");
            };
            found.extend(message.reports.into_iter().filter_map(|report| report.report));
            self.receipt(message.number, 0);
        }
        found
    }

    /// Ends the stream with a status, or in order.
    pub(crate) fn end(&mut self, status: Option<Status>) {
        let outbound = self.outbound.take().expect("the stream has ended");
        if let Some(status) = status {
            outbound.send(Err(status)).unwrap();
        }
    }

    pub(crate) fn cut(&mut self) {
        self.end(Some(Status::unavailable("cut")));
    }

    /// Waits until the worker has ended its side, then ends the other.
    pub(crate) async fn finish(mut self) {
        while self.next().await.is_some() {}
        self.end(None);
    }
}

/// An acceptance with the defaults of the contract.
pub(crate) fn accepted() -> proto::Registered {
    proto::Registered {
        worker_id: 1,
        lease_ttl_s: Some(30.0),
        protocol_version: 4,
        max_message_bytes: 4 * 1024 * 1024,
        session_token: (&b"token-1"[..]).into(),
        ..proto::Registered::default()
    }
}

/// A lease of kind `echo` with a JSON payload.
pub(crate) fn lease_of(lease: u64) -> proto::Lease {
    proto::Lease {
        lease,
        task_id: 1000 + lease,
        attempt: 1,
        kind: "echo".to_owned(),
        payload: (&b"\"x\""[..]).into(),
        content_type: "application/json".to_owned(),
        pool: "default".to_owned(),
        ..proto::Lease::default()
    }
}

type Replies = VecDeque<Box<dyn Any + Send>>;

#[derive(Default)]
struct Script {
    /// Answers by method, in order; the last one stays.
    replies: HashMap<&'static str, Replies>,
    requests: HashMap<&'static str, Vec<Box<dyn Any + Send>>>,
    refusals: VecDeque<Status>,
}

/// What a test and the services of its server share.
#[derive(Clone)]
pub(crate) struct Playing {
    script: Arc<Mutex<Script>>,
    streams: mpsc::UnboundedSender<WorkStream>,
}

impl Playing {
    fn script(&self) -> std::sync::MutexGuard<'_, Script> {
        self.script.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn answer<Q: Send + 'static, A: 'static>(
        &self,
        method: &'static str,
        request: Request<Q>,
    ) -> Result<Response<A>, Status> {
        let mut script = self.script();
        script.requests.entry(method).or_default().push(Box::new(request.into_inner()));
        let Some(replies) = script.replies.get_mut(method) else {
            return Err(Status::unimplemented(method));
        };
        let reply = replies.pop_front().ok_or_else(|| Status::unimplemented(method))?;
        let reply = reply.downcast::<Result<A, Status>>().expect("an answer of the method's type");
        reply.map(Response::new)
    }
}

/// A listener on loopback whose answers a test sets.
pub(crate) struct ScriptedServer {
    pub(crate) address: SocketAddr,
    playing: Playing,
    streams: mpsc::UnboundedReceiver<WorkStream>,
    stopped: CancellationToken,
}

impl Drop for ScriptedServer {
    fn drop(&mut self) {
        self.stopped.cancel();
    }
}

impl ScriptedServer {
    pub(crate) async fn start() -> Self {
        Self::start_with(None).await
    }

    pub(crate) async fn start_with(tls: Option<ServerTlsConfig>) -> Self {
        Self::listen(TcpListener::bind("127.0.0.1:0").await.unwrap(), tls)
    }

    /// Starts where another one was, as soon as that is gone.
    pub(crate) async fn start_at(address: SocketAddr) -> Self {
        let listener = soon(async {
            loop {
                match TcpListener::bind(address).await {
                    Ok(listener) => return listener,
                    Err(_) => tokio::task::yield_now().await,
                }
            }
        });
        Self::listen(listener.await, None)
    }

    fn listen(listener: TcpListener, tls: Option<ServerTlsConfig>) -> Self {
        let address = listener.local_addr().unwrap();
        let (sender, streams) = mpsc::unbounded_channel();
        let playing = Playing { script: Arc::default(), streams: sender };
        let stopped = CancellationToken::new();
        let mut builder = Server::builder();
        if let Some(tls) = tls {
            builder = builder.tls_config(tls).unwrap();
        }
        let most = 64 * 1024 * 1024;
        let tasks = proto::tasks_server::TasksServer::new(playing.clone());
        let workers = proto::workers_server::WorkersServer::new(playing.clone());
        let admin = proto::admin_server::AdminServer::new(playing.clone());
        let serving = builder
            .add_service(tasks.max_decoding_message_size(most))
            .add_service(workers.max_decoding_message_size(most))
            .add_service(admin)
            .serve_with_incoming(TcpIncoming::from(listener));
        let end = stopped.clone();
        tokio::spawn(async move { end.run_until_cancelled(serving).await });
        Self { address, playing, streams, stopped }
    }

    pub(crate) fn endpoint(&self) -> String {
        self.address.to_string()
    }

    /// Answers the next call of a method so.
    pub(crate) fn reply<A: Send + 'static>(&self, method: &'static str, answer: Result<A, Status>) {
        let mut script = self.playing.script();
        script.replies.entry(method).or_default().push_back(Box::new(answer));
    }

    /// The requests of a method so far, each told once.
    pub(crate) fn requests<Q: 'static>(&self, method: &'static str) -> Vec<Q> {
        let requests = self.playing.script().requests.remove(method).unwrap_or_default();
        let typed =
            |request: Box<dyn Any + Send>| *request.downcast::<Q>().expect("the method's type");
        requests.into_iter().map(typed).collect()
    }

    /// Refuses the next stream so, before any other is handed out.
    pub(crate) fn refuse_stream(&self, status: Status) {
        self.playing.script().refusals.push_back(status);
    }

    /// The next worker's stream, its registration read.
    pub(crate) async fn stream(&mut self) -> WorkStream {
        soon(self.streams.recv()).await.expect("a stream")
    }
}

pub(crate) type Many<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// A stream of answers that ends with a status, or in order.
pub(crate) fn many<T: Send + 'static>(items: Vec<T>, end: Option<Status>) -> Many<T> {
    let items = items.into_iter().map(Ok).chain(end.map(Err));
    Box::pin(futures_util::stream::iter(items.collect::<Vec<_>>()))
}

/// A stream of answers that goes on for ever.
pub(crate) fn endless<T: Send + 'static>(items: Vec<T>) -> Many<T> {
    Box::pin(many(items, None).chain(futures_util::stream::pending()))
}

#[tonic::async_trait]
impl proto::workers_server::Workers for Playing {
    type WorkStream = Many<proto::ServerMessage>;

    async fn work(
        &self,
        request: Request<Streaming<proto::WorkerMessage>>,
    ) -> Result<Response<Self::WorkStream>, Status> {
        let refused = self.script().refusals.pop_front();
        if let Some(status) = refused {
            return Err(status);
        }
        let metadata = request.metadata().clone();
        let mut inbound = request.into_inner();
        let streams = self.streams.clone();
        let (outbound, answers) = mpsc::unbounded_channel();
        let Some(proto::WorkerMessage { message: Some(Said::Register(register)) }) =
            inbound.message().await?
        else {
            return Err(Status::invalid_argument("the first message is no registration"));
        };
        let outbound = Some(outbound);
        let stream = WorkStream { register, metadata, inbound, outbound, confirms_beats: true };
        streams.send(stream).map_err(|_| Status::unavailable("the test is over"))?;
        Ok(Response::new(Box::pin(UnboundedReceiverStream::new(answers))))
    }

    async fn get_output(
        &self,
        request: Request<proto::GetOutputRequest>,
    ) -> Result<Response<proto::Output>, Status> {
        self.answer("get_output", request)
    }
}

macro_rules! play {
    ($service:path { $($extra:item)* } $($method:ident($request:ident) -> $answer:ty;)*) => {
        #[tonic::async_trait]
        impl $service for Playing {
            $($extra)*
            $(async fn $method(
                &self,
                request: Request<proto::$request>,
            ) -> Result<Response<$answer>, Status> {
                self.answer(stringify!($method), request)
            })*
        }
    };
}

play! {
    proto::tasks_server::Tasks {
        type WatchStream = Many<proto::StatusEvent>;
        type WaitManyStream = Many<proto::TaskResults>;
        type WatchBatchesStream = Many<proto::StatusEvents>;
    }
    submit(SubmitRequest) -> proto::SubmitResponse;
    submit_batch(SubmitBatchRequest) -> proto::SubmitBatchResponse;
    submit_many(SubmitManyRequest) -> proto::SubmitManyResponse;
    cancel(CancelRequest) -> proto::CancelResponse;
    retry(RetryRequest) -> proto::RetryResponse;
    bulk(BulkRequest) -> proto::BulkResponse;
    delete(DeleteRequest) -> proto::DeleteResponse;
    get(GetRequest) -> proto::TaskInfo;
    describe(GetRequest) -> proto::TaskDetail;
    list_tasks(ListTasksRequest) -> proto::ListTasksResponse;
    wait(WaitRequest) -> proto::TaskResult;
    watch(WatchRequest) -> Many<proto::StatusEvent>;
    wait_many(WaitManyRequest) -> Many<proto::TaskResults>;
    watch_batches(WatchRequest) -> Many<proto::StatusEvents>;
}

play! {
    proto::admin_server::Admin {}
    snapshot(Empty) -> proto::SnapshotResponse;
    add_recurring(RecurringRequest) -> proto::Empty;
    remove_recurring(RemoveRecurringRequest) -> proto::RemoveRecurringResponse;
    list_workers(Empty) -> proto::ListWorkersResponse;
    list_recurring(Empty) -> proto::ListRecurringResponse;
    get_recurring(GetRecurringRequest) -> proto::RecurringDetail;
    pause_recurring(PauseRecurringRequest) -> proto::Empty;
    trigger_recurring(TriggerRecurringRequest) -> proto::TriggerRecurringResponse;
    backfill_recurring(BackfillRecurringRequest) -> proto::BackfillRecurringResponse;
    preview_recurring(PreviewRecurringRequest) -> proto::PreviewRecurringResponse;
    list_pools(Empty) -> proto::ListPoolsResponse;
    pause_pool(PausePoolRequest) -> proto::Empty;
    resume_pool(ResumePoolRequest) -> proto::Empty;
    list_resources(Empty) -> proto::ListResourcesResponse;
    set_resource(SetResourceRequest) -> proto::Resource;
}

/// A server identity and its authority, from the folder of test certificates.
pub(crate) fn server_identity(folder: &std::path::Path) -> Identity {
    let read = |name: &str| std::fs::read(folder.join(name)).unwrap();
    Identity::from_pem(read("server.pem"), read("server.key"))
}
