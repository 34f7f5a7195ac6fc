"""Holds the client to its promises, against a server played from a script."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import grpc
import pytest
from scripted_server import PATIENCE_S, Refusal, ScriptedServer, make_status, result

from cronoq import (
    Backoff,
    BulkAction,
    Client,
    CronoqError,
    Dep,
    EdgeCond,
    MissPolicy,
    Priority,
    RetryPolicy,
    TaskFailedError,
    TaskFilter,
    TaskHandle,
    TaskSpec,
    TaskStatus,
    new_key,
)
from cronoq._calls import BackoffSeries
from cronoq._coalesce import LANES_KEPT
from cronoq._proto import task_pb2, tasks_pb2
from cronoq.errors import (
    ClosedError,
    CursorUnknownError,
    DeadlineError,
    InvalidFieldError,
    NotLeaderError,
    OutputUnavailableError,
    PayloadError,
    QueueFullError,
    RateLimitedError,
    StoppingError,
    TaskUnknownError,
    TooLargeError,
    UnavailableError,
    UnsupportedError,
    WaitTimeoutError,
    WatchTooSlowError,
)
from cronoq.options import ClientOptions

QUICK = Backoff(initial=0.001, maximum=0.01)
UNAVAILABLE = grpc.StatusCode.UNAVAILABLE
EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED


@pytest.fixture
async def client(server: ScriptedServer) -> AsyncIterator[Client]:
    """A client of the scripted server."""
    async with Client(server.endpoint, backoff=QUICK, deadline=PATIENCE_S) as made:
        yield made


class Admission:
    """Answers SubmitMany and Submit by giving out ids, or as told for a kind."""

    def __init__(self, server: ScriptedServer) -> None:
        self.next_id = 1
        self.by_key: dict[str, int] = {}
        self.refused: dict[str, Any] = {}
        self.before: Callable[[], Any] | None = None
        server.on("SubmitMany", self.many)
        server.on("Submit", self.one)

    async def many(self, request: tasks_pb2.SubmitManyRequest) -> tasks_pb2.SubmitManyResponse:
        """Admits or refuses each task."""
        if self.before is not None:
            await self.before()
        answer = tasks_pb2.SubmitManyResponse()
        for task in request.tasks:
            outcome = answer.outcomes.add()
            if task.kind in self.refused:
                outcome.error.CopyFrom(self.refused[task.kind])
            else:
                outcome.response.CopyFrom(self.admit(task))
        return answer

    async def one(self, request: tasks_pb2.SubmitRequest) -> tasks_pb2.SubmitResponse:
        """Admits one task."""
        return self.admit(request.task)

    def admit(self, task: task_pb2.TaskSpec) -> tasks_pb2.SubmitResponse:
        """Gives out an id, the old one for a known key."""
        if task.key in self.by_key:
            return tasks_pb2.SubmitResponse(id=self.by_key[task.key], duplicate=True)
        task_id = self.next_id
        self.next_id += 1
        if task.key:
            self.by_key[task.key] = task_id
        return tasks_pb2.SubmitResponse(id=task_id)


@pytest.fixture
def admission(server: ScriptedServer) -> Admission:
    """Submits are admitted."""
    return Admission(server)


def _sizes(server: ScriptedServer) -> list[int]:
    return [len(request.tasks) for request in server.requests("SubmitMany")]


# --- submit ---------------------------------------------------------------------------------------


@pytest.mark.usefixtures("admission")
async def test_concurrent_submits_share_a_request(server: ScriptedServer, client: Client) -> None:
    """All that arrive in one turn of the loop go out together, in order."""
    handles = await asyncio.gather(*(client.submit("echo", n) for n in range(64)))
    assert list(range(1, 65)) == [handle.id for handle in handles]
    assert _sizes(server) == [64]
    (request,) = server.requests("SubmitMany")
    assert [str(n).encode() for n in range(64)] == [task.payload for task in request.tasks]


@pytest.mark.usefixtures("admission")
async def test_a_single_submit_goes_out_at_once(server: ScriptedServer, client: Client) -> None:
    """Nobody waits for company."""
    await client.submit("echo", 1)
    assert _sizes(server) == [1]


async def test_two_requests_are_in_flight_and_the_rest_gather(
    server: ScriptedServer, client: Client, admission: Admission
) -> None:
    """What arrives meanwhile forms the next request."""
    go, arrived = asyncio.Event(), asyncio.Semaphore(0)

    async def before() -> None:
        arrived.release()
        await go.wait()

    admission.before = before
    submits = []
    for turn in range(2):
        submits += [asyncio.create_task(client.submit("echo", turn)) for _ in range(3)]
        await arrived.acquire()
    submits += [asyncio.create_task(client.submit("echo", n)) for n in range(10)]
    await asyncio.sleep(0)
    submits += [asyncio.create_task(client.submit("echo", n)) for n in range(10)]
    await asyncio.sleep(0)
    go.set()
    await asyncio.gather(*submits)
    assert _sizes(server) == [3, 3, 20]


async def test_pools_do_not_wait_for_each_other(
    server: ScriptedServer, client: Client, admission: Admission
) -> None:
    """They may be of different shards: one that is slow or gone holds up nobody else."""
    go, arrived = asyncio.Event(), asyncio.Semaphore(0)

    async def many(request: tasks_pb2.SubmitManyRequest) -> tasks_pb2.SubmitManyResponse:
        if request.tasks[0].pool == "slow":
            arrived.release()
            await go.wait()
        return await admission.many(request)

    server.on("SubmitMany", many)
    slow = []
    for _ in range(2):
        slow.append(asyncio.create_task(client.submit("echo", pool="slow")))
        await arrived.acquire()
    await asyncio.gather(*(client.submit("echo", pool="quick") for _ in range(5)))
    assert not any(task.done() for task in slow)
    go.set()
    await asyncio.gather(*slow)


async def test_pools_with_nothing_under_way_are_forgotten(
    client: Client, admission: Admission
) -> None:
    """Whoever makes up names of pools fills no memory."""
    for number in range(3 * LANES_KEPT):
        await client.submit("echo", pool=f"pool-{number}")
    assert admission.next_id == 3 * LANES_KEPT + 1
    assert len(client._here().submits._lanes) <= LANES_KEPT


@pytest.mark.usefixtures("admission")
async def test_requests_are_split_by_count(server: ScriptedServer) -> None:
    """No request holds more tasks than the server takes."""
    async with Client(server.endpoint, max_tasks_per_batch=10) as client:
        await asyncio.gather(*(client.submit("echo", n) for n in range(25)))
    assert sorted(_sizes(server)) == [5, 10, 10]  # Two are on their way at once.


@pytest.mark.usefixtures("admission")
async def test_requests_are_split_by_size(server: ScriptedServer) -> None:
    """Half a message is the most, unless one task alone is larger."""
    async with Client(server.endpoint, max_message_bytes=1_000_000) as client:
        sizes = [200_000, 200_000, 200_000, 900_000, 100]
        await asyncio.gather(*(client.submit("echo", b"x" * size) for size in sizes))
    assert sorted(_sizes(server)) == [1, 1, 1, 2]  # Two are on their way at once.


@pytest.mark.usefixtures("admission")
async def test_a_task_too_large_is_refused_before_it_is_sent(
    server: ScriptedServer, client: Client
) -> None:
    """And takes nobody with it."""
    big, small = await asyncio.gather(
        client.submit("echo", b"x" * 5_000_000),
        client.submit("echo", 1),
        return_exceptions=True,
    )
    assert isinstance(big, TooLargeError)
    assert isinstance(small, TaskHandle)
    assert _sizes(server) == [1]


@pytest.mark.usefixtures("admission")
async def test_a_cancelled_caller_is_not_submitted(server: ScriptedServer, client: Client) -> None:
    """If it gave up before its request went out."""
    submits = [asyncio.create_task(client.submit("echo", n)) for n in range(3)]
    await asyncio.sleep(0)
    submits[1].cancel()
    outcomes = await asyncio.gather(*submits, return_exceptions=True)
    assert isinstance(outcomes[1], asyncio.CancelledError)
    (request,) = server.requests("SubmitMany")
    assert [task.payload for task in request.tasks] == [b"0", b"2"]


async def test_each_caller_keeps_its_own_deadline(
    server: ScriptedServer, client: Client, admission: Admission
) -> None:
    """One runs out of time, the others of the same request go on."""
    go = asyncio.Event()
    admission.before = go.wait
    short = asyncio.create_task(client.submit("echo", 1, call_deadline=0.01))
    long = asyncio.create_task(client.submit("echo", 2))
    with pytest.raises(DeadlineError):
        await short
    go.set()
    assert (await long).id == 2
    assert _sizes(server) == [2]


async def test_each_caller_gets_its_own_error(client: Client, admission: Admission) -> None:
    """Typed by reason, beside callers that succeed."""
    code = grpc.StatusCode.INVALID_ARGUMENT
    admission.refused["bad"] = make_status(code, "kind: too long", "invalid_field")
    good, bad = await asyncio.gather(
        client.submit("good"), client.submit("bad"), return_exceptions=True
    )
    assert isinstance(good, TaskHandle)
    assert isinstance(bad, InvalidFieldError)
    assert str(bad) == "kind: too long"


async def test_an_error_speaks_of_the_callers_task_only(
    client: Client, admission: Admission
) -> None:
    """Not of its place in a request that the caller knows nothing of."""
    code = grpc.StatusCode.INVALID_ARGUMENT
    details = {"field": "tasks[1].key", "index": "1", "limit": "256"}
    status = make_status(code, "tasks[1].key: too long", "invalid_field", details)
    admission.refused["bad"] = status
    _, bad = await asyncio.gather(
        client.submit("good"), client.submit("bad"), return_exceptions=True
    )
    assert isinstance(bad, InvalidFieldError)
    assert (str(bad), bad.details) == ("key: too long", {"field": "key", "limit": "256"})


async def test_a_task_for_a_full_pool_is_sent_again_as_a_call_that_parks(
    server: ScriptedServer, client: Client, admission: Admission
) -> None:
    """Only that one; the others are through."""
    admission.refused["full"] = make_status(EXHAUSTED, "full", "queue_full")
    first, second = await asyncio.gather(client.submit("full", key="k"), client.submit("echo"))
    assert (first.id, first.key, second.id) == (2, "k", 1)
    assert [request.task.kind for request in server.requests("Submit")] == ["full"]


async def test_a_parked_call_that_ends_full_says_so(
    server: ScriptedServer, client: Client, admission: Admission
) -> None:
    """There was no room in time, or the pool does not park."""
    admission.refused["full"] = make_status(EXHAUSTED, "full", "queue_full")

    async def one(_request: Any) -> Any:
        raise Refusal(EXHAUSTED, "still full", reason="queue_full")

    server.on("Submit", one)
    with pytest.raises(QueueFullError, match="still full"):
        await client.submit("full")


async def test_a_lost_request_is_sent_again_for_members_with_a_key(
    server: ScriptedServer, client: Client, admission: Admission
) -> None:
    """For the others the outcome is unknown."""
    losses = iter([True, False])

    async def before() -> None:
        if next(losses):
            raise Refusal(UNAVAILABLE, "connection reset")

    admission.before = before
    keyed, plain = await asyncio.gather(
        client.submit("echo", key="k"), client.submit("echo"), return_exceptions=True
    )
    assert isinstance(keyed, TaskHandle)
    assert isinstance(plain, UnavailableError)
    assert plain.executed is None
    assert _sizes(server) == [2, 1]


@pytest.mark.parametrize("reason", ["not_leader", "stopping"])
async def test_a_request_that_was_not_executed_is_sent_again_for_all(
    client: Client, admission: Admission, reason: str
) -> None:
    """A key is not needed for that."""
    losses = iter([True, True, False])

    async def before() -> None:
        if next(losses):
            raise Refusal(UNAVAILABLE, "standby", reason=reason)

    admission.before = before
    handles = await asyncio.gather(client.submit("echo", key="k"), client.submit("echo"))
    assert [handle.id for handle in handles] == [1, 2]


@pytest.mark.usefixtures("admission")
async def test_a_repetition_of_a_known_key_is_a_duplicate(client: Client) -> None:
    """Same id, nothing changed."""
    key = new_key()
    first = await client.submit("echo", key=key)
    second = await client.submit("echo", key=key)
    assert (first.duplicate, second.duplicate, second.id) == (False, True, first.id)


async def test_a_submit_that_never_reached_a_server_says_why(server: ScriptedServer) -> None:
    """After its deadline, with what stood in the way; one by one and in bulk."""
    await server.stop()
    async with Client(server.endpoint, backoff=QUICK) as client:
        with pytest.raises(UnavailableError, match="failed to connect"):
            await client.submit("echo", call_deadline=0.1)
        (outcome,) = await client.submit_many([TaskSpec("echo")], call_deadline=0.1)
        assert isinstance(outcome, UnavailableError)


async def test_submits_without_an_answer_run_out_of_time(
    client: Client, admission: Admission
) -> None:
    """Each is told so: a time that is up is nothing that stands in the way of the next."""
    admission.before = asyncio.Event().wait
    for kind in ("first", "second", "third"):
        with pytest.raises(DeadlineError):
            await client.submit(kind, call_deadline=0.03)
        # Until its request has ended too, so that the next one comes after it.
        lanes = client._here().submits._lanes.values()
        await asyncio.gather(*(task for lane in lanes for task in lane._running))


async def test_an_answer_is_nothing_that_stands_in_the_way(
    client: Client, admission: Admission
) -> None:
    """A server that has refused one request is there."""
    never = asyncio.Event()

    async def refuse() -> None:
        raise Refusal(EXHAUSTED, "slow down", reason="rate_limited")

    admission.before = refuse
    with pytest.raises(RateLimitedError):
        await client.submit("refused")
    admission.before = never.wait
    with pytest.raises(DeadlineError):
        await client.submit("unanswered", call_deadline=0.03)


async def test_a_refusal_of_the_whole_request_reaches_every_caller(
    client: Client, admission: Admission
) -> None:
    """It is not repeated."""

    async def before() -> None:
        raise Refusal(EXHAUSTED, "slow down", reason="rate_limited")

    admission.before = before
    outcomes = await asyncio.gather(
        client.submit("a", key="a"), client.submit("b"), return_exceptions=True
    )
    assert [RateLimitedError, RateLimitedError] == [type(outcome) for outcome in outcomes]


async def test_an_old_server_gets_single_submits(server: ScriptedServer, client: Client) -> None:
    """It knows no SubmitMany."""
    admission = Admission(server)
    del server.answers["/cronoq.v1.Tasks/SubmitMany"]
    handles = await asyncio.gather(*(client.submit("echo", n) for n in range(5)))
    assert {1, 2, 3, 4, 5} == {handle.id for handle in handles}
    assert admission.next_id == 6


async def test_many_tasks_are_admitted_or_refused_one_by_one(
    server: ScriptedServer, admission: Admission
) -> None:
    """In order, over as many requests as it takes, errors in their places."""
    code = grpc.StatusCode.INVALID_ARGUMENT
    admission.refused["bad"] = make_status(code, "no", "invalid_field")
    specs = [TaskSpec("bad" if n % 7 == 0 else "echo", n) for n in range(95)]
    specs[3] = TaskSpec("echo", object())
    async with Client(server.endpoint, max_tasks_per_batch=10, backoff=QUICK) as client:
        outcomes = await client.submit_many(specs)
    for number, outcome in enumerate(outcomes):
        if number == 3:
            assert isinstance(outcome, PayloadError)
        elif number % 7 == 0:
            assert isinstance(outcome, InvalidFieldError)
        else:
            assert isinstance(outcome, TaskHandle)
    assert max(_sizes(server)) == 10
    assert sum(_sizes(server)) == 94


async def test_many_tasks_share_one_deadline(client: Client, admission: Admission) -> None:
    """What is not admitted by then is an error in its place."""
    never = asyncio.Event()
    admission.before = never.wait
    (outcome,) = await client.submit_many([TaskSpec("echo")], call_deadline=0.01)
    assert isinstance(outcome, DeadlineError)
    never.set()


@pytest.mark.regression("R23")
@pytest.mark.usefixtures("admission")
async def test_everything_said_about_a_task_is_on_the_wire(
    server: ScriptedServer, client: Client
) -> None:
    """Field by field."""
    instant = datetime(2030, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
    await client.submit(
        "kind",
        {"a": [1, "é"]},
        pool="pool",
        priority=Priority.HIGH,
        key="key",
        deadline_at=instant,
        start_in=timedelta(seconds=1.5),
        tolerance=2,
        on_miss=MissPolicy.SKIP,
        duration_hint=3,
        timeout=timedelta(minutes=1),
        retry=RetryPolicy(max_attempts=5, initial_backoff=0.5, multiplier=3, max_backoff=9),
        deps=[7, "parent", Dep(8, EdgeCond.ON_FAILURE)],
        resources={"api": 2},
        tags={"t": "v"},
        labels={"gpu": ""},
        tenant="tenant",
        trace_context={"traceparent": "00"},
        delay=4,
        not_before=instant,
        expires_in=5,
    )
    (request,) = server.requests("SubmitMany")
    ns = 1_893_553_445_678_901_000
    deps = [
        task_pb2.Dep(target=task_pb2.TaskRef(id=7)),
        task_pb2.Dep(target=task_pb2.TaskRef(key="parent")),
        task_pb2.Dep(target=task_pb2.TaskRef(id=8), cond=task_pb2.EDGE_COND_ON_FAILURE),
    ]
    retry = task_pb2.RetryPolicy(
        max_attempts=5, initial_backoff_s=0.5, multiplier=3, max_backoff_s=9, jitter=True
    )
    assert request.tasks[0] == task_pb2.TaskSpec(
        payload='{"a":[1,"é"]}'.encode(),
        content_type="application/json",
        kind="kind",
        pool="pool",
        priority=task_pb2.PRIORITY_HIGH,
        key="key",
        deadline_unix_ns=ns,
        start_in_s=1.5,
        tolerance_s=2,
        on_miss=task_pb2.MISS_POLICY_SKIP,
        duration_hint_s=3,
        timeout_s=60,
        retry=retry,
        deps=deps,
        resources={"api": 2},
        tags={"t": "v"},
        labels={"gpu": ""},
        tenant="tenant",
        trace_context={"traceparent": "00"},
        delay_s=4,
        not_before_unix_ns=ns,
        expires_in_s=5,
    )


@pytest.mark.usefixtures("admission")
async def test_a_task_can_depend_on_what_was_just_submitted(
    server: ScriptedServer, client: Client
) -> None:
    """By its handle."""
    parent = await client.submit("parent")
    await client.submit("child", deps=[parent])
    (edge,) = server.requests("SubmitMany")[1].tasks[0].deps
    assert edge.target.id == parent.id


@pytest.mark.usefixtures("admission")
async def test_a_client_may_be_used_from_several_loops(client: Client) -> None:
    """Each has requests of its own."""

    async def use() -> int:
        return (await client.submit("echo")).id

    found = [await use(), await asyncio.to_thread(asyncio.run, use()), await use()]
    assert found == [1, 2, 3]


@pytest.mark.usefixtures("admission")
async def test_what_is_not_said_is_not_on_the_wire(server: ScriptedServer, client: Client) -> None:
    """No payload is not an empty JSON value, and absent is not zero."""
    await client.submit("kind")
    await client.submit("kind", None)
    first, second = server.requests("SubmitMany")
    assert first.tasks[0] == task_pb2.TaskSpec(kind="kind")
    assert second.tasks[0].payload == b"null"


@pytest.mark.usefixtures("admission")
@pytest.mark.parametrize(
    "spec",
    [
        TaskSpec("kind", not_before=datetime(2030, 1, 1)),
        TaskSpec("kind", not_before=datetime(9999, 1, 1, tzinfo=UTC)),
        TaskSpec("kind", key="\ud800"),
        TaskSpec("kind", resources={"api": -1}),
        TaskSpec("kind", tags={"a": 1}),  # type: ignore[dict-item]
        TaskSpec(5),  # type: ignore[arg-type]
    ],
    ids=[
        "naive instant",
        "far instant",
        "lone surrogate",
        "negative amount",
        "number as tag",
        "number as kind",
    ],
)
async def test_what_the_wire_cannot_hold_is_an_invalid_field(
    server: ScriptedServer, client: Client, spec: TaskSpec
) -> None:
    """Before anything is sent, and without harm to others."""
    bad, good = await asyncio.gather(
        client.submit(spec), client.submit("echo"), return_exceptions=True
    )
    assert isinstance(bad, InvalidFieldError)
    assert isinstance(good, TaskHandle)
    assert _sizes(server) == [1]


async def test_a_batch_is_one_request(server: ScriptedServer, client: Client) -> None:
    """Its answers come in order."""

    async def batch(request: tasks_pb2.SubmitBatchRequest) -> tasks_pb2.SubmitBatchResponse:
        answers = [tasks_pb2.SubmitResponse(id=n) for n, _ in enumerate(request.tasks, 10)]
        return tasks_pb2.SubmitBatchResponse(tasks=answers)

    server.on("SubmitBatch", batch)
    specs = [TaskSpec("map", 1, key="m"), TaskSpec("reduce", deps=["m"])]
    handles = await client.submit_batch(specs)
    assert [(handle.id, handle.key) for handle in handles] == [(10, "m"), (11, "")]


@pytest.mark.parametrize("keys", [("a", "b"), ("a", "")], ids=["all keyed", "one without key"])
async def test_a_lost_batch_is_sent_again_only_if_all_have_keys(
    server: ScriptedServer, client: Client, keys: tuple[str, str]
) -> None:
    """Else it might be admitted twice."""
    losses = iter([True, False])

    async def batch(request: tasks_pb2.SubmitBatchRequest) -> tasks_pb2.SubmitBatchResponse:
        if next(losses):
            raise Refusal(UNAVAILABLE, "reset")
        answers = [tasks_pb2.SubmitResponse(id=1) for _ in request.tasks]
        return tasks_pb2.SubmitBatchResponse(tasks=answers)

    server.on("SubmitBatch", batch)
    specs = [TaskSpec("echo", key=key) for key in keys]
    if all(keys):
        assert len(await client.submit_batch(specs)) == 2
    else:
        with pytest.raises(UnavailableError):
            await client.submit_batch(specs)


# --- wait and result ------------------------------------------------------------------------------


class Results:
    """Answers WaitMany: ids that have ended at once, others when they end."""

    def __init__(self, server: ScriptedServer) -> None:
        self.ended: dict[int, task_pb2.TaskResult] = {}
        self.changed = asyncio.Condition()
        self.asked = asyncio.Semaphore(0)
        self.failures: list[Refusal] = []
        server.on("WaitMany", self.wait)  # type: ignore[arg-type]

    async def end(self, *results: task_pb2.TaskResult) -> None:
        """Tasks have ended."""
        async with self.changed:
            self.ended.update({result.id: result for result in results})
            self.changed.notify_all()

    async def wait(self, request: tasks_pb2.WaitManyRequest) -> AsyncIterator[Any]:
        """Streams results until all are told."""
        self.asked.release()
        if self.failures:
            raise self.failures.pop(0)
        owed = set(request.ids)
        while owed:
            async with self.changed:
                await self.changed.wait_for(lambda: self.ended.keys() & owed)  # noqa: B023
                found = sorted(owed & self.ended.keys())
            yield tasks_pb2.TaskResults(results=[self.ended[n] for n in found])
            owed -= set(found)


@pytest.fixture
def results(server: ScriptedServer) -> Results:
    """Waits are answered."""
    return Results(server)


async def test_concurrent_waits_share_a_stream(
    server: ScriptedServer, client: Client, results: Results
) -> None:
    """However many callers, and two of them may wait for one task."""
    waits = [asyncio.create_task(client.result(n)) for n in (1, 2, 3, 3)]
    await results.asked.acquire()
    await results.end(*(result(n, b"%d" % n) for n in (1, 2, 3)))
    assert await asyncio.gather(*waits) == [1, 2, 3, 3]
    (request,) = server.requests("WaitMany")
    assert sorted(request.ids) == [1, 2, 3]


async def test_few_streams_serve_any_number_of_waits(
    server: ScriptedServer, client: Client, results: Results
) -> None:
    """When all are in use, new waits join one that is opened anew."""
    waits = []
    for number in range(1, 13):
        waits.append(asyncio.create_task(client.wait(number)))
        await results.asked.acquire()
    requests = server.requests("WaitMany")
    assert [len(request.ids) for request in requests[:5]] == [1, 1, 1, 1, 2]
    await results.end(*(result(n) for n in range(1, 13)))
    assert list(range(1, 13)) == [found.id for found in await asyncio.gather(*waits)]


async def test_a_wait_survives_a_broken_stream(client: Client, results: Results) -> None:
    """Across a failover, say."""
    results.failures = [
        Refusal(UNAVAILABLE, "reset"),
        Refusal(UNAVAILABLE, "standby", reason="not_leader"),
    ]
    await results.end(result(1))
    assert (await client.wait(1)).status is TaskStatus.SUCCEEDED


async def test_a_wait_goes_on_after_its_slice(server: ScriptedServer, client: Client) -> None:
    """A slice may end with an error per task, or by itself."""
    code = grpc.StatusCode.DEADLINE_EXCEEDED
    timed_out = tasks_pb2.WaitError(
        task=task_pb2.TaskRef(id=1), status=make_status(code, "slice", "wait_timeout")
    )
    messages = iter([tasks_pb2.TaskResults(errors=[timed_out]), None, result(1)])

    async def wait(_request: Any) -> AsyncIterator[Any]:
        message = next(messages)
        if isinstance(message, tasks_pb2.TaskResults):
            yield message
        elif message is not None:
            yield tasks_pb2.TaskResults(results=[message])

    server.on("WaitMany", wait)  # type: ignore[arg-type]
    assert (await client.wait(1)).id == 1
    assert len(server.requests("WaitMany")) == 3


async def test_a_wait_for_an_unknown_task_fails_alone(
    server: ScriptedServer, client: Client
) -> None:
    """Others on the same stream get their results."""

    async def wait(_request: tasks_pb2.WaitManyRequest) -> AsyncIterator[Any]:
        status = make_status(grpc.StatusCode.NOT_FOUND, "no task 9", "task_unknown")
        error = tasks_pb2.WaitError(task=task_pb2.TaskRef(id=9), status=status)
        yield tasks_pb2.TaskResults(results=[result(1)], errors=[error])

    server.on("WaitMany", wait)  # type: ignore[arg-type]
    known, unknown = await asyncio.gather(
        client.result(1), client.result(9), return_exceptions=True
    )
    assert known == "done"
    assert isinstance(unknown, TaskUnknownError)


async def test_a_wait_has_no_deadline_unless_given(client: Client, results: Results) -> None:
    """A timeout ends one wait, not the others for the same task."""
    long = asyncio.create_task(client.wait(1))
    with pytest.raises(WaitTimeoutError):
        await client.wait(1, timeout=0.01)
    await results.end(result(1))
    assert (await long).id == 1


async def test_a_wait_by_key_finds_the_task_first(
    server: ScriptedServer, client: Client, results: Results
) -> None:
    """Answers of a shared stream carry ids only."""

    async def get(_request: Any) -> task_pb2.TaskInfo:
        return task_pb2.TaskInfo(id=5, status=task_pb2.TASK_STATUS_RUNNING)

    server.on("Get", get)
    await results.end(result(5, b'"by key"'))
    assert await client.result("some-key") == "by key"


async def test_many_results_come_in_order(client: Client, results: Results) -> None:
    """Whatever the order in which they end."""
    await results.end(*(result(n, b"%d" % n) for n in range(1, 101)))
    found = await client.wait_many(range(100, 0, -1))
    assert list(range(100, 0, -1)) == [client.decode(item, int) for item in found]
    with pytest.raises(WaitTimeoutError):
        await client.wait_many([1, 999], timeout=0.01)


async def test_an_old_server_is_waited_for_task_by_task(
    server: ScriptedServer, client: Client
) -> None:
    """It knows no WaitMany, and its slices time out."""
    calls: list[int] = []

    async def wait(request: tasks_pb2.WaitRequest) -> task_pb2.TaskResult:
        calls.append(request.task.id)
        if calls.count(request.task.id) == 1:
            raise Refusal(grpc.StatusCode.DEADLINE_EXCEEDED, "slice")
        return result(request.task.id)

    server.on("Wait", wait)
    assert await asyncio.gather(client.result(1), client.result(2)) == ["done", "done"]
    assert sorted(calls) == [1, 1, 2, 2]


@pytest.mark.parametrize(
    ("status", "word"),
    [
        (task_pb2.TASK_STATUS_FAILED, "failed"),
        (task_pb2.TASK_STATUS_DEAD_LETTERED, "dead_lettered"),
        (task_pb2.TASK_STATUS_CANCELLED, "cancelled"),
        (task_pb2.TASK_STATUS_SKIPPED, "skipped"),
        (task_pb2.TASK_STATUS_MISSED, "missed"),
        (task_pb2.TASK_STATUS_SHED, "shed"),
    ],
)
async def test_the_result_of_a_task_without_success_is_an_error(
    client: Client, results: Results, status: task_pb2.TaskStatus.ValueType, word: str
) -> None:
    """With its status and message."""
    await results.end(task_pb2.TaskResult(id=1, status=status, message="why"))
    with pytest.raises(TaskFailedError, match=f"task 1 {word}: why") as caught:
        await client.result(1)
    assert (caught.value.task_id, caught.value.status) == (1, word)


async def test_an_output_that_is_no_longer_kept_is_an_error(
    client: Client, results: Results
) -> None:
    """Not an empty value."""
    await results.end(task_pb2.TaskResult(id=1, status=task_pb2.TASK_STATUS_SUCCEEDED))
    with pytest.raises(OutputUnavailableError):
        await client.result(1)


async def test_results_are_decoded_into_the_wanted_type(client: Client, results: Results) -> None:
    """Or refused, if they are not of it."""
    await results.end(result(1, b'{"x": 1}'), result(2, b"[1]"))
    assert await client.result(1) == {"x": 1}
    assert await client.result(2, list[int]) == [1]
    assert await client.result(1, bytes) == b'{"x": 1}'
    with pytest.raises(PayloadError):
        await client.result(1, list[int])


# --- other calls ----------------------------------------------------------------------------------


async def test_a_task_is_described(server: ScriptedServer, client: Client) -> None:
    """Every field of the wire has a place."""
    info = task_pb2.TaskInfo(
        id=2**63 + 1,
        status=task_pb2.TASK_STATUS_RETRYING,
        pool="p",
        key="k",
        kind="d",
        attempt=2,
        max_attempts=3,
        created_unix_ns=1_000_000_000,
        message="m",
        tenant="t",
        tags={"a": "b"},
        labels={"gpu": "1"},
        next_run_unix_ns=2_000_000_000,
        progress=task_pb2.Progress(data=b"x", fraction=0.25),
        waiting_for=["resource api"],
        schedule="s",
    )
    attempt = task_pb2.Attempt(number=1, worker="w", started_unix_ns=1, outcome="failed")
    detail = task_pb2.TaskDetail(
        info=info,
        spec=task_pb2.TaskSpec(kind="d", payload=b"1", timeout_s=3),
        attempts=[attempt],
        parents=[task_pb2.Parent(task=task_pb2.TaskRef(key="p"), cond=2, status=6)],
        children=[9],
    )

    async def get(_request: Any) -> task_pb2.TaskInfo:
        return info

    async def describe(_request: Any) -> task_pb2.TaskDetail:
        return detail

    server.on("Get", get)
    server.on("Describe", describe)
    task = await client.get("k")
    assert (task.id, task.status, task.priority) == (
        2**63 + 1,
        TaskStatus.RETRYING,
        Priority.NORMAL,
    )
    assert (task.created_at, task.started_at) == (datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC), None)
    assert task.progress is not None
    assert (task.progress.fraction, list(task.waiting_for)) == (0.25, ["resource api"])
    told = await client.detail(task.id)
    assert (told.task, told.spec.timeout, told.spec.delay) == (task, 3, None)
    assert (told.attempts[0].worker, told.attempts[0].ended_at) == ("w", None)
    assert (told.parents[0].target, told.parents[0].cond) == ("p", EdgeCond.ON_COMPLETE)
    assert list(told.children) == [9]
    assert [request.task.key for request in server.requests("Get")] == ["k"]


async def test_cancel_retry_and_delete_tell_what_they_did(
    server: ScriptedServer, client: Client
) -> None:
    """By id or key."""

    async def cancel(request: tasks_pb2.CancelRequest) -> tasks_pb2.CancelResponse:
        return tasks_pb2.CancelResponse(cancelled=request.task.id == 1)

    async def retry(request: tasks_pb2.RetryRequest) -> tasks_pb2.RetryResponse:
        return tasks_pb2.RetryResponse(retried=request.task.key == "k")

    async def delete(_request: tasks_pb2.DeleteRequest) -> tasks_pb2.DeleteResponse:
        return tasks_pb2.DeleteResponse(deleted=True)

    server.on("Cancel", cancel)
    server.on("Retry", retry)
    server.on("Delete", delete)
    assert [await client.cancel(1), await client.cancel(2)] == [True, False]
    assert [await client.retry("k"), await client.retry(1)] == [True, False]
    assert await client.delete(1)


async def test_bulk_sends_its_filter(server: ScriptedServer, client: Client) -> None:
    """And tells how to go on."""

    async def bulk(_request: Any) -> tasks_pb2.BulkResponse:
        return tasks_pb2.BulkResponse(
            matched=5, changed=3, next_after=9, unavailable_shards=["gpu"]
        )

    server.on("Bulk", bulk)
    wanted = TaskFilter(pools=["p"], statuses=[TaskStatus.READY], tags={"a": "b"}, schedule="s")
    outcome = await client.bulk(BulkAction.CANCEL, wanted, limit=3, after=1, dry_run=True)
    assert (outcome.matched, outcome.changed, outcome.next_after) == (5, 3, 9)
    assert list(outcome.unavailable_shards) == ["gpu"]
    (request,) = server.requests("Bulk")
    expected = tasks_pb2.TaskFilter(pools=["p"], statuses=[3], tags={"a": "b"}, schedule="s")
    assert (request.filter, request.action, request.dry_run) == (expected, 1, True)


async def test_a_listing_reads_pages_until_the_end(server: ScriptedServer, client: Client) -> None:
    """Short and empty pages are no end; missing shards are collected."""
    pages = {
        0: tasks_pb2.ListTasksResponse(tasks=[{"id": 1, "status": 3}], next_after=5),
        5: tasks_pb2.ListTasksResponse(next_after=7, unavailable_shards=["gpu"]),
        7: tasks_pb2.ListTasksResponse(tasks=[{"id": 8, "status": 6}]),
    }

    async def page(request: tasks_pb2.ListTasksRequest) -> tasks_pb2.ListTasksResponse:
        return pages[request.after]

    server.on("ListTasks", page)
    listing = client.list(TaskFilter(kinds=["k"]), page_size=2)
    assert [task.id async for task in listing] == [1, 8]
    assert listing.unavailable_shards == {"gpu"}
    assert [(list(r.kinds), r.limit) for r in server.requests("ListTasks")] == [(["k"], 2)] * 3


async def test_a_call_that_changes_nothing_twice_is_repeated(
    server: ScriptedServer, client: Client
) -> None:
    """Until it gets through."""
    losses = iter([True, True, False])

    async def get(_request: Any) -> task_pb2.TaskInfo:
        if next(losses):
            raise Refusal(UNAVAILABLE, "reset")
        return task_pb2.TaskInfo(id=1, status=task_pb2.TASK_STATUS_READY)

    server.on("Get", get)
    assert (await client.get(1)).id == 1


async def test_a_call_that_may_act_twice_is_not_repeated(
    server: ScriptedServer, client: Client
) -> None:
    """Unless the server says that it did nothing."""
    refusals = iter(
        [
            Refusal(UNAVAILABLE, "standby", reason="not_leader"),
            Refusal(UNAVAILABLE, "reset"),
        ]
    )

    async def retry(_request: Any) -> Any:
        raise next(refusals)

    server.on("Retry", retry)
    with pytest.raises(UnavailableError, match="reset"):
        await client.retry(1)
    assert len(server.requests("Retry")) == 2


async def test_a_refused_connection_is_tried_until_the_deadline(server: ScriptedServer) -> None:
    """Nothing was executed, so any call may be repeated."""
    port = server.port
    await server.stop()
    async with Client(f"127.0.0.1:{port}", backoff=QUICK, deadline=PATIENCE_S) as client:
        with pytest.raises(UnavailableError):
            await client.retry(1, call_deadline=0.05)
        retrying = asyncio.create_task(client.retry(1))

        async def retry(_request: Any) -> tasks_pb2.RetryResponse:
            return tasks_pb2.RetryResponse(retried=True)

        server.on("Retry", retry)
        await server.start(port)
        assert await retrying


async def test_a_call_has_a_deadline(server: ScriptedServer, client: Client) -> None:
    """Also when the server never answers."""
    never = asyncio.Event()

    async def get(_request: Any) -> Any:
        await never.wait()

    server.on("Get", get)
    with pytest.raises(DeadlineError):
        await client.get(1, call_deadline=0.02)
    never.set()


async def test_a_call_that_the_server_does_not_know_is_unsupported(client: Client) -> None:
    """An old server, say."""
    with pytest.raises(UnsupportedError):
        await client.detail(1)


async def test_errors_carry_reason_and_details(server: ScriptedServer, client: Client) -> None:
    """The reason as a class, the rest in details."""

    async def get(_request: Any) -> Any:
        metadata = (("cronoq-shard", "gpu"), ("cronoq-shard-endpoint", "https://gpu:7070"))
        code = grpc.StatusCode.FAILED_PRECONDITION
        raise Refusal(code, "elsewhere", reason="wrong_shard", metadata=metadata)

    server.on("Get", get)
    with pytest.raises(CronoqError, match="elsewhere") as caught:
        await client.get(1)
    assert type(caught.value).__name__ == "WrongShardError"
    assert caught.value.details["cronoq-shard-endpoint"] == "https://gpu:7070"


@pytest.mark.usefixtures("admission")
async def test_the_token_travels_with_every_call(server: ScriptedServer) -> None:
    """As metadata, and never in a repr."""
    token = "a-token-of-some-length"
    async with Client(server.endpoint, token=token) as client:
        await client.submit("echo")
        assert token not in repr(client) + repr(client.options)
    assert server.metadata[0]["authorization"] == f"Bearer {token}"


@pytest.mark.usefixtures("admission")
async def test_a_closed_client_refuses_calls(server: ScriptedServer) -> None:
    """Instead of hanging; closing twice is closing once."""
    client = Client(server.endpoint)
    await client.submit("echo")
    await client.close()
    await client.close()
    with pytest.raises(ClosedError):
        await client.submit("echo")
    with pytest.raises(ClosedError):
        await client.get(1)


# --- watch ----------------------------------------------------------------------------------------


def _event(task_id: int, cursor: bytes = b"") -> task_pb2.StatusEvent:
    status = task_pb2.TASK_STATUS_SUCCEEDED
    return task_pb2.StatusEvent(id=task_id, status=status, at_unix_ns=1, cursor=cursor)


async def _take(events: AsyncIterator[Any], count: int) -> list[int]:
    found = []
    async with asyncio.timeout(PATIENCE_S):
        async for event in events:
            found.append(event.id)
            if len(found) == count:
                return found
    raise AssertionError("the watch ended")


async def test_a_watch_resumes_after_the_last_event_it_gave(
    server: ScriptedServer, client: Client
) -> None:
    """From the event's cursor, or from a later bookmark."""
    streams = iter(
        [
            [tasks_pb2.StatusEvents(events=[_event(1, b"c1"), _event(2, b"c2")])],
            [tasks_pb2.StatusEvents(cursor=b"mark")],
            [tasks_pb2.StatusEvents(events=[_event(3, b"c3")])],
        ]
    )

    async def watch(_request: Any) -> AsyncIterator[Any]:
        for message in next(streams):
            yield message
        raise Refusal(UNAVAILABLE, "reset")

    server.on("WatchBatches", watch)  # type: ignore[arg-type]
    assert await _take(client.watch(pools=["p"], all_transitions=True), 3) == [1, 2, 3]
    requests = server.requests("WatchBatches")
    assert [request.after_cursor for request in requests] == [b"", b"c2", b"mark"]
    assert all(r.bookmarks and r.all_transitions and list(r.pools) == ["p"] for r in requests)


async def test_a_watch_that_was_too_slow_resumes(server: ScriptedServer, client: Client) -> None:
    """It knows where it stands."""
    streams = iter([_event(1, b"c1"), _event(2, b"c2")])

    async def watch(_request: Any) -> AsyncIterator[Any]:
        yield tasks_pb2.StatusEvents(events=[next(streams)])
        raise Refusal(grpc.StatusCode.DATA_LOSS, "slow", reason="watch_too_slow")

    server.on("WatchBatches", watch)  # type: ignore[arg-type]
    assert await _take(client.watch(), 2) == [1, 2]


@pytest.mark.parametrize(
    ("reason", "error"),
    [("watch_too_slow", WatchTooSlowError), ("cursor_unknown", CursorUnknownError)],
)
async def test_a_watch_that_cannot_go_on_says_so(
    server: ScriptedServer, client: Client, reason: str, error: type[CronoqError]
) -> None:
    """Rather than leave a gap unseen."""

    async def watch(_request: Any) -> AsyncIterator[Any]:
        raise Refusal(grpc.StatusCode.DATA_LOSS, "gone", reason=reason)
        yield

    server.on("WatchBatches", watch)  # type: ignore[arg-type]
    with pytest.raises(error):
        await _take(client.watch(), 1)


async def test_an_old_server_is_watched_event_by_event(
    server: ScriptedServer, client: Client
) -> None:
    """It knows no WatchBatches."""

    async def watch(_request: Any) -> AsyncIterator[Any]:
        for number in (1, 2):
            yield _event(number)

    server.on("Watch", watch)  # type: ignore[arg-type]
    assert await _take(client.watch(ids=[1, 2]), 3) == [1, 2, 1]


@pytest.mark.regression("R14")
def test_a_standby_is_asked_again_soon() -> None:
    """However often it says that it does not lead: nothing was executed, and nobody overloaded."""
    delays = BackoffSeries(ClientOptions())
    for error in (NotLeaderError("not the leader"), StoppingError("shutting down")):
        assert max(delays.next_delay(error) for _ in range(100)) <= 0.2
    assert max(delays.next_delay(UnavailableError("gone")) for _ in range(100)) > 0.4
