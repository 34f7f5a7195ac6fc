"""The scheduler in one's own process: functions as executors, the same promises, no server."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from cronoq_server import (
    Attempt,
    Cancel,
    Permanent,
    Pool,
    Retryable,
    Scheduler,
    SchedulerError,
    SqliteStore,
    TaskFailed,
)
from cronoq_server.config import ConfigError
from cronoq_server.embedded import MemoryStore, PostgresStore
from cronoq_server.engine import ErrorReason, Status, TaskFilter
from cronoq_server.runtime import WatchFilter
from cronoq_server.stores.base import Unusable
from cronoq_server.stores.memory import MemoryDisk
from cronoq_server.stores.memory import MemoryStore as Handle
from cronoq_server.testing import Fault, FaultyStore, ManualClock
from tests.stores.pg import running_cluster

QUICK = {"retry": {"max_attempts": 3, "initial_backoff_s": 0.01, "max_backoff_s": 0.02}}


def reason(caught: pytest.ExceptionInfo[SchedulerError]) -> ErrorReason:
    """Why a call was refused."""
    return caught.value.reason


async def test_functions_of_any_form_run() -> None:
    """Coroutines and plain functions, with value and attempt, for one kind or for all."""

    async def double(number: int) -> int:
        return 2 * number

    def name_thread(_value: object, attempt: Attempt) -> str:
        return f"{attempt.kind} {attempt.number} {threading.current_thread().name[:14]}"

    def nothing() -> None:
        return None

    handlers: dict[str, Any] = {"double": double, "thread": name_thread, "nothing": nothing}
    pools = [Pool("default", handlers, slots=2), Pool("raw", lambda value: value)]
    async with Scheduler(pools=pools) as scheduler:
        assert await scheduler.result(await scheduler.submit(21, kind="double")) == 42
        threaded = await scheduler.submit(kind="thread")
        assert await scheduler.result(threaded) == "thread 1 cronoq-handler"
        assert await scheduler.result(await scheduler.submit(kind="nothing")) is None
        raw = await scheduler.submit(b"\0\xff", pool="raw", kind="whatever")
        assert await scheduler.result(raw) == b"\0\xff"


async def test_failures_are_what_they_are_for_workers() -> None:
    """Errors are retried, permanent ones are not, and a handler may cancel its task."""
    attempts: list[int] = []

    async def handler(wish: str, attempt: Attempt) -> object:
        attempts.append(attempt.number)
        if wish == "again" and attempt.number == 1:
            raise Retryable("not yet", retry_after=0.001)
        if wish == "broken":
            raise LookupError("no such thing")
        if wish == "permanent":
            raise Permanent("never")
        if wish == "cancel":
            raise Cancel
        return object() if wish == "strange" else wish

    async with Scheduler(pools=[Pool("default", handler, 4, QUICK)]) as scheduler:
        assert await scheduler.result(await scheduler.submit("again")) == "again"
        assert attempts == [1, 2]
        for wish, status, message in (
            ("broken", Status.DEAD_LETTERED, "LookupError: no such thing"),
            ("permanent", Status.FAILED, "never"),
            ("cancel", Status.CANCELLED, ""),
            ("strange", Status.FAILED, "output: "),
        ):
            with pytest.raises(TaskFailed) as caught:
                await scheduler.result(await scheduler.submit(wish))
            assert caught.value.result.status == status
            assert message in caught.value.result.message


class Unspeakable(Exception):
    """Has no text."""

    def __str__(self) -> str:
        raise ZeroDivisionError


async def awaits_what_was_cancelled() -> None:
    """As a handler does that gives a part of its work up."""
    part = asyncio.create_task(asyncio.Event().wait())
    part.cancel()
    await part


def leaves() -> None:
    """As a function does that was a program."""
    raise SystemExit(3)


async def leaves_later() -> None:
    """The same, as a coroutine."""
    raise SystemExit(3)


def finds_nothing() -> object:
    """`next` of what is empty."""
    return next(iter(()))


def says_nothing() -> None:
    """Its exception can't be written."""
    raise Unspeakable


async def wishes_nonsense() -> None:
    """Its delay is none."""
    raise Retryable("later", retry_after="soon")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("handler", "message"),
    [
        (awaits_what_was_cancelled, "CancelledError"),
        (leaves, "SystemExit: 3"),
        (leaves_later, "SystemExit: 3"),
        (finds_nothing, "StopIteration"),
        (says_nothing, "Unspeakable"),
        (wishes_nonsense, "later"),
    ],
)
async def test_whatever_a_function_does_its_attempt_ends(
    handler: Callable[[], object], message: str
) -> None:
    """Nothing that it raises or returns keeps its slot, has it run for ever, or ends others."""
    async with Scheduler(pools=[Pool("default", handler, options=QUICK)]) as scheduler:
        task_id = await scheduler.submit()
        result = await scheduler.wait(task_id)
        assert result.status == Status.DEAD_LETTERED
        assert result.message.startswith(message)
        assert (await scheduler.get(task_id)).attempt == 3
        with pytest.raises(TaskFailed):  # its slot takes the next one
            await scheduler.result(await scheduler.submit())


async def test_refusals_have_their_reasons() -> None:
    """What callers say is checked as on a server, and errors carry the same reasons."""
    async with Scheduler(pools=[Pool("default")]) as scheduler:
        refused: list[tuple[Any, ErrorReason]] = [
            ({"pool": "none"}, ErrorReason.POOL_UNKNOWN),
            ({"key": "a\0b"}, ErrorReason.INVALID_FIELD),
            ({"timeout": -1.0}, ErrorReason.INVALID_FIELD),
            ({"delay": 1, "not_before": datetime.now(UTC)}, ErrorReason.FIELD_CONFLICT),
        ]
        for options, expected in refused:
            with pytest.raises(SchedulerError) as caught:
                await scheduler.submit(None, **options)
            assert reason(caught) is expected
        wrongs: list[Any] = [{"colour": "red"}, {"not_before": datetime(2030, 1, 1)}, {"key": 3}]
        for wrong in wrongs:
            with pytest.raises(TypeError):
                await scheduler.submit(None, **wrong)
        with pytest.raises(SchedulerError) as caught:
            await scheduler.get(12345)
        assert reason(caught) is ErrorReason.TASK_UNKNOWN
        waiting = await scheduler.submit("x")
        with pytest.raises(SchedulerError) as caught:
            await scheduler.wait(waiting, timeout=0.01)
        assert reason(caught) is ErrorReason.WAIT_TIMEOUT


async def test_tasks_are_found_cancelled_and_listed() -> None:
    """Keys name tasks, batches hang together, and lists go over all pages."""
    async with Scheduler(pools=[Pool("default")], settings={"limits": {"max_list": 2}}) as one:
        first = await one.submit(1, key="a", tags={"colour": "red"})
        assert await one.submit(2, key="a") == first
        batch = await one.submit_batch([(3, {"key": "b", "deps": ["a"]}), (4, {"priority": 1})])
        assert [view.task_id async for view in one.list()] == [first, *batch]
        red = TaskFilter(tags=(("colour", "red"),))
        assert [view.spec.key async for view in one.list(red)] == ["a"]
        assert (await one.get("b")).status == Status.BLOCKED
        assert await one.cancel("a")
        assert (await one.wait("b")).status == Status.SKIPPED
        assert await one.retry(first)
        assert await one.cancel(first)
        assert await one.delete(first)


async def test_cancelled_attempt_ends_its_function() -> None:
    """A coroutine is cancelled, a thread is told; the slots of both are free again."""
    began, ended = asyncio.Event(), asyncio.Event()
    told = threading.Event()
    loop = asyncio.get_running_loop()

    async def endless() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    def stubborn(_value: object, attempt: Attempt) -> None:
        loop.call_soon_threadsafe(began.set)
        while not attempt.is_cancelled:
            told.wait(0.001)

    handlers: dict[str, Any] = {"endless": endless, "stubborn": stubborn, "next": lambda: "ran"}
    async with Scheduler(pools=[Pool("default", handlers)]) as scheduler:
        for kind in ("endless", "stubborn"):
            began.clear()
            task = await scheduler.submit(kind=kind)
            await began.wait()
            assert await scheduler.cancel(task)
            assert await scheduler.result(await scheduler.submit(kind="next")) == "ran"
        assert ended.is_set()


async def test_time_is_moved_by_hand() -> None:
    """Delays, retries and schedules of days pass in no time."""
    ran: list[str] = []

    def note(what: str) -> None:
        ran.append(what)
        if what == "late" and ran.count("late") < 3:
            raise Retryable

    clock = ManualClock()
    slow = {"retry": {"max_attempts": 3, "initial_backoff_s": 600, "jitter": False}}
    async with Scheduler(pools=[Pool("default", note, 1, slow)], clock=clock) as scheduler:
        await scheduler.submit("later", delay=timedelta(hours=3))
        await clock.advance(hours=2, minutes=59)
        assert ran == []
        await clock.advance(minutes=2)
        assert ran == ["later"]
        task = await scheduler.submit("late")
        await clock.advance(minutes=31)
        assert (await scheduler.get(task)).status == Status.SUCCEEDED
        ran.clear()
        await scheduler.put_schedule("hourly", "0 * * * *", "tick")
        await clock.advance(hours=24)
        assert ran == ["tick"] * 24
        assert await scheduler.remove_schedule("hourly")
        await clock.advance(hours=2)
        assert len(ran) == 24


async def test_file_outlives_the_process(tmp_path: Path) -> None:
    """What was submitted is there when the file is opened again, also by another process."""
    path = tmp_path / "q.db"
    async with Scheduler(pools=[Pool("default")], store=SqliteStore(path)) as scheduler:
        task = await scheduler.submit("kept")
    store = SqliteStore(path)
    async with Scheduler(pools=[Pool("default", str.upper)], store=store) as scheduler:
        assert await scheduler.result(task) == "KEPT"


async def test_database_outlives_the_process() -> None:
    """The same over PostgreSQL."""
    with running_cluster() as database:
        store = PostgresStore(database.tcp_url, {"schema": "embedded"})
        async with Scheduler(pools=[Pool("default")], store=store) as scheduler:
            task = await scheduler.submit("kept")
        async with Scheduler(pools=[Pool("default", str.upper)], store=store) as scheduler:
            assert await scheduler.result(task) == "KEPT"


async def test_changes_are_watched() -> None:
    """Every transition of a task is told in order; an unknown one is refused."""
    clock = ManualClock()
    async with Scheduler(pools=[Pool("default", str.upper)], clock=clock) as scheduler:
        task = await scheduler.submit("x", delay=3600)
        wanted = WatchFilter(ids=(task,), all_transitions=True)
        async with aclosing(scheduler.watch(wanted)) as changes:
            first = asyncio.ensure_future(anext(changes))
            await clock.advance(hours=1)
            seen = [await first, await anext(changes), await anext(changes)]
        statuses = [event.status for event in seen]
        assert statuses == [Status.READY, Status.RUNNING, Status.SUCCEEDED]
        with pytest.raises(SchedulerError) as caught:
            await anext(scheduler.watch(WatchFilter(ids=(12345,))))
        assert reason(caught) is ErrorReason.TASK_UNKNOWN


async def test_second_scheduler_waits_until_it_leads(tmp_path: Path) -> None:
    """`async with` returns when the first one is gone, and the tasks are there."""
    store = SqliteStore(tmp_path / "q.db", {"lock_poll_s": 0.01})
    first = Scheduler(pools=[Pool("default")], store=store)
    async with first:
        task = await first.submit("x")
        second = Scheduler(pools=[Pool("default", lambda value: value)], store=store)
        entering = asyncio.create_task(second.__aenter__())
        assert (await first.get(task)).status == Status.READY
        assert not entering.done()
    await entering
    assert await second.result(task) == "x"
    await second.__aexit__(None, None, None)


async def test_waiting_for_the_leadership_can_be_given_up(tmp_path: Path) -> None:
    """A standby that is cancelled leaves nothing behind."""
    store = SqliteStore(tmp_path / "q.db", {"lock_poll_s": 0.01})
    async with Scheduler(pools=[Pool("default")], store=store) as first:
        entering = asyncio.create_task(Scheduler(pools=[Pool("default")], store=store).__aenter__())
        await first.submit("x")
        entering.cancel()
        with pytest.raises(asyncio.CancelledError):
            await entering
        assert await first.submit("y")


async def test_lost_leadership_cancels_functions_and_comes_back() -> None:
    """Calls meanwhile say `not_leader`; afterwards the attempt counts as used."""
    disk, clock = MemoryDisk(), ManualClock()
    store = FaultyStore(Handle(disk, remembers=True))
    began, cancelled = [], []

    async def handler(_value: object, attempt: Attempt) -> str:
        began.append(attempt.number)
        try:
            if attempt.number == 1:
                await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(attempt.number)
            raise
        return "done"

    async with Scheduler(pools=[Pool("default", handler)], store=store, clock=clock) as scheduler:
        task = await scheduler.submit("x")
        await clock.advance(seconds=0.1)
        assert began == [1]
        store.add_faults(Fault.FENCED)
        disk.lapsed = True
        with pytest.raises(SchedulerError):
            await scheduler.submit("y")
        assert not scheduler.is_leading
        with pytest.raises(SchedulerError) as caught:
            await scheduler.get(task)
        assert reason(caught) is ErrorReason.NOT_LEADER
        again = asyncio.create_task(scheduler.leading_again())
        while not again.done():
            await clock.advance(seconds=1)
        await clock.advance(minutes=2)
        assert await scheduler.result(task) == "done"
        assert (began, cancelled) == ([1, 2], [1])


async def test_running_functions_may_end_within_the_grace_time() -> None:
    """Leaving the context waits for what runs, and starts nothing more."""
    gate, began = asyncio.Event(), asyncio.Event()
    ended: list[Any] = []

    async def handler(value: int) -> None:
        began.set()
        await gate.wait()
        ended.append(value)

    async with Scheduler(pools=[Pool("default", handler)]) as scheduler:
        await scheduler.submit(1)
        await scheduler.submit(2)
        await began.wait()
        asyncio.get_running_loop().call_soon(gate.set)
    assert ended == [1]


async def test_mistakes_are_told_before_anything_begins(tmp_path: Path) -> None:
    """Wrong settings name their place; an unusable store ends the entry."""
    with pytest.raises(ConfigError, match=r"pools\[0\]\.max_pendin: unknown key"):
        Scheduler(pools=[Pool("default", options={"max_pendin": 3})], store=MemoryStore())
    with pytest.raises(ConfigError, match=r"store\.url"):
        Scheduler(pools=[Pool("default")], store=PostgresStore("mysql://h/d"))
    assert "secret" not in repr(PostgresStore("postgres://u:secret@h/d"))
    nowhere = SqliteStore(tmp_path / "no" / "q.db")
    with pytest.raises(Unusable, match="no such directory"):
        async with Scheduler(pools=[Pool("default")], store=nowhere):
            raise AssertionError("it leads without a store")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"store": "q.db"}, "a name alone says too little"),
        ({"store": Path("q.db")}, "a name alone says too little"),
        ({"store": 7}, "int is no store, it has no acquire_leadership and no commit"),
        ({"pools": ["default"]}, r"pools\[0\]: must be a Pool, not str"),
    ],
)
def test_things_of_another_kind_are_named(given: dict[str, Any], said: str) -> None:
    """What was meant is said where it was given, not later by something else."""
    with pytest.raises(TypeError, match=said):
        Scheduler(**{"pools": [Pool("default")], **given})
