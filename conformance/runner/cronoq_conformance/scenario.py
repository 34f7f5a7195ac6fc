"""Decides what a scenario is: data in a YAML file, checked when it is read.

A file holds a list. Each entry has a `name`, a `title` that says what must be so, the `rules` that
it proves and its `steps`; it may have `variants` (plain, tls, mtls), `cases` (variables, with a
name in `case`: the scenario is played once for each), a topology (`peers`, `proxies`, `cluster`),
`languages` (all when absent) with the reason in `because`, and `seconds`, its patience per step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

TOPOLOGY = frozenset({"peers", "proxies", "cluster"})
KEYS = TOPOLOGY | {"name", "title", "rules", "regressions", "steps", "variants", "cases", "seconds"}
KEYS |= {"languages", "because"}
VARIANTS = ("plain", "tls", "mtls")
# Steps that judge when something comes: what else the machine does can make them fail.
TIMED = frozenset({"beat", "delays", "elapsed", "heard", "no_fact", "pause", "still_open"})
PATIENCE_S = 30.0


class ScenarioError(Exception):
    """A scenario file is not as it should be."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """One scenario, in one variant and one case.

    Attributes:
        group: The file that it stands in.
        name: Its name, with case and variant.
        title: What must be so.
        rules: Ids of the rules that it proves.
        steps: What is played.
        variables: Those of its case.
        languages: Whom it is for; empty for all.
    """

    group: str
    name: str
    title: str
    rules: tuple[str, ...]
    steps: tuple[Mapping[str, Any], ...]
    variant: str = "plain"
    variables: Mapping[str, Any] = field(default_factory=dict)
    peers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    proxies: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    cluster: Mapping[str, Any] | None = None
    languages: tuple[str, ...] = ()
    patience_s: float = PATIENCE_S

    @property
    def full_name(self) -> str:
        """Group and name."""
        return f"{self.group}/{self.name}"

    @property
    def is_timed(self) -> bool:
        """True if a step judges when something comes."""
        return any(next(iter(step)) in TIMED for step in self.steps)

    def is_for(self, language: str) -> bool:
        """Tells whether a language has to pass it."""
        return not self.languages or language in self.languages


def read_scenarios(directory: Path, verbs: frozenset[str]) -> list[Scenario]:
    """Reads all scenario files of a directory.

    Args:
        directory: Where they are.
        verbs: The steps that there are.

    Raises:
        ScenarioError: Something in them cannot be played.
    """
    found: list[Scenario] = []
    for path in sorted(directory.glob("*.yaml")):
        entries = yaml.safe_load(path.read_text(encoding="utf-8"))
        for entry in entries:
            _check(path.name, entry, verbs)
            found.extend(_expand(path.stem, entry))
    names = [scenario.full_name for scenario in found]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ScenarioError(f"scenarios with the same name: {', '.join(twice)}")
    return found


def _check(file: str, entry: Mapping[str, Any], verbs: frozenset[str]) -> None:
    name = entry.get("name", "(no name)")
    unknown = set(entry) - KEYS
    if unknown or not {"name", "title", "steps"} <= set(entry):
        raise ScenarioError(f"{file}: {name}: unknown or missing keys: {sorted(unknown)}")
    if bool(entry.get("languages")) != bool(entry.get("because")):
        raise ScenarioError(f"{file}: {name}: languages and because go together")
    _check_steps(f"{file}: {name}", entry["steps"], verbs)


def _check_steps(place: str, steps: Sequence[Mapping[str, Any]], verbs: frozenset[str]) -> None:
    for step in steps:
        verb = next(iter(step))
        if verb == "for_each":
            _check_steps(place, step["steps"], verbs)
        elif verb not in verbs:
            raise ScenarioError(f"{place}: no such step: {verb}")


def _expand(group: str, entry: Mapping[str, Any]) -> Iterator[Scenario]:
    variants: Sequence[str] = entry.get("variants", ["plain"])
    cases: Sequence[Mapping[str, Any]] = entry.get("cases", [{}])
    peers = entry.get("peers", ["a"] if "cluster" not in entry else [])
    if isinstance(peers, list):
        peers = {name: {} for name in peers}
    for case in cases:
        for variant in variants:
            labels = [case["case"]] if case else []
            if variant != "plain" or len(variants) > 1:
                labels.append(variant)
            suffix = f"[{','.join(labels)}]" if labels else ""
            yield Scenario(
                group=group,
                name=entry["name"] + suffix,
                title=entry["title"],
                rules=tuple(entry.get("rules", ())),
                steps=tuple(entry["steps"]),
                variant=variant,
                variables=dict(case),
                peers={name: dict(each or {}) for name, each in peers.items()},
                proxies=entry.get("proxies", {}),
                cluster=entry.get("cluster"),
                languages=tuple(entry.get("languages", ())),
                patience_s=float(entry.get("seconds", PATIENCE_S)),
            )
