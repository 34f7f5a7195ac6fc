"""How refusals look outside."""

from __future__ import annotations

import grpc
import pytest
from google.rpc import error_details_pb2

from cronoq_server._proto import errors_pb2
from cronoq_server.api import errors
from cronoq_server.engine import ErrorReason, Refusal


def test_every_reason_has_a_row() -> None:
    """The table is complete and knows nothing else."""
    assert set(errors.STATUSES) == set(ErrorReason)


def test_reasons_are_those_of_the_contract() -> None:
    """The engine's reasons and the proto file's are one list."""
    names = {
        name.removeprefix("ERROR_REASON_")
        for name in errors_pb2.ErrorReason.DESCRIPTOR.values_by_name
    }
    assert {reason.name for reason in ErrorReason} == names - {"UNSPECIFIED"}


@pytest.mark.parametrize("reason", ErrorReason)
def test_statuses_agree(reason: ErrorReason) -> None:
    """The gRPC and the HTTP status of a reason say the same thing."""
    same = {
        grpc.StatusCode.INVALID_ARGUMENT: 400,
        grpc.StatusCode.UNAUTHENTICATED: 401,
        grpc.StatusCode.PERMISSION_DENIED: 403,
        grpc.StatusCode.NOT_FOUND: 404,
        grpc.StatusCode.FAILED_PRECONDITION: 409,
        grpc.StatusCode.DATA_LOSS: 410,
        grpc.StatusCode.RESOURCE_EXHAUSTED: 429,
        grpc.StatusCode.INTERNAL: 500,
        grpc.StatusCode.UNIMPLEMENTED: 501,
        grpc.StatusCode.UNAVAILABLE: 503,
        grpc.StatusCode.DEADLINE_EXCEEDED: 504,
    }
    row = errors.STATUSES[reason]
    assert row.http == same[row.grpc]


def test_reason_travels_machine_readably() -> None:
    """The status details hold the reason, the domain and the facts."""
    refusal = Refusal(ErrorReason.QUEUE_FULL, "no room", (("pool", "default"),))
    status = errors.to_status(refusal)
    assert (status.code, status.message) == (8, "no room")
    info = error_details_pb2.ErrorInfo()
    assert status.details[0].Unpack(info)
    assert (info.reason, info.domain, dict(info.metadata)) == (
        "QUEUE_FULL",
        "cronoq",
        {"pool": "default"},
    )


def test_foreign_key_is_denied_when_submitting_only() -> None:
    """A key in use means another thing for a submit than for a redrive."""
    refusal = Refusal(ErrorReason.KEY_IN_USE, "taken")
    assert errors.status_of(refusal).grpc is grpc.StatusCode.FAILED_PRECONDITION
    submitting = errors.status_of(refusal, submitting=True)
    assert submitting.grpc is grpc.StatusCode.PERMISSION_DENIED


def test_long_facts_are_cut() -> None:
    """Trailing metadata is small, so neither message nor details may be long."""
    refusal = Refusal(ErrorReason.CYCLE, "x" * 100_000, (("path", "y" * 100_000),))
    assert errors.to_status(refusal).ByteSize() < 2048
