"""Decides how a started worker runs what the link brings, and how it stops.

One object per start: everything that belongs to one event loop. Leases come in batches from the
link's threads; async handlers run as tasks, sync ones in threads; what ends in one turn of the loop
is reported together. A handler cannot be killed, so its slot is taken until it has really ended.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import logging
import os
import random
import time
from collections.abc import Callable, Sequence
from typing import Any

from ._endpoint import Endpoint
from ._handlers import Handler, Handlers
from ._link import END_S, Link
from ._outcome import Failed, Nacked, Outcome
from ._proto import workers_pb2
from ._reconnect import ReconnectPolicy, ReconnectSettings
from ._session import PROTOCOL_VERSION, Run, Session, Stop
from ._threads import HandlerThreads
from ._transport import Dialer, post
from ._version import __version__
from .attempt import Attempt
from .errors import ClosedError, CronoqError, GaveUpError
from .options import WorkerOptions, seconds

logger = logging.getLogger("cronoq.worker")

Hooks = dict[str, Callable[..., object] | None]

# Tasks whose kind had no handler here, remembered so that the second time is the last.
UNKNOWN_MAX = 1024
# What a cancelled handler gets to clean up in before its attempt is reported anyway, seconds.
STOP_GRACE_S = 1.0
# Tasks that one line of the log names, so that it stays readable and no sink cuts it.
NAMED_MAX = 50


def warn_of(text: str, tasks: Sequence[int]) -> None:
    """Warns of tasks by their ids, in as many lines as that takes."""
    for first in range(0, len(tasks), NAMED_MAX):
        logger.warning(text, ", ".join(str(task) for task in tasks[first : first + NAMED_MAX]))


class Engagement:
    """One start of a worker, up to its stop: everything that belongs to one event loop."""

    def __init__(self, options: WorkerOptions, handlers: Handlers, hooks: Hooks) -> None:
        self._options = options
        self._handlers = handlers
        self._hooks = hooks
        self._loop = asyncio.get_running_loop()
        self.codec = options.codec
        self.session = Session(self._register(), self._options.max_message_bytes)
        self._threads = HandlerThreads(self._options.slots)
        self._backlog: collections.deque[Run] = collections.deque()
        self._tasks: dict[Run, asyncio.Task[None] | None] = {}
        self._ended: collections.deque[tuple[Run, Outcome]] = collections.deque()
        self._is_flushing = False
        self._unknown: collections.OrderedDict[int, None] = collections.OrderedDict()
        self._change_event = asyncio.Event()
        self._stopping: asyncio.Task[None] | None = None
        self._drain_ends_at = 0.0
        self._link: Link | None = None
        self.failure: CronoqError | None = None
        self.is_stopped = False
        self._pid = os.getpid()

    @property
    def is_here(self) -> bool:
        """False in a forked child, which has none of the threads."""
        return self._pid == os.getpid()

    def _register(self) -> workers_pb2.Register:
        options = self._options
        return workers_pb2.Register(
            pool=options.pool,
            slots=options.slots,
            worker_name=options.name,
            protocol_version=PROTOCOL_VERSION,
            labels=options.labels,
            sdk=f"python/{__version__}",
            kinds=self._handlers.declared_kinds(),
        )

    def start(self, endpoint: Endpoint) -> None:
        options = self._options
        settings = ReconnectSettings(
            endpoint=endpoint,
            has_token=options.token is not None,
            insecure_redirect_http=options.insecure_redirect_http,
            backoff_initial=seconds(options.backoff.initial),
            backoff_max=seconds(options.backoff.maximum),
            session_reset=seconds(options.session_reset),
        )
        policy = ReconnectPolicy(settings, random.random)
        self._link = Link(self.session, policy, Dialer(options), options.token, self)
        self._link.start()

    @property
    def link(self) -> Link:
        assert self._link is not None
        return self._link

    # --- what the link says (on its threads) ----------------------------------------------------

    def begin(self, runs: list[Run]) -> None:
        if not post(self._loop, self._take, runs):
            # The loop was closed without a stop: nobody will run these, so let them go.
            self.link.abandon()

    def stop_runs(self, runs: list[Run]) -> None:
        post(self._loop, self._cancel, runs)

    def connected(self, endpoint: str) -> None:
        logger.info("connected to %s", endpoint)
        post(self._loop, self._hook, "on_connect", endpoint)

    def disconnected(self, endpoint: str, reason: str) -> None:
        logger.info("disconnected from %s: %s", endpoint, reason)
        post(self._loop, self._hook, "on_disconnect", endpoint, reason)

    def redirected(self, endpoint: str, refused: str) -> None:
        if refused:
            logger.warning("redirect not followed: %s", refused)
        else:
            logger.info("redirected to %s", endpoint)
        post(self._loop, self._hook, "on_redirect", endpoint, refused)

    def gave_up(self, code: str, message: str) -> None:
        logger.error("giving up: %s: %s", code, message)
        self.failure = GaveUpError(f"{code}: {message}", details={"code": code})

    def changed(self) -> None:
        post(self._loop, self._change_event.set)

    def note_progress(self) -> None:
        self.link.note_progress()

    async def fetch_output(self, lease: int, task_id: int) -> workers_pb2.Output:
        return await self.link.fetch_output(lease, task_id)

    def fetch_output_blocking(self, lease: int, task_id: int) -> workers_pb2.Output:
        return self.link.fetch_output_blocking(lease, task_id)

    def _hook(self, name: str, *arguments: Any) -> None:
        self._change_event.set()
        hook = self._hooks[name]
        if hook is None:
            return
        try:
            hook(*arguments)
        # A hook is the user's; its fault must not end the worker.
        except Exception:
            logger.exception("hook %s failed", name)

    # --- running (on the loop) ------------------------------------------------------------------

    def _take(self, runs: list[Run]) -> None:
        if self._stopping is not None:  # WP-41: they came while the stop was being made.
            for run in runs:
                self._end(run, Nacked("worker is stopping"))
            return
        self._backlog.extend(runs)
        self._start_waiting()

    def _start_waiting(self) -> None:
        backlog, tasks, slots = self._backlog, self._tasks, self._options.slots
        while backlog and len(tasks) < slots:
            run = backlog.popleft()
            if run.stop is None:
                self._start(run)
            else:
                self._end(run, Nacked("stopped before it began"))

    def _start(self, run: Run) -> None:
        handler = self._handlers.find(run.message.kind)
        if handler is None:
            self._end(run, self._unknown_kind(run))
            return
        attempt = Attempt(run, self)
        if handler.is_async:
            self._tasks[run] = self._loop.create_task(self._run_async(handler, attempt, run))
        else:
            self._tasks[run] = None
            self._threads.submit(lambda: self._run_blocking(handler, attempt, run))

    def _unknown_kind(self, run: Run) -> Outcome:
        """Nacked the first time, since another worker may know it; permanent the second."""
        text = f"no handler for kind {run.message.kind!r}"
        if run.task_id in self._unknown:
            return Failed(text, permanent=True)
        self._unknown[run.task_id] = None
        if len(self._unknown) > UNKNOWN_MAX:
            self._unknown.popitem(last=False)
        return Nacked(text)

    async def _run_async(self, handler: Handler, attempt: Attempt, run: Run) -> None:
        outcome: Outcome = Failed("the handler was interrupted")
        try:
            if run.stop is None:
                outcome = await handler.run_async(attempt, run)
            else:
                outcome = Failed(run.stop.value)
        finally:
            self._end(run, outcome)

    def _run_blocking(self, handler: Handler, attempt: Attempt, run: Run) -> None:
        self._ended.append((run, handler.run_blocking(attempt, run)))
        if not self._is_flushing:
            self._is_flushing = True
            post(self._loop, self._flush)

    def _end(self, run: Run, outcome: Outcome) -> None:
        self._ended.append((run, outcome))
        if not self._is_flushing:
            self._is_flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        """Reports all that ended since the last turn."""
        self._is_flushing = False
        ended: list[tuple[Run, Outcome]] = []
        while self._ended:
            ended.append(self._ended.popleft())
        tasks = self._tasks
        for run, _ in ended:
            tasks.pop(run, None)
        self.session.report(ended, time.monotonic())
        self._start_waiting()
        if self._stopping is not None:
            self._change_event.set()

    def _cancel(self, runs: list[Run]) -> None:
        for run in runs:
            if run in self._backlog:
                self._backlog.remove(run)
                self._end(run, Nacked("stopped before it began"))
            elif run not in self._tasks:
                continue  # It has just ended.
            task = self._tasks.get(run)
            if task is not None:
                # Not at once: a task cancelled before its first step would never say that it ended.
                self._loop.call_soon(task.cancel)
            reason = run.stop_reason or (run.stop.value if run.stop is not None else "")
            logger.info("task %d: handler told to stop: %s", run.task_id, reason)
            self._hook("on_abort", Attempt(run, self), reason)

    # --- stopping -------------------------------------------------------------------------------

    async def until(self, is_true: Callable[[], bool]) -> None:
        """Waits for a fact that some event of this worker brings about.

        Raises:
            GaveUpError: The worker gave up.
            ClosedError: The worker was stopped, so that no event will come.
        """
        while not is_true():
            if self.failure is not None:
                raise self.failure
            if self.is_stopped:
                raise ClosedError("the worker was stopped")
            self._change_event.clear()
            if not is_true() and self.failure is None:
                await self._change_event.wait()

    async def stop(self, drain_timeout: float) -> None:
        ends_at = self._loop.time() + drain_timeout
        if self._stopping is None:
            self._drain_ends_at = ends_at
            self._stopping = self._loop.create_task(self._stop())
        elif ends_at < self._drain_ends_at:
            self._drain_ends_at = ends_at
            self._change_event.set()
        # Whoever waits may be cancelled; the stop itself goes on.
        await asyncio.shield(self._stopping)

    async def _stop(self) -> None:
        self.session.drain()
        if self.failure is not None:
            # No server takes what handlers come to, so nothing is worth waiting for.
            self._drain_ends_at = self._loop.time()
        while self._backlog:
            self._end(self._backlog.popleft(), Nacked("worker is stopping"))
        await self._until_drained(lambda: not self._tasks and not self._ended)
        if self._tasks:
            await self._cancel_rest()
        self._drain_ends_at = max(self._drain_ends_at, self._loop.time() + STOP_GRACE_S)
        self.link.close()
        await self._until_drained(lambda: self.session.is_settled or self.link.is_over)
        await self._close_link()
        self._threads.close()
        self.is_stopped = True
        self._change_event.set()

    async def _until_drained(self, is_true: Callable[[], bool]) -> None:
        """Waits for a fact, at most until the drain's end, which a second stop may draw nearer."""
        while not is_true() and self._loop.time() < (ends_at := self._drain_ends_at):
            await self._until(lambda: is_true() or self._drain_ends_at < ends_at, ends_at)

    async def _until(self, is_true: Callable[[], bool], ends_at: float) -> None:
        """Waits for a fact, at most until `ends_at`."""
        while not is_true():
            left = ends_at - self._loop.time()
            if left <= 0:
                return
            self._change_event.clear()
            if is_true():
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._change_event.wait()

    async def _cancel_rest(self) -> None:
        """Time is up: handlers are cancelled, and what does not end is reported without them."""
        stopped = self.session.stop_runs(Stop.STOPPED)
        self._cancel(stopped)
        self._drain_ends_at = self._loop.time() + STOP_GRACE_S
        await self._until_drained(lambda: not self._tasks and not self._ended)
        rest = self.session.open_runs()
        if rest:
            warn_of("handlers of tasks %s do not end", [run.task_id for run in rest])
            outcome = Failed(Stop.STOPPED.value)
            self.session.report([(run, outcome) for run in rest], time.monotonic())

    async def _close_link(self) -> None:
        unconfirmed = self.session.unconfirmed_tasks()
        if unconfirmed:
            warn_of("stopped before the server confirmed tasks %s", unconfirmed)
        link = self.link
        link.half_close()
        await self._until(lambda: link.is_ended, self._loop.time() + END_S)
        if not link.is_ended:
            link.abandon()
            await self._until(lambda: link.is_ended, self._loop.time() + END_S)
