"""Decides how the arguments of a call become a payload, and a payload arguments again.

The payload is one JSON object with the arguments by parameter name, so that people can read it in
listings and other languages can write it. What the caller left to its default is not sent: the
default of the worker's code counts. Positional arguments beyond the named ones travel as a list
under the name of `*args`, keyword arguments beyond them as an object under that of `**kwargs`.
A parameter annotated `Attempt` is the worker's to fill, and no argument of the call.
"""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from ._handlers import type_hints
from ._payload import JSON_TYPE, MSGPACK_TYPE, Codec, plain_type, reader
from .attempt import Attempt
from .errors import PayloadError

_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class Arguments:
    """The parameters of one function: binds calls to them, encodes and decodes.

    Hints are resolved when they are first needed, so that a function may name types that its
    module defines further down.
    """

    def __init__(self, function: Callable[..., Any], kind: str) -> None:
        """Reads the signature.

        Args:
            function: What is called in the end.
            kind: What messages call it.

        Raises:
            TypeError: It is a method, or nothing that can be called.
        """
        self._function = function
        self._kind = kind
        whole = inspect.signature(function)
        if "self" in whole.parameters:
            raise TypeError(f"task {kind!r}: a method has nobody to be called on; use a function")
        self._whole = whole

    @functools.cached_property
    def hints(self) -> Mapping[str, Any]:
        """Type hints by parameter; `return` too. Raises TypeError if one cannot be resolved."""
        return type_hints(self._function, self._kind)

    @functools.cached_property
    def attempt_names(self) -> frozenset[str]:
        """The parameters that the worker fills."""
        return frozenset(n for n in self._whole.parameters if _is_attempt(n, self.hints.get(n)))

    @functools.cached_property
    def signature(self) -> inspect.Signature:
        """What callers see: the signature without the parameters of the worker."""
        kept = [p for n, p in self._whole.parameters.items() if n not in self.attempt_names]
        return self._whole.replace(parameters=kept)

    @functools.cached_property
    def _types(self) -> Mapping[str, Any]:
        """What each part of the payload is decoded into."""
        found = {}
        for name, parameter in self.signature.parameters.items():
            hint = self.hints.get(name, Any)
            if parameter.kind is parameter.VAR_POSITIONAL:
                hint = types.GenericAlias(list, (hint,))
            elif parameter.kind is parameter.VAR_KEYWORD:
                hint = types.GenericAlias(dict, (str, hint))
            found[name] = hint
        return found

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the arguments of a call by name.

        Raises:
            TypeError: The call does not fit the signature; names the argument.
        """
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"task {self._kind!r}: {error}") from None
        return dict(bound.arguments)

    def encode(self, values: Mapping[str, Any], codec: Codec, *, check: bool) -> tuple[bytes, str]:
        """Returns the payload of a call and its content type.

        Args:
            values: What `bind` returned.
            codec: Writes JSON.
            check: Read it as a worker would, to find here what does not fit its hint.

        Raises:
            PayloadError: An argument has no JSON form, or not that of its hint; names it.
        """
        try:
            payload = codec.encode(values)
        except PayloadError:
            for name, value in values.items():
                try:
                    codec.encode(value)
                except PayloadError as error:
                    raise PayloadError(
                        f"task {self._kind!r}: argument {name!r}: {error}"
                    ) from error
            raise
        if check:
            self.decode(*payload, codec)
        return payload

    def decode(self, payload: bytes, content_type: str, codec: Codec) -> dict[str, Any]:
        """Returns the arguments in a payload by name, each as its hint has it.

        Raises:
            PayloadError: It is no object of such arguments; names the one that does not fit.
        """
        if not payload and not content_type:
            return {}
        media = plain_type(content_type) or JSON_TYPE
        if media not in (JSON_TYPE, MSGPACK_TYPE):
            raise PayloadError(f"task {self._kind!r}: arguments are no object but {media}")
        try:
            parts = codec.decode(payload, content_type, dict[str, msgspec.Raw])
        except PayloadError as error:
            raise PayloadError(f"task {self._kind!r}: no object of arguments: {error}") from error
        types_ = self._types
        values = {}
        for name, part in parts.items():
            if name not in types_:
                raise PayloadError(f"task {self._kind!r}: there is no argument {name!r}")
            try:
                values[name] = reader(media, types_[name])(bytes(part))
            except (msgspec.MsgspecError, ValueError, TypeError, RecursionError) as error:
                raise PayloadError(f"task {self._kind!r}: argument {name!r}: {error}") from error
        return values

    def call_with(self, values: Mapping[str, Any], attempt: Attempt) -> inspect.BoundArguments:
        """Returns the arguments of the function itself, with the attempt where it wants one.

        Raises:
            PayloadError: An argument without a default is missing; names it.
        """
        bound = inspect.BoundArguments(self._whole, typing.cast("Any", {}))
        for name, parameter in self._whole.parameters.items():
            if name in self.attempt_names:
                bound.arguments[name] = attempt
            elif name in values:
                is_rest = parameter.kind is parameter.VAR_POSITIONAL
                bound.arguments[name] = tuple(values[name]) if is_rest else values[name]
            elif parameter.default is parameter.empty and (
                parameter.kind in _NAMED or parameter.kind is parameter.POSITIONAL_ONLY
            ):
                raise PayloadError(f"task {self._kind!r}: argument {name!r} is missing")
        bound.apply_defaults()
        return bound


def _is_attempt(name: str, hint: Any) -> bool:
    """Whether a hint is `Attempt`, or that or None; without one the name tells."""
    if hint is None:
        return name == "attempt"
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return set(typing.get_args(hint)) == {Attempt, type(None)}
    return hint is Attempt
