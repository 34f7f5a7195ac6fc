"""Holds the blocking client to the async one, and to being usable without a loop."""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from scripted_server import PATIENCE_S, ScriptedServer, result

import cronoq
from cronoq import TaskSpec, TaskStatus, blocking
from cronoq._blocking import LoopThread
from cronoq._proto import task_pb2, tasks_pb2
from cronoq.errors import ClosedError, TaskUnknownError

GENERATOR = Path(__file__).parents[1] / "tools" / "gen_blocking.py"


def _generator() -> Any:
    spec = importlib.util.spec_from_file_location("gen_blocking", GENERATOR)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_blocking_client_is_what_the_generator_writes() -> None:
    """A change of the async client reaches it by running the generator."""
    module = _generator()
    assert module.formatted(module.generate()) == module.TARGET.read_text()


@pytest.mark.parametrize("name", ["Client", "TaskHandle"])
def test_both_clients_have_the_same_surface(name: str) -> None:
    """Same public names, same parameters."""

    def surface(kind: type) -> dict[str, list[str]]:
        return {
            member: list(inspect.signature(function).parameters)
            for member, function in inspect.getmembers(kind, inspect.isfunction)
            if not member.startswith("_")
        }

    assert surface(getattr(cronoq, name)) == surface(getattr(blocking, name))


def _play(server: ScriptedServer) -> None:
    async def many(request: tasks_pb2.SubmitManyRequest) -> tasks_pb2.SubmitManyResponse:
        answer = tasks_pb2.SubmitManyResponse()
        for number, _ in enumerate(request.tasks, 1):
            answer.outcomes.add().response.id = number
        return answer

    async def waits(request: tasks_pb2.WaitManyRequest) -> AsyncIterator[Any]:
        yield tasks_pb2.TaskResults(results=[result(n) for n in request.ids])

    async def page(_request: Any) -> tasks_pb2.ListTasksResponse:
        return tasks_pb2.ListTasksResponse(tasks=[{"id": 1, "status": 6}, {"id": 2, "status": 6}])

    async def watch(_request: Any) -> AsyncIterator[Any]:
        events = [task_pb2.StatusEvent(id=n, status=6, at_unix_ns=1) for n in (1, 2)]
        yield tasks_pb2.StatusEvents(events=events)
        await asyncio.Event().wait()

    server.on("SubmitMany", many)
    server.on("WaitMany", waits)  # type: ignore[arg-type]
    server.on("ListTasks", page)
    server.on("WatchBatches", watch)  # type: ignore[arg-type]


async def test_calls_return_when_they_are_done(server: ScriptedServer) -> None:
    """On a thread without a loop, as in any script."""
    _play(server)

    def script() -> None:
        with blocking.Client(server.endpoint) as client:
            handle = client.submit("echo", 1)
            assert handle.result() == "done"
            assert handle.wait().status is TaskStatus.SUCCEEDED
            handles = client.submit_many([TaskSpec("a"), TaskSpec("b")])
            assert all(isinstance(handle, blocking.TaskHandle) for handle in handles)
            found = client.wait_many([h for h in handles if isinstance(h, blocking.TaskHandle)])
            assert [client.decode(item) for item in found] == ["done", "done"]
            assert [task.id for task in client.list()] == [1, 2]
            for event in client.watch():
                assert event.id == 1
                break
        with pytest.raises(ClosedError):
            client.get(1)

    await asyncio.to_thread(script)


async def test_threads_share_a_client_and_their_submits_share_requests(
    server: ScriptedServer,
) -> None:
    """Coalescing works across threads too."""
    _play(server)
    client = blocking.Client(server.endpoint)
    count = 4
    barrier = threading.Barrier(count)

    def caller() -> int:
        barrier.wait(PATIENCE_S)
        return client.submit("echo").id

    await asyncio.gather(*(asyncio.to_thread(caller) for _ in range(count)))
    assert sum(len(r.tasks) for r in server.requests("SubmitMany")) == count
    await asyncio.to_thread(client.close)


async def test_errors_are_those_of_the_async_client(server: ScriptedServer) -> None:
    """Typed, and raised where the call was made."""
    import grpc
    from scripted_server import Refusal

    async def get(_request: Any) -> Any:
        raise Refusal(grpc.StatusCode.NOT_FOUND, "no such task", reason="task_unknown")

    server.on("Get", get)
    client = blocking.Client(server.endpoint)
    with pytest.raises(TaskUnknownError, match="no such task"):
        await asyncio.to_thread(client.get, 1)
    await asyncio.to_thread(client.close)


def test_a_blocking_call_on_its_own_loop_is_refused() -> None:
    """It would wait for itself."""
    thread = LoopThread()

    async def inner() -> None:
        thread.run(asyncio.sleep(0))

    with pytest.raises(RuntimeError, match="never ends"):
        thread.run(inner())
    thread.close()
    thread.close()
