"""Decides nothing itself: carries a session over streams, as the reconnect policy says.

Two threads. One opens streams and reads them; one keeps time: heartbeats and leases that run out.
Neither depends on the handlers' event loop, so a handler that blocks it starves no heartbeat.
"""

from __future__ import annotations

import asyncio
import logging
import math
import queue
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

import grpc

from ._calls import GET_OUTPUT
from ._endpoint import Endpoint
from ._proto import workers_pb2
from ._reconnect import (
    Connect,
    Decision,
    Elapsed,
    Ended,
    Event,
    GiveUp,
    ReconnectPolicy,
    Redirected,
    Registered,
    Started,
    Stay,
    Wait,
)
from ._session import Run, Session
from ._transport import SHARD_ENDPOINT_KEY, Channel, Dialer, Method, call_error
from .errors import ErrorReason, UnavailableError

logger = logging.getLogger("cronoq.worker")

WORK = Method("Workers", "Work", workers_pb2.ServerMessage)
# How long the server gets to end a stream that this side has half-closed, seconds.
END_S = 2.0
OUTPUT_TIMEOUT_S = 30.0
# Pauses between tries to fetch a parent's output, about 20 s together.
OUTPUT_PAUSES_S = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.0, 5.0, 5.0, 5.0)


class Listener(Protocol):
    """Who hears what happens on the link; called on the link's threads."""

    def begin(self, runs: list[Run]) -> None:
        """Leases arrived."""

    def stop_runs(self, runs: list[Run]) -> None:
        """These handlers must stop."""

    def connected(self, endpoint: str) -> None:
        """The server accepted the worker."""

    def disconnected(self, endpoint: str, reason: str) -> None:
        """A stream that had been accepted ended."""

    def redirected(self, endpoint: str, refused: str) -> None:
        """A server named another one; `refused` says why it is not followed, if it is not."""

    def gave_up(self, code: str, message: str) -> None:
        """No retry can help."""

    def changed(self) -> None:
        """Something that a stop waits for may have come."""


class Link:
    """One worker's way to its servers."""

    def __init__(
        self,
        session: Session,
        policy: ReconnectPolicy,
        dialer: Dialer,
        token: str | None,
        listener: Listener,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._session = session
        self._policy = policy
        self._dialer = dialer
        self._token = token
        self._listener = listener
        self._clock = clock
        self._wake = threading.Event()
        self._pulse_wake = threading.Event()
        self._is_closing = False
        self._is_over = False
        self.is_ended = False
        self._outbox: queue.SimpleQueue[workers_pb2.WorkerMessage | None] | None = None
        self._call: Any = None
        self._channel: Channel | None = None

    def start(self) -> None:
        """Starts both threads. They end by themselves and hold up no exit of the program."""
        threading.Thread(target=self._run, name="cronoq-link", daemon=True).start()
        threading.Thread(target=self._keep_time, name="cronoq-pulse", daemon=True).start()

    @property
    def is_over(self) -> bool:
        """True when the link will not connect again."""
        return self._is_over

    # --- connecting -----------------------------------------------------------------------------

    def _run(self) -> None:
        has_failed = True
        try:
            self._connect_until_over()
            has_failed = False
        finally:
            if has_failed:
                # A fault of this program, told by the thread's hook: nobody is to wait for it.
                self._listener.gave_up("INTERNAL", "the connection's thread has failed")
            self._is_over = self.is_ended = True
            self._pulse_wake.set()
            self._listener.changed()

    def _connect_until_over(self) -> None:
        decision: Decision = self._policy.decide(Started(), self._clock())
        while not self._may_end():
            match decision:
                case Connect(endpoint, may_send_token):
                    event = self._attempt(endpoint, may_send_token)
                case Wait(until):
                    event = self._await(until)
                case GiveUp(code, message):
                    self._listener.gave_up(code, message)
                    return
                case Stay():
                    raise AssertionError("no stream to stay on")
            decision = self._next(event)

    def _may_end(self) -> bool:
        return self._is_over or (self._is_closing and not self._session.owes_server)

    def _next(self, event: Event) -> Decision:
        decision = self._policy.decide(event, self._clock())
        if isinstance(event, Redirected):
            refused = decision.refused if isinstance(decision, Connect | Wait) else ""
            self._listener.redirected(event.endpoint, refused)
        return decision

    def _await(self, until: float) -> Event:
        while (left := until - self._clock()) > 0:
            if self._wake.wait(left):
                self._wake.clear()
                if self._may_end():
                    break
        return Elapsed()

    def _attempt(self, endpoint: Endpoint, may_send_token: bool) -> Event:
        """Opens one stream and follows it to its end."""
        try:
            channel = self._dialer.dial(endpoint, self._token if may_send_token else None)
        except OSError as error:
            logger.warning("cannot connect to %s: %s", endpoint, error)
            return Ended("UNAVAILABLE", message=str(error))
        outbox: queue.SimpleQueue[workers_pb2.WorkerMessage | None] = queue.SimpleQueue()
        outbox.put(self._session.opening(self._clock()))
        self._outbox = outbox
        self._channel = channel
        self._call = channel.exchange(WORK, iter(outbox.get, None))
        try:
            return self._follow(str(endpoint))
        finally:
            self._session.broken()
            outbox.put(None)  # Ends the thread that writes.
            self._call = self._channel = self._outbox = None
            channel.close()

    def _follow(self, endpoint: str) -> Event:
        call = self._call
        is_registered = False
        reason = "the server ended the stream"
        try:
            for message in call:
                if not is_registered:
                    if message.WhichOneof("message") == "shutdown":
                        self._session.receive(message, self._clock())
                    if message.WhichOneof("message") != "registered":
                        continue
                    is_registered = True
                    self._accepted(message.registered, endpoint)
                else:
                    self._take(message)
        except grpc.RpcError:
            pass  # The status is read from the call.
        event = self._event_of(call)
        if isinstance(event, Ended) and event.message:
            reason = event.message
        if is_registered:
            self._session.broken()
            self._listener.disconnected(endpoint, reason)
        else:
            logger.debug("no session at %s: %s", endpoint, reason)
        return event

    def _accepted(self, answer: workers_pb2.Registered, endpoint: str) -> None:
        self._policy.decide(Registered(), self._clock())
        assert self._outbox is not None
        lost = self._session.registered(answer, self._outbox.put, self._clock())
        self._pulse_wake.set()
        self._listener.connected(endpoint)
        if lost:
            self._listener.stop_runs(lost)
        if self._is_closing:
            self._listener.changed()

    def _take(self, message: workers_pb2.ServerMessage) -> None:
        received = self._session.receive(message, self._clock())
        if received.begun:
            self._listener.begin(received.begun)
        if received.is_short_lived:
            self._pulse_wake.set()
        if received.stopped:
            self._listener.stop_runs(received.stopped)
        if received.shutdown is not None:
            logger.info("server is shutting down: %s", received.shutdown.reason)
        if self._is_closing:
            self._listener.changed()

    def _event_of(self, call: Any) -> Event:
        code: grpc.StatusCode = call.code()
        if code is grpc.StatusCode.OK:
            return Ended("OK", not_leader=self._session.saw_not_leader)
        error = call_error(call)
        endpoint = error.details.get(SHARD_ENDPOINT_KEY)
        if code is grpc.StatusCode.FAILED_PRECONDITION and endpoint is not None:
            return Redirected(endpoint)
        not_leader = error.reason is ErrorReason.NOT_LEADER or self._session.saw_not_leader
        return Ended(code.name, not_leader=not_leader, message=error.message)

    # --- time -----------------------------------------------------------------------------------

    def _keep_time(self) -> None:
        while True:
            now = self._clock()
            if not self.is_ended:
                due = self._session.next_pulse(now)
            # No server is left to hear heartbeats, but leases still run out (WP-24).
            elif (due := self._session.next_expiry()) == math.inf:
                return
            if self._pulse_wake.wait(min(max(due - now, 0.0), threading.TIMEOUT_MAX)):
                self._pulse_wake.clear()
            expired = self._session.pulse(self._clock())
            if expired:
                self._listener.stop_runs(expired)

    def note_progress(self) -> None:
        """Some run has new progress; it goes out with a heartbeat soon."""
        if not self._session.has_progress:
            self._session.has_progress = True
            self._pulse_wake.set()

    # --- stopping -------------------------------------------------------------------------------

    def close(self) -> None:
        """Lets the link end once the session owes the server nothing; returns at once."""
        self._is_closing = True
        self._wake.set()

    def half_close(self) -> None:
        """Ends this side of the stream for good; the server ends the other."""
        self._is_over = True
        self._wake.set()
        self._pulse_wake.set()
        outbox = self._outbox
        if outbox is not None:
            outbox.put(None)

    def abandon(self) -> None:
        """Ends everything now, whatever the session still owes."""
        self._is_over = True
        self._wake.set()
        self._pulse_wake.set()
        call = self._call
        if call is not None:
            call.cancel()

    # --- parents' outputs -----------------------------------------------------------------------

    async def fetch_output(self, lease: int, task_id: int) -> workers_pb2.Output:
        """Fetches the output of a parent of a lease; waits out a broken connection."""
        request = workers_pb2.GetOutputRequest(lease=lease, task_id=task_id)
        for pause in OUTPUT_PAUSES_S:
            channel = self._channel
            if channel is not None:
                try:
                    return await channel.unary(GET_OUTPUT, request, OUTPUT_TIMEOUT_S)
                except UnavailableError as error:
                    logger.debug("output of task %d: %s", task_id, error)
            await asyncio.sleep(pause)
        raise UnavailableError(f"no server answered for the output of task {task_id}")

    def fetch_output_blocking(self, lease: int, task_id: int) -> workers_pb2.Output:
        """Fetches the output of a parent of a lease, on the calling thread."""
        request = workers_pb2.GetOutputRequest(lease=lease, task_id=task_id)
        for pause in OUTPUT_PAUSES_S:
            channel = self._channel
            if channel is not None:
                try:
                    return channel.blocking_unary(GET_OUTPUT, request, OUTPUT_TIMEOUT_S)
                except UnavailableError as error:
                    logger.debug("output of task %d: %s", task_id, error)
            time.sleep(pause)
        raise UnavailableError(f"no server answered for the output of task {task_id}")
