//! Decides when a session sends signs of life, and which of its leases have run out meanwhile.

use std::sync::Arc;
use std::time::Duration;

use prost::Message as _;

use super::{RECEIPTS_SINCE, Said, Session, said};
use crate::attempt::PROGRESS_BYTES_MAX;
use crate::proto;
use crate::reconnect::Moment;
use crate::run::{Run, Stop};

pub(crate) const BEATS_PER_TTL: u32 = 3;
pub(crate) const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);
/// What one lease takes in a heartbeat, at most, and the progress of one.
const LEASE_ROOM: usize = 10;
const PROGRESS_ROOM: usize = PROGRESS_BYTES_MAX + 64;

impl Session {
    /// When `pulse` is to be called next. Never later than needed; a pulse too early does nothing.
    pub(crate) fn next_pulse(&self) -> Moment {
        self.beat_due().min(self.expiry_due)
    }

    fn beat_due(&self) -> Moment {
        let due = self.beat_at + self.shortest_ttl / BEATS_PER_TTL;
        if self.has_progress && self.is_registered {
            return due.min(self.beat_at + PROGRESS_INTERVAL);
        }
        due
    }

    /// Sends the heartbeat that is due and returns the runs whose lease ran out (WP-24).
    pub(crate) fn pulse(&mut self, now: Moment) -> Vec<Arc<Run>> {
        let mut expired = Vec::new();
        for run in self.runs.values() {
            if run.stop().is_none() && self.expires_at(run) <= now {
                run.tell(Stop::Expired, "");
                expired.push(Arc::clone(run));
            }
        }
        self.reckon();
        if self.beat_due() <= now {
            self.beat(now);
        }
        expired
    }

    /// Works out anew when the next heartbeat and the next expiry are due.
    pub(super) fn reckon(&mut self) {
        let ttls = self.runs.values().map(|run| run.ttl);
        self.shortest_ttl = ttls.min().map_or(self.ttl, |ttl| ttl.min(self.ttl));
        let running = self.runs.values().filter(|run| run.stop().is_none());
        self.expiry_due = running.map(|run| self.expires_at(run)).min().unwrap_or(Moment::MAX);
    }

    /// By our clock alone: the server granted no more than this.
    fn expires_at(&self, run: &Run) -> Moment {
        run.arrived_at.max(self.confirmed_at) + run.ttl
    }

    /// WP-23: one message names every lease that runs.
    pub(super) fn beat(&mut self, now: Moment) {
        self.beat_at = now;
        if self.outbox.is_none() {
            return;
        }
        let has_progress = std::mem::take(&mut self.has_progress);
        if self.version < RECEIPTS_SINCE {
            for lease in self.runs.keys() {
                self.write(said(Said::Heartbeat(proto::Heartbeat { lease: *lease })));
            }
            self.confirmed_at = now;
            return;
        }
        if self.runs.is_empty() && !self.has_named {
            return; // Nothing runs and the server knows.
        }
        self.has_named = !self.runs.is_empty();
        self.beat_number += 1;
        let progress = if has_progress { self.news() } else { Vec::new() };
        self.beats.push_back((self.beat_number, now));
        self.write(said(Said::Heartbeats(proto::Heartbeats {
            leases: self.runs.keys().copied().collect(),
            progress,
            number: self.beat_number,
            last_lease: self.last_lease,
        })));
    }

    /// The progress that the server has not heard of, as much as fits beside the leases.
    fn news(&mut self) -> Vec<proto::LeaseProgress> {
        let mut left = self.room().saturating_sub(self.runs.len() * LEASE_ROOM);
        let mut news = Vec::new();
        for (lease, run) in &self.runs {
            if left < PROGRESS_ROOM && !news.is_empty() {
                self.has_progress = true; // The rest goes with the next one.
                break;
            }
            let Some(progress) = run.take_news() else { continue };
            left = left.saturating_sub(progress.encoded_len() + PROGRESS_ROOM - PROGRESS_BYTES_MAX);
            news.push(proto::LeaseProgress { lease: *lease, progress: Some(progress) });
        }
        news
    }

    /// Some run has new progress; it goes out with a heartbeat soon (WP-25).
    pub(crate) fn note_progress(&mut self) {
        self.has_progress = true;
    }
}
