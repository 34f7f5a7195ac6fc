"""Which events must first be looked up in the store, and holding them back until they were.

A store may know finished tasks by keys and ids that the engine has forgotten. An event that names
such a one (`Engine.wants`) waits here while the steps go on; one query asks for all that wait.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, Final, get_args

from msgspec.structs import replace

from cronoq_server.engine.engine import Engine
from cronoq_server.engine.events import Bulk, Event, Redrive
from cronoq_server.engine.model import TaskRef
from cronoq_server.engine.mutations import StoredTask
from cronoq_server.runtime.clock import Clock, after
from cronoq_server.runtime.inbox import Inbox
from cronoq_server.runtime.writer import BACKOFF_MAX, BACKOFF_MIN
from cronoq_server.stores.base import FinishedQuery, Store, Unavailable

log = logging.getLogger(__name__)

LOOKED_UP: Final = frozenset(
    kind for kind in get_args(Event) if "found" in kind.__struct_fields__ and kind is not Bulk
)
"""Types of events that carry what was found, by id and by key."""


class Lookups:
    """Events that wait for the store's memory."""

    def __init__(self, engine: Engine, store: Store, inbox: Inbox, clock: Clock) -> None:
        self._engine = engine
        self._store = store
        self._inbox = inbox
        self._clock = clock
        self._held: list[Any] = []
        self._asked: list[Any] = []
        self._names: set[TaskRef] = set()
        self._query: asyncio.Task[dict[TaskRef, StoredTask]] | None = None

    def __len__(self) -> int:
        """How many events are held back."""
        return len(self._held) + len(self._asked)

    def sift(self, events: list[Event]) -> list[Event]:
        """Takes those out that must be held back, and adds in front those that were long enough.

        Args:
            events: What has arrived.

        Returns:
            What may enter the engine now.
        """
        wants = self._engine.wants
        entering = self._answered() if self._query is not None else []
        for event in events:
            if type(event) in LOOKED_UP and any(wants(event)):
                self._inbox.set_entered(event.call, False)  # type: ignore[union-attr]
                self._held.append(event)
            else:
                entering.append(event)
        if self._held and self._query is None:
            self._ask()
        return entering

    def _ask(self) -> None:
        self._asked, self._held = self._held, []
        names: dict[TaskRef, None] = {}
        whole: dict[TaskRef, None] = {}
        for event in self._asked:
            ids, keys = self._engine.wants(event)
            names |= dict.fromkeys((*ids, *keys))
            if type(event) is Redrive:
                whole |= dict.fromkeys((*ids, *keys))
        self._names = set(names)
        self._query = asyncio.get_running_loop().create_task(self._found(names, whole))
        self._query.add_done_callback(lambda _: self._inbox.bell.set())

    async def _found(
        self, names: dict[TaskRef, None], whole: dict[TaskRef, None]
    ) -> dict[TaskRef, StoredTask]:
        """Asks until the store answers; callers that wait too long are refused meanwhile."""
        backoff = BACKOFF_MIN
        while True:
            try:
                return await self._find(names, whole)
            except Unavailable as error:
                log.warning(
                    "a look-up failed, trying again: %s", str(error), extra={"action": "store_late"}
                )
            await self._clock.sleep_until(after(self._clock.now(), backoff))
            backoff = min(2 * backoff, BACKOFF_MAX)

    async def _find(
        self, names: dict[TaskRef, None], whole: dict[TaskRef, None]
    ) -> dict[TaskRef, StoredTask]:
        ids = tuple(name for name in names if isinstance(name, int))
        keys = tuple(name for name in names if isinstance(name, str))
        page = await self._store.find_finished(FinishedQuery(ids=ids, keys=keys))
        found = _by_name(page.tasks, names)
        wanted = [found[name].task_id for name in whole if name in found]
        if wanted:
            found |= _by_name(await self._store.load_tasks(wanted), names)
        return found

    def _answered(self) -> list[Event]:
        """Takes the events whose look-up is done, with what was found."""
        assert self._query is not None
        if not self._query.done():
            return []
        found, asked, names = self._query.result(), self._asked, self._names
        self._query, self._asked = None, []
        entering: list[Event] = []
        for event in asked:
            if not self._inbox.is_waiting(event.call):
                continue
            ids, keys = self._engine.wants(event)
            if not names.issuperset((*ids, *keys)):
                # The engine forgot one more task meanwhile.
                self._held.append(event)
                continue
            mine = {name: found[name] for name in (*ids, *keys) if name in found}
            self._inbox.set_entered(event.call, True)
            entering.append(replace(event, found=mine))
        return entering

    async def abandon(self) -> None:
        """Forgets everything that is held back."""
        self._held.clear()
        self._asked.clear()
        if self._query is not None:
            self._query.cancel()
            await asyncio.wait({self._query})
            if not self._query.cancelled():
                self._query.exception()
            self._query = None


def _by_name(tasks: Sequence[StoredTask], names: dict[TaskRef, None]) -> dict[TaskRef, StoredTask]:
    """Tasks under each name that was asked for; of one key the newest."""
    found: dict[TaskRef, StoredTask] = {}
    for task in sorted(tasks, key=lambda task: task.task_id):
        for name in (task.task_id, task.spec.key):
            if name in names:
                found[name] = task
    return found
