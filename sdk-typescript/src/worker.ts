/** Decides what a worker offers to a program: handlers by kind, start, readiness, stop. */

import { Engagement } from "./engagement.js";
import { ClosedError } from "./errors.js";
import { Handler, type HandlerFunction, Handlers } from "./handlers.js";
import { type WorkerOptions, workerSettings, type WorkerSettings } from "./options.js";
import type { Parser } from "./payload.js";

/** How a stop differs from the options. */
export interface StopOptions {
  /** Time for running handlers, ms, instead of the option's. */
  readonly drainTimeoutMs?: number | undefined;
}

/** What may end a wait or a run. */
export interface SignalOptions {
  readonly signal?: AbortSignal | undefined;
}

/**
 * Runs handlers for the tasks of one pool.
 *
 * `start()` and `stop()` it, or `await run()`, or call `runForever()` from a program that does
 * nothing else. `await using` stops it, too.
 */
export class Worker implements AsyncDisposable {
  readonly #settings: WorkerSettings;
  readonly #handlers = new Handlers();
  #engagement: Engagement | undefined;

  /**
   * Makes a worker; nothing is sent before it is started.
   *
   * @throws {EndpointError} The endpoint cannot be read.
   * @throws {RangeError} An option is out of its range.
   */
  constructor(options: WorkerOptions = {}) {
    this.#settings = workerSettings(options);
  }

  // --- handlers ---------------------------------------------------------------------------------

  /**
   * Makes a function the handler of a kind.
   *
   * With a parser (a zod schema, or anything that has `parse`) the payload is made sure of before
   * the handler is called; what the parser refuses fails the task for good.
   *
   * @throws {RangeError} The kind has a handler already.
   */
  handler(kind: string, handler: HandlerFunction): this;
  handler<T>(kind: string, payload: Parser<T>, handler: HandlerFunction<T>): this;
  handler<T>(
    kind: string,
    payloadOrHandler: Parser<T> | HandlerFunction,
    handler?: HandlerFunction<T>,
  ): this {
    this.#handlers.add(kind, this.#handlerOf(payloadOrHandler, handler));
    return this;
  }

  /**
   * Makes a function the handler of every kind that has no other.
   *
   * @throws {RangeError} There is a default handler already.
   */
  defaultHandler(handler: HandlerFunction): this;
  defaultHandler<T>(payload: Parser<T>, handler: HandlerFunction<T>): this;
  defaultHandler<T>(
    payloadOrHandler: Parser<T> | HandlerFunction,
    handler?: HandlerFunction<T>,
  ): this {
    this.#handlers.addDefault(this.#handlerOf(payloadOrHandler, handler));
    return this;
  }

  #handlerOf<T>(
    payloadOrHandler: Parser<T> | HandlerFunction,
    handler: HandlerFunction<T> | undefined,
  ): Handler {
    const { codec, interceptors, logger } = this.#settings;
    if (handler !== undefined) {
      const wanted = payloadOrHandler as Parser<T>;
      return new Handler(wanted, handler, codec, interceptors, logger);
    }
    if (typeof payloadOrHandler !== "function") {
      throw new TypeError("a handler is a function");
    }
    return new Handler(undefined, payloadOrHandler, codec, interceptors, logger);
  }

  // --- life -------------------------------------------------------------------------------------

  /** True while this worker receives work: connected, accepted, neither side stopping (WP-03). */
  get isReady(): boolean {
    return this.#engagement?.session.isServing ?? false;
  }

  /**
   * Starts the worker; returns at once, connects in the background.
   *
   * @throws {RangeError} There is no handler.
   * @throws {ClosedError} The worker runs already.
   */
  start(): void {
    if (this.#handlers.isEmpty) {
      throw new RangeError("the worker has no handler");
    }
    if (this.#engagement !== undefined) {
      throw new ClosedError("the worker was started already");
    }
    this.#engagement = new Engagement(this.#settings, this.#handlers);
    this.#engagement.start();
  }

  /**
   * Waits until the worker receives work.
   *
   * @throws {GaveUpError} It never will.
   * @throws {ClosedError} It was stopped before.
   */
  async waitReady(options: SignalOptions = {}): Promise<void> {
    const engagement = this.#current();
    await engagement.until(() => engagement.session.isServing, options.signal);
  }

  /** Takes no more work, lets handlers finish, reports, disconnects. May be called again. */
  async stop(options: StopOptions = {}): Promise<void> {
    const engagement = this.#engagement;
    if (engagement === undefined) {
      return;
    }
    await engagement.stop(options.drainTimeoutMs ?? this.#settings.drainTimeoutMs);
    if (this.#engagement === engagement) {
      this.#engagement = undefined;
    }
  }

  /**
   * Starts the worker and runs until `stop` is called or the signal is aborted; drains in both cases.
   *
   * @throws {GaveUpError} A server's answer makes retries useless.
   */
  async run(options: SignalOptions = {}): Promise<void> {
    this.start();
    const engagement = this.#current();
    const { signal } = options;
    try {
      await engagement.until(() => engagement.isStopped || (signal?.aborted ?? false), signal);
    } finally {
      await this.stop();
    }
  }

  /**
   * Runs until SIGTERM or SIGINT, then drains; a second signal ends the drain.
   *
   * @throws {GaveUpError} A server's answer makes retries useless.
   */
  async runForever(): Promise<void> {
    let isStopping = false;
    const onSignal = (): void => {
      const drainTimeoutMs = isStopping ? 0 : undefined;
      isStopping = true;
      void this.stop({ drainTimeoutMs });
    };
    process.on("SIGTERM", onSignal);
    process.on("SIGINT", onSignal);
    try {
      await this.run();
    } finally {
      process.off("SIGTERM", onSignal);
      process.off("SIGINT", onSignal);
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.stop();
  }

  #current(): Engagement {
    if (this.#engagement === undefined) {
      throw new ClosedError("the worker is not running");
    }
    return this.#engagement;
  }
}
