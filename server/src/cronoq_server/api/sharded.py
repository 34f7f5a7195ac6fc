"""The operations on tasks in a deployment of several shards: each goes where its task lives.

What concerns this server's own shard is done by `Service`, as in a deployment without shards. The
permission to call is checked before anything depends on shards.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from functools import partial
from typing import Final

from cronoq_server.api.auth import Operation, Principal, require
from cronoq_server.api.frames import Registration
from cronoq_server.api.merged import MergedWatch, merged_results
from cronoq_server.api.passing import passing
from cronoq_server.api.service import EventStream, as_asked
from cronoq_server.api.sharded_submitting import ShardedSubmitting
from cronoq_server.api.spread import LOST
from cronoq_server.engine import (
    BulkAction,
    Bulked,
    Duration,
    Page,
    Refusal,
    Result,
    Results,
    TaskDetail,
    TaskFilter,
    TaskRef,
    TaskView,
)
from cronoq_server.runtime.refusals import Refused, task_unknown
from cronoq_server.runtime.sessions import Session
from cronoq_server.runtime.watchers import WatchFilter
from cronoq_server.sharding import (
    Forward,
    Local,
    OnAll,
    OnName,
    OnTask,
    OnWork,
    Shard,
)

LOOKUPS_AT_ONCE: Final = 100
"""Keys that are looked for in all shards at a time."""


class ShardedService(ShardedSubmitting):
    """The operations of one server among shards."""

    # Single tasks

    async def get(self, who: Principal, target: TaskRef) -> TaskView:
        """See `Service.get`."""
        require(who, Operation.GET)
        if isinstance(target, str):
            found = await self._locate(who, target, changes=False)
            return await super().get(who, target) if found is None else found[1]
        remote = self._spread.single(OnTask(target), who)
        return await (super().get(who, target) if remote is None else remote.get(target))

    async def describe(self, who: Principal, target: TaskRef) -> TaskDetail:
        """See `Service.describe`."""
        require(who, Operation.DESCRIBE)
        own = await self._id_in_shard(who, target, changes=False)
        remote = self._spread.single(OnTask(own), who) if isinstance(own, int) else None
        return await (super().describe(who, own) if remote is None else remote.describe(own))

    async def cancel(self, who: Principal, target: TaskRef) -> bool:
        """See `Service.cancel`."""
        require(who, Operation.CANCEL)
        own = await self._id_in_shard(who, target, changes=True)
        remote = self._spread.single(OnTask(own), who) if isinstance(own, int) else None
        return await (super().cancel(who, own) if remote is None else remote.cancel(own))

    async def retry(self, who: Principal, target: TaskRef) -> bool:
        """See `Service.retry`."""
        require(who, Operation.RETRY)
        own = await self._id_in_shard(who, target, changes=True)
        remote = self._spread.single(OnTask(own), who) if isinstance(own, int) else None
        return await (super().retry(who, own) if remote is None else remote.retry(own))

    async def delete(self, who: Principal, target: TaskRef) -> bool:
        """See `Service.delete`."""
        require(who, Operation.DELETE)
        own = await self._id_in_shard(who, target, changes=True)
        remote = self._spread.single(OnTask(own), who) if isinstance(own, int) else None
        return await (super().delete(who, own) if remote is None else remote.delete(own))

    async def _id_in_shard(self, who: Principal, target: TaskRef, *, changes: bool) -> TaskRef:
        """A task's id, whichever shard it is in; a key stays one if only this shard can have it."""
        if isinstance(target, int):
            return target
        found = await self._locate(who, target, changes=changes)
        return target if found is None else found[1].task_id

    async def _locate(
        self, who: Principal, key: str, *, changes: bool
    ) -> tuple[Shard, TaskView] | None:
        """Who has a key; None = only this server's own shard is to be asked.

        Raises:
            Refused: Nobody has it, several have, or one that might can't be asked.
        """
        route = self._spread.route(OnName(changes), who)
        if isinstance(route, Local | Forward):
            return None
        with self.gate.request():
            found = await self._spread.locate(
                route,
                lambda: super(ShardedService, self).get(who, key),
                lambda remote: remote.get(key, in_many=True),
                changes=changes,
                what=f"key {key!r}",
            )
        if found is None:
            raise Refused(task_unknown(key))
        return found

    # Many tasks

    async def list_tasks(
        self,
        who: Principal,
        wanted: TaskFilter,
        *,
        after: int,
        limit: int,
        newest_first: bool = False,
    ) -> Page:
        """See `Service.list_tasks`; goes through the shards in the order of ids."""
        require(who, Operation.LIST_TASKS, *wanted.pools)
        route = self._spread.route(OnAll(wanted.pools), who)
        most = min(limit or self.limits.max_list, self.limits.max_list)
        if not isinstance(route, Local | Forward):
            with self.gate.request():
                return await self._list_shards(
                    who, wanted, after, most, newest_first, list(route.ask)
                )
        return await super().list_tasks(
            who, wanted, after=after, limit=limit, newest_first=newest_first
        )

    async def _list_shards(
        self,
        who: Principal,
        wanted: TaskFilter,
        after: int,
        limit: int,
        newest_first: bool,
        shards: list[Shard],
    ) -> Page:
        """One page, from the shard of its cursor on, until it is full or has been looked far."""
        tasks: list[TaskView] = []
        left = _from_cursor(shards, after, newest_first)
        for index, shard in enumerate(left):
            own = after if _holds(shard, after) else 0
            page = await self._list_one(who, shard, wanted, own, limit - len(tasks), newest_first)
            if page is None:
                continue
            tasks += page.tasks
            if page.next_after:
                return Page(tuple(tasks), page.next_after)
            if len(tasks) >= limit and index + 1 < len(left):
                return Page(tuple(tasks), _edge(shard, newest_first))
        return Page(tuple(tasks), 0)

    async def _list_one(
        self,
        who: Principal,
        shard: Shard,
        wanted: TaskFilter,
        after: int,
        limit: int,
        newest_first: bool,
    ) -> Page | None:
        """One shard's part of a page; None = it was lost, and is noted."""
        remote = self._spread.remote(shard)
        if remote is None:
            return await super().list_tasks(
                who, wanted, after=after, limit=limit, newest_first=newest_first
            )
        try:
            return await remote.list_tasks(
                wanted, after=after, limit=limit, newest_first=newest_first
            )
        except Refused as refused:
            if refused.refusal.reason not in LOST:
                raise
            passing().lacks([shard.name])
            return None

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
        """See `Service.bulk`; a call works on one shard, the cursor leads to the next."""
        require(who, Operation.BULK, *wanted.pools)
        route = self._spread.route(OnAll(wanted.pools), who)
        if isinstance(route, Local | Forward):
            return await super().bulk(
                who, wanted, action, after=after, limit=limit, dry_run=dry_run
            )
        left = _from_cursor(list(route.ask), after, newest_first=False)
        if not left:
            return Bulked(0, 0, 0)
        shard = left[0]
        own = after if _holds(shard, after) else 0
        remote = self._spread.remote(shard)
        if remote is None:
            done = await super().bulk(who, wanted, action, after=own, limit=limit, dry_run=dry_run)
        else:
            with self.gate.request():
                done = await remote.bulk(wanted, action, after=own, limit=limit, dry_run=dry_run)
        if done.next_after or len(left) == 1:
            return done
        return Bulked(done.matched, done.changed, shard.last_id())

    # Waiting

    async def wait(self, who: Principal, target: TaskRef, timeout: Duration) -> Result:
        """See `Service.wait`."""
        require(who, Operation.WAIT)
        own = await self._id_in_shard(who, target, changes=False)
        remote = self._spread.single(OnTask(own), who) if isinstance(own, int) else None
        if remote is None:
            return await super().wait(who, own, timeout)
        with self.gate.waiter():
            return await remote.wait(own, timeout)

    async def wait_many(
        self,
        who: Principal,
        ids: Sequence[int],
        keys: Sequence[str],
        timeout: Duration,
        *,
        outputs: bool,
    ) -> AsyncGenerator[Results, None]:
        """See `Service.wait_many`; each shard tells of its own tasks."""
        require(who, Operation.WAIT)
        waiting: dict[int, list[TaskRef]] = {}
        for task_id in ids:
            waiting.setdefault(task_id, []).append(task_id)
        unknown: list[tuple[TaskRef, Refusal]] = []
        for start in range(0, len(keys), LOOKUPS_AT_ONCE):
            some_keys = keys[start : start + LOOKUPS_AT_ONCE]
            named = await asyncio.gather(*(self._id_behind(who, key) for key in some_keys))
            for key, one in zip(some_keys, named, strict=True):
                if isinstance(one, Refusal):
                    unknown.append((key, one))
                else:
                    waiting.setdefault(one, []).append(key)
        streams = []
        for shard, some in self._by_shard(who, waiting, unknown).items():
            remote = None if shard is None else self._spread.remote(shard)
            streams.append(
                super().wait_many(who, some, (), timeout, outputs=outputs)
                if remote is None
                else self._counted(remote.wait_many(some, timeout, outputs=outputs))
            )
        if unknown:
            yield Results(0, [], tuple(unknown), last=not streams)
        async with aclosing(merged_results(streams)) as merged:
            async for results in merged:
                yield as_asked(results, waiting)

    async def _id_behind(self, who: Principal, key: str) -> int | Refusal:
        """The id that a key stands for, in whichever shard, or why there is none."""
        try:
            found = await self._locate(who, key, changes=False)
            view = await super().get(who, key) if found is None else found[1]
        except Refused as refused:
            return refused.refusal
        return view.task_id

    def _by_shard(
        self,
        who: Principal,
        waiting: dict[int, list[TaskRef]],
        unknown: list[tuple[TaskRef, Refusal]],
    ) -> dict[Shard | None, list[int]]:
        """Ids by the shard to ask; those that can't be asked for join `unknown`."""
        parts: dict[Shard | None, list[int]] = {}
        for task_id in list(waiting):
            try:
                remote = self._spread.single(OnTask(task_id), who)
            except Refused as refused:
                unknown += [(ref, refused.refusal) for ref in waiting.pop(task_id)]
            else:
                parts.setdefault(None if remote is None else remote.peer.shard, []).append(task_id)
        return parts

    async def _counted(
        self, stream: AsyncGenerator[Results, None]
    ) -> AsyncGenerator[Results, None]:
        """A stream of another shard, counted as one that waits here."""
        with self.gate.waiter():
            async with aclosing(stream) as counted:
                async for results in counted:
                    yield results

    async def watch(
        self, who: Principal, wanted: WatchFilter, cursor: bytes, *, bookmarks: bool
    ) -> EventStream:
        """See `Service.watch`; events of all shards, each in its own order.

        A watch that had to begin without a shard ends when that one answers again.
        """
        require(who, Operation.WATCH, *wanted.pools)
        route = self._spread.route(OnAll(wanted.pools), who)
        if isinstance(route, Local | Forward):
            return await super().watch(who, wanted, cursor, bookmarks=bookmarks)
        ids = list(wanted.ids)
        for key in wanted.keys:
            named = await self._id_behind(who, key)
            if isinstance(named, Refusal):
                raise Refused(named)
            ids.append(named)
        asked = {*route.ask, *route.silent}
        for task_id in ids:
            self._require_watchable(who, task_id, asked)
        merged = MergedWatch(cursor, bookmarks=bookmarks)
        try:
            silent = [shard for shard in route.silent if not ids or self._some(ids, shard)]
            if silent:
                merged.end_with(partial(self._spread.returned, silent))
            for shard in route.ask:
                some = self._some(ids, shard)
                if ids and not some:
                    continue
                part = WatchFilter(wanted.pools, some, (), wanted.all_transitions)
                remote = self._spread.remote(shard)
                start = merged.start(shard.number)
                if remote is None:
                    own = await super().watch(who, part, start, bookmarks=bookmarks)
                    merged.add(shard.number, own)
                    merged.refusals = own.refusals
                else:
                    merged.add(shard.number, remote.watch(part, start, bookmarks=bookmarks))
        except BaseException:
            await merged.aclose()
            raise
        return merged

    def _require_watchable(self, who: Principal, task_id: int, asked: set[Shard]) -> None:
        """Makes sure that somebody is going to say something of a task, if only that it is not.

        Raises:
            Refused: Nobody has such a task, or its shard can't be asked for this caller.
        """
        owner = self._spread.topology.of_id(task_id)
        if owner is None or not owner.is_open_to(who.pools):
            raise Refused(task_unknown(task_id))
        if owner not in asked:
            self._spread.single(OnTask(task_id), who)

    def _some(self, ids: Sequence[int], shard: Shard) -> tuple[int, ...]:
        """Those of some tasks that are a shard's."""
        return tuple(i for i in ids if self._spread.topology.of_id(i) is shard)

    # Workers

    def join(self, who: Principal, registration: Registration) -> Session:
        """See `Service.join`; a worker of another shard's pool is told where to go."""
        require(who, Operation.WORK, registration.pool)
        self._spread.route(OnWork(registration.pool), who)
        return super().join(who, registration)


def _holds(shard: Shard, cursor: int) -> bool:
    """Whether a cursor is one of the shard's ids."""
    return cursor >> 56 == shard.number


def _edge(shard: Shard, newest_first: bool) -> int:
    """The cursor behind all tasks of a shard."""
    return shard.number << 56 if newest_first else shard.last_id()


def _from_cursor(shards: list[Shard], after: int, newest_first: bool) -> list[Shard]:
    """The shards that a cursor has not passed, in the page's order."""
    order = sorted(shards, key=lambda shard: shard.number, reverse=newest_first)
    if not after:
        return order
    if newest_first:
        return [shard for shard in order if shard.number << 56 < after]
    return [shard for shard in order if shard.last_id() > after]
