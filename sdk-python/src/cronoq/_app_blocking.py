"""Decides how programs without an event loop submit calls of task functions."""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, Self, TypeVar, overload

from . import blocking
from ._app_handles import BlockingHandle
from ._task_function import Async, TaskFunction, task_function
from .errors import CronoqError
from .options import Seconds
from .spec import TaskSpec

if TYPE_CHECKING:
    from .app import App

P = ParamSpec("P")
R = TypeVar("R")


class BlockingApp:
    """The calls of an app that return when they are done; it may be shared between threads.

    Attributes:
        client: For everything that tasks without functions need.
        is_closed: Whether `close` was called.
    """

    def __init__(self, app: App) -> None:
        self._app = app
        self.is_closed = False
        self.client = blocking.Client(**app.client_options())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends every call that is under way and closes the connection; may be called again."""
        self.is_closed = True
        self.client.close()

    @overload
    def submit(
        self, task: TaskFunction[P, Async[R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> BlockingHandle[R]: ...
    @overload
    def submit(
        self, task: TaskFunction[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> BlockingHandle[R]: ...
    def submit(
        self, task: TaskFunction[..., Any], /, *args: Any, **kwargs: Any
    ) -> BlockingHandle[Any]:
        """Submits a call of a task function; see `App.submit`."""
        spec = task_function(task).spec(*args, **kwargs)
        return BlockingHandle(self.client.submit(spec), task.returns)

    def submit_many(
        self, calls: Iterable[TaskSpec], *, call_deadline: Seconds | None = None
    ) -> list[BlockingHandle[Any] | CronoqError]:
        """Submits many calls, each on its own; see `App.submit_many`."""
        specs = list(calls)
        answers = self.client.submit_many(specs, call_deadline=call_deadline)
        return [
            answer
            if isinstance(answer, CronoqError)
            else BlockingHandle(answer, self._app.returns_of(spec.kind))
            for spec, answer in zip(specs, answers, strict=True)
        ]
