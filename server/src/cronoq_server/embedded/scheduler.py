"""A scheduler that lives in its caller's process: when it leads, what it does, how it ends.

Rules a change must keep:

1. `async with` returns when it leads, and not before. Having lost the leadership it waits for it
   again by itself; calls meanwhile raise `SchedulerError` with `NOT_LEADER`.
2. A call that returned is durable, as with a server: the same engine, driver and stores, and the
   same checks of what callers say.
3. Leaving the context stops in order: running functions may end within the grace time.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, Unpack

import msgspec

from cronoq_server import config as configuration
from cronoq_server._proto import admin_pb2
from cronoq_server.api.admin_convert import read_schedule
from cronoq_server.api.admin_service import AdminService
from cronoq_server.api.auth import ANONYMOUS
from cronoq_server.api.gate import Gate
from cronoq_server.api.service import Service
from cronoq_server.api.specs import SpecReader
from cronoq_server.assembly import (
    engine_settings,
    nanoseconds,
    replica_settings,
    store_settings,
)
from cronoq_server.embedded.executor import Executor, Handler
from cronoq_server.embedded.values import TaskOptions, decode, message_of
from cronoq_server.engine import (
    SECOND,
    Engine,
    ErrorReason,
    Result,
    Status,
    StatusEvent,
    SubmitMode,
    TaskFilter,
    TaskRef,
    TaskSpec,
    TaskView,
)
from cronoq_server.ha import Outcome, Replica, TermSettings
from cronoq_server.runtime import (
    Clock,
    Driver,
    Refused,
    SystemChance,
    SystemClock,
    WatchFilter,
)
from cronoq_server.stores import open_store
from cronoq_server.stores.base import Leadership, Store

SLICE_S: Final = 60.0
"""Longest single wait; longer ones are made of several."""

OVERLAPS: Final = {"skip": 1, "allow": 2, "queue": 3, "queue_on_success": 4}


class SchedulerError(Exception):
    """A call was refused, or nobody can answer it now.

    Attributes:
        reason: Why, as a word that programs can read.
        details: Further facts, such as the field.
    """

    def __init__(self, reason: ErrorReason, message: str, details: Mapping[str, str]) -> None:
        super().__init__(message)
        self.reason = reason
        self.details = details


class TaskFailed(Exception):
    """`result` of a task that ended without success.

    Attributes:
        result: How it ended.
    """

    def __init__(self, result: Result) -> None:
        super().__init__(f"task {result.task_id}: {_name(result.status)}: {result.message}")
        self.result = result


@dataclass(frozen=True, slots=True)
class Pool:
    """A pool of tasks, and what runs them here.

    Attributes:
        name: Its name.
        handler: A function for all kinds, or one for each kind; None = other processes run them.
        slots: How many attempts may run here at once.
        options: Further keys of `[[pools]]` in the configuration reference.
    """

    name: str
    handler: Handler | Mapping[str, Handler] | None = None
    slots: int = 1
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MemoryStore:
    """Keeps state in this process: it ends with the scheduler."""


@dataclass(frozen=True, slots=True)
class SqliteStore:
    """Keeps state in a file that processes of one host can share.

    Attributes:
        path: The file; made if it is not there.
        options: Further keys of `[store]` in the configuration reference.
    """

    path: str | Path
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PostgresStore:
    """Keeps state in a database that processes of many hosts can share.

    Attributes:
        url: The database, `postgres://…`.
        options: Further keys of `[store]` in the configuration reference.
    """

    url: str = field(repr=False)
    options: Mapping[str, Any] = field(default_factory=dict)


class Scheduler:
    """Runs tasks in this process, and leads whenever it can."""

    def __init__(
        self,
        *,
        pools: Sequence[Pool],
        store: MemoryStore | SqliteStore | PostgresStore | Store | None = None,
        settings: Mapping[str, Any] | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Prepares; `async with` begins.

        Args:
            pools: The pools and their functions.
            store: Where state is kept; in memory if not given. A custom store will do.
            settings: Further tables of the configuration reference: limits, resources, outputs.
            clock: Where time comes from. With a clock of a test's own, functions that are no
                coroutines run in the event loop, so that moving the clock waits for them.

        Raises:
            ConfigError: Something of it is wrong; all mistakes are named.
            TypeError: What is to keep state, or is to be a pool, is neither.
        """
        _check_types(pools, store)
        config = configuration.read(_document(pools, store, settings or {}), "scheduler")
        self._config = config
        self._clock = clock or SystemClock()
        self._pools = tuple(pools)
        own = store is None or isinstance(store, MemoryStore | SqliteStore | PostgresStore)
        self._store: Store = open_store(store_settings(config)) if own else store  # type: ignore[assignment]
        rules = replica_settings(config)
        if not own:
            rules = msgspec.structs.replace(rules, term=_shared_term(config))
        self._replica = Replica(self._store, self._clock, self._engine, rules, self)
        self._reader = SpecReader(config.limits, [pool.name for pool in config.pools])
        self._service = Service(config.limits, Gate(config.limits), self._replica.leader)
        self._admin = AdminService(self._service)
        self._threads = (
            None
            if clock is not None
            else ThreadPoolExecutor(
                max(1, sum(pool.slots for pool in pools)), thread_name_prefix="cronoq-handler"
            )
        )
        self._leads = asyncio.Event()
        self._running: asyncio.Task[Outcome] | None = None
        self._failure: BaseException | None = None

    # --- its life --------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        """Begins, and returns when it leads.

        Raises:
            Unusable: The store must not be used as it is set up.
            SchedulerError: The store keeps refusing what it is given.
        """
        self._running = running = asyncio.create_task(self._replica.run(), name="scheduler")
        leads = asyncio.create_task(self._leads.wait())
        try:
            await asyncio.wait((running, leads), return_when=asyncio.FIRST_COMPLETED)
            if running.done():
                self._judge(running.result())
        except BaseException:
            await self._close()
            raise
        finally:
            leads.cancel()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._running is not None
        await self._close()
        if error is None:
            self._judge(self._running.result())

    @property
    def is_leading(self) -> bool:
        """Whether calls are answered at this moment."""
        return self._replica.ready

    async def leading_again(self) -> None:
        """Returns when it leads; at once if it does."""
        await self._leads.wait()

    async def _close(self) -> None:
        self._replica.stop()
        if self._running is not None:
            await asyncio.wait({self._running})
        await self._store.close()
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    def _judge(self, outcome: Outcome) -> None:
        if self._failure is not None:
            raise self._failure
        if outcome is Outcome.REJECTED:
            text = "the store keeps refusing what it is given; the log has the cause"
            raise SchedulerError(ErrorReason.STORE_UNAVAILABLE, text, {})

    @asynccontextmanager
    async def leading(self, driver: Driver) -> AsyncIterator[None]:
        """See `Stage.leading`."""
        tasks = [asyncio.create_task(executor.run(driver)) for executor in self._executors()]
        for task in tasks:
            task.add_done_callback(self._note_end)
        self._leads.set()
        try:
            yield
        finally:
            self._leads.clear()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def stand_by(self) -> None:
        """See `Stage.stand_by`."""

    def _executors(self) -> Iterator[Executor]:
        output_max = self._reader.task_bytes_max
        for pool in self._pools:
            if pool.handler is not None:
                yield Executor(
                    pool.name,
                    pool.handler,
                    slots=pool.slots,
                    clock=self._clock,
                    threads=self._threads,
                    output_max=output_max,
                )

    def _note_end(self, task: asyncio.Task[None]) -> None:
        """A scheduler whose executor died is none: it stops, and says why at its end."""
        if not task.cancelled() and task.exception() is not None:
            self._failure = task.exception()
            self._replica.stop()

    def _engine(self, leadership: Leadership) -> Engine:
        return Engine(engine_settings(self._config, leadership, self._store), SystemChance())

    # --- tasks -----------------------------------------------------------------------------------

    async def submit(self, payload: object = None, **options: Unpack[TaskOptions]) -> int:
        """Submits a task and returns its id once it is durable.

        With a key that is known already it returns the id of the task that has it.

        Args:
            payload: What the function gets: bytes, or anything that JSON can say.
            options: What else there is to say, see `TaskOptions`.

        Raises:
            SchedulerError: It was refused.
        """
        with _refusals():
            admitted = await self._service.submit(
                ANONYMOUS, [self._spec(payload, options)], SubmitMode.ONE, None
            )
            return admitted.ids[0]

    async def submit_batch(self, tasks: Sequence[tuple[object, TaskOptions]]) -> list[int]:
        """Submits tasks, all or none, and returns their ids in order.

        Raises:
            SchedulerError: One of them was refused.
        """
        with _refusals():
            specs = [self._spec(payload, options) for payload, options in tasks]
            return (await self._service.submit(ANONYMOUS, specs, SubmitMode.BATCH, None)).ids

    def _spec(self, payload: object, options: TaskOptions) -> TaskSpec:
        return self._reader.read(message_of(payload, options))

    async def get(self, target: TaskRef) -> TaskView:
        """Shows a task by id or key.

        Raises:
            SchedulerError: There is no such task.
        """
        with _refusals():
            return await self._service.get(ANONYMOUS, target)

    async def wait(self, target: TaskRef, timeout: float | None = None) -> Result:
        """Waits for the end of a task, for so many seconds at most.

        Raises:
            SchedulerError: There is no such task, or with `WAIT_TIMEOUT`: it has not ended.
        """
        with _refusals():
            left = timeout
            while left is None or left > SLICE_S:
                with contextlib.suppress(_NotYet):
                    return await self._slice(target, SLICE_S)
                left = None if left is None else left - SLICE_S
            return await self._service.wait(ANONYMOUS, target, round(left * SECOND))

    async def _slice(self, target: TaskRef, seconds: float) -> Result:
        try:
            return await self._service.wait(ANONYMOUS, target, round(seconds * SECOND))
        except Refused as refused:
            if refused.refusal.reason is ErrorReason.WAIT_TIMEOUT:
                raise _NotYet from refused
            raise

    async def result(self, target: TaskRef, timeout: float | None = None) -> Any:
        """Waits for the end of a task and returns what its function returned.

        Raises:
            TaskFailed: It ended without success.
            SchedulerError: As for `wait`.
        """
        result = await self.wait(target, timeout)
        if result.status != Status.SUCCEEDED:
            raise TaskFailed(result)
        return None if result.output is None else decode(result.output, result.content_type)

    async def cancel(self, target: TaskRef) -> bool:
        """Ends a task and its function; whether it is cancelled now."""
        with _refusals():
            return await self._service.cancel(ANONYMOUS, target)

    async def retry(self, target: TaskRef) -> bool:
        """Puts an ended task back with a fresh budget; false if it had succeeded."""
        with _refusals():
            return await self._service.retry(ANONYMOUS, target)

    async def delete(self, target: TaskRef) -> bool:
        """Forgets an ended task."""
        with _refusals():
            return await self._service.delete(ANONYMOUS, target)

    async def list(self, wanted: TaskFilter | None = None) -> AsyncGenerator[TaskView, None]:
        """Goes through all tasks that a filter lets through, in the order of their ids."""
        after = 0
        while True:
            with _refusals():
                page = await self._service.list_tasks(
                    ANONYMOUS, wanted or TaskFilter(), after=after, limit=0
                )
            for view in page.tasks:
                yield view
            after = page.next_after
            if not after:
                return

    async def watch(
        self,
        wanted: WatchFilter = WatchFilter(),  # noqa: B008 - it is frozen
    ) -> AsyncGenerator[StatusEvent, None]:
        """Tells of changes as they become durable, from now on; ends of named tasks at once.

        Raises:
            SchedulerError: A named task is unknown, the reader was too slow, or it leads no more.
        """
        with _refusals():
            stream = await self._service.watch(ANONYMOUS, wanted, b"", bookmarks=False)
            try:
                for _, refusal in stream.refusals:
                    raise Refused(refusal)
                async for batch in stream:
                    for event, _ in batch.events:
                        yield event
            finally:
                await stream.aclose()

    # --- schedules -------------------------------------------------------------------------------

    async def put_schedule(
        self,
        name: str,
        cron: str,
        payload: object = None,
        *,
        zone: str = "UTC",
        overlap: str = "skip",
        **options: Unpack[TaskOptions],
    ) -> None:
        """Puts a schedule, new or in place of the one with its name.

        Args:
            name: Its name.
            cron: When it is due.
            payload: What the function gets at each occurrence.
            zone: The IANA zone in which `cron` is read.
            overlap: `skip`, `allow`, `queue` or `queue_on_success`.
            options: What else there is to say about its tasks.

        Raises:
            SchedulerError: The expression or something else was refused.
        """
        request = admin_pb2.RecurringRequest(name=name, cron=cron, tz=zone)
        request.overlap = OVERLAPS[overlap]  # type: ignore[assignment]
        request.template.CopyFrom(message_of(payload, options))
        with _refusals():
            spec, calendar = read_schedule(request, self._reader, self._config.limits.max_key_len)
            await self._admin.put_schedule(ANONYMOUS, spec, calendar, paused=False)

    async def remove_schedule(self, name: str) -> bool:
        """Removes a schedule; false if there is none. What it created stays."""
        with _refusals():
            return await self._admin.remove_schedule(ANONYMOUS, name, "")


class _NotYet(Exception):
    """A slice of a wait is over."""


@contextlib.contextmanager
def _refusals() -> Iterator[None]:
    """Turns refusals of the server's inside into errors of this interface."""
    try:
        yield
    except Refused as refused:
        refusal = refused.refusal
        details = dict(refusal.details)
        raise SchedulerError(refusal.reason, refusal.message, details) from refused


def _check_types(pools: Sequence[object], store: object) -> None:
    if isinstance(store, str | Path):
        text = "store: a name alone says too little; give SqliteStore(path) or PostgresStore(url)"
        raise TypeError(text)
    if store is not None and not isinstance(store, MemoryStore | SqliteStore | PostgresStore):
        missing = [name for name in ("acquire_leadership", "commit") if not hasattr(store, name)]
        if missing:
            text = (
                f"store: {type(store).__name__} is no store, it has no {' and no '.join(missing)}"
            )
            raise TypeError(text)
    for index, pool in enumerate(pools):
        if not isinstance(pool, Pool):
            raise TypeError(f"pools[{index}]: must be a Pool, not {type(pool).__name__}")


def _document(pools: Sequence[Pool], store: object, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration that a server would have for the same."""
    tables: dict[str, Any] = dict(settings)
    tables["pools"] = [{"name": pool.name, **pool.options} for pool in pools]
    own = dict(tables.get("store", {}))
    if isinstance(store, SqliteStore):
        own |= {"kind": "sqlite", "path": str(store.path), **store.options}
    elif isinstance(store, PostgresStore):
        own |= {"kind": "postgres", "url": store.url, **store.options}
    tables["store"] = own
    return tables


def _shared_term(config: configuration.Config) -> TermSettings:
    """How the leadership of a store of somebody else's is kept: as that of a database."""
    store = config.store
    return TermSettings(
        poll=nanoseconds(store.lock_poll_s),
        keepalive=nanoseconds(store.keepalive_s),
        trust=nanoseconds(store.session_timeout_s - store.keepalive_s),
    )


def _name(status: int) -> str:
    return Status(status).name.lower()
