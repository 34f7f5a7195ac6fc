"""A worker's stream: who may speak, what breaks it, and what a resumed session goes on with."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import grpc
import pytest

from cronoq_server._proto import task_pb2, tasks_pb2, workers_pb2
from cronoq_server.api import frames, worker_stream
from cronoq_server.api.frames import ReportReader
from cronoq_server.api.worker_stream import WorkerStream
from cronoq_server.engine import Get, Status
from tests.api.conftest import Edge, WireWorker, reason_of
from tests.runtime.rig import done, real, settle, task

Serve = Callable[[str], Awaitable[Edge]]

READY = task_pb2.TASK_STATUS_READY
RUNNING = task_pb2.TASK_STATUS_RUNNING
RETRYING = task_pb2.TASK_STATUS_RETRYING
SUCCEEDED = task_pb2.TASK_STATUS_SUCCEEDED


class BreaksUnderLeases:
    """A transport that carries leases to the worker, and then says that it failed."""

    def __init__(self, arrives: bool) -> None:
        self.sent: list[workers_pb2.ServerMessage] = []
        self._arrives = arrives

    async def read(self) -> Any:
        """The worker is silent."""
        return await asyncio.get_running_loop().create_future()

    async def write(self, message: workers_pb2.ServerMessage) -> None:
        """Ends the stream under the first leases."""
        if message.HasField("leases") or not self._arrives:
            if self._arrives:
                self.sent.append(message)
            raise ConnectionResetError
        self.sent.append(message)


async def to_the_end(stream: Any) -> None:
    """Reads until the stream is over."""
    while await stream.read() is not grpc.aio.EOF:
        pass


async def end_of(stream: Any) -> tuple[grpc.StatusCode, str, str]:
    """Code, reason and message of a stream that fails."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await to_the_end(stream)
    reason, _ = reason_of(caught.value)
    return caught.value.code(), reason, caught.value.details() or ""


async def until(edge: Edge, task_id: int, status: int) -> None:
    """Returns when a task has reached a status."""
    watch = edge.tasks.Watch(
        tasks_pb2.WatchRequest(ids=[task_id], all_transitions=True, bookmarks=True)
    )
    await watch.read()
    while await edge.status(task_id) != status:
        await watch.read()
    watch.cancel()


async def sessions(edge: Edge) -> int:
    """How many workers are connected."""
    return len((await edge.admin.ListWorkers(task_pb2.Empty())).workers)


def resume_of(worker: WireWorker, *leases: workers_pb2.Lease) -> workers_pb2.Resume:
    """What a worker says to go on with its session."""
    return workers_pb2.Resume(
        session_token=worker.registered.session_token,
        leases=[lease.lease for lease in leases],
    )


async def test_registered_comes_first_and_says_the_rules(edge: Edge) -> None:
    """A worker learns its session, slots, version, token and the message limit."""
    worker = await edge.worker(slots=20_000)
    registered = worker.registered
    assert registered.slots == 10_000
    assert registered.protocol_version == 4
    assert registered.lease_ttl_s == 30
    assert registered.max_message_bytes == 4 << 20
    assert len(registered.session_token) == 16
    await worker.close()


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (workers_pb2.WorkerMessage(), "must be the first message"),
        (
            workers_pb2.WorkerMessage(heartbeat=workers_pb2.Heartbeat(lease=1)),
            "must be the first message",
        ),
        (
            workers_pb2.WorkerMessage(register=workers_pb2.Register(pool="a b")),
            "register.pool",
        ),
    ],
)
async def test_stream_that_begins_wrong_is_closed(
    edge: Edge, message: workers_pb2.WorkerMessage, words: str
) -> None:
    """Whatever comes instead of a right Register ends the stream with the reason."""
    stream = edge.workers.Work()
    await stream.write(message)
    code, reason, text = await end_of(stream)
    assert (code, reason) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD")
    assert words in text


async def test_unknown_pool_is_not_found(edge: Edge) -> None:
    """A worker for a pool that is not configured is refused for good."""
    stream = edge.workers.Work()
    await stream.write(workers_pb2.WorkerMessage(register=workers_pb2.Register(pool="x", slots=1)))
    code, reason, _ = await end_of(stream)
    assert (code, reason) == (grpc.StatusCode.NOT_FOUND, "POOL_UNKNOWN")


async def test_bad_message_ends_the_stream(edge: Edge) -> None:
    """A second Register, reports without a number, and bytes that are no message."""
    worker = await edge.worker()
    await worker.say(register=workers_pb2.Register(slots=1))
    assert "only once" in (await end_of(worker.stream))[2]
    worker = await edge.worker()
    await worker.say(reports=workers_pb2.Reports())
    assert "reports.number" in (await end_of(worker.stream))[2]
    raw: Any = edge.channel.stream_stream("/cronoq.v1.Workers/Work")()
    register = workers_pb2.WorkerMessage(register=workers_pb2.Register(slots=1))
    await raw.write(register.SerializeToString())
    await raw.read()
    await raw.write(b"\xff\xff")
    code, reason, _ = await end_of(raw)
    assert (code, reason) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD")
    assert await sessions(edge) == 0


async def test_message_without_content_is_passed_over(edge: Edge) -> None:
    """What a newer worker may say and this server does not know breaks nothing."""
    worker = await edge.worker()
    await worker.stream.write(workers_pb2.WorkerMessage())
    await edge.submit()
    assert len(await worker.leases(1)) == 1
    await worker.close()


async def test_leases_of_one_step_come_in_one_message(edge: Edge) -> None:
    """What is ready together is sent together, and never more than there are slots."""
    await edge.tasks.SubmitMany(
        tasks_pb2.SubmitManyRequest(tasks=[task_pb2.TaskSpec() for _ in range(60)])
    )
    worker = await edge.worker(slots=50)
    batch = await worker.hear("leases")
    assert len(batch.leases) == 50
    numbers = [lease.lease for lease in batch.leases]
    assert numbers == sorted(numbers)
    await worker.complete(1, *batch.leases[:4])
    assert len(await worker.leases(4)) == 4
    await worker.close()


async def test_large_leases_are_split(edge: Edge) -> None:
    """Sixteen tasks of 3.9 MiB reach one worker in messages that it accepts."""
    payload = b"x" * int(3.9 * 1024 * 1024)
    for _ in range(16):
        await edge.submit(payload=payload)
    worker = await edge.worker(slots=16)
    seen: set[int] = set()
    while len(seen) < 16:
        batch = await worker.hear("leases")
        assert batch.ByteSize() <= 4 << 20
        seen |= {lease.task_id for lease in batch.leases}
        assert all(len(lease.payload) == len(payload) for lease in batch.leases)
    await worker.close()


async def test_version_3_gets_single_messages(edge: Edge) -> None:
    """An old worker works with its own words, gets no receipts, and loses its leases at once."""
    first, second = await edge.submit(), await edge.submit(retry=task_pb2.RetryPolicy())
    third = await edge.submit(kind="c")
    old = await edge.worker(protocol_version=3, slots=3)
    assert old.registered.protocol_version == 3
    assert not old.registered.session_token
    leases = {}
    for _ in range(3):
        message = await old.stream.read()
        assert message.WhichOneof("message") == "lease"
        leases[message.lease.task_id] = message.lease
    await old.say(heartbeat=workers_pb2.Heartbeat(lease=leases[first].lease))
    await old.say(complete=workers_pb2.Complete(lease=leases[first].lease, output=b"o"))
    await old.say(fail=workers_pb2.Fail(lease=leases[second].lease, message="m", permanent=True))
    result = await edge.tasks.Wait(tasks_pb2.WaitRequest(task=task_pb2.TaskRef(id=first)))
    assert result.output == b"o"
    result = await edge.tasks.Wait(tasks_pb2.WaitRequest(task=task_pb2.TaskRef(id=second)))
    assert (result.status, result.message) == (task_pb2.TASK_STATUS_FAILED, "m")
    await edge.tasks.Cancel(tasks_pb2.CancelRequest(task=task_pb2.TaskRef(id=third)))
    message = await old.stream.read()
    assert message.abort.lease == leases[third].lease
    fourth = await edge.submit(kind="d")
    message = await old.stream.read()
    assert message.lease.task_id == fourth
    old.stream.cancel()
    await until(edge, fourth, RETRYING)


async def test_version_3_may_nack_and_cancel(edge: Edge) -> None:
    """The other single reports of an old worker count as well."""
    task_id = await edge.submit()
    old = await edge.worker(protocol_version=3)
    lease = (await old.stream.read()).lease
    await old.say(nack=workers_pb2.Nack(lease=lease.lease, reason="not mine"))
    new = await edge.worker()
    (again,) = await new.leases(1)
    assert (again.task_id, again.attempt) == (task_id, 1)
    reports = workers_pb2.Reports(number=1)
    reports.reports.add().cancelled.lease = again.lease
    await new.say(reports=reports)
    result = await edge.tasks.Wait(tasks_pb2.WaitRequest(task=task_pb2.TaskRef(id=task_id)))
    assert result.status == task_pb2.TASK_STATUS_CANCELLED
    await old.close()
    await new.close()


@pytest.mark.regression("R7")
async def test_half_close_is_a_clean_end(edge: Edge) -> None:
    """A worker that closes with a running attempt gives it up at once."""
    task_id = await edge.submit()
    worker = await edge.worker()
    await worker.leases(1)
    await worker.close()
    await until(edge, task_id, RETRYING)
    assert await sessions(edge) == 0


@pytest.mark.regression("R7")
async def test_broken_stream_keeps_its_leases_for_a_while(edge: Edge) -> None:
    """A break takes the capacity away, not the attempt; its session has no slots any more."""
    task_id = await edge.submit()
    worker = await edge.worker()
    await worker.leases(1)
    worker.stream.cancel()
    while await sessions(edge):
        pass
    assert await edge.status(task_id) == RUNNING


async def test_resumed_session_goes_on_with_what_it_names(edge: Edge) -> None:
    """A named lease is adopted and can be completed; one that never arrived is offered again."""
    named, lost = await edge.submit(kind="a"), await edge.submit(kind="b")
    worker = await edge.worker(slots=2)
    leases = {lease.task_id: lease for lease in await worker.leases(2)}
    worker.stream.cancel()
    again = await edge.worker(slots=2, resume=resume_of(worker, leases[named]))
    assert list(again.registered.adopted) == [leases[named].lease]
    # The answer to a resume may be lost as well: the token that the worker has stays good.
    assert again.registered.session_token == worker.registered.session_token
    (offered,) = await again.leases(1)
    assert (offered.task_id, offered.attempt) == (lost, 1)
    assert offered.lease > leases[lost].lease
    await again.complete(1, leases[named], offered, output=b"out")
    await again.receipt(1)
    assert await edge.status(named) == await edge.status(lost) == SUCCEEDED
    await again.close()


async def test_resume_tells_which_reports_arrived(edge: Edge) -> None:
    """What the broken stream brought counts once, and the worker learns what to send again."""
    first, second = await edge.submit(), await edge.submit()
    worker = await edge.worker(slots=2)
    one, two = await worker.leases(2)
    await worker.complete(1, one, output=b"1")
    await worker.receipt(1)
    worker.stream.cancel()
    again = await edge.worker(slots=2, resume=resume_of(worker, two))
    assert again.registered.reports_seen == 1
    assert list(again.registered.adopted) == [two.lease]
    await again.complete(2, two, output=b"2")
    await again.receipt(2)
    for task_id, output in ((first, b"1"), (second, b"2")):
        reference = task_pb2.TaskRef(id=task_id)
        result = await edge.tasks.Wait(tasks_pb2.WaitRequest(task=reference))
        assert result.output == output
    await again.close()


async def test_forged_token_adopts_nothing(edge: Edge) -> None:
    """A wrong token is no error, and gives no lease of another worker away."""
    task_id = await edge.submit()
    worker = await edge.worker()
    (lease,) = await worker.leases(1)
    forged = workers_pb2.Resume(session_token=b"\0" * 16, leases=[lease.lease])
    thief = await edge.worker(resume=forged)
    assert not thief.registered.adopted
    await thief.complete(1, lease, output=b"stolen")
    await thief.receipt(1)
    assert await edge.status(task_id) == RUNNING
    snapshot = await edge.admin.Snapshot(task_pb2.Empty())
    assert snapshot.totals.stale_completions == 1
    await thief.close()
    await worker.close()


async def test_resume_ends_the_stream_that_still_stands(edge: Edge) -> None:
    """Two streams never hold one session: the older one is closed."""
    await edge.submit()
    worker = await edge.worker()
    (lease,) = await worker.leases(1)
    again = await edge.worker(resume=resume_of(worker, lease))
    assert list(again.registered.adopted) == [lease.lease]
    await to_the_end(worker.stream)
    await again.complete(1, lease)
    await again.receipt(1)
    await again.close()


@pytest.mark.regression("R4")
async def test_same_name_is_another_session(edge: Edge) -> None:
    """A worker that died and came back under its name does not get its attempt back."""
    task_id = await edge.submit()
    worker = await edge.worker(worker_name="fixed")
    (lease,) = await worker.leases(1)
    worker.stream.cancel()
    again = await edge.worker(worker_name="fixed")
    assert not again.registered.adopted
    await again.complete(1, lease, output=b"not yours")
    await again.receipt(1)
    assert await edge.status(task_id) == RUNNING
    await again.close()


@pytest.mark.regression("R4")
async def test_lease_that_nobody_holds_expires(serve: Serve) -> None:
    """An attempt whose worker died is tried again after its lease; two attempts in total."""
    edge = await serve(
        "[[pools]]\nname = 'default'\nlease_ttl_s = 0.2\n"
        "retry = { initial_backoff_s = 0.01, max_attempts = 5 }\n"
    )
    task_id = await edge.submit()
    worker = await edge.worker(worker_name="fixed")
    await worker.leases(1)
    worker.stream.cancel()
    again = await edge.worker(worker_name="fixed")
    (lease,) = await again.leases(1)
    assert (lease.task_id, lease.attempt) == (task_id, 2)
    await again.complete(1, lease)
    await again.receipt(1)
    assert await edge.status(task_id) == SUCCEEDED
    await again.close()


async def test_heartbeats_get_receipts_and_carry_progress(edge: Edge) -> None:
    """A beat that names its leases is confirmed, and its progress is shown."""
    task_id = await edge.submit()
    worker = await edge.worker()
    (lease,) = await worker.leases(1)
    beat = workers_pb2.Heartbeats(leases=[lease.lease], number=7, last_lease=lease.lease)
    beat.progress.add(lease=lease.lease).progress.fraction = 0.25
    await worker.say(heartbeats=beat)
    while (await worker.hear("receipt")).heartbeats < 7:
        pass
    info = await edge.tasks.Get(tasks_pb2.GetRequest(task=task_pb2.TaskRef(id=task_id)))
    assert info.progress.fraction == 0.25
    await worker.close()


async def test_lease_that_a_beat_does_not_name_is_offered_again(edge: Edge) -> None:
    """A lease that was read and is neither named nor reported was lost in the worker."""
    await edge.submit()
    worker = await edge.worker()
    (lease,) = await worker.leases(1)
    await worker.say(heartbeats=workers_pb2.Heartbeats(number=1, last_lease=lease.lease))
    (again,) = await worker.leases(1)
    assert (again.task_id, again.attempt) == (lease.task_id, 1)
    assert again.lease > lease.lease
    await worker.close()


@pytest.mark.regression("R31")
async def test_cancelled_task_is_aborted_and_keeps_its_slot(edge: Edge) -> None:
    """The handler is told to stop; the slot is free when the worker says that it has."""
    first = await edge.submit()
    worker = await edge.worker()
    (lease,) = await worker.leases(1)
    await edge.tasks.Cancel(tasks_pb2.CancelRequest(task=task_pb2.TaskRef(id=first)))
    (abort,) = (await worker.hear("aborts")).aborts
    assert abort.lease == lease.lease
    second = await edge.submit()
    assert await edge.status(second) == READY
    reports = workers_pb2.Reports(number=1)
    reports.reports.add().cancelled.lease = lease.lease
    await worker.say(reports=reports)
    (following,) = await worker.leases(1)
    assert following.task_id == second
    await worker.close()


async def test_drained_worker_gets_nothing_more(edge: Edge) -> None:
    """`SetSlots(0)` stops the flow, a larger number opens it again."""
    worker = await edge.worker()
    await worker.say(set_slots=workers_pb2.SetSlots(slots=0))
    while (await edge.admin.ListWorkers(task_pb2.Empty())).workers[0].slots:
        pass
    task_id = await edge.submit()
    assert await edge.status(task_id) == READY
    await worker.say(set_slots=workers_pb2.SetSlots(slots=1))
    assert (await worker.leases(1))[0].task_id == task_id
    await worker.close()


@pytest.mark.regression("R29")
async def test_unknown_kind_waits_until_somebody_serves_it(edge: Edge) -> None:
    """A kind that no worker declares stays ready and visible, and runs when one does."""
    task_id = await edge.submit(kind="new")
    old = await edge.worker(kinds=["old"])
    info = await edge.tasks.Get(tasks_pb2.GetRequest(task=task_pb2.TaskRef(id=task_id)))
    assert info.status == READY
    assert any("new" in reason for reason in info.waiting_for)
    fresh = await edge.worker(kinds=["new"])
    (lease,) = await fresh.leases(1)
    assert lease.task_id == task_id
    await fresh.close()
    await old.close()


@pytest.mark.regression("R17")
async def test_one_poisonous_report_spoils_no_other(edge: Edge) -> None:
    """A hundred reports in one message, one full of NUL: all of them count."""
    ids = [await edge.submit() for _ in range(100)]
    worker = await edge.worker(slots=100)
    leases = await worker.leases(100)
    reports = workers_pb2.Reports(number=1)
    for at, lease in enumerate(leases):
        if at == 50:
            poison = workers_pb2.Fail(lease=lease.lease, message="\0" * 1_000_000, permanent=True)
            reports.reports.add().fail.CopyFrom(poison)
        else:
            reports.reports.add().complete.lease = lease.lease
    await worker.say(reports=reports)
    await worker.receipt(1)
    statuses = [await edge.status(task_id) for task_id in ids]
    assert statuses.count(SUCCEEDED) == 99
    failed = ids[statuses.index(task_pb2.TASK_STATUS_FAILED)]
    info = await edge.tasks.Get(tasks_pb2.GetRequest(task=task_pb2.TaskRef(id=failed)))
    assert info.message.startswith("\ufffd")
    assert len(info.message) <= 8192
    await worker.close()


@pytest.mark.regression("R19")
async def test_oversize_output_fails_without_retry(serve: Serve) -> None:
    """An output over the limit ends its task for good; the same bytes are not tried again."""
    edge = await serve("[limits]\nmax_message_bytes = 262144\n")
    task_id = await edge.submit()
    worker = await edge.worker()
    assert worker.registered.max_message_bytes == 262_144
    (lease,) = await worker.leases(1)
    await worker.complete(1, lease, output=b"x" * (262_144 - 65_536 + 1))
    await worker.receipt(1)
    info = await edge.tasks.Get(tasks_pb2.GetRequest(task=task_pb2.TaskRef(id=task_id)))
    assert (info.status, info.attempt) == (task_pb2.TASK_STATUS_FAILED, 1)
    assert info.message == "output too large (196609 > 196608 bytes)"
    await worker.close()


async def test_parent_output_is_given_to_its_child_only(edge: Edge) -> None:
    """The lease names the parents, and their outputs can be fetched with it."""
    parent = await edge.submit(kind="p")
    child = await edge.submit(kind="c", deps=[task_pb2.Dep(target=task_pb2.TaskRef(id=parent))])
    worker = await edge.worker()
    (lease,) = await worker.leases(1)
    await worker.complete(1, lease, output=b"from parent")
    (lease,) = await worker.leases(1)
    assert (lease.task_id, list(lease.parents)) == (child, [parent])
    request = workers_pb2.GetOutputRequest(lease=lease.lease, task_id=parent)
    output = await edge.workers.GetOutput(request)
    assert (output.output, output.status) == (b"from parent", SUCCEEDED)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await edge.workers.GetOutput(workers_pb2.GetOutputRequest(lease=lease.lease, task_id=child))
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    await worker.close()


async def joined(edge: Edge) -> WireWorker:
    """Opens a session, trying again for as long as there are too many streams."""
    while True:
        try:
            return await edge.worker()
        except grpc.aio.AioRpcError as error:
            if reason_of(error)[0] != "TOO_MANY_STREAMS":
                raise


@pytest.mark.regression("R28")
async def test_worker_that_stops_reading_is_cut_off(serve: Serve) -> None:
    """A worker that talks but never reads loses session and stream, not the server its memory."""
    edge = await serve("[limits]\nmax_concurrent_streams = 1\n")
    task_id = await edge.submit(payload=b"x" * 3_000_000)
    worker = await edge.worker()
    number = 0
    while await sessions(edge):
        # Names no lease, so that the one it was sent is taken for lost and sent again.
        number += 1
        await worker.say(heartbeats=workers_pb2.Heartbeats(number=number, last_lease=2**63))
    other = await joined(edge)
    (lease,) = await other.leases(1)
    assert (lease.task_id, lease.attempt) == (task_id, 1)
    await other.close()


@pytest.mark.regression("R34")
async def test_stream_on_which_nobody_registers_is_closed(
    edge: Edge, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A silent stream ends with a reason instead of staying for ever."""
    monkeypatch.setattr(worker_stream, "REGISTER_TIMEOUT_S", 0.05)
    code, reason, text = await end_of(edge.workers.Work())
    assert (code, reason) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD")
    assert "no register within 0.05 s" in text


@pytest.mark.parametrize("arrives", [True, False])
async def test_leases_that_may_have_arrived_are_not_offered_again(arrives: bool) -> None:
    """How a write ends says nothing of it: only what never reached the transport goes back."""
    async with real() as rig:
        session = rig.join(slots=2)
        admitted = await done(rig.submit(task(), task()))
        registration = frames.Registration("default", 2, "w", (), (), 4, "", None)
        transport: Any = BreaksUnderLeases(arrives)
        stream = WorkerStream(session, registration, transport, ReportReader(1 << 22), 1 << 22)
        await stream.run()
        await settle()
        for task_id in admitted.ids:
            view = await done(rig.ask(partial(Get, target=task_id)))
            assert view.status == (Status.RUNNING if arrives else Status.READY)
