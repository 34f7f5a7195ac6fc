/**
 * Decides which error a refusal, a failed task or a broken call becomes.
 *
 *     CronoqError
 *     ├── InvalidRequestError            the call can never succeed as it is (INVALID_ARGUMENT)
 *     │   ├── InvalidFieldError · FieldConflictError · TooLargeError · CycleError
 *     │   ├── DuplicateKeyInBatchError · BatchTooLargeError
 *     │   ├── ResourceUnknownError · ResourceExceedsCapacityError
 *     │   ├── CrossShardDependencyError · CrossShardBatchError · CrossShardResourceError
 *     │   └── CronInvalidError · CronNeverFiresError · ZoneUnknownError
 *     ├── UnauthenticatedError           no valid credential (UNAUTHENTICATED)
 *     ├── PermissionDeniedError          the credential does not allow it (PERMISSION_DENIED)
 *     │   └── RoleNotAllowedError · PoolNotAllowedError · LabelNotAllowedError
 *     │       · TenantNotAllowedError
 *     ├── NotFoundError                  (NOT_FOUND)
 *     │   └── TaskUnknownError · PoolUnknownError · DependencyUnknownError
 *     │       · ScheduleUnknownError · ResourceNotFoundError
 *     ├── ConflictError                  the present state forbids it (FAILED_PRECONDITION)
 *     │   └── ReservationConflictError · WrongShardError · KeyAmbiguousError · KeyInUseError
 *     │       · DependencyImpossibleError · NotTerminalError
 *     ├── ExhaustedError                 a limit is reached, try later (RESOURCE_EXHAUSTED)
 *     │   └── QueueFullError · ShedNoneError · TooManyRequestsError · TooManyStreamsError
 *     │       · RateLimitedError
 *     ├── UnavailableError               nobody can serve it now (UNAVAILABLE)
 *     │   └── NotLeaderError · StoppingError · StoreUnavailableError · ShardUnavailableError
 *     ├── DeadlineError                  the caller's time is up (DEADLINE_EXCEEDED)
 *     │   └── WaitTimeoutError
 *     ├── WatchLostError                 a watch cannot go on without a gap (DATA_LOSS)
 *     │   └── WatchTooSlowError · CursorUnknownError
 *     ├── UnsupportedError               this server does not know the call (UNIMPLEMENTED)
 *     ├── InternalError                  (INTERNAL and anything unexpected)
 *     │   └── IdsExhaustedError
 *     ├── TaskFailedError                result() of a task that did not succeed
 *     ├── OutputUnavailableError         the output is no longer kept
 *     ├── PayloadError                   bytes and values do not match
 *     ├── GaveUpError                    a worker met an answer that no retry can change
 *     └── ClosedError                    the client or worker was closed
 *
 * Every reason of the wire has exactly one class.
 */

/** Why a server refused: one word for all languages. The values are the words of the wire. */
export const ErrorReason = {
  INVALID_FIELD: "invalid_field",
  FIELD_CONFLICT: "field_conflict",
  TOO_LARGE: "too_large",
  CYCLE: "cycle",
  DUPLICATE_KEY_IN_BATCH: "duplicate_key_in_batch",
  BATCH_TOO_LARGE: "batch_too_large",
  RESOURCE_UNKNOWN: "resource_unknown",
  RESOURCE_EXCEEDS_CAPACITY: "resource_exceeds_capacity",
  CROSS_SHARD_DEPENDENCY: "cross_shard_dependency",
  CROSS_SHARD_BATCH: "cross_shard_batch",
  CROSS_SHARD_RESOURCE: "cross_shard_resource",
  CRON_INVALID: "cron_invalid",
  CRON_NEVER_FIRES: "cron_never_fires",
  ZONE_UNKNOWN: "zone_unknown",
  UNAUTHENTICATED: "unauthenticated",
  ROLE_NOT_ALLOWED: "role_not_allowed",
  POOL_NOT_ALLOWED: "pool_not_allowed",
  LABEL_NOT_ALLOWED: "label_not_allowed",
  TENANT_NOT_ALLOWED: "tenant_not_allowed",
  TASK_UNKNOWN: "task_unknown",
  POOL_UNKNOWN: "pool_unknown",
  DEPENDENCY_UNKNOWN: "dependency_unknown",
  SCHEDULE_UNKNOWN: "schedule_unknown",
  RESOURCE_NOT_FOUND: "resource_not_found",
  RESERVATION_CONFLICT: "reservation_conflict",
  WRONG_SHARD: "wrong_shard",
  KEY_AMBIGUOUS: "key_ambiguous",
  KEY_IN_USE: "key_in_use",
  DEPENDENCY_IMPOSSIBLE: "dependency_impossible",
  NOT_TERMINAL: "not_terminal",
  QUEUE_FULL: "queue_full",
  SHED_NONE: "shed_none",
  TOO_MANY_REQUESTS: "too_many_requests",
  TOO_MANY_STREAMS: "too_many_streams",
  RATE_LIMITED: "rate_limited",
  NOT_LEADER: "not_leader",
  STOPPING: "stopping",
  STORE_UNAVAILABLE: "store_unavailable",
  SHARD_UNAVAILABLE: "shard_unavailable",
  WAIT_TIMEOUT: "wait_timeout",
  WATCH_TOO_SLOW: "watch_too_slow",
  CURSOR_UNKNOWN: "cursor_unknown",
  UNSUPPORTED: "unsupported",
  IDS_EXHAUSTED: "ids_exhausted",
  INTERNAL: "internal",
} as const;

/** One of the reasons. */
export type ErrorReason = (typeof ErrorReason)[keyof typeof ErrorReason];

const REASONS_BY_WORD = new Map<string, ErrorReason>(
  Object.values(ErrorReason).map((reason) => [reason, reason]),
);

/** Returns the reason that a server named, or undefined for one that this version does not know. */
export function reasonOf(word: string): ErrorReason | undefined {
  return REASONS_BY_WORD.get(word.toLowerCase().replace(/^error_reason_/, ""));
}

/** What an error is made of beside its message. */
export interface CronoqErrorOptions {
  /** The server's reason, if it gave one. */
  readonly reason?: ErrorReason | undefined;
  /** What the server added: field, limit, shard, endpoint, index and the like. */
  readonly details?: Readonly<Record<string, string>> | undefined;
  /** False when the server certainly did nothing, undefined when that is unknown. */
  readonly executed?: false | undefined;
  /** What brought it about. */
  readonly cause?: unknown;
}

/** The call failed. */
export class CronoqError extends Error {
  static readonly defaultReason: ErrorReason | undefined = undefined;
  static readonly defaultMessage: string = "The call failed.";

  /** The server's reason, if there is one. */
  readonly reason: ErrorReason | undefined;
  /** What the server added: field, limit, shard, endpoint, index and the like. */
  readonly details: Readonly<Record<string, string>>;
  /** False when the server certainly did nothing, undefined when that is unknown. */
  readonly executed: false | undefined;

  constructor(message = "", options: CronoqErrorOptions = {}) {
    const kind = new.target;
    super(
      message === "" ? kind.defaultMessage : message,
      options.cause === undefined ? undefined : { cause: options.cause },
    );
    this.name = kind.name;
    this.reason = options.reason ?? kind.defaultReason;
    this.details = options.details ?? {};
    this.executed = options.executed;
  }
}

/** The request can never succeed as it is. */
export class InvalidRequestError extends CronoqError {
  static override readonly defaultMessage: string = "The request can never succeed as it is.";
}

/** A field has a value that is not allowed. */
export class InvalidFieldError extends InvalidRequestError {
  static override readonly defaultReason: ErrorReason = ErrorReason.INVALID_FIELD;
  static override readonly defaultMessage: string = "A field has a value that is not allowed.";
}

/** Two fields exclude each other. */
export class FieldConflictError extends InvalidRequestError {
  static override readonly defaultReason: ErrorReason = ErrorReason.FIELD_CONFLICT;
  static override readonly defaultMessage: string = "Two fields exclude each other.";
}

/** The task or message is larger than the limit. */
export class TooLargeError extends InvalidRequestError {
  static override readonly defaultReason: ErrorReason = ErrorReason.TOO_LARGE;
  static override readonly defaultMessage: string = "The task or message is larger than the limit.";
}

/** The dependencies form a cycle. */
export class CycleError extends InvalidRequestError {
  static override readonly defaultReason: ErrorReason = ErrorReason.CYCLE;
  static override readonly defaultMessage: string = "The dependencies form a cycle.";
}

/** Two tasks of one batch have the same key. */
export class DuplicateKeyInBatchError extends InvalidRequestError {
  static override readonly defaultReason: ErrorReason = ErrorReason.DUPLICATE_KEY_IN_BATCH;
  static override readonly defaultMessage: string = "Two tasks of one batch have the same key.";
}

/** The batch has more tasks than the limit. */
export class BatchTooLargeError extends InvalidRequestError {
  static override readonly defaultReason: ErrorReason = ErrorReason.BATCH_TOO_LARGE;
  static override readonly defaultMessage: string = "The batch has more tasks than the limit.";
}

/** The task names a resource that is not configured. */
export class ResourceUnknownError extends InvalidRequestError {
  static override readonly defaultReason: ErrorReason = ErrorReason.RESOURCE_UNKNOWN;
  static override readonly defaultMessage: string =
    "The task names a resource that is not configured.";
}

/** The task asks for more of a resource than there can ever be. */
export class ResourceExceedsCapacityError extends InvalidRequestError {
  static override readonly defaultReason: ErrorReason = ErrorReason.RESOURCE_EXCEEDS_CAPACITY;
  static override readonly defaultMessage: string =
    "The task asks for more of a resource than there can ever be.";
}

/** A task cannot depend on a task of another shard. */
export class CrossShardDependencyError extends InvalidRequestError {
  static override readonly defaultReason: ErrorReason = ErrorReason.CROSS_SHARD_DEPENDENCY;
  static override readonly defaultMessage: string =
    "A task cannot depend on a task of another shard.";
}

/** A batch cannot hold tasks of several shards. */
export class CrossShardBatchError extends InvalidRequestError {
  static override readonly defaultReason: ErrorReason = ErrorReason.CROSS_SHARD_BATCH;
  static override readonly defaultMessage: string = "A batch cannot hold tasks of several shards.";
}

/** A task cannot use a resource of another shard. */
export class CrossShardResourceError extends InvalidRequestError {
  static override readonly defaultReason: ErrorReason = ErrorReason.CROSS_SHARD_RESOURCE;
  static override readonly defaultMessage: string =
    "A task cannot use a resource of another shard.";
}

/** The cron expression cannot be read. */
export class CronInvalidError extends InvalidRequestError {
  static override readonly defaultReason: ErrorReason = ErrorReason.CRON_INVALID;
  static override readonly defaultMessage: string = "The cron expression cannot be read.";
}

/** The cron expression names no instant that ever comes. */
export class CronNeverFiresError extends InvalidRequestError {
  static override readonly defaultReason: ErrorReason = ErrorReason.CRON_NEVER_FIRES;
  static override readonly defaultMessage: string =
    "The cron expression names no instant that ever comes.";
}

/** The time zone is not known. */
export class ZoneUnknownError extends InvalidRequestError {
  static override readonly defaultReason: ErrorReason = ErrorReason.ZONE_UNKNOWN;
  static override readonly defaultMessage: string = "The time zone is not known.";
}

/** The server does not accept the credential. */
export class UnauthenticatedError extends CronoqError {
  static override readonly defaultReason: ErrorReason = ErrorReason.UNAUTHENTICATED;
  static override readonly defaultMessage: string = "The server does not accept the credential.";
}

/** The credential does not allow this. */
export class PermissionDeniedError extends CronoqError {
  static override readonly defaultMessage: string = "The credential does not allow this.";
}

/** The credential's role does not allow this call. */
export class RoleNotAllowedError extends PermissionDeniedError {
  static override readonly defaultReason: ErrorReason = ErrorReason.ROLE_NOT_ALLOWED;
  static override readonly defaultMessage: string =
    "The credential's role does not allow this call.";
}

/** The credential does not allow this pool. */
export class PoolNotAllowedError extends PermissionDeniedError {
  static override readonly defaultReason: ErrorReason = ErrorReason.POOL_NOT_ALLOWED;
  static override readonly defaultMessage: string = "The credential does not allow this pool.";
}

/** The credential does not allow this label. */
export class LabelNotAllowedError extends PermissionDeniedError {
  static override readonly defaultReason: ErrorReason = ErrorReason.LABEL_NOT_ALLOWED;
  static override readonly defaultMessage: string = "The credential does not allow this label.";
}

/** The credential belongs to another tenant. */
export class TenantNotAllowedError extends PermissionDeniedError {
  static override readonly defaultReason: ErrorReason = ErrorReason.TENANT_NOT_ALLOWED;
  static override readonly defaultMessage: string = "The credential belongs to another tenant.";
}

/** There is no such thing. */
export class NotFoundError extends CronoqError {
  static override readonly defaultMessage: string = "There is no such thing.";
}

/** There is no such task. */
export class TaskUnknownError extends NotFoundError {
  static override readonly defaultReason: ErrorReason = ErrorReason.TASK_UNKNOWN;
  static override readonly defaultMessage: string = "There is no such task.";
}

/** There is no such pool. */
export class PoolUnknownError extends NotFoundError {
  static override readonly defaultReason: ErrorReason = ErrorReason.POOL_UNKNOWN;
  static override readonly defaultMessage: string = "There is no such pool.";
}

/** A task that is depended on does not exist. */
export class DependencyUnknownError extends NotFoundError {
  static override readonly defaultReason: ErrorReason = ErrorReason.DEPENDENCY_UNKNOWN;
  static override readonly defaultMessage: string = "A task that is depended on does not exist.";
}

/** There is no such schedule. */
export class ScheduleUnknownError extends NotFoundError {
  static override readonly defaultReason: ErrorReason = ErrorReason.SCHEDULE_UNKNOWN;
  static override readonly defaultMessage: string = "There is no such schedule.";
}

/** There is no such resource. */
export class ResourceNotFoundError extends NotFoundError {
  static override readonly defaultReason: ErrorReason = ErrorReason.RESOURCE_NOT_FOUND;
  static override readonly defaultMessage: string = "There is no such resource.";
}

/** The present state does not allow this. */
export class ConflictError extends CronoqError {
  static override readonly defaultMessage: string = "The present state does not allow this.";
}

/** No capacity is left to book at the asked start. */
export class ReservationConflictError extends ConflictError {
  static override readonly defaultReason: ErrorReason = ErrorReason.RESERVATION_CONFLICT;
  static override readonly defaultMessage: string =
    "No capacity is left to book at the asked start.";
}

/** Another shard serves this; details name its endpoint. */
export class WrongShardError extends ConflictError {
  static override readonly defaultReason: ErrorReason = ErrorReason.WRONG_SHARD;
  static override readonly defaultMessage: string =
    "Another shard serves this; details name its endpoint.";
}

/** Tasks of several shards have this key. */
export class KeyAmbiguousError extends ConflictError {
  static override readonly defaultReason: ErrorReason = ErrorReason.KEY_AMBIGUOUS;
  static override readonly defaultMessage: string = "Tasks of several shards have this key.";
}

/** Another task holds this key. */
export class KeyInUseError extends ConflictError {
  static override readonly defaultReason: ErrorReason = ErrorReason.KEY_IN_USE;
  static override readonly defaultMessage: string = "Another task holds this key.";
}

/** A dependency of the task can no longer be met. */
export class DependencyImpossibleError extends ConflictError {
  static override readonly defaultReason: ErrorReason = ErrorReason.DEPENDENCY_IMPOSSIBLE;
  static override readonly defaultMessage: string =
    "A dependency of the task can no longer be met.";
}

/** The task has not finished. */
export class NotTerminalError extends ConflictError {
  static override readonly defaultReason: ErrorReason = ErrorReason.NOT_TERMINAL;
  static override readonly defaultMessage: string = "The task has not finished.";
}

/** A limit is reached; the same call may pass later. */
export class ExhaustedError extends CronoqError {
  static override readonly defaultMessage: string =
    "A limit is reached; the same call may pass later.";
}

/** The queue is full. */
export class QueueFullError extends ExhaustedError {
  static override readonly defaultReason: ErrorReason = ErrorReason.QUEUE_FULL;
  static override readonly defaultMessage: string = "The queue is full.";
}

/** The queue is full and nothing in it may be pushed out. */
export class ShedNoneError extends ExhaustedError {
  static override readonly defaultReason: ErrorReason = ErrorReason.SHED_NONE;
  static override readonly defaultMessage: string =
    "The queue is full and nothing in it may be pushed out.";
}

/** The server is busy with too many requests. */
export class TooManyRequestsError extends ExhaustedError {
  static override readonly defaultReason: ErrorReason = ErrorReason.TOO_MANY_REQUESTS;
  static override readonly defaultMessage: string = "The server is busy with too many requests.";
}

/** The server has too many open streams. */
export class TooManyStreamsError extends ExhaustedError {
  static override readonly defaultReason: ErrorReason = ErrorReason.TOO_MANY_STREAMS;
  static override readonly defaultMessage: string = "The server has too many open streams.";
}

/** The credential's rate is used up. */
export class RateLimitedError extends ExhaustedError {
  static override readonly defaultReason: ErrorReason = ErrorReason.RATE_LIMITED;
  static override readonly defaultMessage: string = "The credential's rate is used up.";
}

/** No server could answer; whether the call took effect may be unknown. */
export class UnavailableError extends CronoqError {
  static override readonly defaultMessage: string =
    "No server could answer; whether the call took effect may be unknown.";
}

/** The server is not the leader; nothing was executed. */
export class NotLeaderError extends UnavailableError {
  static override readonly defaultReason: ErrorReason = ErrorReason.NOT_LEADER;
  static override readonly defaultMessage: string =
    "The server is not the leader; nothing was executed.";
}

/** The server is shutting down; nothing was executed. */
export class StoppingError extends UnavailableError {
  static override readonly defaultReason: ErrorReason = ErrorReason.STOPPING;
  static override readonly defaultMessage: string =
    "The server is shutting down; nothing was executed.";
}

/** The server's store does not answer. */
export class StoreUnavailableError extends UnavailableError {
  static override readonly defaultReason: ErrorReason = ErrorReason.STORE_UNAVAILABLE;
  static override readonly defaultMessage: string = "The server's store does not answer.";
}

/** A shard that this call needs does not answer. */
export class ShardUnavailableError extends UnavailableError {
  static override readonly defaultReason: ErrorReason = ErrorReason.SHARD_UNAVAILABLE;
  static override readonly defaultMessage: string = "A shard that this call needs does not answer.";
}

/** The call did not finish within its deadline; whether it took effect may be unknown. */
export class DeadlineError extends CronoqError {
  static override readonly defaultMessage: string =
    "The call did not finish within its deadline; whether it took effect may be unknown.";
}

/** The task did not finish within the time waited. */
export class WaitTimeoutError extends DeadlineError {
  static override readonly defaultReason: ErrorReason = ErrorReason.WAIT_TIMEOUT;
  static override readonly defaultMessage: string =
    "The task did not finish within the time waited.";
}

/** The watch cannot go on without a gap. */
export class WatchLostError extends CronoqError {
  static override readonly defaultMessage: string = "The watch cannot go on without a gap.";
}

/** The watcher read too slowly and the server dropped it. */
export class WatchTooSlowError extends WatchLostError {
  static override readonly defaultReason: ErrorReason = ErrorReason.WATCH_TOO_SLOW;
  static override readonly defaultMessage: string =
    "The watcher read too slowly and the server dropped it.";
}

/** The server cannot resume from this cursor. */
export class CursorUnknownError extends WatchLostError {
  static override readonly defaultReason: ErrorReason = ErrorReason.CURSOR_UNKNOWN;
  static override readonly defaultMessage: string = "The server cannot resume from this cursor.";
}

/** The server does not know this call. */
export class UnsupportedError extends CronoqError {
  static override readonly defaultReason: ErrorReason = ErrorReason.UNSUPPORTED;
  static override readonly defaultMessage: string = "The server does not know this call.";
}

/** The server failed. */
export class InternalError extends CronoqError {
  static override readonly defaultReason: ErrorReason = ErrorReason.INTERNAL;
  static override readonly defaultMessage: string = "The server failed.";
}

/** The server has no task ids left. */
export class IdsExhaustedError extends InternalError {
  static override readonly defaultReason: ErrorReason = ErrorReason.IDS_EXHAUSTED;
  static override readonly defaultMessage: string = "The server has no task ids left.";
}

/** The task succeeded but its output is no longer kept. */
export class OutputUnavailableError extends CronoqError {
  static override readonly defaultMessage: string =
    "The task succeeded but its output is no longer kept.";
}

/** The bytes and the wanted value do not match. */
export class PayloadError extends CronoqError {
  static override readonly defaultMessage: string = "The bytes and the wanted value do not match.";
}

/** The worker met an answer that no retry can change. */
export class GaveUpError extends CronoqError {
  static override readonly defaultMessage: string =
    "The worker met an answer that no retry can change.";
}

/** The client or worker is closed. */
export class ClosedError extends CronoqError {
  static override readonly defaultMessage: string = "The client or worker is closed.";
}

/** The task ended without success. */
export class TaskFailedError extends CronoqError {
  static override readonly defaultMessage: string = "The task ended without success.";

  /** The task. */
  readonly taskId: bigint;
  /** How it ended, such as `dead_lettered`. */
  readonly status: string;
  /** What its worker or the server said about it. */
  readonly taskMessage: string;

  constructor(taskId: bigint, status: string, message: string) {
    super(`task ${taskId} ${status}${message === "" ? "" : `: ${message}`}`);
    this.taskId = taskId;
    this.status = status;
    this.taskMessage = message;
  }
}

type ErrorClass = new (message?: string, options?: CronoqErrorOptions) => CronoqError;

// gRPC status code names, for servers that give no reason.
const BY_CODE: Readonly<Record<string, ErrorClass>> = {
  ABORTED: UnavailableError,
  ALREADY_EXISTS: ConflictError,
  CANCELLED: UnavailableError,
  DATA_LOSS: WatchLostError,
  DEADLINE_EXCEEDED: DeadlineError,
  FAILED_PRECONDITION: ConflictError,
  INVALID_ARGUMENT: InvalidRequestError,
  NOT_FOUND: NotFoundError,
  OUT_OF_RANGE: InvalidRequestError,
  PERMISSION_DENIED: PermissionDeniedError,
  RESOURCE_EXHAUSTED: ExhaustedError,
  UNAUTHENTICATED: UnauthenticatedError,
  UNAVAILABLE: UnavailableError,
  UNIMPLEMENTED: UnsupportedError,
};

const BY_REASON = new Map<ErrorReason | undefined, ErrorClass>(
  [
    InvalidFieldError,
    FieldConflictError,
    TooLargeError,
    CycleError,
    DuplicateKeyInBatchError,
    BatchTooLargeError,
    ResourceUnknownError,
    ResourceExceedsCapacityError,
    CrossShardDependencyError,
    CrossShardBatchError,
    CrossShardResourceError,
    CronInvalidError,
    CronNeverFiresError,
    ZoneUnknownError,
    UnauthenticatedError,
    RoleNotAllowedError,
    PoolNotAllowedError,
    LabelNotAllowedError,
    TenantNotAllowedError,
    TaskUnknownError,
    PoolUnknownError,
    DependencyUnknownError,
    ScheduleUnknownError,
    ResourceNotFoundError,
    ReservationConflictError,
    WrongShardError,
    KeyAmbiguousError,
    KeyInUseError,
    DependencyImpossibleError,
    NotTerminalError,
    QueueFullError,
    ShedNoneError,
    TooManyRequestsError,
    TooManyStreamsError,
    RateLimitedError,
    NotLeaderError,
    StoppingError,
    StoreUnavailableError,
    ShardUnavailableError,
    WaitTimeoutError,
    WatchTooSlowError,
    CursorUnknownError,
    UnsupportedError,
    InternalError,
    IdsExhaustedError,
  ].map((kind) => [kind.defaultReason, kind]),
);

// With these the server has done nothing, whatever the call was.
const NOT_EXECUTED: ReadonlySet<ErrorReason | undefined> = new Set([
  ErrorReason.NOT_LEADER,
  ErrorReason.STOPPING,
]);

/** Returns the error for a gRPC status, by its reason or else by the name of its code. */
export function errorFor(
  code: string,
  message: string,
  options: CronoqErrorOptions = {},
): CronoqError {
  const byReason = options.reason === undefined ? undefined : BY_REASON.get(options.reason);
  const kind = byReason ?? BY_CODE[code] ?? InternalError;
  return new kind(
    message,
    NOT_EXECUTED.has(options.reason) ? { ...options, executed: false } : options,
  );
}
