"""What the process spends its time on, for an operator who asks: sampled stacks, counted.

One profile is taken at a time, for a bounded time and with a bounded number of stacks. It has names
of modules and functions and nothing of what they were given, so that nothing secret can be in it.
Samples are taken by a thread of its own, every `INTERVAL_S`: what holds the interpreter for longer
is seen, what is shorter is seen as often as its share of the time says.

Each line is a stack from its thread's name and outermost function to the innermost, joined by `;`,
and how often it was met: what tools that draw flame graphs call collapsed.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections import Counter
from types import FrameType
from typing import Final
from urllib.parse import parse_qsl

from cronoq_server.api import texts
from cronoq_server.engine import ErrorReason, Refusal
from cronoq_server.runtime.refusals import Refused

PROFILE: Final = "/v1/debug/profile"
INTERVAL_S: Final = 0.01
SECONDS_DEFAULT: Final = 5.0
SECONDS_MIN: Final = 0.1
SECONDS_MAX: Final = 60.0
DEPTH_MAX: Final = 64
STACKS_MAX: Final = 5000
TOO_MANY_STACKS: Final = "(other stacks)"

TAKEN: Final = Refusal(
    ErrorReason.TOO_MANY_REQUESTS, "a profile is being taken: one is taken at a time"
)


class Profiler:
    """Takes profiles of this process, one at a time."""

    def __init__(self) -> None:
        self._is_taking = False

    async def take(self, seconds: float) -> str:
        """Collapsed stacks of so many seconds, the most frequent first.

        Raises:
            Refused: Another profile is being taken.
        """
        if self._is_taking:
            raise Refused(TAKEN)
        self._is_taking = True
        ends = threading.Event()
        try:
            return await asyncio.to_thread(sample, seconds, ends)
        finally:
            # Whoever asked may have left; nobody needs the rest then.
            ends.set()
            self._is_taking = False


def read_seconds(query: bytes) -> float:
    """How long a profile is to be, from the query of its request.

    Raises:
        Refused: The query says something else, or too much or too little.
    """
    seconds = SECONDS_DEFAULT
    for name, value in parse_qsl(query.decode("latin-1"), keep_blank_values=True):
        if name != "seconds":
            raise texts.invalid(texts.shown(name), "is not known")
        try:
            seconds = float(value)
        except ValueError:
            seconds = 0.0
        if not SECONDS_MIN <= seconds <= SECONDS_MAX:
            text = f"must be from {SECONDS_MIN:g} to {SECONDS_MAX:g}, not {texts.shown(value)}"
            raise texts.invalid("seconds", text, int(SECONDS_MAX))
    return seconds


def sample(seconds: float, ends: threading.Event) -> str:
    """Looks at all threads but this one until the time is over or the event is set."""
    own, counts = threading.get_ident(), Counter[str]()
    over = time.monotonic() + seconds
    while time.monotonic() < over and not ends.wait(INTERVAL_S):
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        for ident, frame in sys._current_frames().items():
            if ident == own:
                continue
            stack = f"{names.get(ident, 'thread')};{collapsed(frame)}"
            is_new = stack not in counts and len(counts) >= STACKS_MAX
            counts[TOO_MANY_STACKS if is_new else stack] += 1
    return "".join(f"{stack} {count}\n" for stack, count in counts.most_common())


def collapsed(frame: FrameType) -> str:
    """The stack that ends here, its innermost `DEPTH_MAX` functions."""
    parts: list[str] = []
    at: FrameType | None = frame
    while at is not None and len(parts) < DEPTH_MAX:
        parts.append(f"{at.f_globals.get('__name__', '?')}:{at.f_code.co_qualname}")
        at = at.f_back
    return ";".join(reversed(parts))
