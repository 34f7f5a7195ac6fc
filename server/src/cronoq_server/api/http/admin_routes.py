"""What operators may call over HTTP: schedules, pools, resources, workers, figures."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.responses import Response

from cronoq_server.api import admin_convert, texts
from cronoq_server.api.admin_api import PREVIEW_DEFAULT, PREVIEW_MAX
from cronoq_server.api.admin_service import AdminService
from cronoq_server.api.http import answers, names, reading, responses, writing
from cronoq_server.api.http.requests import (
    Backfill,
    NewSchedule,
    NextQuery,
    NoQuery,
    ResourceSize,
    SchedulePreview,
    ScheduleQuery,
)
from cronoq_server.api.http.routes import Call
from cronoq_server.api.passing import missing_shards
from cronoq_server.api.specs import SpecReader
from cronoq_server.engine import Calendar


class AdminRoutes:
    """Serves the routes of operators."""

    def __init__(self, service: AdminService, reader: SpecReader) -> None:
        self._service = service
        self._reader = reader

    # Schedules

    async def list_schedules(self, call: Call) -> Response:
        """The schedules."""
        call.query(NoQuery)
        stored = await self._service.list_schedules(call.who)
        return answers.json(
            responses.Schedules(
                schedules=[writing.schedule(one) for one in stored],
                unavailable_shards=missing_shards(),
            )
        )

    async def get_schedule(self, call: Call) -> Response:
        """Shows one schedule."""
        name, pool = _schedule(call)
        return answers.json(
            writing.schedule_detail(await self._service.get_schedule(call.who, name, pool))
        )

    async def put_schedule(self, call: Call) -> Response:
        """Puts a schedule."""
        call.query(NoQuery)
        message = reading.schedule_message(_name(call), call.body(NewSchedule))
        key_max = self._service.limits.max_key_len
        spec, calendar = admin_convert.read_schedule(message, self._reader, key_max)
        await self._service.put_schedule(call.who, spec, calendar, paused=message.paused)
        return answers.nothing()

    async def remove_schedule(self, call: Call) -> Response:
        """Removes a schedule."""
        name, pool = _schedule(call)
        removed = await self._service.remove_schedule(call.who, name, pool)
        return answers.json(responses.Removed(removed=removed))

    def pause_schedule(self, *, paused: bool) -> Callable[[Call], Awaitable[Response]]:
        """Pauses or resumes a schedule."""

        async def serve(call: Call) -> Response:
            name, pool = _schedule(call)
            await self._service.pause_schedule(call.who, name, pool, paused=paused)
            return answers.nothing()

        return serve

    async def trigger_schedule(self, call: Call) -> Response:
        """Makes one occurrence now."""
        name, pool = _schedule(call)
        task_id = await self._service.trigger_schedule(call.who, name, pool)
        location = (b"location", b"/v1/tasks/%d" % task_id)
        return answers.json(responses.Triggered(task_id=str(task_id)), 201, [location])

    async def backfill_schedule(self, call: Call) -> Response:
        """Makes the occurrences of a past range."""
        name, pool = _schedule(call)
        order = call.body(Backfill)
        start = texts.instant(names.instant(order.from_unix_ns, "from_unix_ns"), "from_unix_ns")
        end = texts.instant(names.instant(order.to_unix_ns, "to_unix_ns"), "to_unix_ns")
        done = await self._service.backfill_schedule(
            call.who, name, pool, start, end, dry_run=order.dry_run
        )
        following = None if done.next_at is None else str(done.next_at)
        return answers.json(responses.Backfilled(created=done.created, next_unix_ns=following))

    async def next_occurrences(self, call: Call) -> Response:
        """The next occurrences of a schedule."""
        query = call.query(NextQuery)
        count = _count(query.count)
        stored = await self._service.get_schedule(call.who, _name(call), query.pool)
        return self._occurrences(admin_convert.calendar_of(stored.spec), count)

    async def preview_schedule(self, call: Call) -> Response:
        """The next occurrences of an expression."""
        call.query(NoQuery)
        preview = call.body(SchedulePreview)
        count = _count(preview.count)
        key_max = self._service.limits.max_key_len
        message = reading.preview_message(preview)
        _, calendar = admin_convert.read_schedule(message, self._reader, key_max)
        return self._occurrences(calendar, count)

    def _occurrences(self, calendar: Calendar, count: int) -> Response:
        instants = calendar.upcoming(self._service.wall(), count)
        return answers.json(responses.Occurrences(at_unix_ns=[str(at) for at in instants]))

    # Capacity

    async def list_pools(self, call: Call) -> Response:
        """The pools."""
        call.query(NoQuery)
        view, now = await self._service.snapshot(call.who)
        pools = [writing.pool(one, now) for one in view.pools]
        return answers.json(responses.Pools(pools=pools, unavailable_shards=missing_shards()))

    def pause_pool(self, *, paused: bool) -> Callable[[Call], Awaitable[Response]]:
        """Pauses or resumes a pool."""

        async def serve(call: Call) -> Response:
            call.query(NoQuery)
            await self._service.pause_pool(call.who, _name(call), paused=paused)
            return answers.nothing()

        return serve

    async def list_resources(self, call: Call) -> Response:
        """The resources."""
        call.query(NoQuery)
        views = await self._service.list_resources(call.who)
        resources = [writing.resource(one) for one in views]
        return answers.json(
            responses.Resources(resources=resources, unavailable_shards=missing_shards())
        )

    async def set_resource(self, call: Call) -> Response:
        """Resizes a resource."""
        call.query(NoQuery)
        size = call.body(ResourceSize)
        view = await self._service.resize_resource(
            call.who,
            _name(call),
            size.permits,
            None if size.rate is None else admin_convert.read_rate(size.rate),
            None if size.burst is None else texts.at_least_one(size.burst, "burst"),
        )
        return answers.json(writing.resource(view))

    # Figures

    async def list_workers(self, call: Call) -> Response:
        """The connected sessions."""
        call.query(NoQuery)
        return answers.json(writing.workers(await self._service.list_workers(call.who)))

    async def snapshot(self, call: Call) -> Response:
        """Counts of all pools."""
        call.query(NoQuery)
        view, now = await self._service.snapshot(call.who)
        resources = await self._service.list_resources(call.who)
        return answers.json(writing.snapshot(view, resources, now))


def _name(call: Call) -> str:
    return texts.name(call.path["name"], "name")


def _schedule(call: Call) -> tuple[str, str]:
    """The schedule that a call is about, and the pool that it is in if that is said."""
    pool = call.query(ScheduleQuery).pool
    return _name(call), texts.name(pool, "pool") if pool else ""


def _count(given: int) -> int:
    if given > PREVIEW_MAX:
        raise texts.invalid("count", f"must be at most {PREVIEW_MAX}, not {given}", PREVIEW_MAX)
    return given or PREVIEW_DEFAULT
