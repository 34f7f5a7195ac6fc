"""Which submits must first be looked up in the store, and holding them back until they were.

A store that remembers longer than the engine knows finished tasks by keys and ids that the engine
has forgotten. A submit that names such a one waits here while the steps go on; one query asks for
all that wait.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from msgspec.structs import replace

from cronoq_server.engine.engine import Engine
from cronoq_server.engine.events import Event, Submit
from cronoq_server.engine.model import TaskRef
from cronoq_server.engine.mutations import StoredTask
from cronoq_server.runtime.clock import Clock, after
from cronoq_server.runtime.inbox import Inbox
from cronoq_server.runtime.writer import BACKOFF_MAX, BACKOFF_MIN
from cronoq_server.stores.base import FinishedQuery, Store, Unavailable

log = logging.getLogger(__name__)


class Lookups:
    """Submits that wait for the store's memory."""

    def __init__(self, engine: Engine, store: Store, inbox: Inbox, clock: Clock) -> None:
        self._engine = engine
        self._store = store
        self._inbox = inbox
        self._clock = clock
        self._remembers = store.capabilities.remembers
        self._held: list[Submit] = []
        self._asked: list[Submit] = []
        self._names: set[TaskRef] = set()
        self._query: asyncio.Task[dict[TaskRef, StoredTask]] | None = None

    def __len__(self) -> int:
        """How many submits are held back."""
        return len(self._held) + len(self._asked)

    def sift(self, events: list[Event]) -> list[Event]:
        """Returns what may enter the engine now: `events` without those to be held back, after
        those whose look-up is done.
        """  # noqa: D205
        if not self._remembers:
            return events
        entering = self._answered()
        for event in events:
            if type(event) is Submit and any(self._engine.wants(event)):
                self._inbox.set_entered(event.call, False)
                self._held.append(event)
            else:
                entering.append(event)
        if self._held and self._query is None:
            self._ask()
        return entering

    def _ask(self) -> None:
        self._asked, self._held = self._held, []
        ids: dict[int, None] = {}
        keys: dict[str, None] = {}
        for event in self._asked:
            wanted_ids, wanted_keys = self._engine.wants(event)
            ids.update(dict.fromkeys(wanted_ids))
            keys.update(dict.fromkeys(wanted_keys))
        self._names = {*ids, *keys}
        self._query = asyncio.get_running_loop().create_task(self._find(tuple(ids), tuple(keys)))
        self._query.add_done_callback(lambda _: self._inbox.bell.set())

    async def _find(self, ids: tuple[int, ...], keys: tuple[str, ...]) -> dict[TaskRef, StoredTask]:
        backoff = BACKOFF_MIN
        while True:
            try:
                page = await self._store.find_finished(FinishedQuery(ids=ids, keys=keys))
            except Unavailable as error:
                log.warning(
                    "a look-up failed, trying again: %s", error, extra={"action": "store_late"}
                )
            else:
                break
            await self._clock.sleep_until(after(self._clock.now(), backoff))
            backoff = min(2 * backoff, BACKOFF_MAX)
        found: dict[TaskRef, StoredTask] = {task.task_id: task for task in page.tasks}
        for task in sorted(page.tasks, key=lambda task: task.task_id):
            if task.spec.key in keys:
                found[task.spec.key] = task
        return found

    def _answered(self) -> list[Event]:
        """Takes the submits whose look-up is done, with what was found."""
        if self._query is None or not self._query.done():
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
            named: Iterable[TaskRef] = (*ids, *keys)
            mine = {name: found[name] for name in named if name in found}
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
