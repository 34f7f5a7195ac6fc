"""Encrypted connections: who gets through, who does not, and what a new certificate changes."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest

from cronoq_server import cli, config, dev_certs
from cronoq_server._proto import task_pb2, tasks_pb2, tasks_pb2_grpc
from cronoq_server.api.tls import Certificates
from tests.api.certificates import Place
from tests.api.conftest import ANY_PORT, Edge, serving

CERTS = "[[auth.certs]]\ndns_name = 'worker.example'\nrole = 'admin'\n"


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """A CA with a server's and a client's certificate."""
    place = Place(tmp_path)
    place.issue("server", ["localhost", "127.0.0.1"], for_server=True)
    place.issue("client", ["other.example", "worker.example"])
    return place


@asynccontextmanager
async def connected(edge: Edge, credentials: grpc.ChannelCredentials) -> AsyncIterator[Edge]:
    """Another client of the same server."""
    async with grpc.aio.secure_channel(str(edge.server.address), credentials) as channel:
        yield Edge(edge.server, channel)


async def code_of(edge: Edge) -> grpc.StatusCode:
    """How a call ends."""
    try:
        await edge.tasks.ListTasks(tasks_pb2.ListTasksRequest())
    except grpc.aio.AioRpcError as error:
        code: grpc.StatusCode = error.code()
        return code
    return grpc.StatusCode.OK


async def test_server_shows_its_certificate(place: Place) -> None:
    """Whoever trusts its CA is served; who trusts another one, or speaks plainly, is not."""
    stranger = Place(place.folder / "stranger")
    async with serving(place.tls(client_ca=False)) as plain:
        async with connected(plain, place.credentials()) as edge:
            assert await code_of(edge) is grpc.StatusCode.OK
        async with connected(plain, place.credentials(ca=stranger.ca)) as edge:
            assert await code_of(edge) is grpc.StatusCode.UNAVAILABLE
        assert await code_of(plain) is grpc.StatusCode.UNAVAILABLE


async def test_client_needs_a_certificate_of_the_right_authority(place: Place) -> None:
    """No certificate, one of another CA, or one that is out of date: no connection."""
    stranger = Place(place.folder / "stranger")
    stranger.issue("client", ["worker.example"])
    place.issue("late", ["worker.example"], valid_for=-timedelta(hours=1))
    async with serving(place.tls(client_ca=True) + CERTS) as plain:
        async with connected(plain, place.credentials("client")) as edge:
            assert await code_of(edge) is grpc.StatusCode.OK
        for credentials in (
            place.credentials(),
            place.credentials("late"),
            stranger.credentials("client", ca=place.ca),
        ):
            async with connected(plain, credentials) as edge:
                assert await code_of(edge) is grpc.StatusCode.UNAVAILABLE
        assert await code_of(plain) is grpc.StatusCode.UNAVAILABLE


async def test_certificate_without_a_name_that_is_known_is_no_credential(place: Place) -> None:
    """A certificate of the right CA connects; only a DNS name in it says who calls."""
    place.issue("unknown", ["nobody.example"])
    unknown = place.credentials("unknown")
    async with (
        serving(place.tls(client_ca=True) + CERTS) as plain,
        connected(plain, unknown) as edge,
    ):
        assert await code_of(edge) is grpc.StatusCode.UNAUTHENTICATED


async def test_new_certificates_leave_connections_alone(place: Place) -> None:
    """After a reload a stream that stood goes on, and new connections meet the new CA only."""
    text = place.tls(client_ca=True) + CERTS
    fresh = Place(place.folder / "fresh")
    old = place.credentials("client")
    async with serving(text) as plain, connected(plain, old) as edge:
        watch = edge.tasks.Watch(tasks_pb2.WatchRequest(all_transitions=True, bookmarks=True))
        assert await watch.read() is not grpc.aio.EOF
        fresh.issue("server", ["localhost", "127.0.0.1"], for_server=True)
        fresh.issue("client", ["worker.example"])
        read = config.parse(ANY_PORT + fresh.tls(client_ca=True) + CERTS)
        assert plain.server.reload(read) == ()
        async with connected(plain, fresh.credentials("client")) as newcomer:
            task_id = await newcomer.submit()
        event = await watch.read()
        while not event.id:
            event = await watch.read()
        assert event.id == task_id
        assert await edge.status(task_id) == task_pb2.TASK_STATUS_READY
        options = [("grpc.use_local_subchannel_pool", 1)]
        address = str(plain.server.address)
        async with grpc.aio.secure_channel(address, old, options=options) as channel:
            late: Any = tasks_pb2_grpc.TasksStub(channel)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await late.ListTasks(tasks_pb2.ListTasksRequest())
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_certificates_that_do_not_fit_change_nothing(place: Place) -> None:
    """A key of another certificate is refused whole; what was shown before is shown still."""
    tls = config.parse(place.tls(client_ca=False)).server.tls
    certificates = Certificates(tls)
    place.issue("other", ["localhost"], for_server=True)
    key = place.folder / "server-key.pem"
    good = key.read_bytes()
    key.write_bytes((place.folder / "other-key.pem").read_bytes())
    with pytest.raises(config.ConfigError, match="is not the key of the certificate") as caught:
        config.parse(place.tls(client_ca=False))
    assert [problem.path for problem in caught.value.problems] == ["server.tls.key"]
    with pytest.raises(ssl.SSLError):
        certificates.replace(tls)
    key.write_bytes(good)
    certificates.replace(tls)


async def test_tls_is_not_switched_on_or_off_live(place: Place) -> None:
    """Whether ports encrypt, or ask for certificates, waits for a restart, and is said."""
    async with serving(place.tls(client_ca=False)) as plain:
        read = config.parse(ANY_PORT + place.tls(client_ca=True) + CERTS)
        waiting = plain.server.reload(read)
        assert waiting == ("server.tls.client_ca",)
        async with connected(plain, place.credentials()) as edge:
            assert await code_of(edge) is grpc.StatusCode.UNAUTHENTICATED


async def test_http_context_follows_as_well(place: Place) -> None:
    """The context of an HTTP port shows the new certificate to new connections."""
    certificates = Certificates(config.parse(place.tls(client_ca=False)).server.tls)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readline())
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=certificates.http_context())
    port = server.sockets[0].getsockname()[1]
    shown = []
    for _ in range(2):
        context = ssl.create_default_context(cafile=place.ca)
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        shown.append(writer.get_extra_info("ssl_object").getpeercert()["serialNumber"])
        writer.write(b"x\n")
        assert await reader.readline() == b"x\n"
        writer.close()
        place.issue("server", ["127.0.0.1"], for_server=True)
        certificates.replace(config.parse(place.tls(client_ca=False)).server.tls)
    assert len(set(shown)) == 2
    server.close()
    await server.wait_closed()


@pytest.mark.parametrize(
    ("text", "path", "word"),
    [
        ("cert = '{0}/server.pem'", "server.tls.key", "with cert"),
        ("key = '{0}/server-key.pem'", "server.tls.cert", "with key"),
        ("client_ca = '{0}/ca.pem'", "server.tls.cert", "with client_ca"),
        ("cert = '{0}/gone.pem'\nkey = '{0}/server-key.pem'", "server.tls.cert", "can't be read"),
        ("cert = '{0}/text.pem'\nkey = '{0}/server-key.pem'", "server.tls.cert", "no certificate"),
        ("cert = '{0}/server.pem'\nkey = '{0}/text.pem'", "server.tls.key", "no private key"),
        ("cert = '{0}/late.pem'\nkey = '{0}/late-key.pem'", "server.tls.cert", "expired at"),
    ],
)
def test_wrong_files_are_named_before_anything_is_served(
    place: Place, text: str, path: str, word: str
) -> None:
    """What can't be used as a certificate or a key is a mistake of the configuration."""
    place.issue("late", ["localhost"], for_server=True, valid_for=-timedelta(hours=1))
    (place.folder / "text.pem").write_text("tiger")
    with pytest.raises(config.ConfigError) as caught:
        config.parse("[server.tls]\n" + text.format(place.folder))
    (problem,) = caught.value.problems
    assert (problem.path, word in problem.message) == (path, True)
    assert "tiger" not in problem.message


async def test_development_certificates_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What `dev-certs` makes and says is enough for a server and a client."""
    folder = tmp_path / "certs"
    assert cli.main(["dev-certs", str(folder)]) == cli.OK
    told = capsys.readouterr().out
    assert (folder / "client-key.pem").stat().st_mode & 0o077 == 0
    text = told[told.index("[server.tls]") :]
    roots = (folder / "ca.pem").read_bytes()
    pair = [(folder / f"client{part}.pem").read_bytes() for part in ("-key", "")]
    credentials = grpc.ssl_channel_credentials(roots, *pair)
    async with serving(text) as plain, connected(plain, credentials) as edge:
        assert await code_of(edge) is grpc.StatusCode.OK
    assert cli.main(["dev-certs", str(folder)]) == cli.FAILED
    assert "is there already" in capsys.readouterr().err
    with pytest.raises(FileExistsError):
        dev_certs.make(folder, [])
