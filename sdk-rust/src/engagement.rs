//! Decides how a started worker runs what its link brings, and how it stops.
//!
//! One object per start, owned by one task on a thread of its own: heartbeats and reports go out
//! whatever handlers do to their runtime (WP-26). Handlers are tasks on the runtime that started the
//! worker; what has ended by the time a report is made is reported together. A handler cannot be
//! killed while it computes, so its slot is taken until it has really ended.

use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::runtime::Handle;
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::AbortHandle;
use tokio::time::Instant;

use crate::attempt::{Attempt, Host};
use crate::chance::fraction;
use crate::errors::{Error, ErrorKind, Result, code_name};
use crate::handlers::{Handlers, execute, text_of};
use crate::link::{Happening, Link, Outputs};
use crate::options::{ConnectOptions, WorkerOptions};
use crate::outcome::Outcome;
use crate::payload::Codec;
use crate::proto;
use crate::proto::server_message::Message as Heard;
use crate::reconnect::{Decision, Event, Moment, ReconnectPolicy, ReconnectSettings};
use crate::run::Run;
use crate::session::{PROTOCOL_VERSION, Session};

#[path = "drain.rs"]
mod drain;

/// Tasks whose kind had no handler here, remembered so that the second time is the last.
const UNKNOWN_MAX: usize = 1024;
/// Ends that are taken at a time.
const ENDS_MAX: usize = 1024;

/// What a worker is told from outside.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Command {
    /// Drain within this time (WP-40).
    Stop(Duration),
    /// Nobody is left to run handlers or to hear of them: end at once.
    Abandon,
}

/// What a worker tells the outside.
#[derive(Clone, Debug, Default)]
pub(crate) struct State {
    pub(crate) is_ready: bool,
    pub(crate) failure: Option<Error>,
    pub(crate) is_over: bool,
}

/// How far a stop has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Running,
    /// Handlers may finish.
    Draining(Moment),
    /// Handlers were told to stop.
    Cancelling(Moment),
    /// All has been reported; receipts are awaited.
    Settling(Moment),
    /// The server ends the stream.
    Closing(Moment),
    Over,
}

type Hook = Box<dyn FnOnce() + Send>;
type Ended = (Arc<Run>, Outcome);

/// One start of a worker, up to its stop.
pub(crate) struct Engagement {
    options: Arc<WorkerOptions>,
    handlers: Handlers,
    /// Where handlers run.
    runtime: Handle,
    host: Arc<dyn Host>,
    epoch: Instant,
    session: Session,
    policy: ReconnectPolicy,
    link: Link,
    progress: Arc<Notify>,
    commands: mpsc::UnboundedReceiver<Command>,
    ends: mpsc::UnboundedReceiver<Ended>,
    ends_sender: mpsc::UnboundedSender<Ended>,
    hooks: mpsc::UnboundedSender<Hook>,
    state: watch::Sender<State>,
    backlog: VecDeque<Arc<Run>>,
    /// Tasks of the handlers that run, by the serial number of their run.
    active: HashMap<u64, AbortHandle>,
    unknown: VecDeque<u64>,
    phase: Phase,
}

impl Engagement {
    pub(crate) fn new(
        options: Arc<WorkerOptions>,
        connect: ConnectOptions,
        handlers: Handlers,
        runtime: Handle,
        commands: mpsc::UnboundedReceiver<Command>,
        state: watch::Sender<State>,
    ) -> Self {
        let epoch = Instant::now();
        let (progress, outputs) = (Arc::new(Notify::new()), Arc::new(Outputs::default()));
        let (ends_sender, ends) = mpsc::unbounded_channel();
        let (hooks, hook_queue) = mpsc::unbounded_channel();
        runtime.spawn(call_hooks(hook_queue));
        let settings = ReconnectSettings {
            endpoint: connect.endpoint.clone(),
            has_token: connect.token.is_some(),
            insecure_redirect_http: options.insecure_redirect_http,
            backoff_initial: connect.backoff.initial,
            backoff_max: connect.backoff.maximum,
            session_reset: options.session_reset,
        };
        Self {
            session: Session::new(register_of(&options, &handlers), options.max_message_bytes),
            policy: ReconnectPolicy::new(settings, Box::new(fraction)),
            link: Link::new(connect, epoch, Arc::clone(&outputs)),
            host: Arc::new(WorkerHost {
                codec: Arc::clone(&options.codec),
                progress: Arc::clone(&progress),
                outputs,
            }),
            options,
            handlers,
            runtime,
            epoch,
            progress,
            commands,
            ends,
            ends_sender,
            hooks,
            state,
            backlog: VecDeque::new(),
            active: HashMap::new(),
            unknown: VecDeque::new(),
            phase: Phase::Running,
        }
    }

    fn now(&self) -> Moment {
        self.epoch.elapsed()
    }

    /// Runs until the worker is stopped; returns when all is over.
    pub(crate) async fn run(mut self) {
        self.happen(Event::Started);
        let mut ended = Vec::new();
        while self.phase != Phase::Over {
            let wake_at = self.epoch + self.wake_at();
            tokio::select! {
                happening = self.link.next() => self.on_link(happening),
                _ = self.ends.recv_many(&mut ended, ENDS_MAX) => {
                    // What ends at this very moment comes along.
                    tokio::task::yield_now().await;
                    self.take_more_ends(&mut ended);
                    self.on_ended(std::mem::take(&mut ended));
                }
                command = self.commands.recv() => {
                    self.on_command(command.unwrap_or(Command::Abandon));
                }
                () = self.progress.notified() => self.session.note_progress(),
                () = tokio::time::sleep_until(wake_at) => self.on_time(),
            }
            self.advance_stop();
            self.publish();
        }
        self.active.values().for_each(AbortHandle::abort);
        self.state.send_modify(|state| state.is_over = true);
    }

    fn take_more_ends(&mut self, ended: &mut Vec<Ended>) {
        while ended.len() < ENDS_MAX
            && let Ok(more) = self.ends.try_recv()
        {
            ended.push(more);
        }
    }

    fn publish(&self) {
        let is_ready = self.session.is_serving && self.phase == Phase::Running; // WP-03
        self.state.send_if_modified(|state| {
            let is_changed = state.is_ready != is_ready;
            state.is_ready = is_ready;
            is_changed
        });
    }

    fn wake_at(&self) -> Moment {
        let pulse = self.session.next_pulse();
        match self.phase {
            Phase::Running | Phase::Over => pulse,
            Phase::Draining(until)
            | Phase::Cancelling(until)
            | Phase::Settling(until)
            | Phase::Closing(until) => pulse.min(until),
        }
    }

    // --- the link ----------------------------------------------------------------------------------

    fn on_link(&mut self, happening: Happening) {
        match happening {
            Happening::Elapsed => self.happen(Event::Elapsed),
            Happening::Message(message) => self.on_message(*message),
            Happening::Ended(event) => self.on_stream_end(event),
        }
    }

    fn on_message(&mut self, message: proto::ServerMessage) {
        if !self.session.is_registered {
            match message.message {
                Some(Heard::Registered(answer)) => self.on_registered(&answer),
                // A refusal may come with word of who leads (RR-07); nothing else has a meaning yet.
                Some(Heard::Shutdown(_)) => {
                    self.session.receive(message, self.now());
                }
                _ => {}
            }
            return;
        }
        let received = self.session.receive(message, self.now());
        if !received.begun.is_empty() {
            self.backlog.extend(received.begun);
            self.start_waiting();
        }
        if !received.stopped.is_empty() {
            self.told_to_stop(received.stopped);
        }
        if let Some(shutdown) = received.shutdown {
            tracing::info!(reason = shutdown.reason, "server is shutting down");
        }
    }

    fn on_registered(&mut self, answer: &proto::Registered) {
        let now = self.now();
        let Some(outbox) = self.link.outbox() else { return };
        self.policy.decide(Event::Registered, now);
        let lost = self.session.registered(answer, outbox, now);
        // Whoever hears of the connection finds the worker ready.
        self.publish();
        let endpoint = self.link.endpoint();
        tracing::info!(endpoint, slots = answer.slots, "connected");
        if let Some(hook) = self.options.on_connect.clone() {
            self.hook(move || hook(&endpoint));
        }
        self.told_to_stop(lost);
    }

    fn on_stream_end(&mut self, event: Event) {
        let endpoint = self.link.endpoint();
        let was_registered = self.session.is_registered;
        self.session.broken();
        self.publish();
        let event = match event {
            Event::Ended { code, not_leader, message } => {
                let not_leader = not_leader || self.session.saw_not_leader;
                self.note_end(&endpoint, was_registered, &message);
                Event::Ended { code, not_leader, message }
            }
            redirected => {
                self.note_end(&endpoint, was_registered, "redirected");
                redirected
            }
        };
        if matches!(self.phase, Phase::Closing(_)) {
            self.phase = Phase::Over;
        } else {
            self.happen(event);
        }
    }

    fn note_end(&self, endpoint: &str, was_registered: bool, reason: &str) {
        if !was_registered {
            tracing::debug!(endpoint, reason, "no session");
            return;
        }
        tracing::info!(endpoint, reason, "disconnected");
        if let Some(hook) = self.options.on_disconnect.clone() {
            let (endpoint, reason) = (endpoint.to_owned(), reason.to_owned());
            self.hook(move || hook(&endpoint, &reason));
        }
    }

    /// Does what the policy says about an event.
    fn happen(&mut self, event: Event) {
        let now = self.now();
        let named = match &event {
            Event::Redirected { endpoint } => Some(endpoint.clone()),
            _ => None,
        };
        let decision = self.policy.decide(event, now);
        if let Some(endpoint) = named {
            self.note_redirect(endpoint, &decision);
        }
        match decision {
            Decision::Connect { endpoint, may_send_token, .. } => {
                let first = self.session.opening(now);
                self.link.open(endpoint, may_send_token, first);
            }
            Decision::Wait { until, .. } => self.link.wait(until),
            Decision::GiveUp { code, message } => self.give_up(code, &message),
            Decision::Stay => {}
        }
    }

    fn note_redirect(&self, endpoint: String, decision: &Decision) {
        let refused = match decision {
            Decision::Connect { refused, .. } | Decision::Wait { refused, .. } => refused.clone(),
            Decision::GiveUp { .. } | Decision::Stay => String::new(),
        };
        if refused.is_empty() {
            tracing::info!(endpoint, "redirected");
        } else {
            tracing::warn!(refused, "redirect not followed");
        }
        if let Some(hook) = self.options.on_redirect.clone() {
            self.hook(move || hook(&endpoint, &refused));
        }
    }

    fn give_up(&mut self, code: tonic::Code, message: &str) {
        let code = code_name(code);
        tracing::error!(code, why = message, "giving up");
        let details = [("code".to_owned(), code.to_owned())].into();
        let error = Error::new(ErrorKind::GaveUp, format!("{code}: {message}"));
        self.state.send_modify(|state| state.failure = Some(error.with_details(details)));
        // No server takes what handlers come to, so a stop has nothing to wait for.
        let now = self.now();
        self.shorten(now);
    }

    fn hook(&self, hook: impl FnOnce() + Send + 'static) {
        // A runtime that is gone calls no hooks.
        let _ = self.hooks.send(Box::new(hook));
    }

    // --- running -----------------------------------------------------------------------------------

    /// Starts what the slots allow (WP-11).
    fn start_waiting(&mut self) {
        let mut unrun = Vec::new();
        while self.active.len() < self.options.slots as usize {
            let Some(run) = self.backlog.pop_front() else { break };
            if run.stop().is_some() {
                unrun.push((run, Outcome::nacked("stopped before it began")));
            } else if let Some(handler) = self.handlers.find(&run.message.kind) {
                let attempt = Attempt { run: Arc::clone(&run), host: Arc::clone(&self.host) };
                let interceptors = self.options.interceptors.as_slice().into();
                let work = execute(Arc::clone(handler), attempt, interceptors);
                let place = Place(Some((Arc::clone(&run), self.ends_sender.clone())));
                let task = self.runtime.spawn(async move { place.end(work.await) });
                self.active.insert(run.serial, task.abort_handle());
            } else {
                let outcome = self.unknown_kind(&run);
                unrun.push((run, outcome));
            }
        }
        if !unrun.is_empty() {
            self.session.report(unrun, self.now());
        }
    }

    /// WP-13: nacked the first time, since another worker may know it; permanent the second.
    fn unknown_kind(&mut self, run: &Run) -> Outcome {
        let text = format!("no handler for kind {:?}", run.message.kind);
        let task = run.message.task_id;
        if self.unknown.contains(&task) {
            return Outcome::permanent(text);
        }
        self.unknown.push_back(task);
        if self.unknown.len() > UNKNOWN_MAX {
            self.unknown.pop_front();
        }
        Outcome::nacked(text)
    }

    /// Reports all that has ended, together (WP-20).
    fn on_ended(&mut self, ended: Vec<Ended>) {
        for (run, outcome) in &ended {
            self.active.remove(&run.serial);
            log_end(run, outcome);
        }
        self.session.report(ended, self.now());
        self.start_waiting();
    }

    fn on_time(&mut self) {
        let expired = self.session.pulse(self.now());
        self.told_to_stop(expired);
    }

    fn told_to_stop(&mut self, runs: Vec<Arc<Run>>) {
        let mut unrun = Vec::new();
        for run in runs {
            if let Some(place) =
                self.backlog.iter().position(|waiting| waiting.serial == run.serial)
            {
                self.backlog.remove(place);
                unrun.push((Arc::clone(&run), Outcome::nacked("stopped before it began")));
            } else if !self.active.contains_key(&run.serial) {
                continue; // It has just ended.
            }
            let reason = run.stop_reason();
            tracing::info!(task = run.message.task_id, reason, "handler told to stop");
            if let Some(hook) = self.options.on_abort.clone() {
                let attempt = Attempt { run, host: Arc::clone(&self.host) };
                self.hook(move || hook(&attempt, &reason));
            }
        }
        if !unrun.is_empty() {
            self.session.report(unrun, self.now());
        }
    }
}

fn register_of(options: &WorkerOptions, handlers: &Handlers) -> proto::Register {
    proto::Register {
        pool: options.pool.clone(),
        slots: options.slots,
        worker_name: options.name.clone(),
        protocol_version: PROTOCOL_VERSION,
        labels: options.labels.clone().into_iter().collect(),
        resume: None,
        sdk: concat!("rust/", env!("CARGO_PKG_VERSION")).to_owned(),
        kinds: handlers.kinds(),
    }
}

fn log_end(run: &Run, outcome: &Outcome) {
    let task = run.message.task_id;
    match outcome {
        Outcome::Failed { message, is_permanent, .. } if run.stop().is_none() => {
            tracing::warn!(task, why = message, permanent = is_permanent, "handler failed");
        }
        Outcome::Cancelled { reason } => tracing::info!(task, reason, "handler cancels its task"),
        _ => {}
    }
}

/// A handler's place in its slot; however the handler's task ends, its end is told.
struct Place(Option<(Arc<Run>, mpsc::UnboundedSender<Ended>)>);

impl Place {
    fn end(mut self, outcome: Outcome) {
        self.tell(outcome);
    }

    fn tell(&mut self, outcome: Outcome) {
        if let Some((run, ends)) = self.0.take() {
            // A worker that is over wants no more ends.
            let _ = ends.send((run, outcome));
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.tell(Outcome::retryable("the handler was dropped before it ended"));
    }
}

async fn call_hooks(mut hooks: mpsc::UnboundedReceiver<Hook>) {
    while let Some(hook) = hooks.recv().await {
        // A hook is the user's; its fault must not end the worker.
        if let Err(thrown) = catch_unwind(AssertUnwindSafe(hook)) {
            tracing::error!(why = text_of(thrown.as_ref()), "a hook panicked");
        }
    }
}

struct WorkerHost {
    codec: Arc<dyn Codec>,
    progress: Arc<Notify>,
    outputs: Arc<Outputs>,
}

impl Host for WorkerHost {
    fn codec(&self) -> &dyn Codec {
        self.codec.as_ref()
    }

    fn note_progress(&self, _progress: &proto::Progress) {
        self.progress.notify_one();
    }

    fn fetch_output(&self, lease: u64, task_id: u64) -> BoxFuture<'_, Result<proto::Output>> {
        self.outputs.fetch(lease, task_id).boxed()
    }
}
