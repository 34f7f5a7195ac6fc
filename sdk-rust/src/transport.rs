//! Decides how connections are made and what their failures mean.
//!
//! Rules a change must keep: each dial makes one connection, which is never made again by itself,
//! so that certificate files are read for each (RR-20) and the caller's backoff is the only one
//! (RR-08); a token travels in call metadata only; whatever breaks a connection is UNAVAILABLE.

use std::collections::BTreeMap;
use std::error::Error as StdError;
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::path::Path;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant, SystemTime};

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use hyper_util::rt::TokioIo;
use prost::Message as _;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tonic::metadata::{AsciiMetadataValue, KeyAndValueRef, MetadataMap};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Identity};
use tonic::{Code, Request, Status};
use tonic_types::pb;

use crate::endpoint::Endpoint;
use crate::errors::{Error, ErrorReason, Result};
use crate::options::{ConnectOptions, TlsOptions};

pub(crate) const SHARD_ENDPOINT_KEY: &str = "cronoq-shard-endpoint";
const METADATA_PREFIX: &str = "cronoq-";
const ERROR_DOMAIN: &str = "cronoq";
const ERROR_INFO_TYPE: &str = "google.rpc.ErrorInfo";
/// Bytes that may be on their way unread; what one stream may hold up and what all may.
const STREAM_WINDOW: u32 = 4 * 1024 * 1024;
const CONNECTION_WINDOW: u32 = 16 * 1024 * 1024;

// --- dialling --------------------------------------------------------------------------------------

/// Makes one connection, within `connect_timeout` (RR-08).
///
/// There is a connection once the peer has said something: a listener that takes connections and
/// never speaks counts as unreachable.
pub(crate) async fn dial(options: &ConnectOptions, endpoint: &Endpoint) -> Result<Channel> {
    match tokio::time::timeout(options.connect_timeout, connect(options, endpoint)).await {
        Ok(Ok(channel)) => Ok(channel),
        Ok(Err(error)) => Err(unreachable(endpoint, &root_text(error.as_ref())).caused_by(error)),
        Err(_) => Err(unreachable(endpoint, "no answer in time")),
    }
}

fn unreachable(endpoint: &Endpoint, why: &str) -> Error {
    let text = format!("cannot connect to {endpoint}: {why}");
    Error::from_code(Code::Unavailable, None, &text).never_executed()
}

type BoxError = Box<dyn StdError + Send + Sync>;

async fn connect(
    options: &ConnectOptions,
    endpoint: &Endpoint,
) -> std::result::Result<Channel, BoxError> {
    let mut made = tonic::transport::Endpoint::from_shared(endpoint.to_string())?
        .user_agent(concat!("cronoq-rust/", env!("CARGO_PKG_VERSION")))?
        .http2_keep_alive_interval(options.keepalive.interval)
        .keep_alive_timeout(options.keepalive.timeout)
        .keep_alive_while_idle(true)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW);
    if endpoint.is_encrypted {
        made = made.tls_config(tls_config(options.tls.as_ref(), &endpoint.host)?)?;
    }
    let first_byte = Arc::new(FirstByte::default());
    let connector = one_connection(endpoint.clone(), Arc::clone(&first_byte));
    let channel = made.connect_with_connector(tower::service_fn(connector)).await?;
    first_byte.heard().await;
    Ok(channel)
}

fn tls_config(
    tls: Option<&TlsOptions>,
    host: &str,
) -> std::result::Result<ClientTlsConfig, BoxError> {
    let read = |path: &Path| {
        std::fs::read(path).map_err(|error| format!("cannot read {}: {error}", path.display()))
    };
    let mut config = ClientTlsConfig::new().domain_name(host);
    config = match tls.and_then(|tls| tls.ca.as_deref()) {
        Some(path) => config.ca_certificate(Certificate::from_pem(read(path)?)),
        None => config.with_native_roots(),
    };
    if let Some((cert, key)) = tls.and_then(|tls| tls.cert.as_deref().zip(tls.key.as_deref())) {
        config = config.identity(Identity::from_pem(read(cert)?, read(key)?));
    }
    Ok(config)
}

type Connecting = BoxFuture<'static, std::result::Result<TokioIo<HeardStream>, BoxError>>;

/// The connection is over, and nothing was sent on it.
#[derive(Debug)]
struct Spent;

impl fmt::Display for Spent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("connection closed")
    }
}

impl StdError for Spent {}

/// The channel when it can take a call. One whose runtime has ended never will again, which the
/// generated clients would call an unknown error of the server's.
pub(crate) async fn usable(mut channel: Channel) -> std::result::Result<Channel, Status> {
    match poll_fn(|context| tower::Service::poll_ready(&mut channel, context)).await {
        Ok(()) => Ok(channel),
        Err(error) => {
            let mut status = Status::unavailable(root_text(&error));
            status.set_source(Arc::new(Spent));
            Err(status)
        }
    }
}

/// A connector that connects once. What would connect again by itself meets an error instead.
fn one_connection(
    endpoint: Endpoint,
    first_byte: Arc<FirstByte>,
) -> impl FnMut(tonic::transport::Uri) -> Connecting + Send {
    let mut is_used = false;
    move |_| {
        let was_used = std::mem::replace(&mut is_used, true);
        let (endpoint, first_byte) = (endpoint.clone(), Arc::clone(&first_byte));
        Box::pin(async move {
            if was_used {
                return Err(Spent.into());
            }
            let socket = TcpStream::connect((endpoint.host.as_str(), endpoint.port)).await?;
            socket.set_nodelay(true)?;
            Ok(TokioIo::new(HeardStream { socket, first_byte: Some(first_byte) }))
        })
    }
}

/// Whether the peer has said anything.
#[derive(Default)]
struct FirstByte {
    has_come: AtomicBool,
    news: Notify,
}

impl FirstByte {
    fn come(&self) {
        self.has_come.store(true, Ordering::Release);
        self.news.notify_one();
    }

    async fn heard(&self) {
        while !self.has_come.load(Ordering::Acquire) {
            self.news.notified().await;
        }
    }
}

/// A socket that tells of the first bytes, or of the end, that its peer sends.
struct HeardStream {
    socket: TcpStream,
    first_byte: Option<Arc<FirstByte>>,
}

impl AsyncRead for HeardStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.socket).poll_read(context, buffer);
        if polled.is_ready()
            && let Some(first_byte) = self.first_byte.take()
        {
            first_byte.come();
        }
        polled
    }
}

impl AsyncWrite for HeardStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write_vectored(context, buffers)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }
}

// --- metadata --------------------------------------------------------------------------------------

/// The value of the authorization metadata, marked as secret; options have checked the token.
pub(crate) fn bearer(token: &str) -> Option<AsciiMetadataValue> {
    let mut value = AsciiMetadataValue::try_from(format!("Bearer {token}")).ok()?;
    value.set_sensitive(true);
    Some(value)
}

/// A request with the caller's credential.
pub(crate) fn request_of<T>(message: T, credential: Option<&AsciiMetadataValue>) -> Request<T> {
    let mut request = Request::new(message);
    if let Some(credential) = credential {
        request.metadata_mut().insert("authorization", credential.clone());
    }
    request
}

// --- failures --------------------------------------------------------------------------------------

/// True when a status was made here, since the connection broke, and not by the server.
pub(crate) fn is_broken_connection(status: &Status) -> bool {
    status.source().is_some()
}

/// The error for a call that failed, with what the server said in its metadata.
pub(crate) fn call_error(status: &Status, initial: Option<&MetadataMap>) -> Error {
    if is_broken_connection(status) {
        let text = format!("the connection broke: {}", root_text(status));
        let error = Error::from_code(Code::Unavailable, None, &text);
        let error = if was_never_sent(status) { error.never_executed() } else { error };
        return error.caused_by(status.clone());
    }
    let (reason, mut details) = match pb::Status::decode(status.details()) {
        Ok(carried) => error_info_of(&carried),
        Err(_) => (None, BTreeMap::new()),
    };
    for metadata in initial.into_iter().chain([status.metadata()]) {
        details.extend(cronoq_metadata(metadata));
    }
    Error::from_code(status.code(), reason, status.message())
        .with_details(details)
        .caused_by(status.clone())
}

fn cronoq_metadata(metadata: &MetadataMap) -> impl Iterator<Item = (String, String)> + '_ {
    metadata.iter().filter_map(|pair| match pair {
        KeyAndValueRef::Ascii(key, value) if key.as_str().starts_with(METADATA_PREFIX) => {
            Some((key.to_string(), String::from_utf8_lossy(value.as_encoded_bytes()).into_owned()))
        }
        _ => None,
    })
}

/// Reason and details of a google.rpc.Status; none when it carries none of ours.
fn error_info_of(status: &pb::Status) -> (Option<ErrorReason>, BTreeMap<String, String>) {
    let infos = status.details.iter().filter(|any| any.type_url.ends_with(ERROR_INFO_TYPE));
    let found = infos
        .filter_map(|any| pb::ErrorInfo::decode(any.value.as_slice()).ok())
        .find(|info| info.domain == ERROR_DOMAIN);
    match found {
        Some(info) => (ErrorReason::from_wire(&info.reason), info.metadata.into_iter().collect()),
        None => (None, BTreeMap::new()),
    }
}

/// The error for a status that travels inside a message. `place` is where in the request the server
/// says the fault is, such as `tasks[3].`; it is left out, since the caller knows of one task only.
pub(crate) fn status_error(status: &pb::Status, place: &str) -> Error {
    let (reason, mut details) = error_info_of(status);
    let strip = |text: &str| text.strip_prefix(place).unwrap_or(text).to_owned();
    if !place.is_empty() {
        details.remove("index");
        for text in details.values_mut() {
            *text = strip(text);
        }
    }
    Error::from_code(Code::from(status.code), reason, &strip(&status.message)).with_details(details)
}

/// True when the call certainly did not leave this process, or was refused before it was begun.
fn was_never_sent(status: &Status) -> bool {
    let mut cause: Option<&(dyn StdError + 'static)> = status.source();
    while let Some(error) = cause {
        let is_unsent = error.downcast_ref::<hyper::Error>().is_some_and(hyper::Error::is_canceled)
            || error.is::<Spent>()
            || error
                .downcast_ref::<h2::Error>()
                .is_some_and(|error| error.reason() == Some(h2::Reason::REFUSED_STREAM));
        if is_unsent {
            return true;
        }
        cause = error.source();
    }
    false
}

/// The text of the innermost cause, which says what happened.
fn root_text(error: &dyn StdError) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        text = inner.to_string();
        cause = inner.source();
    }
    text
}

// --- a client's connection -------------------------------------------------------------------------

/// A connection of a client, told apart from those before and after it.
#[derive(Clone)]
pub(crate) struct Live {
    pub(crate) channel: Channel,
    number: u64,
    made_at: Instant,
}

/// A connection that is younger is kept when its server says that another leads, which bounds how often
/// a client connects.
const LEAVE_AFTER: Duration = Duration::from_millis(100);

type Dialling = Shared<BoxFuture<'static, Result<Live>>>;

/// A client's way to its server: one connection, made when it is needed and again when it broke.
pub(crate) struct Connection {
    options: ConnectOptions,
    pub(crate) credential: Option<AsciiMetadataValue>,
    state: Mutex<ConnectionState>,
}

#[derive(Default)]
struct ConnectionState {
    live: Option<Live>,
    dialling: Option<Dialling>,
    certificates: Vec<Option<SystemTime>>,
    number: u64,
}

impl Connection {
    pub(crate) fn new(options: ConnectOptions) -> Self {
        let credential = options.token.as_deref().and_then(bearer);
        Self { options, credential, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, ConnectionState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The connection for a call that begins now. Calls that need a new one share the dial.
    pub(crate) async fn live(self: &Arc<Self>) -> Result<Live> {
        let dialling = {
            let mut state = self.state();
            let certificates = self.certificates();
            if state.certificates != certificates {
                // Calls under way go on there; it closes when the last one has ended.
                state.live = None;
                state.dialling = None;
                state.certificates = certificates;
            }
            if let Some(live) = &state.live {
                return Ok(live.clone());
            }
            if let Some(dialling) = &state.dialling {
                dialling.clone()
            } else {
                state.number += 1;
                let dialling = self.begin_dial(state.number);
                state.dialling = Some(dialling.clone());
                dialling
            }
        };
        dialling.await
    }

    fn begin_dial(self: &Arc<Self>, number: u64) -> Dialling {
        let connection = Arc::clone(self);
        // As a task: it ends with its runtime, where a future that another one goes on with panics.
        let task = tokio::spawn(async move {
            let dialled = dial(&connection.options, &connection.options.endpoint).await;
            let live = dialled.map(|channel| Live { channel, number, made_at: Instant::now() });
            let mut state = connection.state();
            // A dial that was overtaken, since certificates changed meanwhile, serves its callers only.
            if state.number == number && state.dialling.take().is_some() {
                state.live = live.as_ref().ok().cloned();
            }
            live
        });
        let connection = Arc::clone(self);
        let dialling = async move {
            if let Ok(live) = task.await {
                return live;
            }
            let mut state = connection.state();
            if state.number == number {
                state.dialling = None;
            }
            Err(unreachable(&connection.options.endpoint, "the runtime has ended"))
        };
        dialling.boxed().shared()
    }

    /// Gives up a connection that broke; the next call makes another.
    pub(crate) fn broke(&self, broken: &Live) {
        let mut state = self.state();
        if state.live.as_ref().is_some_and(|live| live.number == broken.number) {
            state.live = None;
        }
    }

    /// Gives up a connection whose server does not lead: behind the same address somebody else may.
    pub(crate) fn leave(&self, standby: &Live) {
        if standby.made_at.elapsed() >= LEAVE_AFTER {
            self.broke(standby);
        }
    }

    pub(crate) fn close(&self) {
        let mut state = self.state();
        state.live = None;
        state.dialling = None;
    }

    /// When the certificate files were last changed; one that is being replaced has no time.
    fn certificates(&self) -> Vec<Option<SystemTime>> {
        let Some(tls) = self.options.tls.as_ref() else { return Vec::new() };
        let paths = [&tls.ca, &tls.cert, &tls.key];
        let modified = |path: &Path| std::fs::metadata(path).and_then(|file| file.modified()).ok();
        paths.into_iter().flatten().map(|path| modified(path)).collect()
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("endpoint", &self.options.endpoint)
            .finish_non_exhaustive()
    }
}
