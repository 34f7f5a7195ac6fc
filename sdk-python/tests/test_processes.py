"""Holds whole programs to what they promise about forks and signals."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest
from scripted_server import PATIENCE_S, ScriptedServer, make_lease, result

from cronoq._proto import tasks_pb2, workers_pb2

WORKER = """
import asyncio, sys
from cronoq import Backoff, Worker

worker = Worker(endpoint=sys.argv[1], slots=2, drain_timeout=float(sys.argv[2]),
                backoff=Backoff(initial=0.001, maximum=0.01))

@worker.handler("echo")
async def echo(seconds: float) -> str:
    print("started", flush=True)
    await asyncio.sleep(seconds)
    return "finished"

worker.run_forever()
print("ended", flush=True)
"""

FORKING_CLIENT = """
import asyncio, os, sys
from cronoq import Client, blocking

client = Client(sys.argv[1])
plain = blocking.Client(sys.argv[1])

async def use() -> None:
    handle = await client.submit("echo", 1)
    assert await handle.result() == "done"

def both() -> None:
    asyncio.run(use())
    assert plain.submit("echo", 2).result() == "done"

async def parent() -> None:
    await use()
    await asyncio.to_thread(lambda: plain.submit("echo", 2).result())
    for _ in range(2):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                both()
                code = 0
            finally:
                os._exit(code)
        _, status = await asyncio.to_thread(os.waitpid, pid, 0)
        print("child", status, flush=True)
    await use()
    print("parent ok", flush=True)

asyncio.run(parent())
"""

FORKING_WORKER = """
import asyncio, os, subprocess, sys
from cronoq import Client, Worker

worker = Worker(endpoint=sys.argv[1], slots=4)

async def use() -> None:
    async with Client(sys.argv[1]) as client:
        assert await (await client.submit("echo", 1)).result() == "done"

@worker.handler("fork")
def fork() -> int:
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            asyncio.run(use())
            code = 0
        finally:
            os._exit(code)
    return os.waitpid(pid, 0)[1]

@worker.handler("spawn")
def spawn() -> int:
    return sum(subprocess.run(["true"]).returncode for _ in range(10))

worker.run_forever()
"""


async def _program(text: str, *arguments: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-c", text, *arguments, stdout=asyncio.subprocess.PIPE
    )


async def _line(program: asyncio.subprocess.Process) -> str:
    assert program.stdout is not None
    async with asyncio.timeout(PATIENCE_S):
        return (await program.stdout.readline()).decode().strip()


async def _exit_code(program: asyncio.subprocess.Process) -> int:
    async with asyncio.timeout(PATIENCE_S):
        return await program.wait()


def _play_tasks(server: ScriptedServer) -> None:
    async def many(request: tasks_pb2.SubmitManyRequest) -> tasks_pb2.SubmitManyResponse:
        answer = tasks_pb2.SubmitManyResponse()
        for _ in request.tasks:
            answer.outcomes.add().response.id = 1
        return answer

    async def waits(request: tasks_pb2.WaitManyRequest) -> AsyncIterator[Any]:
        yield tasks_pb2.TaskResults(results=[result(n) for n in request.ids])

    server.on("SubmitMany", many)
    server.on("WaitMany", waits)  # type: ignore[arg-type]


@pytest.mark.regression("R12")
async def test_a_forked_child_uses_the_client_it_inherited(server: ScriptedServer) -> None:
    """With a channel of its own; the parent's goes on. Async and blocking alike."""
    _play_tasks(server)
    program = await _program(FORKING_CLIENT, server.endpoint)
    lines = [await _line(program) for _ in range(3)]
    assert lines == ["child 0", "child 0", "parent ok"]
    assert await _exit_code(program) == 0


@pytest.mark.regression("R12")
async def test_handlers_may_fork_and_start_programs(server: ScriptedServer) -> None:
    """While the worker's stream is open."""
    _play_tasks(server)
    program = await _program(FORKING_WORKER, server.endpoint)
    stream = await server.stream()
    await stream.accept()
    await stream.lease(make_lease(1, kind="fork"), make_lease(2, kind="spawn"))
    reports = await stream.reports(2)
    assert [report.complete.output for report in reports] == [b"0", b"0"]
    program.send_signal(signal.SIGTERM)
    await stream.end_of_worker()
    stream.end()
    assert await _exit_code(program) == 0


@pytest.mark.regression("R9")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda n: n.name)
async def test_a_signal_lets_running_attempts_report(
    server: ScriptedServer, number: signal.Signals
) -> None:
    """Even if the stream breaks between the end of the attempt and its receipt."""
    program = await _program(WORKER, server.endpoint, "30")
    first = await server.stream()
    await first.accept()
    await first.lease(make_lease(1, b"0.05"))
    assert await _line(program) == "started"
    program.send_signal(number)
    await first.expect("set_slots")
    (report,) = await first.reports(1, confirm=False)
    assert report.complete.output == b'"finished"'
    first.cut()
    second = await server.stream()
    assert list(second.register.resume.leases) == [1]
    await second.accept()
    (again,) = await second.reports(1)
    assert again == report
    await second.end_of_worker()
    second.end()
    assert await _line(program) == "ended"
    assert await _exit_code(program) == 0


async def test_a_second_signal_ends_the_drain(server: ScriptedServer) -> None:
    """What still runs is reported as retryable."""
    program = await _program(WORKER, server.endpoint, "30")
    stream = await server.stream()
    await stream.accept()
    await stream.lease(make_lease(1, b"600"))
    assert await _line(program) == "started"
    program.send_signal(signal.SIGTERM)
    await stream.expect("set_slots")
    program.send_signal(signal.SIGTERM)
    (report,) = await stream.reports(1)
    assert report.fail == workers_pb2.Fail(lease=1, message="worker stopped")
    await stream.end_of_worker()
    stream.end()
    assert await _exit_code(program) == 0
