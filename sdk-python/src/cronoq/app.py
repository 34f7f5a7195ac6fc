"""Decides how functions become tasks: `@app.task` over a client and workers.

app = App()                                     knows the server and the task functions
@app.task(retries=3, timeout=60)                makes a function one of them
await app.submit(send, "ann", subject="hi")     a task that will call it
app.run_forever()                               a worker that does

A call's arguments are bound by the function's signature where it is submitted, travel as one JSON
object by name, and become what the hints say where the worker calls it. Called directly, a task
function is the function.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar, Unpack, overload

from ._app_blocking import BlockingApp
from ._app_handles import AppHandle
from ._payload import Codec, JsonCodec, Transform, TransformingCodec
from ._schedules import Cron, put_if_new
from ._signals import run_with_signals
from ._task_function import Async, TaskFunction, task_function
from .attempt import Interceptor
from .client import Client, TaskOptions
from .errors import CronoqError
from .options import Seconds, TlsOptions
from .spec import RetryPolicy, ScheduleSpec, TaskSpec
from .worker import Worker

__all__ = ["App", "AppHandle", "BlockingApp", "Cron", "TaskFunction"]

P = ParamSpec("P")
R = TypeVar("R")
DEFAULT_ENDPOINT = "127.0.0.1:7070"


class App:
    """Task functions, the client that submits them, and the workers that run them.

    The client is made when it is first needed; `close` closes it, as does leaving `async with app`
    or `running`.
    """

    def __init__(
        self,
        endpoint: str | None = None,
        *,
        token: str | None = None,
        tls: TlsOptions | None = None,
        pool: str = "",
        slots: int = 1,
        labels: Mapping[str, str] | None = None,
        drain_timeout: Seconds = 30.0,
        deadline: Seconds = 60.0,
        transforms: Sequence[Transform] = (),
        interceptors: Sequence[Interceptor] = (),
        trace_context: Callable[[], Mapping[str, str]] | None = None,
        check_arguments: bool = True,
    ) -> None:
        """Makes an app; nothing is sent before it is used.

        Args:
            endpoint: `host:port`, `http://…` or `https://…`; when None, CRONOQ_ENDPOINT of the
                environment at the time of the first use, or `127.0.0.1:7070`.
            token: Bearer token; when None, CRONOQ_TOKEN of the environment at that time, if any.
            tls: TLS files.
            pool: Pool of task functions that name none; empty is the server's default.
            slots: Attempts that each worker runs at once.
            labels: What the workers can do.
            drain_timeout: Time that running attempts get when a worker stops, seconds.
            deadline: Time that a call to the server may take with all its retries, seconds.
            transforms: What arguments and results go through: compression, encryption.
            interceptors: Each makes a context manager that is entered around every call.
            trace_context: Asked for the trace context of each task that names none.
            check_arguments: Read arguments as a worker would before they are sent, so that what
                does not fit its hint fails at the caller.
        """
        self._endpoint = endpoint
        self._token = token
        self._tls = tls
        self._pool = pool
        self._deadline = deadline
        self._trace_context = trace_context
        self._worker_options = {
            "slots": slots,
            "labels": labels,
            "drain_timeout": drain_timeout,
            "interceptors": interceptors,
        }
        json = JsonCodec()
        self.codec: Codec = TransformingCodec(json, transforms) if transforms else json
        self.check_arguments = check_arguments
        self._tasks: dict[str, TaskFunction[..., Any]] = {}
        self._client: Client | None = None
        self._blocking: BlockingApp | None = None
        self._users = 0
        self._workers: list[Worker] = []
        self._is_stopping = False
        self._putting: asyncio.Future[int] | None = None

    def __repr__(self) -> str:
        return f"App({self.endpoint!r}, {len(self._tasks)} task functions)"

    # --- task functions -------------------------------------------------------------------------

    @overload
    def task(self, function: Callable[P, R], /) -> TaskFunction[P, R]: ...
    @overload
    def task(
        self,
        function: None = None,
        /,
        *,
        kind: str = "",
        retries: int | None = None,
        schedule: str | Cron | None = None,
        **options: Unpack[TaskOptions],
    ) -> Callable[[Callable[P, R]], TaskFunction[P, R]]: ...
    def task(
        self,
        function: Any = None,
        /,
        *,
        kind: str = "",
        retries: int | None = None,
        schedule: str | Cron | None = None,
        **options: Unpack[TaskOptions],
    ) -> Any:
        """Makes a function a task function, with or without options: `@app.task` or `@app.task(…)`.

        Args:
            function: Async or not; a parameter annotated `Attempt` is filled by the worker.
            kind: What the server calls it; the function's name when empty.
            retries: Attempts after the first one; the pool's when None.
            schedule: Calls it by itself: a cron expression, or a `Cron` with more to say.
            options: What else holds for each of its tasks, see `TaskSpec`.

        Raises:
            ValueError: The kind has a function already, or an option contradicts another.
            TypeError: It is no function, or there is no such option.
        """

        def register(function: Any) -> TaskFunction[..., Any]:
            name = kind or getattr(function, "__name__", "")
            if not callable(function) or not name:
                raise TypeError(f"app.task: {function!r} is no function with a name")
            if name in self._tasks:
                raise ValueError(f"app.task: kind {name!r} has a function already; give it a kind")
            cron = Cron(cron=schedule) if isinstance(schedule, str) else schedule
            whole = _with_retries(name, retries, {"pool": self._pool, **options})
            task = self._tasks[name] = TaskFunction(self, function, name, whole, cron)
            return task

        return register if function is None else register(function)

    @property
    def tasks(self) -> Mapping[str, TaskFunction[..., Any]]:
        """The task functions by kind."""
        return dict(self._tasks)

    # --- submitting -----------------------------------------------------------------------------

    @property
    def endpoint(self) -> str:
        """Where the server is."""
        return self._endpoint or os.environ.get("CRONOQ_ENDPOINT") or DEFAULT_ENDPOINT

    def _access(self) -> dict[str, Any]:
        token = self._token or os.environ.get("CRONOQ_TOKEN") or None
        return {"endpoint": self.endpoint, "token": token, "tls": self._tls, "codec": self.codec}

    def client_options(self) -> dict[str, Any]:
        """Returns what a client of this app is made with."""
        trace = {"trace_context": self._trace_context}
        return {**self._access(), "deadline": self._deadline, **trace}

    @property
    def client(self) -> Client:
        """The client, for everything that tasks without functions need; made on first use."""
        if self._client is None:
            self._client = Client(**self.client_options())
        return self._client

    @property
    def blocking(self) -> BlockingApp:
        """The calls of this app for programs without an event loop; close it when done."""
        if self._blocking is None or self._blocking.is_closed:
            self._blocking = BlockingApp(self)
        return self._blocking

    @overload
    async def submit(
        self, task: TaskFunction[P, Async[R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> AppHandle[R]: ...
    @overload
    async def submit(
        self, task: TaskFunction[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> AppHandle[R]: ...
    async def submit(
        self, task: TaskFunction[..., Any], /, *args: Any, **kwargs: Any
    ) -> AppHandle[Any]:
        """Submits a call of a task function; concurrent submits share requests.

        Args:
            task: The function; `task.options(delay=60)` for what this one call needs.
            args: Positional arguments of the call.
            kwargs: Keyword arguments of the call.

        Returns:
            The handle, once the task is acknowledged durably.

        Raises:
            TypeError: The arguments do not bind, or it is no task function.
            PayloadError: An argument cannot be encoded, or does not fit its hint.
            CronoqError: As `Client.submit`.
        """
        spec = task_function(task).spec(*args, **kwargs)
        handle = await self.client.submit(spec)
        return AppHandle(self.client, handle, task.returns)

    async def submit_many(
        self, calls: Iterable[TaskSpec], *, call_deadline: Seconds | None = None
    ) -> list[AppHandle[Any] | CronoqError]:
        """Submits many calls, each on its own: `app.submit_many(square.spec(n) for n in ns)`.

        Returns:
            Per call, in order, its handle or the error that refused it.
        """
        kinds: list[str] = []

        def noted() -> Iterable[TaskSpec]:
            for spec in calls:
                kinds.append(spec.kind)
                yield spec

        answers = await self.client.submit_many(noted(), call_deadline=call_deadline)
        return [
            answer
            if isinstance(answer, CronoqError)
            else AppHandle(self.client, answer, self.returns_of(kind))
            for kind, answer in zip(kinds, answers, strict=True)
        ]

    async def submit_batch(
        self, calls: Sequence[TaskSpec], *, call_deadline: Seconds | None = None
    ) -> list[AppHandle[Any]]:
        """Submits calls as one: all are admitted, or none; they may depend on each other's keys."""
        handles = await self.client.submit_batch(calls, call_deadline=call_deadline)
        return [
            AppHandle(self.client, handle, self.returns_of(spec.kind))
            for spec, handle in zip(calls, handles, strict=True)
        ]

    def returns_of(self, kind: str) -> Any:
        """Returns the type that results of a kind are decoded into; `Any` if it is not known."""
        task = self._tasks.get(kind)
        return Any if task is None else task.returns

    def schedules(self) -> list[ScheduleSpec]:
        """Returns the schedules that the task functions declare."""
        return [
            task.schedule.spec(task.spec(*task.schedule.args, **task.schedule.kwargs))
            for task in self._tasks.values()
            if task.schedule is not None
        ]

    async def put_schedules(self) -> int:
        """Makes the server have the declared schedules; those that it has are left alone.

        One that an operator paused stays paused. One that is no longer declared stays until
        `Client.remove_schedule`.

        Returns:
            How many were new or changed.

        Raises:
            CronoqError: As `Client.put_schedule`.
        """
        return sum([await put_if_new(self.client, spec) for spec in self.schedules()])

    async def close(self) -> None:
        """Closes the client; the next use makes another."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def __aenter__(self) -> Self:
        self._users += 1
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._users -= 1
        if self._users == 0:
            await self.close()

    # --- working --------------------------------------------------------------------------------

    def worker(self, pool: str | None = None, **options: Any) -> Worker:
        """Returns a worker for one pool that can run all task functions; it is not started.

        Args:
            pool: Its pool; the app's when None.
            options: Options of `Worker` that differ from the app's.

        Raises:
            ValueError: There is no task function, or an option is out of its range.
            TypeError: A type hint of a function cannot be resolved.
        """
        if not self._tasks:
            raise ValueError("the app has no task function: is the module imported that has them?")
        whole = {**self._access(), **self._worker_options, "pool": pool, **options}
        if pool is None:
            whole["pool"] = self._pool
        worker = Worker(**whole)
        for kind, task in self._tasks.items():
            worker.handler(kind)(task.handler())
        return worker

    def pools(self) -> list[str]:
        """Returns the pools that the task functions name."""
        return sorted({task.pool for task in self._tasks.values()})

    @contextlib.asynccontextmanager
    async def running(
        self, *, worker: bool = False, pools: Sequence[str] = (), endpoint: str | None = None
    ) -> AsyncIterator[Self]:
        """Keeps the client, and workers if wanted, for a `with` block; drains and closes after it.

        Args:
            worker: Put the schedules and run a worker for each pool.
            pools: Which pools to work for; those that the task functions name when empty.
            endpoint: Another server for the time of the block: that of a test.

        Raises:
            CronoqError: The schedules cannot be put; at the end, what made a worker give up.
        """
        before = self._endpoint
        if endpoint is not None:
            await self.close()
            self._endpoint = endpoint
        try:
            async with self, contextlib.AsyncExitStack() as stack:
                if worker:
                    await self.put_schedules()
                    for pool in pools or self.pools():
                        await stack.enter_async_context(self.worker(pool))
                yield self
        finally:
            self._endpoint = before

    def lifespan(self, _web: object = None) -> AbstractAsyncContextManager[None]:
        """The client for the life of a web application: `FastAPI(lifespan=app.lifespan)`."""
        return _nothing_of(self.running())

    def worker_lifespan(self, _web: object = None) -> AbstractAsyncContextManager[None]:
        """Client and workers for the life of a web application, on its event loop.

        Put functions that compute for long into a process of their own instead.
        """
        return _nothing_of(self.running(worker=True))

    async def run(self, *pools: str) -> None:
        """Runs workers until `stop` is called or the task is cancelled; drains in both cases.

        Args:
            pools: Which pools to work for; those that the task functions name when empty.

        Raises:
            CronoqError: The schedules cannot be put.
            GaveUpError: A server's answer makes retries useless.
        """
        self._is_stopping = False
        async with self:
            workers = [self.worker(pool) for pool in pools or self.pools()]
            if not await self._put_unless_stopped():
                return
            self._workers = workers
            runs = [asyncio.ensure_future(worker.run()) for worker in workers]
            try:
                await asyncio.gather(*runs)
            finally:
                for each in runs:
                    each.cancel()
                await asyncio.gather(*runs, return_exceptions=True)
                self._workers = []

    async def _put_unless_stopped(self) -> bool:
        """Puts the schedules; False if `stop` was called, which must not wait for a server."""
        self._putting = asyncio.ensure_future(self.put_schedules())
        try:
            await asyncio.gather(self._putting, return_exceptions=True)
            if not self._is_stopping:
                self._putting.result()
            return not self._is_stopping
        finally:
            self._putting = None

    async def stop(self, *, drain_timeout: Seconds | None = None) -> None:
        """Ends `run`: its workers take no more, let calls finish, and report.

        Args:
            drain_timeout: Time for running calls, seconds, instead of the option's.
        """
        self._is_stopping = True
        if self._putting is not None:
            self._putting.cancel()
        await asyncio.gather(*(w.stop(drain_timeout=drain_timeout) for w in self._workers))

    def run_forever(self, *pools: str) -> None:
        """Runs workers until SIGTERM or SIGINT, then drains; a second signal ends the drain.

        Args:
            pools: Which pools to work for; those that the task functions name when empty.

        Raises:
            GaveUpError: A server's answer makes retries useless.
        """
        asyncio.run(run_with_signals(lambda: self.run(*pools), self._stop_at_signal))

    async def _stop_at_signal(self, may_drain: bool) -> None:
        await self.stop(drain_timeout=None if may_drain else 0.0)


@contextlib.asynccontextmanager
async def _nothing_of(running: AbstractAsyncContextManager[App]) -> AsyncIterator[None]:
    """The same block without a value: what a lifespan yields becomes state of the application."""
    async with running:
        yield


def _with_retries(name: str, retries: int | None, options: dict[str, Any]) -> dict[str, Any]:
    """The options, with the number of retries as a policy."""
    if retries is None:
        return options
    if "retry" in options:
        raise ValueError(f"task {name!r}: retries and retry say the same; give one of them")
    if retries < 0:
        raise ValueError(f"task {name!r}: retries is {retries}, but has to be at least 0")
    return {**options, "retry": RetryPolicy(max_attempts=retries + 1)}
