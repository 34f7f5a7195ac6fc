//! Decides how a worker stops: what may finish, what is told to stop, what is reported anyway.
//!
//! Rules WP-40 … WP-44 of docs/spec/worker-protocol.md. A stop goes through its phases in order; a
//! second one can only draw the end of the present phase nearer.

use std::time::Duration;

use tokio::task::AbortHandle;

use super::{Command, Engagement, Phase};
use crate::outcome::Outcome;
use crate::reconnect::Moment;
use crate::run::Stop;

/// What a handler that was told to stop gets before its attempt is reported anyway.
const STOP_GRACE: Duration = Duration::from_secs(1);
/// How long the server gets to end a stream that this side has half-closed.
const STREAM_END: Duration = Duration::from_secs(2);

impl Engagement {
    pub(super) fn on_command(&mut self, command: Command) {
        match command {
            Command::Stop(drain) => {
                let now = self.now();
                let ends_at = now.saturating_add(drain);
                let has_failed = self.state.borrow().failure.is_some();
                if self.phase == Phase::Running {
                    self.session.drain(); // WP-40
                    let waiting = std::mem::take(&mut self.backlog); // WP-41
                    let unrun = waiting.into_iter();
                    let unrun = unrun.map(|run| (run, Outcome::nacked("worker is stopping")));
                    self.session.report(unrun.collect(), now);
                    self.phase = Phase::Draining(if has_failed { now } else { ends_at });
                }
                self.shorten(ends_at);
            }
            Command::Abandon => {
                self.session.stop_runs(Stop::Stopped);
                self.link.abandon();
                self.phase = Phase::Over;
            }
        }
    }

    /// A second, shorter stop draws the end of the drain nearer.
    pub(super) fn shorten(&mut self, ends_at: Moment) {
        self.phase = match self.phase {
            Phase::Draining(until) => Phase::Draining(until.min(ends_at)),
            Phase::Cancelling(until) => Phase::Cancelling(until.min(ends_at)),
            Phase::Settling(until) => Phase::Settling(until.min(ends_at)),
            other => other,
        };
    }

    /// Goes from phase to phase as far as it can.
    pub(super) fn advance_stop(&mut self) {
        loop {
            let now = self.now();
            let is_idle = self.active.is_empty();
            let next = match self.phase {
                Phase::Draining(until) if is_idle => Phase::Settling(until.max(now + STOP_GRACE)),
                Phase::Draining(until) if until <= now => {
                    let stopped = self.session.stop_runs(Stop::Stopped);
                    self.told_to_stop(stopped);
                    Phase::Cancelling(now + STOP_GRACE)
                }
                Phase::Cancelling(until) if is_idle || until <= now => {
                    self.report_rest();
                    Phase::Settling(now + STOP_GRACE)
                }
                Phase::Settling(until)
                    if self.session.is_settled() || self.link.is_over() || until <= now =>
                {
                    self.close()
                }
                Phase::Closing(until) if until <= now => {
                    let was_registered = self.session.is_registered;
                    self.note_end(&self.link.endpoint(), was_registered, "the worker was stopped");
                    self.link.abandon();
                    Phase::Over
                }
                _ => return,
            };
            self.phase = next;
        }
    }

    /// WP-42: what does not end is reported without its handler, which is dropped where it waits.
    fn report_rest(&mut self) {
        let rest = self.session.open_runs();
        if !rest.is_empty() {
            let tasks: Vec<u64> = rest.iter().map(|run| run.message.task_id).collect();
            tracing::warn!(?tasks, "handlers do not end");
            let ended = rest.into_iter().map(|run| (run, Outcome::retryable(Stop::Stopped.text())));
            self.session.report(ended.collect(), self.now());
        }
        self.active.values().for_each(AbortHandle::abort);
    }

    /// WP-43, WP-44
    fn close(&mut self) -> Phase {
        let tasks = self.session.unconfirmed_tasks();
        if !tasks.is_empty() {
            tracing::warn!(?tasks, "stopped before the server confirmed");
        }
        if !self.link.is_open() {
            self.link.abandon();
            return Phase::Over; // RR-23
        }
        self.session.half_closed();
        self.link.half_close();
        Phase::Closing(self.now() + STREAM_END)
    }
}
