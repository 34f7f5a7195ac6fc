/**
 * Decides how a started worker runs what the link brings, and how it stops.
 *
 * One object per start. What ends in one turn of the event loop is reported together. A handler
 * cannot be killed, so its slot is taken until it has really ended.
 */

import { Attempt, type Host } from "./attempt.js";
import { clamped, monotonicMs } from "./clock.js";
import type { Endpoint } from "./endpoint.js";
import { ClosedError, type CronoqError, GaveUpError } from "./errors.js";
import type { Output } from "./gen/cronoq/v1/workers.js";
import type { Handlers } from "./handlers.js";
import { Link, type Listener } from "./link.js";
import type { WorkerSettings } from "./options.js";
import { failed, failedForGood, nacked, type Outcome } from "./outcome.js";
import { textOf } from "./payload.js";
import { ReconnectPolicy } from "./reconnect.js";
import { type Run, Stop } from "./run.js";
import { type Ended, PROTOCOL_VERSION, Session } from "./session.js";
import { Dialer } from "./transport.js";
import { VERSION } from "./version.js";

// Tasks whose kind had no handler here, remembered so that the second time is the last.
const UNKNOWN_MAX = 1024;
// What a cancelled handler gets to clean up in before its attempt is reported anyway.
const STOP_GRACE_MS = 1_000;
// How long the server gets to end a stream that this side has half-closed.
const END_MS = 2_000;
// Handlers that compute are started for so long before heartbeats get their turn.
const TURN_MS = 20;

/** One start of a worker, up to its stop. */
export class Engagement implements Listener, Host {
  readonly #settings: WorkerSettings;
  readonly #handlers: Handlers;
  readonly #link: Link;
  readonly session: Session;
  readonly codec: WorkerSettings["codec"];
  readonly #backlog: Run[] = [];
  readonly #running = new Set<Run>();
  #ended: Ended[] = [];
  #isFlushing = false;
  #isStarting = false;
  readonly #unknown = new Set<bigint>();
  #waiters = new Set<() => void>();
  #stopping: Promise<void> | undefined;
  #drainEndsAt = 0;
  failure: CronoqError | undefined;
  isStopped = false;

  constructor(settings: WorkerSettings, handlers: Handlers) {
    this.#settings = settings;
    this.#handlers = handlers;
    this.codec = settings.codec;
    const register = {
      pool: settings.pool,
      slots: settings.slots,
      workerName: settings.name,
      protocolVersion: PROTOCOL_VERSION,
      labels: new Map(Object.entries(settings.labels)),
      resume: undefined,
      sdk: `typescript/${VERSION}`,
      kinds: handlers.declaredKinds(),
    };
    this.session = new Session(register, settings.maxMessageBytes);
    this.#link = new Link(
      this.session,
      new ReconnectPolicy(policySettings(settings, settings.endpoint), Math.random),
      new Dialer(settings),
      settings.token,
      settings.connectTimeoutMs,
      this,
      settings.logger,
    );
  }

  /** Starts connecting; returns at once. */
  start(): void {
    void this.#link.run();
  }

  // --- what the link says -----------------------------------------------------------------------

  begin(runs: readonly Run[]): void {
    this.#backlog.push(...runs);
    this.#startWaiting();
  }

  stopRuns(runs: readonly Run[]): void {
    for (const run of runs) {
      const place = this.#backlog.indexOf(run);
      if (place >= 0) {
        this.#backlog.splice(place, 1);
        this.#end(run, nacked("stopped before it began"));
      } else if (!this.#running.has(run)) {
        continue; // It has just ended.
      }
      this.#settings.logger.info(`task ${run.taskId}: handler told to stop: ${run.stopText}`);
      const { onAbort } = this.#settings.hooks;
      if (onAbort !== undefined) {
        this.#hook("onAbort", () => {
          onAbort(new Attempt(run, this), run.stopText);
        });
      }
    }
  }

  connected(endpoint: string): void {
    this.#settings.logger.info(`connected to ${endpoint}`);
    this.#hook("onConnect", () => this.#settings.hooks.onConnect?.(endpoint));
    this.changed();
  }

  disconnected(endpoint: string, reason: string): void {
    this.#settings.logger.info(`disconnected from ${endpoint}: ${reason}`);
    this.#hook("onDisconnect", () => this.#settings.hooks.onDisconnect?.(endpoint, reason));
    this.changed();
  }

  redirected(endpoint: string, refused: string): void {
    if (refused === "") {
      this.#settings.logger.info(`redirected to ${endpoint}`);
    } else {
      this.#settings.logger.warn(`redirect not followed: ${refused}`);
    }
    this.#hook("onRedirect", () => this.#settings.hooks.onRedirect?.(endpoint, refused));
  }

  gaveUp(code: string, message: string): void {
    this.#settings.logger.error(`giving up: ${code}: ${message}`);
    this.failure = new GaveUpError(`${code}: ${message}`, { details: { code } });
    this.changed();
  }

  changed(): void {
    const waiters = this.#waiters;
    this.#waiters = new Set();
    for (const wake of waiters) {
      wake();
    }
  }

  /** A hook is the user's; its fault must not end the worker. */
  #hook(name: string, call: () => void): void {
    try {
      call();
    } catch (error) {
      this.#settings.logger.error(`hook ${name} failed: ${textOf(error)}`);
    }
  }

  // --- what attempts want -----------------------------------------------------------------------

  noteProgress(): void {
    this.#link.noteProgress();
  }

  fetchOutput(lease: bigint, taskId: bigint): Promise<Output> {
    return this.#link.fetchOutput(lease, taskId);
  }

  // --- running ----------------------------------------------------------------------------------

  /** WP-11: starts what waits while there are slots, some at a time: handlers may compute. */
  #startWaiting(): void {
    if (this.#isStarting || this.#backlog.length === 0) {
      return;
    }
    const turnEnds = monotonicMs() + TURN_MS;
    while (this.#running.size < this.#settings.slots) {
      const run = this.#backlog.shift();
      if (run === undefined) {
        return;
      }
      this.#start(run);
      if (monotonicMs() >= turnEnds) {
        this.#isStarting = true;
        setImmediate(() => {
          this.#isStarting = false;
          this.#startWaiting();
        });
        return;
      }
    }
  }

  #start(run: Run): void {
    const handler = this.#handlers.find(run.message.kind);
    if (handler === undefined) {
      this.#end(run, this.#unknownKind(run));
      return;
    }
    this.#running.add(run);
    void handler.run(new Attempt(run, this), run).then((outcome) => {
      this.#end(run, outcome);
    });
  }

  /** WP-13: given back the first time, since another worker may know it; permanent the second. */
  #unknownKind(run: Run): Outcome {
    const text = `no handler for kind '${run.message.kind}'`;
    if (this.#unknown.has(run.taskId)) {
      return failedForGood(text);
    }
    this.#unknown.add(run.taskId);
    if (this.#unknown.size > UNKNOWN_MAX) {
      const [oldest = 0n] = this.#unknown;
      this.#unknown.delete(oldest);
    }
    return nacked(text);
  }

  #end(run: Run, outcome: Outcome): void {
    this.#ended.push([run, outcome]);
    if (!this.#isFlushing) {
      this.#isFlushing = true;
      setImmediate(() => {
        this.#flush();
      });
    }
  }

  /** WP-20: reports all that ended since the last turn. */
  #flush(): void {
    this.#isFlushing = false;
    const ended = this.#ended;
    this.#ended = [];
    for (const [run] of ended) {
      this.#running.delete(run);
    }
    this.session.report(ended, monotonicMs());
    this.#startWaiting();
    if (this.#stopping !== undefined) {
      this.changed();
    }
  }

  // --- stopping ---------------------------------------------------------------------------------

  /** Waits for a fact that some event of this worker brings about; throws when none can any more. */
  async until(isTrue: () => boolean, signal?: AbortSignal): Promise<void> {
    while (!isTrue()) {
      signal?.throwIfAborted();
      if (this.failure !== undefined) {
        throw this.failure;
      }
      if (this.isStopped) {
        throw new ClosedError("the worker was stopped");
      }
      await this.#change(undefined, signal);
    }
  }

  /** WP-40: stops once; a shorter time counts. */
  stop(drainTimeoutMs: number): Promise<void> {
    const endsAt = monotonicMs() + drainTimeoutMs;
    if (this.#stopping === undefined) {
      this.#drainEndsAt = endsAt;
      this.#stopping = this.#stop();
    } else if (endsAt < this.#drainEndsAt) {
      this.#drainEndsAt = endsAt;
      this.changed();
    }
    return this.#stopping;
  }

  async #stop(): Promise<void> {
    this.session.drain();
    if (this.failure !== undefined) {
      // No server takes what handlers come to, so nothing is worth waiting for.
      this.#drainEndsAt = monotonicMs();
    }
    for (const run of this.#backlog.splice(0)) {
      this.#end(run, nacked("worker is stopping")); // WP-41
    }
    await this.#untilDrained(() => this.#hasNothingToRun());
    if (this.#running.size > 0) {
      await this.#stopRest();
    }
    this.#drainEndsAt = Math.max(this.#drainEndsAt, monotonicMs() + STOP_GRACE_MS);
    this.#link.close();
    await this.#untilDrained(() => this.session.isSettled || this.#link.isOver); // WP-43
    await this.#closeLink();
    this.isStopped = true;
    this.changed();
  }

  #hasNothingToRun(): boolean {
    return this.#running.size === 0 && this.#ended.length === 0;
  }

  /** Waits for a fact, at most until the drain's end, which a second stop may draw nearer. */
  async #untilDrained(isTrue: () => boolean): Promise<void> {
    while (!isTrue() && monotonicMs() < this.#drainEndsAt) {
      await this.#change(this.#drainEndsAt);
    }
  }

  /** Waits until something has changed, or until an instant. */
  #change(until?: number, signal?: AbortSignal): Promise<void> {
    return new Promise((resolve) => {
      const wake = (): void => {
        clearTimeout(timer);
        signal?.removeEventListener("abort", wake);
        this.#waiters.delete(wake);
        resolve();
      };
      const timer =
        until === undefined
          ? undefined
          : setTimeout(wake, clamped(Math.ceil(until - monotonicMs())));
      signal?.addEventListener("abort", wake, { once: true });
      this.#waiters.add(wake);
    });
  }

  /** WP-42: time is up: handlers are told, and what does not end is reported without them. */
  async #stopRest(): Promise<void> {
    this.stopRuns(this.session.stopRuns(Stop.STOPPED));
    this.#drainEndsAt = monotonicMs() + STOP_GRACE_MS;
    await this.#untilDrained(() => this.#hasNothingToRun());
    const rest = this.session.openRuns();
    if (rest.length > 0) {
      const tasks = rest.map((run) => run.taskId).join(", ");
      this.#settings.logger.warn(`handlers of tasks ${tasks} do not end`);
      const outcome = failed(Stop.STOPPED);
      this.session.report(
        rest.map((run) => [run, outcome]),
        monotonicMs(),
      );
    }
  }

  /** WP-44. */
  async #closeLink(): Promise<void> {
    const unconfirmed = this.session.unconfirmedTasks();
    if (unconfirmed.length > 0) {
      const tasks = unconfirmed.join(", ");
      this.#settings.logger.warn(`stopped before the server confirmed tasks ${tasks}`);
    }
    this.#link.halfClose();
    await this.#untilLinkEnded();
    if (!this.#link.isEnded) {
      this.#link.abandon();
      await this.#untilLinkEnded();
    }
  }

  async #untilLinkEnded(): Promise<void> {
    const endsAt = monotonicMs() + END_MS;
    while (!this.#link.isEnded && monotonicMs() < endsAt) {
      await this.#change(endsAt);
    }
  }
}

function policySettings(
  settings: WorkerSettings,
  endpoint: Endpoint,
): ConstructorParameters<typeof ReconnectPolicy>[0] {
  return {
    endpoint,
    hasToken: settings.token !== undefined,
    insecureRedirectHttp: settings.insecureRedirectHttp,
    backoffInitialMs: settings.backoff.initialMs,
    backoffMaxMs: settings.backoff.maximumMs,
    sessionResetMs: settings.sessionResetMs,
  };
}
