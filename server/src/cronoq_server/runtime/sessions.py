"""Which workers are connected, and what waits to be sent to each.

Rules a change must keep:

1. A session number is used once in a leadership; a worker's name identifies nothing.
2. What one release of effects has for a session is handed over together, with one wake-up.
3. The outbound queue holds at most one lease and one abort per slot. A worker that stops reading
   while it is full is cut off: its stream ends, its leases are resumed or expire.
4. Leases that cannot be handed over go back to the engine (`Unsent`), before it learns that the
   session is lost, so that they are offered again within the same attempt.
5. A lease that ends while it is queued goes back likewise, with its abort: the worker hears of
   neither. So what is queued are leases and aborts of as many attempts as there are slots.

The frames on the wire are the transport's business, and so is noticing that a stream broke.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Sequence
from typing import TypeAlias

import msgspec

from cronoq_server.engine.effects import (
    CancelAttempt,
    Dispatch,
    Dropped,
    Effect,
    Joined,
    NotJoined,
    Receipt,
)
from cronoq_server.engine.events import (
    AttemptsReported,
    HeartbeatsRead,
    Report,
    SlotsSet,
    Unsent,
    WorkerJoined,
    WorkerLost,
)
from cronoq_server.engine.model import Refusal
from cronoq_server.runtime.inbox import Inbox
from cronoq_server.runtime.refusals import Refused

log = logging.getLogger(__name__)

TOKEN_BYTES = 16


class ShutdownNotice(msgspec.Struct, frozen=True):
    """The server tells its workers that it ends, or that it leads no more.

    Attributes:
        reason: For people.
        not_leader: Whether the stream ends now; otherwise running attempts go on.
    """

    reason: str
    not_leader: bool


Outbound: TypeAlias = Effect | ShutdownNotice


class Session:
    """The server's side of one worker stream.

    Attributes:
        number: What the engine calls it.
        token: With it the worker can resume the session later.
        on_cut_off: Called when the worker is cut off, since the stream's writer may be stuck.
    """

    __slots__ = (
        "_aborts_queued",
        "_beat_seen",
        "_inbox",
        "_joined",
        "_leases_queued",
        "_over",
        "_queue",
        "_receipt",
        "_reports_durable",
        "_sessions",
        "_slots",
        "_waiter",
        "number",
        "on_cut_off",
        "token",
    )

    def __init__(
        self, sessions: Sessions, inbox: Inbox, number: int, token: bytes, slots: int
    ) -> None:
        self.number = number
        self.token = token
        self.on_cut_off: Callable[[], object] | None = None
        self._sessions = sessions
        self._inbox = inbox
        self._queue: list[Outbound] = []
        self._receipt: Receipt | None = None
        self._joined = False
        self._reports_durable = self._beat_seen = 0
        self._leases_queued = 0
        self._aborts_queued = 0
        self._slots = slots
        self._over = False
        self._waiter: asyncio.Future[None] | None = None

    async def outbound(self) -> list[Outbound]:
        """Waits until there is something to send and takes all of it, in order.

        The stream ends after `Dropped`, `NotJoined` or a `ShutdownNotice` with `not_leader`.
        Called by one task only.
        """
        while not self._queue and self._receipt is None:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        taken, self._queue = self._queue, []
        if self._receipt is not None:
            taken.append(self._receipt)
            self._receipt = None
        self._leases_queued = self._aborts_queued = 0
        return taken

    async def room(self) -> None:
        """Returns once reports are taken again; nothing is read from the stream before."""
        await self._inbox.room()

    def reported(self, number: int, reports: list[Report]) -> None:
        """Passes on the reports of one message; `number` is 0 for version 3."""
        if not self._over:
            self._inbox.tell(AttemptsReported(self.number, reports, number))

    def beat(self, beat: HeartbeatsRead) -> None:
        """Passes on a heartbeat."""
        if not self._over:
            self._inbox.tell(beat)

    def set_slots(self, slots: int) -> None:
        """Passes on how many slots the worker offers; 0 = it drains."""
        if not self._over:
            self._slots = max(self._slots, slots)
            self._inbox.tell(SlotsSet(self.number, slots))

    def lost(self, clean: bool, unsent: Sequence[int] = ()) -> None:
        """Says that the stream has ended; told once, whoever notices first.

        Args:
            clean: Whether the worker closed it in order, or cannot resume it.
            unsent: Leases taken from `outbound` that were not written.
        """
        if self._over:
            return
        self._over = True
        self._sessions.remove(self)
        leases = [lease for effect in self._queue for lease in leases_of(effect)]
        leases += unsent
        self._queue.clear()
        if leases:
            self._inbox.tell(Unsent(self.number, tuple(leases)))
        self._inbox.tell(WorkerLost(self.number, clean))

    def deliver(self, effect: Outbound) -> None:
        """Queues something to send, or cuts the worker off if it does not read."""
        kind = type(effect)
        if kind is Dispatch:
            self._leases_queued += len(effect.leases)  # type: ignore[union-attr]
            if self._leases_queued > self._slots:
                self._cut_off(effect)
                return
        elif kind is CancelAttempt:
            effect = self._cancel_out(effect)  # type: ignore[arg-type]
            if not effect.aborts:
                return
            self._aborts_queued += len(effect.aborts)
            if self._aborts_queued > self._slots:
                self._cut_off(effect)
                return
        elif kind is Joined:
            # A worker that drains may go on with more leases than it offers slots.
            self._slots = max(self._slots, len(effect.adopted))  # type: ignore[union-attr]
            self._reports_durable = effect.reports_seen  # type: ignore[union-attr]
            self._joined = True
        if kind is Receipt:
            self._reports_durable = effect.reports  # type: ignore[union-attr]
            self._beat_seen = max(self._beat_seen, effect.heartbeats)  # type: ignore[union-attr]
            self._receipt = Receipt(self.number, self._reports_durable, self._beat_seen)
        else:
            self._queue.append(effect)
        self._wake()

    def deliver_early(self, receipt: Receipt) -> None:
        """Sends the beat that a receipt names now, and of reports only what is durable already."""
        if self._joined and receipt.heartbeats > self._beat_seen:
            self._beat_seen = receipt.heartbeats
            self._receipt = Receipt(self.number, self._reports_durable, self._beat_seen)
            self._wake()

    def _cancel_out(self, effect: CancelAttempt) -> CancelAttempt:
        """Takes the leases that end before they left out of the queue; returns the other aborts."""
        queued = {lease for each in self._queue for lease in leases_of(each)}
        unsent = tuple(lease for lease, _ in effect.aborts if lease in queued)
        if not unsent:
            return effect
        queue: list[Outbound] = []
        for each in self._queue:
            if isinstance(each, Dispatch):
                left = [lease for lease in each.leases if lease.lease not in unsent]
                if left:
                    queue.append(Dispatch(each.session, left))
            else:
                queue.append(each)
        self._queue = queue
        self._leases_queued -= len(unsent)
        self._inbox.tell(Unsent(self.number, unsent))
        aborts = tuple(abort for abort in effect.aborts if abort[0] not in unsent)
        return CancelAttempt(effect.session, aborts)

    def end(self, *last: Outbound) -> None:
        """Sends these and nothing after them; the engine hears no more of this session."""
        self._over = True
        self._sessions.remove(self)
        self._queue += last
        self._wake()

    def _cut_off(self, effect: Outbound) -> None:
        log.warning(
            "a worker was cut off: it does not read what it is sent",
            extra={"action": "worker_cut_off", "session": self.number},
        )
        self.lost(clean=False, unsent=leases_of(effect))
        self._queue.append(Dropped(self.number))
        self._receipt = None
        self._wake()
        if self.on_cut_off is not None:
            self.on_cut_off()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def leases_of(effect: Outbound) -> list[int]:
    """The leases that an effect hands over."""
    if isinstance(effect, Dispatch):
        return [lease.lease for lease in effect.leases]
    return []


class Sessions:
    """All sessions of one leadership."""

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox
        self._open: dict[int, Session] = {}
        self._number = 0
        self._notice: ShutdownNotice | None = None
        self._refusal: Refusal | None = None

    def __len__(self) -> int:
        """How many sessions are open."""
        return len(self._open)

    def open(self, joined: Callable[[int, bytes], WorkerJoined]) -> Session:
        """Begins a session; the engine's `Joined` or `NotJoined` comes by `outbound`.

        Args:
            joined: Makes the event of the number and the token it is given.

        Raises:
            Refused: This leadership is over or about to end.
        """
        if self._refusal is not None:
            raise Refused(self._refusal)
        self._number += 1
        token = secrets.token_bytes(TOKEN_BYTES)
        event = joined(self._number, token)
        # Fewer may be granted at first, but as many as were asked for may come later.
        session = Session(self, self._inbox, self._number, token, event.slots)
        self._open[session.number] = session
        self._inbox.tell(event)
        return session

    def deliver(self, number: int, effect: Effect) -> None:
        """Hands a durable effect to its session; leases for one that is gone come back."""
        session = self._open.get(number)
        if session is None:
            leases = leases_of(effect)
            if leases:
                self._inbox.tell(Unsent(number, tuple(leases)))
            return
        kind = type(effect)
        if kind is NotJoined or kind is Dropped:
            session.end(effect)
            return
        session.deliver(effect)
        if kind is Joined and self._notice is not None:
            session.deliver(self._notice)

    def deliver_early(self, receipt: Receipt) -> None:
        """Answers a heartbeat ahead of the store: a sign of life writes nothing."""
        session = self._open.get(receipt.session)
        if session is not None:
            session.deliver_early(receipt)

    def remove(self, session: Session) -> None:
        """Takes a session off the list."""
        self._open.pop(session.number, None)

    def shutdown(self, reason: str, not_leader: bool) -> None:
        """Tells every worker, also those to come, that the server ends.

        With `not_leader` every stream ends after the notice.
        """
        self._notice = notice = ShutdownNotice(reason, not_leader)
        for session in list(self._open.values()):
            if not_leader:
                session.end(notice, Dropped(session.number))
            else:
                session.deliver(notice)

    def close(self, refusal: Refusal) -> None:
        """Opens no session any more."""
        self._refusal = refusal
