"""Decides how concurrent submits share requests.

A submit goes out at the next turn of the event loop, together with all that arrived by then. Two
requests of a pool may be in flight; what arrives meanwhile forms the next ones, each bounded by
count and by half a message. Every caller keeps its own deadline, cancellation and outcome.

Rules a change must keep: tasks of different pools share no request and do not wait for each other,
since they may be of different shards, one of which is slow or gone; a caller that gave up before
its request went out is not submitted; a lost request is sent again only for tasks with a key,
unless nothing was executed; a task for a full pool is sent again alone, as a call that parks.
"""

from __future__ import annotations

import asyncio
import collections
from collections.abc import Coroutine, Iterable
from typing import Any

from ._calls import SUBMIT, SUBMIT_MANY, BackoffSeries, Caller, may_repeat
from ._convert import fill_spec
from ._proto import task_pb2, tasks_pb2
from ._transport import client_closed, status_error
from .errors import (
    CronoqError,
    DeadlineError,
    QueueFullError,
    TooLargeError,
    UnavailableError,
    UnsupportedError,
)
from .options import MESSAGE_ROOM
from .spec import TaskSpec

IN_FLIGHT_MAX = 2
# Calls that park for a full pool occupy the server each; the rest wait here in order.
PARKED_MAX = 64
# Pools beyond which those are forgotten for which nothing is under way.
LANES_KEPT = 64

Admitted = tuple[int, bool]


class _Member(asyncio.Future[Admitted]):
    """One caller's place in a request: tells the task's id and whether it was there."""

    __slots__ = ("ends_at", "keyed", "lane")

    ends_at: float
    keyed: bool
    lane: _Lane

    def settle(self, admitted: Admitted) -> None:
        if not self.done():
            self.set_result(admitted)

    def fail(self, error: Exception) -> None:
        if not self.done():
            self.set_exception(error)


class _Batch:
    """A request that is being filled, and whose tasks they are, in order."""

    __slots__ = ("members", "request", "size")

    def __init__(self) -> None:
        self.request = tasks_pb2.SubmitManyRequest()
        self.members: list[_Member] = []
        self.size = 0

    def keep(self, wanted: list[bool]) -> None:
        """Drops the members that are not wanted."""
        if all(wanted):
            return
        for index in range(len(wanted) - 1, -1, -1):
            if not wanted[index]:
                del self.request.tasks[index]
        pairs = zip(self.members, wanted, strict=True)
        self.members = [member for member, is_wanted in pairs if is_wanted]


class _Lane:
    """Joins the submits of one event loop to one pool into requests."""

    def __init__(self, caller: Caller, loop: asyncio.AbstractEventLoop) -> None:
        options = caller.options
        self._caller = caller
        self._loop = loop
        self._codec = options.codec
        self._count_max = options.max_tasks_per_batch
        self._size_max = options.max_message_bytes // 2
        self._task_size_max = options.max_message_bytes - MESSAGE_ROOM
        self._queue: collections.deque[_Batch] = collections.deque()
        self._open: _Batch | None = None
        self._is_scheduled = False
        self._in_flight: set[_Batch] = set()
        self._parked: collections.deque[tuple[_Member, task_pb2.TaskSpec]] = collections.deque()
        self._parked_count = 0
        self._knows_many = True
        self._trouble: CronoqError | None = None
        self._running: set[asyncio.Task[None]] = set()

    @property
    def queued(self) -> int:
        """Requests that wait to be sent."""
        return len(self._queue)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way."""
        return not (self._queue or self._running or self._is_scheduled)

    def enqueue(self, spec: TaskSpec, ends_at: float) -> _Member:
        """See `SubmitCoalescer.enqueue`."""
        batch = self._open
        if batch is None or len(batch.members) >= self._count_max or batch.size >= self._size_max:
            batch = self._begin()
        tasks = batch.request.tasks
        message = tasks.add()
        try:
            fill_spec(message, spec, self._codec)
            size = message.ByteSize()
            if size > self._task_size_max:
                raise TooLargeError(f"task too large ({size} > {self._task_size_max} bytes)")
        except CronoqError:
            del tasks[-1]
            raise
        if batch.members and batch.size + size > self._size_max:
            moved = self._begin()
            moved.request.tasks.append(message)
            del tasks[-1]
            batch = moved
        member = _Member(loop=self._loop)
        member.keyed = bool(spec.key)
        member.ends_at = ends_at
        member.lane = self
        batch.members.append(member)
        batch.size += size
        self._schedule()
        return member

    def expire(self, future: asyncio.Future[Admitted]) -> None:
        """See `SubmitCoalescer.expire`."""
        if future.done():
            return
        if self._trouble is not None:
            text = f"submit: no server answered before the deadline: {self._trouble}"
            future.set_exception(UnavailableError(text, reason=self._trouble.reason))
        else:
            future.set_exception(DeadlineError("submit: the deadline passed, outcome unknown"))

    def _begin(self) -> _Batch:
        batch = self._open = _Batch()
        self._queue.append(batch)
        return batch

    def _schedule(self) -> None:
        if not self._is_scheduled and len(self._in_flight) < IN_FLIGHT_MAX:
            self._is_scheduled = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        self._is_scheduled = False
        while len(self._in_flight) < IN_FLIGHT_MAX and self._queue:
            batch = self._queue.popleft()
            if batch is self._open:
                self._open = None
            batch.keep([not member.done() for member in batch.members])
            if batch.members:
                self._in_flight.add(batch)
                self._spawn(self._send(batch))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _send(self, batch: _Batch) -> None:
        try:
            backoff = BackoffSeries(self._caller.options)
            while batch.members:
                if not self._knows_many:
                    self._park_all(batch)
                    return
                await self._try(batch)
                if batch.members:
                    await asyncio.sleep(backoff.next_delay(self._trouble))
        finally:
            self._in_flight.discard(batch)
            self._schedule()

    async def _try(self, batch: _Batch) -> None:
        """Sends once and leaves in the batch what has to be sent again."""
        now = self._loop.time()
        for member in batch.members:
            if member.ends_at <= now:
                self.expire(member)
        batch.keep([not member.done() for member in batch.members])
        if not batch.members:
            return
        left = max(member.ends_at for member in batch.members) - now
        try:
            response = await self._caller.connection.channel().unary(
                SUBMIT_MANY, batch.request, left
            )
        except UnsupportedError:
            self._knows_many = False
            return
        except DeadlineError:
            # What stood in the way, if anything did, says more than that the time is up.
            for member in batch.members:
                self.expire(member)
            batch.keep([False] * len(batch.members))
            return
        except CronoqError as error:
            again = [may_repeat(error, idempotent=member.keyed) for member in batch.members]
            for member, is_repeated in zip(batch.members, again, strict=True):
                if not is_repeated:
                    member.fail(error)
            batch.keep(again)
            # Any other answer came from a server that is there.
            self._trouble = error if isinstance(error, UnavailableError) else None
            return
        except OSError as error:  # a certificate file
            for member in batch.members:
                member.fail(error)
            batch.keep([False] * len(batch.members))
            return
        self._trouble = None
        batch.keep(self._settle(batch, response))

    def _settle(self, batch: _Batch, response: tasks_pb2.SubmitManyResponse) -> list[bool]:
        again: list[bool] = []
        for index, (member, outcome) in enumerate(
            zip(batch.members, response.outcomes, strict=True)
        ):
            if outcome.HasField("response"):
                admitted = outcome.response
                member.settle((admitted.id, admitted.duplicate))
                again.append(False)
                continue
            error = status_error(outcome.error, f"tasks[{index}].")
            is_repeated = may_repeat(error, idempotent=member.keyed)
            again.append(is_repeated)
            if isinstance(error, QueueFullError):
                self._park(member, batch.request.tasks[index])
            elif not is_repeated:
                member.fail(error)
        return again

    def _park_all(self, batch: _Batch) -> None:
        for member, message in zip(batch.members, batch.request.tasks, strict=True):
            self._park(member, message)

    def _park(self, member: _Member, message: task_pb2.TaskSpec) -> None:
        self._parked.append((member, message))
        if self._parked_count < PARKED_MAX:
            self._parked_count += 1
            self._spawn(self._submit_parked())

    async def _submit_parked(self) -> None:
        """Sends parked tasks one after the other until none is left."""
        try:
            while self._parked:
                member, message = self._parked.popleft()
                if member.done():
                    continue
                request = tasks_pb2.SubmitRequest(task=message)
                await self._submit_one(member, request)
        finally:
            self._parked_count -= 1

    async def _submit_one(self, member: _Member, request: tasks_pb2.SubmitRequest) -> None:
        call = self._loop.create_task(
            self._caller.call(SUBMIT, request, idempotent=member.keyed, ends_at=member.ends_at)
        )
        # A caller that gives up takes its parked call with it.
        member.add_done_callback(lambda _: call.cancel())
        try:
            response = await call
        except CronoqError as error:
            member.fail(error)
        except OSError as error:  # a certificate file
            member.fail(error)
        except asyncio.CancelledError:
            if not member.done():
                member.fail(client_closed())
                raise
        else:
            member.settle((response.id, response.duplicate))

    async def close(self) -> None:
        """Ends all that is under way; whoever waits hears that the client is closed."""
        batches = (*self._in_flight, *self._queue)
        self._queue.clear()
        self._open = None
        parked = [member for member, _ in self._parked]
        self._parked.clear()
        for member in (*(m for batch in batches for m in batch.members), *parked):
            member.fail(client_closed())
        for task in tuple(self._running):
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)


class SubmitCoalescer:
    """Joins the submits of one event loop into requests, those to each pool by themselves."""

    def __init__(self, caller: Caller, loop: asyncio.AbstractEventLoop) -> None:
        self._caller = caller
        self._loop = loop
        self._lanes: dict[str, _Lane] = {}

    @property
    def queued(self) -> int:
        """Requests that wait to be sent."""
        return sum(lane.queued for lane in self._lanes.values())

    def enqueue(self, spec: TaskSpec, ends_at: float) -> asyncio.Future[Admitted]:
        """Puts a task into the next request; the future tells its id and whether it was there.

        Raises:
            InvalidFieldError: The spec does not fit the wire.
            PayloadError: The payload cannot be encoded.
            TooLargeError: The task is larger than a message may be.
        """
        lane = self._lanes.get(spec.pool)
        if lane is None:
            if len(self._lanes) >= LANES_KEPT:
                self._lanes = {pool: lane for pool, lane in self._lanes.items() if not lane.is_idle}
            lane = self._lanes[spec.pool] = _Lane(self._caller, self._loop)
        return lane.enqueue(spec, ends_at)

    def expire(self, future: asyncio.Future[Admitted]) -> None:
        """Ends one caller's wait: its deadline has passed."""
        assert isinstance(future, _Member)
        future.lane.expire(future)

    def expire_all(self, futures: Iterable[asyncio.Future[Admitted]]) -> None:
        """Ends the waits of callers that share a deadline."""
        for future in futures:
            self.expire(future)

    async def close(self) -> None:
        """Ends all that is under way."""
        await asyncio.gather(*(lane.close() for lane in self._lanes.values()))
