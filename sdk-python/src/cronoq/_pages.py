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

    async def __aiter__(self) -> AsyncIterator[TaskInfo]:
        loop = asyncio.get_running_loop()
        request = tasks_pb2.ListTasksRequest()
        request.CopyFrom(self._request)
        while True:
            ends_at = loop.time() + self._deadline
            page = await self._caller.call(LIST_TASKS, request, idempotent=True, ends_at=ends_at)
            self.unavailable_shards.update(page.unavailable_shards)
            for message in page.tasks:
                yield read_info(message)
            # Pages may be short or empty; only 0 is the end.
            if not page.next_after:
                return
            request.after = page.next_after
