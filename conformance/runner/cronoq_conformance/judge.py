"""Decides whether what was observed is what a scenario expects: the only place that compares.

A pattern is data. A mapping asks for the fields that it names and leaves the rest aside, so an
empty one asks for nothing; a list asks for exactly these elements in this order; text meets bytes
as UTF-8; numbers meet digits. A mapping whose keys are all operators asks for more than equality:

    {absent: true}   {present: true}   {contains: x}   {matches: regex}
    {at_least: n}   {at_most: n}   {size: n}   {utf8_size: n}   {not: p}   {one_of: [p, …]}
    {some: p} (an element)   {each: p}   {unordered: [p, …]}
    {repeat: {text: x, count: n}}   {zeros: n} (so many zero bytes)   {b64: text}
    {shard: n} (a task id with this shard's number)
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

SHOWN_MAX = 300
MISSING = object()
LATE_MAX = 2  # Delays that a busy machine may draw out.


def shown(value: Any) -> str:
    """Returns a value as a message shows it, short."""
    text = "nothing" if value is MISSING else repr(value)
    return text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}… ({len(text)} characters)"


def mismatch(pattern: Any, observed: Any, place: str = "") -> str:
    """Returns what is not as the pattern says, empty if all is.

    Args:
        pattern: What is expected.
        observed: What was seen.
        place: Where this is, for the message.
    """
    if isinstance(pattern, Mapping):
        if not pattern:
            return ""
        if all(key in OPERATORS for key in pattern):
            for name, argument in pattern.items():
                problem = OPERATORS[name](argument, observed, place)
                if problem:
                    return problem
            return ""
        return _mapping(pattern, observed, place)
    if isinstance(pattern, list):
        return _elements(pattern, observed, place)
    return "" if _equal(pattern, observed) else _said(place, shown(pattern), observed)


def _said(place: str, expected: str, observed: Any) -> str:
    return f"{place or 'value'}: expected {expected}, observed {shown(observed)}"


def _equal(pattern: Any, observed: Any) -> bool:
    if observed is MISSING or observed is None:
        # What protocols leave out is as good as empty.
        return pattern is None or pattern in ("", 0, False) or pattern == []
    if isinstance(observed, bytes) and isinstance(pattern, str):
        return observed == pattern.encode()
    if isinstance(pattern, bool) or isinstance(observed, bool):
        return pattern is observed
    if isinstance(pattern, int | float) and isinstance(observed, str):
        return str(pattern) == observed
    if isinstance(pattern, str) and isinstance(observed, int):
        return pattern == str(observed)
    return bool(pattern == observed)


def _mapping(pattern: Mapping[str, Any], observed: Any, place: str) -> str:
    if not isinstance(observed, Mapping):
        return _said(place, "an object", observed)
    for name, wanted in pattern.items():
        problem = mismatch(
            wanted, observed.get(name, MISSING), f"{place}.{name}" if place else name
        )
        if problem:
            return problem
    return ""


def _elements(pattern: Sequence[Any], observed: Any, place: str) -> str:
    if observed in (None, MISSING):
        observed = []
    if not isinstance(observed, list | tuple) or len(observed) != len(pattern):
        return _said(place, f"{len(pattern)} elements", observed)
    for index, (wanted, each) in enumerate(zip(pattern, observed, strict=True)):
        problem = mismatch(wanted, each, f"{place}[{index}]")
        if problem:
            return problem
    return ""


def _unordered(patterns: Sequence[Any], observed: Any, place: str) -> str:
    left = list(observed) if isinstance(observed, list | tuple) else []
    if len(left) != len(patterns):
        return _said(place, f"{len(patterns)} elements in any order", observed)
    for pattern in patterns:
        found = next((each for each in left if not mismatch(pattern, each)), MISSING)
        if found is MISSING:
            return _said(place, f"an element like {shown(pattern)}", observed)
        left.remove(found)
    return ""


def _size(wanted: Any, observed: Any, place: str) -> str:
    size = len(observed) if hasattr(observed, "__len__") else 0
    return mismatch(wanted, size, f"size of {place}")


def _text(observed: Any) -> str:
    return observed.decode(errors="replace") if isinstance(observed, bytes) else str(observed)


def _number(observed: Any) -> float:
    return 0.0 if observed in (None, MISSING) else float(observed)


def _check(holds: bool, place: str, expected: str, observed: Any) -> str:
    return "" if holds else _said(place, expected, observed)


OPERATORS: Mapping[str, Callable[[Any, Any, str], str]] = {
    "absent": lambda _, seen, at: _check(seen in (None, MISSING), at, "nothing", seen),
    "present": lambda _, seen, at: _check(seen not in (None, MISSING), at, "something", seen),
    "contains": lambda part, seen, at: _check(
        seen not in (None, MISSING) and part in _text(seen), at, f"text with {part!r}", seen
    ),
    "matches": lambda part, seen, at: _check(
        seen not in (None, MISSING) and re.fullmatch(part, _text(seen), re.DOTALL) is not None,
        at,
        f"text like {part!r}",
        seen,
    ),
    "at_least": lambda n, seen, at: _check(_number(seen) >= n, at, f"at least {n}", seen),
    "at_most": lambda n, seen, at: _check(_number(seen) <= n, at, f"at most {n}", seen),
    "size": _size,
    "utf8_size": lambda wanted, seen, at: mismatch(
        wanted, len(str(seen).encode()), f"bytes of {at}"
    ),
    "not": lambda p, seen, at: _check(bool(mismatch(p, seen)), at, f"not {shown(p)}", seen),
    "one_of": lambda ps, seen, at: _check(
        any(not mismatch(p, seen) for p in ps), at, f"one of {shown(ps)}", seen
    ),
    "some": lambda p, seen, at: _check(
        isinstance(seen, list | tuple) and any(not mismatch(p, each) for each in seen),
        at,
        f"an element like {shown(p)}",
        seen,
    ),
    "each": lambda p, seen, at: next(
        filter(None, (mismatch(p, each, f"{at}[]") for each in seen or ())), ""
    ),
    "unordered": _unordered,
    "repeat": lambda of, seen, at: _check(
        _text(seen) == of["text"] * of["count"], at, f"{of['count']} times {of['text']!r}", seen
    ),
    "zeros": lambda n, seen, at: _check(seen == bytes(n), at, f"{n} zero bytes", seen),
    "shard": lambda n, seen, at: _check(
        seen not in (None, MISSING) and int(seen) >> 56 == n, at, f"an id of shard {n}", seen
    ),
    "b64": lambda text, seen, at: _check(seen == base64.b64decode(text), at, text, seen),
}


def spread_of_delays(delays: Sequence[float], initial: float, bound: float, slack: float) -> str:
    """Judges delays between tries: full jitter under a doubling bound (RR-03, RR-05).

    Args:
        delays: Seconds from each end to the next try, in order.
        initial: Upper end of the first delay.
        bound: Upper end of all.
        slack: What the machine may add, seconds.
    """
    window = 10 * initial
    limits = [max(min(bound, initial * 2**index), window) + slack for index in range(len(delays))]
    late = [index for index, delay in enumerate(delays) if delay > limits[index]]
    if len(late) > LATE_MAX:
        first = late[0]
        return f"delay {first + 1} is {delays[first]:.3f} s, more than {limits[first]:.3f} s"
    grown = [d for i, d in enumerate(delays) if initial * 2**i >= bound]
    if len(grown) < 8:
        return f"only {len(grown)} delays under the full bound"
    low, high = min(grown), max(grown)
    if low > 0.6 * bound or high < 0.4 * bound or high - low < 0.25 * bound:
        return f"delays from {low:.3f} to {high:.3f} s do not spread over {bound} s"
    mean = sum(grown) / len(grown)
    if not 0.2 * bound < mean < 0.8 * bound + slack:
        return f"delays average {mean:.3f} s of {bound} s"
    return ""


def tries_in_windows(instants: Sequence[float], window: float, most: int) -> str:
    """Judges that no window of this length has more than so many tries (RR-05)."""
    for first, last in zip(instants, instants[most:], strict=False):
        if last - first < 0.95 * window:  # Accepting is not connecting: allow for its jitter.
            return f"{most + 1} tries within {last - first:.3f} s, less than {window} s"
    return ""


def in_order(patterns: Sequence[Any], observed: Sequence[Any]) -> str:
    """Judges that things like these were observed in this order, with others between them."""
    place = 0
    for pattern in patterns:
        while place < len(observed) and mismatch(pattern, observed[place]):
            place += 1
        if place == len(observed):
            return f"{shown(pattern)} did not come in its place; observed {shown(list(observed))}"
        place += 1
    return ""
