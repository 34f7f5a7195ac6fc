"""A worker written from nothing but freshly generated stubs passes what the guide promises."""

from __future__ import annotations

from cronoq_conformance import fifth
from cronoq_conformance.languages import CONFORMANCE
from cronoq_conformance.report import complaint
from cronoq_conformance.run import VERBS
from cronoq_conformance.scenario import read_scenarios

WORKER = CONFORMANCE / "new_language" / "worker.py"
LINES_MAX = 150


def test_a_worker_from_stubs_alone_passes_its_subset() -> None:
    """Generate, write, pass: the steps of the guide, done."""
    scenarios = read_scenarios(CONFORMANCE / "scenarios", frozenset(VERBS))
    outcomes = fifth.play(scenarios, jobs=6)
    assert len(outcomes) >= 25
    assert [complaint(outcome) for outcome in outcomes if outcome.failure] == []


def test_the_worker_is_as_short_as_the_guide_says() -> None:
    """A first worker is an afternoon's work, and uses nothing of the SDK."""
    text = WORKER.read_text(encoding="utf-8")
    assert sum(bool(line.strip()) for line in text.splitlines()) <= LINES_MAX
    assert "import cronoq\n" not in text
