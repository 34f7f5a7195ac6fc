"""Several shards, one service: who owns what, where a call goes, and what peers are asked.

Nothing here decides what becomes of a task, and nothing here speaks a transport of clients.
"""

from cronoq_server.sharding.router import (
    LOCAL,
    Caller,
    Credential,
    FanOut,
    Forward,
    Local,
    OnAll,
    OnName,
    OnOwn,
    OnPool,
    OnResource,
    OnTask,
    OnWork,
    Refuse,
    Route,
    Router,
    Subject,
)
from cronoq_server.sharding.topology import Shard, Topology

__all__ = [
    "LOCAL",
    "Caller",
    "Credential",
    "FanOut",
    "Forward",
    "Local",
    "OnAll",
    "OnName",
    "OnOwn",
    "OnPool",
    "OnResource",
    "OnTask",
    "OnWork",
    "Refuse",
    "Route",
    "Router",
    "Shard",
    "Subject",
    "Topology",
]
