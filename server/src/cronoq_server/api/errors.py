"""How a refusal looks outside: THE table from reason to gRPC and HTTP status.

Every reason has exactly one row; a test holds the table complete. Transports build their errors
from here and know no status of their own.
"""

from __future__ import annotations

from typing import Any, NamedTuple, NoReturn

import grpc
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from cronoq_server.engine import ErrorReason, Refusal

DOMAIN = "cronoq"
PROTOCOL = 4
"""The newest version of the worker protocol that this server speaks."""

PROTOCOL_METADATA = (("cronoq-protocol", str(PROTOCOL)),)
TEXT_MAX = 512
"""Characters of a message or detail that travel: details share the trailing metadata's 8 KiB."""


class StatusPair(NamedTuple):
    """One reason's status in both transports."""

    grpc: grpc.StatusCode
    http: int


_INVALID = StatusPair(grpc.StatusCode.INVALID_ARGUMENT, 400)
_UNAUTHENTICATED = StatusPair(grpc.StatusCode.UNAUTHENTICATED, 401)
_DENIED = StatusPair(grpc.StatusCode.PERMISSION_DENIED, 403)
_NOT_FOUND = StatusPair(grpc.StatusCode.NOT_FOUND, 404)
_PRECONDITION = StatusPair(grpc.StatusCode.FAILED_PRECONDITION, 409)
_DATA_LOSS = StatusPair(grpc.StatusCode.DATA_LOSS, 410)
_EXHAUSTED = StatusPair(grpc.StatusCode.RESOURCE_EXHAUSTED, 429)
_INTERNAL = StatusPair(grpc.StatusCode.INTERNAL, 500)
_UNIMPLEMENTED = StatusPair(grpc.StatusCode.UNIMPLEMENTED, 501)
_UNAVAILABLE = StatusPair(grpc.StatusCode.UNAVAILABLE, 503)
_TIMEOUT = StatusPair(grpc.StatusCode.DEADLINE_EXCEEDED, 504)

STATUSES: dict[ErrorReason, StatusPair] = {
    ErrorReason.INVALID_FIELD: _INVALID,
    ErrorReason.FIELD_CONFLICT: _INVALID,
    ErrorReason.TOO_LARGE: _INVALID,
    ErrorReason.CYCLE: _INVALID,
    ErrorReason.DUPLICATE_KEY_IN_BATCH: _INVALID,
    ErrorReason.BATCH_TOO_LARGE: _INVALID,
    ErrorReason.RESOURCE_UNKNOWN: _INVALID,
    ErrorReason.RESOURCE_EXCEEDS_CAPACITY: _INVALID,
    ErrorReason.CROSS_SHARD_DEPENDENCY: _INVALID,
    ErrorReason.CROSS_SHARD_BATCH: _INVALID,
    ErrorReason.CROSS_SHARD_RESOURCE: _INVALID,
    ErrorReason.CRON_INVALID: _INVALID,
    ErrorReason.CRON_NEVER_FIRES: _INVALID,
    ErrorReason.ZONE_UNKNOWN: _INVALID,
    ErrorReason.UNAUTHENTICATED: _UNAUTHENTICATED,
    ErrorReason.ROLE_NOT_ALLOWED: _DENIED,
    ErrorReason.POOL_NOT_ALLOWED: _DENIED,
    ErrorReason.LABEL_NOT_ALLOWED: _DENIED,
    ErrorReason.TENANT_NOT_ALLOWED: _DENIED,
    ErrorReason.KEY_IN_USE: _PRECONDITION,
    ErrorReason.TASK_UNKNOWN: _NOT_FOUND,
    ErrorReason.POOL_UNKNOWN: _NOT_FOUND,
    ErrorReason.DEPENDENCY_UNKNOWN: _NOT_FOUND,
    ErrorReason.SCHEDULE_UNKNOWN: _NOT_FOUND,
    ErrorReason.RESOURCE_NOT_FOUND: _NOT_FOUND,
    ErrorReason.RESERVATION_CONFLICT: _PRECONDITION,
    ErrorReason.WRONG_SHARD: _PRECONDITION,
    ErrorReason.KEY_AMBIGUOUS: _PRECONDITION,
    ErrorReason.DEPENDENCY_IMPOSSIBLE: _PRECONDITION,
    ErrorReason.NOT_TERMINAL: _PRECONDITION,
    ErrorReason.QUEUE_FULL: _EXHAUSTED,
    ErrorReason.SHED_NONE: _EXHAUSTED,
    ErrorReason.TOO_MANY_REQUESTS: _EXHAUSTED,
    ErrorReason.TOO_MANY_STREAMS: _EXHAUSTED,
    ErrorReason.RATE_LIMITED: _EXHAUSTED,
    ErrorReason.NOT_LEADER: _UNAVAILABLE,
    ErrorReason.STOPPING: _UNAVAILABLE,
    ErrorReason.STORE_UNAVAILABLE: _UNAVAILABLE,
    ErrorReason.SHARD_UNAVAILABLE: _UNAVAILABLE,
    ErrorReason.WAIT_TIMEOUT: _TIMEOUT,
    ErrorReason.WATCH_TOO_SLOW: _DATA_LOSS,
    ErrorReason.CURSOR_UNKNOWN: _DATA_LOSS,
    ErrorReason.UNSUPPORTED: _UNIMPLEMENTED,
    ErrorReason.IDS_EXHAUSTED: _INTERNAL,
    ErrorReason.INTERNAL: _INTERNAL,
}

DEFECT = Refusal(ErrorReason.INTERNAL, "the server failed; its log has the cause")
"""What a caller is told of a defect: nothing that it could act on."""

FOREIGN_KEY_IN_USE = _DENIED
"""A submit whose key belongs to a task in a pool that its caller may not use."""


def status_of(refusal: Refusal, *, submitting: bool = False) -> StatusPair:
    """The status that a refusal comes with.

    Args:
        refusal: What was refused.
        submitting: Whether a submission was: a key in use is foreign then.
    """
    if submitting and refusal.reason is ErrorReason.KEY_IN_USE:
        return FOREIGN_KEY_IN_USE
    return STATUSES[refusal.reason]


def to_status(refusal: Refusal, *, submitting: bool = False) -> status_pb2.Status:
    """The `google.rpc.Status` of a refusal, with its reason machine-readably in the details."""
    code: int = status_of(refusal, submitting=submitting).grpc.value[0]
    status = status_pb2.Status(code=code, message=_cut(refusal.message))
    status.details.add().Pack(
        error_details_pb2.ErrorInfo(
            reason=refusal.reason.name,
            domain=DOMAIN,
            metadata={name: _cut(value) for name, value in refusal.details},
        )
    )
    return status


async def abort(
    context: grpc.aio.ServicerContext[Any, Any],
    refusal: Refusal,
    *,
    submitting: bool = False,
) -> NoReturn:
    """Ends a call with a refusal."""
    status = rpc_status.to_status(to_status(refusal, submitting=submitting))
    metadata = (*PROTOCOL_METADATA, *directions(refusal), *status.trailing_metadata)
    await context.abort(status.code, status.details, metadata)
    raise AssertionError("abort does not return")


def directions(refusal: Refusal) -> tuple[tuple[str, str], ...]:
    """The metadata, or headers, that lead a caller to the shard which owns what it asked for."""
    if refusal.reason is not ErrorReason.WRONG_SHARD:
        return ()
    details = dict(refusal.details)
    names = {"shard": "cronoq-shard", "endpoint": "cronoq-shard-endpoint"}
    return tuple((key, details[name]) for name, key in names.items() if name in details)


def _cut(text: str) -> str:
    return text if len(text) <= TEXT_MAX else text[: TEXT_MAX - 1] + "…"
