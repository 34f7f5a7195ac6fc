"""Decides nothing: what becomes of each operation when another shard's server is asked.

Rows are the operations that the permission matrix has, columns the ways to show who one is; every
cell is what the router says. `docs/guide/security.md` prints it, and a test makes the calls.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from cronoq_server.api.auth import Operation
from cronoq_server.engine.ids import pack
from cronoq_server.sharding import (
    Caller,
    Credential,
    OnAll,
    OnName,
    OnOwn,
    OnPool,
    OnResource,
    OnTask,
    OnWork,
    Router,
    Subject,
    Topology,
)
from tools.routing_table import OPEN, OWN, SAFE, words

About = Callable[[str], Subject]
"""What a call about a pool, or about a task or schedule in it that is named by key, is about."""

_BY_KEY: Final[About] = lambda _: OnName(changes=False)  # noqa: E731
_CHANGED_BY_KEY: Final[About] = lambda _: OnName(changes=True)  # noqa: E731
_EVERYWHERE: Final[About] = lambda _: OnAll()  # noqa: E731

ABOUT: Final[Mapping[Operation, About]] = {
    Operation.SUBMIT: OnPool,
    Operation.CANCEL: _CHANGED_BY_KEY,
    Operation.RETRY: _CHANGED_BY_KEY,
    Operation.DELETE: _CHANGED_BY_KEY,
    Operation.BULK: _EVERYWHERE,
    Operation.GET: _BY_KEY,
    Operation.DESCRIBE: _BY_KEY,
    Operation.LIST_TASKS: _EVERYWHERE,
    Operation.WAIT: _BY_KEY,
    Operation.WATCH: _EVERYWHERE,
    Operation.WORK: OnWork,
    Operation.GET_OUTPUT: lambda _: OnOwn(),
    Operation.SNAPSHOT: _EVERYWHERE,
    Operation.METRICS: lambda _: OnOwn(),
    Operation.LIST_WORKERS: _EVERYWHERE,
    Operation.LIST_POOLS: _EVERYWHERE,
    Operation.LIST_RESOURCES: _EVERYWHERE,
    Operation.LIST_SCHEDULES: _EVERYWHERE,
    Operation.GET_SCHEDULE: _BY_KEY,
    Operation.PREVIEW_SCHEDULE: _BY_KEY,
    Operation.PUT_SCHEDULE: OnPool,
    Operation.REMOVE_SCHEDULE: _CHANGED_BY_KEY,
    Operation.PAUSE_SCHEDULE: _CHANGED_BY_KEY,
    Operation.TRIGGER_SCHEDULE: _CHANGED_BY_KEY,
    Operation.BACKFILL_SCHEDULE: _CHANGED_BY_KEY,
    Operation.PAUSE_POOL: OnPool,
    Operation.SET_RESOURCE: lambda _: OnResource("rb"),
    Operation.PROFILE: lambda _: OnOwn(),
    Operation.MOVE_CLOCK: lambda _: OnOwn(),
}

ALSO_BY_ID: Final = (
    Operation.GET,
    Operation.DESCRIBE,
    Operation.WAIT,
    Operation.CANCEL,
    Operation.RETRY,
    Operation.DELETE,
)

WAYS: Final[tuple[tuple[str, Caller, bool], ...]] = (
    ("token", Caller(Credential.TOKEN), True),
    ("token, and the owner is http on another host", Caller(Credential.TOKEN), False),
    ("certificate", Caller(Credential.CERTIFICATE), True),
    ("a `cronoq-forwarded` of one's own making", Caller(Credential.TOKEN, forwarded=True), True),
)
"""How a caller shows who it is, and whether the owner is reached safely."""


def page_lines() -> list[str]:
    """The table in Markdown."""
    head = ("asked of another shard's server", *(name for name, _, _ in WAYS))
    rows = [head, ("---",) * len(head)]
    for operation, about in ABOUT.items():
        by_id = operation in ALSO_BY_ID
        rows.append((f"{operation}{', by key' if by_id else ''}", *_cells(about("b"))))
        if by_id:
            rows.append((f"{operation}, by id", *_cells(OnTask(pack(2, 1, 1)))))
    return ["| " + " | ".join(cells) + " |" for cells in rows]


def _cells(subject: Subject) -> list[str]:
    cells = []
    for _, caller, is_safe in WAYS:
        router = Router(Topology([OWN, SAFE if is_safe else OPEN], "own"), lambda _: True)
        cells.append(words(router.decide(subject, caller)))
    return cells
