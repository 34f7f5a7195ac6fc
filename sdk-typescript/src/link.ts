/**
 * Decides nothing itself: carries a session over streams, as the reconnect policy says.
 *
 * It lives on the event loop like everything else, so a handler that blocks the loop starves its
 * heartbeats (WP-26 needs threads: see cronoq/thread); the link notices and says so.
 */

import type { ClientDuplexStream, Metadata, StatusObject } from "@grpc/grpc-js";

import { clamped, monotonicMs, sleep } from "./clock.js";
import type { Endpoint } from "./endpoint.js";
import { ErrorReason, UnavailableError } from "./errors.js";
import {
  type Output,
  type Registered,
  type ServerMessage,
  type WorkerMessage,
  WorkersService,
} from "./gen/cronoq/v1/workers.js";
import type { Logger } from "./logger.js";
import type { Decision, ReconnectEvent, ReconnectPolicy } from "./reconnect.js";
import type { Run } from "./run.js";
import type { Session } from "./session.js";
import { callError, codeName, SHARD_ENDPOINT_KEY } from "./status.js";
import type { Channel, Dialer } from "./transport.js";

const OUTPUT_TIMEOUT_MS = 30_000;
// Pauses between tries to fetch a parent's output, about 20 s together.
const OUTPUT_PAUSES_MS = [50, 100, 200, 400, 800, 1600, 3000, 5000, 5000, 5000];

/** Who hears what happens on the link. */
export interface Listener {
  /** Leases arrived. */
  begin(runs: readonly Run[]): void;
  /** These handlers must stop. */
  stopRuns(runs: readonly Run[]): void;
  /** The server accepted the worker. */
  connected(endpoint: string): void;
  /** A stream that had been accepted ended. */
  disconnected(endpoint: string, reason: string): void;
  /** A server named another one; `refused` says why it is not followed, if it is not. */
  redirected(endpoint: string, refused: string): void;
  /** No retry can help. */
  gaveUp(code: string, message: string): void;
  /** Something that a stop waits for may have come. */
  changed(): void;
}

type WorkStream = ClientDuplexStream<WorkerMessage, ServerMessage>;

/** One worker's way to its servers. */
export class Link {
  readonly #session: Session;
  readonly #policy: ReconnectPolicy;
  readonly #dialer: Dialer;
  readonly #token: string | undefined;
  readonly #connectTimeoutMs: number;
  readonly #listener: Listener;
  readonly #logger: Logger;
  #isClosing = false;
  #stream: WorkStream | undefined;
  #channel: Channel | undefined;
  #pulse: NodeJS.Timeout | undefined;
  #pulseAt = 0;
  #beatIntervalMs = 0;
  #wake: () => void = () => undefined;

  /** True when the link will not connect again. */
  isOver = false;
  /** True when there is nothing left of it. */
  isEnded = false;

  constructor(
    session: Session,
    policy: ReconnectPolicy,
    dialer: Dialer,
    token: string | undefined,
    connectTimeoutMs: number,
    listener: Listener,
    logger: Logger,
  ) {
    this.#session = session;
    this.#policy = policy;
    this.#dialer = dialer;
    this.#token = token;
    this.#connectTimeoutMs = connectTimeoutMs;
    this.#listener = listener;
    this.#logger = logger;
  }

  // --- connecting -------------------------------------------------------------------------------

  /** Connects, again and again, until it is over; resolves then. */
  async run(): Promise<void> {
    let decision = this.#policy.decide({ type: "started" }, monotonicMs());
    while (!this.#mayEnd()) {
      let event: ReconnectEvent;
      switch (decision.type) {
        case "connect":
          event = await this.#attempt(decision.endpoint, decision.maySendToken);
          break;
        case "wait":
          event = await this.#await(decision.until);
          break;
        case "give_up":
          this.#listener.gaveUp(decision.code, decision.message);
          this.#end();
          return;
        case "stay":
          throw new Error("no stream to stay on");
      }
      decision = this.#next(event);
    }
    this.#end();
  }

  #end(): void {
    this.isOver = this.isEnded = true;
    this.#arm();
    this.#listener.changed();
  }

  /** RR-23: a worker that stops connects again only while it owes the server something. */
  #mayEnd(): boolean {
    return this.isOver || (this.#isClosing && this.#session.isSettled);
  }

  #next(event: ReconnectEvent): Decision {
    const decision = this.#policy.decide(event, monotonicMs());
    if (event.type === "redirected") {
      const refused = "refused" in decision ? decision.refused : "";
      this.#listener.redirected(event.endpoint, refused);
    }
    return decision;
  }

  async #await(until: number): Promise<ReconnectEvent> {
    let left = until - monotonicMs();
    while (left > 0 && !this.#mayEnd()) {
      await new Promise<void>((resolve) => {
        const timer = setTimeout(resolve, clamped(Math.ceil(left)));
        this.#wake = () => {
          clearTimeout(timer);
          resolve();
        };
      });
      left = until - monotonicMs();
    }
    return { type: "elapsed" };
  }

  /** Opens one stream and follows it to its end. */
  async #attempt(endpoint: Endpoint, maySendToken: boolean): Promise<ReconnectEvent> {
    let channel: Channel;
    try {
      channel = this.#dialer.dial(endpoint, maySendToken ? this.#token : undefined);
    } catch (error) {
      const message = `cannot connect to ${endpoint.toString()}: ${(error as Error).message}`;
      this.#logger.warn(message);
      return { type: "ended", code: "UNAVAILABLE", notLeader: false, message };
    }
    const stream: WorkStream = channel.exchange(WorkersService.work);
    this.#channel = channel;
    this.#stream = stream;
    try {
      return await this.#follow(stream, channel, endpoint.toString());
    } finally {
      this.#session.broken();
      this.#stream = this.#channel = undefined;
      channel.close();
    }
  }

  #follow(stream: WorkStream, channel: Channel, endpoint: string): Promise<ReconnectEvent> {
    return new Promise((resolve) => {
      let initial: Metadata | undefined;
      let isRegistered = false;
      let isLate = false;
      // RR-08: a connection that does not come about in time is none.
      const connecting = setTimeout(() => {
        if (!channel.isConnected) {
          isLate = true;
          stream.cancel();
        }
      }, clamped(this.#connectTimeoutMs));
      stream.on("metadata", (received: Metadata) => {
        initial = received;
      });
      stream.on("data", (message: ServerMessage) => {
        if (isRegistered) {
          this.#take(message);
        } else if (message.message?.$case === "registered") {
          isRegistered = true;
          this.#accepted(stream, message.message.value, endpoint);
        } else if (message.message?.$case === "shutdown") {
          this.#session.receive(message, monotonicMs());
        }
      });
      stream.on("error", () => undefined); // The status tells it.
      stream.on("status", (status: StatusObject) => {
        clearTimeout(connecting);
        const event = isLate
          ? this.#noConnection(endpoint)
          : this.#eventOf(status, initial ?? undefined);
        this.#closed(event, isRegistered, endpoint);
        resolve(event);
      });
      stream.write(this.#session.opening(monotonicMs()));
    });
  }

  #noConnection(endpoint: string): ReconnectEvent {
    const message = `no connection to ${endpoint} within ${this.#connectTimeoutMs} ms`;
    return { type: "ended", code: "UNAVAILABLE", notLeader: false, message };
  }

  #closed(event: ReconnectEvent, wasRegistered: boolean, endpoint: string): void {
    const said = event.type === "ended" ? event.message : "";
    const reason = said === "" ? "the server ended the stream" : said;
    if (wasRegistered) {
      this.#session.broken();
      this.#listener.disconnected(endpoint, reason);
    } else {
      this.#logger.debug(`no session at ${endpoint}: ${reason}`);
    }
  }

  #accepted(stream: WorkStream, answer: Registered, endpoint: string): void {
    const now = monotonicMs();
    this.#policy.decide({ type: "registered" }, now);
    const lost = this.#session.registered(answer, (message) => stream.write(message), now);
    this.#arm();
    this.#listener.connected(endpoint);
    if (lost.length > 0) {
      this.#listener.stopRuns(lost);
    }
    if (this.#isClosing) {
      this.#listener.changed();
    }
  }

  #take(message: ServerMessage): void {
    const received = this.#session.receive(message, monotonicMs());
    if (received.begun.length > 0) {
      if (received.begun.some((run) => run.message.leaseTtlS !== undefined)) {
        this.#arm(); // A lease of its own length may be due sooner than the others.
      }
      this.#listener.begin(received.begun);
    }
    if (received.stopped.length > 0) {
      this.#listener.stopRuns(received.stopped);
    }
    if (received.shutdown !== undefined) {
      this.#logger.info(`server is shutting down: ${received.shutdown.reason}`);
    }
    if (this.#isClosing) {
      this.#listener.changed();
    }
  }

  #eventOf(status: StatusObject, initial: Metadata | undefined): ReconnectEvent {
    const code = codeName(status.code);
    const notLeader = this.#session.sawNotLeader;
    if (code === "OK") {
      return { type: "ended", code, notLeader, message: "" };
    }
    const error = callError(status, initial);
    const endpoint = error.details[SHARD_ENDPOINT_KEY];
    if (code === "FAILED_PRECONDITION" && endpoint !== undefined) {
      return { type: "redirected", endpoint };
    }
    const saidSo = error.reason === ErrorReason.NOT_LEADER;
    return { type: "ended", code, notLeader: notLeader || saidSo, message: error.message };
  }

  // --- time -------------------------------------------------------------------------------------

  #arm(): void {
    clearTimeout(this.#pulse);
    const now = monotonicMs();
    // No server is left to hear heartbeats, but leases still run out (WP-24).
    this.#pulseAt = this.isEnded ? this.#session.nextExpiry : this.#session.nextPulse(now);
    if (this.#pulseAt === Infinity) {
      return;
    }
    this.#beatIntervalMs = this.#session.beatIntervalMs;
    this.#pulse = setTimeout(
      () => {
        this.#onPulse();
      },
      clamped(Math.ceil(this.#pulseAt - now)),
    );
    if (this.isEnded) {
      this.#pulse.unref(); // Who still runs keeps the program alive, if anybody does.
    }
  }

  #onPulse(): void {
    const now = monotonicMs();
    const lateMs = now - this.#pulseAt;
    if (lateMs > this.#beatIntervalMs) {
      const seconds = (lateMs / 1000).toFixed(1);
      this.#logger.warn(
        `the event loop was blocked: heartbeats are ${seconds} s late, leases may be lost; ` +
          "run handlers that compute in threads (cronoq/thread)",
      );
    }
    const expired = this.#session.pulse(now);
    if (expired.length > 0) {
      this.#listener.stopRuns(expired);
    }
    this.#arm();
  }

  /** Some run has new progress; it goes out with a heartbeat soon. */
  noteProgress(): void {
    if (this.#session.noteProgress()) {
      this.#arm();
    }
  }

  // --- stopping ---------------------------------------------------------------------------------

  /** Lets the link end once the session owes the server nothing; returns at once. */
  close(): void {
    this.#isClosing = true;
    this.#wake();
  }

  /** Ends this side of the stream for good; the server ends the other (WP-44). */
  halfClose(): void {
    this.isOver = true;
    this.#wake();
    this.#stream?.end();
  }

  /** Ends everything now, whatever the session still owes. */
  abandon(): void {
    this.isOver = true;
    this.#wake();
    this.#stream?.cancel();
  }

  // --- parents' outputs -------------------------------------------------------------------------

  /** Fetches the output of a parent of a lease; waits out a broken connection. */
  async fetchOutput(lease: bigint, taskId: bigint): Promise<Output> {
    for (const pause of OUTPUT_PAUSES_MS) {
      const channel = this.#channel;
      if (channel !== undefined) {
        try {
          const bounds = { timeoutMs: OUTPUT_TIMEOUT_MS };
          return await channel.unary(WorkersService.getOutput, { lease, taskId }, bounds);
        } catch (error) {
          if (!(error instanceof UnavailableError)) {
            throw error;
          }
          this.#logger.debug(`output of task ${taskId}: ${error.message}`);
        }
      }
      await sleep(pause);
    }
    throw new UnavailableError(`no server answered for the output of task ${taskId}`);
  }
}
