/** Holds connections to TLS, to certificates that change, and to time limits. */

import assert from "node:assert/strict";
import { copyFileSync, mkdtempSync, rmSync, utimesSync } from "node:fs";
import { type AddressInfo, connect, createServer, type Server, type Socket } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { describe, it, type TestContext } from "node:test";

import { status as Code, type StatusObject } from "@grpc/grpc-js";

import { TaskInfo as WireInfo } from "../src/gen/cronoq/v1/task.js";
import { TasksService } from "../src/gen/cronoq/v1/tasks.js";
import {
  Client,
  ClosedError,
  type ClientOptions,
  type TlsOptions,
  UnavailableError,
  Worker,
} from "../src/index.js";
import { clientSettings } from "../src/options.js";
import { callError, readErrorInfo, statusError } from "../src/status.js";
import { Connection } from "../src/transport.js";
import {
  CERTS,
  Fact,
  QUICK,
  Refusal,
  ScriptedServer,
  serverCredentials,
  soon,
  type WorkStream,
} from "./scripted-server.js";

const TLS: TlsOptions = { ca: `${CERTS}ca.pem` };
const MUTUAL: TlsOptions = { ...TLS, cert: `${CERTS}client.pem`, key: `${CERTS}client.key` };
const INFO = { ...WireInfo.create(), id: 1n, status: 3 };

async function secure(test: TestContext, mutual = false): Promise<ScriptedServer> {
  const server = new ScriptedServer();
  server.address = "localhost"; // Node warns of an address as the name of a TLS server.
  await server.start(0, serverCredentials(mutual));
  server.on("get", () => INFO);
  test.after(() => {
    server.stop();
  });
  return server;
}

async function getOnce(options: ClientOptions): Promise<void> {
  const client = new Client({ backoff: QUICK, ...options });
  try {
    await soon(client.get(1n));
  } finally {
    client.close();
  }
}

function ignore(): void {
  // Not what the test is about.
}

/** Takes a worker's stream to its orderly end. */
async function acceptAndEnd(server: ScriptedServer, worker: Worker): Promise<WorkStream> {
  const stream = await server.stream();
  stream.accept();
  await soon(worker.waitReady());
  const stopping = worker.stop();
  await stream.endOfWorker();
  stream.end();
  await soon(stopping);
  return stream;
}

/** A listener that accepts and never says a word. */
async function silentServer(
  test: TestContext,
): Promise<{ readonly endpoint: string; readonly sockets: Socket[] }> {
  const sockets: Socket[] = [];
  const server: Server = createServer((socket) => {
    socket.on("error", () => undefined);
    sockets.push(socket);
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  test.after(() => {
    sockets.forEach((socket) => socket.destroy());
    server.close();
  });
  const address = server.address();
  assert.ok(typeof address === "object" && address !== null);
  return { endpoint: `127.0.0.1:${address.port}`, sockets };
}

describe("TLS", () => {
  it("trusts the authority that is given, and carries the token", async (test) => {
    const server = await secure(test);
    await getOnce({ endpoint: server.url, tls: TLS, token: "a-token-long-enough" });
    assert.equal(server.metadata[0]?.["authorization"], "Bearer a-token-long-enough");
  });

  it("trusts no strangers, and says that nothing was executed", async (test) => {
    const server = await secure(test);
    await assert.rejects(getOnce({ endpoint: server.url, deadlineMs: 300 }), UnavailableError);
    assert.deepEqual(server.calls, []);
  });

  it("shows a client certificate where it is asked for", async (test) => {
    const server = await secure(test, true);
    await getOnce({ endpoint: server.url, tls: MUTUAL });
    await assert.rejects(
      getOnce({ endpoint: server.url, tls: TLS, deadlineMs: 300 }),
      UnavailableError,
    );
  });

  it("is kept on a redirect (RR-20)", async (test) => {
    const first = await secure(test, true);
    const second = await secure(test, true);
    const trailers = { "cronoq-shard-endpoint": second.url };
    first.refuseStreams(
      new Refusal(Code.FAILED_PRECONDITION, "there", "WRONG_SHARD", {}, trailers),
    );
    const token = "a-token-long-enough";
    const worker = new Worker({ endpoint: first.url, tls: MUTUAL, token, backoff: QUICK });
    worker.handler("a", () => null).start();
    const stream = await acceptAndEnd(second, worker);
    assert.equal(stream.metadata["authorization"], "Bearer a-token-long-enough");
  });

  it("is never given up for a redirect (RR-14)", async (test) => {
    const server = await secure(test);
    const plain = await new ScriptedServer().start();
    test.after(() => {
      plain.stop();
    });
    const trailers = { "cronoq-shard-endpoint": plain.url };
    server.refuseStreams(
      new Refusal(Code.FAILED_PRECONDITION, "there", "WRONG_SHARD", {}, trailers),
    );
    const refused = new Fact<string>();
    const worker = new Worker({
      endpoint: server.url,
      tls: TLS,
      backoff: QUICK,
      insecureRedirectHttp: true,
      logger: { ...console, debug: ignore, info: ignore, warn: ignore },
      onRedirect: (_, why) => {
        refused.tell(why);
      },
    });
    worker.handler("a", () => null).start();
    await acceptAndEnd(server, worker);
    assert.equal(await refused.come(), `redirect from https to ${plain.url}`);
    assert.equal(plain.streamCount, 0);
  });

  it("reads certificate files again when they have changed", async (test) => {
    const folder = mkdtempSync(join(tmpdir(), "cronoq-certs-"));
    test.after(() => {
      rmSync(folder, { recursive: true });
    });
    const ca = join(folder, "ca.pem");
    copyFileSync(`${CERTS}client.pem`, ca); // An authority of nobody.
    const server = await secure(test);
    const client = new Client({
      endpoint: server.url,
      tls: { ca },
      backoff: QUICK,
      deadlineMs: 300,
    });
    test.after(() => {
      client.close();
    });
    await soon(assert.rejects(client.get(1n), UnavailableError));
    copyFileSync(`${CERTS}ca.pem`, ca);
    utimesSync(ca, new Date(), new Date(Date.now() + 5_000));
    await soon(client.get(1n, { callDeadlineMs: 20_000 }));
  });

  it("names a certificate file that is missing", async () => {
    const tls = { ca: "/nowhere/ca.pem" };
    await assert.rejects(
      getOnce({ endpoint: "https://127.0.0.1:1", tls, deadlineMs: 100 }),
      /\/nowhere\/ca\.pem/,
    );
  });
});

describe("connections", () => {
  // Covers R8.
  it("to a server that accepts and says nothing are given up in time (RR-08)", async (test) => {
    const silent = await silentServer(test);
    const server = await new ScriptedServer().start();
    test.after(() => {
      server.stop();
    });
    const trailers = { "cronoq-shard-endpoint": `http://${silent.endpoint}` };
    server.refuseStreams(
      new Refusal(Code.FAILED_PRECONDITION, "there", "WRONG_SHARD", {}, trailers),
    );
    const worker = new Worker({ endpoint: server.endpoint, backoff: QUICK, connectTimeoutMs: 50 });
    worker.handler("a", () => null).start();
    await acceptAndEnd(server, worker);
    assert.equal(silent.sockets.length, 1);
  });

  it("of a client, too: the call is tried anew until its deadline", async (test) => {
    const silent = await silentServer(test);
    const client = new Client({ endpoint: silent.endpoint, backoff: QUICK, connectTimeoutMs: 50 });
    test.after(() => {
      client.close();
    });
    await soon(
      assert.rejects(client.submit("a", 1, { callDeadlineMs: 3_000 }), (error) => {
        assert.ok(error instanceof UnavailableError);
        return true;
      }),
    );
    assert.ok(silent.sockets.length > 1);
  });

  it("of a client are each given up in time, the first and those after it", async (test) => {
    const server = await new ScriptedServer().start();
    server.on("get", () => {
      throw new Refusal(Code.UNAVAILABLE, "standby", "NOT_LEADER");
    });
    const sockets: Socket[] = [];
    // Leads the first connection to the server, and says nothing on the next.
    const front = createServer((socket) => {
      sockets.push(socket.on("error", () => undefined));
      if (sockets.length === 1) {
        const inner = connect(server.port, server.address).on("error", () => undefined);
        socket.pipe(inner).pipe(socket);
      }
    });
    await new Promise<void>((resolve) => front.listen(0, "127.0.0.1", resolve));
    const { port } = front.address() as AddressInfo;
    const settings = clientSettings({ endpoint: `127.0.0.1:${port}`, connectTimeoutMs: 1_000 });
    const connection = new Connection(settings);
    test.after(() => {
      connection.close(new ClosedError("over"));
      server.stop();
      sockets.forEach((socket) => socket.destroy());
      front.close();
    });
    const request = { task: { ref: { $case: "id" as const, value: 1n } } };
    const first = connection.channel();
    do {
      await soon(assert.rejects(first.unary(TasksService.get, request), UnavailableError));
    } while (performance.now() - first.madeAt < 150);
    const second = connection.channel();
    assert.notEqual(second, first);
    await soon(assert.rejects(second.unary(TasksService.get, request), { executed: false }));
  });

  // Covers R14.
  it("to a server that does not lead are left for new ones, not too often", async (test) => {
    const server = await new ScriptedServer().start();
    test.after(() => {
      server.stop();
    });
    let tries = 0;
    server.on("get", () => {
      throw new Refusal(Code.UNAVAILABLE, "standby", "NOT_LEADER");
    });
    const connection = new Connection(clientSettings({ endpoint: server.endpoint }));
    const request = { task: { ref: { $case: "id" as const, value: 1n } } };
    const first = connection.channel();
    const age = (): number => performance.now() - first.madeAt;
    while (connection.channel() === first) {
      tries += 1;
      await soon(assert.rejects(first.unary(TasksService.get, request), UnavailableError));
    }
    assert.ok(age() >= 100);
    assert.ok(tries > 0);
    assert.ok(first.isIdle);
    connection.close(new ClosedError("over"));
  });

  it("work over IPv6", async (test) => {
    const server = new ScriptedServer();
    server.address = "::1";
    await server.start();
    test.after(() => {
      server.stop();
    });
    server.on("get", () => INFO);
    await getOnce({ endpoint: `[::1]:${server.port}` });
  });

  it("tell a refusal from a call that was never sent", async (test) => {
    const server = await new ScriptedServer().start();
    test.after(() => {
      server.stop();
    });
    let refusals = 0;
    server.on("retry", () => {
      refusals += 1;
      throw new Refusal(Code.UNAVAILABLE, "gone");
    });
    const client = new Client({ endpoint: server.endpoint, backoff: QUICK });
    test.after(() => {
      client.close();
    });
    await soon(assert.rejects(client.retry(1n), UnavailableError));
    assert.equal(refusals, 1);
    const { port } = server;
    server.stop();
    const call = client.retry(1n);
    const later = await new ScriptedServer().start(port);
    test.after(() => {
      later.stop();
    });
    later.on("retry", () => ({ retried: true }));
    assert.equal(await soon(call), true);
  });
});

describe("statuses", () => {
  it("that cannot be read say nothing", () => {
    assert.deepEqual(readErrorInfo(Buffer.from([255, 255])), { reason: undefined, details: {} });
    assert.equal(statusError(undefined).message, "the server gave no reason");
  });

  it("of a server that quotes an error of its own say nothing of what was sent", () => {
    const { status } = new Refusal(
      Code.UNAVAILABLE,
      "the store can't be reached: connect ECONNREFUSED",
      "STORE_UNAVAILABLE",
    );
    assert.equal(callError(status as StatusObject, undefined).executed, undefined);
  });
});
