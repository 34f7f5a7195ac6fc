"""One process among several on a store: waits, takes over, leads, steps down.

Nothing here knows which store it is, nor how calls arrive.
"""

from cronoq_server.ha.leadership import Keeper, TermSettings
from cronoq_server.ha.replica import Outcome, Replica, ReplicaSettings, Stage

__all__ = ["Keeper", "Outcome", "Replica", "ReplicaSettings", "Stage", "TermSettings"]
