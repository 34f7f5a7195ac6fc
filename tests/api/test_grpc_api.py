"""The services over a real connection: what calls return and how they fail."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from cronoq_server._proto import task_pb2, tasks_pb2, workers_pb2
from tests.api.conftest import Edge, reason_of

Serve = Callable[[str], Awaitable[Edge]]


def ref(task_id: int) -> task_pb2.TaskRef:
    """Names a task by its id."""
    return task_pb2.TaskRef(id=task_id)


async def refusal(call: Awaitable[Any]) -> tuple[grpc.StatusCode, str, dict[str, str], str]:
    """Code, reason, facts and message of a call that fails."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    reason, facts = reason_of(caught.value)
    return caught.value.code(), reason, facts, caught.value.details() or ""


async def test_task_lives_from_submit_to_result(edge: Edge) -> None:
    """A submitted task is leased, completed, and its output is waited for."""
    task_id = await edge.submit(payload=b"in", kind="greet", key="k-1", tags={"a": "b"})
    info = await edge.tasks.Get(tasks_pb2.GetRequest(task=task_pb2.TaskRef(key="k-1")))
    assert (info.id, info.status, info.kind) == (task_id, task_pb2.TASK_STATUS_READY, "greet")
    worker = await edge.worker()
    (lease,) = await worker.leases(1)
    assert (lease.task_id, lease.payload, lease.attempt) == (task_id, b"in", 1)
    waiting = asyncio.ensure_future(edge.tasks.Wait(tasks_pb2.WaitRequest(task=ref(task_id))))
    await worker.complete(1, lease, output=b"out")
    await worker.receipt(1)
    result = await waiting
    assert (result.id, result.status) == (task_id, task_pb2.TASK_STATUS_SUCCEEDED)
    assert (result.output, result.output_available) == (b"out", True)
    detail = await edge.tasks.Describe(tasks_pb2.GetRequest(task=ref(task_id)))
    assert (detail.spec.payload, dict(detail.spec.tags)) == (b"in", {"a": "b"})
    assert (detail.info.status, detail.info.output_available) == (result.status, True)
    await worker.close()


async def test_same_key_is_the_same_task(edge: Edge) -> None:
    """A second submit with a key returns the first task and says so."""
    request = tasks_pb2.SubmitRequest(task=task_pb2.TaskSpec(key="once"))
    first, second = await edge.tasks.Submit(request), await edge.tasks.Submit(request)
    assert (first.duplicate, second.duplicate) == (False, True)
    assert first.id == second.id


async def test_submit_can_wait_for_the_end(edge: Edge) -> None:
    """A submit that waits carries the result, or none if it has not ended in time."""
    request = tasks_pb2.SubmitRequest(wait=True, wait_timeout_s=0)
    unfinished = await edge.tasks.Submit(request)
    assert unfinished.id
    assert not unfinished.HasField("result")
    request = tasks_pb2.SubmitRequest(wait=True, task=task_pb2.TaskSpec(kind="b"))
    waiting = asyncio.ensure_future(edge.tasks.Submit(request))
    worker = await edge.worker(kinds=["b"])
    (lease,) = await worker.leases(1)
    await worker.complete(1, lease, output=b"x")
    assert (await waiting).result.output == b"x"
    await worker.close()


async def test_many_succeed_and_fail_each_on_its_own(edge: Edge) -> None:
    """Outcomes come in order: admitted, refused by a check, refused by the engine."""
    request = tasks_pb2.SubmitManyRequest()
    request.tasks.add(key="a")
    request.tasks.add(key="b\0")
    request.tasks.add(pool="nowhere")
    request.tasks.add(key="a")
    request.tasks.add(timeout_s=-1)
    response = await edge.tasks.SubmitMany(request)
    kinds = [outcome.WhichOneof("outcome") for outcome in response.outcomes]
    assert kinds == ["response", "error", "error", "response", "error"]
    assert response.outcomes[3].response.duplicate
    assert response.outcomes[0].response.id == response.outcomes[3].response.id
    codes = [outcome.error.code for outcome in response.outcomes]
    assert codes == [0, 3, 5, 0, 3]
    assert "task.timeout_s" in response.outcomes[4].error.message


async def test_batch_is_admitted_whole(edge: Edge) -> None:
    """Members may depend on each other; one bad member refuses all and is named."""
    request = tasks_pb2.SubmitBatchRequest()
    request.tasks.add(key="child").deps.add(target=task_pb2.TaskRef(key="parent"))
    request.tasks.add(key="parent")
    response = await edge.tasks.SubmitBatch(request)
    child, parent = (member.id for member in response.tasks)
    assert await edge.status(child) == task_pb2.TASK_STATUS_BLOCKED
    assert await edge.status(parent) == task_pb2.TASK_STATUS_READY
    request = tasks_pb2.SubmitBatchRequest()
    request.tasks.add(key="fine")
    request.tasks.add(pool="nowhere")
    code, reason, facts, message = await refusal(edge.tasks.SubmitBatch(request))
    assert (code, reason) == (grpc.StatusCode.NOT_FOUND, "POOL_UNKNOWN")
    assert facts["index"] == "1"
    assert "nowhere" in message
    code, *_ = await refusal(
        edge.tasks.Get(tasks_pb2.GetRequest(task=task_pb2.TaskRef(key="fine")))
    )
    assert code is grpc.StatusCode.NOT_FOUND


BAD: list[tuple[str, dict[str, Any], grpc.StatusCode, str, str]] = [
    ("unknown pool", {"pool": "x"}, grpc.StatusCode.NOT_FOUND, "POOL_UNKNOWN", "'x'"),
    (
        "NUL in key",
        {"key": "a\0"},
        grpc.StatusCode.INVALID_ARGUMENT,
        "INVALID_FIELD",
        "task.key: holds NUL",
    ),
    (
        "payload of 5 MiB",
        {"payload": b"x" * (5 << 20)},
        grpc.StatusCode.INVALID_ARGUMENT,
        "TOO_LARGE",
        "exceed the limit of 4128768",
    ),
    (
        "negative timeout",
        {"timeout_s": -3},
        grpc.StatusCode.INVALID_ARGUMENT,
        "INVALID_FIELD",
        "task.timeout_s: must be 0 or more seconds, not -3",
    ),
    (
        "both start forms",
        {"start_in_s": 1, "start_unix_ns": 1},
        grpc.StatusCode.INVALID_ARGUMENT,
        "FIELD_CONFLICT",
        "task.start_in_s: excludes start_unix_ns",
    ),
    (
        "unknown resource",
        {"resources": {"gpu": 1}},
        grpc.StatusCode.INVALID_ARGUMENT,
        "RESOURCE_UNKNOWN",
        "'gpu'",
    ),
]


@pytest.mark.parametrize(
    ("fields", "code", "reason", "words"),
    [pytest.param(*case[1:], id=case[0]) for case in BAD],
)
async def test_bad_task_is_refused_precisely(
    edge: Edge, fields: dict[str, Any], code: grpc.StatusCode, reason: str, words: str
) -> None:
    """Status, reason and words of what is wrong with a task."""
    request = tasks_pb2.SubmitRequest(task=task_pb2.TaskSpec(**fields))
    got_code, got_reason, _, message = await refusal(edge.tasks.Submit(request))
    assert (got_code, got_reason) == (code, reason)
    assert words in message


async def test_batch_of_1001_is_refused(edge: Edge) -> None:
    """One member too many, and not a single one is admitted."""
    request = tasks_pb2.SubmitBatchRequest(tasks=[task_pb2.TaskSpec()] * 1001)
    code, reason, facts, _ = await refusal(edge.tasks.SubmitBatch(request))
    assert (code, reason) == (grpc.StatusCode.INVALID_ARGUMENT, "BATCH_TOO_LARGE")
    assert facts["limit"] == "1000"
    assert not (await edge.tasks.ListTasks(tasks_pb2.ListTasksRequest())).tasks


async def test_bytes_that_are_no_message_are_refused(edge: Edge) -> None:
    """A text that is not UTF-8 is the caller's mistake, and is said to be."""
    call: Any = edge.channel.unary_unary("/cronoq.v1.Tasks/Submit")
    code, reason, facts, _ = await refusal(call(b"\x0a\x03\x32\x01\xff"))
    assert (code, reason) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD")
    assert facts["message"] == "cronoq.v1.SubmitRequest"


async def test_unknown_and_missing_tasks(edge: Edge) -> None:
    """A task that does not exist is not found by any call; no name at all is a mistake."""
    nobody = ref(1 << 40)
    for call in (
        edge.tasks.Get(tasks_pb2.GetRequest(task=nobody)),
        edge.tasks.Describe(tasks_pb2.GetRequest(task=nobody)),
        edge.tasks.Cancel(tasks_pb2.CancelRequest(task=nobody)),
        edge.tasks.Wait(tasks_pb2.WaitRequest(task=nobody)),
    ):
        code, reason, _, _ = await refusal(call)
        assert (code, reason) == (grpc.StatusCode.NOT_FOUND, "TASK_UNKNOWN")
    code, reason, _, message = await refusal(edge.tasks.Get(tasks_pb2.GetRequest()))
    assert (code, reason) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD")
    assert message == "task: must name a task by an id above 0 or by a key"


async def test_wait_ends_in_time(edge: Edge) -> None:
    """A wait that is over says that the task has not ended."""
    task_id = await edge.submit()
    request = tasks_pb2.WaitRequest(task=ref(task_id), timeout_s=0.01)
    code, reason, _, _ = await refusal(edge.tasks.Wait(request))
    assert (code, reason) == (grpc.StatusCode.DEADLINE_EXCEEDED, "WAIT_TIMEOUT")


async def test_cancel_is_true_whoever_did_it(edge: Edge) -> None:
    """Cancelling twice is true twice."""
    request = tasks_pb2.CancelRequest(task=ref(await edge.submit()))
    assert (await edge.tasks.Cancel(request)).cancelled
    assert (await edge.tasks.Cancel(request)).cancelled


async def test_wait_many_tells_every_task_once(edge: Edge) -> None:
    """Results by id and key, unknown ones as errors, unfinished ones as errors at the end."""
    done, open_ = await edge.submit(kind="a", key="done"), await edge.submit(kind="b")
    worker = await edge.worker(kinds=["a"])
    (lease,) = await worker.leases(1)
    await worker.complete(1, lease, output=b"out")
    request = tasks_pb2.WaitManyRequest(
        ids=[done, open_, 999], keys=["done", "nobody"], timeout_s=0.2
    )
    results: list[tuple[int, bytes]] = []
    errors: dict[object, int] = {}
    async for message in edge.tasks.WaitMany(request):
        results += [(result.id, result.output) for result in message.results]
        for error in message.errors:
            errors[error.task.id or error.task.key] = error.status.code
    assert results == [(done, b"out")] * 2
    assert errors == {open_: 4, 999: 5, "nobody": 5}
    bare = tasks_pb2.WaitManyRequest(ids=[done], without_output=True)
    (message,) = [message async for message in edge.tasks.WaitMany(bare)]
    assert not message.results[0].HasField("output")
    assert message.results[0].output_available
    await worker.close()


async def test_large_outputs_come_in_several_messages(edge: Edge) -> None:
    """Twelve outputs of 1 MiB do not become one message of 12 MiB."""
    ids = [await edge.submit() for _ in range(12)]
    worker = await edge.worker(slots=12)
    for number, lease in enumerate(await worker.leases(12), 1):
        await worker.complete(number, lease, output=b"x" * (1 << 20))
    await worker.receipt(12)
    sizes = []
    seen = []
    async for message in edge.tasks.WaitMany(tasks_pb2.WaitManyRequest(ids=ids)):
        sizes.append(message.ByteSize())
        seen += [result.id for result in message.results]
    assert sorted(seen) == ids
    assert max(sizes) <= 4 << 20
    await worker.close()


async def test_list_pages_through_everything(edge: Edge) -> None:
    """Pages follow each other without gap or double, forwards and backwards, under a filter."""
    ids = [await edge.submit(kind="odd" if n % 2 else "even", tags={"n": str(n)}) for n in range(7)]

    async def listed(**fields: Any) -> list[int]:
        found: list[int] = []
        after = 0
        while True:
            request = tasks_pb2.ListTasksRequest(limit=2, after=after, **fields)
            page = await edge.tasks.ListTasks(request)
            found += [info.id for info in page.tasks]
            after = page.next_after
            if not after:
                return found

    assert await listed() == ids
    assert await listed(newest_first=True) == ids[::-1]
    assert await listed(kinds=["odd"]) == ids[1::2]
    assert await listed(tags={"n": "3"}) == [ids[3]]
    assert await listed(statuses=[task_pb2.TASK_STATUS_RUNNING]) == []
    code, reason, _, _ = await refusal(
        edge.tasks.ListTasks(tasks_pb2.ListTasksRequest(statuses=[0]))  # type: ignore[list-item]
    )
    assert (code, reason) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD")


async def test_list_page_is_cut_by_size(serve: Serve) -> None:
    """A page whose tasks are large is short, and its cursor goes on behind the last one shown."""
    edge = await serve("[limits]\nmax_message_bytes = 262144\nmax_list = 100\n")
    tags = {f"{n}": "x" * 250 for n in range(32)}
    ids = [await edge.submit(tags=tags) for _ in range(40)]
    found: list[int] = []
    after, pages = 0, 0
    while True:
        page = await edge.tasks.ListTasks(tasks_pb2.ListTasksRequest(after=after))
        assert page.ByteSize() <= 262_144
        found += [info.id for info in page.tasks]
        after, pages = page.next_after, pages + 1
        if not after:
            break
    assert found == ids
    assert pages > 1


async def test_describe_shows_spec_attempts_and_family(edge: Edge) -> None:
    """Everything known of a task: payload, failed attempts, parents, children."""
    parent = await edge.submit(payload=b"big", kind="p", retry=task_pb2.RetryPolicy(max_attempts=2))
    child = await edge.submit(deps=[task_pb2.Dep(target=ref(parent))], kind="c")
    worker = await edge.worker(kinds=["p"], worker_name="w-1")
    (lease,) = await worker.leases(1)
    reports = workers_pb2.Reports(number=1)
    reports.reports.add().fail.CopyFrom(
        workers_pb2.Fail(lease=lease.lease, message="no\0luck", retry_after_s=3600)
    )
    await worker.say(reports=reports)
    await worker.receipt(1)
    detail = await edge.tasks.Describe(tasks_pb2.GetRequest(task=ref(parent)))
    assert (detail.spec.payload, detail.info.status) == (b"big", task_pb2.TASK_STATUS_RETRYING)
    assert list(detail.children) == [child]
    (attempt,) = detail.attempts
    assert (attempt.number, attempt.worker, attempt.outcome) == (1, "w-1", "failed")
    assert attempt.message == "no\ufffdluck"
    detail = await edge.tasks.Describe(tasks_pb2.GetRequest(task=ref(child)))
    assert detail.parents[0].task.id == parent
    assert detail.parents[0].status == task_pb2.TASK_STATUS_RETRYING
    await worker.close()


async def test_watch_streams_transitions_and_resumes(edge: Edge) -> None:
    """A watch tells what happens in order; with its cursor a second one goes on behind it."""
    request = tasks_pb2.WatchRequest(all_transitions=True, bookmarks=True)
    watch = edge.tasks.WatchBatches(request)
    first = await watch.read()
    assert first.cursor
    assert not first.events
    task_id = await edge.submit(key="seen")
    created = await watch.read()
    assert [(e.id, e.key, e.status) for e in created.events] == [
        (task_id, "seen", task_pb2.TASK_STATUS_READY)
    ]
    await edge.tasks.Cancel(tasks_pb2.CancelRequest(task=ref(task_id)))
    assert (await watch.read()).events[0].status == task_pb2.TASK_STATUS_CANCELLED
    watch.cancel()
    again = edge.tasks.Watch(tasks_pb2.WatchRequest(after_cursor=created.cursor, bookmarks=True))
    bookmark, event = await again.read(), await again.read()
    assert bookmark.id == 0
    assert (event.id, event.status) == (task_id, task_pb2.TASK_STATUS_CANCELLED)
    assert event.cursor
    again.cancel()


async def test_watch_refuses_a_foreign_cursor(edge: Edge) -> None:
    """A cursor that is none ends the stream with its reason."""
    watch = edge.tasks.WatchBatches(tasks_pb2.WatchRequest(after_cursor=b"what"))
    code, reason, _, _ = await refusal(watch.read())
    assert (code, reason) == (grpc.StatusCode.DATA_LOSS, "CURSOR_UNKNOWN")


@pytest.mark.regression("R28")
async def test_watch_that_does_not_read_is_ended(serve: Serve) -> None:
    """A watcher that lags behind too far loses its stream, not the server its memory."""
    edge = await serve("[limits]\nwatch_buffer = 100\n")
    watch = edge.tasks.WatchBatches(tasks_pb2.WatchRequest(all_transitions=True, bookmarks=True))
    await watch.read()
    # Long keys fill the connection soon, so that the server has to keep what comes after.
    for start in range(0, 8000, 1000):
        request = tasks_pb2.SubmitManyRequest()
        for number in range(start, start + 1000):
            request.tasks.add(key=f"{number:0>250}")
        await edge.tasks.SubmitMany(request)
    code, reason, _, _ = await refusal(drained(watch))
    assert (code, reason) == (grpc.StatusCode.DATA_LOSS, "WATCH_TOO_SLOW")


async def drained(stream: Any) -> None:
    """Reads a stream to its end."""
    while await stream.read() is not grpc.aio.EOF:
        pass


async def test_snapshot_and_workers_are_shown(edge: Edge) -> None:
    """Counts of pools and the sessions that are connected."""
    await edge.submit(kind="other")
    worker = await edge.worker(slots=3, worker_name="w", kinds=["x"], labels={"gpu": "1"}, sdk="t")
    (shown,) = (await edge.admin.ListWorkers(task_pb2.Empty())).workers
    assert (shown.name, shown.slots, shown.busy, shown.sdk) == ("w", 3, 0, "t")
    assert (dict(shown.labels), list(shown.kinds)) == ({"gpu": "1"}, ["x"])
    assert shown.id == worker.registered.worker_id
    snapshot = await edge.admin.Snapshot(task_pb2.Empty())
    (pool,) = snapshot.pools
    assert (pool.name, pool.capacity, pool.workers_connected) == ("default", 3, 1)
    assert list(pool.pending_by_class) == [0, 0, 1, 0]
    assert (snapshot.pending, snapshot.totals.submitted) == (1, 1)
    await worker.close()


async def test_answers_name_the_protocol(edge: Edge) -> None:
    """Successful and failed calls tell which version the server speaks."""
    call = edge.tasks.ListTasks(tasks_pb2.ListTasksRequest())
    await call
    assert ("cronoq-protocol", "4") in tuple(await call.trailing_metadata())
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await edge.tasks.Get(tasks_pb2.GetRequest())
    assert ("cronoq-protocol", "4") in tuple(caught.value.trailing_metadata() or ())


async def test_full_queue_parks_until_there_is_room(serve: Serve) -> None:
    """A submit waits for room; its deadline ends the wait; SubmitMany never waits."""
    edge = await serve("[[pools]]\nname = 'default'\nmax_pending = 1\n")
    first = await edge.submit()
    parked = asyncio.ensure_future(edge.submit())
    many = await edge.tasks.SubmitMany(tasks_pb2.SubmitManyRequest(tasks=[task_pb2.TaskSpec()]))
    assert many.outcomes[0].error.code == 8
    for patience in (0.3, 3, 30):
        late = edge.tasks.Submit(tasks_pb2.SubmitRequest(), timeout=patience)
        code, reason, _, _ = await refusal(late)
        if code is not grpc.StatusCode.DEADLINE_EXCEEDED:  # the machine was too busy to answer
            break
    assert (code, reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL")
    assert not parked.done()
    await edge.tasks.Cancel(tasks_pb2.CancelRequest(task=ref(first)))
    assert await parked > first


async def test_too_many_callers_are_refused(serve: Serve) -> None:
    """Waiters and streams beyond their bounds are refused, and let in when others left."""
    edge = await serve("[limits]\nmax_waiters = 1\nmax_concurrent_streams = 1\n")
    task_id = await edge.submit()
    waiting = asyncio.ensure_future(edge.tasks.Wait(tasks_pb2.WaitRequest(task=ref(task_id))))
    worker = await edge.worker()
    (lease,) = await worker.leases(1)
    code, reason, _, _ = await refusal(edge.tasks.Wait(tasks_pb2.WaitRequest(task=ref(task_id))))
    assert (code, reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "TOO_MANY_REQUESTS")
    code, reason, _, _ = await refusal(edge.workers.Work().read())
    assert (code, reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "TOO_MANY_STREAMS")
    await worker.complete(1, lease)
    assert (await waiting).status == task_pb2.TASK_STATUS_SUCCEEDED
    assert (await edge.tasks.Wait(tasks_pb2.WaitRequest(task=ref(task_id)))).id == task_id
    await worker.close()


async def test_health_is_told(edge: Edge) -> None:
    """The standard health service says that the leader serves."""
    stub: Any = health_pb2_grpc.HealthStub(edge.channel)
    for name in ("", "cronoq.v1.Tasks"):
        answer = await stub.Check(health_pb2.HealthCheckRequest(service=name))
        assert answer.status == health_pb2.HealthCheckResponse.SERVING


async def test_services_can_be_explored(edge: Edge) -> None:
    """Reflection lists the services of the contract."""
    stub: Any = reflection_pb2_grpc.ServerReflectionStub(edge.channel)
    call = stub.ServerReflectionInfo(
        iter([reflection_pb2.ServerReflectionRequest(list_services="")])
    )
    answer = await call.read()
    names = {service.name for service in answer.list_services_response.service}
    assert {"cronoq.v1.Tasks", "cronoq.v1.Workers", "cronoq.v1.Admin"} <= names
    call.cancel()
