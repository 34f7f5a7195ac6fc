"""Decides which exception a refusal, a failed task or a broken call becomes.

    CronoqError
    ├── InvalidRequestError            the call can never succeed as it is (INVALID_ARGUMENT)
    │   ├── InvalidFieldError · FieldConflictError · TooLargeError · CycleError
    │   ├── DuplicateKeyInBatchError · BatchTooLargeError
    │   ├── ResourceUnknownError · ResourceExceedsCapacityError
    │   ├── CrossShardDependencyError · CrossShardBatchError · CrossShardResourceError
    │   └── CronInvalidError · CronNeverFiresError · ZoneUnknownError
    ├── UnauthenticatedError           no valid credential (UNAUTHENTICATED)
    ├── PermissionDeniedError          the credential does not allow it (PERMISSION_DENIED)
    │   └── RoleNotAllowedError · PoolNotAllowedError · LabelNotAllowedError
    │       · TenantNotAllowedError
    ├── NotFoundError                  (NOT_FOUND)
    │   └── TaskUnknownError · PoolUnknownError · DependencyUnknownError
    │       · ScheduleUnknownError · ResourceNotFoundError
    ├── ConflictError                  the present state forbids it (FAILED_PRECONDITION)
    │   └── ReservationConflictError · WrongShardError · KeyAmbiguousError · KeyInUseError
    │       · DependencyImpossibleError · NotTerminalError
    ├── ExhaustedError                 a limit is reached, try later (RESOURCE_EXHAUSTED)
    │   └── QueueFullError · ShedNoneError · TooManyRequestsError · TooManyStreamsError
    │       · RateLimitedError
    ├── UnavailableError               nobody can serve it now (UNAVAILABLE)
    │   └── NotLeaderError · StoppingError · StoreUnavailableError · ShardUnavailableError
    ├── DeadlineError                  the caller's time is up (DEADLINE_EXCEEDED)
    │   └── WaitTimeoutError
    ├── WatchLostError                 a watch cannot go on without a gap (DATA_LOSS)
    │   └── WatchTooSlowError · CursorUnknownError
    ├── UnsupportedError               this server does not know the call (UNIMPLEMENTED)
    ├── InternalError                  (INTERNAL and anything unexpected)
    │   └── IdsExhaustedError
    ├── TaskFailedError                result() of a task that did not succeed
    ├── OutputUnavailableError         the output is no longer kept
    ├── PayloadError                   bytes and values do not match
    ├── GaveUpError                    a worker met an answer that no retry can change
    └── ClosedError                    the client or worker was closed

Every reason of the wire has exactly one class. The docstring of a class is its default message.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import ClassVar

__all__ = [
    "BatchTooLargeError",
    "ClosedError",
    "ConflictError",
    "CronInvalidError",
    "CronNeverFiresError",
    "CronoqError",
    "CrossShardBatchError",
    "CrossShardDependencyError",
    "CrossShardResourceError",
    "CursorUnknownError",
    "CycleError",
    "DeadlineError",
    "DependencyImpossibleError",
    "DependencyUnknownError",
    "DuplicateKeyInBatchError",
    "ErrorReason",
    "ExhaustedError",
    "FieldConflictError",
    "GaveUpError",
    "IdsExhaustedError",
    "InternalError",
    "InvalidFieldError",
    "InvalidRequestError",
    "KeyAmbiguousError",
    "KeyInUseError",
    "LabelNotAllowedError",
    "NotFoundError",
    "NotLeaderError",
    "NotTerminalError",
    "OutputUnavailableError",
    "PayloadError",
    "PermissionDeniedError",
    "PoolNotAllowedError",
    "PoolUnknownError",
    "QueueFullError",
    "RateLimitedError",
    "ReservationConflictError",
    "ResourceExceedsCapacityError",
    "ResourceNotFoundError",
    "ResourceUnknownError",
    "RoleNotAllowedError",
    "ScheduleUnknownError",
    "ShardUnavailableError",
    "ShedNoneError",
    "StoppingError",
    "StoreUnavailableError",
    "TaskFailedError",
    "TaskUnknownError",
    "TenantNotAllowedError",
    "TooLargeError",
    "TooManyRequestsError",
    "TooManyStreamsError",
    "UnauthenticatedError",
    "UnavailableError",
    "UnsupportedError",
    "WaitTimeoutError",
    "WatchLostError",
    "WatchTooSlowError",
    "WrongShardError",
    "ZoneUnknownError",
    "error_for",
]


class ErrorReason(enum.Enum):
    """Why a server refused, one word for all languages. The values are the words of the wire."""

    INVALID_FIELD = "invalid_field"
    FIELD_CONFLICT = "field_conflict"
    TOO_LARGE = "too_large"
    CYCLE = "cycle"
    DUPLICATE_KEY_IN_BATCH = "duplicate_key_in_batch"
    BATCH_TOO_LARGE = "batch_too_large"
    RESOURCE_UNKNOWN = "resource_unknown"
    RESOURCE_EXCEEDS_CAPACITY = "resource_exceeds_capacity"
    CROSS_SHARD_DEPENDENCY = "cross_shard_dependency"
    CROSS_SHARD_BATCH = "cross_shard_batch"
    CROSS_SHARD_RESOURCE = "cross_shard_resource"
    CRON_INVALID = "cron_invalid"
    CRON_NEVER_FIRES = "cron_never_fires"
    ZONE_UNKNOWN = "zone_unknown"
    UNAUTHENTICATED = "unauthenticated"
    ROLE_NOT_ALLOWED = "role_not_allowed"
    POOL_NOT_ALLOWED = "pool_not_allowed"
    LABEL_NOT_ALLOWED = "label_not_allowed"
    TENANT_NOT_ALLOWED = "tenant_not_allowed"
    TASK_UNKNOWN = "task_unknown"
    POOL_UNKNOWN = "pool_unknown"
    DEPENDENCY_UNKNOWN = "dependency_unknown"
    SCHEDULE_UNKNOWN = "schedule_unknown"
    RESOURCE_NOT_FOUND = "resource_not_found"
    RESERVATION_CONFLICT = "reservation_conflict"
    WRONG_SHARD = "wrong_shard"
    KEY_AMBIGUOUS = "key_ambiguous"
    KEY_IN_USE = "key_in_use"
    DEPENDENCY_IMPOSSIBLE = "dependency_impossible"
    NOT_TERMINAL = "not_terminal"
    QUEUE_FULL = "queue_full"
    SHED_NONE = "shed_none"
    TOO_MANY_REQUESTS = "too_many_requests"
    TOO_MANY_STREAMS = "too_many_streams"
    RATE_LIMITED = "rate_limited"
    NOT_LEADER = "not_leader"
    STOPPING = "stopping"
    STORE_UNAVAILABLE = "store_unavailable"
    SHARD_UNAVAILABLE = "shard_unavailable"
    WAIT_TIMEOUT = "wait_timeout"
    WATCH_TOO_SLOW = "watch_too_slow"
    CURSOR_UNKNOWN = "cursor_unknown"
    UNSUPPORTED = "unsupported"
    IDS_EXHAUSTED = "ids_exhausted"
    INTERNAL = "internal"

    @classmethod
    def from_wire(cls, word: str) -> ErrorReason | None:
        """Returns the reason that a server named, or None for one this version does not know."""
        return _REASONS_BY_WORD.get(word.lower().removeprefix("error_reason_"))


_REASONS_BY_WORD = {reason.value: reason for reason in ErrorReason}


class CronoqError(Exception):
    """The call failed."""

    default_reason: ClassVar[ErrorReason | None] = None

    def __init__(
        self,
        message: str = "",
        *,
        reason: ErrorReason | None = None,
        details: Mapping[str, str] | None = None,
        executed: bool | None = None,
    ) -> None:
        """Makes the error.

        Args:
            message: What happened; the first line of the class docstring when empty.
            reason: The server's reason, if it gave one.
            details: What the server added: field, limit, shard, endpoint, index and the like.
            executed: False when the server certainly did nothing, None when that is unknown.
        """
        text = message or (type(self).__doc__ or "").strip().splitlines()[0]
        super().__init__(text)
        self.message = text
        self.reason = reason if reason is not None else self.default_reason
        self.details: Mapping[str, str] = details or {}
        self.executed = executed


class InvalidRequestError(CronoqError):
    """The request can never succeed as it is."""


class InvalidFieldError(InvalidRequestError):
    """A field has a value that is not allowed."""

    default_reason = ErrorReason.INVALID_FIELD


class FieldConflictError(InvalidRequestError):
    """Two fields exclude each other."""

    default_reason = ErrorReason.FIELD_CONFLICT


class TooLargeError(InvalidRequestError):
    """The task or message is larger than the limit."""

    default_reason = ErrorReason.TOO_LARGE


class CycleError(InvalidRequestError):
    """The dependencies form a cycle."""

    default_reason = ErrorReason.CYCLE


class DuplicateKeyInBatchError(InvalidRequestError):
    """Two tasks of one batch have the same key."""

    default_reason = ErrorReason.DUPLICATE_KEY_IN_BATCH


class BatchTooLargeError(InvalidRequestError):
    """The batch has more tasks than the limit."""

    default_reason = ErrorReason.BATCH_TOO_LARGE


class ResourceUnknownError(InvalidRequestError):
    """The task names a resource that is not configured."""

    default_reason = ErrorReason.RESOURCE_UNKNOWN


class ResourceExceedsCapacityError(InvalidRequestError):
    """The task asks for more of a resource than there can ever be."""

    default_reason = ErrorReason.RESOURCE_EXCEEDS_CAPACITY


class CrossShardDependencyError(InvalidRequestError):
    """A task cannot depend on a task of another shard."""

    default_reason = ErrorReason.CROSS_SHARD_DEPENDENCY


class CrossShardBatchError(InvalidRequestError):
    """A batch cannot hold tasks of several shards."""

    default_reason = ErrorReason.CROSS_SHARD_BATCH


class CrossShardResourceError(InvalidRequestError):
    """A task cannot use a resource of another shard."""

    default_reason = ErrorReason.CROSS_SHARD_RESOURCE


class CronInvalidError(InvalidRequestError):
    """The cron expression cannot be read."""

    default_reason = ErrorReason.CRON_INVALID


class CronNeverFiresError(InvalidRequestError):
    """The cron expression names no instant that ever comes."""

    default_reason = ErrorReason.CRON_NEVER_FIRES


class ZoneUnknownError(InvalidRequestError):
    """The time zone is not known."""

    default_reason = ErrorReason.ZONE_UNKNOWN


class UnauthenticatedError(CronoqError):
    """The server does not accept the credential."""

    default_reason = ErrorReason.UNAUTHENTICATED


class PermissionDeniedError(CronoqError):
    """The credential does not allow this."""


class RoleNotAllowedError(PermissionDeniedError):
    """The credential's role does not allow this call."""

    default_reason = ErrorReason.ROLE_NOT_ALLOWED


class PoolNotAllowedError(PermissionDeniedError):
    """The credential does not allow this pool."""

    default_reason = ErrorReason.POOL_NOT_ALLOWED


class LabelNotAllowedError(PermissionDeniedError):
    """The credential does not allow this label."""

    default_reason = ErrorReason.LABEL_NOT_ALLOWED


class TenantNotAllowedError(PermissionDeniedError):
    """The credential belongs to another tenant."""

    default_reason = ErrorReason.TENANT_NOT_ALLOWED


class NotFoundError(CronoqError):
    """There is no such thing."""


class TaskUnknownError(NotFoundError):
    """There is no such task."""

    default_reason = ErrorReason.TASK_UNKNOWN


class PoolUnknownError(NotFoundError):
    """There is no such pool."""

    default_reason = ErrorReason.POOL_UNKNOWN


class DependencyUnknownError(NotFoundError):
    """A task that is depended on does not exist."""

    default_reason = ErrorReason.DEPENDENCY_UNKNOWN


class ScheduleUnknownError(NotFoundError):
    """There is no such schedule."""

    default_reason = ErrorReason.SCHEDULE_UNKNOWN


class ResourceNotFoundError(NotFoundError):
    """There is no such resource."""

    default_reason = ErrorReason.RESOURCE_NOT_FOUND


class ConflictError(CronoqError):
    """The present state does not allow this."""


class ReservationConflictError(ConflictError):
    """No capacity is left to book at the asked start."""

    default_reason = ErrorReason.RESERVATION_CONFLICT


class WrongShardError(ConflictError):
    """Another shard serves this; details name its endpoint."""

    default_reason = ErrorReason.WRONG_SHARD


class KeyAmbiguousError(ConflictError):
    """Tasks of several shards have this key."""

    default_reason = ErrorReason.KEY_AMBIGUOUS


class KeyInUseError(ConflictError):
    """Another task holds this key."""

    default_reason = ErrorReason.KEY_IN_USE


class DependencyImpossibleError(ConflictError):
    """A dependency of the task can no longer be met."""

    default_reason = ErrorReason.DEPENDENCY_IMPOSSIBLE


class NotTerminalError(ConflictError):
    """The task has not finished."""

    default_reason = ErrorReason.NOT_TERMINAL


class ExhaustedError(CronoqError):
    """A limit is reached; the same call may pass later."""


class QueueFullError(ExhaustedError):
    """The queue is full."""

    default_reason = ErrorReason.QUEUE_FULL


class ShedNoneError(ExhaustedError):
    """The queue is full and nothing in it may be pushed out."""

    default_reason = ErrorReason.SHED_NONE


class TooManyRequestsError(ExhaustedError):
    """The server is busy with too many requests."""

    default_reason = ErrorReason.TOO_MANY_REQUESTS


class TooManyStreamsError(ExhaustedError):
    """The server has too many open streams."""

    default_reason = ErrorReason.TOO_MANY_STREAMS


class RateLimitedError(ExhaustedError):
    """The credential's rate is used up."""

    default_reason = ErrorReason.RATE_LIMITED


class UnavailableError(CronoqError):
    """No server could answer; whether the call took effect may be unknown."""


class NotLeaderError(UnavailableError):
    """The server is not the leader; nothing was executed."""

    default_reason = ErrorReason.NOT_LEADER


class StoppingError(UnavailableError):
    """The server is shutting down; nothing was executed."""

    default_reason = ErrorReason.STOPPING


class StoreUnavailableError(UnavailableError):
    """The server's store does not answer."""

    default_reason = ErrorReason.STORE_UNAVAILABLE


class ShardUnavailableError(UnavailableError):
    """A shard that this call needs does not answer."""

    default_reason = ErrorReason.SHARD_UNAVAILABLE


class DeadlineError(CronoqError, TimeoutError):
    """The call did not finish within its deadline; whether it took effect may be unknown."""


class WaitTimeoutError(DeadlineError):
    """The task did not finish within the time waited."""

    default_reason = ErrorReason.WAIT_TIMEOUT


class WatchLostError(CronoqError):
    """The watch cannot go on without a gap."""


class WatchTooSlowError(WatchLostError):
    """The watcher read too slowly and the server dropped it."""

    default_reason = ErrorReason.WATCH_TOO_SLOW


class CursorUnknownError(WatchLostError):
    """The server cannot resume from this cursor."""

    default_reason = ErrorReason.CURSOR_UNKNOWN


class UnsupportedError(CronoqError):
    """The server does not know this call."""

    default_reason = ErrorReason.UNSUPPORTED


class InternalError(CronoqError):
    """The server failed."""

    default_reason = ErrorReason.INTERNAL


class IdsExhaustedError(InternalError):
    """The server has no task ids left."""

    default_reason = ErrorReason.IDS_EXHAUSTED


class TaskFailedError(CronoqError):
    """The task ended without success."""

    def __init__(self, task_id: int, status: str, message: str) -> None:
        """Makes the error of task `task_id` that ended as `status` with the server's `message`."""
        super().__init__(f"task {task_id} {status}" + (f": {message}" if message else ""))
        self.task_id = task_id
        self.status = status
        self.task_message = message


class OutputUnavailableError(CronoqError):
    """The task succeeded but its output is no longer kept."""


class PayloadError(CronoqError):
    """The bytes and the wanted value do not match."""


class GaveUpError(CronoqError):
    """The worker met an answer that no retry can change."""


class ClosedError(CronoqError):
    """The client or worker is closed."""


# gRPC status code names, for servers that give no reason.
_BY_CODE: dict[str, type[CronoqError]] = {
    "INVALID_ARGUMENT": InvalidRequestError,
    "OUT_OF_RANGE": InvalidRequestError,
    "UNAUTHENTICATED": UnauthenticatedError,
    "PERMISSION_DENIED": PermissionDeniedError,
    "NOT_FOUND": NotFoundError,
    "FAILED_PRECONDITION": ConflictError,
    "ALREADY_EXISTS": ConflictError,
    "ABORTED": UnavailableError,
    "CANCELLED": UnavailableError,
    "RESOURCE_EXHAUSTED": ExhaustedError,
    "UNAVAILABLE": UnavailableError,
    "DEADLINE_EXCEEDED": DeadlineError,
    "DATA_LOSS": WatchLostError,
    "UNIMPLEMENTED": UnsupportedError,
}


def _classes_by_reason() -> dict[ErrorReason, type[CronoqError]]:
    found: dict[ErrorReason, type[CronoqError]] = {}
    waiting: list[type[CronoqError]] = [CronoqError]
    while waiting:
        kind = waiting.pop()
        waiting.extend(kind.__subclasses__())
        reason = kind.__dict__.get("default_reason")
        if reason is not None:
            found[reason] = kind
    return found


_BY_REASON = _classes_by_reason()

# With these the server has done nothing, whatever the call was.
NOT_EXECUTED_REASONS = frozenset({ErrorReason.NOT_LEADER, ErrorReason.STOPPING})


def error_for(
    code: str,
    message: str,
    *,
    reason: ErrorReason | None = None,
    details: Mapping[str, str] | None = None,
    executed: bool | None = None,
) -> CronoqError:
    """Returns the exception for a gRPC status.

    Args:
        code: Name of the status code, such as `NOT_FOUND`.
        message: The server's text.
        reason: The machine-readable reason, if there was one.
        details: Metadata of the reason.
        executed: False when the caller knows that nothing was executed.
    """
    kind = _BY_REASON.get(reason) if reason is not None else None
    if kind is None:
        kind = _BY_CODE.get(code, InternalError)
    if reason in NOT_EXECUTED_REASONS:
        executed = False
    return kind(message, reason=reason, details=details, executed=executed)
