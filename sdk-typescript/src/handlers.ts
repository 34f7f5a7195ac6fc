/**
 * Decides how a handler is called and what its end means (WP-13, WP-14, WP-17).
 *
 * A handler is called with the payload, decoded and made sure of by a parser if there is one, and
 * with the attempt. Whatever it throws is its attempt's end, never the worker's.
 */

import { type Attempt, endOf, type Interceptor, kindOfEnd, type Retryable } from "./attempt.js";
import type { Logger } from "./logger.js";
import { type Completed, failed, failedForGood, nacked, type Outcome } from "./outcome.js";
import { type Codec, decodeWith, encodeWith, type Parser, textOf } from "./payload.js";
import { type Run, Stop, StopError } from "./run.js";

const ASCII = /^[\x00-\x7f]*$/;

/** What a user writes: returns a value, or a promise of one, or throws. */
export type HandlerFunction<T = unknown> = (payload: T, attempt: Attempt) => unknown;

/** What a handler returns that has encoded its output itself: one that runs elsewhere. */
export class Decided {
  constructor(readonly outcome: Completed) {}
}

/** On a function: it takes no payload, since it decodes the attempt's own elsewhere. */
export const RUNS_ELSEWHERE = Symbol.for("cronoq.elsewhere");

/** A function of the user, and how to call it. */
export class Handler {
  readonly #wanted: Parser<unknown> | undefined;
  readonly #function: HandlerFunction<never>;
  readonly #codec: Codec;
  readonly #interceptors: readonly Interceptor[];
  readonly #logger: Logger;

  constructor(
    wanted: Parser<unknown> | undefined,
    handler: HandlerFunction<never>,
    codec: Codec,
    interceptors: readonly Interceptor[],
    logger: Logger,
  ) {
    this.#wanted = wanted;
    this.#function = handler;
    this.#codec = codec;
    this.#interceptors = interceptors;
    this.#logger = logger;
  }

  /** Runs the handler to its end; never rejects. */
  async run(attempt: Attempt, run: Run): Promise<Outcome> {
    let value: unknown;
    try {
      value = RUNS_ELSEWHERE in this.#function ? undefined : this.#payloadOf(run);
    } catch (error) {
      return failedForGood(textOf(error)); // WP-14
    }
    try {
      value = await this.#call(0, value, attempt);
    } catch (thrown) {
      return this.#outcomeOf(thrown, run);
    }
    return value instanceof Decided ? value.outcome : this.#completed(value);
  }

  #payloadOf(run: Run): unknown {
    const { contentType, payload } = run.message;
    return decodeWith(this.#codec, payload, contentType, this.#wanted);
  }

  #call(depth: number, payload: unknown, attempt: Attempt): unknown {
    const interceptor = this.#interceptors[depth];
    if (interceptor === undefined) {
      return this.#function(payload as never, attempt);
    }
    // Its own promise: what the handler throws at once must reach the interceptor's await.
    return interceptor(attempt, async () => await this.#call(depth + 1, payload, attempt));
  }

  #completed(value: unknown): Outcome {
    try {
      const { contentType, payload } = encodeWith(this.#codec, value);
      if (!(payload instanceof Uint8Array) || !ASCII.test(contentType)) {
        // One bad report would take the whole message with it.
        return failedForGood("output not encodable: the codec gave no bytes");
      }
      return { type: "completed", output: payload, contentType };
    } catch (error) {
      return failedForGood(`output not encodable: ${textOf(error)}`);
    }
  }

  #outcomeOf(thrown: unknown, run: Run): Outcome {
    if (run.stop === Stop.EXPIRED) {
      // WP-24: the task may be another worker's by now; only success counts.
      return failed(run.stop);
    }
    const end = endOf(thrown);
    if (end !== undefined) {
      const text = end.message;
      switch (kindOfEnd(end)) {
        case "retryable":
          return failed(text, (end as Retryable).retryAfterMs);
        case "permanent":
          return failedForGood(text);
        case "reject":
          return nacked(text);
        case "cancel":
          this.#logger.info(`task ${run.taskId} cancels itself: ${text}`);
          return { type: "cancelled", reason: text };
      }
    }
    if (run.isStopped()) {
      return failed(isAbort(thrown) ? (run.stop ?? run.stopText) : describe(thrown));
    }
    this.#logger.warn(`handler of task ${run.taskId} failed: ${traceOf(thrown)}`);
    return failed(describe(thrown));
  }
}

/** What functions throw that listen to a signal. */
function isAbort(thrown: unknown): boolean {
  return thrown instanceof StopError || (thrown instanceof Error && thrown.name === "AbortError");
}

/** Returns what was thrown, for people. */
export function describe(thrown: unknown): string {
  // The text of what is thrown is made by its own code, which may throw in turn.
  try {
    if (!(thrown instanceof Error)) {
      return String(thrown);
    }
    return thrown.message === "" ? thrown.name : `${thrown.name}: ${thrown.message}`;
  } catch {
    return "something without a text was thrown";
  }
}

function traceOf(thrown: unknown): string {
  return thrown instanceof Error && typeof thrown.stack === "string"
    ? thrown.stack
    : describe(thrown);
}

/** The handlers of a worker, by kind. */
export class Handlers {
  readonly #byKind = new Map<string, Handler>();
  #default: Handler | undefined;

  get isEmpty(): boolean {
    return this.#byKind.size === 0 && this.#default === undefined;
  }

  /** Takes the handler of a kind; throws if there is one. */
  add(kind: string, handler: Handler): void {
    if (this.#byKind.has(kind)) {
      throw new RangeError(`kind '${kind}' has a handler already`);
    }
    this.#byKind.set(kind, handler);
  }

  /** Takes the handler of all other kinds; throws if there is one. */
  addDefault(handler: Handler): void {
    if (this.#default !== undefined) {
      throw new RangeError("there is a default handler already");
    }
    this.#default = handler;
  }

  /** Returns who handles a kind, if anyone. */
  find(kind: string): Handler | undefined {
    return this.#byKind.get(kind) ?? this.#default;
  }

  /** Returns the kinds that the server may send; none means any (WP-01). */
  declaredKinds(): string[] {
    return this.#default === undefined ? [...this.#byKind.keys()].sort() : [];
  }
}
