"""On which line of a TOML file a value stands.

The parser of the standard library tells values without places. Here a text that it has accepted is
cut into its statements, and each is asked for the paths it sets.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from typing import Any

from cronoq_server.config import toml_text


def lines_of(text: str) -> dict[str, int]:
    """The line of every path that valid TOML sets: `pools[1].max`, and of every table's header."""
    places: dict[str, int] = {}
    counts: dict[str, int] = {}
    within = ""
    for line, statement in _statements(text):
        if statement.lstrip().startswith("["):
            names, is_list = _header(statement)
            within = _enter(names, is_list, counts)
            places.setdefault(within, line)
        else:
            for path in _paths(toml_text.loads(statement), within):
                places.setdefault(path, line)
    return places


def line_for(places: dict[str, int], path: str) -> int:
    """The line of a path, or of the nearest table around it; 0 = none is known."""
    while path:
        if path in places:
            return places[path]
        cut = max(path.rfind("."), path.rfind("["))
        path = path[:cut] if cut > 0 else ""
    return 0


def _statements(text: str) -> Iterator[tuple[int, str]]:
    """Each statement with the number of its first line; a statement may go over several lines."""
    # Split as TOML does: other characters that `splitlines` knows may stand in texts.
    rows = text.replace("\r\n", "\n").split("\n")
    at = 0
    while at < len(rows):
        start, end = at, at + 1
        if rows[start].strip() and not rows[start].lstrip().startswith("#"):
            while not _is_whole("\n".join(rows[start:end])) and end < len(rows):
                end += 1
            yield start + 1, "\n".join(rows[start:end])
        at = end


def _is_whole(statement: str) -> bool:
    try:
        toml_text.loads(statement)
    except tomllib.TOMLDecodeError:
        return False
    return True


def _header(statement: str) -> tuple[list[str], bool]:
    """The names of a table's header, and whether it begins another one of a list."""
    document: Any = toml_text.loads(statement)
    names = []
    is_list = False
    while document:
        ((name, document),) = document.items()
        names.append(name)
        if isinstance(document, list):
            is_list, document = True, document[0]
    return names, is_list


def _enter(names: list[str], is_list: bool, counts: dict[str, int]) -> str:
    """The path of a header: names of lists go on with the table that was begun last."""
    path = ""
    for depth, name in enumerate(names):
        path = f"{path}.{name}" if path else name
        if is_list and depth == len(names) - 1:
            counts[path] = counts.get(path, -1) + 1
        if path in counts:
            path = f"{path}[{counts[path]}]"
    return path


def _paths(document: dict[str, Any], within: str) -> Iterator[str]:
    for name, value in document.items():
        path = f"{within}.{name}" if within else name
        yield path
        if isinstance(value, dict):
            yield from _paths(value, path)
        elif isinstance(value, list):
            for index, one in enumerate(value):
                if isinstance(one, dict):
                    yield f"{path}[{index}]"
                    yield from _paths(one, f"{path}[{index}]")
