"""Bugs in the engine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from cronoq_server.engine import admission, attempts, ids, recovery, workers
from cronoq_server.engine.placement.resources import Resources
from cronoq_server.engine.placement.rows import Row
from cronoq_server.engine.timers import TimerHeap

if TYPE_CHECKING:
    from tests.sim.mutants import Patch


def lost_semaphore_release(patch: Patch) -> None:
    """Of several resources only the first comes back."""
    give = Resources.give

    def give_first(self: Resources, needs: Any) -> None:
        give(self, needs[:1])

    patch(Resources, "give", give_first)


def attempt_not_counted(patch: Patch) -> None:
    """The attempt that ran when its leader was lost is not counted as used."""
    leader_lost = recovery._leader_lost

    def forgive(draft: Any, task: Any) -> None:
        task.attempt -= 1
        leader_lost(draft, task)

    patch(recovery, "_leader_lost", forgive)


def fifo_broken(patch: Patch) -> None:
    """A task that comes back to its old place is put at the end of the line."""
    push = Row.push

    def push_last(self: Row, task: Any) -> None:
        if task.since <= self._last:
            self._last, self._last_id = task.since, task.id - 1
        push(self, task)

    patch(Row, "push", push_last)


def id_reuse(patch: Patch) -> None:
    """A new leadership begins with the first id again."""
    init = ids.IdSource.__init__

    def begin(self: ids.IdSource, shard: int | None, _epoch: int, _high_water: int) -> None:
        init(self, shard, 1, 0)

    patch(ids.IdSource, "__init__", begin)


def double_dispatch_on_resume(patch: Patch) -> None:
    """What a worker says that it runs is taken for lost, and offered again."""
    resume = workers._resume

    def forget(draft: Any, session: Any, event: Any) -> Any:
        if event.resume is not None:
            event = replace(event, resume=replace(event.resume, leases=()))
        return resume(draft, session, event)

    patch(workers, "_resume", forget)


def token_changed_by_resume(patch: Patch) -> None:
    """A worker that has not heard that it was resumed has a token that is worth nothing."""
    resume = workers._resume

    def change(draft: Any, session: Any, event: Any) -> Any:
        adopted = resume(draft, session, event)
        session.token = event.token
        return adopted

    patch(workers, "_resume", change)


def overlap_guard_lost_at_failover(patch: Patch) -> None:
    """A recovered task is no longer known as an occurrence of its schedule."""
    live_task = recovery._live_task

    def forget(state: Any, stored: Any) -> Any:
        task = live_task(state, stored)
        if task.schedule:
            alive = state.occurrences[task.schedule]
            del alive[task.id]
            if not alive:
                del state.occurrences[task.schedule]
            task.schedule = ""
        return task

    patch(recovery, "_live_task", forget)


def dependency_edge_missed(patch: Patch) -> None:
    """Of several parents the last one is not waited for."""
    tie = admission._tie

    def tie_fewer(draft: Any, task: Any, newcomer: Any, created: Any) -> None:
        tie(draft, task, newcomer, created)
        if task.unmet > 1:
            task.unmet -= 1

    patch(admission, "_tie", tie_fewer)


def timer_lost(patch: Patch) -> None:
    """Of several timers that are due in one step, only the first go off."""
    due = TimerHeap.due

    def due_some(self: Any, now: int) -> Iterator[Any]:
        for number, entry in enumerate(due(self, now)):
            if number < 2:
                yield entry

    patch(TimerHeap, "due", due_some)


def retry_beyond_the_maximum(patch: Patch) -> None:
    """The budget is compared one off."""
    fail = attempts.fail_retryable

    def fail_once_more(draft: Any, session: Any, attempt: Any, *rest: Any) -> None:
        task = attempt.task
        allowed = task.attempts_max
        task.attempts_max += 1
        fail(draft, session, attempt, *rest)
        task.attempts_max = allowed

    patch(attempts, "fail_retryable", fail_once_more)
