"""The engine's rules and its tests name each other: no rule is without a test."""

from __future__ import annotations

import re
from pathlib import Path

HERE = Path(__file__).parent
RULES = HERE.parents[1] / "docs" / "spec" / "engine.md"
_RULE = re.compile(r"\bEN-\d+\b")


def test_every_rule_is_cited_by_a_test_and_every_citation_is_a_rule() -> None:
    """A rule that nothing tests is a wish; a number that nothing explains is a riddle."""
    stated = re.findall(r"^\| (EN-\d+) \|", RULES.read_text(encoding="utf-8"), re.MULTILINE)
    cited = {
        rule
        for path in HERE.glob("test_*.py")
        for rule in _RULE.findall(path.read_text(encoding="utf-8"))
    }
    assert len(stated) == len(set(stated))
    assert sorted(cited) == sorted(stated)
