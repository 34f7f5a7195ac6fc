"""How a server of one shard deals with what concerns others: route, ask, put together.

`Spread` is what the sharded services share. A decision of the router becomes an action here, and
its refusals become the ones that callers hear.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

from cronoq_server.api.auth import Principal
from cronoq_server.api.passing import passing
from cronoq_server.api.remote import Remote
from cronoq_server.engine import ErrorReason, Refusal
from cronoq_server.runtime.refusals import Refused
from cronoq_server.sharding import (
    Caller,
    Credential,
    FanOut,
    Forward,
    Local,
    Refuse,
    Router,
    Shard,
    Subject,
    Topology,
)
from cronoq_server.sharding.peers import PROBE_EVERY_S

T = TypeVar("T")

ABSENT = frozenset({ErrorReason.TASK_UNKNOWN, ErrorReason.SCHEDULE_UNKNOWN})
LOST = frozenset(
    {
        ErrorReason.SHARD_UNAVAILABLE,
        ErrorReason.STORE_UNAVAILABLE,
        ErrorReason.NOT_LEADER,
        ErrorReason.STOPPING,
    }
)


class Spread:
    """The way from a call to the shards that it concerns.

    Attributes:
        router: Decides where calls go.
        topology: The shards.
    """

    def __init__(self, router: Router, remotes: Mapping[str, Remote]) -> None:
        """Knows how to ask every shard but its own.

        Args:
            router: Decides where calls go.
            remotes: The other shards by their names.
        """
        self.router = router
        self.topology: Topology = router.topology
        self._remotes = remotes

    def remote(self, shard: Shard) -> Remote | None:
        """How to ask a shard; None for the server's own."""
        return self._remotes.get(shard.name)

    def route(self, subject: Subject, who: Principal) -> Local | Forward | FanOut:
        """Where a call goes; shards that a spread answer lacks are noted.

        Raises:
            Refused: It is not for this server, or a shard that it needs does not answer.
        """
        route = self.router.decide(subject, caller_of(who))
        if isinstance(route, Refuse):
            raise Refused(refusal_of(route))
        if isinstance(route, FanOut):
            passing().lacks(route.missing)
        return route

    def single(self, subject: Subject, who: Principal) -> Remote | None:
        """Who answers a call about one thing; None = this server's own shard.

        Raises:
            Refused: See `route`.
        """
        route = self.route(subject, who)
        return self.remote(route.shard) if isinstance(route, Forward) else None

    async def returned(self, shards: Sequence[Shard]) -> Refusal:
        """Waits until one of some silent shards answers; why an answer without it is over then."""
        while True:
            for shard in shards:
                if self.router.answers(shard):
                    text = f"shard {shard.name!r} answers again: begin anew, from the last cursor"
                    return Refusal(ErrorReason.SHARD_UNAVAILABLE, text, (("shards", shard.name),))
            await asyncio.sleep(PROBE_EVERY_S)

    async def gather(
        self,
        route: FanOut,
        own: Callable[[], Awaitable[T]],
        other: Callable[[Remote], Awaitable[T]],
    ) -> list[tuple[Shard, T]]:
        """The answers of all shards of a route that gave one, in the order of their numbers.

        A shard that is lost meanwhile is noted as missing; any other refusal is the answer.

        Raises:
            Refused: A shard refused.
        """
        found = await asyncio.gather(
            *(self._answer(shard, own, other) for shard in route.ask), return_exceptions=True
        )
        answers: list[tuple[Shard, T]] = []
        for shard, answer in zip(route.ask, found, strict=True):
            if isinstance(answer, Refused) and answer.refusal.reason in LOST:
                if shard is self.topology.own:
                    raise answer
                passing().lacks([shard.name])
            elif isinstance(answer, BaseException):
                raise answer
            else:
                answers.append((shard, answer))
        return answers

    async def locate(
        self,
        route: FanOut,
        own: Callable[[], Awaitable[T]],
        other: Callable[[Remote], Awaitable[T]],
        *,
        changes: bool,
        what: str,
    ) -> tuple[Shard, T] | None:
        """The one shard that has what a name stands for, and what it said; None = nobody has.

        Args:
            route: Whom to ask.
            own: Looks in the server's own shard.
            other: Looks in another one.
            changes: Whether it is going to be changed, so that no shard may lack.
            what: The name, for messages.

        Raises:
            Refused: Several shards have it, or one that might is missing.
        """

        async def look(ask: Awaitable[T]) -> T | None:
            try:
                return await ask
            except Refused as refused:
                if refused.refusal.reason in ABSENT:
                    return None
                raise

        answers = await self.gather(route, lambda: look(own()), lambda remote: look(other(remote)))
        have = [(shard, answer) for shard, answer in answers if answer is not None]
        missing = [shard for shard in route.ask if shard not in [one for one, _ in answers]]
        if len(have) > 1:
            names = ", ".join(shard.name for shard, _ in have)
            text = f"{what} names something in several shards ({names}): give the id or the pool"
            raise Refused(Refusal(ErrorReason.KEY_AMBIGUOUS, text, (("shards", names),)))
        if missing and (changes or not have):
            raise Refused(unavailable(missing))
        if not have and route.silent:
            raise Refused(unavailable(route.silent))
        return have[0] if have else None

    async def _answer(
        self,
        shard: Shard,
        own: Callable[[], Awaitable[T]],
        other: Callable[[Remote], Awaitable[T]],
    ) -> T:
        remote = self.remote(shard)
        return await (own() if remote is None else other(remote))


def caller_of(who: Principal) -> Caller:
    """What routing needs to know of who calls."""
    credential = Credential.CERTIFICATE if who.by_certificate else Credential.TOKEN
    if not who.by_certificate and passing().authorization is None:
        credential = Credential.NONE
    return Caller(credential, who.pools, passing().forwarded)


def refusal_of(route: Refuse) -> Refusal:
    """What a caller hears of a call that goes nowhere."""
    if route.reason is not ErrorReason.WRONG_SHARD:
        return unavailable(route.shards)
    shard = route.shards[0]
    text = f"this belongs to shard {shard.name!r}: call it at {shard.endpoint}"
    details = [("shard", shard.name), ("endpoint", shard.endpoint)]
    if shard.http_endpoint:
        details.append(("http_endpoint", shard.http_endpoint))
    return Refusal(ErrorReason.WRONG_SHARD, text, tuple(details))


def unavailable(shards: Sequence[Shard]) -> Refusal:
    """What a caller hears of a call that needs shards which can't be asked."""
    names = ", ".join(shard.name for shard in shards)
    text = f"shards that the answer needs can't be asked: {names}; nothing was executed"
    return Refusal(ErrorReason.SHARD_UNAVAILABLE, text, (("shards", names),))
