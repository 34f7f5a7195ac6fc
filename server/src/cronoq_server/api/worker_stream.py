"""One worker's stream: who speaks first, what is read, what is written, and how it ends.

Rules a change must keep:

1. `Register` comes first and once; nothing is sent before `Registered`.
2. Everything that one release of effects has for the worker is written in one go.
3. What was read before the stream broke counts. Leases that were not handed to the transport go
   back at once; those that were may have arrived, whatever became of the stream.
4. Half-closing is a clean end: what was queued is written first. Any other end of a version 4
   stream is a break that the worker may resume from; version 3 cannot, so it always ends clean.
5. A worker that breaks the protocol is told why, and its stream ends.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import grpc
from google.protobuf.message import Message

from cronoq_server._proto import workers_pb2
from cronoq_server.api import frames, texts
from cronoq_server.api.auth import Principal
from cronoq_server.api.errors import PROTOCOL_METADATA
from cronoq_server.api.frames import Registration, ReportReader
from cronoq_server.api.service import Service
from cronoq_server.api.specs import SpecReader
from cronoq_server.engine import (
    CancelAttempt,
    CancelledByWorker,
    Dispatch,
    Dropped,
    HeartbeatsRead,
    Joined,
    Lease,
    NotJoined,
    Receipt,
    Report,
)
from cronoq_server.runtime.refusals import Refused
from cronoq_server.runtime.sessions import Outbound, Session, ShutdownNotice

Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]

REGISTER_TIMEOUT_S = 10.0
"""How long a stream may be open before it says who it is."""

BREAK_NOTICE_S = 0.05
"""A stream that breaks reads like a half-close at first; the call is cancelled just after."""

log = logging.getLogger(__name__)


class WorkApi:
    """Serves worker streams."""

    def __init__(self, service: Service, reader: SpecReader) -> None:
        self._service = service
        self._reader = reader
        self._reports = ReportReader(service.limits.max_message_bytes)

    async def serve(self, who: Principal, context: Context) -> None:
        """Serves one stream to its end.

        Raises:
            Refused: The worker was not let in, or broke the protocol.
        """
        with self._service.gate.stream():
            await context.send_initial_metadata(PROTOCOL_METADATA)
            message = await self._first(context)
            if message is None:
                return
            registration = frames.read_register(
                message, self._reader, self._service.limits.max_tags
            )
            session = self._service.join(who, registration)
            stream = WorkerStream(
                session,
                registration,
                context,
                self._reports,
                self._service.limits.max_message_bytes,
            )
            await stream.run()

    async def _first(self, context: Context) -> workers_pb2.Register | None:
        """The first message; None if the worker closes without one."""
        try:
            async with asyncio.timeout(REGISTER_TIMEOUT_S):
                message = await context.read()
        except TimeoutError as error:
            text = f"no register within {REGISTER_TIMEOUT_S:g} s"
            raise texts.invalid("register", text) from error
        if message is grpc.aio.EOF:
            return None
        if not isinstance(message, workers_pb2.WorkerMessage) or not message.HasField("register"):
            raise texts.invalid("register", "must be the first message of the stream")
        return message.register


class WorkerStream:
    """One session's stream, from `Registered` on."""

    def __init__(
        self,
        session: Session,
        registration: Registration,
        context: Context,
        reports: ReportReader,
        bytes_max: int,
    ) -> None:
        self._session = session
        self._registration = registration
        self._context = context
        self._reports = reports
        self._bytes_max = bytes_max
        self._session_ttl = 0
        self._unwritten: list[int] = []

    async def run(self) -> None:
        """Reads and writes until either side is done.

        Raises:
            Refused: The worker was not let in, or broke the protocol.
        """
        session = self._session
        clean = not self._registration.batches
        reader = asyncio.create_task(self._read(), name=f"read-{session.number}")
        writer = asyncio.create_task(self._write(), name=f"write-{session.number}")
        session.on_cut_off = writer.cancel
        try:
            await asyncio.wait((reader, writer), return_when=asyncio.FIRST_COMPLETED)
            if reader.done() and not reader.cancelled() and reader.exception() is None:
                await asyncio.sleep(BREAK_NOTICE_S)
                clean = True
        finally:
            session.lost(clean, self._unwritten)
            for task in (reader, writer):
                task.cancel()
            results = await asyncio.gather(reader, writer, return_exceptions=True)
        for result in results:
            if isinstance(result, Refused):
                raise result
        self._log_defects(results)

    def _log_defects(self, results: Sequence[object]) -> None:
        for result in results:
            if isinstance(result, Exception):
                log.debug(
                    "the stream of session %d broke: %s",
                    self._session.number,
                    result,
                    extra={"action": "worker_lost", "session": self._session.number},
                )

    # Reading

    async def _read(self) -> None:
        """Passes on what the worker says until it half-closes."""
        read, session = self._context.read, self._session
        while (message := await read()) is not grpc.aio.EOF:
            if not isinstance(message, workers_pb2.WorkerMessage):
                raise texts.invalid("message", "is not a valid cronoq.v1.WorkerMessage")
            which = message.WhichOneof("message")
            if which == "reports":
                await session.room()
                self._read_reports(message.reports)
            elif which == "heartbeats":
                self._read_heartbeats(message.heartbeats)
            elif which == "heartbeat":
                session.beat(HeartbeatsRead(session.number, [message.heartbeat.lease]))
            elif which == "set_slots":
                session.set_slots(message.set_slots.slots)
            elif which == "register":
                raise texts.invalid("register", "may come only once")
            elif which is not None:
                await session.room()
                session.reported(0, [self._single(which, message)])

    def _read_reports(self, message: workers_pb2.Reports) -> None:
        if not message.number:
            raise texts.invalid("reports.number", "must be above 0")
        number = message.number if self._registration.batches else 0
        self._session.reported(number, self._reports.reports(message))

    def _read_heartbeats(self, message: workers_pb2.Heartbeats) -> None:
        self._session.beat(
            HeartbeatsRead(
                self._session.number,
                list(message.leases),
                frames.read_progress(message) if message.progress else (),
                message.number,
                message.last_lease,
            )
        )

    def _single(self, which: str, message: workers_pb2.WorkerMessage) -> Report:
        if which == "complete":
            return self._reports.complete(message.complete)
        if which == "fail":
            return frames.fail(message.fail)
        if which == "nack":
            return frames.nack(message.nack)
        assert which == "cancelled", which
        return CancelledByWorker(message.cancelled.lease)

    # Writing

    async def _write(self) -> None:
        """Writes what the engine has for the worker until the session ends."""
        session = self._session
        while True:
            effects = await session.outbound()
            unwritten = [lease for effect in effects for lease in leases_of(effect)]
            self._unwritten = unwritten
            for message in self._messages(effects):
                # What was handed on may have arrived, however the writing ends: from here on the
                # worker alone can say that it did not.
                count = _leases_in(message)
                if count:
                    del unwritten[:count]
                await self._context.write(message)
            for effect in effects:
                if isinstance(effect, NotJoined):
                    raise Refused(effect.refusal)
                if isinstance(effect, Dropped):
                    return
                if isinstance(effect, ShutdownNotice) and effect.not_leader:
                    return

    def _messages(self, effects: Sequence[Outbound]) -> Iterator[Message]:
        """The messages of some effects in order, neighbouring leases together."""
        leases: list[Lease] = []
        for effect in effects:
            if isinstance(effect, Dispatch):
                leases += effect.leases
                continue
            if leases:
                yield from self._leases(leases)
                leases = []
            yield from self._message(effect)
        if leases:
            yield from self._leases(leases)

    def _message(self, effect: Outbound) -> Iterator[Message]:
        batches = self._registration.batches
        if isinstance(effect, Joined):
            self._session_ttl = effect.lease_ttl
            yield frames.registered(effect, self._registration.version, self._bytes_max)
        elif isinstance(effect, CancelAttempt):
            yield from (
                frames.abort_batches(effect, self._bytes_max)
                if batches
                else frames.single_aborts(effect)
            )
        elif isinstance(effect, Receipt):
            if batches:
                yield frames.receipt(effect)
        elif isinstance(effect, ShutdownNotice):
            yield frames.shutdown(effect.reason, effect.not_leader)

    def _leases(self, leases: Sequence[Lease]) -> Iterator[Message]:
        if self._registration.batches:
            return frames.lease_batches(leases, self._session_ttl, self._bytes_max)
        return frames.single_leases(leases, self._session_ttl)


def leases_of(effect: Outbound) -> list[int]:
    """The leases that an effect hands over."""
    if isinstance(effect, Dispatch):
        return [lease.lease for lease in effect.leases]
    return []


def _leases_in(message: Message) -> int:
    """How many leases a message hands over."""
    assert isinstance(message, workers_pb2.ServerMessage)
    if message.HasField("leases"):
        return len(message.leases.leases)
    return 1 if message.HasField("lease") else 0
