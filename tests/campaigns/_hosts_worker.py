"""A worker on a host of its own that writes down every attempt, report and receipt.

`python -m tests.campaigns._hosts_worker FILE SEED SLOTS ADDRESS...` works until its input ends. It
speaks the protocol by itself, for no SDK tells of receipts, and none would do what this one does:
an attempt that the server does not go on with goes on all the same, and reports, which must not
count.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from cronoq_server._proto import workers_pb2, workers_pb2_grpc
from tests.campaigns._hosts_caller import POOL
from tests.campaigns._hosts_record import KEEPALIVE, Record, now, output_of

WORKS_S = (0.005, 0.08)
LONG_ONE_IN = 8
LONG_S = (0.5, 2.5)
"""Some attempts still run when one whose lease is over reports."""
FAILS_ONE_IN = 12
REGISTER_TIMEOUT_S = 2.5
REST_S = 0.1


@dataclass
class Held:
    """An attempt that this worker was given.

    Attributes:
        lease: Of it.
        key: Of its task.
        attempt: Its number.
        stream: The stream that brought it.
        report: How it ended, once it has.
        reported_at: When it ended.
        is_told: Whether that was said to anybody.
    """

    lease: int
    key: str
    attempt: int
    stream: int
    report: workers_pb2.Report | None = None
    reported_at: int = 0
    is_told: bool = False


@dataclass
class Session:
    """What outlives a stream.

    Attributes:
        token: For going on with it.
        held: Attempts whose report has no receipt, by lease.
        numbers: Leases by the number of the message that reported them.
        number: Of the last such message.
        last_lease: The highest lease read.
    """

    token: bytes = b""
    held: dict[int, Held] = field(default_factory=dict)
    numbers: dict[int, int] = field(default_factory=dict)
    number: int = 0
    last_lease: int = 0


class Worker:
    """Takes leases over one stream after the other."""

    def __init__(self, record: Record, chance: random.Random, slots: int) -> None:
        self._record = record
        self._chance = chance
        self._slots = slots
        self._session = Session()
        self._stream: Any = None
        self._streams = 0
        self._ttl_s = 1.0
        self._beats = 0
        self._attempts: set[asyncio.Task[None]] = set()
        self._writing = asyncio.Lock()

    async def work(self, addresses: list[str], first: int) -> None:
        """Works for whoever leads, for ever."""
        while True:
            address = addresses[first % len(addresses)]
            first += 1
            async with grpc.aio.insecure_channel(address, options=KEEPALIVE) as channel:
                with contextlib.suppress(
                    grpc.aio.AioRpcError, TimeoutError, asyncio.InvalidStateError
                ):
                    await self._work_over(workers_pb2_grpc.WorkersStub(channel).Work())
                self._stream = None
            await asyncio.sleep(REST_S)

    async def _work_over(self, stream: Any) -> None:
        session = self._session
        register = workers_pb2.Register(
            pool=POOL, slots=self._slots, worker_name="hosts", protocol_version=4
        )
        if session.token:
            register.resume.session_token = session.token
            register.resume.leases.extend(session.held)
        try:
            async with asyncio.timeout(REGISTER_TIMEOUT_S):
                await stream.write(workers_pb2.WorkerMessage(register=register))
                answer = await stream.read()
            if answer is grpc.aio.EOF:
                return
            self._streams += 1
            await self._resume(answer.registered, stream)
            beating = asyncio.create_task(self._beat(stream))
            try:
                await self._read(stream)
            finally:
                beating.cancel()
                await asyncio.gather(beating, return_exceptions=True)
        finally:
            stream.cancel()

    async def _resume(self, registered: workers_pb2.Registered, stream: Any) -> None:
        """Says once more what the server has not read, whether it goes on with that or not."""
        session = self._session
        session.token = registered.session_token
        self._ttl_s = registered.lease_ttl_s
        if not registered.adopted and not registered.reports_seen:
            session.last_lease = 0
        async with self._writing:
            self._stream = stream
            for number, lease in sorted(session.numbers.items()):
                held = session.held.get(lease)
                if number > registered.reports_seen and held is not None:
                    await self._tell(number, held)

    async def _read(self, stream: Any) -> None:
        while (message := await stream.read()) is not grpc.aio.EOF:
            if message.HasField("leases"):
                for lease in message.leases.leases:
                    self._begin(lease)
            elif message.HasField("receipt"):
                self._receipt(message.receipt.reports)
            elif message.HasField("aborts"):
                for abort in message.aborts.aborts:
                    self._abort(abort.lease)

    def _begin(self, lease: workers_pb2.Lease) -> None:
        self._session.last_lease = max(self._session.last_lease, lease.lease)
        if lease.lease in self._session.held:
            return
        self._record.note("start", lease.key, 0, returned=now(), attempt=lease.attempt)
        held = Held(lease.lease, lease.key, lease.attempt, self._streams)
        self._session.held[lease.lease] = held
        task = asyncio.create_task(self._run(held))
        self._attempts.add(task)
        task.add_done_callback(self._attempts.discard)

    async def _run(self, held: Held) -> None:
        is_long = self._chance.randrange(LONG_ONE_IN) == 0
        await asyncio.sleep(self._chance.uniform(*(LONG_S if is_long else WORKS_S)))
        if held.report is not None:
            return  # it was called off
        if self._chance.randrange(FAILS_ONE_IN) == 0:
            failed = workers_pb2.Fail(lease=held.lease, message="on purpose")
            await self._report(held, "fail", workers_pb2.Report(fail=failed))
        else:
            output = output_of(held.key, held.attempt)
            completed = workers_pb2.Complete(lease=held.lease, output=output)
            await self._report(held, "complete", workers_pb2.Report(complete=completed))

    def _abort(self, lease: int) -> None:
        held = self._session.held.get(lease)
        if held is not None and held.report is None:
            said = workers_pb2.Report(cancelled=workers_pb2.Cancelled(lease=lease))
            held.report = said
            task = asyncio.create_task(self._report(held, "", said))
            self._attempts.add(task)
            task.add_done_callback(self._attempts.discard)

    async def _report(self, held: Held, op: str, report: workers_pb2.Report) -> None:
        """Says how an attempt ended, now if there is a stream and whenever there is another."""
        held.report, held.reported_at = report, now()
        if op:
            self._record.note(op, held.key, held.reported_at, attempt=held.attempt)
        async with self._writing:
            self._session.number += 1
            self._session.numbers[self._session.number] = held.lease
            with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                await self._tell(self._session.number, held)

    async def _tell(self, number: int, held: Held) -> None:
        """Sends a report, if there is anybody to hear it."""
        if self._stream is not None:
            assert held.report is not None
            reports = workers_pb2.Reports(reports=[held.report], number=number)
            await self._stream.write(workers_pb2.WorkerMessage(reports=reports))
            held.is_told = True

    def _receipt(self, upto: int) -> None:
        session = self._session
        for number in [number for number in session.numbers if number <= upto]:
            held = session.held.pop(session.numbers.pop(number), None)
            if held is not None and held.report is not None and held.report.HasField("complete"):
                self._record.note(
                    *("receipt", held.key, held.reported_at),
                    returned=now(),
                    attempt=held.attempt,
                    held=held.stream == self._streams,
                )

    async def _beat(self, stream: Any) -> None:
        while True:
            await asyncio.sleep(self._ttl_s / 3)
            async with self._writing:
                self._beats += 1
                held = self._session.held.values()
                beat = workers_pb2.Heartbeats(
                    leases=[each.lease for each in held if not each.is_told],
                    number=self._beats,
                    last_lease=self._session.last_lease,
                )
                await stream.write(workers_pb2.WorkerMessage(heartbeats=beat))


async def run(path: Path, seed: str, slots: int, addresses: list[str]) -> None:
    """Works until the input ends."""
    record = Record(path, path.stem)
    worker = Worker(record, random.Random(seed), slots)
    working = asyncio.create_task(worker.work(addresses, random.Random(seed).randrange(9)))
    reading = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
    await asyncio.wait((working, reading), return_when=asyncio.FIRST_COMPLETED)
    if working.done():
        working.result()
    working.cancel()
    await asyncio.gather(working, return_exceptions=True)
    record.close()


def main(arguments: list[str]) -> int:
    """Works and ends."""
    path, seed, slots, *addresses = arguments
    asyncio.run(run(Path(path), seed, int(slots), addresses))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
