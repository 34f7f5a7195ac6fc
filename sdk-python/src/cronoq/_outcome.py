"""Decides what a handler's end means for its task: the outcomes a worker can report."""

from __future__ import annotations

import msgspec

MESSAGE_BYTES_MAX = 32 * 1024
_CUT_MARK = " … (cut)"


class Completed(msgspec.Struct, frozen=True, gc=False):
    """The handler returned a value."""

    output: bytes
    content_type: str


class Failed(msgspec.Struct, frozen=True, gc=False):
    """The attempt failed; `permanent` means that no other attempt shall follow."""

    message: str
    permanent: bool = False
    retry_after_s: float | None = None


class Nacked(msgspec.Struct, frozen=True, gc=False):
    """The attempt was given back unrun."""

    reason: str


class Cancelled(msgspec.Struct, frozen=True, gc=False):
    """The handler cancelled its task, or ended after the server cancelled it."""

    reason: str = ""


Outcome = Completed | Failed | Nacked | Cancelled


def clean_message(text: str) -> str:
    """Returns text that every store can hold: no NUL, no lone surrogates, of bounded length."""
    if text.isascii() and len(text) <= MESSAGE_BYTES_MAX and "\0" not in text:
        return text
    text = text.replace("\0", "\ufffd")
    # A lone surrogate has no UTF-8 form; the replacement character stands in for it.
    raw = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()
    if len(raw) > MESSAGE_BYTES_MAX:
        room = MESSAGE_BYTES_MAX - len(_CUT_MARK.encode())
        return raw[:room].decode("utf-8", "ignore") + _CUT_MARK
    return raw.decode()
