/**
 * Decides what a handler is given beside its payload, and what it can say beside a value.
 *
 * A handler ends an attempt by returning a value or by throwing: `Retryable`, `Permanent`,
 * `Cancel`, `Reject`, or anything else, which counts as retryable.
 */

import { maybeInstant, msOf, readMap, readProgress, wordOf } from "./convert.js";
import { Priority as WirePriority } from "./gen/cronoq/v1/task.js";
import type { Output } from "./gen/cronoq/v1/workers.js";
import { type Codec, decodeWith, type Parser } from "./payload.js";
import type { Run } from "./run.js";
import { Priority } from "./spec.js";
import type { Progress } from "./views.js";

export const PROGRESS_BYTES_MAX = 1024;
const NOTHING = new Uint8Array(0);
// Found on what is thrown, so that it does not matter which build of this package made it.
const END = Symbol.for("cronoq.end");

/** What an attempt that ends by an exception comes to. */
export type End = Retryable | Permanent | Cancel | Reject;

/** How a `Retryable` is made. */
export interface RetryableOptions extends ErrorOptions {
  /** Wait before the next attempt, ms; replaces the backoff. */
  readonly retryAfterMs?: number | undefined;
}

/** The attempt failed; another may succeed. */
export class Retryable extends Error {
  readonly [END] = "retryable";
  readonly retryAfterMs: number | undefined;

  /** @throws {RangeError} The wait is negative or no number. */
  constructor(message = "", options: RetryableOptions = {}) {
    super(message, options);
    this.name = "Retryable";
    const wait = options.retryAfterMs;
    if (wait !== undefined && !(wait >= 0 && wait < Infinity)) {
      throw new RangeError(`retryAfterMs: ${wait} is no time to wait`);
    }
    this.retryAfterMs = wait;
  }
}

/** The task failed for good; no further attempt. */
export class Permanent extends Error {
  readonly [END] = "permanent";

  constructor(message = "", options: ErrorOptions = {}) {
    super(message, options);
    this.name = "Permanent";
  }
}

/** The handler cancels its task. */
export class Cancel extends Error {
  readonly [END] = "cancel";

  constructor(reason = "", options: ErrorOptions = {}) {
    super(reason, options);
    this.name = "Cancel";
  }
}

/** The handler gives the attempt back unrun, for another worker. */
export class Reject extends Error {
  readonly [END] = "reject";

  constructor(reason = "", options: ErrorOptions = {}) {
    super(reason, options);
    this.name = "Reject";
  }
}

/** Returns what was thrown if it is one of the ends above. */
export function endOf(thrown: unknown): End | undefined {
  return thrown instanceof Error && END in thrown ? (thrown as End) : undefined;
}

/** Returns which of the ends it is. */
export function kindOfEnd(end: End): End[typeof END] {
  return end[END];
}

/** What an attempt needs of the worker that runs it. */
export interface Host {
  readonly codec: Codec;
  /** An attempt has new progress. */
  noteProgress(run: Run): void;
  /** Fetches a parent's output. */
  fetchOutput(lease: bigint, taskId: bigint): Promise<Output>;
}

/** Goes around every handler; calls `next`, once, and returns what that returned, or throws. */
export type Interceptor = (attempt: Attempt, next: () => Promise<unknown>) => Promise<unknown>;

/** What a handler may want of a parent's output. */
export interface OutputOptions<T> {
  /** Makes sure that it is what is wanted. */
  readonly as?: Parser<T> | undefined;
}

/** Tells what is behind an attempt; for this package alone. */
export let insideOf: (attempt: Attempt) => { readonly run: Run; readonly host: Host };

/**
 * One try of one task, while its handler runs.
 *
 * `taskId` and `number` together are the fencing token toward outside systems: a higher number of
 * the same task is the newer attempt.
 */
export class Attempt {
  static {
    insideOf = (attempt) => ({ run: attempt.#run, host: attempt.#host });
  }

  readonly #run: Run;
  readonly #host: Host;

  /** Attempts are made by workers, and by `cronoq/testing`. */
  constructor(run: Run, host: Host) {
    this.#run = run;
    this.#host = host;
  }

  /** Id of the task. */
  get taskId(): bigint {
    return this.#run.message.taskId;
  }

  /** Number of this attempt, from 1, rising. */
  get number(): number {
    return this.#run.message.attempt;
  }

  /** Kind of the task. */
  get kind(): string {
    return this.#run.message.kind;
  }

  /** Key of the task, empty if it has none. */
  get key(): string {
    return this.#run.message.key;
  }

  /** Pool the task belongs to. */
  get pool(): string {
    return this.#run.message.pool;
  }

  /** Class of the task. */
  get priority(): Priority {
    return wordOf(WirePriority, Priority, this.#run.message.priority) ?? "normal";
  }

  /** The payload as it came. */
  get payload(): Uint8Array {
    return this.#run.message.payload;
  }

  /** Content type of the payload. */
  get contentType(): string {
    return this.#run.message.contentType;
  }

  /** Tags of the task. */
  get tags(): Readonly<Record<string, string>> {
    return readMap(this.#run.message.tags);
  }

  /** When the task should be done; nothing ends it then. */
  get deadline(): Date | undefined {
    return maybeInstant(this.#run.message.deadlineUnixNs);
  }

  /** Longest time of this attempt, ms; the server ends it then. */
  get timeoutMs(): number | undefined {
    return msOf(this.#run.message.timeoutS);
  }

  /** W3C trace context of the submitter. */
  get traceContext(): Readonly<Record<string, string>> {
    return readMap(this.#run.message.traceContext);
  }

  /** What the attempt before this one said last. */
  get lastProgress(): Progress | undefined {
    return readProgress(this.#run.message.lastProgress);
  }

  /** Ids of the tasks this one depended on. */
  get parents(): readonly bigint[] {
    return this.#run.message.parents;
  }

  /** Aborted when the handler should stop. */
  get signal(): AbortSignal {
    return this.#run.signal;
  }

  /** True once the handler should stop. In a thread it is true at once, even in a busy loop. */
  get isCancelled(): boolean {
    return this.#run.isStopped();
  }

  /** Why the handler should stop, empty while it need not. */
  get cancelReason(): string {
    return this.#run.stopText;
  }

  /**
   * Says how far the handler is; only the last word counts, and it goes out soon (WP-25).
   *
   * @param data Anything, at most 1024 bytes; handed to the next attempt.
   * @param fraction Done part, 0 to 1.
   * @throws {RangeError} The data is too long or the fraction outside its range.
   */
  progress(data: Uint8Array | string = NOTHING, fraction?: number): void {
    const raw = typeof data === "string" ? Buffer.from(data) : data;
    if (raw.length > PROGRESS_BYTES_MAX) {
      throw new RangeError(`progress: ${raw.length} bytes, at most ${PROGRESS_BYTES_MAX}`);
    }
    if (fraction !== undefined && !(fraction >= 0 && fraction <= 1)) {
      throw new RangeError(`progress: fraction ${fraction} is outside 0 to 1`);
    }
    this.#run.setProgress({ data: raw, fraction });
    this.#host.noteProgress(this.#run);
  }

  /**
   * Returns the output of a parent, decoded.
   *
   * @param parent Id of one of `parents`.
   * @throws {CronoqError} The server refused or could not be reached.
   * @throws {PayloadError} The output is not what is wanted.
   */
  async output<T = unknown>(parent: bigint, options: OutputOptions<T> = {}): Promise<T> {
    const answer = await this.#host.fetchOutput(this.#run.lease, parent);
    const { codec } = this.#host;
    return decodeWith(codec, answer.output ?? NOTHING, answer.contentType, options.as) as T;
  }
}
