"""The imperative shell around one engine: its loop, its queues, its clock.

Everything that waits, times out, retries or holds a connection's other end lives here; nothing
here decides what becomes of a task.
"""

from cronoq_server.runtime.chance import SystemChance
from cronoq_server.runtime.clock import Alarm, Clock, SteadyWall, SystemClock, after, within
from cronoq_server.runtime.collector import free_spared, tame_gc
from cronoq_server.runtime.driver import Driver, DriverSettings, Ending
from cronoq_server.runtime.inbox import Inbox, ResultStream
from cronoq_server.runtime.pruner import Pruner, PruneSettings
from cronoq_server.runtime.refusals import NOT_LEADER, STOPPING, Refused
from cronoq_server.runtime.scaler import Scalers, Webhook
from cronoq_server.runtime.sessions import Outbound, Session, Sessions, ShutdownNotice
from cronoq_server.runtime.watchers import WatchBatch, Watchers, WatchFilter, WatchStream

__all__ = [
    "NOT_LEADER",
    "STOPPING",
    "Alarm",
    "Clock",
    "Driver",
    "DriverSettings",
    "Ending",
    "Inbox",
    "Outbound",
    "PruneSettings",
    "Pruner",
    "Refused",
    "ResultStream",
    "Scalers",
    "Session",
    "Sessions",
    "ShutdownNotice",
    "SteadyWall",
    "SystemChance",
    "SystemClock",
    "WatchBatch",
    "WatchFilter",
    "WatchStream",
    "Watchers",
    "Webhook",
    "after",
    "free_spared",
    "tame_gc",
    "within",
]
