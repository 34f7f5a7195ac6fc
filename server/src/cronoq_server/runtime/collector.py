"""How often Python's garbage collector runs in a process that holds many tasks.

Records that live long are hidden from the collector, so that nearly nothing is left for it to
find; with its usual thresholds it would still walk over everything again and again, and each walk
over a million tasks is a pause that workers notice.
"""

from __future__ import annotations

import gc

THRESHOLDS = (10_000, 20, 50)


def tame_gc() -> None:
    """Collects once, spares what is there from later collections, and makes those rarer.

    Called by a server at its start and after each recovery; a library that others embed leaves
    the collector to its host.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
