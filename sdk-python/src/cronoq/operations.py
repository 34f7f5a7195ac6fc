"""Decides what those are told who run the queue: pools, workers, schedules, resources.

Plain values like those of `cronoq.views`. Durations are seconds, instants aware UTC datetimes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TypeVar

import msgspec

from .spec import CatchUp, Fold, Gap, Overlap, ScheduleSpec

T = TypeVar("T")


class Gathered(list[T]):
    """A list gathered from all shards that answered.

    Attributes:
        unavailable_shards: Shards that the list lacks.
    """

    def __init__(self, items: Iterable[T], unavailable_shards: Iterable[str]) -> None:
        super().__init__(items)
        self.unavailable_shards: tuple[str, ...] = tuple(unavailable_shards)


class WorkerGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Workers with the same labels."""

    labels: Mapping[str, str]
    capacity: int
    busy: int


class PoolSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A pool at one moment.

    Attributes:
        held: Slots kept free for fixed starts.
        desired: Slots that the autoscaler wants.
        pending_by_class: Waiting tasks from the highest class to the lowest.
        oldest_ready_s: How long the longest waiting ready task has waited.
    """

    name: str
    capacity: int
    busy: int
    held: int
    desired: int
    pending_by_class: Sequence[int]
    reservations: int
    dispatched: int
    succeeded: int
    failed: int
    priority_adherence: float
    fixed_start_hit_rate: float
    utilization: float
    schedule_efficiency: float
    wait_p50_s: float
    wait_p90_s: float
    wait_p99_s: float
    cost: float
    workers_connected: int
    groups: Sequence[WorkerGroup]
    paused: bool
    oldest_ready_s: float


class Totals(msgspec.Struct, frozen=True, kw_only=True):
    """What has happened since the leader began."""

    submitted: int
    dispatched: int
    succeeded: int
    failed: int
    dead_lettered: int
    cancelled: int
    skipped: int
    missed: int
    shed: int
    retries: int
    timeouts: int
    lease_expiries: int
    stale_completions: int


class ResourceInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A resource at one moment.

    Attributes:
        kind: `semaphore` or `token_bucket`.
        overridden: Whether its size was changed at run time.
        per_value: Whether each value counts alone.
    """

    name: str
    kind: str
    permits: int
    rate: float
    burst: int
    held: int
    tokens: float
    waiting: int
    overridden: bool
    per_value: bool


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Everything at one moment."""

    pools: Sequence[PoolSnapshot]
    live_tasks: int
    running: int
    pending: int
    totals: Totals
    workers_connected: int
    unavailable_shards: Sequence[str]
    resources: Sequence[ResourceInfo]


class WorkerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A connected worker.

    Attributes:
        kinds: What it handles; empty means anything.
    """

    id: int
    name: str
    pool: str
    labels: Mapping[str, str]
    slots: int
    busy: int
    connected_at: datetime
    sdk: str
    kinds: Sequence[str]


class ScheduleInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule and when it is due next."""

    name: str
    cron: str
    tz: str
    pool: str
    kind: str
    overlap: Overlap
    next_at: datetime | None
    last_task_id: int | None
    paused: bool
    gap: Gap
    fold: Fold
    catch_up: CatchUp


class ScheduleDetail(msgspec.Struct, frozen=True, kw_only=True):
    """All that is known about a schedule. The payload in its template is bytes.

    Attributes:
        skipped: Occurrences that were left out.
        chain_broken: Whether a chain waits for the schedule to be put again.
    """

    schedule: ScheduleInfo
    spec: ScheduleSpec
    skipped: int
    chain_broken: bool


class Backfill(msgspec.Struct, frozen=True, kw_only=True):
    """What a backfill did.

    Attributes:
        created: Tasks made (or that would be made).
        next_at: Where to go on if the bound was reached.
    """

    created: int
    next_at: datetime | None
