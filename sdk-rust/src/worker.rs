//! Decides what a worker offers to a program: handlers by kind, start, readiness, stop.

use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, watch};

use crate::attempt::{Attempt, HandlerError};
use crate::engagement::{Command, Engagement, State};
use crate::errors::{Error, ErrorKind, Result};
use crate::handlers::{Handlers, typed, typed_blocking};
use crate::options::{ConnectOptions, WorkerOptions};

/// Runs handlers for the tasks of one pool.
///
/// Handlers run as tasks of the tokio runtime that starts the worker; the connection and its
/// heartbeats have a thread of their own, which handlers cannot hold up. A worker that is dropped
/// without a stop ends at once: what runs is dropped where it waits, and its leases run out.
pub struct Worker {
    options: Arc<WorkerOptions>,
    connect: ConnectOptions,
    handlers: Handlers,
    running: Mutex<Option<Running>>,
}

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker").field("options", &self.options).finish_non_exhaustive()
    }
}

/// A started worker, seen from outside.
#[derive(Clone)]
struct Running {
    commands: mpsc::UnboundedSender<Command>,
    state: watch::Receiver<State>,
}

impl Running {
    fn is_over(&self) -> bool {
        self.state.borrow().is_over || self.state.has_changed().is_err()
    }

    fn order(&self, command: Command) {
        // A worker that is over takes no orders.
        let _ = self.commands.send(command);
    }

    /// Waits for a fact about the worker; true unless it is over before.
    async fn until(&self, is_true: impl FnMut(&State) -> bool) -> Option<State> {
        let mut state = self.state.clone();
        state.wait_for(is_true).await.ok().map(|state| state.clone())
    }

    async fn over(&self) {
        self.until(|state| state.is_over).await;
    }
}

impl Worker {
    /// Makes a worker; nothing is sent before it is started. Fails with
    /// [`ErrorKind::InvalidOption`] when an option is out of its range.
    pub fn new(mut options: WorkerOptions) -> Result<Self> {
        let connect = ConnectOptions::of_worker(&options)?;
        if options.name.is_empty() {
            options.name = default_name();
        }
        Ok(Self {
            options: Arc::new(options),
            connect,
            handlers: Handlers::default(),
            running: Mutex::default(),
        })
    }

    // --- handlers ----------------------------------------------------------------------------------

    /// Makes an async function the handler of a kind. The payload is decoded into an `In` (`()`
    /// takes and ignores any), what it returns is encoded. Fails if the kind has a handler already.
    pub fn handler<In, Out, E, F, Fut>(
        &mut self,
        kind: impl Into<String>,
        function: F,
    ) -> Result<&mut Self>
    where
        In: DeserializeOwned + Send + 'static,
        Out: Serialize + Send + 'static,
        E: Into<HandlerError>,
        F: Fn(Attempt, In) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Out, E>> + Send + 'static,
    {
        self.handlers.add(kind.into(), typed(function))?;
        Ok(self)
    }

    /// Makes a function that blocks its thread the handler of a kind; it runs on tokio's threads
    /// for such work. A thread cannot be ended from outside, so look at
    /// [`Attempt::is_cancelled`] now and then.
    pub fn handler_blocking<In, Out, E, F>(
        &mut self,
        kind: impl Into<String>,
        function: F,
    ) -> Result<&mut Self>
    where
        In: DeserializeOwned + Send + 'static,
        Out: Serialize + Send + 'static,
        E: Into<HandlerError> + Send + 'static,
        F: Fn(Attempt, In) -> Result<Out, E> + Send + Sync + 'static,
    {
        self.handlers.add(kind.into(), typed_blocking(function))?;
        Ok(self)
    }

    /// Makes an async function the handler of every kind that has no other.
    pub fn default_handler<In, Out, E, F, Fut>(&mut self, function: F) -> Result<&mut Self>
    where
        In: DeserializeOwned + Send + 'static,
        Out: Serialize + Send + 'static,
        E: Into<HandlerError>,
        F: Fn(Attempt, In) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Out, E>> + Send + 'static,
    {
        self.handlers.add_default(typed(function))?;
        Ok(self)
    }

    /// Makes a function that blocks its thread the handler of every kind that has no other.
    pub fn default_handler_blocking<In, Out, E, F>(&mut self, function: F) -> Result<&mut Self>
    where
        In: DeserializeOwned + Send + 'static,
        Out: Serialize + Send + 'static,
        E: Into<HandlerError> + Send + 'static,
        F: Fn(Attempt, In) -> Result<Out, E> + Send + Sync + 'static,
    {
        self.handlers.add_default(typed_blocking(function))?;
        Ok(self)
    }

    // --- life --------------------------------------------------------------------------------------

    fn running(&self) -> MutexGuard<'_, Option<Running>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn current(&self) -> Result<Running> {
        let running = self.running().clone().filter(|running| !running.is_over());
        running.ok_or_else(|| Error::new(ErrorKind::Closed, "the worker is not running"))
    }

    /// True while this worker receives work: connected, accepted, neither side stopping.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.current().is_ok_and(|running| running.state.borrow().is_ready)
    }

    /// Starts the worker; returns at once, connects in the background. Call it inside the tokio
    /// runtime that shall run the handlers.
    pub fn start(&self) -> Result<()> {
        let runtime = Handle::try_current().map_err(|error| {
            Error::new(ErrorKind::InvalidOption, "a worker starts inside a tokio runtime")
                .caused_by(error)
        })?;
        if self.handlers.is_empty() {
            return Err(Error::new(ErrorKind::InvalidOption, "the worker has no handler"));
        }
        let mut running = self.running();
        if running.as_ref().is_some_and(|present| !present.is_over()) {
            return Err(Error::new(ErrorKind::Closed, "the worker was started already"));
        }
        *running = Some(self.engage(runtime)?);
        Ok(())
    }

    fn engage(&self, runtime: Handle) -> Result<Running> {
        let (commands, orders) = mpsc::unbounded_channel();
        let (state_sender, state) = watch::channel(State::default());
        let guard = RuntimeGuard(commands.clone());
        let failed = |error: std::io::Error| {
            Error::new(ErrorKind::Internal, "cannot start the worker's thread").caused_by(error)
        };
        let own = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let own = own.map_err(failed)?;
        let (options, connect) = (Arc::clone(&self.options), self.connect.clone());
        let (handlers, end) = (self.handlers.clone(), state.clone());
        runtime.spawn(guard.keep_until_over(end));
        std::thread::Builder::new()
            .name("cronoq-worker".to_owned())
            .spawn(move || {
                own.block_on(async move {
                    Engagement::new(options, connect, handlers, runtime, orders, state_sender)
                        .run()
                        .await;
                });
            })
            .map_err(failed)?;
        Ok(Running { commands, state })
    }

    /// Waits until the worker receives work. Fails with [`ErrorKind::GaveUp`] if it never will.
    pub async fn wait_ready(&self) -> Result<()> {
        let running = self.current()?;
        let is_decided = |state: &State| state.is_ready || state.failure.is_some() || state.is_over;
        match running.until(is_decided).await {
            Some(state) if state.is_ready => Ok(()),
            Some(State { failure: Some(failure), .. }) => Err(failure),
            _ => Err(Error::new(ErrorKind::Closed, "the worker was stopped")),
        }
    }

    /// Takes no more work, lets handlers finish, reports, disconnects. May be called again, and
    /// returns when all is over.
    pub async fn stop(&self) {
        self.stop_within(self.options.drain_timeout).await;
    }

    /// The same with another time for running handlers; a shorter one counts.
    pub async fn stop_within(&self, drain_timeout: Duration) {
        let running = self.running().clone();
        if let Some(running) = running {
            running.order(Command::Stop(drain_timeout));
            running.over().await;
        }
    }

    /// Runs until [`stop`](Self::stop) is called from elsewhere. Fails as [`ended`](Self::ended)
    /// does.
    ///
    /// Dropping the future leaves the worker running, until it is stopped or dropped itself.
    pub async fn run(&self) -> Result<()> {
        self.start()?;
        self.ended().await
    }

    /// Waits until a started worker has ended: in order after a stop, or with
    /// [`ErrorKind::GaveUp`] when a server's answer makes retries useless.
    pub async fn ended(&self) -> Result<()> {
        let running = self.current()?;
        let state = running.until(|state| state.is_over || state.failure.is_some()).await;
        match state.and_then(|state| state.failure) {
            Some(failure) => {
                self.stop().await;
                Err(failure)
            }
            None => Ok(()),
        }
    }

    /// Runs until SIGTERM or SIGINT, then drains; a second signal ends the drain. Fails as
    /// [`run`](Self::run) does.
    #[cfg(unix)]
    pub async fn run_forever(&self) -> Result<()> {
        use tokio::signal::unix::{SignalKind, signal};

        let failed = |error: std::io::Error| {
            Error::new(ErrorKind::Internal, "cannot listen for signals").caused_by(error)
        };
        let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
        let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
        self.start()?;
        let running = self.current()?;
        let mut drain_timeout = self.options.drain_timeout;
        let ended = self.ended();
        tokio::pin!(ended);
        loop {
            tokio::select! {
                outcome = &mut ended => return outcome,
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            running.order(Command::Stop(drain_timeout));
            drain_timeout = Duration::ZERO;
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if let Some(running) = self.running().take() {
            running.order(Command::Abandon);
        }
    }
}

/// Tells the worker's thread when the runtime that runs its handlers is gone.
struct RuntimeGuard(mpsc::UnboundedSender<Command>);

impl RuntimeGuard {
    async fn keep_until_over(self, mut state: watch::Receiver<State>) {
        // An error means that the worker's thread has ended, which is over as well.
        let _ = state.wait_for(|state| state.is_over).await;
    }
}

impl Drop for RuntimeGuard {
    fn drop(&mut self) {
        // Nobody is left to run handlers; a worker that is over takes no orders.
        let _ = self.0.send(Command::Abandon);
    }
}

/// Host and process id: tells workers apart in listings.
fn default_name() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").ok();
    let host = host.or_else(|| std::env::var("HOSTNAME").ok()).unwrap_or_default();
    let host = if host.trim().is_empty() { "worker" } else { host.trim() };
    format!("{host}:{}", std::process::id())
}

#[cfg(test)]
#[path = "worker_tests.rs"]
mod tests;
