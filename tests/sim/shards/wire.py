"""The wire of a world of shards: calls that travel, are cut, and end, on virtual time.

A `Line` stands where a server or a caller has a gRPC channel, so that the server's own code for
peers makes its calls over it; a `Call` stands where a handler has its context. What travels is
bytes. Rules a change must keep:

1. A message that was under way when the line was cut never arrives, nor does any behind it in the
   same call, be the line mended or not; both ends hear of it later.
2. Messages of one call arrive in their order. Calls overtake each other.
3. A line between servers keeps its process for as long as that one lives, as a connection does;
   callers are led to whoever serves, call by call.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, Final

import grpc
from google.protobuf.message import Message
from grpc.aio import AioRpcError, Metadata

from cronoq_server.engine.model import MILLISECOND, SECOND, Duration, Instant
from tests.sim.clockwork import Entry, Timeline, VirtualLoop

if TYPE_CHECKING:
    from tests.sim.shards.cluster import ShardProcess, ShardWorld

Pairs = tuple[tuple[str, str], ...]

SLOWEST: Final[Duration] = 8 * MILLISECOND
"""Longest time that a message takes when all is well."""

NOTICED: Final[Duration] = 3 * SECOND
"""Longest time until somebody notices that a line was cut."""


class _Timer(asyncio.TimerHandle):
    """A call that an event loop was asked to make later."""

    __slots__ = ("entry",)
    entry: Entry


class TimedLoop(VirtualLoop):
    """An event loop whose timers, which the api has for its timeouts, are of virtual time too."""

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        """Makes a call at an instant of the world, in seconds."""
        timer = _Timer(when, callback, args, self, context)
        ready: Any = self._ready  # type: ignore[attr-defined]
        timer.entry = self.timeline.at(round(when * SECOND), lambda: ready.append(timer))
        return timer

    def _timer_handle_cancelled(self, handle: _Timer) -> None:
        handle.entry.cancel()


class Aborted(Exception):
    """A handler ended its call with a status."""

    def __init__(self, code: grpc.StatusCode, details: str, trailing: Pairs) -> None:
        super().__init__(details)
        self.code = code
        self.details = details
        self.trailing = trailing


class Wires:
    """All lines of a world, and which of them are cut.

    Attributes:
        timeline: The world's time.
        chance: Where delays come from.
        cut_at: When pairs of shards, by their numbers, were cut from each other.
        whole_since: When pairs that were cut could last not hear each other.
    """

    def __init__(self, timeline: Timeline, chance: random.Random) -> None:
        self.timeline = timeline
        self.chance = chance
        self.cut_at: dict[tuple[int, int], Instant] = {}
        self.whole_since: dict[tuple[int, int], Instant] = {}
        self.calls: dict[Call, None] = {}

    def is_cut(self, origin: int | None, target: int) -> bool:
        """Whether nothing gets from one shard's servers to another's; callers (None) get through.

        Args:
            origin: Number of the asking shard; None = a caller.
            target: Number of the asked one.
        """
        return origin is not None and _pair(origin, target) in self.cut_at

    def cut(self, one: int, other: int) -> None:
        """From now on two shards' servers don't hear each other."""
        pair = _pair(one, other)
        if one == other or pair in self.cut_at:
            return
        self.cut_at[pair] = self.timeline.now
        for call in list(self.calls):
            if call.origin is not None and _pair(call.origin, call.target) == pair:
                call.lose()

    def mend(self, one: int, other: int) -> None:
        """Two shards' servers hear each other again."""
        pair = _pair(one, other)
        if self.cut_at.pop(pair, None) is not None:
            self.whole_since[pair] = self.timeline.now

    def cut_since(self, one: int, other: int) -> Instant | None:
        """Since when two shards' servers don't hear each other; None = they do."""
        return self.cut_at.get(_pair(one, other))

    def healed_at(self, one: int, other: int) -> Instant:
        """When two shards' servers began to hear each other again; 0 = they always did."""
        return self.whole_since.get(_pair(one, other), 0)

    def delay(self) -> Duration:
        """How long one message takes."""
        return int(SLOWEST * self.chance.random())


def _pair(one: int, other: int) -> tuple[int, int]:
    return (one, other) if one < other else (other, one)


class Line:
    """A channel to the servers of one shard.

    Attributes:
        wires: What it is one of.
        origin: Number of the shard whose server asks; None = a caller.
        world: The shard that is asked.
        certificate: The DNS name in the caller's certificate; empty = it has none.
    """

    def __init__(
        self, wires: Wires, origin: int | None, world: ShardWorld, certificate: str = ""
    ) -> None:
        self.wires = wires
        self.origin = origin
        self.world = world
        self.certificate = certificate
        self._process: ShardProcess | None = None

    def process(self) -> ShardProcess | None:
        """The process that it is connected to; None = nobody takes the connection."""
        if self.origin is None:
            return self.world.balance(knows=True)
        process = self._process
        if process is None or process.is_dead:
            process = self._process = self.world.balance(knows=False)
        return process

    def check(self, method: str, metadata: Pairs) -> None:
        """Looks at a call that is about to be made."""

    def begin(self, method: str, content: bytes, timeout: float | None, metadata: Pairs) -> Call:
        """Makes a call."""
        self.check(method, metadata)
        return Call(self, method, content, timeout, metadata)

    def unary_unary(
        self,
        method: str,
        request_serializer: Callable[[Any], bytes],
        response_deserializer: Callable[[bytes], Any],
        _registered_method: bool = False,
    ) -> Callable[..., Asking]:
        """See `grpc.aio.Channel.unary_unary`."""

        def ask(request: Message, timeout: float | None = None, metadata: Pairs = ()) -> Asking:
            call = self.begin(method, request_serializer(request), timeout, metadata)
            return Asking(call, response_deserializer)

        return ask

    def unary_stream(
        self,
        method: str,
        request_serializer: Callable[[Any], bytes],
        response_deserializer: Callable[[bytes], Any],
        _registered_method: bool = False,
    ) -> Callable[..., Hearing]:
        """See `grpc.aio.Channel.unary_stream`."""

        def hear(request: Message, timeout: float | None = None, metadata: Pairs = ()) -> Hearing:
            call = self.begin(method, request_serializer(request), timeout, metadata)
            return Hearing(call, response_deserializer)

        return hear

    async def close(self, grace: float | None = None) -> None:
        """Makes no calls any more; without grace, those under way end."""
        for call in list(self.wires.calls):
            if call.line is self and not grace:
                call.leave()


class Asking:
    """A call with one answer, as its caller has it; await it."""

    def __init__(self, call: Call, read: Callable[[bytes], Any]) -> None:
        self.call = call
        self._read = read

    def __await__(self) -> Generator[Any, None, Any]:
        return self._answer().__await__()

    async def _answer(self) -> Any:
        try:
            return self._read(await self.call.message())
        finally:
            self.call.leave()

    async def trailing_metadata(self) -> Pairs:
        """What came with the end, once the answer was awaited."""
        return self.call.trailing


class Hearing:
    """A call with many answers, as its caller has it."""

    def __init__(self, call: Call, read: Callable[[bytes], Any]) -> None:
        self.call = call
        self._read = read

    def __aiter__(self) -> Hearing:
        return self

    async def __anext__(self) -> Any:
        """The next answer."""
        content = await self.call.next()
        if content is None:
            raise StopAsyncIteration
        return self._read(content)

    def cancel(self) -> None:
        """Hears no more."""
        self.call.leave()


class Call:
    """One call: what its caller waits for, and what its handler calls the context.

    Attributes:
        line: Where it was made.
        origin: Number of the shard whose server asks; None = a caller.
        target: Number of the asked one.
        method: Its full name.
        content: The request.
        initial: Metadata that came before the answers; None = none did so far.
        trailing: Metadata that came with the end.
    """

    def __init__(
        self, line: Line, method: str, content: bytes, timeout: float | None, metadata: Pairs
    ) -> None:
        self.line = line
        self.origin = line.origin
        self.target = line.world.number
        self.method = method
        self.content = content
        self.initial: Pairs | None = None
        self.trailing: Pairs = ()
        self._wires = wires = line.wires
        self._metadata = metadata
        self._sent: Pairs = ()
        self._came: deque[bytes] = deque()
        self._error: AioRpcError | None = None
        self._is_over = self._is_broken = False
        self._latest: Instant = 0
        self._waiter: asyncio.Future[None] | None = None
        self._process: ShardProcess | None = None
        self._task: asyncio.Task[None] | None = None
        self._until: Instant | None = None
        self._deadline: Entry | None = None
        wires.calls[self] = None
        if timeout is not None:
            self._until = wires.timeline.now + round(timeout * SECOND)
            self._deadline = wires.timeline.at(self._until, self._late)
        wires.timeline.after(wires.delay(), self._arrive)

    # --- the caller's side -----------------------------------------------------------------------

    async def next(self) -> bytes | None:
        """The next answer; None = there is none any more.

        Raises:
            AioRpcError: It failed.
        """
        while not self._came:
            if self._error is not None:
                raise self._error
            if self._is_over:
                return None
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return self._came.popleft()

    async def message(self) -> bytes:
        """The one answer, once the call is over.

        Raises:
            AioRpcError: It failed.
        """
        content = await self.next()
        assert content is not None, self.method
        assert await self.next() is None, self.method
        return content

    def leave(self) -> None:
        """The caller does not wait any more; in a while the handler hears of it."""
        self._end(None)
        if self._task is not None and not self._wires.is_cut(self.origin, self.target):
            self._wires.timeline.after(self._wires.delay(), self._task.cancel)

    def lose(self) -> None:
        """The line was cut: nothing arrives any more, and both sides notice, each in its time."""
        if self._is_broken:
            return
        self._is_broken = True
        timeline, chance = self._wires.timeline, self._wires.chance
        timeline.after(int(NOTICED * chance.random()), lambda: self._fail("the connection broke"))
        timeline.after(int(NOTICED * chance.random()), self._drop)

    def _drop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _late(self) -> None:
        if not self._is_over:
            code = grpc.StatusCode.DEADLINE_EXCEEDED
            self._end(AioRpcError(code, Metadata(), Metadata(), "Deadline Exceeded"))
            if self._task is not None:
                self._wires.timeline.after(self._wires.delay(), self._task.cancel)

    def _fail(self, text: str) -> None:
        code = grpc.StatusCode.UNAVAILABLE
        self._end(AioRpcError(code, Metadata(), Metadata(), text))

    def _end(self, error: AioRpcError | None) -> None:
        if self._is_over:
            return
        self._is_over, self._error = True, error
        self._wires.calls.pop(self, None)
        if self._deadline is not None:
            self._deadline.cancel()
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # --- the way ---------------------------------------------------------------------------------

    def _arrive(self) -> None:
        """The request is there, if nothing is in its way."""
        wires = self._wires
        if self._is_over or self._is_broken:
            return
        if wires.is_cut(self.origin, self.target):
            self.lose()
            return
        process = self.line.process()
        if process is None:
            self._fail("connection refused")
            return
        thaw = process.machine.frozen_until
        if thaw > wires.timeline.now:
            wires.timeline.at(thaw, self._arrive)
            return
        self._process = process
        process.links[self] = self._broke_off
        self._task = process.world.spawn(self._serve(process))

    def _broke_off(self) -> None:
        """The process is gone, and the connection with it."""
        self._drop()
        self._wires.timeline.after(self._wires.delay(), lambda: self._fail("connection reset"))

    async def _serve(self, process: ShardProcess) -> None:
        try:
            await process.front.serve(self)
        except Aborted as aborted:
            trailing = Metadata(*aborted.trailing)
            error = AioRpcError(aborted.code, Metadata(), trailing, aborted.details)
            self._post(lambda: self._end(error))
        else:
            sent = self._sent
            self._post(lambda: self._ended_well(sent))
        finally:
            process.links.pop(self, None)

    def _ended_well(self, trailing: Pairs) -> None:
        self.trailing = trailing
        self._end(None)

    def _post(self, deliver: Callable[[], object]) -> None:
        """Lets the caller hear something, behind what was said before."""
        timeline = self._wires.timeline
        self._latest = max(self._latest, timeline.now + self._wires.delay())
        timeline.at(self._latest, lambda: self._deliver(deliver))

    def _deliver(self, deliver: Callable[[], object]) -> None:
        if self._is_over or self._is_broken:
            return
        if self._wires.is_cut(self.origin, self.target):
            self.lose()
        else:
            deliver()

    def say(self, content: bytes) -> None:
        """Sends an answer."""
        self._post(lambda: self._hear(content))

    def _hear(self, content: bytes) -> None:
        self._came.append(content)
        self._wake()

    # --- what a handler sees ---------------------------------------------------------------------

    async def write(self, message: Message) -> None:
        """See `grpc.aio.ServicerContext.write`."""
        self.say(message.SerializeToString())

    async def send_initial_metadata(self, metadata: Pairs) -> None:
        """See `grpc.aio.ServicerContext.send_initial_metadata`."""
        self._post(lambda: setattr(self, "initial", metadata))

    def set_trailing_metadata(self, metadata: Pairs) -> None:
        """See `grpc.aio.ServicerContext.set_trailing_metadata`."""
        self._sent = metadata

    async def abort(self, code: grpc.StatusCode, details: str, trailing: Pairs) -> None:
        """See `grpc.aio.ServicerContext.abort`."""
        raise Aborted(code, details, trailing)

    def invocation_metadata(self) -> Pairs:
        """See `grpc.aio.ServicerContext.invocation_metadata`."""
        return self._metadata

    def auth_context(self) -> dict[str, tuple[bytes, ...]]:
        """See `grpc.aio.ServicerContext.auth_context`."""
        name = self.line.certificate
        return {"peer_dns": (name.encode(),)} if name else {}

    def time_remaining(self) -> float | None:
        """See `grpc.aio.ServicerContext.time_remaining`."""
        return None if self._until is None else (self._until - self._wires.timeline.now) / SECOND

    def peer(self) -> str:
        """See `grpc.aio.ServicerContext.peer`."""
        return "somewhere"
