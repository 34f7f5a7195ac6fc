"""Calls reach the shard that they concern, whichever server they are made to."""

from __future__ import annotations

import contextlib
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from cronoq_server._proto import admin_pb2, task_pb2, tasks_pb2, workers_pb2
from cronoq_server.engine.ids import shard_of
from tests.sharding.conftest import SHARDS, Cluster, by_id, by_key, get, spec

EVERYWHERE = [(server, pool) for server in SHARDS for pool in ("default", "llm", "site")]
OWNERS = {pool: number for number, pools in SHARDS.values() for pool in pools}
SUCCEEDED = task_pb2.TaskStatus.TASK_STATUS_SUCCEEDED
CANCELLED = task_pb2.TaskStatus.TASK_STATUS_CANCELLED


async def refused(call: Any) -> tuple[grpc.StatusCode, str, dict[str, str]]:
    """The status, reason and metadata that a call is refused with."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    error = caught.value
    status = rpc_status.from_call(error)
    info = error_details_pb2.ErrorInfo()
    status.details[0].Unpack(info)
    metadata = {key: value for key, value in error.trailing_metadata() if isinstance(value, str)}
    return error.code(), info.reason, metadata


async def finish_one(cluster: Cluster, pool: str, output: bytes) -> None:
    """Runs one task of a pool, at the shard of that pool."""
    (home,) = [name for name, (_, pools) in SHARDS.items() if pool in pools]
    worker = await cluster.edges[home].worker(pool=pool)
    (lease,) = await worker.leases(1)
    await worker.complete(1, lease, output=output)
    await worker.receipt(1)
    await worker.close()


@pytest.mark.parametrize(("server", "pool"), EVERYWHERE)
async def test_a_task_lives_its_life_through_any_server(
    cluster: Cluster, server: str, pool: str
) -> None:
    """Submit, look, wait, read, retry and delete from a server that may not own it."""
    edge = cluster.edges[server]
    request = tasks_pb2.SubmitRequest(task=spec(pool, key="k", payload=b"p", tags={"a": "b"}))
    first = await edge.tasks.Submit(request)
    again = await edge.tasks.Submit(request)
    assert shard_of(first.id) == OWNERS[pool]
    assert (again.id, again.duplicate) == (first.id, True)
    await finish_one(cluster, pool, b"done")
    info = await edge.tasks.Get(get(by_id(first.id)))
    assert (info.status, info.pool, info.key, dict(info.tags)) == (SUCCEEDED, pool, "k", {"a": "b"})
    result = await edge.tasks.Wait(tasks_pb2.WaitRequest(task=by_key("k")))
    assert (result.id, result.output) == (first.id, b"done")
    detail = await edge.tasks.Describe(get(by_key("k")))
    assert detail.spec.payload == b"p"
    assert detail.spec.pool == pool
    deleted = await edge.tasks.Delete(tasks_pb2.DeleteRequest(task=by_id(first.id)))
    assert deleted.deleted
    code, reason, _ = await refused(edge.tasks.Get(get(by_id(first.id))))
    assert (code, reason) == (grpc.StatusCode.NOT_FOUND, "TASK_UNKNOWN")


async def test_what_is_told_of_a_task_does_not_depend_on_the_server(cluster: Cluster) -> None:
    """Byte for byte: the answer that was passed on is the owner's."""
    task = spec(
        "llm",
        kind="k",
        key="key",
        payload=bytes(range(256)),
        priority=1,
        tags={"x": "ä", "y": ""},
        labels={"zone": "a"},
        tenant="t",
        timeout_s=2.5,
        delay_s=3600.0,
        on_miss=task_pb2.MissPolicy.MISS_POLICY_RUN_LATE,
        retry=task_pb2.RetryPolicy(
            max_attempts=7, initial_backoff_s=0.5, multiplier=2.0, max_backoff_s=9.0, jitter=True
        ),
        trace_context={"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"},
    )
    answer = await cluster.edges["cpu"].tasks.Submit(tasks_pb2.SubmitRequest(task=task))
    told = [await cluster.edges[name].tasks.Describe(get(by_id(answer.id))) for name in SHARDS]
    assert told[0] == told[1] == told[2]
    assert told[0].spec == task


async def test_batches_stay_whole_and_many_are_split(cluster: Cluster) -> None:
    """A batch is one shard's; tasks that stand on their own go each to theirs, in their order."""
    edge = cluster.edges["cpu"]
    batch = tasks_pb2.SubmitBatchRequest(tasks=[spec("llm"), spec("llm")])
    ids = [member.id for member in (await edge.tasks.SubmitBatch(batch)).tasks]
    assert [shard_of(task_id) for task_id in ids] == [2, 2]
    mixed = tasks_pb2.SubmitBatchRequest(tasks=[spec("llm"), spec("default")])
    code, reason, _ = await refused(edge.tasks.SubmitBatch(mixed))
    assert (code, reason) == (grpc.StatusCode.INVALID_ARGUMENT, "CROSS_SHARD_BATCH")
    pools = ["site", "default", "llm", "nowhere", "default", "llm"]
    many = tasks_pb2.SubmitManyRequest(tasks=[spec(pool) for pool in pools])
    outcomes = (await edge.tasks.SubmitMany(many)).outcomes
    assert [shard_of(one.response.id) for one in outcomes] == [200, 1, 2, 0, 1, 2]
    assert outcomes[3].error.code == grpc.StatusCode.NOT_FOUND.value[0]


@pytest.mark.parametrize("server", ["gpu", "cpu"])
async def test_a_wait_that_its_caller_gives_up_is_no_lost_shard(
    cluster: Cluster, server: str
) -> None:
    """The caller's own deadline ends it, whichever server is asked; nothing is out of reach."""
    edge = cluster.edges[server]
    task_id = await edge.submit(pool="llm")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await edge.tasks.Wait(tasks_pb2.WaitRequest(task=by_id(task_id)), timeout=1)
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    stream = edge.tasks.WaitMany(tasks_pb2.WaitManyRequest(ids=[task_id]), timeout=1)
    with contextlib.suppress(grpc.aio.AioRpcError):
        async for message in stream:
            assert [error.status.code for error in message.errors] == [4]
    assert await stream.code() in (grpc.StatusCode.OK, grpc.StatusCode.DEADLINE_EXCEEDED)


async def test_tasks_depend_on_their_own_shard_alone(cluster: Cluster) -> None:
    """Another shard's task or resource can't be waited for, whichever server is asked."""
    parent = await cluster.edges["gpu"].submit(pool="llm")
    child = spec("default", deps=[task_pb2.Dep(target=by_id(parent))])
    for edge in cluster.edges.values():
        call = edge.tasks.Submit(tasks_pb2.SubmitRequest(task=child))
        code, reason, _ = await refused(call)
        assert (code, reason) == (grpc.StatusCode.INVALID_ARGUMENT, "CROSS_SHARD_DEPENDENCY")
    own = spec("llm", deps=[task_pb2.Dep(target=by_id(parent))])
    assert (await cluster.edges["cpu"].tasks.Submit(tasks_pb2.SubmitRequest(task=own))).id


async def test_a_key_in_two_shards_is_refused(cluster: Cluster) -> None:
    """Reads and changes alike: only the id says which task is meant."""
    for pool in ("default", "llm"):
        await cluster.edges["web"].submit(pool=pool, key="twice")
    for edge in cluster.edges.values():
        for call in (
            edge.tasks.Get(get(by_key("twice"))),
            edge.tasks.Cancel(tasks_pb2.CancelRequest(task=by_key("twice"))),
            edge.tasks.Wait(tasks_pb2.WaitRequest(task=by_key("twice"))),
        ):
            code, reason, _ = await refused(call)
            assert (code, reason) == (grpc.StatusCode.FAILED_PRECONDITION, "KEY_AMBIGUOUS")


async def test_cancelling_by_key_finds_the_task_in_any_shard(cluster: Cluster) -> None:
    """And an unknown key is unknown everywhere."""
    await cluster.edges["cpu"].submit(pool="site", key="there")
    cancel = tasks_pb2.CancelRequest(task=by_key("there"))
    assert (await cluster.edges["gpu"].tasks.Cancel(cancel)).cancelled
    info = await cluster.edges["cpu"].tasks.Get(get(by_key("there")))
    assert info.status == CANCELLED
    nobody = tasks_pb2.CancelRequest(task=by_key("nobody"))
    code, reason, _ = await refused(cluster.edges["gpu"].tasks.Cancel(nobody))
    assert (code, reason) == (grpc.StatusCode.NOT_FOUND, "TASK_UNKNOWN")


async def test_a_call_that_claims_to_be_forwarded_is_not_passed_on(cluster: Cluster) -> None:
    """Forging the mark gains nothing but a refusal with directions."""
    mark = (("cronoq-forwarded", "web"),)
    request = tasks_pb2.SubmitRequest(task=spec("llm"))
    code, reason, metadata = await refused(
        cluster.edges["cpu"].tasks.Submit(request, metadata=mark)
    )
    assert (code, reason) == (grpc.StatusCode.FAILED_PRECONDITION, "WRONG_SHARD")
    assert metadata["cronoq-shard"] == "gpu"
    assert metadata["cronoq-shard-endpoint"] == cluster.endpoint("gpu")


async def test_a_worker_is_sent_to_the_shard_of_its_pool(cluster: Cluster) -> None:
    """The refusal names shard and endpoint in its metadata."""
    stream = cluster.edges["cpu"].workers.Work()
    register = workers_pb2.Register(pool="llm", slots=1, protocol_version=4)
    await stream.write(workers_pb2.WorkerMessage(register=register))
    code, reason, metadata = await refused(stream.read())
    assert (code, reason) == (grpc.StatusCode.FAILED_PRECONDITION, "WRONG_SHARD")
    assert metadata["cronoq-shard"] == "gpu"
    assert metadata["cronoq-shard-endpoint"] == cluster.endpoint("gpu")


async def test_schedules_go_to_the_shard_of_their_pool(cluster: Cluster) -> None:
    """Put, shown, paused, triggered, previewed and removed through a server that owns none."""
    edge = cluster.edges["web"]
    put = admin_pb2.RecurringRequest(name="s", cron="0 3 * * *", template=spec("llm", kind="x"))
    await edge.admin.AddRecurring(put)
    detail = await edge.admin.GetRecurring(admin_pb2.GetRecurringRequest(name="s"))
    assert (detail.info.pool, detail.spec.template.kind) == ("llm", "x")
    await edge.admin.PauseRecurring(admin_pb2.PauseRecurringRequest(name="s", paused=True))
    assert (await edge.admin.GetRecurring(admin_pb2.GetRecurringRequest(name="s"))).info.paused
    made = await edge.admin.TriggerRecurring(admin_pb2.TriggerRecurringRequest(name="s"))
    assert shard_of(made.task_id) == 2
    preview = await edge.admin.PreviewRecurring(
        admin_pb2.PreviewRecurringRequest(name="s", count=3)
    )
    assert len(preview.at_unix_ns) == 3
    listed = await edge.admin.ListRecurring(task_pb2.Empty())
    assert [info.name for info in listed.schedules] == ["s"]
    removed = await edge.admin.RemoveRecurring(admin_pb2.RemoveRecurringRequest(name="s"))
    assert removed.removed


async def test_a_task_with_as_many_tags_as_may_be_is_told_by_every_server(
    cluster: Cluster,
) -> None:
    """A schedule adds tags of its own to those that its template has."""
    template = spec("llm", tags={f"tag-{number}": "x" for number in range(32)})
    request = admin_pb2.RecurringRequest(name="full", cron="@yearly", template=template)
    await cluster.edges["cpu"].admin.AddRecurring(request)
    trigger = admin_pb2.TriggerRecurringRequest(name="full")
    task_id = (await cluster.edges["cpu"].admin.TriggerRecurring(trigger)).task_id
    told = [await edge.tasks.Describe(get(by_id(task_id))) for edge in cluster.edges.values()]
    assert told == [told[0]] * len(told)
    assert len(told[0].spec.tags) > 32


async def test_a_schedule_name_in_two_shards_needs_its_pool(cluster: Cluster) -> None:
    """Names are unique within a shard; with the pool it is clear which one is meant."""
    edge = cluster.edges["web"]
    for pool in ("default", "llm"):
        put = admin_pb2.RecurringRequest(name="s", cron="0 3 * * *", template=spec(pool))
        await edge.admin.AddRecurring(put)
    code, reason, _ = await refused(
        edge.admin.GetRecurring(admin_pb2.GetRecurringRequest(name="s"))
    )
    assert (code, reason) == (grpc.StatusCode.FAILED_PRECONDITION, "KEY_AMBIGUOUS")
    found = await edge.admin.GetRecurring(admin_pb2.GetRecurringRequest(name="s", pool="llm"))
    assert found.info.pool == "llm"
    await edge.admin.RemoveRecurring(admin_pb2.RemoveRecurringRequest(name="s", pool="llm"))
    left = await edge.admin.GetRecurring(admin_pb2.GetRecurringRequest(name="s"))
    assert left.info.pool == "default"


async def test_pools_are_paused_where_they_run(cluster: Cluster) -> None:
    """And the listing shows it, whichever server is asked."""
    await cluster.edges["web"].admin.PausePool(admin_pb2.PausePoolRequest(pool="llm"))
    listed = await cluster.edges["cpu"].admin.ListPools(task_pb2.Empty())
    assert {pool.name: pool.paused for pool in listed.pools} == {
        "default": False, "mail": False, "llm": True, "site": False,
    }  # fmt: skip
