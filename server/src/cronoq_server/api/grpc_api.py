"""What submitters and workers may call: each method reads its request, asks, writes its answer."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import aclosing

import grpc

from cronoq_server._proto import admin_pb2, task_pb2, tasks_pb2, workers_pb2
from cronoq_server.api import convert, texts
from cronoq_server.api.admin_api import AdminApi
from cronoq_server.api.admin_service import AdminService
from cronoq_server.api.auth import Authenticator, Principal
from cronoq_server.api.errors import PROTOCOL_METADATA
from cronoq_server.api.passing import missing_metadata, missing_shards
from cronoq_server.api.rpc import Body, Context, caller, service_handler
from cronoq_server.api.service import Service
from cronoq_server.api.specs import SpecReader
from cronoq_server.api.worker_stream import WorkApi
from cronoq_server.engine import BulkAction, ErrorReason, SubmitMode
from cronoq_server.runtime.refusals import Refused
from cronoq_server.runtime.watchers import WatchFilter


class TasksApi:
    """`cronoq.v1.Tasks`."""

    def __init__(self, service: Service, reader: SpecReader) -> None:
        self._service = service
        self._reader = reader
        self._bytes_max = service.limits.max_message_bytes

    def bodies(self) -> Mapping[str, Body]:
        """The methods by their names in the contract."""
        return {
            "Submit": self.submit,
            "SubmitBatch": self.submit_batch,
            "SubmitMany": self.submit_many,
            "Cancel": self.cancel,
            "Retry": self.retry,
            "Delete": self.delete,
            "Bulk": self.bulk,
            "Get": self.get,
            "Describe": self.describe,
            "ListTasks": self.list_tasks,
            "Wait": self.wait,
            "WaitMany": self.wait_many,
            "Watch": self.watch,
            "WatchBatches": self.watch_batches,
        }

    async def submit(
        self, request: tasks_pb2.SubmitRequest, context: Context
    ) -> tasks_pb2.SubmitResponse:
        """Admits one task, and waits for its end if asked to."""
        who, spec = caller(context), self._reader.read(request.task)
        wished = request.wait_timeout_s if request.HasField("wait_timeout_s") else None
        timeout = convert.read_wait(wished, "wait_timeout_s", self._service.limits.max_wait_s)
        remaining = context.time_remaining()
        admitted = await self._service.submit(who, [spec], SubmitMode.ONE, remaining)
        response = tasks_pb2.SubmitResponse(id=admitted.ids[0])
        response.duplicate = bool(admitted.duplicates)
        if request.wait:
            await self._add_result(who, response, timeout)
        return response

    async def _add_result(
        self, who: Principal, response: tasks_pb2.SubmitResponse, timeout: int
    ) -> None:
        try:
            result = await self._service.wait(who, response.id, timeout)
        except Refused as refused:
            if refused.refusal.reason is not ErrorReason.WAIT_TIMEOUT:
                raise
        else:
            convert.fill_result(response.result, result)

    async def submit_batch(
        self, request: tasks_pb2.SubmitBatchRequest, context: Context
    ) -> tasks_pb2.SubmitBatchResponse:
        """Admits all or none."""
        specs = self._reader.read_batch(request.tasks, request.ByteSize())
        remaining = context.time_remaining()
        admitted = await self._service.submit(caller(context), specs, SubmitMode.BATCH, remaining)
        return convert.submit_batch_response(admitted)

    async def submit_many(
        self, request: tasks_pb2.SubmitManyRequest, context: Context
    ) -> tasks_pb2.SubmitManyResponse:
        """Admits each on its own."""
        specs = self._reader.read_many(request.tasks, request.ByteSize())
        admitted, refused = await self._service.submit_many(caller(context), specs)
        return convert.submit_many_response(admitted, refused)

    async def cancel(
        self, request: tasks_pb2.CancelRequest, context: Context
    ) -> tasks_pb2.CancelResponse:
        """Ends a task."""
        target = self._reader.reference(request.task)
        cancelled = await self._service.cancel(caller(context), target)
        return tasks_pb2.CancelResponse(cancelled=cancelled)

    async def retry(
        self, request: tasks_pb2.RetryRequest, context: Context
    ) -> tasks_pb2.RetryResponse:
        """Puts an ended task back."""
        target = self._reader.reference(request.task)
        retried = await self._service.retry(caller(context), target)
        return tasks_pb2.RetryResponse(retried=retried)

    async def delete(
        self, request: tasks_pb2.DeleteRequest, context: Context
    ) -> tasks_pb2.DeleteResponse:
        """Forgets an ended task."""
        target = self._reader.reference(request.task)
        deleted = await self._service.delete(caller(context), target)
        return tasks_pb2.DeleteResponse(deleted=deleted)

    async def bulk(
        self, request: tasks_pb2.BulkRequest, context: Context
    ) -> tasks_pb2.BulkResponse:
        """Cancels or redrives one page of tasks."""
        action = texts.choice(request.action, tuple(BulkAction), "action")
        done = await self._service.bulk(
            caller(context),
            convert.read_filter(request.filter, self._reader),
            BulkAction(action),
            after=request.after,
            limit=request.limit,
            dry_run=request.dry_run,
        )
        return tasks_pb2.BulkResponse(
            matched=done.matched,
            changed=done.changed,
            next_after=done.next_after,
            unavailable_shards=missing_shards(),
        )

    async def get(self, request: tasks_pb2.GetRequest, context: Context) -> task_pb2.TaskInfo:
        """Shows a task."""
        target = self._reader.reference(request.task)
        response = task_pb2.TaskInfo()
        convert.fill_info(response, await self._service.get(caller(context), target))
        return response

    async def describe(
        self, request: tasks_pb2.GetRequest, context: Context
    ) -> task_pb2.TaskDetail:
        """Shows everything known of a task."""
        target = self._reader.reference(request.task)
        detail = await self._service.describe(caller(context), target)
        return convert.detail_response(detail, self._bytes_max)

    async def list_tasks(
        self, request: tasks_pb2.ListTasksRequest, context: Context
    ) -> tasks_pb2.ListTasksResponse:
        """One page of tasks."""
        page = await self._service.list_tasks(
            caller(context),
            convert.read_filter(request, self._reader),
            after=request.after,
            limit=request.limit,
            newest_first=request.newest_first,
        )
        response = convert.list_response(page, self._bytes_max)
        response.unavailable_shards.extend(missing_shards())
        return response

    async def wait(self, request: tasks_pb2.WaitRequest, context: Context) -> task_pb2.TaskResult:
        """Waits for one task."""
        target = self._reader.reference(request.task)
        wished = request.timeout_s if request.HasField("timeout_s") else None
        timeout = convert.read_wait(wished, "timeout_s", self._service.limits.max_wait_s)
        response = task_pb2.TaskResult()
        convert.fill_result(response, await self._service.wait(caller(context), target, timeout))
        return response

    async def wait_many(self, request: tasks_pb2.WaitManyRequest, context: Context) -> None:
        """Streams the results of many tasks."""
        ids, keys = convert.read_references(request, self._reader)
        wished = request.timeout_s if request.HasField("timeout_s") else None
        timeout = convert.read_wait(wished, "timeout_s", self._service.limits.max_wait_s)
        outputs = not request.without_output
        ends = self._service.wait_many(caller(context), ids, keys, timeout, outputs=outputs)
        async with aclosing(ends) as stream:
            async for results in stream:
                for message in convert.result_messages(
                    results.results, self._bytes_max, with_output=outputs
                ):
                    await context.write(message)
                for message in convert.error_messages(results.refusals):
                    await context.write(message)

    async def watch(self, request: tasks_pb2.WatchRequest, context: Context) -> None:
        """Streams status events, one per message."""
        await self._watch(request, context, batches=False)

    async def watch_batches(self, request: tasks_pb2.WatchRequest, context: Context) -> None:
        """Streams status events, many per message."""
        await self._watch(request, context, batches=True)

    async def _watch(
        self, request: tasks_pb2.WatchRequest, context: Context, *, batches: bool
    ) -> None:
        ids, keys = convert.read_references(request, self._reader)
        pools = tuple(texts.name(pool, "pools") for pool in request.pools)
        wanted = WatchFilter(pools, ids, keys, request.all_transitions)
        with self._service.gate.stream():
            stream = await self._service.watch(
                caller(context), wanted, request.after_cursor, bookmarks=request.bookmarks
            )
            try:
                for _, refusal in stream.refusals:
                    raise Refused(refusal)
                await context.send_initial_metadata((*PROTOCOL_METADATA, *missing_metadata()))
                async for batch in stream:
                    messages = (
                        convert.event_messages(
                            batch, self._bytes_max, with_cursors=request.bookmarks
                        )
                        if batches
                        else convert.single_events(batch, with_cursors=request.bookmarks)
                    )
                    for message in messages:
                        await context.write(message)
            finally:
                await stream.aclose()


class WorkersApi:
    """`cronoq.v1.Workers`."""

    def __init__(self, service: Service, reader: SpecReader) -> None:
        self._service = service
        self._work = WorkApi(service, reader)

    def bodies(self) -> Mapping[str, Body]:
        """The methods by their names in the contract."""
        return {"Work": self.work, "GetOutput": self.get_output}

    async def work(self, _requests: object, context: Context) -> None:
        """One worker's session."""
        await self._work.serve(caller(context), context)

    async def get_output(
        self, request: workers_pb2.GetOutputRequest, context: Context
    ) -> workers_pb2.Output:
        """The output of a parent."""
        result = await self._service.get_output(caller(context), request.lease, request.task_id)
        return convert.output_response(result)


def all_handlers(
    service: Service, admin_service: AdminService, reader: SpecReader, authenticator: Authenticator
) -> list[grpc.GenericRpcHandler]:
    """The handlers of all services of the contract."""
    tasks, workers = TasksApi(service, reader), WorkersApi(service, reader)
    admin = AdminApi(admin_service, reader)
    return [
        service_handler(tasks_pb2.DESCRIPTOR, "Tasks", tasks.bodies(), authenticator),
        service_handler(workers_pb2.DESCRIPTOR, "Workers", workers.bodies(), authenticator),
        service_handler(admin_pb2.DESCRIPTOR, "Admin", admin.bodies(), authenticator),
    ]
