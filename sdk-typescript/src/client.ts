/**
 * Decides what a program can ask of a server, and how each call is made.
 *
 * Every call has a deadline (60 s unless told otherwise) that covers its repetitions; waits have
 * none unless given.
 */

import { AdminCalls, type CallOptions } from "./admin.js";
import { Caller } from "./calls.js";
import { clamped } from "./clock.js";
import { type Admitted, type Member, SubmitCoalescer } from "./coalesce.js";
import {
  checkedId,
  numberOf,
  readDetail,
  readInfo,
  writeFilter,
  writeRef,
  writeSpec,
} from "./convert.js";
import {
  ClosedError,
  CronoqError,
  OutputUnavailableError,
  TaskFailedError,
  WaitTimeoutError,
} from "./errors.js";
import { BulkAction as WireAction, TasksService } from "./gen/cronoq/v1/tasks.js";
import { type ClientOptions, clientSettings, type Submission } from "./options.js";
import { TaskPages } from "./pages.js";
import { decodeWith, type Parser } from "./payload.js";
import {
  type BulkAction,
  type HasId,
  type TaskFilter,
  type TaskOptions,
  type TaskSpec,
  TaskStatus,
} from "./spec.js";
import { Connection } from "./transport.js";
import type { BulkOutcome, StatusEvent, TaskDetail, TaskInfo, TaskResult } from "./views.js";
import { SharedWaits } from "./waits.js";
import { watchEvents } from "./watch.js";

// For the part of a wait that is a call, since waits have no deadline of their own.
const FOREVER_MS = 365 * 86_400_000;
// How many requests submitMany fills ahead of the two that are in flight.
const FILL_AHEAD = 2;
const NOTHING = new Uint8Array(0);

/** What bounds a wait. */
export interface WaitOptions {
  /** Longest wait, ms; for ever if not given. */
  readonly timeoutMs?: number | undefined;
  /** Ends the wait; its reason is thrown then. */
  readonly signal?: AbortSignal | undefined;
}

/** What a caller wants of an output. */
export interface ResultOptions<T> extends WaitOptions {
  /** Makes sure that it is what is wanted: a zod schema, or anything that has `parse`. */
  readonly as?: Parser<T> | undefined;
}

/** How a bulk call goes about. */
export interface BulkOptions extends CallOptions {
  /** Most tasks to change; the server's limit if not given. */
  readonly limit?: number | undefined;
  /** Only tasks with a higher id. */
  readonly after?: bigint | undefined;
  /** Count, but change nothing. */
  readonly dryRun?: boolean | undefined;
}

/** How a listing is read. */
export interface ListOptions {
  /** Only tasks beyond this id. */
  readonly after?: bigint | undefined;
  /** Tasks per request; the server's choice if not given. */
  readonly pageSize?: number | undefined;
  /** Highest ids first. */
  readonly newestFirst?: boolean | undefined;
  readonly signal?: AbortSignal | undefined;
}

/** What a watch is told of. */
export interface WatchOptions {
  /** Tasks of these pools; with neither pools, ids nor keys: all. */
  readonly pools?: readonly string[] | undefined;
  /** These tasks. */
  readonly ids?: readonly bigint[] | undefined;
  /** Tasks with these keys. */
  readonly keys?: readonly string[] | undefined;
  /** Every change; else only ends. */
  readonly allTransitions?: boolean | undefined;
  /** Resume after an event seen before. */
  readonly afterCursor?: Uint8Array | undefined;
  /** Ends the watch; its reason is thrown then. */
  readonly signal?: AbortSignal | undefined;
}

/** A submitted task. */
export class TaskHandle implements HasId {
  readonly #client: Client;

  /** Made by `Client.submit` and its like. */
  constructor(
    client: Client,
    readonly id: bigint,
    /** Its key, empty if it has none. */
    readonly key: string,
    /** True if the key was known and this submission changed nothing. */
    readonly duplicate: boolean,
  ) {
    this.#client = client;
  }

  /** Waits for success and returns the decoded output; see `Client.result`. */
  result<T = unknown>(options: ResultOptions<T> = {}): Promise<T> {
    return this.#client.result(this.id, options);
  }

  /** Waits until the task has ended, however; see `Client.wait`. */
  wait(options: WaitOptions = {}): Promise<TaskResult> {
    return this.#client.wait(this.id, options);
  }

  /** Cancels the task; true if it is cancelled now. */
  cancel(options: CallOptions = {}): Promise<boolean> {
    return this.#client.cancel(this.id, options);
  }
}

/**
 * A client of one cronoq server (or of the balancer in front of several).
 *
 * `close()` it at the end, or use `await using`. All methods reject with subclasses of
 * `CronoqError`, or with the reason of an aborted signal.
 */
export class Client extends AdminCalls implements AsyncDisposable {
  readonly #submits: SubmitCoalescer;
  readonly #waits: SharedWaits;

  /**
   * Makes a client; nothing is sent before its first call.
   *
   * @throws {EndpointError} The endpoint cannot be read.
   * @throws {RangeError} An option is out of its range.
   */
  constructor(options: ClientOptions = {}) {
    const settings = clientSettings(options);
    super(new Caller(settings, new Connection(settings)));
    this.#submits = new SubmitCoalescer(this.caller);
    this.#waits = new SharedWaits(this.caller);
  }

  /** Ends every call that is under way and closes the connection; may be called again. */
  close(): void {
    this.isClosed = true;
    const reason = new ClosedError("the client is closed");
    this.#submits.close(reason);
    this.#waits.close(reason);
    this.caller.close(reason);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.close();
    await Promise.resolve();
  }

  // --- submitting -------------------------------------------------------------------------------

  /**
   * Submits one task; concurrent submits share requests.
   *
   * @param task Kind of the task, or a whole spec (then without payload and its options).
   * @param payload Value for the handler.
   * @returns The handle, once the task is acknowledged durably.
   * @throws {UnavailableError} No server answered; without a key the outcome may be unknown.
   * @throws {QueueFullError} There was no room before the deadline.
   * @throws {InvalidRequestError} The task is refused.
   */
  submit(task: TaskSpec, options?: CallOptions): Promise<TaskHandle>;
  submit(kind: string, payload?: unknown, options?: TaskOptions & CallOptions): Promise<TaskHandle>;
  async submit(
    task: string | TaskSpec,
    second?: unknown,
    third: TaskOptions & CallOptions = {},
  ): Promise<TaskHandle> {
    const isKind = typeof task === "string";
    const options = isKind ? third : ((second ?? {}) as CallOptions);
    const spec = isKind ? { ...third, kind: task, payload: second } : task;
    if (this.caller.settings.onSubmit === undefined) {
      return await this.#submit(this.#traced(spec), options);
    }
    return await this.#watched("submit", [spec], async (submission) => {
      const handle = await this.#submit(this.#traced(spec, submission), options);
      submission.taskIds = [handle.id];
      return handle;
    });
  }

  async #submit(spec: TaskSpec, options: CallOptions): Promise<TaskHandle> {
    const { signal } = options;
    signal?.throwIfAborted();
    const member = this.#submits.enqueue(spec, this.endsAt(options.callDeadlineMs));
    const admitted = await this.#settled(member, signal);
    return new TaskHandle(this, admitted.id, spec.key ?? "", admitted.duplicate);
  }

  /** Tells the program's hook, if there is one, when a submission begins and how it ends. */
  async #watched<T>(
    operation: Submission["operation"],
    tasks: readonly TaskSpec[],
    submit: (submission: Submission) => Promise<T>,
  ): Promise<T> {
    const submission: Submission = { operation, tasks, taskIds: [] };
    const ended = this.caller.settings.onSubmit?.(submission);
    let outcome: T;
    try {
      outcome = await submit(submission);
    } catch (error) {
      ended?.(error);
      throw error;
    }
    ended?.();
    return outcome;
  }

  async #settled(member: Member, signal: AbortSignal | undefined): Promise<Admitted> {
    if (signal === undefined) {
      return await member.promise;
    }
    const onAbort = (): void => {
      this.#submits.forget(member, signal.reason);
    };
    signal.addEventListener("abort", onAbort, { once: true });
    try {
      return await member.promise;
    } finally {
      signal.removeEventListener("abort", onAbort);
    }
  }

  #traced(spec: TaskSpec, submission?: Submission): TaskSpec {
    if (spec.traceContext !== undefined) {
      return spec;
    }
    const traceContext = submission?.traceContext ?? this.caller.settings.traceContext?.();
    return traceContext === undefined ? spec : { ...spec, traceContext };
  }

  /**
   * Submits many tasks, each on its own: some may be refused while others are admitted.
   *
   * @returns Per task, in order, its handle or the error that refused it.
   */
  async submitMany(
    tasks: Iterable<TaskSpec>,
    options: CallOptions = {},
  ): Promise<(TaskHandle | CronoqError)[]> {
    const taken: TaskSpec[] = [];
    return await this.#watched("submit_many", taken, async (submission) => {
      const told = await this.#submitEach(tasks, taken, submission, options);
      submission.taskIds = told.map((one) => (one instanceof CronoqError ? 0n : one.id));
      return told;
    });
  }

  async #submitEach(
    tasks: Iterable<TaskSpec>,
    taken: TaskSpec[],
    submission: Submission,
    options: CallOptions,
  ): Promise<(TaskHandle | CronoqError)[]> {
    const isWatched = this.caller.settings.onSubmit !== undefined;
    const endsAt = this.endsAt(options.callDeadlineMs);
    const { signal } = options;
    const places: { readonly key: string; readonly place: Member | CronoqError }[] = [];
    const onAbort = (): void => {
      for (const { place } of places) {
        if (!(place instanceof CronoqError)) {
          this.#submits.forget(place, signal?.reason);
        }
      }
    };
    signal?.addEventListener("abort", onAbort, { once: true });
    try {
      for (const task of tasks) {
        signal?.throwIfAborted();
        if (isWatched) {
          taken.push(task);
        }
        const traced = this.#traced(task, submission);
        places.push({ key: task.key ?? "", place: this.#enqueued(traced, endsAt) });
        while (this.#submits.queued > FILL_AHEAD) {
          await this.#submits.room();
        }
      }
      return await Promise.all(places.map(({ key, place }) => this.#handle(key, place)));
    } finally {
      signal?.removeEventListener("abort", onAbort);
    }
  }

  #enqueued(task: TaskSpec, endsAt: number): Member | CronoqError {
    try {
      return this.#submits.enqueue(task, endsAt);
    } catch (error) {
      if (error instanceof CronoqError) {
        return error;
      }
      throw error;
    }
  }

  async #handle(key: string, place: Member | CronoqError): Promise<TaskHandle | CronoqError> {
    if (place instanceof CronoqError) {
      return place;
    }
    try {
      const { duplicate, id } = await place.promise;
      return new TaskHandle(this, id, key, duplicate);
    } catch (error) {
      if (error instanceof CronoqError) {
        return error;
      }
      throw error;
    }
  }

  /**
   * Submits tasks as one: all are admitted, or none and the error names the index. They may depend
   * on each other's keys in any order.
   */
  async submitBatch(tasks: readonly TaskSpec[], options: CallOptions = {}): Promise<TaskHandle[]> {
    return await this.#watched("submit_batch", tasks, async (submission) => {
      const handles = await this.#submitBatch(tasks, submission, options);
      submission.taskIds = handles.map((handle) => handle.id);
      return handles;
    });
  }

  async #submitBatch(
    tasks: readonly TaskSpec[],
    submission: Submission,
    options: CallOptions,
  ): Promise<TaskHandle[]> {
    const { codec } = this.caller.settings;
    const request = {
      tasks: tasks.map((task) => writeSpec(this.#traced(task, submission), codec)),
    };
    // With a key on each, a repetition finds the tasks of the first try.
    const isKeyed = tasks.every((task) => task.key !== undefined && task.key !== "");
    const response = await this.call(TasksService.submitBatch, request, options, isKeyed);
    return response.tasks.map(
      ({ duplicate, id }, index) => new TaskHandle(this, id, tasks[index]?.key ?? "", duplicate),
    );
  }

  // --- looking ----------------------------------------------------------------------------------

  /** Returns where a task stands, by id or key. */
  async get(target: bigint | string, options: CallOptions = {}): Promise<TaskInfo> {
    return readInfo(await this.call(TasksService.get, { task: writeRef(target) }, options));
  }

  /**
   * Returns all that is known about a task: spec, payload, attempts, parents, children.
   *
   * @throws {UnsupportedError} The server is too old for it.
   */
  async detail(target: bigint | string, options: CallOptions = {}): Promise<TaskDetail> {
    const request = { task: writeRef(target) };
    return readDetail(await this.call(TasksService.describe, request, options));
  }

  /** Lists tasks in id order; iterate over it with `for await`. */
  list(wanted: TaskFilter = {}, options: ListOptions = {}): TaskPages {
    this.endsAt(undefined); // Throws when the client is closed.
    const request = {
      ...writeFilter(wanted),
      after: checkedId(options.after ?? 0n, "after"),
      limit: options.pageSize ?? 0,
      newestFirst: options.newestFirst ?? false,
    };
    return new TaskPages(this.caller, request, this.caller.settings.deadlineMs, options.signal);
  }

  /**
   * Watches tasks change; reconnects and resumes by itself, for ever. Iterate over it with
   * `for await`.
   *
   * The end of a task is never missed and may come twice; other transitions may be missed across a
   * reconnection. Servers that know no cursors are watched anew after a break.
   *
   * @throws {CursorUnknownError} The server cannot resume from that cursor.
   */
  watch(options: WatchOptions = {}): AsyncGenerator<StatusEvent, void, undefined> {
    this.endsAt(undefined); // Throws when the client is closed.
    const request = {
      pools: [...(options.pools ?? [])],
      ids: (options.ids ?? []).map((id) => checkedId(id, "ids")),
      keys: [...(options.keys ?? [])],
      allTransitions: options.allTransitions ?? false,
      afterCursor: options.afterCursor ?? NOTHING,
      bookmarks: true,
    };
    return watchEvents(this.caller, request, options.signal);
  }

  // --- waiting ----------------------------------------------------------------------------------

  /**
   * Waits until a task has ended, however it did; concurrent waits share streams.
   *
   * @throws {WaitTimeoutError} The task had not ended by then.
   * @throws {TaskUnknownError} There is no such task.
   */
  async wait(target: bigint | string, options: WaitOptions = {}): Promise<TaskResult> {
    this.endsAt(undefined); // Throws when the client is closed.
    return await bounded(`task ${target} has not ended`, options, async (signal) => {
      // Shared streams answer by id.
      const id =
        typeof target === "string"
          ? (await this.get(target, { callDeadlineMs: FOREVER_MS, signal })).id
          : checkedId(target, "task");
      return await this.#waitForId(id, signal);
    });
  }

  async #waitForId(id: bigint, signal: AbortSignal | undefined): Promise<TaskResult> {
    signal?.throwIfAborted(); // It may have been while the key was looked up.
    const waiter = this.#waits.begin(id);
    const onAbort = (): void => {
      this.#waits.forget(id, waiter);
      waiter.reject(signal?.reason);
    };
    signal?.addEventListener("abort", onAbort, { once: true });
    try {
      return await waiter.promise;
    } finally {
      signal?.removeEventListener("abort", onAbort);
    }
  }

  /**
   * Waits until all of the tasks have ended and returns their results in order.
   *
   * @throws {WaitTimeoutError} Some had not ended by then.
   * @throws {TaskUnknownError} One of them does not exist.
   */
  async waitMany(
    targets: Iterable<bigint | HasId>,
    options: WaitOptions = {},
  ): Promise<TaskResult[]> {
    this.endsAt(undefined); // Throws when the client is closed.
    const ids = [...targets].map((t) => checkedId(typeof t === "bigint" ? t : t.id, "tasks"));
    return await bounded("some tasks have not ended", options, async (signal) => {
      const waiters = ids.map((id) => [id, this.#waits.begin(id)] as const);
      const forgetAll = (): void => {
        for (const [id, waiter] of waiters) {
          this.#waits.forget(id, waiter);
          waiter.reject(signal?.reason ?? new ClosedError("another wait failed"));
        }
      };
      signal?.addEventListener("abort", forgetAll, { once: true });
      try {
        return await Promise.all(waiters.map(([, waiter]) => waiter.promise));
      } finally {
        signal?.removeEventListener("abort", forgetAll);
        forgetAll();
      }
    });
  }

  /**
   * Waits for a task to succeed and returns its output.
   *
   * @throws {TaskFailedError} The task ended otherwise.
   * @throws {OutputUnavailableError} It succeeded, but the output is no longer kept.
   * @throws {PayloadError} The output is not what is wanted.
   * @throws {WaitTimeoutError} The task had not ended by then.
   */
  async result<T = unknown>(target: bigint | string, options: ResultOptions<T> = {}): Promise<T> {
    return this.decode(await this.wait(target, options), options.as);
  }

  /** Returns the output in a result, as `result` does. */
  decode<T = unknown>(result: TaskResult, as?: Parser<T>): T {
    if (result.status !== TaskStatus.SUCCEEDED) {
      throw new TaskFailedError(result.id, result.status, result.message);
    }
    if (result.output === undefined && !result.outputAvailable) {
      throw new OutputUnavailableError(`the output of task ${result.id} is no longer kept`);
    }
    const { codec } = this.caller.settings;
    return decodeWith(codec, result.output ?? NOTHING, result.contentType, as) as T;
  }

  // --- changing ---------------------------------------------------------------------------------

  /** Cancels a task; true if it is cancelled, by whichever call. */
  async cancel(target: bigint | string, options: CallOptions = {}): Promise<boolean> {
    const request = { task: writeRef(target) };
    return (await this.call(TasksService.cancel, request, options)).cancelled;
  }

  /**
   * Puts a task that ended without success back, with fresh attempts; never repeated by itself.
   *
   * @throws {KeyInUseError} Another live task has its key.
   * @throws {DependencyImpossibleError} A dependency cannot be met any more.
   * @throws {NotTerminalError} The task has not ended.
   */
  async retry(target: bigint | string, options: CallOptions = {}): Promise<boolean> {
    const request = { task: writeRef(target) };
    return (await this.call(TasksService.retry, request, options, false)).retried;
  }

  /**
   * Forgets a finished task; true if it was there.
   *
   * @throws {NotTerminalError} The task has not finished.
   */
  async delete(target: bigint | string, options: CallOptions = {}): Promise<boolean> {
    const request = { task: writeRef(target) };
    return (await this.call(TasksService.delete, request, options)).deleted;
  }

  /** Cancels or retries all tasks that a filter finds, a bounded number per call. */
  async bulk(
    action: BulkAction,
    wanted: TaskFilter,
    options: BulkOptions = {},
  ): Promise<BulkOutcome> {
    const dryRun = options.dryRun ?? false;
    const request = {
      filter: writeFilter(wanted),
      action: numberOf(WireAction, action, "action"),
      limit: options.limit ?? 0,
      after: checkedId(options.after ?? 0n, "after"),
      dryRun,
    };
    const answer = await this.call(TasksService.bulk, request, options, dryRun);
    return {
      matched: Number(answer.matched),
      changed: Number(answer.changed),
      nextAfter: answer.nextAfter,
      unavailableShards: answer.unavailableShards,
    };
  }
}

/** Does some work that listens to a signal, at most for so long. */
async function bounded<T>(
  what: string,
  options: WaitOptions,
  work: (signal: AbortSignal | undefined) => Promise<T>,
): Promise<T> {
  const { signal, timeoutMs } = options;
  signal?.throwIfAborted();
  if (timeoutMs === undefined) {
    return await work(signal);
  }
  const ending = new AbortController();
  const onAbort = (): void => {
    ending.abort(signal?.reason);
  };
  const timer = setTimeout(() => {
    ending.abort(new WaitTimeoutError(what));
  }, clamped(timeoutMs));
  signal?.addEventListener("abort", onAbort, { once: true });
  try {
    return await work(ending.signal);
  } finally {
    clearTimeout(timer);
    signal?.removeEventListener("abort", onAbort);
  }
}
