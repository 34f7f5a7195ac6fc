/** Takes README, examples and calls through a real server. */

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { after, before, describe, it } from "node:test";

import {
  Client,
  DependencyUnknownError,
  type StatusEvent,
  TaskFailedError,
  TaskHandle,
  Worker,
} from "../src/index.js";
import { type Advance, startTestServer, type TestServer } from "../src/testing.js";
import { ROOT, runProgram, SKIP_SERVER } from "./real-server.js";
import { Fact, soon } from "./scripted-server.js";

/** Moves a clock, again and again, until the function that it returns is called. */
function keepMoving(server: TestServer, by: number | Advance): () => Promise<void> {
  const stop = new AbortController();
  const moving = (async () => {
    while (!stop.signal.aborted) {
      await server.advance(by);
      await server.settle();
    }
  })();
  return async () => {
    stop.abort();
    await moving;
  };
}

describe("a real server", { skip: SKIP_SERVER }, () => {
  let server: TestServer;
  let client: Client;
  before(async () => {
    server = await soon(startTestServer());
    client = new Client({ endpoint: server.endpoint });
  });
  after(async () => {
    client.close();
    await server.stop();
  });

  async function withWorker(worker: Worker, play: () => Promise<void>): Promise<void> {
    worker.start();
    await soon(worker.waitReady());
    try {
      await play();
    } finally {
      await worker.stop();
    }
  }

  it("runs the program that the README shows", async () => {
    const [, program = ""] =
      /```ts\n([\s\S]*?)```/.exec(readFileSync(`${ROOT}README.md`, "utf8")) ?? [];
    const folder = mkdtempSync(`${ROOT}build/readme-`);
    try {
      writeFileSync(`${folder}/quickstart.mjs`, program);
      const ended = await runProgram(process.execPath, [
        `${folder}/quickstart.mjs`,
        server.endpoint,
      ]);
      assert.deepEqual([ended.stderr, ended.stdout, ended.code], ["", "hello world\n", 0]);
    } finally {
      rmSync(folder, { recursive: true });
    }
  });

  it("runs what README and documentation show", async () => {
    const prints = async (name: string, said: string): Promise<void> => {
      const args = [`build/examples/${name}.js`, server.endpoint];
      const ended = await runProgram(process.execPath, args);
      assert.deepEqual([ended.stdout, ended.code], [said, 0], ended.stderr);
    };
    await prints("threads", "499500\n");
    await prints("traces", "false\n");
    await prints("testing", "tested\n");
    // Its backoffs pass when the clock is moved, by little, since leases run out as well.
    const stopMoving = keepMoving(server, 10);
    try {
      await prints("first-steps", "Ada owes 12.50\nsucceeded in attempt 3\ntrue true\n30\n");
    } finally {
      await stopMoving();
    }
  });

  it("runs the examples", async () => {
    const worker = spawn(process.execPath, ["build/examples/hello-worker.js", server.endpoint], {
      cwd: ROOT,
      stdio: ["ignore", "inherit", "ignore"],
    });
    const ended = once(worker, "exit");
    // The clock stands still: backoffs pass when it is moved.
    const stopMoving = keepMoving(server, 100);
    try {
      const submitted = await runProgram(process.execPath, [
        "build/examples/submit-and-wait.js",
        server.endpoint,
      ]);
      assert.deepEqual(submitted.stdout.split("\n").slice(0, 3), [
        "hello world",
        "the same task: true, known before: true",
        "{ customer: 'Ada', cents: 1250, attempt: 2 }",
      ]);
      assert.match(
        submitted.stdout,
        /328350\nas expected: Bob cannot owe -1 cents\ncancelled while/,
      );
      assert.equal(submitted.code, 0, submitted.stderr);
      const piped = await runProgram(process.execPath, [
        "build/examples/pipeline.js",
        server.endpoint,
      ]);
      assert.deepEqual([piped.stdout, piped.code], ["the sum of ten squares is 285\n", 0]);
    } finally {
      await stopMoving();
      worker.kill("SIGTERM");
      assert.deepEqual(await ended, [0, null]);
    }
  });

  it("admits thousands, and gives every output back", async () => {
    const worker = new Worker({ endpoint: server.endpoint, slots: 64 });
    worker.handler("double", (n) => 2 * (n as number));
    await withWorker(worker, async () => {
      const specs = Array.from({ length: 3_000 }, (_, n) => ({ kind: "double", payload: n }));
      const handles = await client.submitMany(specs);
      assert.ok(handles.every((handle) => handle instanceof TaskHandle));
      const results = await soon(client.waitMany(handles));
      results.forEach((result, n) => {
        assert.equal(client.decode(result), 2 * n);
      });
    });
  });

  it("tells ends as they are, and cancels what runs", async () => {
    const started = new Fact();
    const stopped = new Fact();
    const worker = new Worker({ endpoint: server.endpoint, slots: 4 });
    worker.handler("linger", async (_, attempt) => {
      started.tell(undefined);
      await new Promise((resolve) => {
        attempt.signal.addEventListener("abort", resolve);
      });
      stopped.tell(undefined);
    });
    await withWorker(worker, async () => {
      const task = await client.submit("linger", 1, { key: "lingers", tags: { a: "b" } });
      await started.come();
      assert.equal(await task.cancel(), true);
      await stopped.come();
      await assert.rejects(task.result(), TaskFailedError);
      assert.equal((await client.get("lingers")).status, "cancelled");
      const found: bigint[] = [];
      for await (const { id } of client.list({ tags: { a: "b" } }, { newestFirst: true })) {
        found.push(id);
      }
      assert.deepEqual(found, [task.id]);
      assert.equal(await client.delete(task.id), true);
    });
    await assert.rejects(client.submit("linger", 1, { deps: ["nobody"] }), DependencyUnknownError);
  });

  it("moves its clock only when a test does", async () => {
    const task = await client.submit("later", 1, { delayMs: 3_600_000, expiresInMs: 7_200_000 });
    assert.equal((await client.get(task.id)).status, "scheduled");
    await server.advance({ hours: 1 });
    await server.settle();
    assert.equal((await client.get(task.id)).status, "ready");
    await server.advance(3_600_000);
    await server.settle();
    assert.equal((await task.wait()).status, "missed");
  });

  it("fires schedules, and is seen by those who run it", async () => {
    const name = "hourly";
    await client.putSchedule({ name, cron: "0 * * * *", template: { kind: "tick", payload: 1 } });
    assert.equal((await client.previewSchedule(name, { count: 3 })).length, 3);
    const seen = new Fact<StatusEvent>();
    const ending = new AbortController();
    const watching = (async () => {
      for await (const event of client.watch({ allTransitions: true, signal: ending.signal })) {
        seen.tell(event);
      }
    })();
    const rejected = assert.rejects(watching);
    const stopMoving = keepMoving(server, { minutes: 20 });
    const event = await seen.come();
    await stopMoving();
    ending.abort(new Error("seen"));
    await rejected;
    assert.equal((await client.get(event.id)).schedule, name);
    await client.pauseSchedule(name);
    const { schedule, spec } = await client.schedule(name);
    assert.deepEqual(
      [schedule.paused, schedule.overlap, spec.template.kind],
      [true, "skip", "tick"],
    );
    assert.equal(Buffer.from(spec.template.payload as Uint8Array).toString(), "1");
    assert.equal((await client.schedules()).length, 1);
    assert.equal(await client.removeSchedule(name), true);
    const { pools, totals } = await client.snapshot();
    assert.equal(pools[0]?.name, "default");
    assert.ok(totals.submitted > 3_000);
    await client.pausePool("default");
    assert.equal((await client.pools())[0]?.paused, true);
    await client.resumePool("default");
    assert.deepEqual([...(await client.workers())], []);
    assert.deepEqual((await client.workers()).unavailableShards, []);
  });
});
