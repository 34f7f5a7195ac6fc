/** Decides how what operators are told, and schedules, stand on the wire. */

import {
  instantOf,
  maybeInstant,
  msOf,
  numberOf,
  readMap,
  readSpec,
  wordOf,
  writeSpec,
} from "./convert.js";
import { InternalError } from "./errors.js";
import * as wire from "./gen/cronoq/v1/admin.js";
import type {
  PoolSnapshot,
  ResourceInfo,
  ScheduleDetail,
  ScheduleInfo,
  Snapshot,
  Totals,
  WorkerInfo,
} from "./operations.js";
import type { Codec } from "./payload.js";
import { CatchUp, Fold, Gap, Overlap, type ScheduleSpec } from "./spec.js";

/** Returns a schedule as it is put. */
export function writeSchedule(spec: ScheduleSpec, codec: Codec): wire.RecurringRequest {
  return {
    name: spec.name,
    cron: spec.cron,
    tz: spec.tz ?? "UTC",
    template: writeSpec(spec.template, codec),
    overlap: numberOf(wire.Overlap, spec.overlap, "overlap"),
    gap: numberOf(wire.Gap, spec.gap, "gap"),
    fold: numberOf(wire.Fold, spec.fold, "fold"),
    catchUp: numberOf(wire.CatchUp, spec.catchUp, "catchUp"),
    paused: spec.paused ?? false,
  };
}

/** Returns a schedule and when it is due next. */
export function readSchedule(message: wire.RecurringInfo): ScheduleInfo {
  return {
    name: message.name,
    cron: message.cron,
    tz: message.tz,
    pool: message.pool,
    kind: message.kind,
    overlap: wordOf(wire.Overlap, Overlap, message.overlap) ?? "skip",
    nextAt: maybeInstant(message.nextUnixNs),
    lastTaskId: message.lastTaskId,
    paused: message.paused,
    gap: wordOf(wire.Gap, Gap, message.gap) ?? "run_after",
    fold: wordOf(wire.Fold, Fold, message.fold) ?? "first",
    catchUp: wordOf(wire.CatchUp, CatchUp, message.catchUp) ?? "latest",
  };
}

/** Returns all that is known about a schedule. */
export function readScheduleDetail(message: wire.RecurringDetail): ScheduleDetail {
  const { info, spec } = message;
  if (info === undefined || spec?.template === undefined) {
    throw new InternalError("the server described a schedule without saying which");
  }
  return {
    schedule: readSchedule(info),
    spec: {
      name: spec.name,
      cron: spec.cron,
      template: readSpec(spec.template),
      tz: spec.tz,
      overlap: wordOf(wire.Overlap, Overlap, spec.overlap),
      gap: wordOf(wire.Gap, Gap, spec.gap),
      fold: wordOf(wire.Fold, Fold, spec.fold),
      catchUp: wordOf(wire.CatchUp, CatchUp, spec.catchUp),
      paused: spec.paused,
    },
    skipped: Number(message.skipped),
    chainBroken: message.chainBroken,
  };
}

/** Returns a connected worker. */
export function readWorker(message: wire.WorkerInfo): WorkerInfo {
  return {
    id: message.id,
    name: message.name,
    pool: message.pool,
    labels: readMap(message.labels),
    slots: message.slots,
    busy: message.busy,
    connectedAt: instantOf(message.connectedUnixNs),
    sdk: message.sdk,
    kinds: message.kinds,
  };
}

/** Returns a pool at one moment. */
export function readPool(message: wire.PoolSnapshot): PoolSnapshot {
  return {
    name: message.name,
    capacity: message.capacity,
    busy: message.busy,
    held: message.held,
    desired: message.desired,
    pendingByClass: message.pendingByClass.map(Number),
    reservations: Number(message.reservations),
    dispatched: Number(message.dispatched),
    succeeded: Number(message.succeeded),
    failed: Number(message.failed),
    priorityAdherence: message.priorityAdherence,
    fixedStartHitRate: message.fixedStartHitRate,
    utilization: message.utilization,
    scheduleEfficiency: message.scheduleEfficiency,
    waitP50Ms: msOf(message.waitP50S) ?? 0,
    waitP90Ms: msOf(message.waitP90S) ?? 0,
    waitP99Ms: msOf(message.waitP99S) ?? 0,
    cost: message.cost,
    workersConnected: Number(message.workersConnected),
    groups: message.groups.map(({ busy, capacity, labels }) => ({
      labels: readMap(labels),
      capacity,
      busy,
    })),
    paused: message.paused,
    oldestReadyMs: msOf(message.oldestReadyS) ?? 0,
  };
}

/** Returns a resource at one moment. */
export function readResource(message: wire.Resource): ResourceInfo {
  const { held, waiting, ...rest } = message;
  return { ...rest, held: Number(held), waiting: Number(waiting) };
}

/** Returns everything at one moment. */
export function readSnapshot(message: wire.SnapshotResponse): Snapshot {
  return {
    pools: message.pools.map(readPool),
    liveTasks: Number(message.liveTasks),
    running: Number(message.running),
    pending: Number(message.pending),
    totals: readTotals(message.totals ?? wire.Totals.create()),
    workersConnected: Number(message.workersConnected),
    unavailableShards: message.unavailableShards,
    resources: message.resources.map(readResource),
  };
}

function readTotals(message: wire.Totals): Totals {
  return {
    submitted: Number(message.submitted),
    dispatched: Number(message.dispatched),
    succeeded: Number(message.succeeded),
    failed: Number(message.failed),
    deadLettered: Number(message.deadLettered),
    cancelled: Number(message.cancelled),
    skipped: Number(message.skipped),
    missed: Number(message.missed),
    shed: Number(message.shed),
    retries: Number(message.retries),
    timeouts: Number(message.timeouts),
    leaseExpiries: Number(message.leaseExpiries),
    staleCompletions: Number(message.staleCompletions),
  };
}
