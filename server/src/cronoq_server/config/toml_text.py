"""What of a TOML text is read at all: the standard library's parser, with bounds where it has none.

Its own errors are kept. A number of more digits than Python converts and a nesting deeper than
anybody needs would end it in other ways; here they are errors of the text like any other.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from typing import Any

DEPTH_MAX = 64
"""Most tables and lists around a value."""


def loads(text: str) -> dict[str, Any]:
    """Reads a TOML text.

    Raises:
        tomllib.TOMLDecodeError: It is none, or beyond what is read.
    """
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        raise
    except RecursionError:
        raise tomllib.TOMLDecodeError("is nested too deeply") from None
    except ValueError as error:  # int() does not say where it stood
        raise tomllib.TOMLDecodeError("holds a number of too many digits") from error
    if _is_deep(document):
        raise tomllib.TOMLDecodeError(f"is nested deeper than {DEPTH_MAX}")
    return document


def _is_deep(document: dict[str, Any]) -> bool:
    level: list[Any] = [document]
    for _ in range(DEPTH_MAX):
        level = [
            one
            for each in level
            for one in (each.values() if isinstance(each, Mapping) else each)
            if isinstance(one, (dict, list))
        ]
        if not level:
            return False
    return True
