"""What operators get over HTTP: schedules, pools, resources, workers, figures."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from itertools import pairwise
from typing import Any

import httpx
import pytest

from tests.api.conftest import Edge
from tests.api.web import browsing, refused

Serve = Callable[[str], Awaitable[Edge]]

DAY_NS = 86_400 * 10**9
NIGHTLY: dict[str, Any] = {
    "cron": "30 2 * * *",
    "tz": "Europe/Berlin",
    "template": {"kind": "report", "payload": {"of": "day"}, "timeout_s": 60},
}
RESOURCES = """
[[resources]]
name = "api"
permits = 1
[[resources]]
name = "calls"
kind = "token_bucket"
rate = 2.5
burst = 10
"""


async def put(web: httpx.AsyncClient, name: str = "nightly", **fields: Any) -> None:
    """Puts a schedule."""
    answer = await web.put(f"/v1/schedules/{name}", json=NIGHTLY | fields)
    assert (answer.status_code, answer.content) == (204, b""), answer.text


async def test_schedule_is_put_shown_and_removed(web: httpx.AsyncClient) -> None:
    """A schedule shows as it was put, with its next occurrence, until it is removed."""
    await put(web, overlap="queue", catch_up="all", paused=True)
    told = (await web.get("/v1/schedules/nightly")).json()
    assert told["template"] == {
        "kind": "report",
        "pool": "default",
        "payload": {"of": "day"},
        "content_type": "application/json",
        "priority": "normal",
        "on_miss": "run_late",
        "timeout_s": 60.0,
    }
    schedule = told["schedule"]
    assert (schedule["overlap"], schedule["catch_up"], schedule["paused"]) == ("queue", "all", True)
    assert (told["skipped"], told["chain_broken"]) == (0, False)
    listed = (await web.get("/v1/schedules")).json()
    assert listed == {"schedules": [schedule], "unavailable_shards": []}
    await put(web, cron="0 3 * * *")
    assert (await web.get("/v1/schedules/nightly")).json()["schedule"]["cron"] == "0 3 * * *"
    assert (await web.delete("/v1/schedules/nightly")).json() == {"removed": True}
    assert (await web.delete("/v1/schedules/nightly")).json() == {"removed": False}
    answer = await web.get("/v1/schedules/nightly")
    assert refused(answer)[:2] == (404, "schedule_unknown")


async def test_schedule_is_paused_resumed_and_triggered(web: httpx.AsyncClient) -> None:
    """Pausing shows, resuming ends it, and a trigger makes a task of the template."""
    await put(web)
    for verb, paused in (("pause", True), ("resume", False)):
        assert (await web.post(f"/v1/schedules/nightly/{verb}")).status_code == 204
        told = (await web.get("/v1/schedules/nightly?pool=default")).json()
        assert told["schedule"]["paused"] is paused
    answer = await web.post("/v1/schedules/nightly/trigger")
    assert answer.status_code == 201
    task = (await web.get(answer.headers["location"])).json()
    assert (task["id"], task["kind"], task["schedule"]) == (
        answer.json()["task_id"],
        "report",
        "nightly",
    )
    found = (await web.get("/v1/tasks?schedule=nightly")).json()
    assert [one["id"] for one in found["tasks"]] == [task["id"]]
    elsewhere = await web.post("/v1/schedules/nightly/trigger?pool=other")
    assert refused(elsewhere)[:2] == (404, "schedule_unknown")


async def test_occurrences_are_computed(web: httpx.AsyncClient) -> None:
    """The next ones of a schedule and of an expression are the same, a day or so apart."""
    await put(web)
    stored = (await web.get("/v1/schedules/nightly/next?count=3")).json()["at_unix_ns"]
    expression = {"cron": NIGHTLY["cron"], "tz": NIGHTLY["tz"], "count": 3}
    preview = (await web.post("/v1/schedules-preview", json=expression)).json()["at_unix_ns"]
    assert stored == preview
    assert len(stored) == 3
    steps = [int(after) - int(before) for before, after in pairwise(stored)]
    assert all(abs(step - DAY_NS) <= 3600 * 10**9 for step in steps)
    assert len((await web.get("/v1/schedules/nightly/next")).json()["at_unix_ns"]) == 10


async def test_past_occurrences_are_made(web: httpx.AsyncClient) -> None:
    """A dry run counts what a run then makes; a range into the future is refused."""
    await put(web, cron="0 * * * *", tz="UTC")
    hour = 3600 * 10**9
    (following,) = (await web.get("/v1/schedules/nightly/next?count=1")).json()["at_unix_ns"]
    order = {
        "from_unix_ns": str(int(following) - 4 * hour),
        "to_unix_ns": str(int(following) - hour),
    }
    path = "/v1/schedules/nightly/backfill"
    dry = (await web.post(path, json=order | {"dry_run": True})).json()
    assert dry == {"created": 3, "next_unix_ns": None}
    assert (await web.post(path, json=order)).json() == dry
    assert len((await web.get("/v1/tasks?schedule=nightly")).json()["tasks"]) == 3
    ahead = await web.post(path, json=order | {"to_unix_ns": str(int(following) + hour)})
    assert refused(ahead) == (400, "invalid_field", "to_unix_ns")


@pytest.mark.parametrize(
    ("schedule", "reason", "field"),
    [
        ({"cron": "x"}, "cron_invalid", "cron"),
        ({"cron": "0 0 31 4 *"}, "cron_never_fires", "cron"),
        ({"tz": "Mars/Base"}, "zone_unknown", "tz"),
        ({"overlap": "maybe"}, "invalid_field", "overlap"),
        ({"template": {"deps": [{"key": "k"}]}}, "invalid_field", "template.deps"),
        ({"template": {"timeout_s": -1}}, "invalid_field", "template.timeout_s"),
        ({"template": {"payload_base64": "?"}}, "invalid_field", "template.payload_base64"),
        ({"name": "other"}, "invalid_field", "name"),
    ],
)
async def test_wrong_schedule_is_refused(
    web: httpx.AsyncClient, schedule: dict[str, Any], reason: str, field: str
) -> None:
    """What is wrong with a schedule is named as the body has it."""
    answer = await web.put("/v1/schedules/s", json=NIGHTLY | schedule)
    assert refused(answer) == (400, reason, field)


async def test_schedule_must_say_when_and_what(web: httpx.AsyncClient) -> None:
    """Expression and template have no defaults; an empty template is one."""
    for missing in ("cron", "template"):
        body = {name: value for name, value in NIGHTLY.items() if name != missing}
        assert refused(await web.put("/v1/schedules/s", json=body))[2] == missing
    await put(web, template={})
    assert refused(await web.put("/v1/schedules/a%20b", json=NIGHTLY))[2] == "name"
    answer = await web.put("/v1/schedules/s", json=NIGHTLY | {"template": {"pool": "x"}})
    assert refused(answer)[:2] == (404, "pool_unknown")


@pytest.mark.parametrize("count", [100, 101])
async def test_preview_has_a_bound(web: httpx.AsyncClient, count: int) -> None:
    """A hundred occurrences are computed, one more is refused."""
    await put(web)
    answers = [
        await web.get(f"/v1/schedules/nightly/next?count={count}"),
        await web.post("/v1/schedules-preview", json={"cron": "@hourly", "count": count}),
    ]
    for answer in answers:
        if count > 100:
            assert refused(answer) == (400, "invalid_field", "count")
        else:
            assert len(answer.json()["at_unix_ns"]) == count


async def test_paused_pool_starts_nothing(edge: Edge, web: httpx.AsyncClient) -> None:
    """A paused pool keeps its tasks, shows that it is paused, and goes on when resumed."""
    assert (await web.post("/v1/pools/default/pause")).status_code == 204
    task_id = await edge.submit(priority=2)
    worker = await edge.worker(labels={"gpu": "a"})
    (pool,) = (await web.get("/v1/pools")).json()["pools"]
    assert (pool["name"], pool["paused"], pool["capacity"], pool["busy"]) == ("default", True, 1, 0)
    assert pool["pending_by_class"] == {"critical": 0, "high": 1, "normal": 0, "low": 0}
    assert pool["groups"] == [{"labels": {"gpu": "a"}, "capacity": 1, "busy": 0}]
    assert (await web.post("/v1/pools/default/resume")).status_code == 204
    assert (await worker.leases(1))[0].task_id == task_id
    await worker.close()
    assert refused(await web.post("/v1/pools/x/pause"))[:2] == (404, "pool_unknown")


async def test_resources_are_shown_and_resized(serve: Serve) -> None:
    """What is held shows; a figure that is given changes, others stay."""
    edge = await serve(RESOURCES)
    async with browsing(edge) as web:
        shown = {one["name"]: one for one in (await web.get("/v1/resources")).json()["resources"]}
        assert (shown["api"]["kind"], shown["api"]["permits"]) == ("semaphore", 1)
        assert (shown["calls"]["rate"], shown["calls"]["burst"]) == (2.5, 10)
        resized = (await web.put("/v1/resources/api", json={"permits": 3})).json()
        assert (resized["permits"], resized["overridden"]) == (3, True)
        resized = (await web.put("/v1/resources/calls", json={"rate": 0.5})).json()
        assert (resized["rate"], resized["burst"]) == (0.5, 10)
        answer = await web.put("/v1/resources/none", json={"permits": 1})
        assert refused(answer)[:2] == (404, "resource_not_found")
        for wrong, field in (({"rate": 0}, "rate"), ({"burst": 0}, "burst"), ({"x": 1}, "x")):
            assert refused(await web.put("/v1/resources/calls", json=wrong))[2] == field


async def test_workers_and_figures_are_shown(edge: Edge, web: httpx.AsyncClient) -> None:
    """A connected worker is listed; the snapshot counts tasks, workers and resources."""
    worker = await edge.worker(worker_name="w", kinds=["a", "b"], sdk="test 1", slots=2)
    await edge.submit(kind="a")
    await worker.leases(1)
    (shown,) = (await web.get("/v1/workers")).json()["workers"]
    assert (shown["name"], shown["kinds"], shown["slots"], shown["busy"], shown["sdk"]) == (
        "w",
        ["a", "b"],
        2,
        1,
        "test 1",
    )
    assert shown["id"] == str(worker.registered.worker_id)
    snapshot = (await web.get("/v1/snapshot")).json()
    assert (snapshot["live_tasks"], snapshot["running"], snapshot["pending"]) == (1, 1, 0)
    assert snapshot["totals"]["submitted"] == 1
    assert (snapshot["resources"], snapshot["unavailable_shards"]) == ([], [])
    await worker.close()


async def test_figures_for_prometheus(web: httpx.AsyncClient) -> None:
    """A scrape has the format that was asked for."""
    answer = await web.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    assert "cronoq_leader 1.0" in answer.text
    answer = await web.get("/metrics", headers={"accept": "application/openmetrics-text"})
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
