"""What a peer's error means: the same refusal as if it had been given here."""

from __future__ import annotations

import grpc
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from cronoq_server.engine.model import ErrorReason, Refusal
from cronoq_server.sharding.topology import Shard


def reason_of(error: grpc.aio.AioRpcError) -> ErrorReason | None:
    """The reason that a server gave; None if it gave none."""
    status = _status_of(error)
    found = None if status is None else read_status(status)
    return None if found is None else found.reason


def read_status(status: status_pb2.Status) -> Refusal | None:
    """The refusal that a status holds; None if it holds none that is known here."""
    for detail in status.details:
        if not detail.Is(error_details_pb2.ErrorInfo.DESCRIPTOR):
            continue
        entry = error_details_pb2.ErrorInfo()
        detail.Unpack(entry)
        if entry.reason in ErrorReason.__members__:
            details = tuple(sorted(entry.metadata.items()))
            return Refusal(ErrorReason[entry.reason], status.message, details)
    return None


def refusal_of(error: grpc.aio.AioRpcError, shard: Shard) -> Refusal:
    """What a caller is told when a call that was passed on failed.

    Args:
        error: How it failed.
        shard: Where.
    """
    status = _status_of(error)
    found = None if status is None else read_status(status)
    if found is not None and found.reason not in (ErrorReason.NOT_LEADER, ErrorReason.STOPPING):
        return found
    if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
        message = f"shard {shard.name!r} did not answer in time; the outcome is unknown"
    elif error.code() is grpc.StatusCode.UNAUTHENTICATED:
        return Refusal(ErrorReason.UNAUTHENTICATED, "a shard did not accept the credential")
    else:
        message = f"shard {shard.name!r} can't be reached; the outcome of a change is unknown"
    return Refusal(ErrorReason.SHARD_UNAVAILABLE, message, (("shard", shard.name),))


def _status_of(error: grpc.aio.AioRpcError) -> status_pb2.Status | None:
    try:
        status: status_pb2.Status | None = rpc_status.from_call(error)
    except ValueError:  # the details contradict the status: somebody in between changed it
        return None
    return status
