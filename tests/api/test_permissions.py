"""Who may do what: every cell of role × pool × method, over a real connection."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2

from cronoq_server._proto import admin_pb2, task_pb2, tasks_pb2, workers_pb2
from cronoq_server.api.auth import PERMISSIONS, Operation, Role
from cronoq_server.api.rpc import OPERATIONS
from tests.api.conftest import Edge, joining, reason_of, serving
from tests.api.permissions import (
    ADMIN,
    CONFIG,
    CREDENTIALS,
    NOWHERE,
    TARGETS,
    Credential,
    Target,
    Transport,
    expected,
    methods,
)

RESOURCE = "[[resources]]\nname = 'gpu'\npermits = 1\n"
_numbers = itertools.count()


def bearer(token: str | None) -> tuple[tuple[str, str], ...]:
    """The metadata of a call with a token."""
    return () if token is None else (("authorization", f"Bearer {token}"),)


def key(name: str) -> task_pb2.TaskRef:
    """Names a task."""
    return task_pb2.TaskRef(key=name)


def request(method: str, target: Target) -> Any:
    """What a method is asked about a target."""
    spec = task_pb2.TaskSpec(pool=target.pool)
    pools = [target.pool]
    requests: dict[str, Any] = {
        "Submit": lambda: tasks_pb2.SubmitRequest(task=spec),
        "SubmitBatch": lambda: tasks_pb2.SubmitBatchRequest(tasks=[spec]),
        "SubmitMany": lambda: tasks_pb2.SubmitManyRequest(tasks=[spec]),
        "Cancel": lambda: tasks_pb2.CancelRequest(task=key(target.live)),
        "Retry": lambda: tasks_pb2.RetryRequest(task=key(target.done)),
        "Delete": lambda: tasks_pb2.DeleteRequest(task=key(target.done)),
        "Bulk": lambda: tasks_pb2.BulkRequest(
            filter=tasks_pb2.TaskFilter(pools=pools),
            action=tasks_pb2.BULK_ACTION_CANCEL,
            dry_run=True,
        ),
        "Get": lambda: tasks_pb2.GetRequest(task=key(target.live)),
        "Describe": lambda: tasks_pb2.GetRequest(task=key(target.live)),
        "ListTasks": lambda: tasks_pb2.ListTasksRequest(pools=pools),
        "Wait": lambda: tasks_pb2.WaitRequest(task=key(target.done)),
        "WaitMany": lambda: tasks_pb2.WaitManyRequest(keys=[target.done]),
        "Watch": lambda: tasks_pb2.WatchRequest(pools=pools, bookmarks=True),
        "WatchBatches": lambda: tasks_pb2.WatchRequest(pools=pools, bookmarks=True),
        "GetOutput": lambda: workers_pb2.GetOutputRequest(lease=1, task_id=1),
        "AddRecurring": lambda: admin_pb2.RecurringRequest(
            name=f"new-{next(_numbers)}", cron="0 0 1 1 *", template=spec
        ),
        "RemoveRecurring": lambda: admin_pb2.RemoveRecurringRequest(name=target.schedule),
        "GetRecurring": lambda: admin_pb2.GetRecurringRequest(name=target.schedule),
        "PauseRecurring": lambda: admin_pb2.PauseRecurringRequest(name=target.schedule),
        "TriggerRecurring": lambda: admin_pb2.TriggerRecurringRequest(name=target.schedule),
        "BackfillRecurring": lambda: admin_pb2.BackfillRecurringRequest(
            name=target.schedule, from_unix_ns=1, to_unix_ns=2
        ),
        "PreviewRecurring": lambda: admin_pb2.PreviewRecurringRequest(name=target.schedule),
        "PausePool": lambda: admin_pb2.PausePoolRequest(pool=target.pool),
        "ResumePool": lambda: admin_pb2.ResumePoolRequest(pool=target.pool),
        "SetResource": lambda: admin_pb2.SetResourceRequest(name="gpu", permits=2),
    }
    return requests.get(method, task_pb2.Empty)()


class Grpc:
    """Calls by gRPC."""

    def __init__(self, edge: Edge) -> None:
        self._edge = edge

    async def call(self, method: str, token: str | None, target: Target) -> str:
        """See `Transport.call`."""
        try:
            answer = await self._answer(method, token, target)
        except grpc.aio.AioRpcError as error:
            return reason_of(error)[0]
        if method == "SubmitMany" and answer.outcomes[0].HasField("error"):
            return _reason(answer.outcomes[0].error)
        if method == "WaitMany" and answer.errors:
            return _reason(answer.errors[0].status)
        return "OK"

    def stub(self, method: str) -> Any:
        """What calls a method."""
        services = (self._edge.tasks, self._edge.workers, self._edge.admin)
        (stub,) = (getattr(one, method) for one in services if hasattr(one, method))
        return stub

    async def _answer(self, method: str, token: str | None, target: Target) -> Any:
        stub = self.stub(method)
        if method == "Work":
            register = workers_pb2.Register(pool=target.pool, protocol_version=4, slots=1)
            stream = await joining(stub, register, bearer(token))
            answer = await stream.read()
            await stream.done_writing()
        elif method in ("Watch", "WatchBatches", "WaitMany"):
            stream = stub(request(method, target), metadata=bearer(token))
            answer = await stream.read()
            stream.cancel()
        else:
            return await stub(request(method, target), metadata=bearer(token))
        if answer is grpc.aio.EOF:
            await stream.code()
        return answer


def _reason(status: status_pb2.Status) -> str:
    info = error_details_pb2.ErrorInfo()
    assert status.details[0].Unpack(info)
    return str(info.reason)


async def furnish(edge: Edge, pool: str) -> Target:
    """Puts into a pool what the calls of one cell are about."""
    number = next(_numbers)
    target = Target(pool, f"live-{number}", f"done-{number}", f"schedule-{number}")
    if pool == NOWHERE:
        return target
    metadata = bearer(ADMIN.token)
    for name in (target.live, target.done):
        spec = task_pb2.TaskSpec(pool=pool, key=name)
        await edge.tasks.Submit(tasks_pb2.SubmitRequest(task=spec), metadata=metadata)
    done = tasks_pb2.CancelRequest(task=key(target.done))
    await edge.tasks.Cancel(done, metadata=metadata)
    schedule = admin_pb2.RecurringRequest(
        name=target.schedule, cron="0 0 1 1 *", template=task_pb2.TaskSpec(pool=pool)
    )
    await edge.admin.AddRecurring(schedule, metadata=metadata)
    return target


@asynccontextmanager
async def guarded() -> AsyncIterator[Edge]:
    """A server with a credential for every row of the table."""
    async with serving(CONFIG + RESOURCE) as edge:
        yield edge


@pytest.fixture(params=[Grpc], ids=["grpc"])
async def transport(request: pytest.FixtureRequest) -> AsyncIterator[tuple[Edge, Transport]]:
    """A server and a way to call it."""
    async with guarded() as edge:
        yield edge, request.param(edge)


@pytest.mark.parametrize("method", methods())
async def test_every_cell(method: str, transport: tuple[Edge, Transport]) -> None:
    """A call ends as the matrix says, for every role, limited or not, about every pool."""
    edge, way = transport
    for who, pool in itertools.product(CREDENTIALS, TARGETS):
        target = await furnish(edge, pool)
        ended = await way.call(method, who.token, target)
        assert ended == expected(who, method, pool), (who, pool)


@pytest.mark.parametrize("method", methods())
async def test_nobody_gets_in_without_a_credential(
    method: str, transport: tuple[Edge, Transport]
) -> None:
    """No token, or one that is not known, is refused before anything is looked at."""
    edge, way = transport
    target = await furnish(edge, "mine")
    for token in (None, "x" * 32, "", ADMIN.token[:-1], ADMIN.token + "x"):
        assert await way.call(method, token, target) == "UNAUTHENTICATED"


def test_every_method_has_its_operation() -> None:
    """The contract and the table know the same methods, and every operation has a role."""
    files = (tasks_pb2, workers_pb2, admin_pb2)
    services = [service for file in files for service in file.DESCRIPTOR.services_by_name.values()]
    assert {one.name for service in services for one in service.methods} == set(methods())
    assert set(OPERATIONS.values()) | {Operation.METRICS, Operation.PROFILE} == set(Operation)
    assert PERMISSIONS[Role.ADMIN] == set(Operation)
    for role in (Role.CLIENT, Role.WORKER, Role.METRICS):
        assert PERMISSIONS[role] < PERMISSIONS[Role.ADMIN]
    assert len({(one.role, one.is_limited) for one in CREDENTIALS}) == len(Role) * 2


def test_limited_credentials_are_expected_to_be_refused() -> None:
    """The expectations themselves tell a forbidden pool from an allowed one."""
    limited = Credential(Role.CLIENT, is_limited=True)
    assert expected(limited, "Submit", "mine") == "OK"
    assert expected(limited, "Submit", "other") == expected(limited, "Submit", "nowhere")
    assert expected(limited, "Get", "other") == expected(limited, "Get", "nowhere") != "OK"
