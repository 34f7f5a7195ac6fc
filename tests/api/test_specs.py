"""Which task specs get in, and how precisely the others are refused."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cronoq_server._proto import task_pb2, tasks_pb2
from cronoq_server.api import convert
from cronoq_server.api.specs import SpecReader
from cronoq_server.config import LimitsConfig
from cronoq_server.engine import (
    SECOND,
    Dependency,
    EdgeCondition,
    ErrorReason,
    Refusal,
    RetryPolicy,
    TaskSpec,
)
from cronoq_server.runtime.refusals import Refused

LIMITS = LimitsConfig()
READER = SpecReader(LIMITS, ["default"])

Change = Callable[[task_pb2.TaskSpec], object]


def nothing(_message: task_pb2.TaskSpec) -> None:
    """Changes nothing."""


def read(change: Change, reader: SpecReader = READER) -> TaskSpec:
    """Reads a spec that one change was made to."""
    message = task_pb2.TaskSpec()
    change(message)
    return reader.read(message)


def refusal_of(change: Change, reader: SpecReader = READER) -> Refusal:
    """The refusal of a spec that one change was made to."""
    with pytest.raises(Refused) as caught:
        read(change, reader)
    return caught.value.refusal


def many(*changes: Change, reader: SpecReader = READER) -> list[TaskSpec | Refusal]:
    """Reads specs that came in one request, one per change."""
    request = tasks_pb2.SubmitManyRequest()
    for change in changes:
        change(request.tasks.add())
    return reader.read_many(request.tasks, request.ByteSize())


def test_empty_spec_takes_the_defaults() -> None:
    """No kind is `default`, no pool is the only one, no priority is normal."""
    assert read(nothing, SpecReader(LIMITS, ["llm"])) == TaskSpec("llm", "default")
    assert read(nothing, SpecReader(LIMITS, ["a", "b"])).pool == "default"
    (spec,) = many(nothing)
    assert spec == TaskSpec(pool="default", kind="default", priority=3)


def test_every_field_arrives() -> None:
    """What is said about a task is what the engine gets, in whole nanoseconds."""
    message = full_message()
    assert READER.read(message) == TaskSpec(
        pool="default",
        kind="mail",
        payload=b"{}",
        content_type="application/json",
        priority=1,
        key="k",
        deadline_in=1_500_000_000,
        start_at=1_700_000_000_000_000_000,
        tolerance=0,
        on_miss=2,
        duration_hint=2 * SECOND,
        timeout=30 * SECOND,
        retry=RetryPolicy(5, SECOND // 2, 3.0, 9 * SECOND, jitter=False),
        dependencies=(
            Dependency(7, EdgeCondition.ON_FAILURE),
            Dependency("parent", EdgeCondition.ON_SUCCESS),
        ),
        resources=(("api", 2), ("per:acme", 1)),
        tags=(("a", ""), ("b", "x")),
        labels=(("gpu", "yes"),),
        tenant="acme",
        trace_context=(("traceparent", "00-1-2-3"),),
        delay=SECOND,
        expires_in=60 * SECOND,
    )


def full_message() -> task_pb2.TaskSpec:
    """A spec that sets one form of every field."""
    message = task_pb2.TaskSpec(
        payload=b"{}",
        content_type="application/json",
        kind="mail",
        pool="default",
        priority=task_pb2.PRIORITY_CRITICAL,
        key="k",
        deadline_in_s=1.5,
        start_unix_ns=1_700_000_000_000_000_000,
        tolerance_s=0,
        on_miss=task_pb2.MISS_POLICY_SKIP,
        duration_hint_s=2,
        timeout_s=30,
        tenant="acme",
        delay_s=1,
        expires_in_s=60,
    )
    message.retry.CopyFrom(
        task_pb2.RetryPolicy(max_attempts=5, initial_backoff_s=0.5, multiplier=3, max_backoff_s=9)
    )
    message.deps.add(target=task_pb2.TaskRef(id=7), cond=task_pb2.EDGE_COND_ON_FAILURE)
    message.deps.add(target=task_pb2.TaskRef(key="parent"))
    message.resources.update({"per:acme": 1, "api": 2})
    message.tags.update({"b": "x", "a": ""})
    message.labels["gpu"] = "yes"
    message.trace_context["traceparent"] = "00-1-2-3"
    return message


def test_spec_looks_the_same_on_the_way_out() -> None:
    """A spec that is shown again says what its submitter said."""
    shown = task_pb2.TaskSpec()
    convert.fill_spec(shown, READER.read(full_message()))
    expected = full_message()
    expected.deps[1].cond = task_pb2.EDGE_COND_ON_SUCCESS
    assert shown == expected


words = st.text(st.characters(codec="utf-8", exclude_categories=["Cc"]), max_size=150)


@given(
    st.lists(
        st.tuples(st.binary(max_size=300), words, words, st.integers(0, 4), st.booleans()),
        min_size=1,
        max_size=5,
    )
)
def test_plain_way_reads_what_the_long_way_reads(
    tasks: list[tuple[bytes, str, str, int, bool]],
) -> None:
    """The quick reading of common fields never misses one that it does not look at."""
    request = tasks_pb2.SubmitManyRequest()
    for payload, kind, key, priority, is_special in tasks:
        message = request.tasks.add(payload=payload, kind=kind, key=key)
        message.priority = priority  # type: ignore[assignment]
        if is_special:
            message.timeout_s = 0
    one_by_one = [READER.read(message) for message in request.tasks]
    assert READER.read_many(request.tasks, request.ByteSize()) == one_by_one


@pytest.mark.parametrize("length", [0, 1, 127, 128, 16_380, 16_384, 70_000, 2_097_152, 2_100_000])
def test_plain_way_knows_every_length(length: int) -> None:
    """Payloads of all encodings' lengths are read alike by both ways."""
    change: Change = lambda m: setattr(m, "payload", b"x" * length)  # noqa: E731
    assert many(change) == [read(change)]


CASES: list[tuple[str, Change, ErrorReason, str]] = [
    ("key with NUL", lambda m: setattr(m, "key", "a\0b"), ErrorReason.INVALID_FIELD, "task.key"),
    (
        "long key",
        lambda m: setattr(m, "key", "ä" * 129),
        ErrorReason.INVALID_FIELD,
        "has 258 bytes, the limit is 256",
    ),
    (
        "pool name",
        lambda m: setattr(m, "pool", "no spaces"),
        ErrorReason.INVALID_FIELD,
        "task.pool: must have 1 to 64",
    ),
    (
        "kind with control character",
        lambda m: setattr(m, "kind", "a\nb"),
        ErrorReason.INVALID_FIELD,
        "task.kind: holds a control character",
    ),
    (
        "long kind",
        lambda m: setattr(m, "kind", "k" * 257),
        ErrorReason.INVALID_FIELD,
        "the limit is 256",
    ),
    (
        "priority",
        lambda m: setattr(m, "priority", 9),
        ErrorReason.INVALID_FIELD,
        "task.priority: has no value 9",
    ),
    (
        "miss policy",
        lambda m: setattr(m, "on_miss", 4),
        ErrorReason.INVALID_FIELD,
        "task.on_miss",
    ),
    (
        "negative timeout",
        lambda m: setattr(m, "timeout_s", -1),
        ErrorReason.INVALID_FIELD,
        "task.timeout_s: must be 0 or more seconds, not -1",
    ),
    (
        "NaN",
        lambda m: setattr(m, "delay_s", math.nan),
        ErrorReason.INVALID_FIELD,
        "task.delay_s",
    ),
    (
        "infinite",
        lambda m: setattr(m, "expires_in_s", math.inf),
        ErrorReason.INVALID_FIELD,
        "exceed one year",
    ),
    (
        "above a year",
        lambda m: setattr(m, "start_in_s", 366 * 86_400 + 1),
        ErrorReason.INVALID_FIELD,
        "task.start_in_s",
    ),
    (
        "negative instant",
        lambda m: setattr(m, "not_before_unix_ns", -1),
        ErrorReason.INVALID_FIELD,
        "task.not_before_unix_ns",
    ),
    (
        "instant that can't be stored",
        lambda m: setattr(m, "deadline_unix_ns", 2**63 - 1),
        ErrorReason.INVALID_FIELD,
        "task.deadline_unix_ns",
    ),
    (
        "retry multiplier",
        lambda m: setattr(m.retry, "multiplier", math.nan),
        ErrorReason.INVALID_FIELD,
        "task.retry.multiplier",
    ),
    (
        "retry backoff",
        lambda m: setattr(m.retry, "initial_backoff_s", -0.5),
        ErrorReason.INVALID_FIELD,
        "task.retry.initial_backoff_s",
    ),
    (
        "dependency without target",
        lambda m: m.deps.add(),
        ErrorReason.INVALID_FIELD,
        "task.deps[0].target",
    ),
    (
        "dependency on id 0",
        lambda m: m.deps.add(target=task_pb2.TaskRef(id=0)),
        ErrorReason.INVALID_FIELD,
        "an id above 0",
    ),
    (
        "edge condition",
        lambda m: setattr(m.deps.add(target=task_pb2.TaskRef(id=1)), "cond", 7),
        ErrorReason.INVALID_FIELD,
        "task.deps[0].cond",
    ),
    (
        "too many dependencies",
        lambda m: m.deps.extend(
            task_pb2.Dep(target=task_pb2.TaskRef(id=n + 1)) for n in range(101)
        ),
        ErrorReason.INVALID_FIELD,
        "task.deps: has 101 entries, the limit is 100",
    ),
    (
        "too many tags",
        lambda m: m.tags.update({str(n): "" for n in range(33)}),
        ErrorReason.INVALID_FIELD,
        "the limit is 32",
    ),
    (
        "tag without name",
        lambda m: m.tags.update({"": "x"}),
        ErrorReason.INVALID_FIELD,
        "task.tags: must have 1 to 256",
    ),
    (
        "label value with control character",
        lambda m: m.labels.update({"a": "\x7f"}),
        ErrorReason.INVALID_FIELD,
        "task.labels['a']",
    ),
    (
        "too many resources",
        lambda m: m.resources.update({f"r{n}": 1 for n in range(9)}),
        ErrorReason.INVALID_FIELD,
        "the limit is 8",
    ),
    (
        "no amount of a resource",
        lambda m: m.resources.update({"r": 0}),
        ErrorReason.INVALID_FIELD,
        "must be at least 1",
    ),
    (
        "tenant",
        lambda m: setattr(m, "tenant", "ä"),
        ErrorReason.INVALID_FIELD,
        "task.tenant",
    ),
    (
        "trace context",
        lambda m: m.trace_context.update({"traceparent": "x" * 1025}),
        ErrorReason.INVALID_FIELD,
        "the limit is 1024",
    ),
    (
        "both starts",
        lambda m: m.MergeFrom(task_pb2.TaskSpec(start_in_s=1, start_unix_ns=1)),
        ErrorReason.FIELD_CONFLICT,
        "task.start_in_s: excludes start_unix_ns",
    ),
    (
        "both deadlines",
        lambda m: m.MergeFrom(task_pb2.TaskSpec(deadline_in_s=0, deadline_unix_ns=0)),
        ErrorReason.FIELD_CONFLICT,
        "task.deadline_in_s",
    ),
    (
        "both delays",
        lambda m: m.MergeFrom(task_pb2.TaskSpec(delay_s=0, not_before_unix_ns=0)),
        ErrorReason.FIELD_CONFLICT,
        "task.delay_s",
    ),
    (
        "payload of 5 MiB",
        lambda m: setattr(m, "payload", b"x" * (5 << 20)),
        ErrorReason.TOO_LARGE,
        "exceed the limit of 4128768",
    ),
]


@pytest.mark.parametrize(
    ("change", "reason", "words"),
    [pytest.param(change, reason, text, id=name) for name, change, reason, text in CASES],
)
def test_refusal_names_field_and_limit(change: Change, reason: ErrorReason, words: str) -> None:
    """Alone or among others, a bad spec is refused with the same words."""
    refusal = refusal_of(change)
    assert refusal.reason is reason
    assert words in refusal.message
    assert dict(refusal.details)["field"].startswith("task")

    good, bad, other = many(nothing, change, nothing)
    assert isinstance(good, TaskSpec)
    assert isinstance(other, TaskSpec)
    assert isinstance(bad, Refusal)
    assert bad.reason is reason
    assert dict(bad.details)["index"] == "1"
    assert bad.message == refusal.message


def test_whole_task_counts_not_only_its_payload() -> None:
    """A payload at the limit is too large together with the rest of its task."""
    reader = SpecReader(LimitsConfig(max_message_bytes=262_144), ["default"])
    limit = reader.task_bytes_max
    assert limit == 262_144 - 65_536

    def fits(message: task_pb2.TaskSpec) -> None:
        message.payload = b"x" * (limit - 4)

    def does_not(message: task_pb2.TaskSpec) -> None:
        fits(message)
        message.key = "k"

    assert isinstance(read(fits, reader), TaskSpec)
    assert refusal_of(does_not, reader).reason is ErrorReason.TOO_LARGE
    first, second = many(fits, does_not, reader=reader)
    assert isinstance(first, TaskSpec)
    assert isinstance(second, Refusal)


def test_batch_of_1001_is_refused() -> None:
    """More members than the limit, and none at all, are refused before any is read."""
    with pytest.raises(Refused) as caught:
        many(*[nothing] * 1001)
    assert caught.value.refusal.reason is ErrorReason.BATCH_TOO_LARGE
    assert "1001 members exceed the limit of 1000" in caught.value.refusal.message
    with pytest.raises(Refused) as caught:
        many()
    assert caught.value.refusal.reason is ErrorReason.INVALID_FIELD


def test_batch_fails_as_a_whole_and_names_the_index() -> None:
    """One bad member refuses a batch, with its index; all edges together are bounded too."""
    request = tasks_pb2.SubmitBatchRequest()
    request.tasks.add()
    request.tasks.add(key="a\0")
    with pytest.raises(Refused) as caught:
        READER.read_batch(request.tasks, request.ByteSize())
    assert ("index", "1") in caught.value.refusal.details

    request = tasks_pb2.SubmitBatchRequest()
    for _ in range(51):
        member = request.tasks.add()
        member.deps.extend(task_pb2.Dep(target=task_pb2.TaskRef(id=n + 1)) for n in range(100))
    with pytest.raises(Refused, match="5100 deps, the limit is 5000"):
        READER.read_batch(request.tasks, request.ByteSize())


def test_many_kinds_do_not_pile_up() -> None:
    """Words that are remembered as checked stay bounded, whatever callers send."""
    reader = SpecReader(LIMITS, ["default"])
    for start in range(0, 10_000, 1000):
        kinds = [f"kind-{n}" for n in range(start, start + 1000)]
        specs = many(*[lambda m, k=k: setattr(m, "kind", k) for k in kinds], reader=reader)
        assert [spec.kind for spec in specs if isinstance(spec, TaskSpec)] == kinds
    assert len(reader._kinds) <= 4097
