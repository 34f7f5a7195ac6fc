"""Decides which tests cover which kind of fault: they say so themselves, in any language.

A Python test bears `@pytest.mark.regression("R1", "R2")`; a scenario has `regressions: [R1, R2]`;
any other test, and those of the store suite, which runs in projects that do not know the mark, has
a comment `Covers R1, R2.` right above it. A mark that stands above no test, and one for a row
that there is not, is an error.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import yaml

ROOT = Path(__file__).resolve().parent.parent

COMMENT = re.compile(r"^\s*(?:#|//) Covers (?P<rows>R\d+(?:, R\d+)*)\.$")
FOLLOWING = re.compile(r"^\s*(?:#|//|@|#\[)")
"""What may stand between a comment and its test: more comments, decorators, attributes."""

TESTS = {
    ".py": re.compile(r"^\s*(?:async )?def (?P<name>test_\w+)\("),
    ".go": re.compile(r"^func (?P<name>Test\w+|Fuzz\w+)\("),
    ".rs": re.compile(r"^\s*(?:async )?fn (?P<name>\w+)\("),
    ".ts": re.compile(r"^\s*(?:it|test)\((?P<quote>[\"`])(?P<name>.*?)(?P=quote),"),
}
PYTHON = ("tests", "sdk-python/tests", "server/src/cronoq_server/testing/store_suite")
OTHERS = {"sdk-go": "*_test.go", "sdk-rust": "*.rs", "sdk-typescript/test": "*.ts"}
SCENARIOS = "conformance/scenarios"
BUILT = {"node_modules", "target", "build", "dist"}


class MarkError(Exception):
    """A mark belongs to no test, or is none."""


class Mark(NamedTuple):
    """A test that covers a row.

    Attributes:
        row: Such as `R12`.
        path: The test's file, from the root.
        test: What the test is called.
    """

    row: str
    path: str
    test: str


def collect(root: Path = ROOT) -> list[Mark]:
    """Return every mark in the tree, in order of files.

    Raises:
        MarkError: One of them cannot be read, or has no test.
    """
    found: list[Mark] = []
    for folder in PYTHON:
        for path in _files(root / folder, "*.py"):
            found += of_python(path.read_text(encoding="utf-8"), str(path.relative_to(root)))
    for folder, pattern in OTHERS.items():
        for path in _files(root / folder, pattern):
            text = path.read_text(encoding="utf-8")
            found += of_comments(text, str(path.relative_to(root)))
    for path in _files(root / SCENARIOS, "*.yaml"):
        found += of_scenarios(path.read_text(encoding="utf-8"), str(path.relative_to(root)))
    return found


def _files(folder: Path, pattern: str) -> list[Path]:
    paths = sorted(folder.rglob(pattern))
    return [path for path in paths if not BUILT & set(path.relative_to(folder).parts)]


def of_python(text: str, path: str) -> Iterator[Mark]:
    """Yield the marks of a Python file: decorators and comments."""
    if "regression" not in text and "Covers R" not in text:
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            for decorator in node.decorator_list:
                for row in _rows(decorator, path):
                    if not node.name.lower().startswith("test"):
                        raise MarkError(f"{path}: {node.name} is marked and is no test")
                    yield Mark(row, path, node.name)
    yield from of_comments(text, path)


def _rows(decorator: ast.expr, path: str) -> list[str]:
    if ast.unparse(decorator).split("(")[0] != "pytest.mark.regression":
        return []
    rows = []
    if isinstance(decorator, ast.Call):
        rows = [ast.literal_eval(argument) for argument in decorator.args]
    if not rows or not all(isinstance(row, str) for row in rows):
        raise MarkError(f"{path}: {ast.unparse(decorator)} names no rows")
    return rows


def of_comments(text: str, path: str) -> Iterator[Mark]:
    """Yield the marks that are comments above tests."""
    test = TESTS[Path(path).suffix]
    lines = text.split("\n")
    for number, line in enumerate(lines):
        comment = COMMENT.match(line)
        if comment is None:
            continue
        below = number + 1
        while below < len(lines) and FOLLOWING.match(lines[below]):
            below += 1
        named = test.match(lines[below]) if below < len(lines) else None
        if named is None:
            raise MarkError(f"{path}:{number + 1}: a mark above no test")
        for row in comment["rows"].split(", "):
            yield Mark(row, path, named["name"])


def of_scenarios(text: str, path: str) -> Iterator[Mark]:
    """Yield the marks of a file of scenarios."""
    for entry in yaml.safe_load(text):
        for row in entry.get("regressions", ()):
            yield Mark(str(row), path, f"{Path(path).stem}/{entry['name']}")
