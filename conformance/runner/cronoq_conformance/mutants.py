"""Decides whether the suite notices an SDK that is wrong: the Python one, with one fault at a time.

For each mutant of `conformance/mutants/` the scenarios of the rules that it names in its first line
are played; at least one of them has to fail. A mutant that passes them is a hole in the suite.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .languages import CONFORMANCE, ROOT, Language
from .report import Outcome
from .run import play_all
from .scenario import Scenario

FOLDER = CONFORMANCE / "mutants"
RULE = re.compile(r"\b(?:RR|WP)-\d\d\b")


@dataclass(frozen=True, slots=True)
class Mutant:
    """One wrong behaviour and the rules that it breaks."""

    name: str
    title: str
    rules: frozenset[str]

    @property
    def language(self) -> Language:
        """The Python participant with this fault."""
        path = (FOLDER / "run.py").relative_to(ROOT)
        return Language(self.name, ("python", str(path), self.name))


def read_mutants(folder: Path = FOLDER) -> list[Mutant]:
    """Reads what mutants there are."""
    found = []
    for path in sorted(folder.glob("*.py")):
        if path.name == "run.py":
            continue
        first = path.read_text(encoding="utf-8").splitlines()[0].strip('"')
        found.append(Mutant(path.stem, first, frozenset(RULE.findall(first))))
    return found


def main(scenarios: Sequence[Scenario], jobs: int) -> int:
    """Plays all mutants and returns the exit code: 0 if each was noticed."""
    holes = 0
    mutants = read_mutants()
    for mutant, outcomes in zip(mutants, asyncio.run(_play(mutants, scenarios, jobs)), strict=True):
        red = [outcome for outcome in outcomes if outcome.failure]
        holes += not red
        verdict = "noticed" if red else "NOT NOTICED"
        print(f"{verdict:<12} {mutant.name}: {len(red)} of {len(outcomes)} scenarios fail")
        for outcome in red[:3]:
            print(f"             {outcome.scenario.full_name}", file=sys.stderr)
    print(f"{len(mutants) - holes} passed, {holes} failed", flush=True)
    return 0 if mutants and not holes else 1


async def _play(
    mutants: Sequence[Mutant], scenarios: Sequence[Scenario], jobs: int
) -> list[list[Outcome]]:
    """Plays the scenarios of each mutant; a few at once, since most of the time is patience."""
    at_once = max(1, jobs // len(mutants)) + 1
    plays = []
    for mutant in mutants:
        chosen = [s for s in scenarios if mutant.rules & set(s.rules) and s.is_for("python")]
        plays.append(
            play_all(_brief(chosen), [mutant.language], [], at_once, lambda _: None, replays=False)
        )
    return await asyncio.gather(*plays)


def _brief(scenarios: Sequence[Scenario]) -> list[Scenario]:
    """Returns the scenarios in plain where there is a choice: what they prove is the same."""
    plain = [s for s in scenarios if s.variant == "plain"]
    named = {s.name.partition("[")[0] for s in plain}
    return plain + [s for s in scenarios if s.name.partition("[")[0] not in named]
