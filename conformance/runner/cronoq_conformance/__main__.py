"""Decides how the suite is called.

    ./justw conformance [run] [--lang L] [--match PATTERN] [--json] [--junit FILE] [--jobs N]
    ./justw conformance list [--match PATTERN]
    ./justw conformance explain RULE
    ./justw conformance --mutants

The last line of a run is `N passed, N failed`; the exit code is 0 if all is as it should be.
"""

from __future__ import annotations

import argparse
import asyncio
import fnmatch
import os
import sys
from collections.abc import Sequence
from pathlib import Path

# Handshakes that scenarios let fail are no news; read when gRPC is loaded.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

from .languages import CONFORMANCE, ROOT, BuildError, Language, read_languages
from .mutants import main as run_mutants
from .report import (
    Outcome,
    as_json,
    complaint,
    page,
    read_known,
    stale,
    table,
    with_table,
    write_junit,
)
from .run import VERBS, play_all
from .scenario import Scenario, read_scenarios

JOBS = 12
PAGE = ROOT / "docs" / "reference" / "conformance.md"
README = ROOT / "README.md"


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(prog="./justw conformance", description=__doc__)
    parser.add_argument("command", nargs="?", default="run", choices=("run", "list", "explain"))
    parser.add_argument("rule", nargs="?", help="for explain: a rule's id, such as RR-07")
    parser.add_argument("--lang", action="append", help="only this language; may come twice")
    parser.add_argument("--match", default="*", help="only scenarios like this: group/name*")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--junit", "--junitxml", metavar="FILE", help="write a JUnit report")
    parser.add_argument("--jobs", type=int, default=JOBS, help=f"how many at once ({JOBS})")
    parser.add_argument("--quiet", action="store_true", help="only failures and the table")
    parser.add_argument(
        "--write-page", action="store_true", help="write the results into the documentation"
    )
    parser.add_argument(
        "--mutants", action="store_true", help="hold the suite against SDKs that are wrong"
    )
    return parser.parse_args(arguments)


def selected(scenarios: Sequence[Scenario], pattern: str) -> list[Scenario]:
    """Returns the scenarios whose full name is like a pattern, or has it in it."""
    return [
        scenario
        for scenario in scenarios
        if fnmatch.fnmatchcase(scenario.full_name, pattern) or pattern in scenario.full_name
    ]


def explain(scenarios: Sequence[Scenario], rule: str | None) -> int:
    """Prints the scenarios of a rule."""
    found = [scenario for scenario in scenarios if rule in scenario.rules]
    for scenario in found:
        print(f"{scenario.full_name}: {scenario.title}")
    if not found:
        print(f"no scenario proves {rule}")
    return 0 if found else 1


def announce(outcome: Outcome) -> None:
    """Prints one outcome as it comes."""
    word = "ok    " if outcome.is_good else "FAILED"
    name = f"{outcome.scenario.full_name} [{outcome.language}]"
    print(f"{word} {name} ({outcome.seconds:.1f} s)", file=sys.stderr, flush=True)


def run(options: argparse.Namespace, scenarios: list[Scenario], languages: list[Language]) -> int:
    """Plays what is asked for and tells how it went."""
    names = [language.name for language in languages]
    known = read_known(CONFORMANCE / "known_failing", names)
    chosen = selected(scenarios, options.match)
    quiet = options.quiet or options.json
    outcomes = asyncio.run(
        play_all(chosen, languages, known, options.jobs, (lambda _: None) if quiet else announce)
    )
    bad = [outcome for outcome in outcomes if not outcome.is_good]
    complaints = [complaint(outcome) for outcome in bad] + stale(known, scenarios)
    if options.junit:
        write_junit(outcomes, Path(options.junit))
    if options.write_page:
        PAGE.write_text(page(outcomes, names), encoding="utf-8")
        written = with_table(README.read_text(encoding="utf-8"), outcomes, names)
        README.write_text(written, encoding="utf-8")
    if options.json:
        print(as_json(outcomes))
    else:
        for text in complaints:
            print(text, end="\n\n")
        print(table(outcomes, names))
    failed = len(complaints)
    print(f"{len(outcomes) - len(bad)} passed, {failed} failed", flush=True)
    return 0 if outcomes and not failed else 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns the exit code."""
    options = parse(arguments)
    scenarios = read_scenarios(CONFORMANCE / "scenarios", frozenset(VERBS))
    if options.command == "explain":
        return explain(scenarios, options.rule)
    if options.command == "list":
        for scenario in selected(scenarios, options.match):
            print(f"{scenario.full_name}: {scenario.title} ({', '.join(scenario.rules)})")
        return 0
    languages = read_languages()
    unknown = set(options.lang or ()) - {language.name for language in languages}
    if unknown:
        print(f"no such language: {', '.join(sorted(unknown))}", file=sys.stderr)
        return 2
    if options.lang:
        languages = [language for language in languages if language.name in options.lang]
    if options.mutants:
        return run_mutants(scenarios, options.jobs)
    try:
        return run(options, scenarios, languages)
    except BuildError as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
