"""Connections over HTTP: how long they may be silent, slow or idle, and what follows the role."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from cronoq_server.api.http import connection, front
from cronoq_server.api.http.gateway import Probes
from cronoq_server.api.http.listener import HttpListener
from cronoq_server.api.listener import AddressInUse
from cronoq_server.app import Server
from cronoq_server.config import Address, LimitsConfig, parse
from tests.api.conftest import Edge, serving
from tests.api.web import Line, close_lines, submission, until

LOOPBACK = Address("127.0.0.1", 0)


class Stage:
    """A role that the test decides, and a front that shows it."""

    is_leading = False
    is_ready = False
    is_stopping = False

    def __init__(self, **limits: Any) -> None:
        self.asked = 0
        self.released = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.front = front.Front(self.inner, self, lambda *_: None)  # type: ignore[arg-type]
        self.listener = HttpListener(LOOPBACK, LimitsConfig(**limits), self.front)

    async def inner(self, scope: Any, _receive: Any, send: Any) -> None:
        """Answers when it may."""
        self.asked += 1
        try:
            if scope["path"] == "/slow":
                await self.released.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        body = scope[front.BODY] or scope["path"].encode()
        headers = [(b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    def lead(self) -> None:
        """Leads from now on."""
        self.is_leading = self.is_ready = True
        self.listener.lead()

    def stand_by(self) -> None:
        """Stands by from now on."""
        self.is_leading = self.is_ready = False
        self.listener.stand_by()

    async def close(self) -> None:
        """Ends what the test has left."""
        self.released.set()
        await self.listener.close(0.1)
        await close_lines()

    async def line(self) -> Line:
        """A new connection."""
        return await Line.open(self.listener.address)


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    """A listener whose role the test decides; it begins as a standby."""
    made = Stage()
    await made.listener.start()
    yield made
    await made.close()


async def test_role_is_told_to_probes(stage: Stage) -> None:
    """Alive whatever the role; ready only while it leads; each answer ends its connection."""
    for is_leading in (False, True):
        for path, status in (("/healthz", 200), ("/readyz", 200 if is_leading else 503)):
            line = await stage.line()
            line.send("GET", path)
            answer = await line.answer()
            assert (answer.status, answer.headers["connection"]) == (status, "close")
            assert await line.ended() == b""
        stage.lead()


async def test_probes_take_get_and_head_alone(stage: Stage) -> None:
    """HEAD has the length of GET and no body; other methods hear what is allowed."""
    line = await stage.line()
    line.send("HEAD", "/healthz")
    answer = await line.answer(head_only=True)
    assert (answer.status, answer.headers["content-length"]) == (200, "6")
    assert await line.ended() == b""
    line = await stage.line()
    line.send("POST", "/readyz?full=1", b"{}")
    answer = await line.answer()
    assert (answer.status, answer.headers["allow"]) == (405, "get, head")


async def test_standby_refuses_and_closes(stage: Stage) -> None:
    """A standby answers every call with its role, before a body is read, and hangs up."""
    line = await stage.line()
    line.send("POST", "/v1/tasks", None, content_length="1000000")
    answer = await line.answer()
    assert (answer.status, answer.reason) == (503, "not_leader")
    assert (answer.headers["connection"], answer.headers["retry-after"]) == ("close", "1")
    assert await line.ended() == b""
    stage.is_stopping = True
    line = await stage.line()
    line.send("GET", "/v1/tasks")
    assert (await line.answer()).reason == "stopping"
    assert stage.asked == 0


async def test_what_is_open_is_served_by_a_standby(stage: Stage) -> None:
    """Figures are told whatever the role, on a connection that is then closed all the same."""
    stage.front.is_open = frozenset({"/metrics"})
    line = await stage.line()
    line.send("GET", "/metrics")
    assert (await line.answer()).body == b"/metrics"
    assert await line.ended() == b""


CHUNKED = b"POST /x HTTP/1.1\r\nhost: 127.0.0.1\r\ntransfer-encoding: chunked\r\n\r\n"


@pytest.mark.parametrize("rest", [b"", b"y" * 100_000], ids=["at once", "and much more"])
async def test_body_that_cannot_be_read_is_refused_at_once(stage: Stage, rest: bytes) -> None:
    """Nobody waits for the end of a body that is broken in the middle."""
    stage.lead()
    line = await stage.line()
    line.writer.write(CHUNKED + b"4\r\nhalfx" + rest)
    assert (await line.answer()).status == 400
    assert stage.asked == 0


async def test_broken_body_behind_another_request_ends_the_connection(stage: Stage) -> None:
    """What came before is answered; then nothing more comes, and nobody waits."""
    stage.lead()
    line = await stage.line()
    line.writer.write(b"GET /slow HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n" + CHUNKED + b"4\r\nhalfx")
    await until(lambda: stage.asked == 1)
    stage.released.set()
    assert (await line.answer()).body == b"/slow"
    assert await line.ended() == b""
    assert stage.asked == 1


async def test_what_follows_a_body_in_chunks_is_bounded(stage: Stage) -> None:
    """Trailers without end are refused, bodies in very small chunks are not."""
    stage.lead()
    line = await stage.line()
    line.writer.write(CHUNKED + b"1\r\nx\r\n" * 50_000 + b"0\r\n\r\n")
    assert (await line.answer()).body == b"x" * 50_000
    line.writer.write(CHUNKED + b"1\r\nx\r\n0\r\nx: " + b"y" * 20 * connection.HEAD_BYTES_MAX)
    assert (await line.answer()).status == 431


@pytest.mark.regression("R34")
@pytest.mark.parametrize("said", [b"", b"GET /healthz HT", b"GET / HTTP/1.1\r\nhost: x\r\n"])
async def test_silent_connection_is_closed(
    stage: Stage, said: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who asks nothing, or only half, does not keep a connection, on either role."""
    monkeypatch.setattr(connection, "STANDBY_AGE_S", 0.02)
    monkeypatch.setattr(connection, "HEAD_TIMEOUT_S", 0.02)
    for _ in range(2):
        line = await stage.line()
        line.writer.write(said)
        assert await line.ended() == b""
        stage.lead()
    await until(lambda: stage.listener.connections == 0)


async def test_half_a_second_request_is_not_waited_for(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection that was of use has no longer to send the next head than a new one."""
    stage.lead()
    line = await stage.line()
    line.send("GET", "/a")
    assert (await line.answer()).body == b"/a"
    monkeypatch.setattr(connection, "HEAD_TIMEOUT_S", 0.02)
    line.writer.write(b"GET /b HTTP/1.1\r\nhost:")
    assert await line.ended() == b""


async def test_half_a_request_behind_a_slow_one_waits(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock of a head begins when the answer before it is out."""
    monkeypatch.setattr(connection, "HEAD_TIMEOUT_S", 0.02)
    stage.lead()
    line = await stage.line()
    line.send("GET", "/slow")
    line.writer.write(b"GET /b HTTP/1.1\r\n")
    await until(lambda: stage.asked == 1)
    await asyncio.wait([asyncio.create_task(stage.cancelled.wait())], timeout=0.05)
    stage.released.set()
    assert (await line.answer()).body == b"/slow"
    assert await line.ended() == b""


async def test_idle_connection_is_reaped() -> None:
    """A connection that is kept alive and not used is closed after its time."""
    stage = Stage(idle_connection_timeout_s=0.2)
    await stage.listener.start()
    stage.lead()
    line = await stage.line()
    line.send("GET", "/a")
    assert (await line.answer()).body == b"/a"
    assert await line.ended() == b""
    await stage.close()


async def test_requests_in_line_are_answered_in_order(stage: Stage) -> None:
    """Requests that are sent without waiting get their answers one by one, on one connection."""
    stage.lead()
    line = await stage.line()
    line.send("GET", "/slow")
    line.send("POST", "/x", b"body of the second")
    line.send("GET", "/last", connection="close")
    await until(lambda: stage.asked == 1)
    stage.released.set()
    assert [(await line.answer()).body for _ in range(3)] == [
        b"/slow",
        b"body of the second",
        b"/last",
    ]
    assert await line.ended() == b""


async def test_caller_who_leaves_ends_its_request(stage: Stage) -> None:
    """The task that serves is cancelled, also while other requests stand in line behind it."""
    stage.lead()
    for behind in (0, 2):
        stage.cancelled.clear()
        line = await stage.line()
        for _ in range(1 + behind):
            line.send("GET", "/slow")
        asked = stage.asked
        await until(lambda asked=asked: stage.asked == asked + 1)  # type: ignore[misc]
        line.close()
        await stage.cancelled.wait()
    await until(lambda: stage.listener.connections == 0)


async def test_old_protocol_closes_after_its_answer(stage: Stage) -> None:
    """HTTP/1.0 without keep-alive gets one answer."""
    stage.lead()
    line = await stage.line()
    line.send("GET", "/a", version="1.0")
    assert (await line.answer()).body == b"/a"
    assert await line.ended() == b""


@pytest.mark.parametrize(
    "said",
    [
        b"hello\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nhost: x\r\n\r\n",
        b"GET / HTTP/1.1\r\ncontent-length: x\r\n\r\n",
        b"POST / HTTP/1.1\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n",
        b"CONNECT a:1 HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00",
    ],
)
async def test_what_is_no_request_is_refused(stage: Stage, said: bytes) -> None:
    """Bytes that are no request get one refusal and the end of the connection."""
    stage.lead()
    line = await stage.line()
    line.writer.write(said)
    answer = await line.answer()
    assert (answer.status, answer.reason) == (400, "invalid_field")
    assert await line.ended() == b""
    assert stage.asked == 0


async def test_upgrade_is_answered_as_if_it_had_not_been_asked(stage: Stage) -> None:
    """A client that offers another protocol gets its answer in this one."""
    stage.lead()
    line = await stage.line()
    line.send("GET", "/a", connection="Upgrade", upgrade="h2c")
    assert (await line.answer()).body == b"/a"
    assert await line.ended() == b""


@pytest.mark.parametrize("extra", [-1, 0, 1])
async def test_head_has_a_largest_size(stage: Stage, extra: int) -> None:
    """A head of the limit is read, one more byte is refused, even if it never ends."""
    stage.lead()
    line = await stage.line()
    head = b"GET /a HTTP/1.1\r\nhost: localhost\r\nx: "
    end = b"\r\n\r\n"
    filling = b"y" * (connection.HEAD_BYTES_MAX + extra - len(head) - len(end))
    line.writer.write(head + filling)
    if extra < 1:
        line.writer.write(end)
        assert (await line.answer()).body == b"/a"
    else:
        line.writer.write(end[:2] + b"z: 1\r\n")
        answer = await line.answer()
        assert (answer.status, answer.reason) == (431, "too_large")
        assert await line.ended() == b""
    line.close()


@pytest.mark.parametrize("extra", [-1, 0, 1])
@pytest.mark.parametrize("is_chunked", [False, True])
async def test_body_has_a_largest_size(stage: Stage, extra: int, is_chunked: bool) -> None:
    """A body of the limit is read; a larger one is refused, however it comes."""
    stage.lead()
    stage.front.body_bytes_max = most = 100_000
    body = b"x" * (most + extra)
    line = await stage.line()
    if is_chunked:
        line.send("POST", "/a", None, transfer_encoding="chunked")
        line.writer.write(b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body))
    else:
        line.send("POST", "/a", body)
    answer = await line.answer()
    if extra < 1:
        assert (answer.status, answer.body) == (200, body)
    else:
        assert (answer.status, answer.reason) == (413, "too_large")
        assert await line.ended() == b""
    line.close()


async def test_large_body_is_refused_by_what_it_says_of_itself(stage: Stage) -> None:
    """Nothing of a body that is announced as too large is waited for."""
    stage.lead()
    line = await stage.line()
    line.send("POST", "/a", None, content_length=str(1 << 40), expect="100-continue")
    assert (await line.answer()).status == 413


async def test_body_is_asked_for_when_the_caller_waits_for_that(stage: Stage) -> None:
    """`Expect: 100-continue` is answered before the body, and then by the answer."""
    stage.lead()
    line = await stage.line()
    line.send("POST", "/a", None, content_length="2", expect="100-continue")
    assert await line.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    line.writer.write(b"ok")
    assert (await line.answer()).body == b"ok"


async def test_slow_body_is_given_up(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """A body that does not arrive in time is refused and its connection closed."""
    monkeypatch.setattr(front, "BODY_TIMEOUT_S", 0.02)
    stage.lead()
    line = await stage.line()
    line.send("POST", "/a", None, content_length="2")
    line.writer.write(b"o")
    answer = await line.answer()
    assert (answer.status, answer.reason) == (408, "invalid_field")
    assert await line.ended() == b""


async def test_bodies_that_are_arriving_have_a_bound_together(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is held of bodies never exceeds the bound; who is too much comes later, and can."""
    stage.lead()
    stage.front.body_bytes_max = 60_000
    monkeypatch.setattr(front, "HELD_BYTES_MAX", 100_000)
    slow = await stage.line()
    slow.send("POST", "/a", None, content_length="60000")
    slow.writer.write(b"x" * 59_999)
    await until(lambda: stage.front.held_bytes == 59_999)
    for body, status in ((b"y" * 40_001, 200), (b"y" * 40_002, 429)):
        line = await stage.line()
        line.send("POST", "/a", body)
        answer = await line.answer()
        assert answer.status == status
        line.close()
    assert answer.reason == "too_many_requests"
    slow.writer.write(b"x")
    assert (await slow.answer()).body == b"x" * 60_000
    assert stage.front.held_bytes == 0


@pytest.mark.regression("R34")
async def test_connection_that_says_nothing_makes_room(stage: Stage) -> None:
    """At the bound the longest silent connection is closed for a new one, busy ones never."""
    stage.lead()
    stage.listener.bound(3)
    silent = [await stage.line() for _ in range(2)]
    await until(lambda: stage.listener.connections == 2)
    busy = await stage.line()
    busy.send("GET", "/slow")
    await until(lambda: stage.asked == 1)
    fresh = await stage.line()
    fresh.send("GET", "/slow")
    assert await silent[0].ended() == b""
    await until(lambda: stage.asked == 2)
    third = await stage.line()
    third.send("GET", "/slow")
    assert await silent[1].ended() == b""
    await until(lambda: stage.asked == 3)
    late = await stage.line()
    assert await late.ended() == b""
    stage.released.set()
    for line in (busy, fresh, third):
        assert (await line.answer()).body == b"/slow"
        line.close()


@pytest.mark.regression("R34")
async def test_two_thousand_silent_connections_bother_nobody(stage: Stage) -> None:
    """Others are served meanwhile, and all that said nothing are closed."""
    stage.lead()
    silent = [await stage.line() for _ in range(2000)]
    line = await stage.line()
    line.send("GET", "/a")
    assert (await line.answer()).body == b"/a"
    stage.stand_by()
    for other in silent:
        assert await other.ended() == b""
    await until(lambda: stage.listener.connections == 0)


@pytest.mark.regression("R28")
async def test_reader_that_does_not_read_is_cut_off(
    edge: Edge, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer that nobody takes away does not stay for ever, nor does its connection."""
    monkeypatch.setattr(connection, "STALL_TIMEOUT_S", 0.05)
    monkeypatch.setattr(connection, "CLOSE_TIMEOUT_S", 0.05)
    line = await Line.open(edge.server.http_address)
    line.send("POST", "/v1/tasks", submission(key="k", payload="x" * 3_000_000))
    assert (await line.answer()).status == 201
    line.writer.transport.pause_reading()  # type: ignore[attr-defined]
    for _ in range(5):
        line.send("GET", "/v1/task-by-key/detail?key=k")
    await until(lambda: edge.server.http_connections == 0)
    line.close()


async def test_stepping_down_closes_when_answered(stage: Stage) -> None:
    """Idle connections end at once, busy ones when their answer is out."""
    stage.lead()
    idle, busy = await stage.line(), await stage.line()
    idle.send("GET", "/a")
    await idle.answer()
    busy.send("GET", "/slow")
    await until(lambda: stage.asked == 2)
    stage.stand_by()
    assert await idle.ended() == b""
    stage.released.set()
    assert (await busy.answer()).body == b"/slow"
    assert await busy.ended() == b""


async def test_closing_gives_answers_under_way_their_time(stage: Stage) -> None:
    """What is answered within the grace is answered; what is not is cut off."""
    stage.lead()
    busy, silent = await stage.line(), await stage.line()
    busy.send("GET", "/slow")
    await until(lambda: stage.asked == 1)
    closing = asyncio.create_task(stage.listener.close(30))
    assert await silent.ended() == b""
    stage.released.set()
    assert (await busy.answer()).body == b"/slow"
    await closing
    with pytest.raises(ConnectionError):
        await stage.line()


async def test_closing_cuts_off_what_does_not_end(stage: Stage) -> None:
    """A request that goes on beyond the grace is cancelled."""
    stage.lead()
    busy = await stage.line()
    busy.send("GET", "/slow")
    await until(lambda: stage.asked == 1)
    await stage.listener.close(0.02)
    await stage.cancelled.wait()
    assert await busy.ended() == b""


async def test_address_in_use_is_named(stage: Stage) -> None:
    """Neither a second listener nor a whole second server gets the port."""
    address = stage.listener.address
    with pytest.raises(AddressInUse, match=f"{address} is already in use"):
        await HttpListener(address, LimitsConfig(), stage.front).start()
    with pytest.raises(AddressInUse, match=f"{address} is already in use"):
        Server(parse(f"[server]\ngrpc_addr = '127.0.0.1:0'\nhttp_addr = '{address}'"))


async def test_figures_and_probes_have_an_address_of_their_own() -> None:
    """What `metrics_addr` serves needs no credential, and is nothing else."""
    stage = Stage()

    async def metrics(accept: str) -> tuple[str, bytes]:
        return "text/plain", accept.encode()

    listener = HttpListener(LOOPBACK, LimitsConfig(), Probes(stage, metrics))
    await listener.start()
    for path, status in (
        ("/metrics", 200),
        ("/healthz", 200),
        ("/readyz", 503),
        ("/v1/pools", 404),
    ):
        line = await Line.open(listener.address)
        line.send("GET", path, accept="a/b")
        answer = await line.answer()
        assert answer.status == status
        assert await line.ended() == b""
        if path == "/metrics":
            assert (answer.headers["content-type"], answer.body) == ("text/plain", b"a/b")
    await listener.close(0.1)
    await close_lines()


async def test_shutdown_keeps_order() -> None:
    """Until the last attempt has reported calls are answered; then nobody is."""
    async with serving(grace_s=30) as edge:
        worker = await edge.worker()
        task_id = await edge.submit()
        (lease,) = await worker.leases(1)
        line = await Line.open(edge.server.http_address)
        line.send("GET", f"/v1/tasks/{task_id}")
        await line.answer()
        edge.server.stop()
        await worker.hear("shutdown")
        line.send("POST", "/v1/tasks", submission(kind="k"))
        assert (await line.answer()).status == 201
        probe = await Line.open(edge.server.http_address)
        probe.send("GET", "/readyz")
        assert (await probe.answer()).status == 200
        await worker.complete(1, lease)
        assert await line.ended() == b""
        await worker.hear("shutdown")
        worker.stream.cancel()


def test_names_of_a_certificate_are_those_of_hosts() -> None:
    """Of all names in a client's certificate only the DNS names count."""

    class Encrypted(asyncio.Transport):
        def get_extra_info(self, name: str, default: Any = None) -> Any:
            if name != "peercert":
                return default
            names = (("DNS", "a.example"), ("IP Address", "127.0.0.1"), ("DNS", "b.example"))
            return {"subjectAltName": names}

    assert connection.certificate_names(Encrypted()) == ("a.example", "b.example")
    assert connection.certificate_names(asyncio.Transport()) == ()
