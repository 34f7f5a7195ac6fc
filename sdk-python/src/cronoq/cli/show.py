"""Decides how answers look: tables for people, JSON for programs."""

from __future__ import annotations

import base64
import enum
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from cronoq.spec import TaskStatus
from cronoq.views import TaskInfo

WIDE = 1000
"""Columns of output that goes into a file or a pipe: nothing is cut there."""

STYLES = {
    TaskStatus.SUCCEEDED: "green",
    TaskStatus.FAILED: "red",
    TaskStatus.DEAD_LETTERED: "red",
    TaskStatus.RUNNING: "cyan",
    TaskStatus.RETRYING: "yellow",
    TaskStatus.MISSED: "yellow",
    TaskStatus.SHED: "yellow",
    TaskStatus.CANCELLED: "yellow",
    TaskStatus.SKIPPED: "yellow",
}


class Output:
    """Where answers go.

    Attributes:
        as_json: Whether they are for programs.
        console: Standard output.
        errors: Standard error.
    """

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json
        # Texts of users are never read as markup, and no output is cut for a file or a pipe.
        wide = None if sys.stdout.isatty() else WIDE
        self.console = Console(markup=False, highlight=False, soft_wrap=True, width=wide)
        self.errors = Console(stderr=True, markup=False, highlight=False, soft_wrap=True)

    def value(self, value: Any) -> None:
        """One value as JSON, on one line."""
        self.console.out(dumped(value), highlight=False)

    def say(self, text: str) -> None:
        """A line for people."""
        self.console.print(text)

    def warn(self, text: str) -> None:
        """A line beside the answer."""
        self.errors.print(text, style="yellow")

    def missing(self, shards: Iterable[str]) -> None:
        """Names shards that an answer lacks."""
        names = sorted(shards)
        if names:
            self.warn(f"not included, because they don't answer: {', '.join(names)}")

    def table(self, head: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        """A table for people."""
        table = Table(box=None, pad_edge=False, header_style="bold")
        for name in head:
            table.add_column(name, no_wrap=name in ("id", "pool", "status", "state"))
        for row in rows:
            table.add_row(*(cell if isinstance(cell, Text) else Text(plain(cell)) for cell in row))
        self.console.print(table)

    def fields(self, pairs: Iterable[tuple[str, Any]]) -> None:
        """Names and values for people; what is empty is left out."""
        table = Table(box=None, show_header=False, pad_edge=False)
        for name, value in pairs:
            if value in (None, "", (), [], {}):
                continue
            shown = value if isinstance(value, Text) else Text(plain(value))
            table.add_row(Text(name, style="dim"), shown)
        self.console.print(table)


def status(of: TaskStatus) -> Text:
    """A status in its colour."""
    return Text(of.name.lower(), style=STYLES.get(of, ""))


def plain(value: Any) -> str:
    """A value as text."""
    if value is None:
        return "-"
    if isinstance(value, enum.Enum):
        return value.name.lower()
    if isinstance(value, datetime):
        return ago(value)
    if isinstance(value, float):
        # Three digits; where they are not enough for a whole number, all of them and no exponent.
        return f"{value:.0f}" if abs(value) >= 999.5 else f"{value:.3g}"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={one}" if one != "" else name for name, one in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(plain(one) for one in value)
    return str(value)


def ago(instant: datetime) -> str:
    """How far away an instant is."""
    passed = (datetime.now(UTC) - instant).total_seconds()
    text = duration(abs(passed))
    return f"{text} ago" if passed >= 0 else f"in {text}"


def duration(seconds: float) -> str:
    """Seconds as people say them."""
    for most, divisor, unit in (
        (1, 0.001, "ms"),
        (120, 1, "s"),
        (7200, 60, "min"),
        (172_800, 3600, "h"),
    ):
        if seconds < most:
            return f"{seconds / divisor:.0f} {unit}"
    return f"{seconds / 86_400:.0f} d"


def dumped(value: Any) -> str:
    """A value as JSON: ids as texts, instants in ISO 8601, bytes as text or base64."""
    return json.dumps(_jsonable(value), ensure_ascii=False)


def _jsonable(value: Any, name: str = "") -> Any:
    if isinstance(value, enum.Enum):
        return value.name.lower()
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, (bytes, bytearray)):
        return content(bytes(value))
    if isinstance(value, msgspec.Struct):
        return {f: _jsonable(getattr(value, f), f) for f in value.__struct_fields__}
    if isinstance(value, Mapping):
        return {str(key): _jsonable(one, str(key)) for key, one in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_jsonable(one, name) for one in value]
    if isinstance(value, int) and not isinstance(value, bool) and name in IDS:
        return str(value)
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    return None  # a marker of the SDK for what was not given


IDS = frozenset({"id", "task_id", "last_task_id", "next_after", "target", "children", "deps"})


def content(raw: bytes) -> Any:
    """Bytes for a JSON document: the JSON that they are, or a text, or base64."""
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(raw).decode()}
    try:
        return json.loads(text)
    except ValueError:
        return text


def task_rows(tasks: Iterable[TaskInfo]) -> Iterable[Sequence[Any]]:
    """Tasks as rows of a table."""
    for task in tasks:
        note = task.message or "; ".join(task.waiting_for)
        yield (
            str(task.id), status(task.status), task.kind, task.pool, task.key,
            f"{task.attempt}/{task.max_attempts}", task.created_at, note,
        )  # fmt: skip


TASK_HEAD = ("id", "status", "kind", "pool", "key", "attempt", "created", "message")
