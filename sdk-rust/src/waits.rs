//! Decides how concurrent waits share streams.
//!
//! Waits that begin together go out as one `WaitMany` stream. Few streams are open at a time: when
//! all are in use, new waits gather for a moment and then join the smallest one, which is opened
//! anew. Targets are ids, since answers carry ids only. Waits change nothing, so a stream that ends
//! or breaks is opened again for what is still unanswered, in slices that the server allows.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Semaphore, oneshot};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::calls::{Caller, Delays, FOREVER, rpc};
use crate::convert::{read_result, write_ref};
use crate::errors::{Error, Result};
use crate::proto;
use crate::spec::TaskRef;
use crate::transport::status_error;
use crate::views::TaskResult;

const STREAMS_MAX: usize = 4;
const TARGETS_PER_STREAM: usize = 10_000;
/// How long new waits gather while all streams are in use.
const GATHER: Duration = Duration::from_millis(5);
/// The server ends a slice by itself; the call's own limit only guards against one that does not.
const SLICE_ROOM: Duration = Duration::from_secs(30);
/// Single waits at a time toward a server that has no shared ones.
const SINGLE_MAX: usize = 256;

type Reply = oneshot::Sender<Result<TaskResult>>;

/// One open stream and what it still owes.
struct Stream {
    targets: HashSet<u64>,
    replaced: CancellationToken,
}

#[derive(Default)]
struct State {
    waiting: HashMap<u64, Vec<(u64, Reply)>>,
    fresh: HashSet<u64>,
    streams: HashMap<u64, Stream>,
    /// Cut short when a stream becomes free.
    gathering: CancellationToken,
    numbers: u64,
    /// The server has no `WaitMany`.
    is_old: bool,
}

impl State {
    fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    fn take_fresh(&mut self) -> HashSet<u64> {
        let mut fresh = std::mem::take(&mut self.fresh);
        fresh.retain(|target| self.waiting.contains_key(target));
        fresh
    }

    /// Tells everyone who waits for a task.
    fn settle(&mut self, target: u64, outcome: &Result<TaskResult>) {
        for (_, reply) in self.waiting.remove(&target).unwrap_or_default() {
            // Who gave up meanwhile hears nothing.
            let _ = reply.send(outcome.clone());
        }
    }
}

/// Joins the waits of one client into streams.
pub(crate) struct SharedWaits {
    caller: Arc<Caller>,
    singles: Semaphore,
    state: Mutex<State>,
    is_scheduled: AtomicBool,
}

/// The next look at what is fresh. One that never comes, since its runtime has ended, bars no other.
struct Scheduled(Arc<SharedWaits>);

impl Drop for Scheduled {
    fn drop(&mut self) {
        // Without the lock, which who schedules holds: a runtime that is ending drops this at once.
        self.0.is_scheduled.store(false, Ordering::Release);
    }
}

/// One wait; dropping it ends it.
pub(crate) struct Wait {
    waits: Arc<SharedWaits>,
    target: u64,
    number: u64,
    answer: oneshot::Receiver<Result<TaskResult>>,
}

impl Wait {
    /// The task's result, once it has ended.
    pub(crate) async fn result(mut self) -> Result<TaskResult> {
        let answer = &mut self.answer;
        let caller = Arc::clone(&self.waits.caller);
        caller.while_open(async { answer.await.unwrap_or_else(|_| Err(Error::closed())) }).await
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        let mut state = self.waits.state();
        if let Some(replies) = state.waiting.get_mut(&self.target) {
            replies.retain(|(number, _)| *number != self.number);
            if replies.is_empty() {
                state.waiting.remove(&self.target);
            }
        }
    }
}

impl SharedWaits {
    pub(crate) fn new(caller: Arc<Caller>) -> Self {
        Self {
            caller,
            singles: Semaphore::new(SINGLE_MAX),
            state: Mutex::default(),
            is_scheduled: AtomicBool::new(false),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How long one call waits: no longer than can be added to an instant.
    fn slice(&self) -> Duration {
        self.caller.options.max_wait.min(FOREVER)
    }

    /// Starts a wait for a task id.
    pub(crate) fn begin(self: &Arc<Self>, target: u64) -> Wait {
        let (reply, answer) = oneshot::channel();
        let mut state = self.state();
        let number = state.number();
        let replies = state.waiting.entry(target).or_default();
        replies.push((number, reply));
        if replies.len() == 1 {
            state.fresh.insert(target);
            self.schedule();
        }
        drop(state);
        Wait { waits: Arc::clone(self), target, number, answer }
    }

    fn schedule(self: &Arc<Self>) {
        if !self.caller.is_closed() && !self.is_scheduled.swap(true, Ordering::AcqRel) {
            let scheduled = Scheduled(Arc::clone(self));
            self.caller.spawn(async move {
                let waits = Arc::clone(&scheduled.0);
                waits.open_fresh(scheduled).await;
            });
        }
    }

    async fn open_fresh(self: Arc<Self>, scheduled: Scheduled) {
        // Whoever is about to wait gets a chance to come along.
        tokio::task::yield_now().await;
        let gathering = {
            let state = self.state();
            let is_full = !state.is_old && state.streams.len() >= STREAMS_MAX;
            is_full.then(|| state.gathering.clone())
        };
        if let Some(gathering) = gathering {
            gathering.run_until_cancelled(tokio::time::sleep(GATHER)).await;
        }
        let mut state = self.state();
        drop(scheduled);
        state.gathering = CancellationToken::new();
        let mut targets = state.take_fresh();
        if state.is_old {
            self.wait_singly(targets);
            return;
        }
        if state.streams.len() >= STREAMS_MAX {
            let by_size = state.streams.iter().min_by_key(|(_, stream)| stream.targets.len());
            let smallest = by_size.map(|(number, _)| *number);
            if let Some(stream) = smallest.and_then(|number| state.streams.remove(&number)) {
                stream.replaced.cancel();
                targets.extend(stream.targets);
            }
        }
        self.open(&mut state, targets);
    }

    fn open(self: &Arc<Self>, state: &mut State, targets: HashSet<u64>) {
        let targets: Vec<u64> = targets.into_iter().collect();
        for part in targets.chunks(TARGETS_PER_STREAM) {
            let number = state.number();
            let replaced = CancellationToken::new();
            let stream =
                Stream { targets: part.iter().copied().collect(), replaced: replaced.clone() };
            state.streams.insert(number, stream);
            let this = Arc::clone(self);
            self.caller.spawn(async move {
                replaced.run_until_cancelled(this.follow(number)).await;
                this.release(number);
            });
        }
    }

    /// Keeps a stream open until it owes nothing.
    async fn follow(self: &Arc<Self>, number: u64) {
        let mut delays = Delays::new(&self.caller.options);
        loop {
            let owed = self.still_owed(number);
            if owed.is_empty() {
                return;
            }
            let mut trouble = None;
            let needs_pause = match self.read(number, owed, &mut delays).await {
                Ok(needs_pause) => needs_pause,
                Err(error) if error.is_unsupported() => {
                    self.state().is_old = true;
                    self.wait_singly(self.still_owed(number).into_iter().collect());
                    return;
                }
                Err(error) if error.is_unavailable() || error.is_deadline() => {
                    trouble = Some(error);
                    true
                }
                Err(error) => {
                    let owed = self.still_owed(number);
                    let mut state = self.state();
                    for target in owed {
                        state.settle(target, &Err(error.clone()));
                    }
                    return;
                }
            };
            if needs_pause {
                tokio::time::sleep(delays.next(trouble.as_ref())).await;
            }
        }
    }

    fn release(self: &Arc<Self>, number: u64) {
        let mut state = self.state();
        if state.streams.remove(&number).is_some() {
            // A stream is free: nothing to gather for any more.
            state.gathering.cancel();
        }
    }

    fn still_owed(&self, number: u64) -> Vec<u64> {
        let mut state = self.state();
        let State { waiting, streams, .. } = &mut *state;
        let Some(stream) = streams.get_mut(&number) else { return Vec::new() };
        stream.targets.retain(|target| waiting.contains_key(target));
        stream.targets.iter().copied().collect()
    }

    /// Reads one stream to its end; true if the next shall wait a moment.
    async fn read(
        self: &Arc<Self>,
        number: u64,
        ids: Vec<u64>,
        delays: &mut Delays,
    ) -> Result<bool> {
        let slice = self.slice();
        let began_at = Instant::now();
        let request = proto::WaitManyRequest {
            ids,
            timeout_s: Some(slice.as_secs_f64()),
            ..Default::default()
        };
        let ends_at = began_at + slice + SLICE_ROOM;
        let mut answers = self.caller.open(rpc!(tasks, wait_many), request).await?;
        let mut has_failed_part = false;
        while let Ok(next) = tokio::time::timeout_at(ends_at, answers.next()).await {
            let Some(message) = next? else { break };
            if !message.results.is_empty() {
                delays.reset();
            }
            self.deliver(number, message.results);
            has_failed_part |= self.note_errors(message.errors);
        }
        // A server that ends slices at once must not be asked again and again without a pause.
        Ok(has_failed_part || began_at.elapsed() < slice / 2)
    }

    fn deliver(&self, number: u64, results: Vec<proto::TaskResult>) {
        let mut state = self.state();
        for message in results {
            let target = message.id;
            state.settle(target, &read_result(message));
            if let Some(stream) = state.streams.get_mut(&number) {
                stream.targets.remove(&target);
            }
        }
    }

    fn note_errors(&self, failed: Vec<proto::WaitError>) -> bool {
        let mut has_retryable = false;
        for each in failed {
            let error = status_error(&each.status.unwrap_or_default(), "");
            if error.is_unavailable() {
                has_retryable = true;
            } else if !error.is_deadline()
                && let Some(proto::task_ref::Ref::Id(target)) =
                    each.task.and_then(|task| task.r#ref)
            {
                self.state().settle(target, &Err(error));
            }
        }
        has_retryable
    }

    /// Waits by single calls, on a server that has no shared waits.
    fn wait_singly(self: &Arc<Self>, targets: HashSet<u64>) {
        for target in targets {
            let this = Arc::clone(self);
            self.caller.spawn(async move { this.wait_single(target).await });
        }
    }

    async fn wait_single(self: &Arc<Self>, target: u64) {
        let Ok(_permit) = self.singles.acquire().await else { return };
        let mut delays = Delays::new(&self.caller.options);
        let slice = self.slice();
        while self.state().waiting.contains_key(&target) {
            let request = proto::WaitRequest {
                task: Some(write_ref(TaskRef::Id(target))),
                timeout_s: Some(slice.as_secs_f64()),
            };
            let ends_at = Instant::now() + slice + SLICE_ROOM;
            let call = self.caller.call("wait", rpc!(tasks, wait), request, true, ends_at);
            match call.await {
                Ok(answer) => self.state().settle(target, &read_result(answer)),
                Err(error) if error.is_deadline() || error.is_unavailable() => {
                    tokio::time::sleep(delays.next(Some(&error))).await;
                }
                Err(error) => self.state().settle(target, &Err(error)),
            }
        }
    }
}
