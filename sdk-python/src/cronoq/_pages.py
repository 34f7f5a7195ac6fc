"""Decides how a listing is read: page by page, while someone iterates."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from ._calls import LIST_TASKS, Caller
from ._convert import read_info
from ._proto import tasks_pb2
from .views import TaskInfo


class TaskPages:
    """Tasks of a listing, fetched page by page while they are read.

    Attributes:
        unavailable_shards: Shards that the pages read so far lack.
    """

    def __init__(
        self, caller: Caller, request: tasks_pb2.ListTasksRequest, deadline: float
    ) -> None:
        self._caller = caller
        self._request = request
        self._deadline = deadline
        self.unavailable_shards: set[str] = set()

    async def first(self) -> list[TaskInfo]:
        """Reads the first page alone.

        It may be short or empty although there are more tasks further on: a server looks at a
        bounded number of tasks for one page. Whoever asks again and again should ask for no more.
        """
        return [read_info(message) for message in (await self._page(self._request)).tasks]

    async def _page(self, request: tasks_pb2.ListTasksRequest) -> tasks_pb2.ListTasksResponse:
        ends_at = asyncio.get_running_loop().time() + self._deadline
        page = await self._caller.call(LIST_TASKS, request, idempotent=True, ends_at=ends_at)
        self.unavailable_shards.update(page.unavailable_shards)
        return page

    async def __aiter__(self) -> AsyncIterator[TaskInfo]:
        request = tasks_pb2.ListTasksRequest()
        request.CopyFrom(self._request)
        while True:
            page = await self._page(request)
            for message in page.tasks:
                yield read_info(message)
            # Pages may be short or empty; only 0 is the end.
            if not page.next_after:
                return
            request.after = page.next_after
