"""What each operation does, whatever transport it came by: authorize, then ask the engine.

Every method takes the caller as a `Principal` and values that have been checked, makes sure that
the caller may do this before it looks at anything else, asks the leader of this moment, and
returns the engine's answer. A refusal is raised as `Refused`, from here as
from below, and the transport gives it its form.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from typing import Protocol

from cronoq_server.api import audit, tenancy
from cronoq_server.api.auth import (
    Operation,
    Principal,
    require,
    require_labels,
)
from cronoq_server.api.frames import Registration
from cronoq_server.api.submitting import Submitting
from cronoq_server.engine import (
    Bulk,
    BulkAction,
    Bulked,
    Cancel,
    Delete,
    Done,
    Duration,
    ErrorReason,
    Get,
    GetOutput,
    ListTasks,
    Page,
    Redrive,
    Refusal,
    Result,
    Results,
    TaskDetail,
    TaskFilter,
    TaskRef,
    TaskView,
    Wait,
    WorkerJoined,
)
from cronoq_server.runtime.refusals import Refused
from cronoq_server.runtime.sessions import Session
from cronoq_server.runtime.watchers import WatchBatch, WatchFilter

WAIT_TIMEOUT = Refusal(ErrorReason.WAIT_TIMEOUT, "the task has not ended yet")


class EventStream(Protocol):
    """A watch: iterate it, then close it."""

    @property
    def refusals(self) -> Sequence[tuple[TaskRef, Refusal]]:
        """Named tasks that cannot be watched."""

    def __aiter__(self) -> AsyncIterator[WatchBatch]:
        """Its events, batch by batch."""

    async def aclose(self) -> None:
        """Watches no more."""


class Service(Submitting):
    """The operations of one server."""

    # Single tasks

    async def cancel(self, who: Principal, target: TaskRef) -> bool:
        """Ends a task; true if it is cancelled now.

        Raises:
            Refused: There is no such task.
        """
        require(who, Operation.CANCEL)
        own = await self._own(who, target)
        done = await self.request(Done, lambda call: Cancel(call, own, who.pools))
        return done.changed

    async def retry(self, who: Principal, target: TaskRef) -> bool:
        """Puts an ended task back with a fresh budget; false if it had succeeded.

        Raises:
            Refused: There is no such task, it has not ended, or its key or edges forbid it.
        """
        require(who, Operation.RETRY)
        own = await self._id(who, target)
        done = await self.request(Done, lambda call: Redrive(call, own, who.pools))
        if done.changed:
            audit.record(who, Operation.RETRY, task=own)
        return done.changed

    async def delete(self, who: Principal, target: TaskRef) -> bool:
        """Forgets an ended task.

        Raises:
            Refused: There is no such task, or it has not ended.
        """
        require(who, Operation.DELETE)
        own = await self._id(who, target)
        done = await self.request(Done, lambda call: Delete(call, own, who.pools))
        audit.record(who, Operation.DELETE, task=own)
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
        require(who, Operation.BULK, *wanted.pools)
        own = tenancy.own_filter(who, wanted)
        most = self.limits.max_list
        limit = min(limit or most, most)
        done = await self.request(
            Bulked, lambda call: Bulk(call, own, action, limit, after, dry_run, who.pools)
        )
        if not dry_run:
            facts = {"action": action.name.lower(), "after": after, "changed": done.changed}
            audit.record(who, Operation.BULK, **facts)
        return done

    async def get(self, who: Principal, target: TaskRef) -> TaskView:
        """Shows a task.

        Raises:
            Refused: There is no such task.
        """
        require(who, Operation.GET)
        own = await self._own(who, target)
        return await self.request(TaskView, lambda call: Get(call, own, scope=who.pools))

    async def describe(self, who: Principal, target: TaskRef) -> TaskDetail:
        """Shows a task with its payload, attempts and edges.

        Raises:
            Refused: There is no such task.
        """
        require(who, Operation.DESCRIBE)
        own = await self._own(who, target)
        return await self.request(
            TaskDetail, lambda call: Get(call, own, detail=True, scope=who.pools)
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
        require(who, Operation.LIST_TASKS, *wanted.pools)
        own = tenancy.own_filter(who, wanted)
        most = self.limits.max_list
        limit = min(limit or most, most)
        return await self.request(
            Page, lambda call: ListTasks(call, own, after, limit, newest_first, who.pools)
        )

    async def get_output(self, who: Principal, lease: int, task_id: int) -> Result:
        """The output of a parent of a leased task.

        Raises:
            Refused: The lease is not held, or its task does not depend on that one.
        """
        require(who, Operation.GET_OUTPUT)
        return await self.request(
            Result, lambda call: GetOutput(call, None, lease, task_id, who.pools)
        )

    # Waiting

    async def wait(self, who: Principal, target: TaskRef, timeout: Duration) -> Result:
        """Waits for the end of a task.

        Raises:
            Refused: There is no such task, or it has not ended in time.
        """
        require(who, Operation.WAIT)
        own = await self._own(who, target)
        ids = (own,) if isinstance(own, int) else ()
        keys = (own,) if isinstance(own, str) else ()
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
        require(who, Operation.WAIT)
        waiting: dict[int, list[TaskRef]] = {}
        named: Sequence[TaskRef] = keys
        if who.tenant is None:
            for task_id in ids:
                waiting.setdefault(task_id, []).append(task_id)
        else:
            named = (*ids, *keys)
        unknown: list[tuple[TaskRef, Refusal]] = []
        for ref, found in await self._look_up(who, named):
            if isinstance(found, Refusal):
                unknown.append((ref, found))
            else:
                waiting.setdefault(found, []).append(ref)
        if unknown:
            yield Results(0, [], tuple(unknown), last=not waiting)
        if not waiting:
            return
        ends = self._results(who, tuple(waiting), (), timeout, outputs=outputs)
        async with aclosing(ends) as stream:
            async for results in stream:
                yield as_asked(results, waiting)
        late = tuple((ref, WAIT_TIMEOUT) for refs in waiting.values() for ref in refs)
        if late:
            yield Results(0, [], late, last=True, timed_out=True)

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
    ) -> EventStream:
        """Begins to watch; the caller closes the stream.

        Raises:
            Refused: The cursor is unknown, or this server does not lead; or the caller has a
                tenant and names no task, or one that is not there.
        """
        require(who, Operation.WATCH, *wanted.pools)
        if who.tenant is not None:
            wanted = await self._own_watch(who, wanted)
        return await self._leader().watchers.open(
            wanted, after_cursor=cursor or None, bookmarks=bookmarks, scope=who.pools
        )

    async def _own_watch(self, who: Principal, wanted: WatchFilter) -> WatchFilter:
        """The same watch by ids of the caller's own tasks: events don't tell whose they are."""
        names: tuple[TaskRef, ...] = (*wanted.ids, *wanted.keys)
        if not names:
            raise Refused(tenancy.NAME_TASKS)
        ids = []
        for _, found in await self._look_up(who, names):
            if isinstance(found, Refusal):
                raise Refused(found)
            ids.append(found)
        return WatchFilter(wanted.pools, tuple(ids), (), wanted.all_transitions)

    # Workers

    def join(self, who: Principal, registration: Registration) -> Session:
        """Opens a worker's session; the engine's answer comes by its outbound queue.

        Raises:
            Refused: This server does not lead, or stops.
        """
        require(who, Operation.WORK, registration.pool)
        require_labels(who, registration.labels)
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


def as_asked(results: Results, waiting: dict[int, list[TaskRef]]) -> Results:
    """Takes those told off `waiting`; a task that was named twice is told twice."""
    told = []
    for result in results.results:
        told += [result] * len(waiting.pop(result.task_id, ()))
    refusals = []
    for ref, refusal in results.refusals:
        assert isinstance(ref, int), ref
        refusals += [(name, refusal) for name in waiting.pop(ref, ())]
    return Results(0, told, tuple(refusals))
