"""Alerts and dashboard ask for what servers tell: names, labels, buckets."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from typing import Any, NamedTuple

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from cronoq_server.api.metrics import FAMILIES
from tests.api.conftest import serving
from tests.api.web import browsing
from tools.check_text import ROOT

DEPLOY = ROOT / "server/deploy"
GUIDE = ROOT / "docs/guide/operations.md"
RULES: list[dict[str, Any]] = [
    rule
    for group in yaml.safe_load((DEPLOY / "prometheus/alerts.yaml").read_text("utf-8"))["groups"]
    for rule in group["rules"]
]
DASHBOARD = json.loads((DEPLOY / "grafana/cronoq.json").read_text("utf-8"))
SCRAPE = yaml.safe_load((DEPLOY / "prometheus/prometheus.yaml").read_text("utf-8"))
TARGET_LABELS = {"job", "instance", "shard"}
"""What the scraper's configuration puts on everything."""

SEMAPHORE = "[[resources]]\nname = 'api'\nkind = 'semaphore'\npermits = 2\n"
BUCKET = "[[resources]]\nname = 'rate'\nkind = 'token_bucket'\nrate = 5.0\nburst = 5\n"
METRIC = re.compile(r"\b((?:cronoq|process)_\w+|up)\b(?:\{([^}]*)\})?(\[[^\]]+\])?")
MATCHER = re.compile(r'(\w+)(?:=~|!~|!=|=)"([^"]*)"')
GROUPING = re.compile(r"\b(?:by|on)\s*\(([^)]*)\)")
FUNCTIONS = {
    *("absent", "and", "by", "histogram_quantile", "label_values", "max", "max_over_time", "min"),
    *("min_over_time", "on", "or", "rate", "sum", "unless"),
}


def queries() -> list[tuple[str, str]]:
    """Every expression of rules and dashboard, with the name of who asks."""
    found = [(rule["alert"], rule["expr"]) for rule in RULES]
    for panel in DASHBOARD["panels"]:
        found += [(panel["title"], target["expr"]) for target in panel["targets"]]
    return found


class Told(NamedTuple):
    """What servers tell."""

    labels: dict[str, set[str]]
    values: dict[tuple[str, str], set[str]]
    kinds: dict[str, str]


@pytest.fixture
async def told() -> Told:
    """Samples of a leader that has pools and resources."""
    async with serving(SEMAPHORE + BUCKET) as edge, browsing(edge) as web:
        text = (await web.get("/metrics")).text
    labels: dict[str, set[str]] = {"up": set()}
    values: dict[tuple[str, str], set[str]] = defaultdict(set)
    kinds = {"up": "gauge"}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels[sample.name] = set(sample.labels)
            kinds[sample.name] = family.type
            for name, value in sample.labels.items():
                values[sample.name, name].add(value)
    return Told(labels, values, kinds)


def without_words(expression: str) -> str:
    """An expression without the texts and the label sets in it."""
    return GROUPING.sub("", METRIC.sub("0", expression))


async def test_every_query_asks_for_what_is_told(told: Told) -> None:
    """Each metric exists, has the labels that are asked for, and can have the values."""
    for who, expression in queries():
        metrics = METRIC.findall(expression)
        assert metrics, who
        for name, matchers, _ in metrics:
            assert name in told.labels, (who, name)
            for label, value in MATCHER.findall(matchers):
                assert label in told.labels[name] | TARGET_LABELS, (who, name, label)
                if value[0] not in "$" and label not in TARGET_LABELS:
                    assert set(value.split("|")) <= told.values[name, label], (who, value)


async def test_groups_are_by_labels_that_are_told(told: Told) -> None:
    """To group by a label that nothing carries would throw different things together."""
    for who, expression in queries():
        known = TARGET_LABELS.union(*(told.labels[m[0]] for m in METRIC.findall(expression)))
        for group in GROUPING.findall(expression):
            assert set(re.split(r",\s*", group)) <= known, (who, group)


async def test_counters_are_asked_for_their_rate_and_gauges_are_not(told: Told) -> None:
    """A count begins anew with each leadership: its height says nothing."""
    for who, expression in queries():
        for match in METRIC.finditer(expression):
            name, span = match[1], match[3]
            is_rated = expression[: match.start()].endswith("rate(")
            assert is_rated == (told.kinds[name] in ("counter", "histogram")), (who, name)
            assert not is_rated or span is not None, (who, name)


async def test_quantiles_are_of_buckets_that_reach_the_threshold(told: Told) -> None:
    """A quantile is never above the last bound, so a higher threshold would never be passed."""
    checked = 0
    for rule in RULES:
        if "histogram_quantile" not in rule["expr"]:
            continue
        name = METRIC.findall(rule["expr"])[0][0]
        threshold = float(rule["expr"].rpartition(">")[2])
        bounds = sorted(float(bound) for bound in told.values[name, "le"] - {"+Inf"})
        assert any(bound <= threshold for bound in bounds), rule["alert"]
        assert bounds[-1] > threshold, rule["alert"]
        checked += 1
    assert checked == 2


def test_expressions_are_well_formed() -> None:
    """Brackets close in order, and every word is a function, an operator or a number."""
    closing = {")": "(", "]": "[", "}": "{"}
    for who, expression in queries():
        opened: list[str] = []
        for sign in re.sub(r'"[^"]*"', "", expression):
            if sign in "([{":
                opened.append(sign)
            elif sign in closing:
                assert opened.pop() == closing[sign], who
        assert opened == [], who
        words = set(re.findall(r"[A-Za-z_]\w*", without_words(expression)))
        assert words <= FUNCTIONS, (who, words - FUNCTIONS)


@pytest.mark.parametrize("rule", RULES, ids=[rule["alert"] for rule in RULES])
def test_rules_say_what_is_wrong_for_how_long_and_how_badly(rule: dict[str, Any]) -> None:
    """Whoever is called needs all three; labels in the summary are those of the expression."""
    assert set(rule) == {"alert", "expr", "for", "labels", "annotations"}
    assert re.fullmatch(r"\d+[sm]", rule["for"])
    assert rule["labels"]["severity"] in ("critical", "warning")
    summary = rule["annotations"]["summary"]
    assert summary.count("{{") == summary.count("}}")
    carried = set(re.split(r",\s*", ",".join(GROUPING.findall(rule["expr"])))) | TARGET_LABELS
    assert set(re.findall(r"\$labels\.(\w+)", summary)) <= carried


def test_every_alert_is_in_the_guide_and_no_other() -> None:
    """An alert nobody can look up helps nobody at night."""
    rows = re.findall(r"^\| `(Cronoq\w+)` \|", GUIDE.read_text("utf-8"), re.MULTILINE)
    names = [rule["alert"] for rule in RULES]
    assert sorted(rows) == sorted(names)
    assert len(set(names)) == len(names)


def test_scrapes_are_named_as_the_rules_expect() -> None:
    """Rules and dashboard find the targets by this name."""
    assert SCRAPE["rule_files"] == ["alerts.yaml"]
    assert [one["job_name"] for one in SCRAPE["scrape_configs"]] == ["cronoq"]
    for _, expression in queries():
        assert set(re.findall(r'\bjob="([^"]*)"', expression)) <= {"cronoq"}


def test_dashboard_is_one_that_grafana_takes() -> None:
    """Ids are there once, panels do not lie over each other, variables are defined."""
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels) > 15
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert at["x"] + at["w"] <= 24, panel["title"]
        assert not cells & taken, panel["title"]
        taken |= cells
        assert panel["title"]
        assert panel["description"]
        assert panel["datasource"]["uid"] == "${source}"
    variables = {one["name"] for one in DASHBOARD["templating"]["list"]}
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(DASHBOARD["panels"])))
    assert used - {"__rate_interval"} <= variables


def test_dashboard_variables_ask_for_labels_that_are_told() -> None:
    """A list of choices without choices hides everything."""
    labels = {f"cronoq_{family.name}": {*family.labels, *TARGET_LABELS} for family in FAMILIES}
    for one in DASHBOARD["templating"]["list"]:
        if one["type"] == "query":
            metric, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", one["query"]).groups()  # type: ignore[union-attr]
            assert label in labels[metric]
