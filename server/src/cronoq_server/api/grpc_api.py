"""The gRPC services: each method reads its request, asks the service, writes its answer.

The list of methods is the contract's own: a method of the descriptor that has no body here answers
`unsupported`. Refusals become statuses in one place, around every body.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias

import grpc
import msgspec
from google.protobuf import message_factory
from google.protobuf.descriptor import FileDescriptor, MethodDescriptor
from google.protobuf.message import DecodeError, Message

from cronoq_server._proto import admin_pb2, task_pb2, tasks_pb2, workers_pb2
from cronoq_server.api import convert, texts
from cronoq_server.api.errors import PROTOCOL_METADATA, abort
from cronoq_server.api.service import ANONYMOUS, Principal, Service
from cronoq_server.api.specs import SpecReader
from cronoq_server.api.worker_stream import WorkApi
from cronoq_server.engine import ErrorReason, Refusal, SubmitMode
from cronoq_server.runtime.refusals import Refused
from cronoq_server.runtime.watchers import WatchFilter

Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]
Body: TypeAlias = Callable[[Any, Context], Awaitable[Any]]

SUBMITS = frozenset({"Submit", "SubmitBatch", "SubmitMany"})


class Malformed(msgspec.Struct, frozen=True):
    """Stands for a request that is not what it should be.

    Attributes:
        expected: The name of the message that was expected.
    """

    expected: str


class TasksApi:
    """`cronoq.v1.Tasks`."""

    def __init__(self, service: Service, reader: SpecReader) -> None:
        self._service = service
        self._reader = reader
        self._limits = service.limits
        self._bytes_max = service.limits.max_message_bytes

    def bodies(self) -> Mapping[str, Body]:
        """The methods by their names in the contract."""
        return {
            "Submit": self.submit,
            "SubmitBatch": self.submit_batch,
            "SubmitMany": self.submit_many,
            "Cancel": self.cancel,
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
        who, spec = _caller(context), self._reader.read(request.task)
        wished = request.wait_timeout_s if request.HasField("wait_timeout_s") else None
        timeout = convert.read_wait(wished, "wait_timeout_s", self._limits.max_wait_s)
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
        admitted = await self._service.submit(_caller(context), specs, SubmitMode.BATCH, remaining)
        return convert.submit_batch_response(admitted)

    async def submit_many(
        self, request: tasks_pb2.SubmitManyRequest, context: Context
    ) -> tasks_pb2.SubmitManyResponse:
        """Admits each on its own."""
        specs = self._reader.read_many(request.tasks, request.ByteSize())
        admitted, refused = await self._service.submit_many(_caller(context), specs)
        return convert.submit_many_response(admitted, refused)

    async def cancel(
        self, request: tasks_pb2.CancelRequest, context: Context
    ) -> tasks_pb2.CancelResponse:
        """Ends a task."""
        target = self._reader.reference(request.task)
        cancelled = await self._service.cancel(_caller(context), target)
        return tasks_pb2.CancelResponse(cancelled=cancelled)

    async def get(self, request: tasks_pb2.GetRequest, context: Context) -> task_pb2.TaskInfo:
        """Shows a task."""
        target = self._reader.reference(request.task)
        response = task_pb2.TaskInfo()
        convert.fill_info(response, await self._service.get(_caller(context), target))
        return response

    async def describe(
        self, request: tasks_pb2.GetRequest, context: Context
    ) -> task_pb2.TaskDetail:
        """Shows everything known of a task."""
        target = self._reader.reference(request.task)
        detail = await self._service.describe(_caller(context), target)
        return convert.detail_response(detail, self._bytes_max)

    async def list_tasks(
        self, request: tasks_pb2.ListTasksRequest, context: Context
    ) -> tasks_pb2.ListTasksResponse:
        """One page of tasks."""
        page = await self._service.list_tasks(
            _caller(context),
            convert.read_filter(request, self._reader),
            after=request.after,
            limit=request.limit,
            newest_first=request.newest_first,
        )
        return convert.list_response(page, self._bytes_max)

    async def wait(self, request: tasks_pb2.WaitRequest, context: Context) -> task_pb2.TaskResult:
        """Waits for one task."""
        target = self._reader.reference(request.task)
        wished = request.timeout_s if request.HasField("timeout_s") else None
        timeout = convert.read_wait(wished, "timeout_s", self._limits.max_wait_s)
        response = task_pb2.TaskResult()
        convert.fill_result(response, await self._service.wait(_caller(context), target, timeout))
        return response

    async def wait_many(self, request: tasks_pb2.WaitManyRequest, context: Context) -> None:
        """Streams the results of many tasks."""
        ids, keys = convert.read_references(request, self._reader)
        wished = request.timeout_s if request.HasField("timeout_s") else None
        timeout = convert.read_wait(wished, "timeout_s", self._limits.max_wait_s)
        outputs = not request.without_output
        async for results in self._service.wait_many(
            _caller(context), ids, keys, timeout, outputs=outputs
        ):
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
                _caller(context), wanted, request.after_cursor, bookmarks=request.bookmarks
            )
            try:
                for _, refusal in stream.refusals:
                    raise Refused(refusal)
                await context.send_initial_metadata(PROTOCOL_METADATA)
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


class AdminApi:
    """`cronoq.v1.Admin`, as far as there is something to administer."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def bodies(self) -> Mapping[str, Body]:
        """The methods by their names in the contract."""
        return {"Snapshot": self.snapshot, "ListWorkers": self.list_workers}

    async def snapshot(
        self, _request: task_pb2.Empty, context: Context
    ) -> admin_pb2.SnapshotResponse:
        """Counts of all pools."""
        view, now = await self._service.snapshot(_caller(context))
        return convert.snapshot_response(view, now)

    async def list_workers(
        self, _request: task_pb2.Empty, context: Context
    ) -> admin_pb2.ListWorkersResponse:
        """The connected sessions."""
        return convert.workers_response(await self._service.list_workers(_caller(context)))


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
        await self._work.serve(_caller(context), context)

    async def get_output(
        self, request: workers_pb2.GetOutputRequest, context: Context
    ) -> workers_pb2.Output:
        """The output of a parent."""
        result = await self._service.get_output(_caller(context), request.lease, request.task_id)
        return convert.output_response(result)


def all_handlers(service: Service, reader: SpecReader) -> list[grpc.GenericRpcHandler]:
    """The handlers of all services of the contract."""
    return [
        _handler(tasks_pb2.DESCRIPTOR, "Tasks", TasksApi(service, reader).bodies()),
        _handler(workers_pb2.DESCRIPTOR, "Workers", WorkersApi(service, reader).bodies()),
        _handler(admin_pb2.DESCRIPTOR, "Admin", AdminApi(service).bodies()),
    ]


def _caller(_context: Context) -> Principal:
    """Who calls: everybody, as long as there is no authentication."""
    return ANONYMOUS


def _handler(file: FileDescriptor, name: str, bodies: Mapping[str, Body]) -> grpc.GenericRpcHandler:
    service = file.services_by_name[name]
    methods = {method.name: _method(method, bodies.get(method.name)) for method in service.methods}
    return grpc.method_handlers_generic_handler(service.full_name, methods)


def _method(method: MethodDescriptor, body: Body | None) -> grpc.RpcMethodHandler[Any, Any]:
    build: Any = {
        (False, False): grpc.unary_unary_rpc_method_handler,
        (False, True): grpc.unary_stream_rpc_method_handler,
        (True, True): grpc.stream_stream_rpc_method_handler,
    }[method.client_streaming, method.server_streaming]
    handler: grpc.RpcMethodHandler[Any, Any] = build(
        _guarded(body or _unsupported, submitting=method.name in SUBMITS),
        request_deserializer=parser(message_factory.GetMessageClass(method.input_type)),
        response_serializer=message_factory.GetMessageClass(method.output_type).SerializeToString,
    )
    return handler


def parser(message: type[Message]) -> Callable[[bytes], Message | Malformed]:
    """Parses messages; bytes that are none become `Malformed`, so that the caller hears why."""
    from_string = message.FromString
    malformed = Malformed(message.DESCRIPTOR.full_name)

    def parse(content: bytes) -> Message | Malformed:
        try:
            return from_string(content)
        except DecodeError:
            return malformed

    return parse


def _guarded(body: Body, *, submitting: bool) -> Body:
    """Around every body: the protocol's number, requests that are none, refusals."""

    async def call(request: Any, context: Context) -> Any:
        context.set_trailing_metadata(PROTOCOL_METADATA)
        try:
            if type(request) is Malformed:
                raise Refused(malformed(request))
            return await body(request, context)
        except Refused as refused:
            await abort(context, refused.refusal, submitting=submitting)

    return call


def malformed(request: Malformed) -> Refusal:
    """Why a message that can't be read is refused."""
    text = f"the message is not a valid {request.expected} (texts must be UTF-8)"
    return Refusal(ErrorReason.INVALID_FIELD, text, (("message", request.expected),))


async def _unsupported(_request: Any, _context: Context) -> None:
    raise Refused(Refusal(ErrorReason.UNSUPPORTED, "this server does not offer this call"))
