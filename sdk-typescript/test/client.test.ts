/** Holds the client to its promises, against a server played from a script. */

import assert from "node:assert/strict";
import { afterEach, beforeEach, describe, it } from "node:test";

import { status as Code } from "@grpc/grpc-js";

import { BackoffSeries } from "../src/calls.js";
import {
  TaskDetail as WireDetail,
  TaskInfo as WireInfo,
  TaskSpec as WireSpec,
  TaskStatus as WireStatus,
} from "../src/gen/cronoq/v1/task.js";
import type {
  BulkRequest,
  ListTasksRequest,
  SubmitManyRequest,
  SubmitRequest,
  TaskResults,
  WaitManyRequest,
  WaitRequest,
  WatchRequest,
} from "../src/gen/cronoq/v1/tasks.js";
import {
  BYTES,
  Client,
  type ClientOptions,
  ClosedError,
  CronoqError,
  CursorUnknownError,
  DeadlineError,
  InvalidFieldError,
  NotLeaderError,
  OutputUnavailableError,
  PayloadError,
  QueueFullError,
  StoppingError,
  TaskFailedError,
  TaskHandle,
  type TaskInfo,
  type TaskSpec,
  TaskUnknownError,
  TooLargeError,
  UnavailableError,
  UnsupportedError,
  WaitTimeoutError,
} from "../src/index.js";
import { clientSettings } from "../src/options.js";
import {
  admitAll,
  Fact,
  makeResult,
  makeStatus,
  Queue,
  QUICK,
  Refusal,
  ScriptedServer,
  soon,
} from "./scripted-server.js";

let server: ScriptedServer;
let client: Client;

beforeEach(async () => {
  server = await new ScriptedServer().start();
  client = clientOf();
});

afterEach(() => {
  client.close();
  server.stop();
});

function clientOf(options: ClientOptions = {}): Client {
  return new Client({ endpoint: server.endpoint, backoff: QUICK, ...options });
}

/** Admits everything, ids counted up over all requests. */
function admit(): void {
  let next = 1n;
  server.on<SubmitManyRequest>("submitMany", (request) => {
    const answer = admitAll(request, next);
    next += BigInt(request.tasks.length);
    return answer;
  });
}

function sizes(): number[] {
  return server.requests<SubmitManyRequest>("submitMany").map(({ tasks }) => tasks.length);
}

describe("submits", () => {
  it("that are concurrent share a request, and each gets its own id", async () => {
    admit();
    const handles = await soon(
      Promise.all(Array.from({ length: 100 }, (_, n) => client.submit("echo", n))),
    );
    assert.deepEqual(sizes(), [100]);
    assert.deepEqual(
      handles.map((handle) => handle.id),
      Array.from({ length: 100 }, (_, n) => BigInt(n + 1)),
    );
  });

  it("are in flight twice at most; what arrives meanwhile gathers", async () => {
    const doors = new Queue<() => void>();
    server.on<SubmitManyRequest>("submitMany", async (request) => {
      await new Promise<void>((resolve) => {
        doors.put(resolve);
      });
      return admitAll(request);
    });
    const calls: Promise<TaskHandle>[] = [client.submit("a")];
    const first = await doors.take();
    calls.push(client.submit("b"));
    const second = await doors.take();
    calls.push(...Array.from({ length: 10 }, () => client.submit("c")));
    first();
    const third = await doors.take();
    second();
    third();
    await soon(Promise.all(calls));
    assert.deepEqual(sizes(), [1, 1, 10]);
  });

  it("are split by count and by size", async () => {
    admit();
    const byCount = clientOf({ maxTasksPerBatch: 3 });
    await soon(Promise.all(Array.from({ length: 7 }, () => byCount.submit("a"))));
    byCount.close();
    assert.deepEqual(sizes(), [3, 3, 1]);
    server.calls.length = 0;
    const bySize = clientOf({ maxMessageBytes: 200_000 });
    await soon(
      Promise.all(Array.from({ length: 5 }, () => bySize.submit("a", Buffer.alloc(40_000)))),
    );
    bySize.close();
    assert.deepEqual(sizes(), [2, 2, 1]);
  });

  it("are refused before they are sent when too large or not encodable", async () => {
    admit();
    await assert.rejects(client.submit("a", Buffer.alloc(4 * 1024 * 1024)), TooLargeError);
    await assert.rejects(client.submit("a", 1n), PayloadError);
    await client.submit("a", Buffer.alloc(4_000_000));
    assert.deepEqual(sizes(), [1]);
  });

  it("are not sent when the caller has gone", async () => {
    admit();
    const leaving = new AbortController();
    const gone = client.submit("a", 1, { signal: leaving.signal });
    const stays = client.submit("b", 2);
    const reason = new Error("no longer wanted");
    leaving.abort(reason);
    await assert.rejects(gone, (error) => error === reason);
    await soon(stays);
    const [request] = server.requests<SubmitManyRequest>("submitMany");
    assert.deepEqual(
      request?.tasks.map((task) => task.kind),
      ["b"],
    );
  });

  it("keep each their own deadline", async () => {
    const door = new Fact();
    server.on<SubmitManyRequest>("submitMany", async (request) => {
      await door.promise;
      return admitAll(request);
    });
    const short = client.submit("a", 1, { callDeadlineMs: 50 });
    const long = client.submit("b", 2);
    await soon(assert.rejects(short, DeadlineError));
    door.tell(undefined);
    assert.equal((await soon(long)).id, 2n);
  });

  it("are told alike that time is up, the first and those after it", async () => {
    server.on("submitMany", () => new Promise(() => undefined));
    for (const kind of ["first", "second"]) {
      await soon(assert.rejects(client.submit(kind, 1, { callDeadlineMs: 30 }), DeadlineError));
    }
  });

  it("get each their own error, which speaks of their task only", async () => {
    server.on<SubmitManyRequest>("submitMany", (request) => {
      const answer = admitAll(request);
      const details = { field: "tasks[1].priority", index: "1" };
      const value = makeStatus(
        Code.INVALID_ARGUMENT,
        "tasks[1].kind: bad",
        "INVALID_FIELD",
        details,
      );
      answer.outcomes[1] = { outcome: { $case: "error", value } };
      return answer;
    });
    const ends = await soon(Promise.allSettled([client.submit("a"), client.submit("b")]));
    assert.equal(ends[0].status, "fulfilled");
    assert.equal(ends[1].status, "rejected");
    const error = ends[1].reason as CronoqError;
    assert.ok(error instanceof InvalidFieldError);
    assert.deepEqual([error.message, error.details], ["kind: bad", { field: "priority" }]);
  });

  it("for a full pool are sent again as calls that park", async () => {
    server.on<SubmitManyRequest>("submitMany", () => ({
      outcomes: [
        {
          outcome: {
            $case: "error",
            value: makeStatus(Code.RESOURCE_EXHAUSTED, "full", "QUEUE_FULL"),
          },
        },
      ],
    }));
    server.on<SubmitRequest>("submit", () => ({ id: 7n, duplicate: false }));
    assert.equal((await soon(client.submit("a", "x"))).id, 7n);
    const [parked] = server.requests<SubmitRequest>("submit");
    assert.deepEqual(Buffer.from(parked?.task?.payload ?? []).toString(), '"x"');
    server.on<SubmitRequest>("submit", () => {
      throw new Refusal(Code.RESOURCE_EXHAUSTED, "full", "QUEUE_FULL");
    });
    await soon(assert.rejects(client.submit("a"), QueueFullError));
  });

  it("that were lost are sent again for members with a key", async () => {
    let lost = 1;
    server.on<SubmitManyRequest>("submitMany", (request) => {
      if (lost-- > 0) {
        throw new Refusal(Code.UNAVAILABLE, "gone");
      }
      return admitAll(request);
    });
    const ends = await soon(
      Promise.allSettled([client.submit("a"), client.submit("b", 1, { key: "k" })]),
    );
    assert.deepEqual(
      ends.map(({ status }) => status),
      ["rejected", "fulfilled"],
    );
    assert.deepEqual(sizes(), [2, 1]);
  });

  it("that were not executed are sent again for all", async () => {
    const reasons = ["NOT_LEADER", "STOPPING"];
    server.on<SubmitManyRequest>("submitMany", (request) => {
      const reason = reasons.shift();
      if (reason !== undefined) {
        throw new Refusal(Code.UNAVAILABLE, "not me", reason);
      }
      return admitAll(request);
    });
    assert.equal((await soon(client.submit("a"))).id, 1n);
    assert.deepEqual(sizes(), [1, 1, 1]);
  });

  it("that never reached a server say why", async () => {
    server.stop();
    const call = client.submit("a", 1, { callDeadlineMs: 2000 });
    await soon(
      assert.rejects(call, (error) => {
        assert.ok(error instanceof UnavailableError);
        assert.match(error.message, /no server answered before the deadline/);
        return true;
      }),
    );
  });

  it("go one by one to an old server", async () => {
    server.on<SubmitRequest>("submit", (request) => ({
      id: request.task?.kind === "a" ? 1n : 2n,
      duplicate: true,
    }));
    const handles = await soon(Promise.all([client.submit("a"), client.submit("b")]));
    assert.deepEqual(
      handles.map(({ duplicate, id }) => [id, duplicate]),
      [
        [1n, true],
        [2n, true],
      ],
    );
  });

  it("of many are admitted or refused one by one, in order", async () => {
    server.on<SubmitManyRequest>("submitMany", (request) => {
      const answer = admitAll(request);
      request.tasks.forEach((task, index) => {
        if (task.kind === "bad") {
          const value = makeStatus(Code.NOT_FOUND, "no such pool", "POOL_UNKNOWN");
          answer.outcomes[index] = { outcome: { $case: "error", value } };
        }
      });
      return answer;
    });
    const many = clientOf({ maxTasksPerBatch: 100 });
    const specs = Array.from({ length: 1_000 }, (_, n) => ({
      kind: n % 10 === 0 ? "bad" : "ok",
      payload: n,
    }));
    const ends = await soon(many.submitMany([...specs, { kind: "ok", payload: 1n }]));
    many.close();
    assert.equal(ends.length, 1_001);
    const refused = ends
      .filter((end) => !(end instanceof TaskHandle))
      .map((end) => end.constructor.name);
    assert.equal(refused.length, 101);
    assert.deepEqual(refused.at(-1), "PayloadError");
    assert.ok(sizes().every((size) => size <= 100));
  });

  it("of a batch are one request, sent again only if all have keys", async () => {
    let lost = 1;
    server.on<{ tasks: WireSpec[] }>("submitBatch", (request) => {
      if (lost-- > 0) {
        throw new Refusal(Code.UNAVAILABLE, "gone");
      }
      return { tasks: request.tasks.map((_, n) => ({ id: BigInt(n + 1), duplicate: false })) };
    });
    await soon(
      assert.rejects(
        client.submitBatch([{ kind: "a", key: "x" }, { kind: "b" }]),
        UnavailableError,
      ),
    );
    lost = 1;
    const handles = await soon(
      client.submitBatch([
        { kind: "a", key: "x" },
        { kind: "b", key: "y" },
      ]),
    );
    assert.deepEqual(
      handles.map(({ id, key }) => [id, key]),
      [
        [1n, "x"],
        [2n, "y"],
      ],
    );
  });
});

describe("what is said about a task", () => {
  async function sent(spec: TaskSpec): Promise<WireSpec> {
    admit();
    await soon(client.submit(spec));
    const [task] = server.requests<SubmitManyRequest>("submitMany").at(-1)?.tasks ?? [];
    assert.ok(task !== undefined);
    return task;
  }

  it("is on the wire, everything", async () => {
    const at = new Date("2030-01-02T03:04:05.678Z");
    const ns = BigInt(at.getTime()) * 1_000_000n;
    const task = await sent({
      kind: "k",
      payload: { a: 1 },
      contentType: "application/x-json",
      pool: "p",
      priority: "high",
      key: "key",
      deadlineInMs: 1_500,
      startAt: at,
      toleranceMs: 250,
      onMiss: "skip",
      durationHintMs: 100,
      timeoutMs: 30_000,
      retry: {
        maxAttempts: 5,
        initialBackoffMs: 100,
        multiplier: 3,
        maxBackoffMs: 1_000,
        jitter: false,
      },
      deps: [1n, "other", { id: 3n }, { target: 4n, cond: "on_failure" }],
      resources: { gpu: 2 },
      tags: { a: "b", ["__proto__"]: "c" },
      labels: { zone: "" },
      tenant: "t",
      traceContext: { traceparent: "00" },
      notBefore: ns + 1n,
      expiresInMs: 0,
    });
    assert.deepEqual(
      { ...task, payload: Buffer.from(task.payload).toString() },
      {
        ...WireSpec.create(),
        payload: '{"a":1}',
        contentType: "application/x-json",
        kind: "k",
        pool: "p",
        priority: 2,
        key: "key",
        deadlineInS: 1.5,
        startUnixNs: ns,
        toleranceS: 0.25,
        onMiss: 2,
        durationHintS: 0.1,
        timeoutS: 30,
        retry: {
          maxAttempts: 5,
          initialBackoffS: 0.1,
          multiplier: 3,
          maxBackoffS: 1,
          jitter: false,
        },
        deps: [
          { target: { ref: { $case: "id", value: 1n } }, cond: 0 },
          { target: { ref: { $case: "key", value: "other" } }, cond: 0 },
          { target: { ref: { $case: "id", value: 3n } }, cond: 0 },
          { target: { ref: { $case: "id", value: 4n } }, cond: 3 },
        ],
        resources: new Map([["gpu", 2]]),
        tags: new Map([
          ["a", "b"],
          ["__proto__", "c"],
        ]),
        labels: new Map([["zone", ""]]),
        tenant: "t",
        traceContext: new Map([["traceparent", "00"]]),
        notBeforeUnixNs: ns + 1n,
        expiresInS: 0,
      },
    );
  });

  it("is on the wire only if it is said", async () => {
    assert.deepEqual(await sent({ kind: "k" }), {
      ...WireSpec.create(),
      kind: "k",
    });
    const withNull = await sent({ payload: null });
    assert.equal(Buffer.from(withNull.payload).toString(), "null");
    const retried = await sent({ retry: {} });
    assert.deepEqual(retried.retry?.jitter, true);
  });

  for (const [what, spec] of [
    ["an id that is no 64 bits", { deps: [1n << 64n] }],
    ["an id below zero", { deps: [-1n] }],
    ["an instant beyond 64 bits", { startAt: 1n << 63n }],
    ["a date that is none", { startAt: new Date(NaN) }],
    ["a duration that is none", { delayMs: NaN }],
    ["half an attempt", { retry: { maxAttempts: 1.5 } }],
    ["half a permit", { resources: { gpu: 0.5 } }],
    ["a class there is not", { priority: "urgent" }],
    ["a tag that is a number", { tags: { a: 1 } }],
  ] as [string, unknown][]) {
    it(`is refused if the wire cannot hold it: ${what}`, async () => {
      await assert.rejects(client.submit({ kind: "k", ...(spec as TaskSpec) }), InvalidFieldError);
    });
  }

  it("has the trace context of the client's option, unless it has its own", async () => {
    client.close();
    client = clientOf({ traceContext: () => ({ traceparent: "now" }) });
    assert.deepEqual([...(await sent({ kind: "k" })).traceContext], [["traceparent", "now"]]);
    assert.deepEqual([...(await sent({ traceContext: {} })).traceContext], []);
  });

  it("has the trace context that the hook sets, which is told how each submission ends", async () => {
    client.close();
    const told: unknown[][] = [];
    client = clientOf({
      onSubmit: (submission) => {
        submission.traceContext = { traceparent: "span" };
        return (error) => {
          const { operation, taskIds, tasks } = submission;
          told.push([operation, tasks.length, taskIds.length, error instanceof CronoqError]);
        };
      },
    });
    assert.deepEqual([...(await sent({ kind: "k" })).traceContext], [["traceparent", "span"]]);
    assert.deepEqual([...(await sent({ traceContext: {} })).traceContext], []);
    await client.submitMany([{ kind: "a" }, { kind: "b" }]);
    await assert.rejects(client.submitBatch([{ kind: "a" }]));
    assert.deepEqual(told, [
      ["submit", 1, 1, false],
      ["submit", 1, 1, false],
      ["submit_many", 2, 2, false],
      ["submit_batch", 1, 0, true],
    ]);
  });
});

/** Answers waits from what has ended so far. */
class Results {
  readonly ended = new Map<bigint, string>();
  readonly asked: bigint[][] = [];
  readonly opened = new Queue<Queue<TaskResults | undefined>>();

  play(): void {
    server.on<WaitManyRequest>("waitMany", (request) => {
      this.asked.push(request.ids);
      const open = new Queue<TaskResults | undefined>();
      this.opened.put(open);
      return this.#stream(open);
    });
  }

  async *#stream(open: Queue<TaskResults | undefined>): AsyncGenerator<TaskResults> {
    for (;;) {
      const message = await open.take();
      if (message === undefined) {
        throw new Refusal(Code.UNAVAILABLE, "cut");
      }
      yield message;
      if (message.results.length === 0 && message.errors.length === 0) {
        return;
      }
    }
  }
}

function ended(...ids: bigint[]): TaskResults {
  return { results: ids.map((id) => makeResult(id, String(id))), errors: [] };
}

describe("waits", () => {
  let results: Results;
  beforeEach(() => {
    results = new Results();
    results.play();
  });

  it("that are concurrent share a stream", async () => {
    const waits = Promise.all([3n, 1n, 2n, 1n].map((id) => client.result(id)));
    const stream = await results.opened.take();
    stream.put(ended(1n));
    stream.put(ended(2n, 3n));
    assert.deepEqual(await soon(waits), [3, 1, 2, 1]);
    assert.deepEqual(results.asked, [[3n, 1n, 2n]]);
  });

  it("of any number are served by few streams", async () => {
    const waits: Promise<unknown>[] = [];
    const streams: Queue<TaskResults | undefined>[] = [];
    for (let id = 1n; id <= 4n; id += 1n) {
      waits.push(client.result(id));
      streams.push(await results.opened.take());
    }
    for (let id = 5n; id <= 50n; id += 1n) {
      waits.push(client.result(id));
    }
    const joined = await results.opened.take();
    assert.equal(results.asked.length, 5);
    assert.equal(results.asked[4]?.length, 47);
    streams.forEach((stream, n) => {
      stream.put(ended(BigInt(n + 1)));
    });
    joined.put(ended(...results.asked[4]));
    await soon(Promise.all(waits));
  });

  it("survive a broken stream, and the end of a slice", async () => {
    const wait = client.result(1n);
    (await results.opened.take()).put(undefined);
    (await results.opened.take()).put({ results: [], errors: [] });
    (await results.opened.take()).put(ended(1n));
    assert.equal(await soon(wait), 1);
  });

  it("for an unknown task fail alone", async () => {
    const bad = client.wait(1n);
    const good = client.wait(2n);
    const stream = await results.opened.take();
    const status = makeStatus(Code.NOT_FOUND, "no such task", "TASK_UNKNOWN");
    stream.put({ results: [], errors: [{ task: { ref: { $case: "id", value: 1n } }, status }] });
    await soon(assert.rejects(bad, TaskUnknownError));
    stream.put(ended(2n));
    await soon(good);
  });

  it("end when their time is up, or by their signal", async () => {
    await soon(assert.rejects(client.wait(1n, { timeoutMs: 20 }), WaitTimeoutError));
    await soon(assert.rejects(client.waitMany([1n, 2n], { timeoutMs: 20 }), WaitTimeoutError));
    const ending = new AbortController();
    const wait = client.wait(1n, { signal: ending.signal });
    ending.abort(new Error("enough"));
    await soon(assert.rejects(wait, /enough/));
  });

  it("by key find the task first", async () => {
    server.on("get", () => ({ ...WireInfo.create(), id: 9n, status: WireStatus.READY }));
    const wait = client.wait("k");
    (await results.opened.take()).put(ended(9n));
    assert.equal((await soon(wait)).id, 9n);
  });

  it("by key hear a signal that comes while the key is looked up", async () => {
    server.on("get", () => ({ ...WireInfo.create(), id: 9n, status: WireStatus.READY }));
    const ending = new AbortController();
    const get = client.get.bind(client);
    client.get = async (...asked) => {
      const found = await get(...asked);
      ending.abort(new Error("enough"));
      return found;
    };
    await soon(assert.rejects(client.wait("k", { signal: ending.signal }), /enough/));
  });

  it("for many come back in order", async () => {
    const wait = client.waitMany([3n, { id: 1n }]);
    (await results.opened.take()).put(ended(1n, 3n));
    assert.deepEqual(
      (await soon(wait)).map(({ id }) => id),
      [3n, 1n],
    );
  });

  it("go task by task to an old server", async () => {
    server.answers.delete("waitMany");
    let slices = 1;
    server.on<WaitRequest>("wait", (request) => {
      if (slices-- > 0) {
        throw new Refusal(Code.DEADLINE_EXCEEDED, "not yet", "WAIT_TIMEOUT");
      }
      const ref = request.task?.ref;
      return makeResult(ref?.$case === "id" ? ref.value : 0n, '"old"');
    });
    assert.deepEqual(await soon(Promise.all([client.result(1n), client.result(2n)])), [
      "old",
      "old",
    ]);
  });

  it("go task by task to an old server, however many they are", async () => {
    server.answers.delete("waitMany");
    server.on("wait", () => makeResult(1n));
    await soon(client.wait(1n));
    const asked = new Fact();
    server.on("wait", () => {
      asked.tell(undefined);
      return new Promise(() => undefined);
    });
    const ids = Array.from({ length: 150_000 }, (_, index) => BigInt(index + 1));
    const waits = client.waitMany(ids);
    await asked.come();
    client.close();
    await soon(assert.rejects(waits, ClosedError));
  });

  it("for a task without success are an error that tells how it ended", async () => {
    const wait = client.result(1n);
    const failed = { ...makeResult(1n), status: WireStatus.DEAD_LETTERED, message: "no luck" };
    (await results.opened.take()).put({ results: [{ ...failed, output: undefined }], errors: [] });
    await soon(
      assert.rejects(wait, (error) => {
        assert.ok(error instanceof TaskFailedError);
        assert.deepEqual(
          [error.taskId, error.status, error.taskMessage],
          [1n, "dead_lettered", "no luck"],
        );
        return true;
      }),
    );
  });

  it("for an output that is gone are an error", async () => {
    const wait = client.result(1n);
    const gone = { ...makeResult(1n), output: undefined, outputAvailable: false };
    (await results.opened.take()).put({ results: [gone], errors: [] });
    await soon(assert.rejects(wait, OutputUnavailableError));
  });

  it("give an output as it is wanted", async () => {
    const wait = client.wait(1n);
    (await results.opened.take()).put(ended(1n));
    const result = await soon(wait);
    assert.equal(client.decode(result), 1);
    assert.equal(Buffer.from(client.decode(result, BYTES)).toString(), "1");
    const strings = {
      parse(value: unknown): string {
        if (typeof value !== "string") {
          throw new TypeError("no string");
        }
        return value;
      },
    };
    assert.throws(() => client.decode(result, strings), PayloadError);
  });
});

describe("calls", () => {
  const info = { ...WireInfo.create(), id: 5n, status: WireStatus.READY, kind: "k" };

  it("that change nothing twice are repeated, others are not", async () => {
    let lost = 2;
    const lose = (answer: unknown) => (): unknown => {
      if (lost-- > 0) {
        throw new Refusal(Code.UNAVAILABLE, "gone");
      }
      return answer;
    };
    server.on("get", lose(info));
    assert.equal((await soon(client.get(5n))).kind, "k");
    lost = 1;
    server.on("cancel", lose({ cancelled: true }));
    assert.equal(await soon(client.cancel("k")), true);
    lost = 1;
    server.on("retry", lose({ retried: true }));
    await soon(assert.rejects(client.retry(5n), UnavailableError));
    lost = 1;
    server.on("triggerRecurring", lose({ taskId: 1n }));
    await soon(assert.rejects(client.triggerSchedule("s"), UnavailableError));
    lost = 1;
    server.on("bulk", lose({ matched: 1n, changed: 1n, nextAfter: 0n, unavailableShards: [] }));
    await soon(assert.rejects(client.bulk("cancel", {}), UnavailableError));
  });

  it("that were not executed are repeated, whatever they do", async () => {
    let standby = 3;
    server.on("retry", () => {
      if (standby-- > 0) {
        throw new Refusal(Code.UNAVAILABLE, "standby", "NOT_LEADER");
      }
      return { retried: true };
    });
    assert.equal(await soon(client.retry(5n)), true);
  });

  it("have a deadline", async () => {
    server.on("get", () => new Promise(() => undefined));
    await soon(assert.rejects(client.get(5n, { callDeadlineMs: 30 }), DeadlineError));
    const ending = new AbortController();
    const call = client.get(5n, { signal: ending.signal });
    ending.abort(new Error("enough"));
    await soon(assert.rejects(call, /enough/));
  });

  it("that the server does not know are unsupported", async () => {
    await soon(assert.rejects(client.detail(5n), UnsupportedError));
  });

  it("fail with reason and details", async () => {
    server.on("get", () => {
      throw new Refusal(
        Code.NOT_FOUND,
        "no such task",
        "TASK_UNKNOWN",
        { id: "5" },
        { "cronoq-shard": "b" },
      );
    });
    await soon(
      assert.rejects(client.get(5n), (error) => {
        assert.ok(error instanceof TaskUnknownError);
        assert.deepEqual(
          [error.reason, error.message, error.details],
          ["task_unknown", "no such task", { id: "5", "cronoq-shard": "b" }],
        );
        return true;
      }),
    );
  });

  it("carry the token on plain connections", async () => {
    client.close();
    client = clientOf({ token: "a-token-long-enough" });
    server.on("get", () => info);
    await soon(client.get(5n));
    assert.equal(server.metadata[0]?.["authorization"], "Bearer a-token-long-enough");
  });

  it("of a closed client are refused, and those under way end", async () => {
    server.on("get", () => new Promise(() => undefined));
    const call = client.get(5n);
    const wait = client.wait(1n);
    const submit = client.submit("a");
    client.close();
    await soon(assert.rejects(call, ClosedError));
    await soon(assert.rejects(wait, ClosedError));
    await soon(assert.rejects(submit, ClosedError));
    await assert.rejects(client.get(5n), ClosedError);
    await assert.rejects(client.submit("a"), ClosedError);
    assert.throws(() => client.watch(), ClosedError);
    client.close();
  });

  it("end with the client, however far they are", async () => {
    const heard = new Queue<string>();
    for (const method of ["get", "submitMany", "listTasks"]) {
      server.on(method, () => {
        heard.put(method);
        return new Promise(() => undefined);
      });
    }
    for (const method of ["waitMany", "watchBatches"]) {
      server.on(method, async function* () {
        yield { results: [], errors: [], events: [], cursor: Buffer.from("c") };
        heard.put(method);
        await new Promise(() => undefined);
      });
    }
    const calls = [
      client.get(5n),
      client.submit("a"),
      client.list()[Symbol.asyncIterator]().next(),
      client.wait(1n),
      client.watch().next(),
    ];
    const found = new Set<string>();
    while (found.size < calls.length) {
      found.add(await heard.take());
    }
    client.close();
    for (const call of calls) {
      await soon(assert.rejects(call, ClosedError));
    }
  });

  it("describe a task whole", async () => {
    server.on("describe", () => ({
      ...WireDetail.create(),
      info,
      spec: { ...WireSpec.create(), kind: "k", payload: Buffer.from("1"), startInS: 1.1 },
      attempts: [
        {
          number: 1,
          worker: "w",
          startedUnixNs: 1_000_000n,
          endedUnixNs: undefined,
          outcome: "failed",
          message: "m",
        },
      ],
      parents: [{ task: { ref: { $case: "key", value: "p" } }, cond: 0, status: 0 }],
      children: [7n],
    }));
    const found = await soon(client.detail(5n));
    assert.deepEqual([found.task.id, found.children], [5n, [7n]]);
    assert.deepEqual([found.spec.startInMs, found.spec.priority], [1_100, undefined]);
    assert.deepEqual(found.parents, [{ target: "p", cond: "on_success", status: undefined }]);
    assert.deepEqual(found.attempts[0]?.startedAt, new Date(1));
  });

  it("list pages until the end, however short", async () => {
    server.on<ListTasksRequest>("listTasks", (request) => {
      const page = Number(request.after);
      const tasks = page === 1 ? [] : [{ ...info, id: BigInt(page + 10) }];
      const unavailableShards = page === 2 ? ["b"] : [];
      return { tasks, nextAfter: page < 2 ? BigInt(page + 1) : 0n, unavailableShards };
    });
    const pages = client.list({ statuses: ["ready"], tags: { a: "b" } }, { pageSize: 1 });
    const found: TaskInfo[] = [];
    for await (const task of pages) {
      found.push(task);
    }
    assert.deepEqual(
      found.map(({ id }) => id),
      [10n, 12n],
    );
    assert.deepEqual([...pages.unavailableShards], ["b"]);
    const [first] = server.requests<ListTasksRequest>("listTasks");
    assert.deepEqual([first?.statuses, first?.limit, first?.tags], [[3], 1, new Map([["a", "b"]])]);
  });

  it("in bulk send their filter", async () => {
    server.on("bulk", () => ({
      matched: 2n,
      changed: 1n,
      nextAfter: 9n,
      unavailableShards: ["b"],
    }));
    const outcome = await soon(client.bulk("retry", { kinds: ["k"] }, { limit: 5, after: 3n }));
    assert.deepEqual(outcome, { matched: 2, changed: 1, nextAfter: 9n, unavailableShards: ["b"] });
    const [request] = server.requests<BulkRequest>("bulk");
    assert.deepEqual([request?.action, request?.limit, request?.after], [2, 5, 3n]);
    assert.deepEqual(request?.filter?.kinds, ["k"]);
  });

  it("ask a standby again soon", () => {
    const series = new BackoffSeries(clientSettings({ backoff: { initialMs: 100 } }));
    for (const answer of [new NotLeaderError(), new StoppingError()]) {
      const delays = Array.from({ length: 50 }, () => series.nextDelay(answer));
      assert.ok(Math.max(...delays) <= 400);
    }
  });
});

describe("a watch", () => {
  function event(id: bigint, cursor: string): object {
    return {
      id,
      pool: "p",
      key: "",
      status: 6,
      attempt: 1,
      atUnixNs: 1_000_000n,
      message: "",
      cursor: Buffer.from(cursor),
      progress: undefined,
    };
  }

  it("resumes after the last event that its reader took", async () => {
    let round = 0;
    server.on<WatchRequest>("watchBatches", async function* () {
      await Promise.resolve();
      round += 1;
      if (round === 1) {
        yield { events: [], cursor: Buffer.from("c0") };
        yield { events: [event(1n, "c1"), event(2n, "c2")], cursor: Buffer.from("c2") };
        throw new Refusal(Code.UNAVAILABLE, "cut");
      }
      yield { events: [event(3n, "c3")], cursor: Buffer.from("c3") };
    });
    const seen: bigint[] = [];
    for await (const { id } of client.watch({ pools: ["p"] })) {
      seen.push(id);
      if (seen.length === 3) {
        break;
      }
    }
    assert.deepEqual(seen, [1n, 2n, 3n]);
    const cursors = server
      .requests<WatchRequest>("watchBatches")
      .map(({ afterCursor }) => Buffer.from(afterCursor).toString());
    assert.deepEqual(cursors.slice(0, 2), ["", "c2"]);
  });

  it("that was too slow resumes, and one without a cursor says so", async () => {
    let round = 0;
    server.on<WatchRequest>("watchBatches", async function* () {
      await Promise.resolve();
      round += 1;
      if (round === 1) {
        yield { events: [event(1n, "c1")], cursor: Buffer.from("c1") };
        throw new Refusal(Code.DATA_LOSS, "too slow", "WATCH_TOO_SLOW");
      }
      if (round === 2) {
        yield { events: [event(2n, "c2")], cursor: Buffer.from("c2") };
      }
      throw new Refusal(Code.DATA_LOSS, "too old", "CURSOR_UNKNOWN");
    });
    const seen: bigint[] = [];
    await soon(
      assert.rejects(async () => {
        for await (const { id } of client.watch()) {
          seen.push(id);
        }
      }, CursorUnknownError),
    );
    assert.deepEqual(seen, [1n, 2n]);
  });

  it("of an old server reads event by event", async () => {
    server.on<WatchRequest>("watch", async function* () {
      await Promise.resolve();
      yield event(4n, "");
    });
    for await (const { at, id } of client.watch()) {
      assert.deepEqual([id, at], [4n, new Date(1)]);
      break;
    }
  });

  it("ends by its signal", async () => {
    const open = new Fact();
    server.on<WatchRequest>("watchBatches", async function* () {
      open.tell(undefined);
      yield { events: [event(1n, "c1")], cursor: Buffer.from("c1") };
      await new Promise(() => undefined);
    });
    const ending = new AbortController();
    const reading = (async () => {
      for await (const { id } of client.watch({ signal: ending.signal })) {
        assert.equal(id, 1n);
        ending.abort(new Error("enough"));
      }
    })();
    await soon(assert.rejects(reading, /enough/));
    await open.come();
  });
});
