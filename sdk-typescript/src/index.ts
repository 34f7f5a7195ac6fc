/**
 * Client and worker for a cronoq server.
 *
 *     new Client({ endpoint })            submit, wait, list, watch, cancel
 *     new Worker({ endpoint, slots })     runs handlers for tasks
 *     errors                              every error, as a tree
 *     cronoq/testing                      run a handler without a server; a server with a test clock
 *     cronoq/thread                       run handlers that compute in threads
 *     cronoq/opentelemetry                traces
 */

export {
  AdminCalls,
  type BackfillOptions,
  type CallOptions,
  type PreviewOptions,
  type ResourceSize,
  type ScheduleCallOptions,
} from "./admin.js";
export {
  Attempt,
  Cancel,
  type End,
  type Interceptor,
  type OutputOptions,
  Permanent,
  Reject,
  Retryable,
  type RetryableOptions,
} from "./attempt.js";
export {
  type BulkOptions,
  Client,
  type ListOptions,
  type ResultOptions,
  TaskHandle,
  type WaitOptions,
  type WatchOptions,
} from "./client.js";
export { EndpointError } from "./endpoint.js";
export * from "./errors.js";
export type { HandlerFunction } from "./handlers.js";
export type { Logger } from "./logger.js";
export type {
  Backfill,
  Gathered,
  PoolSnapshot,
  ResourceInfo,
  ScheduleDetail,
  ScheduleInfo,
  Snapshot,
  Totals,
  WorkerGroup,
  WorkerInfo,
} from "./operations.js";
export type {
  Backoff,
  ClientOptions,
  ConnectOptions,
  Keepalive,
  OnSubmit,
  Submission,
  TlsOptions,
  WorkerOptions,
} from "./options.js";
export { TaskPages } from "./pages.js";
export {
  BYTES,
  type Codec,
  type Encoded,
  JsonCodec,
  MsgpackCodec,
  type Parser,
  type Transform,
  TransformingCodec,
  type ZlibOptions,
  ZlibTransform,
} from "./payload.js";
export {
  BulkAction,
  CatchUp,
  type Dep,
  EdgeCond,
  Fold,
  Gap,
  type HasId,
  type Instant,
  isTerminal,
  MissPolicy,
  newKey,
  Overlap,
  Priority,
  type RetryPolicy,
  type ScheduleSpec,
  type TaskFilter,
  type TaskOptions,
  type TaskSpec,
  TaskStatus,
} from "./spec.js";
export { VERSION } from "./version.js";
export type {
  AttemptRecord,
  BulkOutcome,
  ParentRecord,
  Progress,
  StatusEvent,
  TaskDetail,
  TaskInfo,
  TaskResult,
} from "./views.js";
export { type SignalOptions, type StopOptions, Worker } from "./worker.js";
