"""The commands about schedules, pools, resources, workers."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from cronoq.client import Client
from cronoq.operations import PoolSnapshot, ResourceInfo
from cronoq.spec import NO_PAYLOAD, CatchUp, Fold, Gap, Overlap, ScheduleSpec, TaskSpec

from .app import FAILED, app, session
from .show import duration
from .tasks import payload_of, words

schedules = typer.Typer(help="Schedules: what is created again and again.", no_args_is_help=True)
pools = typer.Typer(help="Pools: groups of workers and their queues.", no_args_is_help=True)
resources = typer.Typer(help="Resources: limits that tasks share.", no_args_is_help=True)
app.add_typer(schedules, name="schedules")
app.add_typer(pools, name="pools")
app.add_typer(resources, name="resources")

Name = Annotated[str, typer.Argument(help="Its name.")]
InPool = Annotated[
    str | None, typer.Option("--pool", help="Tells apart schedules of one name in two shards.")
]


def instant(text: str, option: str) -> datetime:
    """An instant in ISO 8601; without a zone it is UTC."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(f"{option}: must be in ISO 8601, not {text!r}") from None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


@schedules.command("list")
def list_schedules(context: typer.Context) -> None:
    """List the schedules."""
    here = session(context)
    found = here.run(lambda client: client.schedules())
    if here.output.as_json:
        here.output.value(list(found))
    else:
        head = ("name", "cron", "zone", "pool", "kind", "overlap", "next", "paused")
        rows = [
            (s.name, s.cron, s.tz, s.pool, s.kind, s.overlap, s.next_at, s.paused) for s in found
        ]
        here.output.table(head, rows)
    here.output.missing(found.unavailable_shards)


@schedules.command("show")
def show_schedule(context: typer.Context, name: Name, pool: InPool = None) -> None:
    """Show a schedule with its template."""
    here = session(context)
    found = here.run(lambda client: client.schedule(name, pool=pool))
    if here.output.as_json:
        here.output.value(found)
        return
    info = found.schedule
    here.output.fields(
        (
            ("name", info.name), ("cron", info.cron), ("zone", info.tz), ("pool", info.pool),
            ("kind", info.kind), ("overlap", info.overlap), ("gap", info.gap), ("fold", info.fold),
            ("catch up", info.catch_up), ("paused", info.paused), ("next", info.next_at),
            ("last task", info.last_task_id), ("passed over", found.skipped),
            ("chain broken", found.chain_broken),
        )
    )  # fmt: skip


@schedules.command("put")
def put_schedule(
    context: typer.Context,
    name: Name,
    cron: Annotated[str, typer.Argument(help="5 fields, 6 with seconds first, or @hourly.")],
    kind: Annotated[str, typer.Argument(help="Handler of each occurrence.")],
    payload: Annotated[str | None, typer.Argument(help="JSON, or else a text.")] = None,
    file: Annotated[Path | None, typer.Option(help="File with the payload.")] = None,
    tz: Annotated[str, typer.Option(help="IANA time zone.")] = "UTC",
    pool: Annotated[str, typer.Option()] = "",
    overlap: Annotated[str, typer.Option(help="skip, allow, queue, queue_on_success.")] = "skip",
    gap: Annotated[str, typer.Option(help="Times the clock skips: run_after, skip.")] = "run_after",
    fold: Annotated[str, typer.Option(help="Times that come twice: first, last, both.")] = "first",
    catch_up: Annotated[str, typer.Option(help="Missed ones: latest, none, all.")] = "latest",
    paused: Annotated[bool, typer.Option()] = False,
) -> None:
    """Put a schedule, new or in place of the one of its name."""
    here = session(context)
    value, content_type = payload_of(payload, file, raw=False)
    template = TaskSpec(
        kind=kind, payload=value, content_type=content_type, pool=pool
    ) if value is not NO_PAYLOAD else TaskSpec(kind=kind, pool=pool)  # fmt: skip
    spec = ScheduleSpec(
        name=name, cron=cron, template=template, tz=tz, paused=paused,
        overlap=words(Overlap, overlap, "--overlap"), gap=words(Gap, gap, "--gap"),
        fold=words(Fold, fold, "--fold"), catch_up=words(CatchUp, catch_up, "--catch-up"),
    )  # fmt: skip
    here.run(lambda client: client.put_schedule(spec))
    here.output.value({"name": name}) if here.output.as_json else here.output.say(f"{name} is put")


@schedules.command("remove")
def remove_schedule(context: typer.Context, name: Name, pool: InPool = None) -> None:
    """Remove a schedule; its tasks stay."""
    here = session(context)
    removed = here.run(lambda client: client.remove_schedule(name, pool=pool))
    here.output.value({"removed": removed}) if here.output.as_json else here.output.say(
        f"{name} {'is removed' if removed else 'was not there'}"
    )
    raise typer.Exit(0 if removed else FAILED)


@schedules.command("pause")
def pause_schedule(context: typer.Context, name: Name, pool: InPool = None) -> None:
    """Pause a schedule."""
    here = session(context)
    here.run(lambda client: client.pause_schedule(name, pool=pool))
    here.output.value({"paused": True}) if here.output.as_json else here.output.say("paused")


@schedules.command("resume")
def resume_schedule(context: typer.Context, name: Name, pool: InPool = None) -> None:
    """Let a schedule go on."""
    here = session(context)
    here.run(lambda client: client.resume_schedule(name, pool=pool))
    here.output.value({"paused": False}) if here.output.as_json else here.output.say("resumed")


@schedules.command("trigger")
def trigger_schedule(context: typer.Context, name: Name, pool: InPool = None) -> None:
    """Create one occurrence now."""
    here = session(context)
    made = here.run(lambda client: client.trigger_schedule(name, pool=pool))
    here.output.value({"task_id": made}) if here.output.as_json else here.output.say(str(made))


@schedules.command("next")
def next_occurrences(
    context: typer.Context,
    name: Name,
    pool: InPool = None,
    count: Annotated[int, typer.Option(min=1, max=100, help="How many, up to 100.")] = 10,
) -> None:
    """Show when a schedule is due next."""
    here = session(context)
    found = here.run(lambda client: client.preview_schedule(name, pool=pool, count=count))
    if here.output.as_json:
        here.output.value(list(found))
    else:
        for one in found:
            here.output.say(one.isoformat())


@schedules.command("backfill")
def backfill(
    context: typer.Context,
    name: Name,
    start: Annotated[str, typer.Argument(help="From, in ISO 8601.")],
    end: Annotated[str, typer.Argument(help="Up to, and not including.")],
    pool: InPool = None,
    dry_run: Annotated[bool, typer.Option(help="Count only.")] = False,
) -> None:
    """Create the occurrences of a past range."""
    here = session(context)
    first, last = instant(start, "start"), instant(end, "end")

    async def work(client: Client) -> int:
        created, at = 0, first
        while True:
            done = await client.backfill_schedule(name, at, last, pool=pool, dry_run=dry_run)
            created += done.created
            if done.next_at is None:
                return created
            at = done.next_at

    created = here.run(work)
    here.output.value({"created": created}) if here.output.as_json else here.output.say(
        f"{created} {'would be ' if dry_run else ''}created"
    )


@pools.command("list")
def list_pools(context: typer.Context) -> None:
    """List the pools."""
    here = session(context)
    found = here.run(lambda client: client.pools())
    if here.output.as_json:
        here.output.value(list(found))
    else:
        here.output.table(POOL_HEAD, pool_rows(found))
    here.output.missing(found.unavailable_shards)


POOL_HEAD = (
    "pool", "state", "pending", "busy", "slots", "wanted", "succeeded", "failed", "wait p50", "p99",
    "oldest ready",
)  # fmt: skip


def pool_rows(found: Any) -> list[tuple[Any, ...]]:
    """Pools as rows of a table."""

    def row(pool: PoolSnapshot) -> tuple[Any, ...]:
        state = "paused" if pool.paused else "runs" if pool.capacity else "no workers"
        return (
            pool.name, state, sum(pool.pending_by_class), pool.busy, pool.capacity, pool.desired,
            pool.succeeded, pool.failed, duration(pool.wait_p50_s), duration(pool.wait_p99_s),
            duration(pool.oldest_ready_s),
        )  # fmt: skip

    return [row(pool) for pool in found]


@pools.command("pause")
def pause_pool(context: typer.Context, name: Name) -> None:
    """Start no attempts of a pool any more."""
    here = session(context)
    here.run(lambda client: client.pause_pool(name))
    here.output.value({"paused": True}) if here.output.as_json else here.output.say("paused")


@pools.command("resume")
def resume_pool(context: typer.Context, name: Name) -> None:
    """Let a pool start attempts again."""
    here = session(context)
    here.run(lambda client: client.resume_pool(name))
    here.output.value({"paused": False}) if here.output.as_json else here.output.say("resumed")


@resources.command("list")
def list_resources(context: typer.Context) -> None:
    """List the resources."""
    here = session(context)
    found = here.run(lambda client: client.resources())
    if here.output.as_json:
        here.output.value(list(found))
    else:
        here.output.table(RESOURCE_HEAD, [resource_row(one) for one in found])
    here.output.missing(found.unavailable_shards)


RESOURCE_HEAD = ("name", "kind", "in use", "size", "waiting", "resized")


def resource_row(one: ResourceInfo) -> tuple[Any, ...]:
    """A resource as a row of a table."""
    if one.kind == "semaphore":
        use, size = f"{one.held} held", str(one.permits)
    else:
        use, size = f"{one.tokens:.1f} tokens left", f"{one.rate:g}/s, burst {one.burst}"
    return one.name, one.kind, use, size, one.waiting, one.overridden


@resources.command("set")
def set_resource(
    context: typer.Context,
    name: Name,
    permits: Annotated[int | None, typer.Option(min=0, help="Of a semaphore.")] = None,
    rate: Annotated[float | None, typer.Option(help="Tokens per second of a bucket.")] = None,
    burst: Annotated[int | None, typer.Option(min=0, help="Most tokens of a bucket.")] = None,
) -> None:
    """Resize a resource."""
    here = session(context)
    if permits is None and rate is None and burst is None:
        raise typer.BadParameter("say --permits, --rate or --burst")
    found = here.run(
        lambda client: client.set_resource(name, permits=permits, rate=rate, burst=burst)
    )
    if here.output.as_json:
        here.output.value(found)
    else:
        here.output.table(RESOURCE_HEAD, [resource_row(found)])


@app.command()
def workers(context: typer.Context) -> None:
    """List the connected workers."""
    here = session(context)
    found = here.run(lambda client: client.workers())
    if here.output.as_json:
        here.output.value(list(found))
    else:
        head = ("name", "pool", "busy", "slots", "labels", "kinds", "sdk", "connected")
        rows = [
            (w.name, w.pool, w.busy, w.slots, w.labels, w.kinds or "any", w.sdk, w.connected_at)
            for w in found
        ]
        here.output.table(head, rows)
    here.output.missing(found.unavailable_shards)


@app.command()
def snapshot(context: typer.Context) -> None:
    """Show counts and figures of all pools."""
    here = session(context)
    view = here.run(lambda client: client.snapshot())
    if here.output.as_json:
        here.output.value(view)
    else:
        here.output.say(
            f"{view.pending} pending, {view.running} running, {view.workers_connected} workers"
        )
        here.output.table(POOL_HEAD, pool_rows(view.pools))
        here.output.fields(
            (name.replace("_", " "), getattr(view.totals, name))
            for name in view.totals.__struct_fields__
        )
    here.output.missing(view.unavailable_shards)
