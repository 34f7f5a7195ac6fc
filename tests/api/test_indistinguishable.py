"""What callers may not see looks, byte for byte, as if it were not there.

Two servers differ in one thing: on one of them a pool that the caller may not use has a task, a
schedule and a key. The same calls are made to both, and their answers compared whole: code, text,
details, metadata.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from cronoq_server._proto import admin_pb2, task_pb2, tasks_pb2
from cronoq_server.api.auth import Role
from tests.api.conftest import Edge
from tests.api.permissions import ADMIN, Credential, Target, methods
from tests.api.test_permissions import Grpc, bearer, guarded, request

SECRET = Target("other", "secret", "secret-done", "secret-schedule")
Answer = tuple[Any, ...]

LIMITED = {role: Credential(role, is_limited=True).token for role in Role}
STRANGERS: dict[str, str | None] = {"nobody": None, "stranger": "x" * 32}


@pytest.fixture
async def servers() -> AsyncIterator[tuple[Edge, Edge]]:
    """One that has it, and one that does not."""
    async with guarded() as full, guarded() as empty:
        metadata = bearer(ADMIN.token)
        for key in (SECRET.live, SECRET.done):
            spec = task_pb2.TaskSpec(pool="other", key=key)
            await full.tasks.Submit(tasks_pb2.SubmitRequest(task=spec), metadata=metadata)
        done = tasks_pb2.CancelRequest(task=task_pb2.TaskRef(key=SECRET.done))
        await full.tasks.Cancel(done, metadata=metadata)
        schedule = admin_pb2.RecurringRequest(
            name=SECRET.schedule, cron="0 0 1 1 *", template=task_pb2.TaskSpec(pool="other")
        )
        await full.admin.AddRecurring(schedule, metadata=metadata)
        yield full, empty


async def answer(edge: Edge, method: str, message: Any, token: str | None) -> Answer:
    """All that a caller gets to see of a unary call, or of the first message of a stream."""
    stub = Grpc(edge).stub(method)
    metadata = bearer(token)
    try:
        if method in ("WaitMany", "Watch", "WatchBatches"):
            got = await stub(message, metadata=metadata).read()
        else:
            got = await stub(message, metadata=metadata)
        return (grpc.StatusCode.OK, got.SerializeToString(deterministic=True))
    except grpc.aio.AioRpcError as error:
        initial, trailing = error.initial_metadata(), error.trailing_metadata()
        return (error.code(), error.details(), tuple(initial or ()), tuple(trailing or ()))


def by_id(method: str, task_id: int) -> Any:
    """The same call about a task by its id."""
    message = request(method, SECRET)
    if method == "WaitMany":
        return tasks_pb2.WaitManyRequest(ids=[task_id])
    message.task.id = task_id
    return message


@pytest.mark.parametrize("role", list(Role))
async def test_limited_caller_can_not_tell_what_is_there(
    servers: tuple[Edge, Edge], role: Role
) -> None:
    """Every unary method about a task, a key, a schedule or a pool that is not theirs."""
    full, empty = servers
    for method in methods():
        if method in ("Work", "Watch", "WatchBatches", "Snapshot"):
            continue  # these show instants and cursors; what they let through is tested elsewhere
        message = request(method, SECRET)
        if method == "AddRecurring":
            message.name = "new"
        there = await answer(full, method, message, LIMITED[role])
        assert there == await answer(empty, method, message, LIMITED[role]), method


async def test_limited_client_can_not_tell_ids_and_parents(servers: tuple[Edge, Edge]) -> None:
    """Neither by ids, nor by handing in tasks that depend on them."""
    full, empty = servers
    token = LIMITED[Role.CLIENT]
    get = tasks_pb2.GetRequest(task=task_pb2.TaskRef(key=SECRET.live))
    task_id = (await full.tasks.Get(get, metadata=bearer(ADMIN.token))).id
    for method in ("Cancel", "Retry", "Delete", "Get", "Describe", "Wait", "WaitMany"):
        message = by_id(method, task_id)
        there = await answer(full, method, message, token)
        assert there == await answer(empty, method, message, token), method
    for ref in (task_pb2.TaskRef(key=SECRET.live), task_pb2.TaskRef(id=task_id)):
        spec = task_pb2.TaskSpec(pool="mine", deps=[task_pb2.Dep(target=ref)])
        message = tasks_pb2.SubmitRequest(task=spec)
        there = await answer(full, "Submit", message, token)
        assert there == await answer(empty, "Submit", message, token)
        assert there[0] is grpc.StatusCode.NOT_FOUND


async def test_limited_snapshot_counts_nothing_of_other_pools(servers: tuple[Edge, Edge]) -> None:
    """Neither per pool nor in total."""
    shown = []
    for edge in servers:
        snapshot = await edge.admin.Snapshot(
            task_pb2.Empty(), metadata=bearer(LIMITED[Role.METRICS])
        )
        (pool,) = snapshot.pools
        assert pool.name == "mine"
        shown.append(snapshot)
    assert shown[0] == shown[1]


@pytest.mark.parametrize("name", list(STRANGERS))
async def test_strangers_can_not_tell_anything(servers: tuple[Edge, Edge], name: str) -> None:
    """All methods, also where the pool, the task or the request itself is wrong: one answer."""
    full, empty = servers
    answers = set()
    for method in methods():
        if method == "Work":
            continue
        for edge in (full, empty):
            for pool in ("other", "nowhere", "no name\n"):
                message = request(method, SECRET._replace(pool=pool))
                answers.add(await answer(edge, method, message, STRANGERS[name]))
    assert len(answers) == 1


async def test_wrong_and_missing_credentials_look_the_same(servers: tuple[Edge, Edge]) -> None:
    """Nobody learns from an answer whether a token was close."""
    edge, _ = servers
    message = request("Get", SECRET)
    tokens = (None, "", "x", ADMIN.token[:-1], ADMIN.token.upper(), ADMIN.token + " x")
    assert len({await answer(edge, "Get", message, token) for token in tokens}) == 1


async def test_key_in_a_foreign_pool_is_the_one_exception(servers: tuple[Edge, Edge]) -> None:
    """A submit under such a key can't be taken, and says no more than that it is in use."""
    full, _ = servers
    spec = task_pb2.TaskSpec(pool="mine", key=SECRET.live)
    message = tasks_pb2.SubmitRequest(task=spec)
    code, text, *_ = await answer(full, "Submit", message, LIMITED[Role.CLIENT])
    assert code is grpc.StatusCode.PERMISSION_DENIED
    assert "is in use" in text
    assert "other" not in text
    schedule = admin_pb2.RecurringRequest(
        name=SECRET.schedule, cron="0 0 1 1 *", template=task_pb2.TaskSpec(pool="mine")
    )
    code, text, *_ = await answer(full, "AddRecurring", schedule, LIMITED[Role.ADMIN])
    assert code is grpc.StatusCode.PERMISSION_DENIED
    assert "other" not in text


async def test_what_strangers_send_is_not_even_parsed(servers: tuple[Edge, Edge]) -> None:
    """Bytes that are no message get the answer of all who have no credential."""
    edge, _ = servers
    call: Any = edge.channel.unary_unary("/cronoq.v1.Tasks/Submit")
    for token, code in (
        (None, grpc.StatusCode.UNAUTHENTICATED),
        (LIMITED[Role.WORKER], grpc.StatusCode.PERMISSION_DENIED),
        (ADMIN.token, grpc.StatusCode.INVALID_ARGUMENT),
    ):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(b"\xff\xff", metadata=bearer(token))
        assert caught.value.code() is code
