"""Decides what pytest is given: the fixture `cronoq_server`, a real server on a clock of its own.

It is loaded into every pytest session of an environment that has cronoq, so it imports nothing of
it before a test asks for a server.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from cronoq.testing import TestServer

# To start a server on a busy machine; it takes a second at ease.
START_TIMEOUT_S = 300.0


class _Hosted:
    """A test server, looked after by an event loop on a thread of its own.

    So a test may be async, with whichever plugin, or not.
    """

    def __init__(self, args: Sequence[str]) -> None:
        self._args = args
        self._is_settled = threading.Event()
        self._server: TestServer | None = None
        self._failure: Exception | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._end: asyncio.Event | None = None
        self._thread = threading.Thread(target=self._live, name="cronoq-server", daemon=True)

    def start(self) -> TestServer:
        """Returns the server once it serves; raises what kept it from it."""
        self._thread.start()
        if not self._is_settled.wait(START_TIMEOUT_S):
            raise TimeoutError(f"cronoq-server did not serve within {START_TIMEOUT_S:.0f} s")
        if self._server is None:
            raise self._failure or RuntimeError("cronoq-server ended")
        return self._server

    def stop(self) -> None:
        """Ends the server in order and waits for that."""
        if self._loop is not None and self._end is not None:
            self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join()

    def _live(self) -> None:
        try:
            asyncio.run(self._serve())
        except (OSError, RuntimeError) as error:
            self._failure = error
        finally:
            self._is_settled.set()

    async def _serve(self) -> None:
        from cronoq.testing import start_test_server

        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        async with start_test_server(args=self._args) as self._server:
            self._is_settled.set()
            await self._end.wait()


@pytest.fixture(scope="session")
def cronoq_server_args() -> Sequence[str]:
    """More arguments for the servers of `cronoq_server`, such as `--config` and a path; none.

    Define a fixture of this name to give some.
    """
    return ()


@pytest.fixture
def cronoq_server(
    cronoq_server_args: Sequence[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[TestServer]:
    """A server in memory whose clock the test moves, one for each test; see `TestServer`.

    CRONOQ_ENDPOINT names it during the test, so an `App` without an endpoint finds it.
    """
    hosted = _Hosted(cronoq_server_args)
    try:
        server = hosted.start()
    except (FileNotFoundError, RuntimeError) as error:
        pytest.fail(f"cronoq_server: {error}", pytrace=False)
    monkeypatch.setenv("CRONOQ_ENDPOINT", server.endpoint)
    monkeypatch.delenv("CRONOQ_TOKEN", raising=False)
    yield server
    hosted.stop()
