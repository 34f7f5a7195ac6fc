"""Which texts and numbers may enter: the one place that knows every store's limits.

Two doors. What a caller names (keys, kinds, tags, names) is refused when it breaks a rule, with
the field and the limit in the message. What a worker says about an attempt is cleaned instead,
so that one bad report never fails a step that carries a hundred good ones.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping

from cronoq_server.engine import SECOND, YEAR, ErrorReason, Pairs, Refusal
from cronoq_server.runtime.refusals import Refused

NAME_MAX = 64
LABEL_MAX = 256
MESSAGE_MAX = 8192
"""Characters kept of a message that a worker reports."""

TRACE_ENTRIES_MAX = 8
TRACE_VALUE_MAX = 1024
TOKEN_MAX = 256
PROGRESS_MAX = 1024
INSTANT_MAX = (1 << 63) - 1 - 2 * YEAR
"""Latest instant accepted: with a year of tolerance on top it still fits 64 bits."""

ID_MAX = (1 << 64) - 1
UINT32_MAX = (1 << 32) - 1
RETRY_AFTER_MAX = 24 * 3600 * SECOND
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"

_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,64}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_UNSTORABLE = re.compile(r"[\x00\ud800-\udfff]")


def invalid(field: str, message: str, limit: object = None) -> Refused:
    """A refusal that names the field, and the limit if there is one."""
    details: Pairs = (("field", field),)
    if limit is not None:
        details += (("limit", str(limit)),)
    return Refused(Refusal(ErrorReason.INVALID_FIELD, f"{field}: {message}", details))


def conflict(first: str, second: str) -> Refused:
    """A refusal of two fields that exclude each other."""
    return Refused(
        Refusal(
            ErrorReason.FIELD_CONFLICT,
            f"{first}: excludes {second}, give one of them",
            (("field", first), ("other", second)),
        )
    )


def within(outer: str, refusal: Refusal) -> Refused:
    """The same refusal, with its field named from further outside."""
    details = tuple(
        (name, f"{outer}.{value}" if name in ("field", "other") else value)
        for name, value in refusal.details
    )
    return Refused(Refusal(refusal.reason, f"{outer}.{refusal.message}", details))


def too_large(field: str, size: int, limit: int) -> Refused:
    """A refusal of something that has too many bytes."""
    return Refused(
        Refusal(
            ErrorReason.TOO_LARGE,
            f"{field}: {size} bytes exceed the limit of {limit}",
            (("field", field), ("size", str(size)), ("limit", str(limit))),
        )
    )


def name(text: str, field: str) -> str:
    """Checks the name of a pool, schedule, resource or tenant.

    Raises:
        Refused: It is not 1 to 64 of letters, digits and `_ . : -`.
    """
    if _NAME.fullmatch(text) is None:
        rule = "must have 1 to 64 letters, digits or characters out of '_', '.', ':', '-'"
        raise invalid(field, f"{rule}, not {shown(text)}", NAME_MAX)
    return text


def word(text: str, field: str, *, empty: bool = False, limit: int = LABEL_MAX) -> str:
    """Checks a kind, a media type, or the name or value of a tag or label.

    Raises:
        Refused: It is empty (unless `empty`), too long, or holds control characters.
    """
    if not text and not empty:
        raise invalid(field, f"must have 1 to {limit} characters, not none", limit)
    if len(text) > limit:
        raise invalid(field, f"has {len(text)} characters, the limit is {limit}", limit)
    if _CONTROL.search(text) is not None:
        raise invalid(field, f"holds a control character: {shown(text)}")
    return text


def resource(text: str, field: str) -> str:
    """Checks what a task asks of: a resource's name, or `name:value` of one that counts per value.

    Raises:
        Refused: It is neither.
    """
    if _NAME.fullmatch(text) is None:
        base, colon, value = text.partition(":")
        name(base, field)
        if colon:
            word(value, field)
    return text


def key(text: str, field: str, limit: int) -> str:
    """Checks a task's key; `limit` is in bytes of UTF-8.

    Raises:
        Refused: It is empty, too long, or holds NUL or a lone surrogate.
    """
    if not text:
        raise invalid(field, f"must have 1 to {limit} bytes, not none", limit)
    if _UNSTORABLE.search(text) is not None:
        raise invalid(field, f"holds NUL or a lone surrogate: {shown(text)}")
    size = len(text) if text.isascii() else len(text.encode())
    if size > limit:
        raise invalid(field, f"has {size} bytes, the limit is {limit}", limit)
    return text


def pairs(entries: Mapping[str, str], field: str, limit: int) -> Pairs:
    """Checks tags or labels and returns them sorted.

    Raises:
        Refused: There are too many, or a name or value breaks its rule.
    """
    if len(entries) > limit:
        raise invalid(field, f"has {len(entries)} entries, the limit is {limit}", limit)
    checked = []
    for entry in sorted(entries):
        value = entries[entry]
        if not _is_word(entry) or (value and not _is_word(value)):
            # Naming the entry costs more than the check, so it is left for when it is needed.
            word(entry, field)
            word(value, f"{field}[{shown(entry)}]", empty=True)
        checked.append((entry, value))
    return tuple(checked)


def _is_word(text: str) -> bool:
    return 0 < len(text) <= LABEL_MAX and _CONTROL.search(text) is None


def duration(seconds: float, field: str) -> int:
    """Turns seconds into nanoseconds.

    Raises:
        Refused: It is not a number, negative, or above one year.
    """
    if math.isnan(seconds) or seconds < 0:
        raise invalid(field, f"must be 0 or more seconds, not {seconds:g}", 0)
    if seconds * SECOND > YEAR:
        raise invalid(field, f"{seconds:g} seconds exceed one year", YEAR // SECOND)
    return round(seconds * SECOND)


def instant(nanoseconds: int, field: str) -> int:
    """Checks a wall instant.

    Raises:
        Refused: It is before 1970 or too far in the future to be stored.
    """
    if not 0 <= nanoseconds <= INSTANT_MAX:
        raise invalid(field, f"must be from 0 to {INSTANT_MAX}, not {nanoseconds}", INSTANT_MAX)
    return nanoseconds


def at_least_one(number: int, field: str) -> int:
    """Checks an amount.

    Raises:
        Refused: It is 0.
    """
    if number < 1:
        raise invalid(field, "must be at least 1", 1)
    return number


def choice(number: int, known: Iterable[int], field: str) -> int:
    """Checks the number of an enum.

    Raises:
        Refused: It is none of the known ones.
    """
    if number not in known:
        raise invalid(field, f"has no value {number}")
    return number


def clean(text: str, limit: int = MESSAGE_MAX) -> str:
    """Makes a worker's text storable: bad characters become U+FFFD, too long is cut and marked."""
    if len(text) > limit:
        mark = f" … ({len(text)} characters, cut)"
        text = text[: max(0, limit - len(mark))] + mark
    return _UNSTORABLE.sub(REPLACEMENT, text)


def clean_delay(seconds: float | None) -> int | None:
    """A worker's wish for its next attempt in nanoseconds: at most 24 h, nonsense is no wish."""
    if seconds is None or math.isnan(seconds) or seconds < 0:
        return None
    return RETRY_AFTER_MAX if seconds * SECOND >= RETRY_AFTER_MAX else round(seconds * SECOND)


def clean_fraction(fraction: float | None) -> float | None:
    """A worker's word on how far it is, from 0 to 1; nonsense is none."""
    if fraction is None or math.isnan(fraction):
        return None
    return min(1.0, max(0.0, fraction))


def shown(text: str) -> str:
    """A refused text as a message may quote it: escaped and short."""
    quoted = ascii(text[:40])
    return f"{quoted}…" if len(text) > 40 else quoted
