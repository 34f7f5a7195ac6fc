//! Decides what a refusal, a failed task or a broken call is told as: one type, a kind, a reason.
//!
//! ```text
//! ErrorKind              gRPC status             reasons
//! InvalidRequest         INVALID_ARGUMENT        InvalidField FieldConflict TooLarge Cycle …
//! Unauthenticated        UNAUTHENTICATED         Unauthenticated
//! PermissionDenied       PERMISSION_DENIED       RoleNotAllowed PoolNotAllowed …
//! NotFound               NOT_FOUND               TaskUnknown PoolUnknown ScheduleUnknown …
//! Conflict               FAILED_PRECONDITION     KeyInUse NotTerminal ReservationConflict …
//! Exhausted              RESOURCE_EXHAUSTED      QueueFull RateLimited TooManyRequests …
//! Unavailable            UNAVAILABLE             NotLeader Stopping StoreUnavailable …
//! Deadline               DEADLINE_EXCEEDED       WaitTimeout
//! WatchLost              DATA_LOSS               WatchTooSlow CursorUnknown
//! Unsupported            UNIMPLEMENTED           Unsupported
//! Internal               INTERNAL, all others    IdsExhausted Internal
//! TaskFailed             of `result`: the task ended without success
//! OutputUnavailable      of `result`: the output is no longer kept
//! Payload                bytes and value do not match
//! GaveUp                 a worker met an answer that no retry can change
//! Closed                 the client or worker is closed
//! InvalidOption          an option or endpoint cannot be used
//! ```

use std::collections::BTreeMap;
use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

use tonic::Code;

use crate::spec::TaskStatus;

/// What every fallible call of this crate returns.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The family of an [`Error`]: what a caller can do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The request can never succeed as it is.
    InvalidRequest,
    /// The server does not accept the credential.
    Unauthenticated,
    /// The credential does not allow this.
    PermissionDenied,
    /// There is no such thing.
    NotFound,
    /// The present state does not allow this.
    Conflict,
    /// A limit is reached; the same call may pass later.
    Exhausted,
    /// No server could answer; whether the call took effect may be unknown.
    Unavailable,
    /// The call did not finish in time; whether it took effect may be unknown.
    Deadline,
    /// The watch cannot go on without a gap.
    WatchLost,
    /// The server does not know this call.
    Unsupported,
    /// The server failed.
    Internal,
    /// The task ended without success; see [`Error::task_failure`].
    TaskFailed,
    /// The task succeeded but its output is no longer kept.
    OutputUnavailable,
    /// The bytes and the wanted value do not match.
    Payload,
    /// The worker met an answer that no retry can change.
    GaveUp,
    /// The client or worker is closed.
    Closed,
    /// An option is out of its range, or an endpoint cannot be used.
    InvalidOption,
}

macro_rules! reasons {
    ($($name:ident, $word:literal, $kind:ident, $text:literal;)*) => {
        /// Why a server refused, one word for all languages.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum ErrorReason {
            $(#[doc = $text] $name,)*
        }

        impl ErrorReason {
            /// All reasons that this version knows.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The word of the wire, such as `queue_full`.
            #[must_use]
            pub const fn word(self) -> &'static str {
                match self { $(Self::$name => $word,)* }
            }

            /// The family of errors that this reason comes with.
            #[must_use]
            pub const fn kind(self) -> ErrorKind {
                match self { $(Self::$name => ErrorKind::$kind,)* }
            }

            /// What is said when the server says nothing.
            pub(crate) const fn text(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }
        }
    };
}

reasons! {
    InvalidField, "invalid_field", InvalidRequest, "A field has a value that is not allowed.";
    FieldConflict, "field_conflict", InvalidRequest, "Two fields exclude each other.";
    TooLarge, "too_large", InvalidRequest, "The task or message is larger than the limit.";
    Cycle, "cycle", InvalidRequest, "The dependencies form a cycle.";
    DuplicateKeyInBatch, "duplicate_key_in_batch", InvalidRequest,
        "Two tasks of one batch have the same key.";
    BatchTooLarge, "batch_too_large", InvalidRequest, "The batch has more tasks than the limit.";
    ResourceUnknown, "resource_unknown", InvalidRequest,
        "The task names a resource that is not configured.";
    ResourceExceedsCapacity, "resource_exceeds_capacity", InvalidRequest,
        "The task asks for more of a resource than there can ever be.";
    CrossShardDependency, "cross_shard_dependency", InvalidRequest,
        "A task cannot depend on a task of another shard.";
    CrossShardBatch, "cross_shard_batch", InvalidRequest,
        "A batch cannot hold tasks of several shards.";
    CrossShardResource, "cross_shard_resource", InvalidRequest,
        "A task cannot use a resource of another shard.";
    CronInvalid, "cron_invalid", InvalidRequest, "The cron expression cannot be read.";
    CronNeverFires, "cron_never_fires", InvalidRequest,
        "The cron expression names no instant that ever comes.";
    ZoneUnknown, "zone_unknown", InvalidRequest, "The time zone is not known.";
    Unauthenticated, "unauthenticated", Unauthenticated,
        "The server does not accept the credential.";
    RoleNotAllowed, "role_not_allowed", PermissionDenied,
        "The credential's role does not allow this call.";
    PoolNotAllowed, "pool_not_allowed", PermissionDenied,
        "The credential does not allow this pool.";
    LabelNotAllowed, "label_not_allowed", PermissionDenied,
        "The credential does not allow this label.";
    TenantNotAllowed, "tenant_not_allowed", PermissionDenied,
        "The credential belongs to another tenant.";
    TaskUnknown, "task_unknown", NotFound, "There is no such task.";
    PoolUnknown, "pool_unknown", NotFound, "There is no such pool.";
    DependencyUnknown, "dependency_unknown", NotFound,
        "A task that is depended on does not exist.";
    ScheduleUnknown, "schedule_unknown", NotFound, "There is no such schedule.";
    ResourceNotFound, "resource_not_found", NotFound, "There is no such resource.";
    ReservationConflict, "reservation_conflict", Conflict,
        "No capacity is left to book at the asked start.";
    WrongShard, "wrong_shard", Conflict,
        "Another shard serves this; details name its endpoint.";
    KeyAmbiguous, "key_ambiguous", Conflict, "Tasks of several shards have this key.";
    KeyInUse, "key_in_use", Conflict, "Another task holds this key.";
    DependencyImpossible, "dependency_impossible", Conflict,
        "A dependency of the task can no longer be met.";
    NotTerminal, "not_terminal", Conflict, "The task has not finished.";
    QueueFull, "queue_full", Exhausted, "The queue is full.";
    ShedNone, "shed_none", Exhausted,
        "The queue is full and nothing in it may be pushed out.";
    TooManyRequests, "too_many_requests", Exhausted,
        "The server is busy with too many requests.";
    TooManyStreams, "too_many_streams", Exhausted, "The server has too many open streams.";
    RateLimited, "rate_limited", Exhausted, "The credential's rate is used up.";
    NotLeader, "not_leader", Unavailable,
        "The server is not the leader; nothing was executed.";
    Stopping, "stopping", Unavailable, "The server is shutting down; nothing was executed.";
    StoreUnavailable, "store_unavailable", Unavailable, "The server's store does not answer.";
    ShardUnavailable, "shard_unavailable", Unavailable,
        "A shard that this call needs does not answer.";
    WaitTimeout, "wait_timeout", Deadline, "The task did not finish within the time waited.";
    WatchTooSlow, "watch_too_slow", WatchLost,
        "The watcher read too slowly and the server dropped it.";
    CursorUnknown, "cursor_unknown", WatchLost, "The server cannot resume from this cursor.";
    Unsupported, "unsupported", Unsupported, "The server does not know this call.";
    IdsExhausted, "ids_exhausted", Internal, "The server has no task ids left.";
    Internal, "internal", Internal, "The server failed.";
}

impl ErrorReason {
    /// The reason that a server named, `None` for one that this version does not know.
    #[must_use]
    pub fn from_wire(word: &str) -> Option<Self> {
        let word = word.to_ascii_lowercase();
        let word = word.strip_prefix("error_reason_").unwrap_or(&word);
        Self::ALL.iter().copied().find(|reason| reason.word() == word)
    }

    /// With these the server has done nothing, whatever the call was.
    pub(crate) const fn says_not_executed(self) -> bool {
        matches!(self, Self::NotLeader | Self::Stopping)
    }
}

impl fmt::Display for ErrorReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// How a task ended that did not succeed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TaskFailure {
    /// The task.
    pub task_id: u64,
    /// Its terminal status.
    pub status: TaskStatus,
    /// Why, in the words of its worker or server.
    pub message: String,
}

/// A call that failed. Cheap to clone: callers that shared a request share its error.
#[derive(Clone)]
pub struct Error(Arc<Inner>);

#[derive(Clone)]
struct Inner {
    kind: ErrorKind,
    reason: Option<ErrorReason>,
    message: String,
    details: BTreeMap<String, String>,
    executed: Option<bool>,
    failure: Option<TaskFailure>,
    source: Option<Arc<dyn StdError + Send + Sync>>,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self(Arc::new(Inner {
            kind,
            reason: None,
            message: message.into(),
            details: BTreeMap::new(),
            executed: None,
            failure: None,
            source: None,
        }))
    }

    /// An error of a reason: its kind follows, unless the gRPC status says another.
    pub(crate) fn of(reason: ErrorReason, message: impl Into<String>) -> Self {
        Self::new(reason.kind(), message).with_reason(Some(reason))
    }

    /// The error for a gRPC status.
    pub(crate) fn from_code(code: Code, reason: Option<ErrorReason>, message: &str) -> Self {
        let kind = reason.map_or_else(|| kind_of(code), ErrorReason::kind);
        let text = match (message, reason) {
            ("", Some(reason)) => reason.text().to_owned(),
            ("", None) => code_name(code).to_ascii_lowercase(),
            (text, _) => text.to_owned(),
        };
        Self::new(kind, text).with_reason(reason)
    }

    pub(crate) fn task_failed(failure: TaskFailure) -> Self {
        let TaskFailure { task_id, status, message } = &failure;
        let text = if message.is_empty() {
            format!("task {task_id} {status}")
        } else {
            format!("task {task_id} {status}: {message}")
        };
        Self::new(ErrorKind::TaskFailed, text).changed(|inner| inner.failure = Some(failure))
    }

    pub(crate) fn closed() -> Self {
        Self::new(ErrorKind::Closed, "the client is closed")
    }

    fn changed(mut self, change: impl FnOnce(&mut Inner)) -> Self {
        change(Arc::make_mut(&mut self.0));
        self
    }

    pub(crate) fn with_reason(self, reason: Option<ErrorReason>) -> Self {
        self.changed(|inner| {
            inner.reason = reason;
            if reason.is_some_and(ErrorReason::says_not_executed) {
                inner.executed = Some(false);
            }
        })
    }

    pub(crate) fn with_details(self, details: BTreeMap<String, String>) -> Self {
        self.changed(|inner| inner.details = details)
    }

    /// Says that the server certainly did nothing.
    pub(crate) fn never_executed(self) -> Self {
        self.changed(|inner| inner.executed = Some(false))
    }

    pub(crate) fn caused_by(self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.changed(|inner| inner.source = Some(Arc::from(source.into())))
    }

    /// The family of the error.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The server's reason, if it gave one.
    #[must_use]
    pub fn reason(&self) -> Option<ErrorReason> {
        self.0.reason
    }

    /// What happened, for people.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// What the server added: field, limit, shard, endpoint, index and the like.
    #[must_use]
    pub fn details(&self) -> &BTreeMap<String, String> {
        &self.0.details
    }

    /// `Some(false)` when the server certainly did nothing, `None` when that is unknown.
    #[must_use]
    pub fn executed(&self) -> Option<bool> {
        self.0.executed
    }

    /// How the task ended, for [`ErrorKind::TaskFailed`].
    #[must_use]
    pub fn task_failure(&self) -> Option<&TaskFailure> {
        self.0.failure.as_ref()
    }

    /// True when the same call may succeed at another time or server.
    #[must_use]
    pub fn is_unavailable(&self) -> bool {
        self.0.kind == ErrorKind::Unavailable
    }

    /// True when time was up.
    #[must_use]
    pub fn is_deadline(&self) -> bool {
        self.0.kind == ErrorKind::Deadline
    }

    pub(crate) fn is_unsupported(&self) -> bool {
        self.0.kind == ErrorKind::Unsupported
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Error")
            .field("kind", &self.0.kind)
            .field("reason", &self.0.reason)
            .field("message", &self.0.message)
            .field("details", &self.0.details)
            .field("executed", &self.0.executed)
            .finish_non_exhaustive()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source.as_deref().map(|source| source as &(dyn StdError + 'static))
    }
}

/// The family of a status without a reason.
fn kind_of(code: Code) -> ErrorKind {
    match code {
        Code::InvalidArgument | Code::OutOfRange => ErrorKind::InvalidRequest,
        Code::Unauthenticated => ErrorKind::Unauthenticated,
        Code::PermissionDenied => ErrorKind::PermissionDenied,
        Code::NotFound => ErrorKind::NotFound,
        Code::FailedPrecondition | Code::AlreadyExists => ErrorKind::Conflict,
        Code::Aborted | Code::Cancelled | Code::Unavailable => ErrorKind::Unavailable,
        Code::ResourceExhausted => ErrorKind::Exhausted,
        Code::DeadlineExceeded => ErrorKind::Deadline,
        Code::DataLoss => ErrorKind::WatchLost,
        Code::Unimplemented => ErrorKind::Unsupported,
        Code::Ok | Code::Unknown | Code::Internal => ErrorKind::Internal,
    }
}

/// The name that gRPC gives a status code, such as `NOT_FOUND`.
pub(crate) fn code_name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "CANCELLED",
        Code::Unknown => "UNKNOWN",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        Code::NotFound => "NOT_FOUND",
        Code::AlreadyExists => "ALREADY_EXISTS",
        Code::PermissionDenied => "PERMISSION_DENIED",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::FailedPrecondition => "FAILED_PRECONDITION",
        Code::Aborted => "ABORTED",
        Code::OutOfRange => "OUT_OF_RANGE",
        Code::Unimplemented => "UNIMPLEMENTED",
        Code::Internal => "INTERNAL",
        Code::Unavailable => "UNAVAILABLE",
        Code::DataLoss => "DATA_LOSS",
        Code::Unauthenticated => "UNAUTHENTICATED",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every reason of the contract has its variant, and the other way round.
    #[test]
    fn reasons_are_those_of_the_contract() {
        let mut wire: Vec<&str> = Vec::new();
        for number in 1.. {
            let Ok(reason) = crate::proto::ErrorReason::try_from(number) else { break };
            wire.push(reason.as_str_name());
        }
        assert_eq!(wire.len(), ErrorReason::ALL.len());
        for name in wire {
            assert!(ErrorReason::from_wire(name).is_some(), "{name}");
        }
    }

    /// A reason decides the kind; without one the status does.
    #[test]
    fn kind_follows_from_reason_or_status() {
        let known = Error::from_code(Code::NotFound, Some(ErrorReason::TaskUnknown), "");
        assert_eq!(known.kind(), ErrorKind::NotFound);
        assert_eq!(known.message(), "There is no such task.");
        let denied = Error::from_code(Code::PermissionDenied, Some(ErrorReason::KeyInUse), "");
        assert_eq!(denied.kind(), ErrorKind::Conflict);
        assert_eq!(Error::from_code(Code::Aborted, None, "x").kind(), ErrorKind::Unavailable);
        assert!(ErrorReason::from_wire("a_reason_of_tomorrow").is_none());
    }

    /// A standby and a stopping server say that nothing was executed.
    #[test]
    fn refusals_by_standbys_executed_nothing() {
        let refused = Error::from_code(Code::Unavailable, Some(ErrorReason::NotLeader), "");
        assert_eq!(refused.executed(), Some(false));
        assert_eq!(Error::from_code(Code::Unavailable, None, "").executed(), None);
    }
}
