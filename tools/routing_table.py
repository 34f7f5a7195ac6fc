"""Decides nothing: asks the router about every kind of call and writes down what it says.

The table of `docs/spec/routing.md` comes from here, so that it can't say what the router does not.
"""

from __future__ import annotations

from collections.abc import Iterable

from cronoq_server.engine.ids import pack
from cronoq_server.sharding import (
    Caller,
    Credential,
    FanOut,
    Forward,
    Local,
    OnAll,
    OnName,
    OnPool,
    OnResource,
    OnTask,
    OnWork,
    Refuse,
    Route,
    Router,
    Shard,
    Subject,
    Topology,
)

OWN = Shard("own", 1, frozenset({"a"}), frozenset({"ra"}), "https://own.test:7070")
SAFE = Shard("far", 2, frozenset({"b"}), frozenset({"rb"}), "https://far.test:7070")
OPEN = Shard("far", 2, frozenset({"b"}), frozenset({"rb"}), "http://far.test:7070")

CALLS: tuple[tuple[str, Subject], ...] = (
    ("submit, batch, put a schedule, pause a pool", OnPool("b")),
    ("get, wait, describe, cancel, retry, delete by id", OnTask(pack(2, 1, 1))),
    ("resize a resource", OnResource("rb")),
    ("get, wait, describe by key; look at a schedule by name", OnName(changes=False)),
    ("cancel, retry, delete by key; change a schedule by name", OnName(changes=True)),
    ("list, watch, snapshot, bulk, list workers, schedules, pools, resources", OnAll()),
    ("a worker's stream", OnWork("b")),
)
CALLERS = (
    ("token", Caller(Credential.TOKEN)),
    ("certificate", Caller(Credential.CERTIFICATE)),
    ("no authentication", Caller()),
    ("passed on by a peer", Caller(Credential.TOKEN, forwarded=True)),
)
SITUATIONS = (
    ("https, or http on this machine", SAFE, True),
    ("http on another host", OPEN, True),
    ("does not answer", SAFE, False),
)


def words(route: Route) -> str:
    """A decision as the documentation writes it."""
    match route:
        case Local():
            return "own shard only"
        case Forward():
            return "passed on"
        case FanOut(ask):
            return "all shards" if len(ask) > 1 else "own shard, the other is named as missing"
        case Refuse(reason):
            return f"refused: `{reason.value}`"


def rows() -> Iterable[tuple[str, ...]]:
    """Call, situation, and the decision for each kind of caller."""
    for call, subject in CALLS:
        for situation, peer, answers in SITUATIONS:
            router = Router(Topology([OWN, peer], "own"), lambda _, answers=answers: answers)  # type: ignore[misc]
            decided = [words(router.decide(subject, caller)) for _, caller in CALLERS]
            yield (call, situation, *decided)


def page_lines() -> list[str]:
    """The table in Markdown."""
    head = ("call about another shard", "its endpoint", *(name for name, _ in CALLERS))
    table = [head, ("---",) * len(head), *rows()]
    return ["| " + " | ".join(cells) + " |" for cells in table]
