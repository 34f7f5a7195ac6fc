"""Steps as text: what happened, what was written, what was said, and when to wake.

Ids are shown as epoch.sequence, leases as L and their counter, instants as seconds since the
world began: a trace reads the same whatever the clocks of its world say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from typing import Any

import msgspec

from cronoq_server.engine.timers import NEVER
from tests.engine.harness import MONO_ZERO, WALL_ZERO, Taken

_INSTANTS = {"at", "created_at", "due_at", "deadline_at", "started_at", "ended_at", "finished_at"}
_INSTANTS |= {"retry_at", "next_run_at", "connected_at", "oldest_ready_at"}
_DURATIONS = {"delay", "deadline_in", "expires_in", "initial_backoff", "lease_ttl", "max_backoff"}
_DURATIONS |= {"retry_after", "start_in", "timeout", "tolerance", "ttl"}


def _seconds(nanoseconds: int) -> str:
    whole, rest = divmod(abs(nanoseconds), 1_000_000_000)
    sign = "-" if nanoseconds < 0 else ""
    return f"{sign}{whole}" + (f".{rest:09d}".rstrip("0") if rest else "") + "s"


def _instant(wall: int | None) -> str:
    return "none" if wall is None else "@" + _seconds(wall - WALL_ZERO)


def _id(task_id: int) -> str:
    return f"#{task_id >> 48}.{task_id & 0xFFFFFFFFFFFF}" if task_id >> 48 else f"#{task_id}"


def _lease(lease: int) -> str:
    return f"L{lease >> 40}.{lease & 0xFFFFFFFFFF}" if lease >> 40 else f"L{lease}"


def _many(show: Callable[[int], str]) -> Callable[[Iterable[int]], str]:
    return lambda values: "[" + " ".join(show(value) for value in values) + "]"


_SHOWN: dict[str, Callable[[Any], str]] = {
    "adopted": _many(_lease),
    "ids": _many(_id),
    "last_lease": _lease,
    "lease": _lease,
    "parents": _many(_id),
    "task_id": _id,
    "until": lambda mono: "none" if mono is None else "@" + _seconds(mono - MONO_ZERO),
    **dict.fromkeys(_INSTANTS, _instant),
    **dict.fromkeys(_DURATIONS, lambda value: "none" if value is None else _seconds(value)),
}


def _value(name: str, value: Any) -> str:
    if name == "leases" and value and isinstance(value[0], int):
        return _many(_lease)(value)
    if name == "aborts":
        return "[" + " ".join(f"{_lease(lease)}:{why!r}" for lease, why in value) + "]"
    if name == "target" and isinstance(value, int):
        return _id(value)
    if name in _SHOWN:
        return _SHOWN[name](value)
    if isinstance(value, msgspec.Struct):
        return struct(value)
    if isinstance(value, Enum):
        return value.name.lower()
    if isinstance(value, list | tuple):
        return "[" + " ".join(_value("", each) for each in value) + "]"
    if isinstance(value, frozenset):
        return "{" + " ".join(sorted(map(repr, value))) + "}"
    return repr(value)


def struct(value: msgspec.Struct) -> str:
    """A value as its name and the fields that differ from their defaults."""
    parts = []
    for field in msgspec.structs.fields(value):
        content = getattr(value, field.name)
        if field.default is not msgspec.NODEFAULT and content == field.default:
            continue
        parts.append(f"{field.name}={_value(field.name, content)}")
    return f"{type(value).__name__}({' '.join(parts)})"


def _wake(at: int, zero: int) -> str:
    return "never" if at == NEVER else "@" + _seconds(at - zero)


def render(taken: Sequence[Taken]) -> str:
    """Steps as text, those without events, mutations and effects left out."""
    lines: list[str] = []
    for each in taken:
        step = each.step
        if not (each.events or step.mutations or step.effects):
            continue
        wall, mono = _seconds(each.now.wall - WALL_ZERO), _seconds(each.now.mono - MONO_ZERO)
        lines.append(f"step {step.number} at wall {wall}, mono {mono}")
        lines += [f"  happened {struct(event)}" for event in each.events]
        lines += [f"  write    {struct(mutation)}" for mutation in step.mutations]
        lines += [f"  then     {struct(effect)}" for effect in step.effects]
        wake = step.wake_at
        lines.append(
            f"  wake     wall {_wake(wake.wall, WALL_ZERO)}, mono {_wake(wake.mono, MONO_ZERO)}"
        )
        lines.append("")
    return "\n".join(lines)
