"""HTTP answers for all shards as gRPC does: the same routes, refusals and missing shards."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from cronoq_server.engine.ids import shard_of
from tests.sharding.conftest import POOLS, SHARDS, Cluster
from tests.sharding.test_forwarding import finish_one


@asynccontextmanager
async def web(cluster: Cluster, name: str) -> AsyncIterator[httpx.AsyncClient]:
    """A client of one shard's HTTP."""
    base = f"http://{cluster.servers[name].http_address}"
    async with httpx.AsyncClient(base_url=base, timeout=30) as client:
        yield client


async def submit(client: httpx.AsyncClient, **fields: Any) -> int:
    """Submits a task and returns its id."""
    answer = await client.post("/v1/tasks", json=fields)
    assert answer.status_code == 201, answer.text
    return int(answer.json()["id"])


@pytest.mark.parametrize("name", SHARDS)
async def test_a_task_lives_its_life_over_any_shards_http(cluster: Cluster, name: str) -> None:
    """Submit, look, wait, read, delete, by id and by key."""
    async with web(cluster, name) as client:
        task_id = await submit(client, pool="llm", key="k", payload={"a": 1})
        assert shard_of(task_id) == 2
        await finish_one(cluster, "llm", b"done")
        waited = (await client.get("/v1/task-by-key/wait?key=k")).json()
        assert (waited["id"], waited["status"]) == (str(task_id), "succeeded")
        assert "unavailable_shards" not in waited
        assert (await client.get(f"/v1/tasks/{task_id}/output")).content == b"done"
        detail = (await client.get("/v1/task-by-key/detail?key=k")).json()
        assert detail["spec"]["payload"] == {"a": 1}
        assert (await client.delete(f"/v1/tasks/{task_id}")).json() == {"deleted": True}
        assert (await client.get(f"/v1/tasks/{task_id}")).status_code == 404


@pytest.mark.parametrize("name", ["gpu", "cpu"])
async def test_a_full_queue_refuses_in_the_time_that_was_given(shards: Any, name: str) -> None:
    """At the server of its shard, and at another one: nobody is parked for ever."""
    cluster: Cluster = await shards("[limits]\nmax_pending_total = 1\n")
    async with web(cluster, name) as client:
        await submit(client, pool="llm")
        for path, body in (("tasks", {"pool": "llm"}), ("batches", {"tasks": [{"pool": "llm"}]})):
            answer = await client.post(f"/v1/{path}?timeout_s=0.1", json=body)
            assert answer.status_code == 429, answer.text
            assert answer.json()["error"]["reason"] == "queue_full"


async def test_listings_and_figures_cover_all_shards(cluster: Cluster) -> None:
    """Paged by links; pools, schedules and workers of every shard."""
    async with web(cluster, "web") as client:
        ids = sorted([await submit(client, pool=pool) for pool in POOLS * 2])
        found, url = [], "/v1/tasks?limit=3"
        while url:
            page = await client.get(url)
            found += [int(task["id"]) for task in page.json()["tasks"]]
            url = page.links["next"]["url"] if "next" in page.links else ""
        assert found == ids
        await client.put("/v1/schedules/s", json={"cron": "@daily", "template": {"pool": "llm"}})
        listed = (await client.get("/v1/schedules")).json()
        assert [(one["name"], one["pool"]) for one in listed["schedules"]] == [("s", "llm")]
        snapshot = (await client.get("/v1/snapshot")).json()
        assert [pool["name"] for pool in snapshot["pools"]] == POOLS
        assert snapshot["pending"] == len(ids)


async def test_answers_name_the_missing_shard(cluster: Cluster) -> None:
    """In every body that can miss one; what needs it is refused with 503."""
    async with web(cluster, "cpu") as client:
        kept = await submit(client, pool="site", key="kept")
        lost = await submit(client, pool="llm", key="lost")
        await cluster.stop("gpu")
        await cluster.agree("gpu")
        for path in ("tasks", "snapshot", "pools", "workers", "schedules", "resources"):
            assert (await client.get(f"/v1/{path}")).json()["unavailable_shards"] == ["gpu"], path
        for path in ("", "/detail"):
            told = (await client.get(f"/v1/task-by-key{path}?key=kept")).json()
            assert told["unavailable_shards"] == ["gpu"]
        assert (await client.get(f"/v1/tasks/{kept}")).status_code == 200
        for answer in (
            await client.get(f"/v1/tasks/{lost}"),
            await client.get("/v1/task-by-key?key=nobody"),
            await client.post("/v1/task-by-key/cancel?key=kept"),
            await client.post("/v1/tasks", json={"pool": "llm"}),
        ):
            assert answer.status_code == 503
            assert answer.json()["error"]["reason"] == "shard_unavailable"


async def test_events_of_all_shards_come_in_one_stream(cluster: Cluster) -> None:
    """With cursors that resume in all of them."""

    async def hear(client: httpx.AsyncClient, wanted: set[int], cursor: str) -> str:
        headers = {"last-event-id": cursor} if cursor else {}
        left, last = set(wanted), cursor
        async with client.stream("GET", "/v1/watch", headers=headers) as stream:
            began = not cursor
            async for line in stream.aiter_lines():
                if line.startswith("id: "):
                    last = line[4:]
                    if began and not left:
                        return last
                elif line.startswith("data: ") and line != "data: {}":
                    left.discard(int(json.loads(line[6:])["id"]))
                if not left and last:
                    return last
        raise AssertionError("the stream ended")

    async with web(cluster, "cpu") as client:
        start = await hear(client, set(), "")
        ids = set()
        for pool in ("default", "llm", "site"):
            ids.add(await submit(client, pool=pool))
            await finish_one(cluster, pool, b"")
        cursor = await hear(client, ids, start)
        more = await submit(client, pool="llm")
        await finish_one(cluster, "llm", b"")
        await hear(client, {more}, cursor)


async def test_refusals_lead_to_the_owner(shards: Any) -> None:
    """Over plain http a token may not travel to another host: the caller is told where to go."""
    cluster: Cluster = await shards(
        '[[auth.tokens]]\ntoken = "client-token-for-all-pools"\nrole = "client"\n', "far.test"
    )
    headers = {"authorization": "Bearer client-token-for-all-pools"}
    async with web(cluster, "cpu") as client:
        answer = await client.post("/v1/tasks", json={"pool": "llm"}, headers=headers)
        assert answer.status_code == 409
        details = answer.json()["error"]["details"]
        assert details["shard"] == answer.headers["cronoq-shard"] == "gpu"
        assert details["endpoint"] == answer.headers["cronoq-shard-endpoint"]
        assert details["endpoint"] == cluster.endpoint("gpu")
        page = (await client.get("/v1/tasks", headers=headers)).json()
        assert page["unavailable_shards"] == ["gpu", "web"]
