"""What environment variables change of the configuration: `CRONOQ_SERVER__GRPC_ADDR=0.0.0.0:7070`.

A name is `CRONOQ_` and the path with two underscores between its parts, a number where a list has
its tables: `CRONOQ_POOLS__0__MAX=8`; the number after the last one adds a table. A value is the
text itself where the key takes texts, and else TOML: `8`, `true`, `["a", "b"]`, `{ max = 8 }`.

A whole list may be given as well: `CRONOQ_RESOURCES=[{ name = "api", permits = 3 }]`. All other
variables without two underscores are somebody else's and are left alone: `CRONOQ_SERVER` and
`CRONOQ_TOKEN` mean something to other programs of this family.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, NamedTuple

from cronoq_server.config import toml_text
from cronoq_server.config.sections import Config
from cronoq_server.config.values import Problem

PREFIX = "CRONOQ_"
LISTS = frozenset(entry.name for entry in fields(Config) if "tables" in entry.metadata)


class Text(NamedTuple):
    """A value from the environment: what it means depends on what its key takes."""

    text: str

    def as_toml(self) -> object:
        """What it is as TOML.

        Raises:
            ValueError: It is none.
        """
        try:
            return toml_text.loads(f"value = {self.text}")["value"]
        except tomllib.TOMLDecodeError as error:
            # The parser's own message may hold what it read.
            raise ValueError("is neither a text that fits nor a value of TOML") from error


def overlay(
    document: dict[str, Any], environment: Mapping[str, str]
) -> tuple[dict[str, str], list[Problem]]:
    """Puts the environment's values into a document.

    Returns:
        The variable behind each path that one has set, and what is wrong with names.
    """
    places: dict[str, str] = {}
    problems: list[Problem] = []
    # Shorter names first, so that a list stands before its parts are changed.
    for variable in sorted(environment, key=lambda name: (name.count("__"), name)):
        if not variable.startswith(PREFIX):
            continue
        parts = variable[len(PREFIX) :].lower().split("__")
        if len(parts) == 1 and parts[0] not in LISTS:
            continue
        try:
            path = _put(document, parts, Text(environment[variable]))
        except ValueError as error:
            problems.append(Problem(variable, str(error), "environment"))
        else:
            places[path] = variable
    return places, problems


def _put(document: dict[str, Any], parts: list[str], value: Text) -> str:
    """Puts one value where its path leads, and returns the path.

    Raises:
        ValueError: It leads nowhere.
    """
    here: Any = document
    path = ""
    for depth, part in enumerate(parts):
        last = depth == len(parts) - 1
        here = _opened(here)
        if isinstance(here, list):
            if not _is_number(part) or int(part) > len(here):
                raise ValueError(f"{path} has {len(here)} entries: name one by its number from 0")
            number = int(part)
            if number == len(here):
                here.append({})
            path = f"{path}[{number}]"
            key: str | int = number
        elif isinstance(here, dict):
            path, key = (f"{path}.{part}" if path else part), part
            has_number = not last and _is_number(parts[depth + 1])
            here.setdefault(part, [] if has_number else {})
        else:
            raise ValueError(f"{path} has no parts")
        if last:
            here[key] = value
        else:
            opened = _opened(here[key])
            here[key] = opened
            here = opened
    return path


def _is_number(part: str) -> bool:
    return part.isascii() and part.isdecimal() and len(part) <= 6


def _opened(value: Any) -> Any:
    """A value that parts are to be put into: one from the environment is read first."""
    return value.as_toml() if isinstance(value, Text) else value
