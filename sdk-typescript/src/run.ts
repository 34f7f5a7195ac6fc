/** Decides what is known of one lease in this process: its message, its progress, its stop. */

import type { Lease } from "./gen/cronoq/v1/workers.js";
import type { Progress } from "./views.js";

/** Why a handler was told to stop, as a report says it. */
export const Stop = {
  ABORTED: "aborted by the server",
  EXPIRED: "lease expired: the server confirmed no heartbeat in time",
  LOST: "lease lost: the server no longer holds it for this worker",
  STOPPED: "worker stopped",
} as const;
/** One of the reasons. */
export type Stop = (typeof Stop)[keyof typeof Stop];

/** Why a handler's signal is aborted. */
export class StopError extends Error {
  constructor(reason: string) {
    super(reason);
    this.name = "AbortError";
  }
}

/** One lease in this process, from its arrival until its report is written. */
export class Run {
  readonly message: Lease;
  readonly lease: bigint;
  readonly taskId: bigint;
  readonly arrivedAt: number;
  readonly ttlMs: number;
  progress: Progress | undefined;
  progressIsNew = false;
  #stop: Stop | undefined;
  #stopReason = "";
  // Made when somebody looks: most handlers never do.
  #controller: AbortController | undefined;

  /** `ttlMs` is the session's, for leases that name none. */
  constructor(message: Lease, arrivedAt: number, ttlMs: number) {
    this.message = message;
    this.lease = message.lease;
    this.taskId = message.taskId;
    this.arrivedAt = arrivedAt;
    this.ttlMs = message.leaseTtlS === undefined ? ttlMs : message.leaseTtlS * 1000;
  }

  /** Why the handler was told to stop, if it was. */
  get stop(): Stop | undefined {
    return this.#stop;
  }

  /** The same in words, the server's own where it gave some. */
  get stopText(): string {
    return this.#stopReason === "" ? (this.#stop ?? "") : this.#stopReason;
  }

  /** Aborted when the handler should stop. */
  get signal(): AbortSignal {
    if (this.#controller === undefined) {
      this.#controller = new AbortController();
      if (this.#stop !== undefined) {
        this.#controller.abort(new StopError(this.stopText));
      }
    }
    return this.#controller.signal;
  }

  /** True once the handler should stop. */
  isStopped(): boolean {
    return this.#stop !== undefined;
  }

  /** Tells the handler to stop. */
  tell(stop: Stop, reason = ""): void {
    this.#stop = stop;
    this.#stopReason = reason;
    this.#controller?.abort(new StopError(this.stopText));
  }

  /** Takes what the handler says of how far it is. */
  setProgress(progress: Progress): void {
    this.progress = progress;
    this.progressIsNew = true;
  }
}
