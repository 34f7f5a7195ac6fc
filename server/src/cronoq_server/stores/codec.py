"""How tasks, changes and schedules become columns, and columns values again; for SQL stores.

Rules a change must keep:

1. A spec is one msgpack blob of its named fields, without payload and key, which have columns: a
   field that is added later has a default, one that is unknown is passed over. What a look-up
   filters by has a column too.
2. A change is a msgpack array; new fields go to its end.
3. Ids are signed in SQL, two's complement, and unsigned in values. Their order is that of the
   unsigned numbers: `id_spans` says which signed spans to read, and in which order.
4. What cannot be decoded is never fatal: the caller is told, and gets what the columns say.

Without its key and payload the spec of one task is that of thousands: blobs that were read lately
are kept with their meaning, and tasks that were asked for alike share their texts.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from cronoq_server.engine.filters import SCHEDULE_TAG
from cronoq_server.engine.model import (
    FIRST_TERMINAL,
    Instant,
    Pairs,
    PastAttempt,
    Progress,
    Status,
    TaskSpec,
)
from cronoq_server.engine.mutations import (
    ResourceResized,
    StatusChanged,
    StoredSchedule,
    StoredTask,
    TaskInserted,
)
from cronoq_server.stores.soundness import (
    COUNT_BOUND,
    INSTANT_MAX,
    is_sound_past,
    is_sound_schedule,
    is_sound_size,
    is_sound_spec,
)

TaskRow: TypeAlias = tuple[
    int, Instant, str | None, str, str, str | None, str | None, bytes, bytes | None
]
"""id, created_at, key, pool, kind, tenant, schedule, spec, payload."""

_SIGN = 1 << 63
_WRAP = 1 << 64
_LOWEST, _HIGHEST = -_SIGN, _SIGN - 1

UNREADABLE = "this task was set aside: what the store holds of it cannot be read"
"""Message of a task that was quarantined."""

_SEEN_MAX = 4096
"""Specs that are kept for the next row that has the same."""

_SEEN_BYTES = 1024
"""Blobs longer than this are not kept."""

_seen: dict[bytes, TaskSpec] = {}

_encode = msgspec.msgpack.Encoder().encode
_decode_spec = msgspec.msgpack.Decoder(TaskSpec).decode
_decode_schedule = msgspec.msgpack.Decoder(StoredSchedule).decode
_decode_resized = msgspec.msgpack.Decoder(ResourceResized).decode


_At = Annotated[Instant, Meta(ge=-INSTANT_MAX, le=INSTANT_MAX)]


class _Change(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The stored form of a change, in order."""

    status: Annotated[int, Meta(ge=int(Status.READY), le=int(Status.SHED))]
    attempt: Annotated[int, Meta(ge=0, lt=COUNT_BOUND)]
    attempts_max: Annotated[int, Meta(ge=0, lt=COUNT_BOUND)]
    at: _At
    started_at: _At | None
    retry_at: _At | None
    message: str
    progress: Progress | None
    history: tuple[PastAttempt, ...]
    has_output: bool
    # Absent from what was written before there was any.
    put_back: Annotated[int, Meta(ge=0)] = 0


_decode_change = msgspec.msgpack.Decoder(_Change).decode


def signed(number: int) -> int:
    """An unsigned 64-bit number as SQL holds it."""
    return number if number < _SIGN else number - _WRAP


def unsigned(number: int) -> int:
    """A number of SQL as the unsigned one it stands for."""
    return number if number >= 0 else number + _WRAP


def id_spans(after: int, *, newest_first: bool) -> list[tuple[int, int]]:
    """Spans of signed ids (both ends included) behind a cursor, in the order of unsigned ids.

    Args:
        after: Unsigned id behind which to begin; 0 = at the start.
        newest_first: Whether the order is from high to low.
    """
    halves = [(0, _SIGN - 1), (_SIGN, _WRAP - 1)]
    if newest_first:
        last = after - 1 if after else _WRAP - 1
        spans = [(low, min(high, last)) for low, high in reversed(halves) if low <= last]
    else:
        spans = [(max(low, after + 1), high) for low, high in halves if high > after]
    return [(signed(low), signed(high)) for low, high in spans]


def clean(text: str) -> str:
    """A message that every store can hold: NUL becomes U+FFFD."""
    return text.replace("\0", "\ufffd") if "\0" in text else text


def schedule_of(tags: Pairs) -> str | None:
    """The schedule that created a task, if one did."""
    for name, value in tags:
        if name == SCHEDULE_TAG:
            return value
    return None


def task_row(row: TaskInserted) -> TaskRow:
    """The columns of a new task."""
    spec, number = row.spec, row.task_id
    payload, key = spec.payload, spec.key
    bare = replace(spec, payload=b"", key="") if payload or key else spec
    return (
        number if number < _SIGN else number - _WRAP,
        row.created_at,
        key or None,
        spec.pool,
        spec.kind,
        spec.tenant or None,
        schedule_of(spec.tags) if spec.tags else None,
        _encode(bare),
        payload or None,
    )


def encode_change(change: StatusChanged) -> bytes:
    """The blob of a change; its task's id is a column beside it."""
    message, history = change.message, change.history
    if "\0" in message:
        message = clean(message)
    if history:
        history = tuple(
            replace(past, message=clean(past.message)) if "\0" in past.message else past
            for past in history
        )
    return _encode(
        (
            change.status,
            change.attempt,
            change.attempts_max,
            change.at,
            change.started_at,
            change.retry_at,
            message,
            change.progress,
            history,
            change.has_output,
            change.put_back,
        )
    )


def encode_schedule(schedule: StoredSchedule) -> bytes:
    """The blob of a schedule."""
    return _encode(schedule)


def decode_schedule(blob: bytes) -> StoredSchedule | None:
    """A schedule; None when it cannot be read, or makes no sense."""
    try:
        schedule = _decode_schedule(blob)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return schedule if is_sound_schedule(schedule) else None


def decode_resized(blob: bytes) -> ResourceResized | None:
    """The size of a resource; None when it cannot be read: then the configured one holds."""
    try:
        resized = _decode_resized(blob)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return resized if is_sound_size(resized) else None


def read_spec(blob: bytes, payload: bytes | None, key: str | None = None) -> TaskSpec | None:
    """A spec with its payload and key (None: without); None when it cannot be read."""
    spec = _seen.get(blob)
    if spec is None:
        try:
            spec = _decode_spec(blob)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None
        if not is_sound_spec(spec):
            return None
        spec = replace(
            spec,
            pool=sys.intern(spec.pool),
            kind=sys.intern(spec.kind),
            tenant=sys.intern(spec.tenant),
            content_type=sys.intern(spec.content_type),
        )
        if len(blob) <= _SEEN_BYTES:
            if len(_seen) >= _SEEN_MAX:
                _seen.clear()
            _seen[blob] = spec
    if payload or key:
        return replace(spec, payload=payload or b"", key=key or "")
    return spec


def read_change(number: int, blob: bytes) -> StatusChanged | None:
    """A change of the task with this (unsigned) id; None when it cannot be read."""
    try:
        change = _decode_change(blob)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    history, progress = change.history, change.progress
    if (history or progress is not None) and not is_sound_past(history, progress):
        return None
    return StatusChanged(
        number,
        change.status,
        change.attempt,
        change.attempts_max,
        change.at,
        change.started_at,
        change.retry_at,
        change.message,
        change.progress,
        change.history,
        change.has_output,
        change.put_back,
    )


def read_live(
    number: int,
    created_at: Instant,
    key: str | None,
    spec: bytes,
    payload: bytes | None,
    change: bytes | None,
) -> StoredTask | None:
    """A task that has not ended, from its columns; None when one of them cannot be read."""
    task_id = number if number >= 0 else number + _WRAP
    read = read_spec(spec, payload, key)
    if read is None:
        return None
    if change is None:
        return StoredTask(task_id, created_at, read)
    last = read_change(task_id, change)
    if last is None or last.status >= FIRST_TERMINAL:
        return None
    return StoredTask(task_id, created_at, read, last)


class EndedColumns(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """What a look-up reads of a task that has ended; numbers as SQL holds them.

    `key`, `pool`, `kind` and `tenant` speak for the spec where that cannot be read.
    """

    id: int
    created_at: Instant
    key: str | None
    pool: str
    kind: str
    tenant: str | None
    spec: bytes
    payload: bytes | None
    position: int
    at: Instant
    status: int
    change: bytes


def read_ended(columns: EndedColumns) -> StoredTask:
    """A task that has ended; what cannot be read of it is filled in from its columns."""
    task_id = unsigned(columns.id)
    spec = read_spec(columns.spec, columns.payload, columns.key)
    if spec is None:
        spec = TaskSpec(
            columns.pool, columns.kind, key=columns.key or "", tenant=columns.tenant or ""
        )
    change = read_change(task_id, columns.change)
    if change is None or change.status < FIRST_TERMINAL:
        is_end = FIRST_TERMINAL <= columns.status <= Status.SHED
        status = columns.status if is_end else Status.FAILED
        change = StatusChanged(task_id, status, 0, 0, columns.at, message=UNREADABLE)
    return StoredTask(task_id, columns.created_at, spec, change, columns.position)


def quarantined(task_id: int, at: Instant) -> StatusChanged:
    """The end of a live task that cannot be read."""
    return StatusChanged(task_id, Status.FAILED, 0, 0, at, message=UNREADABLE)


def signed_list(numbers: Iterable[int]) -> list[int]:
    """Ids as SQL holds them; ids that no task can have are left out."""
    return [signed(number) for number in numbers if 0 <= number < _WRAP]
