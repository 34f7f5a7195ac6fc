/** Holds the reconnect policy to the vectors that all languages share, and to its rules. */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { describe, it } from "node:test";

import { PROGRESS_BYTES_MAX } from "../src/attempt.js";
import { IN_FLIGHT_MAX } from "../src/coalesce.js";
import { EndpointError, parseConfigured } from "../src/endpoint.js";
import {
  CLIENT_DEFAULTS,
  clientSettings,
  CONNECT_DEFAULTS,
  KEEPALIVE_MIN_MS,
  MESSAGE_ROOM,
  WORKER_DEFAULTS,
  workerSettings,
} from "../src/options.js";
import {
  type Decision,
  FATAL_CODES,
  ReconnectPolicy,
  type ReconnectEvent,
  REDIRECTS_MAX,
  TRIES_MAX,
  TRIES_WINDOW_BACKOFFS,
} from "../src/reconnect.js";
import {
  BEATS_PER_TTL,
  LEASE_TTL_MS,
  PROGRESS_EVERY_MS,
  PROTOCOL_VERSION,
  RECEIPTS_SINCE,
  REPORTS_PER_MESSAGE,
} from "../src/session.js";

const CONFORMANCE = new URL("../../../conformance/", import.meta.url);

interface Config {
  readonly endpoint: string;
  readonly tls: boolean;
  readonly has_token: boolean;
  readonly insecure_redirect_http: boolean;
  readonly backoff_initial_ms: number;
  readonly backoff_max_ms: number;
  readonly session_reset_ms: number;
}

interface Vector {
  readonly name: string;
  readonly config: Partial<Config>;
  readonly chance: readonly number[];
  readonly steps: readonly {
    readonly at_ms: number;
    readonly event: {
      readonly type: string;
      readonly endpoint?: string;
      readonly code?: string;
      readonly not_leader?: boolean;
    };
    readonly expect: Readonly<Record<string, unknown>>;
  }[];
}

const FILE = JSON.parse(readFileSync(new URL("vectors/reconnect.json", CONFORMANCE), "utf8")) as {
  readonly defaults: Config;
  readonly vectors: readonly Vector[];
};

function policyOf(config: Partial<Config>, chance: () => number): ReconnectPolicy {
  const filled = { ...FILE.defaults, ...config };
  return new ReconnectPolicy(
    {
      endpoint: parseConfigured(filled.endpoint, filled.tls),
      hasToken: filled.has_token,
      insecureRedirectHttp: filled.insecure_redirect_http,
      backoffInitialMs: filled.backoff_initial_ms,
      backoffMaxMs: filled.backoff_max_ms,
      sessionResetMs: filled.session_reset_ms,
    },
    chance,
  );
}

function eventOf(event: Vector["steps"][number]["event"]): ReconnectEvent {
  switch (event.type) {
    case "redirected":
      return { type: "redirected", endpoint: event.endpoint ?? "" };
    case "ended":
      return {
        type: "ended",
        code: event.code ?? "",
        notLeader: event.not_leader ?? false,
        message: "",
      };
    case "elapsed":
    case "registered":
    case "started":
      return { type: event.type };
    default:
      throw new Error(`no event of type ${event.type}`);
  }
}

function described(decision: Decision, expected: unknown): Record<string, unknown> {
  switch (decision.type) {
    case "connect":
      return {
        type: "connect",
        endpoint: decision.endpoint.toString(),
        may_send_token: decision.maySendToken,
        refused: decision.refused !== "",
      };
    case "wait": {
      const isNear = typeof expected === "number" && Math.abs(expected - decision.until) <= 0.001;
      return {
        type: "wait",
        until_ms: isNear ? expected : decision.until,
        refused: decision.refused !== "",
      };
    }
    case "give_up":
      return { type: "give_up", code: decision.code };
    case "stay":
      return { type: "stay" };
  }
}

describe("vectors of all languages", () => {
  assert.ok(FILE.vectors.length > 0);
  for (const vector of FILE.vectors) {
    it(vector.name, () => {
      const fractions = [...vector.chance];
      const policy = policyOf(vector.config, () => fractions.shift() ?? NaN);
      vector.steps.forEach((step, number) => {
        const decision = policy.decide(eventOf(step.event), step.at_ms);
        assert.deepEqual(
          described(decision, step.expect["until_ms"]),
          step.expect,
          `step ${number}`,
        );
      });
    });
  }
});

/** Plays an outage for one worker and returns how long after its end the worker is back. */
function comeBack(outageMs: number): { readonly backMs: number; readonly tries: number[] } {
  const policy = policyOf({ endpoint: "127.0.0.1:1" }, Math.random);
  policy.decide({ type: "started" }, 0);
  policy.decide({ type: "registered" }, 0);
  const ended = { type: "ended", code: "UNAVAILABLE", notLeader: false, message: "" } as const;
  const tries = [0];
  let now = 1000;
  let decision = policy.decide(ended, now);
  for (;;) {
    if (decision.type === "wait") {
      now = decision.until;
      decision = policy.decide({ type: "elapsed" }, now);
    }
    assert.equal(decision.type, "connect");
    tries.push(now);
    if (now >= 1000 + outageMs) {
      return { backMs: now - 1000 - outageMs, tries };
    }
    decision = policy.decide(ended, now);
  }
}

describe("the reconnect policy", () => {
  it("spreads delays over the whole bound", () => {
    const fractions = Array.from({ length: 20 }, (_, number) => number / 20);
    const delays = fractions.map((fraction) => {
      const policy = policyOf({ endpoint: "127.0.0.1:1" }, () => fraction);
      policy.decide({ type: "started" }, 100);
      const decision = policy.decide(
        { type: "ended", code: "UNAVAILABLE", notLeader: false, message: "" },
        100,
      );
      return decision.type === "wait" ? decision.until - 100 : 0;
    });
    assert.deepEqual(
      delays.map((delay) => Math.round(delay)),
      fractions.map((fraction) => Math.round(100 * fraction)),
    );
  });

  for (const outageMs of [500, 3_000, 180_000]) {
    // Covers R16.
    it(`brings 500 workers back soon and in no storm after ${outageMs} ms`, () => {
      for (let worker = 0; worker < 500; worker += 1) {
        const { backMs, tries } = comeBack(outageMs);
        assert.ok(backMs < 6_000);
        for (let n = 4; n < tries.length; n += 1) {
          assert.ok((tries[n] ?? 0) - (tries[n - 4] ?? 0) >= 1_000 - 1e-6);
        }
      }
    });
  }
});

/** Reads as much of TOML as the shared file uses. */
function readToml(text: string): Record<string, Record<string, unknown>> {
  const tables: Record<string, Record<string, unknown>> = {};
  let table: Record<string, unknown> = {};
  for (const line of text
    .replace(/\[\n([^\]]*)\]/g, (list) => list.replaceAll("\n", " "))
    .split("\n")) {
    const header = /^\[(\w+)\]$/.exec(line);
    const pair = /^(\w+) = (.*)$/.exec(line);
    if (header?.[1] !== undefined) {
      table = tables[header[1]] = {};
    } else if (pair?.[1] !== undefined && pair[2] !== undefined) {
      table[pair[1]] = JSON.parse(pair[2].replace(/,\s*\]/, "]"));
    }
  }
  return tables;
}

describe("constants", () => {
  it("are those of all languages, key for key", () => {
    const shared = readToml(readFileSync(new URL("defaults.toml", CONFORMANCE), "utf8"));
    const connection = {
      backoff_initial: CONNECT_DEFAULTS.backoff.initialMs / 1000,
      backoff_max: CONNECT_DEFAULTS.backoff.maximumMs / 1000,
      connect_timeout: CONNECT_DEFAULTS.connectTimeoutMs / 1000,
      keepalive_interval: CONNECT_DEFAULTS.keepalive.intervalMs / 1000,
      keepalive_timeout: CONNECT_DEFAULTS.keepalive.timeoutMs / 1000,
    };
    assert.deepEqual(
      {
        worker: {
          ...connection,
          drain_timeout: WORKER_DEFAULTS.drainTimeoutMs / 1000,
          insecure_redirect_http: WORKER_DEFAULTS.insecureRedirectHttp,
          keepalive_interval_min: KEEPALIVE_MIN_MS / 1000,
          session_reset: WORKER_DEFAULTS.sessionResetMs / 1000,
          slots: WORKER_DEFAULTS.slots,
        },
        reconnect: {
          fatal_codes: [...FATAL_CODES].sort(),
          redirects_max: REDIRECTS_MAX,
          tries_max: TRIES_MAX,
          tries_window_backoffs: TRIES_WINDOW_BACKOFFS,
        },
        session: {
          beats_per_ttl: BEATS_PER_TTL,
          lease_ttl_default: LEASE_TTL_MS / 1000,
          message_room_bytes: MESSAGE_ROOM,
          progress_bytes_max: PROGRESS_BYTES_MAX,
          progress_interval: PROGRESS_EVERY_MS / 1000,
          protocol_version: PROTOCOL_VERSION,
          receipts_since: RECEIPTS_SINCE,
          reports_per_message_max: REPORTS_PER_MESSAGE,
        },
        client: {
          ...connection,
          deadline: CLIENT_DEFAULTS.deadlineMs / 1000,
          max_message_bytes: CONNECT_DEFAULTS.maxMessageBytes,
          max_tasks_per_batch: CLIENT_DEFAULTS.maxTasksPerBatch,
          max_wait: CLIENT_DEFAULTS.maxWaitMs / 1000,
          submits_in_flight: IN_FLIGHT_MAX,
        },
      },
      shared,
    );
  });

  it("are what options default to", () => {
    const worker = workerSettings({});
    const { endpoint, ...plain } = CONNECT_DEFAULTS;
    assert.equal(worker.endpoint.toString(), `http://${endpoint}`);
    assert.deepEqual({ ...worker, ...plain, ...WORKER_DEFAULTS }, worker);
    const client = clientSettings({});
    assert.deepEqual({ ...client, ...plain, ...CLIENT_DEFAULTS }, client);
  });
});

describe("options", () => {
  const refused: [string, () => unknown][] = [
    ["a keepalive below 10 s", () => workerSettings({ keepalive: { intervalMs: 9_999 } })],
    ["a keepalive that is no number", () => workerSettings({ keepalive: { intervalMs: NaN } })],
    ["no slot", () => workerSettings({ slots: 0 })],
    ["half a slot", () => workerSettings({ slots: 1.5 })],
    ["a backoff upside down", () => clientSettings({ backoff: { initialMs: 10, maximumMs: 5 } })],
    ["a backoff of nothing", () => clientSettings({ backoff: { initialMs: 0 } })],
    ["a certificate without its key", () => clientSettings({ tls: { cert: "a.pem" } })],
    ["a key without its certificate", () => clientSettings({ tls: { key: "a.key" } })],
    ["a token that is no header", () => clientSettings({ token: "a\r\nb: c" })],
    ["messages smaller than their room", () => clientSettings({ maxMessageBytes: 65_536 })],
    ["a deadline of nothing", () => clientSettings({ deadlineMs: 0 })],
  ];
  for (const [what, make] of refused) {
    it(`refuse ${what}`, () => {
      assert.throws(make, RangeError);
    });
  }

  for (const endpoint of ["", "ftp://a:1", "http://u:p@a:1", "http://a:0", "http://a:1/x"]) {
    it(`refuse the endpoint '${endpoint}'`, () => {
      assert.throws(() => clientSettings({ endpoint }), EndpointError);
    });
  }

  it("refuse http together with TLS settings", () => {
    assert.throws(() => clientSettings({ endpoint: "http://a:1", tls: {} }), EndpointError);
  });
});
