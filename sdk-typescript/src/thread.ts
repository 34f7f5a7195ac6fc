/**
 * Decides how handlers run in threads: those that compute, and would hold up the event loop and its
 * heartbeats.
 *
 * The file of the thread calls `serveThread` with its handler; the worker has `threadHandler` of
 * that file as handler. A thread runs one attempt at a time. Payloads are decoded and outputs
 * encoded in the thread. A handler that is told to stop sees it in `attempt.isCancelled` even in a
 * busy loop.
 */

import { availableParallelism } from "node:os";
import { parentPort, Worker as Thread } from "node:worker_threads";

import { Attempt, Cancel, type Host, insideOf, Permanent, Reject, Retryable } from "./attempt.js";
import { monotonicMs } from "./clock.js";
import { CronoqError, errorFor, type ErrorReason, UnavailableError } from "./errors.js";
import type { Lease, Output } from "./gen/cronoq/v1/workers.js";
import { Decided, Handler, type HandlerFunction, RUNS_ELSEWHERE } from "./handlers.js";
import { CONSOLE } from "./logger.js";
import type { Outcome } from "./outcome.js";
import { type Codec, JsonCodec, type Parser, textOf } from "./payload.js";
import { Run, Stop } from "./run.js";
import type { Progress } from "./views.js";

const STOPPED = 1;

/** What the worker tells a thread. */
type Order =
  | { readonly type: "run"; readonly lease: Lease; readonly flag: SharedArrayBuffer }
  | { readonly type: "stop"; readonly lease: bigint; readonly stop: Stop; readonly reason: string }
  | { readonly type: "output"; readonly request: number; readonly answer: Answer };

/** A parent's output, or why there is none. */
type Answer =
  | { readonly output: Output }
  | {
      readonly error: string;
      readonly reason: ErrorReason | undefined;
      readonly isUnavailable: boolean;
    };

/** What a thread tells the worker. */
type Word =
  | { readonly type: "progress"; readonly progress: Progress }
  | { readonly type: "fetch"; readonly request: number; readonly taskId: bigint }
  | { readonly type: "ended"; readonly outcome: Outcome };

// --- in the worker ------------------------------------------------------------------------------

/** How threads are used. */
export interface ThreadOptions {
  /** Most threads; as many as the machine runs at once if not given. */
  readonly threads?: number | undefined;
  /**
   * Ends a thread whose handler was told to stop and has not ended by then, ms; its slot is free at
   * once. Never if not given.
   */
  readonly terminateAfterMs?: number | undefined;
  /** What each thread finds in `workerData` of node:worker_threads. */
  readonly workerData?: unknown;
}

/**
 * Returns a handler that runs in threads of a file, which calls `serveThread`.
 *
 * @param file Such as `new URL("./crunch.js", import.meta.url)`.
 */
export function threadHandler(file: string | URL, options: ThreadOptions = {}): HandlerFunction {
  const threads = options.threads ?? availableParallelism();
  if (!Number.isInteger(threads) || threads < 1) {
    throw new RangeError(`threads: a whole number of at least 1, not ${threads}`);
  }
  const pool = new ThreadPool(file, threads, options);
  const handler = async (_payload: unknown, attempt: Attempt): Promise<Decided> =>
    await pool.run(attempt);
  return Object.assign(handler, { [RUNS_ELSEWHERE]: true });
}

/** Who waits for a thread. */
interface Waiting {
  readonly resolve: (thread: Thread) => void;
  readonly reject: (error: unknown) => void;
}

/** The threads of one file, made when needed. */
class ThreadPool {
  readonly #file: string | URL;
  readonly #size: number;
  readonly #options: ThreadOptions;
  #count = 0;
  readonly #idle: Thread[] = [];
  readonly #waiting: Waiting[] = [];

  constructor(file: string | URL, size: number, options: ThreadOptions) {
    this.#file = file;
    this.#size = size;
    this.#options = options;
  }

  async run(attempt: Attempt): Promise<Decided> {
    const thread = await this.#take();
    thread.ref();
    let isAlive = true;
    try {
      return decided(await runIn(thread, attempt, this.#options.terminateAfterMs));
    } catch (error) {
      isAlive = !(error instanceof ThreadEndedError);
      throw error;
    } finally {
      this.#giveBack(thread, isAlive);
    }
  }

  #take(): Thread | Promise<Thread> {
    const idle = this.#idle.pop();
    if (idle !== undefined) {
      return idle;
    }
    if (this.#count < this.#size) {
      return this.#make();
    }
    return new Promise((resolve, reject) => {
      this.#waiting.push({ resolve, reject });
    });
  }

  /** @throws {Error} There is none to be had: counted is only what there is. */
  #make(): Thread {
    const thread = new Thread(this.#file, { workerData: this.#options.workerData });
    this.#count += 1;
    // Whoever runs something there hears of it; an idle thread that ends is only forgotten.
    thread.on("error", () => undefined);
    thread.on("exit", () => {
      const place = this.#idle.indexOf(thread);
      if (place >= 0) {
        this.#idle.splice(place, 1);
        this.#count -= 1;
      }
    });
    return thread;
  }

  #giveBack(thread: Thread, isAlive: boolean): void {
    if (!isAlive) {
      this.#count -= 1;
      this.#makeForNext();
      return;
    }
    const next = this.#waiting.shift();
    if (next !== undefined) {
      next.resolve(thread);
    } else {
      thread.unref(); // An idle thread keeps no program alive.
      this.#idle.push(thread);
    }
  }

  /** Makes up for a thread that has gone; who gets none hears why, and does not wait for ever. */
  #makeForNext(): void {
    while (this.#count < this.#size) {
      const next = this.#waiting.shift();
      if (next === undefined) {
        return;
      }
      try {
        next.resolve(this.#make());
      } catch (error) {
        next.reject(error);
      }
    }
  }
}

/** The thread ended while it ran an attempt: counts as a failure that another attempt may follow. */
class ThreadEndedError extends Error {
  constructor(message: string) {
    super(message);
    this.name = "ThreadEndedError";
  }
}

/** What a thread came to, as a handler says it. */
function decided(outcome: Outcome): Decided {
  switch (outcome.type) {
    case "completed":
      return new Decided(outcome);
    case "failed":
      throw outcome.permanent
        ? new Permanent(outcome.message)
        : new Retryable(outcome.message, { retryAfterMs: outcome.retryAfterMs });
    case "nacked":
      throw new Reject(outcome.reason);
    case "cancelled":
      throw new Cancel(outcome.reason);
  }
}

function runIn(
  thread: Thread,
  attempt: Attempt,
  terminateAfterMs: number | undefined,
): Promise<Outcome> {
  const { host, run } = insideOf(attempt);
  const flag = new SharedArrayBuffer(4);
  const tell = (order: Order): void => {
    thread.postMessage(order);
  };
  return new Promise((resolve, reject) => {
    let termination: NodeJS.Timeout | undefined;
    const end = (): void => {
      clearTimeout(termination);
      run.signal.removeEventListener("abort", onStop);
      thread.off("message", onWord);
      thread.off("error", onError);
      thread.off("exit", onExit);
    };
    const onStop = (): void => {
      Atomics.store(new Int32Array(flag), 0, STOPPED);
      tell({
        type: "stop",
        lease: run.lease,
        stop: run.stop ?? Stop.STOPPED,
        reason: run.stopText,
      });
      if (terminateAfterMs !== undefined) {
        termination = setTimeout(() => void thread.terminate(), terminateAfterMs);
      }
    };
    const onWord = (word: Word): void => {
      switch (word.type) {
        case "progress":
          run.setProgress(word.progress);
          host.noteProgress(run);
          break;
        case "fetch":
          void fetchFor(host, run, word.taskId).then((answer) => {
            tell({ type: "output", request: word.request, answer });
          });
          break;
        case "ended":
          end();
          resolve(word.outcome);
      }
    };
    const onError = (error: unknown): void => {
      end();
      reject(new ThreadEndedError(textOf(error)));
    };
    const onExit = (): void => {
      end();
      reject(new ThreadEndedError(run.isStopped() ? "ended when told to stop" : "it exited"));
    };
    thread.on("message", onWord);
    thread.on("error", onError);
    thread.on("exit", onExit);
    run.signal.addEventListener("abort", onStop, { once: true });
    tell({ type: "run", lease: alone(run.message), flag });
    if (run.isStopped()) {
      onStop();
    }
  });
}

/** A lease whose bytes are its own: a view would take the whole message along that it came with. */
function alone(lease: Lease): Lease {
  const { lastProgress, payload } = lease;
  return {
    ...lease,
    payload: new Uint8Array(payload),
    lastProgress: lastProgress && { ...lastProgress, data: new Uint8Array(lastProgress.data) },
  };
}

async function fetchFor(host: Host, run: Run, taskId: bigint): Promise<Answer> {
  try {
    return { output: await host.fetchOutput(run.lease, taskId) };
  } catch (error) {
    return {
      error: textOf(error),
      reason: error instanceof CronoqError ? error.reason : undefined,
      isUnavailable: error instanceof UnavailableError,
    };
  }
}

// --- in the thread ------------------------------------------------------------------------------

/** How a thread reads and writes values. */
export interface ServeOptions<T> {
  /** How values become bytes; JSON if not given. Should be the clients' codec. */
  readonly codec?: Codec | undefined;
  /** Makes sure of the payload: a zod schema, or anything that has `parse`. */
  readonly payload?: Parser<T> | undefined;
}

/** Runs in this thread what `threadHandler` of this file is asked for. */
export function serveThread<T = unknown>(
  handler: HandlerFunction<T>,
  options: ServeOptions<T> = {},
): void {
  const port = parentPort;
  if (port === null) {
    throw new Error("serveThread: this is not a worker thread");
  }
  const codec = options.codec ?? new JsonCodec();
  const called = new Handler(options.payload, handler, codec, [], CONSOLE);
  const say = (word: Word): void => {
    port.postMessage(word);
  };
  const host = new ThreadHost(codec, say);
  let current: Run | undefined;
  port.on("message", (order: Order) => {
    switch (order.type) {
      case "run": {
        const run = new ThreadRun(order.lease, order.flag);
        current = run;
        void called.run(new Attempt(run, host), run).then((outcome) => {
          current = undefined;
          say({ type: "ended", outcome });
        });
        break;
      }
      case "stop":
        if (current?.lease === order.lease) {
          current.tell(order.stop, order.reason);
        }
        break;
      case "output":
        host.answer(order.request, order.answer);
    }
  });
}

/** A run whose stop can be seen without the event loop. */
class ThreadRun extends Run {
  readonly #flag: Int32Array;

  constructor(lease: Lease, flag: SharedArrayBuffer) {
    super(lease, monotonicMs(), Infinity);
    this.#flag = new Int32Array(flag);
  }

  override isStopped(): boolean {
    return Atomics.load(this.#flag, 0) === STOPPED;
  }

  override get stopText(): string {
    const text = super.stopText;
    return text === "" && this.isStopped() ? Stop.STOPPED : text;
  }
}

class ThreadHost implements Host {
  readonly codec: Codec;
  readonly #say: (word: Word) => void;
  #requests = 0;
  readonly #asked = new Map<number, (answer: Answer) => void>();

  constructor(codec: Codec, say: (word: Word) => void) {
    this.codec = codec;
    this.#say = say;
  }

  noteProgress(run: Run): void {
    if (run.progress !== undefined) {
      this.#say({ type: "progress", progress: run.progress });
    }
  }

  async fetchOutput(_lease: bigint, taskId: bigint): Promise<Output> {
    const request = ++this.#requests;
    const answer = await new Promise<Answer>((resolve) => {
      this.#asked.set(request, resolve);
      this.#say({ type: "fetch", request, taskId });
    });
    if ("output" in answer) {
      return answer.output;
    }
    const code = answer.isUnavailable ? "UNAVAILABLE" : "INTERNAL";
    throw errorFor(code, answer.error, { reason: answer.reason });
  }

  answer(request: number, answer: Answer): void {
    this.#asked.get(request)?.(answer);
    this.#asked.delete(request);
  }
}
