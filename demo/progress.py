"""How a run shows how far it is: one line that changes on a terminal, lines now and then elsewhere.

It also knows when nothing has ended for so long that something must be wrong.
"""

from __future__ import annotations

import asyncio
import time
from typing import NoReturn, TextIO

from demo.errors import DemoError

BAR_WIDTH = 30
REDRAW_S = 0.1
LINES_PER_RUN = 10
STALLED_S = 60.0


class Progress:
    """Counts ended tasks.

    Attributes:
        done: How many have ended.
    """

    def __init__(self, total: int, out: TextIO) -> None:
        self.done = 0
        self._total = total
        self._out = out
        self._is_terminal = out.isatty()
        self._begun = time.monotonic()
        self._drawn_at = 0.0

    def one_more(self) -> None:
        """A task has ended."""
        self.done += 1
        if self._is_terminal:
            now = time.monotonic()
            if now - self._drawn_at >= REDRAW_S or self.done == self._total:
                self._drawn_at = now
                self._out.write(f"\r{self._bar()} {self._text()}\x1b[K")
                self._out.flush()
        elif (
            self.done * LINES_PER_RUN // self._total
            > (self.done - 1) * LINES_PER_RUN // self._total
        ):
            print(self._text(), file=self._out, flush=True)

    def close(self) -> None:
        """Ends the line that changes, so that others can follow."""
        if self._is_terminal and self._drawn_at:
            print(file=self._out, flush=True)

    def _bar(self) -> str:
        filled = self.done * BAR_WIDTH // self._total
        return f"[{'#' * filled}{'.' * (BAR_WIDTH - filled)}]"

    def _text(self) -> str:
        took = time.monotonic() - self._begun
        return f"{self.done} of {self._total} tasks ended, {took:.1f} s"

    async def stall(self) -> NoReturn:
        """Waits until nothing ends any more, and raises that as DemoError."""
        before = -1
        while before != self.done:
            before = self.done
            await asyncio.sleep(STALLED_S)
        raise DemoError(f"no task ended for {STALLED_S:g} s, {self.done} of {self._total} had")
