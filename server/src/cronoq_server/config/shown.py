"""How a configuration is shown to people: as TOML that would make it again, without its secrets."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import Field, fields
from typing import Any

from cronoq_server.config.sections import Config
from cronoq_server.config.values import Address


def to_toml(config: Config) -> str:
    """The whole configuration; a secret is a comment that says no more than that it is set."""
    return "\n".join(_table(config, "")).lstrip("\n") + "\n"


def _table(table: Any, path: str) -> Iterator[str]:
    inner: list[tuple[str, Any, str]] = []
    for entry in fields(table):
        value = getattr(table, entry.name)
        if "rule" in entry.metadata:
            yield _line(entry, value)
        else:
            inner.append((f"{path}.{entry.name}" if path else entry.name, value, entry.name))
    for name, value, _ in inner:
        if not isinstance(value, tuple):
            yield from ("", f"[{name}]", *_table(value, name))
        for one in value if isinstance(value, tuple) else ():
            yield from ("", f"[[{name}]]", *_table(one, name))


def _line(entry: Field[Any], value: Any) -> str:
    if value is None:
        return f"# {entry.name}: not set"
    if entry.metadata.get("secret"):
        return f"# {entry.name}: set, not shown"
    return f"{entry.name} = {_value(value)}"


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Address):
        return json.dumps(str(value))
    if isinstance(value, (int, float)):
        return f"{value!r}"
    if isinstance(value, frozenset):
        return f"[{', '.join(json.dumps(one) for one in sorted(value))}]"
    if isinstance(value, tuple):
        return "{ " + ", ".join(f"{json.dumps(key)} = {_part(one)}" for key, one in value) + " }"
    return json.dumps(value)


def _part(value: Any) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(json.dumps(one) for one in value)}]"
    return _value(value)
