"""What callers may say in a body or a query: the shapes, their words, and what is absent.

A field that is not known is refused, so that a typing mistake is no silent default. What a value
may be beyond its shape is said where gRPC asks the same.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from cronoq_server.api.http.names import (
    ActionName,
    CatchUpName,
    ConditionName,
    FoldName,
    GapName,
    MissPolicyName,
    OverlapName,
    PriorityName,
    StatusName,
    Whole,
)
from cronoq_server.api.texts import UINT32_MAX

Text: TypeAlias = str
Uint32: TypeAlias = Annotated[int, Meta(ge=0, le=UINT32_MAX)]
Seconds: TypeAlias = Annotated[float, Meta(ge=0, description="Seconds, at most a year.")]


class Request(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Base of all shapes that callers send."""


class NewDep(Request, kw_only=True):
    """A task to wait for: exactly one of `id` and `key`."""

    id: Whole | None = None
    key: str | None = None
    cond: ConditionName = "on_success"


class Retry(Request, kw_only=True):
    """When a failed attempt is tried again; a number that is 0 or absent is the pool's."""

    max_attempts: Annotated[Uint32, Meta(description="Attempts in total.")] = 0
    initial_backoff_s: Annotated[float, Meta(description="Seconds before the second.")] = 0.0
    multiplier: Annotated[float, Meta(description="Growth from one to the next.")] = 0.0
    max_backoff_s: Annotated[float, Meta(description="Bound on the seconds.")] = 0.0
    jitter: Annotated[bool, Meta(description="Draw from zero to the backoff.")] = True


class NewTask(Request, kw_only=True):
    """A task to submit. At most one of the three forms of its payload may be given."""

    kind: Annotated[str, Meta(description="Selects the handler. Absent: `default`.")] = ""
    pool: Annotated[str, Meta(description="Absent: `default`, or the only pool.")] = ""
    payload: Annotated[
        Raw | UnsetType,
        Meta(
            description="Any JSON value; its bytes are kept as they are sent. The content type is "
            "`application/json` unless another JSON type is given."
        ),
    ] = UNSET
    payload_text: Annotated[
        str | None,
        Meta(description="A text, kept as UTF-8; `text/plain; charset=utf-8` unless given."),
    ] = None
    payload_base64: Annotated[str | None, Meta(description="Any bytes, in base64.")] = None
    content_type: Annotated[str, Meta(description="Media type of the payload.")] = ""
    priority: Annotated[PriorityName, Meta(description="Its class.")] = "normal"
    key: Annotated[
        str,
        Meta(description="Unique while the task lives or is retained; makes a repeat harmless."),
    ] = ""
    deadline_in_s: Annotated[float | None, Meta(description="Wished end, from now.")] = None
    deadline_unix_ns: Annotated[Whole | None, Meta(description="Wished end.")] = None
    start_in_s: Annotated[float | None, Meta(description="Fixed start, from now.")] = None
    start_unix_ns: Annotated[Whole | None, Meta(description="Fixed start.")] = None
    tolerance_s: Annotated[float | None, Meta(description="How late a fixed start may be.")] = None
    on_miss: Annotated[MissPolicyName, Meta(description="If the start is missed.")] = "run_late"
    duration_hint_s: Annotated[float | None, Meta(description="Expected run time.")] = None
    timeout_s: Annotated[float | None, Meta(description="Longest run time of an attempt.")] = None
    retry: Annotated[Retry | None, Meta(description="Absent: the pool's policy.")] = None
    deps: Annotated[list[NewDep], Meta(description="Tasks that must end before.")] = []
    resources: Annotated[dict[str, Uint32], Meta(description="Amounts taken while it runs.")] = {}
    tags: Annotated[dict[str, str], Meta(description="Kept and shown; filters find them.")] = {}
    labels: Annotated[dict[str, str], Meta(description="What its worker must offer.")] = {}
    tenant: Annotated[str, Meta(description="On whose account it runs.")] = ""
    trace_context: Annotated[
        dict[str, str],
        Meta(description="W3C trace context. Absent: that of the request's headers."),
    ] = {}
    delay_s: Annotated[float | None, Meta(description="Not before, from now.")] = None
    not_before_unix_ns: Annotated[Whole | None, Meta(description="Not before.")] = None
    expires_in_s: Annotated[
        float | None, Meta(description="Ends as `missed` if it has not started by then.")
    ] = None


class NewBatch(Request, kw_only=True):
    """Tasks to submit together."""

    tasks: Annotated[list[NewTask], Meta(description="In any order of dependence.")]
    atomic: Annotated[
        bool,
        Meta(
            description="True: all are admitted or none, and members may depend on each other's "
            "keys. False: each stands on its own, and has an outcome of its own."
        ),
    ] = True


class BatchHead(Request, kw_only=True):
    """A `NewBatch` whose tasks are not read before their number is known to be within its limit.

    A body of 4 MiB has room for more than a million tasks, which would keep the server busy for
    many seconds and fill a gigabyte.
    """

    tasks: list[Raw]
    atomic: bool = True


class TaskFilter(Request, kw_only=True):
    """Which tasks are meant: those that meet every condition that is given."""

    pools: Annotated[list[str], Meta(description="Any of these.")] = []
    statuses: Annotated[list[StatusName], Meta(description="Any of these.")] = []
    kinds: Annotated[list[str], Meta(description="Any of these.")] = []
    keys: Annotated[list[str], Meta(description="Any of these.")] = []
    tags: Annotated[dict[str, str], Meta(description="All of these.")] = {}
    tenants: Annotated[list[str], Meta(description="Any of these.")] = []
    schedule: Annotated[str, Meta(description="Made by this schedule.")] = ""


class BulkOrder(Request, kw_only=True):
    """Something to do to one page of tasks."""

    action: ActionName
    filter: TaskFilter = msgspec.field(default_factory=TaskFilter)
    limit: Annotated[Uint32, Meta(description="Most tasks of this call. 0: the limit.")] = 0
    after: Annotated[Whole, Meta(description="`next_after` of the call before.")] = 0
    dry_run: Annotated[bool, Meta(description="Count only.")] = False


class WaitOrder(Request, kw_only=True):
    """Tasks to wait for."""

    ids: Annotated[list[Whole], Meta(description="By id.")] = []
    keys: Annotated[list[str], Meta(description="By key.")] = []
    timeout_s: Annotated[
        float | None, Meta(description="Longest wait, cut to the server's limit.")
    ] = None
    without_output: Annotated[bool, Meta(description="Leave outputs out.")] = False


class NewSchedule(Request, kw_only=True):
    """A schedule; its name is in the path."""

    cron: Annotated[
        str, Meta(description="5 fields, 6 with seconds first, or `@hourly` and its like.")
    ]
    template: Annotated[NewTask, Meta(description="What each occurrence asks for.")]
    tz: Annotated[str, Meta(description="IANA time zone.")] = "UTC"
    overlap: Annotated[OverlapName, Meta(description="While an occurrence is alive.")] = "skip"
    gap: Annotated[GapName, Meta(description="Local times that are skipped.")] = "run_after"
    fold: Annotated[FoldName, Meta(description="Local times that come twice.")] = "first"
    catch_up: Annotated[CatchUpName, Meta(description="Occurrences missed.")] = "latest"
    paused: Annotated[bool, Meta(description="Whether it is put paused.")] = False


class SchedulePreview(Request, kw_only=True):
    """A cron expression whose next occurrences are wanted."""

    cron: str
    tz: str = "UTC"
    gap: GapName = "run_after"
    fold: FoldName = "first"
    count: Annotated[Uint32, Meta(description="1 to 100. 0: 10.")] = 0


class Backfill(Request, kw_only=True):
    """A past range whose occurrences are to be made."""

    from_unix_ns: Annotated[Whole, Meta(description="Start, included.")]
    to_unix_ns: Annotated[Whole, Meta(description="End, not included, not in the future.")]
    dry_run: Annotated[bool, Meta(description="Count only.")] = False


class ResourceSize(Request, kw_only=True):
    """Another size for a resource; what is absent stays."""

    permits: Annotated[Uint32 | None, Meta(description="Of a semaphore.")] = None
    rate: Annotated[float | None, Meta(description="Tokens per second of a bucket.")] = None
    burst: Annotated[Uint32 | None, Meta(description="Most tokens of a bucket.")] = None


# Queries


class NoQuery(Request, kw_only=True):
    """Nothing may be said."""


class KeyQuery(Request, kw_only=True):
    """A task by its key."""

    key: Annotated[str, Meta(description="The key.")]


class SubmitQuery(Request, kw_only=True):
    """How to submit."""

    wait: Annotated[bool, Meta(description="Answer when the task has ended.")] = False
    wait_timeout_s: Annotated[
        float | None, Meta(description="Longest wait for the end, cut to the server's limit.")
    ] = None
    timeout_s: Annotated[
        float | None,
        Meta(description="How long to be parked at a full queue, cut to the server's limit."),
    ] = None


class BatchQuery(Request, kw_only=True):
    """How to submit a batch."""

    timeout_s: Annotated[
        float | None,
        Meta(description="How long to be parked at a full queue, cut to the server's limit."),
    ] = None


class WaitQuery(Request, kw_only=True):
    """How long to wait."""

    timeout_s: Annotated[
        float | None, Meta(description="Longest wait, cut to the server's limit.")
    ] = None


class KeyWaitQuery(WaitQuery, kw_only=True):
    """A task by its key, and how long to wait for it."""

    key: Annotated[str, Meta(description="The key.")]


class ListQuery(Request, kw_only=True):
    """Which tasks to list. Conditions may be repeated: any of them, and of tags all."""

    pool: list[str] = []
    status: list[StatusName] = []
    kind: list[str] = []
    key: list[str] = []
    tag: Annotated[list[str], Meta(description="`name=value`.")] = []
    tenant: list[str] = []
    schedule: str = ""
    after: Annotated[Whole, Meta(description="`next_after` of the page before.")] = 0
    limit: Annotated[Uint32, Meta(description="Most tasks of the page. 0: the limit.")] = 0
    newest_first: bool = False


class WatchQuery(Request, kw_only=True):
    """Which events to stream."""

    pool: list[str] = []
    id: list[Whole] = []
    key: list[str] = []
    all_transitions: Annotated[bool, Meta(description="Not only ends.")] = False
    after_cursor: Annotated[
        str, Meta(description="Resume behind this; the header `Last-Event-ID` does the same.")
    ] = ""


class ScheduleQuery(Request, kw_only=True):
    """Which of several schedules with one name."""

    pool: Annotated[str, Meta(description="The pool of its tasks.")] = ""


class NextQuery(ScheduleQuery, kw_only=True):
    """How many occurrences to compute."""

    count: Annotated[Uint32, Meta(description="1 to 100. 0: 10.")] = 0
