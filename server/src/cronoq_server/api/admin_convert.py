"""How pools, workers, resources and schedules look on the wire, and which schedules get in."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from google.protobuf.message import Message

from cronoq_server._proto import admin_pb2
from cronoq_server.api import convert, texts
from cronoq_server.api.specs import SpecReader
from cronoq_server.engine import (
    SECOND,
    Calendar,
    CatchUp,
    Fold,
    Gap,
    Instant,
    Overlap,
    PoolView,
    Refusal,
    ResourceView,
    ScheduleSpec,
    SnapshotView,
    StoredSchedule,
    TaskSpec,
    WorkerView,
    parse_cron,
)
from cronoq_server.runtime.refusals import Refused

OCCURRENCE_MARK = 40
"""Bytes that an occurrence's instant adds to its key at most."""

NANO = 1_000_000_000
RATE_MAX = 1e9


# Schedules


def read_schedule(
    message: admin_pb2.RecurringRequest, reader: SpecReader, key_max: int, field: str = ""
) -> tuple[ScheduleSpec, Calendar]:
    """What a schedule is to be, and when it is due.

    Args:
        message: The schedule as it is put.
        reader: Reads its template.
        key_max: Longest key of a task, in bytes.
        field: What messages put before the field's name, with a dot.

    Raises:
        Refused: A field breaks its rule, or the expression or zone can't be read.
    """
    name = texts.name(message.name, f"{field}name")
    template = read_template(message, reader, key_max - OCCURRENCE_MARK, field)
    spec = ScheduleSpec(
        name=name,
        cron=message.cron,
        template=template,
        zone=message.tz or "UTC",
        overlap=texts.choice(message.overlap or 1, tuple(Overlap), f"{field}overlap"),
        gap=texts.choice(message.gap or 1, tuple(Gap), f"{field}gap"),
        fold=texts.choice(message.fold or 1, tuple(Fold), f"{field}fold"),
        catch_up=texts.choice(message.catch_up or 1, tuple(CatchUp), f"{field}catch_up"),
    )
    return spec, calendar_of(spec)


def read_template(
    message: admin_pb2.RecurringRequest, reader: SpecReader, key_max: int, field: str
) -> TaskSpec:
    """What each occurrence asks for.

    Raises:
        Refused: It has dependencies or a start, or a field breaks its rule.
    """
    if not message.HasField("template"):
        raise texts.invalid(f"{field}template", "must be given")
    template = reader.read(message.template, f"{field}template")
    for name, given in (
        ("deps", template.dependencies),
        ("start_in_s", template.start_in is not None),
        ("start_unix_ns", template.start_at is not None),
        ("deadline_unix_ns", template.deadline_at is not None),
        ("not_before_unix_ns", template.not_before is not None),
    ):
        if given:
            raise texts.invalid(f"{field}template.{name}", "does not belong to a schedule")
    if template.key:
        texts.key(template.key, f"{field}template.key", key_max)
    return template


def calendar_of(spec: ScheduleSpec) -> Calendar:
    """When a schedule is due.

    Raises:
        Refused: The expression or the zone can't be read.
    """
    parsed = parse_cron(spec.cron, spec.zone, Gap(spec.gap), Fold(spec.fold))
    if isinstance(parsed, Refusal):
        raise Refused(parsed)
    return parsed


def fill_schedule(target: admin_pb2.RecurringInfo, stored: StoredSchedule) -> None:
    """Copies how a schedule stands."""
    spec = stored.spec
    target.name = spec.name
    target.cron = spec.cron
    target.tz = spec.zone
    target.pool = spec.template.pool
    target.kind = spec.template.kind
    target.overlap = spec.overlap  # type: ignore[assignment]
    target.gap = spec.gap  # type: ignore[assignment]
    target.fold = spec.fold  # type: ignore[assignment]
    target.catch_up = spec.catch_up  # type: ignore[assignment]
    target.paused = stored.paused
    if stored.next_at is not None:
        target.next_unix_ns = stored.next_at
    if stored.last_task:
        target.last_task_id = stored.last_task


def schedule_detail(stored: StoredSchedule) -> admin_pb2.RecurringDetail:
    """A schedule in full."""
    detail = admin_pb2.RecurringDetail(skipped=stored.skipped, chain_broken=stored.chain_broken)
    fill_schedule(detail.info, stored)
    fill_schedule_spec(detail.spec, stored.spec, paused=stored.paused)
    return detail


def fill_schedule_spec(
    target: admin_pb2.RecurringRequest, spec: ScheduleSpec, *, paused: bool
) -> None:
    """Copies a schedule as it was put."""
    target.name = spec.name
    target.cron = spec.cron
    target.tz = spec.zone
    convert.fill_spec(target.template, spec.template)
    target.overlap = spec.overlap  # type: ignore[assignment]
    target.gap = spec.gap  # type: ignore[assignment]
    target.fold = spec.fold  # type: ignore[assignment]
    target.catch_up = spec.catch_up  # type: ignore[assignment]
    target.paused = paused


# Capacity


def read_rate(rate: float) -> int:
    """A bucket's rate in nano-tokens per second.

    Raises:
        Refused: It is not above 0, or too large.
    """
    if not 0 < rate <= RATE_MAX:
        raise texts.invalid("rate", f"must be above 0 and at most {RATE_MAX:g}, not {rate:g}")
    return max(1, round(rate * NANO))


def fill_resource(target: admin_pb2.Resource, view: ResourceView) -> None:
    """Copies a resource."""
    target.name = view.name
    target.kind = view.kind
    target.permits = view.permits
    target.rate = view.rate / NANO
    target.burst = view.burst
    target.held = view.held
    target.tokens = view.tokens / NANO
    target.waiting = view.waiting
    target.overridden = view.overridden
    target.per_value = view.per_value


def pools_response(pools: Iterable[PoolView], now: Instant) -> admin_pb2.ListPoolsResponse:
    """The pools; `now` is a wall instant."""
    response = admin_pb2.ListPoolsResponse()
    for pool in pools:
        _fill_pool(response.pools.add(), pool, now)
    return response


def snapshot_response(view: SnapshotView, now: Instant) -> admin_pb2.SnapshotResponse:
    """Counts of all pools; `now` is a wall instant."""
    response = admin_pb2.SnapshotResponse(
        live_tasks=view.live_tasks,
        running=view.running,
        pending=view.pending,
        workers_connected=view.workers_connected,
    )
    for pool in view.pools:
        _fill_pool(response.pools.add(), pool, now)
    copy_numbers(response.totals, view.totals)
    return response


_POOL_FIGURES = (
    "cost",
    "desired",
    "fixed_start_hit_rate",
    "held",
    "priority_adherence",
    "reservations",
    "schedule_efficiency",
    "utilization",
)


def _fill_pool(target: admin_pb2.PoolSnapshot, pool: PoolView, now: Instant) -> None:
    target.name = pool.name
    target.capacity = pool.capacity
    target.busy = pool.busy
    target.pending_by_class.extend(pool.pending_by_class)
    target.dispatched = pool.dispatched
    target.succeeded = pool.succeeded
    target.failed = pool.failed
    target.workers_connected = pool.workers_connected
    target.paused = pool.paused
    for name in _POOL_FIGURES:
        setattr(target, name, getattr(pool, name))
    target.wait_p50_s, target.wait_p90_s, target.wait_p99_s = pool.waits
    if pool.oldest_ready_at is not None:
        target.oldest_ready_s = max(0, now - pool.oldest_ready_at) / SECOND
    for group in pool.groups:
        entry = target.groups.add()
        convert.fill_pairs(entry.labels, group.labels)
        entry.capacity = group.capacity
        entry.busy = group.busy


def copy_numbers(target: Message, source: object) -> None:
    """Copies every field of `target` from the attribute of the same name."""
    for field in target.DESCRIPTOR.fields:
        setattr(target, field.name, getattr(source, field.name))


def workers_response(workers: Sequence[WorkerView]) -> admin_pb2.ListWorkersResponse:
    """The connected sessions."""
    response = admin_pb2.ListWorkersResponse()
    for worker in workers:
        entry = response.workers.add()
        entry.id = worker.session
        entry.name = worker.name
        entry.pool = worker.pool
        convert.fill_pairs(entry.labels, worker.labels)
        entry.slots = worker.slots
        entry.busy = worker.busy
        entry.connected_unix_ns = worker.connected_at
        entry.sdk = worker.sdk
        entry.kinds.extend(worker.kinds)
    return response
