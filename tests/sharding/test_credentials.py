"""Passing a call on never grants more than its caller's own credential."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc
import pytest

from cronoq_server._proto import task_pb2, tasks_pb2, workers_pb2
from cronoq_server.api.passing import Passing, current
from tests.api.conftest import joining
from tests.sharding.conftest import Cluster, by_id, by_key, get, spec
from tests.sharding.test_forwarding import refused

CREDENTIALS = {
    "all": "client-token-for-all-pools",
    "llm": "client-token-for-pool-llm",
    "default": "client-token-for-pool-default",
    "admin": "administrators-token-0001",
    "worker": "worker-token-for-pool-llm",
}
AUTH = """
[[auth.tokens]]
token = "client-token-for-all-pools"
role = "client"
[[auth.tokens]]
token = "client-token-for-pool-llm"
role = "client"
pools = ["llm"]
[[auth.tokens]]
token = "client-token-for-pool-default"
role = "client"
pools = ["default"]
[[auth.tokens]]
token = "administrators-token-0001"
role = "admin"
[[auth.tokens]]
token = "worker-token-for-pool-llm"
role = "worker"
pools = ["llm"]
"""


def bearer(name: str) -> tuple[tuple[str, str], ...]:
    """The metadata of a caller."""
    return (("authorization", f"Bearer {CREDENTIALS[name]}"),)


@pytest.fixture
async def guarded(shards: Callable[[str], Any]) -> Cluster:
    """Three shards whose callers have tokens."""
    cluster: Cluster = await shards(AUTH)
    return cluster


async def test_the_other_shard_sees_the_callers_own_token(guarded: Cluster) -> None:
    """What the caller may do there is decided there, by the same rules."""
    edge = guarded.edges["cpu"]
    request = tasks_pb2.SubmitRequest(task=spec("llm", key="k"))
    for name in ("all", "llm", "admin"):
        assert (await edge.tasks.Submit(request, metadata=bearer(name))).id
    code, reason, _ = await refused(edge.tasks.Submit(request, metadata=bearer("default")))
    assert (code, reason) == (grpc.StatusCode.PERMISSION_DENIED, "POOL_NOT_ALLOWED")
    code, reason, _ = await refused(edge.tasks.Submit(request, metadata=bearer("worker")))
    assert (code, reason) == (grpc.StatusCode.PERMISSION_DENIED, "ROLE_NOT_ALLOWED")
    code, reason, _ = await refused(edge.tasks.Submit(request))
    assert (code, reason) == (grpc.StatusCode.UNAUTHENTICATED, "UNAUTHENTICATED")


async def test_each_of_many_is_refused_on_its_own(shards: Callable[[str], Any]) -> None:
    """A pool of another shard that is not the caller's costs no task for one that is."""
    token = "client-token-for-two-pools"
    pools = ["mail", "llm"]
    auth = f"[[auth.tokens]]\ntoken = '{token}'\nrole = 'client'\npools = {pools}\n"
    cluster: Cluster = await shards(auth)
    metadata = (("authorization", f"Bearer {token}"),)
    tasks = [spec(pool) for pool in ("default", "mail", "llm", "site", "mail")]
    for edge in cluster.edges.values():
        request = tasks_pb2.SubmitManyRequest(tasks=tasks)
        answer = await edge.tasks.SubmitMany(request, metadata=metadata)
        admitted = [bool(outcome.response.id) for outcome in answer.outcomes]
        assert admitted == [task.pool in pools for task in tasks]


async def test_what_a_caller_may_not_see_is_not_there_wherever_it_is(guarded: Cluster) -> None:
    """Another shard's task is as unknown as one that never was, word for word."""
    edge = guarded.edges["cpu"]
    request = tasks_pb2.SubmitRequest(task=spec("llm", key="secret"))
    hidden = (await edge.tasks.Submit(request, metadata=bearer("all"))).id
    blind = bearer("default")
    answers = []
    for task_id in (hidden, hidden + 1, (7 << 56) + 1):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await edge.tasks.Get(get(by_id(task_id)), metadata=blind)
        answers.append(
            (caught.value.code(), (caught.value.details() or "").replace(str(task_id), "ID"))
        )
        assert "gpu" not in str(caught.value)
    assert len(set(answers)) == 1
    for key in ("secret", "nobody"):
        code, reason, metadata = await refused(edge.tasks.Get(get(by_key(key)), metadata=blind))
        assert (code, reason) == (grpc.StatusCode.NOT_FOUND, "TASK_UNKNOWN")
        assert "cronoq-unavailable-shards" not in metadata


async def test_a_watch_of_what_a_caller_may_not_see_is_refused(guarded: Cluster) -> None:
    """As one of a task that never was, from whichever server; nobody waits for what can't come."""
    request = tasks_pb2.SubmitRequest(task=spec("site"))
    hidden = (await guarded.edges["web"].tasks.Submit(request, metadata=bearer("all"))).id
    for edge in guarded.edges.values():
        for task_id in (hidden, hidden + 1):
            wanted = tasks_pb2.WatchRequest(ids=[task_id])
            stream = edge.tasks.WatchBatches(wanted, metadata=bearer("llm"))
            code, reason, _ = await refused(stream.read())
            assert (code, reason) == (grpc.StatusCode.NOT_FOUND, "TASK_UNKNOWN")


async def test_missing_shards_are_named_only_to_those_who_may_use_them(guarded: Cluster) -> None:
    """Whoever has no pool there misses nothing."""
    edge = guarded.edges["cpu"]
    await guarded.stop("gpu")
    await guarded.agree("gpu")
    for name, missing in (("all", ["gpu"]), ("default", []), ("llm", ["gpu"])):
        request = tasks_pb2.ListTasksRequest()
        page = await edge.tasks.ListTasks(request, metadata=bearer(name))
        assert list(page.unavailable_shards) == missing


async def test_a_snapshot_of_nothing_but_a_missing_shard_is_empty(
    shards: Callable[[str], Any],
) -> None:
    """Whoever may use only the pools of a shard that is down hears that it is missing, no more."""
    token = "metrics-token-for-pool-llm"
    auth = f"[[auth.tokens]]\ntoken = '{token}'\nrole = 'metrics'\npools = ['llm']\n"
    cluster: Cluster = await shards(auth)
    await cluster.stop("gpu")
    await cluster.agree("gpu")
    metadata = (("authorization", f"Bearer {token}"),)
    shown = await cluster.edges["cpu"].admin.Snapshot(task_pb2.Empty(), metadata=metadata)
    assert (list(shown.pools), shown.pending) == ([], 0)
    assert list(shown.unavailable_shards) == ["gpu"]


async def test_a_worker_hears_of_a_shard_only_if_it_may_work_there(guarded: Cluster) -> None:
    """The redirect names the endpoint to its own workers and to nobody else."""
    for name, expected in (("worker", "WRONG_SHARD"), ("all", "ROLE_NOT_ALLOWED")):
        register = workers_pb2.Register(pool="llm", slots=1, protocol_version=4)
        stream = await joining(guarded.edges["cpu"].workers.Work, register, bearer(name))
        _, reason, metadata = await refused(stream.read())
        assert reason == expected
        assert ("cronoq-shard-endpoint" in metadata) == (name == "worker")
    register = workers_pb2.Register(pool="site", slots=1, protocol_version=4)
    stream = await joining(guarded.edges["cpu"].workers.Work, register, bearer("worker"))
    _, reason, metadata = await refused(stream.read())
    assert reason == "POOL_NOT_ALLOWED"
    assert "cronoq-shard" not in metadata


async def test_a_listing_holds_only_what_the_token_may_see(guarded: Cluster) -> None:
    """In its own shard and in every other."""
    edge = guarded.edges["web"]
    for pool in ("default", "llm", "site"):
        request = tasks_pb2.SubmitRequest(task=spec(pool))
        await edge.tasks.Submit(request, metadata=bearer("all"))
    seen = {}
    for name in ("all", "llm", "default"):
        page = await edge.tasks.ListTasks(tasks_pb2.ListTasksRequest(), metadata=bearer(name))
        seen[name] = [info.pool for info in page.tasks]
    assert seen == {"all": ["default", "llm", "site"], "llm": ["llm"], "default": ["default"]}


def test_a_calls_credential_is_never_printed() -> None:
    """Neither by accident in a log nor in a traceback's locals that are shown by repr."""
    baggage = Passing.__new__(Passing)
    baggage.authorization = "Bearer very-secret-token"
    token = current.set(baggage)
    assert "very-secret" not in repr(baggage)
    assert "very-secret" not in repr(token)
    current.reset(token)
