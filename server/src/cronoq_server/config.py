"""What the configuration may say, what it means when it says nothing, and what is a mistake.

`cronoq.toml` becomes one frozen `Config`. Rules a change must keep:

1. Every mistake is reported at once, each with its path (`pools[1].max`).
2. An unknown key is a mistake, and the message names the nearest known key.
3. Defaults live here and nowhere else; durations are seconds and end in `_s`.
4. A value that could hold a secret is never part of a message.

This module knows neither the engine nor the wire: `app` translates.
"""

from __future__ import annotations

import difflib
import ipaddress
import math
import os
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

YEAR_S = 366 * 86_400.0
KIB = 1024
MIB = 1024 * KIB

STORES = ("memory", "sqlite", "postgres")
"""Kinds of stores."""

_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,62}")
_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,64}")

T = TypeVar("T")


class Problem(NamedTuple):
    """One mistake: where it is and what is wrong with it."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}"


class ConfigError(Exception):
    """The configuration has mistakes.

    Attributes:
        source: The file, or a word for where the values came from.
        problems: All mistakes, in the order of the file.
    """

    def __init__(self, source: str, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(f"{source}: {problem}" for problem in problems))
        self.source = source
        self.problems = tuple(problems)


class Address(NamedTuple):
    """Where to listen; port 0 lets the system choose."""

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


GRPC_ADDRESS = Address("127.0.0.1", 7070)
HTTP_ADDRESS = Address("127.0.0.1", 7071)


def parse_address(value: object) -> Address:
    """Reads `host:port`, with an IPv6 host in brackets.

    Raises:
        ValueError: It is not of that form.
    """
    if not isinstance(value, str):
        raise ValueError("must be a text of the form host:port")
    host, colon, port = value.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f"{value!r} is ambiguous: put an IPv6 host in brackets, [::1]:7070")
    if not colon or not host or not port.isdecimal() or int(port) > 65_535:
        raise ValueError(f"{value!r} is not of the form host:port with a port from 0 to 65535")
    return Address(host, int(port))


# Rules for single values: each takes what TOML gave and returns what the config holds, or raises
# ValueError with what people need to know.

Rule = Callable[[object], Any]


def _int(low: int, high: int) -> Rule:
    def rule(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError(f"must be a whole number, not {_kind(value)}")
        if not low <= value <= high:
            raise ValueError(f"must be from {low} to {high}, not {value}")
        return value

    return rule


def _float(low: float, high: float, *, above: bool = False) -> Rule:
    def rule(value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ValueError(f"must be a number, not {_kind(value)}")
        if math.isnan(value) or not low <= value <= high or (above and value == low):
            bound = f"above {low:g} and at most {high:g}" if above else f"from {low:g} to {high:g}"
            raise ValueError(f"must be {bound}, not {value:g}")
        return float(value)

    return rule


def _seconds(*, above_zero: bool = False) -> Rule:
    return _float(0, YEAR_S, above=above_zero)


def _bool(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"must be true or false, not {_kind(value)}")
    return value


def _choice(*words: str) -> Rule:
    def rule(value: object) -> str:
        if value not in words:
            raise ValueError(f"must be one of {', '.join(words)}, not {value!r}")
        return str(value)

    return rule


def _name(value: object) -> str:
    if not isinstance(value, str) or _NAME.fullmatch(value) is None:
        raise ValueError(f"must be 1 to 64 of letters, digits, '_', '.', ':', '-', not {value!r}")
    return value


def _url(value: object) -> str:
    parts = urlsplit(value) if isinstance(value, str) else None
    if parts is None or parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("must be an http:// or https:// address")
    return str(value)


def _variable(value: object) -> str:
    if not isinstance(value, str) or not value or not os.environ.get(value):
        raise ValueError(f"must name an environment variable that is set, not {value!r}")
    return value


def _database(value: object) -> str:
    # Nothing of the value may be told: it may hold a password.
    try:
        parts = urlsplit(value) if isinstance(value, str) else None
    except ValueError:
        parts = None
    if parts is None or parts.scheme not in ("postgres", "postgresql"):
        raise ValueError("must be a postgres:// address")
    return str(value)


def _schema(value: object) -> str:
    if not isinstance(value, str) or _SCHEMA.fullmatch(value) is None:
        raise ValueError("must be 1 to 63 of lower-case letters, digits and '_', no digit first")
    return value


def _variable_name(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError("must be the name of an environment variable")
    return value


def _path(value: object) -> str:
    if not isinstance(value, str) or not value or "\0" in value:
        raise ValueError("must be the path of a file")
    return value


def _weights(value: object) -> tuple[tuple[str, float], ...]:
    if not isinstance(value, dict):
        raise ValueError(f"must be a table of tenant = weight, not {_kind(value)}")
    weigh = _float(0, 1e6, above=True)
    return tuple(sorted((_name(tenant), weigh(weight)) for tenant, weight in value.items()))


def _kind(value: object) -> str:
    names = {str: "a text", bool: "a boolean", int: "a whole number", float: "a number"}
    return names.get(type(value), "a table" if isinstance(value, dict) else "a list")


def _value(rule: Rule, default: Any = MISSING) -> Any:
    """A field with its rule; without a default it must be given."""
    if default is MISSING:
        return field(metadata={"rule": rule})
    return field(default=default, metadata={"rule": rule})


def _secret(rule: Rule, default: Any) -> Any:
    """A field whose value is never printed."""
    return field(default=default, repr=False, metadata={"rule": rule})


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """`[server]`: where it listens and how it behaves as a process."""

    grpc_addr: Address = field(default=GRPC_ADDRESS, metadata={"rule": parse_address})
    http_addr: Address = field(default=HTTP_ADDRESS, metadata={"rule": parse_address})
    shutdown_grace_s: float = _value(_float(0, 86_400), 30.0)
    insecure_no_auth: bool = _value(_bool, False)
    log_level: str = _value(_choice("debug", "info", "warning", "error"), "info")
    log_format: str = _value(_choice("json", "text"), "json")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreConfig:
    """`[store]`: where state is kept."""

    kind: str = _value(_choice(*STORES), "memory")
    path: str | None = _value(_path, None)
    url: str | None = _secret(_database, None)
    url_env: str = _value(_variable_name, "DATABASE_URL")
    lock_url: str | None = _secret(_database, None)
    schema: str = _value(_schema, "public")
    keep_finished_s: float = _value(_seconds(above_zero=True), 604_800.0)
    retention_s: float = _value(_seconds(), 3600.0)
    commit_timeout_s: float = _value(_seconds(above_zero=True), 30.0)
    lock_poll_s: float = _value(_float(0.01, 60), 0.5)
    keepalive_s: float = _value(_float(0.01, 3600), 1.0)
    session_timeout_s: float = _value(_float(0.1, 3600), 10.0)
    lease_ttl_s: float = _value(_float(0.1, 3600), 10.0)
    lease_renew_s: float = _value(_float(0.01, 3600), 2.0)
    busy_timeout_s: float = _value(_float(0, 3600), 5.0)
    full_sync: bool = _value(_bool, True)
    prune_interval_s: float = _value(_float(0.01, 86_400), 60.0)
    prune_batch: int = _value(_int(1, 100_000), 1000)

    def database(self) -> str | None:
        """The database of a postgres store: `url`, or else what `url_env` names."""
        return self.url or os.environ.get(self.url_env) or None


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitsConfig:
    """`[limits]`: bounds on what callers and workers may ask for."""

    max_tasks_per_batch: int = _value(_int(1, 10_000), 1000)
    max_pending_total: int = _value(_int(1, 1_000_000_000), 10_000_000)
    max_message_bytes: int = _value(_int(256 * KIB, 1024 * MIB), 4 * MIB)
    max_key_len: int = _value(_int(1, 4096), 256)
    max_tags: int = _value(_int(0, 1000), 32)
    max_deps: int = _value(_int(0, 4000), 100)
    max_deps_per_batch: int = _value(_int(0, 1_000_000), 5000)
    max_resources: int = _value(_int(0, 100), 8)
    max_wait_s: float = _value(_seconds(above_zero=True), 60.0)
    request_timeout_s: float = _value(_seconds(above_zero=True), 40.0)
    max_concurrent_requests: int = _value(_int(1, 1_000_000), 2000)
    max_waiters: int = _value(_int(1, 10_000_000), 100_000)
    max_concurrent_streams: int = _value(_int(1, 1_000_000), 10_000)
    max_slots_per_worker: int = _value(_int(1, 1_000_000), 10_000)
    key_retention_s: float = _value(_seconds(), 3600.0)
    finished_max: int = _value(_int(0, 100_000_000), 1_000_000)
    max_list: int = _value(_int(1, 10_000), 1000)
    watch_buffer: int = _value(_int(1, 1_000_000), 10_000)
    max_queued_reports: int = _value(_int(1, 10_000_000), 100_000)
    idle_connection_timeout_s: float = _value(_seconds(above_zero=True), 120.0)
    keepalive_interval_s: float = _value(_float(1, 86_400), 20.0)
    keepalive_timeout_s: float = _value(_float(0, 3600, above=True), 10.0)
    catch_up_max: int = _value(_int(0, 100_000), 1000)
    catch_up_window_s: float = _value(_seconds(), 604_800.0)
    backfill_max: int = _value(_int(1, 100_000), 1000)
    max_batch_mutations: int = _value(_int(1, 1_000_000), 20_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryConfig:
    """`retry` of a pool: what tasks get that say nothing else."""

    max_attempts: int = _value(_int(1, 4_294_967_295), 3)
    initial_backoff_s: float = _value(_seconds(above_zero=True), 1.0)
    multiplier: float = _value(_float(0, 1e6, above=True), 2.0)
    max_backoff_s: float = _value(_seconds(above_zero=True), 60.0)
    jitter: bool = _value(_bool, True)


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoscaleConfig:
    """`autoscale` of a pool: how its wanted number of slots follows its load."""

    target_utilization: float = _value(_float(0.01, 1), 0.75)
    drain_time_s: float = _value(_seconds(above_zero=True), 30.0)
    interval_s: float = _value(_float(0.1, 3600), 1.0)
    stabilization_window_s: float = _value(_seconds(), 60.0)
    cooldown_s: float = _value(_seconds(), 30.0)
    max_step_up: int = _value(_int(1, 1_000_000), 4)
    max_step_down: int = _value(_int(1, 1_000_000), 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalerConfig:
    """`scaler` of a pool: who is told how many slots it wants."""

    webhook: str | None = _value(_url, None)
    token_env: str | None = _value(_variable, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolConfig:
    """One of `[[pools]]`."""

    name: str = _value(_name)
    min: int = _value(_int(0, 10_000_000), 0)
    max: int | None = _value(_int(1, 10_000_000), None)
    max_pending: int = _value(_int(1, 1_000_000_000), 1_000_000)
    overflow: str = _value(_choice("wait", "reject", "shed_lowest", "shed_oldest"), "wait")
    lease_ttl_s: float = _value(_float(0.1, 86_400), 30.0)
    retry: RetryConfig = field(default_factory=RetryConfig, metadata={"table": RetryConfig})
    default_duration_s: float = _value(_seconds(above_zero=True), 1.0)
    reservable_fraction: float = _value(_float(0, 1), 0.5)
    max_hold_s: float = _value(_seconds(), 10.0)
    await_unknown_dependencies_s: float = _value(_seconds(), 0.0)
    fair_share: bool = _value(_bool, False)
    tenant_weights: tuple[tuple[str, float], ...] = _value(_weights, ())
    max_slots_per_worker: int | None = _value(_int(1, 1_000_000), None)
    autoscale: AutoscaleConfig = field(
        default_factory=AutoscaleConfig, metadata={"table": AutoscaleConfig}
    )
    scaler: ScalerConfig = field(default_factory=ScalerConfig, metadata={"table": ScalerConfig})


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceConfig:
    """One of `[[resources]]`: a limit that tasks share across pools."""

    name: str = _value(_name)
    kind: str = _value(_choice("semaphore", "token_bucket"), "semaphore")
    permits: int | None = _value(_int(1, 4_294_967_295), None)
    rate: float | None = _value(_float(0, 1e9, above=True), None)
    burst: int | None = _value(_int(1, 4_294_967_295), None)
    per_value: bool = _value(_bool, False)


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputsConfig:
    """`[outputs]`: what the memory store keeps of results."""

    cache_bytes: int = _value(_int(0, 1 << 40), 64 * MIB)


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The whole configuration of one server."""

    server: ServerConfig = field(default_factory=ServerConfig, metadata={"table": ServerConfig})
    store: StoreConfig = field(default_factory=StoreConfig, metadata={"table": StoreConfig})
    limits: LimitsConfig = field(default_factory=LimitsConfig, metadata={"table": LimitsConfig})
    pools: tuple[PoolConfig, ...] = field(
        default=(PoolConfig(name="default"),), metadata={"tables": PoolConfig}
    )
    resources: tuple[ResourceConfig, ...] = field(default=(), metadata={"tables": ResourceConfig})
    outputs: OutputsConfig = field(default_factory=OutputsConfig, metadata={"table": OutputsConfig})


def load(path: Path) -> Config:
    """Reads a configuration file.

    Raises:
        ConfigError: It can't be read, is no TOML, or has mistakes; all of them are named.
    """
    source = str(path)
    try:
        text = path.read_bytes().decode()
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ConfigError(source, [Problem("file", reason)]) from error
    except UnicodeDecodeError as error:
        raise ConfigError(source, [Problem("file", "is not UTF-8 text")]) from error
    return parse(text, source)


def parse(text: str, source: str = "configuration") -> Config:
    """Reads a configuration from TOML text.

    Args:
        text: The TOML.
        source: What messages call it.

    Raises:
        ConfigError: It is no TOML, or has mistakes; all of them are named.
    """
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        what, _, where = str(error).rpartition(" (at ")
        path = where.rstrip(")") if what else "TOML"
        raise ConfigError(source, [Problem(path, what or str(error))]) from error
    return read(document, source)


def read(document: Mapping[str, Any], source: str = "configuration") -> Config:
    """Reads a configuration from tables, as TOML would give them.

    Args:
        document: The tables.
        source: What messages call them.

    Raises:
        ConfigError: They have mistakes; all of them are named.
    """
    problems: list[Problem] = []
    config = _table(Config, document, "", problems)
    if config is not None:
        seen = {problem.path for problem in problems}
        problems += [other for other in _contradictions(config) if other.path not in seen]
    if problems or config is None:
        raise ConfigError(source, problems)
    return config


def _table(cls: type[T], table: object, path: str, problems: list[Problem]) -> T | None:
    """Reads one table; None if a value that must be there is not, with the reason noted."""
    if not isinstance(table, Mapping):
        problems.append(Problem(path, f"must be a table, not {_kind(table)}"))
        return None
    known = {entry.name: entry for entry in fields(cls)}  # type: ignore[arg-type]
    prefix = f"{path}." if path else ""
    values: dict[str, Any] = {}
    for key, given in table.items():
        entry = known.get(key)
        if entry is None:
            (nearest,) = difflib.get_close_matches(key, known, n=1, cutoff=0.0)
            problems.append(Problem(prefix + key, f"unknown key; the nearest one is {nearest!r}"))
            continue
        value = _entry(entry.metadata, given, prefix + key, problems)
        if value is not None:
            values[key] = value
    for name, entry in known.items():
        if name not in table and entry.default is MISSING and entry.default_factory is MISSING:
            problems.append(Problem(prefix + name, "must be given"))
    try:
        return cls(**values)
    except TypeError:  # a value without default is missing or wrong; it has been noted
        return None


def _entry(
    metadata: Mapping[str, Any], given: object, path: str, problems: list[Problem]
) -> Any | None:
    if "table" in metadata:
        return _table(metadata["table"], given, path, problems)
    if "tables" in metadata:
        return _tables(metadata["tables"], given, path, problems)
    try:
        return metadata["rule"](given)
    except ValueError as error:
        problems.append(Problem(path, str(error)))
        return None


def _tables(
    cls: type[T], given: object, path: str, problems: list[Problem]
) -> tuple[T, ...] | None:
    if not isinstance(given, list):
        problems.append(Problem(path, f"must be written as [[{path}]]"))
        return None
    read = [_table(cls, one, f"{path}[{index}]", problems) for index, one in enumerate(given)]
    whole = tuple(one for one in read if one is not None)
    return whole if len(whole) == len(read) else None


def _contradictions(config: Config) -> list[Problem]:
    """Mistakes that need more than one value to be seen."""
    problems: list[Problem] = []
    limits, store = config.limits, config.store
    if limits.request_timeout_s <= store.commit_timeout_s:
        problems.append(
            Problem(
                "limits.request_timeout_s",
                f"must exceed store.commit_timeout_s ({store.commit_timeout_s:g}), "
                f"is {limits.request_timeout_s:g}",
            )
        )
    problems += _place_problems(store) + _pace_problems(store)
    if store.retention_s < limits.key_retention_s:
        problems.append(
            Problem(
                "store.retention_s",
                f"must not be below limits.key_retention_s ({limits.key_retention_s:g}), "
                f"is {store.retention_s:g}",
            )
        )
    if not config.pools:
        problems.append(Problem("pools", "there must be at least one"))
    problems += _doubles("pools", [pool.name for pool in config.pools])
    problems += _doubles("resources", [resource.name for resource in config.resources])
    for index, resource in enumerate(config.resources):
        problems += _resource_problems(f"resources[{index}]", resource)
    return problems


def _place_problems(store: StoreConfig) -> list[Problem]:
    """What says where a store is and does not go with its kind, or is missing."""
    problems = []
    for name, kind in (("path", "sqlite"), ("url", "postgres"), ("lock_url", "postgres")):
        if store.kind != kind and getattr(store, name) is not None:
            problems.append(Problem(f"store.{name}", f"does not belong to a {store.kind} store"))
    if store.kind == "sqlite" and store.path is None:
        problems.append(Problem("store.path", "must be given for a sqlite store"))
    if store.kind == "postgres" and store.url is None:
        try:
            _database(store.database())
        except ValueError as error:
            message = f"{error}, or the environment variable {store.url_env} hold one"
            problems.append(Problem("store.url", message))
    return problems


def _pace_problems(store: StoreConfig) -> list[Problem]:
    """Durations that leave no room for each other."""
    keepalive_max, renew_max = store.session_timeout_s / 4, store.lease_ttl_s / 2
    rules = (
        ("keep_finished_s", store.keep_finished_s >= store.retention_s, "at least retention_s"),
        (
            "keepalive_s",
            store.keepalive_s <= keepalive_max,
            "at most a quarter of session_timeout_s",
        ),
        ("lease_renew_s", store.lease_renew_s <= renew_max, "at most half of lease_ttl_s"),
    )
    return [
        Problem(f"store.{name}", f"must be {bound}, is {getattr(store, name):g}")
        for name, is_kept, bound in rules
        if not is_kept
    ]


def _doubles(path: str, names: Sequence[str]) -> list[Problem]:
    first: dict[str, int] = {}
    problems = []
    for index, name in enumerate(names):
        if first.setdefault(name, index) != index:
            message = f"{name!r} is also the name of {path}[{first[name]}]"
            problems.append(Problem(f"{path}[{index}].name", message))
    return problems


def _resource_problems(path: str, resource: ResourceConfig) -> list[Problem]:
    wanted = {"semaphore": ("permits",), "token_bucket": ("rate", "burst")}
    problems = []
    for name in ("permits", "rate", "burst"):
        given = getattr(resource, name) is not None
        if given and name not in wanted[resource.kind]:
            problems.append(Problem(f"{path}.{name}", f"does not belong to a {resource.kind}"))
        elif not given and name in wanted[resource.kind]:
            problems.append(Problem(f"{path}.{name}", f"must be given for a {resource.kind}"))
    return problems
