"""What callers of a world of shards were told, held against what the shards' databases took.

Each check knows when a call began and when it was answered. What a call may or may not have done
when its answer was lost is assumed neither way.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

import grpc

from cronoq_server.engine.model import ErrorReason, Instant, Status
from tests.sim.shards.wire import Pairs

if TYPE_CHECKING:
    from tests.sim.shards.cluster import Cluster, ShardWorld

LIMITED: Final = ("main-0", "main-1")
"""The pools of the caller that may use only some."""

NO_ANSWER: Final = frozenset(
    {
        ErrorReason.NOT_LEADER,
        ErrorReason.STOPPING,
        ErrorReason.STORE_UNAVAILABLE,
        ErrorReason.SHARD_UNAVAILABLE,
    }
)
"""Reasons that say that somebody could not be asked; so does no reason at all."""


class Told:
    """What came of one call.

    Attributes:
        entry: The shard whose server was called.
        who: The credential that it came with.
        began: When it was made.
        message: The answer; None = it failed.
        missing: Shards that the answer names as missing.
        reason: Why it failed; None = it did not, or nobody said why.
        code: The status that it failed with; None = it did not.
        details: What the refusal says besides.
    """

    __slots__ = ("began", "code", "details", "entry", "message", "missing", "reason", "who")

    def __init__(self, entry: ShardWorld, who: str, began: Instant) -> None:
        self.entry = entry
        self.who = who
        self.began = began
        self.message: Any = None
        self.missing: tuple[str, ...] = ()
        self.reason: ErrorReason | None = None
        self.code: grpc.StatusCode | None = None
        self.details: Pairs = ()

    @property
    def is_lost(self) -> bool:
        """Whether somebody could not be asked, so that the outcome may be unknown."""
        if self.message is not None:
            return False
        return self.reason in NO_ANSWER or self.reason is None


class Promises:
    """Judges a whole world of shards.

    Attributes:
        acknowledged: Tasks that were acknowledged, in order: (id, shard).
        submitted: What became of each call's tasks, by payload: how often it may be there.
        schedules: Schedules that were acknowledged, by name, with their shard.
        told: How many answers were judged, by kind.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.acknowledged: list[tuple[int, ShardWorld]] = []
        self.submitted: dict[bytes, None] = {}
        self.schedules: dict[str, ShardWorld] = {}
        self.told: dict[str, int] = {}

    def broken(self, promise: str, text: str, world: ShardWorld | None = None) -> None:
        """Notes a violation, with the shard that it concerns if there is one."""
        (world or self.cluster.worlds[0]).known.broken(promise, text)

    def visible(self, who: str) -> list[ShardWorld]:
        """The shards that a credential may use."""
        if who != "some":
            return self.cluster.worlds
        return [world for world in self.cluster.worlds if set(world.pools) & set(LIMITED)]

    def asked(self, told: Told) -> list[ShardWorld]:
        """The shards that a spread call was about: a certificate can't be lent to others."""
        return [told.entry] if told.who == "cert" else self.visible(told.who)

    # --- who is missing --------------------------------------------------------------------------

    def naming(self, told: Told, what: str, *, is_part: bool = False) -> None:
        """Shards are named as missing exactly while they are.

        Args:
            told: What came of the call.
            what: What was asked, for messages.
            is_part: Whether the answer may have been complete without asking all shards.
        """
        if told.message is None:
            return
        cluster, self.told[what] = self.cluster, self.told.get(what, 0) + 1
        names = [world.name for world in self.visible(told.who)]
        if len(set(told.missing)) != len(told.missing) or not set(told.missing) <= set(names):
            self.broken("shards are named to who may use them", f"{what}: {told.missing}")
        if told.who == "cert":
            others = tuple(name for name in names if name != told.entry.name)
            if tuple(sorted(told.missing)) != tuple(sorted(others)):
                self.broken("a certificate's answer names all other shards", f"{told.missing}")
            return
        for world in self.visible(told.who):
            where = f"{what} at {told.entry.name}: {world.name}"
            named = world.name in told.missing
            if named and cluster.was_well(told.entry, world, told.began):
                self.broken("a shard is named as missing only while it is", where, world)
            if (
                not named
                and not is_part
                and world is not told.entry
                and cluster.was_away(told.entry, world, told.began)
            ):
                self.broken("a shard that is missing is named", where, world)

    def serves(self, told: Told, what: str, concerned: Iterable[ShardWorld]) -> None:
        """A call that concerns only shards that are well does not fail."""
        if not told.is_lost:
            return
        if all(self.cluster.was_well(told.entry, world, told.began) for world in concerned):
            text = f"{what} at {told.entry.name}: {told.code} {told.reason}"
            self.broken("calls about shards that are well don't fail", text, told.entry)

    def redirected(self, told: Told, owner: ShardWorld, what: str) -> bool:
        """Whether a call was refused with directions; they lead to the owner, and only if needed.

        A caller with a token is never sent on, since its token can be lent.
        """
        if told.reason is not ErrorReason.WRONG_SHARD:
            if told.who == "cert" and owner is not told.entry and told.message is not None:
                self.broken("a certificate is not lent to others", f"{what}: {told.message}")
            return False
        if told.who != "cert" or owner is told.entry:
            self.broken("a call is passed on where it can be", f"{what} at {told.entry.name}")
        elif dict(told.details).get("shard") != owner.name:
            self.broken("directions lead to the owner", f"{what}: {told.details}, {owner.name}")
        return True

    # --- submits ---------------------------------------------------------------------------------

    def admitted(self, pool: str, key: str, payload: bytes, response: Any) -> None:
        """A submit was acknowledged: the task is in its shard's database, under its number."""
        world = self.cluster.owners[pool]
        task_id = response.id
        if task_id >> 56 != world.number:
            self.broken("an id carries its shard's number", f"{task_id:x} in {pool}", world)
            return
        row = world.known.chronicle.rows.get(task_id)
        if row is None:
            self.broken("what was acknowledged is durable", f"{task_id:x}: not written", world)
        elif row.spec.pool not in world.pools or (not response.duplicate and row.spec.pool != pool):
            self.broken("a task is in its own pool", f"{row.spec.pool}, not {pool}", world)
        elif (row.spec.key != key) if response.duplicate else (row.spec.payload != payload):
            self.broken("what was acknowledged is durable", f"{row.spec} for {payload!r}", world)
        self.acknowledged.append((task_id, world))

    # --- looking things up -----------------------------------------------------------------------

    def holders(self, key: str, who: str) -> list[ShardWorld]:
        """Shards whose databases have a task with a key that a caller may see."""
        found = []
        for world in self.visible(who):
            chronicle = world.known.chronicle
            pools = [chronicle.rows[i].spec.pool for i in chronicle.by_key.get(key, ())]
            if any(who != "some" or pool in LIMITED for pool in pools):
                found.append(world)
        return found

    def located(
        self, told: Told, key: str, before: Sequence[ShardWorld], task_id: int, *, changes: bool
    ) -> None:
        """A key was looked for in all shards.

        Args:
            told: What came of it.
            key: The key.
            before: Shards that had it when the call began.
            task_id: The task that was found; 0 = the answer does not say.
            changes: Whether it was to be changed.
        """
        asked = self.asked(told)
        before = [world for world in before if world in asked]
        after = [world for world in self.holders(key, told.who) if world in asked]
        text = f"{key} at {told.entry.name}: {told.reason}, held by {[w.name for w in after]}"
        away = [world for world in asked if self.cluster.was_away(told.entry, world, told.began)]
        away = [world for world in away if world is not told.entry]
        if told.message is not None:
            held = [world for world in before if world.name not in told.missing]
            if len(held) > 1:
                self.broken("a key of two shards is refused", text)
            if not after:
                self.broken("a key that is found is there", text)
            if changes and (away or told.who == "cert"):
                self.broken("nothing is changed by key while a shard is missing", text)
            world = self.cluster.of_id(task_id) if task_id else None
            row = None if world is None else world.known.chronicle.rows.get(task_id)
            if task_id and (row is None or row.spec.key != key):
                self.broken("a key leads to its own task", f"{text}: {task_id:x}")
        elif told.reason is ErrorReason.TASK_UNKNOWN:
            if before:
                self.broken("a key that is there is found", text)
            if away:
                self.broken("a key is unknown only if all shards say so", text)
        elif told.reason is ErrorReason.KEY_AMBIGUOUS and len(after) < 2:
            self.broken("only a key of two shards is refused", text)

    def cancelled(self, key: str, who: str) -> None:
        """A task was said to be cancelled by its key, in one of the shards that have it."""
        for world in self.holders(key, who):
            chronicle = world.known.chronicle
            ids = chronicle.by_key.get(key, ())
            if any(chronicle.has_ended(task_id, Status.CANCELLED) for task_id in ids):
                return
        self.broken("what was acknowledged is durable", f"{key} was said to be cancelled")

    def found(self, told: Told, task_id: int, world: ShardWorld) -> None:
        """A task was looked for by its id, which had been acknowledged."""
        row = world.known.chronicle.rows[task_id]
        allowed = told.who != "some" or row.spec.pool in LIMITED
        if told.reason is ErrorReason.TASK_UNKNOWN and allowed:
            self.broken("a task that is there is known", f"{task_id:x} at {told.entry.name}", world)
        if told.message is None:
            return
        if not allowed:
            self.broken("nobody sees other pools' tasks", f"{task_id:x}", world)
        elif told.message.id != task_id or told.message.pool != row.spec.pool:
            self.broken("a task is shown as itself", f"{told.message} for {task_id:x}", world)
        else:
            world.oracle.answers.saw(task_id, told.message.status, told.message.attempt)

    # --- listings --------------------------------------------------------------------------------

    def ids(self, who: str) -> dict[int, ShardWorld]:
        """All tasks in the databases that a caller may see."""
        return {
            task_id: world
            for world in self.visible(who)
            for task_id, row in world.known.chronicle.rows.items()
            if who != "some" or row.spec.pool in LIMITED
        }

    def walked(
        self, who: str, before: dict[int, ShardWorld], seen: Sequence[int], missing: set[str]
    ) -> None:
        """All pages of a listing were read: each task once, none left out but of missing shards."""
        if len(set(seen)) != len(seen):
            self.broken("a listing has each task once", f"{len(seen)} of {len(set(seen))}")
        there = set(seen)
        lacking = [
            task_id
            for task_id, world in before.items()
            if task_id not in there and world.name not in missing
        ]
        if lacking:
            world = before[lacking[0]]
            text = f"{len(lacking)} of {len(before)}, {lacking[0]:x} of {world.name}, for {who}"
            self.broken("a listing leaves nothing out", text, world)
        known = self.ids(who)
        for task_id in seen:
            if task_id not in known:
                self.broken("a listing shows what is there", f"{task_id:x} for {who}")

    # --- the end ---------------------------------------------------------------------------------

    def judge_end(self, waiting: Iterable[str]) -> None:
        """All has come to rest."""
        for world in self.cluster.worlds:
            world.oracle.judge_end(())
        for who in waiting:
            self.broken("every wait gets its end", who)
        times: dict[bytes, int] = {}
        for world in self.cluster.worlds:
            for row in world.known.chronicle.rows.values():
                times[row.spec.payload] = times.get(row.spec.payload, 0) + 1
        for payload in self.submitted:
            if times.get(payload, 0) > 1:
                self.broken("a call is passed on once", f"{payload!r} is there {times[payload]}×")
