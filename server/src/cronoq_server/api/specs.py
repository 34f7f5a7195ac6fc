"""Which task specs are admitted: reads `TaskSpec` messages into the engine's values.

A submit of many tasks is the hottest input of the server, so there are two ways in. The plain
way reads the six common fields of each task and adds up what they would take on the wire; if the
sum is the size of the whole request, no task has set anything else and nothing else need be
looked at. Otherwise each task is read field by field, only those that are set.

Nothing here depends on what exists: pools, keys and resources are the engine's to know.
"""

from __future__ import annotations

import copy
import dataclasses
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from cronoq_server._proto import task_pb2
from cronoq_server.api import texts
from cronoq_server.config import LimitsConfig
from cronoq_server.engine import (
    Dependency,
    EdgeCondition,
    ErrorReason,
    Pairs,
    Refusal,
    RetryPolicy,
    TaskRef,
    TaskSpec,
)
from cronoq_server.runtime.refusals import Refused

RESERVED_BYTES = 64 * 1024
"""What a message leaves free for all but one task's or output's own bytes."""

DEFAULT_KIND = "default"
DEFAULT_POOL = "default"
DEFAULT_PRIORITY = 3
MULTIPLIER_MAX = 1e6
WORDS_KEPT = 4096
"""Distinct kinds, pools and media types that are remembered as checked."""

_PRIORITIES = range(5)
_MISS_POLICIES = range(4)
_CONDITIONS = {
    0: EdgeCondition.ON_SUCCESS,
    1: EdgeCondition.ON_SUCCESS,
    2: EdgeCondition.ON_COMPLETE,
    3: EdgeCondition.ON_FAILURE,
}
_EXCLUSIVE = (
    ("deadline_in_s", "deadline_unix_ns", "deadline_in", "deadline_at"),
    ("start_in_s", "start_unix_ns", "start_in", "start_at"),
    ("delay_s", "not_before_unix_ns", "delay", "not_before"),
)


class _Words(dict[str, tuple[str, int]]):
    """Checked words: the one string that stands for them, and their bytes on the wire.

    Looking up a word that is not there checks and keeps it.
    """

    def __init__(self, check: Callable[[str], str], default: str) -> None:
        super().__init__()
        self._check = check
        self._default = default
        self[""] = (default, 0)

    def __missing__(self, text: str) -> tuple[str, int]:
        if len(self) >= WORDS_KEPT:
            self.clear()
            self[""] = (self._default, 0)
        entry = (self._check(text), _field_size(len(text.encode())))
        self[text] = entry
        return entry


class SpecReader:
    """Reads task specs under one server's limits.

    Attributes:
        task_bytes_max: Most bytes of one task, payload included.
    """

    def __init__(self, limits: LimitsConfig, pools: Sequence[str]) -> None:
        """Prepares for a server with these pools; the only one is the default one."""
        self.task_bytes_max = limits.max_message_bytes - RESERVED_BYTES
        self._limits = limits
        self.default_pool = pools[0] if len(pools) == 1 else DEFAULT_POOL
        self._kinds = _Words(lambda text: texts.word(text, "kind"), DEFAULT_KIND)
        self._pools = _Words(lambda text: texts.name(text, "pool"), self.default_pool)
        self._types = _Words(lambda text: texts.word(text, "content_type"), "")

    def replace_limits(self, limits: LimitsConfig) -> None:
        """Takes other bounds from now on; that on bytes stays."""
        self._limits = limits

    def unbounded(self) -> SpecReader:
        """One for specs that have been admitted: elsewhere, or with what the server adds."""
        reader = copy.copy(self)
        reader.task_bytes_max = sys.maxsize
        numbers = ("max_key_len", "max_tags", "max_deps", "max_resources")
        reader._limits = dataclasses.replace(self._limits, **dict.fromkeys(numbers, sys.maxsize))
        return reader

    def pool(self, text: str, field: str = "pool") -> str:
        """The pool that a caller means; empty is the default one.

        Raises:
            Refused: It is no name.
        """
        return texts.name(text, field) if text else self.default_pool

    def reference(self, message: task_pb2.TaskRef, field: str = "task") -> TaskRef:
        """The task that a caller means.

        Raises:
            Refused: Neither id nor key is given, or the key breaks its rule.
        """
        which = message.WhichOneof("ref")
        if which == "key":
            return texts.key(message.key, f"{field}.key", self._limits.max_key_len)
        if which is None or not message.id:
            raise texts.invalid(field, "must name a task by an id above 0 or by a key")
        return message.id

    def key(self, text: str, field: str) -> str:
        """Checks a key that a caller looks for.

        Raises:
            Refused: It breaks a rule.
        """
        return texts.key(text, field, self._limits.max_key_len)

    def read(self, message: task_pb2.TaskSpec, field: str = "task") -> TaskSpec:
        """Reads one spec.

        Raises:
            Refused: Something in it breaks a rule; the message names the field and the limit.
        """
        size = message.ByteSize()
        if size > self.task_bytes_max:
            raise texts.too_large(field, size, self.task_bytes_max)
        values: dict[str, Any] = {"kind": DEFAULT_KIND, "pool": self.default_pool}
        fields = _BY_DESCRIPTOR
        try:
            for descriptor, value in message.ListFields():
                attribute, read, name = fields[descriptor]
                values[attribute] = read(self, value, name)
            for first, second, relative, absolute in _EXCLUSIVE:
                if absolute in values and relative in values:
                    raise texts.conflict(first, second)
        except Refused as refused:
            raise texts.within(field, refused.refusal) from refused
        return TaskSpec(**values)

    def read_batch(self, messages: Sequence[task_pb2.TaskSpec], size: int) -> list[TaskSpec]:
        """Reads the members of a batch, all or none.

        Args:
            messages: The specs.
            size: Bytes of the request that holds nothing but them.

        Raises:
            Refused: One of them breaks a rule, or all together do; the index is in the details.
        """
        specs = []
        for index, spec in enumerate(self.read_many(messages, size)):
            if isinstance(spec, Refusal):
                raise Refused(at_index(self._refusal(messages[index], f"tasks[{index}]"), index))
            specs.append(spec)
        edges = sum(len(spec.dependencies) for spec in specs)
        if edges > self._limits.max_deps_per_batch:
            limit = self._limits.max_deps_per_batch
            raise texts.invalid("tasks", f"have {edges} deps, the limit is {limit}", limit)
        return specs

    def check_count(self, count: int) -> None:
        """Makes sure that a request may have so many tasks.

        Raises:
            Refused: It may not.
        """
        limit = self._limits.max_tasks_per_batch
        if not count:
            raise texts.invalid("tasks", f"must have 1 to {limit} members, not none", limit)
        if count > limit:
            raise Refused(
                Refusal(
                    ErrorReason.BATCH_TOO_LARGE,
                    f"tasks: {count} members exceed the limit of {limit}",
                    (("field", "tasks"), ("limit", str(limit))),
                )
            )

    def read_many(
        self, messages: Sequence[task_pb2.TaskSpec], size: int
    ) -> list[TaskSpec | Refusal]:
        """Reads specs that stand each on its own; a refused one leaves its refusal in its place.

        Args:
            messages: The specs.
            size: Bytes of the request that holds nothing but them.

        Raises:
            Refused: There are none or too many.
        """
        self.check_count(len(messages))
        try:
            plain = self._read_plain(messages, size)
        except Refused:  # reading one by one tells which it was
            plain = None
        if plain is not None:
            return plain
        return [self._read_or_refuse(message, index) for index, message in enumerate(messages)]

    def _read_or_refuse(self, message: task_pb2.TaskSpec, index: int) -> TaskSpec | Refusal:
        try:
            return self.read(message)
        except Refused as refused:
            return at_index(refused.refusal, index)

    def _refusal(self, message: task_pb2.TaskSpec, name: str) -> Refusal:
        """Why a spec that was refused is, in words that tell which of a batch it is."""
        try:
            self.read(message, name)
        except Refused as refused:
            return refused.refusal
        raise AssertionError("a spec is refused each time or never")

    def _read_plain(
        self, messages: Iterable[task_pb2.TaskSpec], size: int
    ) -> list[TaskSpec | Refusal] | None:
        """Reads specs that set nothing but the common fields; None if one might have."""
        specs: list[TaskSpec | Refusal] = []
        kinds, pools, types = self._kinds, self._pools, self._types
        key_max = min(self._limits.max_key_len, 127)
        most, total = self.task_bytes_max, 0
        for message in messages:
            kind, taken = kinds[message.kind]
            pool, pool_size = pools[message.pool]
            content_type, type_size = types[message.content_type]
            taken += pool_size + type_size
            if payload := message.payload:
                length = len(payload)
                taken += length + (2 if length < 128 else 3 if length < 16_384 else 4)
                if length >= 2_097_152:
                    taken += _field_size(length) - length - 4
            if key := message.key:
                if not key.isascii() or "\0" in key or len(key) > key_max:
                    return None
                taken += len(key) + 2
            priority: int = message.priority
            if priority:
                if not 0 < priority < 5:
                    return None
                taken += 2
            else:
                priority = DEFAULT_PRIORITY
            if taken > most:
                return None
            total += taken + (2 if taken < 128 else 3 if taken < 16_384 else 4)
            if taken >= 2_097_152:
                total += _field_size(taken) - taken - 4
            specs.append(TaskSpec(pool, kind, payload, content_type, priority, key))
        return specs if total == size else None

    # How single fields are read: each takes the field's value and what messages call it.

    def _as_is(self, value: Any, _field: str) -> Any:
        return value

    def _content_type(self, value: str, field: str) -> str:
        return texts.word(value, field)

    def _kind(self, value: str, field: str) -> str:
        entry = self._kinds.get(value)
        return entry[0] if entry is not None else texts.word(value, field)

    def _pool(self, value: str, field: str) -> str:
        entry = self._pools.get(value)
        return entry[0] if entry is not None else texts.name(value, field)

    def _priority(self, value: int, field: str) -> int:
        return texts.choice(value, _PRIORITIES, field) or DEFAULT_PRIORITY

    def _on_miss(self, value: int, field: str) -> int:
        return texts.choice(value, _MISS_POLICIES, field) or 1

    def _seconds(self, value: float, field: str) -> int:
        return texts.duration(value, field)

    def _instant(self, value: int, field: str) -> int:
        return texts.instant(value, field)

    def _retry(self, value: task_pb2.RetryPolicy, field: str) -> RetryPolicy:
        multiplier = value.multiplier
        if not math.isfinite(multiplier) or not 0 <= multiplier <= MULTIPLIER_MAX:
            text = f"must be from 0 to {MULTIPLIER_MAX:g}, not {multiplier:g}"
            raise texts.invalid(f"{field}.multiplier", text, MULTIPLIER_MAX)
        return RetryPolicy(
            max_attempts=value.max_attempts,
            initial_backoff=texts.duration(value.initial_backoff_s, f"{field}.initial_backoff_s"),
            multiplier=multiplier,
            max_backoff=texts.duration(value.max_backoff_s, f"{field}.max_backoff_s"),
            jitter=value.jitter,
        )

    def _dependencies(self, value: Sequence[task_pb2.Dep], field: str) -> tuple[Dependency, ...]:
        limit = self._limits.max_deps
        if len(value) > limit:
            raise texts.invalid(field, f"has {len(value)} entries, the limit is {limit}", limit)
        edges = []
        for index, edge in enumerate(value):
            at = f"{field}[{index}]"
            texts.choice(edge.cond, _CONDITIONS, f"{at}.cond")
            target = self.reference(edge.target, f"{at}.target")
            edges.append(Dependency(target, _CONDITIONS[edge.cond]))
        return tuple(edges)

    def _resources(self, value: Mapping[str, int], field: str) -> tuple[tuple[str, int], ...]:
        limit = self._limits.max_resources
        if len(value) > limit:
            raise texts.invalid(field, f"has {len(value)} entries, the limit is {limit}", limit)
        amounts = []
        for entry in sorted(value):
            at = f"{field}[{texts.shown(entry)}]"
            texts.resource(entry, at)
            if value[entry] < 1:
                raise texts.invalid(at, "must be at least 1", 1)
            amounts.append((entry, value[entry]))
        return tuple(amounts)

    def _pairs(self, value: Mapping[str, str], field: str) -> Pairs:
        return texts.pairs(value, field, self._limits.max_tags)

    def _tenant(self, value: str, field: str) -> str:
        return texts.name(value, field)

    def _trace(self, value: Mapping[str, str], field: str) -> Pairs:
        if len(value) > texts.TRACE_ENTRIES_MAX:
            limit = texts.TRACE_ENTRIES_MAX
            raise texts.invalid(field, f"has {len(value)} entries, the limit is {limit}", limit)
        return tuple(
            (
                texts.word(entry, field),
                texts.word(
                    value[entry],
                    f"{field}[{texts.shown(entry)}]",
                    empty=True,
                    limit=texts.TRACE_VALUE_MAX,
                ),
            )
            for entry in sorted(value)
        )


_FIELDS: dict[str, tuple[str, Callable[[SpecReader, Any, str], Any]]] = {
    "payload": ("payload", SpecReader._as_is),
    "content_type": ("content_type", SpecReader._content_type),
    "kind": ("kind", SpecReader._kind),
    "pool": ("pool", SpecReader._pool),
    "priority": ("priority", SpecReader._priority),
    "key": ("key", SpecReader.key),
    "deadline_in_s": ("deadline_in", SpecReader._seconds),
    "deadline_unix_ns": ("deadline_at", SpecReader._instant),
    "start_in_s": ("start_in", SpecReader._seconds),
    "start_unix_ns": ("start_at", SpecReader._instant),
    "tolerance_s": ("tolerance", SpecReader._seconds),
    "on_miss": ("on_miss", SpecReader._on_miss),
    "duration_hint_s": ("duration_hint", SpecReader._seconds),
    "timeout_s": ("timeout", SpecReader._seconds),
    "retry": ("retry", SpecReader._retry),
    "deps": ("dependencies", SpecReader._dependencies),
    "resources": ("resources", SpecReader._resources),
    "tags": ("tags", SpecReader._pairs),
    "labels": ("labels", SpecReader._pairs),
    "tenant": ("tenant", SpecReader._tenant),
    "trace_context": ("trace_context", SpecReader._trace),
    "delay_s": ("delay", SpecReader._seconds),
    "not_before_unix_ns": ("not_before", SpecReader._instant),
    "expires_in_s": ("expires_in", SpecReader._seconds),
}
"""Every field of the message: the engine's name for it and how it is read."""

_BY_DESCRIPTOR = {
    descriptor: (*_FIELDS[descriptor.name], descriptor.name)
    for descriptor in task_pb2.TaskSpec.DESCRIPTOR.fields
}


def at_index(refusal: Refusal, index: int) -> Refusal:
    """A refusal of one member, with its index in the details."""
    if any(name == "index" for name, _ in refusal.details):
        return refusal
    return Refusal(refusal.reason, refusal.message, (*refusal.details, ("index", str(index))))


def _field_size(length: int) -> int:
    """Bytes on the wire of a text or bytes field of this length, with a tag of one byte."""
    return 1 + _varint_size(length) + length if length else 0


def _varint_size(number: int) -> int:
    return max(1, (number.bit_length() + 6) // 7)
