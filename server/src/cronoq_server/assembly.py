"""What the configuration means: the settings of engine, driver, replica and store.

The configuration speaks seconds and names of TOML keys; everything below speaks nanoseconds and
words of its own. Only here do they meet.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from typing import NamedTuple

from cronoq_server.api.admin_service import AdminService
from cronoq_server.api.gate import Gate
from cronoq_server.api.remote import Remote
from cronoq_server.api.service import Service
from cronoq_server.api.sharded import ShardedService
from cronoq_server.api.sharded_admin import ShardedAdminService
from cronoq_server.api.specs import SpecReader
from cronoq_server.api.spread import Spread
from cronoq_server.config import MIB, Address, Config, PoolConfig, ResourceConfig, own_shard
from cronoq_server.engine import (
    SECOND,
    AutoscaleSettings,
    Duration,
    EngineSettings,
    Overflow,
    PoolSettings,
    ResourceSettings,
    RetryPolicy,
)
from cronoq_server.ha import ReplicaSettings, TermSettings
from cronoq_server.runtime import Driver, DriverSettings, PruneSettings, Webhook
from cronoq_server.sharding import Router, Shard, Topology
from cronoq_server.sharding.peers import (
    EPOCH_KEY,
    REPLICA_KEY,
    Connect,
    Peers,
    PeerSettings,
    open_channel,
)
from cronoq_server.stores import StoreSettings
from cronoq_server.stores.base import Leadership, Store
from cronoq_server.stores.pg_session import PostgresSettings
from cronoq_server.stores.sqlite_file import SqliteSettings


def nanoseconds(seconds: float) -> Duration:
    """Seconds of the configuration in the engine's unit."""
    return round(seconds * SECOND)


def webhooks(config: Config) -> list[Webhook]:
    """Who is told how many slots pools want."""
    return [
        Webhook(pool.name, pool.scaler.webhook, os.environ.get(pool.scaler.token_env or "", ""))
        for pool in config.pools
        if pool.scaler.webhook is not None
    ]


def store_settings(config: Config) -> StoreSettings:
    """Which store is opened, and how."""
    store = config.store
    sqlite = None
    if store.kind == "sqlite":
        assert store.path is not None
        sqlite = SqliteSettings(
            path=store.path,
            full_sync=store.full_sync,
            busy_timeout=nanoseconds(store.busy_timeout_s),
            lease_ttl=nanoseconds(store.lease_ttl_s),
            lease_renew=nanoseconds(store.lease_renew_s),
            lock_poll=nanoseconds(store.lock_poll_s),
            shard=shard_number(config),
        )
    return StoreSettings(
        kind=store.kind,
        finished_max=config.limits.finished_max,
        cache_bytes=config.outputs.cache_bytes,
        sqlite=sqlite,
        postgres=postgres_settings(config) if store.kind == "postgres" else None,
    )


def shard_number(config: Config) -> int | None:
    """The number of the shard that this server belongs to; None without shards."""
    shard = own_shard(config)
    return None if shard is None else shard.number


def topology(config: Config) -> Topology:
    """Who owns what; from the whole configuration, not from what concerns one shard."""
    shard = own_shard(config)
    if shard is None:
        pools = [pool.name for pool in config.pools]
        return Topology.single(pools, [resource.name for resource in config.resources])
    return Topology(shards_of(config), shard.name)


def shards_of(config: Config) -> list[Shard]:
    """All shards, with the pools and resources that each owns."""
    return [
        Shard(
            one.name,
            one.number,
            one.pools,
            frozenset(r.name for r in config.resources if r.shard == one.name),
            one.endpoint,
            one.http_endpoint or "",
        )
        for one in config.shards
    ]


def peer_settings(config: Config) -> PeerSettings:
    """How servers of other shards are reached."""
    tls = config.server.peer_tls
    return PeerSettings(
        timeout_s=config.sharding.peer_timeout_s,
        message_bytes_max=config.limits.max_message_bytes + MIB,
        ca=tls.ca,
        cert=tls.cert,
        key=tls.key,
    )


def told_of_leader(config: Config, epoch: int, address: Address) -> list[tuple[str, str]]:
    """What whoever probes the leader of a shard hears of it; nothing where there are no shards.

    Args:
        config: The configuration.
        epoch: Of its leadership.
        address: Where it serves gRPC; one that means every address is told as this host's name.
    """
    if not config.shards:
        return []
    if address.host in ("", "0.0.0.0", "::"):
        address = Address(socket.gethostname(), address.port)
    return [(EPOCH_KEY, str(epoch)), (REPLICA_KEY, str(address))]


class Services(NamedTuple):
    """What callers ask.

    Attributes:
        tasks: About tasks.
        admin: About everything else.
        peers: The other shards' servers, to be run beside them; None without shards.
    """

    tasks: Service
    admin: AdminService
    peers: Peers | None


def services(
    config: Config,
    leader: Callable[[], Driver],
    reader: SpecReader,
    connect: Connect = open_channel,
) -> Services:
    """The services of one server, alone or among shards.

    Args:
        config: The server's settings.
        leader: The driver of this moment; raises `Refused` when this process does not lead.
        reader: Reads the specs that come back from other shards.
        connect: Makes a channel to another shard's servers.
    """
    limits, gate = config.limits, Gate(config.limits)
    owners = topology(config)
    if not owners.is_sharded:
        alone = Service(limits, gate, leader)
        return Services(alone, AdminService(alone), None)
    others = [shard for shard in owners.shards if shard is not owners.own]
    peers = Peers(others, peer_settings(config), connect)
    remotes = {
        shard.name: Remote(peers.of(shard), reader, owners.own.name, limits.request_timeout_s)
        for shard in others
    }
    router = Router(owners, peers.answers, insecure_peer_http=config.server.insecure_peer_http)
    spread = Spread(router, remotes)
    tasks = ShardedService(limits, gate, leader, spread)
    return Services(tasks, ShardedAdminService(tasks, spread), peers)


def postgres_settings(config: Config) -> PostgresSettings:
    """How a PostgreSQL store is reached."""
    store = config.store
    database = store.database()
    assert database is not None
    return PostgresSettings(
        url=database,
        lock_url=store.lock_url or "",
        schema=store.schema or "public",
        shard=shard_number(config),
        lock_poll=nanoseconds(store.lock_poll_s),
        keepalive=nanoseconds(store.keepalive_s),
        session_timeout=nanoseconds(store.session_timeout_s),
        commit_timeout=nanoseconds(store.commit_timeout_s),
        connections_max=store.max_connections,
    )


def replica_settings(config: Config) -> ReplicaSettings:
    """What a replica is told."""
    store = config.store
    return ReplicaSettings(
        driver=driver_settings(config),
        term=term_settings(config),
        prune=PruneSettings(
            keep=nanoseconds(store.keep_finished_s),
            interval=nanoseconds(store.prune_interval_s),
            batch=store.prune_batch,
        ),
        grace=nanoseconds(config.server.shutdown_grace_s),
    )


def term_settings(config: Config) -> TermSettings:
    """How leadership is sought and kept over the configured store."""
    store = config.store
    poll = nanoseconds(store.lock_poll_s)
    if store.kind == "sqlite":
        # Nobody takes the lease before it has been silent for its whole time.
        trust = nanoseconds(store.lease_ttl_s - store.lease_renew_s)
        # A check renews what is older than `lease_renew_s`; twice as often, so that none is missed.
        return TermSettings(poll, nanoseconds(store.lease_renew_s / 2), trust)
    if store.kind == "postgres":
        # The database frees the lock of a silent session after this, and a check may rest on
        # one that is a keepalive old.
        trust = nanoseconds(store.session_timeout_s - 2 * store.keepalive_s)
        return TermSettings(poll, nanoseconds(store.keepalive_s), trust)
    return TermSettings(poll, keepalive=None)


def engine_settings(config: Config, leadership: Leadership, store: Store) -> EngineSettings:
    """What an engine is told at the start of a leadership."""
    limits = config.limits
    return EngineSettings(
        pools=tuple(pool_settings(pool) for pool in config.pools),
        resources=tuple(resource_settings(resource) for resource in config.resources),
        shard=shard_number(config),
        epoch=leadership.epoch,
        high_water=leadership.high_water,
        max_pending_total=limits.max_pending_total,
        max_slots_per_worker=limits.max_slots_per_worker,
        key_retention=nanoseconds(limits.key_retention_s),
        finished_max=limits.finished_max,
        max_list=limits.max_list,
        store_remembers=store.capabilities.remembers,
        catch_up_max=limits.catch_up_max,
        catch_up_window=nanoseconds(limits.catch_up_window_s),
        backfill_max=limits.backfill_max,
    )


def pool_settings(pool: PoolConfig) -> PoolSettings:
    """One pool's rules."""
    return PoolSettings(
        name=pool.name,
        max=pool.max,
        max_pending=pool.max_pending,
        overflow=Overflow(pool.overflow),
        lease_ttl=nanoseconds(pool.lease_ttl_s),
        retry=RetryPolicy(
            max_attempts=pool.retry.max_attempts,
            initial_backoff=nanoseconds(pool.retry.initial_backoff_s),
            multiplier=pool.retry.multiplier,
            max_backoff=nanoseconds(pool.retry.max_backoff_s),
            jitter=pool.retry.jitter,
        ),
        default_duration=nanoseconds(pool.default_duration_s),
        max_slots_per_worker=pool.max_slots_per_worker,
        fair_share=pool.fair_share,
        tenant_weights=pool.tenant_weights,
        await_unknown_dependencies=nanoseconds(pool.await_unknown_dependencies_s),
        reservable_fraction=pool.reservable_fraction,
        max_hold=nanoseconds(pool.max_hold_s),
        autoscale=AutoscaleSettings(
            min=pool.min,
            target_utilization=pool.autoscale.target_utilization,
            drain_time=nanoseconds(pool.autoscale.drain_time_s),
            interval=nanoseconds(pool.autoscale.interval_s),
            stabilization_window=nanoseconds(pool.autoscale.stabilization_window_s),
            cooldown=nanoseconds(pool.autoscale.cooldown_s),
            max_step_up=pool.autoscale.max_step_up,
            max_step_down=pool.autoscale.max_step_down,
        ),
    )


def resource_settings(resource: ResourceConfig) -> ResourceSettings:
    """One resource's rules."""
    return ResourceSettings(
        name=resource.name,
        kind=resource.kind,
        permits=resource.permits or 0,
        rate=resource.rate or 0.0,
        burst=resource.burst or 0,
        per_value=resource.per_value,
    )


def driver_settings(config: Config) -> DriverSettings:
    """What a driver is told."""
    limits = config.limits
    return DriverSettings(
        commit_timeout=nanoseconds(config.store.commit_timeout_s),
        retention=nanoseconds(config.store.retention_s),
        batch_mutations_max=limits.max_batch_mutations,
        # A commit delays all behind it, heartbeats' answers too: one of the largest tasks fills it.
        batch_bytes_max=limits.max_message_bytes,
        queued_max=limits.max_queued_reports,
        watch_buffer=limits.watch_buffer,
    )
