/** Decides how the calls of those who run the queue are made: the `Admin` service. */

import { type CallPlan, Caller } from "./calls.js";
import { monotonicMs } from "./clock.js";
import { instantOf, maybeInstant, unixNs } from "./convert.js";
import { ClosedError } from "./errors.js";
import { AdminService, type RecurringRequest } from "./gen/cronoq/v1/admin.js";
import type {
  Backfill,
  Gathered,
  PoolSnapshot,
  ResourceInfo,
  ScheduleDetail,
  ScheduleInfo,
  Snapshot,
  WorkerInfo,
} from "./operations.js";
import { gathered } from "./operations.js";
import {
  readPool,
  readResource,
  readSchedule,
  readScheduleDetail,
  readSnapshot,
  readWorker,
  writeSchedule,
} from "./readings.js";
import type { Instant, ScheduleSpec } from "./spec.js";
import type { Method } from "./transport.js";

const PREVIEW_COUNT = 10;

/** What bounds one call. */
export interface CallOptions {
  /** Time for this call with all its retries, ms; the client's deadline if not given. */
  readonly callDeadlineMs?: number | undefined;
  /** Ends the call; its reason is thrown then. */
  readonly signal?: AbortSignal | undefined;
}

/** Tells apart schedules of one name in several shards. */
export interface ScheduleCallOptions extends CallOptions {
  readonly pool?: string | undefined;
}

/** How a backfill is done. */
export interface BackfillOptions extends ScheduleCallOptions {
  /** Count, but make nothing. */
  readonly dryRun?: boolean | undefined;
}

/** How far a preview looks. */
export interface PreviewOptions extends ScheduleCallOptions {
  /** How many instants, at most 100; 10. */
  readonly count?: number | undefined;
}

/** Another size of a resource; what is absent stays as it is. */
export interface ResourceSize {
  /** Of a semaphore. */
  readonly permits?: number | undefined;
  /** Of a token bucket, per second. */
  readonly rate?: number | undefined;
  /** Of a token bucket. */
  readonly burst?: number | undefined;
}

/** The part of a client that operators use. */
export class AdminCalls {
  /** @internal */
  protected readonly caller: Caller;
  /** @internal */
  protected isClosed = false;

  protected constructor(caller: Caller) {
    this.caller = caller;
  }

  /** @internal */
  protected endsAt(callDeadlineMs: number | undefined): number {
    if (this.isClosed) {
      throw new ClosedError("the client is closed");
    }
    return monotonicMs() + (callDeadlineMs ?? this.caller.settings.deadlineMs);
  }

  /** @internal */
  protected call<Request, Response>(
    method: Method<Request, Response>,
    request: Request,
    options: CallOptions,
    idempotent = true,
  ): Promise<Response> {
    const plan: CallPlan = {
      idempotent,
      endsAt: this.endsAt(options.callDeadlineMs),
      signal: options.signal,
    };
    return this.caller.call(method, request, plan);
  }

  /** Returns pools, totals and resources at one moment. */
  async snapshot(options: CallOptions = {}): Promise<Snapshot> {
    return readSnapshot(await this.call(AdminService.snapshot, {}, options));
  }

  /** Returns the connected workers. */
  async workers(options: CallOptions = {}): Promise<Gathered<WorkerInfo>> {
    const answer = await this.call(AdminService.listWorkers, {}, options);
    return gathered(answer.workers.map(readWorker), answer.unavailableShards);
  }

  // --- schedules --------------------------------------------------------------------------------

  /**
   * Creates a schedule, or replaces the one of its name.
   *
   * @throws {CronInvalidError} The expression cannot be read.
   * @throws {CronNeverFiresError} It names no instant that ever comes.
   * @throws {ZoneUnknownError} The time zone is not known.
   */
  async putSchedule(spec: ScheduleSpec, options: CallOptions = {}): Promise<void> {
    await this.call(AdminService.addRecurring, this.#scheduleRequest(spec), options);
  }

  #scheduleRequest(spec: ScheduleSpec): RecurringRequest {
    return writeSchedule(spec, this.caller.settings.codec);
  }

  /** Removes a schedule; its tasks stay. True if it was there. */
  async removeSchedule(name: string, options: ScheduleCallOptions = {}): Promise<boolean> {
    const request = { name, pool: options.pool };
    return (await this.call(AdminService.removeRecurring, request, options)).removed;
  }

  /** Returns all schedules. */
  async schedules(options: CallOptions = {}): Promise<Gathered<ScheduleInfo>> {
    const answer = await this.call(AdminService.listRecurring, {}, options);
    return gathered(answer.schedules.map(readSchedule), answer.unavailableShards);
  }

  /**
   * Returns all that is known about one schedule.
   *
   * @throws {ScheduleUnknownError} There is none of that name.
   */
  async schedule(name: string, options: ScheduleCallOptions = {}): Promise<ScheduleDetail> {
    const request = { name, pool: options.pool };
    return readScheduleDetail(await this.call(AdminService.getRecurring, request, options));
  }

  /** Lets a schedule rest; pausing twice is pausing once. */
  async pauseSchedule(name: string, options: ScheduleCallOptions = {}): Promise<void> {
    const request = { name, paused: true, pool: options.pool };
    await this.call(AdminService.pauseRecurring, request, options);
  }

  /** Lets a schedule go on. */
  async resumeSchedule(name: string, options: ScheduleCallOptions = {}): Promise<void> {
    const request = { name, paused: false, pool: options.pool };
    await this.call(AdminService.pauseRecurring, request, options);
  }

  /** Makes an occurrence now and returns its task's id; never repeated by itself. */
  async triggerSchedule(name: string, options: ScheduleCallOptions = {}): Promise<bigint> {
    const request = { name, pool: options.pool };
    return (await this.call(AdminService.triggerRecurring, request, options, false)).taskId;
  }

  /** Makes the occurrences of a past range that have no task; never repeated by itself. */
  async backfillSchedule(
    name: string,
    start: Instant,
    end: Instant,
    options: BackfillOptions = {},
  ): Promise<Backfill> {
    const dryRun = options.dryRun ?? false;
    const request = {
      name,
      fromUnixNs: unixNs(start, "start"),
      toUnixNs: unixNs(end, "end"),
      pool: options.pool,
      dryRun,
    };
    const answer = await this.call(AdminService.backfillRecurring, request, options, dryRun);
    return { created: Number(answer.created), nextAt: maybeInstant(answer.nextUnixNs) };
  }

  /** Returns the next instants of a schedule, by name or as it might be put. */
  async previewSchedule(
    schedule: string | ScheduleSpec,
    options: PreviewOptions = {},
  ): Promise<Date[]> {
    const asked =
      typeof schedule === "string"
        ? { $case: "name" as const, value: schedule }
        : { $case: "spec" as const, value: this.#scheduleRequest(schedule) };
    const count = options.count ?? PREVIEW_COUNT;
    const request = { schedule: asked, count, pool: options.pool };
    const answer = await this.call(AdminService.previewRecurring, request, options);
    return answer.atUnixNs.map(instantOf);
  }

  // --- pools and resources ----------------------------------------------------------------------

  /** Returns the pools at one moment. */
  async pools(options: CallOptions = {}): Promise<Gathered<PoolSnapshot>> {
    const answer = await this.call(AdminService.listPools, {}, options);
    return gathered(answer.pools.map(readPool), answer.unavailableShards);
  }

  /** Starts no more attempts in a pool; running ones go on. */
  async pausePool(pool: string, options: CallOptions = {}): Promise<void> {
    await this.call(AdminService.pausePool, { pool }, options);
  }

  /** Starts attempts in a pool again. */
  async resumePool(pool: string, options: CallOptions = {}): Promise<void> {
    await this.call(AdminService.resumePool, { pool }, options);
  }

  /** Returns the resources at one moment. */
  async resources(options: CallOptions = {}): Promise<Gathered<ResourceInfo>> {
    const answer = await this.call(AdminService.listResources, {}, options);
    return gathered(answer.resources.map(readResource), answer.unavailableShards);
  }

  /** Changes the size of a resource until its configured size changes. */
  async setResource(
    name: string,
    size: ResourceSize,
    options: CallOptions = {},
  ): Promise<ResourceInfo> {
    const { burst, permits, rate } = size;
    const request = { name, permits, rate, burst };
    return readResource(await this.call(AdminService.setResource, request, options));
  }
}
