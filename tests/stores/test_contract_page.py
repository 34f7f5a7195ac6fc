"""The page of the store contract names a test for every rule, and only tests that there are."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/spec/store-contract.md").read_text(encoding="utf-8")
FOLDERS = ("tests/stores", "server/src/cronoq_server/testing/store_suite")
ROW = re.compile(r"^\| (ST-\d+) \| (.*) \|$", re.MULTILINE)


def test_every_rule_has_tests_that_exist() -> None:
    """In order of the rules."""
    rules, _, places = PAGE.partition("## Where each rule is tested")
    sources = [path for folder in FOLDERS for path in (ROOT / folder).glob("*.py")]
    known = {
        name
        for path in sources
        for name in re.findall(r"def (test_\w+)", path.read_text(encoding="utf-8"))
    }
    tested = {rule: re.findall(r"`(\w+)`", names) for rule, names in ROW.findall(places)}
    assert list(tested) == [rule for rule, _ in ROW.findall(rules)]
    assert all(tested.values())
    assert {name for names in tested.values() for name in names} - known == set()
