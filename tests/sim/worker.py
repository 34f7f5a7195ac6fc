"""A worker as every SDK writes one, in miniature: slots, heartbeats, receipts, resume.

Protocol 4 keeps each report until its receipt and comes back with its session's token; protocol 3
knows neither. What a handler does is drawn when it begins; when it ends is arranged at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container
from functools import partial
from typing import TYPE_CHECKING

from cronoq_server.engine.effects import (
    CancelAttempt,
    Dispatch,
    Dropped,
    Joined,
    Lease,
    NotJoined,
    Receipt,
    Result,
)
from cronoq_server.engine.events import (
    CancelledByWorker,
    Completed,
    Failed,
    GetOutput,
    HeartbeatsRead,
    Nacked,
    Report,
    Resume,
    WorkerJoined,
)
from cronoq_server.engine.model import MILLISECOND, SECOND, Duration, Pairs, Progress
from cronoq_server.runtime.refusals import Refused
from cronoq_server.runtime.sessions import Outbound, Session, ShutdownNotice
from tests.sim.clockwork import Entry

if TYPE_CHECKING:
    from tests.sim.world import Process, World


READS_PARENTS = 30
"""How many of a hundred handlers with parents ask for an output of theirs."""

HANGS = 10
"""How many of a hundred handlers with a timeout do not heed it."""


class Handler:
    """One attempt that runs, or ran and was not yet reported."""

    __slots__ = ("aborted", "end", "lease")

    def __init__(self, lease: Lease) -> None:
        self.lease = lease
        self.end: Entry | None = None
        self.aborted = False


class Temper:
    """How the handlers of a worker behave; of a hundred.

    Attributes:
        fails: How many fail and may be tried again.
        breaks: How many fail for good.
        refuses: How many are given back unrun.
        cancels: How many cancel themselves.
        slow: How many take long.
        longest: What long is.
    """

    def __init__(self, fails: int, breaks: int, refuses: int, cancels: int, slow: int) -> None:
        self.fails = fails
        self.breaks = breaks
        self.refuses = refuses
        self.cancels = cancels
        self.slow = slow
        self.longest: Duration = 20 * SECOND


class Worker:
    """One worker process, from its start to its death."""

    def __init__(
        self,
        world: World,
        name: str,
        pool: str,
        slots: int,
        labels: Pairs,
        kinds: tuple[str, ...],
        protocol: int,
        temper: Temper,
    ) -> None:
        self.world = world
        self.name = name
        self.pool = pool
        self.slots = slots
        self.labels = labels
        self.kinds = kinds
        self.protocol = protocol
        self.temper = temper
        self.is_dead = False
        self.frozen_until = 0
        self._process: Process | None = None
        self._session: Session | None = None
        self._outgoing: list[Callable[[Session], object]] = []
        self._is_joined = False
        self._hung = False
        self._most = 0
        self._asked = 0
        self._ttl: Duration = 0
        self._token = b""
        self._running: dict[int, Handler] = {}
        self._unheard: dict[int, list[Report]] = {}
        self._reports = 0
        self._beats = 0
        self._last_lease = 0
        self._last_heard = 0
        self._beat: Entry | None = None
        self._last_session: Session | None = None
        self._broken: asyncio.Future[bool] | None = None
        self._reading: asyncio.Task[None] | None = None
        self._unwritten: tuple[int, ...] = ()
        self.task = world.spawn(self._live())

    # --- the stream ------------------------------------------------------------------------------

    async def _live(self) -> None:
        world = self.world
        while not self.is_dead:
            process = await self._server()
            await self._thaw(process)
            if process.driver is None or self.is_dead:
                continue
            try:
                session = process.driver.sessions.open(self._registration)
            except Refused:
                await world.sleep(int(SECOND * world.chance.random()))
                continue
            await self._serve(process, session)
            await world.sleep(int(world.chance.random() * 600 * MILLISECOND))

    async def _server(self) -> Process:
        """Who is connected to next."""
        return await self.world.leading()

    async def _thaw(self, process: Process) -> None:
        until = max(process.machine.frozen_until, self.frozen_until)
        if until > self.world.timeline.now:
            await self.world.sleep(until - self.world.timeline.now)

    def _registration(self, number: int, _token: bytes) -> WorkerJoined:
        resume = None
        self._asked = self.slots
        if self._token and self.protocol >= 4:
            named = dict.fromkeys(self._running)
            for reports in self._unheard.values():
                named.update((report.lease, None) for report in reports)
            resume = Resume(self._token, tuple(named))
        return WorkerJoined(
            number,
            self.pool,
            self.slots,
            self.name,
            self.labels,
            self.kinds,
            self.protocol,
            "worker",
            f"{self.name}/{self.world.disk.epoch}/{number}".encode(),
            resume=resume,
        )

    async def _serve(self, process: Process, session: Session) -> None:
        """Reads what the server sends until the stream breaks, then tells the server, if it can."""
        world = self.world
        self._process, self._session = process, session
        self._last_session = session
        self._is_joined = self._hung = False
        self._outgoing.clear()
        self._broken = broken = world.loop.create_future()
        process.links[self] = lambda: self.break_stream(False)
        self._reading = world.spawn(self._read(session))
        await broken
        if self.protocol < 4 or self.is_dead:
            self._stop_all()
        else:
            left = self._last_heard + self._ttl - world.timeline.now
            world.timeline.after(max(0, left), lambda: self._give_up(session))

    def break_stream(self, clean: bool) -> None:
        """The stream ends; `clean`: the worker closed it in order."""
        session, process = self._session, self._process
        if session is None or process is None:
            return
        self._session = self._process = None
        process.links.pop(self, None)
        if self._beat is not None:
            self._beat.cancel()
            self._beat = None
        if self._reading is not None:
            self._reading.cancel()
        if self._broken is not None and not self._broken.done():
            self._broken.set_result(clean)
        unsent, self._unwritten = self._unwritten, ()
        if process.driver is not None:
            # How long it takes the server to see it.
            delay = 0 if clean else int(self.world.chance.random() * 300 * MILLISECOND)
            self.world.timeline.at(
                max(process.machine.frozen_until, self.world.timeline.now + delay),
                lambda: session.lost(clean, unsent),
            )

    def _give_up(self, session: Session) -> None:
        """One TTL after the last sign of the server, handlers stop; unless it is back."""
        if self._session is not None or self._last_session is not session:
            return
        for handler in list(self._running.values()):
            if handler.end is not None:
                handler.end.cancel()
            # It did run: it is named when the worker comes back, and its end is reported.
            self._end(handler, Failed(handler.lease.lease, "its server was gone for too long"))

    def _stop_all(self) -> None:
        for handler in self._running.values():
            if handler.end is not None:
                handler.end.cancel()
        self._running.clear()
        self._unheard.clear()

    def die(self) -> None:
        """The worker process is gone."""
        self.is_dead = True
        self.break_stream(False)
        self._stop_all()
        self.task.cancel()

    def leave(self) -> None:
        """The worker closes its stream in order and ends."""
        self.is_dead = True
        self.break_stream(self.protocol >= 4)
        self._stop_all()

    def freeze(self, duration: Duration) -> None:
        """The worker hangs: it neither beats nor reports nor reads."""
        self.frozen_until = self.world.timeline.now + duration
        self._hung = True

    def set_slots(self, slots: int) -> None:
        """The worker offers other slots."""
        self.slots = slots
        self._most = max(self._most, slots)
        self._send(lambda session: session.set_slots(slots))

    def _send(self, say: Callable[[Session], object]) -> None:
        """Says something on the stream, if it stands and the server has answered on it."""
        if self._session is None or not self._is_joined:
            return
        self._outgoing.append(say)
        if len(self._outgoing) == 1:
            self._flush(self._session)

    def _flush(self, session: Session) -> None:
        """What is said arrives in order; what is frozen hears and speaks later."""
        process = self._process
        if self._session is not session or process is None:
            return
        until = max(process.machine.frozen_until, self.frozen_until)
        if until > self.world.timeline.now:
            self.world.timeline.at(until, lambda: self._flush(session))
            return
        for say in self._outgoing:
            say(session)
        self._outgoing.clear()

    # --- what the server says --------------------------------------------------------------------

    async def _read(self, session: Session) -> None:
        while True:
            for effect in await session.outbound():
                until = self.frozen_until
                if until > self.world.timeline.now:
                    await self.world.sleep(until - self.world.timeline.now)
                if not self._hear(session, effect):
                    self.break_stream(False)
                    return

    def _hear(self, session: Session, effect: Outbound) -> bool:
        """Takes one message; false = it was the last."""
        if isinstance(effect, Dispatch):
            self._last_heard = self.world.timeline.now
            if self.world.chance.randrange(1000) < self.world.lossy:
                # The stream breaks under these leases; maybe the server knows what did not go out.
                if self.world.chance.random() < 0.5:
                    self._unwritten = tuple(lease.lease for lease in effect.leases)
                self.world.count("leases lost on their way")
                return False
            for lease in effect.leases:
                self._receive(lease)
        elif isinstance(effect, Receipt):
            self._last_heard = self.world.timeline.now
            for number in [n for n in self._unheard if n <= effect.reports]:
                del self._unheard[number]
        elif isinstance(effect, CancelAttempt):
            for lease_id, _ in effect.aborts:
                self._abort(lease_id)
        elif isinstance(effect, Joined):
            if self._token and self.world.chance.randrange(1000) < 5 * self.world.lossy:
                self.world.count("answers to a resume lost on their way")
                return False
            self._joined(session, effect)
        elif isinstance(effect, NotJoined | Dropped):
            if isinstance(effect, Dropped) and not self._hung:
                self.world.known.broken("a worker that reads is not cut off", self.name)
            return False
        elif isinstance(effect, ShutdownNotice):
            return not effect.not_leader
        return True

    def _joined(self, session: Session, joined: Joined) -> None:
        self._is_joined = True
        # Fewer may be granted at first; the others come when there are some.
        self._most = max(joined.slots, self._asked, self.slots)
        if self.slots != self._asked:
            # Changed while nobody listened: the server still goes by what was asked for.
            self._send(lambda session: session.set_slots(self.slots))
        self._ttl = joined.lease_ttl
        self._token = joined.token
        self._last_heard = self.world.timeline.now
        adopted = dict.fromkeys(joined.adopted)
        self._check_resume(adopted)
        for lease in [lease for lease in self._running if lease not in adopted]:
            self._stop(lease)
        waiting, self._unheard = self._unheard, {}
        for number, reports in waiting.items():
            kept = [report for report in reports if report.lease in adopted]
            if kept and number > joined.reports_seen:
                self._unheard[number] = kept
                self._send(partial(_report, number, kept))
        self._reports = max(self._reports, joined.reports_seen)
        self._arm_beat(session)

    def _check_resume(self, adopted: Container[int]) -> None:
        """A handler that goes on is either adopted, or the server does not hold it any more."""
        process = self._process
        if process is None or process.driver is None or self.protocol < 4:
            return
        for number, session in process.driver._engine._state.sessions.items():
            if session.connected or session.name != self.name:
                continue
            for lease in session.leases:
                if lease in self._running and lease not in adopted:
                    text = f"{self.name} runs lease {lease}, session {number} keeps it"
                    self.world.known.broken("a short break costs no attempt", text)

    def _stop(self, lease: int) -> None:
        """A handler that nobody wants any more ends."""
        handler = self._running.pop(lease)
        if handler.end is not None:
            handler.end.cancel()

    # --- leases ----------------------------------------------------------------------------------

    def _receive(self, lease: Lease) -> None:
        world = self.world
        world.oracle.handlers.given(self.name, lease)
        if self.protocol >= 4 and lease.lease <= self._last_lease:
            epoch = lease.lease >> 40
            if epoch == self._last_lease >> 40:
                world.known.broken("leases rise", f"{lease.lease} after {self._last_lease}")
        self._last_lease = lease.lease
        if self.kinds and lease.spec.kind not in self.kinds:
            world.known.broken("workers get what they serve", f"{self.name}: {lease.spec.kind}")
        if not set(lease.spec.labels) <= set(self.labels):
            world.known.broken("workers get what they serve", f"{self.name}: {lease.spec.labels}")
        busy = len(self._running)
        if busy >= self._most:
            world.known.broken(
                "slots are never exceeded", f"{self.name}: {busy} of {self._most} and one more"
            )
        self._run(lease)

    def _run(self, lease: Lease) -> None:
        world, temper = self.world, self.temper
        handler = Handler(lease)
        self._running[lease.lease] = handler
        draw = world.chance.randrange(100)
        if draw < temper.refuses:
            self._end(handler, Nacked(lease.lease, "not now"))
            return
        world.oracle.handlers.ran(self.name, lease)
        length = int(world.chance.random() * SECOND)
        if world.chance.randrange(100) < temper.slow:
            length = int(world.chance.random() * temper.longest)
        timeout = lease.spec.timeout
        if timeout is not None and world.chance.randrange(100) < HANGS:
            length = 3 * timeout + int(world.chance.random() * 40 * SECOND)
        report = self._outcome(lease, draw - temper.refuses)
        handler.end = world.timeline.after(length, lambda: self._end(handler, report))
        self._arm_beat(self._session)
        if lease.parents and world.chance.randrange(100) < READS_PARENTS:
            world.spawn(self._read_parent(lease, world.chance.choice(lease.parents)))

    async def _read_parent(self, lease: Lease, parent: int) -> None:
        """A handler asks for the output of a parent."""
        process, session = self._process, self._session
        if process is None or session is None or process.driver is None:
            return
        try:
            answer = await process.driver.inbox.ask(
                lambda call: GetOutput(call, session.number, lease.lease, parent)
            )
        except Refused:
            return  # too late, or the store is out of reach
        assert isinstance(answer, Result), answer
        self.world.oracle.answers.saw(parent, answer.status, 0)
        if answer.output is not None and not answer.output.startswith(b"%d/" % parent):
            self.world.known.broken("an output is the one that was reported", f"{answer}")

    def _outcome(self, lease: Lease, draw: int) -> Report:
        temper = self.temper
        if draw < temper.fails:
            after = None if draw % 2 else int(self.world.chance.random() * 3 * SECOND)
            return Failed(lease.lease, "broken", retry_after=after)
        draw -= temper.fails
        if draw < temper.breaks:
            return Failed(lease.lease, "hopeless", permanent=True)
        if draw < temper.breaks + temper.cancels:
            return CancelledByWorker(lease.lease)
        return Completed(lease.lease, f"{lease.task_id}/{lease.attempt}".encode(), "text/plain")

    def _end(self, handler: Handler, report: Report) -> None:
        """A handler has ended; its report goes out, or waits until somebody listens."""
        until = self.frozen_until
        if until > self.world.timeline.now:
            handler.end = self.world.timeline.at(until, lambda: self._end(handler, report))
            return
        lease, known = handler.lease, self.world.known
        if self._running.pop(lease.lease, None) is None:
            return
        if handler.aborted:
            report = CancelledByWorker(lease.lease)
        elif isinstance(report, Completed):
            known.succeeded[lease.task_id, lease.attempt] = None
        elif isinstance(report, CancelledByWorker):
            known.cancelled[lease.task_id] = None
        elif isinstance(report, Failed) and report.permanent:
            known.failed_for_good[lease.task_id] = None
        number = 0
        if self.protocol >= 4:
            self._reports += 1
            number = self._reports
            self._unheard[number] = [report]
        self._send(lambda session: session.reported(number, [report]))

    def _abort(self, lease: int) -> None:
        """The server wants a handler to stop; it takes its time."""
        handler = self._running.get(lease)
        if handler is None or handler.aborted:
            return
        handler.aborted = True
        if handler.end is not None:
            handler.end.cancel()
        if self.protocol < 4:
            del self._running[lease]
            return
        delay = int(self.world.chance.random() * 2 * SECOND)
        report = CancelledByWorker(lease)
        handler.end = self.world.timeline.after(delay, lambda: self._end(handler, report))

    # --- heartbeats ------------------------------------------------------------------------------

    def _arm_beat(self, session: Session | None) -> None:
        if self._beat is None and session is not None and (self._running or self._unheard):
            self._beat = self.world.timeline.after(self._ttl // 3, lambda: self._say_beat(session))

    def _say_beat(self, session: Session) -> None:
        self._beat = None
        if self._session is not session:
            return
        if self.frozen_until > self.world.timeline.now:
            self._beat = self.world.timeline.at(self.frozen_until, lambda: self._say_beat(session))
            return
        named = list(self._running)
        progress: tuple[tuple[int, Progress], ...] = ()
        if named and self.world.chance.random() < 0.3:
            progress = ((named[0], Progress(b"on", 0.5)),)
        self._beats += 1
        number, last = (self._beats, self._last_lease) if self.protocol >= 4 else (0, 0)
        self._send(lambda s: s.beat(HeartbeatsRead(s.number, named, progress, number, last)))
        self._arm_beat(session)


def _report(number: int, reports: list[Report], session: Session) -> None:
    session.reported(number, list(reports))
