"""Decides how JSON values of the participant protocol become values of the Python SDK, and back."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from enum import IntEnum
from typing import Any

import cronoq
from cronoq import errors

JsonObject = dict[str, Any]

BYTES_SHOWN_MAX = 64 * 1024
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
ENUMS: Mapping[str, type[IntEnum]] = {
    "priority": cronoq.Priority,
    "on_miss": cronoq.MissPolicy,
    "overlap": cronoq.Overlap,
    "gap": cronoq.Gap,
    "fold": cronoq.Fold,
    "catch_up": cronoq.CatchUp,
    "cond": cronoq.EdgeCond,
}
INSTANTS = ("deadline_at", "start_at", "not_before")


def to_b64(raw: bytes) -> str:
    """Returns bytes as JSON holds them."""
    return base64.b64encode(raw).decode()


def sized(name: str, raw: bytes | None) -> JsonObject:
    """Returns bytes with their size, and without themselves when they are many."""
    if raw is None:
        return {}
    told: JsonObject = {f"{name}_size": len(raw)}
    if len(raw) <= BYTES_SHOWN_MAX:
        told[f"{name}_b64"] = to_b64(raw)
    return told


def to_target(value: JsonObject) -> int | str:
    """Reads which task is meant."""
    return value["key"] if "key" in value else int(value["id"])


def to_value(fields: JsonObject, name: str, absent: Any) -> Any:
    """Reads a payload or output, which may be a JSON value, bytes, or so many zero bytes."""
    if name in fields:
        return fields[name]
    if f"{name}_b64" in fields:
        return base64.b64decode(fields[f"{name}_b64"])
    if f"{name}_bytes" in fields:
        return bytes(fields[f"{name}_bytes"])
    return absent


def to_instant(text: str) -> datetime:
    """Reads Unix nanoseconds."""
    return EPOCH + timedelta(microseconds=int(text) // 1000)


def to_spec(fields: JsonObject) -> cronoq.TaskSpec:
    """Reads a task."""
    said: JsonObject = {}
    for name, value in fields.items():
        if name in ENUMS:
            said[name] = ENUMS[name][value.upper()]
        elif name in INSTANTS:
            said[name] = to_instant(value)
        elif name == "retry":
            said[name] = cronoq.RetryPolicy(**value)
        elif name == "deps":
            said[name] = [to_dep(dep) for dep in value]
        elif not name.startswith("payload"):
            said[name] = value
    return cronoq.TaskSpec(payload=to_value(fields, "payload", cronoq.NO_PAYLOAD), **said)


def to_dep(fields: JsonObject) -> Any:
    """Reads a dependency; without a condition it is the bare target."""
    target = to_target(fields)
    if "cond" not in fields:
        return target
    return cronoq.Dep(target, cronoq.EdgeCond[fields["cond"].upper()])


def to_filter(fields: JsonObject) -> cronoq.TaskFilter:
    """Reads a filter."""
    said = dict(fields)
    if "statuses" in said:
        said["statuses"] = [cronoq.TaskStatus[word.upper()] for word in said["statuses"]]
    return cronoq.TaskFilter(**said)


def to_schedule(fields: JsonObject) -> cronoq.ScheduleSpec:
    """Reads a schedule."""
    said: JsonObject = {
        name: ENUMS[name][value.upper()] if name in ENUMS else value
        for name, value in fields.items()
    }
    return cronoq.ScheduleSpec(**{**said, "template": to_spec(said["template"])})


def told(value: Any) -> Any:
    """Returns a value of the SDK as JSON holds it: enums by name, instants and ids as digits."""
    if isinstance(value, IntEnum):
        return value.name.lower()
    if isinstance(value, datetime):
        return str((value - EPOCH) // timedelta(microseconds=1) * 1000)
    if isinstance(value, cronoq.Progress):
        fraction = {} if value.fraction is None else {"fraction": value.fraction}
        return {"data_b64": to_b64(value.data), **fraction}
    if isinstance(value, cronoq.Dep):
        return {**target_of(value.target), "cond": told(value.cond)}
    if isinstance(value, bytes):
        return to_b64(value)
    if hasattr(value, "__struct_fields__"):
        return told_struct(value)
    if isinstance(value, Mapping):
        return {name: told(each) for name, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [told(each) for each in value]
    return value


def target_of(target: int | str) -> JsonObject:
    """Returns which task is meant."""
    return {"key": target} if isinstance(target, str) else {"id": str(target)}


def told_struct(value: Any) -> JsonObject:
    """Returns the fields of a value that are there."""
    found: JsonObject = {}
    for name in value.__struct_fields__:
        field = getattr(value, name)
        if field is None:
            continue
        if name == "id":
            found["task_id"] = str(field)
        elif name in ("payload", "output") and isinstance(field, bytes):
            found |= sized(name, field)
        elif name == "cursor":
            found["cursor_b64"] = to_b64(field)
        elif name == "target":
            found |= target_of(field)
        else:
            found[name] = told(field)
    return found


def told_error(error: BaseException) -> JsonObject:
    """Returns the type, family and text of an error, read from its type."""
    if not isinstance(error, errors.CronoqError):
        return {"type": "option", "family": "option", "message": str(error)}
    line = type(error).__mro__
    family = line[max(0, line.index(errors.CronoqError) - 1)]
    found = {
        "type": snake(type(error).__name__),
        "family": snake(family.__name__),
        "message": error.message,
        "details": dict(error.details),
    }
    if isinstance(error, cronoq.TaskFailedError):
        found |= {"status": error.status, "message": error.task_message}
    return found


def snake(name: str) -> str:
    """Returns a type's name as the protocol has it."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name.removesuffix("Error")).lower()


def to_options(fields: JsonObject) -> JsonObject:
    """Reads options: those of a backoff, of keepalive and of TLS are groups in the SDK."""
    said = dict(fields)
    groups: JsonObject = {}
    for group, names, kind in (
        ("backoff", {"backoff_initial": "initial", "backoff_max": "maximum"}, cronoq.Backoff),
        (
            "keepalive",
            {"keepalive_interval": "interval", "keepalive_timeout": "timeout"},
            cronoq.Keepalive,
        ),
        ("tls", {"tls_ca": "ca", "tls_cert": "cert", "tls_key": "key"}, cronoq.TlsOptions),
    ):
        given = {theirs: said.pop(ours) for ours, theirs in names.items() if ours in said}
        if given:
            groups[group] = kind(**given)
    return said | groups
