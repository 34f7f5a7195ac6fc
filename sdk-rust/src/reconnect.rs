//! Decides when and where a worker connects: pure policy without sockets, clock or chance.
//!
//! Rules RR-01 … of docs/spec/redirect-and-reconnect.md, cited below. Input is what happened and
//! when (a monotonic clock), output is one decision. Chance comes in as a function that returns a
//! fraction in [0, 1). The same events and fractions give the same decisions in every language;
//! `conformance/vectors/reconnect.json` holds them.

use std::collections::VecDeque;
use std::time::Duration;

use tonic::Code;

use crate::endpoint::{Endpoint, parse_redirect};

/// Time since some fixed instant of a monotonic clock.
pub(crate) type Moment = Duration;

pub(crate) const REDIRECTS_MAX: u32 = 3; // RR-10
pub(crate) const TRIES_MAX: usize = 4; // RR-05
pub(crate) const TRIES_WINDOW_BACKOFFS: u32 = 10; // RR-05: the span, in initial backoffs

/// RR-06; `FAILED_PRECONDITION` only without a redirect.
pub(crate) const FATAL_CODES: [Code; 6] = [
    Code::FailedPrecondition,
    Code::InvalidArgument,
    Code::NotFound,
    Code::PermissionDenied,
    Code::Unauthenticated,
    Code::Unimplemented,
];

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// The worker was started.
    Started,
    /// The server accepted the worker.
    Registered,
    /// The stream ended with `FAILED_PRECONDITION` and a shard endpoint in its metadata.
    Redirected { endpoint: String },
    /// The stream ended, or there was no connection (then as UNAVAILABLE).
    Ended { code: Code, not_leader: bool, message: String },
    /// The time of the last Wait has come.
    Elapsed,
}

/// What to do about it. `refused` says why a redirect is not followed; empty if it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    /// Open a fresh connection there, now.
    Connect { endpoint: Endpoint, may_send_token: bool, refused: String },
    /// Do nothing until then, and say Elapsed.
    Wait { until: Moment, refused: String },
    /// Stop: no retry can change this answer.
    GiveUp { code: Code, message: String },
    /// Go on with the stream as it is.
    Stay,
}

/// What the policy needs to know of the worker's options.
#[derive(Clone, Debug)]
pub(crate) struct ReconnectSettings {
    pub(crate) endpoint: Endpoint,
    pub(crate) has_token: bool,
    pub(crate) insecure_redirect_http: bool,
    pub(crate) backoff_initial: Duration,
    pub(crate) backoff_max: Duration,
    pub(crate) session_reset: Duration,
}

/// A source of fractions in [0, 1).
pub(crate) type Chance = Box<dyn FnMut() -> f64 + Send>;

/// One worker's policy; feed it every event in order and do what it says.
pub(crate) struct ReconnectPolicy {
    settings: ReconnectSettings,
    chance: Chance,
    /// Where the current or last stream is.
    at: Endpoint,
    /// Where Elapsed leads.
    next: Endpoint,
    hops: u32,
    failures: u32,
    registered_at: Option<Moment>,
    tries: VecDeque<Moment>,
}

impl ReconnectPolicy {
    pub(crate) fn new(settings: ReconnectSettings, chance: Chance) -> Self {
        Self {
            at: settings.endpoint.clone(),
            next: settings.endpoint.clone(),
            settings,
            chance,
            hops: 0,
            failures: 0,
            registered_at: None,
            tries: VecDeque::with_capacity(TRIES_MAX),
        }
    }

    /// Decides what to do about `event`, which happened at `now`.
    pub(crate) fn decide(&mut self, event: Event, now: Moment) -> Decision {
        match event {
            Event::Started => self.connect(self.settings.endpoint.clone(), now, String::new()),
            Event::Elapsed => self.connect(self.next.clone(), now, String::new()),
            Event::Registered => {
                self.registered_at = Some(now);
                self.hops = 0; // RR-11
                Decision::Stay
            }
            Event::Redirected { endpoint } => self.redirected(&endpoint, now),
            Event::Ended { code, not_leader, message } => {
                self.ended(code, not_leader, message, now)
            }
        }
    }

    fn redirected(&mut self, text: &str, now: Moment) -> Decision {
        self.registered_at = None;
        if self.hops >= REDIRECTS_MAX {
            // RR-10
            return self.refuse(format!("redirect {} in a row to {text}", self.hops + 1), now);
        }
        let target = match parse_redirect(text) {
            Ok(target) => target,
            Err(error) => return self.refuse(error.to_string(), now),
        };
        if let Some(problem) = self.forbidden(&target) {
            return self.refuse(problem, now);
        }
        self.hops += 1;
        self.connect(target, now, String::new()) // RR-09: at once
    }

    fn forbidden(&self, target: &Endpoint) -> Option<String> {
        if target.is_encrypted {
            return None;
        }
        if self.at.is_encrypted {
            return Some(format!("redirect from https to {target}")); // RR-14
        }
        let ReconnectSettings { has_token, insecure_redirect_http, .. } = self.settings;
        let is_safe = target.is_loopback() || insecure_redirect_http;
        (has_token && !is_safe).then(|| format!("token over http to {target}")) // RR-15
    }

    /// RR-16: not followed, reported, back to the configured endpoint with backoff.
    fn refuse(&mut self, why: String, now: Moment) -> Decision {
        self.hops = 0;
        let delay = self.delay();
        self.wait(self.settings.endpoint.clone(), now, delay, why)
    }

    fn ended(&mut self, code: Code, not_leader: bool, message: String, now: Moment) -> Decision {
        let registered_at = self.registered_at.take();
        self.hops = 0; // RR-11
        if FATAL_CODES.contains(&code) {
            return Decision::GiveUp { code, message }; // RR-06
        }
        let has_lived = registered_at
            .is_some_and(|since| now.saturating_sub(since) >= self.settings.session_reset);
        if has_lived || not_leader {
            self.failures = 0; // RR-04
        }
        let target = if registered_at.is_some() { &self.at } else { &self.settings.endpoint };
        let target = target.clone(); // RR-17 or RR-18, RR-19
        let is_at_once = registered_at.is_some() && not_leader; // RR-07
        let delay = if is_at_once { Duration::ZERO } else { self.delay() };
        self.wait(target, now, delay, String::new())
    }

    /// RR-03
    fn delay(&mut self) -> Duration {
        let delay = jittered(
            self.settings.backoff_initial,
            self.settings.backoff_max,
            self.failures,
            (self.chance)(),
        );
        self.failures = self.failures.saturating_add(1);
        delay
    }

    fn wait(
        &mut self,
        target: Endpoint,
        now: Moment,
        delay: Duration,
        refused: String,
    ) -> Decision {
        let mut until = now + delay;
        if self.tries.len() == TRIES_MAX
            && let Some(first) = self.tries.front()
        {
            // RR-05
            until = until.max(*first + self.settings.backoff_initial * TRIES_WINDOW_BACKOFFS);
        }
        if until <= now {
            return self.connect(target, now, refused);
        }
        self.next = target;
        Decision::Wait { until, refused }
    }

    fn connect(&mut self, target: Endpoint, now: Moment, refused: String) -> Decision {
        if self.tries.len() == TRIES_MAX {
            self.tries.pop_front();
        }
        self.tries.push_back(now);
        self.at = target.clone();
        self.next = target.clone();
        let may_send_token = self.may_send_token(&target);
        Decision::Connect { endpoint: target, may_send_token, refused }
    }

    fn may_send_token(&self, target: &Endpoint) -> bool {
        let settings = &self.settings;
        settings.has_token
            && (*target == settings.endpoint // RR-02
                || target.is_encrypted
                || target.is_loopback()
                || settings.insecure_redirect_http)
    }
}

/// A fraction of the backoff after so many failures, which doubles up to its bound.
pub(crate) fn jittered(
    initial: Duration,
    maximum: Duration,
    failures: u32,
    fraction: f64,
) -> Duration {
    // The exponent is capped: a float overflows long before the backoff matters.
    let grown = initial.as_secs_f64() * 2f64.powi(failures.min(64).cast_signed());
    Duration::from_secs_f64(fraction * grown.min(maximum.as_secs_f64()))
}

#[cfg(test)]
#[path = "reconnect_tests.rs"]
mod tests;
