/**
 * Decides how concurrent waits share streams.
 *
 * Waits that begin in one turn of the event loop go out as one WaitMany stream. Few streams are open
 * at a time: when all are in use, new waits gather for a moment and then join the smallest one, which
 * is opened anew. Targets are ids, since answers carry ids only. Waits change nothing, so a stream
 * that ends or breaks is simply opened again for what is still unanswered, in slices that the server
 * allows.
 */

import { BackoffSeries, type Caller, cronoqErrorOf } from "./calls.js";
import { monotonicMs } from "./clock.js";
import { readResult } from "./convert.js";
import { type CronoqError, DeadlineError, UnsupportedError } from "./errors.js";
import { type TaskResults, TasksService } from "./gen/cronoq/v1/tasks.js";
import { statusError } from "./status.js";
import { isUnavailable, type ServerStream } from "./transport.js";
import type { TaskResult } from "./views.js";

const STREAMS_MAX = 4;
const TARGETS_PER_STREAM = 10_000;
// How long new waits gather while all streams are in use.
const GATHER_MS = 5;
// The server ends a slice by itself; the call's own limit only guards against one that does not.
const SLICE_ROOM_MS = 30_000;
// Single waits at a time toward a server that has no shared ones.
const SINGLE_MAX = 256;

/** One wait for one task. */
export interface Waiter {
  readonly promise: Promise<TaskResult>;
  readonly resolve: (result: TaskResult) => void;
  readonly reject: (error: unknown) => void;
}

/** One open stream and what it still owes. */
class Stream {
  call: ServerStream<TaskResults> | undefined;
  isReplaced = false;

  constructor(readonly targets: Set<bigint>) {}
}

/** How reading one stream went: whether the next shall wait a moment, and what went wrong. */
interface Reading {
  readonly needsPause: boolean;
  readonly trouble?: CronoqError;
}

/** Joins the waits of one client into streams. */
export class SharedWaits {
  readonly #caller: Caller;
  readonly #sliceMs: number;
  readonly #waiting = new Map<bigint, Set<Waiter>>();
  readonly #fresh = new Set<bigint>();
  readonly #streams = new Set<Stream>();
  #timer: NodeJS.Timeout | undefined;
  #isScheduled = false;
  #knowsMany = true;
  readonly #singles: bigint[] = [];
  #singlesBegun = 0;
  #singleCount = 0;

  constructor(caller: Caller) {
    this.#caller = caller;
    this.#sliceMs = caller.settings.maxWaitMs;
  }

  /** Starts a wait for a task. */
  begin(target: bigint): Waiter {
    const waiter = newWaiter();
    const waiting = this.#waiting.get(target);
    if (waiting !== undefined) {
      waiting.add(waiter);
      return waiter;
    }
    this.#waiting.set(target, new Set([waiter]));
    this.#fresh.add(target);
    this.#schedule();
    return waiter;
  }

  /** Ends one wait that nobody waits for any more. */
  forget(target: bigint, waiter: Waiter): void {
    const waiting = this.#waiting.get(target);
    if (waiting?.delete(waiter) === true && waiting.size === 0) {
      this.#waiting.delete(target);
      if (this.#waiting.size === 0) {
        this.#cancelIdle();
      }
    }
  }

  /** Nobody waits: streams that are open would only keep the program alive. */
  #cancelIdle(): void {
    for (const stream of this.#streams) {
      stream.call?.cancel();
    }
  }

  #schedule(): void {
    if (!this.#isScheduled && this.#timer === undefined) {
      this.#isScheduled = true;
      setImmediate(() => {
        this.#isScheduled = false;
        this.#openFresh();
      });
    }
  }

  #openFresh(): void {
    if (!this.#knowsMany) {
      this.#waitSingly(this.#takeFresh());
    } else if (this.#streams.size < STREAMS_MAX) {
      this.#openStreams(this.#takeFresh());
    } else {
      this.#timer ??= setTimeout(() => {
        this.#joinSmallest();
      }, GATHER_MS);
    }
  }

  #takeFresh(): bigint[] {
    const fresh = [...this.#fresh].filter((target) => this.#waiting.has(target));
    this.#fresh.clear();
    return fresh;
  }

  #joinSmallest(): void {
    this.#timer = undefined;
    const targets = this.#takeFresh();
    if (this.#streams.size >= STREAMS_MAX) {
      const [smallest] = [...this.#streams].sort((a, b) => a.targets.size - b.targets.size);
      if (smallest !== undefined) {
        smallest.isReplaced = true;
        this.#streams.delete(smallest);
        targets.push(...smallest.targets);
        smallest.call?.cancel();
      }
    }
    this.#openStreams(targets);
  }

  #openStreams(targets: readonly bigint[]): void {
    for (let start = 0; start < targets.length; start += TARGETS_PER_STREAM) {
      const stream = new Stream(new Set(targets.slice(start, start + TARGETS_PER_STREAM)));
      this.#streams.add(stream);
      void this.#follow(stream);
    }
  }

  /** Keeps a stream open until it owes nothing. */
  async #follow(stream: Stream): Promise<void> {
    const backoff = new BackoffSeries(this.#caller.settings);
    try {
      while (this.#isOwed(stream)) {
        const { needsPause, trouble } = await this.#readOnce(stream, backoff);
        if (needsPause && this.#isOwed(stream)) {
          await this.#caller.pause(backoff.nextDelay(trouble));
        }
      }
    } catch (error) {
      this.#fail(stream.targets, error);
    } finally {
      this.#streams.delete(stream);
      if (this.#fresh.size > 0 && this.#timer !== undefined) {
        // A stream is free: nothing to gather for any more.
        clearTimeout(this.#timer);
        this.#timer = undefined;
        this.#schedule();
      }
    }
  }

  #isOwed(stream: Stream): boolean {
    if (stream.isReplaced) {
      return false;
    }
    for (const target of stream.targets) {
      if (!this.#waiting.has(target)) {
        stream.targets.delete(target);
      }
    }
    return stream.targets.size > 0;
  }

  /** Reads one stream to its end. */
  async #readOnce(stream: Stream, backoff: BackoffSeries): Promise<Reading> {
    try {
      return { needsPause: await this.#read(stream, backoff) };
    } catch (thrown) {
      const error = cronoqErrorOf(thrown);
      if (error instanceof UnsupportedError) {
        this.#knowsMany = false;
        this.#waitSingly([...stream.targets]);
        stream.targets.clear();
        return { needsPause: false };
      }
      if (stream.isReplaced || error instanceof DeadlineError || isUnavailable(error)) {
        return { needsPause: true, trouble: error };
      }
      throw error;
    }
  }

  /** True if the next stream shall wait a moment. */
  async #read(stream: Stream, backoff: BackoffSeries): Promise<boolean> {
    const request = {
      ids: [...stream.targets],
      keys: [],
      timeoutS: this.#sliceMs / 1000,
      withoutOutput: false,
    };
    const bounds = { timeoutMs: this.#sliceMs + SLICE_ROOM_MS };
    const call = this.#caller.connection.channel().stream(TasksService.waitMany, request, bounds);
    stream.call = call;
    let hasFailedPart = false;
    const beganAt = monotonicMs();
    try {
      for await (const message of call) {
        if (message.results.length > 0) {
          backoff.reset();
        }
        this.#settle(message, stream);
        hasFailedPart = this.#noteErrors(message) || hasFailedPart;
      }
    } finally {
      stream.call = undefined;
    }
    // A server that ends slices at once must not be asked again and again without a pause.
    const isShort = monotonicMs() - beganAt < this.#sliceMs / 2;
    return hasFailedPart || isShort;
  }

  #settle(message: TaskResults, stream: Stream): void {
    for (const item of message.results) {
      const result = readResult(item);
      stream.targets.delete(result.id);
      this.#deliver(result);
    }
  }

  /** Fails those that can never be answered; true if others were only not answered yet. */
  #noteErrors(message: TaskResults): boolean {
    let hasRetryable = false;
    for (const { status, task } of message.errors) {
      const error = statusError(status);
      if (isUnavailable(error)) {
        hasRetryable = true;
      } else if (!(error instanceof DeadlineError) && task?.ref?.$case === "id") {
        this.#fail([task.ref.value], error);
      }
    }
    return hasRetryable;
  }

  #deliver(result: TaskResult): void {
    for (const waiter of this.#take(result.id)) {
      waiter.resolve(result);
    }
  }

  #fail(targets: Iterable<bigint>, error: unknown): void {
    for (const target of [...targets]) {
      for (const waiter of this.#take(target)) {
        waiter.reject(error);
      }
    }
  }

  #take(target: bigint): Iterable<Waiter> {
    const waiting = this.#waiting.get(target) ?? [];
    this.#waiting.delete(target);
    return waiting;
  }

  // --- servers that have no shared waits --------------------------------------------------------

  #waitSingly(targets: readonly bigint[]): void {
    for (const target of targets) {
      this.#singles.push(target); // One by one: there may be more than a call has arguments.
    }
    while (this.#singleCount < SINGLE_MAX && this.#singlesBegun < this.#singles.length) {
      this.#singleCount += 1;
      void this.#waitInTurn();
    }
  }

  /** Not by taking it off, which would move all that are behind it. */
  #nextSingle(): bigint | undefined {
    const target = this.#singles[this.#singlesBegun++];
    if (target === undefined) {
      this.#singles.length = this.#singlesBegun = 0;
    }
    return target;
  }

  async #waitInTurn(): Promise<void> {
    let target = this.#nextSingle();
    while (target !== undefined) {
      try {
        await this.#waitSingle(target);
      } catch (error) {
        this.#fail([target], error);
      }
      target = this.#nextSingle();
    }
    this.#singleCount -= 1;
  }

  async #waitSingle(target: bigint): Promise<void> {
    const backoff = new BackoffSeries(this.#caller.settings);
    const request = {
      task: { ref: { $case: "id" as const, value: target } },
      timeoutS: this.#sliceMs / 1000,
    };
    while (this.#waiting.has(target)) {
      const endsAt = monotonicMs() + this.#sliceMs + SLICE_ROOM_MS;
      try {
        const plan = { idempotent: true, endsAt };
        const answer = await this.#caller.call(TasksService.wait, request, plan);
        this.#deliver(readResult(answer));
      } catch (thrown) {
        const error: CronoqError = cronoqErrorOf(thrown);
        if (!(error instanceof DeadlineError) && !isUnavailable(error)) {
          throw error;
        }
        await this.#caller.pause(backoff.nextDelay(error));
      }
    }
  }

  /** Ends all that is under way. */
  close(reason: unknown): void {
    clearTimeout(this.#timer);
    this.#fail(this.#waiting.keys(), reason);
    this.#cancelIdle();
  }
}

function newWaiter(): Waiter {
  let resolve!: (result: TaskResult) => void;
  let reject!: (error: unknown) => void;
  const promise = new Promise<TaskResult>((onResult, onError) => {
    resolve = onResult;
    reject = onError;
  });
  // Whoever waits hears of it; who has gone does not want to.
  promise.catch(() => undefined);
  return { promise, resolve, reject };
}
