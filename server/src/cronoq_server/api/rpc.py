"""How a method of the contract becomes a gRPC handler: who calls, parsing, refusals, statuses.

Around every body its caller is identified, and held against the role that the method needs, before
anybody looks at what the request says. The list of methods is the contract's own: a method of the
descriptor without a body answers `unsupported`. Refusals become statuses in one place, around every
body.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from typing import Any, TypeAlias

import grpc
import msgspec
from google.protobuf import message_factory
from google.protobuf.descriptor import FileDescriptor, MethodDescriptor
from google.protobuf.message import DecodeError, Message

from cronoq_server.api import audit
from cronoq_server.api.auth import (
    ANONYMOUS,
    UNAUTHENTICATED,
    Authenticator,
    Operation,
    Principal,
    require,
)
from cronoq_server.api.errors import PROTOCOL_METADATA, abort
from cronoq_server.api.passing import FORWARDED_KEY, Passing, current, missing_metadata
from cronoq_server.engine import ErrorReason, Refusal
from cronoq_server.runtime.refusals import Refused

Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]
Body: TypeAlias = Callable[[Any, Context], Awaitable[Any]]

log = logging.getLogger(__name__)

LARGE_BYTES = 256 * 1024
"""Messages up to this size are parsed without a look at how many members they have."""

MEMBERS_MAX = 10_000
"""Most members of a batch that any configuration allows."""

OPERATIONS: dict[str, Operation] = {
    "Submit": Operation.SUBMIT,
    "SubmitBatch": Operation.SUBMIT,
    "SubmitMany": Operation.SUBMIT,
    "Cancel": Operation.CANCEL,
    "Retry": Operation.RETRY,
    "Delete": Operation.DELETE,
    "Bulk": Operation.BULK,
    "Get": Operation.GET,
    "Describe": Operation.DESCRIBE,
    "ListTasks": Operation.LIST_TASKS,
    "Wait": Operation.WAIT,
    "WaitMany": Operation.WAIT,
    "Watch": Operation.WATCH,
    "WatchBatches": Operation.WATCH,
    "Work": Operation.WORK,
    "GetOutput": Operation.GET_OUTPUT,
    "Snapshot": Operation.SNAPSHOT,
    "ListWorkers": Operation.LIST_WORKERS,
    "ListPools": Operation.LIST_POOLS,
    "ListResources": Operation.LIST_RESOURCES,
    "ListRecurring": Operation.LIST_SCHEDULES,
    "GetRecurring": Operation.GET_SCHEDULE,
    "PreviewRecurring": Operation.PREVIEW_SCHEDULE,
    "AddRecurring": Operation.PUT_SCHEDULE,
    "RemoveRecurring": Operation.REMOVE_SCHEDULE,
    "PauseRecurring": Operation.PAUSE_SCHEDULE,
    "TriggerRecurring": Operation.TRIGGER_SCHEDULE,
    "BackfillRecurring": Operation.BACKFILL_SCHEDULE,
    "PausePool": Operation.PAUSE_POOL,
    "ResumePool": Operation.PAUSE_POOL,
    "SetResource": Operation.SET_RESOURCE,
    "Advance": Operation.MOVE_CLOCK,
    "Settle": Operation.MOVE_CLOCK,
}
"""What each method of the contract does, as far as permission goes; none may be missing."""

SUBMITS = frozenset({"Submit", "SubmitBatch", "SubmitMany", "AddRecurring"})
"""Calls for which a key or a name in use is one of a pool that the caller may not use."""


class Malformed(msgspec.Struct, frozen=True):
    """Stands for a request that is not what it should be.

    Attributes:
        expected: The name of the message that was expected.
    """

    expected: str


Parse: TypeAlias = Callable[[bytes], Message | Malformed]


_caller: ContextVar[Principal] = ContextVar("caller", default=ANONYMOUS)
"""Who makes the call that this task, or one that it began, is serving."""


def caller(_context: Context) -> Principal:
    """Who makes this call."""
    return _caller.get()


def service_handler(
    file: FileDescriptor, name: str, bodies: Mapping[str, Body], authenticator: Authenticator
) -> grpc.GenericRpcHandler:
    """The handler of one service, with a body for each method that is offered."""
    service = file.services_by_name[name]
    methods = {
        method.name: _method(method, bodies.get(method.name), authenticator)
        for method in service.methods
    }
    return grpc.method_handlers_generic_handler(service.full_name, methods)


def _method(
    method: MethodDescriptor, body: Body | None, authenticator: Authenticator
) -> grpc.RpcMethodHandler[Any, Any]:
    build: Any = {
        (False, False): grpc.unary_unary_rpc_method_handler,
        (False, True): grpc.unary_stream_rpc_method_handler,
        (True, True): grpc.stream_stream_rpc_method_handler,
    }[method.client_streaming, method.server_streaming]
    parse = parser(message_factory.GetMessageClass(method.input_type))
    handler: grpc.RpcMethodHandler[Any, Any] = build(
        _guarded(body or _unsupported, method, authenticator, parse),
        # A single message is parsed once its sender is known; a stream's are read after that.
        request_deserializer=parse if method.client_streaming else None,
        response_serializer=message_factory.GetMessageClass(method.output_type).SerializeToString,
    )
    return handler


def parser(message: type[Message]) -> Parse:
    """Parses messages; bytes that are none become `Malformed`, so that the caller hears why."""
    from_string = message.FromString
    malformed = Malformed(message.DESCRIPTOR.full_name)
    has_members = "tasks" in message.DESCRIPTOR.fields_by_name

    def parse(content: bytes) -> Message | Malformed:
        if has_members and len(content) > LARGE_BYTES:
            content = content[: end_of_fields(content, MEMBERS_MAX + 1)]
        try:
            return from_string(content)
        except DecodeError:
            return malformed

    return parse


def end_of_fields(content: bytes, most: int) -> int:
    """Where the first `most` fields of a message end; its own end if it has no more.

    Two million tasks without a word fit into 4 MiB. To parse them takes a second and half a
    gigabyte; what is left of such a message is still too much to be admitted, or no message.
    """
    at, size = 0, len(content)
    for _ in range(most):
        if at >= size:
            return size
        tag, at = _varint(content, at)
        match tag & 7:
            case 0:
                _, at = _varint(content, at)
            case 1:
                at += 8
            case 2:
                length, at = _varint(content, at)
                at += length
            case 5:
                at += 4
            case _:
                pass  # a group: what is in it counts like what is not
    return min(at, size)


def _varint(content: bytes, at: int) -> tuple[int, int]:
    """A number at some place, and where it ends."""
    number = shift = 0
    while at < len(content) and shift < 64:
        digit = content[at]
        number |= (digit & 0x7F) << shift
        shift += 7
        at += 1
        if digit < 0x80:
            break
    return number, at


def _guarded(
    body: Body, method: MethodDescriptor, authenticator: Authenticator, parse: Parse
) -> Body:
    """Around every body: the protocol's number, who calls, requests that are none, refusals."""
    submitting, operation = method.name in SUBMITS, OPERATIONS[method.name]
    serve = _held(body, authenticator) if method.server_streaming else body

    async def call(request: Any, context: Context) -> Any:
        context.set_trailing_metadata(PROTOCOL_METADATA)
        try:
            who = identify(authenticator, context)
            require(who, operation)
            _caller.set(who)
            passing = baggage(context)
            current.set(passing)
            audit.origin.set(context.peer())
            message = request if method.client_streaming else parse(request)
            if isinstance(message, Malformed):
                raise Refused(malformed(message))
            answer = await serve(message, context)
            if passing.missing:
                context.set_trailing_metadata((*PROTOCOL_METADATA, *missing_metadata()))
            return answer
        except Refused as refused:
            await abort(context, refused.refusal, submitting=submitting)

    return call


def _held(body: Body, authenticator: Authenticator) -> Body:
    """Around a stream: it ends when its caller's credential is revoked."""

    async def serve(request: Any, context: Context) -> Any:
        task = asyncio.current_task()
        assert task is not None
        with authenticator.holding(caller(context), task.cancel) as hold:
            try:
                return await body(request, context)
            except asyncio.CancelledError:
                if not hold.is_revoked:
                    raise
                task.uncancel()
                log.info(
                    "a stream of %s ended: its credential was revoked",
                    hold.who.name,
                    extra={"action": "stream_revoked", "who": hold.who.name},
                )
                raise Refused(UNAUTHENTICATED) from None

    return serve


def identify(authenticator: Authenticator, context: Context) -> Principal:
    """Who makes a call.

    Raises:
        Refused: It comes without a valid credential.
    """
    if not authenticator.is_on:
        return ANONYMOUS
    authorization = None
    for key, value in context.invocation_metadata() or ():
        if key == "authorization":
            authorization = value if isinstance(value, str) else value.decode("latin-1")
            break
    names = context.auth_context().get("peer_dns", ()) if authorization is None else ()
    return authenticator.identify(authorization, [name.decode("latin-1") for name in names])


def baggage(context: Context) -> Passing:
    """What a call brings along for other servers."""
    authorization, forwarded = None, False
    for key, value in context.invocation_metadata() or ():
        if key == "authorization":
            authorization = value if isinstance(value, str) else value.decode("latin-1")
        elif key == FORWARDED_KEY:
            forwarded = True
    return Passing(authorization, context.time_remaining(), forwarded=forwarded)


def malformed(request: Malformed) -> Refusal:
    """Why a message that can't be read is refused."""
    text = f"the message is not a valid {request.expected} (texts must be UTF-8)"
    return Refusal(ErrorReason.INVALID_FIELD, text, (("message", request.expected),))


async def _unsupported(_request: Any, _context: Context) -> None:
    raise Refused(Refusal(ErrorReason.UNSUPPORTED, "this server does not offer this call"))
