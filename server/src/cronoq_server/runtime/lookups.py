"""Which events must first be looked up in the store, and holding them back until they were.

A store may know finished tasks by keys and ids that the engine has forgotten, and only it has
their payloads. An event that needs such a one (`Engine.wants`) waits here while the steps go on;
one query asks for all that wait. What puts ended tasks back is looked up only when everything
that was decided before is durable, so that an end that a caller may have heard of is found.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final, TypeAlias, TypeVar, get_args

from msgspec.structs import replace

from cronoq_server.engine.engine import Engine
from cronoq_server.engine.events import Bulk, Delete, Event, Redrive
from cronoq_server.engine.model import BulkAction, TaskRef
from cronoq_server.engine.mutations import StoredTask
from cronoq_server.engine.queries import within
from cronoq_server.engine.redrive import REDRIVABLE
from cronoq_server.runtime.clock import Clock, after
from cronoq_server.runtime.inbox import Inbox
from cronoq_server.runtime.writer import BACKOFF_MAX, BACKOFF_MIN
from cronoq_server.stores.base import FinishedQuery, Store, Unavailable

log = logging.getLogger(__name__)

T = TypeVar("T")
Found: TypeAlias = dict[TaskRef, StoredTask]
Page: TypeAlias = tuple[list[StoredTask], int, Found]
"""Whole tasks, the cursor behind them, and their parents that have ended."""

LOOKED_UP: Final = frozenset(
    kind for kind in get_args(Event) if "found" in kind.__struct_fields__ and kind is not Bulk
)
"""Types of events that carry what was found, by id and by key."""

AFTER_COMMIT: Final = frozenset({Bulk, Delete, Redrive})
"""Types of events about ends: those decided before must be durable before they are looked for."""

PARENTS_AT_ONCE: Final = 1000
"""Parents of tasks to be put back that one query looks for."""


class Lookups:
    """Events that wait for the store's memory."""

    def __init__(self, engine: Engine, store: Store, inbox: Inbox, clock: Clock) -> None:
        self._engine = engine
        self._store = store
        self._inbox = inbox
        self._clock = clock
        self._held: list[tuple[int, Any]] = []
        self._asked: list[Any] = []
        self._names: set[TaskRef] = set()
        self._query: asyncio.Task[Found] | None = None
        self._pages: dict[asyncio.Task[Page], Bulk] = {}

    def __len__(self) -> int:
        """How many events are held back."""
        return len(self._held) + len(self._asked) + len(self._pages)

    def sift(self, events: list[Event], made: int, durable: int) -> list[Event]:
        """Takes those out that must be held back, and adds in front those that were long enough.

        Args:
            events: What has arrived.
            made: Position of the last batch that holds anything, on its way or still forming.
            durable: Position of the last batch that is durable.

        Returns:
            What may enter the engine now.
        """
        entering = self._answered() if self._asked or self._pages else []
        for event in events:
            if self._is_held(event):
                self._inbox.set_entered(event.call, False)  # type: ignore[union-attr]
                self._held.append((made if type(event) in AFTER_COMMIT else 0, event))
            else:
                entering.append(event)
        if self._held:
            self._ask(durable)
        return entering

    def _is_held(self, event: Event) -> bool:
        if type(event) in LOOKED_UP:
            return any(self._engine.wants(event))
        return isinstance(event, Bulk) and event.action is BulkAction.RETRY

    def _ask(self, durable: int) -> None:
        """Begins to look up what may be looked up now; by name only one query at a time."""
        held, self._held = self._held, []
        ready: list[Any] = []
        for needs, event in held:
            if needs > durable or (self._query is not None and type(event) is not Bulk):
                self._held.append((needs, event))
            elif type(event) is Bulk:
                self._pages[self._begin(partial(self._page, event))] = event
            else:
                ready.append(event)
        if ready:
            names: dict[TaskRef, None] = {}
            whole: dict[TaskRef, None] = {}
            for event in ready:
                ids, keys = self._engine.wants(event)
                names |= dict.fromkeys((*ids, *keys))
                if type(event) is Redrive:
                    whole |= dict.fromkeys((*ids, *keys))
            self._asked, self._names = ready, set(names)
            self._query = self._begin(partial(self._find, names, whole))

    def _begin(self, ask: Callable[[], Awaitable[T]]) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(self._until_answered(ask))
        task.add_done_callback(lambda _: self._inbox.bell.set())
        return task

    async def _until_answered(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Asks until the store answers; callers that wait too long are refused meanwhile."""
        backoff = BACKOFF_MIN
        while True:
            try:
                return await ask()
            except Unavailable as error:
                log.warning(
                    "a look-up failed, trying again: %s", str(error), extra={"action": "store_late"}
                )
            await self._clock.sleep_until(after(self._clock.now(), backoff))
            backoff = min(2 * backoff, BACKOFF_MAX)

    async def _find(self, names: dict[TaskRef, None], whole: dict[TaskRef, None]) -> Found:
        page = await self._store.find_finished(_query(names))
        found = _by_name(page.tasks, names)
        wanted = [found[name].task_id for name in whole if name in found]
        if wanted:
            tasks = await self._store.load_tasks(wanted)
            found |= _by_name(tasks, names)
            # A parent may be put back by another of these calls: what is whole stays whole.
            found = await self._parents_of(tasks) | found
        return found

    async def _parents_of(self, tasks: Sequence[StoredTask]) -> Found:
        """Those that have ended of whom tasks to be put back depend on: edges are judged anew."""
        names = dict.fromkeys(edge.target for task in tasks for edge in task.spec.dependencies)
        targets = list(names)
        found: Found = {}
        for start in range(0, len(targets), PARENTS_AT_ONCE):
            some = targets[start : start + PARENTS_AT_ONCE]
            page = await self._store.find_finished(_query(some))
            found |= _by_name(page.tasks, names)
        return found

    async def _page(self, event: Bulk) -> Page:
        """A page of whole tasks that could be put back."""
        wanted = within(event.filter, event.scope)
        statuses = tuple(s for s in REDRIVABLE if not wanted.statuses or s in wanted.statuses)
        if not statuses:
            return [], 0, {}
        query = FinishedQuery(
            filter=replace(wanted, statuses=statuses), after=event.after, limit=event.limit
        )
        page = await self._store.find_finished(query)
        whole = await self._store.load_tasks([task.task_id for task in page.tasks])
        parents = {} if event.dry_run else await self._parents_of(whole)
        return sorted(whole, key=lambda task: task.task_id), page.next_after, parents

    def _answered(self) -> list[Event]:
        """Takes the events whose look-up is done, with what was found."""
        entering: list[Event] = []
        if self._query is not None and self._query.done():
            found, asked, names = self._query.result(), self._asked, self._names
            self._query, self._asked = None, []
            for event in asked:
                ids, keys = self._engine.wants(event)
                if names.issuperset((*ids, *keys)):
                    mine = {name: found[name] for name in (*ids, *keys) if name in found}
                    if type(event) is Redrive:
                        mine = _with_parents(mine, found)
                    entering += self._released(replace(event, found=mine))
                else:
                    # The engine forgot one more task meanwhile.
                    self._held.append((0, event))
        for task in [task for task in self._pages if task.done()]:
            bulk = self._pages.pop(task)
            tasks, following, parents = task.result()
            page = replace(bulk, found=tuple(tasks), found_next=following, parents=parents)
            entering += self._released(page)
        return entering

    def _released(self, event: Any) -> list[Event]:
        """The event on its way into the engine, unless its caller has gone."""
        if not self._inbox.is_waiting(event.call):
            return []
        self._inbox.set_entered(event.call, True)
        return [event]

    async def abandon(self) -> None:
        """Forgets everything that is held back."""
        running: list[asyncio.Task[Any]] = [*self._pages]
        if self._query is not None:
            running.append(self._query)
        self._held.clear()
        self._asked.clear()
        self._pages.clear()
        self._query = None
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


def _query(names: Iterable[TaskRef]) -> FinishedQuery:
    ids = tuple(name for name in names if isinstance(name, int))
    return FinishedQuery(ids=ids, keys=tuple(name for name in names if isinstance(name, str)))


def _by_name(tasks: Sequence[StoredTask], names: dict[TaskRef, None]) -> Found:
    """Tasks under each name that was asked for; of one key the newest."""
    found: Found = {}
    for task in sorted(tasks, key=lambda task: task.task_id):
        for name in (task.task_id, task.spec.key):
            if name in names:
                found[name] = task
    return found


def _with_parents(mine: Found, found: Found) -> Found:
    """A task that was found, and its parents among all that was."""
    edges = [edge for task in mine.values() for edge in task.spec.dependencies]
    return mine | {edge.target: found[edge.target] for edge in edges if edge.target in found}
