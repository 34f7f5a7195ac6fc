//! Decides what a caller can say about a task.
//!
//! Values only: how they travel is `convert`'s business, whether they are allowed the server's. An
//! absent value means the server's or the pool's default, never a zero.

use std::collections::BTreeMap;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, SystemTime};

use serde::Serialize;

use crate::payload::Payload;

/// A value with a number on the wire.
pub(crate) trait Numbered: Copy + 'static {
    const VALUES: &'static [Self];

    fn wire_number(self) -> i32;

    /// The value of a number, `None` for one that is unspecified or a newer peer's.
    fn from_number(number: i32) -> Option<Self> {
        Self::VALUES.iter().copied().find(|value| value.wire_number() == number)
    }
}

macro_rules! wire_enum {
    ($(#[$meta:meta])* $name:ident { $($(#[$value_meta:meta])* $value:ident = $number:literal, $word:literal;)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $name {
            $($(#[$value_meta])* $value = $number,)*
        }

        impl $name {
            /// All values.
            pub const ALL: &'static [Self] = &[$(Self::$value,)*];

            /// The word for it, in lower case.
            #[must_use]
            pub const fn word(self) -> &'static str {
                match self { $(Self::$value => $word,)* }
            }

            /// The value of a word, `None` for a word that is none of them.
            #[must_use]
            pub fn from_word(word: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|value| value.word() == word)
            }

            pub(crate) const fn number(self) -> i32 {
                self as i32
            }
        }

        impl Numbered for $name {
            const VALUES: &'static [Self] = Self::ALL;

            fn wire_number(self) -> i32 {
                self.number()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.word())
            }
        }
    };
}

wire_enum! {
    /// The class of a task; higher classes go first.
    Priority {
        /// Before all others.
        Critical = 1, "critical";
        /// Before normal ones.
        High = 2, "high";
        /// Where nothing else is said.
        Normal = 3, "normal";
        /// After all others.
        Low = 4, "low";
    }
}

wire_enum! {
    /// Where a task stands. Terminal ones are left only by a retry from outside.
    TaskStatus {
        /// Waits for dependencies.
        Blocked = 1, "blocked";
        /// Waits for its time.
        Scheduled = 2, "scheduled";
        /// May run now.
        Ready = 3, "ready";
        /// One attempt holds a lease.
        Running = 4, "running";
        /// Between attempts.
        Retrying = 5, "retrying";
        /// Ended well.
        Succeeded = 6, "succeeded";
        /// Failed for good.
        Failed = 7, "failed";
        /// Attempts used up.
        DeadLettered = 8, "dead_lettered";
        /// Cancelled by a client or by its handler.
        Cancelled = 9, "cancelled";
        /// A dependency can no longer be met.
        Skipped = 10, "skipped";
        /// Did not start in time.
        Missed = 11, "missed";
        /// Pushed out of a full queue.
        Shed = 12, "shed";
    }
}

impl TaskStatus {
    /// True when the task has ended.
    #[must_use]
    pub const fn is_terminal(self) -> bool {
        self as i32 >= Self::Succeeded as i32
    }
}

wire_enum! {
    /// How a parent must end before its child may run.
    EdgeCond {
        /// Succeeded.
        OnSuccess = 1, "on_success";
        /// However.
        OnComplete = 2, "on_complete";
        /// Failed or dead-lettered.
        OnFailure = 3, "on_failure";
    }
}

wire_enum! {
    /// What becomes of a task that did not start in time.
    MissPolicy {
        /// It starts late.
        RunLate = 1, "run_late";
        /// It ends as missed.
        Skip = 2, "skip";
        /// It fails.
        Fail = 3, "fail";
    }
}

wire_enum! {
    /// What [`Client::bulk`](crate::Client::bulk) does to the tasks it finds.
    BulkAction {
        /// Cancels them.
        Cancel = 1, "cancel";
        /// Puts them back with fresh attempts.
        Retry = 2, "retry";
    }
}

wire_enum! {
    /// What becomes of an occurrence while the one before it is alive.
    Overlap {
        /// It is left out.
        Skip = 1, "skip";
        /// It runs beside it.
        Allow = 2, "allow";
        /// It waits for the other's end.
        Queue = 3, "queue";
        /// It waits for the other's success.
        QueueOnSuccess = 4, "queue_on_success";
    }
}

wire_enum! {
    /// When an occurrence runs whose local time does not exist that day.
    Gap {
        /// At the first valid instant after it.
        RunAfter = 1, "run_after";
        /// Not that day.
        Skip = 2, "skip";
    }
}

wire_enum! {
    /// When an occurrence runs whose local time comes twice that day.
    Fold {
        /// The first time.
        First = 1, "first";
        /// The last time.
        Last = 2, "last";
        /// Both times.
        Both = 3, "both";
    }
}

wire_enum! {
    /// What becomes of occurrences that could not be created in time.
    CatchUp {
        /// The latest runs.
        Latest = 1, "latest";
        /// None runs.
        None = 2, "none";
        /// All run, within the server's bounds.
        All = 3, "all";
    }
}

/// When a failed attempt is followed by another. Zero takes the pool's value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RetryPolicy {
    /// Attempts in total.
    pub max_attempts: u32,
    /// Backoff after the first.
    pub initial_backoff: Duration,
    /// Growth per attempt.
    pub multiplier: f64,
    /// Upper bound.
    pub max_backoff: Duration,
    /// Whether the delay is drawn from [0, backoff].
    pub jitter: bool,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            max_attempts: 0,
            initial_backoff: Duration::ZERO,
            multiplier: 0.0,
            max_backoff: Duration::ZERO,
            jitter: true,
        }
    }
}

/// Names one task, by id or key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum TaskRef {
    /// By the server's id.
    Id(u64),
    /// By the submitter's key.
    Key(String),
}

impl From<u64> for TaskRef {
    fn from(id: u64) -> Self {
        Self::Id(id)
    }
}

impl From<&str> for TaskRef {
    fn from(key: &str) -> Self {
        Self::Key(key.to_owned())
    }
}

impl From<String> for TaskRef {
    fn from(key: String) -> Self {
        Self::Key(key)
    }
}

impl fmt::Display for TaskRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Id(id) => write!(f, "{id}"),
            Self::Key(key) => write!(f, "{key:?}"),
        }
    }
}

/// A task that must end first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dep {
    /// Which one.
    pub target: TaskRef,
    /// How it must end.
    pub cond: EdgeCond,
}

impl<T: Into<TaskRef>> From<T> for Dep {
    fn from(target: T) -> Self {
        Self { target: target.into(), cond: EdgeCond::OnSuccess }
    }
}

/// One task as the caller wants it.
#[derive(Clone, Debug, Default)]
pub struct TaskSpec {
    /// Name of the handler; empty is `default`.
    pub kind: String,
    /// Value for the handler.
    pub payload: Payload,
    /// Overrides the codec's, for payloads that are bytes already.
    pub content_type: String,
    /// Pool to run in; empty is the server's default.
    pub pool: String,
    /// Class; `None` is normal.
    pub priority: Option<Priority>,
    /// Idempotency key: submitting it again returns the same task.
    pub key: String,
    /// Time within which the task should be done; raises urgency, ends nothing.
    pub deadline_in: Option<Duration>,
    /// The same as an instant.
    pub deadline_at: Option<SystemTime>,
    /// Fixed start, from now.
    pub start_in: Option<Duration>,
    /// Fixed start as an instant.
    pub start_at: Option<SystemTime>,
    /// How late a fixed start may be.
    pub tolerance: Option<Duration>,
    /// What happens when it is later.
    pub on_miss: Option<MissPolicy>,
    /// Expected run time.
    pub duration_hint: Option<Duration>,
    /// Longest time for one attempt.
    pub timeout: Option<Duration>,
    /// Retry policy; `None` is the pool's.
    pub retry: Option<RetryPolicy>,
    /// Tasks that must end first.
    pub deps: Vec<Dep>,
    /// Amounts of named resources, held while an attempt runs.
    pub resources: BTreeMap<String, u32>,
    /// Free pairs, for listings and filters.
    pub tags: BTreeMap<String, String>,
    /// Labels that the worker must have.
    pub labels: BTreeMap<String, String>,
    /// Whom the task belongs to.
    pub tenant: String,
    /// W3C trace context of the submitter.
    pub trace_context: BTreeMap<String, String>,
    /// Not to run before this time has passed.
    pub delay: Option<Duration>,
    /// Not to run before this instant.
    pub not_before: Option<SystemTime>,
    /// Ends as missed when not started by then.
    pub expires_in: Option<Duration>,
}

impl TaskSpec {
    /// A task of a kind with a payload, and defaults for all else.
    pub fn new<T: Serialize + Send + Sync + 'static>(kind: impl Into<String>, payload: T) -> Self {
        Self { kind: kind.into(), payload: Payload::new(payload), ..Self::default() }
    }

    /// A task of a kind without payload, and defaults for all else.
    pub fn of(kind: impl Into<String>) -> Self {
        Self { kind: kind.into(), ..Self::default() }
    }

    /// Gives the task a key: submitting it again returns the same task.
    #[must_use]
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.key = key.into();
        self
    }
}

/// Which tasks a listing or bulk call means: all conditions must hold, empty ones hold for all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TaskFilter {
    /// Any of these pools.
    pub pools: Vec<String>,
    /// Any of these statuses.
    pub statuses: Vec<TaskStatus>,
    /// Any of these kinds.
    pub kinds: Vec<String>,
    /// Any of these keys.
    pub keys: Vec<String>,
    /// All of these pairs.
    pub tags: BTreeMap<String, String>,
    /// Any of these tenants.
    pub tenants: Vec<String>,
    /// Made by this schedule.
    pub schedule: String,
}

/// A schedule as the caller wants it; putting it again under the same name replaces it.
#[derive(Clone, Debug)]
pub struct ScheduleSpec {
    /// Unique within a shard.
    pub name: String,
    /// Five fields, or six with leading seconds, or `@hourly` and the like.
    pub cron: String,
    /// The task of each occurrence; without dependencies and fixed times.
    pub template: TaskSpec,
    /// IANA time zone.
    pub tz: String,
    /// What happens while the occurrence before is alive; `None` is `Skip`.
    pub overlap: Option<Overlap>,
    /// Local times that do not exist; `None` is `RunAfter`.
    pub gap: Option<Gap>,
    /// Local times that come twice; `None` is `First`.
    pub fold: Option<Fold>,
    /// Occurrences that were missed; `None` is `Latest`.
    pub catch_up: Option<CatchUp>,
    /// Whether it rests.
    pub paused: bool,
}

impl Default for ScheduleSpec {
    fn default() -> Self {
        Self {
            name: String::new(),
            cron: String::new(),
            template: TaskSpec::default(),
            tz: "UTC".to_owned(),
            overlap: None,
            gap: None,
            fold: None,
            catch_up: None,
            paused: false,
        }
    }
}

/// Returns a key that nobody else has, for a submission that shall be safe to repeat.
#[must_use]
pub fn new_key() -> String {
    // Each state is keyed anew from the system's randomness.
    let part = || RandomState::new().hash_one(SystemTime::now());
    format!("{:016x}{:016x}", part(), part())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Enums number their values as the wire does.
    #[test]
    fn enums_are_those_of_the_wire() {
        fn check<W: TryFrom<i32>>(numbers: impl Iterator<Item = i32>) {
            let known: Vec<i32> = numbers.collect();
            let wire = (1..100).filter(|number| W::try_from(*number).is_ok()).count();
            assert_eq!(known.len(), wire);
            assert!(known.iter().all(|number| W::try_from(*number).is_ok()));
        }
        check::<crate::proto::Priority>(Priority::ALL.iter().map(|v| v.number()));
        check::<crate::proto::TaskStatus>(TaskStatus::ALL.iter().map(|v| v.number()));
        check::<crate::proto::EdgeCond>(EdgeCond::ALL.iter().map(|v| v.number()));
        check::<crate::proto::MissPolicy>(MissPolicy::ALL.iter().map(|v| v.number()));
        check::<crate::proto::BulkAction>(BulkAction::ALL.iter().map(|v| v.number()));
        check::<crate::proto::Overlap>(Overlap::ALL.iter().map(|v| v.number()));
        check::<crate::proto::Gap>(Gap::ALL.iter().map(|v| v.number()));
        check::<crate::proto::Fold>(Fold::ALL.iter().map(|v| v.number()));
        check::<crate::proto::CatchUp>(CatchUp::ALL.iter().map(|v| v.number()));
    }

    /// Two keys are never the same.
    #[test]
    fn keys_are_new_each_time() {
        let keys: std::collections::BTreeSet<String> = (0..1000).map(|_| new_key()).collect();
        assert_eq!(keys.len(), 1000);
        assert!(keys.iter().all(|key| key.len() == 32));
    }
}
