//! Decides what is known of one lease in this process, and shared with its handler.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::convert::duration_of;
use crate::proto;
use crate::reconnect::Moment;

/// Why a handler was told to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    Aborted,
    Expired,
    Lost,
    Stopped,
}

impl Stop {
    pub(crate) const fn text(self) -> &'static str {
        match self {
            Self::Aborted => "aborted by the server",
            Self::Expired => "lease expired: the server confirmed no heartbeat in time",
            Self::Lost => "lease lost: the server no longer holds it for this worker",
            Self::Stopped => "worker stopped",
        }
    }
}

/// One lease in this process, from its arrival until its report is written.
pub(crate) struct Run {
    /// Tells runs apart whose leases have the same number, from a server that began anew.
    pub(crate) serial: u64,
    pub(crate) message: proto::Lease,
    pub(crate) arrived_at: Moment,
    pub(crate) ttl: Duration,
    pub(crate) cancelled: CancellationToken,
    told: Mutex<Told>,
}

#[derive(Default)]
struct Told {
    stop: Option<Stop>,
    reason: String,
    progress: Option<proto::Progress>,
    is_new_progress: bool,
}

impl Run {
    pub(crate) fn new(message: proto::Lease, arrived_at: Moment, ttl: Duration) -> Arc<Self> {
        static SERIALS: AtomicU64 = AtomicU64::new(1);
        let ttl = message.lease_ttl_s.map_or(ttl, duration_of);
        Arc::new(Self {
            serial: SERIALS.fetch_add(1, Ordering::Relaxed),
            message,
            arrived_at,
            ttl,
            cancelled: CancellationToken::new(),
            told: Mutex::default(),
        })
    }

    fn told(&self) -> MutexGuard<'_, Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn lease(&self) -> u64 {
        self.message.lease
    }

    pub(crate) fn stop(&self) -> Option<Stop> {
        self.told().stop
    }

    /// Why it should stop, for people; empty while it need not.
    pub(crate) fn stop_reason(&self) -> String {
        let told = self.told();
        match told.stop {
            None => String::new(),
            Some(_) if !told.reason.is_empty() => told.reason.clone(),
            Some(stop) => stop.text().to_owned(),
        }
    }

    /// Tells the handler to stop.
    pub(crate) fn tell(&self, stop: Stop, reason: &str) {
        {
            let mut told = self.told();
            told.stop = Some(stop);
            reason.clone_into(&mut told.reason);
        }
        self.cancelled.cancel();
    }

    /// Keeps the handler's last word.
    pub(crate) fn set_progress(&self, progress: proto::Progress) {
        let mut told = self.told();
        told.progress = Some(progress);
        told.is_new_progress = true;
    }

    /// Whether it has said something that no heartbeat has carried.
    pub(crate) fn has_news(&self) -> bool {
        self.told().is_new_progress
    }

    /// What it said last, if no heartbeat has carried it; told once.
    pub(crate) fn take_news(&self) -> Option<proto::Progress> {
        let mut told = self.told();
        let is_new = std::mem::take(&mut told.is_new_progress);
        if is_new { told.progress.clone() } else { None }
    }
}
