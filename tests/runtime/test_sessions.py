"""Sessions: what is queued for a worker, and what becomes of it when the worker is gone."""

from __future__ import annotations

import asyncio

import pytest

from cronoq_server.engine.effects import (
    CancelAttempt,
    Dispatch,
    Dropped,
    Joined,
    Lease,
    NotJoined,
    Receipt,
)
from cronoq_server.engine.events import (
    AttemptsReported,
    CancelledByWorker,
    HeartbeatsRead,
    SlotsSet,
    Unsent,
    WorkerJoined,
    WorkerLost,
)
from cronoq_server.engine.model import ErrorReason, Refusal
from cronoq_server.runtime import STOPPING, Inbox, Refused, Session, Sessions, ShutdownNotice
from cronoq_server.runtime.loading import Loader
from cronoq_server.stores.memory import MemoryDisk, MemoryStore
from cronoq_server.testing.builders import task, worker
from cronoq_server.testing.faults import ManualClock, settle
from tests.runtime.rig import done


class Desk:
    """Sessions, the inbox they talk to, and one session that has joined."""

    def __init__(self, slots: int = 2) -> None:
        self.inbox = Inbox(ManualClock(), Loader(MemoryStore(MemoryDisk())))
        self.sessions = Sessions(self.inbox)
        self.session = self.open(slots)
        self.inbox.drain(100)

    def open(self, slots: int = 2) -> Session:
        """One more session, which the engine has taken."""
        session = self.sessions.open(lambda number, token: worker(number, token, slots=slots))
        self.sessions.deliver(session.number, Joined(session.number, slots, 30, session.token))
        return session

    def dispatch(self, *leases: int) -> Dispatch:
        """Leases for the session, on their way out."""
        effect = Dispatch(self.session.number, [Lease(n, n, 1, task(), 30) for n in leases])
        self.sessions.deliver(self.session.number, effect)
        return effect

    def abort(self, *leases: int) -> CancelAttempt:
        """Aborts for the session, on their way out."""
        effect = CancelAttempt(self.session.number, tuple((n, "") for n in leases))
        self.sessions.deliver(self.session.number, effect)
        return effect


async def joined(desk: Desk) -> None:
    """Takes the first message of the desk's session."""
    (first,) = await done(desk.session.outbound())
    assert isinstance(first, Joined)


async def test_every_session_has_its_own_number_and_token() -> None:
    """128 bits that nobody can guess."""
    desk = Desk()
    other = desk.open()
    (event,) = desk.inbox.drain(10)
    assert isinstance(event, WorkerJoined)
    assert (event.session, event.token) == (other.number, other.token)
    assert other.number != desk.session.number
    assert other.token != desk.session.token
    assert len(other.token) == 16


async def test_what_is_released_together_is_read_together() -> None:
    """In order, with the latest receipt at the end."""
    desk = Desk()
    number = desk.session.number
    await joined(desk)
    reading = asyncio.create_task(desk.session.outbound())
    await settle()
    desk.sessions.deliver(number, Receipt(number, 1, 1))
    first = desk.dispatch(1)
    second = desk.abort(9)
    desk.sessions.deliver(number, Receipt(number, 2, 1))
    assert await done(reading) == [first, second, Receipt(number, 2, 1)]


async def test_what_a_worker_says_reaches_the_engine_in_order() -> None:
    """Reports, heartbeats and slots, under its session's number."""
    desk = Desk()
    number = desk.session.number
    reports = [CancelledByWorker(1)]
    beat = HeartbeatsRead(number, [1], number=4, last_lease=9)
    desk.session.reported(7, [*reports])
    desk.session.beat(beat)
    desk.session.set_slots(5)
    assert desk.inbox.drain(10) == [
        AttemptsReported(number, [*reports], 7),
        beat,
        SlotsSet(number, 5),
    ]


@pytest.mark.parametrize("clean", [True, False])
async def test_leases_still_queued_come_back_before_the_loss(clean: bool) -> None:
    """So that they are offered again within the same attempt."""
    desk = Desk(slots=3)
    desk.dispatch(1, 2)
    desk.dispatch(3)
    desk.session.lost(clean)
    number = desk.session.number
    assert desk.inbox.drain(10) == [Unsent(number, (1, 2, 3)), WorkerLost(number, clean)]


async def test_leases_taken_but_not_written_come_back_as_well() -> None:
    """The transport says which."""
    desk = Desk(slots=3)
    desk.dispatch(1, 2)
    await done(desk.session.outbound())
    desk.dispatch(3)
    desk.session.lost(clean=False, unsent=[1, 2])
    number = desk.session.number
    assert desk.inbox.drain(10) == [Unsent(number, (3, 1, 2)), WorkerLost(number, False)]


async def test_a_session_is_lost_once() -> None:
    """Whoever notices first; later words of it are not heard."""
    desk = Desk()
    desk.session.lost(clean=True)
    desk.session.lost(clean=False)
    desk.session.reported(1, [CancelledByWorker(1)])
    desk.session.set_slots(1)
    assert desk.inbox.drain(10) == [WorkerLost(desk.session.number, True)]
    assert len(desk.sessions) == 0


async def test_effects_for_a_lost_session_are_dropped_but_leases_come_back() -> None:
    """Nobody is there to be told anything."""
    desk = Desk()
    desk.session.lost(clean=False)
    desk.inbox.drain(10)
    desk.abort(1)
    desk.dispatch(5, 6)
    assert desk.inbox.drain(10) == [Unsent(desk.session.number, (5, 6))]


class TestCutOff:
    """A worker that does not read."""

    async def test_more_leases_than_slots_cut_it_off(self) -> None:
        """All of them come back, its stream ends."""
        desk = Desk(slots=2)
        await joined(desk)
        desk.dispatch(1, 2)
        desk.dispatch(3)
        number = desk.session.number
        assert desk.inbox.drain(10) == [Unsent(number, (1, 2, 3)), WorkerLost(number, False)]
        assert await done(desk.session.outbound()) == [Dropped(number)]

    async def test_more_aborts_than_slots_cut_it_off(self) -> None:
        """One abort per slot may wait."""
        desk = Desk(slots=2)
        await joined(desk)
        desk.abort(1)
        desk.abort(2)
        desk.abort(3)
        assert desk.inbox.drain(10) == [WorkerLost(desk.session.number, False)]
        assert await done(desk.session.outbound()) == [Dropped(desk.session.number)]

    async def test_leases_that_end_in_the_queue_are_not_sent(self) -> None:
        """Neither they nor their aborts: the engine gets them back, and their slots."""
        desk = Desk(slots=2)
        await joined(desk)
        desk.dispatch(1, 2)
        other = desk.abort(7)
        desk.abort(1)
        number = desk.session.number
        assert desk.inbox.drain(10) == [Unsent(number, (1,))]
        (left, also) = await done(desk.session.outbound())
        assert isinstance(left, Dispatch)
        assert [lease.lease for lease in left.leases] == [2]
        assert also == other

    async def test_any_number_of_leases_may_end_in_the_queue(self) -> None:
        """While a commit takes its time, a slot may be given away and taken back often."""
        desk = Desk(slots=1)
        await joined(desk)
        before = desk.abort(1)
        for lease in range(2, 20):
            desk.dispatch(lease)
            desk.abort(lease)
        last = desk.dispatch(20)
        assert await done(desk.session.outbound()) == [before, last]
        assert len(desk.sessions) == 1

    async def test_a_worker_that_reads_is_not(self) -> None:
        """The bound is on what waits."""
        desk = Desk(slots=2)
        for number in range(10):
            desk.dispatch(number, number + 100)
            await done(desk.session.outbound())
            desk.abort(number)
        assert desk.inbox.drain(10) == []

    async def test_a_worker_with_more_slots_may_have_more_waiting(self) -> None:
        """Slots that were asked for later count."""
        desk = Desk(slots=1)
        desk.session.set_slots(3)
        desk.dispatch(1, 2, 3)
        assert len(desk.sessions) == 1


class TestEnds:
    """How the server's side ends."""

    async def test_a_refused_registration_ends_the_stream(self) -> None:
        """The worker is told why, and the engine hears no more."""
        desk = Desk()
        session = desk.sessions.open(worker)
        desk.inbox.drain(10)
        refused = NotJoined(session.number, Refusal(ErrorReason.POOL_UNKNOWN, "no such pool"))
        desk.sessions.deliver(session.number, refused)
        assert await done(session.outbound()) == [refused]
        session.lost(clean=True)
        assert desk.inbox.drain(10) == []

    async def test_a_session_replaced_by_its_resume_ends(self) -> None:
        """What was queued goes out before, and no loss is told."""
        desk = Desk()
        await joined(desk)
        dropped = Dropped(desk.session.number)
        desk.sessions.deliver(desk.session.number, dropped)
        assert await done(desk.session.outbound()) == [dropped]
        desk.session.lost(clean=False)
        assert desk.inbox.drain(10) == []

    async def test_a_shutdown_is_told_to_all_also_to_those_that_come_later(self) -> None:
        """Their streams go on."""
        desk = Desk()
        desk.sessions.shutdown("maintenance", not_leader=False)
        notice = ShutdownNotice("maintenance", False)
        assert (await done(desk.session.outbound()))[1:] == [notice]
        later = desk.open()
        assert (await done(later.outbound()))[1:] == [notice]
        desk.dispatch(1)
        assert len(await done(desk.session.outbound())) == 1

    async def test_when_the_server_leads_no_more_streams_end(self) -> None:
        """After the notice comes nothing."""
        desk = Desk()
        await joined(desk)
        desk.sessions.shutdown("gone", not_leader=True)
        assert await done(desk.session.outbound()) == [
            ShutdownNotice("gone", True),
            Dropped(desk.session.number),
        ]
        assert len(desk.sessions) == 0

    async def test_after_the_end_nobody_joins(self) -> None:
        """The refusal says what to do."""
        desk = Desk()
        desk.sessions.close(STOPPING)
        with pytest.raises(Refused) as caught:
            desk.sessions.open(worker)
        assert caught.value.refusal == STOPPING
