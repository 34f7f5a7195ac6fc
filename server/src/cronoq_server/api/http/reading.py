"""From what callers say in JSON to the messages that gRPC callers send.

Only the shape is checked here. Everything else is left to `specs`, `convert`, `texts` and
`admin_convert`, which read the messages built here as they read those of the wire. Their refusals
are told in the names that the JSON has.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, TypeVar

import msgspec

from cronoq_server._proto import admin_pb2, task_pb2, tasks_pb2
from cronoq_server.api import texts
from cronoq_server.api.http import forms, names
from cronoq_server.api.http.requests import (
    ListQuery,
    NewDep,
    NewSchedule,
    NewTask,
    SchedulePreview,
    TaskFilter,
)
from cronoq_server.engine import Refusal
from cronoq_server.runtime.refusals import Refused

T = TypeVar("T")

LARGE_BYTES: Final = 64 * 1024
"""Bodies up to this size are read without a look at how many entries they have."""

ENTRIES_MAX: Final = 10_000
"""More entries than this are in no list that a limit allows."""

REFERENCES_MAX: Final = 100_000
"""Most tasks that a wait or a watch may name."""

TOLD_MAX: Final = 400
"""Longest account, in characters, of what is wrong with a shape."""

_TASK: Final = msgspec.json.Decoder(NewTask)
_AT: Final = re.compile(r"(.*?)(?: - at `(?:key in )?\$\.?(.*)`)?", re.DOTALL)
_QUOTED_FIELD: Final = re.compile(r"(?:unknown|required) field `(.*)`")
_TYPES: Final = re.compile(r"`((?:(?:int|float|str|bool|object|array|null)(?: \| )?)+)`")
_WORDS: Final = {
    "int": "a whole number",
    "float": "a number",
    "str": "a text",
    "bool": "true or false",
    "object": "an object",
    "array": "a list",
}
_PLAIN: Final = (
    "kind",
    "pool",
    "key",
    "tenant",
    "deadline_in_s",
    "start_in_s",
    "tolerance_s",
    "duration_hint_s",
    "timeout_s",
    "delay_s",
    "expires_in_s",
)
_INSTANTS: Final = ("deadline_unix_ns", "start_unix_ns", "not_before_unix_ns")
_RENAMED: Final = ((re.compile(r"^task\."), ""), (re.compile(r"(deps\[\d+\])\.target"), r"\1"))


def body(content: bytes, shape: type[T]) -> T:
    """What a body says.

    Raises:
        Refused: It is no JSON, or of another shape; the field is named.
    """
    try:
        if not content.isascii():
            content.decode()
        if len(content) > LARGE_BYTES:
            _check_entries(content)
        return msgspec.json.decode(content, type=shape)
    except UnicodeDecodeError as error:
        raise texts.invalid("body", f"is not UTF-8 at byte {error.start}") from error
    except msgspec.ValidationError as error:
        raise misshapen(error, "body") from error
    except msgspec.DecodeError as error:
        raise texts.invalid("body", f"is not JSON: {error}") from error
    except RecursionError as error:
        raise texts.invalid("body", "is nested too deeply") from error


def _check_entries(content: bytes | msgspec.Raw, field: str = "") -> None:
    """Makes sure that no list or object in a large body is longer than any may be.

    To read a million of anything takes long enough for others to notice; to count them does not.
    A payload is kept as it is, and so may be of any length.

    Raises:
        Refused: One is.
    """
    if bytes(content).startswith(b"["):
        count = len(msgspec.json.decode(content, type=list[msgspec.Raw]))
        parts: dict[str, msgspec.Raw] = {}
    else:
        try:
            parts = msgspec.json.decode(content, type=dict[str, msgspec.Raw])
        except msgspec.ValidationError:
            return  # neither; who reads it will say what was expected
        count = len(parts)
    most = REFERENCES_MAX if field in ("ids", "keys") else ENTRIES_MAX
    if count > most:
        text = f"has {count} entries, the limit is {most}"
        raise texts.invalid(field or "body", text, most)
    for name, part in parts.items():
        # Tasks are counted against the limit of a batch.
        if len(bytes(part)) > LARGE_BYTES and name not in ("payload", "tasks"):
            _check_entries(part, f"{field}.{name}" if field else name)


def members(contents: Sequence[msgspec.Raw]) -> list[NewTask]:
    """The tasks of a batch, whose number has been found to be within its limit.

    Raises:
        Refused: One has another shape; the field is named with its index.
    """
    tasks = []
    for index, content in enumerate(contents):
        try:
            tasks.append(_TASK.decode(content))
        except msgspec.ValidationError as error:
            raise misshapen(error, f"tasks[{index}]", f"tasks[{index}].") from error
    return tasks


def misshapen(error: msgspec.ValidationError, whole: str, within: str = "") -> Refused:
    """A refusal of something that has another shape.

    Args:
        error: What is wrong with it.
        whole: What messages call all of it.
        within: What stands before the names of its fields.
    """
    told = str(error)
    if len(told) > TOLD_MAX:  # a field whose name is as long as the body
        told = f"{told[: TOLD_MAX // 2]}…{told[-TOLD_MAX // 2 :]}"
    match = _AT.fullmatch(told)
    assert match is not None
    text, field = match[1], match[2] or ""
    quoted = _QUOTED_FIELD.search(text)
    if quoted is not None:
        field = f"{field}.{quoted[1]}" if field else quoted[1]
        text = "is not known" if "unknown" in text else "must be given"
    field = field.replace("[...]", "")
    field = f"{within}{field}" if field else whole
    return texts.invalid(field, _TYPES.sub(_in_words, text[0].lower() + text[1:]))


def _in_words(match: re.Match[str]) -> str:
    """A type as whoever writes JSON would call it."""
    kinds = [_WORDS.get(kind, kind) for kind in match[1].split(" | ")]
    return " or ".join(kind for kind in kinds if kind != "null")


def renamed(refusal: Refusal, index: int | None = None) -> Refusal:
    """A refusal in the JSON's names: what was read as `task`, or a member of a batch, is its own.

    Args:
        refusal: As it was raised.
        index: The member of a batch whose fields the refusal names as if it stood alone.
    """
    message, details = _rename(refusal.message), []
    for name, value in refusal.details:
        details.append((name, _rename(value) if name in ("field", "other") else value))
    if index is not None and any(name == "field" for name, _ in details):
        at = f"tasks[{index}]"
        message = f"{at}.{message}"
        details = [
            (name, f"{at}.{value}" if name in ("field", "other") else value)
            for name, value in details
        ]
    return Refusal(refusal.reason, message, tuple(details))


def _rename(text: str) -> str:
    for pattern, replacement in _RENAMED:
        text = pattern.sub(replacement, text, count=1)
    return text


# Tasks


def fill_task(target: task_pb2.TaskSpec, task: NewTask) -> None:
    """Copies a task that a caller wants.

    Raises:
        Refused: A form of the payload, an instant or a dependency has no sense.
    """
    target.payload, target.content_type = forms.read(
        task.payload, task.payload_text, task.payload_base64, task.content_type
    )
    for name in _PLAIN:
        value = getattr(task, name)
        if value is not None and value != "":
            setattr(target, name, value)
    target.priority = names.PRIORITIES[task.priority]  # type: ignore[assignment]
    target.on_miss = names.MISS_POLICIES[task.on_miss]  # type: ignore[assignment]
    for name in _INSTANTS:
        value = getattr(task, name)
        if value is not None:
            setattr(target, name, names.instant(value, name))
    if task.retry is not None:
        for name in task.retry.__struct_fields__:
            setattr(target.retry, name, getattr(task.retry, name))
    for index, dep in enumerate(task.deps):
        _fill_dep(target.deps.add(), dep, f"deps[{index}]")
    target.resources.update(task.resources)
    for name in ("tags", "labels", "trace_context"):
        getattr(target, name).update(getattr(task, name))


def _fill_dep(target: task_pb2.Dep, dep: NewDep, field: str) -> None:
    if (dep.id is None) == (dep.key is None):
        raise texts.invalid(field, "must name a task by either id or key")
    if dep.key is not None:
        target.target.key = dep.key
    elif dep.id is not None:
        target.target.id = names.identity(dep.id, f"{field}.id")
    target.cond = names.CONDITIONS[dep.cond]  # type: ignore[assignment]


def batch_message(tasks: list[NewTask]) -> tasks_pb2.SubmitBatchRequest:
    """The message that a batch would be.

    Raises:
        Refused: A member has no sense; the index is in the details.
    """
    message = tasks_pb2.SubmitBatchRequest()
    for index, task in enumerate(tasks):
        try:
            fill_task(message.tasks.add(), task)
        except Refused as refused:
            details = (*refused.refusal.details, ("index", str(index)))
            refusal = msgspec.structs.replace(refused.refusal, details=details)
            raise Refused(renamed(refusal, index)) from refused
    return message


# Questions


def filter_message(wanted: TaskFilter) -> tasks_pb2.TaskFilter:
    """The message that a filter would be."""
    return tasks_pb2.TaskFilter(
        pools=wanted.pools,
        statuses=[names.STATUSES[status] for status in wanted.statuses],  # type: ignore[misc]
        kinds=wanted.kinds,
        keys=wanted.keys,
        tags=wanted.tags,
        tenants=wanted.tenants,
        schedule=wanted.schedule,
    )


def query_filter(query: ListQuery) -> TaskFilter:
    """The filter that a query asks for.

    Raises:
        Refused: A tag is not `name=value`, or one name is to have two values.
    """
    tags: dict[str, str] = {}
    for tag in query.tag:
        name, equals, value = tag.partition("=")
        if not equals:
            raise texts.invalid("tag", f"must be name=value, not {texts.shown(tag)}")
        if tags.setdefault(name, value) != value:
            raise texts.invalid("tag", f"gives {texts.shown(name)} two values")
    return TaskFilter(
        pools=query.pool,
        statuses=query.status,
        kinds=query.kind,
        keys=query.key,
        tags=tags,
        tenants=query.tenant,
        schedule=query.schedule,
    )


# Schedules


def schedule_message(name: str, schedule: NewSchedule) -> admin_pb2.RecurringRequest:
    """The message that a schedule would be.

    Raises:
        Refused: Its template has no sense.
    """
    message = admin_pb2.RecurringRequest(
        name=name, cron=schedule.cron, tz=schedule.tz, paused=schedule.paused
    )
    try:
        fill_task(message.template, schedule.template)
    except Refused as refused:
        raise texts.within("template", refused.refusal) from refused
    # A template without any field is one all the same.
    message.template.SetInParent()
    message.overlap = names.OVERLAPS[schedule.overlap]  # type: ignore[assignment]
    message.gap = names.GAPS[schedule.gap]  # type: ignore[assignment]
    message.fold = names.FOLDS[schedule.fold]  # type: ignore[assignment]
    message.catch_up = names.CATCH_UPS[schedule.catch_up]  # type: ignore[assignment]
    return message


def preview_message(preview: SchedulePreview) -> admin_pb2.RecurringRequest:
    """The message of a schedule of which only the times matter."""
    return schedule_message(
        "preview",
        NewSchedule(
            cron=preview.cron,
            template=NewTask(),
            tz=preview.tz,
            gap=preview.gap,
            fold=preview.fold,
        ),
    )
