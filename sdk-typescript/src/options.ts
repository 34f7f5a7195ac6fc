/**
 * Decides which options a client and a worker have, and their defaults.
 *
 * The names and defaults are the same in every language, durations with their unit: milliseconds.
 * conformance/defaults.toml lists the shared ones and a test compares.
 */

import { hostname } from "node:os";

import type { Attempt, Interceptor } from "./attempt.js";
import { type Endpoint, parseConfigured } from "./endpoint.js";
import { CONSOLE, type Logger } from "./logger.js";
import { type Codec, JsonCodec } from "./payload.js";
import type { TaskSpec } from "./spec.js";

export const KEEPALIVE_MIN_MS = 10_000;
/** Bytes of a message that are kept free around one payload or output. */
export const MESSAGE_ROOM = 64 * 1024;

export const CONNECT_DEFAULTS = {
  endpoint: "127.0.0.1:7070",
  backoff: { initialMs: 100, maximumMs: 5_000 },
  connectTimeoutMs: 5_000,
  keepalive: { intervalMs: 20_000, timeoutMs: 10_000 },
  maxMessageBytes: 4 * 1024 * 1024,
} as const;

export const CLIENT_DEFAULTS = {
  deadlineMs: 60_000,
  maxWaitMs: 60_000,
  maxTasksPerBatch: 1_000,
} as const;

export const WORKER_DEFAULTS = {
  slots: 1,
  insecureRedirectHttp: false,
  drainTimeoutMs: 30_000,
  sessionResetMs: 50_000,
} as const;

/** Files for TLS, read again for each connection when they have changed. */
export interface TlsOptions {
  /** Certificates to trust, PEM; the system's if not given. */
  readonly ca?: string | undefined;
  /** This side's certificate chain, PEM, for servers that ask for one. */
  readonly cert?: string | undefined;
  /** Its private key, PEM. */
  readonly key?: string | undefined;
}

/** Bounds of the exponential backoff with full jitter. */
export interface Backoff {
  /** Upper end of the first delay, ms; 100. */
  readonly initialMs?: number | undefined;
  /** Upper end that no delay exceeds, ms; 5000. */
  readonly maximumMs?: number | undefined;
}

/** How a dead connection is noticed. */
export interface Keepalive {
  /** Silence before a ping, ms, at least 10 000: servers close on pings that come too often. */
  readonly intervalMs?: number | undefined;
  /** Wait for the answer, ms; 10 000. */
  readonly timeoutMs?: number | undefined;
}

/** What every connection to a server needs. */
export interface ConnectOptions {
  /** `host:port`, `http://…` or `https://…`; 127.0.0.1:7070. */
  readonly endpoint?: string | undefined;
  /** Bearer token. It is never logged. */
  readonly token?: string | undefined;
  /** TLS files; with `https://` alone the system's certificates are trusted. */
  readonly tls?: TlsOptions | undefined;
  /** Delays between tries. */
  readonly backoff?: Backoff | undefined;
  /** Time to get a connection, ms; 5000. */
  readonly connectTimeoutMs?: number | undefined;
  /** How a dead connection is noticed. */
  readonly keepalive?: Keepalive | undefined;
  /** How values become bytes; JSON. */
  readonly codec?: Codec | undefined;
  /** Largest message that is built; the server's limit must not be smaller. 4 MiB. */
  readonly maxMessageBytes?: number | undefined;
}

/** Options of a `Client`. */
export interface ClientOptions extends ConnectOptions {
  /**
   * Time that a call may take with all its retries, ms; 60 000. `wait` and `result` have none
   * unless given.
   */
  readonly deadlineMs?: number | undefined;
  /** Length of one slice of a wait, ms; the server's `max_wait_s` or less. 60 000. */
  readonly maxWaitMs?: number | undefined;
  /** Tasks in one request; 1000. */
  readonly maxTasksPerBatch?: number | undefined;
  /** Gives the trace context of tasks that are submitted without one. */
  readonly traceContext?: (() => Readonly<Record<string, string>>) | undefined;
  /** Called as a submission begins and, what it returns, as it ends. */
  readonly onSubmit?: OnSubmit | undefined;
}

/** One call that submits tasks, as `ClientOptions.onSubmit` sees it. */
export interface Submission {
  readonly operation: "submit" | "submit_batch" | "submit_many";
  /** The tasks; of `submitMany` those that were taken so far, all at its end. */
  readonly tasks: readonly TaskSpec[];
  /** Goes with each task that names none; set it as the submission begins. */
  traceContext?: Readonly<Record<string, string>> | undefined;
  /** Once it has ended, the id of each task; 0 where it was refused. */
  taskIds: readonly bigint[];
}

/** Called as a submission begins; what it returns is called as it ends, with what was thrown. */
export type OnSubmit = (submission: Submission) => (error?: unknown) => void;

/** Options of a `Worker`. */
export interface WorkerOptions extends ConnectOptions {
  /** Pool to work for; the server's default if not given. */
  readonly pool?: string | undefined;
  /** Attempts that may run at once; 1. */
  readonly slots?: number | undefined;
  /** Shown in listings; identifies nothing. Host and process id if not given. */
  readonly name?: string | undefined;
  /** What this worker can do; tasks may ask for labels. */
  readonly labels?: Readonly<Record<string, string>> | undefined;
  /** Send the token over plain http to hosts that a server named; false. */
  readonly insecureRedirectHttp?: boolean | undefined;
  /** Time that running attempts get when the worker stops, ms; 30 000. */
  readonly drainTimeoutMs?: number | undefined;
  /** A session of this length starts the backoff anew, ms; 50 000. */
  readonly sessionResetMs?: number | undefined;
  /** Called around every handler, the first outermost. */
  readonly interceptors?: readonly Interceptor[] | undefined;
  /** Called with the endpoint when a server accepted the worker. */
  readonly onConnect?: ((endpoint: string) => void) | undefined;
  /** Called with endpoint and reason when such a stream ended. */
  readonly onDisconnect?: ((endpoint: string, reason: string) => void) | undefined;
  /**
   * Called with the endpoint that a server named, and why it is not followed (empty if it is).
   */
  readonly onRedirect?: ((endpoint: string, refused: string) => void) | undefined;
  /** Called with attempt and reason when a handler is told to stop. */
  readonly onAbort?: ((attempt: Attempt, reason: string) => void) | undefined;
  /** Hears what the worker does; warnings and errors go to the console if not given. */
  readonly logger?: Logger | undefined;
}

/** What every connection needs, with defaults filled in and checked. */
export interface ConnectSettings {
  readonly endpoint: Endpoint;
  readonly token: string | undefined;
  readonly tls: TlsOptions | undefined;
  readonly backoff: { readonly initialMs: number; readonly maximumMs: number };
  readonly connectTimeoutMs: number;
  readonly keepalive: { readonly intervalMs: number; readonly timeoutMs: number };
  readonly codec: Codec;
  readonly maxMessageBytes: number;
}

/** A client's options, with defaults filled in and checked. */
export interface ClientSettings extends ConnectSettings {
  readonly deadlineMs: number;
  readonly maxWaitMs: number;
  readonly maxTasksPerBatch: number;
  readonly traceContext: (() => Readonly<Record<string, string>>) | undefined;
  readonly onSubmit: OnSubmit | undefined;
}

/** A worker's options, with defaults filled in and checked. */
export interface WorkerSettings extends ConnectSettings {
  readonly pool: string;
  readonly slots: number;
  readonly name: string;
  readonly labels: Readonly<Record<string, string>>;
  readonly insecureRedirectHttp: boolean;
  readonly drainTimeoutMs: number;
  readonly sessionResetMs: number;
  readonly interceptors: readonly Interceptor[];
  readonly logger: Logger;
  readonly hooks: Pick<WorkerOptions, "onAbort" | "onConnect" | "onDisconnect" | "onRedirect">;
}

/**
 * Returns a client's options with their defaults.
 *
 * @throws {RangeError} An option is out of its range.
 * @throws {EndpointError} The endpoint cannot be read.
 */
export function clientSettings(options: ClientOptions): ClientSettings {
  return {
    ...connectSettings(options),
    deadlineMs: positive("deadlineMs", options.deadlineMs ?? CLIENT_DEFAULTS.deadlineMs),
    maxWaitMs: positive("maxWaitMs", options.maxWaitMs ?? CLIENT_DEFAULTS.maxWaitMs),
    maxTasksPerBatch: positive(
      "maxTasksPerBatch",
      options.maxTasksPerBatch ?? CLIENT_DEFAULTS.maxTasksPerBatch,
    ),
    traceContext: options.traceContext,
    onSubmit: options.onSubmit,
  };
}

/**
 * Returns a worker's options with their defaults.
 *
 * @throws {RangeError} An option is out of its range.
 * @throws {EndpointError} The endpoint cannot be read.
 */
export function workerSettings(options: WorkerOptions): WorkerSettings {
  const slots = options.slots ?? WORKER_DEFAULTS.slots;
  if (!Number.isSafeInteger(slots) || slots < 1) {
    throw new RangeError(`slots: a whole number of at least 1, not ${slots}`);
  }
  const { drainTimeoutMs, sessionResetMs } = options;
  return {
    ...connectSettings(options),
    pool: options.pool ?? "",
    slots,
    name: options.name ?? `${hostname()}:${process.pid}`,
    labels: { ...options.labels },
    insecureRedirectHttp: options.insecureRedirectHttp ?? WORKER_DEFAULTS.insecureRedirectHttp,
    drainTimeoutMs: notNegative("drainTimeoutMs", drainTimeoutMs ?? WORKER_DEFAULTS.drainTimeoutMs),
    sessionResetMs: positive("sessionResetMs", sessionResetMs ?? WORKER_DEFAULTS.sessionResetMs),
    interceptors: [...(options.interceptors ?? [])],
    logger: options.logger ?? CONSOLE,
    hooks: {
      onAbort: options.onAbort,
      onConnect: options.onConnect,
      onDisconnect: options.onDisconnect,
      onRedirect: options.onRedirect,
    },
  };
}

function connectSettings(options: ConnectOptions): ConnectSettings {
  const { tls, token } = options;
  if (tls !== undefined && (tls.cert === undefined) !== (tls.key === undefined)) {
    throw new RangeError("tls: cert and key go together");
  }
  // Metadata holds no more than this; a line break would be a header of its own.
  if (token !== undefined && !/^[\x21-\x7e]+$/.test(token)) {
    throw new RangeError("token: printable ASCII without spaces");
  }
  const size = options.maxMessageBytes ?? CONNECT_DEFAULTS.maxMessageBytes;
  if (!(size > MESSAGE_ROOM)) {
    throw new RangeError(`maxMessageBytes: ${size} is not above ${MESSAGE_ROOM}`);
  }
  const connect = options.connectTimeoutMs ?? CONNECT_DEFAULTS.connectTimeoutMs;
  return {
    endpoint: parseConfigured(options.endpoint ?? CONNECT_DEFAULTS.endpoint, tls !== undefined),
    token,
    tls,
    backoff: backoffSettings(options.backoff ?? {}),
    connectTimeoutMs: positive("connectTimeoutMs", connect),
    keepalive: keepaliveSettings(options.keepalive ?? {}),
    codec: options.codec ?? new JsonCodec(),
    maxMessageBytes: size,
  };
}

function backoffSettings(backoff: Backoff): ConnectSettings["backoff"] {
  const initialMs = backoff.initialMs ?? CONNECT_DEFAULTS.backoff.initialMs;
  const maximumMs = backoff.maximumMs ?? Math.max(CONNECT_DEFAULTS.backoff.maximumMs, initialMs);
  if (!(initialMs > 0 && initialMs <= maximumMs && maximumMs < Infinity)) {
    throw new RangeError("backoff: 0 < initialMs <= maximumMs does not hold");
  }
  return { initialMs, maximumMs };
}

function keepaliveSettings(keepalive: Keepalive): ConnectSettings["keepalive"] {
  const intervalMs = keepalive.intervalMs ?? CONNECT_DEFAULTS.keepalive.intervalMs;
  if (!(intervalMs >= KEEPALIVE_MIN_MS)) {
    throw new RangeError(`keepalive: intervalMs is below ${KEEPALIVE_MIN_MS}`);
  }
  const timeoutMs = keepalive.timeoutMs ?? CONNECT_DEFAULTS.keepalive.timeoutMs;
  return { intervalMs, timeoutMs: positive("keepalive: timeoutMs", timeoutMs) };
}

function positive(name: string, value: number): number {
  if (!(value > 0 && value < Infinity)) {
    throw new RangeError(`${name}: ${value} is not positive`);
  }
  return value;
}

function notNegative(name: string, value: number): number {
  if (!(value >= 0 && value < Infinity)) {
    throw new RangeError(`${name}: ${value} is negative`);
  }
  return value;
}
