"""Every rule that all SDKs obey has a scenario, and everything around the scenarios is in order."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from cronoq_conformance.languages import read_languages
from cronoq_conformance.mutants import read_mutants
from cronoq_conformance.report import read_known, stale
from cronoq_conformance.run import VERBS
from cronoq_conformance.scenario import Scenario, read_scenarios

ROOT = Path(__file__).resolve().parents[2]
CONFORMANCE = ROOT / "conformance"
RULE = re.compile(r"^\| ((?:RR|WP)-\d\d) \|", re.MULTILINE)

# Rules that no scenario can show, each with the reason. A line without need is a mistake, too.
NOT_OBSERVABLE: dict[str, str] = {}


@pytest.fixture(scope="module")
def scenarios() -> list[Scenario]:
    """All scenarios there are."""
    return read_scenarios(CONFORMANCE / "scenarios", frozenset(VERBS))


def written_rules() -> Iterator[str]:
    """Yields the ids of the rules in the two documents."""
    for name in ("redirect-and-reconnect.md", "worker-protocol.md"):
        yield from RULE.findall((ROOT / "docs" / "spec" / name).read_text(encoding="utf-8"))


def test_each_rule_has_a_scenario(scenarios: list[Scenario]) -> None:
    """A rule is proved by a scenario, or it is said why none can."""
    proved = {rule for scenario in scenarios for rule in scenario.rules}
    missing = [r for r in written_rules() if r not in proved and r not in NOT_OBSERVABLE]
    assert not missing, f"rules without a scenario: {', '.join(missing)}"
    assert not proved & set(NOT_OBSERVABLE)


def test_scenarios_prove_rules_that_exist(scenarios: list[Scenario]) -> None:
    """A scenario names rules of the documents only."""
    rules = set(written_rules())
    unknown = {s.full_name: set(s.rules) - rules for s in scenarios if set(s.rules) - rules}
    assert not unknown


def test_lists_of_known_failures_are_not_stale(scenarios: list[Scenario]) -> None:
    """Each line of a list names a scenario, gives a reason, and is of a language that there is."""
    languages = [language.name for language in read_languages()]
    assert not stale(read_known(CONFORMANCE / "known_failing", languages), scenarios)
    files = {path.stem for path in (CONFORMANCE / "known_failing").glob("*.txt")}
    assert files >= set(languages)


def test_mutants_break_rules_that_have_scenarios(scenarios: list[Scenario]) -> None:
    """Each wrong behaviour names the rules that it breaks, and scenarios prove them."""
    mutants = read_mutants()
    assert len(mutants) >= 8
    for mutant in mutants:
        chosen = [scenario for scenario in scenarios if mutant.rules & set(scenario.rules)]
        assert chosen, mutant.name


def test_options_of_the_protocol_have_the_names_of_the_defaults() -> None:
    """What a participant is told as option has the name under which its default is written."""
    text = (CONFORMANCE / "PROTOCOL.md").read_text(encoding="utf-8")
    defaults = tomllib.loads((CONFORMANCE / "defaults.toml").read_text(encoding="utf-8"))
    for name in defaults["worker"]:
        if name != "keepalive_interval_min":
            assert f"`{name}`" in text, name
