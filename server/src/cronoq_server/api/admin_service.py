"""What operators' operations do: look around, pause, resize, and work with schedules."""

from __future__ import annotations

from cronoq_server.api import audit
from cronoq_server.api.auth import Operation, Principal, require
from cronoq_server.api.service import Service
from cronoq_server.api.texts import invalid
from cronoq_server.config import LimitsConfig
from cronoq_server.engine import (
    Backfilled,
    BackfillSchedule,
    Calendar,
    Done,
    GetSchedule,
    Instant,
    ListResources,
    ListSchedules,
    ListWorkers,
    PauseSchedule,
    PutSchedule,
    RemoveSchedule,
    ResizeResource,
    ResourceView,
    ScheduleSpec,
    ScheduleView,
    SetPoolPaused,
    SnapshotQuery,
    SnapshotView,
    StoredSchedule,
    Triggered,
    TriggerSchedule,
    WorkerView,
)


class AdminService:
    """The operations of operators."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._ask = service.request
        self.wall = service.wall

    @property
    def limits(self) -> LimitsConfig:
        """Bounds on what callers may ask for, as of now."""
        return self._service.limits

    # Looking around

    async def snapshot(self, who: Principal) -> tuple[SnapshotView, Instant]:
        """Counts of all pools, and the wall instant that they are of."""
        require(who, Operation.SNAPSHOT)
        view = await self._ask(SnapshotView, lambda call: SnapshotQuery(call, who.pools))
        return view, self.wall()

    async def list_workers(self, who: Principal) -> tuple[WorkerView, ...]:
        """The connected sessions."""
        require(who, Operation.LIST_WORKERS)
        return await self._ask(tuple, lambda call: ListWorkers(call, who.pools))

    # Schedules

    async def put_schedule(
        self, who: Principal, spec: ScheduleSpec, calendar: Calendar, *, paused: bool
    ) -> None:
        """Puts a schedule, new or in place of the one with its name.

        Raises:
            Refused: Its pool or a resource is unknown, or its name is taken elsewhere.
        """
        require(who, Operation.PUT_SCHEDULE, spec.template.pool)
        await self._ask(Done, lambda call: PutSchedule(call, spec, calendar, paused, who.pools))
        audit.record(who, Operation.PUT_SCHEDULE, schedule=spec.name, pool=spec.template.pool)

    async def remove_schedule(self, who: Principal, name: str, pool: str) -> bool:
        """Removes a schedule; false if there is none."""
        require(who, Operation.REMOVE_SCHEDULE, *_named(pool))
        scope = _only(who, pool)
        done = await self._ask(Done, lambda call: RemoveSchedule(call, name, scope))
        if done.changed:
            audit.record(who, Operation.REMOVE_SCHEDULE, schedule=name)
        return done.changed

    async def get_schedule(self, who: Principal, name: str, pool: str) -> StoredSchedule:
        """Shows a schedule.

        Raises:
            Refused: There is no such schedule (in that pool, if one is named).
        """
        require(who, Operation.GET_SCHEDULE, *_named(pool))
        scope = _only(who, pool)
        view = await self._ask(ScheduleView, lambda call: GetSchedule(call, name, scope))
        return view.stored

    async def list_schedules(self, who: Principal) -> list[StoredSchedule]:
        """All schedules, by name."""
        require(who, Operation.LIST_SCHEDULES)
        views: tuple[ScheduleView, ...] = await self._ask(
            tuple, lambda call: ListSchedules(call, who.pools)
        )
        return [view.stored for view in views]

    async def pause_schedule(self, who: Principal, name: str, pool: str, *, paused: bool) -> None:
        """Pauses or resumes a schedule.

        Raises:
            Refused: There is no such schedule.
        """
        require(who, Operation.PAUSE_SCHEDULE, *_named(pool))
        scope = _only(who, pool)
        await self._ask(Done, lambda call: PauseSchedule(call, name, paused, scope))
        audit.record(who, Operation.PAUSE_SCHEDULE, schedule=name, paused=paused)

    async def trigger_schedule(self, who: Principal, name: str, pool: str) -> int:
        """Makes one occurrence now and returns its task's id.

        Raises:
            Refused: There is no such schedule.
        """
        require(who, Operation.TRIGGER_SCHEDULE, *_named(pool))
        scope = _only(who, pool)
        done = await self._ask(Triggered, lambda call: TriggerSchedule(call, name, scope))
        audit.record(who, Operation.TRIGGER_SCHEDULE, schedule=name, task=done.task_id)
        return done.task_id

    async def backfill_schedule(
        self, who: Principal, name: str, pool: str, start: Instant, end: Instant, *, dry_run: bool
    ) -> Backfilled:
        """Makes the occurrences from `start` on and before `end`.

        Raises:
            Refused: There is no such schedule, or the range reaches into the future.
        """
        require(who, Operation.BACKFILL_SCHEDULE, *_named(pool))
        if end > self.wall():
            raise invalid("to_unix_ns", "must not be in the future")
        scope = _only(who, pool)
        done = await self._ask(
            Backfilled,
            lambda call: BackfillSchedule(call, name, start, end - 1, dry_run, scope),
        )
        if not dry_run:
            audit.record(who, Operation.BACKFILL_SCHEDULE, schedule=name, created=done.created)
        return done

    # Capacity

    async def pause_pool(self, who: Principal, pool: str, *, paused: bool) -> None:
        """Pauses or resumes a pool.

        Raises:
            Refused: There is no such pool, or the caller may not use it.
        """
        require(who, Operation.PAUSE_POOL, pool)
        await self._ask(Done, lambda call: SetPoolPaused(call, pool, paused))
        audit.record(who, Operation.PAUSE_POOL, pool=pool, paused=paused)

    async def list_resources(self, who: Principal) -> tuple[ResourceView, ...]:
        """All resources and how much of them is out."""
        require(who, Operation.LIST_RESOURCES)
        return await self._ask(tuple, ListResources)

    async def resize_resource(
        self, who: Principal, name: str, permits: int | None, rate: int | None, burst: int | None
    ) -> ResourceView:
        """Gives a resource another size; None leaves a figure, `rate` is in nano-tokens.

        Raises:
            Refused: There is no such resource, or it has no such figure; or the caller is limited
                to some pools, while resources are everybody's.
        """
        require(who, Operation.SET_RESOURCE)
        view = await self._ask(
            ResourceView, lambda call: ResizeResource(call, name, permits, rate, burst)
        )
        audit.record(
            who, Operation.SET_RESOURCE, resource=name, permits=permits, rate=rate, burst=burst
        )
        return view


def _named(pool: str) -> tuple[str, ...]:
    """The pool that a call names, if it names one."""
    return (pool,) if pool else ()


def _only(who: Principal, pool: str) -> frozenset[str] | None:
    """The caller's pools, or just the one that was named."""
    if not pool:
        return who.pools
    named = frozenset({pool})
    return named if who.pools is None else named & who.pools
