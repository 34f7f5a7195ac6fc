/**
 * Decides when and where a worker connects: pure policy without sockets, clock or chance.
 *
 * Rules RR-01 … of docs/spec/redirect-and-reconnect.md, cited below. Input is what happened and
 * when (milliseconds of a monotonic clock), output is one decision. Chance comes in as a function
 * that returns a fraction in [0, 1). The same events and fractions give the same decisions in every
 * language; conformance/vectors/reconnect.json holds them.
 */

import { type Endpoint, EndpointError, parseRedirect } from "./endpoint.js";

export const REDIRECTS_MAX = 3; // RR-10
export const TRIES_MAX = 4; // RR-05
export const TRIES_WINDOW_BACKOFFS = 10; // RR-05: the span, in initial backoffs
export const FATAL_CODES: ReadonlySet<string> = new Set([
  // RR-06
  "FAILED_PRECONDITION",
  "INVALID_ARGUMENT",
  "NOT_FOUND",
  "PERMISSION_DENIED",
  "UNAUTHENTICATED",
  "UNIMPLEMENTED",
]);
// The exponent is capped: a float overflows long before the backoff matters.
const DOUBLINGS_MAX = 64;

/** What happened to the worker. */
export type ReconnectEvent =
  /** The worker was started. */
  | { readonly type: "started" }
  /** The server accepted the worker. */
  | { readonly type: "registered" }
  /** The stream ended with FAILED_PRECONDITION and a shard endpoint in its metadata. */
  | { readonly type: "redirected"; readonly endpoint: string }
  /** The stream ended, or there was no connection (then as UNAVAILABLE). */
  | {
      readonly type: "ended";
      readonly code: string;
      readonly notLeader: boolean;
      readonly message: string;
    }
  /** The time of the last wait has come. */
  | { readonly type: "elapsed" };

/** Open a fresh connection there, now. */
export interface Connect {
  readonly type: "connect";
  readonly endpoint: Endpoint;
  readonly maySendToken: boolean;
  /** Why the redirect of this event is not followed; empty if there was none or it is. */
  readonly refused: string;
}

/** Do nothing until then, and say "elapsed". */
export interface Wait {
  readonly type: "wait";
  readonly until: number;
  readonly refused: string;
}

/** What to do about an event. */
export type Decision =
  | Connect
  | Wait
  /** Stop: no retry can change this answer. */
  | { readonly type: "give_up"; readonly code: string; readonly message: string }
  /** Go on with the stream as it is. */
  | { readonly type: "stay" };

/** What the policy needs to know of the worker's options. */
export interface ReconnectSettings {
  readonly endpoint: Endpoint;
  readonly hasToken: boolean;
  readonly insecureRedirectHttp: boolean;
  readonly backoffInitialMs: number;
  readonly backoffMaxMs: number;
  readonly sessionResetMs: number;
}

/** One worker's policy; feed it every event in order and do what it says. */
export class ReconnectPolicy {
  readonly #settings: ReconnectSettings;
  readonly #chance: () => number;
  /** Where the current or last stream is. */
  #at: Endpoint;
  /** Where "elapsed" leads. */
  #next: Endpoint;
  #hops = 0;
  #failures = 0;
  #registeredAt: number | undefined;
  /** Instants of the last connections, oldest first. */
  readonly #tries: number[] = [];

  constructor(settings: ReconnectSettings, chance: () => number) {
    this.#settings = settings;
    this.#chance = chance;
    this.#at = settings.endpoint;
    this.#next = settings.endpoint;
  }

  /** Upper end of the next delay, in milliseconds (RR-03). */
  get backoffBoundMs(): number {
    const grown = this.#settings.backoffInitialMs * 2 ** Math.min(this.#failures, DOUBLINGS_MAX);
    return Math.min(this.#settings.backoffMaxMs, grown);
  }

  /** Returns what to do about an event that happened at `now`. */
  decide(event: ReconnectEvent, now: number): Decision {
    switch (event.type) {
      case "started":
        return this.#connect(this.#settings.endpoint, now);
      case "elapsed":
        return this.#connect(this.#next, now);
      case "registered":
        this.#registeredAt = now;
        this.#hops = 0; // RR-11
        return { type: "stay" };
      case "redirected":
        return this.#redirected(event.endpoint, now);
      case "ended":
        return this.#ended(event.code, event.notLeader, event.message, now);
    }
  }

  #redirected(text: string, now: number): Decision {
    this.#registeredAt = undefined;
    if (this.#hops >= REDIRECTS_MAX) {
      return this.#refuse(`redirect ${this.#hops + 1} in a row to ${text}`, now); // RR-10
    }
    let target: Endpoint;
    try {
      target = parseRedirect(text);
    } catch (error) {
      if (error instanceof EndpointError) {
        return this.#refuse(error.message, now);
      }
      throw error;
    }
    const problem = this.#forbidden(target);
    if (problem !== "") {
      return this.#refuse(problem, now);
    }
    this.#hops += 1;
    return this.#connect(target, now); // RR-09: at once
  }

  #forbidden(target: Endpoint): string {
    if (target.isEncrypted) {
      return "";
    }
    if (this.#at.isEncrypted) {
      return `redirect from https to ${target.toString()}`; // RR-14
    }
    const { hasToken, insecureRedirectHttp } = this.#settings;
    if (hasToken && !target.isLoopback && !insecureRedirectHttp) {
      return `token over http to ${target.toString()}`; // RR-15
    }
    return "";
  }

  /** RR-16: not followed, reported, back to the configured endpoint with backoff. */
  #refuse(why: string, now: number): Decision {
    this.#hops = 0;
    return this.#wait(this.#settings.endpoint, now, this.#delay(), why);
  }

  #ended(code: string, notLeader: boolean, message: string, now: number): Decision {
    const registeredAt = this.#registeredAt;
    this.#registeredAt = undefined;
    this.#hops = 0; // RR-11
    if (FATAL_CODES.has(code)) {
      return { type: "give_up", code, message }; // RR-06
    }
    const lived = registeredAt !== undefined && now - registeredAt >= this.#settings.sessionResetMs;
    if (lived || notLeader) {
      this.#failures = 0; // RR-04
    }
    if (registeredAt === undefined) {
      return this.#wait(this.#settings.endpoint, now, this.#delay()); // RR-18, RR-19
    }
    // RR-07, RR-17
    return this.#wait(this.#at, now, notLeader ? 0 : this.#delay());
  }

  #delay(): number {
    const delay = this.#chance() * this.backoffBoundMs;
    this.#failures += 1;
    return delay;
  }

  #wait(target: Endpoint, now: number, delay: number, refused = ""): Decision {
    let until = now + delay;
    const [oldest] = this.#tries;
    if (oldest !== undefined && this.#tries.length === TRIES_MAX) {
      // RR-05
      until = Math.max(until, oldest + TRIES_WINDOW_BACKOFFS * this.#settings.backoffInitialMs);
    }
    if (until <= now) {
      return this.#connect(target, now, refused);
    }
    this.#next = target;
    return { type: "wait", until, refused };
  }

  #connect(target: Endpoint, now: number, refused = ""): Connect {
    this.#at = this.#next = target;
    this.#tries.push(now);
    if (this.#tries.length > TRIES_MAX) {
      this.#tries.shift();
    }
    return { type: "connect", endpoint: target, maySendToken: this.#maySendToken(target), refused };
  }

  /** RR-02, RR-15. */
  #maySendToken(target: Endpoint): boolean {
    const { endpoint, hasToken, insecureRedirectHttp } = this.#settings;
    const isTrusted = target.equals(endpoint) || target.isEncrypted || target.isLoopback;
    return hasToken && (isTrusted || insecureRedirectHttp);
  }
}
