/**
 * Decides how the SDK's values stand on the wire, in both directions.
 *
 * Nothing is checked here that the server checks; only what the wire cannot hold is refused.
 */

import { InternalError, InvalidFieldError } from "./errors.js";
import * as wire from "./gen/cronoq/v1/task.js";
import type { TaskFilter as WireFilter } from "./gen/cronoq/v1/tasks.js";
import { type Codec, encodeWith } from "./payload.js";
import {
  type Dep,
  EdgeCond,
  type HasId,
  type Instant,
  MissPolicy,
  Priority,
  type RetryPolicy,
  type TaskFilter,
  type TaskSpec,
  TaskStatus,
} from "./spec.js";
import type {
  AttemptRecord,
  ParentRecord,
  Progress,
  StatusEvent,
  TaskDetail,
  TaskInfo,
  TaskResult,
} from "./views.js";

const NS_PER_MS = 1_000_000n;
const UINT64_MAX = (1n << 64n) - 1n;
const INT64_MAX = (1n << 63n) - 1n;
const UINT32_MAX = 2 ** 32 - 1;
const NOTHING = new Uint8Array(0);

/** A generated enum: names to numbers and back. */
export type WireEnum<Value extends number> = Readonly<Record<string, Value | string>>;

/** Returns the number on the wire of a word of the SDK's, 0 for none. */
export function numberOf<Value extends number>(
  names: WireEnum<Value>,
  word: string | undefined,
  field: string,
): Value {
  const number = names[word === undefined ? "UNSPECIFIED" : word.toUpperCase()];
  if (typeof number !== "number" || (word !== undefined && number === 0)) {
    throw new InvalidFieldError(`${field}: '${word ?? ""}' is not one of its values`);
  }
  return number;
}

/** Returns the SDK's word for a number on the wire, undefined for 0. */
export function wordOf<Word extends string>(
  names: WireEnum<number>,
  words: Readonly<Record<string, Word>>,
  number: number,
): Word | undefined {
  if (number === 0) {
    return undefined;
  }
  const word = words[String(names[number])];
  if (word === undefined) {
    throw new InternalError(`the server says ${number} where this version knows no such value`);
  }
  return word;
}

const STATUSES: readonly (TaskStatus | undefined)[] = Array.from({ length: 13 }, (_, number) =>
  wordOf(wire.TaskStatus, TaskStatus, number),
);

/** Returns the status of a number on the wire. */
export function readStatus(number: number): TaskStatus {
  const status = STATUSES[number];
  if (status === undefined) {
    throw new InternalError(`the server says status ${number}, which this version does not know`);
  }
  return status;
}

/** Returns an instant as Unix nanoseconds. */
export function unixNs(instant: Instant, field: string): bigint {
  const ns =
    typeof instant === "bigint"
      ? instant
      : Number.isNaN(instant.getTime())
        ? undefined
        : BigInt(instant.getTime()) * NS_PER_MS;
  if (ns === undefined || ns > INT64_MAX || ns < -INT64_MAX) {
    throw new InvalidFieldError(`${field}: no instant that nanoseconds in 64 bits can tell`);
  }
  return ns;
}

/** Returns Unix nanoseconds as a date, to the millisecond. */
export function instantOf(unixNanoseconds: bigint): Date {
  return new Date(Number(unixNanoseconds / NS_PER_MS));
}

/** Returns Unix nanoseconds as a date, or undefined for none. */
export function maybeInstant(unixNanoseconds: bigint | undefined): Date | undefined {
  return unixNanoseconds === undefined ? undefined : instantOf(unixNanoseconds);
}

/** Returns a duration in milliseconds as seconds. */
export function secondsOf(ms: number | undefined, field: string): number | undefined {
  if (ms === undefined) {
    return undefined;
  }
  if (typeof ms !== "number" || Number.isNaN(ms)) {
    throw new InvalidFieldError(`${field}: not a number of milliseconds`);
  }
  return ms / 1000;
}

/** Returns a duration in seconds as milliseconds. */
export function msOf(seconds: number | undefined): number | undefined {
  // Whole microseconds: what came from milliseconds goes back to the same number.
  return seconds === undefined ? undefined : Math.round(seconds * 1e6) / 1e3;
}

/** Returns an id, checked: what is outside 64 bits would be cut off silently. */
export function checkedId(id: bigint, field: string): bigint {
  if (typeof id !== "bigint" || id < 0n || id > UINT64_MAX) {
    throw new InvalidFieldError(`${field}: ${String(id)} is not a bigint of 64 bits`);
  }
  return id;
}

/** Returns a count, checked against its 32 bits. */
export function checkedCount(count: number | undefined, field: string): number {
  if (count === undefined) {
    return 0;
  }
  if (!Number.isInteger(count) || count < 0 || count > UINT32_MAX) {
    throw new InvalidFieldError(`${field}: ${count} is not a whole number of 32 bits`);
  }
  return count;
}

/** Says which task, by id or key. */
export function writeRef(target: bigint | string): wire.TaskRef {
  return typeof target === "string"
    ? { ref: { $case: "key", value: target } }
    : { ref: { $case: "id", value: checkedId(target, "task") } };
}

/** Returns a map of the wire. */
export function writeMap(
  pairs: Readonly<Record<string, string>> | undefined,
  field: string,
): Map<string, string> {
  const entries = Object.entries(pairs ?? {});
  for (const [name, value] of entries) {
    if (typeof value !== "string") {
      throw new InvalidFieldError(`${field}: the value of '${name}' is not a string`);
    }
  }
  return new Map(entries);
}

/** Returns the pairs of a map of the wire; a key `__proto__` is a key like any other. */
export function readMap<V>(map: ReadonlyMap<string, V>): Readonly<Record<string, V>> {
  return Object.fromEntries(map);
}

/**
 * Returns a spec as a message.
 *
 * @throws {InvalidFieldError} A value has a type or range that the wire does not hold.
 * @throws {PayloadError} The payload cannot be encoded.
 */
export function writeSpec(spec: TaskSpec, codec: Codec): wire.TaskSpec {
  const encoded = spec.payload === undefined ? undefined : encodeWith(codec, spec.payload);
  const contentType = spec.contentType ?? "";
  return {
    payload: encoded?.payload ?? NOTHING,
    contentType: contentType === "" ? (encoded?.contentType ?? "") : contentType,
    kind: spec.kind ?? "",
    pool: spec.pool ?? "",
    priority: numberOf(wire.Priority, spec.priority, "priority"),
    key: spec.key ?? "",
    deadlineInS: secondsOf(spec.deadlineInMs, "deadlineInMs"),
    deadlineUnixNs: maybeNs(spec.deadlineAt, "deadlineAt"),
    startInS: secondsOf(spec.startInMs, "startInMs"),
    startUnixNs: maybeNs(spec.startAt, "startAt"),
    toleranceS: secondsOf(spec.toleranceMs, "toleranceMs"),
    onMiss: numberOf(wire.MissPolicy, spec.onMiss, "onMiss"),
    durationHintS: secondsOf(spec.durationHintMs, "durationHintMs"),
    timeoutS: secondsOf(spec.timeoutMs, "timeoutMs"),
    retry: spec.retry === undefined ? undefined : writeRetry(spec.retry),
    deps: (spec.deps ?? []).map(writeDep),
    resources: writeAmounts(spec.resources),
    tags: writeMap(spec.tags, "tags"),
    labels: writeMap(spec.labels, "labels"),
    tenant: spec.tenant ?? "",
    traceContext: writeMap(spec.traceContext, "traceContext"),
    delayS: secondsOf(spec.delayMs, "delayMs"),
    notBeforeUnixNs: maybeNs(spec.notBefore, "notBefore"),
    expiresInS: secondsOf(spec.expiresInMs, "expiresInMs"),
  };
}

function maybeNs(instant: Instant | undefined, field: string): bigint | undefined {
  return instant === undefined ? undefined : unixNs(instant, field);
}

function writeRetry(retry: RetryPolicy): wire.RetryPolicy {
  return {
    maxAttempts: checkedCount(retry.maxAttempts, "retry.maxAttempts"),
    initialBackoffS: secondsOf(retry.initialBackoffMs ?? 0, "retry.initialBackoffMs") ?? 0,
    multiplier: retry.multiplier ?? 0,
    maxBackoffS: secondsOf(retry.maxBackoffMs ?? 0, "retry.maxBackoffMs") ?? 0,
    jitter: retry.jitter ?? true,
  };
}

function writeDep(dep: Dep | HasId | bigint | string): wire.Dep {
  if (typeof dep === "object" && "target" in dep) {
    return { target: writeRef(dep.target), cond: numberOf(wire.EdgeCond, dep.cond, "deps.cond") };
  }
  const target = typeof dep === "object" ? dep.id : dep;
  return { target: writeRef(target), cond: wire.EdgeCond.UNSPECIFIED };
}

function writeAmounts(amounts: Readonly<Record<string, number>> | undefined): Map<string, number> {
  const entries = Object.entries(amounts ?? {});
  return new Map(
    entries.map(([name, amount]) => [name, checkedCount(amount, `resources.${name}`)]),
  );
}

/** Returns a filter as a message. */
export function writeFilter(wanted: TaskFilter): WireFilter {
  return {
    pools: [...(wanted.pools ?? [])],
    statuses: (wanted.statuses ?? []).map((s) => numberOf(wire.TaskStatus, s, "statuses")),
    kinds: [...(wanted.kinds ?? [])],
    keys: [...(wanted.keys ?? [])],
    tags: writeMap(wanted.tags, "tags"),
    tenants: [...(wanted.tenants ?? [])],
    schedule: wanted.schedule ?? "",
  };
}

/** Returns a result. */
export function readResult(message: wire.TaskResult): TaskResult {
  return {
    id: message.id,
    status: readStatus(message.status),
    output: message.output,
    contentType: message.contentType,
    message: message.message,
    outputAvailable: message.outputAvailable,
  };
}

/** Returns a progress value. */
export function readProgress(message: wire.Progress | undefined): Progress | undefined {
  return message === undefined ? undefined : { data: message.data, fraction: message.fraction };
}

/** Returns a task's description. */
export function readInfo(message: wire.TaskInfo): TaskInfo {
  return {
    id: message.id,
    status: readStatus(message.status),
    pool: message.pool,
    kind: message.kind,
    key: message.key,
    attempt: message.attempt,
    maxAttempts: message.maxAttempts,
    createdAt: maybeInstant(message.createdUnixNs),
    startedAt: maybeInstant(message.startedUnixNs),
    finishedAt: maybeInstant(message.finishedUnixNs),
    nextRunAt: maybeInstant(message.nextRunUnixNs),
    message: message.message,
    outputAvailable: message.outputAvailable,
    tenant: message.tenant,
    priority: wordOf(wire.Priority, Priority, message.priority) ?? "normal",
    tags: readMap(message.tags),
    labels: readMap(message.labels),
    progress: readProgress(message.progress),
    waitingFor: message.waitingFor,
    schedule: message.schedule,
  };
}

/** Returns a status event. */
export function readEvent(message: wire.StatusEvent): StatusEvent {
  return {
    id: message.id,
    pool: message.pool,
    key: message.key,
    status: readStatus(message.status),
    attempt: message.attempt,
    at: instantOf(message.atUnixNs),
    message: message.message,
    cursor: message.cursor,
    progress: readProgress(message.progress),
  };
}

function readTarget(ref: wire.TaskRef | undefined): bigint | string {
  return ref?.ref?.value ?? 0n;
}

/** Returns a spec as the server keeps it; the payload stays bytes. */
export function readSpec(message: wire.TaskSpec): TaskSpec {
  return {
    kind: message.kind,
    payload: message.payload,
    contentType: message.contentType,
    pool: message.pool,
    priority: wordOf(wire.Priority, Priority, message.priority),
    key: message.key,
    deadlineInMs: msOf(message.deadlineInS),
    deadlineAt: maybeInstant(message.deadlineUnixNs),
    startInMs: msOf(message.startInS),
    startAt: maybeInstant(message.startUnixNs),
    toleranceMs: msOf(message.toleranceS),
    onMiss: wordOf(wire.MissPolicy, MissPolicy, message.onMiss),
    durationHintMs: msOf(message.durationHintS),
    timeoutMs: msOf(message.timeoutS),
    retry: message.retry === undefined ? undefined : readRetry(message.retry),
    deps: message.deps.map((dep) => ({
      target: readTarget(dep.target),
      cond: wordOf(wire.EdgeCond, EdgeCond, dep.cond) ?? "on_success",
    })),
    resources: readMap(message.resources),
    tags: readMap(message.tags),
    labels: readMap(message.labels),
    tenant: message.tenant,
    traceContext: readMap(message.traceContext),
    delayMs: msOf(message.delayS),
    notBefore: maybeInstant(message.notBeforeUnixNs),
    expiresInMs: msOf(message.expiresInS),
  };
}

function readRetry(message: wire.RetryPolicy): RetryPolicy {
  return {
    maxAttempts: message.maxAttempts,
    initialBackoffMs: msOf(message.initialBackoffS),
    multiplier: message.multiplier,
    maxBackoffMs: msOf(message.maxBackoffS),
    jitter: message.jitter,
  };
}

/** Returns all that the server told about a task. */
export function readDetail(message: wire.TaskDetail): TaskDetail {
  if (message.info === undefined || message.spec === undefined) {
    throw new InternalError("the server described a task without saying which");
  }
  return {
    task: readInfo(message.info),
    spec: readSpec(message.spec),
    attempts: message.attempts.map(readAttempt),
    parents: message.parents.map(readParent),
    children: message.children,
  };
}

function readAttempt(message: wire.Attempt): AttemptRecord {
  return {
    number: message.number,
    worker: message.worker,
    startedAt: instantOf(message.startedUnixNs),
    endedAt: maybeInstant(message.endedUnixNs),
    outcome: message.outcome,
    message: message.message,
  };
}

function readParent(message: wire.Parent): ParentRecord {
  return {
    target: readTarget(message.task),
    cond: wordOf(wire.EdgeCond, EdgeCond, message.cond) ?? "on_success",
    status: STATUSES[message.status],
  };
}
