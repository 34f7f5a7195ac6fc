//! Decides what a worker says to its server and believes of its leases: one session, no IO.
//!
//! Rules WP-01 … of docs/spec/worker-protocol.md, cited below. A session outlives its streams:
//! reports keep their numbers and are kept until their receipt, leases are named in every resume.
//! Messages in, messages out: they are written to whatever stream there is, in order.
//!
//! Owned by one task, which also keeps time; handlers share with it only their [`Run`].

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use prost::Message as _;
use prost::bytes::Bytes;
use tokio::sync::mpsc::UnboundedSender;

use crate::convert::duration_of;
use crate::options::MESSAGE_ROOM;
use crate::outcome::{Outcome, single_message};
use crate::proto;
use crate::proto::server_message::Message as Heard;
use crate::proto::worker_message::Message as Said;
use crate::reconnect::Moment;
use crate::run::{Run, Stop};

#[path = "heartbeat.rs"]
mod heartbeat;

#[cfg(test)]
pub(crate) use heartbeat::{BEATS_PER_TTL, PROGRESS_INTERVAL};

pub(crate) const PROTOCOL_VERSION: u32 = 4;
/// Older servers know no batches, receipts or resume.
pub(crate) const RECEIPTS_SINCE: u32 = 4;
/// What a server that names none means.
pub(crate) const LEASE_TTL_DEFAULT: Duration = Duration::from_secs(30);
pub(crate) const REPORTS_PER_MESSAGE_MAX: usize = 500;
/// Leases that are remembered after their end (WP-12).
const RECENT_MAX: usize = 4096;
/// Bytes around one report in its message.
const REPORT_ROOM: usize = 16;
/// A server whose limit is smaller is not believed: single reports need this much.
const REPORTS_SIZE_MIN: usize = 256 * 1024;

/// What one message of the server means for the worker.
#[derive(Default)]
pub(crate) struct Received {
    pub(crate) begun: Vec<Arc<Run>>,
    pub(crate) stopped: Vec<Arc<Run>>,
    pub(crate) shutdown: Option<proto::Shutdown>,
}

/// A Reports message without receipt.
struct Sent {
    message: proto::WorkerMessage,
    /// Lease and task of each report.
    tasks: Vec<(u64, u64)>,
}

pub(crate) type Outbox = UnboundedSender<proto::WorkerMessage>;

/// One worker's session over all its streams.
#[expect(clippy::struct_excessive_bools, reason = "facts that do not depend on each other")]
pub(crate) struct Session {
    register: proto::Register,
    outbox: Option<Outbox>,
    token: Bytes,
    version: u32,
    ttl: Duration,
    max_message_bytes: usize,
    runs: BTreeMap<u64, Arc<Run>>,
    recent: VecDeque<u64>,
    recent_set: HashSet<u64>,
    sent: BTreeMap<u64, Sent>,
    report_number: u64,
    confirmed_number: u64,
    last_lease: u64,
    beat_number: u64,
    beats: VecDeque<(u64, Moment)>,
    beat_at: Moment,
    /// The shortest TTL among those that count; exact after each pulse, else at most as long.
    shortest_ttl: Duration,
    /// No lease runs out before; exact after each pulse, else at most as late.
    expiry_due: Moment,
    has_named: bool,
    confirmed_at: Moment,
    opened_at: Moment,
    is_draining: bool,
    has_progress: bool,
    pub(crate) is_registered: bool,
    pub(crate) is_serving: bool,
    pub(crate) saw_not_leader: bool,
}

impl Session {
    pub(crate) fn new(register: proto::Register, max_message_bytes: usize) -> Self {
        Self {
            register,
            outbox: None,
            token: Bytes::new(),
            version: PROTOCOL_VERSION,
            ttl: LEASE_TTL_DEFAULT,
            max_message_bytes,
            runs: BTreeMap::new(),
            recent: VecDeque::new(),
            recent_set: HashSet::new(),
            sent: BTreeMap::new(),
            report_number: 0,
            confirmed_number: 0,
            last_lease: 0,
            beat_number: 0,
            beats: VecDeque::new(),
            beat_at: Moment::ZERO,
            shortest_ttl: LEASE_TTL_DEFAULT,
            expiry_due: Moment::MAX,
            has_named: false,
            confirmed_at: Moment::ZERO,
            opened_at: Moment::ZERO,
            is_draining: false,
            has_progress: false,
            is_registered: false,
            is_serving: false,
            saw_not_leader: false,
        }
    }

    // --- the stream --------------------------------------------------------------------------------

    /// The first message of a new stream (WP-01, WP-30).
    pub(crate) fn opening(&mut self, now: Moment) -> proto::WorkerMessage {
        let mut register = self.register.clone();
        if !self.token.is_empty() {
            let finished = self.sent.values().flat_map(|sent| sent.tasks.iter().map(|task| task.0));
            register.resume = Some(proto::Resume {
                session_token: self.token.clone(),
                leases: self.runs.keys().copied().chain(finished).collect(),
            });
        }
        self.opened_at = now;
        self.saw_not_leader = false;
        said(Said::Register(register))
    }

    /// Takes the server's acceptance and returns the runs that it did not adopt.
    pub(crate) fn registered(
        &mut self,
        answer: &proto::Registered,
        outbox: Outbox,
        now: Moment,
    ) -> Vec<Arc<Run>> {
        self.version = answer.protocol_version.max(1);
        self.token = answer.session_token.clone();
        self.ttl = answer.lease_ttl_s.map_or(LEASE_TTL_DEFAULT, duration_of);
        if answer.max_message_bytes > 0 {
            self.max_message_bytes = answer.max_message_bytes as usize;
        }
        self.outbox = Some(outbox);
        self.confirmed_at = self.opened_at; // WP-31
        self.beat_at = now;
        self.beats.clear();
        self.is_registered = true;
        self.is_serving = !self.is_draining;
        let adopted: HashSet<u64> = answer.adopted.iter().copied().collect();
        let lost = self.lose_unadopted(&adopted);
        self.reckon();
        if adopted.is_empty() && answer.reports_seen == 0 {
            self.begin_anew();
        }
        self.send_again(answer.reports_seen);
        if self.is_draining {
            self.put_no_slots(); // WP-40
        }
        lost
    }

    /// WP-32: what the server does not adopt is no longer ours; told are those that run on.
    fn lose_unadopted(&mut self, adopted: &HashSet<u64>) -> Vec<Arc<Run>> {
        let (kept, lost): (BTreeMap<_, _>, BTreeMap<_, _>) = std::mem::take(&mut self.runs)
            .into_iter()
            .partition(|(lease, _)| adopted.contains(lease));
        // A lost lease's number may come again, from a server that counts anew.
        self.runs = kept;
        let mut running = Vec::new();
        for run in lost.into_values() {
            let was_running = run.stop().is_none();
            run.tell(Stop::Lost, "");
            if was_running {
                running.push(run);
            }
        }
        running
    }

    /// WP-34: the server may have begun anew, so what was seen before tells nothing.
    fn begin_anew(&mut self) {
        if self.confirmed_number > 0 {
            // It has: what it confirmed is gone, and with it every lease of these reports.
            self.sent.clear();
            self.confirmed_number = 0;
        }
        self.recent.clear();
        self.recent_set.clear();
        self.last_lease = 0;
    }

    /// WP-33: everything the server has not read; it tells stale reports by itself.
    fn send_again(&mut self, seen: u64) {
        if self.version < RECEIPTS_SINCE {
            self.sent.clear();
            return;
        }
        for (_, sent) in self.sent.range(seen.saturating_add(1)..) {
            self.write(sent.message.clone());
        }
    }

    /// The stream is gone: nothing is written until the next `registered`.
    pub(crate) fn broken(&mut self) {
        self.outbox = None;
        self.is_registered = false;
        self.is_serving = false;
    }

    /// This side of the stream has ended; the server may still say something.
    pub(crate) fn half_closed(&mut self) {
        self.outbox = None;
    }

    fn write(&self, message: proto::WorkerMessage) {
        if let Some(outbox) = &self.outbox {
            // A stream that has just ended takes nothing; its end is heard elsewhere.
            let _ = outbox.send(message);
        }
    }

    /// Takes one message of the server.
    pub(crate) fn receive(&mut self, message: proto::ServerMessage, now: Moment) -> Received {
        let mut received = Received::default();
        match message.message {
            Some(Heard::Leases(batch)) => self.begin(batch.leases, &mut received, now),
            Some(Heard::Lease(lease)) => self.begin(vec![lease], &mut received, now),
            Some(Heard::Receipt(receipt)) => self.confirm(receipt),
            Some(Heard::Aborts(batch)) => self.abort(&batch.aborts, &mut received),
            Some(Heard::Abort(abort)) => self.abort(&[abort], &mut received),
            Some(Heard::Shutdown(shutdown)) => {
                self.saw_not_leader = shutdown.not_leader;
                self.is_serving = false; // WP-03, WP-45
                received.shutdown = Some(shutdown);
            }
            // A second acceptance has no meaning; what is unknown is a newer server's.
            Some(Heard::Registered(_)) | None => {}
        }
        received
    }

    fn begin(&mut self, leases: Vec<proto::Lease>, received: &mut Received, now: Moment) {
        let mut late = Vec::new();
        for message in leases {
            let lease = message.lease;
            if self.runs.contains_key(&lease) || self.recent_set.contains(&lease) {
                continue; // WP-12
            }
            self.last_lease = self.last_lease.max(lease);
            let run = Run::new(message, now, self.ttl);
            self.shortest_ttl = self.shortest_ttl.min(run.ttl);
            self.expiry_due = self.expiry_due.min(now + run.ttl);
            self.runs.insert(lease, Arc::clone(&run));
            if self.is_draining {
                late.push((run, Outcome::nacked("worker is stopping"))); // WP-41
            } else {
                received.begun.push(run);
            }
        }
        if !late.is_empty() {
            self.put_reports(late);
        }
    }

    fn abort(&self, aborts: &[proto::Abort], received: &mut Received) {
        for abort in aborts {
            let Some(run) = self.runs.get(&abort.lease) else { continue }; // WP-15
            if run.stop() != Some(Stop::Aborted) {
                run.tell(Stop::Aborted, &abort.reason);
                received.stopped.push(Arc::clone(run));
            }
        }
    }

    /// WP-22: reports are durable, and this heartbeat was read.
    fn confirm(&mut self, receipt: proto::Receipt) {
        self.confirmed_number = self.confirmed_number.max(receipt.reports);
        self.sent = self.sent.split_off(&receipt.reports.saturating_add(1));
        while let Some((number, sent_at)) = self.beats.front().copied() {
            if number > receipt.heartbeats {
                break;
            }
            self.confirmed_at = self.confirmed_at.max(sent_at);
            self.beats.pop_front();
        }
    }

    // --- reports -----------------------------------------------------------------------------------

    /// Reports how runs ended, in as few messages as fit (WP-20, WP-21).
    pub(crate) fn report(&mut self, ended: Vec<(Arc<Run>, Outcome)>, now: Moment) {
        if ended.iter().any(|(run, _)| run.has_news()) {
            self.has_progress = true;
            // WP-25: the last progress goes out before the report, in as many as it takes.
            while self.has_progress
                && self.outbox.is_some()
                && ended.iter().any(|(run, _)| run.has_news())
            {
                self.beat(now);
            }
        }
        self.put_reports(ended);
    }

    fn put_reports(&mut self, ended: Vec<(Arc<Run>, Outcome)>) {
        let room = self.room();
        let (mut reports, mut tasks, mut left) = (Vec::new(), Vec::new(), room);
        for (run, outcome) in ended {
            let lease = run.lease();
            let is_ours = self.runs.get(&lease).is_some_and(|held| held.serial == run.serial);
            if !is_ours {
                continue; // Lost, or reported already by a stop that could not wait for it.
            }
            self.runs.remove(&lease);
            self.remember(lease);
            let report = self.sendable(&run, outcome).into_report(lease);
            let size = report.encoded_len() + REPORT_ROOM;
            if !reports.is_empty() && (size > left || reports.len() >= REPORTS_PER_MESSAGE_MAX) {
                let full = (std::mem::take(&mut reports), std::mem::take(&mut tasks));
                self.put_message(full.0, full.1);
                left = room;
            }
            reports.push(report);
            tasks.push((lease, run.message.task_id));
            left = left.saturating_sub(size);
        }
        if !reports.is_empty() {
            self.put_message(reports, tasks);
        }
    }

    /// What a message of many parts may take.
    fn room(&self) -> usize {
        self.max_message_bytes.max(REPORTS_SIZE_MIN) - MESSAGE_ROOM / 2
    }

    fn sendable(&self, run: &Run, outcome: Outcome) -> Outcome {
        if run.stop() == Some(Stop::Aborted) {
            // WP-16: whatever it came to, the task is cancelled.
            return Outcome::Cancelled { reason: String::new() };
        }
        match outcome {
            Outcome::Completed(encoded) => {
                let limit = self.max_message_bytes.saturating_sub(MESSAGE_ROOM);
                let size = encoded.payload.len();
                if size > limit {
                    // WP-18
                    return Outcome::permanent(format!("output too large ({size} > {limit})"));
                }
                Outcome::Completed(encoded)
            }
            other => other,
        }
    }

    fn remember(&mut self, lease: u64) {
        self.recent.push_back(lease);
        self.recent_set.insert(lease);
        if self.recent.len() > RECENT_MAX
            && let Some(oldest) = self.recent.pop_front()
        {
            self.recent_set.remove(&oldest);
        }
    }

    fn put_message(&mut self, reports: Vec<proto::Report>, tasks: Vec<(u64, u64)>) {
        if self.version < RECEIPTS_SINCE {
            // Forgotten once written: an old server knows no resume.
            reports.into_iter().filter_map(single_message).for_each(|message| self.write(message));
            return;
        }
        self.report_number += 1;
        let number = self.report_number;
        let message = said(Said::Reports(proto::Reports { reports, number }));
        self.write(message.clone());
        self.sent.insert(number, Sent { message, tasks });
    }

    // --- stopping ----------------------------------------------------------------------------------

    /// WP-40: no more leases; what arrives late is given back.
    pub(crate) fn drain(&mut self) {
        if !self.is_draining {
            self.is_draining = true;
            self.is_serving = false;
            self.put_no_slots();
        }
    }

    fn put_no_slots(&self) {
        self.write(said(Said::SetSlots(proto::SetSlots { slots: 0 })));
    }

    /// Marks every run that was not told to stop yet, and returns them.
    pub(crate) fn stop_runs(&self, stop: Stop) -> Vec<Arc<Run>> {
        let running = self.runs.values().filter(|run| run.stop().is_none());
        let stopped: Vec<Arc<Run>> = running.cloned().collect();
        for run in &stopped {
            run.tell(stop, "");
        }
        stopped
    }

    /// The runs without a report.
    pub(crate) fn open_runs(&self) -> Vec<Arc<Run>> {
        self.runs.values().cloned().collect()
    }

    /// The tasks whose report has no receipt yet.
    pub(crate) fn unconfirmed_tasks(&self) -> Vec<u64> {
        self.sent.values().flat_map(|sent| sent.tasks.iter().map(|task| task.1)).collect()
    }

    /// True when nothing runs and every report has its receipt.
    pub(crate) fn is_settled(&self) -> bool {
        self.runs.is_empty() && self.sent.is_empty()
    }
}

fn said(message: Said) -> proto::WorkerMessage {
    proto::WorkerMessage { message: Some(message) }
}

#[cfg(test)]
#[path = "session_tests.rs"]
mod tests;
