"""Holds apps to their promises against a real server: submit, run, schedule, live in a web app."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import fastapi
import httpx
import pytest

from cronoq import (
    App,
    AppHandle,
    Attempt,
    Cron,
    RetryPolicy,
    TaskFailedError,
    TaskStatus,
    ZlibTransform,
)

if TYPE_CHECKING:
    from cronoq.testing import TestServer

pytest_plugins = ["pytest_cronoq"]

POOLS = '[[pools]]\nname = "default"\n[[pools]]\nname = "mail"\n'


@pytest.fixture(scope="session")
def cronoq_server_args(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Servers with two pools."""
    config = tmp_path_factory.mktemp("config") / "cronoq.toml"
    config.write_text(POOLS, encoding="utf-8")
    return ["--config", str(config)]


def _app(slots: int = 1) -> App:
    app = App(slots=slots, transforms=[ZlibTransform(min_bytes=100)])

    @app.task
    async def square(number: int) -> int:
        return number * number

    @app.task(pool="mail", retry=RetryPolicy(max_attempts=2, initial_backoff=0.01, jitter=False))
    def send(to: str, attempt: Attempt | None = None) -> str:
        if to == "nobody":
            raise ValueError("no such address")
        return f"to {to} in {attempt.pool if attempt else 'none'}"

    return app


async def test_calls_run_in_their_pools_and_return_what_functions_return(
    cronoq_server: TestServer,
) -> None:
    """One worker for each pool, sync and async functions, compressed arguments."""
    app = _app(slots=4)
    async with app.running(worker=True):
        square, send = app.tasks["square"], app.tasks["send"]
        handle = await app.submit(square, 12)
        assert await handle.result() == 144
        long = await app.submit(send, to="ann" * 1000)
        assert await long.result() == f"to {'ann' * 1000} in mail"
        assert "transform=zlib" in (await app.client.detail(long.id)).spec.content_type
        answers = await app.submit_many(square.spec(n) for n in range(20))
        results = [await each.result() for each in answers if isinstance(each, AppHandle)]
        assert results == [n * n for n in range(20)]
        first, second = await app.submit_batch(
            [square.options(key="a").spec(2), square.options(deps=["a"]).spec(3)]
        )
        assert (await first.result(), await second.result()) == (4, 9)
    assert cronoq_server.endpoint == app.endpoint


async def test_a_call_that_fails_is_tried_again_and_then_tells_why(
    cronoq_server: TestServer,
) -> None:
    """With as many attempts as the decorator says."""
    app = _app()
    async with app.running(worker=True):
        handle = await app.tasks["send"].submit("nobody")
        while (await app.client.get(handle.id)).status is not TaskStatus.RETRYING:
            await cronoq_server.settle()
        await cronoq_server.advance(1)
        with pytest.raises(TaskFailedError, match="no such address"):
            await handle.result()
        detail = await app.client.detail(handle.id)
        assert [record.number for record in detail.attempts] == [1, 2]


def test_programs_without_an_event_loop_submit_all_the_same(cronoq_server: TestServer) -> None:
    """And a test without one moves the clock."""
    app = _app()
    with app.blocking as calls:
        later = calls.submit(app.tasks["square"].options(delay=3600), 3)
        cronoq_server.settle_blocking()
        assert calls.client.get(later.id).status is TaskStatus.SCHEDULED
        cronoq_server.advance_blocking(3600)
        assert calls.client.get(later.id).status is TaskStatus.READY
        (known,) = calls.submit_many([app.tasks["square"].spec(4)])
        assert isinstance(known, type(later))
        assert later.cancel()
    assert app.blocking is not calls  # A closed one is not given out again.
    app.blocking.close()


async def test_declared_schedules_call_their_functions(cronoq_server: TestServer) -> None:
    """With the arguments that they name, when they are due."""
    app = App()
    called: asyncio.Queue[tuple[str, int]] = asyncio.Queue()

    @app.task(schedule=Cron(cron="0 */6 * * *", tz="Europe/Berlin", args=("all",), name="sweep"))
    async def clean(what: str, days: int = 7) -> None:
        called.put_nowait((what, days))

    async with app.running(worker=True):
        await cronoq_server.advance(6 * 3600)
        assert await called.get() == ("all", 7)
        assert [each.name for each in await app.client.schedules()] == ["sweep"]


async def test_putting_schedules_again_disturbs_none(cronoq_server: TestServer) -> None:
    """Only what is new or changed is put, and an operator's pause stays."""

    def declared(cron: str, timeout: float | None = None) -> App:
        app = App(cronoq_server.endpoint)

        @app.task(schedule=cron, retries=3, tags={"team": "a"}, timeout=timeout)
        def report(days: int = 7) -> int:
            return days

        return app

    async with declared("0 2 * * *") as app:
        assert await app.put_schedules() == 1
        assert await app.put_schedules() == 0
        await app.client.pause_schedule("report")
        assert await app.put_schedules() == 0
    for other in (declared("0 3 * * *"), declared("0 3 * * *", timeout=9.0)):
        async with other as app:
            assert await app.put_schedules() == 1
            assert await app.put_schedules() == 0
            assert (await app.client.schedule("report")).schedule.paused


async def test_a_web_application_submits_and_works_during_its_life(
    cronoq_server: TestServer,
) -> None:
    """Its lifespan starts both, and ends both; it may be started again."""
    app = _app()
    web = fastapi.FastAPI(lifespan=app.worker_lifespan)

    @web.post("/squares/{number}")
    async def make(number: int) -> int:
        handle = await app.submit(app.tasks["square"], number)
        return int(await handle.result())

    for number in (3, 4):
        async with web.router.lifespan_context(web):
            transport = httpx.ASGITransport(web)
            async with httpx.AsyncClient(transport=transport, base_url="http://web") as browser:
                answer = await browser.post(f"/squares/{number}")
            assert answer.json() == number * number
            assert len(await app.client.workers()) == 2
    async with App(cronoq_server.endpoint) as other, other.client as client:
        while await client.workers():  # They leave when their streams have ended there, too.
            await cronoq_server.settle()


@pytest.mark.usefixtures("cronoq_server")
async def test_a_lifespan_without_worker_only_submits() -> None:
    """Another process works."""
    app = _app()
    web = fastapi.FastAPI(lifespan=app.lifespan)
    async with web.router.lifespan_context(web):
        assert (await app.submit(app.tasks["square"], 1)).id > 0
        assert len(await app.client.workers()) == 0


async def test_an_app_can_be_pointed_at_a_server_for_a_while(cronoq_server: TestServer) -> None:
    """Though it names another one."""
    app = App("127.0.0.1:1", deadline=0.5)

    @app.task
    async def ping() -> str:
        return "pong"

    async with app.running(worker=True, endpoint=cronoq_server.endpoint):
        assert await (await app.submit(ping)).result() == "pong"
    assert app.endpoint == "127.0.0.1:1"


PROGRAM = """
from cronoq import App

app = App()

@app.task
def add(left: int, right: int) -> int:
    return left + right

@app.task(pool="mail")
def mail(to: str) -> str:
    return to

if __name__ == "__main__":
    app.run_forever()
"""


async def test_a_program_that_runs_forever_ends_in_order_at_a_signal(
    cronoq_server: TestServer, tmp_path: Path
) -> None:
    """It serves all pools that its functions name, and exits with 0."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM, encoding="utf-8")
    process = await asyncio.create_subprocess_exec(sys.executable, "-W", "error", str(program))
    try:
        async with App(cronoq_server.endpoint) as app:
            sums = await app.client.submit("add", {"left": 2, "right": 3})
            mails = await app.client.submit("mail", {"to": "ann"}, pool="mail")
            assert (await sums.result(), await mails.result()) == (5, "ann")
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_running_ends_when_it_is_stopped(cronoq_server: TestServer) -> None:
    """From inside the program."""
    app = _app()
    running = asyncio.ensure_future(app.run())
    async with App(cronoq_server.endpoint) as other:
        handle = await other.client.submit("square", {"number": 5})
        assert await handle.result() == 25
    await app.stop()
    await running
