"""The driver: nothing is seen before it is durable, in order, whatever the store does."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Iterable
from typing import get_args

import pytest

from cronoq_server.engine.effects import (
    Admitted,
    Dispatch,
    Effect,
    Lease,
    Receipt,
    Scaled,
    Watching,
)
from cronoq_server.engine.events import (
    AttemptsReported,
    ClockSet,
    Completed,
    DispatchRested,
    Forget,
    HeartbeatsRead,
    Released,
    Submit,
    Unsent,
    Watch,
    WorkerLost,
)
from cronoq_server.engine.model import ErrorReason, Now
from cronoq_server.engine.timers import NEVER
from cronoq_server.runtime import Ending, Inbox, Refused, ShutdownNotice, WatchFilter, WatchStream
from cronoq_server.runtime.outbox import Outbox
from cronoq_server.stores.base import Batch, Leadership
from cronoq_server.stores.memory import MemoryDisk, MemoryStore
from cronoq_server.testing.faults import Fault, FaultyStore, ManualClock
from tests.runtime.rig import Rig, ScriptedEngine, done, scripted, seconds, settle, task


def reason(error: BaseException | None) -> ErrorReason:
    """Why something was refused."""
    assert isinstance(error, Refused), error
    return error.refusal.reason


async def refusal(work: asyncio.Task[object]) -> ErrorReason:
    """Why this was refused, without time passing."""
    await settle()
    assert work.done(), "this should have been refused by now"
    return reason(work.exception())


def is_ready(rig: Rig) -> bool:
    """Whether the driver says so now."""
    return rig.driver.ready


def lease(number: int) -> Lease:
    """A lease of some task."""
    return Lease(number, 1, 1, task(), seconds(30))


class TestDurability:
    """Effects come after their commit, in the order of their steps."""

    async def test_no_answer_before_its_commit(self) -> None:
        """While the commit is on its way the caller waits."""
        async with scripted() as rig:
            rig.store.hold()
            call = rig.submit()
            await settle()
            assert not call.done()
            rig.store.let_go()
            assert await done(call) == Admitted([1])

    async def test_no_answer_before_the_store_has_confirmed(self) -> None:
        """Written but not confirmed is not enough."""
        async with scripted() as rig:
            rig.store.hold_answers()
            call = rig.submit()
            await settle()
            assert rig.store.committed == [1]
            assert not call.done()
            rig.store.let_go()
            assert await done(call) == Admitted([1])

    async def test_no_lease_before_its_commit(self) -> None:
        """A worker is handed nothing that a crash could unsubmit."""
        async with scripted() as rig:
            session = rig.join()
            await settle()
            rig.store.hold()
            rig.scripted.extra = [Dispatch(session.number, [])]
            call = rig.submit()
            outbound = asyncio.create_task(session.outbound())
            await settle()
            assert not outbound.done()
            rig.store.let_go()
            assert await done(outbound) == [Dispatch(session.number, [])]
            await done(call)

    async def test_what_is_made_during_a_commit_forms_one_batch(self) -> None:
        """Three steps, one more commit; and it holds all of them."""
        async with scripted() as rig:
            rig.store.hold()
            calls = []
            for _ in range(4):
                calls.append(rig.submit())
                await settle()
            assert len(rig.scripted.steps) == 4
            assert rig.store.attempts == [1]
            rig.store.let_go()
            await settle()
            assert rig.store.attempts == [1, 2]
            assert [call.result() for call in calls] == [Admitted([n]) for n in (1, 2, 3, 4)]

    async def test_steps_are_released_in_order(self) -> None:
        """The first batch's answers come before the second's."""
        async with scripted() as rig:
            order: list[int] = []
            rig.store.hold()
            for number in range(3):
                call = rig.submit()
                call.add_done_callback(functools.partial(_noted, order, number))
                await settle()
            rig.store.let_go()
            await settle()
            assert order == [0, 1, 2]

    async def test_what_arrives_together_enters_together(self) -> None:
        """Calls of one turn make one step and one commit."""
        async with scripted() as rig:
            calls = [rig.submit() for _ in range(50)]
            await settle()
            assert all(call.done() for call in calls)
            assert len(rig.scripted.steps) == 1
            assert rig.store.attempts == [1]

    async def test_what_a_step_left_behind_enters_the_next_at_once(self) -> None:
        """Though the first one wrote nothing that the loop would be woken for."""
        async with scripted(step_tasks_max=2) as rig:
            session = rig.join()
            for number in range(1, 4):
                session.reported(number, [Completed(1, b"", ""), Completed(2, b"", "")])
            await settle()
            assert len(rig.scripted.seen(AttemptsReported)) == 3
            assert rig.store.attempts == []

    async def test_a_step_takes_so_many_tasks_at_most(self) -> None:
        """The rest follows in the next one; a larger call comes alone."""
        async with scripted(step_tasks_max=10) as rig:
            calls = [rig.submit(*[task()] * size) for size in (4, 4, 4, 25, 1)]
            await settle()
            assert all(call.done() for call in calls)
            sizes = [[len(e.specs) for e in events] for events in _submits(rig)]
            assert sizes == [[4, 4], [4], [25], [1]]


def _noted(order: list[int], number: int, _call: object) -> None:
    order.append(number)


def _submits(rig: Rig) -> list[list[Submit]]:
    found = [[e for e in events if isinstance(e, Submit)] for events in rig.scripted.steps]
    return [events for events in found if events]


class TestReads:
    """Reads are answered by whoever leads while they run."""

    async def test_a_read_ends_with_a_check_and_writes_nothing(self) -> None:
        """No batch, one question to the leader row."""
        async with scripted() as rig:
            call = rig.read()
            await done(call)
            assert (rig.store.checks, rig.store.attempts) == (1, [])

    async def test_a_check_covers_only_reads_that_came_before_it(self) -> None:
        """A read that arrives during a check waits for the next one."""
        async with scripted() as rig:
            rig.store.hold_answers()
            first = rig.read()
            await settle()
            second = rig.read()
            await settle()
            assert rig.store.checks == 1
            rig.store.let_go()
            await done(first)
            await done(second)
            assert rig.store.checks == 2

    async def test_a_read_during_a_commit_waits_for_more_than_that_commit(self) -> None:
        """The commit began before it arrived, and proves nothing for it."""
        async with scripted() as rig:
            rig.store.hold_answers()
            write = rig.submit()
            await settle()
            read = rig.read()
            await settle()
            rig.store.let_go()
            await done(write)
            await done(read)
            assert (rig.store.attempts, rig.store.checks) == ([1], 1)

    async def test_a_read_together_with_a_write_needs_no_check(self) -> None:
        """The commit of their step is proof enough."""
        async with scripted() as rig:
            read, write = rig.read(), rig.submit()
            await done(read)
            await done(write)
            assert (rig.store.attempts, rig.store.checks) == ([1], 0)

    async def test_a_read_of_a_leader_that_was_replaced_is_refused(self) -> None:
        """Its check finds out, and nothing is answered."""
        async with scripted() as rig:
            rig.store.add_faults(Fault.FENCED)
            assert await refusal(rig.read()) is ErrorReason.STORE_UNAVAILABLE
            assert await done(rig.running) is Ending.FENCED


class TestFailingStore:
    """Unavailable is tried again, with the same batch."""

    @pytest.mark.parametrize("fault", [Fault.OUTAGE, Fault.LOST_ACK])
    async def test_the_same_batch_is_tried_again(self, fault: Fault) -> None:
        """Lost or not: it is written once, and answered once."""
        async with scripted([fault]) as rig:
            call = rig.submit()
            await settle()
            assert not call.done()
            await rig.clock.advance(seconds(0.1))
            assert await done(call) == Admitted([1])
            assert (rig.store.attempts, rig.store.committed) == ([1, 1], [1])
            assert rig.disk.live_ids() == [1]

    async def test_a_batch_keeps_its_content_while_it_is_tried(self) -> None:
        """What is made meanwhile goes into the next one: the first may have happened."""
        async with scripted([Fault.LOST_ACK]) as rig:
            first = rig.submit()
            await settle()
            second = rig.submit()
            await rig.clock.advance(seconds(0.1))
            assert (await done(first), await done(second)) == (Admitted([1]), Admitted([2]))
            assert rig.store.attempts == [1, 1, 2]
            assert rig.disk.live_ids() == [1, 2]

    async def test_the_wait_between_attempts_grows_up_to_two_seconds(self) -> None:
        """0.1 s, doubled each time."""
        async with scripted([Fault.OUTAGE] * 8) as rig:
            call = rig.submit()
            await settle()
            waits = []
            while not call.done():
                before, since = len(rig.store.attempts), rig.clock.now().mono
                while len(rig.store.attempts) == before:
                    await rig.clock.advance(seconds(0.05))
                waits.append((rig.clock.now().mono - since) / seconds(1))
            assert waits == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 2, 2, 2])

    async def test_a_commit_over_its_time_counts_as_not_confirmed(self) -> None:
        """It is given up and tried again."""
        async with scripted(commit_timeout=seconds(3)) as rig:
            rig.store.hold()
            call = rig.submit()
            await rig.clock.advance(seconds(2.9))
            assert rig.store.attempts == [1]
            await rig.clock.advance(seconds(0.3))
            assert rig.store.attempts == [1, 1]
            call.cancel()

    async def test_a_retry_waits_until_the_attempt_before_has_ended(self) -> None:
        """An attempt that can't be broken off at once is waited for."""
        disk = MemoryDisk()
        store = _Stubborn(MemoryStore(disk))
        rig = Rig(ManualClock(), disk, store)
        await rig.lead(lambda _e, _h: ScriptedEngine(), commit_timeout=seconds(3))
        call = rig.submit()
        await rig.clock.advance(seconds(60))
        assert (store.begun, store.ended) == (1, 0)
        store.end.set()
        await rig.clock.advance(seconds(1))
        assert (store.begun, store.ended) == (2, 2)
        assert rig.disk.live_ids() == [1]
        assert await refusal(call) is ErrorReason.STORE_UNAVAILABLE
        await rig.stop()

    @pytest.mark.parametrize("seed", range(6))
    async def test_whatever_the_store_does_every_call_is_answered_once(self, seed: int) -> None:
        """Outages and lost answers by chance: ids are given out once, and all are durable."""
        disk = MemoryDisk()
        store = FaultyStore(MemoryStore(disk), seed=seed, rate=0.5)
        rig = Rig(ManualClock(), disk, store)
        await rig.lead(lambda _e, _h: ScriptedEngine())
        calls = []
        for size in (1, 3, 2, 5, 1, 4):
            calls.append(rig.submit(*[task()] * size))
            await rig.clock.advance(seconds(0.05))
        await rig.clock.advance(seconds(25))
        ids = [i for call in calls for i in (await done(call)).ids]
        assert ids == disk.live_ids() == list(range(1, 17))
        await rig.stop()


class _Stubborn(FaultyStore):
    """Its first commit cannot be broken off before `end` is set."""

    def __init__(self, inner: MemoryStore) -> None:
        super().__init__(inner)
        self.begun = self.ended = 0
        self.end = asyncio.Event()

    async def commit(self, leadership: Leadership, batch: Batch) -> None:
        self.begun += 1
        waiting = asyncio.ensure_future(self.end.wait())
        try:
            await asyncio.shield(waiting)
        except asyncio.CancelledError:
            await waiting
            raise
        finally:
            self.ended += 1
        await super().commit(leadership, batch)


class TestLateStore:
    """A store that is late for longer than the commit timeout turns callers away."""

    async def test_who_waited_too_long_is_refused(self) -> None:
        """Since their call arrived; the outcome is unknown."""
        async with scripted(commit_timeout=seconds(10)) as rig:
            rig.store.hold()
            early = rig.submit()
            await rig.clock.advance(seconds(6))
            late = rig.submit()
            await rig.clock.advance(seconds(5))
            assert await refusal(early) is ErrorReason.STORE_UNAVAILABLE
            assert not late.done()
            rig.store.let_go()
            await rig.clock.advance(seconds(2))
            assert await done(late) == Admitted([2])

    async def test_new_calls_are_refused_at_once_reads_too(self) -> None:
        """Until the batch is through; then calls are taken again."""
        async with scripted(commit_timeout=seconds(10)) as rig:
            rig.store.hold()
            first = rig.submit()
            await rig.clock.advance(seconds(11))
            assert not is_ready(rig)
            assert await refusal(rig.submit()) is ErrorReason.STORE_UNAVAILABLE
            assert await refusal(rig.read()) is ErrorReason.STORE_UNAVAILABLE
            rig.store.let_go()
            await rig.clock.advance(seconds(2))
            assert is_ready(rig)
            await done(rig.read())
            await refusal(first)

    async def test_dispatch_rests_meanwhile(self) -> None:
        """The engine is told when the store is late, and when it has caught up."""
        async with scripted(commit_timeout=seconds(10)) as rig:
            rig.store.hold()
            call = rig.submit()
            await rig.clock.advance(seconds(9))
            assert rig.scripted.seen(DispatchRested) == []
            await rig.clock.advance(seconds(2))
            assert rig.scripted.seen(DispatchRested) == [DispatchRested(True)]
            rig.store.let_go()
            await rig.clock.advance(seconds(2))
            assert rig.scripted.seen(DispatchRested)[1:] == [DispatchRested(False)]
            await refusal(call)

    async def test_reads_alone_find_out_that_the_store_is_late(self) -> None:
        """A check that gets no answer counts like a commit."""
        async with scripted(commit_timeout=seconds(10)) as rig:
            rig.store.hold()
            call = rig.read()
            await rig.clock.advance(seconds(11))
            assert await refusal(call) is ErrorReason.STORE_UNAVAILABLE
            assert not is_ready(rig)

    async def test_a_call_that_waits_for_reasons_of_its_own_is_left_alone(self) -> None:
        """A parked submit is not the store's fault."""
        async with scripted(commit_timeout=seconds(10)) as rig:
            rig.scripted.parked = True
            parked = rig.submit()
            await settle()
            rig.scripted.parked = False
            rig.store.hold()
            stuck = rig.submit()
            await rig.clock.advance(seconds(30))
            assert await refusal(stuck) is ErrorReason.STORE_UNAVAILABLE
            assert not parked.done()

    async def test_workers_reports_are_taken_meanwhile(self) -> None:
        """They enter the engine, and are written when the store is back."""
        async with scripted(commit_timeout=seconds(10)) as rig:
            session = rig.join()
            rig.store.hold()
            call = rig.submit()
            await rig.clock.advance(seconds(20))
            session.reported(1, [Completed(1, b"", "")])
            await settle()
            assert isinstance(rig.scripted.happened[-1], AttemptsReported)
            await refusal(call)


class TestFullBatch:
    """A waiting batch that is full takes nothing more in that would write."""

    async def test_calls_wait_until_there_is_room(self) -> None:
        """They enter when the batch has left."""
        async with scripted(batch_mutations_max=3) as rig:
            rig.store.hold()
            sent = [rig.submit()]
            await settle()
            sent.append(rig.submit(task(), task(), task()))
            await settle()
            sent.append(rig.submit())
            await settle()
            assert len(rig.scripted.steps) == 2
            rig.store.let_go()
            await settle()
            assert [call.result().ids for call in sent] == [[1], [2, 3, 4], [5]]

    async def test_large_payloads_fill_a_batch_as_well(self) -> None:
        """Bytes count like rows."""
        async with scripted(batch_bytes_max=1000) as rig:
            rig.store.hold()
            sent = [rig.submit()]
            await settle()
            sent.append(rig.submit(task(payload=bytes(1000))))
            await settle()
            sent.append(rig.submit())
            await settle()
            assert len(rig.scripted.steps) == 2
            rig.store.let_go()
            for call in sent:
                await done(call)

    async def test_heartbeats_are_taken_all_the_same(self) -> None:
        """They write nothing, and keep leases alive."""
        async with scripted(batch_mutations_max=1) as rig:
            session = rig.join()
            rig.store.hold()
            for _ in range(3):
                rig.submit()
                await settle()
            beat = HeartbeatsRead(session.number, [1])
            session.beat(beat)
            await settle()
            assert rig.scripted.steps[-1] == [beat]
            assert len(rig.scripted.seen(Submit)) == 2

    async def test_not_even_heartbeats_are_taken_without_a_bound(self) -> None:
        """Their receipts wait for the store as well; the engine makes no step meanwhile."""
        async with scripted(unreleased_max=10) as rig:
            session = rig.join()
            rig.store.hold()
            call = rig.submit()
            await settle()
            for number in range(1, 21):
                rig.scripted.extra = [Receipt(session.number, 0, number)]
                session.beat(HeartbeatsRead(session.number, [], number=number))
                await settle()
            assert len(rig.scripted.seen(HeartbeatsRead)) == 10
            rig.store.let_go()
            await done(call)
            await settle()
            assert len(rig.scripted.seen(HeartbeatsRead)) == 20

    async def test_a_heartbeat_never_overtakes_a_report(self) -> None:
        """Or what was reported would look lost, and run twice."""
        async with scripted(batch_mutations_max=1) as rig:
            session = rig.join()
            rig.store.hold()
            for _ in range(2):
                rig.submit()
                await settle()
            session.reported(1, [Completed(1, b"", "")])
            session.beat(HeartbeatsRead(session.number, []))
            await settle()
            assert rig.scripted.seen(HeartbeatsRead) == []
            rig.store.let_go()
            await settle()
            names = [type(event).__name__ for event in rig.scripted.happened]
            assert names.index("AttemptsReported") < names.index("HeartbeatsRead")

    async def test_nothing_wakes_the_engine_while_its_batch_is_full(self) -> None:
        """What is due by the clock would write as well; the loop rests until there is room."""
        async with scripted(batch_mutations_max=1) as rig:
            rig.scripted.wake_at = rig.clock.now()
            rig.store.hold()
            calls = [rig.submit()]
            await settle()
            calls.append(rig.submit())
            await settle()
            steps, now = len(rig.scripted.steps), rig.clock.now()
            assert all(a.at.mono > now.mono and a.at.wall > now.wall for a in rig.clock.alarms)
            await rig.clock.advance(seconds(5))
            assert len(rig.scripted.steps) == steps
            rig.scripted.wake_at = Now(NEVER, NEVER)
            rig.store.let_go()
            for call in calls:
                await done(call)
            assert len(rig.scripted.steps) > steps


class TestSessions:
    """What comes back to the engine about what was sent."""

    async def test_the_engine_learns_when_leases_are_out(self) -> None:
        """Their clocks start with the release, not with the decision."""
        async with scripted() as rig:
            session = rig.join(slots=1)
            await settle()
            rig.scripted.extra = [Dispatch(session.number, [])]
            rig.store.hold()
            rig.submit()
            await settle()
            number = len(rig.scripted.steps)
            assert rig.scripted.seen(Released) == []
            rig.store.let_go()
            await settle()
            assert rig.scripted.seen(Released) == [Released(number)]

    async def test_without_leases_there_is_nothing_to_learn(self) -> None:
        """No step is made just to say that answers are out."""
        async with scripted() as rig:
            await done(rig.submit())
            assert len(rig.scripted.steps) == 1

    async def test_leases_for_a_session_that_is_gone_come_back(self) -> None:
        """It left while they were on their way to the store."""
        async with scripted() as rig:
            session = rig.join(slots=2)
            await settle()
            rig.store.hold()
            rig.scripted.extra = [Dispatch(session.number, [lease(7), lease(8)])]
            rig.submit()
            await settle()
            session.lost(clean=False)
            rig.store.let_go()
            await settle()
            assert rig.scripted.seen(WorkerLost) == [WorkerLost(session.number, False)]
            assert rig.scripted.seen(Unsent) == [Unsent(session.number, (7, 8))]


class TestEndings:
    """How a leadership ends, and what each caller hears."""

    async def test_a_fenced_leader_stops_at_once(self) -> None:
        """Who was in the batch learns that the outcome is unknown; workers are sent away."""
        async with scripted([Fault.FENCED]) as rig:
            session = rig.join()
            call = rig.submit()
            assert await refusal(call) is ErrorReason.STORE_UNAVAILABLE
            assert await done(rig.running) is Ending.FENCED
            notices = await done(session.outbound())
            assert ShutdownNotice("this server leads no more", True) in notices
            assert rig.scripted.closed
            assert not is_ready(rig)

    async def test_whoever_stops_a_leader_that_is_cancelled_twice_sees_its_end(self) -> None:
        """The second one hits it while it lets go of everything."""
        async with scripted() as rig:
            rig.store.hold()
            rig.submit()
            await settle()
            stopping = asyncio.create_task(rig.driver.stop(seconds(1)))
            await settle()
            rig.running.cancel()
            await asyncio.sleep(0)
            rig.running.cancel()
            await rig.clock.advance(seconds(5))
            assert stopping.done()

    async def test_what_never_entered_is_refused_as_not_executed(self) -> None:
        """The caller may go to another server at once."""
        async with scripted(batch_mutations_max=1) as rig:
            rig.store.hold()
            rig.store.add_faults(Fault.FENCED)
            entered = [rig.submit(), rig.submit()]
            await settle()
            filling = rig.submit()
            await settle()
            queued = rig.submit()
            await settle()
            rig.store.let_go()
            assert await refusal(queued) is ErrorReason.NOT_LEADER
            for call in (*entered, filling):
                assert await refusal(call) is ErrorReason.STORE_UNAVAILABLE

    async def test_a_call_after_the_end_is_refused(self) -> None:
        """Nothing was executed, and the caller is told so."""
        async with scripted([Fault.FENCED]) as rig:
            await refusal(rig.submit())
            assert await refusal(rig.submit()) is ErrorReason.NOT_LEADER
            with pytest.raises(Refused) as caught:
                rig.join()
            assert reason(caught.value) is ErrorReason.NOT_LEADER

    async def test_a_rejected_batch_ends_the_leadership_in_order(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        """It is released, and the log names the mutation, never its bytes."""
        caplog.set_level(logging.ERROR)
        async with scripted([Fault.REJECTED]) as rig:
            await refusal(rig.submit(task(payload=b"secret")))
            assert await done(rig.running) is Ending.REJECTED
            assert rig.disk.holder is None
        (record,) = [r for r in caplog.records if vars(r).get("action") == "store_rejected"]
        facts = vars(record)
        assert (facts["mutation"], facts["task_id"], facts["column"]) == (
            "StatusChanged",
            1,
            "message",
        )
        assert "secret" not in record.getMessage()

    @pytest.mark.regression("R36")
    async def test_a_broken_engine_takes_the_leadership_down(self) -> None:
        """Loudly: the error is raised, callers and workers are let go, the term is released."""
        async with scripted() as rig:
            session = rig.join()
            await settle()
            rig.scripted.error = AssertionError("a broken invariant")
            rig.may_break = True
            call = rig.submit()
            await settle()
            assert isinstance(rig.running.exception(), AssertionError)
            assert await refusal(call) is ErrorReason.NOT_LEADER
            assert any(isinstance(e, ShutdownNotice) for e in await done(session.outbound()))
            assert rig.disk.holder is None

    @pytest.mark.regression("R36")
    async def test_a_broken_store_takes_the_leadership_down(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """An error that the contract does not know is nobody's to swallow."""
        async with scripted() as rig:
            monkeypatch.setattr(rig.disk, "write", _broken)
            rig.may_break = True
            call = rig.submit()
            await settle()
            assert isinstance(rig.running.exception(), ZeroDivisionError)
            assert await refusal(call) is ErrorReason.STORE_UNAVAILABLE

    async def test_at_the_end_watchers_are_told(self) -> None:
        """Their streams end, and they may go on elsewhere."""
        async with scripted() as rig:
            opening = asyncio.create_task(rig.driver.watchers.open(WatchFilter()))
            await settle()
            (event,) = rig.scripted.seen(Watch)
            rig.scripted.extra = [Watching(event.call)]
            stream = await _after(rig.submit(), opening)
            reading = asyncio.create_task(_first(stream))
            rig.store.add_faults(Fault.FENCED)
            await refusal(rig.submit())
            assert await refusal(reading) is ErrorReason.NOT_LEADER


def _broken(_batch: Batch, _base: int) -> None:
    raise ZeroDivisionError


async def _after(first: asyncio.Task[object], then: asyncio.Task[WatchStream]) -> WatchStream:
    await done(first)
    return await done(then)


async def _first(stream: WatchStream) -> object:
    return await anext(stream)


class TestLookups:
    """What the engine wants looked up."""

    async def test_what_was_forgotten_meanwhile_is_looked_up_as_well(self) -> None:
        """The answer to the first question was not enough any more."""
        async with scripted() as rig:
            rig.scripted.wanted = [["a"], ["a"], ["a", "b"], ["a", "b"], ["a", "b"]]
            call = rig.submit(task(key="a"))
            await done(call)
            assert rig.store.searches == [("a",), ("a", "b")]
            assert rig.scripted.seen(Submit)[0].found == {}

    async def test_callers_are_not_all_looked_at_in_every_turn(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """There may be very many who wait, and look-ups are under way nearly always."""
        looks = 0
        refuse_older = Inbox.refuse_older

        def counted(
            inbox: Inbox, now: int, patience: int, answered: Iterable[tuple[int, int]]
        ) -> None:
            nonlocal looks
            looks += 1
            refuse_older(inbox, now, patience, answered)

        monkeypatch.setattr(Inbox, "refuse_older", counted)
        async with scripted() as rig:
            rig.scripted.wanted = [["a"]] * 3
            rig.store.hold_searches()
            call = rig.submit(task(key="a"))
            for _ in range(20):
                await done(rig.read())
            assert looks == 0
            await rig.clock.advance(seconds(40))
            assert isinstance(call.exception(), Refused)
            rig.store.let_go()


class TestCallers:
    """Callers that go away leave nothing behind."""

    async def test_the_engine_forgets_a_call_whose_caller_is_gone(self) -> None:
        """A parked submit, for example."""
        async with scripted() as rig:
            rig.scripted.parked = True
            call = rig.submit()
            await settle()
            call.cancel()
            await settle()
            assert len(rig.scripted.seen(Forget)) == 1

    async def test_a_call_that_never_entered_is_dropped(self) -> None:
        """Nobody is there to hear its answer."""
        async with scripted() as rig:
            call = rig.submit()
            await asyncio.sleep(0)
            call.cancel()
            await settle()
            assert rig.scripted.seen(Submit) == []


class TestTime:
    """The engine is woken when it wants to be, by either clock."""

    async def test_by_the_monotonic_clock(self) -> None:
        """A step without events, at that instant and not before."""
        async with scripted() as rig:
            due = rig.clock.now().mono + seconds(5)
            rig.scripted.wake_at = Now(NEVER, due)
            await done(rig.submit())
            rig.scripted.wake_at = Now(NEVER, NEVER)
            await rig.clock.advance(seconds(4.9))
            assert len(rig.scripted.steps) == 1
            await rig.clock.advance(seconds(0.2))
            assert rig.scripted.steps[1:] == [[]]
            assert rig.scripted.nows[-1].mono == due

    async def test_by_the_wall_clock(self) -> None:
        """Also when somebody sets it forward."""
        async with scripted() as rig:
            rig.scripted.wake_at = Now(rig.clock.now().wall + seconds(3600), NEVER)
            await done(rig.submit())
            rig.scripted.wake_at = Now(NEVER, NEVER)
            await rig.clock.advance(seconds(1))
            assert len(rig.scripted.steps) == 1
            rig.clock.set_wall(seconds(3600))
            await settle()
            assert len(rig.scripted.steps) == 2

    async def test_a_wall_clock_set_far_back_is_told_to_the_engine(self) -> None:
        """Once, with the first step of the new time."""
        async with scripted() as rig:
            await done(rig.submit())
            rig.clock.set_wall(-seconds(7200))
            await done(rig.submit())
            await done(rig.submit())
            assert rig.scripted.seen(ClockSet) == [ClockSet()]
            first, second = rig.scripted.nows[1:3]
            assert second.wall < first.wall
            assert isinstance(rig.scripted.steps[1][0], ClockSet)

    async def test_a_wall_clock_set_back_a_little_is_not(self) -> None:
        """The engine sees a wall that goes on."""
        async with scripted() as rig:
            await done(rig.submit())
            rig.clock.set_wall(-seconds(600))
            await rig.clock.advance(seconds(10))
            await done(rig.submit())
            assert rig.scripted.seen(ClockSet) == []
            first, second = rig.scripted.nows[1:]
            assert second.wall - first.wall == seconds(5)


async def test_every_effect_of_the_engine_is_known() -> None:
    """One that nobody handles would take the leadership down when it first comes."""
    async with scripted() as rig:
        driver = rig.driver
        outbox = Outbox(driver.inbox, driver.sessions, driver.watchers)
        for kind in get_args(Effect):
            assert outbox.handles(kind), kind


async def test_how_many_slots_a_pool_wants_is_told_when_it_is_durable() -> None:
    """To whoever scales it."""
    async with scripted() as rig:
        rig.store.hold()
        rig.scripted.extra = [Scaled("default", 7)]
        call = rig.submit()
        await settle()
        assert rig.driver.desired_slots == {}
        rig.store.let_go()
        await done(call)
        assert rig.driver.desired_slots == {"default": 7}


async def test_a_receipt_is_an_effect_like_any_other() -> None:
    """It goes out after the commit of the reports that it confirms."""
    async with scripted() as rig:
        session = rig.join()
        await settle()
        rig.store.hold()
        rig.scripted.extra = [Receipt(session.number, 1, 0)]
        rig.submit()
        outbound = asyncio.create_task(session.outbound())
        await settle()
        assert not outbound.done()
        rig.store.let_go()
        assert await done(outbound) == [Receipt(session.number, 1, 0)]
