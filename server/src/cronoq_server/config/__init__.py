"""What the configuration may say, what it means when it says nothing, and what is a mistake.

`cronoq.toml` and the environment become one frozen `Config`. Rules a change must keep:

1. Every mistake is reported at once, each with its path (`pools[1].max`) and its line.
2. An unknown key is a mistake, and the message names the nearest known key.
3. Defaults live in `sections` and nowhere else; durations are seconds and end in `_s`.
4. A value that could hold a secret is never part of a message, nor of what is shown.

This package knows neither the engine nor the wire: `assembly` translates.
"""

from cronoq_server.config.contradictions import token_digest
from cronoq_server.config.reading import load, parse, read
from cronoq_server.config.sections import (
    GRPC_ADDRESS,
    HTTP_ADDRESS,
    KIB,
    MIB,
    ROLES,
    STORES,
    AuthConfig,
    AutoscaleConfig,
    CertConfig,
    Config,
    LimitsConfig,
    OutputsConfig,
    PeerTlsConfig,
    PoolConfig,
    ResourceConfig,
    RetryConfig,
    ScalerConfig,
    ServerConfig,
    ShardConfig,
    ShardingConfig,
    StoreConfig,
    TlsConfig,
    TokenConfig,
)
from cronoq_server.config.sharding import localized, own_shard, sharding_problems
from cronoq_server.config.shown import to_toml
from cronoq_server.config.values import Address, ConfigError, Problem, parse_address

__all__ = [
    "GRPC_ADDRESS",
    "HTTP_ADDRESS",
    "KIB",
    "MIB",
    "ROLES",
    "STORES",
    "Address",
    "AuthConfig",
    "AutoscaleConfig",
    "CertConfig",
    "Config",
    "ConfigError",
    "LimitsConfig",
    "OutputsConfig",
    "PeerTlsConfig",
    "PoolConfig",
    "Problem",
    "ResourceConfig",
    "RetryConfig",
    "ScalerConfig",
    "ServerConfig",
    "ShardConfig",
    "ShardingConfig",
    "StoreConfig",
    "TlsConfig",
    "TokenConfig",
    "load",
    "localized",
    "own_shard",
    "parse",
    "parse_address",
    "read",
    "sharding_problems",
    "to_toml",
    "token_digest",
]
