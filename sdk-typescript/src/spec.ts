/**
 * Decides what a caller can say about a task.
 *
 * Values only: how they travel is `convert`'s business, whether they are allowed the server's. What
 * is absent means the server's or the pool's default, never a zero. Durations are milliseconds,
 * instants are `Date` or, to the nanosecond, `bigint`.
 */

import { randomUUID } from "node:crypto";

/** The class of a task; higher classes go first. */
export const Priority = {
  CRITICAL: "critical",
  HIGH: "high",
  NORMAL: "normal",
  LOW: "low",
} as const;
/** One of the classes. */
export type Priority = (typeof Priority)[keyof typeof Priority];

/** Where a task stands. Terminal ones are left only by a retry from outside. */
export const TaskStatus = {
  BLOCKED: "blocked",
  SCHEDULED: "scheduled",
  READY: "ready",
  RUNNING: "running",
  RETRYING: "retrying",
  SUCCEEDED: "succeeded",
  FAILED: "failed",
  DEAD_LETTERED: "dead_lettered",
  CANCELLED: "cancelled",
  SKIPPED: "skipped",
  MISSED: "missed",
  SHED: "shed",
} as const;
/** One of the statuses. */
export type TaskStatus = (typeof TaskStatus)[keyof typeof TaskStatus];

const LIVE: ReadonlySet<TaskStatus> = new Set([
  TaskStatus.BLOCKED,
  TaskStatus.SCHEDULED,
  TaskStatus.READY,
  TaskStatus.RUNNING,
  TaskStatus.RETRYING,
]);

/** True when a task of this status has ended. */
export function isTerminal(status: TaskStatus): boolean {
  return !LIVE.has(status);
}

/** How a parent must end before its child may run. */
export const EdgeCond = {
  ON_SUCCESS: "on_success",
  ON_COMPLETE: "on_complete",
  ON_FAILURE: "on_failure",
} as const;
/** One of the conditions. */
export type EdgeCond = (typeof EdgeCond)[keyof typeof EdgeCond];

/** What becomes of a task that did not start in time. */
export const MissPolicy = { RUN_LATE: "run_late", SKIP: "skip", FAIL: "fail" } as const;
/** One of the policies. */
export type MissPolicy = (typeof MissPolicy)[keyof typeof MissPolicy];

/** What `Client.bulk` does to the tasks it finds. */
export const BulkAction = { CANCEL: "cancel", RETRY: "retry" } as const;
/** One of the actions. */
export type BulkAction = (typeof BulkAction)[keyof typeof BulkAction];

/** What becomes of an occurrence while the one before it is alive. */
export const Overlap = {
  SKIP: "skip",
  ALLOW: "allow",
  QUEUE: "queue",
  QUEUE_ON_SUCCESS: "queue_on_success",
} as const;
/** One of the rules. */
export type Overlap = (typeof Overlap)[keyof typeof Overlap];

/** When an occurrence runs whose local time does not exist that day. */
export const Gap = { RUN_AFTER: "run_after", SKIP: "skip" } as const;
/** One of the rules. */
export type Gap = (typeof Gap)[keyof typeof Gap];

/** When an occurrence runs whose local time comes twice that day. */
export const Fold = { FIRST: "first", LAST: "last", BOTH: "both" } as const;
/** One of the rules. */
export type Fold = (typeof Fold)[keyof typeof Fold];

/** What becomes of occurrences that could not be created in time. */
export const CatchUp = { LATEST: "latest", NONE: "none", ALL: "all" } as const;
/** One of the rules. */
export type CatchUp = (typeof CatchUp)[keyof typeof CatchUp];

/** An instant: a date, or Unix nanoseconds. */
export type Instant = Date | bigint;

/** When a failed attempt is followed by another. What is absent or zero takes the pool's value. */
export interface RetryPolicy {
  /** Attempts in total. */
  readonly maxAttempts?: number | undefined;
  /** Backoff after the first attempt, ms. */
  readonly initialBackoffMs?: number | undefined;
  /** Growth per attempt. */
  readonly multiplier?: number | undefined;
  /** Upper bound of the backoff, ms. */
  readonly maxBackoffMs?: number | undefined;
  /** Whether the delay is drawn from [0, backoff]; true if not given. */
  readonly jitter?: boolean | undefined;
}

/** Whatever tells the id of a task: handles, results, descriptions. */
export interface HasId {
  readonly id: bigint;
}

/** A task that must end first, by id or key. */
export interface Dep {
  readonly target: bigint | string;
  /** How it must end; `on_success` if not given. */
  readonly cond?: EdgeCond | undefined;
}

/** What can be said about a task beside kind and payload. */
export interface TaskOptions {
  /** Overrides the codec's content type, for payloads that are bytes already. */
  readonly contentType?: string | undefined;
  /** Pool to run in; the server's default if not given. */
  readonly pool?: string | undefined;
  /** Class; normal if not given. */
  readonly priority?: Priority | undefined;
  /** Idempotency key: submitting it again returns the same task. */
  readonly key?: string | undefined;
  /** Time within which the task should be done, ms; raises urgency, ends nothing. */
  readonly deadlineInMs?: number | undefined;
  /** The same as an instant. */
  readonly deadlineAt?: Instant | undefined;
  /** Fixed start, ms from now. */
  readonly startInMs?: number | undefined;
  /** Fixed start as an instant. */
  readonly startAt?: Instant | undefined;
  /** How late a fixed start may be, ms. */
  readonly toleranceMs?: number | undefined;
  /** What happens when it is later. */
  readonly onMiss?: MissPolicy | undefined;
  /** Expected run time, ms. */
  readonly durationHintMs?: number | undefined;
  /** Longest time for one attempt, ms. */
  readonly timeoutMs?: number | undefined;
  /** Retry policy; the pool's if not given. */
  readonly retry?: RetryPolicy | undefined;
  /** Tasks that must end first: handles, ids, keys or `Dep`. */
  readonly deps?: readonly (Dep | HasId | bigint | string)[] | undefined;
  /** Amounts of named resources, held while an attempt runs. */
  readonly resources?: Readonly<Record<string, number>> | undefined;
  /** Free pairs, for listings and filters. */
  readonly tags?: Readonly<Record<string, string>> | undefined;
  /** Labels that the worker must have. */
  readonly labels?: Readonly<Record<string, string>> | undefined;
  /** Whom the task belongs to. */
  readonly tenant?: string | undefined;
  /** W3C trace context of the submitter. */
  readonly traceContext?: Readonly<Record<string, string>> | undefined;
  /** Not to run before this time has passed, ms. */
  readonly delayMs?: number | undefined;
  /** Not to run before this instant. */
  readonly notBefore?: Instant | undefined;
  /** Ends as missed when not started by then, ms. */
  readonly expiresInMs?: number | undefined;
}

/** One task as the caller wants it. */
export interface TaskSpec extends TaskOptions {
  /** Name of the handler; `default` if not given. */
  readonly kind?: string | undefined;
  /**
   * Value for the handler, encoded by the client's codec; bytes stay bytes. `undefined` is no
   * payload, `null` is one.
   */
  readonly payload?: unknown;
}

/** Which tasks a listing or bulk call means: all conditions must hold, absent ones hold for all. */
export interface TaskFilter {
  /** Any of these pools. */
  readonly pools?: readonly string[] | undefined;
  /** Any of these statuses. */
  readonly statuses?: readonly TaskStatus[] | undefined;
  /** Any of these kinds. */
  readonly kinds?: readonly string[] | undefined;
  /** Any of these keys. */
  readonly keys?: readonly string[] | undefined;
  /** All of these pairs. */
  readonly tags?: Readonly<Record<string, string>> | undefined;
  /** Any of these tenants. */
  readonly tenants?: readonly string[] | undefined;
  /** Made by this schedule. */
  readonly schedule?: string | undefined;
}

/** A schedule as the caller wants it; putting it again under the same name replaces it. */
export interface ScheduleSpec {
  /** Unique within a shard. */
  readonly name: string;
  /** Five fields, or six with leading seconds, or `@hourly` and the like. */
  readonly cron: string;
  /** The task of each occurrence; without dependencies and fixed times. */
  readonly template: TaskSpec;
  /** IANA time zone; UTC if not given. */
  readonly tz?: string | undefined;
  /** What happens while the occurrence before is alive; `skip` if not given. */
  readonly overlap?: Overlap | undefined;
  /** Local times that do not exist; `run_after` if not given. */
  readonly gap?: Gap | undefined;
  /** Local times that come twice; `first` if not given. */
  readonly fold?: Fold | undefined;
  /** Occurrences that were missed; `latest` if not given. */
  readonly catchUp?: CatchUp | undefined;
  /** Whether it rests. */
  readonly paused?: boolean | undefined;
}

/** Returns a key that nobody else has, for a submission that shall be safe to repeat. */
export function newKey(): string {
  return randomUUID().replaceAll("-", "");
}
