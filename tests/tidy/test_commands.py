"""Decides that the full check is full: no test file, recipe or script is left out of it."""

import os
import re
import tomllib
from pathlib import Path

import pytest

from tools.run_all import PARTS, ROOT, Part, announce, count_tests, run_part

JUSTFILE = (ROOT / "justfile").read_text(encoding="utf-8")


def test_every_test_file_belongs_to_a_part() -> None:
    """A test that no part names would never run in CI."""
    pytest_options = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["pytest"]
    roots = [ROOT / path for path in pytest_options["ini_options"]["testpaths"]]
    named = [ROOT / path for part in PARTS if part.counts_tests for path in part.command[4:]]
    files = [path for root in roots for path in root.rglob("test_*.py")]
    assert files
    orphans = [f for f in files if not any(f == path or path in f.parents for path in named)]
    assert orphans == []


def test_every_part_calls_a_recipe_that_exists() -> None:
    """A part that is not a set of tests is a recipe, so that a person can call it alone."""
    recipes = set(re.findall(r"^([a-z][a-z-]*)[^:=\n]*:(?!=)", JUSTFILE, re.MULTILINE))
    called = {part.command[1] for part in PARTS if not part.counts_tests}
    assert called <= recipes


def test_every_recipe_says_what_it_is_for() -> None:
    """The list of recipes is the manual."""
    recipe = re.compile(
        r"((?:^# .*\n)?)((?:^\[.*\]\n)*)^([a-z][a-z-]*)[^:=\n]*:(?!=)", re.MULTILINE
    )
    silent = [
        name
        for comment, attributes, name in recipe.findall(JUSTFILE)
        if not comment and "[private]" not in attributes
    ]
    assert silent == []


def test_recipes_are_short() -> None:
    """Six lines or more belong into a program of their own."""
    bodies = re.findall(r"^[a-z][^\n]*:[^\n=]*\n((?: {4}.*\n)+)", JUSTFILE, re.MULTILINE)
    assert bodies
    assert max(len(body.splitlines()) for body in bodies) < 6


def test_ci_calls_the_full_check_and_nothing_else() -> None:
    """What CI runs, a person can run."""
    script = (ROOT / ".ci/run").read_text(encoding="utf-8")
    assert "exec ./justw test\n" in script
    assert os.access(ROOT / ".ci/run", os.X_OK)
    assert os.access(ROOT / "justw", os.X_OK)


@pytest.fixture(autouse=True)
def _no_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    """The samples need none, and start in a fraction of the time."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")


def run_pytest_part(folder: Path, source: str) -> tuple[int, int, int]:
    """Run a part that consists of one test file and return its counts."""
    file = folder / "test_sample.py"
    file.write_text(source, encoding="utf-8")
    config = folder / "pytest.ini"
    config.write_text("[pytest]\n", encoding="utf-8")
    command = (*PARTS[-1].command[:4], "-p", "no:cacheprovider", "-c", str(config), str(file))
    outcome = run_part(Part("sample", command, counts_tests=True), folder)
    return outcome.passed, outcome.failed, outcome.skipped


def test_tests_are_counted_one_by_one(tmp_path: Path) -> None:
    """Two that pass and one that fails are two and one."""
    source = "def test_a(): pass\ndef test_b(): pass\ndef test_c(): assert False\n"
    assert run_pytest_part(tmp_path, source) == (2, 1, 0)


def test_a_part_without_tests_has_failed(tmp_path: Path) -> None:
    """Nothing to run is no success."""
    assert run_pytest_part(tmp_path, "") == (0, 1, 0)


def test_a_file_that_cannot_be_imported_has_failed(tmp_path: Path) -> None:
    """An error before the first test counts, too."""
    assert run_pytest_part(tmp_path, "import no_such_module\n") == (0, 1, 0)


@pytest.mark.parametrize(("ci", "failed"), [("", 0), ("true", 1)])
def test_a_skipped_test_fails_in_ci_only(
    ci: str, failed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In CI all that tests need is there; elsewhere a skip is printed."""
    monkeypatch.setenv("CI", ci)
    source = "import pytest\ndef test_a(): pass\ndef test_b(): pytest.skip('no database')\n"
    assert run_pytest_part(tmp_path, source) == (1, failed, 1)


def test_a_part_that_fails_shows_its_output(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """What went wrong is read in the log, not guessed."""
    part = Part("sample", ("sh", "-c", "echo it broke; exit 3"))
    outcome = run_part(part, tmp_path)
    announce(part, outcome)
    assert (outcome.passed, outcome.failed) == (0, 1)
    assert "it broke" in capfd.readouterr().out


def test_a_missing_report_counts_nothing(tmp_path: Path) -> None:
    """A runner that died before its report leaves no numbers."""
    assert count_tests(tmp_path / "none.xml") == (0, 0, 0)
