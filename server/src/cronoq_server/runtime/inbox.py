"""How callers reach the engine: every call is an event with a number, and waits for its answer.

Rules a change must keep:

1. Events enter the engine in the order in which they arrived; nothing overtakes the reports of
   its own session.
2. The queue is bounded, for calls and for facts apart. A call that finds it full is refused; a
   session that reports too fast is asked to wait (`room`), whatever callers do.
3. A refusal with `not_leader` or `stopping` means that nothing was executed. A call that entered
   the engine and whose answer was never released ends as `store_unavailable`: outcome unknown.
4. A caller that goes away leaves nothing behind: its event is dropped if it still waits here, and
   the engine is told to forget it.

An answer says nothing before it is durable: the driver gives it to `resolve` only then. Bytes
that the engine does not keep are loaded from the store afterwards, by whoever waits for them.
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final, get_args

from msgspec.structs import replace

from cronoq_server.engine.effects import Answer, FromStore, Result, Results, Watching
from cronoq_server.engine.events import (
    AttemptsReported,
    Completed,
    Event,
    Forget,
    HeartbeatsRead,
    Scope,
    Submit,
    Wait,
    Watch,
)
from cronoq_server.engine.model import Duration, ErrorReason, Instant, Refusal, TaskRef
from cronoq_server.runtime.clock import Clock
from cronoq_server.runtime.loading import Loader
from cronoq_server.runtime.refusals import TOO_MANY, UNKNOWN_OUTCOME
from cronoq_server.runtime.refusals import Refused as Refused

CALLS: Final = frozenset(
    kind for kind in get_args(Event) if "call" in kind.__struct_fields__ and kind is not Forget
)
"""Types of events that carry the number of a call and are answered."""

PULL_MAX = 128
"""Most results handed to a waiting caller at once, since their outputs are loaded together."""


def weight(event: Event) -> int:
    """How many tasks an event is about; facts of sessions that name none weigh nothing."""
    kind = type(event)
    if kind is AttemptsReported:
        return len(event.reports)  # type: ignore[union-attr]
    if kind is Submit:
        return len(event.specs)  # type: ignore[union-attr]
    if kind is Wait or kind is Watch:
        return 1 + len(event.ids) + len(event.keys)  # type: ignore[union-attr]
    return 1 if kind in CALLS else 0


def size_of(event: Event) -> int:
    """Bytes of payloads and outputs that an event brings."""
    kind = type(event)
    if kind is Submit:
        return sum([len(spec.payload) for spec in event.specs])  # type: ignore[union-attr,misc]
    if isinstance(event, AttemptsReported):
        return sum([len(one.output) for one in event.reports if isinstance(one, Completed)])
    return 0


class _Call:
    """A call with one answer."""

    __slots__ = ("arrived", "entered", "future")

    def __init__(self, arrived: Instant) -> None:
        self.arrived = arrived
        self.entered = False
        self.future: asyncio.Future[Answer | Watching] = asyncio.get_running_loop().create_future()

    def answer(self, answer: Answer | Watching) -> None:
        if not self.future.done():
            self.future.set_result(answer)


class ResultStream:
    """The ends of tasks, as they become known to one waiting caller.

    Iterating gives `Results`, with outputs loaded; several that came together are one. Tasks that
    neither the engine nor the store knows are asked for once more, by a second event: one of them
    may have been put back after the engine had left it to the store.
    """

    __slots__ = (
        "_again",
        "_build",
        "_inbox",
        "_last",
        "_number",
        "_numbers",
        "_over",
        "_refusal",
        "_refusals",
        "_results",
        "_scope",
        "_timed_out",
        "_unknown",
        "_waiter",
        "_with_outputs",
        "arrived",
        "entered",
    )

    def __init__(
        self,
        inbox: Inbox,
        build: Callable[[int], Event],
        arrived: Instant,
        with_outputs: bool,
    ) -> None:
        self.arrived = arrived
        self.entered = False
        self._inbox = inbox
        self._build = build
        self._number = 0
        self._numbers: list[int] = []  # of its events that are not over
        self._again: set[TaskRef] = set()
        self._with_outputs = with_outputs
        self._results: list[Result] = []
        self._refusals: list[tuple[TaskRef, Refusal]] = []
        self._unknown: list[TaskRef] = []
        self._scope: Scope = None
        self._last = False
        self._timed_out = False
        self._over = False
        self._refusal: Refusal | None = None
        self._waiter: asyncio.Future[None] | None = None

    def begin(self) -> None:
        """Asks the engine."""
        self._number = self._inbox.post(self, self._build)
        self._numbers.append(self._number)

    def push(self, results: Results) -> None:
        """Adds what one step told this call."""
        self._results += results.results
        self._refusals += results.refusals
        if results.unknown:
            self._unknown += results.unknown
            self._scope = results.scope
        if results.last:
            self._numbers.remove(results.call)
            self._last = not self._numbers
            self._timed_out = self._timed_out or results.timed_out
        self._wake()

    def answer(self, answer: Answer | Watching) -> None:
        """Ends the stream with a refusal, the only answer that is not `Results`."""
        assert isinstance(answer, Refusal), answer
        self._refusal = answer
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def __aiter__(self) -> ResultStream:
        return self

    async def __anext__(self) -> Results:
        """The next ends.

        Raises:
            Refused: The call is over before all ends are known.
        """
        while True:
            while not (self._results or self._unknown or self._refusals or self._last):
                if self._over:
                    raise StopAsyncIteration
                if self._refusal is not None:
                    self._over = True
                    raise Refused(self._refusal)
                self._waiter = asyncio.get_running_loop().create_future()
                await self._waiter
            told = await self._completed(self._take())
            if told.results or told.refusals or told.last:
                return told

    def _take(self) -> Results:
        taken, unknown = self._results[:PULL_MAX], self._unknown[:PULL_MAX]
        del self._results[:PULL_MAX], self._unknown[:PULL_MAX]
        refusals = tuple(self._refusals)
        self._refusals.clear()
        return Results(self._number, taken, refusals, tuple(unknown), self._scope)

    async def _completed(self, taken: Results) -> Results:
        """Adds what the engine does not hold: ends that only the store knows, and outputs."""
        loader, results, refusals = self._inbox.loader, taken.results, taken.refusals
        if taken.unknown:
            found, missing = await loader.ends_of(taken.unknown, taken.scope)
            results = results + found
            refusals = (*refusals, *(each for each in missing if each[0] in self._again))
            self._ask_again([target for target, _ in missing if target not in self._again])
        if self._with_outputs:
            results = await loader.with_outputs(results)
        last = self._last and not (self._results or self._unknown or self._refusals)
        if last:
            self._last = False
            self._over = True
        timed_out = last and self._timed_out
        return Results(self._number, results, refusals, last=last, timed_out=timed_out)

    def _ask_again(self, targets: list[TaskRef]) -> None:
        """Asks the engine once more for tasks that the store does not know either."""
        if not targets:
            return
        self._again.update(targets)
        ids = tuple(target for target in targets if isinstance(target, int))
        keys = tuple(target for target in targets if isinstance(target, str))
        build: Any = self._build
        number = self._inbox.post(self, lambda call: replace(build(call), ids=ids, keys=keys))
        self._numbers.append(number)
        self._last = False

    async def aclose(self) -> None:
        """Gives up waiting; the engine forgets the call."""
        self._over = True
        self._last = False
        self._results.clear()
        for number in self._numbers:
            self._inbox.forget(number)


class Inbox:
    """The bounded queue of one leadership.

    Attributes:
        bell: Set whenever something arrives; the driver waits for it.
        loader: Loads bytes that answers lack.
    """

    def __init__(self, clock: Clock, loader: Loader, queued_max: int = 100_000) -> None:
        self.bell = asyncio.Event()
        self.loader = loader
        self._clock = clock
        self._queued_max = queued_max
        self._queue: deque[Event] = deque()
        self._asked = 0
        self._told = 0
        self._reports = 0
        self._number = 0
        self._calls: dict[int, _Call | ResultStream] = {}
        self._refusal: Refusal | None = None
        self._closed = False
        self._room = asyncio.Event()
        self._room.set()

    def __len__(self) -> int:
        """How many events wait."""
        return len(self._queue)

    async def ask(self, build: Callable[[int], Event]) -> Answer:
        """Asks the engine and waits for its answer.

        Args:
            build: Makes the event of the call number it is given.

        Raises:
            Refused: The engine, the store or the end of this leadership refused it.
        """
        answer = await self.ask_raw(build)
        assert not isinstance(answer, Watching), answer
        try:
            return await self.loader.complete(answer)
        except Refused as error:
            if type(answer) is not FromStore or error.refusal.reason != ErrorReason.TASK_UNKNOWN:
                raise
        # Neither knew it; or it was put back after the engine had left it to the store.
        answer = await self.ask_raw(build)
        assert not isinstance(answer, Watching), answer
        return await self.loader.complete(answer)

    async def ask_raw(self, build: Callable[[int], Event]) -> Answer | Watching:
        """Like `ask`, for answers that need nothing from the store.

        Raises:
            Refused: The engine, the store or the end of this leadership refused it.
        """
        call = _Call(self._admit())
        number = self.post(call, build)
        try:
            answer = await call.future
        except asyncio.CancelledError:
            self.forget(number)
            raise
        if type(answer) is Refusal:
            raise Refused(answer)
        return answer

    def results(self, build: Callable[[int], Event], *, outputs: bool = True) -> ResultStream:
        """Opens a call that is told the ends of tasks one after the other.

        Args:
            build: Makes the event (`Wait`) of the call number it is given.
            outputs: Whether outputs are wanted.

        Raises:
            Refused: No call is taken now.
        """
        stream = ResultStream(self, build, self._admit(), outputs)
        stream.begin()
        return stream

    def _admit(self) -> Instant:
        if self._refusal is not None:
            raise Refused(self._refusal)
        if self._asked >= self._queued_max:
            raise Refused(TOO_MANY)
        return self._clock.now().mono

    def post(self, call: _Call | ResultStream, build: Callable[[int], Event]) -> int:
        """Queues the event of a call that has been admitted; returns its number.

        Raises:
            Refused: No call is taken any more.
        """
        if self._refusal is not None:
            raise Refused(self._refusal)
        self._number = number = self._number + 1
        self._calls[number] = call
        self.tell(build(number))
        return number

    def tell(self, event: Event) -> None:
        """Queues a fact; never refused, never blocks, unheard once the leadership is over."""
        if self._closed:
            return
        self._queue.append(event)
        kind = type(event)
        if kind in CALLS:
            self._asked += weight(event)
        else:
            self._told += weight(event) or 1
        if kind is AttemptsReported:
            self._reports += 1
        if self._told >= self._queued_max:
            self._room.clear()
        self.bell.set()

    async def room(self) -> None:
        """Returns once the queue takes reports again; a stream reads nothing before."""
        await self._room.wait()

    def forget(self, number: int) -> None:
        """Drops a call whose caller is gone."""
        if self._calls.pop(number, None) is not None:
            self.tell(Forget(number))

    def drain(self, tasks_max: int, bytes_max: int = sys.maxsize) -> list[Event]:
        """Takes what has arrived, in order, up to a number of tasks and of bytes.

        An event that is larger by itself comes alone.
        """
        queue, calls = self._queue, self._calls
        taken: list[Event] = []
        room, bytes_left = tasks_max, bytes_max
        while queue:
            event = queue[0]
            tasks, size = weight(event), size_of(event)
            if taken and (tasks > room or size > bytes_left):
                break
            bytes_left -= size
            queue.popleft()
            kind = type(event)
            if kind in CALLS:
                self._asked -= tasks
                call = calls.get(event.call)  # type: ignore[union-attr]
                if call is None:
                    continue
                call.entered = True
            else:
                self._told -= tasks or 1
                if kind is AttemptsReported:
                    self._reports -= 1
            room -= tasks
            taken.append(event)
        self._make_room()
        return taken

    def drain_heartbeats(self) -> list[Event]:
        """Takes heartbeats only, and none while reports wait, which they must not overtake."""
        if self._reports:
            return []
        taken: list[Event] = [e for e in self._queue if type(e) is HeartbeatsRead]
        if taken:
            self._queue = deque(e for e in self._queue if type(e) is not HeartbeatsRead)
            self._told -= len(taken)
            self._make_room()
        return taken

    def _make_room(self) -> None:
        if self._told < self._queued_max:
            self._room.set()

    def is_waiting(self, number: int) -> bool:
        """Whether somebody still waits for this call."""
        return number in self._calls

    def set_entered(self, number: int, entered: bool) -> None:
        """Notes whether a call's event is in the engine, or held back before it."""
        call = self._calls.get(number)
        if call is not None:
            call.entered = entered

    def resolve(self, number: int, answer: Answer | Watching) -> bool:
        """Hands a durable answer to its caller; false if nobody waits for it any more."""
        call = self._calls.pop(number, None)
        if call is None:
            return False
        call.answer(answer)
        return True

    def push(self, results: Results) -> None:
        """Hands durable ends to the caller that waits for them."""
        stream = self._calls.get(results.call)
        if stream is None:
            return
        assert isinstance(stream, ResultStream), results.call
        if results.last:
            del self._calls[results.call]
        stream.push(results)

    def refuse_new(self, refusal: Refusal | None) -> None:
        """Refuses every new call from now on, or takes calls again (None)."""
        self._refusal = refusal

    def refuse_older(
        self, now: Instant, patience: Duration, answered: Iterable[tuple[int, Instant]]
    ) -> None:
        """Refuses callers that the store has kept waiting for too long.

        A call that waited for reasons of its own, such as a parked submit, is kept waiting by the
        store only from its answer on.

        Args:
            now: Mono instant.
            patience: How long a caller waits.
            answered: Calls whose answers wait for the store, with the mono instant of the answer.
        """
        late = [
            number
            for number, call in self._calls.items()
            if not call.entered and now - call.arrived >= patience
        ]
        for number, at in answered:
            call = self._calls.get(number)
            if call is not None:
                since = call.arrived if at - call.arrived <= patience else at
                if now - since >= patience:
                    late.append(number)
        for number in late:
            self.resolve(number, UNKNOWN_OUTCOME)

    def close(self, refusal: Refusal, answered: Iterable[int]) -> None:
        """Ends every call: nothing more is heard or answered.

        Args:
            refusal: For those of which nothing was executed.
            answered: Calls with an answer that was not released; their outcome is unknown.
        """
        self._closed = True
        self._refusal = refusal
        for number in answered:
            self.resolve(number, UNKNOWN_OUTCOME)
        for number in list(self._calls):
            self.resolve(number, refusal)
        self._queue.clear()
        self._asked = self._told = self._reports = 0
        self._room.set()
