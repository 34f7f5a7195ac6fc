"""Callers: they ask, lose connections, try again with a key, wait, watch; and say what they saw."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from cronoq_server.engine import effects, events
from cronoq_server.engine.model import (
    FIRST_TERMINAL,
    SECOND,
    BulkAction,
    Duration,
    ErrorReason,
    TaskFilter,
    TaskRef,
    TaskSpec,
)
from cronoq_server.runtime.driver import Driver
from cronoq_server.runtime.refusals import Refused
from cronoq_server.runtime.watchers import WatchFilter, WatchStream
from cronoq_server.stores.base import FinishedQuery, Unavailable

if TYPE_CHECKING:
    from tests.sim.world import Process, World

PASSING = (
    ErrorReason.NOT_LEADER,
    ErrorReason.STOPPING,
    ErrorReason.STORE_UNAVAILABLE,
    ErrorReason.TOO_MANY_REQUESTS,
)
"""Reasons after which a caller tries again."""

NOTHING_DONE = (ErrorReason.NOT_LEADER, ErrorReason.STOPPING, ErrorReason.TOO_MANY_REQUESTS)
"""Reasons that say that nothing was executed."""


class Lost(Exception):
    """The connection broke: the outcome is unknown."""


class Callers:
    """All callers of a world.

    Attributes:
        waiting: Waits without a limit that have not had their end, by what they wait for.
        ends_seen: Ends that the watcher saw.
        acknowledged: Ids that were acknowledged, in order.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.waiting: dict[str, None] = {}
        self.acknowledged: list[int] = []
        self.refusals: dict[str, int] = {}
        self.answered = 0
        self._waits = 0

    # --- the connection --------------------------------------------------------------------------

    async def _reach(self) -> Process:
        """A server that leads and is not frozen."""
        while True:
            process = await self.world.leading()
            frozen = process.machine.frozen_until - self.world.timeline.now
            if frozen <= 0:
                return process
            await self.world.sleep(frozen)

    async def ask(self, build: Callable[[Driver, int], events.Event], tries: int = 1) -> Any:
        """One call; tried again while nothing was executed, or if it may be repeated.

        Args:
            build: Makes the event.
            tries: How often it may be tried when its outcome is unknown.

        Raises:
            Lost: The outcome is unknown.
            Refused: It was refused for good.
        """
        while True:
            process = await self._reach()
            driver = process.driver
            if driver is None:
                continue
            try:
                answer = await self._on(process, driver.inbox.ask(partial(build, driver)))
            except (Lost, Refused) as error:
                reason = error.refusal.reason if isinstance(error, Refused) else None
                if reason is not None and reason not in PASSING:
                    self.refusals[reason] = self.refusals.get(reason, 0) + 1
                    raise
                if reason not in NOTHING_DONE:
                    tries -= 1
                    if tries <= 0:
                        raise Lost from error
                await self.world.sleep(int(SECOND * (0.1 + self.world.chance.random())))
                continue
            self.answered += 1
            return answer

    async def _on(self, process: Process, work: Any) -> Any:
        """Does something on a connection; when the process is gone, so is the answer."""
        task = asyncio.ensure_future(work)
        process.links[task] = task.cancel
        try:
            return await task
        except asyncio.CancelledError:
            if task not in process.links:
                raise Lost from None
            task.cancel()
            raise
        finally:
            process.links.pop(task, None)

    async def _quietly(
        self,
        build: Callable[[Driver, int], events.Event],
        tries: int = 1,
        about: TaskRef | None = None,
    ) -> Any:
        """The answer, or None if there is none to speak of."""
        is_known = about in self.world.known.chronicle.rows
        try:
            return await self.ask(build, tries)
        except Lost:
            return None
        except Refused as error:
            if is_known and error.refusal.reason == ErrorReason.TASK_UNKNOWN:
                self.world.oracle.answers.denied(about)
            return None

    # --- changes ---------------------------------------------------------------------------------

    async def submit(
        self, specs: list[TaskSpec], mode: events.SubmitMode, patience: Duration, wait: bool
    ) -> None:
        """Hands in tasks; with keys it is repeated until there is an answer."""
        tries = 5 if all(spec.key for spec in specs) else 1

        def build(driver: Driver, call: int) -> events.Event:
            until = driver.clock.now().mono + patience
            return events.Submit(call, specs, mode, until)

        answer = await self._quietly(build, tries)
        if isinstance(answer, effects.Admitted):
            self.world.oracle.answers.admitted(specs, answer)
            ids = [task_id for task_id in answer.ids if task_id]
            self.acknowledged += ids
            if wait and ids:
                await self.wait(tuple(ids), None)

    async def cancel(self, target: TaskRef) -> None:
        """Cancels a task."""
        self.world.known.asked_cancel[target] = None
        answer = await self._quietly(lambda _, call: events.Cancel(call, target), 3, target)
        if isinstance(answer, effects.Done) and answer.changed:
            self.world.oracle.answers.cancelled(target)

    async def redrive(self, target: TaskRef) -> None:
        """Puts a task back."""
        self.world.known.asked_redrive[target] = None
        await self._quietly(lambda _, call: events.Redrive(call, target), 1, target)

    async def delete(self, target: TaskRef) -> None:
        """Deletes a finished task."""
        self.world.known.asked_delete[target] = None
        await self._quietly(lambda _, call: events.Delete(call, target))

    async def bulk(self, wanted: TaskFilter, action: BulkAction) -> None:
        """Does something to one page of tasks."""
        self.world.known.bulk = True
        found = None
        following = 0
        if action == BulkAction.RETRY:
            process = await self._reach()
            try:
                page = await process.store.find_finished(FinishedQuery(filter=wanted, limit=20))
                found = tuple(await process.store.load_tasks([t.task_id for t in page.tasks]))
            except Unavailable:
                return
            following = page.next_after
        await self._quietly(
            lambda _, call: events.Bulk(call, wanted, action, 20, found=found, found_next=following)
        )

    async def operate(self, build: Callable[[int], events.Event], tries: int = 4) -> Any:
        """An operator's call that may be repeated."""
        return await self._quietly(lambda _, call: build(call), tries)

    # --- reads -----------------------------------------------------------------------------------

    async def get(self, target: TaskRef, detail: bool) -> None:
        """Looks at a task."""
        answer = await self._quietly(lambda _, call: events.Get(call, target, detail), 1, target)
        if isinstance(answer, effects.TaskDetail):
            answer = answer.view
        if isinstance(answer, effects.TaskView):
            self.world.oracle.answers.shown(answer)

    async def list_all(self, wanted: TaskFilter, newest_first: bool) -> None:
        """Looks at a page of tasks."""
        answer = await self._quietly(
            lambda _, call: events.ListTasks(call, wanted, 0, 50, newest_first)
        )
        if isinstance(answer, effects.Page):
            last = 0
            for view in answer.tasks:
                self.world.oracle.answers.shown(view)
                if last and (view.task_id >= last if newest_first else view.task_id <= last):
                    self.world.known.broken("pages are in order", f"{view.task_id} after {last}")
                last = view.task_id

    async def snapshot(self) -> None:
        """Looks at the counts."""
        await self._quietly(lambda _, call: events.SnapshotQuery(call))

    async def wait(self, targets: tuple[TaskRef, ...], patience: Duration | None) -> None:
        """Waits for the ends of tasks; without a limit until it has them all."""
        self._waits += 1
        name = f"wait {self._waits} for {targets}"
        if patience is None:
            self.waiting[name] = None
        left = dict.fromkeys(targets)
        while left:
            process = await self._reach()
            driver = process.driver
            if driver is None:
                continue
            try:
                await self._on(process, self._wait_once(driver, left, patience))
            except (Lost, Refused):
                await self.world.sleep(int(SECOND * (0.1 + self.world.chance.random())))
                continue
            if patience is not None:
                return
        self.waiting.pop(name, None)

    async def _wait_once(
        self, driver: Driver, left: dict[TaskRef, None], patience: Duration | None
    ) -> None:
        mono = driver.clock.now().mono
        until = None if patience is None else mono + patience
        ids = tuple(t for t in left if isinstance(t, int))
        keys = tuple(t for t in left if isinstance(t, str))
        stream = driver.inbox.results(lambda call: events.Wait(call, ids, keys, until))
        chronicle = self.world.known.chronicle
        there = {target: None for target in left if target in chronicle.rows}
        try:
            async for told in stream:
                for result in told.results:
                    self.world.oracle.answers.saw(result.task_id, result.status, 0)
                    if result.output is not None and not self._fits(result):
                        self.world.known.broken(
                            "an output is the one that was reported", f"{result}"
                        )
                    left.pop(result.task_id, None)
                    row = chronicle.rows.get(result.task_id)
                    if row is not None:
                        left.pop(row.spec.key, None)
                for target, _ in told.refusals:
                    left.pop(target, None)
                    if target in there:
                        self.world.oracle.answers.denied(target)
        finally:
            await stream.aclose()

    def _fits(self, result: effects.Result) -> bool:
        task_id, _, attempt = (result.output or b"").decode().partition("/")
        return int(task_id) == result.task_id and (
            (result.task_id, int(attempt)) in self.world.known.succeeded
        )


class Watcher:
    """Watches everything, comes back with its cursor whenever its stream breaks.

    Attributes:
        seen: Ends it saw: (task, status).
        begun_at: Position from which on it must have seen everything.
        is_lost: Whether it was told that its cursor is no good any more.
    """

    def __init__(self, callers: Callers, all_transitions: bool) -> None:
        self.seen: dict[tuple[int, int], None] = {}
        self.begun_at = -1
        self.is_lost = False
        self._callers = callers
        self._wanted = WatchFilter(all_transitions=all_transitions)
        self._cursor: bytes | None = None
        self.task = callers.world.spawn(self._live())

    async def _live(self) -> None:
        world = self._callers.world
        while not self.is_lost:
            process = await self._callers._reach()
            driver = process.driver
            if driver is None:
                continue
            try:
                await self._callers._on(process, self._watch(driver))
            except Lost:
                pass
            except Refused as error:
                if error.refusal.reason in (
                    ErrorReason.CURSOR_UNKNOWN,
                    ErrorReason.WATCH_TOO_SLOW,
                ):
                    world.known.broken(
                        "a watch with a cursor never misses an end", error.refusal.message
                    )
                    self.is_lost = True
            await world.sleep(int(SECOND * (0.1 + world.chance.random())))

    async def _watch(self, driver: Driver) -> None:
        stream: WatchStream = await driver.watchers.open(
            self._wanted, after_cursor=self._cursor, bookmarks=True
        )
        try:
            async for batch in stream:
                if self.begun_at < 0:
                    self.begun_at = self._callers.world.known.chronicle.position
                for event, cursor in batch.events:
                    self._saw(event)
                    self._cursor = cursor
                self._cursor = batch.cursor
        finally:
            await stream.aclose()

    def _saw(self, event: effects.StatusEvent) -> None:
        answers = self._callers.world.oracle.answers
        answers.saw(event.task_id, event.status, event.attempt)
        if event.status >= FIRST_TERMINAL:
            self.seen[event.task_id, event.status] = None

    def judge_end(self) -> None:
        """Everything that ended after the watch began must have been seen."""
        known = self._callers.world.known
        if self.begun_at < 0:
            return
        for task_id, ends in known.chronicle.ends.items():
            position, status = ends[-1]
            if task_id in known.chronicle.deleted or task_id in known.chronicle.live:
                continue
            if position > self.begun_at and (task_id, status) not in self.seen:
                known.broken(
                    "a watch with a cursor never misses an end",
                    f"{task_id} ended {status} at {position}, begun at {self.begun_at}",
                )
