"""The console shows what is, does what it is told, and lets nobody's text run as code."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from playwright.async_api import expect

from cronoq_server._proto import admin_pb2, task_pb2
from tests.console.conftest import Visit

EVIL = '"><img src=x onerror="window.ran=1"><script>window.ran=1</script>${7*7}'
CONFIG = """
[[pools]]
name = "default"
[[pools]]
name = "llm"
[[resources]]
name = "gpu"
permits = 3
[[resources]]
name = "api"
kind = "token_bucket"
rate = 5.0
burst = 10
"""
TOKENS = """
[[auth.tokens]]
token = "administrators-token-0001"
role = "admin"
name = "ann"
[[auth.tokens]]
token = "client-token-for-pool-llm"
role = "client"
pools = ["llm"]
[[auth.tokens]]
token = "metrics-token-for-charts"
role = "metrics"
"""
PLACES = [
    ("", "Overview"),
    ("tasks", "Tasks"),
    ("schedules?open=evil&pool=default", "Schedules"),
    ("workers", "Workers"),
    ("resources", "Resources"),
    ("servers", "Servers"),
]


async def evil_tasks(visit: Visit) -> dict[str, int]:
    """Tasks whose every text tries to run: one that failed, one that succeeded, one that waits."""
    edge = visit.edge
    fields: dict[str, Any] = {
        "key": EVIL, "kind": EVIL, "tags": {EVIL: EVIL}, "payload": EVIL.encode(),
        "content_type": "text/html", "resources": {"gpu": 1},
        "trace_context": {"traceparent": EVIL},
    }  # fmt: skip
    parent = await edge.submit(**fields)
    child = await edge.submit(
        kind="child",
        payload=EVIL.encode(),
        pool="llm",
        deps=[task_pb2.Dep(target=task_pb2.TaskRef(id=parent))],
    )
    broken = await edge.submit(kind="broken", labels={"zone": EVIL})
    worker = await edge.worker(slots=1, worker_name=EVIL, sdk=EVIL, labels={"zone": EVIL})
    (lease,) = await worker.leases(1)
    await worker.complete(1, lease, output=EVIL.encode())
    (lease,) = await worker.leases(1)
    reports = {"reports": {"number": 2, "reports": [{"fail": {
        "lease": lease.lease, "message": EVIL, "permanent": True}}]}}  # fmt: skip
    await worker.say(**reports)
    await worker.receipt(2)
    template = task_pb2.TaskSpec(kind=EVIL, payload=EVIL.encode())
    await edge.admin.AddRecurring(
        admin_pb2.RecurringRequest(name="evil", cron="30 2 * * *", tz="Europe/Berlin",
                                   template=template)
    )  # fmt: skip
    return {"parent": parent, "child": child, "broken": broken}


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_no_text_runs_and_no_page_has_barriers(
    visit: Callable[..., Any], axe: str, scheme: str
) -> None:
    """Every field that users control is shown as text, on every page, in both themes."""
    tab: Visit = await visit(CONFIG, color_scheme=scheme)
    tasks = await evil_tasks(tab)
    places = [*PLACES, *((f"task/{task_id}", "Task") for task_id in tasks.values())]
    for place, heading in places:
        await tab.go(place, heading)
        if place.startswith("task"):
            await expect(tab.page.locator("main")).to_contain_text("onerror")
        await tab.page.evaluate(axe)
        found = await tab.page.evaluate("axe.run(document, {resultTypes: ['violations']})")
        barriers = [
            (one["id"], one["nodes"][0]["html"])
            for one in found["violations"]
            if one["impact"] in ("serious", "critical")
        ]
        assert not barriers, place
        assert await tab.page.evaluate("window.ran") is None, place
    assert not tab.complaints


async def test_a_task_is_found_by_its_status_and_put_back(visit: Callable[..., Any]) -> None:
    """Filter, open, retry: what an operator does at night."""
    tab: Visit = await visit(CONFIG)
    tasks = await evil_tasks(tab)
    await tab.go("tasks", "Tasks")
    await tab.page.get_by_label("Status").select_option("failed")
    await tab.page.get_by_role("button", name="Search").click()
    rows = tab.page.locator("tbody tr")
    await expect(rows).to_have_count(1)
    await tab.page.get_by_role("link", name=str(tasks["broken"])).click()
    await tab.page.get_by_role("button", name="Retry").click()
    await expect(tab.page.locator("h1 .badge")).to_have_text(re.compile("ready|running"))
    assert await tab.edge.status(tasks["broken"]) in (3, 4)


async def test_what_was_counted_is_all_that_a_bulk_call_changes(visit: Callable[..., Any]) -> None:
    """Whoever looks for something else meanwhile has to have that counted first."""
    tab: Visit = await visit()
    kept = await tab.edge.submit(kind="kept")
    await tab.edge.submit(kind="old")
    await tab.go("tasks?kind=old", "Tasks")
    await tab.page.get_by_role("button", name="Cancel all found").click()
    await expect(tab.page.get_by_text("1 tasks were found")).to_be_visible()
    await tab.page.get_by_role("link", name="Clear").click()
    await expect(tab.page.locator("tbody")).to_contain_text(str(kept))
    await expect(tab.page.get_by_text("tasks were found")).to_be_hidden()
    await expect(tab.page.get_by_role("button", name="Cancel them")).to_have_count(0)


async def test_what_is_asked_about_one_task_is_not_done_to_another(
    visit: Callable[..., Any],
) -> None:
    """The question goes with its page, and so does what the page told of its task."""
    tab: Visit = await visit()
    first, second = [await tab.edge.submit(kind=kind) for kind in ("first", "second")]
    await tab.go(f"task/{first}", str(first))
    await tab.page.evaluate(f"location.hash = '#/task/{second}'")
    await tab.page.get_by_role("heading", name=str(second)).wait_for()
    await tab.page.get_by_role("button", name="Cancel").click()
    await expect(tab.page.get_by_role("dialog")).to_be_visible()
    await tab.page.go_back()
    await tab.page.get_by_role("heading", name=str(first)).wait_for()
    await expect(tab.page.get_by_role("dialog")).to_be_hidden()


async def test_bulk_counts_before_it_changes(visit: Callable[..., Any]) -> None:
    """The number is shown first; nothing changes before it is confirmed."""
    tab: Visit = await visit(CONFIG)
    ids = [await tab.edge.submit(kind="old", pool="llm") for _ in range(7)]
    other = await tab.edge.submit(kind="new", pool="llm")
    await tab.go("tasks?kind=old", "Tasks")
    await tab.page.get_by_role("button", name="Cancel all found").click()
    await expect(tab.page.get_by_role("status")).to_contain_text("7 tasks were found")
    assert {await tab.edge.status(task_id) for task_id in ids} == {3}
    await tab.page.get_by_role("button", name="Cancel them").click()
    await expect(tab.page.get_by_role("status")).to_contain_text("7 tasks cancelled")
    assert {await tab.edge.status(task_id) for task_id in ids} == {9}
    assert await tab.edge.status(other) == 3


async def test_pools_schedules_and_resources_are_worked_with(visit: Callable[..., Any]) -> None:
    """Pause a pool, run a schedule now, resize a semaphore; the server has it each time."""
    tab: Visit = await visit(CONFIG)
    await evil_tasks(tab)
    page, admin = tab.page, tab.edge.admin
    await tab.go("", "Overview")
    row = page.get_by_role("row").filter(has_text="llm")
    await row.get_by_role("button", name="Pause").click()
    await page.get_by_role("dialog").get_by_role("button", name="Pause").click()
    await expect(row).to_contain_text("paused")
    pools = (await admin.ListPools(task_pb2.Empty())).pools
    assert {pool.name: pool.paused for pool in pools} == {"default": False, "llm": True}
    await tab.go("schedules?open=evil&pool=default", "Schedules")
    await expect(page.locator("ol li")).to_have_count(6)
    await page.get_by_role("button", name="Run now").click()
    await page.get_by_role("dialog").get_by_role("button", name="Run now").click()
    await expect(page.get_by_role("link", name="was created")).to_be_visible()
    await tab.go("resources", "Resources")
    await page.get_by_role("row").filter(has_text="gpu").get_by_role("button").first.click()
    await page.get_by_label("permits").fill("5")
    await page.get_by_role("dialog").get_by_role("button", name="Resize").click()
    await expect(page.get_by_role("row").filter(has_text="gpu")).to_contain_text("resized")
    resources = (await admin.ListResources(task_pb2.Empty())).resources
    assert {one.name: one.permits for one in resources}["gpu"] == 5


async def test_a_visitor_logs_in_and_sees_what_the_role_allows(visit: Callable[..., Any]) -> None:
    """A wrong token is refused with a reason; a client finds no operators' pages."""
    tab: Visit = await visit(CONFIG + TOKENS)
    page = tab.page
    await page.goto(f"http://{tab.edge.server.http_address}/")
    await page.get_by_label("Token").fill("no-such-token-anywhere")
    await page.get_by_role("button", name="Log in").click()
    await expect(page.get_by_role("alert")).to_contain_text("no valid credential")
    seen = {}
    for token in (
        "administrators-token-0001", "client-token-for-pool-llm", "metrics-token-for-charts",
    ):  # fmt: skip
        await page.get_by_label("Token").fill(token)
        await page.get_by_role("button", name="Log in").click()
        await page.get_by_role("navigation").wait_for()
        seen[token.split("-")[0]] = (
            await page.get_by_role("navigation").get_by_role("link").all_inner_texts()
        )
        await page.get_by_role("button", name="Log out").click()
        await page.get_by_label("Token").wait_for()
    assert seen["administrators"] == [
        "Overview", "Tasks", "Schedules", "Workers", "Resources", "Servers",
    ]  # fmt: skip
    assert seen["client"] == ["Tasks", "Servers"]
    assert seen["metrics"] == ["Overview", "Schedules", "Workers", "Resources", "Servers"]


async def test_the_keyboard_is_enough(visit: Callable[..., Any]) -> None:
    """`g` and a letter goes to a page, `/` to its first field, Tab first to the content."""
    tab: Visit = await visit(CONFIG)
    await tab.go("", "Overview")
    await tab.page.keyboard.press("g")
    await tab.page.keyboard.press("t")
    await tab.page.get_by_role("heading", name="Tasks").wait_for()
    await tab.page.keyboard.press("/")
    await expect(tab.page.get_by_label("Id", exact=True)).to_be_focused()


async def test_the_files_come_with_a_strict_policy_and_without_a_credential(
    visit: Callable[..., Any],
) -> None:
    """Only this server's own scripts may run; a copy that is still good is not sent again."""
    tab: Visit = await visit(CONFIG + TOKENS)
    base = f"http://{tab.edge.server.http_address}"
    async with httpx.AsyncClient(base_url=base) as client:
        home = await client.get("/")
        policy = home.headers["content-security-policy"]
        assert home.status_code == 200
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        again = await client.get("/", headers={"if-none-match": home.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
        for name in ("main.js", "lib/preact.js", "pages/task.js", "console.css"):
            assert (await client.get(f"/console/{name}")).status_code == 200
        for path in ("/console/../app.py", "/console/%2e%2e/pages.py", "/console/nothing.js"):
            assert (await client.get(path)).status_code in (401, 404)
        for path in ("/console-data/server", "/console-data/history"):
            assert (await client.get(path)).status_code == 401
        ann = {"authorization": "Bearer administrators-token-0001"}
        for after in ("x", "-1", "9" * 30, "9" * 5000):
            wrong = await client.get(f"/console-data/history?after={after}", headers=ann)
            assert wrong.status_code == 400
            assert wrong.json()["error"]["field"] == "after"


async def test_no_page_is_wider_than_a_phone(visit: Callable[..., Any]) -> None:
    """Tables scroll within their frames; nothing else moves sideways."""
    tab: Visit = await visit(CONFIG, viewport={"width": 390, "height": 844})
    tasks = await evil_tasks(tab)
    for place, heading in [*PLACES, (f"task/{tasks['child']}", "Task")]:
        await tab.go(place, heading)
        if place in ("", "resources"):
            await tab.page.locator("tbody tr").first.wait_for()
        width = await tab.page.evaluate("document.documentElement.scrollWidth")
        assert width <= 390, place
