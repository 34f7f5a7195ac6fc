"""Holds connections to TLS, to certificates that change, and to time limits."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Self

import grpc
import pytest
from scripted_server import PATIENCE_S, Refusal, ScriptedServer

from cronoq import Backoff, Client, ClientOptions, Keepalive, TlsOptions, Worker
from cronoq._calls import GET
from cronoq._endpoint import parse_configured
from cronoq._proto import task_pb2, tasks_pb2
from cronoq._transport import STREAM_BUFFER, Connection, ServerStream
from cronoq.errors import NotLeaderError, StoppingError, UnavailableError

CERTS = Path(__file__).parent / "certs"
QUICK = Backoff(initial=0.001, maximum=0.01)
TLS = TlsOptions(ca=CERTS / "ca.pem")
MUTUAL = TlsOptions(ca=CERTS / "ca.pem", cert=CERTS / "client.pem", key=CERTS / "client.key")


def _credentials(*, mutual: bool = False) -> grpc.ServerCredentials:
    pair = ((CERTS / "server.key").read_bytes(), (CERTS / "server.pem").read_bytes())
    ca = (CERTS / "ca.pem").read_bytes()
    return grpc.ssl_server_credentials([pair], ca if mutual else None, mutual)


@pytest.fixture
async def secure() -> AsyncIterator[ScriptedServer]:
    """A server with TLS."""
    listening = await ScriptedServer().start(credentials=_credentials())
    yield listening
    await listening.stop()


@pytest.fixture
async def mutual() -> AsyncIterator[ScriptedServer]:
    """A server that asks for a client certificate."""
    listening = await ScriptedServer().start(credentials=_credentials(mutual=True))
    yield listening
    await listening.stop()


def _play_get(server: ScriptedServer) -> None:
    async def get(_request: Any) -> task_pb2.TaskInfo:
        return task_pb2.TaskInfo(id=1, status=task_pb2.TASK_STATUS_READY)

    server.on("Get", get)


def _worker(endpoint: str, **options: Any) -> Worker:
    worker = Worker(endpoint=endpoint, backoff=QUICK, **options)
    worker.default_handler(lambda: None)
    return worker


async def _accept_and_end(server: ScriptedServer, worker: Worker) -> dict[str, Any]:
    """Takes a worker's stream to its orderly end and returns its metadata."""
    async with worker:
        stream = await server.stream()
        await stream.accept()
        await worker.wait_ready()
        ending = asyncio.create_task(stream.end_of_worker())
        ending.add_done_callback(lambda _: stream.end())
    await ending
    return stream.metadata


async def _get_once(options: ClientOptions, url: str) -> None:
    """One try, which lasts until it has failed or has been answered."""
    connection = Connection(options, parse_configured(url, tls=options.tls is not None))
    try:
        await connection.channel().unary(GET, tasks_pb2.GetRequest(), PATIENCE_S)
    finally:
        connection.close()


async def test_a_client_trusts_the_authority_it_is_given(secure: ScriptedServer) -> None:
    """With the scheme spelled out or implied by the TLS settings."""
    _play_get(secure)
    for endpoint in (secure.endpoint, secure.url):
        async with Client(endpoint, tls=TLS) as client:
            assert (await client.get(1)).id == 1


async def test_a_client_does_not_trust_strangers(secure: ScriptedServer) -> None:
    """Without that authority there is no connection."""
    _play_get(secure)
    with pytest.raises(UnavailableError):
        await _get_once(ClientOptions(), secure.url)
    assert secure.calls == []


async def test_without_a_connection_nothing_was_executed(secure: ScriptedServer) -> None:
    """Refused by the host, or broken off by TLS; an answer is another matter."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    for endpoint in (f"http://127.0.0.1:{port}", secure.url):
        connection = Connection(ClientOptions(), parse_configured(endpoint, tls=False))
        with pytest.raises(UnavailableError) as caught:
            await connection.channel().unary(GET, tasks_pb2.GetRequest(), PATIENCE_S)
        assert caught.value.executed is False
        connection.close()


async def test_a_refused_call_may_have_been_executed(server: ScriptedServer) -> None:
    """UNAVAILABLE alone says nothing."""

    async def get(_request: Any) -> Any:
        raise Refusal(grpc.StatusCode.UNAVAILABLE, "reset")

    server.on("Get", get)
    connection = Connection(ClientOptions(), parse_configured(server.endpoint, tls=False))
    with pytest.raises(UnavailableError) as caught:
        await connection.channel().unary(GET, tasks_pb2.GetRequest(), PATIENCE_S)
    assert caught.value.executed is None
    connection.close()


@pytest.mark.parametrize("reason", ["store_unavailable", "of_a_later_version"])
async def test_an_answer_with_a_reason_came_from_a_server(
    server: ScriptedServer, reason: str
) -> None:
    """Whatever its text quotes: the call may have been executed."""

    async def get(_request: Any) -> Any:
        text = "the store: connection refused, name resolution failed"
        raise Refusal(grpc.StatusCode.UNAVAILABLE, text, reason=reason)

    server.on("Get", get)
    connection = Connection(ClientOptions(), parse_configured(server.endpoint, tls=False))
    with pytest.raises(UnavailableError) as caught:
        await connection.channel().unary(GET, tasks_pb2.GetRequest(), PATIENCE_S)
    assert caught.value.executed is None
    connection.close()


@pytest.mark.regression("R14")
@pytest.mark.parametrize("reason", ["NOT_LEADER", "STOPPING"])
async def test_a_connection_to_a_standby_is_left_for_another(
    server: ScriptedServer, reason: str
) -> None:
    """The next call dials anew, as long as that does not become a storm; calls under way go on."""
    leads = asyncio.Event()
    arrived = asyncio.Event()

    async def get(request: Any) -> Any:
        if request.task.id == 1:
            arrived.set()
            await leads.wait()
            return task_pb2.TaskInfo(id=1, status=task_pb2.TASK_STATUS_READY)
        raise Refusal(grpc.StatusCode.UNAVAILABLE, "elsewhere", reason=reason)

    async def ask(task_id: int) -> task_pb2.TaskInfo:
        request = tasks_pb2.GetRequest(task=task_pb2.TaskRef(id=task_id))
        return await connection.channel().unary(GET, request, PATIENCE_S)

    server.on("Get", get)
    connection = Connection(ClientOptions(), parse_configured(server.endpoint, tls=False))
    first = connection.channel()
    waiting = asyncio.create_task(ask(1))
    await arrived.wait()
    first.made_at += 3600.0
    with pytest.raises((NotLeaderError, StoppingError)):
        await ask(2)
    assert connection.channel() is first
    first.made_at -= 2 * 3600.0
    with pytest.raises((NotLeaderError, StoppingError)):
        await ask(2)
    second = connection.channel()
    assert second is not first
    second.made_at -= 3600.0
    with pytest.raises((NotLeaderError, StoppingError)):
        await ask(2)
    leads.set()
    assert (await waiting).id == 1
    connection.close()


async def test_a_client_certificate_is_shown_where_it_is_asked_for(mutual: ScriptedServer) -> None:
    """And without one there is no answer."""
    _play_get(mutual)
    async with Client(mutual.url, tls=MUTUAL) as client:
        assert (await client.get(1)).id == 1
    with pytest.raises(UnavailableError):
        await _get_once(ClientOptions(tls=TLS), mutual.url)


async def test_tls_settings_are_kept_on_a_redirect(
    secure: ScriptedServer, mutual: ScriptedServer
) -> None:
    """Own authority, client certificate and token."""
    metadata = (("cronoq-shard-endpoint", mutual.url),)
    code = grpc.StatusCode.FAILED_PRECONDITION
    secure.refuse_streams(Refusal(code, "elsewhere", metadata=metadata))
    token = "a-token-of-some-length"
    seen = await _accept_and_end(mutual, _worker(secure.url, tls=MUTUAL, token=token))
    assert seen["authorization"] == f"Bearer {token}"


async def test_a_redirect_from_https_to_http_is_not_followed(
    secure: ScriptedServer, server: ScriptedServer
) -> None:
    """Not even with the option that allows tokens over http."""
    told: list[tuple[str, str]] = []
    metadata = (("cronoq-shard-endpoint", server.url),)
    code = grpc.StatusCode.FAILED_PRECONDITION
    secure.refuse_streams(Refusal(code, "elsewhere", metadata=metadata))
    worker = _worker(
        secure.url,
        tls=TLS,
        insecure_redirect_http=True,
        on_redirect=lambda *redirect: told.append(redirect),
    )
    await _accept_and_end(secure, worker)
    assert told == [(server.url, f"redirect from https to {server.url}")]


async def test_certificate_files_are_read_again_when_they_change(
    mutual: ScriptedServer, tmp_path: Path
) -> None:
    """A running client follows a rotation, with the next call."""
    _play_get(mutual)
    tls = TlsOptions(ca=tmp_path / "ca.pem", cert=tmp_path / "cert.pem", key=tmp_path / "key.pem")
    shutil.copy(CERTS / "ca.pem", tmp_path / "ca.pem")
    shutil.copy(CERTS / "client.pem", tmp_path / "cert.pem")
    (tmp_path / "ca.pem").write_bytes((CERTS / "client.pem").read_bytes())
    shutil.copy(CERTS / "client.key", tmp_path / "key.pem")
    async with Client(mutual.url, tls=tls, backoff=QUICK, deadline=PATIENCE_S) as client:
        with pytest.raises(UnavailableError):
            await client._caller.connection.channel().unary(GET, tasks_pb2.GetRequest(), PATIENCE_S)
        (tmp_path / "ca.pem").write_bytes((CERTS / "ca.pem").read_bytes())
        assert (await client.get(1)).id == 1


async def test_a_missing_certificate_file_is_named(tmp_path: Path) -> None:
    """When the connection is made, by the call that needs it."""
    tls = TlsOptions(ca=tmp_path / "none.pem")
    async with Client("https://127.0.0.1:1", tls=tls) as client:
        with pytest.raises(FileNotFoundError, match=r"none\.pem"):
            await client.get(1)


@pytest.mark.parametrize("token", ["line\n", "two words", "nul\0", "\u00fcn\u00ef"])
@pytest.mark.parametrize("made", [Client, Worker])
def test_a_token_that_no_metadata_holds_is_a_mistake(made: Any, token: str) -> None:
    """Told at once, without the token: no call that carries it would ever be made."""
    with pytest.raises(ValueError, match=r"^token: printable ASCII without spaces$"):
        made(token=token)


async def test_certificate_files_that_are_being_replaced_keep_the_connection(
    mutual: ScriptedServer, tmp_path: Path
) -> None:
    """A call between the removal of the old file and the writing of the new one."""
    _play_get(mutual)
    for name in ("ca.pem", "client.pem", "client.key"):
        shutil.copy(CERTS / name, tmp_path / name)
    tls = TlsOptions(
        ca=tmp_path / "ca.pem", cert=tmp_path / "client.pem", key=tmp_path / "client.key"
    )
    async with Client(mutual.url, tls=tls, backoff=QUICK, deadline=PATIENCE_S) as client:
        await client.get(1)
        first = client._caller.connection.channel()
        (tmp_path / "client.key").unlink()
        assert (await client.get(1)).id == 1
        shutil.copy(CERTS / "client.key", tmp_path / "client.key")
        os.utime(tmp_path / "client.key", (0, 0))
        assert (await client.get(1)).id == 1
        assert client._caller.connection.channel() is not first


@pytest.mark.parametrize("given", [{"cert": "c.pem"}, {"key": "k.pem"}])
def test_a_certificate_without_its_key_is_a_mistake(given: dict[str, str]) -> None:
    """And the other way round."""
    with pytest.raises(ValueError, match="go together"):
        TlsOptions(**given)


@pytest.mark.regression("R8")
async def test_a_server_that_accepts_and_says_nothing_is_given_up(server: ScriptedServer) -> None:
    """Within the time for one connection; the worker goes back to its own endpoint."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        metadata = (("cronoq-shard-endpoint", url),)
        code = grpc.StatusCode.FAILED_PRECONDITION
        server.refuse_streams(Refusal(code, "elsewhere", metadata=metadata))
        await _accept_and_end(server, _worker(server.endpoint, connect_timeout=0.1))


class Tunnel:
    """Carries bytes to a server until it is told to lose them, without closing anything."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._tasks: list[asyncio.Task[None]] = []
        self.is_losing = False
        self.endpoint = ""

    async def __aenter__(self) -> Self:
        self._listener = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        host, port = self._listener.sockets[0].getsockname()
        self.endpoint = f"{host}:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._listener.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", self._port)
        for source, target in ((reader, inner_writer), (inner_reader, writer)):
            self._tasks.append(asyncio.create_task(self._carry(source, target)))

    async def _carry(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        # Once it loses, it loses this connection's bytes for good; new ones are carried.
        is_lost = False
        try:
            while chunk := await source.read(65536):
                is_lost |= self.is_losing
                if not is_lost:
                    target.write(chunk)
        except ConnectionError:
            pass
        finally:
            target.close()


@pytest.mark.regression("R8")
async def test_a_half_open_connection_is_noticed_by_keepalive(server: ScriptedServer) -> None:
    """Packets are lost and nobody says so; the worker opens a new stream by itself."""
    keepalive = Keepalive()
    # Options refuse so short a time, since real servers do.
    object.__setattr__(keepalive, "interval", 0.1)
    object.__setattr__(keepalive, "timeout", 0.1)
    async with Tunnel(server.port) as tunnel:
        gone = asyncio.Event()
        worker = _worker(tunnel.endpoint, keepalive=keepalive, on_disconnect=lambda *_: gone.set())
        async with worker:
            first = await server.stream()
            await first.accept()
            await worker.wait_ready()
            tunnel.is_losing = True
            async with asyncio.timeout(PATIENCE_S):
                await gone.wait()
            tunnel.is_losing = False
            second = await server.stream()
            await second.accept()
            await worker.wait_ready()
            ending = asyncio.create_task(second.end_of_worker())
            ending.add_done_callback(lambda _: second.end())
        await ending


async def test_ipv6_endpoints_work() -> None:
    """With brackets, as in URLs."""
    listening = ScriptedServer()
    listening.address = "[::1]"
    await listening.start()
    _play_get(listening)
    async with Client(f"http://[::1]:{listening.port}") as client:
        assert (await client.get(1)).id == 1
    await listening.stop()


class _EndlessCall:
    """A call whose server always has another message, and which counts those taken."""

    def __init__(self) -> None:
        self.taken = 0
        self.given = 0
        self.too_many = False
        self.is_full = threading.Event()

    def __iter__(self) -> Iterator[int]:
        while not self.too_many:
            self.taken += 1
            self.too_many = self.taken > self.given + STREAM_BUFFER + 1
            if self.taken == self.given + STREAM_BUFFER + 1:
                self.is_full.set()
            yield self.taken

    def cancel(self) -> None:
        """Ends the call."""
        self.too_many = True


@pytest.mark.regression("R28")
async def test_a_stream_is_read_no_faster_than_its_reader_reads() -> None:
    """A watcher that stands still holds the server back instead of filling memory."""
    call = _EndlessCall()
    stream: ServerStream[int] = ServerStream(call, asyncio.get_running_loop())
    messages = aiter(stream)
    for number in range(1, 200):
        assert await asyncio.to_thread(call.is_full.wait, PATIENCE_S)
        assert not call.too_many
        call.is_full.clear()
        call.given = number
        assert await anext(messages) == number
    stream.cancel()
