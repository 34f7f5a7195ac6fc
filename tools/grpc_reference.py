"""Decides what the reference of the gRPC interface says: it is drawn from the proto files alone.

It reads the little of their grammar that the style of ``proto/`` allows: one declaration in a line,
comments above what they are about. A line that it does not know is an error, not left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FILES = ("tasks", "workers", "admin", "testing", "task")

SERVICE = re.compile(r"^service (\w+) \{$")
METHOD = re.compile(r"^rpc (\w+)\((stream )?(\w+)\) returns \((stream )?(\w+)\);$")
SHAPE = re.compile(r"^(message|enum) (\w+) \{(\})?$")
FIELD = re.compile(r"^(optional |repeated )?([\w.]+|map<[\w., ]+>) (\w+) = (\d+)(?: \[.*\])?;$")
VALUE = re.compile(r"^([A-Z]\w*) = (\d+);$")
SILENT = re.compile(r"^(syntax|package|import|option|reserved) ?.*;$|^syntax .*;$|^$")


@dataclass
class Part:
    """A service, a message or an enumeration, with what is in it as rows of a table."""

    kind: str
    name: str
    words: str
    rows: list[tuple[str, str, str]] = field(default_factory=list)


def read(text: str) -> Iterator[Part]:
    """Yield the declarations of a proto file, in order.

    Raises:
        ValueError: A line is none that this reader knows.
    """
    words: list[str] = []
    open_parts: list[Part | None] = []
    for line in (each.strip() for each in text.splitlines()):
        if line.startswith("//"):
            words.append(line.removeprefix("//").strip())
            continue
        said, words = " ".join(words), []
        if line == "}":
            part = open_parts.pop()
            if part is not None:
                yield part
        elif found := SERVICE.match(line):
            open_parts.append(Part("service", found[1], said))
        elif found := SHAPE.match(line):
            part = Part(found[1], found[2], said)
            if found[3]:
                yield part
            else:
                open_parts.append(part)
        elif line.startswith("oneof "):
            open_parts.append(None)  # its fields belong to the message around it
        elif found := METHOD.match(line):
            asked, told = f"{found[2] or ''}{found[3]}", f"{found[4] or ''}{found[5]}"
            _inmost(open_parts).rows.append((found[1], f"{asked} → {told}", said))
        elif found := FIELD.match(line):
            kind = f"{found[1] or ''}{found[2]}"
            _inmost(open_parts).rows.append((f"{found[3]} = {found[4]}", kind, said))
        elif found := VALUE.match(line):
            _inmost(open_parts).rows.append((f"{found[1]} = {found[2]}", "", said))
        elif not SILENT.match(line):
            raise ValueError(f"no declaration that is known here: {line}")


def _inmost(parts: list[Part | None]) -> Part:
    return next(part for part in reversed(parts) if part is not None)


def page(mark: str) -> str:
    """Return the page; `mark` says that it is generated."""
    lines = [
        "# gRPC API",
        "",
        mark,
        "",
        "The contract as it stands in `proto/cronoq/v1`, with the words of its files. SDKs speak",
        "it for you; [a client in a new language](../guide/new-language.md) does without. Tokens",
        "travel as metadata, `authorization: Bearer TOKEN`. Refusals carry a reason, see",
        "[Errors](errors.md). Health checks and reflection are served beside it.",
        "",
    ]
    for name in FILES:
        text = (ROOT / f"proto/cronoq/v1/{name}.proto").read_text(encoding="utf-8")
        parts = list(read(text))
        if not any(part.kind == "service" for part in parts):
            lines += ["## What they share", ""]
        for part in sorted(parts, key=lambda one: one.kind != "service"):
            lines += _section(part)
    return "\n".join(lines).rstrip() + "\n"


def _section(part: Part) -> Iterator[str]:
    is_service = part.kind == "service"
    yield from (f"{'##' if is_service else '###'} {part.name}", "")
    if part.words:
        yield from (_safe(part.words), "")
    if not part.rows:
        return
    if part.kind == "enum":
        yield from ("| value | meaning |", "| --- | --- |")
        yield from (f"| `{name}` | {_safe(said)} |" for name, _, said in part.rows)
    else:
        first = "method | request → answer" if part.kind == "service" else "field | type"
        yield from (f"| {first} | meaning |", "| --- | --- | --- |")
        yield from (f"| `{name}` | `{kind}` | {_safe(said)} |" for name, kind, said in part.rows)
    yield ""


def _safe(words: str) -> str:
    return words.replace("|", "\\|").replace("<", "&lt;")
