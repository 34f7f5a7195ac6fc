/**
 * Decides what a worker says to its server and believes of its leases: one session, no IO.
 *
 * Rules WP-01 … of docs/spec/worker-protocol.md, cited below. A session outlives its streams:
 * reports keep their numbers and are kept until their receipt, leases are named in every resume.
 * Messages in, messages out: `write` is whatever puts a message on the present stream, in order.
 * Instants and durations are milliseconds of one monotonic clock, which the caller reads.
 */

import type {
  Abort,
  Heartbeats,
  Lease,
  LeaseProgress,
  Receipt,
  Register,
  Registered,
  Report,
  ServerMessage,
  Shutdown,
  WorkerMessage,
} from "./gen/cronoq/v1/workers.js";
import { MESSAGE_ROOM } from "./options.js";
import { failedForGood, nacked, type Outcome } from "./outcome.js";
import { reportOf, roomOf, singleOf } from "./report.js";
import { Run, Stop } from "./run.js";

export const PROTOCOL_VERSION = 4;
export const RECEIPTS_SINCE = 4; // Older servers know no batches, receipts or resume.
export const LEASE_TTL_MS = 30_000; // What a server that names none means.
export const BEATS_PER_TTL = 3;
export const PROGRESS_EVERY_MS = 1_000;
export const REPORTS_PER_MESSAGE = 500;
const RECENT_MAX = 4096;
const REPORT_SIZE_MIN = 256 * 1024;
// What one lease takes in a heartbeat, at most, and the progress of one beside its data.
const LEASE_ROOM = 10;
const PROGRESS_ROOM = 64;

/** A run and how it ended. */
export type Ended = readonly [Run, Outcome];

/** What one message of the server means for the worker. */
export interface Received {
  readonly begun: Run[];
  readonly stopped: Run[];
  shutdown: Shutdown | undefined;
}

/** A Reports message without receipt. */
interface Sent {
  readonly message: WorkerMessage;
  /** Lease → task id. */
  readonly tasks: ReadonlyMap<bigint, bigint>;
}

/** One worker's session over all its streams. */
export class Session {
  readonly #register: Register;
  #write: ((message: WorkerMessage) => void) | undefined;
  #token: Uint8Array = new Uint8Array(0);
  #version = PROTOCOL_VERSION;
  #ttlMs = LEASE_TTL_MS;
  #maxMessageBytes: number;
  readonly #runs = new Map<bigint, Run>();
  /** Leases that were reported, oldest first. */
  readonly #recent = new Set<bigint>();
  readonly #sent = new Map<bigint, Sent>();
  #reportNumber = 0n;
  #confirmedNumber = 0n;
  #lastLease = 0n;
  #beatNumber = 0n;
  /** Heartbeats without receipt: number and when it was sent. */
  readonly #beats: { readonly number: bigint; readonly at: number }[] = [];
  #beatAt = 0;
  #namedLast = false;
  #confirmedAt = 0;
  #openedAt = 0;
  #isDraining = false;
  #hasProgress = false;

  /** Slots that the server granted. */
  granted = 0;
  isRegistered = false;
  /** True while this worker receives work (WP-03). */
  isServing = false;
  sawNotLeader = false;

  constructor(register: Register, maxMessageBytes: number) {
    this.#register = register;
    this.#maxMessageBytes = maxMessageBytes;
  }

  // --- the stream -------------------------------------------------------------------------------

  /** Returns the first message of a new stream (WP-01, WP-30). */
  opening(now: number): WorkerMessage {
    this.#openedAt = now;
    this.sawNotLeader = false;
    const leases = [...this.#runs.keys()];
    for (const { tasks } of this.#sent.values()) {
      leases.push(...tasks.keys());
    }
    const resume = this.#token.length > 0 ? { sessionToken: this.#token, leases } : undefined;
    return { message: { $case: "register", value: { ...this.#register, resume } } };
  }

  /** Takes the server's acceptance and returns the runs that it did not adopt. */
  registered(answer: Registered, write: (message: WorkerMessage) => void, now: number): Run[] {
    this.#version = answer.protocolVersion === 0 ? 1 : answer.protocolVersion;
    this.#token = answer.sessionToken;
    this.#ttlMs = answer.leaseTtlS === undefined ? LEASE_TTL_MS : answer.leaseTtlS * 1000;
    if (answer.maxMessageBytes > 0) {
      this.#maxMessageBytes = answer.maxMessageBytes;
    }
    this.granted = answer.slots;
    this.#write = write;
    this.#confirmedAt = this.#openedAt;
    this.#beatAt = now;
    this.#beats.length = 0;
    this.isRegistered = true;
    this.isServing = !this.#isDraining;
    const lost = this.#loseUnadopted(new Set(answer.adopted));
    if (answer.adopted.length === 0 && answer.reportsSeen === 0n) {
      this.#beginAnew();
    }
    this.#sendAgain(answer.reportsSeen);
    if (this.#isDraining) {
      this.#putSlots(0); // WP-40
    }
    return lost;
  }

  /** WP-32: what the server does not adopt is no longer ours; told are those that run on. */
  #loseUnadopted(adopted: ReadonlySet<bigint>): Run[] {
    const lost = [...this.#runs.values()].filter((run) => !adopted.has(run.lease));
    const running = lost.filter((run) => run.stop === undefined);
    for (const run of lost) {
      run.tell(Stop.LOST);
      // Its id may come again, from a server that counts anew.
      this.#runs.delete(run.lease);
    }
    return running;
  }

  /** WP-34: the server may have begun anew, so what was seen before tells nothing. */
  #beginAnew(): void {
    if (this.#confirmedNumber > 0n) {
      // It has: what it confirmed is gone, and with it every lease of these reports.
      this.#sent.clear();
      this.#confirmedNumber = 0n;
    }
    this.#recent.clear();
    this.#lastLease = 0n;
  }

  /** WP-33: everything the server has not read; it tells stale reports by itself. */
  #sendAgain(seen: bigint): void {
    if (this.#version < RECEIPTS_SINCE) {
      this.#sent.clear();
      return;
    }
    for (const [number, { message }] of this.#sent) {
      if (number > seen) {
        this.#write?.(message);
      }
    }
  }

  /** The stream is gone: nothing is written until the next `registered`. */
  broken(): void {
    this.#write = undefined;
    this.isRegistered = false;
    this.isServing = false;
  }

  /** Takes one message of the server. */
  receive(message: ServerMessage, now: number): Received {
    const received: Received = { begun: [], stopped: [], shutdown: undefined };
    const content = message.message;
    switch (content?.$case) {
      case "leases":
        this.#begin(content.value.leases, received, now);
        break;
      case "receipt":
        this.#confirm(content.value);
        break;
      case "lease":
        this.#begin([content.value], received, now);
        break;
      case "aborts":
        this.#abort(content.value.aborts, received);
        break;
      case "abort":
        this.#abort([content.value], received);
        break;
      case "shutdown":
        received.shutdown = content.value;
        this.sawNotLeader = content.value.notLeader;
        this.isServing = false;
        break;
      case "registered":
      case undefined:
        break; // A newer server's message: not for us.
    }
    return received;
  }

  #begin(leases: readonly Lease[], received: Received, now: number): void {
    const late: Ended[] = [];
    for (const message of leases) {
      const { lease } = message;
      if (this.#runs.has(lease) || this.#recent.has(lease)) {
        continue; // WP-12
      }
      if (lease > this.#lastLease) {
        this.#lastLease = lease;
      }
      const run = new Run(message, now, this.#ttlMs);
      this.#runs.set(lease, run);
      if (this.#isDraining) {
        late.push([run, nacked("worker is stopping")]); // WP-41
      } else {
        received.begun.push(run);
      }
    }
    this.#report(late);
  }

  #abort(aborts: readonly Abort[], received: Received): void {
    for (const abort of aborts) {
      const run = this.#runs.get(abort.lease);
      if (run !== undefined && run.stop !== Stop.ABORTED) {
        run.tell(Stop.ABORTED, abort.reason); // WP-15
        received.stopped.push(run);
      }
    }
  }

  /** WP-22: reports are durable, and this heartbeat was read. */
  #confirm(receipt: Receipt): void {
    if (receipt.reports > this.#confirmedNumber) {
      this.#confirmedNumber = receipt.reports;
    }
    for (const number of this.#sent.keys()) {
      if (number > receipt.reports) {
        break; // Few entries: each is a message, not a task.
      }
      this.#sent.delete(number);
    }
    let [beat] = this.#beats;
    while (beat !== undefined && beat.number <= receipt.heartbeats) {
      this.#confirmedAt = Math.max(this.#confirmedAt, beat.at);
      this.#beats.shift();
      [beat] = this.#beats;
    }
  }

  // --- reports ----------------------------------------------------------------------------------

  /** Reports how runs ended, in as few messages as fit (WP-20, WP-21). */
  report(ended: readonly Ended[], now: number): void {
    // WP-25: the last progress goes out before the report, in as many as it takes.
    while (
      this.#hasProgress &&
      this.#write !== undefined &&
      ended.some(([run]) => run.progressIsNew)
    ) {
      this.#beat(now);
    }
    this.#report(ended);
  }

  #report(ended: readonly Ended[]): void {
    const room = this.#room;
    let reports: Report[] = [];
    let tasks = new Map<bigint, bigint>();
    let left = room;
    for (const [run, told] of ended) {
      if (this.#runs.get(run.lease) !== run) {
        continue; // Lost, or reported already by a stop that could not wait for it.
      }
      this.#runs.delete(run.lease);
      this.#remember(run.lease);
      const outcome = this.#sendable(run, told);
      const size = roomOf(outcome);
      if (reports.length > 0 && (size > left || reports.length >= REPORTS_PER_MESSAGE)) {
        this.#putReports(reports, tasks);
        reports = [];
        tasks = new Map();
        left = room;
      }
      reports.push(reportOf(run.lease, outcome));
      tasks.set(run.lease, run.taskId);
      left -= size;
    }
    if (reports.length > 0) {
      this.#putReports(reports, tasks);
    }
  }

  /** What a message of many parts may take. */
  get #room(): number {
    return Math.max(REPORT_SIZE_MIN, this.#maxMessageBytes) - MESSAGE_ROOM / 2;
  }

  #sendable(run: Run, outcome: Outcome): Outcome {
    if (run.stop === Stop.ABORTED) {
      return { type: "cancelled", reason: "" }; // WP-16: whatever it came to.
    }
    if (outcome.type === "completed") {
      const limit = this.#maxMessageBytes - MESSAGE_ROOM;
      if (outcome.output.length > limit) {
        return failedForGood(`output too large (${outcome.output.length} > ${limit})`); // WP-18
      }
    }
    return outcome;
  }

  #remember(lease: bigint): void {
    this.#recent.add(lease);
    if (this.#recent.size > RECENT_MAX) {
      const [oldest = 0n] = this.#recent;
      this.#recent.delete(oldest);
    }
  }

  #putReports(reports: Report[], tasks: ReadonlyMap<bigint, bigint>): void {
    if (this.#version < RECEIPTS_SINCE) {
      for (const report of reports) {
        this.#write?.(singleOf(report));
      }
      return; // Forgotten once written: an old server knows no resume.
    }
    this.#reportNumber += 1n;
    const number = this.#reportNumber;
    const message: WorkerMessage = { message: { $case: "reports", value: { reports, number } } };
    this.#sent.set(number, { message, tasks });
    this.#write?.(message);
  }

  // --- time -------------------------------------------------------------------------------------

  /** Takes note that some run has new progress; true if the next pulse is due sooner for it. */
  noteProgress(): boolean {
    const isNews = !this.#hasProgress;
    this.#hasProgress = true;
    return isNews;
  }

  /** Returns when `pulse` is to be called next. */
  nextPulse(now: number): number {
    return Math.max(Math.min(this.#beatDue(), this.nextExpiry), now);
  }

  /** When the first lease runs out whose handler was not told to stop; `Infinity` if there is none. */
  get nextExpiry(): number {
    let due = Infinity;
    for (const run of this.#runs.values()) {
      if (run.stop === undefined) {
        due = Math.min(due, this.#expiresAt(run));
      }
    }
    return due;
  }

  /** Sends the heartbeat that is due and returns the runs whose lease ran out (WP-24). */
  pulse(now: number): Run[] {
    const expired = [...this.#runs.values()].filter(
      (run) => run.stop === undefined && this.#expiresAt(run) <= now,
    );
    for (const run of expired) {
      run.tell(Stop.EXPIRED);
    }
    if (this.#beatDue() <= now) {
      this.#beat(now);
    }
    return expired;
  }

  #beatDue(): number {
    const isSooner = this.#hasProgress && this.isRegistered;
    const due = this.#beatAt + this.beatIntervalMs;
    return isSooner ? Math.min(due, this.#beatAt + PROGRESS_EVERY_MS) : due;
  }

  /** Time between heartbeats: a third of the shortest lease. */
  get beatIntervalMs(): number {
    let ttlMs = this.#ttlMs;
    for (const run of this.#runs.values()) {
      ttlMs = Math.min(ttlMs, run.ttlMs);
    }
    return ttlMs / BEATS_PER_TTL;
  }

  #expiresAt(run: Run): number {
    // Our clock alone: the server granted no more than this.
    return Math.max(run.arrivedAt, this.#confirmedAt) + run.ttlMs;
  }

  /** WP-23: one message names every lease that runs. */
  #beat(now: number): void {
    this.#beatAt = now;
    const write = this.#write;
    if (write === undefined) {
      return;
    }
    const named = [...this.#runs.values()];
    if (this.#version < RECEIPTS_SINCE) {
      this.#hasProgress = false;
      for (const { lease } of named) {
        write({ message: { $case: "heartbeat", value: { lease } } });
      }
      this.#confirmedAt = now;
      return;
    }
    if (named.length === 0 && !this.#namedLast) {
      this.#hasProgress = false;
      return; // Nothing runs and the server knows.
    }
    this.#namedLast = named.length > 0;
    this.#beatNumber += 1n;
    const beat: Heartbeats = {
      leases: named.map((run) => run.lease),
      progress: this.#hasProgress ? newProgress(named, this.#room) : [],
      number: this.#beatNumber,
      lastLease: this.#lastLease,
    };
    // What did not fit goes with the next one.
    this.#hasProgress &&= named.some((run) => run.progressIsNew);
    this.#beats.push({ number: this.#beatNumber, at: now });
    write({ message: { $case: "heartbeats", value: beat } });
  }

  // --- stopping ---------------------------------------------------------------------------------

  /** WP-40: no more leases; what arrives late is given back. */
  drain(): void {
    if (!this.#isDraining) {
      this.#isDraining = true;
      this.isServing = false;
      this.#putSlots(0);
    }
  }

  #putSlots(slots: number): void {
    this.#write?.({ message: { $case: "setSlots", value: { slots } } });
  }

  /** Marks every run that was not told to stop yet, and returns them. */
  stopRuns(reason: Stop): Run[] {
    const stopped = [...this.#runs.values()].filter((run) => run.stop === undefined);
    for (const run of stopped) {
      run.tell(reason);
    }
    return stopped;
  }

  /** Returns the runs without a report. */
  openRuns(): Run[] {
    return [...this.#runs.values()];
  }

  /** Returns the tasks whose report has no receipt yet. */
  unconfirmedTasks(): bigint[] {
    return [...this.#sent.values()].flatMap(({ tasks }) => [...tasks.values()]);
  }

  /** True when nothing runs and every report has its receipt. */
  get isSettled(): boolean {
    return this.#runs.size === 0 && this.#sent.size === 0;
  }
}

/** The progress that the server has not heard of, as much as fits beside the leases. */
function newProgress(named: readonly Run[], room: number): LeaseProgress[] {
  const news: LeaseProgress[] = [];
  let left = room - named.length * LEASE_ROOM;
  for (const run of named) {
    if (run.progressIsNew && run.progress !== undefined) {
      left -= run.progress.data.length + PROGRESS_ROOM;
      if (left < 0 && news.length > 0) {
        break;
      }
      run.progressIsNew = false;
      news.push({ lease: run.lease, progress: run.progress });
    }
  }
  return news;
}
