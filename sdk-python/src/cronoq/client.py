"""Decides what a program can ask of a server, and how each call is made.

Every call has a deadline (60 s unless told otherwise) that covers its repetitions; waits have none
unless given. A client may be made anywhere and used from any event loop, and in a forked child: it
notices both and makes what it needs there.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, Self, TypedDict, TypeVar, Unpack, overload

import msgspec

from . import _calls
from ._admin import AdminCalls
from ._calls import Caller
from ._coalesce import Admitted, SubmitCoalescer
from ._convert import fill_filter, fill_ref, fill_spec, read_detail, read_info
from ._endpoint import parse_configured
from ._pages import TaskPages
from ._payload import Codec
from ._proto import tasks_pb2
from ._transport import Connection
from ._waits import SharedWaits
from ._watch import watch_events
from .errors import (
    ClosedError,
    CronoqError,
    OutputUnavailableError,
    TaskFailedError,
    WaitTimeoutError,
)
from .options import (
    Backoff,
    ClientOptions,
    Keepalive,
    OnSubmit,
    Seconds,
    Submission,
    TlsOptions,
    seconds,
)
from .spec import (
    NO_PAYLOAD,
    BulkAction,
    Dep,
    HasId,
    MissPolicy,
    Priority,
    RetryPolicy,
    TaskFilter,
    TaskSpec,
    TaskStatus,
)
from .views import BulkOutcome, StatusEvent, TaskDetail, TaskInfo, TaskResult

T = TypeVar("T")
# For waits, which have no deadline of their own.
FOREVER_S = 365 * 86_400.0
# How many requests submit_many fills ahead of the two that are in flight.
_FILL_AHEAD = 2


class TaskOptions(TypedDict, total=False):
    """What can be said about a task beside kind and payload; see `TaskSpec`."""

    content_type: str
    pool: str
    priority: Priority | None
    key: str
    deadline_in: Seconds | None
    deadline_at: datetime | None
    start_in: Seconds | None
    start_at: datetime | None
    tolerance: Seconds | None
    on_miss: MissPolicy | None
    duration_hint: Seconds | None
    timeout: Seconds | None
    retry: RetryPolicy | None
    deps: Sequence[Dep | HasId | int | str]
    resources: Mapping[str, int] | None
    tags: Mapping[str, str] | None
    labels: Mapping[str, str] | None
    tenant: str
    trace_context: Mapping[str, str] | None
    delay: Seconds | None
    not_before: datetime | None
    expires_in: Seconds | None


class TaskHandle:
    """A submitted task.

    Attributes:
        id: The task's id.
        key: Its key, empty if it has none.
        duplicate: True if the key was known and this submission changed nothing.
    """

    __slots__ = ("_client", "duplicate", "id", "key")

    def __init__(self, client: Client, task_id: int, key: str, duplicate: bool) -> None:
        self._client = client
        self.id = task_id
        self.key = key
        self.duplicate = duplicate

    def __repr__(self) -> str:
        return f"TaskHandle(id={self.id}, key={self.key!r}, duplicate={self.duplicate})"

    @overload
    async def result(self, *, timeout: Seconds | None = None) -> Any: ...
    @overload
    async def result(self, as_type: type[T], *, timeout: Seconds | None = None) -> T: ...
    async def result(self, as_type: Any = Any, *, timeout: Seconds | None = None) -> Any:
        """Waits for success and returns the decoded output; see `Client.result`."""
        return await self._client.result(self.id, as_type, timeout=timeout)

    async def wait(self, *, timeout: Seconds | None = None) -> TaskResult:
        """Waits until the task has ended, however; see `Client.wait`."""
        return await self._client.wait(self.id, timeout=timeout)

    async def cancel(self) -> bool:
        """Cancels the task; True if it is cancelled now."""
        return await self._client.cancel(self.id)


class _Shared:
    """What the callers of one event loop share."""

    def __init__(self, caller: Caller, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.pid = os.getpid()
        self.submits = SubmitCoalescer(caller, loop)
        self.waits = SharedWaits(caller, loop)

    async def close(self) -> None:
        await self.submits.close()
        await self.waits.close()


class Client(AdminCalls):
    """A client of one cronoq server (or of the balancer in front of several).

    Use it as an async context manager, or call `close` at the end. All methods raise `CronoqError`
    subclasses; see `cronoq.errors`.
    """

    def __init__(
        self,
        endpoint: str = "127.0.0.1:7070",
        *,
        token: str | None = None,
        tls: TlsOptions | None = None,
        backoff: Backoff | None = None,
        connect_timeout: Seconds = 5.0,
        keepalive: Keepalive | None = None,
        codec: Codec | None = None,
        max_message_bytes: int = 4 * 1024 * 1024,
        deadline: Seconds = 60.0,
        max_wait: Seconds = 60.0,
        max_tasks_per_batch: int = 1000,
        trace_context: Callable[[], Mapping[str, str]] | None = None,
        on_submit: OnSubmit | None = None,
    ) -> None:
        """Makes a client; nothing is sent before its first call. See `ClientOptions`.

        Raises:
            EndpointError: The endpoint cannot be read.
            ValueError: An option is out of its range.
        """
        defaults = ClientOptions()
        self.options = ClientOptions(
            endpoint=endpoint,
            token=token,
            tls=tls,
            backoff=backoff or defaults.backoff,
            connect_timeout=connect_timeout,
            keepalive=keepalive or defaults.keepalive,
            codec=codec or defaults.codec,
            max_message_bytes=max_message_bytes,
            deadline=deadline,
            max_wait=max_wait,
            max_tasks_per_batch=max_tasks_per_batch,
            trace_context=trace_context,
            on_submit=on_submit,
        )
        parsed = parse_configured(endpoint, tls=tls is not None)
        super().__init__(Caller(self.options, Connection(self.options, parsed)))
        self._shared: dict[asyncio.AbstractEventLoop, _Shared] = {}

    def __repr__(self) -> str:
        return f"Client({self.options.endpoint!r})"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends every call that is under way and closes the connection; may be called again."""
        self._is_closed = True
        shared = self._shared.pop(asyncio.get_running_loop(), None)
        if shared is not None and shared.pid == os.getpid():
            await shared.close()
        self._caller.connection.close()

    def _here(self) -> _Shared:
        """What is shared on this loop of this process, made on first use."""
        loop = asyncio.get_running_loop()
        shared = self._shared.get(loop)
        if shared is None or shared.pid != os.getpid():
            if self._is_closed:
                raise ClosedError("the client is closed")
            for gone in [other for other in self._shared if other.is_closed()]:
                del self._shared[gone]
            shared = self._shared[loop] = _Shared(self._caller, loop)
        return shared

    async def submit(
        self,
        task: str | TaskSpec,
        payload: Any = NO_PAYLOAD,
        *,
        call_deadline: Seconds | None = None,
        **options: Unpack[TaskOptions],
    ) -> TaskHandle:
        """Submits one task; concurrent submits share requests.

        Args:
            task: Kind of the task, or a whole spec (then without payload and options).
            payload: Value for the handler.
            call_deadline: Time for this call, seconds; the client's deadline when None.
            options: What else to say about the task, see `TaskSpec`.

        Returns:
            The handle, once the task is acknowledged durably.

        Raises:
            UnavailableError: No server answered; without a key the outcome may be unknown.
            QueueFullError: There was no room before the deadline.
            InvalidRequestError: The task is refused.
        """
        spec = task if isinstance(task, TaskSpec) else TaskSpec(task, payload, **options)
        ends_at = self._ends_at(call_deadline)
        if self.options.on_submit is None:
            return await self._submit(self._traced(spec), ends_at)
        with self._watched("submit", (spec,)) as submission:
            handle = await self._submit(self._traced(spec, submission), ends_at)
            submission.task_ids = (handle.id,)
        return handle

    async def _submit(self, spec: TaskSpec, ends_at: float) -> TaskHandle:
        shared = self._here()
        future = shared.submits.enqueue(spec, ends_at)
        timer = shared.loop.call_at(ends_at, shared.submits.expire, future)
        try:
            task_id, duplicate = await future
        finally:
            timer.cancel()
        return TaskHandle(self, task_id, spec.key, duplicate)

    async def submit_many(
        self, tasks: Iterable[TaskSpec], *, call_deadline: Seconds | None = None
    ) -> list[TaskHandle | CronoqError]:
        """Submits many tasks, each on its own: some may be refused while others are admitted.

        Returns:
            Per task, in order, its handle or the error that refused it.
        """
        ends_at = self._ends_at(call_deadline)
        specs: list[TaskSpec] = []
        with self._watched("submit_many", specs) as submission:
            places = await self._submit_each(tasks, specs, ends_at, submission)
            handles = [
                self._handle(spec.key, place) for spec, place in zip(specs, places, strict=True)
            ]
            submission.task_ids = [
                handle.id if isinstance(handle, TaskHandle) else 0 for handle in handles
            ]
        return handles

    async def _submit_each(
        self,
        tasks: Iterable[TaskSpec],
        specs: list[TaskSpec],
        ends_at: float,
        submission: Submission,
    ) -> list[asyncio.Future[Admitted] | CronoqError]:
        """Takes tasks as fast as requests leave; adds them to `specs`; ends when all are done."""
        shared = self._here()
        submits = shared.submits
        places: list[asyncio.Future[Admitted] | CronoqError] = []
        futures: list[asyncio.Future[Admitted]] = []
        timer = shared.loop.call_at(ends_at, submits.expire_all, futures)
        first_open = 0
        try:
            for spec in tasks:
                specs.append(spec)
                try:
                    future = submits.enqueue(self._traced(spec, submission), ends_at)
                except CronoqError as error:
                    places.append(error)
                    continue
                futures.append(future)
                places.append(future)
                while submits.queued > _FILL_AHEAD:
                    # Requests leave in order, so the oldest open task tells when there is room.
                    while first_open < len(futures) and futures[first_open].done():
                        first_open += 1
                    if first_open == len(futures):
                        break  # What waits to be sent is other callers'.
                    await asyncio.wait((futures[first_open],))
            for future in futures:
                if not future.done():
                    await asyncio.wait((future,))
        finally:
            timer.cancel()
            for future in futures:
                future.cancel()
        return places

    @contextlib.contextmanager
    def _watched(self, operation: str, tasks: Sequence[TaskSpec]) -> Iterator[Submission]:
        """Tells the program's hook when a submission begins and how it ends."""
        submission = Submission(operation, tasks)
        hook = self.options.on_submit
        if hook is None:
            yield submission
            return
        ended = hook(submission)
        try:
            yield submission
        except BaseException as error:
            ended(error)
            raise
        ended(None)

    def _traced(self, spec: TaskSpec, submission: Submission | None = None) -> TaskSpec:
        """The spec with the present trace context, if it names none and the program wants it."""
        if spec.trace_context is not None:
            return spec
        if submission is not None and submission.trace_context is not None:
            return msgspec.structs.replace(spec, trace_context=submission.trace_context)
        ask = self.options.trace_context
        return spec if ask is None else msgspec.structs.replace(spec, trace_context=ask())

    def _handle(
        self, key: str, place: asyncio.Future[Admitted] | CronoqError
    ) -> TaskHandle | CronoqError:
        if isinstance(place, CronoqError):
            return place
        try:
            task_id, duplicate = place.result()
        except CronoqError as error:
            return error
        return TaskHandle(self, task_id, key, duplicate)

    async def submit_batch(
        self, tasks: Sequence[TaskSpec], *, call_deadline: Seconds | None = None
    ) -> list[TaskHandle]:
        """Submits tasks as one: all are admitted, or none and the error names the index.

        Tasks may depend on each other's keys in any order.
        """
        ends_at = self._ends_at(call_deadline)
        with self._watched("submit_batch", tasks) as submission:
            handles = await self._submit_batch(tasks, ends_at, submission)
            submission.task_ids = [handle.id for handle in handles]
        return handles

    async def _submit_batch(
        self, tasks: Sequence[TaskSpec], ends_at: float, submission: Submission
    ) -> list[TaskHandle]:
        request = tasks_pb2.SubmitBatchRequest()
        for spec in tasks:
            fill_spec(request.tasks.add(), self._traced(spec, submission), self.options.codec)
        response = await self._caller.call(
            _calls.SUBMIT_BATCH,
            request,
            # With a key on each, a repetition finds the tasks of the first try.
            idempotent=all(spec.key for spec in tasks),
            ends_at=ends_at,
        )
        return [
            TaskHandle(self, answer.id, spec.key, answer.duplicate)
            for spec, answer in zip(tasks, response.tasks, strict=True)
        ]

    async def get(self, target: int | str, *, call_deadline: Seconds | None = None) -> TaskInfo:
        """Returns where a task stands, by id or key."""
        request = tasks_pb2.GetRequest()
        fill_ref(request.task, target)
        ends_at = self._ends_at(call_deadline)
        return read_info(
            await self._caller.call(_calls.GET, request, idempotent=True, ends_at=ends_at)
        )

    async def detail(
        self, target: int | str, *, call_deadline: Seconds | None = None
    ) -> TaskDetail:
        """Returns all that is known about a task: spec, payload, attempts, parents, children.

        Raises:
            UnsupportedError: The server is too old for it.
        """
        request = tasks_pb2.GetRequest()
        fill_ref(request.task, target)
        ends_at = self._ends_at(call_deadline)
        return read_detail(
            await self._caller.call(_calls.DESCRIBE, request, idempotent=True, ends_at=ends_at)
        )

    async def wait(self, target: int | str, *, timeout: Seconds | None = None) -> TaskResult:
        """Waits until a task has ended, however it did; concurrent waits share streams.

        Args:
            target: Id or key.
            timeout: Longest wait, seconds; for ever when None.

        Raises:
            WaitTimeoutError: The task had not ended by then.
            TaskUnknownError: There is no such task.
        """
        try:
            async with asyncio.timeout(None if timeout is None else seconds(timeout)):
                if isinstance(target, str):
                    # Shared streams answer by id.
                    target = (await self.get(target, call_deadline=FOREVER_S)).id
                return await self._wait_for_id(target)
        except TimeoutError as error:
            if isinstance(error, CronoqError):
                raise
            raise WaitTimeoutError(f"task {target} has not ended") from error

    async def _wait_for_id(self, task_id: int) -> TaskResult:
        waits = self._here().waits
        future = waits.begin(task_id)
        try:
            return await future
        finally:
            waits.forget(task_id, future)

    async def wait_many(
        self, targets: Iterable[int | HasId], *, timeout: Seconds | None = None
    ) -> list[TaskResult]:
        """Waits until all of the tasks have ended and returns their results in order.

        Raises:
            WaitTimeoutError: Some had not ended by then.
            TaskUnknownError: One of them does not exist.
        """
        ids = [t if isinstance(t, int) else t.id for t in targets]
        waits = self._here().waits
        futures = [waits.begin(task_id) for task_id in ids]
        try:
            async with asyncio.timeout(None if timeout is None else seconds(timeout)):
                return [await future for future in futures]
        except TimeoutError as error:
            if isinstance(error, CronoqError):
                raise
            raise WaitTimeoutError("some tasks have not ended") from error
        finally:
            for task_id, future in zip(ids, futures, strict=True):
                if not future.done() or future.cancelled():
                    waits.forget(task_id, future)
                else:
                    future.exception()  # Seen: the first error speaks for all.

    @overload
    async def result(self, target: int | str, *, timeout: Seconds | None = None) -> Any: ...
    @overload
    async def result(
        self, target: int | str, as_type: type[T], *, timeout: Seconds | None = None
    ) -> T: ...
    async def result(
        self, target: int | str, as_type: Any = Any, *, timeout: Seconds | None = None
    ) -> Any:
        """Waits for a task to succeed and returns its output.

        Args:
            target: Id or key.
            as_type: Type to decode into; whatever is there when not given.
            timeout: Longest wait, seconds; for ever when None.

        Raises:
            TaskFailedError: The task ended otherwise.
            OutputUnavailableError: It succeeded, but the output is no longer kept.
            PayloadError: The output is not of that type.
            WaitTimeoutError: The task had not ended by then.
        """
        return self.decode(await self.wait(target, timeout=timeout), as_type)

    def decode(self, result: TaskResult, as_type: Any = Any) -> Any:
        """Returns the output in a result, as `result` does."""
        if result.status is not TaskStatus.SUCCEEDED:
            raise TaskFailedError(result.id, result.status.name.lower(), result.message)
        if result.output is None:
            if not result.output_available:
                raise OutputUnavailableError(f"the output of task {result.id} is no longer kept")
            return self.options.codec.decode(b"", "", as_type)
        return self.options.codec.decode(result.output, result.content_type, as_type)

    async def cancel(self, target: int | str, *, call_deadline: Seconds | None = None) -> bool:
        """Cancels a task; True if it is cancelled, by whichever call."""
        request = tasks_pb2.CancelRequest()
        fill_ref(request.task, target)
        ends_at = self._ends_at(call_deadline)
        answer = await self._caller.call(_calls.CANCEL, request, idempotent=True, ends_at=ends_at)
        return answer.cancelled

    async def retry(self, target: int | str, *, call_deadline: Seconds | None = None) -> bool:
        """Puts a task that ended without success back, with fresh attempts.

        Raises:
            KeyInUseError: Another live task has its key.
            DependencyImpossibleError: A dependency cannot be met any more.
            NotTerminalError: The task has not ended.
        """
        request = tasks_pb2.RetryRequest()
        fill_ref(request.task, target)
        ends_at = self._ends_at(call_deadline)
        answer = await self._caller.call(_calls.RETRY, request, idempotent=False, ends_at=ends_at)
        return answer.retried

    async def delete(self, target: int | str, *, call_deadline: Seconds | None = None) -> bool:
        """Forgets a finished task; True if it was there.

        Raises:
            ConflictError: The task has not finished.
        """
        request = tasks_pb2.DeleteRequest()
        fill_ref(request.task, target)
        ends_at = self._ends_at(call_deadline)
        answer = await self._caller.call(_calls.DELETE, request, idempotent=True, ends_at=ends_at)
        return answer.deleted

    async def bulk(
        self,
        action: BulkAction,
        wanted: TaskFilter,
        *,
        limit: int = 0,
        after: int = 0,
        dry_run: bool = False,
        call_deadline: Seconds | None = None,
    ) -> BulkOutcome:
        """Cancels or retries all tasks that a filter finds, at most `limit` of them per call.

        Args:
            action: What to do.
            wanted: Which tasks.
            limit: Most tasks to change; 0 is the server's limit.
            after: Only tasks with a higher id.
            dry_run: Count, but change nothing.
            call_deadline: Time for this call, seconds.
        """
        request = tasks_pb2.BulkRequest(limit=limit, after=after, dry_run=dry_run)
        request.action = action  # type: ignore[assignment]
        fill_filter(request.filter, wanted)
        ends_at = self._ends_at(call_deadline)
        answer = await self._caller.call(_calls.BULK, request, idempotent=dry_run, ends_at=ends_at)
        return BulkOutcome(
            matched=answer.matched,
            changed=answer.changed,
            next_after=answer.next_after,
            unavailable_shards=tuple(answer.unavailable_shards),
        )

    def list(
        self,
        wanted: TaskFilter | None = None,
        *,
        after: int = 0,
        page_size: int = 0,
        newest_first: bool = False,
    ) -> TaskPages:
        """Lists tasks in id order; iterate over it with `async for`.

        Args:
            wanted: Which tasks; all when None.
            after: Only tasks beyond this id.
            page_size: Tasks per request; 0 is the server's choice.
            newest_first: Highest ids first.
        """
        request = tasks_pb2.ListTasksRequest(
            after=after, limit=page_size, newest_first=newest_first
        )
        fill_filter(request, wanted or TaskFilter())
        return TaskPages(self._caller, request, self._deadline)

    def watch(
        self,
        *,
        pools: Sequence[str] = (),
        ids: Sequence[int] = (),
        keys: Sequence[str] = (),
        all_transitions: bool = False,
        after_cursor: bytes = b"",
    ) -> AsyncIterator[StatusEvent]:
        """Watches tasks change; reconnects and resumes by itself, for ever.

        The end of a task is never missed and may come twice; other transitions may be missed
        across a reconnection. Servers that know no cursors are watched anew after a break.

        Args:
            pools: Tasks of these pools; with neither pools, ids nor keys: all.
            ids: These tasks.
            keys: Tasks with these keys.
            all_transitions: Every change; else only ends.
            after_cursor: Resume after an event seen before.

        Raises:
            CursorUnknownError: The server cannot resume from that cursor.
        """
        request = tasks_pb2.WatchRequest(
            pools=pools,
            ids=ids,
            keys=keys,
            all_transitions=all_transitions,
            after_cursor=after_cursor,
            bookmarks=True,
        )
        return watch_events(self._caller, request)
