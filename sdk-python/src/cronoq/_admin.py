"""Decides how the calls of those who run the queue are made: the `Admin` service."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime
from typing import Any, TypeVar

import msgspec

from ._calls import Caller
from ._convert import fill_spec, instant_of, read_spec, unix_ns
from ._proto import admin_pb2, task_pb2
from ._transport import Method
from .errors import ClosedError
from .operations import (
    Backfill,
    Gathered,
    PoolSnapshot,
    ResourceInfo,
    ScheduleDetail,
    ScheduleInfo,
    Snapshot,
    Totals,
    WorkerGroup,
    WorkerInfo,
)
from .options import Seconds, seconds
from .spec import CatchUp, Fold, Gap, Overlap, ScheduleSpec

SNAPSHOT = Method("Admin", "Snapshot", admin_pb2.SnapshotResponse)
ADD_RECURRING = Method("Admin", "AddRecurring", task_pb2.Empty)
REMOVE_RECURRING = Method("Admin", "RemoveRecurring", admin_pb2.RemoveRecurringResponse)
LIST_WORKERS = Method("Admin", "ListWorkers", admin_pb2.ListWorkersResponse)
LIST_RECURRING = Method("Admin", "ListRecurring", admin_pb2.ListRecurringResponse)
GET_RECURRING = Method("Admin", "GetRecurring", admin_pb2.RecurringDetail)
PAUSE_RECURRING = Method("Admin", "PauseRecurring", task_pb2.Empty)
TRIGGER_RECURRING = Method("Admin", "TriggerRecurring", admin_pb2.TriggerRecurringResponse)
BACKFILL_RECURRING = Method("Admin", "BackfillRecurring", admin_pb2.BackfillRecurringResponse)
PREVIEW_RECURRING = Method("Admin", "PreviewRecurring", admin_pb2.PreviewRecurringResponse)
LIST_POOLS = Method("Admin", "ListPools", admin_pb2.ListPoolsResponse)
PAUSE_POOL = Method("Admin", "PausePool", task_pb2.Empty)
RESUME_POOL = Method("Admin", "ResumePool", task_pb2.Empty)
LIST_RESOURCES = Method("Admin", "ListResources", admin_pb2.ListResourcesResponse)
SET_RESOURCE = Method("Admin", "SetResource", admin_pb2.Resource)


S = TypeVar("S", bound=msgspec.Struct)


class AdminCalls:
    """The part of a client that operators use. A pool tells apart schedules of one name."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self._deadline = seconds(caller.options.deadline)
        self._is_closed = False

    def _ends_at(self, deadline: Seconds | None) -> float:
        if self._is_closed:
            raise ClosedError("the client is closed")
        length = self._deadline if deadline is None else seconds(deadline)
        return asyncio.get_running_loop().time() + length

    async def snapshot(self, *, call_deadline: Seconds | None = None) -> Snapshot:
        """Returns pools, totals and resources at one moment."""
        ends_at = self._ends_at(call_deadline)
        answer = await self._caller.call(
            SNAPSHOT, task_pb2.Empty(), idempotent=True, ends_at=ends_at
        )
        return Snapshot(
            pools=[_read_pool(pool) for pool in answer.pools],
            live_tasks=answer.live_tasks,
            running=answer.running,
            pending=answer.pending,
            totals=_copied(Totals, answer.totals),
            workers_connected=answer.workers_connected,
            unavailable_shards=tuple(answer.unavailable_shards),
            resources=[_copied(ResourceInfo, resource) for resource in answer.resources],
        )

    async def workers(self, *, call_deadline: Seconds | None = None) -> Gathered[WorkerInfo]:
        """Returns the connected workers."""
        ends_at = self._ends_at(call_deadline)
        answer = await self._caller.call(
            LIST_WORKERS, task_pb2.Empty(), idempotent=True, ends_at=ends_at
        )
        workers = [
            WorkerInfo(
                id=worker.id,
                name=worker.name,
                pool=worker.pool,
                labels=dict(worker.labels),
                slots=worker.slots,
                busy=worker.busy,
                connected_at=instant_of(worker.connected_unix_ns),
                sdk=worker.sdk,
                kinds=tuple(worker.kinds),
            )
            for worker in answer.workers
        ]
        return Gathered(workers, answer.unavailable_shards)

    async def put_schedule(
        self, spec: ScheduleSpec, *, call_deadline: Seconds | None = None
    ) -> None:
        """Creates a schedule, or replaces the one of its name.

        Raises:
            CronInvalidError: The expression cannot be read.
            CronNeverFiresError: It names no instant that ever comes.
            ZoneUnknownError: The time zone is not known.
        """
        request = self._schedule_request(spec)
        ends_at = self._ends_at(call_deadline)
        await self._caller.call(ADD_RECURRING, request, idempotent=True, ends_at=ends_at)

    def _schedule_request(self, spec: ScheduleSpec) -> admin_pb2.RecurringRequest:
        request = admin_pb2.RecurringRequest(
            name=spec.name, cron=spec.cron, tz=spec.tz, paused=spec.paused
        )
        fill_spec(request.template, spec.template, self._caller.options.codec)
        for field in ("overlap", "gap", "fold", "catch_up"):
            value = getattr(spec, field)
            if value is not None:
                setattr(request, field, value)
        return request

    async def remove_schedule(
        self, name: str, *, pool: str | None = None, call_deadline: Seconds | None = None
    ) -> bool:
        """Removes a schedule; its tasks stay. True if it was there."""
        request = admin_pb2.RemoveRecurringRequest(name=name, pool=pool)
        ends_at = self._ends_at(call_deadline)
        answer = await self._caller.call(
            REMOVE_RECURRING, request, idempotent=True, ends_at=ends_at
        )
        return answer.removed

    async def schedules(self, *, call_deadline: Seconds | None = None) -> Gathered[ScheduleInfo]:
        """Returns all schedules."""
        ends_at = self._ends_at(call_deadline)
        answer = await self._caller.call(
            LIST_RECURRING, task_pb2.Empty(), idempotent=True, ends_at=ends_at
        )
        return Gathered(map(_read_schedule, answer.schedules), answer.unavailable_shards)

    async def schedule(
        self, name: str, *, pool: str | None = None, call_deadline: Seconds | None = None
    ) -> ScheduleDetail:
        """Returns all that is known about one schedule.

        Raises:
            ScheduleUnknownError: There is none of that name.
        """
        request = admin_pb2.GetRecurringRequest(name=name, pool=pool)
        ends_at = self._ends_at(call_deadline)
        answer = await self._caller.call(GET_RECURRING, request, idempotent=True, ends_at=ends_at)
        return ScheduleDetail(
            schedule=_read_schedule(answer.info),
            spec=_read_schedule_spec(answer.spec),
            skipped=answer.skipped,
            chain_broken=answer.chain_broken,
        )

    async def pause_schedule(
        self, name: str, *, pool: str | None = None, call_deadline: Seconds | None = None
    ) -> None:
        """Lets a schedule rest; pausing twice is pausing once."""
        await self._set_paused(name, pool, True, call_deadline)

    async def resume_schedule(
        self, name: str, *, pool: str | None = None, call_deadline: Seconds | None = None
    ) -> None:
        """Lets a schedule go on."""
        await self._set_paused(name, pool, False, call_deadline)

    async def _set_paused(
        self, name: str, pool: str | None, paused: bool, call_deadline: Seconds | None
    ) -> None:
        request = admin_pb2.PauseRecurringRequest(name=name, paused=paused, pool=pool)
        ends_at = self._ends_at(call_deadline)
        await self._caller.call(PAUSE_RECURRING, request, idempotent=True, ends_at=ends_at)

    async def trigger_schedule(
        self, name: str, *, pool: str | None = None, call_deadline: Seconds | None = None
    ) -> int:
        """Makes an occurrence now and returns its task's id; never repeated by itself."""
        request = admin_pb2.TriggerRecurringRequest(name=name, pool=pool)
        ends_at = self._ends_at(call_deadline)
        answer = await self._caller.call(
            TRIGGER_RECURRING, request, idempotent=False, ends_at=ends_at
        )
        return answer.task_id

    async def backfill_schedule(
        self,
        name: str,
        start: datetime,
        end: datetime,
        *,
        pool: str | None = None,
        dry_run: bool = False,
        call_deadline: Seconds | None = None,
    ) -> Backfill:
        """Makes the occurrences of a past range that have no task; never repeated by itself."""
        request = admin_pb2.BackfillRecurringRequest(
            name=name,
            from_unix_ns=unix_ns(start),
            to_unix_ns=unix_ns(end),
            pool=pool,
            dry_run=dry_run,
        )
        ends_at = self._ends_at(call_deadline)
        answer = await self._caller.call(
            BACKFILL_RECURRING, request, idempotent=dry_run, ends_at=ends_at
        )
        has_more = answer.HasField("next_unix_ns")
        next_at = instant_of(answer.next_unix_ns) if has_more else None
        return Backfill(created=answer.created, next_at=next_at)

    async def preview_schedule(
        self,
        schedule: str | ScheduleSpec,
        *,
        count: int = 10,
        pool: str | None = None,
        call_deadline: Seconds | None = None,
    ) -> Sequence[datetime]:
        """Returns the next instants of a schedule, by name or as it might be put.

        Args:
            schedule: Name of one that is there, or a spec.
            count: How many, at most 100.
            pool: Tells apart schedules of one name.
            call_deadline: Time for this call, seconds.
        """
        request = admin_pb2.PreviewRecurringRequest(count=count, pool=pool)
        if isinstance(schedule, str):
            request.name = schedule
        else:
            request.spec.CopyFrom(self._schedule_request(schedule))
        ends_at = self._ends_at(call_deadline)
        answer = await self._caller.call(
            PREVIEW_RECURRING, request, idempotent=True, ends_at=ends_at
        )
        return [instant_of(at) for at in answer.at_unix_ns]

    async def pools(self, *, call_deadline: Seconds | None = None) -> Gathered[PoolSnapshot]:
        """Returns the pools at one moment."""
        ends_at = self._ends_at(call_deadline)
        answer = await self._caller.call(
            LIST_POOLS, task_pb2.Empty(), idempotent=True, ends_at=ends_at
        )
        return Gathered(map(_read_pool, answer.pools), answer.unavailable_shards)

    async def pause_pool(self, pool: str, *, call_deadline: Seconds | None = None) -> None:
        """Starts no more attempts in a pool; running ones go on."""
        request = admin_pb2.PausePoolRequest(pool=pool)
        ends_at = self._ends_at(call_deadline)
        await self._caller.call(PAUSE_POOL, request, idempotent=True, ends_at=ends_at)

    async def resume_pool(self, pool: str, *, call_deadline: Seconds | None = None) -> None:
        """Starts attempts in a pool again."""
        request = admin_pb2.ResumePoolRequest(pool=pool)
        ends_at = self._ends_at(call_deadline)
        await self._caller.call(RESUME_POOL, request, idempotent=True, ends_at=ends_at)

    async def resources(self, *, call_deadline: Seconds | None = None) -> Gathered[ResourceInfo]:
        """Returns the resources at one moment."""
        ends_at = self._ends_at(call_deadline)
        answer = await self._caller.call(
            LIST_RESOURCES, task_pb2.Empty(), idempotent=True, ends_at=ends_at
        )
        resources = [_copied(ResourceInfo, resource) for resource in answer.resources]
        return Gathered(resources, answer.unavailable_shards)

    async def set_resource(
        self,
        name: str,
        *,
        permits: int | None = None,
        rate: float | None = None,
        burst: int | None = None,
        call_deadline: Seconds | None = None,
    ) -> ResourceInfo:
        """Changes the size of a resource until its configured size changes.

        Args:
            name: Which one.
            permits: Of a semaphore.
            rate: Of a token bucket, per second.
            burst: Of a token bucket.
            call_deadline: Time for this call, seconds.
        """
        request = admin_pb2.SetResourceRequest(name=name, permits=permits, rate=rate, burst=burst)
        ends_at = self._ends_at(call_deadline)
        answer = await self._caller.call(SET_RESOURCE, request, idempotent=True, ends_at=ends_at)
        return _copied(ResourceInfo, answer)


def _copied(kind: type[S], message: Any) -> S:
    """A value whose fields are the message's, name by name."""
    return kind(**{name: getattr(message, name) for name in kind.__struct_fields__})


def _read_pool(message: admin_pb2.PoolSnapshot) -> PoolSnapshot:
    plain = {name: getattr(message, name) for name in PoolSnapshot.__struct_fields__}
    plain["pending_by_class"] = tuple(message.pending_by_class)
    plain["groups"] = [
        WorkerGroup(labels=dict(group.labels), capacity=group.capacity, busy=group.busy)
        for group in message.groups
    ]
    return PoolSnapshot(**plain)


def _read_schedule(message: admin_pb2.RecurringInfo) -> ScheduleInfo:
    has_next = message.HasField("next_unix_ns")
    return ScheduleInfo(
        name=message.name,
        cron=message.cron,
        tz=message.tz,
        pool=message.pool,
        kind=message.kind,
        overlap=Overlap(message.overlap or Overlap.SKIP),
        next_at=instant_of(message.next_unix_ns) if has_next else None,
        last_task_id=message.last_task_id if message.HasField("last_task_id") else None,
        paused=message.paused,
        gap=Gap(message.gap or Gap.RUN_AFTER),
        fold=Fold(message.fold or Fold.FIRST),
        catch_up=CatchUp(message.catch_up or CatchUp.LATEST),
    )


def _read_schedule_spec(message: admin_pb2.RecurringRequest) -> ScheduleSpec:
    return ScheduleSpec(
        name=message.name,
        cron=message.cron,
        template=read_spec(message.template),
        tz=message.tz,
        overlap=Overlap(message.overlap) if message.overlap else None,
        gap=Gap(message.gap) if message.gap else None,
        fold=Fold(message.fold) if message.fold else None,
        catch_up=CatchUp(message.catch_up) if message.catch_up else None,
        paused=message.paused,
    )
