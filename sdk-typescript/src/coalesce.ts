/**
 * Decides how concurrent submits share requests.
 *
 * A submit goes out at the next turn of the event loop, together with all that arrived by then for
 * its pool. Two requests of a pool may be in flight; what arrives meanwhile forms the next ones, each
 * bounded by count and by half a message. Every caller keeps its own deadline, cancellation and
 * outcome.
 *
 * Rules a change must keep: tasks of different pools share no request and do not wait for each other,
 * since they may be of different shards, one of which is slow or gone; a caller that gave up before its request went out is not submitted; a
 * lost request is sent again only for tasks with a key, unless nothing was executed; a task for a
 * full pool is sent again alone, as a call that parks.
 */

import { BackoffSeries, type Caller, cronoqErrorOf, mayRepeat } from "./calls.js";
import { clamped, monotonicMs } from "./clock.js";
import { writeSpec } from "./convert.js";
import {
  type CronoqError,
  DeadlineError,
  QueueFullError,
  TooLargeError,
  UnavailableError,
  UnsupportedError,
} from "./errors.js";
import { TaskSpec as WireSpec } from "./gen/cronoq/v1/task.js";
import {
  type SubmitManyResponse,
  type SubmitResponse,
  TasksService,
} from "./gen/cronoq/v1/tasks.js";
import { MESSAGE_ROOM } from "./options.js";
import type { TaskSpec } from "./spec.js";
import { statusError } from "./status.js";
import type { Method } from "./transport.js";

export const IN_FLIGHT_MAX = 2;
// Calls that park for a full pool occupy the server each; the rest wait here in order.
const PARKED_MAX = 64;
// Pools beyond which those are forgotten for which nothing is under way.
const LANES_KEPT = 64;
// What a field of a message takes beside its bytes.
const FIELD_ROOM = 6;
const TASKS_TAG = 10; // Field 1, with a length.

/** Id of a task, and whether it was there already. */
export interface Admitted {
  readonly id: bigint;
  readonly duplicate: boolean;
}

/** One caller's place in a request. */
export class Member {
  readonly promise: Promise<Admitted>;
  isDone = false;
  // Made for calls of their own only: most tasks share one.
  #ending: AbortController | undefined;
  #resolve!: (admitted: Admitted) => void;
  #reject!: (error: unknown) => void;

  constructor(
    readonly lane: Lane,
    /** The encoded task. */
    readonly bytes: Uint8Array,
    readonly isKeyed: boolean,
    readonly endsAt: number,
  ) {
    this.promise = new Promise((resolve, reject) => {
      this.#resolve = resolve;
      this.#reject = reject;
    });
    // Whoever waits hears of it; who has gone does not want to.
    this.promise.catch(() => undefined);
  }

  settle(admitted: Admitted): void {
    if (!this.isDone) {
      this.isDone = true;
      this.#resolve(admitted);
    }
  }

  fail(error: unknown): void {
    if (!this.isDone) {
      this.isDone = true;
      this.#reject(error);
      this.#ending?.abort(error);
    }
  }

  /** Aborted when the caller has given up. */
  get signal(): AbortSignal {
    this.#ending ??= new AbortController();
    return this.#ending.signal;
  }
}

/** A request that is being filled. */
class Batch {
  members: Member[] = [];
  size = 0;
}

// Both take the tasks as they were encoded already, when their size was wanted.
const SUBMIT_MANY: Method<readonly Member[], SubmitManyResponse> = {
  path: TasksService.submitMany.path,
  requestSerialize: joinTasks,
  responseDeserialize: TasksService.submitMany.responseDeserialize,
};

const SUBMIT: Method<Member, SubmitResponse> = {
  path: TasksService.submit.path,
  requestSerialize: (member) => joinTasks([member]),
  responseDeserialize: TasksService.submit.responseDeserialize,
};

/** SubmitManyRequest and SubmitRequest both have their tasks in field 1. */
function joinTasks(members: readonly Member[]): Buffer {
  const size = members.reduce((sum, { bytes }) => sum + bytes.length + FIELD_ROOM, 0);
  const joined = Buffer.allocUnsafe(size);
  let end = 0;
  for (const { bytes } of members) {
    joined[end++] = TASKS_TAG;
    let length = bytes.length;
    while (length > 127) {
      joined[end++] = (length & 127) | 128;
      length >>>= 7;
    }
    joined[end++] = length;
    joined.set(bytes, end);
    end += bytes.length;
  }
  return joined.subarray(0, end);
}

/** Joins the submits of one client to one pool into requests. */
class Lane {
  readonly #caller: Caller;
  readonly #countMax: number;
  readonly #sizeMax: number;
  readonly #taskSizeMax: number;
  readonly #queue: Batch[] = [];
  #open: Batch | undefined;
  #isScheduled = false;
  #inFlight = 0;
  readonly #parked: Member[] = [];
  #parkedCount = 0;
  #knowsMany = true;
  #trouble: CronoqError | undefined;
  readonly #waiting = new Set<Member>();
  #expiry: NodeJS.Timeout | undefined;
  #expiresAt = Infinity;
  readonly #onRoom: () => void;

  constructor(caller: Caller, onRoom: () => void) {
    this.#onRoom = onRoom;
    const { maxMessageBytes, maxTasksPerBatch } = caller.settings;
    this.#caller = caller;
    this.#countMax = maxTasksPerBatch;
    this.#sizeMax = maxMessageBytes / 2;
    this.#taskSizeMax = maxMessageBytes - MESSAGE_ROOM;
  }

  /** Requests that wait to be sent. */
  get queued(): number {
    return this.#queue.length;
  }

  /** Whether nothing is under way. */
  get isIdle(): boolean {
    return this.#waiting.size === 0 && this.#queue.length === 0 && this.#inFlight === 0;
  }

  /** Puts a task into the next request. */
  enqueue(spec: TaskSpec, endsAt: number): Member {
    const bytes = WireSpec.encode(writeSpec(spec, this.#caller.settings.codec)).finish();
    if (bytes.length > this.#taskSizeMax) {
      throw new TooLargeError(`task too large (${bytes.length} > ${this.#taskSizeMax} bytes)`);
    }
    const member = new Member(this, bytes, spec.key !== undefined && spec.key !== "", endsAt);
    const batch = this.#batchFor(bytes.length);
    batch.members.push(member);
    batch.size += bytes.length + FIELD_ROOM;
    this.#expect(member);
    this.#schedule();
    return member;
  }

  #batchFor(size: number): Batch {
    const open = this.#open;
    const isFull =
      open === undefined ||
      open.members.length >= this.#countMax ||
      (open.members.length > 0 && open.size + size + FIELD_ROOM > this.#sizeMax);
    if (!isFull) {
      return open;
    }
    const batch = new Batch();
    this.#open = batch;
    this.#queue.push(batch);
    return batch;
  }

  // --- deadlines: one timer for all callers -----------------------------------------------------

  #expect(member: Member): void {
    this.#waiting.add(member);
    if (member.endsAt < this.#expiresAt) {
      this.#armExpiry(member.endsAt);
    }
  }

  #armExpiry(at: number): void {
    clearTimeout(this.#expiry);
    this.#expiresAt = at;
    this.#expiry = setTimeout(
      () => {
        this.#expire();
      },
      clamped(Math.ceil(at - monotonicMs())),
    );
    this.#expiry.unref(); // The calls under way keep the program alive.
  }

  #expire(): void {
    const now = monotonicMs();
    let next = Infinity;
    for (const member of this.#waiting) {
      if (member.isDone) {
        this.#waiting.delete(member);
      } else if (member.endsAt <= now) {
        this.#waiting.delete(member);
        member.fail(this.#expired());
      } else {
        next = Math.min(next, member.endsAt);
      }
    }
    this.#expiresAt = Infinity;
    if (next < Infinity) {
      this.#armExpiry(next);
    }
  }

  #expired(): CronoqError {
    const trouble = this.#trouble;
    if (trouble === undefined) {
      return new DeadlineError("submit: the deadline passed, outcome unknown");
    }
    const text = `submit: no server answered before the deadline: ${trouble.message}`;
    return new UnavailableError(text, { reason: trouble.reason, cause: trouble });
  }

  /** Ends one caller's wait. */
  forget(member: Member, reason: unknown): void {
    this.#waiting.delete(member);
    member.fail(reason);
  }

  // --- requests ---------------------------------------------------------------------------------

  #schedule(): void {
    if (!this.#isScheduled && this.#inFlight < IN_FLIGHT_MAX) {
      this.#isScheduled = true;
      setImmediate(() => {
        this.#pump();
      });
    }
  }

  #pump(): void {
    this.#isScheduled = false;
    while (this.#inFlight < IN_FLIGHT_MAX) {
      const batch = this.#queue.shift();
      if (batch === undefined) {
        break;
      }
      if (batch === this.#open) {
        this.#open = undefined;
      }
      batch.members = batch.members.filter((member) => !member.isDone);
      if (batch.members.length > 0) {
        this.#inFlight += 1;
        void this.#send(batch);
      }
    }
    this.#onRoom();
  }

  async #send(batch: Batch): Promise<void> {
    try {
      const backoff = new BackoffSeries(this.#caller.settings);
      while (batch.members.length > 0) {
        if (!this.#knowsMany) {
          batch.members.forEach((member) => {
            this.#park(member);
          });
          return;
        }
        const needsPause = await this.#try(batch);
        if (needsPause && batch.members.length > 0) {
          await this.#caller.pause(backoff.nextDelay(this.#trouble));
        }
      }
    } catch (error) {
      // A defect: those who wait must hear of it rather than wait for ever.
      batch.members.forEach((member) => {
        member.fail(error);
      });
    } finally {
      this.#inFlight -= 1;
      this.#schedule();
    }
  }

  /** Sends once and leaves in the batch what has to be sent again; false if that is at once. */
  async #try(batch: Batch): Promise<boolean> {
    const now = monotonicMs();
    for (const member of batch.members) {
      if (member.endsAt <= now) {
        this.forget(member, this.#expired());
      }
    }
    batch.members = batch.members.filter((member) => !member.isDone);
    if (batch.members.length === 0) {
      return false;
    }
    const last = batch.members.reduce((end, { endsAt }) => Math.max(end, endsAt), now);
    const bounds = { timeoutMs: last - now };
    let response: SubmitManyResponse;
    try {
      const channel = this.#caller.connection.channel();
      response = await channel.unary(SUBMIT_MANY, batch.members, bounds);
    } catch (thrown) {
      const error = cronoqErrorOf(thrown);
      if (error instanceof UnsupportedError) {
        this.#knowsMany = false;
        return false;
      }
      if (error instanceof DeadlineError) {
        // What stood in the way, if anything did, says more than that the time is up.
        for (const member of batch.members.splice(0)) {
          this.forget(member, this.#expired());
        }
        return true;
      }
      this.#trouble = error;
      batch.members = batch.members.filter((member) => this.#keeps(member, error));
      return true;
    }
    this.#trouble = undefined;
    this.#settle(batch, response);
    return true;
  }

  /** Whether a member's task is sent again; it fails otherwise. */
  #keeps(member: Member, error: CronoqError): boolean {
    const isRepeated = mayRepeat(error, member.isKeyed);
    if (!isRepeated) {
      this.forget(member, error);
    }
    return isRepeated;
  }

  #settle(batch: Batch, response: SubmitManyResponse): void {
    const again: Member[] = [];
    batch.members.forEach((member, index) => {
      const outcome = response.outcomes[index]?.outcome;
      if (outcome?.$case === "response") {
        this.#waiting.delete(member);
        member.settle({ id: outcome.value.id, duplicate: outcome.value.duplicate });
        return;
      }
      const error = statusError(outcome?.value, `tasks[${index}].`);
      if (error instanceof QueueFullError) {
        this.#park(member);
      } else if (this.#keeps(member, error)) {
        again.push(member);
      }
    });
    batch.members = again;
  }

  // --- tasks for full pools, and servers that know no batches -----------------------------------

  #park(member: Member): void {
    this.#parked.push(member);
    if (this.#parkedCount < PARKED_MAX) {
      this.#parkedCount += 1;
      void this.#submitParked();
    }
  }

  /** Sends parked tasks one after the other until none is left. */
  async #submitParked(): Promise<void> {
    let member = this.#parked.shift();
    while (member !== undefined) {
      if (!member.isDone) {
        await this.#submitOne(member);
      }
      member = this.#parked.shift();
    }
    this.#parkedCount -= 1;
  }

  async #submitOne(member: Member): Promise<void> {
    try {
      const response = await this.#caller.call(SUBMIT, member, {
        idempotent: member.isKeyed,
        endsAt: member.endsAt,
        // A caller that gives up takes its parked call with it.
        signal: member.signal,
      });
      this.#waiting.delete(member);
      member.settle({ id: response.id, duplicate: response.duplicate });
    } catch (error) {
      this.forget(member, error);
    }
  }

  /** Ends all that is under way. */
  close(reason: unknown): void {
    clearTimeout(this.#expiry);
    for (const member of this.#waiting) {
      this.forget(member, reason);
    }
  }
}

/** Joins the submits of one client into requests, those to each pool by themselves. */
export class SubmitCoalescer {
  readonly #caller: Caller;
  readonly #lanes = new Map<string, Lane>();
  #roomWaiters: (() => void)[] = [];

  constructor(caller: Caller) {
    this.#caller = caller;
  }

  /** Requests that wait to be sent. */
  get queued(): number {
    let queued = 0;
    for (const lane of this.#lanes.values()) {
      queued += lane.queued;
    }
    return queued;
  }

  /** Resolves when some request has left the queue. */
  room(): Promise<void> {
    return new Promise((resolve) => this.#roomWaiters.push(resolve));
  }

  /**
   * Puts a task into the next request.
   *
   * @throws {InvalidFieldError} The spec does not fit the wire.
   * @throws {PayloadError} The payload cannot be encoded.
   * @throws {TooLargeError} The task is larger than a message may be.
   */
  enqueue(spec: TaskSpec, endsAt: number): Member {
    return this.#laneOf(spec.pool ?? "").enqueue(spec, endsAt);
  }

  #laneOf(pool: string): Lane {
    const found = this.#lanes.get(pool);
    if (found !== undefined) {
      return found;
    }
    if (this.#lanes.size >= LANES_KEPT) {
      for (const [name, lane] of this.#lanes) {
        if (lane.isIdle) {
          this.#lanes.delete(name);
        }
      }
    }
    const lane = new Lane(this.#caller, () => {
      for (const wake of this.#roomWaiters.splice(0)) {
        wake();
      }
    });
    this.#lanes.set(pool, lane);
    return lane;
  }

  /** Ends one caller's wait. */
  forget(member: Member, reason: unknown): void {
    member.lane.forget(member, reason);
  }

  /** Ends all that is under way. */
  close(reason: unknown): void {
    for (const lane of this.#lanes.values()) {
      lane.close(reason);
    }
  }
}
