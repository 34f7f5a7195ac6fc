"""How a `cronoq.toml` and the environment become one `Config`, or a list of all their mistakes."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, TypeVar

from cronoq_server.config import toml_text
from cronoq_server.config.contradictions import contradictions
from cronoq_server.config.environment import Text, overlay
from cronoq_server.config.lines import line_for, lines_of
from cronoq_server.config.rules import Rule, kind_of
from cronoq_server.config.sections import Config
from cronoq_server.config.values import ConfigError, Problem

T = TypeVar("T")


def load(path: Path, environment: Mapping[str, str] | None = None) -> Config:
    """Reads a configuration file.

    Args:
        path: The file.
        environment: Variables that change it; none if not given.

    Raises:
        ConfigError: It can't be read, is no TOML, or has mistakes; all of them are named.
    """
    source = str(path)
    try:
        text = path.read_bytes().decode()
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ConfigError(source, [Problem("file", reason)]) from error
    except UnicodeDecodeError as error:
        raise ConfigError(source, [Problem("file", "is not UTF-8 text")]) from error
    return parse(text, source, environment)


def parse(
    text: str, source: str = "configuration", environment: Mapping[str, str] | None = None
) -> Config:
    """Reads a configuration from TOML text.

    Args:
        text: The TOML.
        source: What messages call it.
        environment: Variables that change it; none if not given.

    Raises:
        ConfigError: It is no TOML, or has mistakes; all of them are named.
    """
    try:
        document = toml_text.loads(text)
    except tomllib.TOMLDecodeError as error:
        what, _, where = str(error).rpartition(" (at ")
        path = where.rstrip(")") if what else "TOML"
        raise ConfigError(source, [Problem(path, what or str(error))]) from error
    variables, problems = overlay(document, environment or {})
    try:
        config = read(document, source)
    except ConfigError as error:
        problems += error.problems
    else:
        if not problems:
            return config
    lines = lines_of(text)
    raise ConfigError(source, [_placed(one, source, lines, variables) for one in problems])


def read(document: Mapping[str, Any], source: str = "configuration") -> Config:
    """Reads a configuration from tables, as TOML would give them.

    Args:
        document: The tables.
        source: What messages call them.

    Raises:
        ConfigError: They have mistakes; all of them are named.
    """
    problems: list[Problem] = []
    config = _table(Config, document, "", problems)
    if config is not None:
        seen = {problem.path for problem in problems}
        problems += [other for other in contradictions(config) if other.path not in seen]
    if problems or config is None:
        raise ConfigError(source, problems)
    return config


def _placed(
    problem: Problem, source: str, lines: dict[str, int], variables: dict[str, str]
) -> Problem:
    """A problem with the file and line, or the variable, that it comes from."""
    if problem.place:
        return problem
    own = [
        variable
        for path, variable in variables.items()
        if problem.path == path or problem.path.startswith((f"{path}.", f"{path}["))
    ]
    line = line_for(lines, problem.path)
    # A table that only the environment has may be wrong as a whole.
    within = [one for path, one in variables.items() if path.startswith(f"{problem.path}.")]
    if own or (within and not line):
        return problem._replace(place=f"environment variable {(own or within)[0]}")
    return problem._replace(place=f"{source}:{line}") if line else problem


def _table(cls: type[T], table: object, path: str, problems: list[Problem]) -> T | None:
    """Reads one table; None if a value that must be there is not, with the reason noted."""
    if not isinstance(table, Mapping):
        problems.append(Problem(path, f"must be a table, not {kind_of(table)}"))
        return None
    known = {entry.name: entry for entry in fields(cls)}  # type: ignore[arg-type]
    prefix = f"{path}." if path else ""
    values: dict[str, Any] = {}
    for key, given in table.items():
        entry = known.get(key)
        if entry is None:
            (nearest,) = difflib.get_close_matches(key, known, n=1, cutoff=0.0)
            problems.append(Problem(prefix + key, f"unknown key; the nearest one is {nearest!r}"))
            continue
        value = _entry(entry.metadata, given, prefix + key, problems)
        if value is not None:
            values[key] = value
    for name, entry in known.items():
        if name not in table and entry.default is MISSING and entry.default_factory is MISSING:
            problems.append(Problem(prefix + name, "must be given"))
    try:
        return cls(**values)
    except TypeError:  # a value without default is missing or wrong; it has been noted
        return None


def _entry(
    metadata: Mapping[str, Any], given: object, path: str, problems: list[Problem]
) -> Any | None:
    try:
        if "rule" in metadata:
            return _fitting(metadata["rule"], given)
        given = given.as_toml() if isinstance(given, Text) else given
    except ValueError as error:
        problems.append(Problem(path, str(error)))
        return None
    if "table" in metadata:
        return _table(metadata["table"], given, path, problems)
    return _tables(metadata["tables"], given, path, problems)


def _fitting(rule: Rule, given: object) -> Any:
    """What a rule makes of a value; one from the environment may be a text as it stands, or TOML.

    Raises:
        ValueError: It fits neither way.
    """
    if not isinstance(given, Text):
        return rule(given)
    try:
        return rule(given.text)
    except ValueError as error:
        try:
            value = given.as_toml()
        except ValueError:
            raise error from None
        return rule(value)


def _tables(
    cls: type[T], given: object, path: str, problems: list[Problem]
) -> tuple[T, ...] | None:
    if not isinstance(given, list):
        problems.append(Problem(path, f"must be written as [[{path}]]"))
        return None
    read = [_table(cls, one, f"{path}[{index}]", problems) for index, one in enumerate(given)]
    whole = tuple(one for one in read if one is not None)
    return whole if len(whole) == len(read) else None
