"""The operations of another shard, asked over the wire with the caller's own credential.

The methods are those of `Service` and `AdminService`, and so are their answers and refusals, so
that a caller can't tell which server did the work. Rules a change must keep:

1. A call that is passed on is marked, and its receiver passes it no further.
2. It may take as long as the caller waits, less a margin for the way back; a member of a read over
   many shards is bounded by `peer_timeout_s`.
3. A change is asked once. Only where a peer says that it executed nothing is it asked again.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing, contextmanager
from typing import Any, Final

import grpc
from google.protobuf.message import Message

from cronoq_server._proto import admin_pb2, task_pb2, tasks_pb2
from cronoq_server.api import admin_convert, convert, peer_convert
from cronoq_server.api.passing import FORWARDED_KEY, passing
from cronoq_server.api.service import WAIT_TIMEOUT
from cronoq_server.api.specs import SpecReader
from cronoq_server.engine import (
    SECOND,
    Admitted,
    Backfilled,
    BulkAction,
    Bulked,
    Duration,
    ErrorReason,
    Instant,
    Page,
    Refusal,
    ResourceView,
    Result,
    Results,
    ScheduleSpec,
    SnapshotView,
    StoredSchedule,
    SubmitMode,
    TaskDetail,
    TaskFilter,
    TaskRef,
    TaskSpec,
    TaskView,
    WorkerView,
)
from cronoq_server.runtime.refusals import Refused
from cronoq_server.runtime.watchers import WatchBatch, WatchFilter
from cronoq_server.sharding.answers import read_status, refusal_of
from cronoq_server.sharding.peers import Metadata, Peer

WAY_BACK_S: Final = 0.05
"""What a call that is passed on leaves of its caller's time for the way back."""

PARKED_S: Final = 366 * 86_400.0
"""A submission that may be parked waits as long as its caller does."""

TASKS: Final = "/cronoq.v1.Tasks/"
ADMIN: Final = "/cronoq.v1.Admin/"
EMPTY: Final = task_pb2.Empty()


class Remote:
    """One other shard.

    Attributes:
        peer: Its servers.
    """

    def __init__(self, peer: Peer, reader: SpecReader, own: str, most_s: float) -> None:
        """Asks nothing yet.

        Args:
            peer: Its servers.
            reader: Reads the specs that come back.
            own: The name of the asking server's shard.
            most_s: Longest time for a call whose caller has no deadline, seconds.
        """
        self.peer = peer
        self._reader = reader.unbounded()
        self._own = own
        self._most_s = most_s

    # Tasks

    async def submit(
        self, specs: Sequence[TaskSpec], mode: SubmitMode, remaining_s: float | None
    ) -> Admitted:
        """See `Service.submit`; mode `MANY` has a method of its own here as there.

        The other side parks a call until shortly before its deadline, which has to leave time for
        the commit as well: a time that is no deadline but bounds the parking becomes that longer.
        """
        within_s = PARKED_S if remaining_s is None else remaining_s + self.peer.timeout_s
        if mode is SubmitMode.ONE:
            single = tasks_pb2.SubmitRequest()
            convert.fill_spec(single.task, specs[0])
            answer = await self._ask(
                TASKS + "Submit", single, tasks_pb2.SubmitResponse, within_s=within_s
            )
            return Admitted([answer.id], (0,) if answer.duplicate else ())
        batch = tasks_pb2.SubmitBatchRequest()
        for spec in specs:
            convert.fill_spec(batch.tasks.add(), spec)
        answer = await self._ask(
            TASKS + "SubmitBatch", batch, tasks_pb2.SubmitBatchResponse, within_s=within_s
        )
        members = answer.tasks
        duplicates = tuple(at for at, member in enumerate(members) if member.duplicate)
        return Admitted([member.id for member in members], duplicates)

    async def submit_many(self, specs: Sequence[TaskSpec]) -> Admitted:
        """See `Service.submit_many`, for specs that passed their checks."""
        request = tasks_pb2.SubmitManyRequest()
        for spec in specs:
            convert.fill_spec(request.tasks.add(), spec)
        answer = await self._ask(TASKS + "SubmitMany", request, tasks_pb2.SubmitManyResponse)
        ids, duplicates, refusals = [], [], []
        for at, outcome in enumerate(answer.outcomes):
            ids.append(outcome.response.id)
            if outcome.WhichOneof("outcome") == "error":
                refusals.append((at, self._refusal(outcome.error)))
            elif outcome.response.duplicate:
                duplicates.append(at)
        return Admitted(ids, tuple(duplicates), tuple(refusals))

    async def cancel(self, target: TaskRef) -> bool:
        """See `Service.cancel`."""
        request = tasks_pb2.CancelRequest(task=_ref(target))
        answer = await self._ask(TASKS + "Cancel", request, tasks_pb2.CancelResponse)
        return bool(answer.cancelled)

    async def retry(self, target: TaskRef) -> bool:
        """See `Service.retry`."""
        request = tasks_pb2.RetryRequest(task=_ref(target))
        answer = await self._ask(TASKS + "Retry", request, tasks_pb2.RetryResponse)
        return bool(answer.retried)

    async def delete(self, target: TaskRef) -> bool:
        """See `Service.delete`."""
        request = tasks_pb2.DeleteRequest(task=_ref(target))
        answer = await self._ask(TASKS + "Delete", request, tasks_pb2.DeleteResponse)
        return bool(answer.deleted)

    async def get(self, target: TaskRef, *, in_many: bool = False) -> TaskView:
        """See `Service.get`."""
        request = tasks_pb2.GetRequest(task=_ref(target))
        answer = await self._ask(TASKS + "Get", request, task_pb2.TaskInfo, in_many=in_many)
        return peer_convert.task_view(answer)

    async def describe(self, target: TaskRef) -> TaskDetail:
        """See `Service.describe`."""
        request = tasks_pb2.GetRequest(task=_ref(target))
        answer = await self._ask(TASKS + "Describe", request, task_pb2.TaskDetail)
        return peer_convert.task_detail(answer, self._reader)

    async def list_tasks(
        self, wanted: TaskFilter, *, after: int, limit: int, newest_first: bool
    ) -> Page:
        """See `Service.list_tasks`."""
        request = tasks_pb2.ListTasksRequest(after=after, limit=limit, newest_first=newest_first)
        _fill_filter(request, wanted)
        answer = await self._ask(
            TASKS + "ListTasks", request, tasks_pb2.ListTasksResponse, in_many=True
        )
        return peer_convert.page(answer)

    async def bulk(
        self, wanted: TaskFilter, action: BulkAction, *, after: int, limit: int, dry_run: bool
    ) -> Bulked:
        """See `Service.bulk`."""
        request = tasks_pb2.BulkRequest(after=after, limit=limit, dry_run=dry_run)
        request.action = int(action)  # type: ignore[assignment]
        _fill_filter(request.filter, wanted)
        answer = await self._ask(TASKS + "Bulk", request, tasks_pb2.BulkResponse)
        return peer_convert.bulked(answer)

    async def wait(self, target: TaskRef, timeout: Duration) -> Result:
        """See `Service.wait`."""
        request = tasks_pb2.WaitRequest(task=_ref(target), timeout_s=timeout / SECOND)
        within = timeout / SECOND + self.peer.timeout_s
        with _within_own_time():
            answer = await self._ask(TASKS + "Wait", request, task_pb2.TaskResult, within_s=within)
        return peer_convert.result(answer)

    async def wait_many(
        self, ids: Sequence[int], timeout: Duration, *, outputs: bool
    ) -> AsyncGenerator[Results, None]:
        """See `Service.wait_many`, by ids alone."""
        request = tasks_pb2.WaitManyRequest(
            ids=ids, timeout_s=timeout / SECOND, without_output=not outputs
        )
        within = timeout / SECOND + self.peer.timeout_s
        heard = self._hear(TASKS + "WaitMany", request, tasks_pb2.TaskResults, within)
        async with aclosing(heard) as stream:
            with _within_own_time():
                async for message in stream:
                    refusals = tuple(
                        (peer_convert.reference(error.task), self._refusal(error.status))
                        for error in message.errors
                    )
                    results = [peer_convert.result(one) for one in message.results]
                    yield Results(0, results, refusals)

    async def watch(
        self, wanted: WatchFilter, cursor: bytes, *, bookmarks: bool
    ) -> AsyncGenerator[WatchBatch, None]:
        """The batches of a watch; an event that is not its message's last has the cursor before."""
        request = tasks_pb2.WatchRequest(
            pools=wanted.pools,
            ids=wanted.ids,
            keys=wanted.keys,
            all_transitions=wanted.all_transitions,
            after_cursor=cursor,
            bookmarks=bookmarks,
        )
        before = cursor
        heard = self._hear(TASKS + "WatchBatches", request, tasks_pb2.StatusEvents, None)
        async with aclosing(heard) as stream:
            async for message in stream:
                behind = message.cursor
                last = len(message.events) - 1
                events = [
                    (peer_convert.event(event), behind if at == last else before)
                    for at, event in enumerate(message.events)
                ]
                before = behind
                yield WatchBatch(events, behind)

    # Operators' operations

    async def snapshot(self, now: Instant) -> tuple[SnapshotView, tuple[ResourceView, ...]]:
        """See `AdminService.snapshot`; the shard's resources come along."""
        answer = await self._ask(
            ADMIN + "Snapshot", EMPTY, admin_pb2.SnapshotResponse, in_many=True
        )
        resources = tuple(peer_convert.resource(one) for one in answer.resources)
        return peer_convert.snapshot(answer, now), resources

    async def list_workers(self) -> tuple[WorkerView, ...]:
        """See `AdminService.list_workers`."""
        answer = await self._ask(
            ADMIN + "ListWorkers", EMPTY, admin_pb2.ListWorkersResponse, in_many=True
        )
        return tuple(peer_convert.worker(one) for one in answer.workers)

    async def list_resources(self) -> tuple[ResourceView, ...]:
        """See `AdminService.list_resources`."""
        answer = await self._ask(
            ADMIN + "ListResources", EMPTY, admin_pb2.ListResourcesResponse, in_many=True
        )
        return tuple(peer_convert.resource(one) for one in answer.resources)

    async def list_schedules(self) -> list[StoredSchedule]:
        """See `AdminService.list_schedules`."""
        answer = await self._ask(
            ADMIN + "ListRecurring", EMPTY, admin_pb2.ListRecurringResponse, in_many=True
        )
        return [peer_convert.schedule(one) for one in answer.schedules]

    async def get_schedule(self, name: str, pool: str, *, in_many: bool = False) -> StoredSchedule:
        """See `AdminService.get_schedule`."""
        request = admin_pb2.GetRecurringRequest(name=name, pool=pool or None)
        answer = await self._ask(
            ADMIN + "GetRecurring", request, admin_pb2.RecurringDetail, in_many=in_many
        )
        return peer_convert.schedule_detail(answer, self._reader)

    async def put_schedule(self, spec: ScheduleSpec, *, paused: bool) -> None:
        """See `AdminService.put_schedule`."""
        request = admin_pb2.RecurringRequest()
        admin_convert.fill_schedule_spec(request, spec, paused=paused)
        await self._ask(ADMIN + "AddRecurring", request, task_pb2.Empty)

    async def remove_schedule(self, name: str, pool: str) -> bool:
        """See `AdminService.remove_schedule`."""
        request = admin_pb2.RemoveRecurringRequest(name=name, pool=pool or None)
        answer = await self._ask(
            ADMIN + "RemoveRecurring", request, admin_pb2.RemoveRecurringResponse
        )
        return bool(answer.removed)

    async def pause_schedule(self, name: str, pool: str, *, paused: bool) -> None:
        """See `AdminService.pause_schedule`."""
        request = admin_pb2.PauseRecurringRequest(name=name, pool=pool or None, paused=paused)
        await self._ask(ADMIN + "PauseRecurring", request, task_pb2.Empty)

    async def trigger_schedule(self, name: str, pool: str) -> int:
        """See `AdminService.trigger_schedule`."""
        request = admin_pb2.TriggerRecurringRequest(name=name, pool=pool or None)
        answer = await self._ask(
            ADMIN + "TriggerRecurring", request, admin_pb2.TriggerRecurringResponse
        )
        return int(answer.task_id)

    async def backfill_schedule(
        self, name: str, pool: str, start: Instant, end: Instant, *, dry_run: bool
    ) -> Backfilled:
        """See `AdminService.backfill_schedule`."""
        request = admin_pb2.BackfillRecurringRequest(
            name=name, pool=pool or None, from_unix_ns=start, to_unix_ns=end, dry_run=dry_run
        )
        answer = await self._ask(
            ADMIN + "BackfillRecurring", request, admin_pb2.BackfillRecurringResponse
        )
        following = answer.next_unix_ns if answer.HasField("next_unix_ns") else None
        return Backfilled(answer.created, following)

    async def pause_pool(self, pool: str, *, paused: bool) -> None:
        """See `AdminService.pause_pool`."""
        if paused:
            pause = admin_pb2.PausePoolRequest(pool=pool)
            await self._ask(ADMIN + "PausePool", pause, task_pb2.Empty)
        else:
            resume = admin_pb2.ResumePoolRequest(pool=pool)
            await self._ask(ADMIN + "ResumePool", resume, task_pb2.Empty)

    async def resize_resource(
        self, name: str, permits: int | None, rate: int | None, burst: int | None
    ) -> ResourceView:
        """See `AdminService.resize_resource`."""
        request = admin_pb2.SetResourceRequest(name=name, permits=permits, burst=burst)
        if rate is not None:
            request.rate = rate / admin_convert.NANO
        answer = await self._ask(ADMIN + "SetResource", request, admin_pb2.Resource)
        return peer_convert.resource(answer)

    # Asking

    async def _ask(
        self,
        method: str,
        request: Message,
        answer: type[Message],
        *,
        in_many: bool = False,
        within_s: float | None = None,
    ) -> Any:
        """One call, for as long as its caller waits.

        Args:
            method: Its full name.
            request: What is asked.
            answer: What comes back.
            in_many: Whether it is one of several that make up one answer.
            within_s: How long the answer may take, seconds; None = as the server's own calls.
        """
        timeout_s = self._timeout(self.peer.timeout_s if in_many else within_s or self._most_s)
        try:
            return await self.peer.call(method, request, answer, self._metadata(), timeout_s)
        except grpc.aio.AioRpcError as error:
            raise Refused(refusal_of(error, self.peer.shard)) from error

    async def _hear(
        self, method: str, request: Message, answer: type[Message], within_s: float | None
    ) -> AsyncGenerator[Any, None]:
        """One call with many answers; `within_s` None = as long as its caller listens."""
        timeout_s = self._timeout(within_s)
        heard = self.peer.stream(method, request, answer, self._metadata(), timeout_s)
        try:
            async with aclosing(heard) as stream:
                async for message in stream:
                    yield message
        except grpc.aio.AioRpcError as error:
            raise Refused(refusal_of(error, self.peer.shard)) from error

    def _timeout(self, most_s: float | None) -> float | None:
        remaining = passing().remaining_s()
        if remaining is None:
            return most_s
        left = max(0.0, remaining - WAY_BACK_S)
        return left if most_s is None else min(most_s, left)

    def _metadata(self) -> Metadata:
        mark = ((FORWARDED_KEY, self._own),)
        authorization = passing().authorization
        return mark if authorization is None else (*mark, ("authorization", authorization))

    def _refusal(self, status: Any) -> Refusal:
        """Why one of several was refused."""
        name = self.peer.shard.name
        text = f"shard {name!r} gave no reason that is known here: {status.message}"
        return read_status(status) or Refusal(ErrorReason.SHARD_UNAVAILABLE, text)


@contextmanager
def _within_own_time() -> Iterator[None]:
    """Around a wait: one that its caller's deadline ends has lost no shard.

    Raises:
        Refused: The shard was lost, or nothing has ended in the caller's time.
    """
    try:
        yield
    except Refused as refused:
        left = passing().remaining_s()
        is_lost = refused.refusal.reason is ErrorReason.SHARD_UNAVAILABLE
        if is_lost and left is not None and left <= 2 * WAY_BACK_S:
            raise Refused(WAIT_TIMEOUT) from refused
        raise


def _ref(target: TaskRef) -> task_pb2.TaskRef:
    message = task_pb2.TaskRef()
    convert.fill_reference(message, target)
    return message


def _fill_filter(
    target: tasks_pb2.ListTasksRequest | tasks_pb2.TaskFilter, wanted: TaskFilter
) -> None:
    for field in ("pools", "kinds", "keys", "tenants", "statuses"):
        getattr(target, field).extend(getattr(wanted, field))
    convert.fill_pairs(target.tags, wanted.tags)
    target.schedule = wanted.schedule
