"""Somebody who watches all shards through any server, and comes back with its cursor."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from grpc.aio import AioRpcError

from cronoq_server._proto import task_pb2, tasks_pb2
from cronoq_server.api.passing import MISSING_KEY
from cronoq_server.engine.model import FIRST_TERMINAL, SECOND, ErrorReason, Instant
from cronoq_server.runtime import cursors
from tests.sim.shards.promises import Told

if TYPE_CHECKING:
    from tests.sim.shards.callers import Callers
    from tests.sim.shards.cluster import ShardWorld

Seen = tuple[int, int, int]
"""A task, its status, its attempt."""


class Watcher:
    """One watch over all shards, over as many streams as it takes.

    Attributes:
        begun_at: Positions of the shards from which on it must have seen every end, by number.
        seen: Ends it saw, with when, and in which stream.
        streams: How many streams it had.
    """

    def __init__(self, callers: Callers, all_transitions: bool) -> None:
        self.begun_at: dict[int, int] = {}
        self.seen: dict[Seen, tuple[int, int]] = {}
        self.streams = 0
        self._callers = callers
        self._request = tasks_pb2.WatchRequest(all_transitions=all_transitions, bookmarks=True)
        self._again: set[Seen] = set()
        self._last: dict[int, int] = {}
        self._began: Instant = 0
        self._by_store: set[int] = set()
        self.task = callers.cluster.worlds[0].spawn(self._live())

    async def _live(self) -> None:
        callers = self._callers
        while True:
            entry = callers.anywhere()
            self.streams += 1
            told = Told(entry, "all", callers.cluster.timeline.now)
            await self._stream(entry, told)
            if told.reason in (ErrorReason.CURSOR_UNKNOWN, ErrorReason.WATCH_TOO_SLOW):
                callers.promises.broken("a watch goes on from its cursor", f"{told.reason}")
                return
            await callers.pause()

    async def _stream(self, entry: ShardWorld, told: Told) -> None:
        """One stream from its beginning to its end; now and then the reader itself ends it."""
        callers, self._last = self._callers, {}
        self._began, self._by_store = told.began, self._foreign()
        call = callers.streaming(entry, self._request)
        patience = callers.chance.randrange(1, 60) if callers.chance.random() < 0.4 else 10_000
        try:
            while (content := await call.next()) is not None:
                message = tasks_pb2.StatusEvents.FromString(content)
                if told.message is None:
                    told.message, told.missing = message, _named(call.initial or ())
                    callers.promises.naming(told, "watch")
                    self._begin(told)
                patience -= 1
                self._take(message, stops_within=patience == 0)
                if not patience:
                    return
        except AioRpcError as error:
            callers.failed(told, error)
        finally:
            call.leave()

    def _foreign(self) -> set[int]:
        """Shards whose present leaders did not give the cursor that they are resumed from."""
        given = self._request.after_cursor
        parts = msgspec.msgpack.decode(given[1:], type=dict[int, bytes]) if given else {}
        foreign = set()
        for world in self._callers.cluster.worlds:
            cursor = cursors.decode(parts.get(world.number, b""))
            if cursor is None or cursor.epoch != world.disk.epoch:
                foreign.add(world.number)
        return foreign

    def _begin(self, told: Told) -> None:
        for world in self._callers.cluster.worlds:
            if world.name not in told.missing:
                position = world.known.chronicle.position
                self.begun_at.setdefault(world.number, position)

    def _take(self, message: tasks_pb2.StatusEvents, stops_within: bool) -> None:
        """Takes the events of one message; stopping within, the rest of it may come again."""
        for at, event in enumerate(message.events):
            if event.id:
                self._saw(event)
            if event.cursor:
                self._request.after_cursor = event.cursor
            if stops_within and event.cursor and at >= len(message.events) // 2:
                # What follows was not read; what this cursor stands before may come twice.
                self._again.update(_name(event) for event in message.events)
                return
        if message.cursor:
            self._request.after_cursor = message.cursor

    def _saw(self, event: task_pb2.StatusEvent) -> None:
        callers, name = self._callers, _name(event)
        world = callers.cluster.of_id(event.id)
        if world is None:
            callers.promises.broken("an id carries its shard's number", f"{event}")
            return
        world.oracle.answers.saw(*name)
        if event.status < FIRST_TERMINAL:
            return
        before = self.seen.get(name)
        text = f"{name[0]:x} {name[1:]} in stream {self.streams}, before {before}"
        if before is not None:
            # Only a leader who has to go by the store may tell again what was told.
            told_anew = world.served_since > self._began - SECOND or world.number in self._by_store
            told_anew = told_anew or name in self._again
            if not told_anew:
                callers.promises.broken("a watch has each event once", text, world)
        else:
            ends = world.known.chronicle.ends.get(event.id)
            if ends:
                if ends[-1][0] < self._last.get(world.number, 0):
                    callers.promises.broken("a watch has each shard's order", text, world)
                self._last[world.number] = ends[-1][0]
        self.seen[name] = (callers.cluster.timeline.now, self.streams)

    def judge_end(self) -> None:
        """Every end of every shard that came after the watch began was seen."""
        ends = {(task_id, status) for task_id, status, _ in self.seen}
        for world in self._callers.cluster.worlds:
            since = self.begun_at.get(world.number)
            for task_id, found in world.known.chronicle.ends.items():
                position, status = found[-1]
                if since is not None and position > since and (task_id, status) not in ends:
                    text = f"{task_id:x} ended {status} at {position}, begun at {since}"
                    self._callers.promises.broken("a merged watch misses no end", text, world)


def _name(event: task_pb2.StatusEvent) -> Seen:
    return (event.id, event.status, event.attempt)


def _named(metadata: tuple[tuple[str, str], ...]) -> tuple[str, ...]:
    names = dict(metadata).get(MISSING_KEY, "")
    return tuple(names.split(",")) if names else ()
