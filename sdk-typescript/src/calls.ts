/**
 * Decides which calls are made again, when, and for how long.
 *
 * A call is repeated only on UNAVAILABLE: always when nothing was executed, else only if repeating
 * it changes nothing. Delays grow with full jitter; the deadline covers all tries together.
 */

import { clamped, monotonicMs } from "./clock.js";
import {
  CronoqError,
  DeadlineError,
  NotLeaderError,
  StoppingError,
  UnavailableError,
} from "./errors.js";
import type { ClientSettings } from "./options.js";
import type { Connection, Method } from "./transport.js";

// A call with less time left than this is not made again.
const LAST_TRY_MS = 10;
// The exponent is capped: a float overflows long before the backoff matters.
const DOUBLINGS_MAX = 64;
// As if so many calls had failed in a row, at most, when the answer was that somebody else leads or
// will: where nothing was executed nothing is overloaded, and the leader is one connection away.
const NOT_LEADER_FAILURES = 1;

/** The delays of one row of failures: full jitter, growing to a bound. */
export class BackoffSeries {
  readonly #bounds: ClientSettings["backoff"];
  #failures = 0;

  constructor(settings: ClientSettings) {
    this.#bounds = settings.backoff;
  }

  /** Returns the next delay in milliseconds, after a call that failed with this if it did. */
  nextDelay(error?: CronoqError): number {
    if (error instanceof NotLeaderError || error instanceof StoppingError) {
      this.#failures = Math.min(this.#failures, NOT_LEADER_FAILURES);
    }
    const { initialMs, maximumMs } = this.#bounds;
    const bound = Math.min(maximumMs, initialMs * 2 ** Math.min(this.#failures, DOUBLINGS_MAX));
    this.#failures += 1;
    return Math.random() * bound;
  }

  /** Starts the series anew, after a success. */
  reset(): void {
    this.#failures = 0;
  }
}

/** True if a call that failed so may be made again. */
export function mayRepeat(error: CronoqError, idempotent: boolean): boolean {
  return error instanceof UnavailableError && (idempotent || error.executed === false);
}

/** Passes on what is no error of a call: a bug, or the reason of an aborted signal. */
export function cronoqErrorOf(error: unknown): CronoqError {
  if (error instanceof CronoqError) {
    return error;
  }
  throw error;
}

/** How one call may be made. */
export interface CallPlan {
  /** Whether making it twice is making it once. */
  readonly idempotent: boolean;
  /** When to give up, by the monotonic clock. */
  readonly endsAt: number;
  readonly signal?: AbortSignal | undefined;
}

/** Makes single calls for a client, with deadline and repetition. */
export class Caller {
  readonly #pauses = new Set<(reason: Error) => void>();
  #closedBy: CronoqError | undefined;

  constructor(
    readonly settings: ClientSettings,
    readonly connection: Connection,
  ) {}

  /** Waits; throws when the client is closed or the signal aborted meanwhile. */
  pause(ms: number, signal?: AbortSignal): Promise<void> {
    return new Promise((resolve, reject) => {
      signal?.throwIfAborted();
      if (this.#closedBy !== undefined) {
        throw this.#closedBy;
      }
      const end = (): void => {
        clearTimeout(timer);
        this.#pauses.delete(fail);
        signal?.removeEventListener("abort", onAbort);
      };
      const fail = (reason: Error): void => {
        end();
        reject(reason);
      };
      const onAbort = (): void => {
        fail(signal?.reason as Error);
      };
      const timer = setTimeout(() => {
        end();
        resolve();
      }, clamped(ms));
      this.#pauses.add(fail);
      signal?.addEventListener("abort", onAbort, { once: true });
    });
  }

  /** Ends every pause and every call, and the connection. */
  close(reason: CronoqError): void {
    this.#closedBy = reason;
    this.connection.close(reason);
    for (const fail of [...this.#pauses]) {
      fail(reason);
    }
  }

  /**
   * Makes a call, again if that is safe, until its time is up.
   *
   * @throws {CronoqError} The last try failed, or the deadline passed.
   */
  async call<Request, Response>(
    method: Method<Request, Response>,
    request: Request,
    plan: CallPlan,
  ): Promise<Response> {
    const { endsAt, idempotent, signal } = plan;
    const backoff = new BackoffSeries(this.settings);
    let trouble: CronoqError | undefined;
    let left = endsAt - monotonicMs();
    while (left > 0) {
      try {
        const bounds = { timeoutMs: left, signal };
        return await this.connection.channel().unary(method, request, bounds);
      } catch (thrown) {
        const error = cronoqErrorOf(thrown);
        if (error instanceof DeadlineError && trouble !== undefined) {
          throw outOfTime(method, trouble);
        }
        left = endsAt - monotonicMs();
        if (!mayRepeat(error, idempotent) || left < LAST_TRY_MS) {
          throw error;
        }
        trouble = error;
      }
      // Near its end the delays shrink, so that the deadline is used up.
      await this.pause(Math.min(backoff.nextDelay(trouble), left / 2), signal);
      left = endsAt - monotonicMs();
    }
    throw outOfTime(method, trouble);
  }
}

/** What to say when the deadline passes: what stood in the way, if anything did. */
function outOfTime(
  method: { readonly path: string },
  trouble: CronoqError | undefined,
): CronoqError {
  const name = method.path.slice(method.path.lastIndexOf("/") + 1);
  if (trouble === undefined) {
    return new DeadlineError(`${name}: the deadline passed`);
  }
  const text = `${name}: no server answered before the deadline: ${trouble.message}`;
  return new UnavailableError(text, { reason: trouble.reason, cause: trouble });
}
