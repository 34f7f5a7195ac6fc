"""The inbox: bounded, in order, and honest about what was executed."""

from __future__ import annotations

import asyncio

import pytest

from cronoq_server.engine.effects import Admitted, Result, Results
from cronoq_server.engine.events import (
    AttemptsReported,
    Completed,
    Event,
    Forget,
    HeartbeatsRead,
    SlotsSet,
    Submit,
    Wait,
)
from cronoq_server.engine.model import ErrorReason, Refusal, Status
from cronoq_server.runtime import Inbox, Refused, ResultStream
from cronoq_server.runtime.inbox import PULL_MAX
from cronoq_server.runtime.loading import Loader
from cronoq_server.runtime.refusals import STOPPING
from cronoq_server.stores.memory import MemoryDisk, MemoryStore
from cronoq_server.testing.builders import batch, changed, inserted, output, submit, task
from cronoq_server.testing.faults import ManualClock, settle
from cronoq_server.testing.store_suite import lead
from tests.runtime.rig import done, seconds


def make_inbox(queued_max: int = 100, store: MemoryStore | None = None) -> Inbox:
    """An inbox that nobody drains but the test."""
    return Inbox(ManualClock(), Loader(store or MemoryStore(MemoryDisk())), queued_max)


def reports(session: int, count: int) -> AttemptsReported:
    """So many reports in one message."""
    return AttemptsReported(session, [Completed(n, b"", "") for n in range(count)])


def ask(inbox: Inbox, *sizes: int) -> list[asyncio.Task[object]]:
    """Submits of so many tasks each, in the background."""
    return [asyncio.create_task(_ask(inbox, size)) for size in sizes]


async def _ask(inbox: Inbox, size: int) -> object:
    return await inbox.ask(lambda call: submit(call, *[task()] * size))


def calls_of(events: list[Event]) -> list[int]:
    """The calls that these events belong to."""
    return [event.call for event in events if isinstance(event, Submit | Wait)]


async def test_every_call_has_a_number_of_its_own() -> None:
    """And gets the answer that names it."""
    inbox = make_inbox()
    calls = ask(inbox, 1, 1, 1)
    await settle()
    numbers = calls_of(inbox.drain(10))
    for number in reversed(numbers):
        inbox.resolve(number, Admitted([number]))
    assert [await done(call) for call in calls] == [Admitted([n]) for n in numbers]


async def test_a_refusal_is_raised() -> None:
    """As an exception that holds the value."""
    inbox = make_inbox()
    (call,) = ask(inbox, 1)
    await settle()
    refusal = Refusal(ErrorReason.QUEUE_FULL, "full")
    inbox.resolve(calls_of(inbox.drain(10))[0], refusal)
    with pytest.raises(Refused) as caught:
        await done(call)
    assert caught.value.refusal == refusal


async def test_events_come_in_the_order_of_their_arrival() -> None:
    """Calls and facts in one line."""
    inbox = make_inbox()
    facts: list[Event] = [SlotsSet(1, 5), reports(1, 2), HeartbeatsRead(1, [3]), SlotsSet(1, 0)]
    for fact in facts:
        inbox.tell(fact)
    assert inbox.drain(100) == facts


async def test_a_full_inbox_refuses_calls() -> None:
    """And takes them again when there is room."""
    inbox = make_inbox(queued_max=5)
    calls = ask(inbox, 4, 4)
    await settle()
    with pytest.raises(Refused) as caught:
        await _ask(inbox, 1)
    assert caught.value.refusal.reason is ErrorReason.TOO_MANY_REQUESTS
    numbers = calls_of(inbox.drain(100))
    more = ask(inbox, 1)
    await settle()
    numbers += calls_of(inbox.drain(100))
    for number in numbers:
        inbox.resolve(number, Admitted([]))
    for call in calls + more:
        await done(call)


async def test_one_step_takes_no_more_bytes_than_a_batch_has_room_for() -> None:
    """Large payloads and outputs come a few at a time; one that is larger by itself comes alone."""
    inbox = make_inbox()
    large = AttemptsReported(1, [Completed(1, b"x" * 60, "")])
    small = SlotsSet(1, 1)
    for event in (large, small, large, large):
        inbox.tell(event)
    assert inbox.drain(100, 100) == [large, small]
    assert inbox.drain(100, 10) == [large]
    call = asyncio.create_task(inbox.ask(lambda call: submit(call, *[task(payload=b"x" * 60)] * 2)))
    await settle()
    assert inbox.drain(100, 100) == [large]
    assert len(calls_of(inbox.drain(100, 100))) == 1
    call.cancel()


async def test_a_full_inbox_lets_streams_wait() -> None:
    """Reports are never refused: whoever reads them from a stream reads no more for a while."""
    inbox = make_inbox(queued_max=5)
    await done(inbox.room())
    inbox.tell(reports(1, 5))
    waiting = asyncio.create_task(inbox.room())
    await settle()
    assert not waiting.done()
    inbox.drain(100)
    await done(waiting)


async def test_callers_do_not_take_the_room_of_workers() -> None:
    """However many calls wait, reports are read, and the other way round."""
    inbox = make_inbox(queued_max=5)
    calls = ask(inbox, 5)
    await settle()
    await done(inbox.room())
    inbox.tell(reports(1, 5))
    inbox.drain(5)
    calls += ask(inbox, 5)
    await settle()
    assert not any(call.done() for call in calls)
    for call in calls:
        call.cancel()


async def test_heartbeats_fill_an_inbox_as_well() -> None:
    """Or an outage of hours would gather them without a bound."""
    inbox = make_inbox(queued_max=3)
    for number in range(3):
        inbox.tell(HeartbeatsRead(number, []))
    waiting = asyncio.create_task(inbox.room())
    await settle()
    assert not waiting.done()
    assert len(inbox.drain_heartbeats()) == 3
    await done(waiting)


async def test_heartbeats_alone_are_taken_only_without_reports_before_them() -> None:
    """They must not overtake."""
    inbox = make_inbox()
    beats: list[Event] = [HeartbeatsRead(1, [1]), HeartbeatsRead(2, [2])]
    slots = SlotsSet(1, 3)
    for event in (beats[0], slots, beats[1]):
        inbox.tell(event)
    assert inbox.drain_heartbeats() == beats
    inbox.tell(reports(1, 1))
    inbox.tell(beats[0])
    assert inbox.drain_heartbeats() == []
    assert inbox.drain(10) == [slots, reports(1, 1), beats[0]]
    inbox.tell(beats[1])
    assert inbox.drain_heartbeats() == [beats[1]]


async def test_the_end_refuses_everybody() -> None:
    """Those with an answer that was not released learn that their outcome is unknown."""
    inbox = make_inbox()
    answered, parked, queued = ask(inbox, 1, 1, 1)
    await settle()
    stream = inbox.results(lambda call: Wait(call, (1,), (), None))
    numbers = calls_of(inbox.drain(100))
    inbox.close(STOPPING, numbers[:1])
    reasons = []
    for call in (answered, parked, queued, asyncio.create_task(_next(stream))):
        await settle()
        error = call.exception()
        assert isinstance(error, Refused)
        reasons.append(error.refusal.reason)
    assert reasons == [ErrorReason.STORE_UNAVAILABLE] + [ErrorReason.STOPPING] * 3
    inbox.tell(SlotsSet(1, 1))
    assert len(inbox) == 0


async def _next(stream: ResultStream) -> Results:
    return await anext(stream)


class TestResultStream:
    """Ends of tasks for one waiting caller."""

    async def opened(self, inbox: Inbox, *, outputs: bool = True) -> tuple[ResultStream, int]:
        """A stream that has entered the engine."""
        stream = inbox.results(lambda call: Wait(call, (1, 2), (), None), outputs=outputs)
        (number,) = calls_of(inbox.drain(100))
        return stream, number

    async def test_several_pushes_are_read_together(self) -> None:
        """And the stream ends after the last one."""
        inbox = make_inbox()
        stream, number = await self.opened(inbox)
        first, second = Result(1, Status.SUCCEEDED), Result(2, Status.FAILED, "why")
        inbox.push(Results(number, [first]))
        inbox.push(Results(number, [second], last=True))
        assert [batch async for batch in stream] == [Results(number, [first, second], last=True)]

    async def test_it_waits_for_more(self) -> None:
        """What comes later is a batch of its own."""
        inbox = make_inbox()
        stream, number = await self.opened(inbox)
        reading = asyncio.create_task(_next(stream))
        await settle()
        assert not reading.done()
        result = Result(1, Status.SUCCEEDED)
        inbox.push(Results(number, [result]))
        assert await done(reading) == Results(number, [result])

    async def test_outputs_are_loaded_in_portions(self) -> None:
        """So many at once and no more, since each may be large."""
        store = MemoryStore(MemoryDisk())
        term = await lead(store)
        numbers = range(1, PULL_MAX + 11)
        rows = [
            row
            for n in numbers
            for row in (inserted(n), changed(n, has_output=True), output(n, str(n).encode(), "t"))
        ]
        await store.commit(term, batch(1, *rows))
        inbox = make_inbox(store=store)
        stream, number = await self.opened(inbox)
        results = [Result(n, Status.SUCCEEDED, fetch=True) for n in numbers]
        inbox.push(Results(number, results, last=True))
        batches = [batch async for batch in stream]
        assert [len(batch.results) for batch in batches] == [PULL_MAX, 10]
        assert [batch.last for batch in batches] == [False, True]
        told = [result for batch in batches for result in batch.results]
        assert told == [Result(n, Status.SUCCEEDED, "", str(n).encode(), "t") for n in numbers]

    async def test_an_output_that_is_gone_is_none(self) -> None:
        """The end is told all the same."""
        inbox = make_inbox()
        stream, number = await self.opened(inbox)
        inbox.push(Results(number, [Result(1, Status.SUCCEEDED, fetch=True)], last=True))
        assert (await _next(stream)).results == [Result(1, Status.SUCCEEDED)]

    async def test_without_outputs_none_is_loaded(self) -> None:
        """The caller did not ask for them."""
        store = MemoryStore(MemoryDisk())
        inbox = make_inbox(store=store)
        stream, number = await self.opened(inbox, outputs=False)
        await store.close()
        result = Result(1, Status.SUCCEEDED, fetch=True)
        inbox.push(Results(number, [result], last=True))
        assert (await _next(stream)).results == [result]

    async def test_a_store_out_of_reach_is_a_refusal(self) -> None:
        """The caller may wait again."""
        store = MemoryStore(MemoryDisk())
        inbox = make_inbox(store=store)
        stream, number = await self.opened(inbox)
        await store.close()
        inbox.push(Results(number, [Result(1, Status.SUCCEEDED, fetch=True)], last=True))
        with pytest.raises(Refused) as caught:
            await _next(stream)
        assert caught.value.refusal.reason is ErrorReason.STORE_UNAVAILABLE

    async def test_what_the_engine_does_not_hold_is_asked_of_the_store(self) -> None:
        """By id and by key, within the caller's pools; the rest is refused when asked again."""
        store = MemoryStore(MemoryDisk())
        term = await lead(store)
        rows = [
            inserted(1),
            changed(1, has_output=True),
            output(1, b"one"),
            inserted(2, key="two"),
            changed(2, Status.FAILED, message="no"),
            inserted(3, pool="secret"),
            changed(3),
        ]
        await store.commit(term, batch(1, *rows))
        inbox = make_inbox(store=store)
        stream, number = await self.opened(inbox)
        scope = frozenset({"default"})
        unknown = (1, "two", 3, 4, "five")
        inbox.push(Results(number, [], unknown=unknown, scope=scope, last=True))
        told = await _next(stream)
        assert told.results == [
            Result(1, Status.SUCCEEDED, "", b"one"),
            Result(2, Status.FAILED, "no"),
        ]
        assert (told.refusals, told.last) == ((), False)
        (again,) = inbox.drain(10)
        assert isinstance(again, Wait)
        assert (again.ids, again.keys) == ((3, 4), ("five",))
        left = (3, 4, "five")
        inbox.push(Results(again.call, [], unknown=left, scope=scope, last=True))
        told = await _next(stream)
        assert [(target, why.reason) for target, why in told.refusals] == [
            (target, ErrorReason.TASK_UNKNOWN) for target in (3, 4, "five")
        ]
        assert told.last

    async def test_a_closed_stream_is_forgotten(self) -> None:
        """The engine is told, once."""
        inbox = make_inbox()
        stream, number = await self.opened(inbox)
        await stream.aclose()
        await stream.aclose()
        assert inbox.drain(10) == [Forget(number)]
        with pytest.raises(StopAsyncIteration):
            await _next(stream)

    async def test_a_stream_that_has_ended_is_not_forgotten_again(self) -> None:
        """The engine has dropped it already."""
        inbox = make_inbox()
        stream, number = await self.opened(inbox)
        inbox.push(Results(number, [], last=True, timed_out=True))
        assert await _next(stream) == Results(number, [], last=True, timed_out=True)
        await stream.aclose()
        assert inbox.drain(10) == []


async def test_only_callers_kept_by_the_store_are_refused_as_late() -> None:
    """Those still queued, and those whose answer waits; not those that wait for tasks."""
    clock = ManualClock()
    inbox = Inbox(clock, Loader(MemoryStore(MemoryDisk())))
    answered, parked = ask(inbox, 1, 1)
    await settle()
    number, _ = calls_of(inbox.drain(100))
    (queued,) = ask(inbox, 1)
    await settle()
    at = clock.now().mono
    await clock.advance(seconds(9))
    inbox.refuse_older(clock.now().mono, seconds(10), [(number, at)])
    await settle()
    assert not any(call.done() for call in (answered, parked, queued))
    await clock.advance(seconds(1))
    inbox.refuse_older(clock.now().mono, seconds(10), [(number, at)])
    await settle()
    assert [call.done() for call in (answered, parked, queued)] == [True, False, True]
    assert isinstance(answered.exception(), Refused)
    assert isinstance(queued.exception(), Refused)
    parked.cancel()


async def test_a_long_wait_is_late_only_from_its_answer_on() -> None:
    """It waited for its task; the store has it only since the task ended."""
    clock = ManualClock()
    inbox = Inbox(clock, Loader(MemoryStore(MemoryDisk())))
    (call,) = ask(inbox, 1)
    await settle()
    (number,) = calls_of(inbox.drain(100))
    await clock.advance(seconds(100))
    at = clock.now().mono
    await clock.advance(seconds(5))
    inbox.refuse_older(clock.now().mono, seconds(10), [(number, at)])
    await settle()
    assert not call.done()
    await clock.advance(seconds(5))
    inbox.refuse_older(clock.now().mono, seconds(10), [(number, at)])
    await settle()
    assert isinstance(call.exception(), Refused)
