//! Decides how concurrent submits share requests.
//!
//! A submit goes out as soon as the scheduler comes to it, together with all that arrived by then
//! for its pool. Two requests of a pool may be in flight; what arrives meanwhile forms the next ones,
//! each bounded by count and by half a message. Every caller keeps its own deadline, cancellation and
//! outcome.
//!
//! Rules a change must keep: tasks of different pools share no request and do not wait for each
//! other, since they may be of different shards, one of which is slow or gone; a caller that gave up before its request went out is not submitted; a
//! lost request is sent again only for tasks with a key, unless nothing was executed; a task for a
//! full pool is sent again alone, as a call that parks.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use prost::Message as _;
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::calls::{Caller, Delays, may_repeat, out_of_time, rpc};
use crate::convert::{missing, write_spec};
use crate::errors::{Error, ErrorReason, Result};
use crate::options::MESSAGE_ROOM;
use crate::proto;
use crate::proto::submit_outcome::Outcome as Told;
use crate::spec::TaskSpec;
use crate::transport::status_error;

pub(crate) const SUBMITS_IN_FLIGHT: usize = 2;
/// Calls that park for a full pool occupy the server each; the rest wait here in order.
const PARKED_MAX: usize = 64;
/// Pools beyond which those are forgotten for which nothing is under way.
const LANES_KEPT: usize = 64;
/// Bytes around one task in its request.
const TASK_ROOM: usize = 8;

/// A task's id, and whether its key was known.
pub(crate) type Admitted = (u64, bool);

/// One caller's place in a request.
struct Member {
    reply: oneshot::Sender<Result<Admitted>>,
    ends_at: Instant,
    is_keyed: bool,
}

impl Member {
    fn is_gone(&self) -> bool {
        self.reply.is_closed()
    }

    fn settle(self, outcome: Result<Admitted>) {
        // Who gave up meanwhile hears nothing.
        let _ = self.reply.send(outcome);
    }
}

/// A request that is being filled: tasks and whose they are, in order.
#[derive(Default)]
struct Batch {
    entries: Vec<(Member, proto::TaskSpec)>,
    size: usize,
}

/// One caller's wait for its task to be admitted.
pub(crate) struct Waiting {
    lane: Arc<Lane>,
    answer: oneshot::Receiver<Result<Admitted>>,
    ends_at: Instant,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Batch>,
    in_flight: usize,
    parked: VecDeque<(Member, proto::TaskSpec)>,
    parked_count: usize,
    /// The server has no `SubmitMany`.
    is_old: bool,
    trouble: Option<Error>,
}

/// Joins the submits of one client into requests, those to each pool by themselves.
pub(crate) struct Coalescer {
    caller: Arc<Caller>,
    lanes: Mutex<HashMap<String, Arc<Lane>>>,
}

impl Coalescer {
    pub(crate) fn new(caller: Arc<Caller>) -> Self {
        Self { caller, lanes: Mutex::default() }
    }

    fn lanes(&self) -> MutexGuard<'_, HashMap<String, Arc<Lane>>> {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lane(&self, pool: &str) -> Arc<Lane> {
        let mut lanes = self.lanes();
        if let Some(found) = lanes.get(pool) {
            return Arc::clone(found);
        }
        if lanes.len() >= LANES_KEPT {
            lanes.retain(|_, lane| !lane.is_idle());
        }
        let made = Arc::new(Lane {
            caller: Arc::clone(&self.caller),
            state: Mutex::default(),
            is_scheduled: AtomicBool::new(false),
        });
        lanes.insert(pool.to_owned(), Arc::clone(&made));
        made
    }

    /// Puts a task into the next request.
    pub(crate) fn enqueue(&self, spec: &TaskSpec, ends_at: Instant) -> Result<Waiting> {
        self.lane(&spec.pool).enqueue(spec, ends_at)
    }

    /// True while enough requests wait to be sent.
    pub(crate) fn has_backlog(&self) -> bool {
        self.lanes().values().map(|lane| lane.state().queue.len()).sum::<usize>()
            > SUBMITS_IN_FLIGHT
    }
}

impl Waiting {
    /// Waits for a task's outcome, at most until its deadline.
    pub(crate) async fn admitted(&mut self) -> Result<Admitted> {
        match tokio::time::timeout_at(self.ends_at, &mut self.answer).await {
            Ok(Ok(outcome)) => outcome,
            // Its request was dropped: only the end of the client or of its runtime does that.
            Ok(Err(_)) => Err(Error::closed()),
            Err(_) => Err(out_of_time("submit", self.lane.state().trouble.as_ref())),
        }
    }
}

/// Joins the submits of one client to one pool into requests.
struct Lane {
    caller: Arc<Caller>,
    state: Mutex<State>,
    is_scheduled: AtomicBool,
}

impl Lane {
    fn is_idle(&self) -> bool {
        let state = self.state();
        state.queue.is_empty()
            && state.in_flight == 0
            && state.parked_count == 0
            && !self.is_scheduled.load(Ordering::Acquire)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enqueue(self: &Arc<Self>, spec: &TaskSpec, ends_at: Instant) -> Result<Waiting> {
        if self.caller.is_closed() {
            return Err(Error::closed());
        }
        let options = &self.caller.options;
        let task = write_spec(spec, options.codec.as_ref())?;
        let size = task.encoded_len() + TASK_ROOM;
        let limit = options.max_message_bytes - MESSAGE_ROOM;
        if size > limit {
            let text = format!("task too large ({size} > {limit} bytes)");
            return Err(Error::of(ErrorReason::TooLarge, text));
        }
        let (reply, answer) = oneshot::channel();
        let member = Member { reply, ends_at, is_keyed: !spec.key.is_empty() };
        let mut state = self.state();
        let has_room = |batch: &Batch| {
            batch.entries.len() < options.max_tasks_per_batch
                && batch.size + size <= options.max_message_bytes / 2
        };
        // Requests leave from the front, so the last in the queue is the one being filled.
        if !state.queue.back().is_some_and(has_room) {
            state.queue.push_back(Batch::default());
        }
        if let Some(batch) = state.queue.back_mut() {
            batch.entries.push((member, task));
            batch.size += size;
        }
        self.schedule(&state);
        Ok(Waiting { lane: Arc::clone(self), answer, ends_at })
    }

    fn schedule(self: &Arc<Self>, state: &State) {
        let has_work = state.in_flight < SUBMITS_IN_FLIGHT && !state.queue.is_empty();
        if has_work && !self.is_scheduled.swap(true, Ordering::AcqRel) {
            let scheduled = Scheduled(Arc::clone(self));
            self.caller.spawn(async move {
                // Whoever is about to submit gets a chance to come along.
                tokio::task::yield_now().await;
                let lane = Arc::clone(&scheduled.0);
                drop(scheduled);
                lane.pump();
            });
        }
    }

    fn pump(self: &Arc<Self>) {
        // Flights begin without the lock: one whose runtime is ending is over at once.
        let flights = self.next_flights();
        for (flight, batch) in flights {
            self.caller.spawn(async move { flight.0.send(batch).await });
        }
    }

    fn next_flights(self: &Arc<Self>) -> Vec<(Flight, Batch)> {
        let mut state = self.state();
        let mut flights = Vec::new();
        while state.in_flight < SUBMITS_IN_FLIGHT
            && let Some(mut batch) = state.queue.pop_front()
        {
            batch.entries.retain(|(member, _)| !member.is_gone());
            if !batch.entries.is_empty() {
                state.in_flight += 1;
                flights.push((Flight(Arc::clone(self)), batch));
            }
        }
        flights
    }

    /// Makes a request until none of its members is left.
    async fn send(self: &Arc<Self>, mut batch: Batch) {
        let mut delays = Delays::new(&self.caller.options);
        loop {
            if self.state().is_old {
                batch.entries.into_iter().for_each(|(member, task)| self.park(member, task));
                return;
            }
            let is_unsupported = self.try_send(&mut batch).await;
            if batch.entries.is_empty() {
                return;
            }
            if !is_unsupported {
                let trouble = self.state().trouble.clone();
                tokio::time::sleep(delays.next(trouble.as_ref())).await;
            }
        }
    }

    /// Sends once and leaves in the batch what has to be sent again. True if the server cannot.
    async fn try_send(self: &Arc<Self>, batch: &mut Batch) -> bool {
        batch.entries.retain(|(member, _)| !member.is_gone());
        let Some(last) = batch.entries.iter().map(|(member, _)| member.ends_at).max() else {
            return false;
        };
        let tasks = batch.entries.iter().map(|(_, task)| task.clone()).collect();
        let request = proto::SubmitManyRequest { tasks };
        let left = last.saturating_duration_since(Instant::now());
        let answer = self.caller.try_once(rpc!(tasks, submit_many), request, left).await;
        let entries = std::mem::take(&mut batch.entries);
        let mut state = self.state();
        match answer {
            Ok(answer) => {
                state.trouble = None;
                drop(state);
                batch.entries = self.take(entries, answer.outcomes);
                false
            }
            Err(error) if error.is_unsupported() => {
                state.is_old = true;
                batch.entries = entries;
                true
            }
            Err(error) => {
                if !error.is_deadline() {
                    state.trouble = Some(error.clone());
                }
                drop(state);
                for (member, task) in entries {
                    if may_repeat(&error, member.is_keyed) {
                        batch.entries.push((member, task));
                    } else {
                        member.settle(Err(error.clone()));
                    }
                }
                false
            }
        }
    }

    /// Gives each member its outcome and returns those that have to be sent again.
    fn take(
        self: &Arc<Self>,
        entries: Vec<(Member, proto::TaskSpec)>,
        outcomes: Vec<proto::SubmitOutcome>,
    ) -> Vec<(Member, proto::TaskSpec)> {
        let mut again = Vec::new();
        let mut outcomes = outcomes.into_iter();
        for (index, (member, task)) in entries.into_iter().enumerate() {
            match outcomes.next().and_then(|outcome| outcome.outcome) {
                Some(Told::Response(admitted)) => {
                    member.settle(Ok((admitted.id, admitted.duplicate)));
                }
                Some(Told::Error(status)) => {
                    let error = status_error(&status, &format!("tasks[{index}]."));
                    if error.reason() == Some(ErrorReason::QueueFull) {
                        self.park(member, task);
                    } else if may_repeat(&error, member.is_keyed) {
                        again.push((member, task));
                        self.state().trouble = Some(error);
                    } else {
                        member.settle(Err(error));
                    }
                }
                None => member.settle(Err(missing("an outcome"))),
            }
        }
        again
    }

    /// Has a task sent alone, by a call that waits for room.
    fn park(self: &Arc<Self>, member: Member, task: proto::TaskSpec) {
        let mut state = self.state();
        state.parked.push_back((member, task));
        if state.parked_count < PARKED_MAX {
            state.parked_count += 1;
            let this = Arc::clone(self);
            self.caller.spawn(async move { this.submit_parked().await });
        }
    }

    /// Sends parked tasks one after the other until none is left.
    async fn submit_parked(self: &Arc<Self>) {
        while let Some((mut member, task)) = self.next_parked() {
            let request = proto::SubmitRequest { task: Some(task), ..Default::default() };
            let call = self.caller.call(
                "submit",
                rpc!(tasks, submit),
                request,
                member.is_keyed,
                member.ends_at,
            );
            // A caller that gives up takes its parked call with it.
            let answer = tokio::select! {
                answer = call => answer,
                () = member.reply.closed() => continue,
            };
            member.settle(answer.map(|admitted| (admitted.id, admitted.duplicate)));
        }
    }

    fn next_parked(&self) -> Option<(Member, proto::TaskSpec)> {
        let mut state = self.state();
        loop {
            match state.parked.pop_front() {
                Some((member, _)) if member.is_gone() => {}
                Some(entry) => return Some(entry),
                None => {
                    state.parked_count -= 1;
                    return None;
                }
            }
        }
    }
}

/// The next look at the queue. One that never comes, since its runtime has ended, bars no other.
struct Scheduled(Arc<Lane>);

impl Drop for Scheduled {
    fn drop(&mut self) {
        // Without the lock, which who schedules holds: a runtime that is ending drops this at once.
        self.0.is_scheduled.store(false, Ordering::Release);
    }
}

/// A request in flight; its end, however it comes, makes room for the next.
struct Flight(Arc<Lane>);

impl Drop for Flight {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.in_flight -= 1;
        if !self.0.caller.is_closed() && tokio::runtime::Handle::try_current().is_ok() {
            self.0.schedule(&state);
        }
    }
}
