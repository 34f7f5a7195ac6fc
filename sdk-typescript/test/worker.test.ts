/** Holds a running worker to its promises, against a server played from a script. */

import assert from "node:assert/strict";
import { afterEach, beforeEach, describe, it } from "node:test";

import { status as Code } from "@grpc/grpc-js";

import { Priority as WirePriority } from "../src/gen/cronoq/v1/task.js";
import type { Fail, GetOutputRequest, Report } from "../src/gen/cronoq/v1/workers.js";
import {
  type Attempt,
  BYTES,
  Cancel,
  ClosedError,
  GaveUpError,
  type HandlerFunction,
  type Interceptor,
  JsonCodec,
  type Logger,
  type Parser,
  Permanent,
  Reject,
  Retryable,
  TransformingCodec,
  Worker,
  type WorkerOptions,
  ZlibTransform,
} from "../src/index.js";
import {
  Fact,
  makeLease,
  Queue,
  QUICK,
  Refusal,
  ScriptedServer,
  soon,
  WorkStream,
} from "./scripted-server.js";

let server: ScriptedServer;
let said: string[];

const logger: Logger = {
  debug: () => undefined,
  info: () => undefined,
  warn: (text) => said.push(text),
  error: (text) => said.push(text),
};

beforeEach(async () => {
  said = [];
  server = await new ScriptedServer().start();
});

afterEach(() => {
  server.stop();
});

function workerOf(options: WorkerOptions = {}): Worker {
  return new Worker({ endpoint: server.endpoint, slots: 4, backoff: QUICK, logger, ...options });
}

/** Runs a worker whose first stream is accepted, and lets it end in order. */
async function running(
  worker: Worker,
  play: (stream: WorkStream) => Promise<void>,
): Promise<WorkStream> {
  worker.start();
  const stream = await server.stream();
  stream.accept();
  await soon(worker.waitReady());
  await play(stream);
  await stopped(worker, stream);
  return stream;
}

/** Stops a worker and plays the server's part of it on a stream. */
async function stopped(worker: Worker, stream: WorkStream): Promise<void> {
  const stopping = worker.stop();
  await stream.endOfWorker();
  stream.end();
  await soon(stopping);
}

function outputOf(report: Report | undefined): string {
  const content = report?.report;
  assert.equal(content?.$case, "complete");
  return Buffer.from(content.value.output).toString();
}

function failureOf(report: Report | undefined): Fail {
  const content = report?.report;
  assert.equal(content?.$case, "fail");
  return content.value;
}

function ring(): unknown[] {
  const all: unknown[] = [];
  all.push(all);
  return all;
}

/** A place where handlers wait, and tests see them wait. */
class Gate {
  readonly entered = new Queue<Attempt>();
  readonly #opened = new Fact();

  readonly handler: HandlerFunction = async (_payload, attempt) => {
    this.entered.put(attempt);
    await new Promise<void>((resolve, reject) => {
      void this.#opened.promise.then(resolve);
      attempt.signal.addEventListener("abort", () => {
        reject(attempt.signal.reason as Error);
      });
    });
    return "through";
  };

  /** Waits on, whatever it is told. */
  readonly stubborn: HandlerFunction = async (_payload, attempt) => {
    this.entered.put(attempt);
    await this.#opened.promise;
    return "through";
  };

  open(): void {
    this.#opened.tell(undefined);
  }
}

describe("work", () => {
  it("gives a handler its payload and reports its value", async () => {
    const worker = workerOf({ pool: "p", name: "w", labels: { gpu: "1" } });
    worker.handler("echo", (word) => String(word).toUpperCase());
    const stream = await running(worker, async (work) => {
      work.lease(makeLease(1, { payload: Buffer.from('"word"') }));
      const [report] = await work.reports(1);
      assert.equal(outputOf(report), '"WORD"');
    });
    const { kinds, labels, pool, protocolVersion, sdk, slots, workerName } = stream.register;
    assert.deepEqual([pool, slots, workerName, protocolVersion], ["p", 4, "w", 4]);
    assert.deepEqual([...labels], [["gpu", "1"]]);
    assert.deepEqual(kinds, ["echo"]);
    assert.match(sdk, /^typescript\//);
    assert.ok(stream.isHalfClosed);
  });

  it("takes any kind with a default handler", async () => {
    const worker = workerOf().defaultHandler((_, attempt) => attempt.kind);
    await running(worker, async (stream) => {
      assert.deepEqual(stream.register.kinds, []);
      stream.lease(makeLease(1, { kind: "anything" }));
      assert.equal(outputOf((await stream.reports(1))[0]), '"anything"');
    });
  });

  it("reports attempts of one turn together (WP-20)", async () => {
    const worker = workerOf({ slots: 300 }).handler("echo", (value) => value);
    await running(worker, async (stream) => {
      stream.lease(...Array.from({ length: 300 }, (_, n) => makeLease(n + 1)));
      await stream.reports(300);
      assert.ok(stream.lastNumber <= 5n);
    });
  });

  it("runs no more handlers than it has slots (WP-11)", async () => {
    const gate = new Gate();
    const worker = workerOf({ slots: 2 }).handler("echo", gate.handler);
    await running(worker, async (stream) => {
      stream.lease(makeLease(1), makeLease(2), makeLease(3));
      await gate.entered.take();
      await gate.entered.take();
      assert.equal(gate.entered.items.length, 0);
      gate.open();
      await stream.reports(3);
    });
  });

  const ends: [string, () => unknown, Partial<Fail>][] = [
    ["Retryable", () => new Retryable("later"), { message: "later" }],
    [
      "Retryable with a wait",
      () => new Retryable("then", { retryAfterMs: 7_500 }),
      { message: "then", retryAfterS: 7.5 },
    ],
    ["Permanent", () => new Permanent("never"), { message: "never", permanent: true }],
    ["an error", () => new TypeError("bad"), { message: "TypeError: bad" }],
    ["an error without a text", () => new Error(), { message: "Error" }],
    ["what is no error", () => 7, { message: "7" }],
    [
      "what has no text",
      () => Object.create(null) as unknown,
      { message: "something without a text was thrown" },
    ],
    [
      "text that no store holds",
      () => new Error("nul\0 and \ud800"),
      { message: "Error: nul\ufffd and \ufffd" },
    ],
  ];
  for (const isAsync of [true, false]) {
    for (const [what, make, expected] of ends) {
      it(`fails as a handler says that ${isAsync ? "rejects with" : "throws"} ${what}`, async () => {
        const handler: HandlerFunction = isAsync
          ? async () => {
              await Promise.resolve();
              throw make() as Error;
            }
          : () => {
              throw make() as Error;
            };
        await running(workerOf().handler("echo", handler), async (stream) => {
          stream.lease(makeLease(1));
          const failure = failureOf((await stream.reports(1))[0]);
          const whole = { lease: 1n, permanent: false, retryAfterS: undefined, ...expected };
          assert.deepEqual(failure, whole);
        });
      });
    }
  }

  it("lets a handler cancel its task or give it back", async () => {
    const worker = workerOf()
      .handler("cancel", () => {
        throw new Cancel("no longer wanted");
      })
      .handler("reject", () => {
        throw new Reject("no room");
      });
    await running(worker, async (stream) => {
      stream.lease(makeLease(1, { kind: "cancel" }));
      assert.equal((await stream.reports(1))[0]?.report?.$case, "cancelled");
      stream.lease(makeLease(2, { kind: "reject" }));
      const [report] = await stream.reports(1);
      assert.deepEqual(report?.report, { $case: "nack", value: { lease: 2n, reason: "no room" } });
    });
  });

  it("gives an unknown kind back once, then fails it (WP-13)", async () => {
    const worker = workerOf().handler("echo", (value) => value);
    await running(worker, async (stream) => {
      stream.lease(makeLease(1, { kind: "what", taskId: 5n }));
      assert.equal((await stream.reports(1))[0]?.report?.$case, "nack");
      stream.lease(makeLease(2, { kind: "what", taskId: 5n }));
      const failure = failureOf((await stream.reports(1))[0]);
      assert.deepEqual([failure.permanent, failure.message], [true, "no handler for kind 'what'"]);
    });
  });

  const poison: [string, string, string][] = [
    ["{", "application/json", "payload is no application/json"],
    ["\xff\xfe", "application/json", "payload is no application/json"],
    ['"text"', "application/json", "payload is not what is wanted: not a number"],
    ["1", "application/x-pickle", "unknown content type 'application/x-pickle'"],
    ["1", "application/octet-stream", "payload is not what is wanted: not a number"],
    ["1", "application/json;transform=zlib", "payload is not zlib"],
    ["1", "application/json;transform=aes", "payload needs transform 'aes'"],
    ["", "", "payload is not what is wanted: not a number"],
  ];
  const numbers: Parser<number> = {
    parse(value) {
      if (typeof value !== "number") {
        throw new TypeError("not a number");
      }
      return value;
    },
  };
  for (const [payload, contentType, message] of poison) {
    // Covers R18.
    it(`fails '${payload}' of type '${contentType}' for good and lives on (WP-14)`, async () => {
      const codec = new TransformingCodec(new JsonCodec(), [new ZlibTransform()]);
      const worker = workerOf({ codec }).handler("echo", numbers, (number) => number + 1);
      await running(worker, async (stream) => {
        stream.lease(
          makeLease(1, { payload: Buffer.from(payload, "latin1"), contentType }),
          makeLease(2, { payload: Buffer.from("5") }),
        );
        const reports = await stream.reports(2);
        const [bad, good] = reports[0]?.report?.$case === "fail" ? reports : reports.reverse();
        assert.ok(failureOf(bad).permanent);
        assert.ok(failureOf(bad).message.startsWith(message), failureOf(bad).message);
        assert.equal(outputOf(good), "6");
      });
    });
  }

  for (const [what, value] of [
    ["a function", () => 1],
    ["a bigint", { id: 1n }],
    ["a ring", ring()],
  ] as const) {
    it(`fails an output for good that is ${what}`, async () => {
      const worker = workerOf().handler("echo", () => value);
      await running(worker, async (stream) => {
        stream.lease(makeLease(1));
        const failure = failureOf((await stream.reports(1))[0]);
        assert.ok(failure.permanent);
        assert.match(failure.message, /^output not encodable: /);
      });
    });
  }

  // Covers R19.
  it("fails an output too large for good, before it is sent (WP-18)", async () => {
    const worker = workerOf()
      .handler("echo", () => Buffer.alloc(5_000_000))
      .handler("fits", () => Buffer.alloc(4 * 1024 * 1024 - 64 * 1024));
    await running(worker, async (stream) => {
      stream.lease(makeLease(1), makeLease(2, { kind: "fits" }));
      const reports = await stream.reports(2);
      const failure = failureOf(reports.find((report) => report.report?.$case === "fail"));
      assert.deepEqual(
        [failure.permanent, failure.message],
        [true, "output too large (5000000 > 4128768)"],
      );
    });
  });

  it("takes large and empty payloads in one step", async () => {
    const worker = workerOf({ slots: 16 }).handler("echo", BYTES, (payload) => payload.length);
    await running(worker, async (stream) => {
      const contentType = "application/octet-stream";
      for (let lease = 1; lease <= 8; lease += 1) {
        stream.lease(makeLease(lease, { payload: Buffer.alloc(3_900_000), contentType }));
      }
      stream.lease(makeLease(9, { payload: Buffer.alloc(0), contentType }));
      const outputs = (await stream.reports(9)).map(outputOf).sort();
      assert.deepEqual(outputs, ["0", ...Array.from({ length: 8 }, () => "3900000")]);
    });
  });

  it("tells the attempt what the lease said", async () => {
    let seen: Attempt | undefined;
    const worker = workerOf().handler("echo", (word, attempt) => {
      assert.equal(word, "x");
      seen = attempt;
    });
    await running(worker, async (stream) => {
      stream.lease(
        makeLease(1, {
          taskId: 77n,
          attempt: 3,
          key: "k",
          tags: new Map([["a", "b"]]),
          timeoutS: 2.5,
          deadlineUnixNs: 1_000_000_000n,
          traceContext: new Map([["traceparent", "00-1"]]),
          parents: [5n, 6n],
          priority: WirePriority.HIGH,
          lastProgress: { data: Buffer.from("half"), fraction: 0.5 },
        }),
      );
      assert.equal(outputOf((await stream.reports(1))[0]), "null");
    });
    assert.ok(seen !== undefined);
    assert.deepEqual([seen.taskId, seen.number, seen.kind, seen.key], [77n, 3, "echo", "k"]);
    assert.deepEqual([seen.pool, seen.tags, seen.timeoutMs], ["default", { a: "b" }, 2_500]);
    assert.deepEqual([seen.traceContext, seen.parents], [{ traceparent: "00-1" }, [5n, 6n]]);
    assert.deepEqual([seen.deadline, seen.priority], [new Date(1_000), "high"]);
    assert.deepEqual(seen.lastProgress?.fraction, 0.5);
    assert.deepEqual(Buffer.from(seen.lastProgress.data).toString(), "half");
    assert.deepEqual([seen.isCancelled, seen.cancelReason], [false, ""]);
  });

  it("lets a handler read its parents' outputs, over the lease it holds", async () => {
    const asked: GetOutputRequest[] = [];
    server.on<GetOutputRequest>("getOutput", (request) => {
      asked.push(request);
      return { output: Buffer.from("[1,2]"), contentType: "application/json", status: 6 };
    });
    const worker = workerOf().handler("echo", async (_, attempt) => {
      let sum = 0;
      for (const parent of attempt.parents) {
        sum += (await attempt.output<number[]>(parent)).reduce((a, b) => a + b);
      }
      return sum;
    });
    await running(worker, async (stream) => {
      stream.lease(makeLease(4, { parents: [8n, 9n] }));
      assert.equal(outputOf((await stream.reports(1))[0]), "6");
    });
    assert.deepEqual(asked, [
      { lease: 4n, taskId: 8n },
      { lease: 4n, taskId: 9n },
    ]);
  });

  it("wraps interceptors around every handler, in order", async () => {
    const events: string[] = [];
    const interceptor =
      (name: string): Interceptor =>
      async (attempt, next) => {
        events.push(`${name} in ${attempt.kind}`);
        try {
          return await next();
        } catch (error) {
          events.push(`${name} saw ${(error as Error).message}`);
          throw error;
        } finally {
          events.push(`${name} out`);
        }
      };
    const worker = workerOf({ interceptors: [interceptor("a"), interceptor("b")] })
      .handler("echo", (value) => value)
      .handler("throws", () => {
        throw new Permanent("no");
      });
    await running(worker, async (stream) => {
      stream.lease(makeLease(1));
      assert.equal(outputOf((await stream.reports(1))[0]), '"x"');
      stream.lease(makeLease(2, { kind: "throws" }));
      assert.ok(failureOf((await stream.reports(1))[0]).permanent);
    });
    assert.deepEqual(events, [
      ...["a in echo", "b in echo", "b out", "a out"],
      ...["a in throws", "b in throws", "b saw no", "b out", "a saw no", "a out"],
    ]);
  });

  // Covers R33.
  it("sends the last progress before the failure that follows it (WP-25)", async () => {
    const worker = workerOf().handler("echo", (_, attempt) => {
      for (let step = 0; step < 1_000; step += 1) {
        attempt.progress(String(step), step / 1_000);
      }
      throw new Retryable("now");
    });
    await running(worker, async (stream) => {
      stream.lease(makeLease(1));
      const words: string[] = [];
      for (;;) {
        const content = (await stream.next())?.message;
        if (content?.$case === "reports") {
          stream.receipt(content.value.number);
          break;
        }
        assert.equal(content?.$case, "heartbeats");
        for (const { progress } of content.value.progress) {
          words.push(Buffer.from(progress?.data ?? []).toString());
        }
      }
      assert.equal(words.at(-1), "999");
    });
  });

  for (const [data, fraction] of [
    [Buffer.alloc(1025), undefined],
    ["", 1.1],
    ["", -0.1],
    ["", NaN],
  ] as const) {
    it(`refuses a progress of ${data.length} bytes and ${fraction ?? "no fraction"}`, async () => {
      const worker = workerOf().handler("echo", (_, attempt) => {
        assert.throws(() => {
          attempt.progress(data, fraction);
        }, RangeError);
      });
      await running(worker, async (stream) => {
        stream.lease(makeLease(1));
        assert.equal(outputOf((await stream.reports(1))[0]), "null");
      });
    });
  }

  // Covers R11.
  it("lets heartbeats between handlers that compute (WP-26)", async () => {
    const worker = workerOf({ slots: 100 }).handler("echo", () => {
      const until = performance.now() + 10;
      while (performance.now() < until);
    });
    await running(worker, async (stream) => {
      stream.send({ $case: "receipt", value: { reports: 0n, heartbeats: 0n } });
      stream.lease(...Array.from({ length: 40 }, (_, n) => makeLease(n + 1, { leaseTtlS: 0.15 })));
      const first = await stream.next();
      assert.ok(first !== undefined);
      let done = 0;
      let beats = 0;
      let message: typeof first | undefined = first;
      while (message !== undefined && done < 40) {
        if (message.message?.$case === "reports") {
          done += message.message.value.reports.length;
          stream.receipt(message.message.value.number);
        } else if (message.message?.$case === "heartbeats") {
          beats += 1;
          stream.receipt(0n, message.message.value.number);
        }
        message = done < 40 ? await stream.next() : undefined;
      }
      assert.ok(beats > 0);
    });
  });

  // Covers R11.
  it("warns when a handler has blocked the event loop, and says what to do", async () => {
    const worker = workerOf().handler("echo", () => {
      const until = performance.now() + 200;
      while (performance.now() < until);
    });
    await running(worker, async (stream) => {
      stream.lease(makeLease(1, { leaseTtlS: 0.09 }));
      await stream.reports(1);
    });
    assert.ok(said.some((text) => text.includes("event loop was blocked")));
  });
});

describe("aborts", () => {
  it("tells the handler and reports when it has ended (WP-15, WP-16)", async () => {
    const told: [bigint, string][] = [];
    const gate = new Gate();
    const worker = workerOf({
      onAbort: (attempt, reason) => told.push([attempt.taskId, reason]),
    }).handler("echo", gate.handler);
    await running(worker, async (stream) => {
      stream.lease(makeLease(1));
      const attempt = await gate.entered.take();
      stream.abort(1n, "client asked");
      const [report] = await stream.reports(1);
      assert.deepEqual(report?.report, { $case: "cancelled", value: { lease: 1n } });
      assert.deepEqual([attempt.isCancelled, attempt.cancelReason], [true, "client asked"]);
      assert.equal((attempt.signal.reason as Error).name, "AbortError");
    });
    assert.deepEqual(told, [[1001n, "client asked"]]);
  });

  // Covers R31.
  it("keeps the slot of a handler that ignores its abort until it ends (WP-16)", async () => {
    const gate = new Gate();
    const told = new Fact();
    const onAbort = (): void => {
      told.tell(undefined);
    };
    const worker = workerOf({ slots: 1, onAbort }).handler("echo", gate.stubborn);
    await running(worker, async (stream) => {
      stream.lease(makeLease(1));
      await gate.entered.take();
      stream.lease(makeLease(2));
      stream.abort(99n); // Unknown: ignored.
      stream.abort(1n);
      await told.come();
      const worked = stream.reports(2);
      assert.equal(gate.entered.items.length, 0);
      gate.open();
      const [first, second] = await worked;
      assert.equal(first?.report?.$case, "cancelled");
      assert.equal(outputOf(second), '"through"');
    });
  });

  it("is heard right behind its lease", async () => {
    const gate = new Gate();
    const worker = workerOf({ slots: 1 }).handler("echo", gate.handler);
    await running(worker, async (stream) => {
      stream.lease(makeLease(1));
      stream.abort(1n);
      assert.equal((await stream.reports(1))[0]?.report?.$case, "cancelled");
      stream.lease(makeLease(2));
      gate.open();
      assert.equal(outputOf((await stream.reports(1))[0]), '"through"');
    });
  });

  it("does not let a hook's fault end the worker", async () => {
    const gate = new Gate();
    const worker = workerOf({
      onAbort: () => {
        throw new Error("the hook is broken");
      },
    }).handler("echo", gate.handler);
    await running(worker, async (stream) => {
      stream.lease(makeLease(1));
      await gate.entered.take();
      stream.abort(1n);
      await stream.reports(1);
    });
    assert.ok(said.some((text) => text.includes("the hook is broken")));
  });
});

describe("streams that break", () => {
  it("are resumed, and handlers go on (WP-30, WP-31)", async () => {
    const gate = new Gate();
    const worker = workerOf().handler("echo", gate.handler);
    worker.start();
    const first = await server.stream();
    first.accept();
    first.lease(makeLease(1));
    await gate.entered.take();
    first.cut();
    const second = await server.stream();
    const { resume } = second.register;
    assert.equal(Buffer.from(resume?.sessionToken ?? []).toString(), "token-1");
    assert.deepEqual(resume?.leases, [1n]);
    second.accept({ adopted: [1n], sessionToken: Buffer.from("token-2") });
    gate.open();
    assert.equal(outputOf((await second.reports(1))[0]), '"through"');
    await stopped(worker, second);
  });

  it("lose the handlers that the server does not adopt (WP-32)", async () => {
    const gate = new Gate();
    const worker = workerOf().handler("echo", gate.handler);
    worker.start();
    const first = await server.stream();
    first.accept();
    first.lease(makeLease(1), makeLease(2));
    await gate.entered.take();
    const lost = await gate.entered.take();
    first.cut();
    const second = await server.stream();
    second.accept({ adopted: [1n] });
    await soon(
      new Promise((resolve) => {
        lost.signal.addEventListener("abort", resolve);
      }),
    );
    gate.open();
    const reports = await second.reports(1);
    assert.equal(outputOf(reports[0]), '"through"');
    await stopped(worker, second);
    assert.equal(second.lastNumber, 1n);
  });

  it("deliver a result of the gap once (WP-33)", async () => {
    const gate = new Gate();
    const worker = workerOf({ backoff: { initialMs: 300, maximumMs: 300 } });
    worker.handler("echo", gate.handler);
    const disconnected = new Fact();
    worker.start();
    const first = await server.stream();
    first.accept();
    first.lease(makeLease(1));
    await gate.entered.take();
    first.cut();
    gate.open();
    disconnected.tell(undefined);
    const second = await server.stream();
    assert.deepEqual(second.register.resume?.leases, [1n]);
    second.accept({ adopted: [1n] });
    const [report] = await second.reports(1);
    assert.equal(outputOf(report), '"through"');
    await stopped(worker, second);
  });

  it("deliver a report again unless the server has read it (WP-33)", async () => {
    for (const reportsSeen of [0n, 1n]) {
      const worker = workerOf().handler("echo", (value) => value);
      worker.start();
      const first = await server.stream();
      first.accept();
      first.lease(makeLease(1));
      await first.reports(1, false);
      first.cut();
      const second = await server.stream();
      assert.deepEqual(second.register.resume?.leases, [1n]);
      second.accept({ adopted: reportsSeen === 0n ? [1n] : [], reportsSeen });
      if (reportsSeen === 0n) {
        await second.reports(1);
      } else {
        second.receipt(1n);
      }
      await stopped(worker, second);
      assert.equal(second.lastNumber, 1n - reportsSeen);
    }
  });

  const breaks: [string, Refusal | undefined][] = [
    ["in order", undefined],
    ["with UNAVAILABLE", new Refusal(Code.UNAVAILABLE)],
    ["with CANCELLED", new Refusal(Code.CANCELLED)],
    ["with INTERNAL", new Refusal(Code.INTERNAL)],
  ];
  for (const [how, refusal] of breaks) {
    // Covers R7.
    it(`are opened again when they end ${how}`, async () => {
      const gone = new Queue<string>();
      const worker = workerOf({
        onDisconnect: (endpoint) => {
          gone.put(endpoint);
        },
      }).handler("echo", (value) => value);
      worker.start();
      const first = await server.stream();
      first.accept();
      await soon(worker.waitReady());
      first.end(refusal);
      assert.equal(await gone.take(), `http://${server.endpoint}`);
      assert.equal(worker.isReady, false);
      const second = await server.stream();
      second.accept();
      await soon(worker.waitReady());
      await stopped(worker, second);
    });
  }

  it("end handlers one TTL after the last confirmed heartbeat (WP-24)", async () => {
    const gate = new Gate();
    const worker = workerOf().handler("echo", gate.handler);
    worker.start();
    const stream = await server.stream();
    stream.accept({ leaseTtlS: 0.1 });
    stream.lease(makeLease(1));
    const failure = failureOf((await stream.reports(1))[0]);
    assert.deepEqual([failure.permanent, failure.message.slice(0, 13)], [false, "lease expired"]);
    await stopped(worker, stream);
  });
});

describe("connecting", () => {
  it("waits for a server that is not there yet, on the same port", async () => {
    const { port } = server;
    server.stop();
    const worker = workerOf({ endpoint: `127.0.0.1:${port}` }).handler("echo", () => null);
    worker.start();
    const ready = worker.waitReady();
    const late = await new ScriptedServer().start(port);
    const stream = await late.stream();
    stream.accept();
    await soon(ready);
    await stopped(worker, stream);
    late.stop();
  });

  // Covers R14.
  it("tries a standby until it leads", async () => {
    server.refuseStreams(
      new Refusal(Code.UNAVAILABLE, "standby", "NOT_LEADER"),
      new Refusal(Code.UNAVAILABLE, "standby", "NOT_LEADER"),
    );
    const worker = workerOf().handler("echo", () => null);
    worker.start();
    const stream = await server.stream();
    assert.equal(server.streamCount, 3);
    stream.accept();
    await stopped(worker, stream);
  });

  for (const code of [
    Code.UNAUTHENTICATED,
    Code.PERMISSION_DENIED,
    Code.NOT_FOUND,
    Code.INVALID_ARGUMENT,
    Code.UNIMPLEMENTED,
    Code.FAILED_PRECONDITION,
  ]) {
    it(`ends with ${Code[code]}, the code and the server's words (RR-06)`, async () => {
      server.refuseStreams(new Refusal(code, "not you"));
      const worker = workerOf().handler("echo", () => null);
      await soon(
        assert.rejects(worker.run(), (error: unknown) => {
          assert.ok(error instanceof GaveUpError);
          assert.equal(error.details["code"], Code[code]);
          assert.match(error.message, /not you/);
          return true;
        }),
      );
    });
  }

  it("ends when its token is rejected later, and tells its handlers", async () => {
    const gate = new Gate();
    const worker = workerOf({ token: "a-token-long-enough" }).handler("echo", gate.handler);
    const run = worker.run();
    const stream = await server.stream();
    assert.equal(stream.metadata["authorization"], "Bearer a-token-long-enough");
    stream.accept();
    stream.lease(makeLease(1));
    const attempt = await gate.entered.take();
    stream.end(new Refusal(Code.UNAUTHENTICATED, "withdrawn"));
    await soon(assert.rejects(run, GaveUpError));
    assert.ok(attempt.isCancelled);
  });

  it("ends handlers with their leases when it has given up, too (WP-24)", async () => {
    const gate = new Gate();
    const worker = workerOf().handler("echo", gate.handler);
    worker.start();
    const stream = await server.stream();
    stream.accept({ leaseTtlS: 0.5 });
    stream.lease(makeLease(1));
    const { signal } = await gate.entered.take();
    const told = new Fact<string>();
    signal.addEventListener("abort", () => {
      told.tell((signal.reason as Error).message);
    });
    stream.end(new Refusal(Code.UNAUTHENTICATED, "withdrawn"));
    assert.match(await told.come(), /^lease expired/);
    await soon(worker.stop());
  });
});

function redirectTo(url: string): Refusal {
  return new Refusal(
    Code.FAILED_PRECONDITION,
    "not here",
    "WRONG_SHARD",
    {},
    {
      "cronoq-shard-endpoint": url,
    },
  );
}

describe("redirects", () => {
  it("are followed at once, with the token to loopback (RR-09, RR-15)", async () => {
    const other = await new ScriptedServer().start();
    server.refuseStreams(redirectTo(other.url));
    const seen: [string, string][] = [];
    const worker = workerOf({
      token: "a-token-long-enough",
      onRedirect: (endpoint, refused) => seen.push([endpoint, refused]),
    }).handler("echo", () => null);
    worker.start();
    const stream = await other.stream();
    assert.equal(stream.metadata["authorization"], "Bearer a-token-long-enough");
    stream.accept();
    await stopped(worker, stream);
    assert.deepEqual(seen, [[other.url, ""]]);
    other.stop();
  });

  // Covers R15.
  it("in a ring lead back to the configured endpoint (RR-10, RR-16)", async () => {
    const other = await new ScriptedServer().start();
    server.refuseStreams(redirectTo(other.url), redirectTo(other.url));
    other.refuseStreams(redirectTo(server.url), redirectTo(server.url));
    const refusals: string[] = [];
    const worker = workerOf({
      onRedirect: (_, refused) => refusals.push(refused),
    }).handler("echo", () => null);
    worker.start();
    const stream = await server.stream();
    stream.accept();
    await stopped(worker, stream);
    assert.deepEqual(refusals, ["", "", "", `redirect 4 in a row to ${server.url}`]);
    other.stop();
  });

  it("to a server that is down lead back (RR-18)", async () => {
    server.refuseStreams(redirectTo("http://127.0.0.1:1"));
    const worker = workerOf().handler("echo", () => null);
    worker.start();
    const stream = await server.stream();
    stream.accept();
    await stopped(worker, stream);
  });

  it("that would show the token are refused and reported (RR-15, RR-16)", async () => {
    server.refuseStreams(redirectTo("http://192.0.2.1:7070"));
    const refused = new Fact<string>();
    const worker = workerOf({
      token: "a-token-long-enough",
      onRedirect: (_, why) => {
        refused.tell(why);
      },
    }).handler("echo", () => null);
    worker.start();
    const stream = await server.stream();
    stream.accept();
    await stopped(worker, stream);
    assert.equal(await refused.come(), "token over http to http://192.0.2.1:7070");
  });
});

describe("stopping", () => {
  it("lets handlers finish and gives late leases back (WP-40, WP-41)", async () => {
    const gate = new Gate();
    const worker = workerOf({ slots: 1 }).handler("echo", gate.handler);
    worker.start();
    const stream = await server.stream();
    stream.accept();
    stream.lease(makeLease(1), makeLease(2));
    await gate.entered.take();
    const stopping = worker.stop();
    assert.equal((await stream.expect("setSlots")).slots, 0);
    stream.lease(makeLease(3));
    const given = await stream.reports(2);
    assert.deepEqual(
      given.map((report) => report.report?.$case),
      ["nack", "nack"],
    );
    gate.open();
    assert.equal(outputOf((await stream.reports(1))[0]), '"through"');
    await stream.endOfWorker();
    stream.end();
    await soon(stopping);
    assert.equal(worker.isReady, false);
  });

  // Covers R10.
  it("goes on with heartbeats until the last receipt (WP-43)", async () => {
    const gate = new Gate();
    const worker = workerOf().handler("echo", gate.handler);
    worker.start();
    const stream = await server.stream();
    stream.accept({ leaseTtlS: 0.3 });
    stream.lease(makeLease(1));
    await gate.entered.take();
    const stopping = worker.stop();
    await stream.expect("setSlots");
    for (let beat = 0; beat < 5; beat += 1) {
      const { leases, number } = await stream.expect("heartbeats");
      assert.deepEqual(leases, [1n]);
      stream.receipt(0n, number);
    }
    gate.open();
    assert.equal(outputOf((await stream.reports(1))[0]), '"through"');
    await stream.endOfWorker();
    stream.end();
    await soon(stopping);
  });

  it("reports what does not end in time, with its handler or without (WP-42)", async () => {
    const gate = new Gate();
    const stubborn = new Gate();
    const worker = workerOf({ drainTimeoutMs: 20 })
      .handler("echo", gate.handler)
      .handler("stubborn", stubborn.stubborn);
    worker.start();
    const stream = await server.stream();
    stream.accept();
    stream.lease(makeLease(1), makeLease(2, { kind: "stubborn" }));
    await gate.entered.take();
    await stubborn.entered.take();
    const stopping = worker.stop();
    await stream.expect("setSlots");
    const failures = (await stream.reports(2)).map(failureOf);
    assert.deepEqual(
      failures.map(({ message, permanent }) => [message, permanent]),
      [
        ["worker stopped", false],
        ["worker stopped", false],
      ],
    );
    await stream.endOfWorker();
    stream.end();
    await soon(stopping);
    stubborn.open();
    assert.ok(said.some((text) => text === "handlers of tasks 1002 do not end"));
  });

  it("twice is stopping once", async () => {
    const worker = workerOf().handler("echo", () => null);
    worker.start();
    const stream = await server.stream();
    stream.accept();
    await soon(worker.waitReady());
    const both = Promise.all([worker.stop(), worker.stop()]);
    await stream.endOfWorker();
    stream.end();
    await soon(both);
    await worker.stop();
  });

  // Covers R9.
  it("delivers a report that was cut off on a new stream (RR-23, WP-43)", async () => {
    const worker = workerOf().handler("echo", (value) => value);
    worker.start();
    const first = await server.stream();
    first.accept();
    first.lease(makeLease(1));
    await first.reports(1, false);
    const stopping = worker.stop();
    await first.expect("setSlots");
    first.cut();
    const second = await server.stream();
    second.accept({ adopted: [1n] });
    await second.reports(1);
    assert.equal((await second.expect("setSlots")).slots, 0);
    await second.endOfWorker();
    second.end();
    await soon(stopping);
  });

  // Covers R9.
  it("names tasks without a receipt in the log (WP-44)", async () => {
    const worker = workerOf({ drainTimeoutMs: 10 }).handler("echo", (value) => value);
    worker.start();
    const stream = await server.stream();
    stream.accept();
    stream.lease(makeLease(1));
    await stream.reports(1, false);
    const stopping = worker.stop();
    while ((await stream.next()) !== undefined);
    stream.end();
    await soon(stopping);
    assert.ok(said.some((text) => text === "stopped before the server confirmed tasks 1001"));
  });

  it("is at once when it never connected", async () => {
    server.stop();
    const worker = workerOf({ backoff: { initialMs: 5_000 } }).handler("echo", () => null);
    worker.start();
    await soon(worker.stop());
  });

  it("ends the wait for a server that never came", async () => {
    server.stop();
    const worker = workerOf({ backoff: { initialMs: 5_000 } }).handler("echo", () => null);
    worker.start();
    const ready = worker.waitReady();
    await soon(worker.stop());
    await soon(assert.rejects(ready, ClosedError));
  });

  it("follows the signal of run", async () => {
    const ending = new AbortController();
    const worker = workerOf().handler("echo", () => null);
    const run = worker.run({ signal: ending.signal });
    const stream = await server.stream();
    stream.accept();
    await soon(worker.waitReady());
    ending.abort();
    await stream.endOfWorker();
    stream.end();
    await soon(run);
  });

  it("is not begun by a notice of shutdown, which ends readiness only (WP-45)", async () => {
    const gate = new Gate();
    const worker = workerOf().handler("echo", gate.handler);
    await running(worker, async (stream) => {
      stream.lease(makeLease(1));
      await gate.entered.take();
      stream.send({ $case: "shutdown", value: { reason: "restart", notLeader: false } });
      gate.open();
      assert.equal(outputOf((await stream.reports(1))[0]), '"through"');
      assert.equal(worker.isReady, false);
    });
  });
});

describe("servers of version 3", () => {
  it("are spoken to in single messages, without resume", async () => {
    const gate = new Gate();
    const worker = workerOf()
      .handler("echo", (value) => value)
      .handler("wait", gate.handler);
    worker.start();
    const stream = await server.stream();
    const accepted = { protocolVersion: 3, sessionToken: new Uint8Array(0), leaseTtlS: 3 };
    stream.accept(accepted);
    stream.send({ $case: "lease", value: makeLease(1) });
    assert.equal(Buffer.from((await stream.expect("complete")).output).toString(), '"x"');
    stream.send({ $case: "lease", value: makeLease(2, { kind: "wait" }) });
    await gate.entered.take();
    assert.equal((await stream.expect("heartbeat")).lease, 2n);
    stream.send({ $case: "abort", value: { lease: 2n, reason: "asked" } });
    assert.equal((await stream.expect("cancelled")).lease, 2n);
    stream.cut();
    const second = await server.stream();
    assert.equal(second.register.resume, undefined);
    second.accept(accepted);
    await stopped(worker, second);
  });
});

describe("a worker", () => {
  it("has one handler for a kind", () => {
    const worker = workerOf()
      .handler("echo", () => 1)
      .defaultHandler(() => 2);
    assert.throws(() => worker.handler("echo", () => 3), /has a handler already/);
    assert.throws(() => worker.defaultHandler(() => 4), /a default handler already/);
  });

  it("does not start without handlers", () => {
    assert.throws(() => {
      workerOf().start();
    }, /no handler/);
  });

  it("starts once, and again when it has stopped", async () => {
    const worker = workerOf().handler("echo", () => null);
    await assert.rejects(worker.waitReady(), ClosedError);
    worker.start();
    assert.throws(() => {
      worker.start();
    }, ClosedError);
    for (let round = 0; round < 2; round += 1) {
      const stream = await server.stream();
      stream.accept();
      await soon(worker.waitReady());
      await stopped(worker, stream);
      if (round === 0) {
        worker.start();
      }
    }
  });
});
