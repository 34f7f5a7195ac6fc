"""What was called when, what stood in the way meanwhile, and which calls nothing should have hurt.

A trouble says for which calls it is an excuse, by where a call goes in and whose task it is about.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

NEVER_YET = float("inf")
FRONT = ""
"""Where a call goes in that may reach the server of any shard."""

SPANS = "find"
"""The kind of call that every shard is asked for, although it is about one task."""
READS = frozenset({SPANS, "list", "snapshot"})
"""Calls that span shards: while one of them is missing unseen, they wait for it."""

MARKER = "marker"
"""The kind of the tasks, one in each shard, by which an answer shows that it has a shard."""

Excuse = Callable[[str, str], bool]


@dataclass(frozen=True, slots=True)
class Call:
    """One call by the clock of this process, seconds.

    Attributes:
        what: Its kind.
        entry: The shard whose server is called, or `FRONT`.
        subject: The shard that it is about.
        began: When it was made.
        ended: When its answer was there.
        error: What it failed with; empty if it did not.
    """

    what: str
    entry: str
    subject: str
    began: float
    ended: float
    error: str = ""

    @property
    def took_ms(self) -> float:
        """How long the caller has waited."""
        return 1e3 * (self.ended - self.began)


@dataclass(slots=True)
class Trouble:
    """Something that is wrong for a while.

    Attributes:
        kind: What.
        excuses: Whether a call that goes in at one shard and is about another one may fail.
        began: When it struck.
        told: When every server that should had noticed it; infinite if nobody waited for that.
        undone: When what it did was being undone.
        ended: When all was well again, as all servers see it; infinite until then.
        is_leaky: Whether an answer may come through in time after all.
    """

    kind: str
    excuses: Excuse
    began: float = field(default_factory=time.monotonic)
    told: float = NEVER_YET
    undone: float = NEVER_YET
    ended: float = NEVER_YET
    is_leaky: bool = False

    def overlaps(self, began: float, ended: float) -> bool:
        """Whether it was there at any time within a period."""
        return self.began <= ended and began <= self.ended


class Record:
    """All calls and all troubles of a play.

    Attributes:
        calls: In the order of their ends.
        troubles: In the order of their beginnings.
    """

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.troubles: list[Trouble] = []

    @contextmanager
    def trouble(self, kind: str, excuses: Excuse) -> Iterator[Trouble]:
        """A trouble that lasts as long as the block."""
        trouble = Trouble(kind, excuses)
        self.troubles.append(trouble)
        try:
            yield trouble
        finally:
            trouble.ended = time.monotonic()

    def during(self, began: float, ended: float) -> list[Trouble]:
        """The troubles that were there at any time within a period."""
        return [one for one in self.troubles if one.overlaps(began, ended)]

    def unexcused(self) -> list[Call]:
        """The calls that have failed although no trouble concerned them."""
        return [
            call
            for call in self.calls
            if call.error
            and not any(
                one.excuses(call.entry, call.subject) for one in self.during(call.began, call.ended)
            )
        ]

    def latencies(self) -> dict[str, list[float]]:
        """Milliseconds, ascending, of calls at a named shard that nothing concerned.

        They stand under the kind of trouble that others had meanwhile, or under `none`.
        """
        found: dict[str, list[float]] = {}
        for call in self.calls:
            if call.entry == FRONT or call.error or call.what in READS:
                continue
            there = self.during(call.began, call.ended)
            if any(one.excuses(call.entry, call.subject) for one in there):
                continue
            kind = there[0].kind if there else "none"
            found.setdefault(kind, []).append(call.took_ms)
        return {kind: sorted(values) for kind, values in found.items()}

    def errors(self) -> Counter[str]:
        """How often calls have failed with what."""
        return Counter(call.error for call in self.calls if call.error)


def quantile(ordered: Sequence[float], share: float) -> float:
    """The value below which this share of an ascending list lies."""
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]
