"""A server's life over a store that fails: serving, standing by, recovering, giving up."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Awaitable
from typing import Any

import grpc
import pytest

from cronoq_server._proto import task_pb2, tasks_pb2
from cronoq_server.api.console.history import History
from cronoq_server.app import Server
from cronoq_server.config import Address, Config, ServerConfig
from cronoq_server.stores import StoreSettings, open_store
from cronoq_server.testing.faults import Fault, FaultyStore
from tests.api.conftest import Edge, reason_of, serving

AWAY = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
"""What callers hear while roles change: the transport cancels a call that it had taken when its
listener closed, but not handed on yet; clients read that like UNAVAILABLE.
"""

QUICK = "[limits]\nrequest_timeout_s = 5\n[store]\ncommit_timeout_s = 0.2\n"


def faulty() -> FaultyStore:
    """A memory store whose faults a test decides."""
    return FaultyStore(open_store(StoreSettings()))


async def reason(call: Awaitable[Any]) -> str:
    """The reason of a call that fails."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return reason_of(caught.value)[0]


async def answered(edge: Edge, task_id: int) -> task_pb2.TaskInfo:
    """Asks for a task until somebody leads who answers."""
    request = tasks_pb2.GetRequest(task=task_pb2.TaskRef(id=task_id))
    while True:
        try:
            info: task_pb2.TaskInfo = await edge.tasks.Get(request, wait_for_ready=True)
        except grpc.aio.AioRpcError as error:
            if error.code() not in AWAY:
                raise
        else:
            return info


async def test_refused_batch_is_recovered_from() -> None:
    """What the store will never take is dropped with its leadership; what was durable stays."""
    store = faulty()
    async with serving(store=store) as edge:
        kept = await edge.submit(key="kept")
        store.add_faults(Fault.REJECTED)
        assert await reason(edge.submit(key="dropped")) == "STORE_UNAVAILABLE"
        assert (await answered(edge, kept)).key == "kept"
        later = await edge.submit(key="later")
        assert later >> 48 == (kept >> 48) + 1
        request = tasks_pb2.GetRequest(task=task_pb2.TaskRef(key="dropped"))
        assert await reason(edge.tasks.Get(request)) == "TASK_UNKNOWN"


async def test_second_refused_batch_ends_the_process() -> None:
    """A store that keeps refusing is no store to serve on: the exit code says so."""
    store = faulty()
    free = Address("127.0.0.1", 0)
    config = Config(server=ServerConfig(grpc_addr=free, http_addr=free))
    server = Server(config, store=store)
    leading: asyncio.Queue[object] = asyncio.Queue()
    running = asyncio.create_task(server.run(leading.put_nowait))
    for _ in range(2):
        await leading.get()
        store.add_faults(Fault.REJECTED)
        async with grpc.aio.insecure_channel(str(server.address)) as channel:
            edge = Edge(server, channel)
            with pytest.raises(grpc.aio.AioRpcError):
                await edge.submit()
    assert await running == 1


async def test_fenced_leader_stands_by() -> None:
    """Who was replaced answers nothing any more, and stops in order when asked to."""
    store = faulty()
    async with serving(store=store) as edge:
        await edge.submit()
        store.add_faults(Fault.FENCED)
        assert await reason(edge.submit()) == "STORE_UNAVAILABLE"
        while True:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await edge.submit()
            assert caught.value.code() in AWAY
            if caught.value.trailing_metadata():
                assert reason_of(caught.value)[0] == "NOT_LEADER"
                break


async def test_a_leadership_leaves_nothing_in_memory() -> None:
    """The driver, its engine and all that they knew are gone when the next leadership serves."""
    store = faulty()
    async with serving(store=store) as edge:
        kept = await edge.submit()
        driver = weakref.ref(edge.server.leader())
        store.add_faults(Fault.REJECTED)
        assert await reason(edge.submit()) == "STORE_UNAVAILABLE"
        await answered(edge, kept)
        assert driver() is None


async def test_late_store_is_told_and_outlived() -> None:
    """Callers hear that the store is late, new ones at once; afterwards all is as before."""
    store = faulty()
    async with serving(QUICK, store=store) as edge:
        task_id = await edge.submit()
        store.hold()
        assert await reason(edge.submit()) == "STORE_UNAVAILABLE"
        assert await reason(edge.submit()) == "STORE_UNAVAILABLE"
        store.let_go()
        assert (await answered(edge, task_id)).id == task_id
        assert await edge.submit()


async def test_lost_answer_of_a_commit_doubles_nothing() -> None:
    """A commit that happened without an answer is not repeated, and its caller is told once."""
    store = faulty()
    async with serving(store=store) as edge:
        store.add_faults(Fault.LOST_ACK)
        task_id = await edge.submit()
        listed = await edge.tasks.ListTasks(tasks_pb2.ListTasksRequest())
        assert [info.id for info in listed.tasks] == [task_id]


@pytest.mark.regression("R36")
async def test_a_defect_beside_the_driver_ends_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop that only watches may not die unseen while the server goes on without it."""

    def broken(_history: History, *_given: object) -> None:
        raise LookupError("a defect, on purpose")

    monkeypatch.setattr(History, "take", broken)
    free = Address("127.0.0.1", 0)
    config = Config(server=ServerConfig(grpc_addr=free, http_addr=free))
    async with asyncio.timeout(60):
        with pytest.raises(LookupError, match="on purpose"):
            await Server(config).run(lambda _address: None)
