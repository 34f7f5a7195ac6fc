"""What an answer lacks, and getting it from the store for whoever waits.

The engine keeps no outputs, and of finished tasks at most a slim entry. Where an answer says
`FromStore`, `PartPage`, `unknown` or `fetch`, it is completed here: after its commit, on the way
to its caller, so that a slow look-up holds up nobody else.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from cronoq_server.engine.effects import (
    Answer,
    Done,
    FromStore,
    Page,
    PartPage,
    Result,
    StatusEvent,
    Wanted,
)
from cronoq_server.engine.events import Scope
from cronoq_server.engine.model import Refusal, Status, TaskRef
from cronoq_server.engine.mutations import StoredTask
from cronoq_server.engine.views import (
    merge_page,
    stored_detail,
    stored_event,
    stored_result,
    stored_view,
)
from cronoq_server.runtime.refusals import Refused, task_unknown, unreachable
from cronoq_server.stores.base import FinishedPage, FinishedQuery, Store, Unavailable


class Loader:
    """Completes answers from the store.

    Every method raises `Refused` with `store_unavailable` when the store can't be reached.
    """

    __slots__ = ("_store",)

    def __init__(self, store: Store) -> None:
        self._store = store

    async def complete(self, answer: Answer) -> Answer:
        """Turns a `FromStore` into what it wants and a `PartPage` into a page.

        Raises:
            Refused: The store does not know the task either, or can't be reached.
        """
        if type(answer) is FromStore:
            return await self._task(answer)
        if type(answer) is PartPage:
            return await self._page(answer)
        return answer

    async def with_outputs(self, results: list[Result]) -> list[Result]:
        """Adds the outputs that are still in the store."""
        missing = [result.task_id for result in results if result.fetch]
        if not missing:
            return results
        try:
            outputs = await self._store.load_outputs(missing)
        except Unavailable as error:
            raise unreachable(error) from error
        filled: list[Result] = []
        for result in results:
            if result.fetch:
                output = outputs.get(result.task_id)
                content, content_type = (
                    (None, "") if output is None else (output.content, output.content_type)
                )
                result = Result(
                    result.task_id, result.status, result.message, content, content_type
                )
            filled.append(result)
        return filled

    async def ends_of(
        self, targets: Sequence[TaskRef], scope: Scope
    ) -> tuple[list[Result], list[tuple[TaskRef, Refusal]]]:
        """How tasks ended that the engine does not hold; those unknown here too are refused."""
        found = await self._named(targets, scope)
        results = [stored_result(task) for task in found.values()]
        return results, [(t, task_unknown(t)) for t in targets if t not in found]

    async def events_of(
        self, targets: Sequence[TaskRef], scope: Scope
    ) -> tuple[list[StatusEvent], list[tuple[TaskRef, Refusal]]]:
        """The same as transitions, for a watcher."""
        found = await self._named(targets, scope)
        events = [stored_event(task) for task in found.values()]
        return events, [(t, task_unknown(t)) for t in targets if t not in found]

    async def find(self, query: FinishedQuery) -> FinishedPage:
        """Asks the store for finished tasks."""
        try:
            return await self._store.find_finished(query)
        except Unavailable as error:
            raise unreachable(error) from error

    async def _named(self, targets: Sequence[TaskRef], scope: Scope) -> dict[TaskRef, StoredTask]:
        """What the store knows of tasks by id or key, within a scope, by the name used."""
        if not targets:
            return {}
        ids = tuple(t for t in targets if isinstance(t, int))
        keys = tuple(t for t in targets if isinstance(t, str))
        page = await self.find(FinishedQuery(ids=ids, keys=keys))
        tasks = [task for task in page.tasks if scope is None or task.spec.pool in scope]
        by_name: dict[TaskRef, StoredTask] = {task.task_id: task for task in tasks}
        newest: dict[TaskRef, StoredTask] = {}
        for task in sorted(tasks, key=lambda task: task.task_id):
            newest[task.spec.key] = task
        by_name |= newest
        return {target: by_name[target] for target in targets if target in by_name}

    async def _task(self, answer: FromStore) -> Answer:
        target = answer.target
        task = (await self._named([target], answer.scope)).get(target)
        if task is None or task.change is None:
            raise Refused(task_unknown(target))
        if answer.want is Wanted.VIEW:
            return stored_view(task)
        if answer.want is Wanted.CANCELLED:
            return Done(task.change.status == Status.CANCELLED)
        if answer.want is Wanted.OUTPUT:
            return (await self.with_outputs([stored_result(task)]))[0]
        return stored_detail(await self._with_payload(task))

    async def _with_payload(self, task: StoredTask) -> StoredTask:
        try:
            whole = await self._store.load_tasks([task.task_id])
        except Unavailable as error:
            raise unreachable(error) from error
        return replace(task, spec=whole[0].spec) if whole else task

    async def _page(self, part: PartPage) -> Page:
        if not part.finished:
            return merge_page(part, [], 0)
        query = FinishedQuery(
            filter=part.filter,
            after=part.after,
            limit=part.limit,
            newest_first=part.newest_first,
        )
        page = await self.find(query)
        return merge_page(part, page.tasks, page.next_after)
