"""Where a call goes: answered here, passed on, spread over shards, or refused with directions.

Pure: the decision follows from what the call is about, who calls and which peers answer, and from
nothing else. Rules a change must keep:

1. A call that another server passed on is answered here or refused, never passed on again.
2. Passing on never needs more than the caller's own token: one that came with a certificate has
   none to lend, and a token never leaves unencrypted for another host unless that is allowed.
3. A shard is named only to callers who may use one of its pools.
4. What cannot be asked is said: reads name what they lack, and a change that rests on asking every
   shard is refused while one is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import TypeAlias

import msgspec

from cronoq_server.engine.model import ErrorReason
from cronoq_server.sharding.topology import Shard, Topology


class Credential(StrEnum):
    """How a caller showed who it is."""

    NONE = "none"
    """Nobody is asked on this server."""
    TOKEN = "token"
    CERTIFICATE = "certificate"


class Caller(msgspec.Struct, frozen=True):
    """What routing needs to know of who calls.

    Attributes:
        credential: How it showed who it is.
        pools: Pools it may use; None = all.
        forwarded: Whether another server passed its call on.
    """

    credential: Credential = Credential.NONE
    pools: frozenset[str] | None = None
    forwarded: bool = False


# What a call is about.


class OnPool(msgspec.Struct, frozen=True):
    """Something that belongs to a pool: a submission, a pause, a schedule that is put."""

    pool: str


class OnTask(msgspec.Struct, frozen=True):
    """A task, by its id."""

    task_id: int


class OnName(msgspec.Struct, frozen=True):
    """A task by its key, or a schedule by its name: any shard may have it.

    Attributes:
        changes: Whether the call changes it, so that it has to be the only one.
    """

    changes: bool


class OnResource(msgspec.Struct, frozen=True):
    """A resource."""

    resource: str


class OnAll(msgspec.Struct, frozen=True):
    """A read over all shards.

    Attributes:
        pools: Only these pools matter; empty = all.
    """

    pools: tuple[str, ...] = ()


class OnWork(msgspec.Struct, frozen=True):
    """A worker's stream, which is never passed on."""

    pool: str


class OnOwn(msgspec.Struct, frozen=True):
    """What only the server that is asked can know: a lease, a preview of an expression."""


Subject: TypeAlias = OnPool | OnTask | OnName | OnResource | OnAll | OnWork | OnOwn


# Where it goes.


class Local(msgspec.Struct, frozen=True):
    """Answered by this server's own shard alone."""


class Forward(msgspec.Struct, frozen=True):
    """Passed on to another shard, whose answer is the answer."""

    shard: Shard


class FanOut(msgspec.Struct, frozen=True):
    """Asked of several shards.

    Attributes:
        ask: Whom to ask, in the order of their numbers; may hold the own shard.
        silent: Shards that do not answer.
        barred: Shards that this caller's credential cannot be passed on to.
    """

    ask: tuple[Shard, ...]
    silent: tuple[Shard, ...] = ()
    barred: tuple[Shard, ...] = ()

    @property
    def missing(self) -> tuple[str, ...]:
        """The names that the answer lacks."""
        lacking = sorted((*self.silent, *self.barred), key=lambda shard: shard.number)
        return tuple(shard.name for shard in lacking)


class Refuse(msgspec.Struct, frozen=True):
    """Not done.

    Attributes:
        reason: Why.
        shards: The shards that it is about; the caller may go to the first one by itself if the
            reason is `wrong_shard`.
    """

    reason: ErrorReason
    shards: tuple[Shard, ...]


Route: TypeAlias = Local | Forward | FanOut | Refuse

LOCAL = Local()


class Router:
    """Decides for one server."""

    def __init__(
        self,
        topology: Topology,
        answers: Callable[[Shard], bool],
        *,
        insecure_peer_http: bool = False,
    ) -> None:
        """Knows the shards and asks about peers at each decision.

        Args:
            topology: The shards.
            answers: Whether a peer answered when it was last probed.
            insecure_peer_http: Whether tokens may travel unencrypted to other hosts.
        """
        self.topology = topology
        self._answers = answers
        self._insecure = insecure_peer_http

    def decide(self, subject: Subject, caller: Caller) -> Route:
        """Where a call goes.

        Args:
            subject: What it is about; the caller is known to be allowed what it names.
            caller: Who calls.
        """
        if not self.topology.is_sharded:
            return LOCAL
        match subject:
            case OnOwn():
                return LOCAL
            case OnPool(pool):
                return self._single(self.topology.of_pool(pool), caller)
            case OnTask(task_id):
                return self._task(task_id, caller)
            case OnResource(resource):
                return self._single(self.topology.of_resource(resource), caller)
            case OnWork(pool):
                owner = self.topology.of_pool(pool)
                if owner is None or owner is self.topology.own:
                    return LOCAL
                return Refuse(ErrorReason.WRONG_SHARD, (owner,))
            case OnName(changes):
                return self._by_name(caller, changes=changes)
            case OnAll(pools):
                return self._spread(self._visible(caller, pools), caller)

    def answers(self, shard: Shard) -> bool:
        """Whether another shard answered when it was last probed."""
        return self._answers(shard)

    def can_lend_to(self, shard: Shard, caller: Caller) -> bool:
        """Whether the caller's credential may be passed on to a shard."""
        if caller.credential is Credential.CERTIFICATE:
            return False
        safe = shard.is_encrypted or shard.is_local or self._insecure
        return safe or caller.credential is Credential.NONE

    def _single(self, owner: Shard | None, caller: Caller) -> Route:
        """One shard is concerned; nobody's things are unknown here as anywhere."""
        if owner is None or owner is self.topology.own:
            return LOCAL
        if caller.forwarded or not self.can_lend_to(owner, caller):
            return Refuse(ErrorReason.WRONG_SHARD, (owner,))
        if not self._answers(owner):
            return Refuse(ErrorReason.SHARD_UNAVAILABLE, (owner,))
        return Forward(owner)

    def _task(self, task_id: int, caller: Caller) -> Route:
        owner = self.topology.of_id(task_id)
        if owner is not None and not owner.is_open_to(caller.pools):
            return LOCAL  # as unknown as an id that was never given
        return self._single(owner, caller)

    def _by_name(self, caller: Caller, *, changes: bool) -> Route:
        route = self._spread(self._visible(caller), caller)
        if isinstance(route, FanOut) and changes:
            lacking = (*route.silent, *route.barred)
            if lacking:
                return Refuse(ErrorReason.SHARD_UNAVAILABLE, lacking)
        return route

    def _visible(self, caller: Caller, pools: Iterable[str] = ()) -> list[Shard]:
        """Shards that the caller may use, in the order of their numbers."""
        named = frozenset(pools)
        return [
            shard
            for shard in self.topology.shards
            if shard.is_open_to(caller.pools) and (not named or not shard.pools.isdisjoint(named))
        ]

    def _spread(self, shards: list[Shard], caller: Caller) -> Route:
        own = self.topology.own
        if caller.forwarded or not shards or shards == [own]:
            return LOCAL
        ask, silent, barred = [], [], []
        for shard in shards:
            if shard is own:
                ask.append(shard)
            elif not self.can_lend_to(shard, caller):
                barred.append(shard)
            elif not self._answers(shard):
                silent.append(shard)
            else:
                ask.append(shard)
        return FanOut(tuple(ask), tuple(silent), tuple(barred))
