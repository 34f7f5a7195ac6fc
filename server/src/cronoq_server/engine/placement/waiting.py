"""What placement keeps in each task that waits, and what its codes mean.

Everything in this package is about such tasks, and nothing here leads to the rest of it: neither to
lines nor to sessions, but for what a task asks for.
"""

from __future__ import annotations

import msgspec

from cronoq_server.engine.placement.gates import Demand

# Values of `Waiting.p_at` that are no place in a row.
OUT = -1
STARTED = -2
BACK = -3
HOT = -4


class Rush(msgspec.Struct, gc=False, eq=False):
    """The deadline of one waiting task: when its urgency begins to rise, and how steeply."""

    opens: int
    latest: int
    slope: int
    leaf: int = -1  # its place in a tournament once the window is open


class Waiting(msgspec.Struct, gc=False, eq=False):
    """What placement keeps in each task. The engine's own task record extends it.

    Args:
        id: Task id, the last word in every tie.
        priority: 1 critical, 2 high, 3 normal, 4 low.
        since: Instant (wall, ns) at which the task last became ready.
        demand: What it asks for, from `Placement.demand`.

    Fields that begin with `p_` belong to placement alone.
    """

    id: int
    priority: int
    since: int
    demand: Demand
    p_at: int = OUT  # place in its line, or one of the codes of `rows`
    p_wait: int = OUT  # place among the patients
    p_cost: int = 0  # expected duration, in pools that are shared fairly
    p_via: Demand | None = None  # stands in for `demand`: avoids sessions, or is in a shadow
    p_real: Demand | None = None  # what it asks for, if it wants a private account
    p_rush: Rush | None = None  # its deadline
