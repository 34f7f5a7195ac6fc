"""A server with a console, a browser that looks at it, and what the pages are held against."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, Page, async_playwright

from tests.api.conftest import Edge, serving

HERE = Path(__file__).parent
CACHE = Path(os.environ.get("CRONOQ_CACHE") or Path.home() / ".cache/cronoq")
SWITCHES = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def find_browser() -> str:
    """The system's Chromium; installed from Debian's packages if this may be done."""
    names = ("chromium", "chromium-browser", "google-chrome")
    for attempt in range(2):
        for name in names:
            found = shutil.which(name)
            if found is not None:
                return found
        if attempt == 0 and os.geteuid() == 0 and shutil.which("apt-get"):
            for command in (["apt-get", "update"], ["apt-get", "install", "-y", "chromium"]):
                subprocess.run(command, check=True, capture_output=True, timeout=600)
    raise RuntimeError(f"the tests of the console need Chromium: install one of {names}")


def find_axe() -> str:
    """The source of axe-core, as the lock file names it."""
    folder = CACHE / "console-tests"
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("package.json", "package-lock.json", ".npmrc"):
        shutil.copy(HERE / name, folder / name)
    source = folder / "node_modules/axe-core/axe.min.js"
    if not source.exists():
        command = ["npm", "ci", "--no-audit", "--no-fund"]
        subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=600)
    return source.read_text()


@pytest.fixture(scope="session")
def browser_path() -> str:
    """Where the browser is."""
    return find_browser()


@pytest.fixture(scope="session")
def axe() -> str:
    """What finds barriers in a page."""
    return find_axe()


@pytest.fixture
async def browser(browser_path: str) -> AsyncIterator[Browser]:
    """A browser without a window."""
    async with async_playwright() as player:
        browser = await player.chromium.launch(executable_path=browser_path, args=SWITCHES)
        yield browser
        await browser.close()


class Visit:
    """One visitor's tab.

    Attributes:
        page: The tab.
        edge: The server that it looks at.
        complaints: What the browser had to say about the pages; empty is well.
    """

    def __init__(self, page: Page, edge: Edge) -> None:
        self.page = page
        self.edge = edge
        self.complaints: list[str] = []
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("console", self._said)

    def _said(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)

    async def go(self, place: str, heading: str) -> None:
        """Goes to a page and waits for its heading."""
        await self.page.goto(f"http://{self.edge.server.http_address}/#/{place}")
        await self.page.get_by_role("heading", name=heading, exact=False).first.wait_for()


@pytest.fixture
async def visit(browser: Browser) -> AsyncIterator[Callable[..., Any]]:
    """Opens a tab on a server with this configuration."""
    async with AsyncExitStack() as stack:

        async def open_tab(text: str = "", **options: Any) -> Visit:
            edge = await stack.enter_async_context(serving(text))
            # Nothing fades: a contrast that is measured halfway through is neither colour's.
            page = await browser.new_page(reduced_motion="reduce", **options)
            stack.push_async_callback(page.close)
            return Visit(page, edge)

        yield open_tab
