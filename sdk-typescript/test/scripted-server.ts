/**
 * Plays a cronoq server from a script: each test decides every answer, and when it is given. What a
 * test does not script is answered with UNIMPLEMENTED, as an old server would.
 */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";

import { BinaryWriter } from "@bufbuild/protobuf/wire";
import {
  Metadata,
  Server,
  ServerCredentials,
  type ServerDuplexStream,
  type ServerUnaryCall,
  type ServerWritableStream,
  status as Code,
  type StatusObject,
  type UntypedServiceImplementation,
} from "@grpc/grpc-js";

import { AdminService } from "../src/gen/cronoq/v1/admin.js";
import {
  type SubmitManyRequest,
  type SubmitManyResponse,
  TasksService,
} from "../src/gen/cronoq/v1/tasks.js";
import {
  Lease,
  Register,
  Registered,
  type Report,
  type ServerMessage,
  type WorkerMessage,
  WorkersService,
} from "../src/gen/cronoq/v1/workers.js";
import { TaskResult, TaskStatus } from "../src/gen/cronoq/v1/task.js";
import { Status } from "../src/gen/google/rpc/status.js";
import type { Backoff } from "../src/index.js";

// No answer takes this long; it only keeps a wrong program from waiting for ever.
export const PATIENCE_MS = 60_000;
export const QUICK: Backoff = { initialMs: 1, maximumMs: 10 };
export const CERTS = fileURLToPath(new URL("../../../sdk-python/tests/certs/", import.meta.url));

/** Waits for a promise, as long as patience lasts. */
export async function soon<T>(
  promise: Promise<T>,
  what = "what a test waits for",
  patienceMs = PATIENCE_MS,
): Promise<T> {
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<never>((_, reject) => {
    timer = setTimeout(() => {
      reject(new Error(`${what} did not come`));
    }, patienceMs);
  });
  try {
    return await Promise.race([promise, late]);
  } finally {
    clearTimeout(timer);
  }
}

/** A promise that a test keeps. */
export class Fact<T = undefined> {
  readonly promise: Promise<T>;
  tell!: (value: T) => void;

  constructor() {
    this.promise = new Promise((resolve) => {
      this.tell = resolve;
    });
  }

  come(): Promise<T> {
    return soon(this.promise);
  }
}

/** Items in order, for whoever comes to take them. */
export class Queue<T> {
  readonly items: T[] = [];
  readonly #takers: ((item: T) => void)[] = [];

  put(item: T): void {
    const taker = this.#takers.shift();
    if (taker === undefined) {
      this.items.push(item);
    } else {
      taker(item);
    }
  }

  take(): Promise<T> {
    const item = this.items.shift();
    return item === undefined
      ? soon(new Promise<T>((resolve) => this.#takers.push(resolve)))
      : Promise.resolve(item);
  }
}

/** What a scripted answer throws to refuse a call. */
export class Refusal extends Error {
  constructor(
    readonly code: Code,
    message = "refused",
    readonly reason = "",
    readonly details: Readonly<Record<string, string>> = {},
    readonly trailers: Readonly<Record<string, string>> = {},
  ) {
    super(message);
  }

  get status(): Partial<StatusObject> {
    const metadata = new Metadata();
    for (const [key, value] of Object.entries(this.trailers)) {
      metadata.set(key, value);
    }
    if (this.reason !== "") {
      const status = makeStatus(this.code, this.message, this.reason, this.details);
      metadata.set("grpc-status-details-bin", Buffer.from(Status.encode(status).finish()));
    }
    return { code: this.code, details: this.message, metadata };
  }
}

/** A google.rpc.Status as servers put it into details and outcomes. */
export function makeStatus(
  code: Code,
  message: string,
  reason: string,
  details: Readonly<Record<string, string>> = {},
): Status {
  const info = new BinaryWriter().uint32(10).string(reason).uint32(18).string("cronoq");
  for (const [key, value] of Object.entries(details)) {
    info.uint32(26).fork().uint32(10).string(key).uint32(18).string(value).join();
  }
  const typeUrl = "type.googleapis.com/google.rpc.ErrorInfo";
  return { code, message, details: [{ typeUrl, value: info.finish() }] };
}

type Case<M extends { message: { $case: string; value: unknown } | undefined }> = NonNullable<
  M["message"]
>;

type WorkerCase = Case<WorkerMessage>;
type WorkerValues = { [C in WorkerCase as C["$case"]]: C["value"] };

/** One worker's stream, seen from the server. */
export class WorkStream {
  readonly #call: ServerDuplexStream<WorkerMessage, ServerMessage>;
  readonly metadata: Record<string, string | Buffer>;
  readonly inbox = new Queue<WorkerMessage | undefined>();
  register: Register = Register.create();
  isHalfClosed = false;
  lastNumber = 0n;

  constructor(call: ServerDuplexStream<WorkerMessage, ServerMessage>) {
    this.#call = call;
    this.metadata = call.metadata.getMap();
    call.on("data", (message: WorkerMessage) => {
      this.inbox.put(message);
    });
    call.on("end", () => {
      this.isHalfClosed = true;
      this.inbox.put(undefined);
    });
    call.on("cancelled", () => {
      this.inbox.put(undefined);
    });
    call.on("error", () => undefined);
  }

  /** The next message; undefined when the worker ended its side. */
  next(): Promise<WorkerMessage | undefined> {
    return this.inbox.take();
  }

  /** The next message of one kind; heartbeats before it are passed over. */
  async expect<K extends keyof WorkerValues>(kind: K): Promise<WorkerValues[K]> {
    for (;;) {
      const content = (await this.next())?.message;
      assert.ok(content !== undefined, `stream ended before ${kind}`);
      if (content.$case === kind) {
        return content.value as WorkerValues[K];
      }
      assert.match(content.$case, /^heartbeats?$/, `${content.$case} came before ${kind}`);
    }
  }

  /** So many reports, over as many messages as they come in, with receipts unless told. */
  async reports(count: number, confirm = true): Promise<Report[]> {
    const found: Report[] = [];
    while (found.length < count) {
      const message = await this.expect("reports");
      found.push(...message.reports);
      this.lastNumber = message.number;
      if (confirm) {
        this.receipt(message.number);
      }
    }
    return found;
  }

  /** Waits until the worker has ended its side, and confirms what comes before. */
  async endOfWorker(): Promise<void> {
    let message = await this.next();
    while (message !== undefined) {
      if (message.message?.$case === "reports") {
        this.receipt(message.message.value.number);
      }
      message = await this.next();
    }
  }

  /** Accepts the worker as a server of this version with the defaults of the contract. */
  accept(fields: Partial<Registered> = {}): void {
    const value: Registered = {
      ...Registered.create(),
      workerId: 1n,
      slots: this.register.slots,
      protocolVersion: 4,
      maxMessageBytes: 4 * 1024 * 1024,
      leaseTtlS: 30,
      sessionToken: Buffer.from("token-1"),
      ...fields,
    };
    this.send({ $case: "registered", value });
  }

  send(message: Case<ServerMessage>): void {
    this.#call.write({ message });
  }

  /** Sends leases as one batch. */
  lease(...leases: Lease[]): void {
    this.send({ $case: "leases", value: { leases } });
  }

  abort(lease: bigint, reason = ""): void {
    this.send({ $case: "aborts", value: { aborts: [{ lease, reason }] } });
  }

  /** Confirms reports and heartbeats. */
  receipt(reports: bigint, heartbeats = 0n): void {
    this.send({ $case: "receipt", value: { reports, heartbeats } });
  }

  /** Ends the stream, in order or with an error. */
  end(refusal?: Refusal): void {
    if (refusal === undefined) {
      this.#call.end();
    } else {
      this.#call.emit("error", refusal.status);
    }
  }

  /** Breaks the stream. */
  cut(): void {
    this.end(new Refusal(Code.UNAVAILABLE, "cut"));
  }
}

/** A lease with valid defaults. */
export function makeLease(lease: number, fields: Partial<Lease> = {}): Lease {
  return {
    ...Lease.create(),
    lease: BigInt(lease),
    taskId: BigInt(1000 + lease),
    attempt: 1,
    kind: "echo",
    payload: Buffer.from('"x"'),
    contentType: "application/json",
    pool: "default",
    ...fields,
  };
}

/** A successful result. */
export function makeResult(id: bigint, output = '"done"'): TaskResult {
  return {
    ...TaskResult.create(),
    id,
    status: TaskStatus.SUCCEEDED,
    output: Buffer.from(output),
    outputAvailable: true,
    contentType: "application/json",
  };
}

/** An answer to SubmitMany that admits every task, with ids from `first`. */
export function admitAll(request: SubmitManyRequest, first = 1n): SubmitManyResponse {
  return {
    outcomes: request.tasks.map((_, index) => ({
      outcome: {
        $case: "response",
        value: { id: first + BigInt(index), duplicate: false, result: undefined },
      },
    })),
  };
}

type Answer = (request: never) => unknown;
type StreamAnswer = (request: never) => AsyncIterable<unknown> | Iterable<unknown>;

/** A listener on loopback whose answers a test sets. */
export class ScriptedServer {
  #server: Server | undefined;
  #isSecure = false;
  address = "127.0.0.1";
  port = 0;
  readonly answers = new Map<string, Answer>();
  readonly calls: { readonly method: string; readonly request: unknown }[] = [];
  readonly metadata: Record<string, string | Buffer>[] = [];
  readonly refusals: Refusal[] = [];
  readonly #streams = new Queue<WorkStream>();
  streamCount = 0;

  /** Listens, on the given port or a free one. */
  async start(port = 0, credentials?: ServerCredentials): Promise<this> {
    this.#isSecure = credentials !== undefined;
    const server = new Server({
      "grpc.max_receive_message_length": -1,
      "grpc.max_send_message_length": -1,
      "grpc.so_reuseport": 0,
    });
    this.#server = server;
    for (const service of [TasksService, AdminService, WorkersService]) {
      server.addService(service, this.#implementation(service));
    }
    this.port = await new Promise<number>((resolve, reject) => {
      const address = this.address.includes(":") ? `[${this.address}]` : this.address;
      server.bindAsync(
        `${address}:${port}`,
        credentials ?? ServerCredentials.createInsecure(),
        (error, bound) => {
          if (error === null) {
            resolve(bound);
          } else {
            reject(error);
          }
        },
      );
    });
    return this;
  }

  /** Closes the port and every connection. */
  stop(): void {
    this.#server?.forceShutdown();
    this.#server = undefined;
  }

  get endpoint(): string {
    return `${this.address}:${this.port}`;
  }

  /** Where it listens, as redirects name it. */
  get url(): string {
    return `${this.#isSecure ? "https" : "http"}://${this.endpoint}`;
  }

  /** Sets the answer to a method, by its name. */
  // eslint-disable-next-line @typescript-eslint/no-unnecessary-type-parameters -- says what comes
  on<Request>(method: string, answer: (request: Request) => unknown): void {
    this.answers.set(method, answer);
  }

  /** The requests of one method so far. */

  requests<Request>(method: string): Request[] {
    return this.calls
      .filter((call) => call.method === method)
      .map((call) => call.request as Request);
  }

  /** The next worker's stream, its registration read. */
  async stream(): Promise<WorkStream> {
    const stream = await this.#streams.take();
    stream.register = await stream.expect("register");
    return stream;
  }

  /** Refuses the next streams so, one by one, before any other is handed out. */
  refuseStreams(...refusals: Refusal[]): void {
    this.refusals.push(...refusals);
  }

  #implementation(service: Readonly<Record<string, unknown>>): UntypedServiceImplementation {
    const handlers: Record<string, unknown> = {};
    for (const [name, definition] of Object.entries(service)) {
      const { requestStream, responseStream } = definition as {
        requestStream: boolean;
        responseStream: boolean;
      };
      handlers[name] = requestStream
        ? this.#work.bind(this)
        : responseStream
          ? this.#streaming(name)
          : this.#unary(name);
    }
    return handlers as UntypedServiceImplementation;
  }

  #note(method: string, call: { request: unknown; metadata: Metadata }): Answer {
    this.calls.push({ method, request: call.request });
    this.metadata.push(call.metadata.getMap());
    const answer = this.answers.get(method);
    if (answer === undefined) {
      throw new Refusal(Code.UNIMPLEMENTED, `${method} is not known here`);
    }
    return answer;
  }

  #unary(method: string) {
    return (
      call: ServerUnaryCall<unknown, unknown>,
      reply: (error: Partial<StatusObject> | null, answer?: unknown) => void,
    ): void => {
      const answer = async (): Promise<unknown> =>
        await this.#note(method, call)(call.request as never);
      answer().then(
        (value) => {
          reply(null, value);
        },
        (error: unknown) => {
          reply(statusOf(error));
        },
      );
    };
  }

  #streaming(method: string) {
    return (call: ServerWritableStream<unknown, unknown>): void => {
      call.on("error", () => undefined);
      const answer = async (): Promise<void> => {
        const messages = (this.#note(method, call) as StreamAnswer)(call.request as never);
        for await (const message of messages) {
          if (call.cancelled) {
            return;
          }
          call.write(message);
        }
        call.end();
      };
      answer().catch((error: unknown) => {
        call.emit("error", statusOf(error));
      });
    };
  }

  #work(call: ServerDuplexStream<WorkerMessage, ServerMessage>): void {
    this.streamCount += 1;
    const refusal = this.refusals.shift();
    if (refusal !== undefined) {
      call.on("error", () => undefined);
      call.emit("error", refusal.status);
      return;
    }
    this.#streams.put(new WorkStream(call));
  }
}

function statusOf(error: unknown): Partial<StatusObject> {
  return error instanceof Refusal
    ? error.status
    : { code: Code.INTERNAL, details: `the script failed: ${String(error)}` };
}

/** Credentials of the certificates that the tests of all languages share. */
export function serverCredentials(mutual = false): ServerCredentials {
  const pair = {
    cert_chain: readFileSync(`${CERTS}server.pem`),
    private_key: readFileSync(`${CERTS}server.key`),
  };
  return ServerCredentials.createSsl(readFileSync(`${CERTS}ca.pem`), [pair], mutual);
}
