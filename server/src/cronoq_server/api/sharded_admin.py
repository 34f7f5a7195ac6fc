"""Operators' operations in a deployment of several shards; see `sharded` for those on tasks."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from cronoq_server.api.admin_service import AdminService
from cronoq_server.api.auth import Operation, Principal, require
from cronoq_server.api.remote import Remote
from cronoq_server.api.service import Service
from cronoq_server.api.spread import Spread
from cronoq_server.engine import (
    Backfilled,
    Calendar,
    Instant,
    ResourceView,
    ScheduleSpec,
    SnapshotView,
    StoredSchedule,
    TotalsView,
    WorkerView,
)
from cronoq_server.sharding import FanOut, OnAll, OnName, OnPool, OnResource


class ShardedAdminService(AdminService):
    """The operations of operators, over all shards."""

    def __init__(self, service: Service, spread: Spread) -> None:
        """Serves its own shard by `service`, and asks others by `spread`."""
        super().__init__(service)
        self._spread = spread
        self._gate = service.gate

    # Looking around

    async def snapshot(self, who: Principal) -> tuple[SnapshotView, Instant]:
        """See `AdminService.snapshot`."""
        require(who, Operation.SNAPSHOT)
        route = self._spread.route(OnAll(), who)
        if not isinstance(route, FanOut):
            return await super().snapshot(who)
        now = self.wall()

        async def own() -> SnapshotView:
            return (await super(ShardedAdminService, self).snapshot(who))[0]

        async def other(remote: Remote) -> SnapshotView:
            return (await remote.snapshot(now))[0]

        with self._gate.request():
            views = await self._spread.gather(route, own, other)
        return _added([view for _, view in views]), now

    async def list_workers(self, who: Principal) -> tuple[WorkerView, ...]:
        """See `AdminService.list_workers`."""
        require(who, Operation.LIST_WORKERS)
        route = self._spread.route(OnAll(), who)
        if not isinstance(route, FanOut):
            return await super().list_workers(who)
        with self._gate.request():
            found = await self._spread.gather(
                route,
                lambda: super(ShardedAdminService, self).list_workers(who),
                Remote.list_workers,
            )
        return tuple(worker for _, workers in found for worker in workers)

    async def list_resources(self, who: Principal) -> tuple[ResourceView, ...]:
        """See `AdminService.list_resources`."""
        require(who, Operation.LIST_RESOURCES)
        route = self._spread.route(OnAll(), who)
        if not isinstance(route, FanOut):
            return await super().list_resources(who)
        with self._gate.request():
            found = await self._spread.gather(
                route,
                lambda: super(ShardedAdminService, self).list_resources(who),
                Remote.list_resources,
            )
        return tuple(resource for _, resources in found for resource in resources)

    async def list_schedules(self, who: Principal) -> list[StoredSchedule]:
        """See `AdminService.list_schedules`; shard by shard."""
        require(who, Operation.LIST_SCHEDULES)
        route = self._spread.route(OnAll(), who)
        if not isinstance(route, FanOut):
            return await super().list_schedules(who)
        with self._gate.request():
            found = await self._spread.gather(
                route,
                lambda: super(ShardedAdminService, self).list_schedules(who),
                Remote.list_schedules,
            )
        return [schedule for _, schedules in found for schedule in schedules]

    # Schedules

    async def put_schedule(
        self, who: Principal, spec: ScheduleSpec, calendar: Calendar, *, paused: bool
    ) -> None:
        """See `AdminService.put_schedule`; it goes to the shard of its pool."""
        require(who, Operation.PUT_SCHEDULE, spec.template.pool)
        remote = self._spread.single(OnPool(spec.template.pool), who)
        if remote is None:
            return await super().put_schedule(who, spec, calendar, paused=paused)
        with self._gate.request():
            return await remote.put_schedule(spec, paused=paused)

    async def remove_schedule(self, who: Principal, name: str, pool: str) -> bool:
        """See `AdminService.remove_schedule`."""
        require(who, Operation.REMOVE_SCHEDULE, *_named(pool))
        remote, pool = await self._shard_of(who, name, pool, changes=True)
        if remote is None:
            return await super().remove_schedule(who, name, pool)
        with self._gate.request():
            return await remote.remove_schedule(name, pool)

    async def get_schedule(self, who: Principal, name: str, pool: str) -> StoredSchedule:
        """See `AdminService.get_schedule`."""
        require(who, Operation.GET_SCHEDULE, *_named(pool))
        remote, pool = await self._shard_of(who, name, pool, changes=False)
        if remote is None:
            return await super().get_schedule(who, name, pool)
        with self._gate.request():
            return await remote.get_schedule(name, pool)

    async def pause_schedule(self, who: Principal, name: str, pool: str, *, paused: bool) -> None:
        """See `AdminService.pause_schedule`."""
        require(who, Operation.PAUSE_SCHEDULE, *_named(pool))
        remote, pool = await self._shard_of(who, name, pool, changes=True)
        if remote is None:
            return await super().pause_schedule(who, name, pool, paused=paused)
        with self._gate.request():
            return await remote.pause_schedule(name, pool, paused=paused)

    async def trigger_schedule(self, who: Principal, name: str, pool: str) -> int:
        """See `AdminService.trigger_schedule`."""
        require(who, Operation.TRIGGER_SCHEDULE, *_named(pool))
        remote, pool = await self._shard_of(who, name, pool, changes=True)
        if remote is None:
            return await super().trigger_schedule(who, name, pool)
        with self._gate.request():
            return await remote.trigger_schedule(name, pool)

    async def backfill_schedule(
        self, who: Principal, name: str, pool: str, start: Instant, end: Instant, *, dry_run: bool
    ) -> Backfilled:
        """See `AdminService.backfill_schedule`."""
        require(who, Operation.BACKFILL_SCHEDULE, *_named(pool))
        remote, pool = await self._shard_of(who, name, pool, changes=True)
        if remote is None:
            return await super().backfill_schedule(who, name, pool, start, end, dry_run=dry_run)
        with self._gate.request():
            return await remote.backfill_schedule(name, pool, start, end, dry_run=dry_run)

    async def _shard_of(
        self, who: Principal, name: str, pool: str, *, changes: bool
    ) -> tuple[Remote | None, str]:
        """Who has a schedule (None = this server's shard), and the pool to name there."""
        if pool:
            return self._spread.single(OnPool(pool), who), pool
        route = self._spread.route(OnName(changes), who)
        if not isinstance(route, FanOut):
            return None, pool
        with self._gate.request():
            found = await self._spread.locate(
                route,
                lambda: super(ShardedAdminService, self).get_schedule(who, name, ""),
                lambda remote: remote.get_schedule(name, "", in_many=True),
                changes=changes,
                what=f"name {name!r}",
            )
        if found is None:
            return None, pool
        shard, stored = found
        return self._spread.remote(shard), stored.spec.template.pool

    # Capacity

    async def pause_pool(self, who: Principal, pool: str, *, paused: bool) -> None:
        """See `AdminService.pause_pool`."""
        require(who, Operation.PAUSE_POOL, pool)
        remote = self._spread.single(OnPool(pool), who)
        if remote is None:
            return await super().pause_pool(who, pool, paused=paused)
        with self._gate.request():
            return await remote.pause_pool(pool, paused=paused)

    async def resize_resource(
        self, who: Principal, name: str, permits: int | None, rate: int | None, burst: int | None
    ) -> ResourceView:
        """See `AdminService.resize_resource`."""
        require(who, Operation.SET_RESOURCE)
        remote = self._spread.single(OnResource(name), who)
        if remote is None:
            return await super().resize_resource(who, name, permits, rate, burst)
        with self._gate.request():
            return await remote.resize_resource(name, permits, rate, burst)


def _named(pool: str) -> tuple[str, ...]:
    return (pool,) if pool else ()


def _added(views: Sequence[SnapshotView]) -> SnapshotView:
    """The snapshots of shards, which have no pool in common, as one; of none, an empty one."""
    nothing = (0,) * len(TotalsView.__struct_fields__)
    totals = [nothing, *(msgspec.structs.astuple(view.totals) for view in views)]
    return SnapshotView(
        tuple(pool for view in views for pool in view.pools),
        sum(view.live_tasks for view in views),
        sum(view.running for view in views),
        sum(view.pending for view in views),
        TotalsView(*(sum(column) for column in zip(*totals, strict=True))),
        sum(view.workers_connected for view in views),
    )
