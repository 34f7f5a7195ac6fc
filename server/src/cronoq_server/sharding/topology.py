"""Which shard owns what: pools, resources and ids to shards, from one table that all servers share.

A topology is a value, checked when the configuration is read. Without shards there is one with no
name that owns everything, so that callers need not ask whether the deployment is sharded.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from typing import Final
from urllib.parse import urlsplit

import msgspec

from cronoq_server.engine.ids import shard_of

NUMBER_MAX: Final = 255


class Shard(msgspec.Struct, frozen=True):
    """A group of pools with a leader, standbys and a store of its own.

    Attributes:
        name: What people call it; empty when the deployment is not sharded.
        number: The top 8 bits of its task ids, 1-255; 0 when not sharded.
        pools: The pools it runs.
        resources: The resources it owns.
        endpoint: Where its servers take gRPC calls: an http or https URL.
        http_endpoint: Where they answer HTTP; empty = not told.
    """

    name: str
    number: int
    pools: frozenset[str]
    resources: frozenset[str] = frozenset()
    endpoint: str = ""
    http_endpoint: str = ""

    @property
    def is_encrypted(self) -> bool:
        """Whether calls to it travel encrypted."""
        return urlsplit(self.endpoint).scheme == "https"

    @property
    def is_local(self) -> bool:
        """Whether calls to it stay on this machine."""
        return is_loopback(urlsplit(self.endpoint).hostname or "")

    def last_id(self) -> int:
        """The highest id that a task of it can have."""
        return (self.number + 1 << 56) - 1

    def is_open_to(self, pools: frozenset[str] | None) -> bool:
        """Whether somebody who may use these pools (None = all) may use one of its."""
        return pools is None or not self.pools.isdisjoint(pools)


def is_loopback(host: str) -> bool:
    """Whether a host name or address means this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Topology:
    """All shards, seen from the server of one of them.

    Attributes:
        own: The shard of this server.
        shards: All of them in the order of their numbers, and so of their tasks' ids.
    """

    def __init__(self, shards: Iterable[Shard], own: str) -> None:
        """Indexes shards whose names, numbers, pools and resources are known to be distinct.

        Args:
            shards: All shards.
            own: The name of the one that this server belongs to.
        """
        self.shards = tuple(sorted(shards, key=lambda shard: shard.number))
        self._by_name = {shard.name: shard for shard in self.shards}
        self._by_number = {shard.number: shard for shard in self.shards}
        self._by_pool = {pool: shard for shard in self.shards for pool in shard.pools}
        self._by_resource = {name: shard for shard in self.shards for name in shard.resources}
        self.own = self._by_name[own]

    @classmethod
    def single(cls, pools: Iterable[str], resources: Iterable[str] = ()) -> Topology:
        """A deployment without shards: all is this server's own."""
        return cls([Shard("", 0, frozenset(pools), frozenset(resources))], "")

    @property
    def is_sharded(self) -> bool:
        """Whether there are shards at all; a single named one counts."""
        return bool(self.own.number)

    def named(self, name: str) -> Shard:
        """The shard with this name.

        Raises:
            KeyError: There is none.
        """
        return self._by_name[name]

    def of_pool(self, pool: str) -> Shard | None:
        """Who runs a pool; None = nobody."""
        return self._by_pool.get(pool)

    def of_id(self, task_id: int) -> Shard | None:
        """Whose task an id can name; None = nobody's."""
        return self._by_number.get(shard_of(task_id)) if self.is_sharded else self.own

    def of_resource(self, resource: str) -> Shard | None:
        """Who counts a resource, or a value of one (`name:value`); None = nobody."""
        found = self._by_resource.get(resource)
        return found or self._by_resource.get(resource.partition(":")[0])
