"""How a method of the contract becomes a gRPC handler: parsing, refusals, statuses, who calls.

The list of methods is the contract's own: a method of the descriptor without a body answers
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

from cronoq_server.api.errors import PROTOCOL_METADATA, abort
from cronoq_server.api.service import ANONYMOUS, Principal
from cronoq_server.engine import ErrorReason, Refusal
from cronoq_server.runtime.refusals import Refused

Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]
Body: TypeAlias = Callable[[Any, Context], Awaitable[Any]]

SUBMITS = frozenset({"Submit", "SubmitBatch", "SubmitMany"})


class Malformed(msgspec.Struct, frozen=True):
    """Stands for a request that is not what it should be.

    Attributes:
        expected: The name of the message that was expected.
    """

    expected: str


def caller(_context: Context) -> Principal:
    """Who calls: everybody, as long as there is no authentication."""
    return ANONYMOUS


def service_handler(
    file: FileDescriptor, name: str, bodies: Mapping[str, Body]
) -> grpc.GenericRpcHandler:
    """The handler of one service, with a body for each method that is offered."""
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
