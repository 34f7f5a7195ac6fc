/**
 * Decides how handlers and programs are tested: a handler without a server, called just as a worker
 * would call it; and a real server whose clock a test moves.
 */

import { type ChildProcess, spawn } from "node:child_process";
import { createInterface } from "node:readline";

import { Attempt, type Host, type Interceptor } from "./attempt.js";
import { checkedId, numberOf, unixNs, writeMap } from "./convert.js";
import { parseConfigured } from "./endpoint.js";
import { Priority as WirePriority, TaskStatus } from "./gen/cronoq/v1/task.js";
import { TestingService } from "./gen/cronoq/v1/testing.js";
import { Lease, type Output } from "./gen/cronoq/v1/workers.js";
import { Handler, type HandlerFunction } from "./handlers.js";
import { CONSOLE, type Logger } from "./logger.js";
import { clientSettings } from "./options.js";
import type { Outcome } from "./outcome.js";
import { type Codec, decodeWith, encodeWith, JsonCodec, type Parser } from "./payload.js";
import { Run, Stop } from "./run.js";
import type { Instant, Priority } from "./spec.js";
import { type Channel, Dialer } from "./transport.js";
import type { Progress } from "./views.js";

const ADVANCE_TIMEOUT_MS = 60_000;
const SILENT: Logger = { ...CONSOLE, warn: () => undefined };

/** What `runHandler` tells a handler about its attempt, and what the worker's options would be. */
export interface FakeAttempt<T = unknown> {
  /** Makes sure of the payload, as it does at `Worker.handler`. */
  readonly as?: Parser<T> | undefined;
  /** Id of the task; 1 if not given. */
  readonly taskId?: bigint | undefined;
  /** Number of the attempt; 1 if not given. */
  readonly number?: number | undefined;
  /** Kind of the task; `test` if not given. */
  readonly kind?: string | undefined;
  readonly key?: string | undefined;
  /** Pool of the task; `default` if not given. */
  readonly pool?: string | undefined;
  readonly priority?: Priority | undefined;
  readonly tags?: Readonly<Record<string, string>> | undefined;
  readonly deadline?: Instant | undefined;
  readonly timeoutMs?: number | undefined;
  readonly traceContext?: Readonly<Record<string, string>> | undefined;
  readonly lastProgress?: Progress | undefined;
  /** Values of parents by task id. */
  readonly outputs?: ReadonlyMap<bigint, unknown> | undefined;
  /** Called with each progress that the handler tells. */
  readonly onProgress?: ((progress: Progress) => void) | undefined;
  /** Tells the handler to stop when aborted. */
  readonly signal?: AbortSignal | undefined;
  /** JSON if not given. */
  readonly codec?: Codec | undefined;
  readonly interceptors?: readonly Interceptor[] | undefined;
}

/** How a handler ended. */
export class HandlerOutcome {
  readonly #codec: Codec;
  /** What it returned, encoded; undefined if it did not return. */
  readonly output: Uint8Array | undefined;
  /** Of the output. */
  readonly contentType: string;
  /** Message of a failure; undefined if it did not fail. */
  readonly failure: string | undefined;
  /** Whether the failure ends the task. */
  readonly isPermanent: boolean;
  /** Wait that the handler asked for. */
  readonly retryAfterMs: number | undefined;
  /** Whether the handler cancelled its task. */
  readonly isCancelled: boolean;
  /** Reason for which the handler gave the attempt back; undefined if it did not. */
  readonly rejection: string | undefined;

  /** Made by `runHandler`. */
  constructor(outcome: Outcome, codec: Codec) {
    this.#codec = codec;
    this.output = outcome.type === "completed" ? outcome.output : undefined;
    this.contentType = outcome.type === "completed" ? outcome.contentType : "";
    this.failure = outcome.type === "failed" ? outcome.message : undefined;
    this.isPermanent = outcome.type === "failed" && outcome.permanent;
    this.retryAfterMs = outcome.type === "failed" ? outcome.retryAfterMs : undefined;
    this.isCancelled = outcome.type === "cancelled";
    this.rejection = outcome.type === "nacked" ? outcome.reason : undefined;
  }

  /**
   * Returns what a client would get as result.
   *
   * @throws {Error} The handler did not return.
   */
  value<T = unknown>(as?: Parser<T>): T {
    if (this.output === undefined) {
      const what = this.failure ?? this.rejection ?? "it cancelled its task";
      throw new Error(`the handler did not succeed: ${what}`);
    }
    return decodeWith(this.#codec, this.output, this.contentType, as) as T;
  }
}

/** Runs a handler as a worker would. `payload` is what a client would submit. */
export async function runHandler<T = unknown>(
  handler: HandlerFunction<T>,
  payload?: unknown,
  fake: FakeAttempt<T> = {},
): Promise<HandlerOutcome> {
  const codec = fake.codec ?? new JsonCodec();
  const run = new Run(leaseOf(payload, fake, codec), 0, Infinity);
  const onAbort = (): void => {
    run.tell(Stop.ABORTED);
  };
  fake.signal?.addEventListener("abort", onAbort, { once: true });
  const called = new Handler(fake.as, handler, codec, fake.interceptors ?? [], SILENT);
  try {
    return new HandlerOutcome(
      await called.run(new Attempt(run, new FakeHost(codec, fake)), run),
      codec,
    );
  } finally {
    fake.signal?.removeEventListener("abort", onAbort);
  }
}

function leaseOf<T>(payload: unknown, fake: FakeAttempt<T>, codec: Codec): Lease {
  const encoded = payload === undefined ? undefined : encodeWith(codec, payload);
  return {
    ...Lease.create(),
    lease: 1n,
    taskId: checkedId(fake.taskId ?? 1n, "taskId"),
    attempt: fake.number ?? 1,
    payload: encoded?.payload ?? new Uint8Array(0),
    contentType: encoded?.contentType ?? "",
    kind: fake.kind ?? "test",
    key: fake.key ?? "",
    tags: writeMap(fake.tags, "tags"),
    timeoutS: fake.timeoutMs === undefined ? undefined : fake.timeoutMs / 1000,
    deadlineUnixNs: fake.deadline === undefined ? undefined : unixNs(fake.deadline, "deadline"),
    pool: fake.pool ?? "default",
    priority: numberOf(WirePriority, fake.priority, "priority"),
    traceContext: writeMap(fake.traceContext, "traceContext"),
    lastProgress: fake.lastProgress,
    parents: [...(fake.outputs?.keys() ?? [])],
  };
}

/** Stands for the worker: knows outputs of parents, hears progress. */
class FakeHost<T> implements Host {
  constructor(
    readonly codec: Codec,
    readonly fake: FakeAttempt<T>,
  ) {}

  noteProgress(run: Run): void {
    if (run.progress !== undefined) {
      this.fake.onProgress?.(run.progress);
    }
  }

  fetchOutput(_lease: bigint, taskId: bigint): Promise<Output> {
    const { contentType, payload } = encodeWith(this.codec, this.fake.outputs?.get(taskId));
    return Promise.resolve({ output: payload, contentType, status: TaskStatus.SUCCEEDED });
  }
}

// --- a server -----------------------------------------------------------------------------------

/** How a test server is started. */
export interface TestServerOptions {
  /** The program; `CRONOQ_SERVER` of the environment, or `cronoq-server`, if not given. */
  readonly command?: string | undefined;
  /** More arguments, such as `--config` and a path. */
  readonly args?: readonly string[] | undefined;
  /** Ends the wait for its start. */
  readonly signal?: AbortSignal | undefined;
}

/** How far a clock is moved; the parts add up. */
export interface Advance {
  readonly days?: number;
  readonly hours?: number;
  readonly minutes?: number;
  readonly seconds?: number;
  readonly ms?: number;
}

/** A server in memory whose time stands still until it is moved. */
export interface TestServer extends AsyncDisposable {
  /** Where it listens, for clients and workers. */
  readonly endpoint: string;
  /** Moves its clock forward, by milliseconds or by parts. */
  advance(by: number | Advance): Promise<void>;
  /** Resolves when everything that is due has been done. */
  settle(): Promise<void>;
  /** Ends it. */
  stop(): Promise<void>;
}

/**
 * Starts `cronoq-server --test-clock` on a free port of this machine.
 *
 * @throws {Error} It cannot be started, or ended before it served; the text is what it said.
 */
export async function startTestServer(options: TestServerOptions = {}): Promise<TestServer> {
  const command = options.command ?? process.env["CRONOQ_SERVER"] ?? "cronoq-server";
  const args = ["--test-clock", "--grpc-addr", "127.0.0.1:0", "--http-addr", "127.0.0.1:0"];
  const env = { ...process.env };
  delete env["CRONOQ_SERVER"]; // The server would take it for a setting.
  const child = spawn(command, [...args, ...(options.args ?? [])], {
    env,
    stdio: ["ignore", "pipe", "pipe"],
    signal: options.signal,
  });
  const endpoint = await servingEndpoint(child);
  const channel = new Dialer(clientSettings({ endpoint })).dial(
    parseConfigured(endpoint, false),
    undefined,
  );
  return new RunningServer(child, endpoint, channel);
}

class RunningServer implements TestServer {
  readonly #child: ChildProcess;
  readonly #channel: Channel;
  readonly #killer: () => void;

  constructor(
    child: ChildProcess,
    readonly endpoint: string,
    channel: Channel,
  ) {
    this.#child = child;
    this.#channel = channel;
    // A test that fails before its stop leaves nothing behind.
    this.#killer = () => child.kill("SIGKILL");
    process.once("exit", this.#killer);
  }

  async advance(by: number | Advance): Promise<void> {
    const bounds = { timeoutMs: ADVANCE_TIMEOUT_MS };
    await this.#channel.unary(TestingService.advance, { seconds: secondsIn(by) }, bounds);
  }

  async settle(): Promise<void> {
    await this.#channel.unary(TestingService.settle, {}, { timeoutMs: ADVANCE_TIMEOUT_MS });
  }

  async stop(): Promise<void> {
    process.off("exit", this.#killer);
    this.#channel.close();
    if (this.#child.exitCode === null && this.#child.signalCode === null) {
      const ended = new Promise((resolve) => this.#child.once("exit", resolve));
      this.#child.kill("SIGTERM");
      await ended;
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.stop();
  }
}

function secondsIn(by: number | Advance): number {
  if (typeof by === "number") {
    return by / 1000;
  }
  const { days = 0, hours = 0, minutes = 0, ms = 0, seconds = 0 } = by;
  return ((days * 24 + hours) * 60 + minutes) * 60 + seconds + ms / 1000;
}

function servingEndpoint(child: ChildProcess): Promise<string> {
  const { stderr, stdout } = child;
  if (stdout === null || stderr === null) {
    throw new Error("the server's output is not there to be read");
  }
  const said: string[] = [];
  return new Promise((resolve, reject) => {
    child.once("error", reject);
    child.once("exit", () => {
      reject(new Error(`the server ended before it served:\n${said.join("\n")}`));
    });
    // Read to the end, so that the server is never held up.
    for (const stream of [stdout, stderr]) {
      createInterface({ input: stream }).on("line", (line) => {
        const found = /serving gRPC on ([^\s,]+)/.exec(line);
        if (found?.[1] !== undefined) {
          resolve(found[1]);
        } else if (said.length < 100) {
          said.push(line);
        }
      });
    }
  });
}
