"""Decides what the submitter of a task function's call holds: a handle that knows its result."""

from __future__ import annotations

from typing import Any, Generic, TypeVar, overload

from . import blocking as _blocking
from .client import Client, TaskHandle
from .options import Seconds

R = TypeVar("R")
T = TypeVar("T")


class AppHandle(TaskHandle, Generic[R]):
    """A submitted call; its result has the type that the function says it returns."""

    __slots__ = ("_returns",)

    def __init__(self, client: Client, handle: TaskHandle, returns: Any) -> None:
        super().__init__(client, handle.id, handle.key, handle.duplicate)
        self._returns = returns

    @overload
    async def result(self, *, timeout: Seconds | None = None) -> R: ...
    @overload
    async def result(self, as_type: type[T], *, timeout: Seconds | None = None) -> T: ...
    async def result(self, as_type: Any = None, *, timeout: Seconds | None = None) -> Any:
        """Waits for success and returns what the function returned; see `Client.result`.

        Args:
            as_type: Type to decode into, instead of the one that the function names.
            timeout: Longest wait, seconds; for ever when None.
        """
        wanted = self._returns if as_type is None else as_type
        return await self._client.result(self.id, wanted, timeout=timeout)


class BlockingHandle(_blocking.TaskHandle, Generic[R]):
    """A submitted call, for programs without an event loop."""

    def __init__(self, handle: _blocking.TaskHandle, returns: Any) -> None:
        super().__init__(handle._thread, handle._handle)
        self._returns = returns

    @overload
    def result(self, *, timeout: Seconds | None = None) -> R: ...
    @overload
    def result(self, as_type: type[T], *, timeout: Seconds | None = None) -> T: ...
    def result(self, as_type: Any = None, *, timeout: Seconds | None = None) -> Any:
        """Waits for success and returns what the function returned; see `AppHandle.result`."""
        wanted = self._returns if as_type is None else as_type
        return super().result(wanted, timeout=timeout)
