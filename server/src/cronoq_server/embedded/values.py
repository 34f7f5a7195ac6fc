"""How values of Python become payloads and outputs, and what callers say about tasks, a spec.

Bytes stay bytes, everything else is JSON, as in the SDKs. What callers say goes through the same
checks as what comes over the wire, since it takes the same form on its way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, TypedDict

import msgspec

from cronoq_server._proto import task_pb2

BYTES_TYPE: Final = "application/octet-stream"
JSON_TYPE: Final = "application/json"

Seconds = float | timedelta

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
_PLAIN = ("kind", "pool", "priority", "key", "on_miss", "tenant")
_MAPS = ("resources", "tags", "labels", "trace_context")
_BACKOFFS = ("initial_backoff", "max_backoff")


class TaskOptions(TypedDict, total=False):
    """What can be said about a task beside its payload.

    Durations are seconds or timedeltas; `*_at` and `not_before` are aware datetimes. `deps` are
    ids or keys of tasks that must succeed before. `retry` has `max_attempts`, `initial_backoff`,
    `multiplier`, `max_backoff`, `jitter`.
    """

    kind: str
    pool: str
    priority: int
    key: str
    deadline_in: Seconds
    deadline_at: datetime
    start_in: Seconds
    start_at: datetime
    tolerance: Seconds
    on_miss: int
    duration_hint: Seconds
    timeout: Seconds
    retry: Mapping[str, Any]
    deps: Sequence[int | str]
    resources: Mapping[str, int]
    tags: Mapping[str, str]
    labels: Mapping[str, str]
    tenant: str
    trace_context: Mapping[str, str]
    delay: Seconds
    not_before: datetime
    expires_in: Seconds


def encode(value: object) -> tuple[bytes, str]:
    """Returns a value's bytes and their content type.

    Raises:
        TypeError: There is no JSON for it.
    """
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value), BYTES_TYPE
    try:
        return msgspec.json.encode(value), JSON_TYPE
    except (ValueError, RecursionError) as error:
        raise TypeError(f"cannot encode {type(value).__name__}: {error}") from error


def decode(content: bytes, content_type: str) -> Any:
    """Returns the value that bytes stand for; those of another type than JSON as they are.

    Raises:
        ValueError: They are no JSON although they say so.
    """
    if content_type != JSON_TYPE:
        return content
    try:
        return msgspec.json.decode(content)
    except msgspec.DecodeError as error:
        raise ValueError(f"not the JSON that it says: {error}") from error


def message_of(payload: object, options: TaskOptions) -> task_pb2.TaskSpec:
    """The wire's form of a task.

    Raises:
        TypeError: An option is unknown, or a value has no place in the contract.
        ValueError: A number does not fit.
    """
    spec = task_pb2.TaskSpec()
    spec.payload, spec.content_type = encode(payload)
    for name, value in options.items():
        _fill(spec, name, value)
    return spec


def _fill(spec: task_pb2.TaskSpec, name: str, value: Any) -> None:
    if name in _PLAIN:
        setattr(spec, name, value)
    elif name in _DURATIONS:
        setattr(spec, _DURATIONS[name], _seconds(value))
    elif name in _INSTANTS:
        setattr(spec, _INSTANTS[name], _nanoseconds(name, value))
    elif name in _MAPS:
        getattr(spec, name).update(value)
    elif name == "deps":
        for target in value:
            field = "key" if isinstance(target, str) else "id"
            spec.deps.add(target=task_pb2.TaskRef(**{field: target}))
    elif name == "retry":
        _fill_retry(spec.retry, value)
    else:
        raise TypeError(f"there is no option {name!r}")


def _fill_retry(retry: task_pb2.RetryPolicy, given: Mapping[str, Any]) -> None:
    retry.jitter = True  # unless something else is said
    for name, value in given.items():
        if name in _BACKOFFS:
            setattr(retry, f"{name}_s", _seconds(value))
        elif name in ("max_attempts", "multiplier", "jitter"):
            setattr(retry, name, value)
        else:
            raise TypeError(f"there is no option 'retry.{name}'")


def _seconds(value: Seconds) -> float:
    return value.total_seconds() if isinstance(value, timedelta) else float(value)


def _nanoseconds(name: str, value: datetime) -> int:
    if value.tzinfo is None:
        raise TypeError(f"{name}: the datetime has no zone")
    return round(value.timestamp() * 1_000_000) * 1000
