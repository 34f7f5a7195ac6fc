"""What a single value of the configuration may be.

A rule takes what TOML gave and returns what the configuration holds, or raises `ValueError` with
what people need to know.

A value that could hold a secret is never part of a message. A rule that takes texts must take the
text itself, so that an environment variable needs no quotes.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import MISSING, field
from typing import Any
from urllib.parse import urlsplit

from cronoq_server.config.values import Address, parse_address

YEAR_S = 366 * 86_400.0

_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,62}")
_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,64}")
_DNS_NAME = re.compile(r"(?:[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9])?\.)*[A-Za-z0-9_-]{1,63}")
_SHA256 = re.compile(r"[0-9a-fA-F]{64}")

LABEL_MAX = 256
TOKEN_MIN = 16
"""Fewest characters of a token: shorter ones can be guessed."""

Rule = Callable[[object], Any]
Labels = tuple[tuple[str, tuple[str, ...]], ...]


def whole(low: int, high: int) -> Rule:
    """A whole number from `low` to `high`."""

    def rule(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError(f"must be a whole number, not {kind_of(value)}")
        if not low <= value <= high:
            raise ValueError(f"must be from {low} to {high}, not {_short(value)}")
        return value

    return rule


def number(low: float, high: float, *, above: bool = False) -> Rule:
    """A number from `low`, or `above` it, to `high`."""

    def rule(value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ValueError(f"must be a number, not {kind_of(value)}")
        # Of NaN no comparison is true; a whole number may be beyond all floats.
        if not low <= value <= high or (above and value == low):
            bound = f"above {low:g} and at most {high:g}" if above else f"from {low:g} to {high:g}"
            raise ValueError(f"must be {bound}, not {_short(value)}")
        return float(value)

    return rule


def _short(value: object) -> str:
    """A number that is out of its range as a message tells it, however many digits it has."""
    told = f"{value:g}" if isinstance(value, float) else str(value)
    return told if len(told) <= 24 else f"a number of {len(told.lstrip('-'))} digits"


def seconds(*, above_zero: bool = False) -> Rule:
    """A duration of up to a year."""
    return number(0, YEAR_S, above=above_zero)


def boolean(value: object) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise ValueError(f"must be true or false, not {kind_of(value)}")
    return value


def choice(*words: str) -> Rule:
    """One of some words."""

    def rule(value: object) -> str:
        if value not in words:
            raise ValueError(f"must be one of {', '.join(words)}, not {value!r}")
        return str(value)

    return rule


def address(value: object) -> Address:
    """Where to listen."""
    return parse_address(value)


def name(value: object) -> str:
    """The name of a pool, resource, tenant or credential."""
    if not isinstance(value, str) or _NAME.fullmatch(value) is None:
        raise ValueError(f"must be 1 to 64 of letters, digits, '_', '.', ':', '-', not {value!r}")
    return value


def names(value: object) -> frozenset[str]:
    """Some names, at least one."""
    if not isinstance(value, list) or not value:
        raise ValueError("must be a list of at least one name")
    return frozenset(name(one) for one in value)


def labels(value: object) -> Labels:
    """A table of labels, each with the value or the list of values that it may have."""
    if not isinstance(value, dict):
        raise ValueError(f"must be a table of label = value, not {kind_of(value)}")
    allowed = []
    for label, given in value.items():
        texts = given if isinstance(given, list) else [given]
        for text, least in ((label, 1), *((one, 0) for one in texts)):
            if not isinstance(text, str) or not least <= len(text) <= LABEL_MAX:
                raise ValueError(
                    f"a label and its values are texts of up to {LABEL_MAX} characters; "
                    f"see {label[:LABEL_MAX]!r}"
                )
            if not text.isprintable():
                raise ValueError(f"label {label!r} has control characters")
        allowed.append((label, tuple(texts)))
    return tuple(sorted(allowed))


def dns_name(value: object) -> str:
    """A host name as certificates carry it."""
    if not isinstance(value, str) or len(value) > 253 or _DNS_NAME.fullmatch(value) is None:
        raise ValueError(f"must be the DNS name of a certificate, not {value!r}")
    return value.lower()


def url(value: object) -> str:
    """An address to send something to."""
    parts = _split(value)
    if parts is None or parts[0] not in ("http", "https") or not parts[1]:
        raise ValueError("must be an http:// or https:// address")
    return str(value)


def open_url(value: object) -> str:
    """An address that is printed, so that it must not hold a password."""
    parts = _split(value)
    if parts is None or parts[0] not in ("http", "https") or not parts[1] or parts[2]:
        raise ValueError("must be an http:// or https:// address without a user or a password")
    return str(value)


def database(value: object) -> str:
    """The address of a PostgreSQL database."""
    parts = _split(value)
    if parts is None or parts[0] not in ("postgres", "postgresql"):
        raise ValueError("must be a postgres:// address")
    return str(value)


def _split(value: object) -> tuple[str, str, bool] | None:
    """Scheme, host, and whether there is a user; None if it is no address at all."""
    try:
        parts = urlsplit(value) if isinstance(value, str) else None
        return None if parts is None else (parts.scheme, parts.hostname or "", "@" in parts.netloc)
    except ValueError:
        return None


def token(value: object) -> str:
    """A bearer token. Nothing of it may be told."""
    if not isinstance(value, str) or len(value) < TOKEN_MIN:
        raise ValueError(f"must be a text of at least {TOKEN_MIN} characters")
    if not value.isascii() or not value.isprintable() or " " in value:
        raise ValueError("must be printable ASCII without spaces: it travels in a header")
    return value


def sha256(value: object) -> str:
    """The SHA-256 of a token in hexadecimal."""
    if not isinstance(value, str) or _SHA256.fullmatch(value) is None:
        raise ValueError("must be the 64 hexadecimal digits of a SHA-256")
    return value.lower()


def set_variable(value: object) -> str:
    """The name of an environment variable that must be set."""
    if not isinstance(value, str) or not value or not os.environ.get(value):
        raise ValueError(f"must name an environment variable that is set, not {value!r}")
    return value


def token_variable(value: object) -> str:
    """The name of an environment variable that holds a token."""
    variable = set_variable(value)
    try:
        token(os.environ[variable])
    except ValueError as error:
        raise ValueError(f"the environment variable {variable} {error}") from None
    return variable


def variable_name(value: object) -> str:
    """The name of an environment variable, set or not."""
    if not isinstance(value, str) or not value:
        raise ValueError("must be the name of an environment variable")
    return value


def endpoint(value: object) -> str:
    """Where a server is reached: an address with nothing behind host and port."""
    text = open_url(value)
    try:
        parts = urlsplit(text)
        bare = parts.path in ("", "/") and not parts.query and not parts.fragment
        if bare and parts.port != 0:
            return text.rstrip("/")
    except ValueError:
        pass
    raise ValueError("must be http://host:port or https://host:port, with nothing behind the port")


def schema(value: object) -> str:
    """The name of a PostgreSQL schema, in which `{shard}` may stand for a shard's name."""
    if not isinstance(value, str) or _SCHEMA.fullmatch(value.replace("{shard}", "x")) is None:
        raise ValueError("must be 1 to 63 of lower-case letters, digits and '_', no digit first")
    return value


def path(value: object) -> str:
    """The path of a file."""
    if not isinstance(value, str) or not value or "\0" in value:
        raise ValueError("must be the path of a file")
    return value


def weights(value: object) -> tuple[tuple[str, float], ...]:
    """A table of tenants and their weights."""
    if not isinstance(value, dict):
        raise ValueError(f"must be a table of tenant = weight, not {kind_of(value)}")
    weigh = number(0, 1e6, above=True)
    return tuple(sorted((name(tenant), weigh(weight)) for tenant, weight in value.items()))


def kind_of(value: object) -> str:
    """What a value is, in the words of TOML."""
    kinds = {str: "a text", bool: "a boolean", int: "a whole number", float: "a number"}
    return kinds.get(type(value), "a table" if isinstance(value, dict) else "a list")


def entry(rule: Rule, default: Any = MISSING) -> Any:
    """A field with its rule; without a default it must be given."""
    if default is MISSING:
        return field(metadata={"rule": rule})
    return field(default=default, metadata={"rule": rule})


def secret(rule: Rule, default: Any = None) -> Any:
    """A field whose value is never printed."""
    return field(default=default, repr=False, metadata={"rule": rule, "secret": True})


def table(cls: type) -> Any:
    """A field that is a table of its own."""
    return field(default_factory=cls, metadata={"table": cls})


def tables(cls: type, default: tuple[Any, ...] = ()) -> Any:
    """A field that is a list of tables."""
    return field(default=default, metadata={"tables": cls})
