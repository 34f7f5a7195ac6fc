"""What the server says in JSON: the shapes of answers, and how the engine's values fill them.

A field that has nothing to say is absent. Fields that a reader builds on are always there.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from cronoq_server.api.http.names import (
    CatchUpName,
    ConditionName,
    Digits,
    FoldName,
    GapName,
    MissPolicyName,
    OverlapName,
    PriorityName,
    StatusName,
)

Counted: TypeAlias = Annotated[int, Meta(ge=0)]
Shards: TypeAlias = Annotated[
    list[str], Meta(description="Shards that could not be asked. Empty: all were.")
]


class Answer(msgspec.Struct, omit_defaults=True, gc=False):
    """Base of all shapes that the server sends."""


class ErrorBody(Answer, kw_only=True):
    """Why a call was refused.

    `code` is the status of the answer. `reason` is one of the words in the reference of errors;
    a reader that does not know it goes by the code.
    """

    code: int
    reason: str
    message: Annotated[str, Meta(description="For people; names the field and the limit.")]
    field: Annotated[str | None, Meta(description="The field that is wrong.")] = None
    details: Annotated[dict[str, str], Meta(description="Further facts.")]


class Error(Answer, kw_only=True):
    """A refusal."""

    error: ErrorBody


class Progress(Answer, kw_only=True):
    """How far an attempt is, in the handler's own words."""

    fraction: Annotated[float | None, Meta(description="0 to 1.")] = None
    data: Annotated[Raw | UnsetType, Meta(description="If its bytes are JSON.")] = UNSET
    data_text: Annotated[str | None, Meta(description="If they are a text.")] = None
    data_base64: Annotated[str | None, Meta(description="If they are neither.")] = None


class Task(Answer, kw_only=True):
    """What a task looks like."""

    id: Digits
    status: StatusName
    pool: str
    kind: str
    priority: PriorityName
    key: str | None = None
    attempt: Annotated[Counted, Meta(description="Number of the last attempt.")]
    max_attempts: Counted
    created_unix_ns: Digits
    started_unix_ns: Annotated[Digits | None, Meta(description="First start.")] = None
    finished_unix_ns: Digits | None = None
    next_run_unix_ns: Digits | None = None
    message: str | None = None
    output_available: bool = False
    tenant: str | None = None
    schedule: str | None = None
    tags: dict[str, str] = {}
    labels: dict[str, str] = {}
    progress: Progress | None = None
    waiting_for: Annotated[list[str], Meta(description="What it lacks, in words.")] = []
    unavailable_shards: Shards = []


class TaskPage(Answer, kw_only=True):
    """One page of a listing. It may be short or empty and still not be the last."""

    tasks: list[Task]
    next_after: Annotated[
        Digits | None, Meta(description="Pass as `after` for the next page. null: this is the last")
    ]
    unavailable_shards: Shards


class Result(Answer, kw_only=True):
    """How a task ended. Its output has one of three forms, by its content type."""

    id: Digits
    status: StatusName
    message: str | None = None
    output_available: bool
    content_type: str | None = None
    output: Annotated[Raw | UnsetType, Meta(description="If it is JSON.")] = UNSET
    output_text: Annotated[str | None, Meta(description="If it is a text.")] = None
    output_base64: Annotated[str | None, Meta(description="If it is neither.")] = None
    unavailable_shards: Shards = []


class Submitted(Answer, kw_only=True):
    """A task that was admitted."""

    id: Digits
    duplicate: Annotated[bool, Meta(description="Whether its key had a task already.")]
    result: Annotated[Result | None, Meta(description="If it was waited for and has ended.")] = None


class Outcome(Answer, kw_only=True):
    """What became of one of many: an id, or an error."""

    id: Digits | None = None
    duplicate: bool | None = None
    error: ErrorBody | None = None


class SubmittedBatch(Answer, kw_only=True):
    """What became of the members of a batch, in order."""

    tasks: list[Outcome]


class Cancelled(Answer, kw_only=True):
    """Outcome of a cancellation."""

    cancelled: Annotated[bool, Meta(description="Whether the task is cancelled now.")]


class Retried(Answer, kw_only=True):
    """Outcome of a redrive."""

    retried: Annotated[bool, Meta(description="Whether the task was put back.")]


class Deleted(Answer, kw_only=True):
    """Outcome of a deletion."""

    deleted: Annotated[bool, Meta(description="Whether there was a task to forget.")]


class Bulked(Answer, kw_only=True):
    """What one step of a bulk call did."""

    matched: Counted
    changed: Counted
    next_after: Annotated[
        Digits | None, Meta(description="Pass as `after` to go on. null: there is nothing left.")
    ]
    unavailable_shards: Shards


class Attempt(Answer, kw_only=True):
    """One attempt that did not succeed."""

    number: Counted
    worker: str
    started_unix_ns: Digits
    ended_unix_ns: Digits
    outcome: str
    message: str


class Parent(Answer, kw_only=True):
    """A task that another one waits for."""

    id: Digits | None = None
    key: str | None = None
    cond: ConditionName
    status: Annotated[StatusName | None, Meta(description="Absent: no longer known.")] = None


class Dep(Answer, kw_only=True):
    """A dependency as it was asked for."""

    id: Digits | None = None
    key: str | None = None
    cond: ConditionName


class RetryPolicy(Answer, kw_only=True):
    """When a failed attempt is tried again; 0: the pool's."""

    max_attempts: Counted
    initial_backoff_s: float
    multiplier: float
    max_backoff_s: float
    jitter: bool


class Spec(Answer, kw_only=True):
    """What was asked for, as it was said. Its payload has one of three forms, by its type."""

    kind: str
    pool: str
    payload: Annotated[Raw | UnsetType, Meta(description="If it is JSON.")] = UNSET
    payload_text: Annotated[str | None, Meta(description="If it is a text.")] = None
    payload_base64: Annotated[str | None, Meta(description="If it is neither.")] = None
    content_type: str | None = None
    priority: PriorityName
    key: str | None = None
    deadline_in_s: float | None = None
    deadline_unix_ns: Digits | None = None
    start_in_s: float | None = None
    start_unix_ns: Digits | None = None
    tolerance_s: float | None = None
    on_miss: MissPolicyName
    duration_hint_s: float | None = None
    timeout_s: float | None = None
    retry: RetryPolicy | None = None
    deps: list[Dep] = []
    resources: dict[str, Counted] = {}
    tags: dict[str, str] = {}
    labels: dict[str, str] = {}
    tenant: str | None = None
    trace_context: dict[str, str] = {}
    delay_s: float | None = None
    not_before_unix_ns: Digits | None = None
    expires_in_s: float | None = None


class TaskDetail(Answer, kw_only=True):
    """Everything known of a task."""

    task: Task
    spec: Spec
    attempts: list[Attempt]
    parents: list[Parent]
    children: Annotated[list[Digits], Meta(description="The first 100.")]
    unavailable_shards: Shards = []


class Event(Answer, kw_only=True):
    """A change of a task's status."""

    id: Digits
    pool: str
    key: str | None = None
    status: StatusName
    attempt: Counted
    at_unix_ns: Digits
    message: str | None = None
    progress: Progress | None = None


class WaitLine(Answer, kw_only=True):
    """One line of a wait for many: a result, or why there is none for a task."""

    result: Result | None = None
    id: Digits | None = None
    key: str | None = None
    error: ErrorBody | None = None


class Schedule(Answer, kw_only=True):
    """How a schedule stands."""

    name: str
    cron: str
    tz: str
    pool: str
    kind: str
    overlap: OverlapName
    gap: GapName
    fold: FoldName
    catch_up: CatchUpName
    paused: bool
    next_unix_ns: Annotated[Digits | None, Meta(description="Absent: never again.")] = None
    last_task_id: Digits | None = None


class ScheduleDetail(Answer, kw_only=True):
    """A schedule in full."""

    schedule: Schedule
    template: Spec
    skipped: Annotated[Counted, Meta(description="Occurrences passed over.")]
    chain_broken: bool


class Schedules(Answer, kw_only=True):
    """The schedules, by name."""

    schedules: list[Schedule]
    unavailable_shards: Shards


class Removed(Answer, kw_only=True):
    """Outcome of a removal."""

    removed: bool


class Triggered(Answer, kw_only=True):
    """The occurrence that was made."""

    task_id: Digits


class Backfilled(Answer, kw_only=True):
    """Outcome of a backfill."""

    created: Counted
    next_unix_ns: Annotated[
        Digits | None, Meta(description="Where to go on. null: the range is done.")
    ]


class Occurrences(Answer, kw_only=True):
    """The next occurrences, in order."""

    at_unix_ns: list[Digits]


class Classes(Answer, kw_only=True):
    """Pending tasks by class."""

    critical: Counted
    high: Counted
    normal: Counted
    low: Counted


class WorkerGroup(Answer, kw_only=True):
    """Workers of one pool with equal labels."""

    labels: dict[str, str]
    capacity: Counted
    busy: Counted


class Pool(Answer, kw_only=True):
    """Figures of one pool; counters run since the leader took over."""

    name: str
    paused: bool
    capacity: Counted
    busy: Counted
    held: Counted
    desired: Counted
    pending_by_class: Classes
    reservations: Counted
    dispatched: Counted
    succeeded: Counted
    failed: Counted
    priority_adherence: float
    fixed_start_hit_rate: float
    utilization: float
    schedule_efficiency: float
    wait_p50_s: float
    wait_p90_s: float
    wait_p99_s: float
    cost: float
    workers_connected: Counted
    groups: list[WorkerGroup]
    oldest_ready_s: float


class Pools(Answer, kw_only=True):
    """The pools, by name."""

    pools: list[Pool]
    unavailable_shards: Shards


class Totals(Answer, kw_only=True):
    """Counters since the leader took over."""

    submitted: Counted
    dispatched: Counted
    succeeded: Counted
    failed: Counted
    dead_lettered: Counted
    cancelled: Counted
    skipped: Counted
    missed: Counted
    shed: Counted
    retries: Counted
    timeouts: Counted
    lease_expiries: Counted
    stale_completions: Counted


class Resource(Answer, kw_only=True):
    """A limit that tasks share across pools."""

    name: str
    kind: str
    permits: Counted
    rate: float
    burst: Counted
    held: Counted
    tokens: float
    waiting: Counted
    overridden: bool
    per_value: bool


class Resources(Answer, kw_only=True):
    """The resources, by name."""

    resources: list[Resource]
    unavailable_shards: Shards


class Snapshot(Answer, kw_only=True):
    """Figures of the whole server or cluster."""

    pools: list[Pool]
    live_tasks: Counted
    running: Counted
    pending: Counted
    totals: Totals
    workers_connected: Counted
    resources: list[Resource]
    unavailable_shards: Shards


class Worker(Answer, kw_only=True):
    """One connected session."""

    id: Digits
    name: str
    pool: str
    labels: dict[str, str]
    kinds: Annotated[list[str], Meta(description="Empty: any.")]
    slots: Counted
    busy: Counted
    connected_unix_ns: Digits
    sdk: str


class Workers(Answer, kw_only=True):
    """The sessions, by number."""

    workers: list[Worker]
    unavailable_shards: Shards
