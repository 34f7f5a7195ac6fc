/**
 * Decides what a caller is told: tasks, results, events, as plain values.
 *
 * Instants are dates, `undefined` means not there (yet). Ids are `bigint`: they have 64 bits.
 */

import type { EdgeCond, Priority, TaskSpec, TaskStatus } from "./spec.js";

/** What a running handler said last. */
export interface Progress {
  /** Bytes of the handler's own, at most 1 KiB. */
  readonly data: Uint8Array;
  /** Done part, 0 to 1. */
  readonly fraction: number | undefined;
}

/** A task as the server sees it. */
export interface TaskInfo {
  readonly id: bigint;
  readonly status: TaskStatus;
  readonly pool: string;
  readonly kind: string;
  readonly key: string;
  readonly attempt: number;
  readonly maxAttempts: number;
  readonly createdAt: Date | undefined;
  readonly startedAt: Date | undefined;
  readonly finishedAt: Date | undefined;
  readonly nextRunAt: Date | undefined;
  readonly message: string;
  readonly outputAvailable: boolean;
  readonly tenant: string;
  readonly priority: Priority;
  readonly tags: Readonly<Record<string, string>>;
  readonly labels: Readonly<Record<string, string>>;
  readonly progress: Progress | undefined;
  /** What it waits for, for people. */
  readonly waitingFor: readonly string[];
  readonly schedule: string;
}

/** How a task ended. */
export interface TaskResult {
  readonly id: bigint;
  /** Terminal status. */
  readonly status: TaskStatus;
  /** Bytes of a successful task's output; undefined when not kept. */
  readonly output: Uint8Array | undefined;
  /** Of the output; empty when the server does not say. */
  readonly contentType: string;
  /** Why it did not succeed. */
  readonly message: string;
  /** Whether the server has the output. */
  readonly outputAvailable: boolean;
}

/** One attempt that did not succeed. */
export interface AttemptRecord {
  readonly number: number;
  readonly worker: string;
  readonly startedAt: Date;
  readonly endedAt: Date | undefined;
  readonly outcome: string;
  readonly message: string;
}

/** One dependency of a task and where it stands. */
export interface ParentRecord {
  readonly target: bigint | string;
  readonly cond: EdgeCond;
  /** Undefined when it is not known any more. */
  readonly status: TaskStatus | undefined;
}

/** All that the server knows about a task. The payload in `spec` is its bytes. */
export interface TaskDetail {
  readonly task: TaskInfo;
  readonly spec: TaskSpec;
  readonly attempts: readonly AttemptRecord[];
  readonly parents: readonly ParentRecord[];
  readonly children: readonly bigint[];
}

/** One change of a task's status. */
export interface StatusEvent {
  readonly id: bigint;
  readonly pool: string;
  readonly key: string;
  readonly status: TaskStatus;
  readonly attempt: number;
  readonly at: Date;
  readonly message: string;
  /** Where a watch can resume after this event; empty on old servers. */
  readonly cursor: Uint8Array;
  readonly progress: Progress | undefined;
}

/** What a bulk call did. */
export interface BulkOutcome {
  /** Tasks that the filter found. */
  readonly matched: number;
  /** Tasks that were changed. */
  readonly changed: number;
  /** Pass it as `after` to go on; 0 when there is no more. */
  readonly nextAfter: bigint;
  /** Shards that did not answer. */
  readonly unavailableShards: readonly string[];
}
