"""Decides what SIGTERM and SIGINT do to a program that runs workers until it is told to stop."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine
from typing import Any

Run = Callable[[], Coroutine[Any, Any, None]]
Stop = Callable[[bool], Coroutine[Any, Any, None]]


async def run_with_signals(run: Run, stop: Stop) -> None:
    """Runs until a signal stops it.

    Args:
        run: Ends when it is stopped.
        stop: Called at each signal; its argument says whether handlers may finish, which is so at
            the first.
    """
    loop = asyncio.get_running_loop()
    stops: set[asyncio.Task[None]] = set()

    def on_signal() -> None:
        stops.add(loop.create_task(stop(not stops)))

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    try:
        await run()
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
