"""The program behind `./justw demo`: a server, a worker, real work, and a check of what came out.

    ./justw demo [--path DIR] [--store STORE]
    ./justw demo --languages [--rounds N]

With --languages it is another one: a worker in each of four languages, tasks for all of them, and
the console to look at, until Ctrl-C. With a store that lasts, a run that was cut short goes on when
the same command is given again.

Exit codes: 0 all is as it should be, 1 something is not (the message says what), 2 the command
line is wrong, 128 + N the signal N ended it. In every case whatever it started is stopped.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import tempfile
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import cronoq
from demo.children import ROOT, Children
from demo.errors import DemoError, ProcessEnded
from demo.folder import find_files
from demo.handlers import WORKING
from demo.languages import show
from demo.progress import Progress
from demo.work import Run, Summary, plan_for

ANY_PORT = "127.0.0.1:0"
SERVING = "serving gRPC on "
MEMORY = "memory"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the demo and returns its exit code."""
    parser = argparse.ArgumentParser(prog="./justw demo", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--path", type=Path, default=ROOT, metavar="DIR", help="folder to count (these sources)"
    )
    parser.add_argument("--store", default=MEMORY, help="the server's: memory, or sqlite:PATH")
    parser.add_argument(
        "--languages", action="store_true", help="workers in four languages, until Ctrl-C"
    )
    parser.add_argument("--rounds", type=int, help="with --languages: end after so many")
    options = parser.parse_args(arguments)
    try:
        if options.languages:
            tasks = asyncio.run(_run(partial(show, rounds=options.rounds)))
        else:
            folder, store = options.path.resolve(), options.store
            tasks = asyncio.run(_run(lambda children, _: _work(children, folder, store)))
    except _Interrupted as interrupt:
        print(f"\ndemo: {interrupt}, everything is stopped", file=sys.stderr)
        return 128 + interrupt.number
    except (DemoError, cronoq.CronoqError, OSError) as error:
        print(f"demo: {error}", file=sys.stderr)
        if isinstance(error, ProcessEnded) and options.store != MEMORY:
            print("demo: the tasks are safe; run it again to go on", file=sys.stderr)
        return 1
    print(f"demo: ok {tasks} tasks")
    return 0


class _Interrupted(Exception):
    """A signal came."""

    def __init__(self, number: int) -> None:
        super().__init__(f"ended by {signal.Signals(number).name}")
        self.number = number


async def _run(play: Callable[[Children, Path], Coroutine[Any, Any, int]]) -> int:
    """Does everything that may be cut short, then stops the processes, which nothing cuts short."""
    signals = _listen()
    with tempfile.TemporaryDirectory(prefix="cronoq-demo-") as logs:
        children = Children(Path(logs))
        try:
            work = play(children, Path(logs))
            tasks: int = await _first(work, children.first_end(), _interrupt(signals))
        finally:
            failures = await children.stop()
        if failures:
            raise failures[0]
        return tasks


def _listen() -> asyncio.Queue[int]:
    """Returns the signals that ask for an end, as they come."""
    loop = asyncio.get_running_loop()
    signals: asyncio.Queue[int] = asyncio.Queue()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, signals.put_nowait, number)
    return signals


async def _interrupt(signals: asyncio.Queue[int]) -> Any:
    raise _Interrupted(await signals.get())


async def _first(*works: Coroutine[Any, Any, Any]) -> Any:
    """Returns or raises what the first to end does, and cancels the others."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    # The end of a process explains why the work failed, and comes after it in the list.
    return [task for task in tasks if task in done][-1].result()


async def _work(children: Children, folder: Path, store: str) -> int:
    files = await asyncio.to_thread(find_files, folder)
    server = ("cronoq_server", "--store", store, "--grpc-addr", ANY_PORT, "--http-addr", ANY_PORT)
    address = await children.start("server", server, SERVING)
    await children.start("worker", ("demo.handlers", address), WORKING)
    async with cronoq.Client(address) as client:
        plan = await plan_for(client, folder, files)
        run = Run(client, files, plan)
        if plan.is_continued:
            print(f"going on with run {plan.name}, which was cut short")
        print(f"{len(files)} files under {folder}: {run.task_count} tasks for {address}")
        progress = Progress(run.task_count, sys.stdout)
        try:
            summary: Summary = await _first(run.go(progress), progress.stall())
        finally:
            progress.close()
    _print_summary(summary)
    return summary.tasks


def _print_summary(summary: Summary) -> None:
    print(f"\n{'kind':<15}{'tasks':>8}{'attempts':>10}  outcome")
    for kind in summary.kinds:
        print(f"{kind.kind:<15}{kind.tasks:>8}{kind.attempts:>10}  {kind.outcome}")
    total = summary.total
    print(f"\n{total.files} files ({total.binaries} binary), {total.bytes:,} bytes", end=", ")
    print(f"{total.lines:,} lines, {total.words:,} words: the same as counted here")
    rate = summary.tasks / summary.seconds
    speed = total.bytes / summary.seconds / 1e6
    print(f"{summary.tasks} tasks in {summary.seconds:.2f} s: {rate:.0f} tasks/s, {speed:.1f} MB/s")


if __name__ == "__main__":
    sys.exit(main())
