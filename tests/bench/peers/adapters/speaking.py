"""What every Python adapter of a peer has in common: the work, and how the bench talks to it.

An adapter runs where its peer is installed, so this module needs nothing but Python. It is run as
`python ADAPTER client`, which reads one JSON object a line and answers each with one, or as
`python ADAPTER worker …` where the peer has no command of its own for that.

A payload has 200 characters. Its first one says whether it is a probe; then the instant at which it
was made follows, and the handler notes down how long the start of a probe took.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from importlib.metadata import version
from typing import Any

URL = os.environ.get("PEER_URL", "")
PROBES = os.environ.get("PEER_PROBES", "")
SLOTS = int(os.environ.get("PEER_SLOTS", "1"))
"""What the setting that is measured says of concurrency inside a worker process."""
CALLERS = int(os.environ.get("PEER_CALLERS", "64"))
CHUNK = 1000
"""Jobs in one call of a bulk interface."""
PAD = "x" * 180
PLAIN = "-" + "0" * 19 + PAD
LINE_BYTES = 20
TICK_S = 0.01
TICKS_PER_PROBE = 3
POLL_S = 0.01
LOOK_S = 0.001
STUCK_S = 60.0

_notes: dict[int, int] = {}


def probe() -> str:
    """A payload that says when it was made."""
    return f"P{time.monotonic_ns():019d}{PAD}"


def work(payload: str) -> str:
    """The job itself: nothing, but for a probe's note. Its result is eight characters."""
    if payload[0] == "P":
        note(time.monotonic_ns() - int(payload[1:20]))
    return payload[:8]


def note(nanoseconds: int) -> None:
    """Notes down how long a start took. A forked process writes through a file of its own."""
    pid = os.getpid()
    if pid not in _notes:
        _notes[pid] = os.open(PROBES, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    os.write(_notes[pid], f"{nanoseconds:0{LINE_BYTES - 1}d}\n".encode())


def noted() -> int:
    """How many probes have started."""
    try:
        return os.stat(PROBES).st_size // LINE_BYTES
    except FileNotFoundError:
        return 0


def chunks(count: int) -> Iterator[int]:
    """The sizes of bulk calls that make up so many jobs."""
    for first in range(0, count, CHUNK):
        yield min(CHUNK, count - first)


def by_threads(call: Callable[[], object], count: int, threads: int = CALLERS) -> None:
    """Makes calls by threads that each make one after the other."""
    left = iter(range(count))
    lock = threading.Lock()
    errors: list[BaseException] = []

    def run() -> None:
        try:
            while True:
                with lock:
                    if next(left, None) is None:
                        return
                call()
        except Exception as error:  # noqa: BLE001 - handed to whoever started the threads
            errors.append(error)

    callers = [threading.Thread(target=run) for _ in range(min(threads, count))]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    if errors:
        raise errors[0]


async def by_tasks(call: Callable[[], Awaitable[object]], count: int) -> None:
    """Makes calls by callers that each await one after the other."""
    left = iter(range(count))

    async def run() -> None:
        for _ in left:
            await call()

    await asyncio.gather(*(run() for _ in range(min(CALLERS, count))))


class Adapter:
    """One peer as the bench sees it: what it can be asked for.

    Attributes:
        packages: Whose versions a result names.
    """

    packages: Iterable[str] = ()

    async def prepare(self) -> None:
        """Makes what the peer needs at its store, before workers start."""

    async def bulk(self, count: int, mixed: bool = False) -> None:
        """Submits plain jobs the quickest documented way; mixed ones have limits, priorities."""
        raise NotImplementedError

    async def single(self, count: int) -> None:
        """Submits plain jobs one by one, by many callers at once."""
        raise NotImplementedError

    async def probe(self) -> None:
        """Submits one probe."""
        raise NotImplementedError

    async def left(self, submitted: int) -> int:
        """How many of the jobs that were submitted since `prepare` have not ended yet."""
        raise NotImplementedError

    async def through(self, count: int, how: str, done: int) -> None:
        """Submits jobs and returns when they have ended; `done` is how many had before."""
        if how == "single":
            await self.single(count)
        else:
            await self.bulk(count, how == "mixed")
        await self.settle(done + count)

    async def settle(self, target: int) -> None:
        """Returns when so many jobs have ended since `prepare`, which is all that there are."""
        until, last = time.monotonic() + STUCK_S, target + 1
        while (left := await self.left(target)) > 0:
            if left < last:
                until, last = time.monotonic() + STUCK_S, left
            elif time.monotonic() > until:
                raise TimeoutError(f"{left} of {target} jobs do not end")
            await asyncio.sleep(POLL_S)


class Session:
    """What the bench asks, answered one after the other."""

    def __init__(self, adapter: Adapter) -> None:
        self._adapter = adapter
        self._submitted = 0

    async def serve(self) -> None:
        """Answers until standard input ends."""
        read = asyncio.get_running_loop().run_in_executor
        while line := await read(None, sys.stdin.readline):
            asked: dict[str, Any] = json.loads(line)
            answer: dict[str, Any]
            try:
                answer = await getattr(self, f"_{asked.pop('do')}")(**asked)
            except Exception as error:  # noqa: BLE001 - the bench is told, whatever it is
                answer = {"error": f"{type(error).__name__}: {error}"}
            print(json.dumps(answer), flush=True)

    async def _prepare(self) -> dict[str, Any]:
        await self._adapter.prepare()
        return {"versions": {name: version(name) for name in self._adapter.packages}}

    async def _submit(self, count: int, how: str) -> dict[str, Any]:
        begun = time.perf_counter()
        await (self._adapter.single(count) if how == "single" else self._adapter.bulk(count))
        self._submitted += count
        return {"seconds": time.perf_counter() - begun}

    async def _settle(self) -> dict[str, Any]:
        begun = time.perf_counter()
        await self._adapter.settle(self._submitted)
        return {"seconds": time.perf_counter() - begun}

    async def _through(self, count: int, how: str) -> dict[str, Any]:
        begun = time.perf_counter()
        await self._adapter.through(count, how, self._submitted)
        self._submitted += count
        return {"seconds": time.perf_counter() - begun}

    async def _idle(self, count: int, pause_s: float, seconds: float) -> dict[str, Any]:
        """One probe at a time, the next one a pause after the start of the one before."""
        before, sent, end = noted(), 0, time.monotonic() + seconds
        while sent < count and (not sent or time.monotonic() < end):
            await self._adapter.probe()
            sent += 1
            self._submitted += 1
            stuck = time.monotonic() + STUCK_S
            while noted() < before + sent:
                if time.monotonic() > stuck:
                    raise TimeoutError("a probe did not start")
                await asyncio.sleep(LOOK_S)
            await asyncio.sleep(pause_s)
        return {"sent": sent}

    async def _load(self, rate: float, seconds: float) -> dict[str, Any]:
        """Plain jobs at a rate, in one bulk call a tick, and now and then a probe by itself."""
        begun, sent, tick, probes = time.monotonic(), 0, 0, 0
        while (passed := time.monotonic() - begun) < seconds:
            due = int(rate * passed) - sent
            if due > 0:
                await self._adapter.bulk(min(due, CHUNK))
                sent += min(due, CHUNK)
            if tick % TICKS_PER_PROBE == 0:
                await self._adapter.probe()
                probes += 1
            tick += 1
            await asyncio.sleep(max(0.0, begun + tick * TICK_S - time.monotonic()))
        passed = time.monotonic() - begun
        self._submitted += sent + probes
        return {"rate": sent / passed, "probes": probes}


def run(adapter: Callable[[], Adapter], *, worker: Callable[[], object] | None = None) -> None:
    """What an adapter's file does when it is run."""
    if sys.argv[1] == "worker":
        assert worker is not None
        worker()
    else:
        run_loop(Session(adapter()).serve())


def run_loop(main: Coroutine[Any, Any, None]) -> None:
    """Runs an event loop, the quicker one where it is installed."""
    try:
        uvloop = importlib.import_module("uvloop")
    except ImportError:
        asyncio.run(main)
    else:
        uvloop.run(main)
