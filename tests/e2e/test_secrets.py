"""Secrets of a configuration are in nothing that a server prints or answers.

Each kind of secret is a word that occurs nowhere else. Servers are started rightly and wrongly,
told to say all they can, called with and without credentials and told to read a broken
configuration again; then everything that came out is searched for the words.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import os
import signal
import sys
import traceback
from asyncio.subprocess import PIPE, Process
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import grpc
import pytest

from cronoq_server import cli, config
from cronoq_server._proto import (
    admin_pb2_grpc,
    task_pb2,
    tasks_pb2,
    tasks_pb2_grpc,
    workers_pb2,
    workers_pb2_grpc,
)
from cronoq_server.api.auth import Authenticator
from tests.api.certificates import Place

TOKEN = "canary-token-in-the-file"
VARIABLE = "canary-token-in-a-variable"
DIGESTED = "canary-token-behind-its-digest"
PASSWORD = "canary-of-the-database"
WEBHOOK = "canary-of-the-webhook"
GUESS = "canary-that-was-guessed"
PAYLOAD = "canary-in-a-payload"
DIGEST = hashlib.sha256(DIGESTED.encode()).hexdigest()

CREDENTIALS = f"""
[[auth.tokens]]
token = "{TOKEN}"
role = "admin"
[[auth.tokens]]
token_env = "CANARY_TOKEN"
role = "client"
[[auth.tokens]]
token_sha256 = "{DIGEST}"
role = "worker"
"""
SERVER = '[server]\ngrpc_addr = "127.0.0.1:0"\nhttp_addr = "127.0.0.1:0"\nlog_level = "debug"\n'
POOL = f'[[pools]]\nname = "default"\n[pools.scaler]\nwebhook = "http://127.0.0.1:9/{WEBHOOK}"\n'


class Ear:
    """All that was said, and what must not be in it."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.secrets = [TOKEN, VARIABLE, DIGESTED, DIGEST, PASSWORD, WEBHOOK, GUESS, PAYLOAD]

    def hear(self, *said: object) -> None:
        """Takes note of something, as text and as it would be logged."""
        self.heard += [str(one) for one in said] + [repr(one) for one in said]

    def keep_secret(self, key: Path) -> None:
        """Adds the lines of a private key."""
        self.secrets += [line for line in key.read_text().splitlines() if "---" not in line]

    def judge(self) -> None:
        """Fails if any secret was said, in plain or in base64."""
        text = "\n".join(self.heard)
        for secret in self.secrets:
            assert secret not in text
            assert base64.b64encode(secret.encode()).decode().rstrip("=")[:-1] not in text


@pytest.fixture
def ear(monkeypatch: pytest.MonkeyPatch) -> Ear:
    """One that listens, in a world with secrets in its environment."""
    monkeypatch.setenv("CANARY_TOKEN", VARIABLE)
    return Ear()


async def start(path: Path, *arguments: str) -> Process:
    """Starts a server over a configuration."""
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "cronoq_server", "--config", str(path), *arguments),
        stdout=PIPE,
        stderr=PIPE,
        env=os.environ,
    )


async def told(call: Awaitable[Any]) -> Any:
    """What a call returns or fails with."""
    try:
        return await call
    except grpc.aio.AioRpcError as error:
        return error.code(), error.details(), error.debug_error_string(), error.trailing_metadata()


async def talk(channel: grpc.aio.Channel, ear: Ear) -> None:
    """Calls with every credential, right and wrong, well and badly."""
    tasks: Any = tasks_pb2_grpc.TasksStub(channel)
    admin: Any = admin_pb2_grpc.AdminStub(channel)
    workers: Any = workers_pb2_grpc.WorkersStub(channel)
    spec = task_pb2.TaskSpec(payload=PAYLOAD.encode(), key="k", kind="x")
    for token in (TOKEN, VARIABLE, DIGESTED, GUESS):
        metadata = (("authorization", f"Bearer {token}"),)
        ear.hear(
            await told(tasks.Submit(tasks_pb2.SubmitRequest(task=spec), metadata=metadata)),
            await told(tasks.ListTasks(tasks_pb2.ListTasksRequest(), metadata=metadata)),
            await told(tasks.Get(tasks_pb2.GetRequest(), metadata=metadata)),
            await told(tasks.Delete(tasks_pb2.DeleteRequest(task={"key": "k"}), metadata=metadata)),  # type: ignore[arg-type]
            await told(admin.Snapshot(task_pb2.Empty(), metadata=metadata)),
            await told(admin.ListWorkers(task_pb2.Empty(), metadata=metadata)),
        )
        worker = workers.Work(metadata=metadata)
        register = workers_pb2.Register(slots=1, protocol_version=4, pool="nowhere")
        await told(worker.write(workers_pb2.WorkerMessage(register=register)))
        ear.hear(await told(worker.read()))


async def test_running_server_tells_no_secret(ear: Ear, tmp_path: Path) -> None:
    """Not in its log at the lowest level, not in any answer, not when it reads a mistake again."""
    place = Place(tmp_path / "tls")
    place.issue("server", ["127.0.0.1"], for_server=True)
    ear.keep_secret(place.folder / "server-key.pem")
    path = tmp_path / "cronoq.toml"
    right = SERVER + place.tls(client_ca=False) + CREDENTIALS + POOL
    path.write_text(right)
    process = await start(path)
    assert process.stdout is not None
    first = (await process.stdout.readline()).decode()
    assert first.startswith("serving gRPC on "), (await process.communicate())[1]
    address = first.removeprefix("serving gRPC on ").strip()
    credentials = place.credentials()
    async with grpc.aio.secure_channel(address, credentials) as channel:
        await talk(channel, ear)
        assert process.stderr is not None
        for text in (right.replace('"admin"', '"nobody"'), f"{right}\n= {TOKEN}", right):
            path.write_text(text)
            process.send_signal(signal.SIGHUP)
            while b"settings_reloaded" not in line_of(line := await process.stderr.readline()):
                ear.hear(line.decode())
                if b"reload_refused" in line:
                    break
        await talk(channel, ear)
    process.terminate()
    output, errors = await process.communicate()
    assert process.returncode == 0
    ear.hear(output.decode(), errors.decode())
    ear.judge()


def line_of(line: bytes) -> bytes:
    """A line, which must not be the end of all lines."""
    assert line, "the server is gone"
    return line


async def test_database_that_is_out_of_reach_is_told_without_its_password(
    ear: Ear, tmp_path: Path
) -> None:
    """The log says that the store can't be reached, for what reason, and no more."""
    path = tmp_path / "cronoq.toml"
    url = f"postgres://someone:{PASSWORD}@127.0.0.1:9/queue"
    path.write_text(f'{SERVER}[store]\nkind = "postgres"\nurl = "{url}"\nlock_poll_s = 0.05\n')
    process = await start(path)
    assert process.stderr is not None
    for _ in range(3):
        ear.hear((await process.stderr.readline()).decode())
    process.kill()
    output, errors = await process.communicate()
    ear.hear(output.decode(), errors.decode())
    assert any("127.0.0.1" in said or "store" in said for said in ear.heard)
    ear.judge()


@pytest.mark.parametrize(
    "mistake",
    [
        f'[[auth.tokens]]\ntoken = "{TOKEN} with space"\nrole = "admin"',
        f'[[auth.tokens]]\ntokn = "{TOKEN}"\nrole = "admin"',
        f'[[auth.tokens]]\ntoken = "{TOKEN}"\nrole = "admin"\n' * 2,
        f'[[auth.tokens]]\ntoken = "{TOKEN}"\ntoken_sha256 = "{DIGEST}"\nrole = "admin"',
        f'[[auth.tokens]]\ntoken_sha256 = "{DIGEST}0"\nrole = "admin"',
        f'[auth]\ntokens = "{TOKEN}"',
        f'[store]\nkind = "postgres"\nurl = "mysql://a:{PASSWORD}@b/c"',
        f'[store]\nkind = "memory"\nurl = "postgres://a:{PASSWORD}@b/c"',
        f'[store]\nkind = "postgres"\nurl = "postgres://a:{PASSWORD}@[b/c"',
        f'[[pools]]\nname = "a"\n[pools.scaler]\nwebhook = "ftp://{WEBHOOK}"',
        f'[server]\notlp_endpoint = "http://a:{PASSWORD}@b"',
        f'[[auth.tokens]]\ntoken = "{TOKEN}\nrole = "admin"',
    ],
)
def test_mistakes_are_told_without_the_secret_beside_them(
    ear: Ear, mistake: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By `--check`, by the exception, and by its traceback."""
    path = tmp_path / "cronoq.toml"
    path.write_text(mistake)
    assert cli.main(["--check", "--config", str(path)]) == cli.WRONG_CONFIG
    ear.hear(*capsys.readouterr())
    try:
        config.load(path)
    except config.ConfigError as error:
        ear.hear(error, *error.problems, "".join(traceback.format_exception(error)))
        ear.hear(error.__context__, error.__cause__)
    assert "cronoq.toml" in ear.heard[1]
    ear.judge()


def test_values_show_no_secret(
    ear: Ear, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither the configuration, nor what is made of it, nor `cronoq-server config`."""
    place = Place(tmp_path / "tls")
    place.issue("server", ["127.0.0.1"], for_server=True)
    ear.keep_secret(place.folder / "server-key.pem")
    store = f'[store]\nkind = "postgres"\nurl = "postgres://a:{PASSWORD}@b/c"\n'
    path = tmp_path / "cronoq.toml"
    path.write_text(SERVER + place.tls(client_ca=True) + CREDENTIALS + store + POOL)
    read = config.load(path)
    known = Authenticator(read.auth)
    ear.hear(read, read.auth, *read.auth.tokens, read.store, known, vars(known).keys())
    for token in (TOKEN, VARIABLE, DIGESTED):
        ear.hear(known.identify(f"Bearer {token}"))
    assert cli.main(["config", "--config", str(path)]) == cli.OK
    shown = capsys.readouterr().out
    assert shown.count("set, not shown") == 4
    ear.hear(shown)
    ear.judge()
