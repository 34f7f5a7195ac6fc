"""The server as a process: how it starts, what its exit codes say, how signals end it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from cronoq_server._proto import (
    task_pb2,
    tasks_pb2,
    tasks_pb2_grpc,
    workers_pb2,
    workers_pb2_grpc,
)

READY = b"serving gRPC on "


async def start(*arguments: str) -> Process:
    """Starts a server process."""
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "cronoq_server",
        "--http-addr",
        "127.0.0.1:0",
        *arguments,
        stdout=PIPE,
        stderr=PIPE,
    )


async def outcome(process: Process) -> tuple[int, str, str]:
    """Exit code, output and errors of a process that ends by itself."""
    output, errors = await process.communicate()
    assert process.returncode is not None
    return process.returncode, output.decode(), errors.decode()


@asynccontextmanager
async def serving(*arguments: str) -> AsyncIterator[tuple[Process, str]]:
    """A server process on a free port, and its address."""
    process = await start("--grpc-addr", "127.0.0.1:0", *arguments)
    assert process.stdout is not None
    line = await process.stdout.readline()
    assert line.startswith(READY), line + (await process.communicate())[1]
    try:
        yield process, line.removeprefix(READY).decode().strip()
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()


async def running_attempt(channel: grpc.aio.Channel) -> tuple[int, Any, int]:
    """A task that runs: its id, its worker's stream, its lease."""
    tasks: Any = tasks_pb2_grpc.TasksStub(channel)
    workers: Any = workers_pb2_grpc.WorkersStub(channel)
    submitted = await tasks.Submit(tasks_pb2.SubmitRequest())
    stream = workers.Work()
    register = workers_pb2.Register(slots=1, protocol_version=4)
    await stream.write(workers_pb2.WorkerMessage(register=register))
    await stream.read()
    lease = (await stream.read()).leases.leases[0]
    return submitted.id, stream, lease.lease


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_signal_ends_the_server_in_order(number: signal.Signals) -> None:
    """An idle server exits 0, and its log has said what it did in JSON lines."""
    async with serving() as (process, address):
        process.send_signal(number)
        code, _, errors = await outcome(process)
    assert code == 0
    lines = [json.loads(line) for line in errors.splitlines()]
    actions = [line["action"] for line in lines]
    assert actions[-3:] == ["server_stopping", "leadership_released", "server_stopped"]
    ready = lines[actions.index("server_ready")]
    assert ready["grpc_addr"] == address
    assert "restart loses the queue" in lines[actions.index("memory_store_used")]["message"]


@pytest.mark.skipif(sys.platform != "linux", reason="pipes that keep writes apart are Linux's")
async def test_every_line_is_one_write_even_unbuffered() -> None:
    """Output and log may share a pipe: whoever reads it finds each line whole."""
    reading, writing = os.pipe2(os.O_DIRECT)  # a read returns what one write wrote
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "cronoq_server"),
        *("--grpc-addr", "127.0.0.1:0", "--http-addr", "127.0.0.1:0"),
        stdout=writing,
        stderr=writing,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    os.close(writing)
    said: list[bytes] = []
    while written := await asyncio.to_thread(os.read, reading, 65536):
        said.append(written)
        if written.startswith(READY):
            process.terminate()
    os.close(reading)
    assert await process.wait() == 0
    assert any(written.startswith(READY) for written in said)
    assert [written for written in said if not written.endswith(b"\n")] == []


async def test_running_attempt_may_report_during_shutdown() -> None:
    """After SIGTERM a running attempt reports, calls are answered, nothing new starts."""
    async with serving() as (process, address), grpc.aio.insecure_channel(address) as channel:
        tasks: Any = tasks_pb2_grpc.TasksStub(channel)
        task_id, stream, lease = await running_attempt(channel)
        process.terminate()
        message = await stream.read()
        assert message.WhichOneof("message") == "shutdown"
        assert not message.shutdown.not_leader
        late = await tasks.Submit(tasks_pb2.SubmitRequest())
        waiting = asyncio.ensure_future(
            tasks.Wait(tasks_pb2.WaitRequest(task=task_pb2.TaskRef(id=task_id)))
        )
        info = await tasks.Get(tasks_pb2.GetRequest(task=task_pb2.TaskRef(id=late.id)))
        assert info.status == task_pb2.TASK_STATUS_READY
        reports = workers_pb2.Reports(number=1)
        reports.reports.add().complete.CopyFrom(workers_pb2.Complete(lease=lease, output=b"x"))
        await stream.write(workers_pb2.WorkerMessage(reports=reports))
        assert (await waiting).output == b"x"
        kinds = []
        while (message := await stream.read()) is not grpc.aio.EOF:
            kinds.append(message.WhichOneof("message"))
        assert kinds == ["receipt", "shutdown"]
        assert (await outcome(process))[0] == 0


async def test_grace_time_ends_the_wait_for_attempts(tmp_path: Path) -> None:
    """A worker that never reports holds the shutdown up for the grace time only."""
    path = tmp_path / "cronoq.toml"
    path.write_text("[server]\nshutdown_grace_s = 0.2\n")
    async with (
        serving("--config", str(path)) as (process, address),
        grpc.aio.insecure_channel(address) as channel,
    ):
        _, stream, _ = await running_attempt(channel)
        process.terminate()
        last = None
        while (message := await stream.read()) is not grpc.aio.EOF:
            last = message
        assert last is not None
        assert last.shutdown.not_leader
        assert (await outcome(process))[0] == 0


async def test_second_signal_exits_at_once() -> None:
    """Who is in a hurry signals twice."""
    async with serving() as (process, address), grpc.aio.insecure_channel(address) as channel:
        _, stream, _ = await running_attempt(channel)
        process.terminate()
        await stream.read()
        process.terminate()
        assert (await outcome(process))[0] == 130


async def test_second_server_on_a_port_names_the_address() -> None:
    """The second process exits with its own code and an error that names the address."""
    async with serving() as (_, address):
        code, _, errors = await outcome(await start("--grpc-addr", address))
    assert code == 3
    assert f"address {address} is already in use" in errors


async def test_wrong_configuration_is_an_exit_code(tmp_path: Path) -> None:
    """Malformed TOML and unknown keys end the start with all that is wrong."""
    path = tmp_path / "cronoq.toml"
    path.write_text("[server\n")
    code, _, errors = await outcome(await start("--config", str(path)))
    assert code == 2
    assert f"{path}: line 1, column" in errors
    path.write_text("[server]\ngrpc_port = 1\n[limit]\n")
    code, _, errors = await outcome(await start("--config", str(path)))
    assert code == 2
    assert "server.grpc_port: unknown key; the nearest one is 'grpc_addr'" in errors
    assert "limit: unknown key; the nearest one is 'limits'" in errors


async def test_unusable_store_ends_the_start(tmp_path: Path) -> None:
    """A store that must not be used is an error that says why, not a server that waits."""
    path = tmp_path / "missing" / "q.db"
    code, _, errors = await outcome(
        await start("--grpc-addr", "127.0.0.1:0", "--store", f"sqlite:{path}")
    )
    assert code == 1
    assert f"the store can't be used: {path.parent}: there is no such directory" in errors


async def test_version_is_told() -> None:
    """`--version` names program and version."""
    code, output, _ = await outcome(await start("--version"))
    assert code == 0
    assert output.startswith("cronoq-server ")


async def test_hangup_reads_the_configuration_again(tmp_path: Path) -> None:
    """SIGHUP takes what is right and live, and says what it could not take; calls go on."""
    path = tmp_path / "cronoq.toml"
    path.write_text("")
    async with (
        serving("--config", str(path)) as (process, address),
        grpc.aio.insecure_channel(address) as channel,
    ):
        tasks: Any = tasks_pb2_grpc.TasksStub(channel)
        assert process.stderr is not None
        token = "[[auth.tokens]]\ntoken = 'a-token-of-a-client'\nrole = 'client'\n"
        for text, action, word in (
            ("[limits]\nmax_lst = 1\n", "reload_refused", "max_list"),
            (f"{token}[store]\nprune_batch = 7\n", "settings_reloaded", "auth.tokens"),
            ("", "reload_refused", "store.prune_batch"),
        ):
            if text:
                path.write_text(text)
                process.send_signal(signal.SIGHUP)
            while (line := json.loads(await process.stderr.readline()))["action"] != action:
                pass
            assert word in line["message"]
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await tasks.Submit(tasks_pb2.SubmitRequest())
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
        metadata = (("authorization", "Bearer a-token-of-a-client"),)
        assert (await tasks.Submit(tasks_pb2.SubmitRequest(), metadata=metadata)).id
