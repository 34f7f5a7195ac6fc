"""How engine values look on the wire, and what callers' questions mean to the engine.

Rules a change must keep:

1. What is empty or absent is not set: every set field costs time on both sides.
2. No message is built larger than the limit: pages, results and events are split by size.
3. Repeated fields are filled by `add()` and attribute sets, which cost half of nested constructors.
4. Validation of tasks is in `specs`, the rules of single texts and numbers in `texts`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from cronoq_server._proto import task_pb2, tasks_pb2, workers_pb2
from cronoq_server.api import texts
from cronoq_server.api.errors import to_status
from cronoq_server.api.specs import SpecReader
from cronoq_server.engine import (
    SECOND,
    Admitted,
    Page,
    Pairs,
    PastAttempt,
    Progress,
    Refusal,
    Result,
    RetryPolicy,
    Status,
    StatusEvent,
    TaskDetail,
    TaskFilter,
    TaskRef,
    TaskSpec,
    TaskView,
)
from cronoq_server.runtime.watchers import WatchBatch

NAMES_MAX = 1000
"""Most entries of one list in a filter."""

WAIT_MANY_MAX = 100_000
SCHEDULE_TAG = "cronoq.schedule"

_STATUSES = range(Status.BLOCKED, Status.SHED + 1)
_RESULT_BYTES = 64
_EVENT_BYTES = 1536
_WORST_CHARACTER = 4


# Questions


def read_filter(
    request: tasks_pb2.ListTasksRequest | tasks_pb2.TaskFilter, reader: SpecReader
) -> TaskFilter:
    """Which tasks a listing is about.

    Raises:
        Refused: A name, status or tag breaks its rule.
    """
    for field in ("pools", "statuses", "kinds", "keys", "tags", "tenants"):
        count = len(getattr(request, field))
        if count > NAMES_MAX:
            text = f"has {count} entries, the limit is {NAMES_MAX}"
            raise texts.invalid(field, text, NAMES_MAX)
    return TaskFilter(
        pools=tuple(texts.name(pool, "pools") for pool in request.pools),
        statuses=tuple(texts.choice(status, _STATUSES, "statuses") for status in request.statuses),
        kinds=tuple(texts.word(kind, "kinds") for kind in request.kinds),
        keys=tuple(reader.key(key, "keys") for key in request.keys),
        tags=texts.pairs(request.tags, "tags", NAMES_MAX),
        tenants=tuple(texts.name(tenant, "tenants") for tenant in request.tenants),
        schedule=texts.name(request.schedule, "schedule") if request.schedule else "",
    )


def read_references(
    request: tasks_pb2.WaitManyRequest | tasks_pb2.WatchRequest, reader: SpecReader
) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """The ids and the keys that a request names.

    Raises:
        Refused: There are too many, an id is 0, or a key breaks its rule.
    """
    count = len(request.ids) + len(request.keys)
    if count > WAIT_MANY_MAX:
        text = f"names {count} tasks, the limit is {WAIT_MANY_MAX}"
        raise texts.invalid("ids", text, WAIT_MANY_MAX)
    ids = tuple(request.ids)
    if 0 in ids:
        raise texts.invalid(f"ids[{ids.index(0)}]", "must be above 0")
    return ids, tuple(reader.key(key, "keys") for key in request.keys)


def read_wait(seconds: float | None, field: str, most_s: float) -> int:
    """How long a caller wants to wait, in nanoseconds, cut to the server's limit.

    Raises:
        Refused: It is no duration.
    """
    most = round(most_s * SECOND)
    return most if seconds is None else min(most, texts.duration(seconds, field))


# Tasks


def fill_pairs(target: object, pairs: Pairs) -> None:
    """Copies pairs into a map field."""
    for name, value in pairs:
        target[name] = value  # type: ignore[index]


def fill_progress(target: task_pb2.Progress, progress: Progress) -> None:
    """Copies a progress."""
    target.data = progress.content
    if progress.fraction is not None:
        target.fraction = progress.fraction


def fill_reference(target: task_pb2.TaskRef, ref: TaskRef) -> None:
    """Names a task by id or key."""
    if isinstance(ref, str):
        target.key = ref
    else:
        target.id = ref


def fill_info(target: task_pb2.TaskInfo, view: TaskView) -> None:
    """Copies what a task looks like."""
    spec = view.spec
    target.id = view.task_id
    target.status = view.status  # type: ignore[assignment]
    target.pool = spec.pool
    target.kind = spec.kind
    target.priority = spec.priority  # type: ignore[assignment]
    target.created_unix_ns = view.created_at
    target.max_attempts = min(view.attempts_max, texts.UINT32_MAX)
    if view.attempt:
        target.attempt = min(view.attempt, texts.UINT32_MAX)
    if spec.key:
        target.key = spec.key
    if view.started_at is not None:
        target.started_unix_ns = view.started_at
    if view.finished_at is not None:
        target.finished_unix_ns = view.finished_at
    if view.next_run_at is not None:
        target.next_run_unix_ns = view.next_run_at
    if view.message:
        target.message = view.message
    if view.has_output:
        target.output_available = True
    _fill_marks(target, view)


def _fill_marks(target: task_pb2.TaskInfo, view: TaskView) -> None:
    spec = view.spec
    if spec.tenant:
        target.tenant = spec.tenant
    for name, value in spec.tags:
        target.tags[name] = value
        if name == SCHEDULE_TAG:
            target.schedule = value
    fill_pairs(target.labels, spec.labels)
    if view.progress is not None:
        fill_progress(target.progress, view.progress)
    target.waiting_for.extend(view.waiting_for)


def fill_result(target: task_pb2.TaskResult, result: Result, *, with_output: bool = True) -> None:
    """Copies how a task ended."""
    target.id = result.task_id
    target.status = result.status  # type: ignore[assignment]
    if result.message:
        target.message = result.message
    if result.output is not None:
        target.output_available = True
        if with_output:
            target.output = result.output
        if result.content_type:
            target.content_type = result.content_type
    elif result.fetch:
        target.output_available = True


def fill_event(target: task_pb2.StatusEvent, event: StatusEvent) -> None:
    """Copies a transition."""
    target.id = event.task_id
    target.pool = event.pool
    target.status = event.status  # type: ignore[assignment]
    target.at_unix_ns = event.at
    if event.attempt:
        target.attempt = min(event.attempt, texts.UINT32_MAX)
    if event.key:
        target.key = event.key
    if event.message:
        target.message = event.message
    if event.progress is not None:
        fill_progress(target.progress, event.progress)


def fill_spec(target: task_pb2.TaskSpec, spec: TaskSpec) -> None:
    """Copies a spec, as `specs` reads it."""
    for attribute, field in _TEXTS.items():
        value = getattr(spec, attribute)
        if value:
            setattr(target, field, value)
    for attribute, field in _DURATIONS.items():
        value = getattr(spec, attribute)
        if value is not None:
            setattr(target, field, value / SECOND)
    for attribute, field in _INSTANTS.items():
        value = getattr(spec, attribute)
        if value is not None:
            setattr(target, field, value)
    if spec.retry is not None:
        _fill_retry(target.retry, spec.retry)
    for edge in spec.dependencies:
        dep = target.deps.add()
        fill_reference(dep.target, edge.target)
        dep.cond = int(edge.condition)  # type: ignore[assignment]
    for name, amount in spec.resources:
        target.resources[name] = amount
    fill_pairs(target.tags, spec.tags)
    fill_pairs(target.labels, spec.labels)
    fill_pairs(target.trace_context, spec.trace_context)


_TEXTS = {
    "payload": "payload",
    "content_type": "content_type",
    "kind": "kind",
    "pool": "pool",
    "priority": "priority",
    "key": "key",
    "on_miss": "on_miss",
    "tenant": "tenant",
}
_DURATIONS = {
    "deadline_in": "deadline_in_s",
    "start_in": "start_in_s",
    "tolerance": "tolerance_s",
    "duration_hint": "duration_hint_s",
    "timeout": "timeout_s",
    "delay": "delay_s",
    "expires_in": "expires_in_s",
}
_INSTANTS = {
    "deadline_at": "deadline_unix_ns",
    "start_at": "start_unix_ns",
    "not_before": "not_before_unix_ns",
}


def _fill_retry(target: task_pb2.RetryPolicy, retry: RetryPolicy) -> None:
    target.max_attempts = retry.max_attempts
    target.initial_backoff_s = retry.initial_backoff / SECOND
    target.multiplier = retry.multiplier
    target.max_backoff_s = retry.max_backoff / SECOND
    target.jitter = retry.jitter


# Answers


def submit_many_response(
    admitted: Admitted, refused: Mapping[int, Refusal]
) -> tasks_pb2.SubmitManyResponse:
    """What became of each task: `refused` by its index, the others as admitted, in order."""
    response = tasks_pb2.SubmitManyResponse()
    add = response.outcomes.add
    errors = dict(admitted.refusals)
    duplicates = frozenset(admitted.duplicates)
    asked = iter(enumerate(admitted.ids))
    if not refused and not errors and not duplicates:
        for task_id in admitted.ids:
            add().response.id = task_id
        return response
    for index in range(len(admitted.ids) + len(refused)):
        outcome = add()
        if index in refused:
            outcome.error.CopyFrom(to_status(refused[index], submitting=True))
            continue
        position, task_id = next(asked)
        if position in errors:
            outcome.error.CopyFrom(to_status(errors[position], submitting=True))
        else:
            outcome.response.id = task_id
            outcome.response.duplicate = position in duplicates
    return response


def submit_batch_response(admitted: Admitted) -> tasks_pb2.SubmitBatchResponse:
    """The members of an admitted batch."""
    response = tasks_pb2.SubmitBatchResponse()
    duplicates = frozenset(admitted.duplicates)
    for index, task_id in enumerate(admitted.ids):
        member = response.tasks.add()
        member.id = task_id
        if index in duplicates:
            member.duplicate = True
    return response


def list_response(page: Page, bytes_max: int) -> tasks_pb2.ListTasksResponse:
    """A page, cut where it would grow too large."""
    response = tasks_pb2.ListTasksResponse(next_after=page.next_after)
    size = last = 0
    for view in page.tasks:
        info = task_pb2.TaskInfo()
        fill_info(info, view)
        size += info.ByteSize() + 8
        if size > bytes_max - _EVENT_BYTES and last:
            response.next_after = last
            return response
        response.tasks.append(info)
        last = view.task_id
    return response


def detail_response(detail: TaskDetail, bytes_max: int) -> task_pb2.TaskDetail:
    """Everything known of a task; long messages give way where all would not fit."""
    response = task_pb2.TaskDetail()
    fill_info(response.info, detail.view)
    fill_spec(response.spec, detail.view.spec)
    for parent in detail.parents:
        entry = response.parents.add()
        fill_reference(entry.task, parent.target)
        entry.cond = parent.condition  # type: ignore[assignment]
        entry.status = parent.status  # type: ignore[assignment]
    response.children.extend(detail.children)
    for attempt in detail.attempts:
        _fill_attempt(response.attempts.add(), attempt)
    for most in (1024, 128, 0):
        if response.ByteSize() <= bytes_max:
            break
        for entry_ in response.attempts:
            entry_.message = entry_.message[:most]
    return response


def _fill_attempt(target: task_pb2.Attempt, attempt: PastAttempt) -> None:
    target.number = min(attempt.number, texts.UINT32_MAX)
    target.worker = attempt.worker
    target.started_unix_ns = attempt.started_at
    target.ended_unix_ns = attempt.ended_at
    target.outcome = attempt.outcome
    target.message = attempt.message


def result_messages(
    results: Iterable[Result], bytes_max: int, *, with_output: bool
) -> Iterator[tasks_pb2.TaskResults]:
    """Results in as few messages as their sizes allow."""
    message, size = tasks_pb2.TaskResults(), 0
    add = message.results.add
    for result in results:
        length = _RESULT_BYTES + _WORST_CHARACTER * (len(result.message) + len(result.content_type))
        if with_output and result.output is not None:
            length += len(result.output)
        if size and size + length > bytes_max:
            yield message
            message, size = tasks_pb2.TaskResults(), 0
            add = message.results.add
        fill_result(add(), result, with_output=with_output)
        size += length
    if size:
        yield message


def wait_error(target: tasks_pb2.WaitError, ref: TaskRef, refusal: Refusal) -> None:
    """Why one task of a wait has no result."""
    fill_reference(target.task, ref)
    target.status.CopyFrom(to_status(refusal))


def error_messages(
    refusals: Sequence[tuple[TaskRef, Refusal]],
) -> Iterator[tasks_pb2.TaskResults]:
    """Errors of a wait, in messages of a safe size."""
    for start in range(0, len(refusals), 100):
        message = tasks_pb2.TaskResults()
        for ref, refusal in refusals[start : start + 100]:
            wait_error(message.errors.add(), ref, refusal)
        yield message


def event_messages(
    batch: WatchBatch, bytes_max: int, *, with_cursors: bool
) -> Iterator[tasks_pb2.StatusEvents]:
    """Events in as few messages as their sizes allow, each with the cursor after its last one."""
    if not batch.events:
        yield tasks_pb2.StatusEvents(cursor=batch.cursor)
        return
    message, size = tasks_pb2.StatusEvents(), 0
    for event, after in batch.events:
        length = _EVENT_BYTES + _WORST_CHARACTER * (len(event.message) + len(event.key))
        if size and size + length > bytes_max:
            yield message
            message, size = tasks_pb2.StatusEvents(), 0
        fill_event(message.events.add(), event)
        if with_cursors:
            message.cursor = after
        size += length
    yield message


def single_events(batch: WatchBatch, *, with_cursors: bool) -> Iterator[task_pb2.StatusEvent]:
    """One message per event, and one with the cursor alone if there is none."""
    if not batch.events:
        yield task_pb2.StatusEvent(cursor=batch.cursor)
    for event, after in batch.events:
        message = task_pb2.StatusEvent()
        fill_event(message, event)
        if with_cursors:
            message.cursor = after
        yield message


def output_response(result: Result) -> workers_pb2.Output:
    """The output of a parent."""
    response = workers_pb2.Output()
    response.status = result.status  # type: ignore[assignment]
    if result.output is not None:
        response.output = result.output
        response.content_type = result.content_type
    return response
