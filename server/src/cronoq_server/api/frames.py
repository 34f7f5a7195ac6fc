"""What is said on a worker's stream: batches in version 4, single messages in version 3.

Rules a change must keep:

1. A worker's report is cleaned, never refused: one bad text must not cost the others.
2. No message is built larger than the limit: leases and aborts are split by size.
3. Effects keep their order within one stream.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from cronoq_server._proto import workers_pb2
from cronoq_server.api import texts
from cronoq_server.api.convert import fill_pairs, fill_progress
from cronoq_server.api.errors import PROTOCOL
from cronoq_server.api.specs import RESERVED_BYTES, SpecReader
from cronoq_server.engine import (
    SECOND,
    CancelAttempt,
    CancelledByWorker,
    Completed,
    Failed,
    Joined,
    Lease,
    Nacked,
    Pairs,
    Progress,
    Receipt,
    Report,
    Resume,
)

KINDS_MAX = 10_000
TYPES_KEPT = 1000
_LEASE_BYTES = 3584
_ABORT_BYTES = 64
_WORST_CHARACTER = 4


class Registration(msgspec.Struct, frozen=True):
    """What a worker said of itself, checked.

    Attributes:
        pool: The pool it serves.
        slots: Slots it asks for.
        name: What it calls itself.
        labels: Labels it claims.
        kinds: Kinds it serves; empty = any.
        version: The version of the session: the lower of both sides'.
        sdk: What its SDK calls itself.
        resume: The session it wants to go on with.
    """

    pool: str
    slots: int
    name: str
    labels: Pairs
    kinds: tuple[str, ...]
    version: int
    sdk: str
    resume: Resume | None

    @property
    def batches(self) -> bool:
        """Whether the session has batches, receipts and resume."""
        return self.version >= PROTOCOL


def read_register(
    message: workers_pb2.Register, reader: SpecReader, labels_max: int
) -> Registration:
    """Reads how a worker opens its session.

    Raises:
        Refused: A name, label or kind breaks its rule.
    """
    if len(message.kinds) > KINDS_MAX:
        text = f"has {len(message.kinds)} entries, the limit is {KINDS_MAX}"
        raise texts.invalid("register.kinds", text, KINDS_MAX)
    version = min(PROTOCOL, message.protocol_version or PROTOCOL - 1)
    resume = None
    if version >= PROTOCOL and message.HasField("resume"):
        token = message.resume.session_token[: texts.TOKEN_MAX]
        resume = Resume(token, tuple(message.resume.leases))
    return Registration(
        pool=reader.pool(message.pool, "register.pool"),
        slots=message.slots,
        name=texts.clean(message.worker_name, texts.LABEL_MAX),
        labels=texts.pairs(message.labels, "register.labels", labels_max),
        kinds=tuple(sorted({texts.word(kind, "register.kinds") for kind in message.kinds})),
        version=version,
        sdk=texts.clean(message.sdk, texts.LABEL_MAX),
        resume=resume,
    )


class ReportReader:
    """Reads what workers report, made storable."""

    def __init__(self, message_bytes_max: int) -> None:
        self._output_max = message_bytes_max - RESERVED_BYTES
        self._types: dict[str, str] = {"": ""}

    def reports(self, message: workers_pb2.Reports) -> list[Report]:
        """All reports of a message, without those of a kind that is not known."""
        read: list[Report] = []
        for entry in message.reports:
            which = entry.WhichOneof("report")
            if which == "complete":
                read.append(self.complete(entry.complete))
            elif which == "fail":
                read.append(fail(entry.fail))
            elif which == "nack":
                read.append(nack(entry.nack))
            elif which == "cancelled":
                read.append(CancelledByWorker(entry.cancelled.lease))
        return read

    def complete(self, message: workers_pb2.Complete) -> Report:
        """A result; one that is too large is a failure that no retry would mend."""
        output, said = message.output, message.content_type
        if len(output) > self._output_max:
            text = f"output too large ({len(output)} > {self._output_max} bytes)"
            return Failed(message.lease, text, permanent=True)
        content_type = self._types.get(said)
        if content_type is None:
            content_type = self._remember(said)
        return Completed(message.lease, output, content_type)

    def _remember(self, said: str) -> str:
        """Cleans a media type once; outputs then share the one text."""
        if len(self._types) >= TYPES_KEPT:
            self._types = {"": ""}
        content_type = self._types[said] = texts.clean(said, texts.LABEL_MAX)
        return content_type


def fail(message: workers_pb2.Fail) -> Failed:
    """A failure, cleaned."""
    after = message.retry_after_s if message.HasField("retry_after_s") else None
    return Failed(
        message.lease, texts.clean(message.message), message.permanent, texts.clean_delay(after)
    )


def nack(message: workers_pb2.Nack) -> Nacked:
    """An attempt given back, its reason cleaned."""
    return Nacked(message.lease, texts.clean(message.reason))


def read_progress(message: workers_pb2.Heartbeats) -> tuple[tuple[int, Progress], ...]:
    """The progress in a beat; content above 1 KiB is left out."""
    news = []
    for entry in message.progress:
        progress = entry.progress
        fraction = progress.fraction if progress.HasField("fraction") else None
        content = progress.data if len(progress.data) <= texts.PROGRESS_MAX else b""
        news.append((entry.lease, Progress(content, texts.clean_fraction(fraction))))
    return tuple(news)


def registered(joined: Joined, version: int, message_bytes_max: int) -> workers_pb2.ServerMessage:
    """The first message of a session."""
    message = workers_pb2.ServerMessage()
    target = message.registered
    target.worker_id = joined.session
    target.lease_ttl_s = joined.lease_ttl / SECOND
    target.slots = joined.slots
    target.protocol_version = version
    target.max_message_bytes = message_bytes_max
    if version >= PROTOCOL:
        target.session_token = joined.token
        target.adopted.extend(joined.adopted)
        target.reports_seen = joined.reports_seen
    return message


def lease_batches(
    leases: Sequence[Lease], session_ttl: int, bytes_max: int
) -> Iterator[workers_pb2.ServerMessage]:
    """Leases in as few messages as their sizes allow."""
    message, size = workers_pb2.ServerMessage(), 0
    add = message.leases.leases.add
    for lease in leases:
        spec = lease.spec
        length = _LEASE_BYTES + len(spec.payload) + _WORST_CHARACTER * len(spec.key)
        if spec.tags or lease.parents or spec.trace_context:
            length += _marks_bytes(lease)
        if size and size + length > bytes_max:
            yield message
            message, size = workers_pb2.ServerMessage(), 0
            add = message.leases.leases.add
        _fill_lease(add(), lease, session_ttl)
        size += length
    if size:
        yield message


def single_leases(leases: Sequence[Lease], session_ttl: int) -> Iterator[workers_pb2.ServerMessage]:
    """One message per lease."""
    for lease in leases:
        message = workers_pb2.ServerMessage()
        _fill_lease(message.lease, lease, session_ttl)
        yield message


def abort_batches(effect: CancelAttempt, bytes_max: int) -> Iterator[workers_pb2.ServerMessage]:
    """Aborts in as few messages as their sizes allow."""
    message, size = workers_pb2.ServerMessage(), 0
    for lease, reason in effect.aborts:
        length = _ABORT_BYTES + _WORST_CHARACTER * len(reason)
        if size and size + length > bytes_max:
            yield message
            message, size = workers_pb2.ServerMessage(), 0
        entry = message.aborts.aborts.add()
        entry.lease = lease
        entry.reason = reason
        size += length
    if size:
        yield message


def single_aborts(effect: CancelAttempt) -> Iterator[workers_pb2.ServerMessage]:
    """One message per abort."""
    for lease, reason in effect.aborts:
        message = workers_pb2.ServerMessage()
        message.abort.lease = lease
        message.abort.reason = reason
        yield message


def receipt(effect: Receipt) -> workers_pb2.ServerMessage:
    """What is durable and what was read."""
    message = workers_pb2.ServerMessage()
    message.receipt.reports = effect.reports
    message.receipt.heartbeats = effect.heartbeats
    return message


def shutdown(reason: str, not_leader: bool) -> workers_pb2.ServerMessage:
    """No more leases come."""
    message = workers_pb2.ServerMessage()
    message.shutdown.reason = reason
    message.shutdown.not_leader = not_leader
    return message


def _fill_lease(target: workers_pb2.Lease, lease: Lease, session_ttl: int) -> None:
    spec = lease.spec
    target.lease = lease.lease
    target.task_id = lease.task_id
    target.attempt = lease.attempt
    target.kind = spec.kind
    target.pool = spec.pool
    target.priority = spec.priority  # type: ignore[assignment]
    if spec.payload:
        target.payload = spec.payload
    if spec.content_type:
        target.content_type = spec.content_type
    if spec.key:
        target.key = spec.key
    if lease.ttl != session_ttl:
        target.lease_ttl_s = lease.ttl / SECOND
    if spec.timeout is not None:
        target.timeout_s = spec.timeout / SECOND
    if lease.deadline_at is not None:
        target.deadline_unix_ns = lease.deadline_at
    if lease.progress is not None:
        fill_progress(target.last_progress, lease.progress)
    if spec.tags:
        fill_pairs(target.tags, spec.tags)
    if spec.trace_context:
        fill_pairs(target.trace_context, spec.trace_context)
    if lease.parents:
        target.parents.extend(lease.parents)


def _marks_bytes(lease: Lease) -> int:
    """An upper bound of what a lease's maps and parents take."""
    spec = lease.spec
    characters = sum(len(name) + len(value) for name, value in spec.tags)
    characters += sum(len(name) + len(value) for name, value in spec.trace_context)
    entries = len(spec.tags) + len(spec.trace_context)
    return _WORST_CHARACTER * characters + 16 * entries + 11 * len(lease.parents)
