/**
 * Decides what those are told who run the queue: pools, workers, schedules, resources.
 *
 * Plain values like those of `views`. Durations are milliseconds, instants dates; counters are
 * numbers, since none of them grows beyond what a number holds exactly.
 */

import type { CatchUp, Fold, Gap, Overlap, ScheduleSpec } from "./spec.js";

/** A list gathered from all shards that answered. */
export interface Gathered<T> extends ReadonlyArray<T> {
  /** Shards that the list lacks. */
  readonly unavailableShards: readonly string[];
}

/** Returns a list that says which shards it lacks. */
export function gathered<T>(items: T[], unavailableShards: readonly string[]): Gathered<T> {
  return Object.assign(items, { unavailableShards });
}

/** Workers with the same labels. */
export interface WorkerGroup {
  readonly labels: Readonly<Record<string, string>>;
  readonly capacity: number;
  readonly busy: number;
}

/** A pool at one moment. */
export interface PoolSnapshot {
  readonly name: string;
  readonly capacity: number;
  readonly busy: number;
  /** Slots kept free for fixed starts. */
  readonly held: number;
  /** Slots that the autoscaler wants. */
  readonly desired: number;
  /** Waiting tasks from the highest class to the lowest. */
  readonly pendingByClass: readonly number[];
  readonly reservations: number;
  readonly dispatched: number;
  readonly succeeded: number;
  readonly failed: number;
  readonly priorityAdherence: number;
  readonly fixedStartHitRate: number;
  readonly utilization: number;
  readonly scheduleEfficiency: number;
  readonly waitP50Ms: number;
  readonly waitP90Ms: number;
  readonly waitP99Ms: number;
  /** Slot seconds provided. */
  readonly cost: number;
  readonly workersConnected: number;
  readonly groups: readonly WorkerGroup[];
  readonly paused: boolean;
  /** How long the longest waiting ready task has waited. */
  readonly oldestReadyMs: number;
}

/** What has happened since the leader began. */
export interface Totals {
  readonly submitted: number;
  readonly dispatched: number;
  readonly succeeded: number;
  readonly failed: number;
  readonly deadLettered: number;
  readonly cancelled: number;
  readonly skipped: number;
  readonly missed: number;
  readonly shed: number;
  readonly retries: number;
  readonly timeouts: number;
  readonly leaseExpiries: number;
  readonly staleCompletions: number;
}

/** A resource at one moment. */
export interface ResourceInfo {
  readonly name: string;
  /** `semaphore` or `token_bucket`. */
  readonly kind: string;
  readonly permits: number;
  readonly rate: number;
  readonly burst: number;
  readonly held: number;
  readonly tokens: number;
  readonly waiting: number;
  /** Whether its size was changed at run time. */
  readonly overridden: boolean;
  /** Whether each value counts alone. */
  readonly perValue: boolean;
}

/** Everything at one moment. */
export interface Snapshot {
  readonly pools: readonly PoolSnapshot[];
  readonly liveTasks: number;
  readonly running: number;
  readonly pending: number;
  readonly totals: Totals;
  readonly workersConnected: number;
  readonly unavailableShards: readonly string[];
  readonly resources: readonly ResourceInfo[];
}

/** A connected worker. */
export interface WorkerInfo {
  readonly id: bigint;
  readonly name: string;
  readonly pool: string;
  readonly labels: Readonly<Record<string, string>>;
  readonly slots: number;
  readonly busy: number;
  readonly connectedAt: Date;
  readonly sdk: string;
  /** What it handles; empty means anything. */
  readonly kinds: readonly string[];
}

/** A schedule and when it is due next. */
export interface ScheduleInfo {
  readonly name: string;
  readonly cron: string;
  readonly tz: string;
  readonly pool: string;
  readonly kind: string;
  readonly overlap: Overlap;
  readonly nextAt: Date | undefined;
  readonly lastTaskId: bigint | undefined;
  readonly paused: boolean;
  readonly gap: Gap;
  readonly fold: Fold;
  readonly catchUp: CatchUp;
}

/** All that is known about a schedule. The payload in its template is bytes. */
export interface ScheduleDetail {
  readonly schedule: ScheduleInfo;
  readonly spec: ScheduleSpec;
  /** Occurrences that were left out. */
  readonly skipped: number;
  /** Whether a chain waits for the schedule to be put again. */
  readonly chainBroken: boolean;
}

/** What a backfill did. */
export interface Backfill {
  /** Tasks made (or that would be made). */
  readonly created: number;
  /** Where to go on if the bound was reached. */
  readonly nextAt: Date | undefined;
}
