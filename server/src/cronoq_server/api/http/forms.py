"""Which of three forms bytes take in JSON: a JSON value, a text, or base64.

Reading, the caller chooses by the name of the field. Writing, the media type decides, and bytes
that are not what their type says become base64: what is there is always told, and told exactly.
Bytes of a JSON value pass through as they are; nothing is rounded, reordered or escaped anew.
"""

from __future__ import annotations

import base64
import binascii
from typing import Final, NamedTuple

import msgspec
from msgspec import UNSET, Raw, UnsetType

from cronoq_server.api import texts

JSON_TYPE: Final = "application/json"
TEXT_TYPE: Final = "text/plain; charset=utf-8"


class Form(NamedTuple):
    """Bytes in one of the three forms; all absent = there are none."""

    value: Raw | UnsetType = UNSET
    text: str | None = None
    base64: str | None = None


def is_json(content_type: str) -> bool:
    """Whether a media type is one of JSON."""
    media = content_type.partition(";")[0].strip().lower()
    return media == JSON_TYPE or media.endswith("+json")


def is_text(content_type: str) -> bool:
    """Whether a media type is one of texts that are UTF-8 for all we know."""
    media, _, rest = content_type.lower().partition(";")
    charset = rest.partition("charset=")[2].strip(" \"'")
    return media.strip().startswith("text/") and charset in ("", "utf-8", "utf8", "us-ascii")


def read(
    value: Raw | UnsetType, text: str | None, encoded: str | None, content_type: str
) -> tuple[bytes, str]:
    """The payload that a caller gave, and its media type.

    Raises:
        Refused: Two forms were given, or what was given is not what the type or form says.
    """
    forms = {"payload_text": text is not None, "payload_base64": encoded is not None}
    given = [name for name, is_given in forms.items() if is_given]
    if not isinstance(value, UnsetType):
        given.insert(0, "payload")
    if len(given) > 1:
        raise texts.conflict(given[0], given[1])
    if not isinstance(value, UnsetType):
        if content_type and not is_json(content_type):
            # A value of another type would be told in another form than it was given.
            raise texts.conflict("payload", "a content_type that is not JSON")
        return bytes(value), content_type or JSON_TYPE
    if text is not None:
        return text.encode(), content_type or TEXT_TYPE
    if encoded is not None:
        return _decoded(encoded), content_type
    return b"", content_type


def _decoded(encoded: str) -> bytes:
    try:
        return base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError) as error:
        raise texts.invalid("payload_base64", "is not base64 with padding") from error


def write(content: bytes, content_type: str) -> Form:
    """The form in which bytes of a media type are told."""
    if is_json(content_type):
        value = _json(content)
        if value is not None:
            return Form(value=value)
    elif is_text(content_type):
        text = _text(content)
        if text is not None:
            return Form(text=text)
    return Form(base64=base64.b64encode(content).decode())


def guess(content: bytes) -> Form:
    """The form of bytes that bear no media type: the first that they have."""
    if not content:
        return Form()
    value = _json(content)
    if value is not None:
        return Form(value=value)
    text = _text(content)
    return Form(text=text) if text is not None else write(content, "")


def _json(content: bytes) -> Raw | None:
    try:
        content.decode()
        # Told apart without being built: that is checked as strictly, and takes a tenth of it.
        msgspec.json.decode(content, type=Raw)
    except (UnicodeDecodeError, msgspec.DecodeError, RecursionError):
        return None
    return Raw(content)


def _text(content: bytes) -> str | None:
    try:
        return content.decode()
    except UnicodeDecodeError:
        return None
