"""Which waiting task goes to which free slot: order, eligibility, fair shares, limits, held slots.

`Placement` is the way in; everything else here serves it. One module, one question:

| module | decides |
| --- | --- |
| `placement` | nothing itself: takes tasks, sessions and time, and passes them on |
| `waiting` | nothing: what is kept in each task that waits |
| `passes` | in which order tasks start within one step, and what they claim |
| `halls` | what one pool looks like: its sessions, lines, turns and holds |
| `turns` | whose turn it is among tenants |
| `lines`, `rows`, `unions` | who is first in a line among those that can run |
| `gates` | which kinds of task can run now, as bits |
| `roster` | which session gets a task |
| `holds` | which slot is kept for a fixed start |
| `resources` | how much of a limited thing is left |
| `urgency`, `kinetic`, `openings` | what a task scores, who scores most as time passes |

Nothing here knows attempts, leases, statuses or messages.
"""

from cronoq_server.engine.placement.gates import Demand
from cronoq_server.engine.placement.halls import PoolRules
from cronoq_server.engine.placement.placement import Placement
from cronoq_server.engine.placement.resources import NANO, Resource, ResourceRules, Resources
from cronoq_server.engine.placement.urgency import score
from cronoq_server.engine.placement.waiting import Waiting

__all__ = [
    "NANO",
    "Demand",
    "Placement",
    "PoolRules",
    "Resource",
    "ResourceRules",
    "Resources",
    "Waiting",
    "score",
]
