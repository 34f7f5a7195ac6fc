"""Decides how values become bytes and bytes become values.

A codec names the content type of what it makes and reads content types it knows. Bytes stay bytes
(`application/octet-stream`), everything else goes through the codec of the client or worker.
Transforms (compression, encryption) wrap the bytes and add `;transform=NAME` to the content type,
so that the reader undoes what the writer did. Bytes that are not what they say raise PayloadError;
a worker fails such an attempt permanently, since no retry can change the bytes.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
import typing
import zlib
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from .errors import PayloadError

BYTES_TYPE = "application/octet-stream"
JSON_TYPE = "application/json"
MSGPACK_TYPE = "application/msgpack"
_TRANSFORM_MARK = ";transform="
# Made once: a union in the place of use is made anew for each payload.
_BYTES = (bytes, bytearray, memoryview)


class Codec(Protocol):
    """Turns values into bytes and back. Used from several threads at once."""

    def encode(self, value: Any) -> tuple[bytes, str]:
        """Returns the bytes and their content type; raises PayloadError if there are none."""

    def decode(self, payload: bytes, content_type: str, wanted: Any) -> Any:
        """Returns the value of type `wanted` (`Any` for whatever is there) or raises PayloadError.

        An empty `content_type` means that the sender did not say; the codec's own is meant.
        """


class Transform(Protocol):
    """Wraps bytes on their way out and unwraps them on their way in: compression, encryption."""

    @property
    def name(self) -> str:
        """What the content type calls it; the reader finds its transform by this name."""

    def wrap(self, payload: bytes) -> bytes | None:
        """Returns the wrapped bytes, or None to leave this payload alone."""

    def unwrap(self, payload: bytes) -> bytes:
        """Returns the original bytes; raises PayloadError when they cannot be had."""


class _ValueCodec:
    """Values as the subclass's encoder writes them, bytes as they are."""

    content_type: str

    def __init__(self, encoder: msgspec.json.Encoder | msgspec.msgpack.Encoder) -> None:
        self._encoder = encoder

    def encode(self, value: Any) -> tuple[bytes, str]:
        """Returns `value` in the codec's format, bytes as they are, and the content type."""
        if isinstance(value, _BYTES):
            return bytes(value), BYTES_TYPE
        try:
            return self._encoder.encode(value), self.content_type
        except (TypeError, ValueError, RecursionError) as error:
            raise PayloadError(f"cannot encode {type(value).__name__}: {error}") from error

    def decode(self, payload: bytes, content_type: str, wanted: Any) -> Any:
        """Returns the value in `payload`, checked against the type `wanted`."""
        return _decode(payload, content_type, wanted, self.content_type)


class JsonCodec(_ValueCodec):
    """JSON for values, bytes as they are.

    Reads and writes what msgspec knows (numbers, strings, lists, dicts, dates, enums, dataclasses,
    `msgspec.Struct`) and pydantic models where pydantic is installed.
    """

    content_type = JSON_TYPE

    def __init__(self) -> None:
        super().__init__(msgspec.json.Encoder(enc_hook=_encode_model))


class MsgpackCodec(_ValueCodec):
    """MessagePack for values, bytes as they are. Same types as JSON."""

    content_type = MSGPACK_TYPE

    def __init__(self) -> None:
        super().__init__(msgspec.msgpack.Encoder(enc_hook=_encode_model))


class TransformingCodec:
    """A codec whose bytes go through transforms: the first in the list is the innermost."""

    def __init__(self, inner: Codec, transforms: Sequence[Transform]) -> None:
        self._inner = inner
        self._transforms = tuple(transforms)
        self._by_name = {transform.name: transform for transform in transforms}

    def encode(self, value: Any) -> tuple[bytes, str]:
        """Encodes with the inner codec, then wraps."""
        payload, content_type = self._inner.encode(value)
        for transform in self._transforms:
            wrapped = transform.wrap(payload)
            if wrapped is not None:
                payload, content_type = wrapped, content_type + _TRANSFORM_MARK + transform.name
        return payload, content_type

    def decode(self, payload: bytes, content_type: str, wanted: Any) -> Any:
        """Unwraps what the content type names, outermost first, then decodes."""
        plain_type, *names = content_type.split(_TRANSFORM_MARK)
        for name in reversed(names):
            transform = self._by_name.get(name)
            if transform is None:
                raise PayloadError(f"payload needs transform {name!r}, which is not configured")
            payload = transform.unwrap(payload)
        return self._inner.decode(payload, plain_type, wanted)


class ZlibTransform:
    """Compresses payloads that are long enough to gain from it."""

    name = "zlib"

    def __init__(self, *, min_bytes: int = 1024, max_bytes: int = 64 * 1024 * 1024) -> None:
        """Makes the transform.

        Args:
            min_bytes: Shorter payloads stay as they are.
            max_bytes: What a payload may unpack to; more is refused.
        """
        self._min_bytes = min_bytes
        self._max_bytes = max_bytes

    def wrap(self, payload: bytes) -> bytes | None:
        """Returns the compressed bytes, or None if they are not shorter."""
        if len(payload) < self._min_bytes:
            return None
        packed = zlib.compress(payload)
        return packed if len(packed) < len(payload) else None

    def unwrap(self, payload: bytes) -> bytes:
        """Returns the original bytes."""
        unpacker = zlib.decompressobj()
        try:
            # One byte more than is allowed tells what is too long from what just fits.
            plain = unpacker.decompress(payload, min(self._max_bytes + 1, sys.maxsize))
        except zlib.error as error:
            raise PayloadError(f"payload is not zlib: {error}") from error
        if len(plain) > self._max_bytes:
            raise PayloadError(f"payload unpacks to more than {self._max_bytes} bytes")
        if not unpacker.eof:
            raise PayloadError("payload is cut off: its zlib stream has no end")
        return plain


def _decode(payload: bytes, content_type: str, wanted: Any, own_type: str) -> Any:
    if _TRANSFORM_MARK in content_type:
        name = content_type.partition(_TRANSFORM_MARK)[2]
        raise PayloadError(f"payload needs transform {name!r}, which is not configured")
    if wanted is bytes:
        return payload
    if not payload and not content_type:
        return _nothing(wanted)
    media = plain_type(content_type or own_type)
    if media == BYTES_TYPE:
        if wanted in (Any, object, memoryview, bytearray):
            return payload if wanted in (Any, object) else wanted(payload)
        raise PayloadError(f"payload is bytes, but {_name(wanted)} is wanted")
    if media not in (JSON_TYPE, MSGPACK_TYPE):
        raise PayloadError(f"unknown content type {content_type!r}")
    try:
        return reader(media, wanted)(payload)
    except (msgspec.MsgspecError, ValueError, TypeError, RecursionError) as error:
        raise PayloadError(f"payload is no {_name(wanted)} in {media}: {error}") from error


def _nothing(wanted: Any) -> Any:
    """A task without payload: None where that is allowed, else an empty value of the type."""
    try:
        return msgspec.convert(None, wanted)
    except msgspec.ValidationError as error:
        raise PayloadError(f"the task has no payload, but {_name(wanted)} is wanted") from error


def _name(wanted: Any) -> str:
    return getattr(wanted, "__name__", None) or str(wanted)


def plain_type(content_type: str) -> str:
    """Returns a content type without its parameters and transforms, in lower case.

    Only ASCII is folded and only spaces and tabs are cut off, as in all SDKs: a Kelvin sign is
    no k.
    """
    media = content_type.partition(";")[0].strip(" \t")
    return media.lower() if media.isascii() else media


@functools.lru_cache(maxsize=1024)
def reader(media: str, wanted: Any) -> Any:
    """Returns the function that reads one type; made once, since making it is dear."""
    module = msgspec.json if media == JSON_TYPE else msgspec.msgpack
    model = _pydantic_base()
    if model is None or not _mentions(wanted, model):
        return module.Decoder(wanted).decode
    from pydantic import TypeAdapter

    adapter = TypeAdapter(wanted)
    if media == JSON_TYPE:
        return adapter.validate_json
    loads = msgspec.msgpack.Decoder().decode
    return lambda payload: adapter.validate_python(loads(payload))


def _mentions(wanted: Any, model: type, seen: frozenset[Any] = frozenset()) -> bool:
    """Whether a type is a model or has one inside, be it in a field of a dataclass."""
    if isinstance(wanted, type) and issubclass(wanted, model):
        return True
    parts = list(getattr(wanted, "__args__", ()))
    if isinstance(wanted, type) and dataclasses.is_dataclass(wanted) and wanted not in seen:
        seen |= {wanted}
        parts += typing.get_type_hints(wanted).values()
    return any(_mentions(part, model, seen) for part in parts)


def _pydantic_base() -> type | None:
    """The base class of models, if the program uses pydantic at all; never imports it."""
    pydantic = sys.modules.get("pydantic")
    base = getattr(pydantic, "BaseModel", None)
    return base if isinstance(base, type) else None


def _encode_model(value: Any) -> Any:
    base = _pydantic_base()
    if base is not None and isinstance(value, base):
        return value.model_dump(mode="json")  # type: ignore[attr-defined]
    raise TypeError(f"{type(value).__name__} has no JSON form")
