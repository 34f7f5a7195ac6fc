"""Clients on a host of their own: they submit, look, wait, cancel, and write down what they see.

`python -m tests.campaigns._hosts_caller FOLDER SEED CALLERS PAUSE_S ADDRESS...` works until an
empty line of input, waits for the end of all that was acknowledged, looks at each task once more,
and ends. It says `acknowledged KEY` whenever a submit was. With `readers` in place of the seed it
only looks at the tasks whose keys come as lines of input. Each call is made once: what becomes of
one that failed is not known, unless the server says that it has done nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc

from cronoq._transport import read_error_info
from cronoq.errors import NOT_EXECUTED_REASONS, ErrorReason
from cronoq_server._proto import task_pb2, tasks_pb2, tasks_pb2_grpc
from tests.campaigns._hosts_record import KEEPALIVE, STATUSES, Record, now

CALL_TIMEOUT_S = 2.5
WAIT_S = 1.5
RECENT = 24
"""Among so many keys callers find each other."""
POOL = "hosts"
READERS = "readers"
REST_S = 0.05
"""After a failure, before the next host is asked."""


class Unknown(Exception):
    """A call failed, and nobody knows what it did."""


class NotDone(Exception):
    """A call failed, and the server says that it did nothing."""


class Missing(Exception):
    """There is no such task."""


class Keys:
    """What all callers of a process know of.

    Attributes:
        recent: The last keys that were submitted.
        acknowledged: All that somebody was told of.
    """

    def __init__(self, prefix: str) -> None:
        self.recent: list[str] = []
        self.acknowledged: dict[str, None] = {}
        self._prefix = prefix
        self._number = 0

    def new(self) -> str:
        """A key that nobody has used."""
        self._number += 1
        key = f"{self._prefix}-{self._number}"
        self.recent.append(key)
        del self.recent[:-RECENT]
        return key

    def acknowledge(self, key: str) -> None:
        """Somebody was told that a task of this key is there."""
        self.acknowledged[key] = None
        print(f"acknowledged {key}", flush=True)

    def learn(self, key: str) -> None:
        """Somebody else was told that a task of this key is there."""
        self.recent.append(key)
        del self.recent[:-RECENT]


class Caller:
    """One client with a connection of its own to one host after the other."""

    def __init__(self, addresses: list[str], first: int, record: Record) -> None:
        self._addresses = addresses
        self._next = first
        self._channel: grpc.aio.Channel | None = None
        self.record = record
        self.stub: Any = None

    async def connect(self) -> None:
        """Goes on to the next host."""
        await self.close()
        address = self._addresses[self._next % len(self._addresses)]
        self._next += 1
        self._channel = grpc.aio.insecure_channel(address, options=KEEPALIVE)
        self.stub = tasks_pb2_grpc.TasksStub(self._channel)

    async def close(self) -> None:
        """Gives the connection up."""
        if self._channel is not None:
            await self._channel.close()

    async def call(self, method: str, request: Any) -> Any:
        """Makes one call, once.

        Raises:
            Unknown: Whatever it did, nobody told.
            NotDone: It did nothing.
            Missing: There is no such task.
        """
        try:
            return await getattr(self.stub, method)(request, timeout=CALL_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            reason = _reason(error)
            if reason is ErrorReason.TASK_UNKNOWN:
                raise Missing from error
            if reason is ErrorReason.WAIT_TIMEOUT:
                raise NotDone from error
            await asyncio.sleep(REST_S)
            await self.connect()
            if reason in NOT_EXECUTED_REASONS:
                raise NotDone from error
            raise Unknown from error

    async def submit(self, key: str, keys: Keys) -> None:
        """Submits a key that may be there already."""
        spec = task_pb2.TaskSpec(pool=POOL, kind="work", key=key)
        call = now()
        try:
            answer = await self.call("Submit", tasks_pb2.SubmitRequest(task=spec))
        except Unknown:
            self.record.note("submit", key, call)
        except NotDone:
            return
        else:
            seen = {"id": answer.id, "duplicate": answer.duplicate}
            self.record.note("submit", key, call, returned=now(), **seen)
            keys.acknowledge(key)

    async def get(self, key: str) -> str:
        """Looks at a task; returns its status, empty if nobody could tell."""
        call = now()
        try:
            found = await self.call("Get", tasks_pb2.GetRequest(task=task_pb2.TaskRef(key=key)))
        except Missing:
            self.record.note("get", key, call, returned=now(), missing=True)
        except (Unknown, NotDone):
            return ""
        else:
            status = STATUSES[found.status]
            seen = {"id": found.id, "status": status, "attempt": found.attempt}
            self.record.note("get", key, call, returned=now(), **seen)
            return status
        return "missing"

    async def wait(self, key: str) -> None:
        """Waits for a task's end, for a while."""
        request = tasks_pb2.WaitRequest(task=task_pb2.TaskRef(key=key), timeout_s=WAIT_S)
        call = now()
        with contextlib.suppress(Unknown, NotDone, Missing):
            result = await self.call("Wait", request)
            seen = {"id": result.id, "status": STATUSES[result.status]}
            seen["output"] = result.output.decode()
            self.record.note("wait", key, call, returned=now(), **seen)

    async def cancel(self, key: str) -> None:
        """Calls a task off."""
        request = tasks_pb2.CancelRequest(task=task_pb2.TaskRef(key=key))
        call = now()
        try:
            answer = await self.call("Cancel", request)
        except Unknown:
            self.record.note("cancel", key, call)
        except Missing:
            self.record.note("cancel", key, call, returned=now(), missing=True)
        except NotDone:
            return
        else:
            self.record.note("cancel", key, call, returned=now(), cancelled=answer.cancelled)

    async def describe(self, key: str) -> bool:
        """Writes down how attempts ended that did not succeed; whether that was told."""
        call = now()
        request = tasks_pb2.GetRequest(task=task_pb2.TaskRef(key=key))
        try:
            detail = await self.call("Describe", request)
        except (Unknown, NotDone):
            return False
        except Missing:
            self.record.note("get", key, call, returned=now(), missing=True)
            return True
        for attempt in detail.attempts:
            seen = {"attempt": attempt.number, "outcome": attempt.outcome}
            self.record.note("outcome", key, call, returned=now(), **seen)
        return True


def _reason(error: grpc.aio.AioRpcError) -> ErrorReason | None:
    for name, content in (*(error.initial_metadata() or ()), *(error.trailing_metadata() or ())):
        if name == "grpc-status-details-bin":
            return read_error_info(content)[0]
    return None


async def act(caller: Caller, keys: Keys, chance: random.Random) -> None:
    """One operation, whichever."""
    roll = chance.random()
    if roll < 0.3 or not keys.recent:
        await caller.submit(keys.new(), keys)
        return
    key = chance.choice(keys.recent)
    doings: list[tuple[float, Callable[[str], Awaitable[object]]]] = [
        (0.36, lambda key: caller.submit(key, keys)),
        (0.78, caller.get),
        (0.96, caller.wait),
        (1.0, caller.cancel),
    ]
    await next(do for share, do in doings if roll < share)(key)


async def watch(caller: Caller) -> None:
    """Writes down every change that is told, over one stream after the other."""
    while True:
        began = now()
        stream = caller.stub.Watch(tasks_pb2.WatchRequest(all_transitions=True))
        with contextlib.suppress(grpc.aio.AioRpcError):
            async for event in stream:
                seen = {"id": event.id, "status": STATUSES[event.status], "attempt": event.attempt}
                caller.record.note("watch", event.key, began, returned=now(), **seen)
        await asyncio.sleep(REST_S)
        await caller.connect()


async def look_until_ended(caller: Caller, keys: list[str]) -> None:
    """Returns when each of these has ended, and has been looked at since."""
    for key in keys:
        while await caller.get(key) in ("", "blocked", "scheduled", "ready", "running", "retrying"):
            await caller.wait(key)
        while not await caller.describe(key):
            pass


async def run(folder: Path, seed: str, count: int, pause_s: float, addresses: list[str]) -> None:
    """Works until a line of input comes, then sees to the end of all."""
    keys = Keys(f"t{seed}")
    finishing = asyncio.Event()
    callers = []
    for number in range(count + 1):
        record = Record(folder / f"caller-{number}.ndjson", f"caller-{number}")
        callers.append(Caller(addresses, number, record))
        await callers[-1].connect()

    async def work(number: int) -> None:
        chance = random.Random(f"{seed} {number}")
        while not finishing.is_set():
            await act(callers[number], keys, chance)
            await asyncio.sleep(chance.uniform(0, 2 * pause_s))

    watching = asyncio.create_task(watch(callers[count]))
    working = asyncio.gather(*(work(number) for number in range(count)))
    await asyncio.to_thread(sys.stdin.readline)
    finishing.set()
    await working
    acknowledged = list(keys.acknowledged)
    shares = (acknowledged[number::count] for number in range(count))
    looking = zip(callers, shares, strict=False)
    await asyncio.gather(*(look_until_ended(caller, share) for caller, share in looking))
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    for caller in callers:
        await caller.close()
        caller.record.close()
    print("finished", flush=True)


async def read(folder: Path, count: int, pause_s: float, addresses: list[str]) -> None:
    """Looks at the tasks that it is told of until an empty line of input comes."""
    keys = Keys("")
    reading: list[asyncio.Task[None]] = []
    callers = []

    async def look(caller: Caller) -> None:
        while True:
            if keys.recent:
                await caller.get(keys.recent[-1 - int(random.expovariate(0.2)) % len(keys.recent)])
            await asyncio.sleep(pause_s)

    for number in range(count):
        record = Record(folder / f"reader-{number}.ndjson", f"reader-{number}")
        callers.append(caller := Caller(addresses, number, record))
        await caller.connect()
        reading.append(asyncio.create_task(look(caller)))
    while key := (await asyncio.to_thread(sys.stdin.readline)).strip():
        keys.learn(key)
    for task in reading:
        task.cancel()
    await asyncio.gather(*reading, return_exceptions=True)
    for caller in callers:
        await caller.close()
        caller.record.close()
    print("finished", flush=True)


def main(arguments: list[str]) -> int:
    """Works and ends."""
    folder, seed, count, pause_s, *addresses = arguments
    if seed == READERS:
        asyncio.run(read(Path(folder), int(count), float(pause_s), addresses))
    else:
        asyncio.run(run(Path(folder), seed, int(count), float(pause_s), addresses))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
