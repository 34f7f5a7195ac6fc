"""Decides what a worker says to its server and believes of its leases: one session, no IO.

Rules WP-01 … of docs/spec/worker-protocol.md, cited below. A session outlives its streams: reports
keep their numbers and are kept until their receipt, leases are named in every resume. Messages in,
messages out: `write` is whatever puts a message on the present stream, in order.

Called from the thread that reads the stream, the one that keeps time and the handlers' loop, so
every method takes the lock; none waits for anything else.
"""

from __future__ import annotations

import collections
import enum
import math
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import assert_never

from ._outcome import Cancelled, Completed, Failed, Nacked, Outcome, clean_message
from ._proto import workers_pb2
from .options import MESSAGE_ROOM

PROTOCOL_VERSION = 4
RECEIPTS_SINCE = 4  # Older servers know no batches, receipts or resume.
LEASE_TTL_S = 30.0  # What a server that names none means.
BEATS_PER_TTL = 3
PROGRESS_EVERY_S = 1.0
PROGRESS_BYTES_MAX = 1024
REPORTS_PER_MESSAGE = 500
RECENT_MAX = 4096
REPORT_ROOM = 64  # Bytes around one report in its message.
REPORT_SIZE_MIN = 256 * 1024
# What one lease takes in a heartbeat, at most, and the progress of one beside its data.
LEASE_ROOM = 10
PROGRESS_ROOM = 64

Write = Callable[[workers_pb2.WorkerMessage], None]


class Stop(enum.Enum):
    """Why a handler was told to stop."""

    ABORTED = "aborted by the server"
    EXPIRED = "lease expired: the server confirmed no heartbeat in time"
    LOST = "lease lost: the server no longer holds it for this worker"
    STOPPED = "worker stopped"


class Run:
    """One lease in this process, from its arrival until its report is written."""

    __slots__ = (
        "arrived_at",
        "lease",
        "message",
        "progress",
        "progress_is_new",
        "stop",
        "stop_reason",
        "stop_signal",
        "task_id",
        "ttl",
    )

    def __init__(self, message: workers_pb2.Lease, arrived_at: float, ttl: float) -> None:
        self.message = message
        self.lease = message.lease
        self.task_id = message.task_id
        self.arrived_at = arrived_at
        self.ttl = message.lease_ttl_s if message.HasField("lease_ttl_s") else ttl
        self.stop: Stop | None = None
        self.stop_reason = ""
        self.stop_signal: threading.Event | None = None
        self.progress: tuple[bytes, float | None] | None = None
        self.progress_is_new = False

    def tell(self, stop: Stop, reason: str = "") -> None:
        """Tells the handler to stop."""
        self.stop_reason = reason
        self.stop = stop
        if self.stop_signal is not None:
            self.stop_signal.set()

    def wait_stop(self, timeout: float | None) -> bool:
        """Waits until the handler is told to stop; for handlers that run in threads."""
        if self.stop_signal is None:
            # Made by the first who waits; who tells after that finds it, who told before is seen.
            self.stop_signal = threading.Event()
        return self.stop is not None or self.stop_signal.wait(timeout)


class Received:
    """What one message of the server means for the worker."""

    __slots__ = ("begun", "is_short_lived", "shutdown", "stopped")

    def __init__(self) -> None:
        self.begun: list[Run] = []
        self.is_short_lived = False  # Some lease wants heartbeats earlier than they were due.
        self.stopped: list[Run] = []
        self.shutdown: workers_pb2.Shutdown | None = None


class _Sent:
    """A Reports message without receipt."""

    __slots__ = ("message", "tasks")

    def __init__(self, message: workers_pb2.WorkerMessage, tasks: dict[int, int]) -> None:
        self.message = message
        self.tasks = tasks  # lease → task id


class Session:
    """One worker's session over all its streams."""

    def __init__(self, register: workers_pb2.Register, max_message_bytes: int) -> None:
        self._register = register
        self._lock = threading.Lock()
        self._write: Write | None = None
        self._token = b""
        self._version = PROTOCOL_VERSION
        self._ttl = LEASE_TTL_S
        self._max_message_bytes = max_message_bytes
        self._runs: dict[int, Run] = {}
        self._recent: collections.deque[int] = collections.deque()
        self._recent_set: set[int] = set()
        self._sent: dict[int, _Sent] = {}
        self._report_number = 0
        self._confirmed_number = 0
        self._last_lease = 0
        self._beat_number = 0
        self._beats: collections.deque[tuple[int, float]] = collections.deque()
        self._beat_at = 0.0
        self._named_last = False
        self._confirmed_at = 0.0
        self._opened_at = 0.0
        self._is_draining = False
        self.granted = 0
        self.is_registered = False
        self.is_serving = False
        self.saw_not_leader = False
        self.has_progress = False

    # --- the stream -----------------------------------------------------------------------------

    def opening(self, now: float) -> workers_pb2.WorkerMessage:
        """Returns the first message of a new stream (WP-01, WP-30)."""
        with self._lock:
            message = workers_pb2.WorkerMessage(register=self._register)
            if self._token:
                resume = message.register.resume
                resume.session_token = self._token
                resume.leases.extend(self._runs)
                for sent in self._sent.values():
                    resume.leases.extend(sent.tasks)
            self._opened_at = now
            self.saw_not_leader = False
            return message

    def registered(self, answer: workers_pb2.Registered, write: Write, now: float) -> list[Run]:
        """Takes the server's acceptance and returns the runs that it did not adopt."""
        with self._lock:
            self._version = answer.protocol_version or 1
            self._token = answer.session_token
            self._ttl = answer.lease_ttl_s if answer.HasField("lease_ttl_s") else LEASE_TTL_S
            if answer.max_message_bytes:
                self._max_message_bytes = answer.max_message_bytes
            self.granted = answer.slots
            self._write = write
            self._confirmed_at = self._opened_at
            self._beat_at = now
            self._beats.clear()
            self.is_registered = True
            self.is_serving = not self._is_draining
            lost = self._lose_unadopted(set(answer.adopted))
            if not answer.adopted and not answer.reports_seen:
                self._begin_anew()
            self._send_again(answer.reports_seen)
            if self._is_draining:
                self._put_slots(0)
            return lost

    def _lose_unadopted(self, adopted: set[int]) -> list[Run]:
        """WP-32: what the server does not adopt is no longer ours; told are those that run on."""
        lost = [run for lease, run in self._runs.items() if lease not in adopted]
        running = [run for run in lost if run.stop is None]
        for run in lost:
            run.tell(Stop.LOST)
            # Its id may come again, from a server that counts anew.
            del self._runs[run.lease]
        return running

    def _begin_anew(self) -> None:
        """WP-34: the server may have begun anew, so what was seen before tells nothing."""
        if self._confirmed_number:
            # It has: what it confirmed is gone, and with it every lease of these reports.
            self._sent.clear()
            self._confirmed_number = 0
        self._recent.clear()
        self._recent_set.clear()
        self._last_lease = 0

    def _send_again(self, seen: int) -> None:
        """WP-33: everything the server has not read; it tells stale reports by itself."""
        assert self._write is not None
        if self._version < RECEIPTS_SINCE:
            self._sent.clear()
            return
        for number, sent in self._sent.items():
            if number > seen:
                self._write(sent.message)

    def broken(self) -> None:
        """The stream is gone: nothing is written until the next `registered`."""
        with self._lock:
            self._write = None
            self.is_registered = False
            self.is_serving = False

    def receive(self, message: workers_pb2.ServerMessage, now: float) -> Received:
        """Takes one message of the server."""
        received = Received()
        with self._lock:
            match message.WhichOneof("message"):
                case "leases":
                    self._begin(message.leases.leases, received, now)
                case "receipt":
                    self._confirm(message.receipt)
                case "lease":
                    self._begin((message.lease,), received, now)
                case "aborts":
                    self._abort(message.aborts.aborts, received)
                case "abort":
                    self._abort((message.abort,), received)
                case "shutdown":
                    received.shutdown = message.shutdown
                    self.saw_not_leader = message.shutdown.not_leader
                    self.is_serving = False
                case _:
                    pass  # A newer server's message: not for us.
        return received

    def _begin(self, leases: Iterable[workers_pb2.Lease], received: Received, now: float) -> None:
        late: list[tuple[Run, Outcome]] = []
        runs, recent, ttl = self._runs, self._recent_set, self._ttl
        for message in leases:
            run = Run(message, now, ttl)
            lease = run.lease
            if lease in runs or lease in recent:
                continue  # WP-12
            if lease > self._last_lease:
                self._last_lease = lease
            runs[lease] = run
            if run.ttl < ttl:
                received.is_short_lived = True
            if self._is_draining:
                late.append((run, Nacked("worker is stopping")))  # WP-41
            else:
                received.begun.append(run)
        if late:
            self._report(late)

    def _abort(self, aborts: Iterable[workers_pb2.Abort], received: Received) -> None:
        for abort in aborts:
            run = self._runs.get(abort.lease)
            if run is None or run.stop is Stop.ABORTED:
                continue  # WP-15
            run.tell(Stop.ABORTED, abort.reason)
            received.stopped.append(run)

    def _confirm(self, receipt: workers_pb2.Receipt) -> None:
        """WP-22: reports are durable, and this heartbeat was read."""
        self._confirmed_number = max(self._confirmed_number, receipt.reports)
        sent = self._sent
        while sent:
            number = next(iter(sent))  # Few entries: each is a message, not a task.
            if number > receipt.reports:
                break
            del sent[number]
        beats = self._beats
        while beats and beats[0][0] <= receipt.heartbeats:
            self._confirmed_at = max(self._confirmed_at, beats.popleft()[1])

    # --- reports --------------------------------------------------------------------------------

    def report(self, ended: Sequence[tuple[Run, Outcome]], now: float) -> None:
        """Reports how runs ended, in as few messages as fit (WP-20, WP-21)."""
        with self._lock:
            # WP-25: the last progress goes out before the report, in as many beats as it takes.
            while self._may_tell and (news := self._news_of(ended)):
                self._beat(now, news)
            self._report(ended)

    @property
    def _may_tell(self) -> bool:
        return self._write is not None and self._version >= RECEIPTS_SINCE

    def _news_of(self, ended: Sequence[tuple[Run, Outcome]]) -> list[Run]:
        """Those that end with progress that the server has not heard of."""
        runs = self._runs
        return [run for run, _ in ended if run.progress_is_new and runs.get(run.lease) is run]

    def _report(self, ended: Sequence[tuple[Run, Outcome]]) -> None:
        message: workers_pb2.WorkerMessage | None = None
        tasks: dict[int, int] = {}
        left = room = self._room
        for run, outcome in ended:
            if self._runs.get(run.lease) is not run:
                continue  # Lost, or reported already by a stop that could not wait for it.
            del self._runs[run.lease]
            self._remember(run.lease)
            if run.stop is Stop.ABORTED:
                outcome = Cancelled()  # WP-16: whatever it came to, the task is cancelled.
            outcome = self._sendable(outcome)
            size = _size(outcome)
            if message is not None and (size > left or len(tasks) >= REPORTS_PER_MESSAGE):
                self._put_reports(message, tasks)
                message = None
            if message is None:
                message, tasks, left = workers_pb2.WorkerMessage(), {}, room
            fill_report(message.reports.reports.add(), run.lease, outcome)
            tasks[run.lease] = run.task_id
            left -= size
        if message is not None:
            self._put_reports(message, tasks)

    @property
    def _room(self) -> int:
        """What a message of many parts may take."""
        return max(REPORT_SIZE_MIN, self._max_message_bytes) - MESSAGE_ROOM // 2

    def _sendable(self, outcome: Outcome) -> Outcome:
        if type(outcome) is Completed:
            limit = self._max_message_bytes - MESSAGE_ROOM
            if len(outcome.output) > limit:  # WP-18
                text = f"output too large ({len(outcome.output)} > {limit})"
                return Failed(text, permanent=True)
        return outcome

    def _remember(self, lease: int) -> None:
        self._recent.append(lease)
        self._recent_set.add(lease)
        if len(self._recent) > RECENT_MAX:
            self._recent_set.discard(self._recent.popleft())

    def _put_reports(self, message: workers_pb2.WorkerMessage, tasks: dict[int, int]) -> None:
        if self._version < RECEIPTS_SINCE:
            if self._write is not None:
                for report in message.reports.reports:
                    self._write(_single(report))
            return  # Forgotten once written: an old server knows no resume.
        self._report_number += 1
        message.reports.number = self._report_number
        self._sent[self._report_number] = _Sent(message, tasks)
        if self._write is not None:
            self._write(message)

    # --- time -----------------------------------------------------------------------------------

    def next_pulse(self, now: float) -> float:
        """Returns when `pulse` is to be called next."""
        with self._lock:
            due = self._beat_at + self._interval()
            if self.has_progress and self.is_registered:
                due = min(due, self._beat_at + PROGRESS_EVERY_S)
            return max(min(due, self._next_expiry()), now)

    def next_expiry(self) -> float:
        """When the first lease runs out whose handler was not told to stop; infinite if none."""
        with self._lock:
            return self._next_expiry()

    def _next_expiry(self) -> float:
        return min(
            (self._expires_at(run) for run in self._runs.values() if run.stop is None),
            default=math.inf,
        )

    def pulse(self, now: float) -> list[Run]:
        """Sends the heartbeat that is due and returns the runs whose lease ran out (WP-24)."""
        with self._lock:
            expired = [
                run
                for run in self._runs.values()
                if run.stop is None and self._expires_at(run) <= now
            ]
            for run in expired:
                run.tell(Stop.EXPIRED)
            due = self._beat_at + self._interval()
            if self.has_progress:
                due = min(due, self._beat_at + PROGRESS_EVERY_S)
            if due <= now:
                self._beat(now)
            return expired

    def _interval(self) -> float:
        ttl = self._ttl
        for run in self._runs.values():
            if run.ttl < ttl:
                ttl = run.ttl
        return ttl / BEATS_PER_TTL

    def _expires_at(self, run: Run) -> float:
        # Our clock alone: the server granted no more than this.
        return max(run.arrived_at, self._confirmed_at) + run.ttl

    def _beat(self, now: float, first: Sequence[Run] = ()) -> None:
        """WP-23: one message names every lease that runs; the progress of some goes first."""
        self._beat_at = now
        write = self._write
        if write is None:
            return
        named = list(self._runs.values())
        if self._version < RECEIPTS_SINCE:
            self.has_progress = False
            for run in named:
                message = workers_pb2.WorkerMessage()
                message.heartbeat.lease = run.lease
                write(message)
            self._confirmed_at = now
            return
        if not named and not self._named_last:
            self.has_progress = False
            return  # Nothing runs and the server knows.
        self._named_last = bool(named)
        message = workers_pb2.WorkerMessage()
        beat = message.heartbeats
        beat.leases.extend([run.lease for run in named])
        beat.last_lease = self._last_lease
        if self.has_progress or first:
            # Before it is read, as with each run's own mark.
            self.has_progress = False
            if not _add_progress(beat, (*first, *named), self._room - len(named) * LEASE_ROOM):
                self.has_progress = True  # The rest goes with the next one.
        self._beat_number += 1
        beat.number = self._beat_number
        self._beats.append((self._beat_number, now))
        write(message)

    # --- stopping -------------------------------------------------------------------------------

    def drain(self) -> None:
        """WP-40: no more leases; what arrives late is given back."""
        with self._lock:
            if self._is_draining:
                return
            self._is_draining = True
            self.is_serving = False
            self._put_slots(0)

    def _put_slots(self, slots: int) -> None:
        if self._write is not None:
            message = workers_pb2.WorkerMessage()
            message.set_slots.slots = slots
            self._write(message)

    def stop_runs(self, reason: Stop) -> list[Run]:
        """Marks every run that was not told to stop yet, and returns them."""
        with self._lock:
            stopped = [run for run in self._runs.values() if run.stop is None]
            for run in stopped:
                run.tell(reason)
            return stopped

    def open_runs(self) -> list[Run]:
        """Returns the runs without a report."""
        with self._lock:
            return list(self._runs.values())

    def unconfirmed_tasks(self) -> list[int]:
        """Returns the tasks whose report has no receipt yet."""
        with self._lock:
            return [task for sent in self._sent.values() for task in sent.tasks.values()]

    @property
    def is_settled(self) -> bool:
        """True when nothing runs and every report has its receipt."""
        with self._lock:
            return not self._runs and not self._sent

    @property
    def owes_server(self) -> bool:
        """True while a broken stream is worth opening again during a stop."""
        return not self.is_settled


def _size(outcome: Outcome) -> int:
    if type(outcome) is Completed:
        return len(outcome.output) + len(outcome.content_type) + REPORT_ROOM
    if type(outcome) is Failed:
        return 4 * len(outcome.message) + REPORT_ROOM
    return REPORT_ROOM + 4 * len(outcome.reason)  # type: ignore[union-attr]


def fill_report(report: workers_pb2.Report, lease: int, outcome: Outcome) -> None:
    """Puts an outcome into a report."""
    match outcome:
        case Completed():
            complete = report.complete
            complete.lease = lease
            complete.output = outcome.output
            complete.content_type = outcome.content_type
        case Failed():
            fail = report.fail
            fail.lease = lease
            fail.message = clean_message(outcome.message)
            fail.permanent = outcome.permanent
            if outcome.retry_after_s is not None:
                fail.retry_after_s = outcome.retry_after_s
        case Nacked():
            report.nack.lease = lease
            report.nack.reason = clean_message(outcome.reason)
        case Cancelled():
            report.cancelled.lease = lease
        case _:
            assert_never(outcome)


def _single(report: workers_pb2.Report) -> workers_pb2.WorkerMessage:
    """A report as the message that old servers know."""
    message = workers_pb2.WorkerMessage()
    match report.WhichOneof("report"):
        case "complete":
            message.complete.CopyFrom(report.complete)
        case "fail":
            message.fail.CopyFrom(report.fail)
        case "nack":
            message.nack.CopyFrom(report.nack)
        case "cancelled":
            message.cancelled.CopyFrom(report.cancelled)
        case None:
            pass
    return message


def _add_progress(beat: workers_pb2.Heartbeats, runs: Iterable[Run], room: int) -> bool:
    """Adds what the server has not heard of, at least one; False if not all of it fits."""
    for run in runs:
        if not run.progress_is_new:
            continue
        if room < PROGRESS_BYTES_MAX + PROGRESS_ROOM and beat.progress:
            return False
        # Before it is read: the handler's thread may write another one meanwhile, and that is new.
        run.progress_is_new = False
        progress = run.progress
        if progress is not None:
            room -= len(progress[0]) + PROGRESS_ROOM
            item = beat.progress.add()
            item.lease = run.lease
            item.progress.data = progress[0]
            if progress[1] is not None:
                item.progress.fraction = progress[1]
    return True
