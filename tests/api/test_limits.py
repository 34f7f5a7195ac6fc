"""Every limit of the server: what is just within it passes, what is just beyond it does not.

Limits that bound what one message may hold are one table; each of the others, which need time to
pass or callers to stay, has a test of its own. Limits of the engine's and the runtime's own buffers
are tested there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import pytest

from cronoq_server._proto import (
    admin_pb2,
    task_pb2,
    tasks_pb2,
    testing_pb2,
    testing_pb2_grpc,
    workers_pb2,
)
from cronoq_server.engine import SECOND
from cronoq_server.stores import StoreSettings, open_store
from cronoq_server.testing import ManualClock
from cronoq_server.testing.faults import FaultyStore
from tests.api.conftest import Edge, reason_of, serving

Call = Callable[[Edge, int], Awaitable[Any]]

BIG = 256 * 1024
"""The smallest `max_message_bytes` there may be."""


async def outcome(call: Awaitable[Any]) -> str:
    """OK, or the reason of a refusal."""
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return reason_of(error)[0]
    return "OK"


async def until(holds: Callable[[], bool]) -> None:
    """Returns when something holds; what it is about tells nobody."""
    while not holds():  # noqa: ASYNC110
        await asyncio.sleep(0)


async def submit(edge: Edge, **fields: Any) -> Any:
    """Submits one task."""
    return await edge.tasks.Submit(tasks_pb2.SubmitRequest(task=task_pb2.TaskSpec(**fields)))


async def batch(edge: Edge, count: int) -> None:
    """Submits a batch."""
    specs = [task_pb2.TaskSpec()] * count
    await edge.tasks.SubmitBatch(tasks_pb2.SubmitBatchRequest(tasks=specs))


async def many(edge: Edge, count: int) -> None:
    """Submits tasks that stand each on its own."""
    specs = [task_pb2.TaskSpec()] * count
    await edge.tasks.SubmitMany(tasks_pb2.SubmitManyRequest(tasks=specs))


def names(count: int) -> dict[str, str]:
    """Some tags or labels."""
    return {f"n{number}": "v" for number in range(count)}


async def parents(edge: Edge, count: int) -> list[task_pb2.Dep]:
    """Edges to tasks that are there."""
    ids = [(await submit(edge)).id for _ in range(count)]
    return [task_pb2.Dep(target=task_pb2.TaskRef(id=one)) for one in ids]


async def with_parents(edge: Edge, count: int) -> None:
    """Submits a task that depends on others."""
    await submit(edge, deps=await parents(edge, count))


async def batch_with_parents(edge: Edge, count: int) -> None:
    """Submits a batch whose members depend on others, two at most each."""
    edges = await parents(edge, count)
    request = tasks_pb2.SubmitBatchRequest()
    for at in range(0, count, 2):
        request.tasks.add(deps=edges[at : at + 2])
    await edge.tasks.SubmitBatch(request)


async def of_size(edge: Edge, size: int) -> None:
    """Submits a task of exactly this many bytes."""
    spec = task_pb2.TaskSpec(payload=b"x" * (size - 16))
    spec.payload += b"x" * (size - spec.ByteSize())
    assert spec.ByteSize() == size
    await edge.tasks.Submit(tasks_pb2.SubmitRequest(task=spec))


async def joins_with_labels(edge: Edge, count: int) -> None:
    """Opens a session that claims labels."""
    stream = edge.workers.Work()
    register = workers_pb2.Register(labels=names(count), protocol_version=4, slots=1)
    await stream.write(workers_pb2.WorkerMessage(register=register))
    assert (await stream.read()).HasField("registered")
    stream.cancel()


async def fills_queue(edge: Edge, count: int) -> None:
    """Submits so many tasks one after the other."""
    for _ in range(count):
        await submit(edge)


RESOURCES = "".join(f"[[resources]]\nname = 'r{n}'\npermits = 9\n" for n in range(5))
QUEUE = "[[pools]]\nname = 'default'\noverflow = 'reject'\n"

BOUNDS: list[tuple[str, str, int, Call, str]] = [
    ("a batch", "max_tasks_per_batch = 3", 3, batch, "BATCH_TOO_LARGE"),
    ("many tasks", "max_tasks_per_batch = 3", 3, many, "BATCH_TOO_LARGE"),
    ("a batch of all", "max_pending_total = 3", 3, batch, "BATCH_TOO_LARGE"),
    ("a key", "max_key_len = 4", 4, lambda e, n: submit(e, key="k" * n), "INVALID_FIELD"),
    (
        "a key of other letters",
        "max_key_len = 8",
        8,
        lambda e, n: submit(e, key="é" * 3 + "k" * (n - 6)),
        "INVALID_FIELD",
    ),
    ("tags", "max_tags = 3", 3, lambda e, n: submit(e, tags=names(n)), "INVALID_FIELD"),
    ("labels", "max_tags = 3", 3, lambda e, n: submit(e, labels=names(n)), "INVALID_FIELD"),
    ("a worker's labels", "max_tags = 3", 3, joins_with_labels, "INVALID_FIELD"),
    ("parents", "max_deps = 3", 3, with_parents, "INVALID_FIELD"),
    ("parents in a batch", "max_deps_per_batch = 3", 3, batch_with_parents, "INVALID_FIELD"),
    (
        "resources",
        f"max_resources = 3\n{RESOURCES}",
        3,
        lambda e, n: submit(e, resources={f"r{one}": 1 for one in range(n)}),
        "INVALID_FIELD",
    ),
    ("a task's bytes", f"max_message_bytes = {BIG}", BIG - 65_536, of_size, "TOO_LARGE"),
    ("a queue", f"max_tags = 1\n{QUEUE}max_pending = 3", 3, fills_queue, "QUEUE_FULL"),
    ("all queues", f"max_pending_total = 3\n{QUEUE}", 3, fills_queue, "QUEUE_FULL"),
]


@pytest.mark.parametrize(
    ("text", "limit", "call", "reason"),
    [row[1:] for row in BOUNDS],
    ids=[row[0] for row in BOUNDS],
)
async def test_bound_lets_through_what_is_within_it(
    text: str, limit: int, call: Call, reason: str
) -> None:
    """One less and as many pass; one more is refused."""
    for count, ends in ((limit - 1, "OK"), (limit, "OK"), (limit + 1, reason)):
        async with serving(f"[limits]\n{text}") as edge:
            assert await outcome(call(edge, count)) == ends, count


async def test_bounds_that_cut_give_no_more_than_they_say() -> None:
    """Pages, slots and backfills are as long as asked for, up to the bound."""
    text = "[limits]\nmax_list = 3\nmax_slots_per_worker = 3\nbackfill_max = 3\n"
    for wished in (2, 3, 4):
        async with serving(text) as edge:
            await fills_queue(edge, 5)
            page = await edge.tasks.ListTasks(tasks_pb2.ListTasksRequest(limit=wished))
            assert len(page.tasks) == min(wished, 3)
            worker = await edge.worker(slots=wished)
            assert worker.registered.slots == min(wished, 3)
            await worker.close()
            await edge.admin.AddRecurring(
                admin_pb2.RecurringRequest(name="s", cron="* * * * *", template=task_pb2.TaskSpec())
            )
            backfill = admin_pb2.BackfillRecurringRequest(
                name="s", from_unix_ns=0, to_unix_ns=60 * wished * SECOND, dry_run=True
            )
            done = await edge.admin.BackfillRecurring(backfill)
            assert done.created == min(wished, 3)
            assert done.HasField("next_unix_ns") == (wished > 3)


async def test_requests_are_bounded() -> None:
    """While so many calls are under way one more is refused, and there is room again later."""
    store = FaultyStore(open_store(StoreSettings()))
    async with serving("[limits]\nmax_concurrent_requests = 3\n", store=store) as edge:
        await submit(edge)
        store.hold()
        bulk = tasks_pb2.SubmitManyRequest(tasks=[task_pb2.TaskSpec()])
        calls = [asyncio.ensure_future(edge.tasks.SubmitMany(bulk)) for _ in range(3)]
        await until(lambda: edge.server.service.gate.inside("requests") == 3)
        assert await outcome(edge.tasks.SubmitMany(bulk)) == "TOO_MANY_REQUESTS"
        store.let_go()
        await asyncio.gather(*calls)
        assert await outcome(edge.tasks.SubmitMany(bulk)) == "OK"


async def test_waiters_and_streams_are_bounded_apart() -> None:
    """Each kind has a bound of its own; who leaves makes room."""
    async with serving("[limits]\nmax_waiters = 2\nmax_concurrent_streams = 2\n") as edge:
        task_id = (await submit(edge)).id
        wait = tasks_pb2.WaitRequest(task=task_pb2.TaskRef(id=task_id))
        waits = [asyncio.ensure_future(edge.tasks.Wait(wait)) for _ in range(2)]
        watches = [edge.tasks.Watch(tasks_pb2.WatchRequest(bookmarks=True)) for _ in range(2)]
        for watch in watches:
            await watch.read()
        await until(lambda: edge.server.service.gate.inside("waiters") == 2)
        assert await outcome(edge.tasks.Wait(wait)) == "TOO_MANY_REQUESTS"
        late = edge.tasks.Watch(tasks_pb2.WatchRequest(bookmarks=True))
        assert await outcome(late.read()) == "TOO_MANY_STREAMS"
        assert await outcome(edge.worker()) == "TOO_MANY_STREAMS"
        watches.pop().cancel()
        await until(lambda: edge.server.service.gate.inside("streams") == 1)
        again = edge.tasks.Watch(tasks_pb2.WatchRequest(bookmarks=True))
        assert await outcome(again.read()) == "OK"
        for watch in (again, watches[0]):
            watch.cancel()
        cancel = tasks_pb2.CancelRequest(task=task_pb2.TaskRef(id=task_id))
        await edge.tasks.Cancel(cancel)
        await asyncio.gather(*waits)


async def test_longest_wait_ends_a_call_that_would_wait_longer() -> None:
    """Before the bound has passed nothing is answered, then that it has not ended yet."""
    clock = ManualClock()
    async with serving("[limits]\nmax_wait_s = 10\n", clock=clock) as edge:
        task_id = (await submit(edge)).id
        ref = task_pb2.TaskRef(id=task_id)
        waiting = asyncio.ensure_future(
            outcome(edge.tasks.Wait(tasks_pb2.WaitRequest(task=ref, timeout_s=1000)))
        )
        await until(lambda: edge.server.service.gate.inside("waiters") == 1)
        testing = testing_pb2_grpc.TestingStub(edge.channel)
        await testing.Advance(testing_pb2.AdvanceRequest(seconds=9.9))
        assert await edge.status(task_id) == task_pb2.TASK_STATUS_READY
        assert not waiting.done()
        await testing.Advance(testing_pb2.AdvanceRequest(seconds=0.2))
        assert await waiting == "WAIT_TIMEOUT"


async def test_key_of_an_ended_task_is_known_for_as_long_as_it_says() -> None:
    """Up to the bound the key finds the task, later it makes a new one."""
    text = "[limits]\nkey_retention_s = 10\n"
    for passed, is_known in ((9, True), (11, False)):
        async with serving(text, clock=ManualClock()) as edge:
            first = (await submit(edge, key="k")).id
            cancel = tasks_pb2.CancelRequest(task=task_pb2.TaskRef(id=first))
            await edge.tasks.Cancel(cancel)
            testing = testing_pb2_grpc.TestingStub(edge.channel)
            await testing.Advance(testing_pb2.AdvanceRequest(seconds=passed))
            assert ((await submit(edge, key="k")).id == first) is is_known


async def test_ended_tasks_are_remembered_up_to_a_number() -> None:
    """Of as many as the bound all are known, of one more the oldest is gone."""
    for count, known in ((2, 2), (3, 3), (4, 3)):
        async with serving("[limits]\nfinished_max = 3\n") as edge:
            ids = [(await submit(edge)).id for _ in range(count)]
            for one in ids:
                await edge.tasks.Cancel(tasks_pb2.CancelRequest(task=task_pb2.TaskRef(id=one)))
            await submit(edge)
            listed = await edge.tasks.ListTasks(
                tasks_pb2.ListTasksRequest(statuses=[task_pb2.TASK_STATUS_CANCELLED])
            )
            assert [info.id for info in listed.tasks] == ids[count - known :]


async def test_answer_that_does_not_come_in_time_is_not_waited_for() -> None:
    """A call is told that its outcome is unknown when the server's own time for it is over."""
    store = FaultyStore(open_store(StoreSettings()))
    text = "[limits]\nrequest_timeout_s = 0.3\n[store]\ncommit_timeout_s = 0.29\n"
    async with serving(text, store=store) as edge:
        await submit(edge)
        store.hold()
        assert await outcome(edge.tasks.Get(tasks_pb2.GetRequest(task={"id": 1}))) in (  # type: ignore[arg-type]
            "STORE_UNAVAILABLE",
            "TASK_UNKNOWN",
        )
        bulk = tasks_pb2.SubmitManyRequest(tasks=[task_pb2.TaskSpec()])
        assert await outcome(edge.tasks.SubmitMany(bulk)) == "STORE_UNAVAILABLE"
        store.let_go()
