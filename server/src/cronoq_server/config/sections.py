"""Which values the configuration has, and their defaults, which live here and nowhere else.

Durations are seconds and end in `_s`. The reference in the documentation is drawn from these
classes: a key needs its words there.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from cronoq_server.config import rules
from cronoq_server.config.values import Address

KIB = 1024
MIB = 1024 * KIB

STORES = ("memory", "sqlite", "postgres")
"""Kinds of stores."""

ROLES = ("client", "worker", "metrics", "admin")
"""What credentials may be good for."""

GRPC_ADDRESS = Address("127.0.0.1", 7070)
HTTP_ADDRESS = Address("127.0.0.1", 7071)


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsConfig:
    """`server.tls`: what the server shows of itself, and whose client certificates it takes."""

    cert: str | None = rules.entry(rules.path, None)
    key: str | None = rules.entry(rules.path, None)
    client_ca: str | None = rules.entry(rules.path, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerTlsConfig:
    """`server.peer_tls`: how it connects to servers of other shards."""

    ca: str | None = rules.entry(rules.path, None)
    cert: str | None = rules.entry(rules.path, None)
    key: str | None = rules.entry(rules.path, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """`[server]`: where it listens and how it behaves as a process."""

    grpc_addr: Address = rules.entry(rules.address, GRPC_ADDRESS)
    http_addr: Address = rules.entry(rules.address, HTTP_ADDRESS)
    metrics_addr: Address | None = rules.entry(rules.address, None)
    shutdown_grace_s: float = rules.entry(rules.number(0, 86_400), 30.0)
    insecure_no_auth: bool = rules.entry(rules.boolean, False)
    log_level: str = rules.entry(rules.choice("debug", "info", "warning", "error"), "info")
    log_format: str = rules.entry(rules.choice("json", "text"), "json")
    otlp_endpoint: str | None = rules.entry(rules.open_url, None)
    profiling: bool = rules.entry(rules.boolean, False)
    insecure_peer_http: bool = rules.entry(rules.boolean, False)
    shard: str | None = rules.entry(rules.name, None)
    tls: TlsConfig = rules.table(TlsConfig)
    peer_tls: PeerTlsConfig = rules.table(PeerTlsConfig)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenConfig:
    """One of `[[auth.tokens]]`: a bearer token and what it is good for."""

    token: str | None = rules.secret(rules.token)
    token_env: str | None = rules.entry(rules.token_variable, None)
    token_sha256: str | None = rules.secret(rules.sha256)
    role: str = rules.entry(rules.choice(*ROLES))
    name: str | None = rules.entry(rules.name, None)
    pools: frozenset[str] | None = rules.entry(rules.names, None)
    labels: rules.Labels | None = rules.entry(rules.labels, None)
    tenant: str | None = rules.entry(rules.name, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class CertConfig:
    """One of `[[auth.certs]]`: a client certificate, by a name in it, and what it is good for."""

    dns_name: str = rules.entry(rules.dns_name)
    role: str = rules.entry(rules.choice(*ROLES))
    name: str | None = rules.entry(rules.name, None)
    pools: frozenset[str] | None = rules.entry(rules.names, None)
    labels: rules.Labels | None = rules.entry(rules.labels, None)
    tenant: str | None = rules.entry(rules.name, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthConfig:
    """`[auth]`: who may call; without any credential nobody is asked."""

    tokens: tuple[TokenConfig, ...] = rules.tables(TokenConfig)
    certs: tuple[CertConfig, ...] = rules.tables(CertConfig)

    @property
    def is_on(self) -> bool:
        """Whether callers are asked who they are."""
        return bool(self.tokens or self.certs)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreConfig:
    """`[store]`: where state is kept."""

    kind: str = rules.entry(rules.choice(*STORES), "memory")
    path: str | None = rules.entry(rules.path, None)
    url: str | None = rules.secret(rules.database)
    url_env: str = rules.entry(rules.variable_name, "DATABASE_URL")
    lock_url: str | None = rules.secret(rules.database)
    schema: str | None = rules.entry(rules.schema, None)
    keep_finished_s: float = rules.entry(rules.seconds(above_zero=True), 604_800.0)
    retention_s: float = rules.entry(rules.seconds(), 3600.0)
    commit_timeout_s: float = rules.entry(rules.seconds(above_zero=True), 30.0)
    lock_poll_s: float = rules.entry(rules.number(0.01, 60), 0.5)
    keepalive_s: float = rules.entry(rules.number(0.01, 3600), 1.0)
    session_timeout_s: float = rules.entry(rules.number(0.1, 3600), 10.0)
    max_connections: int = rules.entry(rules.whole(3, 100), 5)
    lease_ttl_s: float = rules.entry(rules.number(0.1, 3600), 10.0)
    lease_renew_s: float = rules.entry(rules.number(0.01, 3600), 2.0)
    busy_timeout_s: float = rules.entry(rules.number(0, 3600), 5.0)
    full_sync: bool = rules.entry(rules.boolean, True)
    prune_interval_s: float = rules.entry(rules.number(0.01, 86_400), 60.0)
    prune_batch: int = rules.entry(rules.whole(1, 100_000), 1000)

    def database(self) -> str | None:
        """The database of a postgres store: `url`, or else what `url_env` names."""
        return self.url or os.environ.get(self.url_env) or None


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitsConfig:
    """`[limits]`: bounds on what callers and workers may ask for."""

    max_tasks_per_batch: int = rules.entry(rules.whole(1, 10_000), 1000)
    max_pending_total: int = rules.entry(rules.whole(1, 1_000_000_000), 10_000_000)
    max_message_bytes: int = rules.entry(rules.whole(256 * KIB, 1024 * MIB), 4 * MIB)
    max_http_body_bytes: int = rules.entry(rules.whole(1, 1024 * MIB), 4 * MIB)
    max_key_len: int = rules.entry(rules.whole(1, 4096), 256)
    max_tags: int = rules.entry(rules.whole(0, 1000), 32)
    max_deps: int = rules.entry(rules.whole(0, 4000), 100)
    max_deps_per_batch: int = rules.entry(rules.whole(0, 1_000_000), 5000)
    max_resources: int = rules.entry(rules.whole(0, 100), 8)
    max_wait_s: float = rules.entry(rules.seconds(above_zero=True), 60.0)
    request_timeout_s: float = rules.entry(rules.seconds(above_zero=True), 40.0)
    max_concurrent_requests: int = rules.entry(rules.whole(1, 1_000_000), 2000)
    max_waiters: int = rules.entry(rules.whole(1, 10_000_000), 100_000)
    max_concurrent_streams: int = rules.entry(rules.whole(1, 1_000_000), 10_000)
    max_slots_per_worker: int = rules.entry(rules.whole(1, 1_000_000), 10_000)
    key_retention_s: float = rules.entry(rules.seconds(), 3600.0)
    finished_max: int = rules.entry(rules.whole(0, 100_000_000), 1_000_000)
    max_list: int = rules.entry(rules.whole(1, 10_000), 1000)
    watch_buffer: int = rules.entry(rules.whole(1, 1_000_000), 10_000)
    max_queued_reports: int = rules.entry(rules.whole(1, 10_000_000), 100_000)
    idle_connection_timeout_s: float = rules.entry(rules.seconds(above_zero=True), 120.0)
    keepalive_interval_s: float = rules.entry(rules.number(1, 86_400), 20.0)
    keepalive_timeout_s: float = rules.entry(rules.number(0, 3600, above=True), 10.0)
    submits_per_second_per_token: float = rules.entry(rules.number(0, 1e9), 0.0)
    catch_up_max: int = rules.entry(rules.whole(0, 100_000), 1000)
    catch_up_window_s: float = rules.entry(rules.seconds(), 604_800.0)
    backfill_max: int = rules.entry(rules.whole(1, 100_000), 1000)
    max_batch_mutations: int = rules.entry(rules.whole(1, 1_000_000), 20_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryConfig:
    """`retry` of a pool: what tasks get that say nothing else."""

    max_attempts: int = rules.entry(rules.whole(1, 4_294_967_295), 3)
    initial_backoff_s: float = rules.entry(rules.seconds(above_zero=True), 1.0)
    multiplier: float = rules.entry(rules.number(0, 1e6, above=True), 2.0)
    max_backoff_s: float = rules.entry(rules.seconds(above_zero=True), 60.0)
    jitter: bool = rules.entry(rules.boolean, True)


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoscaleConfig:
    """`autoscale` of a pool: how its wanted number of slots follows its load."""

    target_utilization: float = rules.entry(rules.number(0.01, 1), 0.75)
    drain_time_s: float = rules.entry(rules.seconds(above_zero=True), 30.0)
    interval_s: float = rules.entry(rules.number(0.1, 3600), 1.0)
    stabilization_window_s: float = rules.entry(rules.seconds(), 60.0)
    cooldown_s: float = rules.entry(rules.seconds(), 30.0)
    max_step_up: int = rules.entry(rules.whole(1, 1_000_000), 4)
    max_step_down: int = rules.entry(rules.whole(1, 1_000_000), 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalerConfig:
    """`scaler` of a pool: who is told how many slots it wants."""

    webhook: str | None = rules.secret(rules.url)
    token_env: str | None = rules.entry(rules.set_variable, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolConfig:
    """One of `[[pools]]`."""

    name: str = rules.entry(rules.name)
    min: int = rules.entry(rules.whole(0, 10_000_000), 0)
    max: int | None = rules.entry(rules.whole(1, 10_000_000), None)
    max_pending: int = rules.entry(rules.whole(1, 1_000_000_000), 1_000_000)
    overflow: str = rules.entry(
        rules.choice("wait", "reject", "shed_lowest", "shed_oldest"), "wait"
    )
    lease_ttl_s: float = rules.entry(rules.number(0.1, 86_400), 30.0)
    retry: RetryConfig = rules.table(RetryConfig)
    default_duration_s: float = rules.entry(rules.seconds(above_zero=True), 1.0)
    reservable_fraction: float = rules.entry(rules.number(0, 1), 0.5)
    max_hold_s: float = rules.entry(rules.seconds(), 10.0)
    await_unknown_dependencies_s: float = rules.entry(rules.seconds(), 0.0)
    fair_share: bool = rules.entry(rules.boolean, False)
    tenant_weights: tuple[tuple[str, float], ...] = rules.entry(rules.weights, ())
    max_slots_per_worker: int | None = rules.entry(rules.whole(1, 1_000_000), None)
    autoscale: AutoscaleConfig = rules.table(AutoscaleConfig)
    scaler: ScalerConfig = rules.table(ScalerConfig)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceConfig:
    """One of `[[resources]]`: a limit that tasks share across pools."""

    name: str = rules.entry(rules.name)
    kind: str = rules.entry(rules.choice("semaphore", "token_bucket"), "semaphore")
    permits: int | None = rules.entry(rules.whole(1, 4_294_967_295), None)
    rate: float | None = rules.entry(rules.number(0, 1e9, above=True), None)
    burst: int | None = rules.entry(rules.whole(1, 4_294_967_295), None)
    per_value: bool = rules.entry(rules.boolean, False)
    shard: str | None = rules.entry(rules.name, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputsConfig:
    """`[outputs]`: what the memory store keeps of results."""

    cache_bytes: int = rules.entry(rules.whole(0, 1 << 40), 64 * MIB)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardingConfig:
    """`[sharding]`: how servers of several shards deal with each other."""

    peer_timeout_s: float = rules.entry(rules.number(0.05, 60), 2.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardConfig:
    """One of `[[shards]]`: pools with a leader, standbys and a store of their own."""

    name: str = rules.entry(rules.name)
    number: int = rules.entry(rules.whole(1, 255))
    pools: frozenset[str] = rules.entry(rules.names)
    endpoint: str = rules.entry(rules.endpoint)
    http_endpoint: str | None = rules.entry(rules.endpoint, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The whole configuration of one server."""

    server: ServerConfig = rules.table(ServerConfig)
    auth: AuthConfig = rules.table(AuthConfig)
    store: StoreConfig = rules.table(StoreConfig)
    limits: LimitsConfig = rules.table(LimitsConfig)
    pools: tuple[PoolConfig, ...] = rules.tables(PoolConfig, (PoolConfig(name="default"),))
    resources: tuple[ResourceConfig, ...] = rules.tables(ResourceConfig)
    outputs: OutputsConfig = rules.table(OutputsConfig)
    sharding: ShardingConfig = rules.table(ShardingConfig)
    shards: tuple[ShardConfig, ...] = rules.tables(ShardConfig)
