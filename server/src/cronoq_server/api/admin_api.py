"""What operators may call: snapshots, pools, workers, resources, schedules."""

from __future__ import annotations

from collections.abc import Mapping

from cronoq_server._proto import admin_pb2, task_pb2
from cronoq_server.api import admin_convert, texts
from cronoq_server.api.admin_service import AdminService
from cronoq_server.api.passing import missing_shards
from cronoq_server.api.rpc import Body, Context, caller
from cronoq_server.api.specs import SpecReader

PREVIEW_MAX = 100
PREVIEW_DEFAULT = 10


class AdminApi:
    """`cronoq.v1.Admin`."""

    def __init__(self, service: AdminService, reader: SpecReader) -> None:
        self._service = service
        self._reader = reader

    def bodies(self) -> Mapping[str, Body]:
        """The methods by their names in the contract."""
        return {
            "Snapshot": self.snapshot,
            "ListWorkers": self.list_workers,
            "ListPools": self.list_pools,
            "PausePool": self.pause_pool,
            "ResumePool": self.resume_pool,
            "ListResources": self.list_resources,
            "SetResource": self.set_resource,
            "AddRecurring": self.add_recurring,
            "RemoveRecurring": self.remove_recurring,
            "ListRecurring": self.list_recurring,
            "GetRecurring": self.get_recurring,
            "PauseRecurring": self.pause_recurring,
            "TriggerRecurring": self.trigger_recurring,
            "BackfillRecurring": self.backfill_recurring,
            "PreviewRecurring": self.preview_recurring,
        }

    async def snapshot(
        self, _request: task_pb2.Empty, context: Context
    ) -> admin_pb2.SnapshotResponse:
        """Counts of all pools."""
        view, now = await self._service.snapshot(caller(context))
        response = admin_convert.snapshot_response(view, now)
        for resource in await self._service.list_resources(caller(context)):
            admin_convert.fill_resource(response.resources.add(), resource)
        response.unavailable_shards.extend(missing_shards())
        return response

    async def list_workers(
        self, _request: task_pb2.Empty, context: Context
    ) -> admin_pb2.ListWorkersResponse:
        """The connected sessions."""
        workers = await self._service.list_workers(caller(context))
        response = admin_convert.workers_response(workers)
        response.unavailable_shards.extend(missing_shards())
        return response

    async def list_pools(
        self, _request: task_pb2.Empty, context: Context
    ) -> admin_pb2.ListPoolsResponse:
        """The pools."""
        view, now = await self._service.snapshot(caller(context))
        response = admin_convert.pools_response(view.pools, now)
        response.unavailable_shards.extend(missing_shards())
        return response

    async def pause_pool(
        self, request: admin_pb2.PausePoolRequest, context: Context
    ) -> task_pb2.Empty:
        """Stops a pool from starting attempts."""
        await self._service.pause_pool(
            caller(context), texts.name(request.pool, "pool"), paused=True
        )
        return task_pb2.Empty()

    async def resume_pool(
        self, request: admin_pb2.ResumePoolRequest, context: Context
    ) -> task_pb2.Empty:
        """Lets a pool start attempts again."""
        await self._service.pause_pool(
            caller(context), texts.name(request.pool, "pool"), paused=False
        )
        return task_pb2.Empty()

    async def list_resources(
        self, _request: task_pb2.Empty, context: Context
    ) -> admin_pb2.ListResourcesResponse:
        """The resources."""
        response = admin_pb2.ListResourcesResponse()
        for resource in await self._service.list_resources(caller(context)):
            admin_convert.fill_resource(response.resources.add(), resource)
        response.unavailable_shards.extend(missing_shards())
        return response

    async def set_resource(
        self, request: admin_pb2.SetResourceRequest, context: Context
    ) -> admin_pb2.Resource:
        """Resizes a resource."""
        view = await self._service.resize_resource(
            caller(context),
            texts.name(request.name, "name"),
            request.permits if request.HasField("permits") else None,
            admin_convert.read_rate(request.rate) if request.HasField("rate") else None,
            texts.at_least_one(request.burst, "burst") if request.HasField("burst") else None,
        )
        response = admin_pb2.Resource()
        admin_convert.fill_resource(response, view)
        return response

    async def add_recurring(
        self, request: admin_pb2.RecurringRequest, context: Context
    ) -> task_pb2.Empty:
        """Puts a schedule."""
        key_max = self._service.limits.max_key_len
        spec, calendar = admin_convert.read_schedule(request, self._reader, key_max)
        await self._service.put_schedule(caller(context), spec, calendar, paused=request.paused)
        return task_pb2.Empty()

    async def remove_recurring(
        self, request: admin_pb2.RemoveRecurringRequest, context: Context
    ) -> admin_pb2.RemoveRecurringResponse:
        """Removes a schedule."""
        name = texts.name(request.name, "name")
        removed = await self._service.remove_schedule(caller(context), name, request.pool)
        return admin_pb2.RemoveRecurringResponse(removed=removed)

    async def list_recurring(
        self, _request: task_pb2.Empty, context: Context
    ) -> admin_pb2.ListRecurringResponse:
        """The schedules."""
        response = admin_pb2.ListRecurringResponse()
        for stored in await self._service.list_schedules(caller(context)):
            admin_convert.fill_schedule(response.schedules.add(), stored)
        response.unavailable_shards.extend(missing_shards())
        return response

    async def get_recurring(
        self, request: admin_pb2.GetRecurringRequest, context: Context
    ) -> admin_pb2.RecurringDetail:
        """Shows one schedule."""
        name = texts.name(request.name, "name")
        stored = await self._service.get_schedule(caller(context), name, request.pool)
        return admin_convert.schedule_detail(stored)

    async def pause_recurring(
        self, request: admin_pb2.PauseRecurringRequest, context: Context
    ) -> task_pb2.Empty:
        """Pauses or resumes a schedule."""
        name = texts.name(request.name, "name")
        await self._service.pause_schedule(
            caller(context), name, request.pool, paused=request.paused
        )
        return task_pb2.Empty()

    async def trigger_recurring(
        self, request: admin_pb2.TriggerRecurringRequest, context: Context
    ) -> admin_pb2.TriggerRecurringResponse:
        """Makes one occurrence now."""
        name = texts.name(request.name, "name")
        task_id = await self._service.trigger_schedule(caller(context), name, request.pool)
        return admin_pb2.TriggerRecurringResponse(task_id=task_id)

    async def backfill_recurring(
        self, request: admin_pb2.BackfillRecurringRequest, context: Context
    ) -> admin_pb2.BackfillRecurringResponse:
        """Makes the occurrences of a past range."""
        start = texts.instant(request.from_unix_ns, "from_unix_ns")
        end = texts.instant(request.to_unix_ns, "to_unix_ns")
        done = await self._service.backfill_schedule(
            caller(context),
            texts.name(request.name, "name"),
            request.pool,
            start,
            end,
            dry_run=request.dry_run,
        )
        return admin_pb2.BackfillRecurringResponse(created=done.created, next_unix_ns=done.next_at)

    async def preview_recurring(
        self, request: admin_pb2.PreviewRecurringRequest, context: Context
    ) -> admin_pb2.PreviewRecurringResponse:
        """Computes the next occurrences of a schedule, stored or not."""
        if request.count > PREVIEW_MAX:
            text = f"must be at most {PREVIEW_MAX}, not {request.count}"
            raise texts.invalid("count", text, PREVIEW_MAX)
        if request.WhichOneof("schedule") == "spec":
            key_max = self._service.limits.max_key_len
            _, calendar = admin_convert.read_schedule(request.spec, self._reader, key_max, "spec.")
        else:
            name = texts.name(request.name, "name")
            stored = await self._service.get_schedule(caller(context), name, request.pool)
            calendar = admin_convert.calendar_of(stored.spec)
        instants = calendar.upcoming(self._service.wall(), request.count or PREVIEW_DEFAULT)
        return admin_pb2.PreviewRecurringResponse(at_unix_ns=instants)
