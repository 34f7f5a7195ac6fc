"""What of a configuration that was read again holds from now on, and what waits for a restart.

Credentials, certificates, most limits and the figures of resources are taken live. For everything
else the server goes on with what it was started with, and says so. A configuration with a mistake
changes nothing at all.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from cronoq_server.config import Config, ResourceConfig

FIXED_LIMITS: Final = frozenset(
    {
        "max_message_bytes",
        "idle_connection_timeout_s",
        "keepalive_interval_s",
        "keepalive_timeout_s",
        "watch_buffer",
        "max_queued_reports",
        "max_batch_mutations",
    }
)
"""Limits that ports and drivers are made with."""


class Plan(NamedTuple):
    """What becomes of a configuration that was read again.

    Attributes:
        config: What holds from now on.
        taken: Paths that change now.
        waiting: Paths that change at a restart.
    """

    config: Config
    taken: tuple[str, ...]
    waiting: tuple[str, ...]


def plan(now: Config, read: Config) -> Plan:
    """Decides what to take of a configuration."""
    changed = list(_changes(now, read, ""))
    waiting = tuple(path for path in changed if not _is_live(path, now, read))
    server = dataclasses.replace(
        now.server,
        tls=now.server.tls if _asks_clients_otherwise(now, read) else read.server.tls,
    )
    resources = now.resources if "resources" in waiting else read.resources
    limits = {name: getattr(now.limits, name) for name in FIXED_LIMITS}
    taken = dataclasses.replace(
        now,
        server=server,
        auth=read.auth,
        limits=dataclasses.replace(read.limits, **limits),
        resources=resources,
    )
    return Plan(taken, tuple(path for path in changed if path not in waiting), waiting)


def _changes(now: Any, read: Any, path: str) -> Iterator[str]:
    """The paths on which two tables differ; lists of tables count as one value."""
    for entry in dataclasses.fields(now):
        old, new = getattr(now, entry.name), getattr(read, entry.name)
        here = f"{path}.{entry.name}" if path else entry.name
        if old == new:
            continue
        if "table" in entry.metadata:
            yield from _changes(old, new, here)
        else:
            yield here


def _is_live(path: str, now: Config, read: Config) -> bool:
    section, _, key = path.partition(".")
    if section == "limits":
        return key not in FIXED_LIMITS
    if path.startswith("server.tls."):
        return not _asks_clients_otherwise(now, read)
    if path == "resources":
        return _same_kinds(now.resources, read.resources)
    return section == "auth"


def _asks_clients_otherwise(now: Config, read: Config) -> bool:
    """Whether TLS, or the wish for certificates of clients, is switched on or off: ports can't."""
    before, after = now.server.tls, read.server.tls
    return (before.cert is None, before.client_ca is None) != (
        after.cert is None,
        after.client_ca is None,
    )


def _same_kinds(before: tuple[ResourceConfig, ...], after: tuple[ResourceConfig, ...]) -> bool:
    """Whether no resource has become one of another kind: what is out of it could not be kept."""
    kinds = {one.name: (one.kind, one.per_value) for one in before}
    return all(kinds.get(one.name) in (None, (one.kind, one.per_value)) for one in after)
