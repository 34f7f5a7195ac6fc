"""Decides that the tree keeps its layers: the import contracts, and what no contract can say.

The contracts stand in the root pyproject. They list what is forbidden; the tests here add what is
allowed, so that a new package or a new library cannot slip through unlisted.
"""

import ast
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SERVER = ROOT / "server/src/cronoq_server"
ENGINE = SERVER / "engine"

# Everything that the engine may import. Values and arithmetic only.
ENGINE_MAY_IMPORT = {
    "__future__",
    "bisect",
    "collections",
    "dataclasses",
    "enum",
    "functools",
    "heapq",
    "itertools",
    "math",
    "msgspec",
    "operator",
    "typing",
}
# The calendar is arithmetic too, but needs words that the rest of the engine has no use for.
CALENDAR_MAY_IMPORT = {
    "cron.py": {"datetime"},
    "cron_pattern.py": {"croniter", "datetime", "re"},
    "zones.py": {"datetime", "importlib", "zoneinfo"},
}
STORES_MAY_IMPORT_OF_ENGINE = {"filters", "ids", "model", "mutations"}


def imports_of(source: Path, package: str) -> Iterator[str]:
    """Yield the full name of every module that a file imports, relative ones resolved."""
    for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package.split(".")[: -node.level + 1 or None] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                submodule = ROOT / "server/src" / Path(*module.split("."), f"{alias.name}.py")
                yield f"{module}.{alias.name}" if submodule.exists() else module


def test_import_contracts_hold() -> None:
    """Every contract of the root pyproject is kept."""
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-logo", "--no-cache"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr


def test_contracts_have_no_exceptions() -> None:
    """An import that does not fit is a reason to talk, not an entry in a list."""
    linter = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    contracts = linter["importlinter"]["contracts"]
    assert [c["id"] for c in contracts if "ignore_imports" in c] == []


@pytest.mark.parametrize("source", sorted(ENGINE.rglob("*.py")), ids=lambda path: path.name)
def test_engine_imports_only_values_and_arithmetic(source: Path) -> None:
    """The engine imports what is on the list and its own modules."""
    allowed = ENGINE_MAY_IMPORT | CALENDAR_MAY_IMPORT.get(source.name, set())
    imported = set(imports_of(source, "cronoq_server.engine"))
    foreign = {name for name in imported if not name.startswith("cronoq_server.engine")}
    assert {name for name in foreign if name.split(".")[0] not in allowed} == set()


@pytest.mark.parametrize(
    "source", sorted((SERVER / "stores").rglob("*.py")), ids=lambda path: path.name
)
def test_stores_import_only_values_of_the_engine(source: Path) -> None:
    """A store sees the engine's values, mutations and ids."""
    imported = set(imports_of(source, "cronoq_server.stores"))
    of_engine = {name for name in imported if name.startswith("cronoq_server.engine")}
    allowed = {f"cronoq_server.engine.{name}" for name in STORES_MAY_IMPORT_OF_ENGINE}
    assert of_engine - allowed == set()


@pytest.mark.parametrize("package", ["api", "runtime"])
def test_packages_above_the_stores_know_only_their_protocol(package: str) -> None:
    """Which store it is, nobody knows but the composition root."""
    for source in sorted((SERVER / package).rglob("*.py")):
        imported = set(imports_of(source, f"cronoq_server.{package}"))
        of_stores = {name for name in imported if name.startswith("cronoq_server.stores")}
        assert of_stores <= {"cronoq_server.stores.base"}, source.name
