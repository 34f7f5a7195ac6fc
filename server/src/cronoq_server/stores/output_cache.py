"""Which outputs are kept in memory beside a durable store, so that fresh results cost no look-up.

Only what was committed is put here. An output that its store forgets must be forgotten here, too.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from cronoq_server.engine.mutations import Output, OutputStored

CACHE_BYTES = 64 * 1024 * 1024
"""Bytes of outputs that are kept unless somebody says otherwise."""

_OVERHEAD = 200
"""Rough number of bytes that an entry takes beside its content."""


class OutputCache:
    """The newest outputs by task id, up to so many bytes."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        # A plain dictionary walks over the gaps at its front whenever the oldest is asked for.
        self._kept: OrderedDict[int, Output] = OrderedDict()

    def put(self, outputs: Iterable[OutputStored]) -> None:
        """Keeps outputs that were just committed; the oldest ones make room."""
        kept = self._kept
        for stored in outputs:
            self.drop(stored.task_id)
            kept[stored.task_id] = Output(stored.output, stored.content_type)
            self._bytes += len(stored.output) + _OVERHEAD
        while self._bytes > self._bytes_max and kept:
            self._bytes -= len(kept.popitem(last=False)[1].content) + _OVERHEAD

    def split(self, ids: Sequence[int]) -> tuple[dict[int, Output], list[int]]:
        """The outputs that are here, and the ids to ask the store about."""
        kept = self._kept
        found = {i: kept[i] for i in ids if i in kept}
        return found, [i for i in ids if i not in found]

    def drop(self, task_id: int) -> None:
        """Forgets one output, if it is here."""
        output = self._kept.pop(task_id, None)
        if output is not None:
            self._bytes -= len(output.content) + _OVERHEAD

    def clear(self) -> None:
        """Forgets everything."""
        self._kept.clear()
        self._bytes = 0
