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

    Called by a server after each recovery; what it spares is given back by `free_spared` when that
    leadership is over. A library that others embed leaves the collector to its host.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)


def free_spared() -> None:
    """Spares nothing any more, and frees what nobody holds; without effect if nothing is spared.

    An engine and its driver know each other, so only the collector can free them. Spared, they and
    all tasks of theirs would stay for as long as the process lives.
    """
    if gc.get_freeze_count():
        gc.unfreeze()
        gc.collect()
