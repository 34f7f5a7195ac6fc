"""Bugs in what stands between shards, and the proof that each of them is seen.

The first ones are wrong in what is passed on, the next in what is put together from several
shards, the last in who is sent where.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import grpc
import msgspec

from cronoq_server.api import sharded
from cronoq_server.api.merged import MergedWatch
from cronoq_server.api.passing import Passing
from cronoq_server.api.remote import Remote
from cronoq_server.runtime.watch_stream import WatchStream
from cronoq_server.sharding.answers import reason_of
from cronoq_server.sharding.peers import Peer
from cronoq_server.sharding.router import LOCAL, OnName, OnWork, Router
from tests.sim.shards.cluster import TOKENS

if TYPE_CHECKING:
    from tests.sim.mutants import Mutant, Patch


def forwards_twice(patch: Patch) -> None:
    """A call that was lost on its way is made again, whatever came of it."""
    worth = Peer._is_worth_another

    def lost_too(self: Peer, error: grpc.aio.AioRpcError, spent_s: float) -> bool:
        is_lost = error.code() is grpc.StatusCode.UNAVAILABLE and reason_of(error) is None
        return (is_lost and spent_s < self.timeout_s) or worth(self, error, spent_s)

    patch(Peer, "_is_worth_another", lost_too)


def forwards_further(patch: Patch) -> None:
    """Whether a call was passed on already makes no difference."""
    decide = Router.decide

    def forget(self: Router, subject: Any, caller: Any) -> Any:
        return decide(self, subject, msgspec.structs.replace(caller, forwarded=False))

    patch(Router, "decide", forget)


def lends_its_own_token(patch: Patch) -> None:
    """A call is passed on with a credential that opens everything."""
    metadata = Remote._metadata

    def stronger(self: Remote) -> Any:
        mark = [pair for pair in metadata(self) if pair[0] != "authorization"]
        return (*mark, ("authorization", f"Bearer {TOKENS['ops'][1]}"))

    patch(Remote, "_metadata", stronger)


def shard_lost_in_a_list(patch: Patch) -> None:
    """A listing goes from the first shard to the third."""
    from_cursor = sharded._from_cursor

    def skip(*given: Any, **more: Any) -> Any:
        left = from_cursor(*given, **more)
        return left[:1] + left[2:]

    patch(sharded, "_from_cursor", skip)


def page_begun_anew(patch: Patch) -> None:
    """A cursor within a shard begins that shard from its start."""
    patch(sharded, "_holds", lambda _shard, _cursor: False)


def cursor_of_the_wrong_shard(patch: Patch) -> None:
    """A watch is resumed in each shard from the cursor of the next one."""

    def start(self: MergedWatch, number: int) -> bytes:
        numbers = sorted(self._cursors)
        if number not in numbers:
            return b""
        return self._cursors[numbers[(numbers.index(number) + 1) % len(numbers)]]

    patch(MergedWatch, "start", start)


def watch_goes_on_without(patch: Patch) -> None:
    """A watch that began without a shard never hears of it again."""
    patch(MergedWatch, "end_with", lambda _self, _over: None)


def first_cursor_ahead(patch: Patch) -> None:
    """The first cursor of a watch is that of the present, whatever is still to be told."""
    patch(WatchStream, "_start_cursor", lambda self: self._watchers.present())


def missing_not_named(patch: Patch) -> None:
    """Nobody hears which shards an answer lacks."""
    patch(Passing, "lacks", lambda _self, _shards: None)


def key_of_the_own_shard(patch: Patch) -> None:
    """A key is looked for where the call came in, and nowhere else."""
    decide = Router.decide

    def near(self: Router, subject: Any, caller: Any) -> Any:
        return LOCAL if isinstance(subject, OnName) else decide(self, subject, caller)

    patch(Router, "decide", near)


def worker_joins_anywhere(patch: Patch) -> None:
    """A worker stays with the server that it came to."""
    decide = Router.decide

    def stay(self: Router, subject: Any, caller: Any) -> Any:
        return LOCAL if isinstance(subject, OnWork) else decide(self, subject, caller)

    patch(Router, "decide", stay)


MUTANTS: dict[str, Mutant] = {
    "forwards-twice": forwards_twice,
    "forwards-further": forwards_further,
    "lends-its-own-token": lends_its_own_token,
    "shard-lost-in-a-list": shard_lost_in_a_list,
    "page-begun-anew": page_begun_anew,
    "cursor-of-the-wrong-shard": cursor_of_the_wrong_shard,
    "watch-goes-on-without": watch_goes_on_without,
    "first-cursor-ahead": first_cursor_ahead,
    "missing-not-named": missing_not_named,
    "key-of-the-own-shard": key_of_the_own_shard,
    "worker-joins-anywhere": worker_joins_anywhere,
}
