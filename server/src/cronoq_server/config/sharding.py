"""What `[[shards]]` asks of the rest of the configuration, and what one shard's server makes of it.

All servers read the same file. `localized` cuts it down to the pools, resources and store of the
shard that a server is started for; who owns the rest is known from the whole.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator
from typing import Final

from cronoq_server.config import rules
from cronoq_server.config.sections import Config, ShardConfig, StoreConfig
from cronoq_server.config.values import Problem

MARK: Final = "{shard}"
"""Stands for the shard's name in `store.path` and `store.schema`."""

PLAIN_SCHEMA: Final = "public"
SHARDED_SCHEMA: Final = f"cronoq_{MARK}"


def sharding_problems(config: Config) -> list[Problem]:
    """What does not go together in a configuration, with shards or without."""
    if not config.shards:
        return list(_without_shards(config))
    return [
        *_same(config),
        *_pool_problems(config),
        *_resource_problems(config),
        *_template_problems(config),
        *_own_problems(config),
    ]


def _without_shards(config: Config) -> Iterator[Problem]:
    if config.server.shard is not None:
        yield Problem("server.shard", "there are no [[shards]] to choose from")
    for index, resource in enumerate(config.resources):
        if resource.shard is not None:
            yield Problem(f"resources[{index}].shard", "there are no [[shards]]")
    for name in ("path", "schema"):
        if MARK in (getattr(config.store, name) or ""):
            yield Problem(f"store.{name}", f"may hold {MARK} only where there are [[shards]]")


def _same(config: Config) -> Iterator[Problem]:
    for field in ("name", "number", "endpoint"):
        seen: dict[object, int] = {}
        for index, shard in enumerate(config.shards):
            value = getattr(shard, field)
            first = seen.setdefault(value, index)
            if first != index:
                text = f"{value!r} is also the {field} of shards[{first}]"
                yield Problem(f"shards[{index}].{field}", text)


def _pool_problems(config: Config) -> Iterator[Problem]:
    known = {pool.name for pool in config.pools}
    counts = Counter(pool for shard in config.shards for pool in shard.pools)
    for index, shard in enumerate(config.shards):
        for pool in sorted(shard.pools):
            if pool not in known:
                yield Problem(f"shards[{index}].pools", f"there is no pool {pool!r}")
            elif counts[pool] > 1:
                text = f"pool {pool!r} is in {counts[pool]} shards, it must be in one"
                yield Problem(f"shards[{index}].pools", text)
    for index, name in enumerate(pool.name for pool in config.pools):
        if not counts[name]:
            yield Problem(f"pools[{index}].name", f"pool {name!r} is in no shard")


def _resource_problems(config: Config) -> Iterator[Problem]:
    names = [shard.name for shard in config.shards]
    for index, resource in enumerate(config.resources):
        path = f"resources[{index}].shard"
        if resource.shard is None:
            yield Problem(path, "must be given: shards don't share counts")
        elif resource.shard not in names:
            yield Problem(path, f"there is no shard {resource.shard!r}")


def _template_problems(config: Config) -> Iterator[Problem]:
    store = config.store
    if store.kind == "sqlite" and store.path is not None and MARK not in store.path:
        yield Problem("store.path", f"must hold {MARK}: each shard has a file of its own")
    if store.kind != "postgres":
        return
    if store.schema is not None and MARK not in store.schema:
        yield Problem("store.schema", f"must hold {MARK}: each shard has a schema of its own")
        return
    for index, shard in enumerate(config.shards):
        try:
            rules.schema(schema_of(store, shard))
        except ValueError as error:
            text = f"makes the schema {schema_of(store, shard)!r}, which {error}"
            yield Problem(f"shards[{index}].name", text)


def _own_problems(config: Config) -> Iterator[Problem]:
    names = [shard.name for shard in config.shards]
    own = config.server.shard
    if own is not None and own not in names:
        yield Problem("server.shard", f"there is no shard {own!r}, only {', '.join(names)}")


def own_shard(config: Config) -> ShardConfig | None:
    """The shard that a server is started for; None without shards, or if none was chosen."""
    return next((shard for shard in config.shards if shard.name == config.server.shard), None)


def schema_of(store: StoreConfig, shard: ShardConfig | None) -> str:
    """The PostgreSQL schema of a shard's store, or of the only one."""
    if shard is None:
        return store.schema or PLAIN_SCHEMA
    return (store.schema or SHARDED_SCHEMA).replace(MARK, shard.name)


def localized(config: Config) -> Config:
    """What concerns the shard that a server is started for; all of it without shards."""
    shard = own_shard(config)
    store = dataclasses.replace(config.store, schema=schema_of(config.store, shard))
    if shard is None:
        return dataclasses.replace(config, store=store)
    if store.path is not None:
        store = dataclasses.replace(store, path=store.path.replace(MARK, shard.name))
    return dataclasses.replace(
        config,
        store=store,
        pools=tuple(pool for pool in config.pools if pool.name in shard.pools),
        resources=tuple(one for one in config.resources if one.shard == shard.name),
    )
