/** Holds what surrounds a handler to its promises: codecs, the test helper, threads, traces, errors. */

import assert from "node:assert/strict";
import { deflateSync } from "node:zlib";
import { describe, it } from "node:test";

import {
  context,
  type Context,
  propagation,
  type Span,
  SpanKind,
  type SpanOptions,
  SpanStatusCode,
  trace,
  type Tracer,
} from "@opentelemetry/api";
import { z } from "zod";

import * as errors from "../src/errors.js";
import { ErrorReason as WireReason } from "../src/gen/cronoq/v1/errors.js";
import {
  BYTES,
  Cancel,
  type Codec,
  CronoqError,
  ErrorReason,
  type HandlerFunction,
  JsonCodec,
  MsgpackCodec,
  PayloadError,
  Permanent,
  Reject,
  Retryable,
  type Submission,
  type TaskSpec,
  type Transform,
  TransformingCodec,
  VERSION,
  ZlibTransform,
} from "../src/index.js";
import { currentTraceContext, submitting, tracing } from "../src/opentelemetry.js";
import { runHandler } from "../src/testing.js";
import { threadHandler } from "../src/thread.js";
import { Fact, soon } from "./scripted-server.js";

describe("codecs", () => {
  for (const codec of [new JsonCodec(), new MsgpackCodec()]) {
    for (const value of [null, 0, -1.5, "", "grün\0😀", [1, [2]], { a: { b: true } }]) {
      it(`${codec.constructor.name} gives ${JSON.stringify(value)} back`, () => {
        const { contentType, payload } = codec.encode(value);
        assert.deepEqual(codec.decode(payload, contentType), value);
        assert.deepEqual(new JsonCodec().decode(payload, contentType), value);
      });
    }

    it(`${codec.constructor.name} leaves bytes as they are`, () => {
      const raw = Buffer.from([0, 255]);
      assert.deepEqual(codec.encode(raw), {
        payload: raw,
        contentType: "application/octet-stream",
      });
      assert.deepEqual(codec.decode(raw, "application/octet-stream"), raw);
      assert.deepEqual(codec.decode(raw, "application/json", BYTES), raw);
    });

    it(`${codec.constructor.name} knows a task without payload`, () => {
      assert.equal(codec.decode(Buffer.alloc(0), ""), undefined);
      assert.equal(codec.decode(Buffer.alloc(0), "", z.undefined()), undefined);
    });
  }

  const json = new JsonCodec();
  const packed = new TransformingCodec(json, [
    new ZlibTransform({ minBytes: 10, maxBytes: 1_000 }),
  ]);
  const wrong: [string, () => unknown][] = [
    ["truncated JSON", () => json.decode(Buffer.from("{"), "application/json")],
    ["JSON that is not UTF-8", () => json.decode(Buffer.from([34, 255, 34]), "application/json")],
    ["truncated MessagePack", () => json.decode(Buffer.from([0x92, 1]), "application/msgpack")],
    ["an unknown type", () => json.decode(Buffer.from("1"), "image/png")],
    [
      "a transform that is not there",
      () => json.decode(Buffer.from("1"), "application/json;transform=aes"),
    ],
    ["what is no zlib", () => packed.decode(Buffer.from("1"), "application/json;transform=zlib")],
    [
      "zlib that is cut off",
      () =>
        packed.decode(
          deflateSync("1".repeat(500)).subarray(0, 8),
          "application/json;transform=zlib",
        ),
    ],
    [
      "zlib that unpacks to too much",
      () => packed.decode(deflateSync("1".repeat(2_000)), "application/json;transform=zlib"),
    ],
    [
      "what the schema refuses",
      () => json.decode(Buffer.from('"x"'), "application/json", z.number()),
    ],
  ];
  for (const [what, decode] of wrong) {
    it(`refuse ${what}`, () => {
      assert.throws(decode, PayloadError);
    });
  }

  it("apply transforms inside out, where they gain", () => {
    const xor: Transform = {
      name: "xor",
      wrap: (payload) => payload.map((byte) => byte ^ 0x55),
      unwrap: (payload) => payload.map((byte) => byte ^ 0x55),
    };
    const codec = new TransformingCodec(json, [new ZlibTransform({ minBytes: 10 }), xor]);
    const long = "x".repeat(100);
    const encoded = codec.encode(long);
    assert.equal(encoded.contentType, "application/json;transform=zlib;transform=xor");
    assert.equal(codec.decode(encoded.payload, encoded.contentType), long);
    assert.equal(codec.encode("x").contentType, "application/json;transform=xor");
  });
});

describe("a handler without a server", () => {
  it("is called as a worker would", async () => {
    const Order = z.object({ cents: z.number() });
    const bill: HandlerFunction<z.infer<typeof Order>> = ({ cents }, attempt) => {
      attempt.progress("half", 0.5);
      return { cents, attempt: attempt.number, tags: attempt.tags };
    };
    const seen: number[] = [];
    const outcome = await runHandler(
      bill,
      { cents: 5 },
      {
        as: Order,
        number: 2,
        tags: { a: "b" },
        onProgress: ({ fraction }) => seen.push(fraction ?? 0),
      },
    );
    assert.deepEqual(outcome.value(), { cents: 5, attempt: 2, tags: { a: "b" } });
    assert.deepEqual(seen, [0.5]);
    const refused = await runHandler(bill, "x", { as: Order });
    assert.ok(refused.isPermanent);
    assert.throws(() => refused.value(), /did not succeed/);
  });

  it("reads parents that the test made up", async () => {
    const outputs = new Map([
      [1n, 10],
      [2n, 20],
    ]);
    const outcome = await runHandler(
      async (_, attempt) => {
        const parts = await Promise.all(
          attempt.parents.map((id) => attempt.output(id, { as: z.number() })),
        );
        return parts.reduce((a, b) => a + b);
      },
      undefined,
      { outputs },
    );
    assert.equal(outcome.value(), 30);
  });

  it("tells how it ended", async () => {
    const endings = [
      [new Retryable("r", { retryAfterMs: 5 }), { failure: "r", retryAfterMs: 5 }],
      [new Permanent("p"), { failure: "p", isPermanent: true }],
      [new Reject("x"), { rejection: "x" }],
      [new Cancel("c"), { isCancelled: true }],
    ] as const;
    for (const [thrown, expected] of endings) {
      const outcome = await runHandler(() => {
        throw thrown;
      });
      assert.deepEqual(Object.assign({}, outcome, expected), Object.assign({}, outcome));
    }
  });

  it("can be told to stop", async () => {
    const ending = new AbortController();
    const running = runHandler(
      async (_, attempt) => {
        ending.abort();
        await new Promise((_resolve, reject) => {
          attempt.signal.addEventListener("abort", () => {
            reject(attempt.signal.reason as Error);
          });
          attempt.signal.throwIfAborted();
        });
      },
      undefined,
      { signal: ending.signal },
    );
    assert.equal((await soon(running)).failure, "aborted by the server");
  });

  for (const wait of [-1, NaN, Infinity]) {
    it(`refuses a wait of ${wait} where it is said`, () => {
      assert.throws(() => new Retryable("x", { retryAfterMs: wait }), RangeError);
    });
  }

  it("gives no bytes that a codec did not give", async () => {
    const broken: Codec = {
      encode: () => ({ payload: "text" as unknown as Uint8Array, contentType: "a" }),
      decode: () => undefined,
    };
    const outcome = await runHandler(() => 1, undefined, { codec: broken });
    assert.equal(outcome.failure, "output not encodable: the codec gave no bytes");
  });
});

describe("threads", () => {
  const file = new URL("./thread-handler.js", import.meta.url);

  it("run handlers that compute, with all that an attempt offers", async () => {
    const crunch = threadHandler(file, { threads: 2, workerData: "from here" });
    const seen: string[] = [];
    const outcomes = await soon(
      Promise.all(
        [1, 2, 3].map((n) =>
          runHandler(
            crunch,
            { act: "work", n },
            {
              outputs: new Map([[9n, n]]),
              onProgress: ({ data }) => seen.push(Buffer.from(data).toString()),
            },
          ),
        ),
      ),
    );
    assert.deepEqual(
      outcomes.map((outcome) => outcome.value()),
      [1, 2, 3].map((n) => ({ n, parent: n, given: "from here" })),
    );
    assert.deepEqual(seen, ["working", "working", "working"]);
  });

  it("are given the payload alone, not all that came along with it", async () => {
    const crunch = threadHandler(file, { threads: 1 });
    assert.equal((await soon(runHandler(crunch, { act: "room" }))).value(), 0);
  });

  it("carry how a handler ends", async () => {
    const crunch = threadHandler(file, { threads: 1 });
    const end = async (act: string): Promise<unknown> => {
      const { failure, isCancelled, isPermanent, rejection, retryAfterMs } = await soon(
        runHandler(crunch, { act }),
      );
      return { failure, isCancelled, isPermanent, rejection, retryAfterMs };
    };
    const plain = {
      failure: undefined,
      isCancelled: false,
      isPermanent: false,
      rejection: undefined,
      retryAfterMs: undefined,
    };
    assert.deepEqual(await end("retryable"), { ...plain, failure: "later", retryAfterMs: 5 });
    assert.deepEqual(await end("permanent"), { ...plain, failure: "never", isPermanent: true });
    assert.deepEqual(await end("reject"), { ...plain, rejection: "elsewhere" });
    assert.deepEqual(await end("cancel"), { ...plain, isCancelled: true });
    assert.deepEqual(await end("throw"), { ...plain, failure: "TypeError: bad" });
    const refused = await soon(runHandler(crunch, 7));
    assert.ok(refused.isPermanent);
  });

  it("see a stop in a busy loop", async () => {
    const crunch = threadHandler(file);
    const ending = new AbortController();
    const outcome = await soon(
      runHandler(
        crunch,
        { act: "spin" },
        {
          signal: ending.signal,
          onProgress: () => {
            ending.abort();
          },
        },
      ),
    );
    assert.equal(outcome.value(), "seen");
  });

  it("are ended when they do not look, or when they end by themselves", async () => {
    const crunch = threadHandler(file, { threads: 1, terminateAfterMs: 10 });
    const ending = new AbortController();
    const spun = new Fact();
    const outcome = await soon(
      runHandler(
        crunch,
        { act: "blind" },
        {
          signal: ending.signal,
          onProgress: () => {
            spun.tell(undefined);
            ending.abort();
          },
        },
      ),
    );
    assert.equal(outcome.failure, "ThreadEndedError: ended when told to stop");
    await spun.come();
    assert.equal(
      (await soon(runHandler(crunch, { act: "exit" }))).failure,
      "ThreadEndedError: it exited",
    );
    assert.deepEqual(
      (await soon(runHandler(crunch, { act: "work", n: 1 }, { outputs: new Map([[9n, 1]]) })))
        .isPermanent,
      false,
    );
  });

  it("that cannot be made fail their attempts, each of them", async () => {
    const unknown = threadHandler("no-path.js", { threads: 1 });
    for (const payload of [1, 2]) {
      const { failure, isPermanent } = await soon(runHandler(unknown, payload));
      assert.match(failure ?? "", /absolute path/);
      assert.ok(!isPermanent);
    }
    let made = 0;
    const once = {
      threads: 1,
      get workerData(): unknown {
        return made++ === 0 ? "fine" : () => "not to be copied";
      },
    };
    const crunch = threadHandler(file, once);
    const attempts = ["exit", "work", "work"].map((act) => runHandler(crunch, { act, n: 1 }));
    const ends = await soon(Promise.all(attempts));
    assert.deepEqual(
      ends.map(({ failure }) => failure?.split(":")[0]),
      ["ThreadEndedError", "DataCloneError", "DataCloneError"],
    );
  });
});

describe("traces", () => {
  it("have one of their own for each attempt, linked to the submitter's", async () => {
    const submitted = {
      traceId: "0".repeat(31) + "1",
      spanId: "0".repeat(15) + "2",
      traceFlags: 1,
    };
    propagation.setGlobalPropagator({
      fields: () => ["traceparent"],
      inject: (active, carrier: Record<string, string>) => {
        carrier["traceparent"] = trace.getSpanContext(active)?.traceId ?? "";
      },
      extract: (from) => trace.setSpanContext(from, submitted),
    });
    const spans: [string, SpanOptions, string[]][] = [];
    const tracer = {
      startActiveSpan: (
        name: string,
        options: SpanOptions,
        _: Context,
        call: (span: Span) => unknown,
      ) => {
        const heard: string[] = [];
        spans.push([name, options, heard]);
        const span = new Proxy({} as Span, {
          get: (_target, method) => () => heard.push(String(method)),
        });
        return call(span);
      },
    } as unknown as Tracer;
    const interceptors = [tracing({ tracer })];
    const outcome = await runHandler(() => 1, undefined, {
      interceptors,
      kind: "k",
      traceContext: {},
    });
    assert.equal(outcome.value(), 1);
    await runHandler(
      () => {
        throw new Permanent("no");
      },
      undefined,
      { interceptors },
    );
    assert.deepEqual(
      spans.map(([, , heard]) => heard),
      [["end"], ["recordException", "setStatus", "end"]],
    );
    const [name, options] = spans[0] ?? [];
    assert.deepEqual(
      [name, options?.root, options?.links],
      ["cronoq.attempt", true, [{ context: submitted }]],
    );
    assert.equal(options?.attributes?.["cronoq.kind"], "k");
    assert.deepEqual(currentTraceContext(), { traceparent: "" });
    assert.equal(trace.getSpanContext(context.active()), undefined);
    propagation.disable();
  });

  it("have a span of each submission, which its tasks carry", () => {
    const own = { traceId: "0".repeat(31) + "1", spanId: "0".repeat(15) + "2", traceFlags: 1 };
    const made = { traceId: "0".repeat(31) + "3", spanId: "0".repeat(15) + "4", traceFlags: 1 };
    propagation.setGlobalPropagator({
      fields: () => ["traceparent"],
      inject: (active, carrier: Record<string, string>) => {
        carrier["traceparent"] = trace.getSpanContext(active)?.spanId ?? "";
      },
      extract: (from) => trace.setSpanContext(from, own),
    });
    const spans: { name: string; options: SpanOptions; heard: unknown[][] }[] = [];
    const tracer = {
      startSpan: (name: string, options: SpanOptions) => {
        const heard: unknown[][] = [];
        spans.push({ name, options, heard });
        return new Proxy({} as Span, {
          get: (_target, method) =>
            method === "spanContext"
              ? () => made
              : (...given: unknown[]) => heard.push([String(method), ...given]),
        });
      },
    } as unknown as Tracer;
    const begin = submitting({ tracer });
    const submit = (
      operation: Submission["operation"],
      tasks: readonly TaskSpec[],
      taskIds: readonly bigint[],
      error?: unknown,
    ): Submission => {
      const submission: Submission = { operation, tasks, taskIds: [] };
      const ended = begin(submission);
      submission.taskIds = taskIds;
      ended(error);
      return submission;
    };
    const one = submit("submit", [{ kind: "a", pool: "batch" }], [7n]);
    assert.deepEqual(one.traceContext, { traceparent: made.spanId });
    submit("submit_many", [{ kind: "a" }, { kind: "b", traceContext: {} }], [7n, 0n]);
    const error = new CronoqError("full", { reason: ErrorReason.QUEUE_FULL });
    submit("submit_batch", [], [], error);
    const options = spans[0]?.options;
    assert.equal(options?.kind, SpanKind.PRODUCER);
    assert.deepEqual(options.attributes, {
      "messaging.operation.name": "submit",
      "messaging.operation.type": "send",
      "messaging.system": "cronoq",
    });
    assert.deepEqual(
      spans.map(({ heard }) => heard),
      [
        [
          ["setAttribute", "messaging.destination.name", "batch"],
          ["updateName", "submit batch"],
          ["setAttribute", "messaging.message.id", "7"],
          ["end"],
        ],
        [
          ["setAttribute", "messaging.batch.message_count", 2],
          ["setAttribute", "cronoq.refused_count", 1],
          ["addLink", { context: own }],
          ["end"],
        ],
        [
          ["setAttribute", "messaging.batch.message_count", 0],
          ["setAttribute", "cronoq.refused_count", 0],
          ["recordException", error],
          ["setStatus", { code: SpanStatusCode.ERROR, message: "full" }],
          ["setAttribute", "error.type", "queue_full"],
          ["end"],
        ],
      ],
    );
    propagation.disable();
  });
});

describe("errors", () => {
  it("have one class for every reason of the wire", () => {
    const words = Object.keys(WireReason).filter((name) => !/^\d|^UNSPECIFIED$/.test(name));
    assert.deepEqual(Object.keys(errors.ErrorReason).sort(), words.sort());
    const classes = new Set<string>();
    for (const word of words) {
      const reason = errors.reasonOf(word);
      assert.ok(reason !== undefined);
      const error = errors.errorFor("UNKNOWN", "text", { reason });
      assert.deepEqual([error.reason, error.message], [reason, "text"]);
      assert.equal(new (error.constructor as new () => errors.CronoqError)().reason, reason);
      classes.add(error.name);
    }
    assert.equal(classes.size, words.length);
  });

  it("fall back on the code when the reason is unknown, and on their own words", () => {
    const error = errors.errorFor("NOT_FOUND", "", { reason: errors.reasonOf("NEWER") });
    assert.ok(error instanceof errors.NotFoundError);
    assert.equal(error.message, "There is no such thing.");
    assert.ok(errors.errorFor("WHATEVER", "x") instanceof errors.InternalError);
  });

  it("know what was not executed", () => {
    for (const reason of ["not_leader", "stopping"] as const) {
      assert.equal(errors.errorFor("UNAVAILABLE", "", { reason }).executed, false);
    }
    assert.equal(errors.errorFor("UNAVAILABLE", "").executed, undefined);
  });
});

describe("the version", () => {
  it("is that of the package", async () => {
    const { readFileSync } = await import("node:fs");
    const manifest = readFileSync(new URL("../../package.json", import.meta.url), "utf8");
    assert.equal((JSON.parse(manifest) as { version: string }).version, VERSION);
  });
});
