"""What goes over a worker's stream in both framings, and what is made of a worker's words."""

from __future__ import annotations

import math

import pytest

from cronoq_server._proto import workers_pb2
from cronoq_server.api import frames
from cronoq_server.api.specs import SpecReader
from cronoq_server.config import LimitsConfig
from cronoq_server.engine import (
    SECOND,
    CancelAttempt,
    CancelledByWorker,
    Completed,
    Failed,
    Joined,
    Lease,
    Nacked,
    Progress,
    TaskSpec,
)
from cronoq_server.runtime.refusals import Refused

LIMITS = LimitsConfig()
READER = SpecReader(LIMITS, ["default"])
REPORTS = frames.ReportReader(LIMITS.max_message_bytes)
TTL = 30 * SECOND


def lease(number: int, payload: bytes = b"") -> Lease:
    """A lease of a task with this payload."""
    return Lease(number, number, 1, TaskSpec("default", "default", payload), TTL)


def test_large_leases_are_split_by_size() -> None:
    """64 tasks of 3.9 MiB in one step go out in 64 messages, none above the limit."""
    payload = b"x" * int(3.9 * 1024 * 1024)
    leases = [lease(number, payload) for number in range(1, 65)]
    seen = []
    for message in frames.lease_batches(leases, TTL, LIMITS.max_message_bytes):
        assert message.ByteSize() <= LIMITS.max_message_bytes
        seen += [one.lease for one in message.leases.leases]
    assert seen == list(range(1, 65))


def test_small_leases_go_together() -> None:
    """A hundred small leases are one message."""
    leases = [lease(number, b"x" * 200) for number in range(1, 101)]
    (message,) = frames.lease_batches(leases, TTL, LIMITS.max_message_bytes)
    assert len(message.leases.leases) == 100


def test_lease_of_the_worst_task_fits() -> None:
    """A task at the limit, with all that a lease adds to it, is still one message."""
    spec = TaskSpec(
        "p" * 64,
        "\N{BUG}" * 256,
        b"x" * (READER.task_bytes_max - 40_000),
        "\N{BUG}" * 256,
        key="k" * 256,
        tags=tuple((f"{n:02}" + "\N{BUG}" * 60, "\N{BUG}" * 60) for n in range(32)),
    )
    worst = Lease(
        2**64 - 1,
        2**64 - 1,
        2**32 - 1,
        spec,
        TTL,
        progress=Progress(b"x" * 1024, 0.5),
        parents=tuple(range(2**63, 2**63 + 100)),
    )
    (message,) = frames.lease_batches([worst], TTL, LIMITS.max_message_bytes)
    assert message.ByteSize() <= LIMITS.max_message_bytes


def test_bound_of_a_lease_is_never_below_its_size() -> None:
    """Leases with all fields set are split before the limit, not behind it."""
    spec = TaskSpec(
        "p" * 64,
        "\N{BUG}" * 256,
        b"",
        "\N{BUG}" * 256,
        key="\N{BUG}" * 64,
        tags=(("a", "\N{BUG}" * 256),),
        trace_context=(("traceparent", "x" * 55),),
        timeout=1,
    )
    one = Lease(
        2**64 - 1,
        2**64 - 1,
        2**32 - 1,
        spec,
        1,
        deadline_at=2**62,
        progress=Progress(b"x" * 1024, 0.5),
        parents=(2**63, 2**63 + 1),
    )
    limit = 20_000
    messages = list(frames.lease_batches([one] * 50, TTL, limit))
    assert all(message.ByteSize() <= limit for message in messages)
    assert sum(len(message.leases.leases) for message in messages) == 50


def test_lease_carries_what_the_handler_needs() -> None:
    """Everything a handler may ask for is in the lease; what is empty is not set."""
    spec = TaskSpec(
        "p",
        "k",
        b"in",
        "text/plain",
        priority=2,
        key="key",
        tags=(("a", "b"),),
        trace_context=(("traceparent", "t"),),
        timeout=SECOND,
    )
    full = Lease(5, 6, 7, spec, 2 * TTL, 9, Progress(b"half", 0.5), (3, 4))
    (message,) = frames.single_leases([full], TTL)
    sent = message.lease
    assert (sent.lease, sent.task_id, sent.attempt) == (5, 6, 7)
    assert (sent.payload, sent.content_type, sent.kind, sent.key) == (
        b"in",
        "text/plain",
        "k",
        "key",
    )
    assert (sent.timeout_s, sent.deadline_unix_ns, sent.lease_ttl_s) == (1.0, 9, 60.0)
    assert (dict(sent.tags), dict(sent.trace_context)) == ({"a": "b"}, {"traceparent": "t"})
    assert (sent.last_progress.data, sent.last_progress.fraction) == (b"half", 0.5)
    assert (list(sent.parents), sent.pool, sent.priority) == ([3, 4], "p", 2)
    (bare,) = frames.single_leases([lease(1)], TTL)
    assert {field.name for field, _ in bare.lease.ListFields()} == {
        "lease",
        "task_id",
        "attempt",
        "kind",
        "pool",
        "priority",
    }


def test_aborts_are_split_by_size() -> None:
    """Many aborts with long reasons stay below the limit and lose none."""
    effect = CancelAttempt(1, tuple((n, "\N{BUG}" * 1000) for n in range(1, 101)))
    messages = list(frames.abort_batches(effect, 50_000))
    assert all(message.ByteSize() <= 50_000 for message in messages)
    assert sum(len(message.aborts.aborts) for message in messages) == 100
    assert [m.abort.lease for m in frames.single_aborts(effect)] == list(range(1, 101))


def test_registered_of_an_old_worker_has_no_token() -> None:
    """Version 3 knows neither resume nor receipts, so it is told nothing of them."""
    joined = Joined(3, 8, TTL, b"secret", (1, 2), 4)
    new = frames.registered(joined, 4, 1000).registered
    assert (new.session_token, list(new.adopted), new.reports_seen) == (b"secret", [1, 2], 4)
    old = frames.registered(joined, 3, 1000).registered
    assert {field.name for field, _ in old.ListFields()} == {
        "worker_id",
        "lease_ttl_s",
        "slots",
        "protocol_version",
        "max_message_bytes",
    }


@pytest.mark.regression("R17")
def test_poisonous_reports_are_cleaned_one_by_one() -> None:
    """NUL, oversize and nonsense cost a report nothing but what is wrong with it."""
    message = workers_pb2.Reports(number=1)
    message.reports.add().complete.CopyFrom(
        workers_pb2.Complete(lease=1, output=b"\0", content_type="a\0b")
    )
    message.reports.add().fail.CopyFrom(
        workers_pb2.Fail(lease=2, message="x" * 1_000_000, retry_after_s=math.nan)
    )
    message.reports.add().nack.CopyFrom(workers_pb2.Nack(lease=3, reason="\0"))
    message.reports.add().cancelled.lease = 4
    message.reports.add()
    done, failed, nacked, cancelled = REPORTS.reports(message)
    assert done == Completed(1, b"\0", "a\ufffdb")
    assert isinstance(failed, Failed)
    assert len(failed.message) == 8192
    assert failed.retry_after is None
    assert nacked == Nacked(3, "\ufffd")
    assert cancelled == CancelledByWorker(4)


@pytest.mark.parametrize("excess", [-1, 0, 1])
def test_oversize_output_fails_for_good(excess: int) -> None:
    """An output over the limit is a permanent failure that names both sizes."""
    limit = LIMITS.max_message_bytes - 65_536
    message = workers_pb2.Complete(lease=1, output=b"x" * (limit + excess))
    report = REPORTS.complete(message)
    if excess <= 0:
        assert isinstance(report, Completed)
        return
    assert report == Failed(1, f"output too large ({limit + 1} > {limit} bytes)", permanent=True)


def test_progress_is_bounded() -> None:
    """Content above 1 KiB is left out, a fraction is brought into its bounds."""
    beat = workers_pb2.Heartbeats()
    for content, fraction in ((b"x" * 1024, 2.0), (b"x" * 1025, 0.25)):
        entry = beat.progress.add(lease=1)
        entry.progress.data = content
        entry.progress.fraction = fraction
    assert frames.read_progress(beat) == (
        (1, Progress(b"x" * 1024, 1.0)),
        (1, Progress(b"", 0.25)),
    )


@pytest.mark.parametrize(("said", "spoken"), [(0, 3), (2, 2), (3, 3), (4, 4), (9, 4)])
def test_lower_version_is_spoken(said: int, spoken: int) -> None:
    """A session speaks what both sides know; resume belongs to version 4."""
    message = workers_pb2.Register(slots=1, protocol_version=said)
    message.resume.session_token = b"t"
    message.resume.leases.append(1)
    registration = frames.read_register(message, READER, 32)
    assert registration.version == spoken
    assert (registration.resume is not None) == registration.batches == (spoken == 4)


def test_registration_is_checked() -> None:
    """Names, labels and kinds of a worker obey the rules that tasks do."""
    for message, field in (
        (workers_pb2.Register(pool="a b"), "register.pool"),
        (workers_pb2.Register(labels={"a": "\n"}), "register.labels"),
        (workers_pb2.Register(kinds=["a\0"]), "register.kinds"),
    ):
        with pytest.raises(Refused, match=field.replace(".", r"\.")):
            frames.read_register(message, READER, 32)
    read = frames.read_register(
        workers_pb2.Register(worker_name="w\0", kinds=["b", "a", "b"]), READER, 32
    )
    assert (read.pool, read.name, read.kinds) == ("default", "w\ufffd", ("a", "b"))
