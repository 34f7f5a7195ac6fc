"""Holds a running worker to its promises, against a server played from a script."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import pytest
from scripted_server import PATIENCE_S, Refusal, ScriptedServer, WorkStream, make_lease

from cronoq import (
    Attempt,
    Backoff,
    Cancel,
    GaveUpError,
    JsonCodec,
    Permanent,
    Reject,
    Retryable,
    Worker,
)
from cronoq._proto import task_pb2, workers_pb2
from cronoq._session import Session
from cronoq.errors import ClosedError

QUICK = Backoff(initial=0.001, maximum=0.01)


def _worker(server: ScriptedServer, **options: Any) -> Worker:
    defaults: dict[str, Any] = {"endpoint": server.endpoint, "slots": 4, "backoff": QUICK}
    return Worker(**(defaults | options))


@contextlib.asynccontextmanager
async def _running(worker: Worker, server: ScriptedServer) -> AsyncIterator[WorkStream]:
    """Runs a worker whose first stream is accepted, and lets it end in order."""
    async with worker:
        stream = await server.stream()
        await stream.accept()
        await worker.wait_ready()
        yield stream
        ending = asyncio.create_task(_end(stream))
    await ending


async def _end(stream: WorkStream) -> None:
    """Confirms everything and ends the stream when the worker has ended its side."""
    while (message := await stream.next()) is not None:
        if message.WhichOneof("message") == "reports":
            await stream.receipt(message.reports.number)
    stream.end()


class Gate:
    """A place where handlers wait, and tests see them wait."""

    def __init__(self) -> None:
        self._entered: asyncio.Queue[Attempt] = asyncio.Queue()
        self.opened = asyncio.Event()
        self.left = asyncio.Event()
        self.cancelled: list[int] = []

    async def __call__(self, attempt: Attempt) -> str:
        """Waits for the gate to open."""
        self._entered.put_nowait(attempt)
        try:
            await self.opened.wait()
        except asyncio.CancelledError:
            self.cancelled.append(attempt.task_id)
            raise
        self.left.set()
        return "through"

    async def entered(self) -> Attempt:
        """The next handler that waits here."""
        async with asyncio.timeout(PATIENCE_S):
            return await self._entered.get()


async def _wait_for(event: asyncio.Event) -> None:
    async with asyncio.timeout(PATIENCE_S):
        await event.wait()


async def _threads_ended(since: list[threading.Thread]) -> None:
    """Waits until the worker's own threads that were not there before have ended."""
    for thread in threading.enumerate():
        if thread not in since and thread.name in ("cronoq-link", "cronoq-pulse"):
            await asyncio.to_thread(thread.join, PATIENCE_S)
            assert not thread.is_alive()


# --- work -----------------------------------------------------------------------------------------


async def test_a_handler_gets_its_payload_and_its_value_is_reported(server: ScriptedServer) -> None:
    """One task, start to end."""
    worker = _worker(server, pool="p", name="w", labels={"gpu": "1"})

    @worker.handler("echo")
    async def echo(word: str) -> str:
        return word.upper()

    async with _running(worker, server) as stream:
        await stream.lease(make_lease(1, b'"word"'))
        (report,) = await stream.reports(1)
        assert (report.complete.output, report.complete.content_type) == (
            b'"WORD"',
            "application/json",
        )
    register = stream.register
    assert (register.pool, register.slots, register.worker_name) == ("p", 4, "w")
    assert (register.protocol_version, dict(register.labels)) == (4, {"gpu": "1"})
    assert register.sdk.startswith("python/")
    assert list(register.kinds) == ["echo"]
    assert stream.is_half_closed


async def test_a_default_handler_takes_any_kind(server: ScriptedServer) -> None:
    """Then no kinds are declared."""
    worker = _worker(server)
    worker.default_handler(lambda attempt: attempt.kind)
    async with _running(worker, server) as stream:
        assert list(stream.register.kinds) == []
        await stream.lease(make_lease(1, kind="anything"))
        (report,) = await stream.reports(1)
        assert report.complete.output == b'"anything"'


async def test_attempts_of_one_turn_are_reported_together(server: ScriptedServer) -> None:
    """A batch of leases comes back as few messages, not one each."""
    worker = _worker(server, slots=300)
    worker.handler("echo")(_same)
    async with _running(worker, server) as stream:
        await stream.lease(*(make_lease(n) for n in range(1, 301)))
        await stream.reports(300)
        assert stream.last_number <= 3


async def _same(value: Any) -> Any:
    return value


def _raise(error: BaseException) -> Callable[[], Any]:
    def handler() -> None:
        raise error

    return handler


@pytest.mark.parametrize("is_async", [True, False], ids=["async", "sync"])
@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (Retryable("later"), {"message": "later"}),
        (Retryable("then", retry_after=7.5), {"message": "then", "retry_after_s": 7.5}),
        (Permanent("never"), {"message": "never", "permanent": True}),
        (ValueError("bad"), {"message": "ValueError: bad"}),
        (KeyError(), {"message": "KeyError"}),
        (SystemExit(3), {"message": "SystemExit: 3"}),
        (ValueError("nul\0 and \ud800"), {"message": "ValueError: nul\ufffd and \ufffd"}),
    ],
    ids=["retryable", "retry_after", "permanent", "other", "no text", "exit", "unclean"],
)
async def test_what_a_handler_raises_decides_how_its_attempt_fails(
    server: ScriptedServer,
    caplog: pytest.LogCaptureFixture,
    error: BaseException,
    expected: dict[str, Any],
    is_async: bool,
) -> None:
    """Every exception is the end of its attempt, and of nothing else."""
    caplog.set_level(logging.CRITICAL, logger="cronoq.worker")  # Unclean text stays out of reports.
    worker = _worker(server)

    async def handler() -> None:
        raise error

    worker.handler("echo")(handler if is_async else _raise(error))
    async with _running(worker, server) as stream:
        await stream.lease(make_lease(1))
        (report,) = await stream.reports(1)
        assert workers_pb2.Fail(lease=1, **expected) == report.fail


async def test_a_handler_can_cancel_its_task_or_give_it_back(server: ScriptedServer) -> None:
    """Cancel ends the task, Reject is for another worker."""
    worker = _worker(server)
    worker.handler("cancel")(_raise(Cancel("no longer wanted")))
    worker.handler("reject")(_raise(Reject("no room")))
    async with _running(worker, server) as stream:
        await stream.lease(make_lease(1, kind="cancel"))
        (report,) = await stream.reports(1)
        assert report.cancelled.lease == 1
        await stream.lease(make_lease(2, kind="reject"))
        (report,) = await stream.reports(1)
        assert report.nack == workers_pb2.Nack(lease=2, reason="no room")


async def test_an_unknown_kind_is_given_back_once_then_fails(server: ScriptedServer) -> None:
    """Another worker may know it; the second time nobody does."""
    worker = _worker(server)
    worker.handler("echo")(_same)
    async with _running(worker, server) as stream:
        await stream.lease(make_lease(1, kind="what", task_id=5))
        (report,) = await stream.reports(1)
        assert report.nack.reason == "no handler for kind 'what'"
        await stream.lease(make_lease(2, kind="what", task_id=5))
        (report,) = await stream.reports(1)
        assert report.fail.permanent


@pytest.mark.regression("R18")
@pytest.mark.parametrize(
    ("payload", "content_type", "message"),
    [
        (b"{", "application/json", "payload is no int"),
        (b'"text"', "application/json", "payload is no int"),
        (b"1", "application/x-pickle", "unknown content type 'application/x-pickle'"),
        (b"1", "application/octet-stream", "payload is bytes, but int is wanted"),
        (b"1", "application/json;transform=zlib", "needs transform 'zlib'"),
        (b"", "", "the task has no payload, but int is wanted"),
    ],
)
async def test_a_poison_payload_fails_its_attempt_permanently(
    server: ScriptedServer, payload: bytes, content_type: str, message: str
) -> None:
    """The reason is named, and the worker lives on."""
    from cronoq import JsonCodec, TransformingCodec

    worker = _worker(server, codec=TransformingCodec(JsonCodec(), []))

    @worker.handler("echo")
    async def echo(number: int) -> int:
        return number

    async with _running(worker, server) as stream:
        await stream.lease(make_lease(1, payload, content_type=content_type), make_lease(2, b"5"))
        bad, good = sorted(await stream.reports(2), key=lambda r: r.HasField("complete"))
        assert bad.fail.permanent
        assert message in bad.fail.message
        assert good.complete.output == b"5"


async def test_an_output_that_cannot_be_encoded_fails_permanently(server: ScriptedServer) -> None:
    """No retry changes what a handler returns."""
    worker = _worker(server)
    worker.handler("echo")(lambda: object())
    async with _running(worker, server) as stream:
        await stream.lease(make_lease(1))
        (report,) = await stream.reports(1)
        assert report.fail.permanent
        assert "output not encodable" in report.fail.message


@pytest.mark.regression("R19")
async def test_an_output_too_large_fails_permanently(server: ScriptedServer) -> None:
    """It is found before it is sent, so the stream stands."""
    worker = _worker(server)
    worker.handler("echo")(lambda: b"x" * 5_000_000)
    async with _running(worker, server) as stream:
        await stream.lease(make_lease(1))
        (report,) = await stream.reports(1)
        assert report.fail.permanent
        assert report.fail.message == "output too large (5000000 > 4128768)"


async def test_large_payloads_pass_in_one_step(server: ScriptedServer) -> None:
    """Empty ones too."""
    worker = _worker(server, slots=16)

    @worker.handler("echo")
    async def size(payload: bytes) -> int:
        return len(payload)

    async with _running(worker, server) as stream:
        big = b"x" * 3_900_000
        for number in range(1, 9):
            await stream.lease(make_lease(number, big, content_type="application/octet-stream"))
        await stream.lease(make_lease(9, b"", content_type="application/octet-stream"))
        outputs = sorted(report.complete.output for report in await stream.reports(9))
        assert outputs == [b"0"] + [b"3900000"] * 8


async def test_the_attempt_tells_what_the_lease_said(server: ScriptedServer) -> None:
    """Everything a handler may need to know."""
    worker = _worker(server)
    seen: list[Attempt] = []

    @worker.handler("echo")
    async def echo(attempt: Attempt, word: str) -> None:
        assert word == "x"
        seen.append(attempt)

    async with _running(worker, server) as stream:
        lease = make_lease(
            1,
            task_id=77,
            attempt=3,
            key="k",
            tags={"a": "b"},
            timeout_s=2.5,
            deadline_unix_ns=1_000_000_000,
            trace_context={"traceparent": "00-1"},
            parents=[5, 6],
            priority=task_pb2.PRIORITY_HIGH,
            last_progress=task_pb2.Progress(data=b"half", fraction=0.5),
        )
        await stream.lease(lease)
        await stream.reports(1)
    (attempt,) = seen
    assert (attempt.task_id, attempt.number, attempt.kind, attempt.key) == (77, 3, "echo", "k")
    assert (attempt.pool, attempt.tags, attempt.timeout_s) == ("default", {"a": "b"}, 2.5)
    assert (attempt.trace_context, attempt.parents) == ({"traceparent": "00-1"}, (5, 6))
    assert attempt.deadline is not None
    assert attempt.deadline.timestamp() == 1.0
    assert attempt.last_progress is not None
    assert (attempt.last_progress.data, attempt.last_progress.fraction) == (b"half", 0.5)
    assert attempt.priority.name == "HIGH"
    assert not attempt.is_cancelled


@pytest.mark.parametrize("is_async", [True, False], ids=["async", "sync"])
async def test_a_handler_reads_its_parents_outputs(server: ScriptedServer, is_async: bool) -> None:
    """Over the lease it holds."""
    requests: list[workers_pb2.GetOutputRequest] = []

    async def output(request: workers_pb2.GetOutputRequest) -> workers_pb2.Output:
        requests.append(request)
        return workers_pb2.Output(output=b"[1,2]", content_type="application/json", status=6)

    server.on_workers("GetOutput", output)
    worker = _worker(server)

    async def add(attempt: Attempt) -> int:
        return sum([sum(await attempt.output(p, list[int])) for p in attempt.parents])

    def add_blocking(attempt: Attempt) -> int:
        return sum(sum(attempt.output_blocking(p, list[int])) for p in attempt.parents)

    worker.handler("echo")(add if is_async else add_blocking)
    async with _running(worker, server) as stream:
        await stream.lease(make_lease(4, parents=[8, 9]))
        (report,) = await stream.reports(1)
        assert report.complete.output == b"6"
    assert [(r.lease, r.task_id) for r in requests] == [(4, 8), (4, 9)]


async def test_interceptors_wrap_every_handler(server: ScriptedServer) -> None:
    """Around async and sync handlers alike, with the attempt, in order."""
    events: list[str] = []

    def interceptor(name: str) -> Callable[[Attempt], Any]:
        @contextlib.contextmanager
        def around(attempt: Attempt) -> Any:
            events.append(f"{name} in {attempt.kind}")
            yield
            events.append(f"{name} out")

        return around

    worker = _worker(server, slots=1, interceptors=[interceptor("a"), interceptor("b")])
    worker.handler("echo")(_same)
    worker.handler("sync")(lambda: None)
    async with _running(worker, server) as stream:
        await stream.lease(make_lease(1))
        await stream.reports(1)
        await stream.lease(make_lease(2, kind="sync"))
        await stream.reports(1)
    assert events == [
        *["a in echo", "b in echo", "b out", "a out"],
        *["a in sync", "b in sync", "b out", "a out"],
    ]


@pytest.mark.regression("R33")
async def test_the_last_progress_reaches_the_server_before_the_failure(
    server: ScriptedServer,
) -> None:
    """However many words came before it."""
    worker = _worker(server)

    @worker.handler("echo")
    async def echo(attempt: Attempt) -> None:
        for step in range(1000):
            attempt.progress(str(step), fraction=step / 1000)
        raise Retryable("now")

    async with _running(worker, server) as stream:
        await stream.lease(make_lease(1))
        words = []
        while (message := await stream.next()) is not None:
            if message.WhichOneof("message") == "reports":
                await stream.receipt(message.reports.number)
                break
            words += [item.progress.data for item in message.heartbeats.progress]
        assert words[-1] == b"999"


@pytest.mark.parametrize(("data", "fraction"), [(b"x" * 1025, None), (b"", 1.1), (b"", -0.1)])
async def test_progress_out_of_bounds_is_refused(
    server: ScriptedServer, data: bytes, fraction: float | None
) -> None:
    """By the call that made it, so the handler learns of it."""
    worker = _worker(server)

    @worker.handler("echo")
    async def echo(attempt: Attempt) -> None:
        with pytest.raises(ValueError, match="progress"):
            attempt.progress(data, fraction=fraction)

    async with _running(worker, server) as stream:
        await stream.lease(make_lease(1))
        (report,) = await stream.reports(1)
        assert report.HasField("complete")


# --- aborts ---------------------------------------------------------------------------------------


async def test_an_abort_cancels_the_handler_and_is_reported_when_it_has_ended(
    server: ScriptedServer,
) -> None:
    """The hook hears the reason."""
    told: list[tuple[int, str]] = []
    worker = _worker(server, on_abort=lambda a, reason: told.append((a.task_id, reason)))
    gate = Gate()
    worker.handler("echo")(gate)
    async with _running(worker, server) as stream:
        await stream.lease(make_lease(1))
        attempt = await gate.entered()
        await stream.send(aborts=workers_pb2.AbortBatch(aborts=[{"lease": 1, "reason": "timeout"}]))
        (report,) = await stream.reports(1)
        assert report.cancelled.lease == 1
        assert gate.cancelled == [attempt.task_id]
        assert attempt.cancel_reason == "timeout"
    assert told == [(1001, "timeout")]


@pytest.mark.regression("R31")
async def test_a_sync_handler_that_ignores_its_abort_keeps_its_slot(server: ScriptedServer) -> None:
    """The next lease waits until the thread has ended, and both are named in heartbeats."""
    worker = _worker(server, slots=1)
    release, begun = threading.Event(), threading.Event()
    started: list[int] = []

    @worker.handler("echo")
    def stubborn(attempt: Attempt) -> str:
        started.append(attempt.task_id)
        begun.set()
        if attempt.task_id == 1001:
            assert release.wait(PATIENCE_S)
        return "ended"

    async with worker:
        stream = await server.stream()
        await stream.accept(lease_ttl_s=0.3)
        await stream.lease(make_lease(1))
        assert await asyncio.to_thread(begun.wait, PATIENCE_S)
        await stream.send(abort=workers_pb2.Abort(lease=1))
        await stream.lease(make_lease(2, lease_ttl_s=60.0))
        while list((await stream.expect("heartbeats")).leases) != [1, 2]:
            pass
        assert started == [1001]
        release.set()
        first, second = await stream.reports(2)
        assert first.cancelled.lease == 1
        assert second.complete.lease == 2
        assert started == [1001, 1002]
        ending = asyncio.create_task(_end(stream))
    await ending


async def test_an_abort_right_behind_its_lease_frees_the_slot(server: ScriptedServer) -> None:
    """Also between the start of a handler's task and its first step."""
    worker = _worker(server, slots=1)
    gate = Gate()
    worker.handler("echo")(gate)
    async with _running(worker, server) as stream:
        engagement = worker._current()
        leases = workers_pb2.ServerMessage(lease=make_lease(1))
        abort = workers_pb2.ServerMessage(abort=workers_pb2.Abort(lease=1))
        # Both in one turn of the loop, in this order: no message of a server can be that quick.
        engagement._take(engagement.session.receive(leases, 0.0).begun)
        engagement._cancel(engagement.session.receive(abort, 0.0).stopped)
        (report,) = await stream.reports(1)
        assert report.cancelled.lease == 1
        gate.opened.set()
        await stream.lease(make_lease(2))
        (report,) = await stream.reports(1)
        assert report.complete.lease == 2


class _BadText(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class _BadCodec(JsonCodec):
    def encode(self, value: Any) -> tuple[bytes, str]:
        """Gives a str for one value."""
        return ("text", "x") if value == "bad" else super().encode(value)  # type: ignore[return-value]


@pytest.mark.parametrize("is_async", [True, False], ids=["async", "sync"])
async def test_what_users_code_does_wrong_harms_its_own_attempt_only(
    server: ScriptedServer, is_async: bool
) -> None:
    """Exceptions without text, messages that are no text, codecs that give no bytes."""
    worker = _worker(server, codec=_BadCodec())
    errors = {
        "no text": _BadText(),
        "number": Permanent(5),  # type: ignore[arg-type]
        "interrupt": SystemExit(),
    }

    def misbehave(word: str) -> str:
        if word in errors:
            raise errors[word]
        return word

    async def misbehave_async(word: str) -> str:
        return misbehave(word)

    worker.handler("echo")(misbehave_async if is_async else misbehave)
    words = [*errors, "bad", "good"]
    async with _running(worker, server) as stream:
        leases = [make_lease(n, f'"{word}"'.encode()) for n, word in enumerate(words, 1)]
        await stream.lease(*leases)
        told = {}
        for report in await stream.reports(len(words)):
            lease = report.fail.lease or report.complete.lease
            told[words[lease - 1]] = report.fail.message or report.complete.output
    assert told == {
        "no text": "_BadText",
        "number": "5",
        "interrupt": "SystemExit",
        "bad": "output not encodable: the codec gave no bytes",
        "good": b'"good"',
    }


class _Unmade(Permanent):
    def __init__(self) -> None:
        """Does not call the constructor of the class above."""


class _Unreadable:
    def __str__(self) -> str:
        raise RuntimeError("no text")


class _FailingCodec(JsonCodec):
    def encode(self, value: Any) -> tuple[bytes, str]:
        """Knows no value but one."""
        if value != "good":
            raise KeyError(value)
        return super().encode(value)

    def decode(self, payload: bytes, content_type: str, wanted: Any) -> Any:
        """Fails with an error of its own."""
        if payload == b"unreadable":
            raise KeyError("which key")
        return super().decode(payload, content_type, wanted)


@contextlib.contextmanager
def _taking_in(_attempt: Attempt) -> Any:
    with contextlib.suppress(ZeroDivisionError):
        yield


@pytest.mark.parametrize("is_async", [True, False], ids=["async", "sync"])
@pytest.mark.parametrize(
    ("payload", "error", "told"),
    [
        (b'"x"', _Unmade(), (True, "")),
        (b'"x"', Permanent(_Unreadable()), (True, "Permanent")),  # type: ignore[arg-type]
        (b'"x"', Retryable(_Unreadable()), (False, "Retryable")),  # type: ignore[arg-type]
        (b'"x"', None, (True, "output not encodable: KeyError: 'x'")),
        (b'"x"', ZeroDivisionError(), (True, "output not encodable: KeyError: None")),
        (b"unreadable", None, (True, "payload not decodable: KeyError: 'which key'")),
    ],
    ids=["unmade", "permanent", "retryable", "encode", "taken in", "decode"],
)
async def test_users_code_that_fails_around_a_handler_keeps_no_slot(
    server: ScriptedServer,
    payload: bytes,
    error: Exception | None,
    told: tuple[bool, str],
    is_async: bool,
) -> None:
    """Codecs, interceptors and the classes of exceptions: their attempt ends, the next one runs."""
    worker = _worker(server, slots=1, codec=_FailingCodec(), interceptors=[_taking_in])

    def misbehave(word: str) -> str:
        if error is not None and word != "good":
            raise error
        return word

    async def misbehave_async(word: str) -> str:
        return misbehave(word)

    worker.handler("echo")(misbehave_async if is_async else misbehave)
    async with _running(worker, server) as stream:
        await stream.lease(make_lease(1, payload), make_lease(2, b'"good"'))
        bad, good = await stream.reports(2)
    assert (bad.fail.permanent, bad.fail.message) == told
    assert good.complete.output == b'"good"'


@pytest.mark.parametrize(
    "reason", [5, None, ValueError("why")], ids=["number", "nothing", "exception"]
)
async def test_a_reason_that_is_no_text_harms_no_other_report(
    server: ScriptedServer, reason: Any
) -> None:
    """All of one turn are reported together, whatever one of them says."""
    worker = _worker(server)

    async def end(word: str) -> str:
        if word == "cancel":
            raise Cancel(reason)
        if word == "reject":
            raise Reject(reason)
        return word

    worker.handler("echo")(end)
    words = ["cancel", "reject", "good"]
    async with _running(worker, server) as stream:
        await stream.lease(*(make_lease(n, f'"{w}"'.encode()) for n, w in enumerate(words, 1)))
        kinds = [report.WhichOneof("report") for report in await stream.reports(3)]
    assert sorted(map(str, kinds)) == ["cancelled", "complete", "nack"]


@pytest.mark.parametrize("wait", [-1, float("nan"), float("inf")])
def test_a_retry_after_that_is_no_time_is_refused(wait: float) -> None:
    """Where it is said."""
    with pytest.raises(ValueError, match="retry_after"):
        Retryable("later", retry_after=wait)


async def test_a_loop_closed_without_a_stop_lets_its_leases_go(server: ScriptedServer) -> None:
    """The worker ends its stream instead of naming leases that nobody runs."""
    worker = _worker(server)
    worker.handler("echo")(_same)

    async def forget() -> None:
        worker.start()
        await worker.wait_ready()

    forgetting = asyncio.create_task(asyncio.to_thread(asyncio.run, forget()))
    stream = await server.stream()
    await stream.accept()
    await forgetting
    await stream.lease(make_lease(1))
    await stream.end_of_worker()


async def test_a_sync_handler_can_wait_for_its_abort(server: ScriptedServer) -> None:
    """A thread cannot be interrupted, but it can look."""
    worker = _worker(server)
    begun = threading.Event()
    told: list[Any] = []

    @worker.handler("echo")
    def patient(attempt: Attempt) -> None:
        told.append(attempt.wait_cancelled(0))
        begun.set()
        told.append(attempt.wait_cancelled(PATIENCE_S))
        told.append(attempt.wait_cancelled())
        told.append(attempt.cancel_reason)

    async with _running(worker, server) as stream:
        await stream.lease(make_lease(1))
        assert await asyncio.to_thread(begun.wait, PATIENCE_S)
        await stream.send(abort=workers_pb2.Abort(lease=1, reason="timeout"))
        await stream.reports(1)
    assert told == [False, True, True, "timeout"]


async def test_an_abort_for_an_unknown_lease_changes_nothing(server: ScriptedServer) -> None:
    """It may have crossed the report."""
    worker = _worker(server)
    worker.handler("echo")(_same)
    async with _running(worker, server) as stream:
        await stream.send(abort=workers_pb2.Abort(lease=99))
        await stream.lease(make_lease(1))
        (report,) = await stream.reports(1)
        assert report.complete.lease == 1


# --- heartbeats -----------------------------------------------------------------------------------


def _run_in_thread(worker: Worker) -> threading.Thread:
    """Runs a worker on a loop of its own, so that its handlers may block it."""

    def run() -> None:
        with contextlib.suppress(GaveUpError):  # How these tests end it.
            asyncio.run(worker.run())

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


@pytest.mark.regression("R11")
@pytest.mark.parametrize("is_async", [True, False], ids=["async", "sync"])
async def test_heartbeats_go_on_while_a_handler_blocks(
    server: ScriptedServer, is_async: bool
) -> None:
    """For three times the lease, even if the handler blocks the event loop it runs on."""
    worker = _worker(server, slots=1)
    release = threading.Event()

    async def block_loop() -> str:
        assert release.wait(PATIENCE_S)
        return "done"

    def block_thread() -> str:
        assert release.wait(PATIENCE_S)
        return "done"

    worker.handler("echo")(block_loop if is_async else block_thread)
    thread = _run_in_thread(worker)
    stream = await server.stream()
    await stream.accept(lease_ttl_s=0.3)
    await stream.lease(make_lease(1))
    beats = 0
    while beats < 10:
        beat = await stream.expect("heartbeats")
        if list(beat.leases) == [1]:
            beats += 1
        await stream.receipt(heartbeats=beat.number)
    release.set()
    (report,) = await stream.reports(1)
    assert report.complete.output == b'"done"'
    stream.end(Refusal(grpc.StatusCode.UNAUTHENTICATED))
    await asyncio.to_thread(thread.join, PATIENCE_S)


async def test_a_handler_is_cancelled_when_no_heartbeat_is_confirmed(
    server: ScriptedServer,
) -> None:
    """One TTL after the last that was, though the stream still stands."""
    worker = _worker(server)
    gate = Gate()
    worker.handler("echo")(gate)
    async with worker:
        stream = await server.stream()
        await stream.accept(lease_ttl_s=0.2)
        await stream.lease(make_lease(1))
        attempt = await gate.entered()
        (report,) = await stream.reports(1)
        assert "lease expired" in report.fail.message
        assert not report.fail.permanent
        assert gate.cancelled == [attempt.task_id]
        ending = asyncio.create_task(_end(stream))
    await ending


# --- reconnecting ---------------------------------------------------------------------------------


async def test_a_broken_stream_is_resumed_and_handlers_go_on(server: ScriptedServer) -> None:
    """What the server adopts is finished as if nothing had happened."""
    worker = _worker(server)
    gate = Gate()
    worker.handler("echo")(gate)
    async with worker:
        first = await server.stream()
        await first.accept(session_token=b"one")
        await first.lease(make_lease(1), make_lease(2))
        await gate.entered()
        await gate.entered()
        first.cut()
        second = await server.stream()
        assert second.register.resume.session_token == b"one"
        assert sorted(second.register.resume.leases) == [1, 2]
        await second.accept(adopted=[1, 2])
        gate.opened.set()
        reports = await second.reports(2)
        assert sorted(report.complete.lease for report in reports) == [1, 2]
        ending = asyncio.create_task(_end(second))
    await ending
    assert gate.cancelled == []


@pytest.mark.parametrize("adopted", [[1], []], ids=["some", "none"])
async def test_handlers_that_the_server_does_not_adopt_are_cancelled(
    server: ScriptedServer, adopted: list[int]
) -> None:
    """And nothing is reported for them."""
    worker = _worker(server)
    gate = Gate()
    worker.handler("echo")(gate)
    async with worker:
        first = await server.stream()
        await first.accept()
        await first.lease(make_lease(1), make_lease(2))
        await gate.entered()
        await gate.entered()
        first.cut()
        second = await server.stream()
        await second.accept(adopted=adopted)
        await second.lease(make_lease(3))
        await gate.entered()
        gate.opened.set()
        reports = await second.reports(len(adopted) + 1)
        assert [*adopted, 3] == sorted(report.complete.lease for report in reports)
        ending = asyncio.create_task(_end(second))
    await ending
    assert [n for n in (1001, 1002) if n - 1000 not in adopted] == sorted(gate.cancelled)


async def test_a_result_finished_during_the_gap_is_delivered_once(server: ScriptedServer) -> None:
    """The report waits for the next registration."""
    worker = _worker(server, backoff=Backoff(initial=0.001, maximum=0.01))
    gate = Gate()
    worker.handler("echo")(gate)
    async with worker:
        first = await server.stream()
        await first.accept()
        await first.lease(make_lease(1))
        await gate.entered()
        first.cut()
        second = await server.stream()
        gate.opened.set()
        async with asyncio.timeout(PATIENCE_S):
            await gate.left.wait()
        await second.accept(adopted=[1])
        (report,) = await second.reports(1)
        assert report.complete.lease == 1
        ending = asyncio.create_task(_end(second))
    await ending


@pytest.mark.parametrize("was_read", [True, False])
async def test_a_report_written_into_a_breaking_stream_arrives_once(
    server: ScriptedServer, was_read: bool
) -> None:
    """It is sent again unless the server says that it has read it."""
    worker = _worker(server)
    worker.handler("echo")(_same)
    async with worker:
        first = await server.stream()
        await first.accept()
        await first.lease(make_lease(1))
        await first.reports(1, confirm=False)
        first.cut()
        second = await server.stream()
        assert list(second.register.resume.leases) == [1]
        await second.accept(reports_seen=1 if was_read else 0)
        if not was_read:
            (report,) = await second.reports(1, confirm=False)
            assert (report.complete.lease, second.last_number) == (1, 1)
        await second.lease(make_lease(2))
        (report,) = await second.reports(1)
        assert (report.complete.lease, second.last_number) == (2, 2)
        ending = asyncio.create_task(_end(second))
    await ending


async def test_a_worker_waits_for_a_server_that_is_not_there_yet(server: ScriptedServer) -> None:
    """It connects when the server comes, on the same port."""
    port = server.port
    await server.stop()
    worker = _worker(server)
    worker.handler("echo")(_same)
    async with worker:
        assert not worker.is_ready
        await server.start(port)
        stream = await server.stream()
        await stream.accept()
        await worker.wait_ready()
        ending = asyncio.create_task(_end(stream))
    await ending


@pytest.mark.regression("R7")
@pytest.mark.parametrize(
    "refusal",
    [
        None,
        Refusal(grpc.StatusCode.UNAVAILABLE),
        Refusal(grpc.StatusCode.CANCELLED),
        Refusal(grpc.StatusCode.INTERNAL),
    ],
    ids=["ok", "unavailable", "cancelled", "internal"],
)
async def test_a_lease_stream_that_ends_is_opened_again(
    server: ScriptedServer, refusal: Refusal | None
) -> None:
    """However it ended; meanwhile the worker is not ready."""
    gone = asyncio.Event()
    worker = _worker(server, on_disconnect=lambda *_: gone.set())
    worker.handler("echo")(_same)
    async with worker:
        first = await server.stream()
        await first.accept()
        await worker.wait_ready()
        first.end(refusal)
        await _wait_for(gone)
        assert not worker.is_ready
        second = await server.stream()
        await second.accept()
        await worker.wait_ready()
        ending = asyncio.create_task(_end(second))
    await ending


async def test_a_standby_is_tried_until_it_leads(server: ScriptedServer) -> None:
    """UNAVAILABLE is no reason to end."""
    standby = Refusal(grpc.StatusCode.UNAVAILABLE, "standby", reason="not_leader")
    server.refuse_streams(standby, standby, standby)
    worker = _worker(server)
    worker.handler("echo")(_same)
    async with _running(worker, server):
        assert server.refusals == []


@pytest.mark.parametrize(
    "code",
    [
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.UNIMPLEMENTED,
        grpc.StatusCode.FAILED_PRECONDITION,
    ],
    ids=lambda code: code.name,
)
async def test_an_answer_that_no_retry_changes_ends_the_worker(
    server: ScriptedServer, code: grpc.StatusCode
) -> None:
    """With the code and the server's words."""
    server.refuse_streams(Refusal(code, "words"))
    worker = _worker(server)
    worker.handler("echo")(_same)
    with pytest.raises(GaveUpError, match=f"{code.name}: words"):
        await worker.run()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_a_fault_of_the_link_ends_the_worker(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Instead of leaving a worker that waits for ever and says nothing."""
    before = threading.enumerate()

    def fail(*_arguments: Any) -> None:
        raise RuntimeError("a fault")

    monkeypatch.setattr(Session, "registered", fail)
    worker = _worker(server)
    worker.handler("echo")(_same)
    running = asyncio.create_task(worker.run())
    await (await server.stream()).accept()
    with pytest.raises(GaveUpError, match="INTERNAL"):
        await asyncio.wait_for(running, PATIENCE_S)
    await _threads_ended(before)  # Its fault is to be told to this test, not to the next.


async def test_a_token_rejected_later_ends_the_worker(server: ScriptedServer) -> None:
    """Credentials can be withdrawn."""
    worker = _worker(server, token="a-token-of-some-length")
    worker.handler("echo")(_same)
    running = asyncio.create_task(worker.run())
    stream = await server.stream()
    assert stream.metadata["authorization"] == "Bearer a-token-of-some-length"
    await stream.accept()
    await worker.wait_ready()
    server.refuse_streams(Refusal(grpc.StatusCode.UNAUTHENTICATED, "expired"))
    stream.cut()
    with pytest.raises(GaveUpError, match="expired"):
        await running


async def test_handlers_are_cancelled_when_no_server_takes_their_results(
    server: ScriptedServer,
) -> None:
    """There is nothing to wait for any more."""
    worker = _worker(server)
    gate = Gate()
    worker.handler("echo")(gate)
    running = asyncio.create_task(worker.run())
    stream = await server.stream()
    await stream.accept()
    await stream.lease(make_lease(1))
    await gate.entered()
    server.refuse_streams(Refusal(grpc.StatusCode.PERMISSION_DENIED, "no more"))
    stream.cut()
    with pytest.raises(GaveUpError, match="no more"):
        await running
    assert gate.cancelled == [1001]


@pytest.mark.parametrize("is_async", [True, False], ids=["async", "sync"])
async def test_leases_run_out_when_no_server_is_left_to_hear_of_them(
    server: ScriptedServer, is_async: bool
) -> None:
    """The handler is told to stop, whoever runs the worker (WP-24)."""
    before = threading.enumerate()
    begun, told = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    async def wait(_attempt: Attempt) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            told.set()

    def block(attempt: Attempt) -> None:
        loop.call_soon_threadsafe(begun.set)
        if attempt.wait_cancelled(PATIENCE_S):
            loop.call_soon_threadsafe(told.set)

    worker = _worker(server)
    worker.handler("echo")(wait if is_async else block)
    worker.start()
    stream = await server.stream()
    await stream.accept()
    await stream.lease(make_lease(1, lease_ttl_s=1.5))
    await _wait_for(begun)
    server.refuse_streams(Refusal(grpc.StatusCode.PERMISSION_DENIED, "no more"))
    stream.cut()
    with pytest.raises(GaveUpError):
        await worker._current().until(lambda: False)
    await _wait_for(told)
    await worker.stop()
    await _threads_ended(before)


async def test_a_stop_ends_the_time_of_leases_that_no_server_hears_of(
    server: ScriptedServer,
) -> None:
    """No thread waits for a lease that was given up."""
    before = threading.enumerate()
    worker = _worker(server)
    gate = Gate()
    worker.handler("echo")(gate)
    worker.start()
    stream = await server.stream()
    await stream.accept()
    await stream.lease(make_lease(1, lease_ttl_s=1e12))
    await gate.entered()
    server.refuse_streams(Refusal(grpc.StatusCode.PERMISSION_DENIED, "no more"))
    stream.cut()
    with pytest.raises(GaveUpError):
        await worker._current().until(lambda: False)
    await worker.stop()
    await _threads_ended(before)
    assert gate.cancelled == [1001]


# --- redirects ------------------------------------------------------------------------------------


def _redirect(url: str) -> Refusal:
    metadata = (("cronoq-shard", "s"), ("cronoq-shard-endpoint", url))
    code = grpc.StatusCode.FAILED_PRECONDITION
    return Refusal(code, "another shard", reason="wrong_shard", metadata=metadata)


async def test_a_worker_follows_a_redirect_with_its_token(
    server: ScriptedServer, other: ScriptedServer
) -> None:
    """To loopback the token goes along."""
    told: list[tuple[str, str]] = []
    token = "a-token-of-some-length"
    worker = _worker(server, token=token, on_redirect=lambda *a: told.append(a))
    worker.handler("echo")(_same)
    server.refuse_streams(_redirect(other.url))
    async with _running(worker, other) as stream:
        assert stream.metadata["authorization"] == f"Bearer {token}"
    assert told == [(other.url, "")]


@pytest.mark.regression("R15")
async def test_a_redirect_loop_leads_back_to_the_configured_endpoint(
    server: ScriptedServer, other: ScriptedServer
) -> None:
    """Three hops are followed, the fourth is reported and not followed; the worker lives."""
    told: list[bool] = []
    worker = _worker(server, on_redirect=lambda _, refused: told.append(bool(refused)))
    worker.handler("echo")(_same)
    server.refuse_streams(_redirect(other.url), _redirect(other.url))
    other.refuse_streams(_redirect(server.url), _redirect(server.url))
    async with _running(worker, server):
        pass
    assert told == [False, False, False, True]


async def test_a_redirect_target_that_is_down_leads_back(
    server: ScriptedServer, other: ScriptedServer
) -> None:
    """The configured endpoint is asked again."""
    await other.stop()
    worker = _worker(server)
    worker.handler("echo")(_same)
    server.refuse_streams(_redirect(other.url))
    async with _running(worker, server):
        assert server.refusals == []


async def test_a_redirect_that_may_not_be_followed_is_reported(server: ScriptedServer) -> None:
    """A token does not go over plain http to another host."""
    told: list[tuple[str, str]] = []
    token = "a-token-of-some-length"
    worker = _worker(server, token=token, on_redirect=lambda *a: told.append(a))
    worker.handler("echo")(_same)
    server.refuse_streams(_redirect("http://192.0.2.1:7070"))
    async with _running(worker, server):
        pass
    assert told == [("http://192.0.2.1:7070", "token over http to http://192.0.2.1:7070")]


# --- stopping -------------------------------------------------------------------------------------


async def test_a_stop_lets_handlers_finish_and_gives_late_leases_back(
    server: ScriptedServer,
) -> None:
    """SetSlots(0), the late lease nacked, the running one completed, then the end."""
    worker = _worker(server)
    gate = Gate()
    worker.handler("echo")(gate)
    worker.start()
    stream = await server.stream()
    await stream.accept()
    await stream.lease(make_lease(1))
    await gate.entered()
    stopping = asyncio.create_task(worker.stop())
    assert (await stream.expect("set_slots")).slots == 0
    assert not worker.is_ready
    await stream.lease(make_lease(2))
    (late,) = await stream.reports(1)
    assert late.nack.lease == 2
    gate.opened.set()
    (report,) = await stream.reports(1)
    assert report.complete.lease == 1
    await stream.end_of_worker()
    stream.end()
    await stopping


@pytest.mark.regression("R10")
async def test_a_lease_read_before_a_stop_and_taken_after_it_is_given_back(
    server: ScriptedServer,
) -> None:
    """It was on its way from the link's thread to the loop when the stop began (WP-41)."""
    worker = _worker(server)
    gate = Gate()
    worker.handler("echo")(gate)
    async with _running(worker, server) as stream:
        engagement = worker._engagement
        assert engagement is not None
        leases = workers_pb2.ServerMessage(leases=workers_pb2.LeaseBatch(leases=[make_lease(1)]))
        runs = engagement.session.receive(leases, 0.0).begun
        stopping = asyncio.create_task(worker.stop())
        await stream.expect("set_slots")
        engagement._take(runs)
        (report,) = await stream.reports(1)
        assert report.nack.reason == "worker is stopping"
    await stopping


async def test_heartbeats_go_on_until_the_last_receipt(server: ScriptedServer) -> None:
    """A drain that takes longer than a lease loses none."""
    worker = _worker(server)
    gate = Gate()
    worker.handler("echo")(gate)
    worker.start()
    stream = await server.stream()
    await stream.accept(lease_ttl_s=0.3)
    await stream.lease(make_lease(1))
    await gate.entered()
    stopping = asyncio.create_task(worker.stop())
    beats = 0
    while beats < 6:
        message = await stream.next()
        assert message is not None
        if message.WhichOneof("message") == "heartbeats":
            beats += list(message.heartbeats.leases) == [1]
            await stream.receipt(heartbeats=message.heartbeats.number)
    gate.opened.set()
    await stream.reports(1)
    await stream.end_of_worker()
    stream.end()
    await stopping
    assert gate.cancelled == []


async def test_a_drain_that_runs_out_of_time_reports_the_rest(server: ScriptedServer) -> None:
    """Async handlers are cancelled; all that is left fails as retryable."""
    worker = _worker(server, drain_timeout=0.01)
    gate = Gate()
    worker.handler("echo")(gate)
    worker.start()
    stream = await server.stream()
    await stream.accept()
    await stream.lease(make_lease(1))
    await gate.entered()
    stopping = asyncio.create_task(worker.stop())
    await stream.expect("set_slots")
    (report,) = await stream.reports(1)
    assert report.fail == workers_pb2.Fail(lease=1, message="worker stopped")
    await stream.end_of_worker()
    stream.end()
    await stopping
    assert gate.cancelled == [1001]


async def test_a_thread_that_does_not_end_is_reported_and_left(
    server: ScriptedServer, caplog: pytest.LogCaptureFixture
) -> None:
    """A stop never waits for what cannot be stopped."""
    worker = _worker(server, drain_timeout=0.01)
    release, started = threading.Event(), threading.Event()

    @worker.handler("echo")
    def stubborn() -> None:
        started.set()
        assert release.wait(PATIENCE_S)

    worker.start()
    stream = await server.stream()
    await stream.accept()
    await stream.lease(make_lease(1))
    assert await asyncio.to_thread(started.wait, PATIENCE_S)
    stopping = asyncio.create_task(worker.stop())
    await stream.expect("set_slots")
    (report,) = await stream.reports(1)
    assert report.fail == workers_pb2.Fail(lease=1, message="worker stopped")
    await stream.end_of_worker()
    stream.end()
    await stopping
    assert "handlers of tasks 1001 do not end" in caplog.text
    release.set()


async def test_stopping_twice_is_stopping_once(server: ScriptedServer) -> None:
    """Both calls return when the worker has stopped."""
    worker = _worker(server)
    worker.handler("echo")(_same)
    worker.start()
    stream = await server.stream()
    await stream.accept()
    ending = asyncio.create_task(_end(stream))
    await asyncio.gather(worker.stop(), worker.stop())
    await worker.stop()
    await ending


async def test_who_waits_for_a_worker_that_is_stopped_hears_of_it(server: ScriptedServer) -> None:
    """It will not become ready any more."""
    await server.stop()
    worker = _worker(server)
    worker.handler("echo")(_same)
    worker.start()
    waiting = asyncio.gather(worker.wait_ready(), worker.wait_ready(), return_exceptions=True)
    await asyncio.sleep(0)  # Both wait by now.
    await worker.stop()
    errors = await asyncio.wait_for(waiting, PATIENCE_S)
    assert [ClosedError, ClosedError] == [type(error) for error in errors]
    with pytest.raises(ClosedError):
        await worker.wait_ready()


@pytest.mark.regression("R9")
async def test_a_report_cut_off_during_a_stop_is_delivered_on_a_new_stream(
    server: ScriptedServer,
) -> None:
    """The worker connects again although it is stopping."""
    worker = _worker(server)
    gate = Gate()
    worker.handler("echo")(gate)
    worker.start()
    first = await server.stream()
    await first.accept()
    await first.lease(make_lease(1))
    await gate.entered()
    stopping = asyncio.create_task(worker.stop())
    await first.expect("set_slots")
    first.cut()
    gate.opened.set()
    second = await server.stream()
    await second.accept(adopted=[1])
    (report,) = await second.reports(1)
    assert report.complete.lease == 1
    assert (await second.expect("set_slots")).slots == 0
    await second.end_of_worker()
    second.end()
    await stopping


@pytest.mark.regression("R9")
async def test_what_has_no_receipt_at_the_end_is_named_in_the_log(
    server: ScriptedServer, caplog: pytest.LogCaptureFixture
) -> None:
    """By task id, so that someone can look."""
    worker = _worker(server, drain_timeout=0.01)
    worker.handler("echo")(_same)
    worker.start()
    stream = await server.stream()
    await stream.accept()
    await stream.lease(make_lease(1))
    await stream.reports(1, confirm=False)
    stopping = asyncio.create_task(worker.stop())
    await stream.end_of_worker()
    stream.end()
    await stopping
    assert "before the server confirmed tasks 1001" in caplog.text


async def test_a_worker_that_never_connected_stops_at_once(server: ScriptedServer) -> None:
    """There is nothing to wait for."""
    await server.stop()
    worker = _worker(server)
    worker.handler("echo")(_same)
    worker.start()
    await worker.stop()


# --- old servers ----------------------------------------------------------------------------------


async def test_a_version_3_server_is_spoken_to_in_single_messages(server: ScriptedServer) -> None:
    """Heartbeat, Complete, Fail as of old, and no resume."""
    worker = _worker(server)
    gate = Gate()
    worker.handler("echo")(gate)
    worker.handler("fail")(_raise(Permanent("no")))
    async with worker:
        stream = await server.stream()
        await stream.accept(protocol_version=3, lease_ttl_s=0.3, session_token=b"")
        await stream.send(lease=make_lease(1))
        await gate.entered()
        assert (await stream.expect("heartbeat")).lease == 1
        gate.opened.set()
        assert (await stream.expect("complete")).lease == 1
        await stream.send(lease=make_lease(2, kind="fail"))
        assert (await stream.expect("fail")).permanent
        stream.cut()
        second = await server.stream()
        assert not second.register.HasField("resume")
        await second.accept(protocol_version=3, session_token=b"")
        ending = asyncio.create_task(_end(second))
    await ending


# --- registration of handlers ---------------------------------------------------------------------


def test_a_kind_has_one_handler() -> None:
    """A second one is a mistake."""
    worker = Worker()
    worker.handler("echo")(_same)
    with pytest.raises(ValueError, match="already"):
        worker.handler("echo")(_same)
    worker.default_handler(_same)
    with pytest.raises(ValueError, match="already"):
        worker.default_handler(_same)


async def test_a_worker_without_handlers_does_not_start() -> None:
    """It could only refuse."""
    with pytest.raises(ValueError, match="no handler"):
        Worker().start()


async def test_a_worker_starts_once(server: ScriptedServer) -> None:
    """Until it has stopped."""
    worker = _worker(server)
    worker.handler("echo")(_same)
    worker.start()
    with pytest.raises(ClosedError):
        worker.start()
    stream = await server.stream()
    await stream.accept()
    ending = asyncio.create_task(_end(stream))
    await worker.stop()
    await ending


@pytest.mark.parametrize("slots", [0, -1])
def test_a_worker_has_at_least_one_slot(slots: int) -> None:
    """Anything else is a mistake."""
    with pytest.raises(ValueError, match="slots"):
        Worker(slots=slots)
