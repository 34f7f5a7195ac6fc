"""Decides which calls are made again, when, and for how long.

A call is repeated only on UNAVAILABLE: always when nothing was executed, else only if repeating it
changes nothing. Delays grow with full jitter; the deadline covers all tries together.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any, TypeVar

from ._proto import task_pb2, tasks_pb2, workers_pb2
from ._transport import Connection, Method
from .errors import CronoqError, DeadlineError, NotLeaderError, StoppingError, UnavailableError
from .options import ClientOptions, seconds

Response = TypeVar("Response")

SUBMIT = Method("Tasks", "Submit", tasks_pb2.SubmitResponse)
SUBMIT_BATCH = Method("Tasks", "SubmitBatch", tasks_pb2.SubmitBatchResponse)
SUBMIT_MANY = Method("Tasks", "SubmitMany", tasks_pb2.SubmitManyResponse)
CANCEL = Method("Tasks", "Cancel", tasks_pb2.CancelResponse)
GET = Method("Tasks", "Get", task_pb2.TaskInfo)
DESCRIBE = Method("Tasks", "Describe", task_pb2.TaskDetail)
LIST_TASKS = Method("Tasks", "ListTasks", tasks_pb2.ListTasksResponse)
WAIT = Method("Tasks", "Wait", task_pb2.TaskResult)
WAIT_MANY = Method("Tasks", "WaitMany", tasks_pb2.TaskResults)
WATCH = Method("Tasks", "Watch", task_pb2.StatusEvent)
WATCH_BATCHES = Method("Tasks", "WatchBatches", tasks_pb2.StatusEvents)
RETRY = Method("Tasks", "Retry", tasks_pb2.RetryResponse)
BULK = Method("Tasks", "Bulk", tasks_pb2.BulkResponse)
DELETE = Method("Tasks", "Delete", tasks_pb2.DeleteResponse)
GET_OUTPUT = Method("Workers", "GetOutput", workers_pb2.Output)

# A call with less time left than this is not made again, seconds.
LAST_TRY_S = 0.01

# As if so many calls had failed in a row, at most, when the answer was that somebody else leads or
# will: where nothing was executed nothing is overloaded, and the leader is one connection away.
NOT_LEADER_FAILURES = 1


class BackoffSeries:
    """The delays of one row of failures: full jitter, growing to a bound."""

    def __init__(self, options: ClientOptions) -> None:
        self._initial = seconds(options.backoff.initial)
        self._maximum = seconds(options.backoff.maximum)
        self._failures = 0

    def next_delay(self, error: CronoqError | None = None) -> float:
        """Returns the next delay in seconds, after a call that failed with this if it did."""
        if isinstance(error, NotLeaderError | StoppingError):
            self._failures = min(self._failures, NOT_LEADER_FAILURES)
        bound = min(self._maximum, self._initial * 2.0 ** min(self._failures, 64))
        self._failures += 1
        return random.random() * bound

    def reset(self) -> None:
        """Starts the series anew, after a success."""
        self._failures = 0


def may_repeat(error: CronoqError, *, idempotent: bool) -> bool:
    """True if a call that failed so may be made again."""
    return isinstance(error, UnavailableError) and (idempotent or error.executed is False)


class Caller:
    """Makes single calls for a client, with deadline and repetition."""

    def __init__(self, options: ClientOptions, connection: Connection) -> None:
        self.options = options
        self.connection = connection

    async def call(
        self,
        method: Method[Response],
        request: Any,
        *,
        idempotent: bool,
        ends_at: float,
    ) -> Response:
        """Makes a call, again if that is safe, until `ends_at` on the running loop's clock.

        Raises:
            CronoqError: The last try failed, or the deadline passed.
        """
        loop = asyncio.get_running_loop()
        backoff = BackoffSeries(self.options)
        trouble: CronoqError | None = None
        while (left := ends_at - loop.time()) > 0:
            try:
                return await self.connection.channel().unary(method, request, left)
            except DeadlineError as error:
                if trouble is None:
                    raise
                raise _out_of_time(method, trouble) from error
            except CronoqError as error:
                left = ends_at - loop.time()
                if not may_repeat(error, idempotent=idempotent) or left < LAST_TRY_S:
                    raise
                trouble = error
            # Near its end the delays shrink, so that the deadline is used up.
            await asyncio.sleep(min(backoff.next_delay(trouble), left / 2))
        raise _out_of_time(method, trouble)


def _out_of_time(method: Method[Any], trouble: CronoqError | None) -> CronoqError:
    """What to say when the deadline passes: what stood in the way, if anything did."""
    if trouble is None:
        return DeadlineError(f"{method.name}: the deadline passed")
    text = f"{method.name}: no server answered before the deadline: {trouble}"
    return UnavailableError(text, reason=trouble.reason)
