"""A server whose time a test moves, by the process and by the calls that any language can make."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import nullcontext
from typing import Any

import grpc
import pytest
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from cronoq_server import cli
from cronoq_server._proto import task_pb2, tasks_pb2, testing_pb2, testing_pb2_grpc
from cronoq_server.testing import ManualClock
from tests.api.conftest import Edge, reason_of, serving

SCHEDULED = task_pb2.TASK_STATUS_SCHEDULED
READY = task_pb2.TASK_STATUS_READY
HOUR_S = 3600.0


@pytest.fixture
async def still() -> AsyncIterator[Edge]:
    """A server with a test clock."""
    async with serving(clock=ManualClock()) as edge:
        yield edge


def clock_of(edge: Edge) -> Any:
    """The service's stub."""
    return testing_pb2_grpc.TestingStub(edge.channel)


async def test_time_moves_only_by_hand(still: Edge) -> None:
    """A task of three hours hence is ready exactly then."""
    task_id = await still.submit(delay_s=3 * HOUR_S)
    for seconds, status in ((2 * HOUR_S, SCHEDULED), (HOUR_S - 1, SCHEDULED), (1, READY)):
        await clock_of(still).Advance(testing_pb2.AdvanceRequest(seconds=seconds))
        assert await still.status(task_id) == status


async def test_settling_waits_for_what_is_due(still: Edge) -> None:
    """What was handed in before is done when the call returns, and time has not moved."""
    task_id = await still.submit()
    before = (await still.tasks.Get(tasks_pb2.GetRequest(task=task_pb2.TaskRef(id=task_id)))).status
    await clock_of(still).Settle(task_pb2.Empty())
    assert await still.status(task_id) == before == READY


async def test_timeout_of_an_attempt_passes_in_no_time(still: Edge) -> None:
    """A worker hears of the end of its attempt when time has been moved so far."""
    worker = await still.worker()
    task_id = await still.submit(timeout_s=5, retry=task_pb2.RetryPolicy(max_attempts=1))
    (lease,) = await worker.leases(1)
    await clock_of(still).Advance(testing_pb2.AdvanceRequest(seconds=6))
    aborted = await worker.hear("aborts")
    assert [abort.lease for abort in aborted.aborts] == [lease.lease]
    assert await still.status(task_id) == task_pb2.TASK_STATUS_DEAD_LETTERED
    await worker.close()


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.nan, 1e9])
async def test_nonsense_moves_nothing(still: Edge, seconds: float) -> None:
    """Time goes forward, and by a year at most."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await clock_of(still).Advance(testing_pb2.AdvanceRequest(seconds=seconds))
    assert reason_of(caught.value)[0] == "INVALID_FIELD"


async def test_other_servers_have_no_such_service(edge: Edge) -> None:
    """Nobody moves the time of a server that was not started for that."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await clock_of(edge).Settle(task_pb2.Empty())
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_shared_stores_have_no_test_clock(capsys: pytest.CaptureFixture[str]) -> None:
    """Their leases pass by the time of the machine."""
    arguments = ["--check", "--test-clock", "--store", "sqlite:q.db"]
    assert cli.main(arguments) == cli.WRONG_CONFIG
    assert "--test-clock: does not go with a sqlite store" in capsys.readouterr().err
    assert cli.main(["--check", "--test-clock"]) == cli.OK


async def test_service_is_shown_where_time_stands_still(still: Edge) -> None:
    """Reflection and health know it there, and nowhere else."""
    for edge, is_there in ((still, True), (None, False)):
        async with serving() if edge is None else nullcontext(edge) as asked:
            stub: Any = reflection_pb2_grpc.ServerReflectionStub(asked.channel)
            request = reflection_pb2.ServerReflectionRequest(list_services="")
            call = stub.ServerReflectionInfo(iter([request]))
            shown = (await call.read()).list_services_response.service
            assert ("cronoq.v1.Testing" in {one.name for one in shown}) is is_there
            call.cancel()


async def test_only_operators_move_time() -> None:
    """Where there are credentials, the clock is for the role admin."""
    tokens = "".join(
        f"[[auth.tokens]]\ntoken = 'a-token-of-{role}'\nrole = '{role}'\n"
        for role in ("admin", "client")
    )
    async with serving(tokens, clock=ManualClock()) as edge:
        ends = {}
        for role in ("admin", "client", "nobody"):
            metadata = (("authorization", f"Bearer a-token-of-{role}"),)
            try:
                await clock_of(edge).Settle(task_pb2.Empty(), metadata=metadata)
                ends[role] = "OK"
            except grpc.aio.AioRpcError as error:
                ends[role] = reason_of(error)[0]
        assert ends == {"admin": "OK", "client": "ROLE_NOT_ALLOWED", "nobody": "UNAUTHENTICATED"}
