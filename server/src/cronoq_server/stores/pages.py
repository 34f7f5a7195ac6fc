"""What a filter means in SQL, for both dialects, and where a page goes on.

A page is a window of the ends in its order, at most `LOOKED_AT_MAX` of them, from which the filter
takes what fits: a rare filter never makes one look-up read a whole history.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from cronoq_server.engine.filters import passes
from cronoq_server.engine.model import TaskFilter
from cronoq_server.engine.mutations import StoredTask
from cronoq_server.stores.base import FinishedPage, FinishedQuery

_encode = msgspec.msgpack.Encoder().encode

Among = Callable[[str, list[Any]], str]
"""Makes the condition that a column is among values, and keeps the values for the statement."""

Contains = Callable[[str, bytes], str]
"""Makes the condition that a blob column contains these bytes."""


def conditions(wanted: TaskFilter, among: Among, contains: Contains) -> list[str]:
    """The filter's parts as conditions on `t` (tasks) and `e` (ends).

    Tags are looked for as bytes within the spec, which may find a few too many: `fit` judges.
    """
    parts = [
        ("t.pool", wanted.pools),
        ("t.kind", wanted.kinds),
        ("t.key", wanted.keys),
        ("t.tenant", wanted.tenants),
        ("e.status", wanted.statuses),
    ]
    found = [among(column, list(values)) for column, values in parts if values]
    if wanted.schedule:
        found.append(among("t.schedule", [wanted.schedule]))
    found += [contains("t.spec", _encode(pair)) for pair in wanted.tags]
    return found


def fit(tasks: list[StoredTask], wanted: TaskFilter) -> list[StoredTask]:
    """Those that really pass."""
    if not wanted.tags:
        return tasks
    return [t for t in tasks if t.change is not None and passes(t.spec, t.change.status, wanted)]


def cut(tasks: list[StoredTask], query: FinishedQuery) -> FinishedPage | None:
    """The page, if more were found than fit on it: it goes on behind its last task."""
    if len(tasks) <= query.limit:
        return None
    page = tasks[: query.limit]
    last = page[-1]
    return page_until(page, last.task_id, last.position, query)


def page_until(
    tasks: list[StoredTask], task_id: int, position: int, query: FinishedQuery
) -> FinishedPage:
    """A page that goes on behind this task."""
    found = fit(tasks, query.filter or TaskFilter())
    return FinishedPage(found, task_id, position if query.ended_after is not None else 0)
