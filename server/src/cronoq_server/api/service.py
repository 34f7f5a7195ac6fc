"""What each operation does, whatever transport it came by: authorize, then ask the engine.

Every method takes the caller as a `Principal` and values that have been checked, asks the leader
of this moment, and returns the engine's answer. A refusal is raised as `Refused`, from here as
from below, and the transport gives it its form.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import TypeVar

import msgspec

from cronoq_server.api.frames import Registration
from cronoq_server.api.gate import Gate
from cronoq_server.config import LimitsConfig
from cronoq_server.engine import (
    MILLISECOND,
    SECOND,
    YEAR,
    Admitted,
    Bulk,
    BulkAction,
    Bulked,
    Cancel,
    Delete,
    Done,
    Duration,
    ErrorReason,
    Event,
    Get,
    GetOutput,
    Instant,
    ListTasks,
    Page,
    Redrive,
    Refusal,
    Result,
    Results,
    Submit,
    SubmitMode,
    TaskDetail,
    TaskFilter,
    TaskRef,
    TaskSpec,
    TaskView,
    Wait,
    WorkerJoined,
)
from cronoq_server.runtime.driver import Driver
from cronoq_server.runtime.refusals import Refused
from cronoq_server.runtime.sessions import Session
from cronoq_server.runtime.watchers import WatchFilter, WatchStream

A = TypeVar("A")

ANSWER_MARGIN: Duration = 50 * MILLISECOND
"""A parked call is refused this long before its deadline, so that the refusal arrives."""

LOOKUPS_AT_ONCE = 1000

WAIT_TIMEOUT = Refusal(ErrorReason.WAIT_TIMEOUT, "the task has not ended yet")
NO_ANSWER = Refusal(
    ErrorReason.STORE_UNAVAILABLE, "no answer within request_timeout_s; the outcome is unknown"
)


class Principal(msgspec.Struct, frozen=True):
    """Who calls, and what they may see.

    Attributes:
        name: What the credential is called; sessions are bound to it.
        pools: Pools it may use; None = all.
    """

    name: str
    pools: frozenset[str] | None = None


ANONYMOUS = Principal("anonymous")
"""Everybody, on a server without authentication."""


class Service:
    """The operations of one server."""

    def __init__(self, limits: LimitsConfig, gate: Gate, leader: Callable[[], Driver]) -> None:
        """Serves whoever leads.

        Args:
            limits: Bounds on what callers may ask for.
            gate: Counts callers.
            leader: The driver of this moment; raises `Refused` when this process does not lead.
        """
        self.limits = limits
        self.gate = gate
        self._leader = leader

    # Submitting

    async def submit(
        self,
        who: Principal,
        specs: Sequence[TaskSpec],
        mode: SubmitMode,
        remaining_s: float | None,
    ) -> Admitted:
        """Admits tasks.

        Args:
            who: The caller.
            specs: The tasks, checked.
            mode: How they belong together.
            remaining_s: Seconds until the caller's deadline; None = it has none.

        Raises:
            Refused: The tasks can't be admitted.
        """
        driver = self._leader()
        parks = mode is not SubmitMode.MANY
        until = driver.clock.now().mono + _parking_time(remaining_s)
        with self.gate.request(may_park=parks):
            return await self._ask(
                driver,
                Admitted,
                lambda call: Submit(call, list(specs), mode, until, who.pools),
                bounded=not parks,
            )

    async def submit_many(
        self, who: Principal, specs: Sequence[TaskSpec | Refusal]
    ) -> tuple[Admitted, Mapping[int, Refusal]]:
        """Admits tasks that stand each on its own.

        Args:
            who: The caller.
            specs: The tasks; a refusal stands for one that did not pass its checks.

        Returns:
            What became of those that passed, in order, and the refusals by index.

        Raises:
            Refused: None of them could be looked at.
        """
        refused = {at: spec for at, spec in enumerate(specs) if isinstance(spec, Refusal)}
        passed = [spec for spec in specs if not isinstance(spec, Refusal)]
        if not passed:
            self._leader()
            return Admitted([]), refused
        return await self.submit(who, passed, SubmitMode.MANY, None), refused

    # Single tasks

    async def cancel(self, who: Principal, target: TaskRef) -> bool:
        """Ends a task; true if it is cancelled now.

        Raises:
            Refused: There is no such task.
        """
        done = await self.request(Done, lambda call: Cancel(call, target, who.pools))
        return done.changed

    async def retry(self, who: Principal, target: TaskRef) -> bool:
        """Puts an ended task back with a fresh budget; false if it had succeeded.

        Raises:
            Refused: There is no such task, it has not ended, or its key or edges forbid it.
        """
        done = await self.request(Done, lambda call: Redrive(call, target, who.pools))
        return done.changed

    async def delete(self, who: Principal, target: TaskRef) -> bool:
        """Forgets an ended task.

        Raises:
            Refused: There is no such task, or it has not ended.
        """
        done = await self.request(Done, lambda call: Delete(call, target, who.pools))
        return done.changed

    async def bulk(
        self,
        who: Principal,
        wanted: TaskFilter,
        action: BulkAction,
        *,
        after: int,
        limit: int,
        dry_run: bool,
    ) -> Bulked:
        """Does something to one page of tasks; `limit` 0 is the longest page there is."""
        most = self.limits.max_list
        limit = min(limit or most, most)
        return await self.request(
            Bulked, lambda call: Bulk(call, wanted, action, limit, after, dry_run, who.pools)
        )

    async def get(self, who: Principal, target: TaskRef) -> TaskView:
        """Shows a task.

        Raises:
            Refused: There is no such task.
        """
        return await self.request(TaskView, lambda call: Get(call, target, scope=who.pools))

    async def describe(self, who: Principal, target: TaskRef) -> TaskDetail:
        """Shows a task with its payload, attempts and edges.

        Raises:
            Refused: There is no such task.
        """
        return await self.request(
            TaskDetail, lambda call: Get(call, target, detail=True, scope=who.pools)
        )

    async def list_tasks(
        self,
        who: Principal,
        wanted: TaskFilter,
        *,
        after: int,
        limit: int,
        newest_first: bool = False,
    ) -> Page:
        """One page of tasks; `limit` 0 is the longest page there is."""
        most = self.limits.max_list
        limit = min(limit or most, most)
        return await self.request(
            Page, lambda call: ListTasks(call, wanted, after, limit, newest_first, who.pools)
        )

    async def get_output(self, who: Principal, lease: int, task_id: int) -> Result:
        """The output of a parent of a leased task.

        Raises:
            Refused: The lease is not held, or its task does not depend on that one.
        """
        return await self.request(
            Result, lambda call: GetOutput(call, None, lease, task_id, who.pools)
        )

    # Waiting

    async def wait(self, who: Principal, target: TaskRef, timeout: Duration) -> Result:
        """Waits for the end of a task.

        Raises:
            Refused: There is no such task, or it has not ended in time.
        """
        ids = (target,) if isinstance(target, int) else ()
        keys = (target,) if isinstance(target, str) else ()
        async with aclosing(self._results(who, ids, keys, timeout, outputs=True)) as stream:
            async for results in stream:
                for _, refusal in results.refusals:
                    raise Refused(refusal)
                for result in results.results:
                    return result
        raise Refused(WAIT_TIMEOUT)

    async def wait_many(
        self,
        who: Principal,
        ids: Sequence[int],
        keys: Sequence[str],
        timeout: Duration,
        *,
        outputs: bool,
    ) -> AsyncGenerator[Results, None]:
        """Tells the ends of tasks as they come; what has not ended in time is refused at last.

        Args:
            who: The caller.
            ids: Tasks by id.
            keys: Tasks by key.
            timeout: How long to wait, nanoseconds.
            outputs: Whether results carry outputs.

        Raises:
            Refused: This server stopped leading, or too many wait.
        """
        waiting: dict[int, list[TaskRef]] = {}
        for task_id in ids:
            waiting.setdefault(task_id, []).append(task_id)
        unknown = []
        for key, found in await self._look_up(who, keys):
            if isinstance(found, Refusal):
                unknown.append((key, found))
            else:
                waiting.setdefault(found, []).append(key)
        if unknown:
            yield Results(0, [], tuple(unknown), last=not waiting)
        if not waiting:
            return
        ends = self._results(who, tuple(waiting), (), timeout, outputs=outputs)
        async with aclosing(ends) as stream:
            async for results in stream:
                yield _named_as_asked(results, waiting)
        late = tuple((ref, WAIT_TIMEOUT) for refs in waiting.values() for ref in refs)
        if late:
            yield Results(0, [], late, last=True, timed_out=True)

    async def _look_up(
        self, who: Principal, keys: Sequence[str]
    ) -> list[tuple[str, int | Refusal]]:
        """The ids behind keys, or why there are none."""
        found: list[tuple[str, int | Refusal]] = []
        for start in range(0, len(keys), LOOKUPS_AT_ONCE):
            some = keys[start : start + LOOKUPS_AT_ONCE]
            ids = await asyncio.gather(*(self._id_of(who, key) for key in some))
            found += zip(some, ids, strict=True)
        return found

    async def _id_of(self, who: Principal, key: str) -> int | Refusal:
        try:
            view = await self._ask(
                self._leader(), TaskView, lambda call: Get(call, key, scope=who.pools)
            )
        except Refused as refused:
            if refused.refusal.reason is ErrorReason.TASK_UNKNOWN:
                return refused.refusal
            raise
        return view.task_id

    async def _results(
        self,
        who: Principal,
        ids: tuple[int, ...],
        keys: tuple[str, ...],
        timeout: Duration,
        *,
        outputs: bool,
    ) -> AsyncGenerator[Results, None]:
        driver = self._leader()
        until = driver.clock.now().mono + timeout
        with self.gate.waiter():
            stream = driver.inbox.results(
                lambda call: Wait(call, ids, keys, until, who.pools), outputs=outputs
            )
            try:
                async for results in stream:
                    yield results
            finally:
                await stream.aclose()

    async def watch(
        self, who: Principal, wanted: WatchFilter, cursor: bytes, *, bookmarks: bool
    ) -> WatchStream:
        """Begins to watch; the caller closes the stream.

        Raises:
            Refused: The cursor is unknown, or this server does not lead.
        """
        return await self._leader().watchers.open(
            wanted, after_cursor=cursor or None, bookmarks=bookmarks, scope=who.pools
        )

    # Workers

    def join(self, who: Principal, registration: Registration) -> Session:
        """Opens a worker's session; the engine's answer comes by its outbound queue.

        Raises:
            Refused: This server does not lead, or stops.
        """
        return self._leader().sessions.open(
            lambda number, token: WorkerJoined(
                session=number,
                pool=registration.pool,
                slots=registration.slots,
                name=registration.name,
                labels=registration.labels,
                kinds=registration.kinds,
                protocol=registration.version,
                credential=who.name,
                token=token if registration.batches else b"",
                sdk=registration.sdk,
                resume=registration.resume,
            )
        )

    # Asking

    def wall(self) -> Instant:
        """What time it is.

        Raises:
            Refused: This server does not lead.
        """
        return self._leader().clock.now().wall

    async def request(self, kind: type[A], build: Callable[[int], Event]) -> A:
        """Asks the engine for an answer of one kind, as one of the bounded requests.

        Raises:
            Refused: The engine refuses, nobody leads, or too many ask.
        """
        with self.gate.request():
            return await self._ask(self._leader(), kind, build)

    async def _ask(
        self,
        driver: Driver,
        kind: type[A],
        build: Callable[[int], Event],
        *,
        bounded: bool = True,
    ) -> A:
        """Asks the engine; `bounded` by the server's own timeout."""
        try:
            async with asyncio.timeout(self.limits.request_timeout_s if bounded else None):
                answer = await driver.inbox.ask(build)
        except TimeoutError as error:
            raise Refused(NO_ANSWER) from error
        if isinstance(answer, Refusal):
            raise Refused(answer)
        assert isinstance(answer, kind), answer
        return answer


def _parking_time(remaining_s: float | None) -> Duration:
    """How long a submit may be parked: up to shortly before its caller's deadline."""
    if remaining_s is None:
        return YEAR
    remaining = max(0, min(YEAR, round(remaining_s * SECOND)))
    return max(remaining // 2, remaining - ANSWER_MARGIN)


def _named_as_asked(results: Results, waiting: dict[int, list[TaskRef]]) -> Results:
    """Takes those told off `waiting`; a task that was named twice is told twice."""
    told = []
    for result in results.results:
        told += [result] * len(waiting.pop(result.task_id, ()))
    refusals = []
    for ref, refusal in results.refusals:
        assert isinstance(ref, int), ref
        refusals += [(name, refusal) for name in waiting.pop(ref, ())]
    return Results(0, told, tuple(refusals))
