"""From the engine's values to what the server says in JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from cronoq_server.api import admin_convert, texts
from cronoq_server.api.convert import SCHEDULE_TAG
from cronoq_server.api.errors import status_of
from cronoq_server.api.http import forms, names, responses
from cronoq_server.api.http.names import StatusName
from cronoq_server.api.passing import missing_shards
from cronoq_server.engine import (
    SECOND,
    Admitted,
    Instant,
    Pairs,
    PoolView,
    Progress,
    Refusal,
    ResourceView,
    Result,
    SnapshotView,
    StatusEvent,
    StoredSchedule,
    TaskDetail,
    TaskRef,
    TaskSpec,
    TaskView,
    WorkerView,
)

_DURATIONS: Final = {
    "deadline_in_s": "deadline_in",
    "start_in_s": "start_in",
    "tolerance_s": "tolerance",
    "duration_hint_s": "duration_hint",
    "timeout_s": "timeout",
    "delay_s": "delay",
    "expires_in_s": "expires_in",
}
_INSTANTS: Final = {
    "deadline_unix_ns": "deadline_at",
    "start_unix_ns": "start_at",
    "not_before_unix_ns": "not_before",
}
_FIGURES: Final = (
    "name",
    "paused",
    "capacity",
    "busy",
    "held",
    "desired",
    "reservations",
    "dispatched",
    "succeeded",
    "failed",
    "priority_adherence",
    "fixed_start_hit_rate",
    "utilization",
    "schedule_efficiency",
    "cost",
    "workers_connected",
)


def digits(number: int | None) -> str | None:
    """An id or instant as it is told; None and 0 are not there."""
    return str(number) if number else None


def _instant(instant: Instant | None) -> str | None:
    return None if instant is None else str(instant)


# Errors


def error_body(
    refusal: Refusal, *, code: int | None = None, submitting: bool = False
) -> responses.ErrorBody:
    """A refusal as it is told.

    Args:
        refusal: What was refused.
        code: The status, if it is not that of the table.
        submitting: Whether a submission was refused.
    """
    details = dict(refusal.details)
    return responses.ErrorBody(
        code=code or status_of(refusal, submitting=submitting).http,
        reason=refusal.reason.value,
        message=refusal.message,
        field=details.pop("field", None),
        details=details,
    )


# Tasks


def task(view: TaskView) -> responses.Task:
    """What a task looks like."""
    spec = view.spec
    tags = dict(spec.tags)
    return responses.Task(
        id=str(view.task_id),
        status=_status(view.status),
        pool=spec.pool,
        kind=spec.kind,
        priority=names.PRIORITY_WORDS[spec.priority],  # type: ignore[arg-type]
        key=spec.key or None,
        attempt=view.attempt,
        max_attempts=min(view.attempts_max, texts.UINT32_MAX),
        created_unix_ns=str(view.created_at),
        started_unix_ns=_instant(view.started_at),
        finished_unix_ns=_instant(view.finished_at),
        next_run_unix_ns=_instant(view.next_run_at),
        message=view.message or None,
        output_available=view.has_output,
        tenant=spec.tenant or None,
        schedule=tags.get(SCHEDULE_TAG),
        tags=tags,
        labels=dict(spec.labels),
        progress=_progress(view.progress),
        waiting_for=list(view.waiting_for),
    )


def _status(number: int) -> StatusName:
    return names.STATUS_WORDS[number]  # type: ignore[return-value]


def _progress(progress: Progress | None) -> responses.Progress | None:
    if progress is None:
        return None
    form = forms.guess(progress.content)
    return responses.Progress(
        fraction=progress.fraction,
        data=form.value,
        data_text=form.text,
        data_base64=form.base64,
    )


def spec(asked: TaskSpec) -> responses.Spec:
    """What was asked for."""
    form = forms.write(asked.payload, asked.content_type) if asked.payload else forms.Form()
    told = responses.Spec(
        kind=asked.kind,
        pool=asked.pool,
        payload=form.value,
        payload_text=form.text,
        payload_base64=form.base64,
        content_type=asked.content_type or None,
        priority=names.PRIORITY_WORDS[asked.priority],  # type: ignore[arg-type]
        key=asked.key or None,
        on_miss=names.MISS_POLICY_WORDS[asked.on_miss],  # type: ignore[arg-type]
        deps=[
            responses.Dep(**_named(edge.target), cond=_condition(edge.condition))
            for edge in asked.dependencies
        ],
        resources=dict(asked.resources),
        tags=dict(asked.tags),
        labels=dict(asked.labels),
        tenant=asked.tenant or None,
        trace_context=dict(asked.trace_context),
    )
    for name, attribute in _DURATIONS.items():
        value = getattr(asked, attribute)
        if value is not None:
            setattr(told, name, value / SECOND)
    for name, attribute in _INSTANTS.items():
        setattr(told, name, _instant(getattr(asked, attribute)))
    if asked.retry is not None:
        told.retry = responses.RetryPolicy(
            max_attempts=asked.retry.max_attempts,
            initial_backoff_s=asked.retry.initial_backoff / SECOND,
            multiplier=asked.retry.multiplier,
            max_backoff_s=asked.retry.max_backoff / SECOND,
            jitter=asked.retry.jitter,
        )
    return told


def _named(target: TaskRef) -> dict[str, str]:
    return {"key": target} if isinstance(target, str) else {"id": str(target)}


def _condition(number: int) -> names.ConditionName:
    return names.CONDITION_WORDS[number]  # type: ignore[return-value]


def detail(known: TaskDetail) -> responses.TaskDetail:
    """Everything known of a task."""
    return responses.TaskDetail(
        task=task(known.view),
        spec=spec(known.view.spec),
        attempts=[
            responses.Attempt(
                number=attempt.number,
                worker=attempt.worker,
                started_unix_ns=str(attempt.started_at),
                ended_unix_ns=str(attempt.ended_at),
                outcome=attempt.outcome,
                message=attempt.message,
            )
            for attempt in known.attempts
        ],
        parents=[
            responses.Parent(
                **_named(parent.target),
                cond=_condition(parent.condition),
                status=_status(parent.status) if parent.status else None,
            )
            for parent in known.parents
        ],
        children=[str(child) for child in known.children],
    )


def result(ended: Result, *, with_output: bool = True) -> responses.Result:
    """How a task ended."""
    form = forms.Form()
    if ended.output is not None and with_output:
        form = forms.write(ended.output, ended.content_type)
    return responses.Result(
        id=str(ended.task_id),
        status=_status(ended.status),
        message=ended.message or None,
        output_available=ended.output is not None or ended.fetch,
        content_type=ended.content_type or None,
        output=form.value,
        output_text=form.text,
        output_base64=form.base64,
    )


def outcomes(admitted: Admitted, refused: Mapping[int, Refusal]) -> responses.SubmittedBatch:
    """What became of each task: `refused` by its index, the others as admitted, in order."""
    errors, duplicates = dict(admitted.refusals), frozenset(admitted.duplicates)
    asked = iter(enumerate(admitted.ids))
    told = []
    for index in range(len(admitted.ids) + len(refused)):
        if index in refused:
            told.append(responses.Outcome(error=error_body(refused[index], submitting=True)))
            continue
        position, task_id = next(asked)
        if position in errors:
            told.append(responses.Outcome(error=error_body(errors[position], submitting=True)))
        else:
            is_duplicate = position in duplicates
            told.append(responses.Outcome(id=str(task_id), duplicate=is_duplicate))
    return responses.SubmittedBatch(tasks=told)


def event(change: StatusEvent) -> responses.Event:
    """A transition."""
    return responses.Event(
        id=str(change.task_id),
        pool=change.pool,
        key=change.key or None,
        status=_status(change.status),
        attempt=change.attempt,
        at_unix_ns=str(change.at),
        message=change.message or None,
        progress=_progress(change.progress),
    )


def wait_error(ref: TaskRef, refusal: Refusal) -> responses.WaitLine:
    """Why one task of a wait has no result."""
    return responses.WaitLine(**_named(ref), error=error_body(refusal))  # type: ignore[arg-type]


# Schedules


def schedule(stored: StoredSchedule) -> responses.Schedule:
    """How a schedule stands."""
    put = stored.spec
    return responses.Schedule(
        name=put.name,
        cron=put.cron,
        tz=put.zone,
        pool=put.template.pool,
        kind=put.template.kind,
        overlap=names.OVERLAP_WORDS[put.overlap],  # type: ignore[arg-type]
        gap=names.GAP_WORDS[put.gap],  # type: ignore[arg-type]
        fold=names.FOLD_WORDS[put.fold],  # type: ignore[arg-type]
        catch_up=names.CATCH_UP_WORDS[put.catch_up],  # type: ignore[arg-type]
        paused=stored.paused,
        next_unix_ns=_instant(stored.next_at),
        last_task_id=digits(stored.last_task),
    )


def schedule_detail(stored: StoredSchedule) -> responses.ScheduleDetail:
    """A schedule in full."""
    return responses.ScheduleDetail(
        schedule=schedule(stored),
        template=spec(stored.spec.template),
        skipped=stored.skipped,
        chain_broken=stored.chain_broken,
    )


# Capacity


def pool(view: PoolView, now: Instant) -> responses.Pool:
    """Figures of a pool; `now` is a wall instant."""
    waited = 0 if view.oldest_ready_at is None else max(0, now - view.oldest_ready_at)
    p50, p90, p99 = view.waits
    critical, high, normal, low = view.pending_by_class
    return responses.Pool(
        **{name: getattr(view, name) for name in _FIGURES},
        pending_by_class=responses.Classes(critical=critical, high=high, normal=normal, low=low),
        wait_p50_s=p50,
        wait_p90_s=p90,
        wait_p99_s=p99,
        groups=[
            responses.WorkerGroup(
                labels=dict(group.labels), capacity=group.capacity, busy=group.busy
            )
            for group in view.groups
        ],
        oldest_ready_s=waited / SECOND,
    )


def resource(view: ResourceView) -> responses.Resource:
    """A resource and how much of it is out."""
    return responses.Resource(
        name=view.name,
        kind=view.kind,
        permits=view.permits,
        rate=view.rate / admin_convert.NANO,
        burst=view.burst,
        held=view.held,
        tokens=view.tokens / admin_convert.NANO,
        waiting=view.waiting,
        overridden=view.overridden,
        per_value=view.per_value,
    )


def snapshot(
    view: SnapshotView, resources: Iterable[ResourceView], now: Instant
) -> responses.Snapshot:
    """Counts of all pools; `now` is a wall instant."""
    totals = responses.Totals(
        **{name: getattr(view.totals, name) for name in responses.Totals.__struct_fields__}
    )
    return responses.Snapshot(
        pools=[pool(one, now) for one in view.pools],
        live_tasks=view.live_tasks,
        running=view.running,
        pending=view.pending,
        totals=totals,
        workers_connected=view.workers_connected,
        resources=[resource(one) for one in resources],
        unavailable_shards=missing_shards(),
    )


def workers(views: Sequence[WorkerView]) -> responses.Workers:
    """The connected sessions."""
    return responses.Workers(
        workers=[
            responses.Worker(
                id=str(view.session),
                name=view.name,
                pool=view.pool,
                labels=_mapping(view.labels),
                kinds=list(view.kinds),
                slots=view.slots,
                busy=view.busy,
                connected_unix_ns=str(view.connected_at),
                sdk=view.sdk,
            )
            for view in views
        ],
        unavailable_shards=missing_shards(),
    )


def _mapping(pairs: Pairs) -> dict[str, str]:
    return dict(pairs)
