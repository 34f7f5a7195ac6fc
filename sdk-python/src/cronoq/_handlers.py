"""Decides how a handler is called and what its end means.

A handler takes nothing, the payload, the attempt, or both. Which is which follows from its type
hints: a parameter annotated `Attempt` (or named `attempt` without a hint) gets the attempt, the
other one the payload, decoded into the type that its hint names.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import typing
from collections.abc import Callable, Sequence
from typing import Any

from ._outcome import Cancelled, Completed, Failed, Nacked, Outcome
from ._payload import Codec
from ._session import Run, Stop
from .attempt import Attempt, Cancel, Interceptor, Permanent, Reject, Retryable
from .errors import PayloadError

logger = logging.getLogger("cronoq.worker")

AnyHandler = Callable[..., Any]


class Handler:
    """A function of the user, and how to call it."""

    def __init__(
        self, function: AnyHandler, codec: Codec, interceptors: Sequence[Interceptor]
    ) -> None:
        """Reads the signature.

        Raises:
            TypeError: The signature is none that a worker can call.
        """
        self.is_async = is_async(function)
        self._function = function
        self._codec = codec
        self._interceptors = tuple(interceptors)
        self._roles, self._payload_type = _read_signature(function)

    def _arguments(self, attempt: Attempt) -> list[Any]:
        arguments: list[Any] = []
        for role in self._roles:
            if role == "attempt":
                arguments.append(attempt)
            else:
                arguments.append(
                    self._codec.decode(attempt.payload, attempt.content_type, self._payload_type)
                )
        return arguments

    def _readable(self, attempt: Attempt) -> list[Any] | Failed:
        """The arguments, or how the attempt ends without them (WP-14)."""
        try:
            return self._arguments(attempt)
        except PayloadError as error:
            return Failed(str(error), permanent=True)
        # A codec is the user's, and so are the types that it makes.
        except Exception as error:
            logger.exception("the codec failed")
            return Failed(f"payload not decodable: {_describe(error)}", permanent=True)

    def _completed(self, value: Any) -> Outcome:
        try:
            output, content_type = self._codec.encode(value)
        except PayloadError as error:
            return Failed(f"output not encodable: {error}", permanent=True)
        # A codec is the user's: to run the handler again would do its work twice for no other end.
        except Exception as error:
            logger.exception("the codec failed")
            return Failed(f"output not encodable: {_describe(error)}", permanent=True)
        if type(output) is not bytes or type(content_type) is not str or not content_type.isascii():
            # One bad report would take the whole message with it.
            return Failed("output not encodable: the codec gave no bytes", permanent=True)
        return Completed(output, content_type)

    async def run_async(self, attempt: Attempt, run: Run) -> Outcome:
        """Runs an async handler to its end; cancellation is one of its ends."""
        arguments = self._readable(attempt)
        if isinstance(arguments, Failed):
            return arguments
        # What an interceptor that takes in an exception leaves behind.
        value: Any = None
        try:
            if self._interceptors:
                with _around(self._interceptors, attempt):
                    value = await self._function(*arguments)
            else:
                value = await self._function(*arguments)
        except asyncio.CancelledError:
            return _stopped(run)
        # Whatever a handler raises is its attempt's end, never the worker's.
        except (Exception, SystemExit) as error:  # noqa: BLE001
            return _outcome_of(error, run)
        return self._completed(value)

    def run_blocking(self, attempt: Attempt, run: Run) -> Outcome:
        """Runs a sync handler to its end, on the calling thread."""
        arguments = self._readable(attempt)
        if isinstance(arguments, Failed):
            return arguments
        value: Any = None
        try:
            with _around(self._interceptors, attempt):
                value = self._function(*arguments)
        # Whatever a handler raises is its attempt's end, never the thread's.
        except BaseException as error:  # noqa: BLE001
            return _outcome_of(error, run)
        return self._completed(value)


class Handlers:
    """The handlers of a worker, by kind."""

    def __init__(self) -> None:
        self._by_kind: dict[str, Handler] = {}
        self._default: Handler | None = None

    def __bool__(self) -> bool:
        return bool(self._by_kind) or self._default is not None

    def add(self, kind: str, handler: Handler) -> None:
        """Takes the handler of a kind; raises ValueError if there is one."""
        if kind in self._by_kind:
            raise ValueError(f"kind {kind!r} has a handler already")
        self._by_kind[kind] = handler

    def add_default(self, handler: Handler) -> None:
        """Takes the handler of all other kinds; raises ValueError if there is one."""
        if self._default is not None:
            raise ValueError("there is a default handler already")
        self._default = handler

    def find(self, kind: str) -> Handler | None:
        """Returns who handles a kind, if anyone."""
        return self._by_kind.get(kind, self._default)

    def declared_kinds(self) -> list[str]:
        """Returns the kinds that the server may send; none means any."""
        return [] if self._default is not None else sorted(self._by_kind)


@contextlib.contextmanager
def _around(interceptors: Sequence[Interceptor], attempt: Attempt) -> typing.Iterator[None]:
    with contextlib.ExitStack() as stack:
        for interceptor in interceptors:
            stack.enter_context(interceptor(attempt))
        yield


def _outcome_of(error: BaseException, run: Run) -> Outcome:
    try:
        return _meant(error, run)
    # What is said in an exception is made by the code of its class.
    except Exception:
        logger.exception("an exception of task %d cannot be read", run.task_id)
        return Failed(type(error).__name__, permanent=isinstance(error, Permanent))


def _meant(error: BaseException, run: Run) -> Outcome:
    if run.stop is Stop.EXPIRED:
        # WP-24: the task may be another worker's by now; only success counts.
        return Failed(run.stop.value)
    match error:
        case Retryable():
            after = error.retry_after_s
            return Failed(str(error.message), retry_after_s=None if after is None else float(after))
        case Permanent():
            return Failed(str(error.message), permanent=True)
        case Cancel():
            reason = str(error.reason)
            logger.info("task %d cancels itself: %s", run.task_id, reason)
            return Cancelled(reason)
        case Reject():
            return Nacked(str(error.reason))
        case _:
            if run.stop is None:
                logger.warning("handler of task %d failed", run.task_id, exc_info=error)
            return Failed(_describe(error))


def _describe(error: BaseException) -> str:
    name = type(error).__name__
    try:
        text = str(error)
    # The text of an exception is made by its own code.
    except Exception:  # noqa: BLE001
        return name
    return f"{name}: {text}" if text else name


def _stopped(run: Run) -> Outcome:
    """What a cancelled handler's attempt comes to."""
    match run.stop:
        case None:
            return Failed("CancelledError")
        case Stop.ABORTED:
            return Cancelled()
        case _:
            return Failed(run.stop.value)


def is_async(function: AnyHandler) -> bool:
    """Returns whether a handler is to be awaited."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 - an object with an async __call__
    )


def _read_signature(function: AnyHandler) -> tuple[tuple[str, ...], Any]:
    """Returns the role of each parameter, and the payload's type."""
    name = getattr(function, "__qualname__", repr(function))
    hints = type_hints(function, name)
    roles: list[str] = []
    payload_type: Any = Any
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if parameter.kind is parameter.KEYWORD_ONLY:
            if parameter.default is parameter.empty:
                raise TypeError(f"handler {name}: parameter {parameter.name!r} is keyword-only")
            continue
        hint = hints.get(parameter.name, parameter.empty)
        if hint is Attempt or (hint is parameter.empty and parameter.name == "attempt"):
            roles.append("attempt")
        elif parameter.default is not parameter.empty and "payload" in roles:
            continue
        else:
            roles.append("payload")
            payload_type = Any if hint is parameter.empty else hint
    if roles.count("payload") > 1 or roles.count("attempt") > 1:
        raise TypeError(f"handler {name}: takes at most the attempt and one payload")
    return tuple(roles), payload_type


def type_hints(function: AnyHandler, name: str) -> dict[str, Any]:
    """Returns the hints of a handler; raises TypeError if one cannot be resolved."""
    target: Any = function
    if not inspect.isroutine(function) and not inspect.isclass(function):
        target = type(function).__call__
    try:
        return typing.get_type_hints(target)
    except NameError as error:
        raise TypeError(
            f"handler {name}: a type hint cannot be resolved ({error}); define the type at module "
            "level"
        ) from error
