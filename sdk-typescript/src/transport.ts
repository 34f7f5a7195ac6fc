/**
 * Decides how connections are made and what their failures mean.
 *
 * Rules a change must keep: a token travels in the metadata of calls only (grpc-js refuses call
 * credentials on plain connections); a channel has connections of its own, so a fresh channel is a
 * fresh connection (RR-08); certificate files are read again when they have changed (RR-20).
 */

import { readFileSync, statSync } from "node:fs";

import {
  type ChannelCredentials,
  Client,
  type ClientDuplexStream,
  type ClientReadableStream,
  connectivityState,
  credentials,
  Metadata,
  status as Code,
  type StatusObject,
} from "@grpc/grpc-js";

import { clamped, monotonicMs } from "./clock.js";
import type { Endpoint } from "./endpoint.js";
import {
  ClosedError,
  type CronoqError,
  NotLeaderError,
  StoppingError,
  UnavailableError,
} from "./errors.js";
import type { ConnectSettings, TlsOptions } from "./options.js";
import { callError, type StatusLike } from "./status.js";

const UNLIMITED = -1;
// Room for answers on their way; the default of 64 KiB would make every large one wait.
const FLOW_CONTROL_WINDOW = 1024 * 1024;
// A connection is this old before a client leaves it because nobody leads there: so it makes at
// most ten in a second while nobody leads anywhere.
const LEAVE_AFTER_MS = 100;
// Longer times than this overflow a timer.
const TIMER_MAX_MS = 2 ** 31 - 1;

/** One method of a service, as generated code describes it. */
export interface Method<Request, Response> {
  readonly path: string;
  readonly requestSerialize: (value: Request) => Buffer;
  readonly responseDeserialize: (value: Buffer) => Response;
}

/** Bounds of one call. */
export interface CallBounds {
  /** Longest time, ms; none if not given. */
  readonly timeoutMs?: number | undefined;
  /** Ends the call; its reason is what the call throws then. */
  readonly signal?: AbortSignal | undefined;
}

/** Messages of one stream; may be ended from outside while somebody reads. */
export interface ServerStream<Response> extends AsyncIterable<Response> {
  cancel(): void;
}

/** Makes channels to any endpoint with one set of options. */
export class Dialer {
  readonly #settings: ConnectSettings;

  constructor(settings: ConnectSettings) {
    this.#settings = settings;
  }

  /**
   * Returns a new channel whose calls carry `token`; nothing is sent before its first call.
   *
   * @throws {Error} A certificate file cannot be read.
   */
  dial(endpoint: Endpoint, token: string | undefined): Channel {
    const { backoff, keepalive, tls } = this.#settings;
    const secrets = endpoint.isEncrypted ? readTls(tls ?? {}) : credentials.createInsecure();
    const client = new Client(endpoint.target, secrets, {
      "grpc.enable_retries": 0,
      "grpc.initial_reconnect_backoff_ms": Math.max(1, Math.round(backoff.initialMs)),
      "grpc.keepalive_permit_without_calls": 1,
      "grpc.keepalive_time_ms": Math.round(keepalive.intervalMs),
      "grpc.keepalive_timeout_ms": Math.max(1, Math.round(keepalive.timeoutMs)),
      // The server bounds what it sends; a limit here would turn its larger one into a break.
      "grpc.max_receive_message_length": UNLIMITED,
      "grpc.max_reconnect_backoff_ms": Math.max(1, Math.round(backoff.maximumMs)),
      "grpc.max_send_message_length": UNLIMITED,
      "grpc.service_config_disable_resolution": 1,
      "grpc.use_local_subchannel_pool": 1,
      "grpc-node.flow_control_window": FLOW_CONTROL_WINDOW,
    });
    return new Channel(client, token);
  }

  /** Changes when a certificate file does. */
  certificatesVersion(): string {
    const { ca, cert, key } = this.#settings.tls ?? {};
    return [ca, cert, key].map((path) => (path === undefined ? "" : modifiedAt(path))).join(" ");
  }
}

function modifiedAt(path: string): string {
  // Being replaced just now is no error: the next look sees the new file.
  const found = statSync(path, { bigint: true, throwIfNoEntry: false });
  return found === undefined ? "" : found.mtimeNs.toString();
}

function readTls(tls: TlsOptions): ChannelCredentials {
  const [ca, key, cert] = [tls.ca, tls.key, tls.cert].map((path) =>
    path === undefined ? null : readFileSync(path),
  );
  return credentials.createSsl(ca, key, cert);
}

/** Calls over one connection. */
export class Channel {
  readonly #client: Client;
  readonly #token: string | undefined;
  readonly #open = new Set<{ cancel(): void }>();
  #closedBy: CronoqError | undefined;
  readonly madeAt = monotonicMs();
  /** Called when a server answers that it does not lead, or will not for long. */
  onNotLeader: (channel: Channel) => void = () => undefined;

  constructor(client: Client, token: string | undefined) {
    this.#client = client;
    this.#token = token;
  }

  /** True while there is a connection that calls can use. */
  get isConnected(): boolean {
    return this.#client.getChannel().getConnectivityState(false) === connectivityState.READY;
  }

  /** True while no call is under way. */
  get isIdle(): boolean {
    return this.#open.size === 0;
  }

  #failed(status: StatusLike, initial: Metadata | undefined): CronoqError {
    if (this.#closedBy !== undefined) {
      return this.#closedBy;
    }
    const error = callError(status, initial);
    if (error instanceof NotLeaderError || error instanceof StoppingError) {
      this.onNotLeader(this);
    }
    return error;
  }

  /**
   * Makes one call and returns its answer.
   *
   * @throws {CronoqError} The call failed; the class says how.
   */
  unary<Request, Response>(
    method: Method<Request, Response>,
    request: Request,
    bounds: CallBounds = {},
  ): Promise<Response> {
    const { signal } = bounds;
    return new Promise((resolve, reject) => {
      signal?.throwIfAborted();
      let initial: Metadata | undefined;
      const call = this.#client.makeUnaryRequest(
        method.path,
        method.requestSerialize,
        method.responseDeserialize,
        request,
        this.#metadata(),
        callOptions(bounds),
        (error, answer) => {
          this.#open.delete(call);
          signal?.removeEventListener("abort", onAbort);
          if (error !== null || answer === undefined) {
            reject(this.#failed(error ?? { code: Code.INTERNAL, details: "no answer" }, initial));
          } else {
            resolve(answer);
          }
        },
      );
      this.#open.add(call);
      call.on("metadata", (received: Metadata) => {
        initial = received;
      });
      const onAbort = (): void => {
        reject(signal?.reason as Error);
        call.cancel();
      };
      signal?.addEventListener("abort", onAbort, { once: true });
    });
  }

  /** Opens a stream of answers. */
  stream<Request, Response>(
    method: Method<Request, Response>,
    request: Request,
    bounds: CallBounds = {},
  ): ServerStream<Response> {
    const call = this.#client.makeServerStreamRequest(
      method.path,
      method.requestSerialize,
      method.responseDeserialize,
      request,
      this.#metadata(),
      callOptions(bounds),
    );
    return {
      cancel: () => {
        call.cancel();
      },
      [Symbol.asyncIterator]: () => this.#read(call, bounds.signal),
    };
  }

  async *#read<Response>(
    call: ClientReadableStream<Response>,
    signal: AbortSignal | undefined,
  ): AsyncGenerator<Response, void, undefined> {
    let initial: Metadata | undefined;
    call.on("metadata", (received: Metadata) => {
      initial = received;
    });
    const onAbort = (): void => {
      call.cancel();
    };
    signal?.addEventListener("abort", onAbort, { once: true });
    this.#open.add(call);
    try {
      signal?.throwIfAborted();
      for await (const message of call as AsyncIterable<Response>) {
        yield message;
      }
    } catch (error) {
      signal?.throwIfAborted();
      throw isStatus(error) ? this.#failed(error, initial) : error;
    } finally {
      this.#open.delete(call);
      signal?.removeEventListener("abort", onAbort);
      call.cancel();
    }
  }

  /** Opens a stream in both directions. */
  exchange<Request, Response>(
    method: Method<Request, Response>,
  ): ClientDuplexStream<Request, Response> {
    return this.#client.makeBidiStreamRequest(
      method.path,
      method.requestSerialize,
      method.responseDeserialize,
      this.#metadata(),
      {},
    );
  }

  /**
   * Ends the connection: at once with a reason, which all calls under way throw then; else calls
   * that wait for it fail, and it ends with the last one that it carries.
   */
  close(reason?: CronoqError): void {
    this.#client.close();
    if (reason !== undefined) {
      this.#closedBy = reason;
      for (const call of [...this.#open]) {
        call.cancel();
      }
    }
  }

  // Made for each call, since grpc-js adds to what it is given.
  #metadata(): Metadata {
    const metadata = new Metadata();
    if (this.#token !== undefined) {
      metadata.set("authorization", `Bearer ${this.#token}`);
    }
    return metadata;
  }
}

function callOptions(bounds: CallBounds): { deadline?: number } {
  const { timeoutMs } = bounds;
  return timeoutMs === undefined || timeoutMs > TIMER_MAX_MS
    ? {}
    : { deadline: Date.now() + Math.max(0, timeoutMs) };
}

function isStatus(error: unknown): error is Pick<StatusObject, "code" | "details"> {
  return error instanceof Error && "code" in error && "details" in error;
}

/**
 * A client's way to one server: its channel, made anew when certificates have changed or when no
 * connection comes about in time.
 */
export class Connection {
  readonly #settings: ConnectSettings;
  readonly #dialer: Dialer;
  #channel: Channel | undefined;
  #certificates = "";
  #connecting: NodeJS.Timeout | undefined;
  /** Whose connecting that timer bounds. */
  #bounded: Channel | undefined;
  readonly #retired: Channel[] = [];
  #isClosed = false;

  constructor(settings: ConnectSettings) {
    this.#settings = settings;
    this.#dialer = new Dialer(settings);
  }

  /**
   * Returns the channel to use for a call that begins now.
   *
   * @throws {UnavailableError} A certificate file cannot be read.
   * @throws {ClosedError} The client was closed.
   */
  channel(): Channel {
    if (this.#isClosed) {
      throw new ClosedError("the client is closed");
    }
    const version = this.#settings.endpoint.isEncrypted ? this.#dialer.certificatesVersion() : "";
    if (this.#channel !== undefined && version !== this.#certificates) {
      this.#retire(this.#channel);
      this.#channel = undefined;
    }
    if (this.#channel === undefined) {
      this.#channel = this.#dial();
      this.#channel.onNotLeader = (channel) => {
        this.#leave(channel);
      };
      this.#certificates = version;
    }
    this.#boundConnecting(this.#channel);
    return this.#channel;
  }

  #dial(): Channel {
    const { endpoint, token } = this.#settings;
    try {
      return this.#dialer.dial(endpoint, token);
    } catch (error) {
      const text = `cannot connect to ${endpoint.toString()}: ${(error as Error).message}`;
      throw new UnavailableError(text, { executed: false, cause: error });
    }
  }

  /** Has the next call dial anew: behind the same address somebody else may lead. */
  #leave(channel: Channel): void {
    if (channel !== this.#channel || monotonicMs() - channel.madeAt < LEAVE_AFTER_MS) {
      return;
    }
    this.#retire(channel);
    this.#channel = undefined;
  }

  /** Calls under way go on there; it is closed when none is left, or with the connection. */
  #retire(channel: Channel): void {
    for (const retired of this.#retired.splice(0)) {
      if (retired.isIdle) {
        retired.close();
      } else {
        this.#retired.push(retired);
      }
    }
    this.#retired.push(channel);
  }

  /** grpc-js waits for a connection as long as the system does; calls here wait no longer than set. */
  #boundConnecting(channel: Channel): void {
    if (channel.isConnected || this.#bounded === channel) {
      return;
    }
    clearTimeout(this.#connecting);
    this.#bounded = channel;
    this.#connecting = setTimeout(() => {
      this.#bounded = undefined;
      if (this.#channel === channel && !channel.isConnected) {
        this.#channel = undefined;
        channel.close();
        this.#retire(channel);
      }
    }, clamped(this.#settings.connectTimeoutMs));
    this.#connecting.unref();
  }

  /** Ends all connections and all calls, which throw the reason then. */
  close(reason: CronoqError): void {
    this.#isClosed = true;
    clearTimeout(this.#connecting);
    for (const channel of this.#retired.splice(0)) {
      channel.close(reason);
    }
    this.#channel?.close(reason);
    this.#channel = undefined;
  }
}

/** True when the same call may succeed at another time or server. */
export function isUnavailable(error: CronoqError): boolean {
  return error instanceof UnavailableError;
}
