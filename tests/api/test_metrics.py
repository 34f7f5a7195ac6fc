"""The metrics tell what the leader does, in a form that Prometheus reads."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any

import grpc
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_open
from prometheus_client.parser import text_string_to_metric_families as parse

from cronoq_server.api.metrics import FAMILIES, Metrics
from cronoq_server.runtime.refusals import NOT_LEADER, Refused
from cronoq_server.stores import StoreSettings, open_store
from cronoq_server.testing.faults import FaultyStore
from tests.api.conftest import serving
from tests.api.web import until

CONFIG = """
[[pools]]
name = "default"
[[pools]]
name = "llm"
[[resources]]
name = "gpu"
kind = "semaphore"
permits = 3
[[resources]]
name = "api"
kind = "token_bucket"
rate = 5.0
burst = 10
[[resources]]
name = "user"
kind = "semaphore"
permits = 1
per_value = true
"""


async def scrape(metrics: Metrics) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """One scrape as a map from sample name and labels to value."""
    content_type, body = await metrics.render()
    assert content_type.startswith("text/plain")
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in parse(body.decode())
        for sample in family.samples
    }


async def test_a_scrape_follows_tasks_through_their_lives(serve: Callable[[str], Any]) -> None:
    """Pending, running, finished and their times are counted where they happen."""
    edge = await serve(CONFIG)
    metrics = edge.server.metrics
    for kind in ("a", "b", "c"):
        await edge.submit(kind=kind, pool="llm", priority=2, resources={"gpu": 1})
    worker = await edge.worker(pool="llm", slots=2)
    first, second = await worker.leases(2)
    before = await scrape(metrics)
    llm = ("pool", "llm")
    assert before["cronoq_tasks_pending", (llm, ("priority", "high"))] == 1
    assert before["cronoq_tasks_running", ()] == 2
    assert before["cronoq_slots", (llm,)] == before["cronoq_slots_busy", (llm,)] == 2
    assert before["cronoq_tasks_dispatched_total", (llm,)] == 2
    assert before["cronoq_queue_wait_seconds_count", (llm,)] == 2
    assert before["cronoq_resource_held", (("resource", "gpu"),)] == 2
    assert before["cronoq_resource_tokens", (("resource", "api"),)] == 10
    assert before["cronoq_leader", ()] == before["cronoq_store_up", ()] == 1
    assert before["cronoq_epoch", ()] >= 1
    await worker.complete(1, first, second)
    await worker.leases(1)  # goes out with the commit that holds both ends
    fresh = Metrics(
        "1.2.3", edge.server.leader, lambda: True
    )  # shares no reading with the one above
    after = await scrape(fresh)
    assert after["cronoq_tasks_finished_total", (("status", "succeeded"),)] == 2
    assert after["cronoq_run_seconds_count", (llm,)] == 2
    assert after["cronoq_commit_seconds_count", ()] >= 3
    assert after["cronoq_commit_mutations_sum", ()] >= 6


async def test_every_family_is_told_and_none_that_is_not_described(
    serve: Callable[[str], Any],
) -> None:
    """The list of families and a leader's scrape agree, name for name and label for label."""
    edge = await serve(CONFIG)
    _, body = await edge.server.metrics.render()
    told = {f.name: f for f in parse(body.decode()) if f.name.startswith("cronoq_")}
    assert set(told) == {f"cronoq_{family.name}" for family in FAMILIES}
    for family in FAMILIES:
        found = told[f"cronoq_{family.name}"]
        assert found.type == family.kind, family.name
        for sample in found.samples:
            assert set(sample.labels) - {"le"} == set(family.labels), family.name


async def test_names_keep_to_the_conventions_of_prometheus(serve: Callable[[str], Any]) -> None:
    """Base units, no unit in the middle, `_total` on counters alone, a help text for each."""
    edge = await serve(CONFIG)
    content_type, body = await edge.server.metrics.render("application/openmetrics-text")
    assert content_type.startswith("application/openmetrics-text")
    families: list[Any] = list(parse_open(body.decode()))  # type: ignore[no-untyped-call]
    for family in families:
        if not family.name.startswith("cronoq_"):
            continue
        assert re.fullmatch(r"cronoq_[a-z]+(_[a-z]+)*", family.name)
        assert family.documentation.endswith("."), family.name
        assert not re.search(r"_(ms|millis|milliseconds|minutes|percent|total|count)$", family.name)
        if family.type == "histogram":
            check_buckets(family)


def check_buckets(family: Any) -> None:
    """Buckets rise, and the last one holds everything."""
    for labels in {
        tuple(sorted((k, v) for k, v in s.labels.items() if k != "le")) for s in family.samples
    }:
        own = [s for s in family.samples if set(labels) <= set(s.labels.items())]
        counts = [s.value for s in own if s.name.endswith("_bucket")]
        assert counts == sorted(counts)
        assert counts[-1] == next(s.value for s in own if s.name.endswith("_count"))


async def test_scrapes_within_a_second_share_one_reading(serve: Callable[[str], Any]) -> None:
    """Asking often makes no work: the second scrape shows what the first one read."""
    edge = await serve("")
    first = await scrape(edge.server.metrics)
    await edge.submit()
    second = await scrape(edge.server.metrics)
    name = ("cronoq_tasks_submitted_total", ())
    assert first[name] == second[name] == 0


async def test_a_leader_whose_store_does_not_answer_says_so() -> None:
    """That is when somebody looks; what only the engine knows is left out meanwhile."""
    store = FaultyStore(open_store(StoreSettings()))
    text = "[limits]\nrequest_timeout_s = 2\n[store]\ncommit_timeout_s = 0.5\n"
    async with serving(text, store=store) as edge:
        store.hold()
        lost = asyncio.ensure_future(edge.submit())
        told = await scrape(edge.server.metrics)  # begun before anybody knows of it
        assert ("cronoq_store_up", ()) in told
        with pytest.raises(grpc.aio.AioRpcError):
            await lost
        told = await scrape(edge.server.metrics)
        assert (told["cronoq_leader", ()], told["cronoq_store_up", ()]) == (0, 0)
        assert ("cronoq_tasks_running", ()) not in told
        store.let_go()
        await until(lambda: edge.server.leader().ready and edge.server.leader().store_answers)
        told = await scrape(edge.server.metrics)
        assert (told["cronoq_leader", ()], told["cronoq_store_up", ()]) == (1, 1)
        assert ("cronoq_tasks_running", ()) in told


async def test_a_standby_says_that_it_does_not_lead() -> None:
    """Without a leader there is still an answer, and it claims nothing about tasks."""

    def nobody() -> Any:
        raise Refused(NOT_LEADER)

    told = await scrape(Metrics("1.2.3", nobody, lambda: False))
    names = {name for name, _ in told if name.startswith("cronoq_")}
    assert names == {"cronoq_info", "cronoq_leader"}
    assert told["cronoq_leader", ()] == 0


async def test_what_callers_choose_never_becomes_a_label(serve: Callable[[str], Any]) -> None:
    """Counters made by first use have no series of their own: a caller could make any number."""
    edge = await serve(CONFIG)
    for user in ("ann", "bob"):
        await edge.submit(resources={f"user:{user}": 1}, key=f"key-{user}", tenant=user)
    _, body = await edge.server.metrics.render()
    assert b"ann" not in body
    assert b"bob" not in body
