"""Decides what a decorated function is: the function itself, and how to make tasks of its calls."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeAlias, TypeVar, Unpack, overload

from ._app_handles import AppHandle
from ._arguments import Arguments
from ._handlers import is_async
from ._schedules import Cron
from .attempt import Attempt, Permanent
from .client import TaskOptions
from .errors import PayloadError
from .spec import TaskSpec

if TYPE_CHECKING:
    from .app import App

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
Async: TypeAlias = Coroutine[Any, Any, R]


class TaskFunction(Generic[P, T]):
    """A function whose calls can be tasks; called directly it is the function.

    Attributes:
        function: What was decorated.
        kind: What the server calls it.
        schedule: When it is called by itself, if ever.
    """

    __name__: str

    def __init__(
        self,
        app: App,
        function: Callable[P, T],
        kind: str,
        options: dict[str, Any],
        schedule: Cron | None,
    ) -> None:
        """Reads the signature; `App.task` is what makes these.

        Raises:
            TypeError: It is a method, or there is no such option.
        """
        functools.update_wrapper(self, function)
        self.function = function
        self.kind = kind
        self.schedule = schedule
        self._app = app
        self._options = options
        self._arguments = Arguments(function, kind)
        self._spec = _spec(kind, options)

    def __repr__(self) -> str:
        return f"TaskFunction({self.kind!r})"

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        """Calls the function here and now."""
        return self.function(*args, **kwargs)

    @property
    def pool(self) -> str:
        """The pool of its tasks; empty is the server's default."""
        return self._spec.pool

    @property
    def returns(self) -> Any:
        """The type that results are decoded into."""
        hint = self._arguments.hints.get("return", Any)
        return None if hint is type(None) else hint

    def options(self, **options: Unpack[TaskOptions]) -> TaskFunction[P, T]:
        """Returns the same function with other options for its tasks; see `TaskSpec`.

        Raises:
            TypeError: There is no such option.
        """
        whole: dict[str, Any] = {**self._options, **options}
        return TaskFunction(self._app, self.function, self.kind, whole, self.schedule)

    def spec(self, *args: P.args, **kwargs: P.kwargs) -> TaskSpec:
        """Returns a call as a task spec, for batches, dependencies and blocking clients.

        Raises:
            TypeError: The arguments do not bind; names the one that does not.
            PayloadError: An argument cannot be encoded, or does not fit its hint; names it.
        """
        values = self._arguments.bind(args, kwargs)
        payload, content_type = self._arguments.encode(
            values, self._app.codec, check=self._app.check_arguments
        )
        return _spec(self.kind, self._options, payload, content_type)

    @overload
    async def submit(
        self: TaskFunction[P, Async[R]], *args: P.args, **kwargs: P.kwargs
    ) -> AppHandle[R]: ...
    @overload
    async def submit(
        self: TaskFunction[P, R], *args: P.args, **kwargs: P.kwargs
    ) -> AppHandle[R]: ...
    async def submit(self, *args: Any, **kwargs: Any) -> AppHandle[Any]:
        """Submits a call; see `App.submit`."""
        return await self._app.submit(self, *args, **kwargs)

    def handler(self) -> Callable[..., Any]:
        """Returns what a worker calls for a task of this kind.

        Raises:
            TypeError: A type hint cannot be resolved.
        """
        self._arguments.attempt_names  # noqa: B018 - resolves the hints, now rather than later
        function: Callable[..., Any] = self.function
        read = self._read
        if is_async(function):

            async def run_async(attempt: Attempt) -> Any:
                bound = read(attempt)
                return await function(*bound.args, **bound.kwargs)

            return run_async

        def run(attempt: Attempt) -> Any:
            bound = read(attempt)
            return function(*bound.args, **bound.kwargs)

        return run

    def _read(self, attempt: Attempt) -> Any:
        """The arguments of an attempt. Those that cannot be read will be no better next time."""
        try:
            values = self._arguments.decode(attempt.payload, attempt.content_type, self._app.codec)
            return self._arguments.call_with(values, attempt)
        except PayloadError as error:
            raise Permanent(str(error)) from error


def task_function(task: Any) -> TaskFunction[..., Any]:
    """Returns a task function as it is; raises TypeError for anything else."""
    if isinstance(task, TaskFunction):
        return task
    name = getattr(task, "__name__", repr(task))
    raise TypeError(f"submit: {name} is no task function: decorate it with @app.task")


def _spec(
    kind: str, options: dict[str, Any], payload: bytes = b"", content_type: str = ""
) -> TaskSpec:
    whole = {**options, "content_type": content_type}
    try:
        return TaskSpec(kind, payload, **whole)
    except TypeError as error:
        raise TypeError(f"task {kind!r}: {error}; options are those of TaskSpec") from None
