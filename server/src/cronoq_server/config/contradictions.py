"""Which values of the configuration don't go together."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence

from cronoq_server.config import rules
from cronoq_server.config.certificates import tls_problems
from cronoq_server.config.sections import (
    AuthConfig,
    CertConfig,
    Config,
    ResourceConfig,
    StoreConfig,
    TokenConfig,
)
from cronoq_server.config.sharding import sharding_problems
from cronoq_server.config.values import Problem


def contradictions(config: Config) -> list[Problem]:
    """All of them."""
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
    problems += sharding_problems(config)
    problems += tls_problems(config.server)
    problems += auth_problems(config.auth, [pool.name for pool in config.pools])
    if config.auth.certs and config.server.tls.client_ca is None:
        message = "must be given, since auth.certs lets callers in by their certificates"
        problems.append(Problem("server.tls.client_ca", message))
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
            rules.database(store.database())
        except ValueError as error:
            message = f"{error}, or the environment variable {store.url_env} hold one"
            problems.append(Problem("store.url", message))
    return problems


def _pace_problems(store: StoreConfig) -> list[Problem]:
    """Durations that leave no room for each other."""
    keepalive_max, renew_max = store.session_timeout_s / 4, store.lease_ttl_s / 2
    bounds = (
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
        for name, is_kept, bound in bounds
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


def auth_problems(auth: AuthConfig, pools: Sequence[str]) -> list[Problem]:
    """Credentials that are given twice, not at all, or for what there is not."""
    problems: list[Problem] = []
    for index, token in enumerate(auth.tokens):
        problems += _token_problems(f"auth.tokens[{index}]", token)
    for path, credential in credentials(auth):
        problems += _reach_problems(path, credential, pools)
    problems += _same_credentials(auth)
    problems += _same_names(auth)
    return problems


def credentials(auth: AuthConfig) -> Iterator[tuple[str, TokenConfig | CertConfig]]:
    """All credentials with their paths."""
    for index, token in enumerate(auth.tokens):
        yield f"auth.tokens[{index}]", token
    for index, cert in enumerate(auth.certs):
        yield f"auth.certs[{index}]", cert


def token_digest(token: TokenConfig) -> bytes | None:
    """The SHA-256 of a token, wherever the configuration has it from; None if it has none."""
    if token.token_sha256 is not None:
        return bytes.fromhex(token.token_sha256)
    text = token.token or os.environ.get(token.token_env or "")
    return hashlib.sha256(text.encode()).digest() if text else None


def _token_problems(path: str, token: TokenConfig) -> list[Problem]:
    ways = ("token", "token_env", "token_sha256")
    given = [way for way in ways if getattr(token, way) is not None]
    if len(given) == 1:
        return []
    if given:
        return [Problem(f"{path}.{given[1]}", f"can't be given together with {given[0]}")]
    return [Problem(f"{path}.token", "must be given, or token_env, or token_sha256")]


def _reach_problems(
    path: str, credential: TokenConfig | CertConfig, pools: Sequence[str]
) -> list[Problem]:
    """What a credential is limited to and does not go with its role, or does not exist."""
    problems = []
    for name, role in (("labels", "worker"), ("tenant", "client")):
        if getattr(credential, name) is not None and credential.role != role:
            message = f"belongs to the role {role}, this credential's is {credential.role}"
            problems.append(Problem(f"{path}.{name}", message))
    for pool in sorted((credential.pools or frozenset()) - frozenset(pools)):
        problems.append(Problem(f"{path}.pools", f"there is no pool {pool!r}"))
    return problems


def _same_credentials(auth: AuthConfig) -> list[Problem]:
    first: dict[bytes | str, str] = {}
    problems = []
    for path, credential in credentials(auth):
        mark: bytes | str | None
        if isinstance(credential, TokenConfig):
            what, mark = "the token", token_digest(credential)
        else:
            what, mark = "the DNS name", credential.dns_name
        if mark is not None and first.setdefault(mark, path) != path:
            problems.append(Problem(path, f"{what} is also that of {first[mark]}"))
    return problems


def _same_names(auth: AuthConfig) -> list[Problem]:
    """Credentials of one name are one party, so they must be good for the same."""
    first: dict[str, tuple[str, object]] = {}
    problems = []
    for path, one in credentials(auth):
        if one.name is None:
            continue
        reach = (one.role, one.pools, one.labels, one.tenant)
        earlier, its_reach = first.setdefault(one.name, (path, reach))
        if reach != its_reach:
            message = (
                f"{one.name!r} is also the name of {earlier}, which is good for something else"
            )
            problems.append(Problem(f"{path}.name", message))
    return problems
