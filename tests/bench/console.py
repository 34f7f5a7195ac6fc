"""What looking costs: browsers on the console, and `cronoq top`, beside a server that works.

A thousand tasks a second flow through one pool while a hundred thousand wait in another. Windows
without a viewer and with one, with five, and with `top` take turns, so that what else the machine
does falls on all of them alike. The first paint is that of a tab that was opened for it, with the
list of all tasks in it.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

from playwright.async_api import Browser, Page, async_playwright

from cronoq import Client, TaskSpec
from cronoq.cli.app import Session
from cronoq.cli.connection import Target
from cronoq.cli.show import Output
from cronoq.cli.top import Top
from tests.bench.environment import describe, print_result, save
from tests.bench.processes import CONFIG, SERVING, cpu_seconds, started
from tests.bench.worker import WORKING
from tests.console.conftest import SWITCHES, find_browser

FLOWING: Final = "flowing to "
PORTION: Final = 20
TABS: Final = 5
PAGES: Final = ("", "tasks", "tasks?status=failed", "workers", "")
"""What the tabs look at, in turn."""

PATIENCE_MS: Final = 120_000
"""A machine with much else to do is slow to draw."""

ROWS: Final = "main tbody tr"


async def flow(address: str, rate: int) -> None:
    """Submits so many tasks a second until it is ended, a portion at a time."""
    async with Client(address) as client:
        await client.submit(TaskSpec("mark", b"x" * 200))
        print(f"{FLOWING}{address}", flush=True)
        due = time.monotonic()
        while True:
            due = max(due + PORTION / rate, time.monotonic() - 1.0)
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            await client.submit_many([TaskSpec("mark", b"x" * 200)] * PORTION)


async def backlog(address: str, count: int) -> None:
    """Lets so many tasks wait in the pool that nobody works for."""
    async with Client(address) as client:
        for start in range(0, count, 1000):
            some = range(start, min(count, start + 1000))
            await client.submit_many([TaskSpec("mark", b"x", pool="quiet") for _ in some])


class Load:
    """A server with work, and what it spends.

    Attributes:
        grpc: Where it serves gRPC.
        http: Where it serves HTTP.
        pid: Its process.
    """

    def __init__(self, grpc: str, http: str, pid: int) -> None:
        self.grpc = grpc
        self.http = http
        self.pid = pid

    async def window(self, seconds: float) -> tuple[float, float]:
        """Percent of a core that the server uses from now on, and tasks that end a second."""
        done = await self._done()
        spent, begun = cpu_seconds(self.pid), time.perf_counter()
        await asyncio.sleep(seconds)
        passed = time.perf_counter() - begun
        percent = 100 * (cpu_seconds(self.pid) - spent) / passed
        return percent, (await self._done() - done) / passed

    async def _done(self) -> int:
        async with Client(self.grpc) as client:
            return (await client.snapshot()).totals.succeeded


@asynccontextmanager
async def viewers(browser: Browser, load: Load, count: int) -> AsyncIterator[None]:
    """So many tabs, each on a page of its own."""
    async with AsyncExitStack() as stack:
        for number in range(count):
            page = await browser.new_page()
            page.set_default_timeout(PATIENCE_MS)
            stack.push_async_callback(page.close)
            await page.goto(f"http://{load.http}/#/{PAGES[number % len(PAGES)]}")
            await page.locator("main h1").first.wait_for()
        yield


@asynccontextmanager
async def top(load: Load) -> AsyncIterator[None]:
    """The screen of `cronoq top`, without a terminal: it asks and draws all the same."""
    target = Target(endpoint=load.grpc)
    screen = Top(Session(target, Output(as_json=False), 10.0))
    async with screen.run_test(size=(120, 40)):
        yield


async def first_paint(browser: Browser, load: Load) -> tuple[float, float]:
    """Seconds until a fresh tab on the list of tasks shows something, and until it shows tasks."""
    context = await browser.new_context()
    page: Page = await context.new_page()
    page.set_default_timeout(PATIENCE_MS)
    begun = time.perf_counter()
    await page.goto(f"http://{load.http}/#/tasks")
    await page.locator(ROWS).first.wait_for()
    listed = time.perf_counter() - begun
    script = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? NaN"
    painted = float(await page.evaluate(script)) / 1e3
    await context.close()
    return painted, listed


async def measure(load: Load, options: argparse.Namespace) -> dict[str, Any]:
    """Takes turns with and without viewers, and returns medians."""
    found: dict[str, list[tuple[float, float]]] = {"0": [], "1": [], str(TABS): [], "top": []}
    async with async_playwright() as player:
        path = find_browser()
        browser = await player.chromium.launch(executable_path=path, args=SWITCHES)
        for _ in range(options.rounds):
            for tabs in (0, 1, TABS):
                async with viewers(browser, load, tabs):
                    found[str(tabs)].append(await load.window(options.seconds))
            async with top(load):
                found["top"].append(await load.window(options.seconds))
        paints = [await first_paint(browser, load) for _ in range(options.rounds * 2)]
        await browser.close()
    middle = {name: statistics.median(spent for spent, _ in each) for name, each in found.items()}
    rates = {name: statistics.median(rate for _, rate in each) for name, each in found.items()}
    rest = middle["0"]
    return {
        "tasks_per_s": {name: round(rate) for name, rate in rates.items()},
        "server_core_percent": {name: round(value, 1) for name, value in middle.items()},
        "percent_per_tab": round((middle[str(TABS)] - rest) / TABS, 2),
        "percent_of_one_tab": round(middle["1"] - rest, 2),
        "percent_of_top": round(middle["top"] - rest, 2),
        "first_paint_s": round(statistics.median(paint for paint, _ in paints), 3),
        "list_shown_s": round(statistics.median(listed for _, listed in paints), 3),
    }


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as one:
        port: int = one.getsockname()[1]
        return port


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Starts a server with its work, and measures."""
    with tempfile.TemporaryDirectory(prefix="cronoq-bench-") as folder, ExitStack() as stack:
        port = _free_port()
        config = Path(folder, "cronoq.toml")
        config.write_text(re.sub(r'http_addr = ".*"', f'http_addr = "127.0.0.1:{port}"', CONFIG))
        module = ("cronoq_server", "--config", str(config), "--store", options.store)
        pid, grpc = stack.enter_context(started(module, SERVING))
        asyncio.run(backlog(grpc, options.backlog))
        worker = ("tests.bench.worker", grpc, "200", "default")
        stack.enter_context(started(worker, WORKING))
        rate = str(options.rate)
        stack.enter_context(
            started(("tests.bench.console", "--flow", grpc, "--rate", rate), FLOWING)
        )
        return asyncio.run(measure(Load(grpc, f"127.0.0.1:{port}", pid), options))


def main(arguments: Sequence[str]) -> int:
    """Runs the benchmark and prints what it found."""
    parser = argparse.ArgumentParser(prog="./justw bench console", description=__doc__)
    parser.add_argument("--rate", type=int, default=1000, help="tasks a second that flow")
    parser.add_argument("--backlog", type=int, default=100_000, help="tasks that wait")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each window")
    parser.add_argument("--store", default="memory")
    parser.add_argument("--save", action="store_true", help="for the documentation")
    parser.add_argument("--json", action="store_true", help="JSON, also on a terminal")
    parser.add_argument("--flow", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.flow:
        asyncio.run(flow(options.flow, options.rate))
    asked = {name: getattr(options, name) for name in ("store", "rate", "backlog", "seconds")}
    result = {**describe("console"), **asked, **run(options)}
    if options.save:
        save(result, "console")
    print_result(
        result, [(name, str(value)) for name, value in result.items()], as_json=options.json
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
